"""Reading data directories and backups: every payload once, in order; missing and damaged entries are reported."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_kit import CLUSTER, FileLog, options, read_all

from alpo.spark import files, reading
from alpo.spark.columns import ARROW
from alpo.spark.origin import DataLoss, Extent, SourceError, cut
from alpo.spark.reading import origin_of
from alpo.storage import tables


@pytest.fixture
def log(tmp_path: Path) -> Iterator[FileLog]:
    log = FileLog(tmp_path / "data")
    yield log
    log.close()


def mixed(count: int) -> list[list[bytes]]:
    """Single payloads, batches, and entries without any."""
    return [[b"%d.%d" % (n, at) for at in range((1, 1, 3, 0)[n % 4])] for n in range(count)]


def flat(payloads: list[list[bytes]]) -> list[tuple[int, bytes]]:
    return list(enumerate((payload for entry in payloads for payload in entry), 1))


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_every_payload_once_and_in_order_however_it_is_cut(log: FileLog, size: int) -> None:
    payloads = mixed(50)
    log.append(payloads)
    assert read_all(options(path=log.path, recordsPerPartition=size)) == flat(payloads)


def test_whatever_pages_and_batches_hold(log: FileLog, monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = mixed(50)
    log.append(payloads)
    monkeypatch.setattr(tables, "COLUMN_BYTES", 10)
    monkeypatch.setattr(reading, "BATCH_ROWS", 2)
    monkeypatch.setattr(reading, "JOINED_ROWS", 1)
    assert read_all(options(path=log.path)) == flat(payloads)


def test_all_columns(log: FileLog) -> None:
    log.append([[], [b"one"], [b"two", b"three"]])
    time = datetime(2023, 11, 14, 22, 13, 20, 1000, UTC)
    rows = read_all(options(path=log.path), ARROW.names)
    assert rows[0] == (1, 2, 1, time, "~client", 2, b"one")
    assert [(row[0], row[1], row[5], row[6]) for row in rows[1:]] == [(2, 3, 3, b"two"), (3, 3, 3, b"three")]
    assert read_all(options(path=log.path), ["payload", "lsn"])[0] == (b"one", 1)


def test_starting_and_ending(log: FileLog) -> None:
    payloads = mixed(50)
    log.append(payloads)
    wanted = flat(payloads)
    assert read_all(options(path=log.path, startingLsn=7, endingLsn=20)) == wanted[6:20]
    assert read_all(options(path=log.path, startingLsn="latest")) == []
    later = log.entries[24].time_ms
    since = next(row for row in wanted if row[0] >= log.entries[24].lsn)
    assert read_all(options(path=log.path, startingTimestamp=later))[0] == since
    with pytest.raises(SourceError, match="nothing of startingTimestamp or later"):
        read_all(options(path=log.path, startingTimestamp=later + 10_000))
    late = options(path=log.path, startingTimestamp=later + 10_000, startingTimestampStrategy="latest")
    assert read_all(late) == []
    with pytest.raises(SourceError, match=f"ends at LSN {len(wanted)}"):
        read_all(options(path=log.path, endingLsn=len(wanted) + 1))


def test_nothing_that_is_not_known_to_be_guaranteed(log: FileLog) -> None:
    log.append([[b"%d" % n] for n in range(10)], guaranteed_id=6)
    assert read_all(options(path=log.path)) == [(n + 1, b"%d" % n) for n in range(6)]


def test_the_extent(log: FileLog) -> None:
    assert origin_of(options(path=log.path)).extent() == Extent(CLUSTER.hex(), 1, 1)
    log.append(mixed(8))
    assert origin_of(options(path=log.path)).extent() == Extent(CLUSTER.hex(), 1, 11)
    log.clean(3)
    assert origin_of(options(path=log.path)).extent() == Extent(CLUSTER.hex(), 6, 11)


def test_what_was_cleaned_is_a_loss_that_may_be_allowed(log: FileLog) -> None:
    payloads = mixed(50)
    log.append(payloads)
    log.clean(3)
    with pytest.raises(DataLoss, match=r"payloads 2 to 5 .*failOnDataLoss=false"):
        read_all(options(path=log.path, startingLsn=2))
    allowed = options(path=log.path, startingLsn=2, failOnDataLoss=False)
    assert read_all(allowed) == flat(payloads)[5:]
    assert read_all(options(path=log.path)) == flat(payloads)[5:], "earliest is what there is"


def test_a_loss_is_told_without_a_need_for_readers(
    log: FileLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:
    payloads = mixed(50)
    log.append(payloads)
    log.clean(3)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", 1) as nobody_reads:
        for stream in ("stdout", "stderr"):
            monkeypatch.setattr(sys, stream, nobody_reads)
        assert read_all(options(path=log.path, startingLsn=2, failOnDataLoss=False)) == flat(payloads)[5:]
        monkeypatch.undo()
    assert [record.getMessage() for record in caplog.records] == [f"payloads 2 to 5 are not in {log.path} any more"]


def test_what_is_cleaned_between_planning_and_reading(log: FileLog, monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = mixed(50)
    log.append(payloads)
    cleaned: list[bool] = []
    real = files.FileOrigin.pages

    def pages(self: files.FileOrigin, first_lsn: int, last_lsn: int, turn: int) -> object:
        if not cleaned:
            cleaned.append(True)
            log.clean(10)
        return real(self, first_lsn, last_lsn, turn)

    monkeypatch.setattr(files.FileOrigin, "pages", pages)
    next_lsn = log.entries[10].lsn
    with pytest.raises(DataLoss, match=f"payloads 1 to {next_lsn - 1}"):
        read_all(options(path=log.path))
    assert read_all(options(path=log.path, startingLsn=1, failOnDataLoss=False)) == flat(payloads)[next_lsn - 1 :]


@pytest.mark.parametrize(
    ("sql", "words"), [
        ("UPDATE log SET body = x'00' WHERE id = 9", "entry 9: .*digest"),
        ('UPDATE log SET "serial" = 77 WHERE id = 9', "entry 9: .*checksum"),
        ("DELETE FROM log WHERE id = 9", "entry 9 is missing"),
    ],
)
def test_damage_is_never_read_as_the_end(log: FileLog, sql: str, words: str) -> None:
    log.append([[b"%d" % n] for n in range(20)])
    log.tamper(sql)
    assert len(read_all(options(path=log.path, endingLsn=4, recordsPerPartition=2))) == 4
    with pytest.raises(SourceError, match=words):
        read_all(options(path=log.path))


def test_a_loss_says_the_same_after_its_way_from_an_executor() -> None:
    loss = DataLoss(3, 7, "/data")
    assert str(pickle.loads(pickle.dumps(loss))) == str(loss)


def test_there_must_be_a_log(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no data file or backup"):
        read_all(options(path=tmp_path))


@given(first=st.integers(1, 500), length=st.integers(0, 500), size=st.integers(1, 100))
def test_a_span_is_cut_at_multiples_and_whole(first: int, length: int, size: int) -> None:
    last = first + length - 1
    parts = cut(first, last, size)
    assert [lsn for part in parts for lsn in range(part.first, part.last + 1)] == list(range(first, last + 1))
    assert all((part.first - 1) // size == (part.last - 1) // size == part.turn for part in parts)


def test_a_read_ends_where_it_is_told_to(log: FileLog) -> None:
    log.append([[b"1"], [b"2", b"3"], [b"4"], [b"5"]])
    times = [entry.time_ms for entry in log.entries]

    def lsns(**given: Any) -> list[int]:
        return [lsn for lsn, _ in read_all(options(path=log.path, **given))]

    assert lsns(endingTimestamp=times[1]) == [1], "what has that time is not read"
    assert lsns(endingTimestamp=times[2]) == [1, 2, 3]
    assert lsns(endingTimestamp=times[3] + 1) == [1, 2, 3, 4, 5]
    assert lsns(endingTimestamp=times[0]) == lsns(endingTimestamp=1) == []
    assert lsns(startingTimestamp=times[1], endingTimestamp=times[3]) == [2, 3, 4]
    assert lsns(startingLsn=4, endingLsn=3) == lsns(startingLsn=6) == lsns(startingLsn=4, endingTimestamp=1) == []
    with pytest.raises(SourceError, match="startingLsn is 4, and endingLsn 2 comes before it"):
        lsns(startingLsn=4, endingLsn=2)
    with pytest.raises(SourceError, match="ends at LSN 5, and startingLsn is 7"):
        lsns(startingLsn=7)
