"""Threads that hear signals, and watch the event loop's own commits; and the end of the process, which no disk delays.

Laws:

* SIGTERM, SIGINT and SIGHUP are blocked in all other threads. So they are heard although the event loop stands still in
  a commit that its thread makes itself (`alpo.storage.writer.Writer.commit_here`).
* `STOP_S_MAX` after the first SIGTERM or SIGINT, or after `Signals.ends`, the process is gone, whatever its other
  threads wait for: a disk that hangs answers neither the writer nor those that read. Nothing acknowledged rests on what
  is given up then, and the store is left as by a crash.
"""

from __future__ import annotations

import contextvars
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import structlog

from .log_sink import LogSink

log = structlog.get_logger()

STOP_S_MAX = 5.0
#: Seconds between two looks at the event loop's commits while it makes none.
_LOOK_S = 1.0
_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """The threads. ``heard`` is called in one of them with each signal's number. A commit in the event loop's thread
    that takes ``tell_s`` is an event, for which ``keep`` is called with its name and milliseconds. Neither may block.
    """

    def __init__(self, heard: Callable[[int], None], tell_s: float, keep: Callable[[str, int], None]) -> None:
        self._heard = heard
        #: Returns since when, in `time.perf_counter` seconds, the event loop's thread has been committing; infinity: it
        #: is not. Set by the node.
        self.here_since_s: Callable[[], float] = lambda: math.inf
        self._tell_s = tell_s
        self._keep = keep
        self._told_s = math.inf  # the begin of the commit that was told of
        self._ends = threading.Lock()

    def start(self) -> None:
        """Block the signals; begin to hear them, and to watch. Call in the main thread, before others are started."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
        for name, run in (("alpo-signals", self._hear), ("alpo-commits", self._watch)):
            context = contextvars.copy_context()
            threading.Thread(target=context.run, args=(run,), name=name, daemon=True).start()

    def ends(self, exit_code: int) -> None:
        """Have the process gone within `STOP_S_MAX`; the first call counts. Any thread."""
        if self._ends.acquire(blocking=False):
            timer = threading.Timer(STOP_S_MAX, contextvars.copy_context().run, (_leave, exit_code))
            timer.daemon = True
            timer.start()

    def _hear(self) -> None:
        while True:
            # not sigtimedwait: stopped and continued past its time, it returns what was never filled in
            number = signal.sigwait(_HEARD)
            if number != signal.SIGHUP:
                self.ends(0)
            self._heard(number)

    def _watch(self) -> None:
        while True:
            busy = self.here_since_s() < math.inf or self._told_s < math.inf
            time.sleep(self._tell_s if busy else _LOOK_S)
            self._look()

    def _look(self) -> None:
        """Tell of a commit that keeps the event loop, as the loop itself cannot."""
        since_s, now_s = self.here_since_s(), time.perf_counter()
        if since_s != self._told_s and self._told_s < math.inf:
            took_ms = round((now_s - self._told_s) * 1000)
            self._told_s = math.inf
            log.info("disk_moves_again", took_ms=took_ms)
            self._keep("disk_moves_again", took_ms)
        if since_s == math.inf or self._told_s < math.inf or now_s - since_s < self._tell_s:
            return
        self._told_s = since_s
        under_way_ms = round((now_s - since_s) * 1000)
        log.warning("disk_hangs", under_way_ms=under_way_ms, limit_ms=round(self._tell_s * 1000))
        self._keep("disk_hangs", under_way_ms)


def _leave(exit_code: int) -> None:
    log.warning("disk_left", waited_s=STOP_S_MAX)
    if isinstance(sys.stderr, LogSink):
        sys.stderr.drain()
    os._exit(exit_code)
