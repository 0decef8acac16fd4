"""Reading runs (R32): rows are those of the appends, however these came together in entries."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_kit import CLUSTER, FileLog, options, read_all, rows_in

from alpo.core.entries import join_payloads
from alpo.spark import reading
from alpo.spark.archive import ArchiveOrigin, JoinedOrigin, extend_manifest, write_file
from alpo.spark.columns import ARROW, batch_of
from alpo.spark.files import FileOrigin
from alpo.spark.origin import Range, SourceError, Stretch
from alpo.spark.reading import rows_of
from alpo.spark.source import Follower
from alpo.storage import tables

#: A leader's entry, a single append, a run, a batch, a run with batches in it, a single append.
MIXED: list[list[tuple[bytes, ...]]] = [
    [], [(b"1",)], [(b"2",), (b"",), (b"four",)], [(b"5", b"6")], [(b"7",), (b"8", b"9"), (b"10",)], [(b"11",)],
]
#: (LSN, id, serial, payload) of each payload in `MIXED`.
ROWS = [
    (1, 2, 1, b"1"), (2, 3, 2, b"2"), (3, 3, 3, b""), (4, 3, 4, b"four"), (5, 4, 5, b"5"), (6, 4, 5, b"6"),
    (7, 5, 6, b"7"), (8, 5, 7, b"8"), (9, 5, 7, b"9"), (10, 5, 8, b"10"), (11, 6, 9, b"11"),
]
NAMES = ("lsn", "id", "serial", "payload")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[FileLog]:
    log = FileLog(tmp_path / "data")
    log.append_runs(MIXED)
    yield log
    log.close()


def test_a_row_for_each_payload(log: FileLog) -> None:
    assert read_all(options(path=log.path), NAMES) == ROWS
    times = [log.entries[id - 1].time_ms for _, id, *_ in ROWS]
    assert [
        (round(time.timestamp() * 1000), term, client)
        for time, term, client in read_all(options(path=log.path), ("time", "term", "client"))
    ] == [(time_ms, 1, "~client") for time_ms in times]


def test_a_read_may_begin_and_end_within_a_run(log: FileLog, monkeypatch: pytest.MonkeyPatch) -> None:
    for piece_rows in (1, 2, 8192):
        monkeypatch.setattr(reading, "BATCH_ROWS", piece_rows)
        for first in range(1, 12):
            for last in range(first, 12):
                read = read_all(options(path=log.path, startingLsn=first, endingLsn=last), NAMES)
                assert read == ROWS[first - 1 : last], (piece_rows, first, last)


_appends = st.lists(st.lists(st.binary(max_size=5), min_size=1, max_size=3).map(tuple), max_size=5)


@given(
    runs=st.lists(_appends, min_size=1, max_size=8).filter(any), range_rows=st.integers(1, 9),
    batch_rows=st.integers(1, 9), page_bytes=st.integers(1, 40),
)
def test_rows_are_the_same_however_appends_came_together(
    runs: list[list[tuple[bytes, ...]]], range_rows: int, batch_rows: int, page_bytes: int
) -> None:
    wanted = [
        (serial, payload)
        for serial, payloads in enumerate((append for run in runs for append in run), 1) for payload in payloads
    ]
    with (
        tempfile.TemporaryDirectory() as directory, patch.object(reading, "BATCH_ROWS", batch_rows),
        patch.object(tables, "COLUMN_BYTES", page_bytes),
    ):
        log = FileLog(Path(directory))
        log.append_runs(runs)
        read = read_all(options(path=log.path, recordsPerPartition=range_rows), ("lsn", "serial", "payload"))
        log.close()
    assert read == [(lsn, *row) for lsn, row in enumerate(wanted, 1)]


@pytest.mark.parametrize("seam_lsn", range(2, 12))
def test_an_archive_that_ends_within_a_run(log: FileLog, tmp_path: Path, seam_lsn: int) -> None:
    files = FileOrigin(log.path)
    archived = Range(1, seam_lsn - 1, 0)
    listed = write_file(tmp_path, archived, rows_of(files, archived, ARROW.names, True))
    extend_manifest(tmp_path, CLUSTER.hex(), [listed])
    archive = ArchiveOrigin(str(tmp_path))
    joined = JoinedOrigin(archive, files, seam_lsn)
    assert [row for batch in rows_of(joined, Range(1, 11, 0), NAMES, True) for row in rows_in(batch)] == ROWS
    appends = [append for page in archive.pages(1, seam_lsn - 1, 0) for append in page.entries()]
    assert [(lsn, id, serial, body) for id, _, _, _, serial, lsn, _, body in appends] == ROWS[: seam_lsn - 1]


def test_a_stream_limited_by_bytes_goes_on_from_within_a_run(log: FileLog) -> None:
    follower = Follower(options(True, path=log.path))
    ends = [follower.latest({"log": CLUSTER.hex(), "lsn": lsn}, 0, 1)["lsn"] for lsn in range(1, 12)]
    assert ends == [2, 5, 5, 5, 7, 7, 8, 10, 10, 11, 12]


def stretch(*bodies: bytes) -> Stretch:
    """Two runs of two payloads, with these bodies."""
    return Stretch([3, 4], [1, 1], [5, 6], ["a", "a"], [7, 9], [1, 3], [2, 2], bodies, [1, 1])


def test_pages_give_appends_one_by_one() -> None:
    page = stretch(join_payloads([b"x", b""]), join_payloads([b"", b"yy"]))
    assert page.entries() == [
        (3, 1, 5, "a", 7, 1, 1, b"x"), (3, 1, 5, "a", 8, 2, 1, b""),
        (4, 1, 6, "a", 9, 3, 1, b""), (4, 1, 6, "a", 10, 4, 1, b"yy"),
    ]


@pytest.mark.parametrize(
    "body", [
        b"", b"\1\0\0\0x", b"\1\0\0\0x\0\0\0", b"\1\0\0\0x\2\0\0\0y", b"\1\0\0\0x\1\0\0\0yz", bytes(12),
        b"\xff\xff\xff\xff\0\0\0\0", b"\1\0\0\0x\6\0\0\0y",
    ],
)
@pytest.mark.parametrize("at", [0, 1])
def test_a_run_that_does_not_hold_its_payloads(body: bytes, at: int) -> None:
    bodies = [join_payloads([b"x", b""]), join_payloads([b"x", b""])]
    bodies[at] = body
    with pytest.raises(SourceError, match=f"entry {3 + at} is damaged: it does not hold 2 payloads"):
        batch_of(stretch(*bodies), 1, 4, ARROW)
    with pytest.raises(SourceError, match="damaged"):
        stretch(*bodies).entries()
