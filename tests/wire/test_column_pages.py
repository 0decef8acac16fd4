"""Pages column by column: there and back, and what no server may send."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpo.core.entries import Entry, join_payloads, parts, seal_appends
from alpo.wire.codec import decode_server, encode
from alpo.wire.framing import HEADER_BYTES, WireError
from alpo.wire.requests import ColumnPage, PageColumns, pack_page, unpack_page

ints = st.integers(0, 2**63 - 1)
rows = st.lists(
    st.tuples(
        ints, ints, ints, st.sampled_from(["", "a", "client é"]), ints, ints, ints, st.binary(max_size=20),
        st.integers(0, 1),
    ),
    max_size=8,
)
ROWS = [
    (8, 3, 1_001, "a", 1, 5, 1, b"one", 0), (9, 3, 1_002, "b", 1, 6, 1, b"", 0),
    (11, 3, 1_002, "a", 2, 7, 1, b"three", 0),
]
BATCHES = st.lists(st.binary(max_size=9), min_size=2, max_size=4)
BODIES = st.binary(max_size=20).map(lambda body: (1, body)) | BATCHES.map(lambda all: (len(all), join_payloads(all)))


def page_of(found: list[tuple[Any, ...]]) -> ColumnPage:
    columns = zip(*found, strict=True) if found else [()] * 9
    return pack_page(7, PageColumns(*columns), 8, 9, 1)


@given(rows)
def test_there_and_back(found: list[tuple[Any, ...]]) -> None:
    page = page_of(found)
    read = decode_server(encode(page)[HEADER_BYTES:])
    assert read == page
    assert isinstance(read, ColumnPage)
    assert list(zip(*unpack_page(read), strict=True)) == found
    assert read[-4:-1] == (8, 9, 1)


@given(st.lists(st.lists(BODIES, min_size=1, max_size=6), max_size=5))
def test_the_appends_of_a_page_with_runs_are_those_of_one_without(groups: list[list[tuple[int, bytes]]]) -> None:
    log: list[Entry] = []
    serial = lsn = 1
    for bodies in groups:
        log += seal_appends(bodies, "a", serial, 0, len(log) + 1, 3, 1_001, lsn, together=True)
        serial, lsn = serial + len(bodies), log[-1].lsn + log[-1].count
    alone = seal_appends([each for bodies in groups for each in bodies], "a", 1, 0, 1, 3, 1_001, 1, together=False)
    page = pack_page(7, columns_of(log), lsn, lsn, 1)
    expected = columns_of(alone).appends()
    for read in (page, decode_server(encode(page)[HEADER_BYTES:])):
        assert isinstance(read, ColumnPage)
        assert [row[1:] for row in unpack_page(read).appends()] == [row[1:] for row in expected]
        assert [row[0] for row in unpack_page(read).appends()] == [each.id for each in log for _ in parts(each)]


def columns_of(log: list[Entry]) -> PageColumns:
    columns = zip(*log, strict=True) if log else [()] * 12
    ids, terms, _, times_ms, clients, serials, _, lsns, counts, digests, bodies, _ = columns
    return PageColumns.of(ids, terms, times_ms, clients, serials, lsns, counts, bodies, digests)


@pytest.mark.parametrize(
    "field", ["ids", "terms", "times_ms", "clients", "serials", "lsns", "counts", "lengths", "steps"]
)
def test_a_column_of_another_length(field: str) -> None:
    page = page_of(ROWS)
    size = 1 if field == "steps" else 8
    for wrong in (getattr(page, field)[:-size], getattr(page, field) + bytes(size)):
        changed: dict[str, Any] = {field: wrong}
        with pytest.raises(WireError):
            unpack_page(page._replace(**changed))


@pytest.mark.parametrize(
    ("field", "value", "words"), [
        ("ids", struct.pack("<3Q", 1, 2, 2**63), "over 2"),
        ("clients", struct.pack("<3Q", 0, 1, 2), "not named"),
        ("names", ["a"], "not named"),
        ("bodies", b"onethre", "as long"),
        ("bodies", b"onethree!", "as long"),
        ("lengths", struct.pack("<3Q", 3, 0, 6), "as long"),
        ("lengths", struct.pack("<3Q", 3, 2**62, 5), "as long"),
    ],
)
def test_columns_that_do_not_fit_each_other(field: str, value: Any, words: str) -> None:
    changed: dict[str, Any] = {field: value}
    with pytest.raises(WireError, match=words):
        unpack_page(page_of(ROWS)._replace(**changed))


@pytest.mark.parametrize(
    ("field", "value"),
    [("ids", b"1234567"), ("ids", [1]), ("bodies", "one"), ("names", [1]), ("steps", b"\2\0\0")],
)
def test_what_is_no_page(field: str, value: Any) -> None:
    changed: dict[str, Any] = {field: value}
    with pytest.raises(WireError):
        decode_server(encode(page_of(ROWS)._replace(**changed))[HEADER_BYTES:])
