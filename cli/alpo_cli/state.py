"""Work of `alpo state`, but for `lock`: one variable read or written, lists, changes as they come.

Laws:

* Values are written as they are, and printed so, where that is no terminal. There, and in lines of several fields,
  control characters are escaped.
* A conditional write that fails has written nothing, and says what is there (exit 1).
"""

from __future__ import annotations

import base64
import io
import os
import sys
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from typing import Any

from alpo.errors import TooLarge
from alpo.state import Add, Changed, Expunge, If, Keep, Put, SnapshotInfo, State, StateStatus, Variable
from alpo.state.variable import VALUE_BYTES_MAX, Operation
from alpo.threads import in_thread

from . import running
from .appending import hint_on_terminal
from .exits import Failed, UsageProblem, reason
from .options import Target
from .output import Sink, counted, escape, escape_bytes, json_line, json_value, print_json, rfc3339, say, table
from .state_open import opened, write

_CHUNK_BYTES = 1 << 18


def variable_fields(variable: Variable) -> dict[str, Any]:
    """JSON keys of a variable."""
    time = None if variable.time is None else rfc3339(variable.time)
    return {
        "name": variable.name, "version": variable.version, "created": variable.created, "time": time,
        "lease_s": variable.lease_s, **value_fields(variable.value),
    }


def value_fields(value: bytes | None) -> dict[str, Any]:
    """JSON keys of a value: ``value`` if it is UTF-8 text, or None, and ``value_json`` beside it if that text is JSON;
    else ``value_base64``."""
    if value is None:
        return {"value": None}
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode("ascii")}
    with suppress(ValueError):
        return {"value": text, "value_json": json_value(text)}
    return {"value": text}


async def get(target: Target, name: str, local: bool, at_least: int | None, raw: bool) -> None:
    """Print a variable. Raises Failed if it is not there."""
    async with opened(target, local=local) as state:
        variable = await state.fetch(name, local=local, at_least=at_least)
    if variable.value is None:
        raise Failed(f"there is no variable {escape(name)}")
    if target.json:
        print_json(variable_fields(variable))
        return
    sink = Sink()
    shown = escape_bytes(variable.value).encode() if sink.terminal and not raw else variable.value
    await sink.write(shown if raw else shown + b"\n")


async def value_of(value: str | None, file: Path | None) -> bytes:
    """The value that the command line gives, else all of the file or of stdin. Raises UsageProblem, `TooLarge`."""
    if value is not None:
        data = os.fsencode(value)
    elif file is not None and str(file) != "-":
        try:
            with io.FileIO(file) as stream:
                data = await _all_of(stream)
        except OSError as error:
            raise UsageProblem(f"{file}: {reason(error)}") from error
    else:
        hint_on_terminal("the value")
        data = await _all_of(io.FileIO(sys.stdin.fileno(), closefd=False))
    if len(data) > VALUE_BYTES_MAX:
        raise TooLarge(f"a value of more than {VALUE_BYTES_MAX} bytes")
    return data


async def _all_of(stream: io.RawIOBase) -> bytes:
    """All of a stream, but no more than is too large."""
    parts, size = [], 0
    while size <= VALUE_BYTES_MAX and (chunk := await in_thread(stream.read, _CHUNK_BYTES)):
        parts.append(chunk)
        size += len(chunk)
    return b"".join(parts)


def set_(target: Target, name: str, data: bytes, version: int | None, lease_s: float | None) -> None:
    """Write a variable, and print its new version; ``version``: only if it is at that (0: not there). Raises Failed if
    it is not."""
    put = Put(name, data, lease_s=lease_s)
    guards = [] if version is None else [If(name, version=version)]
    fields: dict[str, Any] = {"name": name, "version": None, "changed": None}

    async def step(state: State) -> int:
        try:
            return await state.commit(guards, [put])
        except Changed as error:
            raise _changed(target, error) from error

    fields["version"] = running.run(write(target, fields, step))
    if target.json:
        print_json(fields)
    else:
        print(fields["version"])


