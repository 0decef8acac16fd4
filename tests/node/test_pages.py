"""Pages against an obvious model: all payloads in a list."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_rig import read

from alpo.core.disk import Base, Write
from alpo.core.entries import CLIENT_BYTES_MAX, Entry, Kind, join_payloads, seal, seal_appends, split_payloads
from alpo.node.pages import PAGE_ROWS_MAX, ROW_BYTES_MAX, Extent, Front, OutOfRange, Overtaken, build_page, extent
from alpo.storage.interface import Store
from alpo.storage.memory import MemoryStore
from alpo.wire.codec import encode
from alpo.wire.framing import GATHERED_BYTES_MAX, frame_bytes_max
from alpo.wire.requests import ColumnPage, Page, Read, ReadColumns, unpack_page
from alpo.wire.shapes import INT_MAX

CLIENTS = ("a", "b")
#: The front of a log that was neither cleaned nor trimmed.
WHOLE = Front(0, 1, 1)


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


def rows_of(store: Store, ask: Read, within: Extent, bytes_max: int, rows_max: int = PAGE_ROWS_MAX) -> Page:
    page = build_page(store, ask, within, bytes_max, rows_max)
    assert isinstance(page, Page)
    return page


shapes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), max_size=12)


@given(shape=shapes, data=st.data())
def test_pages_one_after_another_give_every_payload_once(shape: list[tuple[int, int]], data: st.DataObject) -> None:
    entries = log_of(shape)
    store = store_of(entries)
    end_id = data.draw(st.integers(0, len(entries)))
    client = data.draw(st.sampled_from(["", *CLIENTS]))
    bytes_max, rows_max = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 5))
    everything = records(entries, end_id)
    end_lsn = everything[-1][0] if everything else 0
    start = data.draw(st.integers(1, end_lsn + 1))
    end = data.draw(st.integers(0, end_lsn))
    within = extent(store, WHOLE, end_id)
    found: list[tuple[int, str, bytes]] = []
    at = start
    for _ in range(50):
        page = rows_of(store, read(start=at, end=end, client=client), within, bytes_max, rows_max)
        assert len(page.entries) <= rows_max
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
    page = rows_of(store, read(last=last, client=client), extent(store, WHOLE, len(entries)), 1 << 20)
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
    page = rows_of(store, read(since_ms=ms or 1), extent(store, WHOLE, len(entries)), 1 << 20)
    assert [row[0] for row in page.entries] == [e.id for e in entries if e.count and e.time_ms >= ms]


@pytest.mark.parametrize(("start", "good"), [(1, True), (4, True), (5, True), (6, False), (100, False)])
def test_one_past_the_end_is_empty_and_further_is_out_of_range(start: int, good: bool) -> None:
    entries = log_of([(0, 0), (2, 0), (2, 1)])
    store = store_of(entries)
    within = extent(store, WHOLE, 3)
    if good:
        page = rows_of(store, read(start=start), within, 1 << 20)
        assert page.end_lsn == 4 and page.next_lsn == 5
        return
    with pytest.raises(OutOfRange) as error:
        build_page(store, read(start=start), within, 1 << 20)
    assert (error.value.first_lsn, error.value.last_lsn) == (1, 4)


NAME = "n" * CLIENT_BYTES_MAX


def test_no_row_takes_more_than_is_reckoned_with() -> None:
    most = INT_MAX
    row = (most, most, most, NAME, most, most, most, b"x" * 70_000)
    assert len(encode(Page(1, [row] * 2, 1, 1, 1))) - len(encode(Page(1, [row], 1, 1, 1))) == ROW_BYTES_MAX + 70_000


@pytest.mark.parametrize("client", ["", NAME])
def test_a_page_of_nothing_but_names_fits_in_a_frame(client: str) -> None:
    many = PAGE_ROWS_MAX + 10_000
    store = store_of([seal(id, 1, Kind.DATA, INT_MAX, id, b"", NAME, id, 0, 1) for id in range(1, many + 1)])
    found, at, pages = 0, 1, 0
    while at <= many:
        page = rows_of(store, read(start=at, client=client), extent(store, WHOLE, many), 1 << 20)
        assert len(encode(page)) < frame_bytes_max(1 << 20) - (1 << 20) - GATHERED_BYTES_MAX // 2
        found, at, pages = found + len(page.entries), page.next_lsn, pages + 1
    assert (found, pages) == (many, 2)


def test_an_empty_log_spans_1_to_0() -> None:
    store = store_of([])
    page = rows_of(store, read(), extent(store, WHOLE, 0), 1 << 20)
    assert (page.entries, page.first_lsn, page.end_lsn, page.next_lsn) == ([], 1, 0, 1)


# -- trimmed and cleaned logs (R19, R20) -----------------------------------------------------------------


def clean(store: MemoryStore, entries: list[Entry], upto_id: int) -> Front:
    """Delete everything up to an entry, as a commit does."""
    last = entries[upto_id - 1]
    base = Base(upto_id, last.term, last.time_ms, last.lsn + last.count)
    store.commit([Write(2, 1, 0, None, [], [], upto_id, upto_id, base=base)])
    return Front(upto_id, base.next_lsn, base.next_lsn)


@given(shape=shapes, data=st.data())
def test_reading_from_the_first_available_on_gives_all_that_is_left(
    shape: list[tuple[int, int]], data: st.DataObject
) -> None:
    entries = log_of(shape)
    store = store_of(entries)
    next_lsn = sum(count for count, _ in shape) + 1
    front = WHOLE
    cleaned = data.draw(st.integers(0, len(entries)))
    if cleaned:
        front = clean(store, entries, cleaned)
    front = front._replace(first_lsn=max(front.first_lsn, data.draw(st.integers(1, next_lsn))))
    within = extent(store, front, len(entries))
    assert (within.first_lsn, within.end_lsn) == (front.first_lsn, next_lsn - 1)
    client = data.draw(st.sampled_from(["", *CLIENTS]))
    asks = {"last": data.draw(st.integers(0, 9))} if data.draw(st.booleans()) else {}
    found: list[tuple[int, str, bytes]] = []
    at = 0
    for _ in range(50):
        page = rows_of(store, read(start=at, client=client, **({} if at else asks)), within, 8)
        for _, _, _, name, _, lsn, count, body in page.entries:
            found += [(lsn + n, name, payload) for n, payload in enumerate(split_payloads(count, body))]
        if page.next_lsn > page.end_lsn:
            break
        at = page.next_lsn
    left = [r for r in records(entries, len(entries)) if r[0] >= front.first_lsn and client in ("", r[1])]
    if asks.get("last"):
        assert found[-asks["last"] :] == left[-asks["last"] :]
        assert found == left[len(left) - len(found) :]  # the last batch of one client may be longer
    else:
        assert found == left


@pytest.mark.parametrize("ask", [{"start": 1}, {"start": 4}, {"end": 4}, {"start": 3, "end": 9}])
@pytest.mark.parametrize("cleaned", [0, 2])
def test_below_the_first_available_is_out_of_range(ask: dict[str, int], cleaned: int) -> None:
    entries = log_of([(2, 0), (2, 1), (3, 0), (1, 1)])
    store = store_of(entries)
    front = (clean(store, entries, cleaned) if cleaned else WHOLE)._replace(first_lsn=5)
    with pytest.raises(OutOfRange) as error:
        build_page(store, read(**ask), extent(store, front, 4), 1 << 20)
    assert (error.value.first_lsn, error.value.last_lsn) == (5, 8)


def test_a_batch_in_which_the_log_was_trimmed_is_cut() -> None:
    entries = log_of([(1, 0), (3, 1), (1, 0)])
    store = store_of(entries)
    for first_lsn, left in ((2, 3), (3, 2), (4, 1)):
        page = rows_of(store, read(), extent(store, Front(1, 2, first_lsn), 3), 1 << 20)
        assert [(row[0], row[5], row[6]) for row in page.entries] == [(2, first_lsn, left), (3, 5, 1)]
        payloads = split_payloads(left, page.entries[0][7])
        assert payloads == split_payloads(3, entries[1].body)[3 - left :]


@pytest.mark.parametrize(("first_lsn", "first_id"), [(1, 1), (3, 2), (4, 3), (6, 4)])
def test_since_begins_with_what_is_there(first_lsn: int, first_id: int) -> None:
    entries = log_of([(2, 0), (1, 0), (2, 0), (1, 0)])
    store = store_of(entries)
    page = rows_of(store, read(since_ms=1), extent(store, Front(0, 1, first_lsn), 4), 1 << 20)
    assert page.entries[0][0] == first_id and page.first_lsn == first_lsn


@pytest.mark.parametrize(("base_id", "base_next_lsn", "first_lsn"), [(3, 6, 6), (0, 1, 6), (1, 3, 6)])
def test_all_gone_spans_the_next_lsn_to_the_last(base_id: int, base_next_lsn: int, first_lsn: int) -> None:
    entries = log_of([(2, 0), (2, 0), (1, 0)])
    store = store_of(entries)
    if base_id:
        clean(store, entries, base_id)
    within = extent(store, Front(base_id, base_next_lsn, first_lsn), 3)
    for ask in ({}, {"last": 3}, {"since_ms": 1}, {"last": 3, "client": "a"}):
        page = rows_of(store, read(**ask), within, 1 << 20)
        assert (page.entries, page.next_lsn, page.end_lsn, page.first_lsn) == ([], 6, 5, 6)


def test_a_trim_mark_ahead_of_our_own_disk_leaves_nothing_to_read() -> None:
    store = store_of(log_of([(2, 0)]))
    page = rows_of(store, read(), extent(store, Front(0, 1, 8), 1), 1 << 20)
    assert (page.entries, page.next_lsn, page.end_lsn, page.first_lsn) == ([], 8, 7, 8)


class Overtaking:
    """A store of which everything up to an entry is cleaned just before the ``at``-th look at it."""

    def __init__(self, store: MemoryStore, entries: list[Entry], upto_id: int, at: int) -> None:
        self._store, self._entries, self._upto_id, self._left = store, entries, upto_id, at

    def __getattr__(self, name: str) -> Any:
        self._left -= 1
        if self._left == 0:
            clean(self._store, self._entries, self._upto_id)
        return getattr(self._store, name)


@given(shape=shapes.filter(bool), data=st.data())
def test_cleaning_in_the_middle_of_a_page_leaves_no_gap(shape: list[tuple[int, int]], data: st.DataObject) -> None:
    """Pages hold what they would hold without the cleaning, or raise `Overtaken`, for any request and any moment."""
    entries = log_of(shape)
    store = store_of(entries)
    within = extent(store, WHOLE, len(entries))
    fields: dict[str, Any] = data.draw(st.fixed_dictionaries({}, optional={
        "start": st.integers(1, within.end_lsn + 1), "end": st.integers(1, within.end_lsn + 1),
        "client": st.sampled_from(CLIENTS),
    }))
    ask = read(**fields)
    bytes_max = data.draw(st.integers(1, 40))
    due = build_page(store, ask, within, bytes_max)
    overtaking = Overtaking(store, entries, data.draw(st.integers(1, len(entries))), data.draw(st.integers(1, 5)))
    try:
        page = build_page(cast(Store, overtaking), ask, within, bytes_max)
    except Overtaken:
        return
    assert page == due


@given(shape=shapes, data=st.data())
def test_a_page_by_columns_says_the_same(shape: list[tuple[int, int]], data: st.DataObject) -> None:
    entries = log_of(shape)
    store = store_of(entries)
    within = extent(store, WHOLE, len(entries))
    fields: dict[str, Any] = data.draw(st.fixed_dictionaries({}, optional={
        "start": st.integers(1, within.end_lsn + 1), "end": st.integers(1, within.end_lsn + 1),
        "client": st.sampled_from(CLIENTS), "last": st.integers(1, 4),
    }))
    ask = read(**fields)
    bytes_max = data.draw(st.integers(1, 40))
    rows = build_page(store, ask, within, bytes_max)
    columns = build_page(store, ReadColumns(*ask), within, bytes_max)
    assert isinstance(columns, ColumnPage)
    assert Page(columns.request, unpack_page(columns).appends(), *columns[-4:-1]) == rows


def appends_of(store: MemoryStore, ask: Read | ReadColumns, within: Extent, bytes_max: int) -> list[tuple[Any, ...]]:
    """(LSN, term, client, serial, payload) of everything from the start on, page by page."""
    found: list[tuple[Any, ...]] = []
    while True:
        page = build_page(store, ask, within, bytes_max)
        rows = page.entries if isinstance(page, Page) else unpack_page(page).appends()
        for _, term, _, client, serial, lsn, count, body in rows:
            found += [(lsn + n, term, client, serial, each) for n, each in enumerate(split_payloads(count, body))]
        if page.next_lsn > within.end_lsn:
            return found
        ask = ask._replace(start=page.next_lsn)


@given(
    groups=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=5), min_size=1, max_size=4), data=st.data(),
    by_columns=st.booleans(),
)
def test_runs_are_read_as_their_appends_alone_would_be(
    groups: list[list[int]], data: st.DataObject, by_columns: bool,
) -> None:
    runs: list[Entry] = []
    bodies: list[tuple[int, bytes]] = []
    for counts in groups:
        serial, lsn = len(bodies) + 1, sum(count for count, _ in bodies) + 1
        mine = [(count, join_payloads([b"%d" % n for n in range(count)])) for count in counts]
        runs += seal_appends(mine, "c", serial, 0, len(runs) + 1, 1, 0, lsn, together=True)
        bodies += mine
    alone = seal_appends(bodies, "c", 1, 0, 1, 1, 0, 1, together=False)
    end_lsn = alone[-1].lsn + alone[-1].count - 1
    first_lsn = data.draw(st.integers(1, end_lsn))
    start = data.draw(st.integers(first_lsn, end_lsn))
    ask: Read | ReadColumns = ReadColumns(*read(start=start)) if by_columns else read(start=start)
    found = []
    for log in (runs, alone):
        within = Extent(1, len(log), first_lsn, end_lsn)
        found.append(appends_of(store_of(log), ask, within, data.draw(st.integers(1, 40))))
    assert [row for row in found[0] if row[0] >= start] == [row for row in found[1] if row[0] >= start]
    assert [row[0] for row in found[0]] == list(range(found[0][0][0], end_lsn + 1))
    assert found[0][0][0] >= first_lsn


def test_a_page_holds_so_many_appends_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpo.node.pages.PAGE_ROWS_MAX", 4)
    log = seal_appends([(1, b"x")] * 10, "c", 1, 0, 1, 1, 0, 1, together=True)
    store, within = store_of(log), Extent(1, 1, 1, 10)
    assert [row[0] for row in appends_of(store, read(), within, 1 << 20)] == list(range(1, 11))
    page = build_page(store, read(), within, 1 << 20)
    assert isinstance(page, Page) and len(page.entries) == 4 and page.next_lsn == 5
