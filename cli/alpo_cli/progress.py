"""A bar on the terminal for what takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

AFTER_S = 2.0

#: (what is done, how far, of how much)
Step = Callable[[str, int, int], None]


@contextmanager
def slow_progress() -> Iterator[Step]:
    """Yields what is to be told of every step; nothing is drawn where stderr is no terminal."""
    with ExitStack() as stack:
        yield _Bar(stack).step if sys.stderr.isatty() else lambda what, done, all: None


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
