"""Base of the project's commands: groups that import a command when it is called, plain help, plain errors.

Laws:

* The names of a root's commands and their purposes are in a table: help, completion and a misspelt name import no
  command. A command imports only its own module.
* Every usage error is one line, `PROGRAM: what is wrong`, and exit code 2; for a name that is nearly right it adds "did
  you mean".
* Values are parsed here, not by Typer, which would import Pydantic and use its messages.
* Help and results whose reader has gone (`alpo --help | head -1`) end with 0. If they cannot be written otherwise, one
  line says so, and the exit code is 1.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from .exits import DONE, FAILED, USAGE, UsageProblem
from .output import lead_nowhere, say

Function = TypeVar("Function", bound=Callable[..., Any])

#: Errors of writing to a device that is full or broken.
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
#: Limits above this come from the machine, and are not shown.
_TOLD_MAX = 2**31 - 1
_SHOWN_CHARS_MAX = 80
#: Name of a command in other tools -> its names here, in one group or another.
ALSO_CALLED = {
    "list": ("names", "rows", "show"), "ls": ("list", "names", "rows"), "delete": ("rm", "remove", "drop"),
    "del": ("rm", "remove", "drop"), "remove": ("rm", "drop"), "rm": ("remove", "drop"), "put": ("set", "append"),
    "write": ("set", "append"), "incr": ("add",), "publish": ("append",), "produce": ("append",), "tail": ("read",),
    "consume": ("read",), "subscribe": ("watch", "read"), "campaign": ("elect",), "leader": ("elect", "status"),
    "transaction": ("txn",), "info": ("status", "show"), "members": ("member",), "health": ("doctor",),
}
_WHOLE = re.compile(r"[+-]?[0-9]{1,4000}")
_BLANK = re.compile(r"\n\s*\n")
_SENTENCE = re.compile(r"(?<=\.)\s")


class Entry(NamedTuple):
    """A command of a root. ``place``: MODULE:NAME of the function, or of a group's `App`."""

    name: str
    place: str
    panel: str
    help: str


class _Item(NamedTuple):
    """A completion for shells."""

    value: str
    help: str
    type: str = "plain"


class Wrong(typer.BadParameter):
    """A usage error whose message is complete in itself."""


def shown(value: object) -> str:
    """The user's value in quotes, for a message."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[: _SHOWN_CHARS_MAX - 1] + "…"


def did_you_mean(given: str, known: Sequence[str]) -> str:
    """Text ``; did you mean x?``, or ""."""
    near = get_close_matches(given, known, n=2, cutoff=0.66)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def process_value(param: Any, ctx: typer.Context, value: Any) -> Any:
    """Parse a parameter's value; replaces the parameter's own method `process_value`.

    Raises `Wrong`.
    """
    many = bool(getattr(param, "multiple", False)) or param.nargs != 1
    if value is None:
        value = () if many else None
    elif many:
        value = tuple(_read(param, one) for one in value)
    else:
        value = _read(param, value)
    if param.required and param.value_is_missing(value):
        raise Wrong(f"{spelt(param)} is missing; see {ctx.command_path} --help")
    return value if param.callback is None else param.callback(ctx, param, value)


def spelt(param: Any) -> str:
    """The parameter as people type it: ``--from``, or an argument's placeholder."""
    return str(max(param.opts, key=len)) if param.param_type_name == "option" else placeholder(param)


def _read(param: Any, given: Any) -> Any:
    if not isinstance(given, str):  # a default, or a flag
        return given
    described = param.type_descriptor
    kind = described.annotation
    if get_origin(kind) is list:
        kind = get_args(kind)[0]
    if described.choices is not None:
        return _choice(param, given, described.choices, described.case_sensitive)
    if kind is int:
        return _within(param, int(given) if _WHOLE.fullmatch(given) else None, given, "a whole number")
    if kind is float:
        try:
            number = float(given)
        except ValueError:
            number = float("nan")
        return _within(param, number if abs(number) < float("inf") else None, given, "a number")
    return Path(given) if kind is Path else given


def _within(param: Any, number: float | None, given: str, what: str) -> float:
    low, high = param.min, param.max
    if number is None:
        raise Wrong(f"{spelt(param)} must be {what}, not {shown(given)}")
    if (low is None or number >= low) and (high is None or number <= high):
        return number
    if low is not None and high is not None and high <= _TOLD_MAX:
        accepted = f"from {low:g} to {high}"
    elif low is not None and number < low:
        accepted = f"at least {low:g}"
    else:
        accepted = f"at most {high}"
    raise Wrong(f"{spelt(param)} must be {accepted}, not {given[:_SHOWN_CHARS_MAX]}")


