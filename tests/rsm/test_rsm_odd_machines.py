"""Machines that are wrong in every way that a class can be: what becomes of their process, and that no other one's
log is harmed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import anyio
import pytest
from journal import Journal, check_trims, fresh, journal, truth
from rsm_kit import Ledger, command, new_log, run, with_replicas
from snapshot_rig import small_payloads

from alpo.errors import NotGuaranteed
from alpo.rsm import At, Diverged, NewerVersion, Replica, WrongMachine
from alpo.rsm.hosted import PAYLOADS, Hosted, Made, commands_head, found, newer_version
from alpo.testing import Cluster

# -- apply --------------------------------------------------------------------------------------------------


class Torn(Ledger):
    """A ledger that changes, and then raises ``how``, on "tear"."""

    how: type[BaseException] = KeyboardInterrupt

    def apply(self, command: bytes, at: At) -> object:
        if command == b"tear":
            self.accounts["x"] = 0
            raise self.how
        return super().apply(command, at)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize(
    "how", [KeyboardInterrupt, SystemExit, MemoryError, GeneratorExit, asyncio.CancelledError]
)
def test_a_machine_that_is_torn_is_not_used_nor_cached(how: type[BaseException], backend: str, tmp_path: Path) -> None:
    made: type[Any] = type("Torn", (Torn,), {"how": how})

    async def go() -> None:
        async with cluster.connect() as log, cluster.connect() as others:
            async with Replica(log, made, name="l", snapshots="off", cache=tmp_path / "cache") as a:
                assert await a.run(command("open", "x", 1)) == 1
                with pytest.raises(NotGuaranteed, match="what the next command has done is not known"):
                    await a.run(b"tear")
                for _ in range(2):
                    with pytest.raises(Diverged, match=f"as of LSN 2 cannot go on: .*: {how.__name__}"):
                        await a.run(command("sum"))
            async with Replica(others, Ledger, name="l", snapshots="off") as b:
                assert await b.run(command("sum")) == 1  # "tear" is no JSON for it

    with Cluster(seed=1) as cluster:
        anyio.run(go, backend=backend)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", [StopIteration, StopAsyncIteration, AssertionError, NotGuaranteed, RecursionError])
def test_other_exceptions_are_answers(how: type[Exception]) -> None:
    async def work(a: Replica[Any], b: Replica[Any]) -> None:
        for each in (a, b):
            with pytest.raises(RuntimeError if how is StopIteration else how):
                await each.run(b"tear")
        assert a.machine.accounts == {"x": 0}
        told = [answer async for at, answer in first_of(a.answers(2), 2)]
        assert [*map(type, told)] == [how, how]

    with Cluster(seed=1) as cluster:
        made = type("Torn", (Torn,), {"how": how, "apply": raises_with_text})
        with_replicas(cluster, work, made, made)


def raises_with_text(self: Torn, command: bytes, at: At) -> object:
    self.accounts["x"] = 0
    raise NotGuaranteed("x", client="c", serial=1, epoch=1) if self.how is NotGuaranteed else self.how()


async def first_of(answers: Any, number: int) -> Any:
    async for each in answers:
        yield each
        number -= 1
        if not number:
            return


class Waiting(Ledger):
    async def apply(self, command: bytes, at: At) -> object:
        return 1


class Needing(Ledger):
    def __init__(self, accounts: dict[str, int]) -> None:
        super().__init__(accounts)


@pytest.mark.parametrize(("made", "why"), [
    (Waiting, r"a machine waits for nothing: \['apply'\] of Waiting may not be async"),
    (Needing, r"Needing\(\) makes an empty machine, and needs no arguments"),
])
def test_a_class_that_cannot_be_one_is_refused_at_once(made: type[Any], why: str) -> None:
    async def work(a: Replica[Any]) -> None: ...

    with Cluster(seed=1) as cluster, pytest.raises(TypeError, match=why):
        with_replicas(cluster, work, made)


def test_the_time_of_a_command_is_its_entrys_beside_other_payloads() -> None:
    """Whatever else of the machine lands in the same millisecond: its founding, a snapshot, a version."""
    machine = Hosted(Made(Clock, "clock", 2))
    times = []
    for lsn, (time_ms, payload) in enumerate([
        (5000, found(b"i" * 16, "clock", 1)), (5000, commands_head(1)), (6000, PAYLOADS.begin(b"s" * 16)),
        (6000, commands_head(2)), (70_000, newer_version(2)), (70_000, commands_head(2)), (71_000, b"of others"),
        (71_000, commands_head(2)),
    ], 1):
        result = machine.apply(lsn, time_ms, payload)
        if payload[:4] == commands_head(1)[:4]:
            times.append(result.cell)
    assert times == [5, 6, 70, 71]


class Clock(Ledger):
    def apply(self, command: bytes, at: At) -> object:
        return at.time.timestamp()


# -- load, freeze, items, digest ----------------------------------------------------------------------------


class LoadsNone(Ledger):
    @classmethod
    def load(cls, items: Iterable[bytes]) -> Any:
        list(items)


class LoadExits(Ledger):
    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        raise SystemExit(3)


class LoadsOther(Ledger):
    @classmethod
    def load(cls, items: Iterable[bytes]) -> Any:
        return Ledger()


class DigestFails(Ledger):
    def digest(self) -> bytes:
        raise KeyError("d")


class DigestIsText(Ledger):
    def digest(self) -> Any:
        return "text"


@pytest.mark.parametrize(("made", "why"), [
    (LoadsNone, r"load\(\) gave NoneType, not LoadsNone"), (LoadsOther, r"load\(\) gave Ledger, not LoadsOther"),
    (LoadExits, r"load\(\) has failed on a whole snapshot: SystemExit"),
    (DigestFails, r"digest\(\) has failed on a loaded machine: KeyError"),
    (DigestIsText, r"digest\(\) has failed on a loaded machine: TypeError: .* gave str"),
])
def test_what_cannot_be_loaded_ends_its_process_alone(made: type[Any], why: str) -> None:
    async def begin(a: Replica[Ledger]) -> None:
        await a.run(command("open", "x", 10))
        info = await a.snapshot()
        await a.log.set_cursor("machine", info.begin)
        await a.log.trim(info.begin)

    async def late(b: Replica[Any]) -> None:
        for _ in range(2):
            with pytest.raises(Diverged, match=why):
                await b.run(command("sum"))

    async def total(b: Replica[Ledger]) -> int:
        return int(await b.run(command("sum")))

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, begin)
        with_replicas(cluster, late, made)
        assert with_replicas(cluster, total) == 10


class Lazy(Ledger):
    """A ledger that keeps the items, and looks at them when asked for its total."""

    rest: Iterable[bytes] = ()

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        lazy = cls()
        lazy.rest = items
        return lazy

    @property
    def total(self) -> int:
        return len(list(self.rest))


def test_items_that_a_load_has_kept_hold_nobody_up() -> None:
    async def begin(a: Replica[Ledger]) -> None:
        await a.run(command("open", "x", 10))
        info = await a.snapshot()
        await a.log.set_cursor("machine", info.begin)
        await a.log.trim(info.begin)

    async def late(b: Replica[Lazy]) -> None:
        with pytest.raises(ValueError, match="its items are gone: take them while it runs"):
            await b.read(lambda machine: machine.total)

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, begin)
        with_replicas(cluster, late, Lazy)


class FreezesNone(Ledger):
    def freeze(self) -> Any:
        return None


class FreezeExits(Ledger):
    def freeze(self) -> Self:
        raise SystemExit


class ItemIsText(Ledger):
    def items(self) -> Iterator[Any]:
        yield b"1"
        yield "text"


class ItemsEndEarly(Ledger):
    def items(self) -> Iterator[bytes]:
        yield b"1"
        raise SystemExit


class NoItems(Ledger):
    def items(self) -> Any:
        return None


class LargeItem(Ledger):
    def items(self) -> Iterator[bytes]:
        yield bytes((16 << 20) + 1)


WITHOUT = [FreezesNone, FreezeExits, ItemIsText, ItemsEndEarly, NoItems, LargeItem, DigestFails, DigestIsText]


@pytest.mark.parametrize("made", WITHOUT)
def test_a_machine_without_a_snapshot_writes_none(made: type[Any]) -> None:
    """A process ends with the first one that is asked for, its own or another's; others go on."""
    async def work(a: Replica[Any], other: Replica[Any], right: Replica[Ledger]) -> None:
        await right.run(command("open", "x", 1))
        assert await other.run(command("sum")) == 1
        with pytest.raises((Diverged, NotGuaranteed), match=r"gives no items|cannot be copied"):
            await a.snapshot(trim=True)
        with pytest.raises(Diverged):
            await a.run(command("sum"))
        assert await right.run(command("sum")) == 1
        with anyio.fail_after(10), pytest.raises(Diverged):
            while True:
                await other.run(command("sum"))
                await anyio.sleep(0.1)
        await anyio.sleep(31)
        assert await right.run(command("sum")) == 1
        assert (await right.snapshot(trim=True)).first_lsn == 1

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, work, made, made, Ledger)


