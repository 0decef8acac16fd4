"""One client's payloads are found among millions of others': by the session table, else by heads, each read once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_rig import append, lone, memory_of, read

from alpo.core import requests as q
from alpo.core.disk import Write
from alpo.core.entries import Entry, Kind, join_payloads, random_client, seal, split_payloads
from alpo.core.log import Log
from alpo.core.machine.verdicts import SessionTable, drop_body, open_body
from alpo.core.settings import Settings
from alpo.node import pages, reads
from alpo.node.pages import Back, Extent, Front, Overtaken, Traces, Whose, build_page, extent
from alpo.storage.interface import DamagedStore
from alpo.storage.memory import MemoryStore
from alpo.storage.schema import DB_NAME
from alpo.storage.sqlite import SqliteStore
from alpo.wire.requests import Page

RANDOM = [random_client(1000 + n, n) for n in range(4)]
#: Two random clients, and two whose sessions the table does not know: their names were dropped, say.
CLIENTS = [*RANDOM[:2], "a", "b"]
NEVER, OLD = RANDOM[2], RANDOM[3]


def log_of(shape: list[tuple[int, int]]) -> list[Entry]:
    """Entries by (payload count, client); a count of 0 is a LEADER entry."""
    entries: list[Entry] = []
    serials, lsn = dict.fromkeys(CLIENTS, 0), 1
    for id, (count, at) in enumerate(shape, 1):
        client = CLIENTS[at] if count else ""
        serials[client] = serials.get(client, 0) + 1
        body = join_payloads([f"{id}.{n}".encode() for n in range(count)]) if count else b"{}"
        kind = Kind.DATA if count else Kind.LEADER
        entries.append(seal(id, 1, kind, 2000 + id, lsn, body, client, serials[client] if count else 0, 0, count))
        lsn += count
    return entries


def store_of(entries: list[Entry]) -> MemoryStore:
    store = MemoryStore(1, b"i" * 16)
    store.commit([Write(1, 1, 0, None, entries, [(1, 1)], 0, 0)])
    return store


def lsns_of(page: Page) -> list[int]:
    return [row[5] + n for row in page.entries for n in range(row[6])]


def all_pages(store: Any, client: str, within: Extent, start: int, make: Any, **bounds: int) -> list[int]:
    """The LSNs that a reader of this client gets from ``start`` on."""
    found: list[int] = []
    begin = start
    for _ in range(200):
        page = build_page(store, read(start=start, client=client), within, 30, whose=make(), **bounds)
        assert isinstance(page, Page) and (page.next_lsn > start or start > within.end_lsn)
        found += lsns_of(page)
        start = page.next_lsn
        if start > within.end_lsn:
            return [lsn for lsn in found if lsn >= begin]
    raise AssertionError("the pages have no end")


@pytest.fixture(autouse=True)
def short_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "STRETCH_IDS", 4)
    monkeypatch.setattr(Back, "HEADS_MAX", 3)


shapes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30)


@given(
    shape=shapes, window=st.integers(1, 4), total=st.integers(1, 9), cut=st.integers(0, 12), later=st.integers(0, 3),
    memory=st.booleans(),
    asked=st.lists(st.tuples(st.sampled_from([*CLIENTS, NEVER]), st.integers(1, 9)), min_size=1, max_size=4),
)
def test_what_is_found_is_what_is_there(
    shape: list[tuple[int, int]], window: int, total: int, cut: int, later: int, memory: bool,
    asked: list[tuple[str, int]],
) -> None:
    """Repeated searches in a trimmed log find a client's payloads, as of an entry before the session table's last."""
    entries = log_of(shape)
    store, table, traces = store_of(entries), SessionTable(Settings(window=window, window_total=total)), Traces()
    table.apply_all(entries)
    end_id = max(1, len(entries) - later)
    if memory:
        traces.follow(cast(Log, Tail(entries)), end_id)
    first_lsn = min(cut, sum(entry.count for entry in entries[:end_id])) + 1
    within = extent(store, Front(0, 1, first_lsn), end_id)
    for client, last in asked:
        there = [
            entry.lsn + n for entry in entries[:end_id] if entry.client == client for n in range(entry.count)
            if entry.lsn + n >= first_lsn
        ]

        def make(client: str = client) -> Whose:
            return Whose(client, table.entries_of(client), traces)

        search = Back(read(last=last, client=client), within)
        for _ in range(100):
            if search.start is None:
                search.step(store, make(), within)
        assert search.start is not None
        assert all_pages(store, client, within, search.start, make, rows_max=2) == there[-last:]
        assert all_pages(store, client, within, first_lsn, make) == there


class Tail:
    """A log in memory, which reaches back to an id."""

    def __init__(self, entries: list[Entry]) -> None:
        self.entries, self.first_id = entries, 1

    def between(self, first_id: int, last_id: int) -> list[Entry]:
        return self.entries[max(first_id, self.first_id) - 1 : last_id]


class Counted:
    """A store that counts what is read of it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.heads = self.bodies = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read_heads(self, first_id: int, last_id: int) -> Any:
        found = self._store.read_heads(first_id, last_id)
        self.heads += len(found.ids)
        return found

    def read_columns(self, first_id: int, last_id: int, bytes_max: int) -> Any:
        found = self._store.read_columns(first_id, last_id, bytes_max)
        self.bodies += len(found.ids)
        return found


