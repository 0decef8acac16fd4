"""The live view's screen: a terminal that is drawn on and whose keys are read one by one, given back as it was found,
and the drawing on it with rich, as lines that fit.

Laws of the terminal:

* Whatever ends or stops the program, but kill -9, first shows the terminal's own screen and cursor and sets its own
  modes.
* In the background the terminal is another's: nothing is drawn, read or set there.
* Nothing waits for a terminal that takes no more output, but the thread that writes.

Laws of the drawing:

* All text is escaped before it is styled, and none of it is read as markup.
* Nothing is said by colour alone.
* A narrow screen has fewer columns, a low one fewer lines; the last line says which keys there are.
"""

from __future__ import annotations

import io
import os
import select
import signal
import termios
import threading
import tty
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from typing import Any

import anyio
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from alpo.health import Verdict
from alpo.threads import in_thread

from ..output import escape
from .rows import COLUMNS, KEYS, LOG_HEADS, Page, Row, Tone, View, details, events, fitting, log_rows, numbers, rows
from .sight import Sight, rate, rates, says, sentence

_KEYS_BYTES = 1024
_NO_SIZE = (80, 24)
#: Seconds between two looks whether the process is in the foreground again.
LOOK_S = 0.2
#: Seconds that a frame which is being written has to be whole, at the end.
_GRACE_S = 0.5


class Terminal:
    """The terminal of this process: ``out`` draws, ``keys`` reads; None: there are none to read."""

    def __init__(self, out: int, keys: int | None, encoding: str) -> None:
        self._out = out
        self._keys = keys
        self._encoding = encoding
        self._buffer = io.StringIO()
        self._console = Console(file=self._buffer, force_terminal=True, markup=False, emoji=False, highlight=False)
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._modes: list[Any] | None = None
        self._drawing = False
        self._written = threading.Event()
        self._written.set()

    def enter(self) -> None:
        """Take the terminal; may be repeated, to take it anew. Only for the foreground.

        Raises OSError once the terminal is gone.
        """
        if self._keys is not None:
            try:
                if self._modes is None:
                    self._modes = termios.tcgetattr(self._keys)
                tty.setcbreak(self._keys, termios.TCSANOW)
            except termios.error as error:
                raise OSError(*error.args) from error
        if self._drawing:
            self._live.stop()
            self._taken()
        self._live.start()
        self._drawing = True
        self._write(self._taken())

    def leave(self) -> None:
        """Give the terminal back, if it is still there."""
        modes, self._modes = self._modes, None
        drawing, self._drawing = self._drawing, False
        self._live.stop()
        told = self._taken()
        if not self.foreground():
            return  # the shell has set its own modes
        with suppress(OSError):
            if drawing and self._written.wait(_GRACE_S) and select.select([], [self._out], [], 0)[1]:
                self._write(told)
        if modes is not None and self._keys is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSANOW, modes)

    def stop(self) -> None:
        """Give the terminal back, and stop as Ctrl-Z does; returns once continued."""
        self.leave()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # the signal does nothing where no shell would continue the process
        signal.signal(signal.SIGTSTP, handler)

    async def draw(self, frame: Frame) -> None:
        """Draw a frame. Raises OSError once the terminal is gone."""
        self._console.size = self._size()
        self._live.update(frame, refresh=True)
        drawn = self._taken()
        if self.foreground():  # drawing takes long enough for a shell to take the terminal
            self._written.clear()
            await in_thread(self._write, drawn)  # left to itself if cancelled

    async def keys(self) -> AsyncIterator[bytes]:
        """Keys as they are pressed; ends when the terminal is gone."""
        while self._keys is not None:
            await anyio.wait_readable(self._keys)
            if not self.foreground():  # the keys are another's
                await anyio.sleep(LOOK_S)
                continue
            if not select.select([self._keys], [], [], 0)[0]:
                continue  # another has read it meanwhile
            try:
                pressed = os.read(self._keys, _KEYS_BYTES)
            except OSError:
                return
            if not pressed:
                return
            yield pressed

    def _taken(self) -> bytes:
        """Bytes drawn since the last call."""
        text = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return text.encode(self._encoding, "replace")

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._out, rest) :]
                except BlockingIOError:
                    select.select([], [self._out], [])
        finally:
            self._written.set()

    def _size(self) -> tuple[int, int]:
        try:
            width, height = os.get_terminal_size(self._out)
        except OSError:
            return _NO_SIZE
        return (width or _NO_SIZE[0], height or _NO_SIZE[1])

    def foreground(self) -> bool:
        """True unless the terminal is another job's, as the shell has it."""
        try:
            return os.tcgetpgrp(self._out) == os.getpgrp()
        except OSError:  # the terminal does not control this process: nobody else takes it
            return True


