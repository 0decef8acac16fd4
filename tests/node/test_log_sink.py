"""The stream of alpod's log: whatever its reader does, no writer waits or fails, and lost lines are counted."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from alpo.node import event_log
from alpo.node.event_log import QUEUED_BYTES_MAX, LogSink

WAIT_S = 30
_PIPE_BYTES = 4096


class Pipe:
    """A small pipe whose reader reads when asked; or a stream socket, as journald's is."""

    def __init__(self, kind: str = "pipe") -> None:
        if kind == "pipe":
            self.reader, self.writer = os.pipe()
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        else:
            ours, theirs = socket.socketpair()
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIPE_BYTES)
            self.reader, self.writer = ours.detach(), theirs.detach()

    def lines_until(self, last: str) -> list[str]:
        """Read until that line has come whole."""
        text = b""
        while not text.endswith(f"{last}\n".encode()):
            got = os.read(self.reader, 1 << 16)
            assert got, "closed"
            text += got
        return text.decode().splitlines()

    def close(self) -> None:
        for descriptor in (self.reader, self.writer):
            with suppress(OSError):
                os.close(descriptor)


@pytest.fixture(params=["pipe", "socket"])
def pipe(request: pytest.FixtureRequest) -> Iterator[Pipe]:
    made = Pipe(request.param)
    yield made
    made.close()


