"""Pages column by column: there and back, and what no server may send."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpo.wire.codec import decode_server, encode
from alpo.wire.column_pages import PageColumns, pack_page, unpack_page
from alpo.wire.framing import HEADER_BYTES
from alpo.wire.requests import ColumnPage
from alpo.wire.shapes import WireError

ints = st.integers(0, 2**63 - 1)
rows = st.lists(
    st.tuples(ints, ints, ints, st.sampled_from(["", "a", "client é"]), ints, ints, ints, st.binary(max_size=20)),
    max_size=8,
)
ROWS = [(8, 3, 1_001, "a", 1, 5, 1, b"one"), (9, 3, 1_002, "b", 1, 6, 1, b""), (11, 3, 1_002, "a", 2, 7, 1, b"three")]


def page_of(found: list[tuple[Any, ...]]) -> ColumnPage:
    columns = zip(*found, strict=True) if found else [()] * 8
    return pack_page(7, PageColumns(*columns), 8, 9, 1)


@given(rows)
def test_there_and_back(found: list[tuple[Any, ...]]) -> None:
    page = page_of(found)
    read = decode_server(encode(page)[HEADER_BYTES:])
    assert read == page
    assert isinstance(read, ColumnPage)
    assert list(zip(*unpack_page(read), strict=True)) == found
    assert read[-3:] == (8, 9, 1)


@pytest.mark.parametrize("field", ["ids", "terms", "times_ms", "clients", "serials", "lsns", "counts", "lengths"])
def test_a_column_of_another_length(field: str) -> None:
    page = page_of(ROWS)
    for wrong in (getattr(page, field)[:-8], getattr(page, field) + bytes(8)):
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


@pytest.mark.parametrize(("field", "value"), [("ids", b"1234567"), ("ids", [1]), ("bodies", "one"), ("names", [1])])
def test_what_is_no_page(field: str, value: Any) -> None:
    changed: dict[str, Any] = {field: value}
    with pytest.raises(WireError):
        decode_server(encode(page_of(ROWS)._replace(**changed))[HEADER_BYTES:])
