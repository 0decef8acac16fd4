"""Sources of alpod's configuration: a TOML file, overridden by the environment, overridden by flags.

Laws:

* What `load_config` returns is whole and consistent. Any fault is one `ConfigError` of one line that names the file (or
  the variable, or the command line), the key, the value given and what is accepted.
* Every key is also a variable, ALPOD_KEY or ALPOD_TABLE_KEY. An empty variable counts as not set.
* `as_toml` of what was loaded, loaded again, is the same.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from .config import TABLES, TLS_FILES, Config, ConfigError

_PREFIX = "ALPOD_"
_SHOWN_CHARS_MAX = 80
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}")
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_DECIMAL = re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,3})?")


class Loaded(NamedTuple):
    """A configuration and its sources: (key,) or (table, key) -> where the value is from; keys with defaults are left
    out."""

    config: Config
    sources: dict[tuple[str, ...], str]


def load_config(path: Path | None, overrides: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Loaded:
    """Load the configuration from the file ``path`` (None: none), the variables of ``environ``, which override it, and
    ``overrides``, which override both.

    Keys of ``overrides`` are the file's top-level keys; None and [] mean "flag not given". ``member`` is a list of
    "ID=HOST:PORT" and replaces the whole list. Raises `ConfigError`.
    """
    given: dict[str, Any] = _with_paths_beside(read_file(path), path)
    sources = {key: str(path) for key in _keys(given)}
    for key, (variable, value) in _from_environment(environ or {}).items():
        *table, name = key
        place = given.setdefault(table[0], {}) if table else given
        if isinstance(place, dict):  # otherwise the file is wrong, and validation says so
            place[name] = value
        sources[key] = f"environment: {variable}"
    flags = {key: value for key, value in overrides.items() if value is not None and value != []}
    if "member" in flags:
        flags["member"] = [_parse_member(text, "command line: --member") for text in flags["member"]]
    sources |= {(key,): "command line: --" + key.replace("_", "-") for key in flags}
    try:
        return Loaded(Config.model_validate({**given, **flags}), sources)
    except ValidationError as error:
        # A misspelt key is both unknown and missing: report the unknown one.
        first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        raise ConfigError(_explain(first, path, sources)) from None


def _with_paths_beside(given: dict[str, Any], path: Path | None) -> dict[str, Any]:
    """``given`` with the files of certificates as the file ``path`` means them: beside itself."""
    table = given.get("tls")
    if path is None or not isinstance(table, dict):
        return given
    beside = {key: str(path.parent / table[key]) for key in TLS_FILES if isinstance(table.get(key), str) and table[key]}
    return {**given, "tls": {**table, **beside}}


def _keys(given: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, value in given.items():
        if isinstance(value, dict) and key in TABLES:
            yield from ((key, name) for name in value)
        else:
            yield (key,)


# -- the environment ------------------------------------------------------------------------------------

def variables() -> dict[str, tuple[str, ...]]:
    """Every environment variable of alpod and its key: (key,) or (table, key)."""
    found: dict[str, tuple[str, ...]] = {}
    for table, model in TABLES.items():
        for name in model.model_fields:
            if (table, name) == ("tls", "roles"):  # text by text, for which the environment has no form
                continue
            if table != "member" and (table or name not in TABLES or name == "member"):
                key = (table, name) if table else (name,)
                found[_PREFIX + "_".join(key).upper()] = key
    return found


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Environment variables that begin like alpod's but are not among them, sorted."""
    known = variables()
    return sorted(name for name in environ if name.startswith(_PREFIX) and name not in known)


def _from_environment(environ: Mapping[str, str]) -> dict[tuple[str, ...], tuple[str, Any]]:
    """Key -> (variable, value), without empty variables. A value that cannot be read as its key's type stays text,
    which validation then refuses."""
    found: dict[tuple[str, ...], tuple[str, Any]] = {}
    for variable, key in variables().items():
        text = environ.get(variable, "").strip()
        if not text:
            continue
        value: Any = text
        kind = str(TABLES[key[0] if len(key) > 1 else ""].model_fields[key[-1]].annotation)
        if key == ("member",):
            value = [_parse_member(part.strip(), f"environment: {variable}") for part in text.split(",")]
        elif "int" in kind and _WHOLE.fullmatch(text):
            value = int(text)
        elif "float" in kind and _DECIMAL.fullmatch(text):
            value = float(text)
        elif "bool" in kind and text in ("true", "false"):
            value = text == "true"
        found[key] = (variable, value)
    return found