def test_lines_come_whole_and_in_order_from_all_threads(pipe: Pipe) -> None:
    sink = LogSink(pipe.writer)

    def write(who: int) -> None:
        for number in range(200):
            sink.write(f"{who} {number}\n")

    threads = [threading.Thread(target=write, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    got: list[str] = []
    while len(got) < 600:
        got += _some(pipe)
    for who in range(3):
        assert [line for line in got if line.startswith(f"{who} ")] == [f"{who} {number}" for number in range(200)]
    print("in", "parts", end="", file=sink)
    assert sink.drain(WAIT_S) and _some(pipe) == ["in parts"]
    assert sink.dropped_lines == 0


def _some(pipe: Pipe) -> list[str]:
    """Lines that are in the pipe; waits for the end of the last one."""
    text = os.read(pipe.reader, 1 << 16)
    while not text.endswith(b"\n"):
        text += os.read(pipe.reader, 1 << 16)
    return text.decode().splitlines()


def test_a_reader_that_stands_still_costs_the_oldest_lines_and_is_told_how_many(pipe: Pipe) -> None:
    sink = LogSink(pipe.writer)
    written = 2 * QUEUED_BYTES_MAX // 100
    for number in range(written):
        sink.write(f"{number} {'.' * 100}\n")
    assert not sink.drain(0.01)
    assert sink.dropped_lines > written // 3
    sink.write("the end\n")
    got = pipe.lines_until("the end")
    assert sink.drain(WAIT_S)
    next_number = gaps = 0
    for line in got[:-1]:  # a gap for each time that the reader took a little
        number = int(line.split()[0])
        if line.endswith(" lines were dropped: nobody took them"):
            next_number, gaps = next_number + number, gaps + number
        else:
            assert number == next_number
            next_number += 1
    assert (next_number, gaps) == (written, sink.dropped_lines), "the newest lines came, and none is missing untold"


def test_lines_that_nobody_can_take_are_counted_and_told_to_the_next_reader(pipe: Pipe) -> None:
    sink = LogSink(pipe.writer)
    sink.notice = "gap of {}".format
    os.close(pipe.reader)
    for line in ("one\n", "two\nthree\n"):
        sink.write(line)
    assert sink.drain(WAIT_S) and sink.dropped_lines == 3
    after = Pipe()
    os.dup2(after.writer, pipe.writer)
    sink.write("four\n")
    sink.write("five\n")
    assert after.lines_until("five") == ["gap of 3", "four", "five"]
    after.close()


def _drop_a_line(sink: LogSink) -> None:
    """Write a line to a sink that drops it, because its queue is full."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_log, "QUEUED_BYTES_MAX", 0)
        sink.write("dropped\n")


def test_a_notice_that_nobody_wants_is_not_written(pipe: Pipe) -> None:
    sink = LogSink(pipe.writer)
    sink.notice = lambda lines: None
    _drop_a_line(sink)
    assert sink.dropped_lines == 1
    sink.write("next\n")
    assert pipe.lines_until("next") == ["next"]


def test_a_line_that_was_torn_is_ended_before_the_next(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next line begins on a line of its own after a full disk took a part of a line and has room again."""
    really, room = os.write, [3, 0, 100, 100, 100]

    def write(descriptor: int, data: bytes) -> int:
        if not (most := room.pop(0)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return really(descriptor, data[:most])

    monkeypatch.setattr("alpo.node.event_log.os.write", write)
    sink = LogSink(pipe.writer)
    sink.notice = "gap of {}".format
    sink.write("torn\n")
    sink.write("whole\n")
    assert pipe.lines_until("whole") == ["tor", "gap of 1", "whole"]
    assert sink.drain(WAIT_S)


def test_a_thread_that_ends_by_a_defect_is_followed_by_another(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    really, errors, ended = os.write, [MemoryError(), MemoryError()], threading.Semaphore(0)

    def write(descriptor: int, data: bytes) -> int:
        if errors:
            raise errors.pop()
        return really(descriptor, data)

    monkeypatch.setattr("alpo.node.event_log.os.write", write)
    monkeypatch.setattr(threading, "excepthook", lambda args: ended.release())
    sink = LogSink(pipe.writer)
    sink.notice = "gap of {}".format
    for line in ("one\n", "two\nthree\n", "four\n", "five\n"):
        sink.write(line)
    assert pipe.lines_until("five") == ["gap of 3", "four", "five"]
    assert sink.drain(WAIT_S) and sink.dropped_lines == 3
    assert ended.acquire(timeout=WAIT_S) and ended.acquire(timeout=WAIT_S)


def test_a_notice_that_fails_costs_one_line_and_is_told_plainly(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Semaphore(0)
    monkeypatch.setattr(threading, "excepthook", lambda args: ended.release())
    sink = LogSink(pipe.writer)
    sink.notice = lambda lines: str(lines // 0)
    _drop_a_line(sink)
    sink.write("lost\n")
    assert sink.drain(WAIT_S) and sink.dropped_lines == 2
    sink.write("next\n")
    assert pipe.lines_until("next") == ["2 lines were dropped: nobody took them", "next"]
    assert ended.acquire(timeout=WAIT_S)


def test_a_pipe_that_another_process_has_made_nonblocking(pipe: Pipe) -> None:
    os.set_blocking(pipe.writer, False)
    sink = LogSink(pipe.writer)
    lines = [f"{number} {'.' * 100}" for number in range(1000)]
    for line in lines:
        sink.write(f"{line}\n")
    assert pipe.lines_until(lines[-1]) == lines and sink.dropped_lines == 0


def test_text_that_never_ends_is_cut_and_bad_text_is_escaped(pipe: Pipe) -> None:
    sink = LogSink(pipe.writer)
    sink.write("x" * 70_000)
    assert pipe.lines_until("x") == ["x" * 70_000]
    sink.write("\udcff grün\n")
    assert _some(pipe) == ["\\udcff grün"]
    sink.write(f"before\n{'y' * (3 << 20)}\n")
    sink.write("after\n")
    before, cut, after = pipe.lines_until("after")
    assert (before, after) == ("before", "after") and cut.startswith("y" * 500_000) and cut.endswith("y (cut off)")


def python(code: str, **redirected: object) -> subprocess.Popen[bytes]:
    before = "from alpo.node.event_log import *\nimport os, sys\nfree_stderr()\n"
    return subprocess.Popen([sys.executable, "-c", before + code], **redirected)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize(("code", "exit_code"), [
    ("print('x' * 100_000, file=sys.stderr, flush=True)", 0), ("sys.exit(3)", 3), ("1 / 0", 1),
    ("print('x' * 100_000, file=sys.stderr)\n1 / 0", 1), ("sys.exit('x' * 100_000)", 1),
    ("import warnings, logging\nlogging.error('x' * 100_000)\nwarnings.warn('x' * 100_000)", 0),
])
@pytest.mark.parametrize("reader", ["stalled", "ended", "full"])
def test_a_process_ends_as_it_should_whoever_reads_its_last_words(code: str, exit_code: int, reader: str) -> None:
    made = Pipe()
    full = os.open("/dev/full", os.O_WRONLY)
    if reader == "ended":
        os.close(made.reader)
    process = python(code, stderr=full if reader == "full" else made.writer)
    assert process.wait(WAIT_S) == exit_code
    made.close()
    os.close(full)


def test_the_last_words_of_a_bug_are_written() -> None:
    process = python("print('before', file=sys.stderr)\n1 / 0", stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=WAIT_S)
    assert err.startswith(b"before\nTraceback") and err.endswith(b"ZeroDivisionError: division by zero\n")


def test_a_forked_child_writes_what_is_its_own() -> None:
    code = """
print('parent', file=sys.stderr)
pid = os.fork()
print('child' if pid == 0 else 'parent', file=sys.stderr)
pid and os.waitpid(pid, 0)
"""
    _, err = python(code, stderr=subprocess.PIPE).communicate(timeout=WAIT_S)
    assert sorted(err.split()) == [b"child", b"parent", b"parent"]


def test_a_closed_stderr_gives_its_number_to_no_other_file() -> None:
    code = "with open('/dev/zero') as other:\n    print(other.fileno(), os.readlink('/proc/self/fd/2'))\n1 / 0"
    process = python(code, stdout=subprocess.PIPE, preexec_fn=lambda: os.close(2))
    out, _ = process.communicate(timeout=WAIT_S)
    number, second = out.split()
    assert int(number) > 2 and second == b"/dev/null" and process.returncode == 1
