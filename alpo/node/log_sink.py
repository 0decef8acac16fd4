"""stderr of a server, which depends on nobody who reads it: lines are queued, and one thread writes them.

Laws:

* `LogSink.write` neither waits nor fails, whether the reader has ended, stands still, or is a file on a full disk.
* At most `QUEUED_BYTES_MAX` wait. Beyond that the oldest are dropped: the newest tell why a server ends.
* Lines come out in order, each by one write if the reader takes it, so that servers can share a terminal or a pipe.
* Lines that are dropped, or cannot be written, are counted; when the reader takes lines again, a line in their place
  says how many there were.
* A thread that ends, by a defect or without memory, loses what it was writing, which is counted; another one goes on.
* At the end of the process the queue is written, for at most `DRAIN_S`.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, TextIO, cast

#: Name of each level of the log -> its number in `logging`, which takes long to import.
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
QUEUED_BYTES_MAX = 1 << 20
#: Longest time for which the end of the process waits until all lines are written.
DRAIN_S = 1.0
#: Longest text that waits for its line end; a longer one is a line.
_LINE_CHARS_MAX = 1 << 16
#: Longest text that is written at once; of a longer one the rest is cut off, lest it push out all that waits.
_PIECE_BYTES_MAX = QUEUED_BYTES_MAX // 2
_CUT = b" (cut off)\n"


class _Piece(NamedTuple):
    """Whole lines that were written at once, and their number."""

    data: bytes
    lines: int


def _plain_notice(lines: int) -> str:
    return f"{lines} lines were dropped: nobody took them"


class LogSink(io.TextIOBase):
    """Text stream onto the descriptor ``fd``, which may block. Any thread may write; `flush` does nothing."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, fd: int) -> None:
        self._fd = fd
        #: Returns the line that reports so many dropped lines; None: no line is to be written.
        self.notice: Callable[[int], str | None] = _plain_notice
        #: Lines dropped since the start.
        self.dropped_lines = 0
        self._told_lines = 0  # of those
        self._notice_failed = False  # the last `notice` raised
        self._torn = False  # the last line was written in part
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what waits, and the thread: for a child after a fork, whose parent writes it."""
        self._turn = threading.Condition()  # reentrant: a finalizer may write while its thread does
        self._queue: deque[_Piece] = deque()
        self._queued_bytes = 0
        self._begun = ""  # text of a line without its end
        self._writing: _Piece | None = None
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> int:
        """Queue text; lines are written once they have an end."""
        with self._turn:
            whole, end, self._begun = (self._begun + text).rpartition("\n")
            if len(self._begun) > _LINE_CHARS_MAX:
                whole, end, self._begun = whole + end + self._begun, "\n", ""
            if end:
                data = (whole + end).encode(self.encoding, self.errors)
                if len(data) > _PIECE_BYTES_MAX:
                    data = data[:_PIECE_BYTES_MAX] + _CUT
                self._put(_Piece(data, data.count(b"\n")))
        return len(text)

    def _put(self, piece: _Piece) -> None:
        self._queue.append(piece)
        self._queued_bytes += len(piece.data)
        while self._queued_bytes > QUEUED_BYTES_MAX:
            self.dropped_lines += self._take().lines
        self._need_thread()
        self._turn.notify_all()

    def _need_thread(self) -> None:
        if self._thread is None and self._queue:
            thread = threading.Thread(target=self._run, name="alpo-log", daemon=True)
            with suppress(RuntimeError):  # the system is out of threads: the next line tries again
                thread.start()
                self._thread = thread

    def _take(self) -> _Piece:
        piece = self._queue.popleft()
        self._queued_bytes -= len(piece.data)
        return piece

    def drain(self, timeout_s: float = DRAIN_S) -> bool:
        """Wait until everything is written or dropped, at most so long; True if it is."""
        with self._turn:
            if self._begun:
                self.write("\n")
            self._need_thread()
            return self._turn.wait_for(lambda: not self._queue and not self._writing, timeout_s)

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are for threads that wait for them
        try:
            self._write_on()
        finally:
            with self._turn:
                if self._writing is not None:
                    self.dropped_lines += self._writing.lines
                self._writing = self._thread = None
                self._need_thread()
                self._turn.notify_all()

    def _write_on(self) -> None:
        while True:
            with self._turn:
                self._writing = None
                self._turn.notify_all()
                self._turn.wait_for(lambda: self._queue)
                piece = self._writing = self._take()
                dropped = self.dropped_lines
            try:
                if dropped > self._told_lines:
                    self._tell(dropped)
                self._write_all(piece.data)
            except OSError:  # the reader has gone, or its disk is full
                with self._turn:
                    self.dropped_lines += piece.lines

    def _tell(self, dropped: int) -> None:
        notice = _plain_notice if self._notice_failed else self.notice
        self._notice_failed = True
        line = notice(dropped - self._told_lines)
        self._notice_failed = False
        if line is not None:
            self._write_all(f"{line}\n".encode(self.encoding, self.errors))
        self._told_lines = dropped

    def _write_all(self, data: bytes) -> None:
        """Write all of ``data``, after the end of a torn line. Raises OSError."""
        rest = memoryview(b"\n" + data if self._torn else data)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:  # another process has made the pipe or terminal that it shares with us nonblocking
                waiting = select.poll()
                waiting.register(self._fd, select.POLLOUT)
                waiting.poll()
                continue
            self._torn = bool(rest)

    def writable(self) -> bool:
        """True."""
        return True

    def isatty(self) -> bool:
        """True if the lines go to a terminal."""
        return os.isatty(self._fd)

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd


def free_stderr() -> None:
    """Have all that this process says on stderr from now on, tracebacks included, go through a `LogSink`. Standard
    descriptors that are closed (`2>&-`) lead nowhere then, so that no other file gets their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    if sys.stderr is sys.__stderr__:  # no other object stands in for it already
        sink = LogSink(2)
        sys.stderr = cast(TextIO, sink)
        atexit.register(sink.drain)
        os.register_at_fork(after_in_child=sink.begin_anew)


def dropped_lines() -> int:
    """The number of lines of this process' log that were dropped."""
    return sys.stderr.dropped_lines if isinstance(sys.stderr, LogSink) else 0


@contextmanager
def told_on_stdout() -> Iterator[None]:
    """End well if the reader of what is printed here has gone (`alpod --print-config | head -1`), else with the
    reason."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes stdout once more when it exits
        if isinstance(error, BrokenPipeError):
            sys.exit(0)
        print(f"alpod: {reason(error)}", file=sys.stderr, flush=True)
        sys.exit(1)


def reason(error: Exception) -> str:
    """The error in a line for the operator, with its file if it has one."""
    if isinstance(error, OSError) and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else error.strerror
    return str(error)
