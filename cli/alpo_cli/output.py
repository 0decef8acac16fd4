"""Output of commands: results on stdout, messages for people on stderr, and there, on a terminal, the progress of what
takes longer than two seconds.

Laws:

* stdout has results only, one a line or one JSON object a line.
* Text from outside (payloads, names, details) reaches a terminal with all characters escaped that do not show as
  themselves: control characters, and those that change the direction of text, hide in it or break its line.
* If a message, or a line of progress, cannot be written any more, nothing else changes.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO, cast

from alpo.threads import in_thread

#: Unicode's control and format characters, surrogates, line and paragraph separators. Line feeds are included: a
#: payload is one line on a terminal.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: Format characters used in many languages and in emoji: zero width non-joiner and joiner.
_JOINERS = "\u200c\u200d"
#: Writer of values, as `json_line` writes them, which refuses what is no JSON.
_AGAIN = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e"}

AFTER_S = 2.0
EVERY_S = 0.25

#: Called with (what is done, how far, of how much).
Step = Callable[[str, int, int], None]


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _UNSEEN or character in _JOINERS:
        return character
    code = ord(character)
    escaped = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return _NAMED.get(character, escaped)


def escape(text: str) -> str:
    """``text`` with every character escaped that does not show as itself."""
    return text if text.isprintable() else "".join(map(_visible, text))


def escape_bytes(payload: bytes) -> str:
    """A payload for a terminal: UTF-8 where valid, ``\\xNN`` for other bytes, invisible characters escaped."""
    return escape(payload.decode("utf-8", "backslashreplace"))


def counted(number: int, one: str, many: str = "") -> str:
    """A number with its noun: ``1 server``, ``3 servers``, ``1,200 entries``."""
    if number == 1:
        return f"1 {one}"
    return f"{number:,} {many or (f'{one[:-1]}ies' if one.endswith('ry') else f'{one}s')}"


def say(text: str) -> None:
    """Print a message for people on stderr. Its own line breaks stay; other control characters are escaped."""
    try:
        print("\n".join(escape(line) for line in text.split("\n")), file=sys.stderr, flush=True)
    except OSError:
        lead_nowhere(2)


def says_yes() -> bool:
    """Ask on stderr whether to go on; True if the terminal answers yes."""
    print("Type yes to go on: ", end="", file=sys.stderr, flush=True)  # input(text) asks on stdout, which may be a pipe
    return sys.stdin.readline().strip() == "yes"


def lead_nowhere(descriptor: int) -> None:
    """Have all that is still written to a standard stream vanish: the interpreter writes what is left when it exits,
    and an error there would become the exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def remark(text: str) -> None:
    """Print a remark on what stdout shows: below it on a terminal, else on stderr, so that a pipe has results only."""
    if sys.stdout.isatty():
        print(escape(text))
    else:
        say(text)


def stand_in_for_closed_streams() -> None:
    """Replace closed standard streams (`alpo … >&-`), so that no other file gets number 0, 1 or 2, and using the stream
    fails as it should.

    Messages for a stderr that is closed, or a terminal that has gone, are lost silently.
    """
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free number: this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = cast(TextIO, _Messages(sys.stderr or open(2, "w", closefd=False)))  # noqa: SIM115


class _Messages:
    """stderr that loses silently what cannot be written: progress that nobody sees ends no import."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            lead_nowhere(2)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            lead_nowhere(2)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def json_line(fields: dict[str, Any]) -> str:
    """A JSON object on one line, without line end. Plain ASCII on a terminal, so that no character misbehaves there."""
    return json.dumps(fields, ensure_ascii=sys.stdout.isatty(), separators=(", ", ": "))


def print_json(fields: dict[str, Any]) -> None:
    """Print a JSON line to stdout and flush it, so that its reader need not wait for the next."""
    print(json_line(fields), flush=True)


def json_value(text: str) -> Any:
    """The value of a JSON text. Raises ValueError for what is none, or could not be written again: NaN, Infinity and
    1e999, half of a surrogate pair, and what is nested too deeply."""
    try:
        value = json.loads(text, parse_constant=_no_json)
        _AGAIN.encode(value).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def rfc3339(time: datetime) -> str:
    """Time in RFC 3339, UTC, with milliseconds: ``2026-01-31T08:00:00.000Z``."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rfc3339_ms(time_ms: int) -> str:
    """Milliseconds since 1970 in RFC 3339."""
    return rfc3339(datetime.fromtimestamp(time_ms / 1000, UTC))