GAP = 2
#: Seconds in the small curve of the rate.
CURVE_S = 60
_CURVE = "▁▂▃▄▅▆▇█"
_STATE = {Verdict.OK: ("All is well.", "bold green"), Verdict.WARN: ("⚠ Attention.", "bold yellow"),
          Verdict.BAD: ("⚠ Trouble.", "bold red")}
_TONES = {Tone.GOOD: "", Tone.WARN: "yellow", Tone.BAD: "red", Tone.GONE: "dim"}
_HINT = "q quit  p pause  1-9 server  e events  ? help"
_HELP = (
    ("log", "the LSNs that the server serves; extent: the part of the whole log that these are"),
    ("lag", "entries by which its guaranteed mark is behind the highest one, and since when"),
    ("round trip", "to the leader and back, as the leader's system measures it"),
    ("commit", "the mean of about the last ten commits"),
    ("fsync p99", "99 % of the commits of the last five minutes were faster"),
    ("disk free", "on the file system of its data directory"),
)


class Frame:
    """The screen for one sight and one view; renderable."""

    def __init__(self, sight: Sight, view: View) -> None:
        self._sight = sight
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = console.size
        options = options.update(width=width)
        room = max(1, height - 1) if height > 2 else height
        lines: list[list[Segment]] = []
        for text in self._body(width, height):
            lines += console.render_lines(text, options, pad=False)
            if len(lines) >= room:
                break
        lines = lines[:room]
        if height > 2:
            lines += [[]] * (room - len(lines))
            lines += console.render_lines(self._foot(width), options, pad=False)[:1]
        for number, line in enumerate(lines):
            if number:
                yield Segment.line()
            yield from line

    def _body(self, width: int, height: int) -> Iterator[Text]:
        yield self._head(width)
        yield from self._state()
        yield Text("")
        if self._view.page is Page.HELP:
            yield from _pairs([*KEYS, ("", ""), *_HELP])
        elif self._view.page is Page.EVENTS:
            yield from self._events(height)
        elif self._view.page is Page.SERVER:
            yield from self._server()
        else:
            yield from self._members(width)

    def _head(self, width: int) -> Text:
        name = f"ALPO cluster {escape(self._sight.cluster or '')[:8]}".rstrip()
        at = f"{self._sight.at:%H:%M:%S} UTC"
        told = f"paused at {at}" if self._view.paused else at
        head = Text(no_wrap=True, overflow="ellipsis")
        head.append(name, "bold")
        head.append(" " * max(2, width - cell_len(name) - cell_len(told)))
        head.append(told, "bold yellow" if self._view.paused else "dim")
        return head

    def _state(self) -> Iterator[Text]:
        verdict = self._sight.verdict
        told = sentence(self._sight)
        word, style = _STATE[verdict]
        if verdict is Verdict.OK and not self._sight.there:
            word = ""
        yield Text(f"{word} ", style, end="").append(escape(told), "not bold default") if word else Text(escape(told))
        if self._sight.findings:
            yield Text(escape(says(self._sight.findings[0])))

    def _members(self, width: int) -> Iterator[Text]:
        yield self._rate(width)
        yield Text("   ").join(
            Text(f"{label} ", "dim").append(told, "not dim") for label, told in numbers(self._sight)
        )
        yield Text("")
        yield from _table(rows(self._sight), width)
        if logs := log_rows(self._sight):
            yield Text("")
            yield from _logs(logs)
        if more := self._sight.findings[1:]:
            yield Text("")
            for finding in more:
                yield Text(escape(says(finding)))

    def _rate(self, width: int) -> Text:
        now = rate(self._sight.marks)
        told = Text("appends a second ", "dim", no_wrap=True)
        told.append("-" if now is None else f"{now:,.0f}", "not dim bold")
        seconds = min(CURVE_S, width - cell_len(told.plain) - GAP)
        if seconds > 0:
            told.append(" " * GAP + curve(rates(self._sight.marks, self._sight.now_s, seconds)), "not dim")
        return told

    def _server(self) -> Iterator[Text]:
        known = details(self._sight, self._view.server)
        yield Text(f"Server {self._view.server}", "bold")
        yield from _pairs(known or [("", "There is no server of this id.")])

    def _events(self, height: int) -> Iterator[Text]:
        yield Text("Newest events", "bold")
        for name, why in self._sight.no_events:
            yield Text(escape(f"Missing: the events of {name} ({why})."))
        if self._sight.events is None:
            yield Text("Not asked for yet: p goes on." if self._view.paused else "Asking for them.")
        for at, told in events(self._sight, max(1, height - 7 - len(self._sight.no_events))):
            yield Text(f"{at}  ", "dim", no_wrap=True, overflow="ellipsis").append(told, "not dim")

    def _foot(self, width: int) -> Text:
        back = self._view.page is not Page.MEMBERS
        text = f"Esc back  {_HINT}" if back else _HINT
        return Text(set_cell_size(text, width), "reverse", no_wrap=True, overflow="crop")