def _choice(param: Any, given: str, choices: Sequence[Any], case_sensitive: bool) -> Any:
    names = [spell(choice) for choice in choices]
    for name, choice in zip(names, choices, strict=True):
        if name == given or (not case_sensitive and name.casefold() == given.casefold()):
            return choice
    accepted = " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    raise Wrong(f"{spelt(param)} must be {accepted}, not {shown(given)}{did_you_mean(given, names)}")


def spell(value: object) -> str:
    """A choice or a default as it is typed."""
    return str(value.value) if isinstance(value, Enum) else str(value)


def placeholder(param: Any) -> str:
    """Placeholder for the value in help: ``LSN``, ``a|b``."""
    described = param.type_descriptor
    if param.metavar is not None:
        name = str(param.metavar)
    elif param.param_type_name == "argument":
        name = param.name.upper()
    elif described.choices is not None:
        name = "|".join(spell(choice) for choice in described.choices)
    else:
        name = {int: "N", float: "NUMBER", Path: "PATH"}.get(described.annotation, "TEXT")
    return name if param.nargs == 1 or "…" in name else f"{name} …"


class _Plain:
    """Mixin for commands and groups with plain parameters and help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, --help included, with `process_value` replaced."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            param.process_value = partial(process_value, param)
        return params

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, text with examples, arguments, commands, options."""
        me: Any = self
        formatter.write_usage(ctx.command_path, " ".join(self._usage(ctx)))
        _write_text(formatter, me.help or "")
        params = [param for param in me.get_params(ctx) if not getattr(param, "hidden", False)]
        _write_rows(formatter, "Arguments", [
            (placeholder(p), p.help or "") for p in params if p.param_type_name == "argument"
        ])
        panels: dict[str, list[tuple[str, str]]] = {}
        for panel, *row in self.command_rows():
            panels.setdefault(panel, []).append((row[0], row[1]))
        for panel, rows in panels.items():
            _write_rows(formatter, panel, rows)
        options: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in (p for p in params if p.param_type_name == "option"):
            options.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append(_option_row(param))
        for panel, rows in options.items():
            _write_rows(formatter, panel, rows)

    def _usage(self, ctx: Any) -> Iterator[str]:
        me: Any = self
        yield "[OPTIONS]"
        for param in me.get_params(ctx):
            if param.param_type_name == "argument":
                yield placeholder(param) if param.required else f"[{placeholder(param)}]"
        if isinstance(me, TyperGroup):
            yield "COMMAND …"

    def command_rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield (panel, name, purpose) of each command of a group."""
        return iter(())


def _option_row(param: Any) -> tuple[str, str]:
    names = ", ".join(sorted(param.opts, key=len))
    if param.secondary_opts:
        names += f" / {', '.join(param.secondary_opts)}"
    if not param.is_flag and not param.count:
        names += f" {placeholder(param)}"
    default = param.show_default if isinstance(param.show_default, str) else None
    if default is None and param.show_default and param.default not in (None, False, True, "", ()):
        default = spell(param.default)
    extra = [f"default: {default}"] if default else []
    if param.required:
        extra.append("required")
    return names, " ".join([param.help or "", *(f"[{'; '.join(extra)}]" for _ in extra[:1])])


def _heading(text: str) -> str:
    return typer.style(text, bold=True) if sys.stdout.isatty() else text


def _write_rows(formatter: Any, title: str, rows: Sequence[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(_heading(title)):
            formatter.write_dl(rows)


def _write_text(formatter: Any, text: str) -> None:
    """Write paragraphs wrapped, and the lines below "Examples:" unchanged."""
    prose, _, examples = text.strip("\n").partition("\nExamples:\n")
    for paragraph in _BLANK.split(prose.rstrip()):
        formatter.write("\n")
        formatter.write_text(paragraph)
    if examples:
        formatter.write(f"\n{_heading('Examples')}:\n")
        formatter.write("".join(f"  {line.strip()}\n" for line in examples.splitlines() if line.strip()))


def purpose(help: str | None) -> str:
    """Purpose of a command: the first sentence of its help."""
    return _SENTENCE.split(" ".join(_BLANK.split((help or "").strip())[0].split()))[0].rstrip(".")


class Command(_Plain, TyperCommand):
    """A command with plain help."""


class Group(_Plain, TyperGroup):
    """A group of commands. As a root it ends the process, and reports errors in one line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, *rest = args
        command = self.get_command(ctx, name)
        if command is None and not ctx.resilient_parsing:
            known = self.list_commands(ctx)
            called = [other for other in ALSO_CALLED.get(name, ()) if other in known]
            near = f"; did you mean {' or '.join(called)}?" if called else did_you_mean(name, known)
            near = near or f"; see {ctx.command_path} --help"
            raise Wrong(f"there is no command {shown(name)}{near}")
        return name if command else None, command, rest

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def command_rows(self) -> Iterator[tuple[str, str, str]]:
        for name, command in self.commands.items():
            yield "Commands", name, purpose(command.short_help or command.help)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        found: list[Any] = [_Item(name, help) for _, name, help in self.command_rows() if name.startswith(incomplete)]
        return found + super(TyperGroup, self).shell_complete(ctx, incomplete)

    def main(self, args: Any = None, prog_name: str | None = None, *_: Any, **extra: Any) -> Any:
        """Run the command line; always ends with SystemExit."""
        _leave_rich_alone()
        extra["standalone_mode"] = False
        program = prog_name or self.name or "alpo"
        try:
            code = self._ended(args, program, extra)
            sys.stdout.flush()
        except BrokenPipeError:
            lead_nowhere(1)
            code = DONE
        except SystemExit as ending:
            # Typer ends like this when a reader has gone. If the BrokenPipeError has a context of its own, the pipe
            # broke while an error was reported, and that remains one.
            pipe = ending.__context__
            if not isinstance(pipe, BrokenPipeError) or pipe.__context__ is not None:
                raise
            code = DONE
        except OSError as error:
            if error.errno not in _CANNOT_WRITE or error.filename is not None:
                raise
            lead_nowhere(1)
            say(f"{program}: stdout cannot be written: {error.strerror}")
            code = FAILED
        sys.exit(code if isinstance(code, int) else 0)

    def _ended(self, args: Any, program: str, extra: Any) -> Any:
        """Run the command line; returns its exit code, if it has one."""
        try:
            return super().main(args, program, **extra)
        except typer.TyperException as error:
            say(f"{program}: {told(error)}")
            return error.exit_code
        except UsageProblem as error:
            say(f"{program}: {error}")
            return USAGE
        except typer.Abort:
            say(f"{program}: interrupted")
            return FAILED


