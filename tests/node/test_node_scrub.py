"""The scrub as a server runs it; answers to readers and peers from a log with a damaged entry (R31)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from node_rig import Rig, append, connect, founded, random_id, read, rig, until, writer_of

from alpo.core import requests as q
from alpo.core.entries import Entry
from alpo.core.messages import CopyRequest, Envelope
from alpo.core.ready import DamageFound, Input, Received
from alpo.core.requests import Code
from alpo.node import loader, scrub
from alpo.node.admission import NO_CARE, DiskCare
from alpo.node.host import Host
from alpo.node.log_server import LogServer
from alpo.storage.interface import DamagedStore, Scrubbed
from alpo.storage.scrub import ScrubMark
from alpo.wire import requests as w

pytestmark = pytest.mark.usefixtures("patient")

RATE = 1 << 40
#: Seconds a pass may take, so few that the next begins at once.
PASS_S = 0.024


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "RETRY_S", 0.001)
    monkeypatch.setattr(loader, "DAMAGED_RETRY_S", 0.001)


class Damage:
    """Entries of one node's store that cannot be read."""

    def __init__(self, log: LogServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids: list[int] = []
        self.scrubbed: list[int] = []
        scrubbing: set[int] = set()  # threads: the store's scrub reads entries
        store = log.store
        sound_read, sound_scrub = store.read_entries, store.scrub

        def read_entries(first_id: int, last_id: int, bytes_max: int) -> list[Entry]:
            for id in self.ids if threading.get_ident() not in scrubbing else ():
                if first_id <= id <= last_id:
                    damage = DamagedStore(f"alpo.db: entry {id}: entry {id} does not match its checksum", id)
                    store.on_damage(damage)
                    raise damage
            return sound_read(first_id, last_id, bytes_max)

        def scrub_all(first_id: int, bytes_max: int) -> Scrubbed:
            self.scrubbed.append(first_id)
            ids = self.ids
            scrubbing.add(threading.get_ident())
            try:
                found = sound_scrub(first_id, bytes_max)
            finally:
                scrubbing.discard(threading.get_ident())
            return found._replace(damaged=[id for id in ids if first_id <= id < found.next_id])

        monkeypatch.setattr(store, "read_entries", read_entries)
        monkeypatch.setattr(store, "scrub", scrub_all)


def noted(node: Host, monkeypatch: pytest.MonkeyPatch) -> list[DamageFound]:
    """A list of the damage that is reported to the core from now on."""
    told: list[DamageFound] = []
    post = node.driver.post

    def notice(item: Input, size_bytes: int = 0) -> None:
        if isinstance(item, DamageFound):
            told.append(item)
        post(item, size_bytes)

    monkeypatch.setattr(node.driver, "post", notice)
    return told


async def status(r: Rig) -> dict[str, Any]:
    answer = await (await connect(r.addresses[0])).ask(w.Status(1))
    assert isinstance(answer, w.StatusAnswer)
    return answer.fields


@pytest.mark.trio
async def test_damage_is_an_alarm_until_it_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark = ScrubMark(tmp_path)
    async with rig(care=DiskCare(0, RATE, mark, PASS_S)) as r:
        damage = Damage(r.nodes[0].log, monkeypatch)
        client, id = await founded(r), random_id()
        for serial in range(1, 10):
            await client.ask(append(id, serial, (1, b"payload")))
        told = noted(r.nodes[0], monkeypatch)
        damage.ids = [3, 5]
        await until(lambda: mark.read()[1] == [3, 5])
        fields = await status(r)
        assert fields["damaged"] == [3, 5]
        assert fields["damage"] == [
            "its disk holds damaged entries, 2 known: 3, 5; it serves and sends none of them"
        ]
        damage.ids = [5]
        await until(lambda: mark.read()[1] == [5])
        damage.ids = []
        await until(lambda: mark.read()[1] == [])
        fields = await status(r)
        assert fields["damaged"] == fields["damage"] == [] and fields["scrub_passes"] > 1
        met = [DamageFound((3,))]  # a reader may report 3 before the scrub does
        assert told[told[:1] == met:] == [DamageFound((3, 5)), DamageFound((5,)), DamageFound(())]


@pytest.mark.trio
async def test_after_a_restart_it_looks_at_what_was_damaged_and_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = ScrubMark(tmp_path)
    mark.write(6, [2, 4])
    real = LogServer.__init__

    def made(self: LogServer, *args: Any) -> None:
        real(self, *args)
        damages.append(Damage(self, monkeypatch))

    damages: list[Damage] = []
    monkeypatch.setattr(LogServer, "__init__", made)
    async with rig(care=DiskCare(0, RATE, mark, PASS_S)):
        await until(lambda: len(damages[0].scrubbed) >= 4)
        assert damages[0].scrubbed[:3] == [2, 4, 6]


@pytest.mark.trio
async def test_readers_get_what_is_sound_and_an_error_that_names_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as r:
        damage = Damage(r.nodes[0].log, monkeypatch)
        client, id = await founded(r), random_id()
        for serial in range(1, 10):
            await client.ask(append(id, serial, (1, b"%d" % serial)))
        first_id = r.nodes[0].replica.last_id - 8
        damage.ids = [first_id + 4]
        for asked in ({}, {"client": id}):
            page = await client.ask(read(1, **asked))
            assert [row[7] for row in page.entries] == [b"1", b"2", b"3", b"4"] and page.next_lsn == 5
        refused = await client.ask(read(2, start=5))
        assert isinstance(refused, w.RequestRefused) and refused.code == Code.NOT_READY
        assert f"entry {first_id + 4}" in refused.detail
        page = await client.ask(read(3, start=6))
        assert [row[5] for row in page.entries] == [6, 7, 8, 9]


@pytest.mark.trio
async def test_a_peer_gets_what_is_sound_and_the_rest_from_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader that meets damage while it reads for a peer hands over, and gets a copy itself."""
    async with rig(3, tail_bytes_max=2_000, peer_inflight_bytes_max=1_000) as r:
        leader = await r.leader()
        behind = next(n for n in r.nodes if n is not leader)
        damage = Damage(leader.log, monkeypatch)
        client, id = await connect(leader.us.address), random_id()
        writer_of(behind).held = True
        for serial in range(1, 41):
            assert isinstance(await client.ask(append(id, serial, (1, bytes(500)))), q.Appended)
        begun = behind.replica.last_id
        assert begun < leader.replica.last_id - 20
        told = noted(leader, monkeypatch)
        damage.ids = [bad_id := leader.replica.last_id - 15]
        writer_of(behind).release()
        await until(lambda: told[:1] == [DamageFound((bad_id,))])
        await until(lambda: leader.replica.leader_id not in (0, leader.us.me.id))
        next_one = next(n for n in r.nodes if n.us.me.id == leader.replica.leader_id)
        await until(lambda: behind.replica.guaranteed_id == next_one.replica.last_id > bad_id)
        damage.ids = []
        await until(lambda: told[-1] == DamageFound(()) and leader.log.scrubber.fields()["damaged"] == [])


class Healing(Damage):
    """Damage that is over once the entry is written anew."""

    def __init__(self, log: LogServer, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(log, monkeypatch)
        self.mended: list[int] = []
        on_mended = log.driver.on_mended

        def heal(ids: Sequence[int]) -> None:
            self.mended += ids
            self.ids = [id for id in self.ids if id not in ids]
            on_mended(ids)

        monkeypatch.setattr(log.driver, "on_mended", heal)


@pytest.mark.trio
@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("care", [NO_CARE, DiskCare(0, 1, None, 1e6)], ids=["no-scrub", "slow-scrub"])
async def test_damage_that_a_read_meets_is_mended_and_the_reader_gets_the_sound_copy(
    monkeypatch: pytest.MonkeyPatch, leads: bool, care: DiskCare
) -> None:
    """Linearizable at the leader, which hands over, and local at a follower; at the front of a page, and within it."""
    async with rig(3, care=care) as r:
        await with_entries(r)
        leader = await r.leader()
        node = leader if leads else next(n for n in r.nodes if n is not leader)
        damage, told = Healing(node.log, monkeypatch), noted(node, monkeypatch)
        client = await connect(node.us.address)
        bad_id = node.log.store.find_lsn(5, node.replica.last_id)
        for start in (5, 3):
            damage.ids, damage.mended = [bad_id], []
            del told[:]
            answer = await client.ask(read(start, start=start, linearizable=leads and start == 5))
            rows = list(answer.entries)
            if start == 3:  # a page ends before the damage, which it has met
                assert [row[5] for row in rows] == [3, 4]
                rows = list((await client.ask(read(9, start=5))).entries)
            while rows[-1][5] < 12:  # a page may end after what was just written anew
                rows += (await client.ask(read(10, start=rows[-1][5] + 1))).entries
            assert [row[5] for row in rows] == list(range(5, 13))
            assert damage.mended == [bad_id]
            await until(lambda: told == [DamageFound((bad_id,)), DamageFound(())])
        fields = (await client.ask(w.Status(1))).fields
        assert fields["mended"] == 2 and abs(fields["mended_ms"] - fields["time_ms"]) < 60_000
        if leads:
            assert leader.replica.leadership is None


@pytest.mark.trio
async def test_damage_of_no_entry_is_told_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as r:
        await with_entries(r)
        node = r.nodes[0]
        client = await connect(node.us.address)
        told: list[str] = []

        def keep(name: str, fields: Any) -> bool:
            told.append(name)
            return False

        monkeypatch.setattr(node.driver, "keep", keep)

        def read_columns(first_id: int, last_id: int, bytes_max: int) -> Any:
            damage = DamagedStore("alpo.db: malformed")
            node.log.store.on_damage(damage)
            raise damage

        monkeypatch.setattr(node.log.store, "read_columns", read_columns)
        monkeypatch.setattr(node.log.store, "read_entries", read_columns)
        refused = await client.ask(read(2, start=5))
        assert isinstance(refused, w.RequestRefused) and refused.code == Code.NOT_READY
        assert refused.detail == "this server's store cannot be read: alpo.db: malformed"
        await until(lambda: "read_failed" in told)


async def with_entries(r: Rig, count: int = 12) -> None:
    """Everywhere."""
    client = await founded(r) if len(r.nodes) == 1 else await connect((await r.leader()).us.address)
    id = random_id()
    for serial in range(1, count + 1):
        assert isinstance(await client.ask(append(id, serial, (1, b"payload"))), q.Appended)
    last_id = max(node.replica.last_id for node in r.nodes)
    await until(lambda: all(node.replica.log.stable_id >= last_id for node in r.nodes))  # a new leader adds one


@pytest.mark.trio
async def test_what_was_known_before_a_restart_holds_the_server_back_before_it_speaks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = ScrubMark(tmp_path)
    async with rig(3) as r:
        await with_entries(r)
        node = r.nodes[0]
        mark.write(1, [4, 10**6])
        again = scrub.Scrubber(node.driver, node.log.store, DiskCare(0, RATE, mark, PASS_S))
        told = noted(node, monkeypatch)
        await again.recall()
        assert told == [DamageFound((4,))], "and nothing of what is beyond the log's end"
        assert node.replica.damage.ids == (4,)


@pytest.mark.trio
async def test_what_was_expunged_is_no_damage_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log may be shorter afterwards, and no look would ever come there."""
    async with rig(care=DiskCare(0, RATE, None, PASS_S)) as r:
        await with_entries(r)
        node = r.nodes[0]
        beyond_id = node.replica.last_id + 3
        node.log.scrubber._damaged, node.log.scrubber._told = {beyond_id}, [beyond_id]
        await until(lambda: node.log.scrubber.fields()["damaged"] == [])


@pytest.mark.trio
async def test_of_more_damage_than_is_listed_the_rest_is_looked_for_before_all_is_said_to_be_sound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scrub, "DAMAGED_MAX", 2)
    async with rig(care=DiskCare(0, RATE, None, PASS_S)) as r:
        await with_entries(r)
        node = r.nodes[0]
        damage, told = Damage(node.log, monkeypatch), noted(node, monkeypatch)
        damage.ids = [3, 5, 7, 9, 11]
        await until(lambda: told[-1:] == [DamageFound((3, 5))])  # a reader that meets 3 may have it told before
        node.log.scrubber._pass_s = 1_000_000  # the scrub reads only mended entries from now on
        passes = node.log.scrubber._passes
        await until(lambda: node.log.scrubber._passes > passes)
        for mended, left in (((3, 5), (7, 9, 11)), ((7, 9), (11,)), ((11,), ())):
            damage.ids = list(left)
            node.log.scrubber.mended(mended)
            await until(lambda: node.log.scrubber._told == list(left[:2]))
        assert [each.ids for each in told if len(each.ids) != 1 or each.ids == (11,)] == [(3, 5), (7, 9), (11,), ()]


