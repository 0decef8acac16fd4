"""Appends of a blocking log in the caller's own thread: taken there while the caller is alone, and left to the loop,
without a loss or a repeat, whatever else comes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from fake_cluster import CUT, SWALLOW, TAKE, TAKE_CUT, Appends, FakeCluster, FakeServer, fake_cluster, hands_over
from test_client_fork import CHILD_S, in_child, outcome
from test_client_sync import cluster_in_a_thread

import alpo
from alpo.client import appender, loan
from alpo.core.requests import Code
from alpo_cli.local_cluster import LocalCluster, free_base_port

#: Appends of a new log until the next one is its caller's own.
WARM = appender.LONE


class Log(alpo.SyncLog):
    """A blocking log that counts the appends that its loop was given, and those that ended in their callers' threads.
    """

    in_loop = here = 0

    def _submit(self, *given: Any, **named: Any) -> Any:
        self.in_loop += 1
        return super()._submit(*given, **named)

    def _append_here(self, *given: Any) -> Any:
        done = super()._append_here(*given)
        self.here += done is not None
        return done

    @property
    def armed(self) -> bool:
        return self._lender is not None and self._lender.loan is not None


def until(condition: Callable[[], object]) -> None:
    while not condition():
        threading.Event().wait(0.001)


def connected(servers: str, client: str | None = None, timeout_s: float = 20, tls: alpo.Tls | None = None) -> Log:
    return Log(alpo.connect(servers, client, timeout_s, tls=tls), 10_000)


def once(c: FakeCluster, verdict: str) -> None:
    """Judge the next append so, and take all after it."""
    def script(server: FakeServer, append: Appends) -> str:
        c.script = lambda server, append: TAKE
        return verdict

    c.script = script


def warm(log: Log) -> None:
    """Append until the next append is the caller's own."""
    while not log.armed:
        log.append(b"warm")


@contextmanager
def alone(client: str | None = None) -> Iterator[tuple[FakeCluster, Log, Callable[..., Any]]]:
    """A cluster; a log whose next append is the caller's own; and a way to call what runs in the cluster's loop."""
    with (
        start_blocking_portal("trio") as portal, portal.wrap_async_context_manager(fake_cluster()) as c,
        connected(c.addresses, client) as log,
    ):
        for n in range(WARM):
            assert (log.armed, log.append(b"warm")) == (False, n + 1)
        until(lambda: log.armed)
        yield c, log, portal.call


@pytest.mark.parametrize("client", [None, "n"])
def test_one_append_after_the_other_wakes_no_other_thread(client: str | None) -> None:
    with alone(client) as (c, log, _):
        for n in range(20):
            assert log.append(b"%d" % n) == WARM + n + 1
            assert [r.payload for r in log.read(start=WARM + n + 1)] == [b"%d" % n]
        assert log.append_batch([b"x", b"y"]) == range(WARM + 21, WARM + 23)
        assert (log.in_loop, log.here) == (WARM, 21)
        assert [append.serial for _, append in c.appends] == list(range(1, WARM + 22))
        with pytest.raises(alpo.TooLarge):
            log.append(bytes(2 << 20))
        with pytest.raises(ValueError, match="positive"):
            log.append(b"x", timeout_s=-1)


CALLS: dict[str, Callable[[alpo.SyncLog, int], object]] = {
    "append_nowait": lambda log, last: log.append_nowait(b"b"),
    "append_many": lambda log, last: log.append_many([b"b"]),
    "serial": lambda log, last: log.append(b"b", serial=last + 1),
    "expect_last": lambda log, last: log.append(b"b", expect_last=last),
    "large": lambda log, last: log.append(b"b" * 100_000),
}


