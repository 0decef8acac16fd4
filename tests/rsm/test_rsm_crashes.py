"""Deaths at every step of a snapshot and its trim, processes that are jumped over, sessions that expire, clients that
are cut off: what the next process finds, and what each was told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio.lowlevel
import pytest
from journal import Journal, check_trims, folded, fresh, journal, plain, truth
from rsm_kit import first_of, new_log, run
from snapshot_rig import Gate, Steps, cut_off, small_payloads

from alpo.errors import NotGuaranteed, SessionExpired, Unavailable
from alpo.rsm import Busy, Replica, Unrecoverable, Unsettled
from alpo.rsm.hosted import PAYLOADS
from alpo.rsm.machine import Outcome
from alpo.rsm.payloads import Part
from alpo.testing import Cluster

Work = Callable[..., Awaitable[Any]]


def with_journals(cluster: Cluster, number: int, work: Work, **how: Any) -> Any:
    """The result of ``work``, given so many replicas, each with a log of its own: of "program 0" and so on."""
    async def go(replicas: list[Replica[Journal]]) -> Any:
        if len(replicas) == number:
            return await work(*replicas)
        async with new_log(cluster, f"program {len(replicas)}") as log, journal(log, **how) as replica:
            return await go([*replicas, replica])

    return run(cluster, lambda: go([]))


async def fill(replica: Replica[Journal], tag: str, number: int = 6, size: int = 1500) -> None:
    for each in range(number):
        await replica.run(f"{tag}.{each} ".encode().ljust(size, b"."))


# -- a death at every step ----------------------------------------------------------------------------------


def crashed(stop: int, crash: Callable[[Cluster], object], servers: int = 1, foreign: bool = False) -> bool:
    """Crash a process at wait ``stop`` of its third snapshot and trim; True if that came to its end before. A process
    that starts then finds all, and can write the next snapshot once the grant has lapsed."""
    async def work(a: Replica[Journal]) -> bool:
        if foreign:
            await a.log.append(b"of somebody else")
        for each in range(2):
            await fill(a, str(each))
            await a.snapshot(trim=True)
        await fill(a, "last")
        steps = Steps(a.snapshot(trim=True), stop, lambda: crash(cluster))
        await steps
        return steps.ended

    async def go_on(b: Replica[Journal]) -> Any:
        await b.run(b"after")
        return await b.snapshot(trim=True)

    with Cluster(seed=1, servers=servers) as cluster:
        small_payloads(cluster)
        ended: bool = with_journals(cluster, 1, work)
        check_trims(cluster)
        fresh(cluster)
        cluster.heal()
        cluster.advance(31)
        before = folded(cluster.log()).snapshot
        info = with_journals(cluster, 1, go_on)
        assert before is not None and info.first_lsn == (1 if foreign else before.begin)
        check_trims(cluster)
        fresh(cluster)
    return ended


def dies(cluster: Cluster) -> None:
    cut_off(cluster, "program 0")


def stops(cluster: Cluster) -> None:
    """Send nothing more; what is on its way lands."""


#: Waits between two crashes: all in the soak.
STRIDES = [pytest.param(1, marks=[pytest.mark.soak, pytest.mark.timeout(600)]), 9]


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("crash", [dies, stops])
def test_a_crash_at_every_wait(crash: Callable[[Cluster], object], stride: int) -> None:
    stop = 0
    while not crashed(stop, crash):
        stop += stride
    assert stop > 20, stop


@pytest.mark.parametrize("stride", STRIDES)
def test_a_crash_beside_payloads_of_others(stride: int) -> None:
    stop = 4
    while not crashed(stop, stops, foreign=True):
        stop += stride


@pytest.mark.parametrize("stride", STRIDES)
def test_the_leader_dies_meanwhile(stride: int) -> None:
    stop = 2
    while not crashed(stop, Cluster.kill_leader, 3):
        stop += 2 * stride


class Mortal:
    """A replica whose process dies right after (or, with ``before``, right before) the given step of a snapshot: the
    ``nth`` payload of a kind, or a call of its log. It is cut off there, or just stops."""

    def __init__(self, cluster: Cluster, a: Replica[Journal], step: str, nth: int = 1, before: bool = False) -> None:
        self.cluster, self.a, self.step, self.nth, self.before = cluster, a, step, nth, before
        self.scope = anyio.CancelScope()
        self._enter = a._folder.enter
        a._folder.enter = self._entered  # type: ignore[assignment, method-assign]
        for name in ("set_cursor", "trim"):
            setattr(a.log, name, self._called(name, getattr(a.log, name)))

    async def snapshot(self) -> bool:
        """Write a snapshot, and trim; True if it came to its end."""
        with self.scope:
            await self.a.snapshot(trim=True)
            return True
        return False

    def _reached(self, step: str) -> bool:
        self.nth -= step == self.step
        return step == self.step and self.nth == 0

    def _entered(self, payloads: list[bytes], **how: Any) -> Any:
        message = PAYLOADS.snapshot_message(payloads[0])
        reached = self._reached(type(message).__name__)
        if reached and self.before:
            self._die()
        sent = self._enter(payloads, **how)
        if reached and not self.before:
            self.scope.cancel()
        return sent

    def _called(self, name: str, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def called(*given: Any) -> Any:
            reached = self._reached(name)
            if reached and self.before:
                self._die()
                await anyio.lowlevel.checkpoint()
            result = await real(*given)
            if reached:
                self._die()
            return result

        return called

    def _die(self) -> None:
        cut_off(self.cluster, "program 0")
        self.scope.cancel()


#: Each step after which, or before which, the writer dies; and whether its grant is left behind.
STEPS = {
    "before begin": ("Begin", 1, True, None), "after begin": ("Begin", 1, False, True),
    "after a part": ("Part", 2, False, True), "before end": ("End", 1, True, True),
    "after end": ("End", 1, False, False), "before the cursor": ("set_cursor", 1, True, False),
    "before the trim": ("trim", 1, True, False), "after the trim": ("trim", 1, False, False),
}


@pytest.mark.parametrize("step", STEPS)
def test_another_takes_over(step: str) -> None:
    """Newcomers start right after the death; another process may write the next snapshot once the grant has lapsed."""
    what, nth, before, granted = STEPS[step]

    async def work(a: Replica[Journal], b: Replica[Journal]) -> None:
        for each in range(2):
            await fill(a, str(each))
            await a.snapshot(trim=True)
        await fill(a, "last", 12)
        assert not await Mortal(cluster, a, what, nth, before).snapshot()
        await anyio.sleep(1)
        machine = await b.folded()
        assert (machine.upload is not None) == bool(granted), step
        await beside_others(b, machine)
        if granted:
            with pytest.raises(Busy):
                await b.snapshot()
            await anyio.sleep(31)
        await b.run(b"after")
        last = (await b.folded()).snapshot
        info = await b.snapshot(trim=True)
        assert last is not None and info.first_lsn == last.begin

    async def beside_others(b: Replica[Journal], machine: Any) -> None:
        async with new_log(cluster) as log, journal(log) as late:
            await late.run(b"late " + step.encode())
            assert plain(await late.folded()) == plain(folded(cluster.log()[: late.lsn]))

    with Cluster(seed=1, servers=1) as cluster:
        small_payloads(cluster)
        with_journals(cluster, 2, work)
        check_trims(cluster)
        fresh(cluster)


# -- others, between and beside -----------------------------------------------------------------------------


def test_one_that_was_taken_over_does_nothing_more() -> None:
    """Payloads that a writer still sends after its grant has lapsed have no effect, the end included."""
    async def work(a: Replica[Journal], b: Replica[Journal]) -> None:
        await fill(a, "a")
        assert not await Mortal(cluster, a, "Part", 2).snapshot()
        await anyio.sleep(31)
        cluster.heal()
        upload = (await a.folded()).upload
        assert upload is not None
        info = await b.snapshot(trim=True)
        for late in (
            PAYLOADS.part(upload.sid, upload.parts, b"late"), PAYLOADS.end(upload.sid, 1, b"c" * 16, b"d" * 16)
        ):
            result = await a._folder.result_of(a._folder.enter([late], timeout_s=10))
            assert result is not None and result.outcome is Outcome.STALE
        assert (await a.status()).snapshot == info[:2] == (await b.status()).snapshot

    with Cluster(seed=1, servers=1) as cluster:
        small_payloads(cluster)
        with_journals(cluster, 2, work)
        check_trims(cluster)
        fresh(cluster)


def test_only_one_writes() -> None:
    told: list[bool] = []

    async def work(*replicas: Replica[Journal]) -> None:
        await fill(replicas[0], "a")

        async def write(replica: Replica[Journal]) -> None:
            try:
                await replica.snapshot(trim=True)
                told.append(True)
            except Busy:
                told.append(False)

        async with anyio.create_task_group() as tasks:
            for replica in replicas:
                tasks.start_soon(write, replica)

    with Cluster(seed=1) as cluster:
        small_payloads(cluster)
        with_journals(cluster, 3, work)
        assert sorted(told) == [False, False, True]
        sids = {m.sid for r in cluster.log() if isinstance(m := PAYLOADS.snapshot_message(r.payload), Part)}
        assert len(sids) == 1, "another one has left a part behind"
        fresh(cluster)


def test_commands_land_between_its_parts() -> None:
    """A snapshot is the machine as of its begin, whatever comes between its parts."""
    async def work(a: Replica[Journal], b: Replica[Journal]) -> None:
        await fill(a, "a", 30)

        async def others() -> None:
            for number in range(40):
                await b.run(b"between %d" % number)

        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(others)
                await a.snapshot(trim=True)
        messages = [PAYLOADS.snapshot_message(record.payload) for record in cluster.log()]
        at = [lsn for lsn, message in enumerate(messages) if isinstance(message, Part)]
        assert at[-1] - at[0] > len(at) + 10

    with Cluster(seed=1) as cluster:
        small_payloads(cluster)
        with_journals(cluster, 2, work)
        check_trims(cluster)
        fresh(cluster)


# -- what a process is told -----------------------------------------------------------------------------------


def test_a_command_that_was_jumped_over() -> None:
    """A process stands still with a command under way, while others trim beyond it: it is done, and `Unsettled`."""
    told: list[object] = []

    async def call(a: Replica[Journal]) -> None:
        try:
            told.append(await a.run(b"jumped"))
        except Unsettled as error:
            told.append(error)

    async def go() -> None:
        async with new_log(cluster) as log, new_log(cluster) as others:
            gate = Gate(log)
            async with journal(others) as b, journal(log, timeout_s=500) as a:
                await a.run(b"first")
                gate.close()
                for _ in range(2):  # pages that are on their way hold nothing that comes later
                    await b.run(b"a page")
                    await anyio.sleep(2)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(call, a)
                    await anyio.sleep(1)
                    for _ in range(2):
                        await b.run(b"between")
                        await b.snapshot(trim=True)
                    before = a.machine
                    gate.open()
                (error,) = told
                (lsn,) = truth(cluster).places[b"jumped"]
                assert isinstance(error, Unsettled) and error.lsn == lsn
                assert await a.read(lambda machine: machine.entries) == truth(cluster).entries
                assert a.machine is not before
                assert await a.run(b"after") == truth(cluster).told[a.lsn].answer

    with Cluster(seed=1, servers=1) as cluster:
        run(cluster, go)
        fresh(cluster)


@pytest.mark.parametrize("expired", [False, True])
def test_a_client_that_is_cut_off_settles(expired: bool) -> None:
    """A command whose outcome was not known is done once, or never: `settle` tells, also once its session is gone."""
    async def work(a: Replica[Journal], b: Replica[Journal]) -> None:
        await a.run(b"first")
        for server in cluster.servers:
            cluster.after(0.0005, cluster.cut, "program 0", server)
        with pytest.raises((NotGuaranteed, Unavailable)):
            await a.run(b"lost")
        with pytest.raises(Unavailable):
            await a.settle()
        for number in range(10):
            await b.run(b"others %d" % number)
            await anyio.sleep(1)
        cluster.heal()
        outcomes = await a.settle()
        places = truth(cluster).places.get(b"lost", [])
        assert len(places) <= 1
        for outcome in outcomes.values():
            assert outcome in places if isinstance(outcome, int) else isinstance(outcome, SessionExpired | Unavailable)
        assert await a.settle() == {}
        assert await a.run(b"after") == truth(cluster).told[a.lsn].answer
        assert await a.read(lambda machine: machine.entries) == truth(cluster).entries

    with Cluster(seed=1) as cluster:
        if expired:
            with cluster.connect_sync() as log:
                log.change_settings({"session_ttl_s": 1})
        with_journals(cluster, 2, work, timeout_s=2.0)


def test_a_cancelled_run_is_settled() -> None:
    async def work(a: Replica[Journal]) -> None:
        await a.run(b"first")
        for number in range(20):
            with anyio.move_on_after(number / 4000):
                await a.run(b"%d" % number)
        outcomes = await a.settle()
        right = truth(cluster)
        assert all(len(places) == 1 for places in right.places.values())
        assert outcomes and {*outcomes.values()} <= {place for places in right.places.values() for place in places}
        assert await a.run(b"last") == (len(right.entries), truth(cluster).entries[-1])

    with Cluster(seed=1) as cluster:
        with_journals(cluster, 1, work)


def test_all_is_gone() -> None:
    """A trim by hand takes every snapshot: no call answers from the old fold, and none takes the log for empty."""
    async def work(a: Replica[Journal]) -> None:
        await fill(a, "a")
        await a.log.trim(await a.log.end(), force=True)

    async def late(b: Replica[Journal]) -> None:
        with pytest.raises(Unrecoverable):
            await b.run(b"x")

    with Cluster(seed=1) as cluster:
        with_journals(cluster, 1, work)
        with_journals(cluster, 1, late)
        assert b"x" not in truth(cluster).places and first_of(cluster) > 1