@pytest.mark.trio
async def test_a_peer_that_asks_for_copies_without_end_has_one_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(3) as r:
        await with_entries(r)
        leader = await r.leader()
        peer = next(node for node in r.nodes if node is not leader)
        reads: list[int] = []
        go_on = threading.Event()

        def read_entries(first_id: int, last_id: int, bytes_max: int) -> list[Entry]:
            reads.append(first_id)
            go_on.wait()
            raise DamagedStore(f"entry {first_id} is damaged")

        monkeypatch.setattr(leader.log.store, "read_entries", read_entries)
        told: list[str] = []
        note = leader.driver.note

        def noted(name: str, *more: Any, **fields: Any) -> None:
            told.append(name)
            note(name, *more, **fields)

        monkeypatch.setattr(leader.driver, "note", noted)
        request = CopyRequest(4, leader.replica.log.term_at(4) or 0)
        asked = Received(Envelope(leader.replica.cluster, peer.us.me, leader.us.me, request))
        try:
            for _ in range(100):
                leader.driver.post(asked)
                leader.driver.pump()
            await until(lambda: bool(reads))
            await trio.testing.wait_all_tasks_blocked()
            assert reads == [4]
        finally:
            go_on.set()
        await until(lambda: not leader.log.loader.copying)
        leader.driver.post(asked)
        leader.driver.pump()
        await until(lambda: reads == [4, 4] and not leader.log.loader.copying)
        assert told.count("cannot_send") == 1


@pytest.mark.trio
async def test_what_stays_damaged_though_it_was_written_anew_ends_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(care=DiskCare(0, RATE, None, 1_000_000)) as r:
        await with_entries(r)
        node = r.nodes[0]
        failed: list[BaseException] = []
        monkeypatch.setattr(node.driver, "failed", failed.append)
        damage = Damage(node.log, monkeypatch)
        for turn, ids in enumerate(([4], [4], [], [4], [4], [4])):
            damage.ids = ids
            looks = len(damage.scrubbed)
            node.log.scrubber.mended([4])
            await until(lambda: len(damage.scrubbed) > looks and node.log.scrubber._told == ids)
            await trio.testing.wait_all_tasks_blocked()
            assert bool(failed) == (turn == 5), "three times in a row"
        assert isinstance(failed[0], DamagedStore) and "entry 4" in str(failed[0])
