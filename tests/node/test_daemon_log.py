"""alpod beside readers of its log that do not read: it serves, stops, and says elsewhere why it ended."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias
from urllib.request import urlopen

import pytest
from alpod import WAIT_S, Serving, flags
from ports import free_port

from alpo import connect_sync
from alpo.storage.sqlite import SqliteStore

_REQUESTS = 60
_ALPOD = "from alpo.daemon import main; main()"
#: One with a bug in a task.
_BROKEN = """
from alpo.daemon import main
from alpo.node.scrub import Scrubber
async def run(self): 1 / 0
Scrubber.run = run
main()
"""


def fill(writer: int) -> int:
    """Leave no room: the next write waits for the reader."""
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"\n" * 512)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"\n")
    os.set_blocking(writer, True)
    return writer


@contextmanager
def ended_pipe() -> Iterator[int]:
    """A pipe whose reader has ended, as after `alpod 2>&1 | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@contextmanager
def stalled_pipe() -> Iterator[int]:
    reader, writer = os.pipe()
    yield fill(writer)
    os.close(writer)
    os.close(reader)


@contextmanager
def stalled_socket() -> Iterator[int]:
    """A full socket that nobody reads, as of a journald that is stopped."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield fill(theirs.fileno())


@contextmanager
def full_disk() -> Iterator[int]:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


@contextmanager
def stopped_terminal() -> Iterator[int]:
    """A terminal whose output is stopped, as after Ctrl-S."""
    main, other = pty.openpty()
    yield fill(other)
    os.close(other)
    os.close(main)


@contextmanager
def gone_terminal() -> Iterator[int]:
    main, other = pty.openpty()
    os.close(main)
    yield other
    os.close(other)


Reader: TypeAlias = Callable[[], AbstractContextManager[int]]
READERS: list[Reader] = [ended_pipe, stalled_pipe, stalled_socket, full_disk, stopped_terminal, gone_terminal]


def each_reader(*at_once: Reader) -> pytest.MarkDecorator:
    """Run a test with each reader; with readers other than ``at_once`` only in the soak."""
    soak = [pytest.param(reader, marks=pytest.mark.soak) for reader in READERS if reader not in at_once]
    return pytest.mark.parametrize("reader", [*at_once, *soak])


@contextmanager
def alpod(
    *arguments: str, stderr: int, before: Callable[[], object] | None = None, code: str = _ALPOD,
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stderr=stderr, start_new_session=True, preexec_fn=before,  # noqa: PLW1509
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def kept(data: Path) -> list[tuple[str, dict[str, object]]]:
    """The events in the store: name, fields."""
    store = SqliteStore.open(data, 1)
    try:
        return [(event.name, json.loads(event.fields)) for event in store.read_events(0, 1000)]
    finally:
        store.close()


def serve(port: int, http: int, process: subprocess.Popen[bytes]) -> int:
    """Have it found a cluster, take appends and operators' requests, then stop; returns how many lines it dropped."""
    while True:
        assert process.poll() is None, f"it ended with {process.returncode}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.01)
    with connect_sync(f"127.0.0.1:{port}", timeout_s=WAIT_S) as log:
        log.init()
        for _ in range(_REQUESTS):
            log.append(b"x")
            log.trim(1)
    with urlopen(f"http://127.0.0.1:{http}/metrics") as answer:
        (dropped,) = re.findall(r"(?m)^alpo_log_lines_dropped_total (\S+)$", answer.read().decode())
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0
    return int(float(dropped))


@each_reader(ended_pipe, stalled_pipe, full_disk)
def test_it_serves_and_stops_whoever_reads_its_log(tmp_path: Path, reader: Reader) -> None:
    port, http = free_port(), free_port()
    asked = [*flags(tmp_path, port), "--http", f"127.0.0.1:{http}"]
    with reader() as stderr, alpod(*asked, stderr=stderr) as process:
        dropped = serve(port, http, process)
    assert (dropped > _REQUESTS) == (reader in (ended_pipe, full_disk, gone_terminal))
    assert kept(tmp_path)[-1][0] == "stopped"


def test_a_closed_stderr(tmp_path: Path) -> None:
    port, http = free_port(), free_port()
    asked = [*flags(tmp_path, port), "--http", f"127.0.0.1:{http}"]
    with alpod(*asked, stderr=2, before=partial(os.close, 2)) as process:
        assert serve(port, http, process) == 0
        assert process.returncode == 0


@each_reader(stalled_pipe)
def test_it_says_why_it_cannot_run_by_its_exit_code_and_in_its_store(
    tmp_path: Path, reader: Reader,
) -> None:
    with Serving(*flags(tmp_path, free_port())):
        pass
    with socket.socket() as taken, reader() as stderr:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for _ in range(2):
            with alpod(*flags(tmp_path, port), stderr=stderr) as process:
                assert process.wait(WAIT_S) == 1
        with alpod("--no-such-flag", stderr=stderr) as process:
            assert process.wait(WAIT_S) == 2
    why = f"cannot listen on 127.0.0.1:{port}: the port is in use"
    told = [fields for name, fields in kept(tmp_path) if name == "cannot_run"]
    assert told == [{"why": why, "exit_code": 1}], "once, however often it is started"


@each_reader(stalled_pipe)
def test_a_bug_ends_it_whoever_reads_the_traceback(tmp_path: Path, reader: Reader) -> None:
    with reader() as stderr, alpod(*flags(tmp_path, free_port()), stderr=stderr, code=_BROKEN) as process:
        assert process.wait(WAIT_S) == 1
    assert kept(tmp_path)[-1] == ("stopping_itself", {"why": "ZeroDivisionError: division by zero"})