def curve(values: Sequence[float | None]) -> str:
    """The values as a curve of one line; blanks where nothing is known."""
    known = [value for value in values if value is not None]
    top = max(known, default=0.0)
    return "".join(
        " " if value is None else _CURVE[min(len(_CURVE) - 1, int(value / top * len(_CURVE)))] if top else _CURVE[0]
        for value in values
    )


def _pairs(pairs: Sequence[tuple[str, str]]) -> Iterator[Text]:
    aside = max((cell_len(label) for label, _ in pairs), default=0) + GAP
    for label, told in pairs:
        yield Text(set_cell_size(label, aside) if told else "", "dim").append(told, "not dim")


def _logs(found: Sequence[tuple[list[str], Tone]]) -> Iterator[Text]:
    lines = [([head for head, _ in LOG_HEADS], "dim"), *((cells, _TONES[tone]) for cells, tone in found)]
    widths = [max(cell_len(cells[at]) for cells, _ in lines) for at in range(len(LOG_HEADS))]
    for cells, style in lines:
        text = Text(style=style, no_wrap=True, overflow="ellipsis")
        for (_, right), cell, wide in zip(LOG_HEADS, cells, widths, strict=True):
            space = " " * (wide - cell_len(cell))
            text.append((space + cell if right else cell + space) + " " * GAP)
        text.rstrip()
        yield text


def _table(found: Sequence[Row], width: int) -> Iterator[Text]:
    cells = [[column.head for column in COLUMNS], *(row.cells for row in found)]
    widths = [max(cell_len(cell) for cell in column) for column in zip(*cells, strict=True)]
    chosen = fitting(widths, width, GAP)
    styles = ["dim", *(_TONES[row.tone] for row in found)]
    for number, (line, style) in enumerate(zip(cells, styles, strict=True)):
        text = Text(style=style, no_wrap=True, overflow="ellipsis")
        for at in chosen:
            cell = line[at]
            space = " " * (widths[at] - cell_len(cell))
            text.append(space + cell if COLUMNS[at].right else cell + space,
                        "bold" if number and at < 2 and found[number - 1].leads else None)
            text.append(" " * GAP)
        text.rstrip()
        yield text
