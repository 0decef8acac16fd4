"""The digest of a stretch: its value, that it shows every difference, and how far one read goes (R31)."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_kit import Bench, LogBuilder, SqliteBench, cleaning, write

from alpo.core.entries import Entry, body_digest, header_check, seal
from alpo.storage.interface import Store
from alpo.storage.scrub import DamagedAt, Span, read_on


def _log(count: int = 60) -> list[Entry]:
    log = LogBuilder()
    return [
        log.leader(), log.data(payloads=(b"a", b"bb", b"")), *log.datas(count - 6), log.run(90, (b"a",), (b"b", b"c")),
        log.leader(2), log.data(2), log.run(93, (b"a", b"b"), (b"c",), term=2),
    ]


def _filled(bench: Bench, count: int = 60) -> list[Entry]:
    entries = _log(count)
    bench.store.commit([write(entries)])
    return entries


def _read(store: Store, first_id: int, last_id: int, bytes_max: int) -> tuple[Span, int]:
    """The digest of a range, and in how many looks."""
    span, looks = Span.before(first_id), 0
    while span.last_id < last_id:
        longer = read_on(store, span, last_id, bytes_max)
        if longer == span:
            break
        span, looks = longer, looks + 1
    return span, looks


def test_it_is_what_the_documentation_says() -> None:
    entries = _log()
    digest = bytes(16)
    for entry in entries[4:9]:
        link = digest + entry.check.to_bytes(4, "little") + entry.digest
        digest = hashlib.blake2b(link, digest_size=16).digest()
    span = Span.before(5).followed_by(entries[4:9])
    assert span == Span(5, 9, entries[4].lsn, entries[8].lsn, digest, span.bytes)
    assert span.bytes == 5 * 100 + sum(len(entry.body) for entry in entries[4:9])
    assert Span.before(5) == Span(5, 4, 0, 0, bytes(16), 0)
    assert Span.before(1).followed_by(entries[:1])[:4] == (1, 1, 1, 0), "no payloads"
    assert Span.before(2).followed_by(entries[1:2])[:4] == (2, 2, 1, 3), "a batch"


@given(at=st.integers(0, 29), field=st.sampled_from(Entry._fields[1:-1]))
def test_every_field_of_every_entry_counts(at: int, field: str) -> None:
    entries = _log(30)
    old = entries[at]
    if field == "body":
        new = old._replace(body=old.body + b"!", digest=body_digest(old.count, old.body + b"!"))
    elif field == "digest":
        new = old._replace(digest=bytes(16))
    elif field == "client":
        new = old._replace(client="another")
    else:
        new = old._replace(**{field: getattr(old, field) + 1})
    id, term, kind, time_ms, client, serial, epoch, lsn, count, digest, _, _ = new
    new = new._replace(check=header_check(id, term, kind, time_ms, client.encode(), serial, epoch, lsn, count, digest))
    other = [*entries[:at], new, *entries[at + 1 :]]
    for last in range(1, 31):
        same = Span.before(1).followed_by(entries[:last]).digest == Span.before(1).followed_by(other[:last]).digest
        assert same == (last <= at), "once different, for ever different"


@given(st.integers(0, 40), st.integers(0, 7))
def test_every_bit_of_a_digest_counts(at: int, bit: int) -> None:
    """A changed bit of a run's digest or marks changes the digest of the range, even with an equal checksum (R32)."""
    (run,) = _log()[-1:]
    other = bytearray(run.digest)
    other[at] ^= 1 << bit
    for one in ([run._replace(digest=bytes(other))], [run._replace(digest=run.digest[:16])]):
        assert Span.before(60).followed_by(one).digest != Span.before(60).followed_by([run]).digest


@pytest.mark.parametrize("bytes_max", [1, 1_000, 1 << 20])
def test_read_from_a_store_in_pieces(bench: Bench, bytes_max: int) -> None:
    entries = _filled(bench)
    for first, last in [(1, 60), (1, 1), (7, 31), (60, 60)]:
        span, looks = _read(bench.store, first, last, bytes_max)
        assert span == Span.before(first).followed_by(entries[first - 1 : last])
        assert looks == {1: last - first + 1, 1 << 20: 1}.get(bytes_max, looks)
    assert _read(bench.store, 55, 99, bytes_max)[0].last_id == 60
    assert _read(bench.store, 61, 99, bytes_max) == (Span.before(61), 0)


def test_what_was_cleaned_is_in_no_digest(bench: Bench) -> None:
    entries = _filled(bench)
    bench.store.commit([cleaning(entries[19], guaranteed_id=60, fully_replicated_id=60, term=2)])
    assert _read(bench.store, 20, 60, 1 << 20) == (Span.before(20), 0)
    assert _read(bench.store, 21, 60, 1 << 20)[0] == Span.before(21).followed_by(entries[20:])


@pytest.mark.parametrize("bytes_max", [1, 1_000, 1 << 20])
def test_damage_is_named(sqlite: SqliteBench, bytes_max: int) -> None:
    entries = _filled(sqlite)
    sqlite.tamper("UPDATE log SET body = body || x'00' WHERE id = 20")
    sqlite.tamper("DELETE FROM log WHERE id = 40")
    for first, damaged in [(1, 20), (20, 20), (21, 40), (40, 40)]:
        with pytest.raises(DamagedAt, match=rf"entry {damaged}\b") as raised:
            _read(sqlite.store, first, 60, bytes_max)
        assert raised.value.id == damaged
    assert _read(sqlite.store, 21, 39, bytes_max)[0] == Span.before(21).followed_by(entries[20:39])


def test_another_entry_that_is_sealed_well_is_no_damage(sqlite: SqliteBench) -> None:
    entries = _filled(sqlite)
    old = entries[29]
    new = seal(*old[:4], old.lsn, b"another", old.client, old.serial, old.epoch, 1)
    sqlite.tamper('UPDATE log SET body = ?, digest = ?, "check" = ? WHERE id = 30', new.body, new.digest, new.check)
    span, _ = _read(sqlite.store, 1, 60, 1 << 20)
    assert span == Span.before(1).followed_by([*entries[:29], new, *entries[30:]])
    assert span.digest != Span.before(1).followed_by(entries).digest
