"""Entries column by column: what is checked, and that it is what is checked row by row."""

from __future__ import annotations

from typing import Any

import pytest
from store_kit import LogBuilder, SqliteBench, write

from alpo.core.entries import DamagedEntry, Entry, Kind, body_digest, header_check, join_payloads
from alpo.storage import columns as columns_module
from alpo.storage.columns import Columns, by_client, only, rise, verify_columns
from alpo.storage.digest import Span
from alpo.storage.offline import open_source


def some() -> list[Entry]:
    log = LogBuilder()
    return [log.leader(), log.data(payloads=(b"a", b"bb", b"")), *log.datas(20), log.leader(2), log.data(2)]


def sealed(entry: Entry, **changed: Any) -> Entry:
    """With these fields, and right checksums."""
    new = entry._replace(**changed)
    new = new._replace(digest=body_digest(new.count, new.body))
    check = header_check(
        new.id, new.term, new.kind, new.time_ms, new.client.encode(), new.serial, new.epoch, new.lsn, new.count,
        new.digest,
    )
    return new._replace(check=check)


def test_there_and_back() -> None:
    entries = some()
    columns = Columns.of(entries)
    verify_columns(columns, 1)
    assert columns.entries() == entries
    assert columns.last() == entries[-1]
    assert Columns.of([]).entries() == []
    assert only(columns, int(Kind.DATA)).entries() == [entry for entry in entries if entry.kind == Kind.DATA]


@pytest.mark.parametrize("at", [0, 1, 7, 23])
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


@pytest.mark.parametrize(
    "changed", [
        {"kind": 99}, {"kind": int(Kind.LEADER)}, {"count": 0}, {"count": 2},
        {"count": 2, "body": join_payloads([b"a", b"b"]) + b"!"},
    ],
)
def test_an_entry_that_was_never_right(changed: dict[str, Any]) -> None:
    entries = some()
    entries[7] = sealed(entries[7], **changed)
    with pytest.raises(DamagedEntry):
        verify_columns(Columns.of(entries), 1)


def test_ids_that_are_not_the_next() -> None:
    entries = some()
    verify_columns(Columns.of(entries[4:]), 5)
    for wrong in (entries[4:], [*entries[:4], *entries[5:]], [*entries[:5], *entries[4:]]):
        with pytest.raises(DamagedEntry):
            verify_columns(Columns.of(wrong), 1)


def test_the_digest_is_the_same() -> None:
    entries = some()
    for first, last in [(0, 24), (1, 2), (0, 1), (7, 20)]:
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
