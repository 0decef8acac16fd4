"""Checks of entries column by column: they find what the checks row by row find."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_kit import LogBuilder, SqliteBench, write

from alpo.core.entries import DIGEST_BYTES, DamagedEntry, Entry, Kind, body_digest, header_check, join_payloads
from alpo.storage import tables as columns_module
from alpo.storage.offline import damage_of, open_source
from alpo.storage.scrub import Span
from alpo.storage.tables import Columns, by_client, only, rise, verify_columns


def some() -> list[Entry]:
    log = LogBuilder()
    return [
        log.leader(), log.data(payloads=(b"a", b"bb", b"")), *log.datas(20), log.leader(2), log.data(2),
        log.run(30, (b"a",), (b"bb",), (b"",)), log.run(33, (b"a", b"b"), (b"c",), (b"d", b"", b"e")),
    ]


def with_digest(entry: Entry, digest: bytes) -> Entry:
    """The entry with this digest, and a valid checksum."""
    check = header_check(*entry[:4], entry.client.encode(), *entry[5:9], digest)
    return entry._replace(digest=digest, check=check)


def sealed(entry: Entry, **changed: Any) -> Entry:
    """The entry with these fields, and valid checksums."""
    new = entry._replace(**changed)
    return with_digest(new, body_digest(new.count, new.body))


def test_there_and_back() -> None:
    entries = some()
    columns = Columns.of(entries)
    verify_columns(columns, 1)
    assert columns.entries() == entries
    assert columns.last() == entries[-1]
    assert Columns.of([]).entries() == []
    assert only(columns, int(Kind.DATA)).entries() == [entry for entry in entries if entry.kind == Kind.DATA]


@pytest.mark.parametrize("at", [0, 1, 7, 23, 24, 25])
@pytest.mark.parametrize("field", Entry._fields)
def test_any_field_of_any_entry_that_is_another(at: int, field: str) -> None:
    entries = some()
    old = getattr(entries[at], field)
    new = old + 1 if isinstance(old, int) else old + ("x" if isinstance(old, str) else b"x")
    changed: dict[str, Any] = {field: new}
    entries[at] = entries[at]._replace(**changed)
    with pytest.raises(DamagedEntry):
        verify_columns(Columns.of(entries), 1)


@pytest.mark.parametrize(
    ("field", "value"), [
        ("client", b"~client"), ("client", "\udcff"), ("client", None), ("body", "payload 8"), ("body", None),
        ("serial", 8.5), ("serial", -1), ("term", "1"), ("digest", None), ("check", None),
    ],
)
def test_a_field_of_another_type(field: str, value: Any) -> None:
    entries = some()
    entries[7] = entries[7]._replace(**{field: value})
    with pytest.raises(DamagedEntry):
        verify_columns(Columns.of(entries), 1)


@pytest.mark.parametrize("at", [7, 24, 25])
@pytest.mark.parametrize(
    "changed", [
        {"kind": 99}, {"kind": int(Kind.LEADER)}, {"count": 0}, {"count": 2},
        {"count": 2, "body": join_payloads([b"a", b"b"]) + b"!"},
    ],
)
def test_an_entry_that_was_never_right(at: int, changed: dict[str, Any]) -> None:
    entries = some()
    entries[at] = sealed(entries[at], **changed)
    with pytest.raises(DamagedEntry):
        verify_columns(Columns.of(entries), 1)


def refuse_in_every_way(entry: Entry) -> None:
    """Check that the entry counts as damaged, by itself and among others."""
    assert damage_of(entry) != ""
    others = [other for other in some() if other.id < entry.id]
    with pytest.raises(DamagedEntry):
        verify_columns(Columns.of([*others, entry]), 1)


APPENDS = st.lists(st.lists(st.binary(max_size=4), min_size=1, max_size=3).map(tuple), min_size=2, max_size=6)


@given(st.data(), APPENDS)
def test_any_run_is_sound_until_a_bit_of_its_marks_is_another(data: st.DataObject, appends: list[Any]) -> None:
    run = LogBuilder(27).run(5, *appends)
    assert damage_of(run) == ""
    verify_columns(Columns.of([*some(), run]), 1)
    marks = bytearray(run.digest)
    marks[data.draw(st.integers(DIGEST_BYTES, len(marks) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    refuse_in_every_way(with_digest(run, bytes(marks)))


@pytest.mark.parametrize("digest", [
    lambda whole: whole[:-1], lambda whole: whole[:-4], lambda whole: whole + b"0", lambda whole: whole + bytes(4),
    lambda whole: whole[:17], lambda whole: whole[:20], lambda whole: whole[:16] + bytes(4),
])
@pytest.mark.parametrize("at", [24, 25])
def test_a_digest_of_another_form(at: int, digest: Callable[[bytes], bytes]) -> None:
    refuse_in_every_way(with_digest(some()[at], digest(some()[at].digest)))


@pytest.mark.parametrize("at", [0, 1, 7])
def test_marks_where_there_is_no_run(at: int) -> None:
    """Marks of a run are refused in a leader's entry, a batch, and a single payload."""
    entry, run = some()[at], some()[25]
    refuse_in_every_way(with_digest(entry, entry.digest + run.digest[DIGEST_BYTES:]))
    one = struct.pack("<III", 1, len(entry.body), crc32(entry.body))
    refuse_in_every_way(with_digest(entry, entry.digest + one))


def test_ids_that_are_not_the_next() -> None:
    entries = some()
    verify_columns(Columns.of(entries[4:]), 5)
    for wrong in (entries[4:], [*entries[:4], *entries[5:]], [*entries[:5], *entries[4:]]):
        with pytest.raises(DamagedEntry):
            verify_columns(Columns.of(wrong), 1)


def test_the_digest_is_the_same() -> None:
    entries = some()
    for first, last in [(0, 26), (1, 2), (0, 1), (7, 20), (24, 25)]:
        columns = Columns.of(entries[first:last])
        assert Span.before(first + 1).followed_by_columns(columns) == Span.before(first + 1).followed_by(
            entries[first:last]
        )
    assert Span.before(3).followed_by_columns(Columns.of([])) == Span.before(3)


def test_serials_of_each_client() -> None:
    assert by_client(("a", "b", "a"), (1, 9, 2)) == {"a": [1, 2], "b": [9]}
    assert by_client(("a", "a"), (4, 3)) == {"a": [4, 3]}
    assert rise([3, 4, 9], 2)
    assert not rise([3, 4, 9], 3)
    assert not rise([3, 3], 0)


@pytest.mark.parametrize(("rows", "size"), [(512, 512 << 10), (7, 512 << 10), (512, 30), (512, 1)])
def test_a_file_read_by_columns(sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch, rows: int, size: int) -> None:
    monkeypatch.setattr(columns_module, "COLUMN_ROWS", rows)
    monkeypatch.setattr(columns_module, "COLUMN_BYTES", size)
    entries = some()
    sqlite.store.commit([write(entries)])
    found: list[Entry] = []
    pages = 0
    with open_source(sqlite.directory) as source:
        while len(found) < len(entries):
            found += source.read_columns(len(found) + 1, len(entries)).entries()
            pages += 1
        assert [each.entry for each in source.walk(1, len(entries))] == entries
    assert found == entries
    assert pages > 1 or (rows, size) == (512, 512 << 10)
