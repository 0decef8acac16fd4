"""Pages against an obvious model: all payloads in a list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_rig import read

from alpo.core.entries import Entry, Kind, join_payloads, seal, split_payloads
from alpo.core.ready import Write
from alpo.node.pages import OutOfRange, build_page, extent
from alpo.storage.memory import MemoryStore

CLIENTS = ("a", "b")


def log_of(shape: list[tuple[int, int]]) -> list[Entry]:
    """Entries by (payload count, client index); a count of 0 is a LEADER entry."""
    entries: list[Entry] = []
    lsn = 1
    for id, (count, client) in enumerate(shape, 1):
        payloads = [f"{id}.{n}".encode() for n in range(count)]
        body = join_payloads(payloads) if count else b"{}"
        kind = Kind.DATA if count else Kind.LEADER
        name = CLIENTS[client] if count else ""
        entries.append(seal(id, 1, kind, 1000 * id, lsn, body, name, id if count else 0, 0, count))
        lsn += count
    return entries


def store_of(entries: list[Entry]) -> MemoryStore:
    store = MemoryStore(1, b"i" * 16)
    if entries:
        store.commit([Write(1, 1, 0, None, entries, [(1, 1)], 0, 0)])
    return store


def records(entries: list[Entry], end_id: int) -> list[tuple[int, str, bytes]]:
    """(LSN, client, payload) of everything up to ``end_id``."""
    return [
        (e.lsn + n, e.client, payload)
        for e in entries[:end_id] if e.count
        for n, payload in enumerate(split_payloads(e.count, e.body))
    ]


shapes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), max_size=12)


@given(shape=shapes, data=st.data())
def test_pages_one_after_another_give_every_payload_once(shape: list[tuple[int, int]], data: st.DataObject) -> None:
    entries = log_of(shape)
    store = store_of(entries)
    end_id = data.draw(st.integers(0, len(entries)))
    client = data.draw(st.sampled_from(["", *CLIENTS]))
    bytes_max = data.draw(st.integers(1, 40))
    everything = records(entries, end_id)
    end_lsn = everything[-1][0] if everything else 0
    start = data.draw(st.integers(1, end_lsn + 1))
    end = data.draw(st.integers(0, end_lsn))
    within = extent(store, 1, end_id)
    found: list[tuple[int, str, bytes]] = []
    at = start
    for _ in range(50):
        page = build_page(store, read(start=at, end=end, client=client), within, bytes_max)
        assert (page.first_lsn, page.end_lsn) == (1, end_lsn)
        for _, _, _, name, _, lsn, count, body in page.entries:
            found += [(lsn + n, name, payload) for n, payload in enumerate(split_payloads(count, body))]
        if page.next_lsn == at:
            break
        at = page.next_lsn
    wanted = [r for r in everything if start <= r[0] <= (end or end_lsn) and client in ("", r[1])]
    assert [r for r in found if start <= r[0] <= (end or end_lsn)] == wanted


@given(shape=shapes, last=st.integers(1, 20), client=st.sampled_from(["", *CLIENTS]))
def test_the_last_so_many(shape: list[tuple[int, int]], last: int, client: str) -> None:
    entries = log_of(shape)
    store = store_of(entries)
    mine = [r for r in records(entries, len(entries)) if client in ("", r[1])]
    page = build_page(store, read(last=last, client=client), extent(store, 1, len(entries)), 1 << 20)
    found = [
        lsn + n for _, _, _, _, _, lsn, count, _ in page.entries for n in range(count)
    ]
    wanted = [r[0] for r in mine[-last:]]
    assert found[-len(wanted) :] == wanted if wanted else found == []
    assert len(found) < len(wanted) + 3  # entries are whole


@given(shape=shapes, ms=st.integers(0, 14_000))
def test_since(shape: list[tuple[int, int]], ms: int) -> None:
    entries = log_of(shape)
    store = store_of(entries)
    page = build_page(store, read(since_ms=ms or 1), extent(store, 1, len(entries)), 1 << 20)
    assert [row[0] for row in page.entries] == [e.id for e in entries if e.count and e.time_ms >= ms]


@pytest.mark.parametrize(("start", "good"), [(1, True), (4, True), (5, True), (6, False), (100, False)])
def test_one_past_the_end_is_empty_and_further_is_out_of_range(start: int, good: bool) -> None:
    entries = log_of([(0, 0), (2, 0), (2, 1)])
    store = store_of(entries)
    within = extent(store, 1, 3)
    if good:
        page = build_page(store, read(start=start), within, 1 << 20)
        assert page.end_lsn == 4 and page.next_lsn == 5
        return
    with pytest.raises(OutOfRange) as error:
        build_page(store, read(start=start), within, 1 << 20)
    assert (error.value.first_lsn, error.value.last_lsn) == (1, 4)


def test_an_empty_log_spans_1_to_0() -> None:
    store = store_of([])
    page = build_page(store, read(), extent(store, 1, 0), 1 << 20)
    assert (page.entries, page.first_lsn, page.end_lsn, page.next_lsn) == ([], 1, 0, 1)
