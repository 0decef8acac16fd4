"""Pages for readers that follow, made of the log's tail in memory: those that the store would give."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from node_rig import read
from test_pages import WHOLE, log_of, store_of

from alpo.core.entries import join_payloads, seal_appends
from alpo.core.log import Log
from alpo.node.pages import Ahead, Extent, Front, OutOfRange, build_page, build_tail_page, extent
from alpo.wire.requests import Page, ReadColumns, unpack_page


@given(
    shape=st.lists(st.tuples(st.sampled_from([0, 1, 1, 2, 3]), st.integers(0, 1)), min_size=1, max_size=12),
    data=st.data(),
)
def test_a_page_of_the_tail_is_the_one_that_the_store_gives(shape: list[tuple[int, int]], data: st.DataObject) -> None:
    """Logs hold appends of 1 to 3 payloads, LEADER entries and runs; they are trimmed and read from anywhere."""
    entries = log_of(shape)
    at = sum(count for count, _ in shape) + 1
    entries += seal_appends(
        [(1, b"r%d" % n) if n % 3 else (2, join_payloads([b"r", b"s"])) for n in range(data.draw(st.integers(1, 5)))],
        "run", 100, 0, len(entries) + 1, 1, 99_000, at, together=True,
    )
    store, log = store_of(entries), Log(1 << 20)
    log.append(entries, sum(len(entry.body) for entry in entries))
    end_id = data.draw(st.integers(1, len(entries)))
    whole = extent(store, WHOLE, end_id)
    within = extent(store, Front(0, 1, data.draw(st.integers(1, whole.end_lsn + 1))), end_id)
    ask = read(start=data.draw(st.integers(1, 30)), wait_ms=5)
    if data.draw(st.booleans()):
        ask = cast(Any, ReadColumns(*ask))
    told: list[object] = []
    for make in (build_tail_page, build_page):
        try:
            told.append(make(cast(Any, log if make is build_tail_page else store), ask, within, 1 << 20))
        except OutOfRange as error:
            told.append(str(error))
    assert told[0] is None if within.end_lsn < within.first_lsn else told[0] == told[1]


def test_a_page_that_is_not_in_the_tail_is_left_to_the_store() -> None:
    entries = log_of([(1, 0)] * 100)
    log = Log(1 << 20)
    log.append(entries, 0)
    within = Extent(1, 100, 1, 100)
    assert build_tail_page(log, read(start=30, wait_ms=5), within, 1 << 20) is None, "too many entries"
    assert build_tail_page(log, read(start=90, wait_ms=5), within, 10) is None, "too many bytes"
    others = [read(start=90), read(wait_ms=5), read(last=2, wait_ms=5), read(start=90, wait_ms=5, client="a")]
    for ask in [*others, read(start=90, end=95, wait_ms=5), read(since_ms=5, wait_ms=5)]:
        assert build_tail_page(log, ask, within, 1 << 20) is None, "none that follows"
    log._tail, log._tail_first = entries[95:], 96
    assert build_tail_page(log, read(start=95, wait_ms=5), within, 1 << 20) is None, "gone from memory"
    assert isinstance(build_tail_page(log, read(start=96, wait_ms=5), within, 1 << 20), Page)


@given(
    shape=st.lists(st.tuples(st.sampled_from([0, 1, 1, 2, 3]), st.integers(0, 1)), min_size=1, max_size=12),
    data=st.data(),
)
def test_what_is_not_on_disk_yet_is_read_from_memory_as_if_it_were(
    shape: list[tuple[int, int]], data: st.DataObject
) -> None:
    """All kinds of reads, of a log whose end, or all of which, is in memory alone."""
    entries = log_of(shape)
    whole, on_disk = store_of(entries), data.draw(st.integers(0, len(entries) - 1))
    ahead = Ahead(store_of(entries[:on_disk]), entries[on_disk:])
    end_id = data.draw(st.integers(1, len(entries)))
    within = extent(whole, WHOLE, end_id)
    assert extent(ahead, WHOLE, end_id) == within
    some = st.integers(0, 30)
    asks: list[Any] = [
        read(start=data.draw(some), end=data.draw(some)), read(last=data.draw(some)), read(since_ms=data.draw(some)),
        read(last=data.draw(some), client=entries[-1].client or "a"), read(client=entries[0].client or "a"),
    ]
    for ask in [*asks, ReadColumns(*asks[0])]:
        pages: list[list[Any]] = [[], []]
        for at, store in enumerate((whole, ahead)):
            try:
                pages[at] = rows_of(store, ask, within)
            except OutOfRange as error:
                pages[at] = [str(error)]
        assert pages[0] == pages[1], ask


def rows_of(store: Any, ask: Any, within: Extent) -> list[Any]:
    """All rows of a read, page by page: a page may end where the disk does."""
    rows: list[Any] = []
    while True:
        page: Any = build_page(store, ask, within, 1 << 20)
        rows += page.entries if isinstance(page, Page) else unpack_page(page).appends()
        if page.next_lsn > within.end_lsn or (ask.end and page.next_lsn > ask.end):
            return [*rows, page.next_lsn]
        assert page.next_lsn > ask.start
        ask = ask._replace(start=page.next_lsn, last=0, since_ms=0)