def test_the_session_table_spares_the_search_and_heads_are_read_once() -> None:
    entries = log_of([(1, 0), (1, 2), *[(1, 1)] * 100])
    table, traces = SessionTable(Settings()), Traces()
    table.apply_all(entries)
    store = Counted(store_of(entries))
    within = extent(store, Front(0, 1, 1), len(entries))

    def ask(client: str, last: int) -> tuple[list[int], int, int]:
        """The LSNs; the heads and the entries that were read for them."""
        store.heads = store.bodies = 0
        search = Back(read(last=last, client=client), within)
        while search.start is None:
            search.step(store, Whose(client, table.entries_of(client), traces), within)
        found = all_pages(
            store, client, within, search.start, lambda: Whose(client, table.entries_of(client), traces)
        )
        return found, store.heads, store.bodies

    assert ask(RANDOM[0], 1) == ([1], 0, 1), "the table knows it, and that it has no more"
    assert ask(RANDOM[0], 9) == ([1], 0, 1)
    assert ask(RANDOM[1], 2) == ([101, 102], 0, 2)
    assert ask(NEVER, 5) == ([], 0, 0)
    found, heads, bodies = ask("nobody", 5)
    assert (found, bodies) == ([], 0) and heads >= len(entries)
    found, heads, bodies = ask("nobody else", 5)
    assert (found, bodies) == ([], 0) and heads <= 4, "only those behind the last whole stretch"
    found, heads, bodies = ask("a", 5)
    assert (found, bodies) == ([2], 1) and heads <= 3 * 4


def test_what_an_ended_session_wrote_is_looked_for() -> None:
    """A random id that has ended, and a name that is not open, may have payloads: the table alone does not decide."""
    table = SessionTable(Settings(session_ttl_ms=10))
    entries = log_of([(1, 0), *[(1, 2)] * 30])
    entries.append(seal(32, 1, Kind.DATA, 10_000, 32, b"x", OLD, 1, 0, 1))
    table.apply_all(entries)
    store, within = store_of(entries), Extent(1, 32, 1, 32)
    assert table.entries_of(RANDOM[0]) == table.entries_of("a") == (2**63 - 1, [])
    assert table.entries_of(OLD) == (0, [32])
    for client, lsns in ((RANDOM[0], [1]), ("a", [*range(2, 32)]), (OLD, [32])):
        assert all_pages(store, client, within, 1, lambda c=client: Whose(c, table.entries_of(c))) == lsns


def test_what_the_table_has_forgotten_is_looked_for() -> None:
    """The table does not know which entries are of a client whose serials it has forgotten."""
    entries = log_of([(1, 0), (1, 0), (1, 2), (1, 1), (1, 2)])
    table = SessionTable(Settings(window_total=1))
    table.apply_all(entries)
    assert table.entries_of(RANDOM[0]) == (3, []) and table.entries_of(RANDOM[1]) == (0, [4])
    store, within = store_of(entries), Extent(1, 5, 1, 5)
    for client, lsns in ((RANDOM[0], [1, 2]), (RANDOM[1], [4])):
        assert all_pages(store, client, within, 1, lambda c=client: Whose(c, table.entries_of(c))) == lsns


def test_a_name_that_was_dropped_and_opened_again_has_payloads_of_both_lives() -> None:
    table, lsn, entries = SessionTable(Settings()), 1, []
    for id, (kind, body, epoch) in enumerate([
        (Kind.SESSION, open_body(b"n" * 16, 0), 0), (Kind.DATA, b"old", 1), (Kind.SESSION, drop_body(1), 0),
        (Kind.SESSION, open_body(b"m" * 16, 0), 0), (Kind.DATA, b"new", 4),
    ], 1):
        count = int(kind == Kind.DATA)
        entries.append(seal(id, 1, kind, 2000, lsn, body, "name", count, epoch, count))
        lsn += count
    table.apply_all(entries)
    assert table.entries_of("name") == (5, [5])
    assert all_pages(
        store_of(entries), "name", Extent(1, 5, 1, 2), 1, lambda: Whose("name", table.entries_of("name"))
    ) == [1, 2]