@pytest.mark.parametrize("call", CALLS)
def test_another_call_between_goes_through_the_loop_and_keeps_its_place(call: str) -> None:
    with alone("n") as (c, log, _):
        last, expected = WARM, [b"warm"] * WARM
        for _ in range(5):
            here = log.here
            assert log.append(b"a") == last + 1
            assert log.here == here + 1
            CALLS[call](log, last + 1)
            assert log.append(b"c") == last + 3
            assert log.here == here + 1
            expected += [b"a", b"b" * (100_000 if call == "large" else 1), b"c"]
            warm(log)
            expected += [b"warm"] * (c.last_lsn - len(expected))
            last = c.last_lsn
        assert c.payloads == expected


def test_several_threads_and_one_between() -> None:
    with alone() as (c, log, _), ThreadPoolExecutor(4) as pool:
        def work(threads: int, thread: int) -> list[tuple[int, bytes]]:
            payloads = [b"%d %d %d" % (threads, thread, n) for n in range(30)]
            return [(log.append(payload), payload) for payload in payloads]

        told: list[tuple[int, bytes]] = []
        for threads in (1, 2, 1, 4, 1, 3, 1):
            for found in pool.map(work, [threads] * threads, range(threads)):
                assert found == sorted(found)
                told += found
        assert log.here > 30
        assert [payload for _, payload in sorted(told)] == [p for p in c.payloads if p != b"warm"]
        assert all(c.payloads[lsn - 1] == payload for lsn, payload in told)


@pytest.mark.parametrize("verdict", [CUT, TAKE_CUT, Code.NOT_LEADER, Code.LOST_LEADERSHIP, "kill", "kill idle"])
def test_a_leader_that_goes_loses_and_doubles_nothing(verdict: str | Code) -> None:
    with alone() as (c, log, call):
        told = [b"warm"] * WARM
        for number in range(30):
            old = c.servers[c.leader]

            if verdict == "kill idle":
                c.lead(old.id % 3 + 1)
                call(old.kill)
            else:
                c.script = hands_over(c, verdict)
            told.append(b"%d" % number)
            assert log.append(told[-1]) == len(told)
            if str(verdict).startswith("kill"):
                call(old.revive)
            warm(log)
            told += [b"warm"] * (c.last_lsn - len(told))
        assert c.payloads == told


def test_a_deadline_is_told_as_in_the_loop_and_settled_later() -> None:
    with alone("n") as (c, log, _):
        c.script = lambda server, append: SWALLOW
        with pytest.raises(alpo.NotGuaranteed, match="no answer in time") as caught:
            log.append(b"late", timeout_s=0.15)
        assert caught.value.serial == WARM + 1
        once(c, CUT)
        assert log.append_nowait(b"next").result().lsn == WARM + 2
        assert log.settle() == {WARM + 1: WARM + 1}
        assert c.payloads[WARM:] == [b"late", b"next"]


def test_an_unused_connection_is_watched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loan, "_UNUSED_S", 0.1)
    with alone() as (_, log, _):
        until(lambda: not log.armed)
        assert log.append(b"x") == WARM + 1
        assert (log.in_loop, log.here) == (WARM + 1, 0)


def test_servers_that_went_meanwhile_have_not_got_the_append() -> None:
    with alone() as (c, log, call):
        for server in c.servers.values():
            call(server.kill)
        with pytest.raises(alpo.Unavailable, match="no server took the append"):
            log.append(b"x", timeout_s=0.2)


def test_one_by_one_without_waiting_is_not_alone() -> None:
    with cluster_in_a_thread() as c, connected(c.addresses) as log:
        for _ in range(2 * WARM):
            log.append_nowait(b"x").result()
        assert not log.armed


def test_closing_waits_for_the_append_of_another_thread() -> None:
    with cluster_in_a_thread() as c, ThreadPoolExecutor(2) as pool:
        log = connected(c.addresses)
        warm(log)
        c.servers[1].frozen = True
        appending = pool.submit(log.append, b"x")
        until(lambda: log._lender is not None and log._lender.loan is not None and log._lender.loan._under_way)
        closing = pool.submit(log.close)
        until(lambda: not log.armed)
        c.servers[1].frozen = False
        assert (appending.result(20), closing.result(20)) == (WARM + 1, None)


