"""Beginnings and ends of a replica: either event loop, threads, interrupts, forks, calls that are under way when it is
closed, and iterations that are left in the middle."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from typing import Any

import anyio
import pytest
from fake_cluster import FakeCluster
from journal import Journal, Refused, Truth, fresh, journal, truth
from test_client_fork import in_child, outcome
from test_client_sync import cluster_in_a_thread

import alpo.rsm
from alpo.errors import AlpoError, Closed, NotGuaranteed, Unavailable
from alpo.rsm import Replica, SyncReplica, connect_sync
from alpo.testing import Cluster

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


@BACKENDS
def test_under_either_event_loop(backend: str) -> None:
    async def go() -> None:
        async with cluster.connect() as log, journal(log) as a:
            for number in range(4):
                assert (await a.run(b"%d" % number))[0] == number
                await a.snapshot(trim=True)
            with pytest.raises(Refused):
                await a.run(b"no thanks")
            async with aclosing(a.answers(a.lsn)) as answers:
                at, answer = await anext(answers)
                assert at.lsn == a.lsn and isinstance(answer, Refused)
            assert await a.read(lambda machine: machine.entries) == truth(cluster).entries

    with Cluster(seed=1) as cluster:
        anyio.run(go, backend=backend)
        fresh(cluster)


@BACKENDS
@pytest.mark.parametrize("after_s", [0, 0.001, 0.002, 0.004])
def test_closing_with_calls_under_way(after_s: float, backend: str) -> None:
    """Each call ends: with its answer, or the word that nobody knows; and nothing is done twice."""
    told: dict[bytes, object] = {}

    async def call(a: Replica[Journal], command: bytes) -> None:
        try:
            told[command] = await a.run(command)
        except (Closed, NotGuaranteed, Unavailable) as error:
            told[command] = error

    async def go() -> None:
        async with cluster.connect() as log:
            a = journal(log)
            await a.run(b"first")
            answers = a.answers(1)
            assert (await anext(answers))[1] == told_at(truth(cluster), b"first")
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(call, a, b"%d" % number)
                tasks.start_soon(call_all, a)
                await cluster.sleep(after_s)
                await a.close()
                await a.close()
            await answers.aclose()
            for failing in (a.run(b"late"), a.read(lambda machine: machine), a.snapshot(), anext(a.answers())):
                with pytest.raises(Closed):
                    await failing
            with pytest.raises(Closed):
                a.machine  # noqa: B018

    async def call_all(a: Replica[Journal]) -> None:
        for what in (a.snapshot, a.settle, a.status):
            with suppress(Closed, NotGuaranteed, Unavailable):
                await what()

    with Cluster(seed=3) as cluster:
        anyio.run(go, backend=backend)
        right = truth(cluster)
        assert len(told) == 20 and b"late" not in right.places
        for command, answer in told.items():
            assert len(right.places.get(command, [])) <= 1
            if not isinstance(answer, AlpoError):
                assert answer == told_at(right, command)
        fresh(cluster)


def told_at(right: Truth, command: bytes) -> object:
    (lsn,) = right.places[command]
    return right.told[lsn].answer


@BACKENDS
def test_an_answer_is_waited_for_by_many_and_left_by_most(backend: str) -> None:
    async def listen(a: Replica[Journal], number: int) -> None:
        got = []
        async with aclosing(a.answers(1)) as answers:
            async for at, _ in answers:
                got.append(at.lsn)
                if len(got) == number:
                    break
        assert got == [*range(2, 2 + number)]

    async def go() -> None:
        async with cluster.connect() as log, journal(log) as a:
            await a.run(b"0")
            async with anyio.create_task_group() as tasks:
                for number in range(1, 8):
                    tasks.start_soon(listen, a, number)
                with anyio.move_on_after(0):
                    await anext(a.answers())
                for number in range(1, 8):
                    await a.run(b"%d" % number)

    with Cluster(seed=1) as cluster:
        anyio.run(go, backend=backend)


def test_one_that_was_never_used_closes() -> None:
    async def go() -> None:
        async with cluster.connect() as log:
            await journal(log).close()
            async with journal(log) as a:
                await a.close()
            with pytest.raises(RuntimeError, match="entered once"):
                await a.__aenter__()

    with Cluster(seed=1) as cluster:
        anyio.run(go)


# -- threads ------------------------------------------------------------------------------------------------


@contextmanager
def blocking(**how: Any) -> Iterator[tuple[FakeCluster, SyncReplica[Journal]]]:
    with cluster_in_a_thread() as c:
        with connect_sync(Journal, c.addresses, name="journal", snapshots="off", **how) as replica:
            yield c, replica


def test_many_threads() -> None:
    with blocking() as (_, replica), ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(lambda number: replica.run(b"%d" % number), range(200))]
        assert sorted(place for place, _ in answers) == [*range(200)]
        entries = replica.read(lambda machine: [*machine.entries])
        assert sorted(entry.split()[-1] for entry in entries) == sorted(b"%d" % number for number in range(200))
        assert [answer for _, answer in zip(range(200), replica.answers(1), strict=False)][-1][1][0] == 199
        with pytest.raises(Refused):
            replica.run(b"no ")


def test_an_interrupt_while_a_command_is_under_way() -> None:
    """The command is done once, or never, and the next one is answered."""
    main = threading.get_ident()
    with blocking() as (c, replica):
        replica.run(b"first")
        for number in range(5):
            def script(server: object, append: object) -> str:
                c.script = lambda server, append: "take"
                signal.pthread_kill(main, signal.SIGINT)
                return "take"

            c.script = script
            with pytest.raises(KeyboardInterrupt):
                replica.run(b"interrupted %d" % number)
            place, _ = replica.run(b"next %d" % number)
            assert place == replica.read(lambda machine: len(machine.entries)) - 1
        entries = replica.read(lambda machine: [entry.split(b" ", 4)[-1] for entry in machine.entries])
        assert len(entries) == len({*entries}) == 11


def test_closing_in_another_thread() -> None:
    with blocking() as (_, replica):
        replica.run(b"first")
        answers = replica.answers(1)
        assert next(answers)[1][0] == 0
        waits = threading.Thread(target=lambda: [*answers], daemon=True)
        waits.start()
        replica.close()
        waits.join(10)
        assert not waits.is_alive()
        with pytest.raises(Closed):
            replica.run(b"late")


def test_a_forked_child_is_told_at_once_and_its_parent_goes_on() -> None:
    with blocking() as (_, replica):
        replica.run(b"first")
        calls: list[Any] = [
            lambda: replica.run(b"child"), lambda: replica.read(lambda machine: 1), replica.snapshot, replica.settle,
            replica.status, lambda: next(replica.answers(1)),
        ]
        told = in_child(lambda: [outcome(call) for call in calls] + [outcome(replica.close)])
        assert told == ["Closed"] * len(calls) + ["nothing"]
        assert replica.run(b"second")[0] == 1


def test_another_loop_is_told_so() -> None:
    async def make() -> Replica[Journal]:
        log = cluster.connect()
        await log.__aenter__()
        a = journal(log)
        await a.run(b"first")
        return a

    with Cluster(seed=1) as cluster:
        a = anyio.run(make)
        with pytest.raises((RuntimeError, Closed)):
            anyio.run(a.run, b"second")


def test_nobody_is_there() -> None:
    with pytest.raises(Unavailable), alpo.rsm.connect_sync(Journal, "127.0.0.1:1", timeout_s=0.05, name="j") as replica:
        replica.run(b"x")