class Shared(Journal):
    """A journal whose copy goes on with it."""

    def freeze(self) -> Self:
        return self


def test_a_copy_that_is_shared_never_lets_go_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that holds what came after it began is found by the log folded anew, before cursor and trim."""
    async def go() -> None:
        async with new_log(cluster, "program 0") as log, new_log(cluster) as others:
            async with Replica(log, Shared, name="journal", snapshots="off") as a, journal(others) as b:
                for number in range(30):
                    await b.run(b"%d".ljust(1000) % number)

                async def beside() -> None:
                    with suppress(Diverged, NotGuaranteed):  # once the snapshot has ended
                        for number in range(50):
                            await b.run(b"beside %d" % number)

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(beside)
                    with pytest.raises(Diverged, match="what the log gives if it is folded once more"):
                        await a.snapshot(trim=True)
                assert [cursor.lsn for cursor in await others.cursors()] == [1]

    monkeypatch.setattr("alpo.rsm.snapshots.IN_FLIGHT_BYTES", 1)
    with Cluster(seed=1) as cluster:
        small_payloads(cluster)
        run(cluster, go)
        check_trims(cluster)


def test_nobody_begins_at_a_snapshot_that_was_found_to_be_wrong() -> None:
    """A machine that was not founded at LSN 1 is folded from there on, until a snapshot was found to be right."""
    async def work(a: Replica[Drawn]) -> None:
        for _ in range(3):
            await a.log.append(b"of somebody else")
        await a.run(command("open", "x", 10))
        with pytest.MonkeyPatch.context() as patch:  # a writer that does not prove before the end
            patch.setattr("alpo.rsm.snapshots.prove", unproved)
            await a.snapshot()
        with pytest.raises(Diverged):
            await a.snapshot(trim=True)

    async def late(b: Replica[Ledger]) -> None:
        with pytest.raises(Diverged, match="is not that of the snapshot that ended at LSN"):
            await b.read(lambda machine: machine.total)

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, work, Drawn)
        with_replicas(cluster, late)


async def unproved(*given: Any) -> None:
    """Prove nothing."""


class Drawn(Ledger):
    """A ledger that is another one each time that it is folded."""

    number = 0

    def apply(self, command: bytes, at: At) -> object:
        Drawn.number += 1
        self.accounts["drawn"] = Drawn.number
        return super().apply(command, at)


# -- what others append ---------------------------------------------------------------------------------------


def test_an_end_that_does_not_fit_its_parts_stops_nobody() -> None:
    async def work(a: Replica[Journal], b: Replica[Journal]) -> None:
        await a.run(b"first")
        await a.log.append(PAYLOADS.begin(b"s" * 16))
        await a.log.append(PAYLOADS.end(b"s" * 16, 0, b"c" * 16, b"d" * 16))
        for each in (a, b):
            await each.run(b"x")
        assert (await b.status()).invalid == 1
        await b.snapshot(trim=True)

    async def go() -> None:
        async with new_log(cluster) as log, new_log(cluster) as others, journal(log) as a, journal(others) as b:
            await work(a, b)

    with Cluster(seed=1) as cluster:
        run(cluster, go)
        fresh(cluster)


def test_a_command_for_an_older_version_changes_nothing() -> None:
    async def go() -> None:
        async with new_log(cluster) as log, new_log(cluster) as others, journal(log, version=3) as a:
            await a.run(b"first")
            lsn = await others.append(commands_head(2) + b"old")
            assert (await a.run(b"second"))[0] == 1
            told = [at.lsn async for at, answer in first_of(a.answers(1), 2)]
            assert told == [lsn - 1, lsn + 1]

    with Cluster(seed=1) as cluster:
        run(cluster, go)
        assert b"old" in truth(cluster).places
        fresh(cluster)


def test_answers_are_none_of_another_machine() -> None:
    async def go() -> None:
        async with new_log(cluster) as log, new_log(cluster) as others, journal(log) as a:
            answers = a.answers(1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(found_another, others)
                with pytest.raises(WrongMachine, match="holds the machine 'other', not 'journal'"):
                    await anext(answers)
                tasks.cancel_scope.cancel()

    async def found_another(log: Any) -> None:
        async with Replica(log, Ledger, name="other") as other:
            await anyio.sleep(1)
            await other.run(command("open", "x", 1))
            await anyio.sleep_forever()

    with Cluster(seed=1) as cluster:
        run(cluster, go)


# -- caches -------------------------------------------------------------------------------------------------


def test_a_cache_is_not_of_a_version_that_was_not_taken(tmp_path: Path) -> None:
    """A process that stops before a newer version leaves no cache from which newer code would miss it."""
    cache = tmp_path / "cache"

    async def first(a: Replica[Ledger]) -> None:
        await a.run(command("open", "x", 1))

    async def change(a: Replica[Ledger]) -> None:
        await a.log.append(newer_version(2))

    async def older(a: Replica[Ledger]) -> None:
        with pytest.raises(NewerVersion):
            await a.read(lambda machine: machine.total)

    async def version(a: Replica[Ledger]) -> Any:
        return (await a.run(command("at")))[2]

    with Cluster(seed=1) as cluster:
        with_replicas(cluster, first)
        cluster.advance(70)
        with_replicas(cluster, change, version=2)
        with_replicas(cluster, older, cache=cache)
        assert with_replicas(cluster, version, version=2, cache=cache) == 2
        assert cache.exists()
        assert with_replicas(cluster, version, version=2, cache=cache) == 2


class LoadFails(Ledger):
    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        raise KeyError("no such account")


def test_a_cache_that_does_not_load_is_ignored(tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    async def total(a: Replica[Any]) -> Any:
        return await a.run(command("open", "x", 1))

    with Cluster(seed=1) as cluster:
        assert [with_replicas(cluster, total, cache=cache), with_replicas(cluster, total, cache=cache)] == [1, 2]
        assert with_replicas(cluster, total, LoadFails, cache=cache) == 3


def test_a_cache_of_another_cluster_is_ignored(tmp_path: Path) -> None:
    cache = tmp_path / "cache"

    async def total(a: Replica[Ledger]) -> Any:
        await a.run(command("at"))
        return await a.run(command("open", "x", cluster.seed))

    with Cluster(seed=7) as cluster:
        assert with_replicas(cluster, total, cache=cache) == 7
    with Cluster(seed=1) as cluster:
        assert [with_replicas(cluster, total, cache=which) for which in (None, None, cache, cache)] == [1, 2, 3, 4]


# -- registers, and snapshots that are none -------------------------------------------------------------------


async def three_snapshots(a: Replica[Journal]) -> None:
    for number in range(3):
        await a.run(b"%d" % number)
        await a.snapshot(trim=True)


def test_registers_come_with_a_snapshot_and_a_cache(tmp_path: Path) -> None:
    async def go() -> None:
        async with new_log(cluster) as log, journal(log, version=3) as a:
            await log.append(b"of somebody else")
            await log.append(PAYLOADS.head + b"damaged")
            await three_snapshots(a)
            previous = (await a.folded()).previous
            assert previous is not None and (await a.status()).invalid == 1
            await log.trim(previous.begin)

    with Cluster(seed=1) as cluster:
        run(cluster, go)
        for _ in range(2):
            machine = fresh(cluster, cache=tmp_path / "cache")
            assert machine.foreign_lsn == machine.invalid == 1 and machine.previous is not None


def test_a_snapshot_that_was_cut_off_is_none() -> None:
    """A newcomer goes past a snapshot whose parts are not all there, or not those of its end, to one that is whole."""
    async def go() -> None:
        async with new_log(cluster) as log, journal(log) as a:
            await a.run(b"first")
            await a.snapshot()
            records = [record async for record in log.read(1, await log.end() - 1)]
            lost = [record.payload for record in records if PAYLOADS.snapshot_message(record.payload) is not None]
            begin = await log.append(PAYLOADS.begin(b"s" * 16))
            del lost[1]
            for payload in lost[1:]:
                message = PAYLOADS.snapshot_message(payload)
                assert message is not None
                await log.append(PAYLOADS.pack(len(message) - (len(message) == 3), b"s" * 16, *message[1:]))
            await a.run(b"second")
            await a.snapshot()
            await log.trim(begin, force=True)

    with Cluster(seed=1) as cluster:
        run(cluster, go)
        fresh(cluster)