@pytest.mark.parametrize("drain", [True, False])
def test_closing_from_another_thread(drain: bool) -> None:
    with cluster_in_a_thread() as c, ThreadPoolExecutor(1) as pool:
        log = connected(c.addresses, timeout_s=0.5 if drain else 60)
        warm(log)
        c.script = lambda server, append: SWALLOW
        waiting = pool.submit(log.append, b"x")
        until(lambda: len(c.appends) == WARM + 1)
        assert log._close(drain) is None
        assert isinstance(waiting.exception(20), alpo.NotGuaranteed)
        with pytest.raises(alpo.Closed):
            log.append(b"x")


def test_a_forked_child_is_told_at_once_and_its_parent_goes_on() -> None:
    with alone() as (_, log, _):
        assert in_child(lambda: [outcome(lambda: log.append(b"x")), outcome(log.close)]) == ["Closed", "nothing"]
        assert log.append(b"y") == WARM + 1
        assert log.here == 1


# -- signals ------------------------------------------------------------------------------------------------


def test_an_interrupt_during_the_wait_leaves_the_append_to_the_loop() -> None:
    main = threading.get_ident()
    with alone("n") as (c, log, _):
        for number in range(10):
            def script(server: FakeServer, append: Appends, lost: int = number % 2) -> str:
                once(c, CUT if lost else TAKE)
                signal.pthread_kill(main, signal.SIGINT)
                return SWALLOW if lost else TAKE

            last, c.script = c.last_lsn, script
            with pytest.raises(KeyboardInterrupt):
                log.append(b"interrupted")
            assert log.append(b"next") == last + 2
            assert c.payloads[last:] == [b"interrupted", b"next"]
            warm(log)


#: Folder of the package: a checkout, with its .venv, may lie in a folder of that name too.
OURS = f"{Path(alpo.__file__).parent}/"


class Stepping:
    """Calls ``what`` before one of the instructions of an append in the caller's own thread: the ``at``-th."""

    #: Ends of the names of files whose instructions do not count.
    left_out: tuple[str, ...] = ()

    def __init__(self, at: int, what: Callable[[], object]) -> None:
        self.left, self.what = at, what

    def __call__(self, frame: FrameType, event: str, arg: object) -> Stepping | None:
        file = frame.f_code.co_filename
        if not file.startswith(OURS) or file.endswith(self.left_out):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.what()
        return self

    def run(self, call: Callable[[], object]) -> bool:
        """Run ``call()``; True if it was shorter than that, or was interrupted."""
        sys.settrace(self)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return self.left > 0


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_at_any_instruction_loses_and_doubles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "LONE", 1)
    with cluster_in_a_thread() as c, connected(c.addresses, "n") as log:
        expected: list[bytes] = []
        for at in range(1, 10_000):
            warm(log)
            expected += [b"warm"] * (c.last_lsn - len(expected))
            payload = b"%d" % at
            step = Stepping(at, interrupt)
            step.run(partial(log.append, payload))
            assert log.append(b"next") > len(expected)
            assert c.payloads[len(expected):] in ([b"next"], [payload, b"next"])
            expected = c.payloads
            if step.left > 0:
                break
        assert at > 300


def test_a_signals_handler_that_appends_at_any_instruction_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "LONE", 1)
    monkeypatch.setattr(loan, "_LET_GO_S", 0.01)
    with cluster_in_a_thread() as c, connected(c.addresses, "n") as log:
        for at in range(1, 10_000, 5):
            warm(log)
            before = c.last_lsn
            told: list[tuple[int, bytes]] = []
            step = Stepping(at, lambda: told.append((log.append(b"inner"), b"inner")))
            step.run(lambda: told.append((log.append(b"outer"), b"outer")))
            assert sorted(told) == list(enumerate(c.payloads[before:], before + 1))
            if step.left > 0:
                break
        assert at > 300


