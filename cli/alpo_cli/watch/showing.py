"""The live view, run: on a terminal until `q` or a signal, elsewhere a line a second."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import anyio

from ..exits import Unreached
from ..options import Target
from ..output import Sink, escape, json_line
from ..running import unless_interrupted
from .asking import ASK_S, Watch, watching
from .rows import Page, View, press
from .sight import as_json, line

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from .terminal import Terminal

EVERY_S = 1.0
#: Seconds that a frame waits for answers: a server that takes longer is drawn with what it said before.
PATIENCE_S = 0.3


async def _rounds(watch: Watch, patience_s: float) -> AsyncIterator[None]:
    """Ask all servers once a second; the first time patiently."""
    due_s = anyio.current_time()
    while True:
        await watch.round(patience_s)
        yield
        patience_s = PATIENCE_S
        due_s = max(due_s + EVERY_S, anyio.current_time())
        await anyio.sleep_until(due_s)


async def in_lines(target: Target, count: int | None) -> None:
    """Print a line a second, ``count`` of them (None: until a signal). Raises `Unreached` if no server answered the
    last of a counted number, BrokenPipeError."""
    sink = Sink()
    left = count

    async def body() -> None:
        nonlocal left
        async with watching(target.servers) as watch:
            async for _ in _rounds(watch, ASK_S):
                sight = watch.sight()
                text = json_line(as_json(sight)) if target.json else escape(line(sight))
                await sink.write(text.encode(sys.stdout.encoding, "replace") + b"\n")
                left = None if left is None else left - 1
                if left == 0:
                    if not sight.there:
                        raise Unreached(target.servers, [one.problem for one in sight.servers if one.problem])
                    return

    await unless_interrupted(body)


class Show:
    """The live view on a terminal."""

    def __init__(self, watch: Watch, terminal: Terminal, scope: anyio.CancelScope) -> None:
        self._watch = watch
        self._terminal = terminal
        self._scope = scope
        self._view = View()
        self._sight = watch.sight()
        self._due = anyio.Event()
        self._stop, self._anew = False, True

    async def obey_signals(self, *, task_status: TaskStatus[None]) -> None:
        """End, stop, go on and draw anew as signals say; those that were ignored at the start still are."""
        wanted = [each for each in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
                  if signal.getsignal(each) is not signal.SIG_IGN]
        with anyio.open_signal_receiver(*wanted) as signals:
            task_status.started()
            async for each in signals:
                if each in (signal.SIGINT, signal.SIGTERM):
                    self._scope.cancel()
                self._stop |= each == signal.SIGTSTP
                self._anew |= each == signal.SIGCONT
                self._due.set()

    async def obey_keys(self) -> None:
        """Change the view as keys say; ends all at `q`, and with the terminal."""
        async for pressed in self._terminal.keys():
            view = press(self._view, pressed)
            if view is None:
                break
            self._watch.want_events = view.page is Page.EVENTS
            if self._view.paused and not view.paused:
                self._sight = self._watch.sight()
            self._view = view
            self._due.set()
        self._scope.cancel()

    async def look(self) -> None:
        """Ask the servers, and have a frame drawn a second."""
        async for _ in _rounds(self._watch, PATIENCE_S):
            if not self._view.paused:
                self._sight = self._watch.sight()
            self._due.set()

    async def draw(self) -> None:
        """Draw whenever that is due and the terminal is ours. Raises OSError once the terminal is gone."""
        from .drawing import Frame
        from .terminal import LOOK_S

        while True:
            while not self._terminal.foreground():
                await anyio.sleep(LOOK_S)
            if self._anew:
                self._anew = False
                self._terminal.enter()
            await self._terminal.draw(Frame(self._sight, self._view))
            await self._due.wait()
            self._due = anyio.Event()
            if self._stop:
                self._terminal.stop()
                self._stop, self._anew = False, True


async def on_terminal(target: Target) -> None:
    """Draw until `q`, Ctrl-C, SIGTERM or the terminal's end."""
    from .terminal import Terminal

    keys = sys.stdin.fileno() if sys.stdin.isatty() else None
    terminal = Terminal(sys.stdout.fileno(), keys, sys.stdout.encoding)
    async with watching(target.servers) as watch, anyio.create_task_group() as tasks:
        show = Show(watch, terminal, tasks.cancel_scope)
        await tasks.start(show.obey_signals)
        try:
            if keys is not None:
                tasks.start_soon(show.obey_keys)
            tasks.start_soon(show.look)
            await show.draw()
        finally:
            terminal.leave()


def drawable() -> bool:
    """True if stdout is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")