def remove(target: Target, name: str, version: int | None) -> None:
    """Take a variable away; ``version``: only if it is at that. Raises Failed if it is not, or not there."""
    fields: dict[str, Any] = {"name": name, "version": None, "changed": None}

    async def step(state: State) -> int:
        while True:
            wanted = version or (await state.fetch(name)).version
            try:
                return await state.commit([If(name, version=wanted or 1)], [Expunge(name)])
            except Changed as error:
                if version is not None or error.version == 0:
                    raise _changed(target, error) from error

    fields["version"] = running.run(write(target, fields, step, create=False))
    if target.json:
        print_json(fields)
    else:
        say(f"{escape(name)} is gone")


def _changed(target: Target, error: Changed) -> Failed:
    """Print, with `--json`, what is there instead of what was expected; returns the error to raise."""
    if target.json:
        print_json({"name": error.name, "version": None, "changed": error.version})
    name = escape(error.name)
    if error.version == 0:
        return Failed(f"there is no variable {name}")
    return Failed(f"{name} is at {error.version}, {f'not at {error.expected}' if error.expected else 'not absent'}")


def transact(target: Target, text: bytes) -> None:
    """Do what a transaction in JSON says, all of it or nothing, and print its LSN, which is the version of all that it
    has written. Raises UsageProblem; Failed if a condition does not hold."""
    guards, operations = _transaction(text)
    fields: dict[str, Any] = {"version": None, "changed": None, "sums": None}

    async def step(state: State) -> tuple[int, list[int]]:
        try:
            command = await state.command([guard.plain() for guard in guards], [each.plain() for each in operations])
            result = await command.result()
        except Changed as error:
            raise _changed(target, error) from error
        return result.lsn, list(result.sums)

    fields["version"], fields["sums"] = running.run(write(target, fields, step))
    if target.json:
        print_json(fields)
    else:
        print(fields["version"])


def _transaction(text: bytes) -> tuple[list[If], list[Operation]]:
    """Conditions and operations of `alpo state txn`. Raises UsageProblem that names what is wrong."""
    where = "the transaction"
    guards: list[If] = []
    operations: list[Operation] = []
    try:
        given = _object(json_value(text.decode()), {"if", "do"})
        conditions, steps = given.get("if", []), given.get("do")
        if not isinstance(conditions, list) or not isinstance(steps, list) or not steps:
            raise ValueError('"if" is a list, and "do" a list that is not empty')
        for number, each in enumerate(conditions, 1):
            where = f'condition {number} of "if"'
            fields = _object(each, {"name", "version", "created"})
            guards.append(If(fields.get("name", ""), fields.get("version"), fields.get("created")))
            guards[-1].plain()
        for number, each in enumerate(steps, 1):
            where = f'operation {number} of "do"'
            operations.append(_operation(each))
            operations[-1].plain()
    except (TypeError, ValueError) as error:
        raise UsageProblem(f"{where}: {error}") from error
    return guards, operations


def _object(given: Any, keys: Set[str]) -> dict[str, Any]:
    """``given``, a JSON object with no other ``keys``. Raises TypeError."""
    if not isinstance(given, dict):
        raise TypeError("a JSON object is wanted")
    if unknown := sorted(given.keys() - keys):
        raise TypeError(f"there is no key {unknown[0]!r} here; there are {', '.join(sorted(keys))}")
    return given


#: Operation of a transaction -> the other keys that it takes.
_KEYS = {"put": {"value", "value_json", "value_base64", "lease_s"}, "expunge": set(), "add": {"number"},
         "keep": {"lease_s"}}


def _operation(each: Any) -> Operation:
    """One of "do". Raises TypeError, ValueError."""
    verbs = [verb for verb in _KEYS if isinstance(each, dict) and verb in each]
    if len(verbs) != 1:
        raise TypeError(f"a JSON object with one of the keys {', '.join(_KEYS)} is wanted")
    verb = verbs[0]
    given = _object(each, {verb, *_KEYS[verb]})
    name, lease_s = given[verb], given.get("lease_s")
    if verb == "add":
        return Add(name, given.get("number", 1))
    if verb == "keep":
        return Keep(name, lease_s)
    if verb == "expunge":
        return Expunge(name)
    values = [(key, given[key]) for key in ("value", "value_json", "value_base64") if key in given]
    if len(values) != 1:
        raise TypeError("put takes one of value, value_json and value_base64")
    key, value = values[0]
    if key == "value_json":
        return Put(name, json=value, lease_s=lease_s)
    if not isinstance(value, str):
        raise TypeError(f"{key} is text")
    return Put(name, base64.b64decode(value, validate=True) if key == "value_base64" else value, lease_s=lease_s)


