"""Threads that hear signals, and watch the event loop's own commits; and the end of the process, which no disk delays.

Laws:

* SIGTERM, SIGINT and SIGHUP are blocked in all other threads (that of `LogSink` may be older, and blocks all). So they
  are heard although the event loop stands still in a commit of its own (`alpo.storage.writer.Writer.commit_here`).
* `STOP_S_MAX` after the first SIGTERM or SIGINT, or after `Signals.ends`, the process is gone, whatever its other
  threads wait for: a disk that hangs answers neither the writer nor those that read. Nothing acknowledged rests on what
  is given up then, and the store is left as by a crash.
* All threads are started with the first server: an end needs none that a process out of threads could not start.
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
from typing import NamedTuple

import structlog

from .event_log import LogSink

log = structlog.get_logger()

STOP_S_MAX = 5.0
#: Seconds between two looks at the event loop's commits while it makes none.
_LOOK_S = 1.0
_HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _Exit(NamedTuple):
    """Time by which the process is to be gone, in `time.monotonic` seconds, and its exit code."""

    at_s: float
    code: int


class Signals:
    """The threads of a process, in which servers may run one after the other (`serve`)."""

    def __init__(self) -> None:
        #: Returns since when, in `time.perf_counter` seconds, the event loop's thread has been committing; infinity: it
        #: is not. Set by the node.
        self.here_since_s: Callable[[], float] = lambda: math.inf
        self._heard: Callable[[int], None] | None = None
        self._keep: Callable[[str, int], None] = lambda name, ms: None
        self._tell_s = _LOOK_S
        self._told_s = math.inf  # the beginning of the commit that was reported last
        self._told_to_stop = False
        self._exit: _Exit | None = None
        self._turn = threading.Condition(threading.Lock())  # guards what threads share; notified when `_exit` changes

    def serve(self, heard: Callable[[int], None], tell_s: float, keep: Callable[[str, int], None]) -> None:
        """Tell a server of signals and slow commits from now on, and of a SIGTERM that came before that. Call in the
        main thread; the first call, before other threads are started.

        ``heard`` is called in a thread of its own with each signal's number. A commit in the event loop's thread that
        takes ``tell_s`` is an event, for which ``keep`` is called with its name and milliseconds. Neither may block."""
        with self._turn:
            begins = self._heard is None
            self._heard, self._tell_s, self._keep = heard, tell_s, keep
            if self._told_to_stop:
                heard(signal.SIGTERM)
        if begins:
            signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
            for name, run in (("alpo-end", self._end), ("alpo-signals", self._hear), ("alpo-commits", self._watch)):
                context = contextvars.copy_context()
                threading.Thread(target=context.run, args=(run,), name=name, daemon=True).start()

    def ends(self, exit_code: int) -> None:
        """Have the process gone within `STOP_S_MAX`; the first call counts. Any thread."""
        with self._turn:
            if self._exit is None:
                self._exit = _Exit(time.monotonic() + STOP_S_MAX, exit_code)
                self._turn.notify_all()

    def goes_on(self) -> None:
        """Take `ends` back, unless a signal asked for it: the process goes on with another server."""
        self.here_since_s = lambda: math.inf
        with self._turn:
            if not self._told_to_stop:
                self._exit = None
                self._turn.notify_all()

    def _end(self) -> None:
        exit_code: int | None = None
        with self._turn:
            while exit_code is None:
                if self._exit is None:
                    self._turn.wait()
                elif (left_s := self._exit.at_s - time.monotonic()) > 0:
                    self._turn.wait(left_s)
                else:
                    exit_code = self._exit.code
        _leave(exit_code)

    def _hear(self) -> None:
        while True:
            # sigtimedwait would not do: stopped and continued past its time, it returns what was never filled in
            number = signal.sigwait(_HEARD)
            with self._turn:
                self._told_to_stop |= number != signal.SIGHUP
                heard = self._heard
            if number != signal.SIGHUP:
                self.ends(0)
            if heard is not None:
                heard(number)

    def _watch(self) -> None:
        skipped = False
        while True:
            busy = self.here_since_s() < math.inf or self._told_s < math.inf
            pause_s, began_s = self._tell_s if busy else _LOOK_S, time.perf_counter()
            time.sleep(pause_s)
            # The process stood, as under SIGSTOP, and the commit with it: the disk has until the next look.
            skipped = not skipped and time.perf_counter() - began_s > pause_s + self._tell_s / 2
            if not skipped:
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