class _Loaded(Mapping[str, Any]):
    """The commands of a table, each imported when first asked for."""

    def __init__(self, table: Sequence[Entry]) -> None:
        self.table = {entry.name: entry for entry in table}
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            module, _, attribute = self.table[name].place.partition(":")
            found = getattr(import_module(module), attribute)
            if not isinstance(found, typer.Typer):
                single = App()
                single.command(name)(found)
                found = single
            self._loaded[name] = typer.main.get_command(found)
            self._loaded[name].name = name
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)


def lazy(table: Sequence[Entry]) -> type[Group]:
    """Make a root class whose commands are those of the table."""
    class LazyGroup(Group):
        def __init__(self, **options: Any) -> None:
            super().__init__(**{**options, "commands": {}})
            self.commands: Any = _Loaded(table)

        def command_rows(self) -> Iterator[tuple[str, str, str]]:
            return ((entry.panel, entry.name, entry.help) for entry in table)

    return LazyGroup


class App(typer.Typer):
    """`typer.Typer` with `Group` and `Command`, and the settings that all roots share."""

    def __init__(self, **options: Any) -> None:
        fixed = {"cls": Group, "add_completion": False, "no_args_is_help": True, "rich_markup_mode": None,
                 "pretty_exceptions_enable": False,
                 "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100}}
        super().__init__(**{**fixed, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        return super().command(name, **{"cls": Command, **options})


def told(error: typer.TyperException) -> str:
    """A usage error in one plain line."""
    found: Any = error
    path = found.ctx.command_path if getattr(found, "ctx", None) is not None else ""
    see = f"; see {path} --help" if path else ""
    message = error.message.rstrip(".")
    if isinstance(error, Wrong):
        return error.message
    if isinstance(error, typer.BadParameter):
        hint = found.param_hint or (found.param.get_error_hint() if found.param is not None else "")
        hint = " / ".join(hint) if isinstance(hint, list | tuple) else str(hint).replace("'", "")
        return f"{hint}: {message}" if hint else message
    if hasattr(found, "possibilities"):
        near = " or ".join(found.possibilities or ())
        return f"there is no option {found.option_name}{f'; did you mean {near}?' if near else see}"
    if hasattr(found, "option_name"):
        return f"{found.option_name} {'takes no value' if 'not take a value' in message else 'needs a value'}"
    if extra := re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message, re.DOTALL):
        return f"unexpected argument {shown(extra[1])}{see}"
    if message == "Missing command":
        return f"a command is missing{see}"
    return message[:1].lower() + message[1:]


def _leave_rich_alone() -> None:
    """Keep Typer's completion for zsh and fish from importing rich, which would remove markup that our help texts
    lack."""
    from typer import _completion_classes

    if hasattr(_completion_classes, "_sanitize_help_text"):
        _completion_classes._sanitize_help_text = lambda text: text