def payload_fields(payload: bytes) -> dict[str, str]:
    """JSON keys of a payload: ``payload`` if it is UTF-8 text, else ``payload_base64`` (standard alphabet, padded)."""
    try:
        return {"payload": payload.decode("utf-8")}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode("ascii")}


def table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Print a table on stdout, nothing cut off: drawn on a terminal, else a line for each row.

    Such lines have tabs between cells, for cut and awk (`escape` leaves no tab in a cell); the first line has the
    column names, and there is no title. If a terminal is too narrow, the table is drawn without lines, then transposed,
    then as a block of lines for each row.
    """
    rows = [[escape(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw(title, columns, rows)
        return
    for line in ([columns] if any(columns) else []) + rows:
        print("\t".join(line))


def _draw(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Draw the first form that fits the terminal's width; if none does, a block of lines for each row."""
    from rich.box import HEAVY_HEAD  # imported here: most commands draw nothing and should start fast
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    unbounded = Console(width=1 << 20, height=100)  # a dumb terminal without a height would count as 80 wide
    first, *others = map(list, zip(columns, *rows, strict=True))
    for heads, lines in ((columns, rows), (first, others)):
        for box in (HEAVY_HEAD, None):
            drawn = Table(title=title or None, title_justify="left", header_style="bold", box=box,
                          pad_edge=box is not None)
            for head in heads:
                drawn.add_column(Text(head), no_wrap=True)
            for line in lines:
                drawn.add_row(*map(Text, line))
            if (width := unbounded.measure(drawn).maximum) <= Console().width:
                Console(width=max(width, 1), height=100).print(drawn)
                return
    aside = max(map(len, columns))
    for number, row in enumerate(rows):
        print("\n" * (number > 0), end="")
        for head, cell in zip(columns, row, strict=True):
            print(f"{head:<{aside}}  {cell}")


class Sink:
    """stdout for large output: whole chunks written to the file descriptor, in a thread.

    So a reader that pauses (a pager) stops neither the connections' heartbeats nor Ctrl-C.
    """

    def __init__(self) -> None:
        sys.stdout.flush()
        self._fd = sys.stdout.fileno()
        self.terminal = sys.stdout.isatty()

    async def write(self, chunk: bytes) -> None:
        """Write all of the chunk. Raises BrokenPipeError if nobody reads any more."""
        await in_thread(self._write_all, chunk)

    def _write_all(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(self._fd, rest) :]


def on_terminal() -> bool:
    """True if stderr is a terminal."""
    return sys.stderr.isatty()


async def keep_line(text: Callable[[], str]) -> None:
    """Show ``text()`` on the terminal, once it has been non-empty for two seconds, and update it, until cancelled."""
    from anyio import sleep

    if not on_terminal():
        return
    since_s, drawn = time.monotonic(), False
    try:
        while True:
            line = text()
            if not line:
                since_s = time.monotonic()
            due = time.monotonic() - since_s >= AFTER_S
            if due or drawn:
                _draw_line(line if due else "")
            drawn = due
            await sleep(EVERY_S)
    finally:
        if drawn:
            _draw_line("")


def _draw_line(line: str) -> None:
    """Draw the line over the previous one, cut to the terminal's width."""
    from shutil import get_terminal_size

    shown = escape(line)[: max(get_terminal_size().columns - 1, 1)]
    print(f"\r\x1b[K{shown}", end="", file=sys.stderr, flush=True)


@contextmanager
def slow_progress() -> Iterator[Step]:
    """Yield a function to call at every step; nothing is drawn if stderr is no terminal."""
    began_s, shown, draws = time.monotonic(), on_terminal(), list[Step]()

    def step(what: str, done: int, all: int) -> None:
        if shown and not draws and time.monotonic() - began_s > AFTER_S:
            draws.append(_begin_bar(stack))
        for draw in draws:
            draw(what, done, all)

    with ExitStack() as stack:
        yield step


def _begin_bar(stack: ExitStack) -> Step:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    task = bar.add_task("", total=None)
    return lambda what, done, all: bar.update(task, description=what, completed=done, total=all or None)