def add(target: Target, name: str, number: int) -> None:
    """Add to a counter, and print the sum."""
    fields: dict[str, Any] = {"name": name, "version": None, "value": None}
    operations = [Add(name, number).plain()]

    async def step(state: State) -> tuple[int, int]:
        result = await (await state.command([], operations)).result()
        return result.lsn, result.sums[0]

    fields["version"], fields["value"] = running.run(write(target, fields, step))
    if target.json:
        print_json(fields)
    else:
        print(fields["value"])


async def names(target: Target, prefix: str, owner: str | None) -> None:
    """Print the names of variables, or of the rows of ``owner``, that begin with ``prefix``."""
    sink = Sink()
    async with opened(target) as state:
        of = state if owner is None else state.rows(owner)
        found = [name for name in await of.names() if name.startswith(prefix)]
        lines = found
        if target.json:
            versions = [(name, (await of.fetch(name, local=True)).version) for name in found]
            lines = [json_line({"name": name, "version": version}) for name, version in versions if version]
        elif sink.terminal:
            lines = [escape(name) for name in found]
    await sink.write("".join(f"{line}\n" for line in lines).encode())


async def watch(target: Target, prefix: str, every: bool) -> None:
    """Print what is there, and then every change, until cancelled."""
    sink = Sink()
    async with opened(target) as state, state.watch(prefix, every=every) as changes:
        async for variable in changes:
            await sink.write(_change_line(target, variable).encode())


def _change_line(target: Target, variable: Variable) -> str:
    gone = variable.value is None
    if target.json:
        return json_line({**variable_fields(variable), "gone": gone}) + "\n"
    shown = "" if variable.value is None else escape_bytes(variable.value)
    return f"{escape(variable.name)}\t{'gone' if gone else variable.version}\t{shown}".rstrip("\t") + "\n"


def follow(target: Target, prefix: str, every: bool) -> None:
    """Watch until Ctrl-C, which is no error."""
    with suppress(KeyboardInterrupt):
        running.run(watch, target, prefix, every)


async def status(target: Target) -> None:
    """Print what the fold has."""
    async with opened(target) as state:
        found = await state.status(local=True)
    if target.json:
        print_json({**found._asdict(), "time": rfc3339(found.time)})
    else:
        table("", ["field", "value"], _status_rows(found))


def _status_rows(found: StateStatus) -> list[list[str]]:
    def span(snapshot: tuple[int, int] | None) -> str:
        return "-" if snapshot is None else f"LSN {snapshot[0]}, written up to {snapshot[1]}"

    return [
        ["state", found.state], ["LSN", str(found.lsn)], ["time", rfc3339(found.time)],
        ["variables", str(found.variables)], ["bytes", str(found.bytes)], ["invalid payloads", str(found.invalid)],
        ["last payload of others", str(found.foreign_lsn or "-")], ["snapshot", span(found.snapshot)],
        ["the one before", span(found.previous)], ["bytes since", str(found.bytes_since)],
    ]


def snapshot(target: Target, trim: bool) -> None:
    """Put the state into the log, and print where."""
    async def step(state: State) -> SnapshotInfo:
        return await state.snapshot(trim=trim)

    nothing = dict.fromkeys(SnapshotInfo._fields)
    done = running.run(write(target, nothing, step, create=False))
    if target.json:
        print_json(done._asdict())
        return
    size = counted(done.bytes, "byte")
    say(f"a snapshot of LSN {done.begin}, {size} in {counted(done.parts, 'part')}, is in the log up to LSN {done.end}")
    say(f"the log begins at LSN {done.first_lsn}")