def test_entries_that_are_written_now_are_known_without_reading() -> None:
    entries = log_of([(1, at % 3) for at in range(40)])
    traces = Traces()

    tail: Any = Tail(entries)
    for end_id in (1, 2, 6, 6, 11):
        traces.follow(tail, end_id)
    assert [traces.lacks(stretch, "b") for stretch in range(4)] == [True, True, True, False]
    assert not traces.lacks(0, "a") and not traces.lacks(0, RANDOM[0])
    tail.first_id = 14
    traces.follow(tail, 20)
    assert [traces.lacks(stretch, "b") for stretch in (3, 4)] == [False, True], "not all of stretch 3 was in memory"
    traces.follow(tail, 39)
    assert not traces.lacks(5, "b"), "a leap, as at a start"
    entries.extend(entries)
    traces.follow(tail, 44)
    assert traces.lacks(10, "b")


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "HELD_MAX", 20)
    traces = Traces()
    for stretch in range(100):
        traces.note(stretch, ["a", "b", "c"])
    assert [stretch for stretch in range(100) if traces.lacks(stretch, "x")] == [*range(95, 100)]


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[tuple[SqliteStore, list[Entry], Any]]:
    """A store with 20 entries, and a way to do something to its file."""
    entries = log_of([(2, at % 3) for at in range(20)])
    store = SqliteStore.open(tmp_path, 1)
    store.commit([Write(1, 1, 0, None, entries, [(1, 1)], 0, 0)])

    def change(sql: str) -> None:
        with sqlite3.connect(tmp_path / DB_NAME) as db:
            db.execute(sql)

    yield store, entries, change
    store.close()


def test_heads_come_without_bodies(on_disk: tuple[SqliteStore, list[Entry], Any]) -> None:
    store, entries, change = on_disk
    for held in (store, store_of(entries)):
        assert held.read_heads(3, 5).entries() == [entry._replace(body=b"") for entry in entries[2:5]]
        assert held.read_heads(19, 90).ids == (19, 20)
        assert not held.read_heads(21, 90).ids
    change("UPDATE log SET body = x'00' WHERE id = 4")
    assert store.read_heads(3, 5).ids == (3, 4, 5)


@pytest.mark.parametrize("damage", [
    "UPDATE log SET client = 'x'", "DELETE FROM log", "UPDATE log SET lsn = 9",
    "UPDATE log SET client = CAST(x'ff' AS TEXT)", "UPDATE log SET digest = 7",
])
def test_a_damaged_head_never_reads_as_absent(on_disk: tuple[SqliteStore, list[Entry], Any], damage: str) -> None:
    store, entries, change = on_disk
    told: list[int] = []
    store.on_damage = lambda found: told.append(found.id)
    change(f"{damage} WHERE id = 10")
    within, traces, client = Extent(1, 20, 1, 40), Traces(), entries[9].client
    page = build_page(store, read(start=1, client=client), within, 1 << 20, whose=Whose(client, traces=traces))
    assert isinstance(page, Page) and (lsns_of(page), page.next_lsn) == ([1, 2, 7, 8, 13, 14], 19)
    with pytest.raises(DamagedStore) as caught:
        build_page(store, read(start=19, client=client), within, 1 << 20, whose=Whose(client, traces=traces))
    assert caught.value.id == 10 and set(told) == {10}
    page = build_page(store, read(start=23, client=client), within, 1 << 20, whose=Whose(client, traces=traces))
    assert isinstance(page, Page) and lsns_of(page) == [25, 26, 31, 32, 37, 38]
    search = Back(read(last=7, client=client), within)
    with pytest.raises(DamagedStore):
        while search.start is None:
            search.step(store, Whose(client, traces=traces), within)
    search = Back(read(last=3, client=client), within)
    while search.start is None:
        search.step(store, Whose(client, traces=traces), within)
    assert search.start == 32, "what is damaged is further back"