# -- real servers, plain and over TLS -----------------------------------------------------------------------


@contextmanager
def real_servers(tls: bool, tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster.create(tmp_path / "c", 3, free_base_port(3), tls)
    cluster.spawn(cluster.servers)
    try:
        yield cluster
    finally:
        cluster.stop(grace_s=0.0)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_real_servers_that_are_killed(tls: bool, tmp_path: Path) -> None:
    with real_servers(tls, tmp_path) as cluster:
        with connected(cluster.addresses, timeout_s=60, tls=cluster.tls) as log:
            told: dict[int, bytes] = {}
            for killed in range(4):
                for n in range(60):
                    payload = b"%d %d" % (killed, n)
                    told[log.append(payload)] = payload
                    if n == 30:
                        leader = cluster.get(next(row["id"] or 0 for row in log.status() if row["state"] == "leader"))
                        timer = threading.Timer(0.01 * killed, leader.send, [signal.SIGKILL])
                        timer.start()
                timer.join()
                cluster.wait_for_killed()
                cluster.spawn([leader])
            assert log.here > 100
            assert {r.lsn: r.payload for r in log.read()} == told


def fork(file: Path, children: list[int]) -> None:
    """Fork; the child opens the file under the numbers of the connections that it has closed."""
    children.append(os.fork())
    if not children[0]:
        signal.alarm(CHILD_S)
        for _ in range(12):
            os.open(file, os.O_RDWR | os.O_CREAT)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_child_forked_at_any_instruction_uses_nothing_of_its_parent_s(
    tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child ends with `Closed`, or with what had been answered before; the parent goes on."""
    monkeypatch.setattr(appender, "LONE", 1)
    file, told = tmp_path / "file", dict[int, bytes]()
    with real_servers(tls, tmp_path) as cluster, connected(cluster.addresses, tls=cluster.tls) as log:
        for at in range(1, 10_000, 12):
            warm(log)
            children: list[int] = []
            step, ended = Stepping(at, partial(fork, file, children)), "Closed"
            try:
                step.run(lambda: told.update({log.append(b"x"): b"x"}))
                ended = "appended"
            except alpo.Closed:
                pass
            finally:
                if children == [0]:
                    os._exit(0 if ended == "Closed" or at > 300 else 1)
            if not children:
                break
            assert os.waitpid(children[0], 0)[1] == 0, "the child hung, or failed"
            assert (ended, file.stat().st_size) == ("appended", 0)
        assert at > 300
        assert {r.lsn: r.payload for r in log.read() if r.payload != b"warm"} == told


@pytest.mark.parametrize("appends", [False, True], ids=["interrupt", "append"])
def test_a_signal_at_any_instruction_over_tls(
    appends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appender, "LONE", 1)
    monkeypatch.setattr(loan, "_LET_GO_S", 0.01)
    told: list[tuple[int, bytes]] = []
    with real_servers(True, tmp_path) as cluster, connected(cluster.addresses, "n", tls=cluster.tls) as log:
        for at in range(1, 10_000, 12):
            warm(log)
            inner, outer, after = b"inner %d" % at, b"outer %d" % at, b"after %d" % at
            step = Stepping(at, partial(note, log, told, inner) if appends else interrupt)
            if not appends:  # no real signal interrupts between a `with` and its lock
                step.left_out = ("/secure.py",)
            step.run(partial(note, log, told, outer))
            note(log, told, after)
            if step.left > 0:
                break
        assert at > 300
        there = {r.lsn: r.payload for r in log.read() if r.payload != b"warm"}
        assert there.items() >= set(told)
        assert len(set(there.values())) == len(there)


def note(log: Log, told: list[tuple[int, bytes]], payload: bytes) -> None:
    told.append((log.append(payload), payload))
