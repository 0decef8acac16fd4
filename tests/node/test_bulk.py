"""Great reads beside appends: small pages at a bounded rate; without appends as large and fast as they can."""

from __future__ import annotations

import pytest
import trio
from node_rig import Client, append, founded, lone, random_id, read, rig
from trio.testing import MockClock

from alpo.node import pages
from alpo.node.admission import Limits
from alpo.node.pages import PAGE_ROWS_MAX
from alpo.node.threads import (
    BUSY_PAGE_BYTES,
    BUSY_PAGE_ROWS,
    BUSY_S,
    ENTRY_BYTES,
    HOLD_S_MAX,
    Bulk,
    BulkPace,
    Size,
    weight_of,
)
from alpo.wire.requests import Page, PageColumns, Read, ReadColumns, pack_page
from alpo.wire.shapes import LONG_BYTES

COLUMNS = ReadColumns(*read())
LARGE, SMALL = Size(1 << 20, PAGE_ROWS_MAX), Size(BUSY_PAGE_BYTES, BUSY_PAGE_ROWS)
#: Appended in the whole shell: more than a page beside appends holds.
ROWS = BUSY_PAGE_ROWS + 100


class Log:
    """A log of which only the last id is kept, and the `Bulk` that notices its growth."""

    def __init__(self) -> None:
        self.last_id = 7

        self.bulk = Bulk(BulkPace(10_000), self.last_id)

    def grow(self, bulk: Bulk | None = None) -> None:
        self.last_id += 1
        (bulk or self.bulk).notice(self.last_id, trio.current_time())


async def held_s(bulk: Bulk, weight: int = 500) -> float:
    """Virtual seconds that a page is held up."""
    start_s = trio.current_time()
    await bulk.keep(weight)
    return trio.current_time() - start_s


@pytest.mark.trio
async def test_pages_are_small_and_held_up_while_appends_come_and_for_a_while_after(autojump_clock: MockClock) -> None:
    log = Log()
    bulk = log.bulk
    bulk.notice(log.last_id, trio.current_time())
    assert [await held_s(bulk) for _ in range(3)] == [0, 0, 0]
    assert bulk.size(COLUMNS, 1 << 20) == LARGE
    log.grow()
    assert bulk.size(COLUMNS, 1 << 20) == SMALL
    assert bulk.size(COLUMNS, 10) == Size(10, BUSY_PAGE_ROWS)
    assert [await held_s(bulk) for _ in range(3)] == pytest.approx([0, 0.05, 0.05])
    await trio.sleep(BUSY_S)
    bulk.notice(log.last_id, trio.current_time())
    assert [await held_s(bulk) for _ in range(3)] == [0, 0, 0]
    assert bulk.size(COLUMNS, 1 << 20) == LARGE


@pytest.mark.trio
async def test_the_rate_is_of_all_reads_together_and_none_waits_long(autojump_clock: MockClock) -> None:
    log = Log()
    log.grow()
    for readers, all_s in ((3, 0.1), (1000, HOLD_S_MAX)):
        start_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(readers):
                nursery.start_soon(log.bulk.keep, 500)
        assert trio.current_time() - start_s == pytest.approx(all_s)
        await trio.sleep(HOLD_S_MAX)


@pytest.mark.trio
@pytest.mark.parametrize("ask", [COLUMNS, read()])
async def test_without_a_bound_and_for_other_reads_pages_are_large(
    ask: Read | ReadColumns, autojump_clock: MockClock,
) -> None:
    log = Log()
    bulk = Bulk(BulkPace(0), log.last_id) if ask is COLUMNS else log.bulk
    log.grow(bulk)
    assert bulk.size(ask, 1 << 20) == LARGE
    if ask is COLUMNS:
        assert [await held_s(bulk) for _ in range(3)] == [0, 0, 0]


def test_a_page_weighs_its_entries_and_their_bodies() -> None:
    columns = PageColumns((1, 2), (1, 1), (0, 0), ("c", "c"), (1, 2), (1, 2), (1, 1), (b"abc", b"d"), (0, 0))
    page = pack_page(1, columns, 3, 2, 1)
    assert weight_of(COLUMNS, page) == 2 * ENTRY_BYTES + 4
    assert weight_of(COLUMNS._replace(client="c"), page) == BUSY_PAGE_ROWS * ENTRY_BYTES + 4
    assert weight_of(read(), Page(1, [], 1, 0, 1)) == 0


async def append_entries(client: Client) -> None:
    """Append `ROWS` entries one by one: appends that come together would become one entry, a run."""
    id = random_id()
    for serial in range(1, ROWS + 1):
        await client.ask(append(id, serial, b"x"))


@pytest.mark.trio
async def test_in_the_whole_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for bytes_per_s, rows in ((1 << 40, BUSY_PAGE_ROWS), (0, ROWS)):
        async with rig(limits=Limits(bulk_read_bytes_per_s=bytes_per_s)) as r:
            kept: list[int] = []

            async def keep(self: Bulk, weight: int, kept: list[int] = kept) -> None:
                kept.append(weight)

            monkeypatch.setattr(Bulk, "keep", keep)
            client = await founded(r)
            await append_entries(client)
            page = await client.ask(ReadColumns(*read(start=1)))
            assert len(page.ids) // LONG_BYTES == rows
            assert kept == [rows * (ENTRY_BYTES + 1)]
            assert len((await client.ask(read(start=1))).entries) == ROWS
            assert len(kept) == 1


@pytest.mark.trio
async def test_one_client_s_payloads_are_sought_among_hardly_more_entries_than_a_page_holds(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "STRETCH_IDS", 16)
    async with lone() as (node, _, client):
        await append_entries(client)
        node.log.reads._traces = pages.Traces()  # nothing is known of them
        page = await client.ask(ReadColumns(*read(start=1, client="nobody")))
        assert page.ids == b"" and BUSY_PAGE_ROWS < page.next_lsn <= BUSY_PAGE_ROWS + 16