def test_cleaning_that_overtakes_is_noticed() -> None:
    entries = log_of([(1, at % 2) for at in range(20)])
    store = Counted(store_of(entries))
    store.read_heads = lambda first_id, last_id: store_of([]).read_heads(1, 1)  # type: ignore[method-assign]
    with pytest.raises(Overtaken):
        build_page(cast(Any, store), read(start=1, client="a"), Extent(1, 20, 1, 20), 1 << 20)
    store = Counted(store_of(entries))
    store.find_lsn = lambda lsn, last_id: 9  # type: ignore[attr-defined]  # what was before is gone
    with pytest.raises(Overtaken):
        build_page(cast(Any, store), read(start=1, client="a"), Extent(1, 20, 1, 20), 1 << 20)
    store = Counted(store_of(entries))
    store.entry_head = lambda id: None  # type: ignore[attr-defined]
    table = SessionTable(Settings())
    table.apply_all(entries)
    search = Back(read(last=1, client=RANDOM[0]), Extent(1, 20, 1, 20))
    with pytest.raises(Overtaken):
        search.step(cast(Any, store), Whose(RANDOM[0], table.entries_of(RANDOM[0])), Extent(1, 20, 1, 20))


@pytest.mark.trio
async def test_a_server_looks_in_steps_of_which_none_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """One long step would count as a disk that does not answer, and have the leader hand over. What the log held at the
    start is looked through by and by."""
    monkeypatch.setattr(reads, "LOOK_SHARE", 0)
    monkeypatch.setattr(pages, "TAIL_ENTRIES_MAX", 0)
    async with lone() as (node, _, client):
        first, other = random_client(1, 1), random_client(1, 2)
        for name, number in ((first, 2), (other, 30)):
            for serial in range(1, number + 1):
                assert isinstance(await client.ask(append(name, serial, b"%d" % serial)), q.Appended)
        steps: list[int] = []
        run, heads = node.log.reads.disk.run, memory_of(node).read_heads

        async def counted(*given: Any) -> Any:
            steps.append(0)
            return await run(*given)

        def looked(first_id: int, last_id: int) -> Any:
            found = heads(first_id, last_id)
            steps[-1] += len(found.ids)
            return found

        monkeypatch.setattr(node.log.reads.disk, "run", counted)
        monkeypatch.setattr(memory_of(node), "read_heads", looked)
        page = await client.ask(read(1, last=1, client=first, linearizable=True))
        assert [row[7] for row in page.entries] == [b"2"] and page.next_lsn == page.end_lsn + 1
        assert sum(steps) == 0, "the session table knows"
        page = await client.ask(read(4, last=5, client="nobody at all", linearizable=True))
        assert page.entries == [] and sum(steps) < 2 * pages.STRETCH_IDS, "what was written since the start is known"
        node.log.reads._traces = Traces()
        steps.clear()
        page = await client.ask(read(2, last=5, client="nobody", linearizable=True))
        assert page.entries == [] and page.next_lsn == page.end_lsn + 1
        assert len(steps) > 8 and max(steps) < Back.HEADS_MAX + pages.STRETCH_IDS
        steps.clear()
        page = await client.ask(read(3, last=5, client="nobody", linearizable=True))
        assert page.entries == [] and sum(steps) <= 4, "heads are read once"
        node.log.reads._traces = Traces()  # as after a start

        def damaged(first_id: int, last_id: int) -> Any:
            if first_id <= 9 <= last_id:
                raise DamagedStore("entry 9", 9)
            return looked(first_id, last_id)

        monkeypatch.setattr(memory_of(node), "read_heads", damaged)
        await node.log.reads.look_through()
        traces = node.log.reads._traces
        assert not traces.knows(9) and traces.knows(5), "what is damaged does not end it"
        monkeypatch.setattr(memory_of(node), "read_heads", looked)
        steps.clear()
        page = await client.ask(read(5, last=5, client="nobody", linearizable=True))
        assert page.entries == [] and sum(steps) <= 8, "only of the stretch that was damaged, and of the last"
        monkeypatch.setattr(pages, "HELD_MAX", 0)
        node.log.reads._traces = Traces()
        await node.log.reads.look_through()
        assert not node.log.reads._traces._clients, "there is no room"


def test_payloads_of_a_batch_are_split_by_the_reader() -> None:
    entries = log_of([(3, 2), (2, 1), (3, 2)])
    within = Extent(1, 3, 1, 8)
    page = build_page(store_of(entries), read(last=2, client="a"), within, 1 << 20)
    assert isinstance(page, Page)
    assert [split_payloads(row[6], row[7]) for row in page.entries] == [[b"3.0", b"3.1", b"3.2"]]
