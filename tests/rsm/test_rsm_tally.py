"""The machinery with another machine than a state: a tally, whose digest is taken of a copy when it is asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from rsm_kit import new_log, run
from snapshot_rig import small_payloads

from alpo.client.log import Log
from alpo.errors import AlpoError
from alpo.rsm import folder, parts
from alpo.rsm.errors import Diverged, NewerFormat, NotFounded, Unrecoverable, Unsettled, WrongState
from alpo.rsm.folder import Sent
from alpo.rsm.kind import Kind
from alpo.rsm.loading import Cache
from alpo.rsm.machine import Outcome, Result, Snapshotting, are_registers
from alpo.rsm.payloads import Begin, End, Part, Payloads, is_id
from alpo.rsm.replicated import Replicated
from alpo.state import State
from alpo.testing import Cluster
from alpo.wire.framing import pack, unpack_message

PAYLOADS = Payloads("tally", magic=b"\xc1\x7e", format=1)
Totals = dict[str, int]


class Found(NamedTuple):
    id: bytes


class Count(NamedTuple):
    name: str
    number: int


def digest_of(totals: Totals) -> bytes:
    return blake2b(pack(sorted(totals.items())), digest_size=16).digest()


class Tally(Snapshotting[Totals | bytes]):
    """Totals by name; ``terms``: those of the entries that counted."""

    def __init__(self) -> None:
        super().__init__(PAYLOADS)
        self.totals: Totals = {}
        self.terms: list[int] = []

    def keep_digest(self) -> Totals:
        return dict(self.totals)

    def digest_bytes(self, kept: Totals | bytes) -> bytes:
        return kept if isinstance(kept, bytes) else digest_of(kept)

    def digest_of(self, digest: bytes) -> bytes:
        return digest

    def _decode(self, payload: bytes) -> Found | Count | Begin | Part | End | None:
        message = PAYLOADS.snapshot_message(payload)
        if message is not None:
            return message
        try:
            number, *fields = unpack_message(payload[3:])
        except ValueError:
            return None
        if number == 0 and len(fields) == 1 and is_id(fields[0]):
            return Found(*fields)
        return Count(*fields) if number == 1 and [*map(type, fields)] == [str, int] else None

    def _take(self, message: Any, term: int) -> Result:
        if isinstance(message, Found):
            if self.founded:
                return Result(Outcome.FOUNDED_BEFORE, self.lsn)
            self.state_id = message.id
            return Result(Outcome.FOUNDED, self.lsn)
        if not isinstance(message, Count):
            return self._take_snapshot(message)
        self.totals[message.name] = total = self.totals.get(message.name, 0) + message.number
        self.bytes = sum(map(len, self.totals))
        self.terms.append(term)
        if self.touched is not None:
            self.touched.append(message)
        return Result(Outcome.DONE, self.lsn, cell=total)


class Encoder(parts.Encoder):
    def __init__(self, registers: tuple[Any, ...], totals: Totals, bytes_max: int) -> None:
        super().__init__(registers, bytes_max)
        self._totals = totals

    @property
    def digest(self) -> bytes:
        return digest_of(self._totals)

    def _items(self, room: int) -> Iterator[bytes]:
        return map(pack, self._totals.items())


class Decoder(parts.Decoder[tuple[str, int]]):
    def __init__(self) -> None:
        super().__init__(own=1, fields=2)
        self.totals: Totals = {}

    @property
    def digest(self) -> bytes:
        return digest_of(self.totals)

    def _are_registers(self, registers: tuple[Any, ...]) -> bool:
        return is_id(registers[0]) and are_registers(registers[1:])

    def _item(self, item: Any) -> tuple[str, int] | None:
        if type(item) is not tuple or [*map(type, item)] != [str, int]:
            raise ValueError("an item is none")
        self.totals[item[0]] = item[1]
        return item


class Thawing(parts.Thawing[Tally]):
    def __init__(self) -> None:
        super().__init__(Decoder())

    def _made(self, registers: tuple[Any, ...]) -> Tally:
        tally = Tally()
        tally.state_id = registers[0]
        tally.set_registers(registers[1:])
        return tally

    def _add(self, machine: Tally, items: list[Any]) -> None:
        machine.totals.update(items)


def freeze(tally: Tally) -> parts.Frozen:
    return partial(Encoder, (tally.state_id, *tally.registers()), dict(tally.totals))


KIND = Kind(
    PAYLOADS, title="Tallies", cursor="tally", cache_magic=b"TALLY\n", machine=Tally, freeze=freeze, thawing=Thawing,
    decoder=Decoder,
)


class Counts:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Count] = []
        self.jumps: list[int] = []
        self.why: AlpoError | None = None

    def jumped(self, machine: Tally) -> None:
        self.jumps.append(machine.lsn)

    def ended(self, error: AlpoError) -> None:
        self.why = error


class Folder(folder.Folder[Tally, Counts]):
    def tell(self, machine: Tally, touched: Any, time_ms: int) -> None:
        for watcher in self._watchers:
            watcher.told += touched


def judged(sent: Sent, tally: Tally | None, lsn: int) -> Result:
    if sent.result is None:
        raise Unsettled(f"nobody can tell of {sent.about}", lsn=lsn)
    return sent.result


class Tallies(Replicated[Tally, Counts]):
    def __init__(self, log: Log, expect: bytes = b"", cache: Path | None = None, create: bool = True) -> None:
        kept = None if cache is None else Cache(KIND, cache, expect)
        super().__init__(Folder(KIND, log, log.timeout_s, expect, kept), judged, create=create, auto=False)

    def _founding_payload(self, id: bytes) -> bytes:
        return PAYLOADS.pack(0, id)

    async def count(self, name: str, number: int = 1) -> int:
        until_s = self._folder.until_s()
        if not self._ready:
            await self._make_ready(until_s, lambda: None)
        sent = await self._send([PAYLOADS.pack(1, name, number)], name, until_s)
        return int((await self._settling.result_of(sent)).cell)


def with_tallies(cluster: Cluster, number: int, work: Callable[[list[Tallies]], Awaitable[None]], **how: Any) -> None:
    async def go(tallies: list[Tallies]) -> None:
        if len(tallies) == number:
            return await work(tallies)
        async with new_log(cluster, f"program {len(tallies)}") as log, Tallies(log, **how) as tally:
            await go([*tallies, tally])

    run(cluster, lambda: go([]))


def test_all_processes_have_the_same_and_a_newcomer_begins_at_a_snapshot() -> None:
    async def work(tallies: list[Tallies]) -> None:
        one, two = tallies
        seen = Counts()
        await two.folded()
        two.subscribe(seen)
        for n in range(700):
            assert await one.count(f"name {n}", n) == n
        assert await two.count("name 3", -1) == 2
        with anyio.fail_after(5):
            while len(seen.told) < 701:
                await anyio.sleep(0.01)
        assert seen.told[3] == Count("name 3", 3) and seen.jumps == []
        for _ in range(3):
            info = await two.snapshot(trim=True)
            assert await one.count("between") > 0
        assert info.parts > 2 and info.first_lsn > 1
        assert {c.name: c.lsn for c in await one.log.cursors()} == {"tally": info.begin}
        now = [await each.folded() for each in tallies]
        assert now[0].totals == now[1].totals and now[0].terms[-1] > 0

    async def begin_late(tallies: list[Tallies]) -> None:
        (late,) = tallies
        tally = await late.folded()
        right = Tally()
        for record in cluster.log():
            right.apply(record.lsn, 0, record.payload)
        assert tally.totals == right.totals and len(tally.terms) < 5 < len(right.terms)
        assert (tally.snapshot and tally.snapshot[:2]) == (right.snapshot and right.snapshot[:2])

    with Cluster(seed=1) as cluster:
        small_payloads(cluster)
        with_tallies(cluster, 2, work)
        with_tallies(cluster, 1, begin_late)


def test_a_writer_and_a_reader_that_are_wrong_stop() -> None:
    async def work(tallies: list[Tallies]) -> None:
        right, wrong = tallies
        await right.count("a", 5)
        (await wrong.folded()).totals["a"] = 6
        await right.snapshot()
        with pytest.raises(Diverged, match="the tally in this process is not the one that the log holds, at LSN"):
            while True:
                await wrong.folded()
                await anyio.sleep(0.1)
        assert (await right.folded()).totals == {"a": 5}

    async def write(tallies: list[Tallies]) -> None:
        wrong, right = tallies
        (await wrong.folded()).totals["a"] = 6
        with pytest.raises(Diverged, match="is not of the tally that the log holds"):
            (await wrong.folded())._begin = partial(_begins_with, await wrong.folded(), {"a": 5})  # type: ignore[method-assign]
            await wrong.snapshot()
        assert (await right.folded()).totals == {"a": 5}

    with Cluster(seed=1) as cluster:
        with_tallies(cluster, 2, work)
        with_tallies(cluster, 2, write)


def _begins_with(tally: Tally, totals: Totals, message: Begin) -> Result:
    """A process whose digest is that of all others, and whose content is not."""
    result = Tally._begin(tally, message)
    assert tally.upload is not None
    tally.upload = tally.upload._replace(digest=totals)
    return result


def test_two_kinds_on_one_log_are_foreign_to_each_other() -> None:
    async def work(tallies: list[Tallies]) -> None:
        (tally,) = tallies
        await tally.count("a")
        async with new_log(cluster, "other") as log, State(log, snapshots="off") as state:
            await state.put("a", b"1")
            await tally.snapshot(trim=True)
            await tally.count("a")
            info = await tally.snapshot(trim=True)
            assert (await state.status()).foreign_lsn == info.end and info.first_lsn == 1
        assert (await tally.folded()).foreign_lsn > 0 and (await tally.folded()).invalid == 0

    with Cluster(seed=1, servers=1) as cluster:
        with_tallies(cluster, 1, work)


def test_errors_name_the_kind(tmp_path: Path) -> None:
    async def expect(tallies: list[Tallies]) -> None:
        with pytest.raises(WrongState, match=r"^this log holds tally [0-9a-f]{32}, not 78787878"):
            await tallies[0].folded()

    async def create(tallies: list[Tallies]) -> None:
        with pytest.raises(NotFounded, match=r"^this log holds no tally: "):
            await tallies[0].count("a")

    async def newer(tallies: list[Tallies]) -> None:
        await tallies[0].log.append(PAYLOADS.magic + b"\x02")
        with pytest.raises(NewerFormat, match="is in format 2 of the tally; this release knows 1"):
            await tallies[0].folded()

    async def gone(tallies: list[Tallies]) -> None:
        with pytest.raises(Unrecoverable, match="and no whole snapshot of the tally"):
            await tallies[0].folded()

    async def count(tallies: list[Tallies]) -> None:
        await tallies[0].count("a")

    with Cluster(seed=1, servers=1) as cluster:
        with_tallies(cluster, 1, create, create=False)
        with_tallies(cluster, 1, count, cache=tmp_path / "cache")
        assert (tmp_path / "cache").read_bytes().startswith(b"TALLY\n")
        with_tallies(cluster, 1, count, cache=tmp_path / "cache")
        with_tallies(cluster, 1, expect, expect=b"x" * 16)
        with_tallies(cluster, 1, newer)
        with cluster.connect_sync() as log:
            log.trim(3, force=True)
        with_tallies(cluster, 1, gone)
