"""Progress bar or line on the terminal for work that takes longer than two seconds."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from .output import escape

AFTER_S = 2.0
EVERY_S = 0.25

#: Called with (what is done, how far, of how much).
Step = Callable[[str, int, int], None]


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
    shown = escape(line)[: max(shutil.get_terminal_size().columns - 1, 1)]
    print(f"\r\x1b[K{shown}", end="", file=sys.stderr, flush=True)


@contextmanager
def slow_progress() -> Iterator[Step]:
    """Yield a function to call at every step; nothing is drawn if stderr is no terminal."""
    with ExitStack() as stack:
        yield _Bar(stack).step if on_terminal() else lambda what, done, all: None


class _Bar:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._began_s = time.monotonic()
        self._draw: Step | None = None

    def step(self, what: str, done: int, all: int) -> None:
        if self._draw is None and time.monotonic() - self._began_s > AFTER_S:
            self._draw = self._begin()
        if self._draw is not None:
            self._draw(what, done, all)

    def _begin(self) -> Step:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        shown = self._stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
        task = shown.add_task("", total=None)
        return lambda what, done, all: shown.update(task, description=what, completed=done, total=all or None)