def read_file(path: Path | None) -> dict[str, Any]:
    """The file's content, unchecked; {} without a file. Raises `ConfigError`."""
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: byte {error.start} is not UTF-8") from None
    except ValueError as error:  # TOMLDecodeError, or a number with more digits than int() takes
        raise ConfigError(f"{path}: is not TOML: {error}") from None


def _parse_member(text: str, where: str) -> dict[str, Any]:
    id, equals, address = text.partition("=")
    if not (equals and id.isascii() and id.isdigit() and len(id) <= 10):
        raise ConfigError(f"{where} {_show(text)}: must be ID=HOST:PORT")
    return {"id": int(id), "address": address}


def _explain(error: ErrorDetails, path: Path | None, sources: Mapping[tuple[str, ...], str]) -> str:
    """Error text of one line: source, key, the value given, what is accepted."""
    loc, value = error["loc"], error["input"]
    if error["type"] == "wrong":
        loc, value = loc + error["ctx"]["loc"], error["ctx"]["value"]
    source = sources.get(tuple(map(str, loc[:2])), sources.get((str(loc[0]),), ""))
    if source.startswith("environment: "):
        rest = loc[1:] if loc[0] == "member" else ()
        key = source + "".join(f" {_dotted((part,))}" for part in rest)
    elif path is None or source.startswith("command line: "):
        key = "command line: --" + _dotted(loc).replace("_", "-")
    else:
        key = f"{path}: {_dotted(loc)}"
    if error["type"] == "wrong" and value is None:
        return f"{key} is missing: {error['ctx']['accepted']}"
    if error["type"] == "missing":
        return f"{key} is missing: must be {_accepted(loc)}"
    if error["type"] == "extra_forbidden":
        return f"{key} = {_show(value)} is not a known key: {_nearest(loc)}"
    accepted = error["ctx"]["accepted"] if error["type"] == "wrong" else f"must be {_accepted(loc)}"
    return f"{key} = {_show(value)}: {accepted}"


def _dotted(loc: tuple[int | str, ...]) -> str:
    """A key as a reader of the file would name it; entries of the member list count from 1."""
    parts = [f"number {part + 1}" if isinstance(part, int) else _bare(part) for part in loc]
    return (" " if loc[0] == "member" else ".").join(parts)


def _bare(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _show(key)


def _accepted(loc: tuple[int | str, ...]) -> str:
    if len(loc) == 2 and isinstance(loc[1], int):
        return "a table: [[member]]"
    table = TABLES[str(loc[0]) if len(loc) > 1 else ""]
    return str(table.model_fields[str(loc[-1])].description)


def _nearest(loc: tuple[int | str, ...]) -> str:
    """A hint at the known key that was meant, searched in the same table first; else all keys of that table."""
    own = str(loc[0]) if len(loc) > 1 else ""
    for name in [own, *(name for name in TABLES if name != own)]:
        found = difflib.get_close_matches(str(loc[-1]), TABLES[name].model_fields, n=1, cutoff=0.7)
        if found:
            place = "" if name == own else f" in [{name}]" if name else " at the top of the file"
            return f"did you mean {found[0]}{place}?"
    return f"must be one of {', '.join(TABLES[own].model_fields)}"


def _show(value: object) -> str:
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= _SHOWN_CHARS_MAX else shown[: _SHOWN_CHARS_MAX - 1] + "…"


def as_toml(loaded: Loaded) -> str:
    """The configuration in force as TOML, each key with its source; loading it gives the same configuration."""
    config, sources = loaded
    lines = [_line(config, sources, (), name) for name in Config.model_fields if name not in TABLES]
    for member in config.member:
        lines += ["", "[[member]]", *(f"{key} = {_toml(value)}" for key, value in member.model_dump().items())]
    for table in ("timers", "settings", "limits", "retention", "storage", "logs", *(["tls"] if config.tls else [])):
        own = getattr(config, table)
        lines += ["", f"[{table}]", *(_line(own, sources, (table,), name) for name in type(own).model_fields)]
    return "\n".join(lines) + "\n"


def differences(old: Config, new: Config) -> list[str]:
    """The dotted keys whose values differ."""
    found = []
    for name in Config.model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if isinstance(before, BaseModel) and isinstance(after, BaseModel):
            own = type(before).model_fields
            found += [f"{name}.{key}" for key in own if getattr(before, key) != getattr(after, key)]
        elif before != after:
            found.append(name)
    return found


def _line(table: BaseModel, sources: Mapping[tuple[str, ...], str], place: tuple[str, ...], name: str) -> str:
    value = getattr(table, name)
    source = _show(sources.get((*place, name), "default"))[1:-1]
    return f"# {name} is not set" if value is None else f"{name} = {_toml(value)}  # {source}"


def _toml(value: object) -> str:
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007F")
