"""The archive: files, manifest, and reading it alone and before a log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs_kit import CLUSTER, FileServers, Replica, batches, by_definition, fifty, read, rows, some

from alpo.spark.archive import (
    ArchivedRange,
    ArchiveOrigin,
    JoinedOrigin,
    Manifest,
    clear_partials,
    content_of,
    extend_manifest,
    read_manifest,
    write_file,
)
from alpo.spark.columns import ARROW, Content
from alpo.spark.files import FileOrigin
from alpo.spark.jobs import archiving
from alpo.spark.jobs.archiving import Archived, archive, trim_archived
from alpo.spark.jobs.fan import run_here
from alpo.spark.origin import DataLoss, Range, SourceError


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Replica]:
    replica = fifty(tmp_path / "log")
    yield replica
    replica.close()


def archived(log: Replica, to: Path, range_rows: int = 10, upto: int | None = None, **given: Any) -> Archived:
    servers: Any = given.pop("servers", None) or FileServers({1: log.path, 2: log.path, 3: log.path}, **given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archiving, "members_of", lambda *_: servers.members())
        return archive(servers, to, range_rows, upto, run_here)


# -- writing ----------------------------------------------------------------------------------------------------------


def test_files_of_ranges_then_the_manifest(log: Replica, tmp_path: Path) -> None:
    to = tmp_path / "archive"
    done = archived(log, to)
    assert (done.first_lsn, done.last_lsn, done.ranges, done.found, done.rows, done.checked) == (1, 50, 5, 0, 50, True)
    manifest = read_manifest(to)
    assert manifest is not None and manifest.cluster == CLUSTER
    assert [(one.first_lsn, one.last_lsn, one.rows) for one in manifest.ranges] == [
        (1, 10, 10), (11, 20, 10), (21, 30, 10), (31, 40, 10), (41, 50, 10)]
    names = sorted(path.name for path in to.iterdir())
    assert names == ["manifest.json", "manifest.lock", *sorted(one.file for one in manifest.ranges)]
    assert all("=" not in name for name in names)
    for one in manifest.ranges:
        assert one.file_bytes == (to / one.file).stat().st_size
        assert one.digest == by_definition(pq.read_table(to / one.file).to_pylist())
        assert one.digest == content_of(to / one.file).digest()
    assert json.loads((to / "manifest.json").read_text())["format"] == "alpo-archive"


def test_what_is_read_back_is_what_the_log_has(log: Replica, tmp_path: Path) -> None:
    archived(log, tmp_path / "archive")
    expected = rows(FileOrigin(log.path), 1, 50)
    assert len(expected) == 50 and len({row[1] for row in expected}) < 50  # ids of batches are shared
    assert read(archivePath=tmp_path / "archive", recordsPerPartition=7) == expected
    assert read(archivePath=tmp_path / "archive", verifyArchive="true") == expected
    assert read(archivePath=tmp_path / "archive", startingLsn=9, endingLsn=31) == expected[8:31]


def test_it_goes_on_where_it_ended(log: Replica, tmp_path: Path) -> None:
    to = tmp_path / "archive"
    assert archived(log, to, upto=25).last_lsn == 25
    first = (to / "manifest.json").read_text()
    log.append(*some(51, 60))
    done = archived(log, to, range_rows=20)
    assert (done.ranges, done.rows, done.last_lsn) == (2, 35, 60)
    manifest = read_manifest(to)
    assert manifest is not None
    assert [one.first_lsn for one in manifest.ranges] == [1, 11, 21, 26, 41]
    assert [one._asdict() for one in manifest.ranges[:3]] == json.loads(first)["ranges"]
    assert archived(log, to).ranges == 0
    assert read(archivePath=to) == rows(FileOrigin(log.path), 1, 60)


def test_a_file_that_is_there_counts_only_if_it_is_right(log: Replica, tmp_path: Path) -> None:
    to = tmp_path / "archive"
    archived(log, to)
    names = sorted(path.name for path in to.glob("*.parquet"))
    (to / "manifest.json").unlink()
    (to / names[1]).write_bytes((to / names[0]).read_bytes())
    (to / names[2]).write_bytes(b"no parquet")
    done = archived(log, to)
    assert (done.ranges, done.found) == (5, 3)
    assert read(archivePath=to, verifyArchive="true") == rows(FileOrigin(log.path), 1, 50)


def test_replicas_that_differ_are_not_archived(log: Replica, tmp_path: Path) -> None:
    other = Replica(tmp_path / "other")
    batches = some(1, 50)
    batches[12] = (b"payload 21!",)
    other.append((), *batches[:9], (), *batches[9:])
    to = tmp_path / "archive"
    with pytest.raises(SourceError, match=r"ALPO_REPLICAS_DIFFER.* payloads 21 to 30"):
        archived(log, to, servers=FileServers({1: log.path, 2: other.path}))
    assert not [path for path in to.iterdir() if "21" in path.name] and read_manifest(to) is None
    other.close()


def test_a_server_that_is_down_is_done_without_if_two_others_are_there(log: Replica, tmp_path: Path) -> None:
    assert archived(log, tmp_path / "a", down=frozenset({2})).checked
    with pytest.raises(SourceError, match="only 1 of 3 servers"):
        archived(log, tmp_path / "b", down=frozenset({2, 3}))
    alone = archived(log, tmp_path / "c", servers=FileServers({1: log.path}))
    assert alone.rows == 50 and not alone.checked


def test_archivers_at_once(log: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of them, cutting differently, one of them over and over."""
    to = tmp_path / "archive"
    servers = FileServers({1: log.path, 2: log.path})
    monkeypatch.setattr(archiving, "members_of", lambda *_: servers.members())
    monkeypatch.setattr(archiving, "WAVE", 2)
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(archive, servers, to, size, upto, run_here)  # type: ignore[arg-type]
                for size, upto in ((3, None), (3, None), (7, None), (5, 23))]
    assert all(one.result().last_lsn >= 23 for one in done)
    assert read(archivePath=to, verifyArchive="true") == rows(FileOrigin(log.path), 1, 50)
    assert not list(to.glob(".partial-*"))


def test_what_others_archived_and_trimmed_meanwhile_is_passed_over(log: Replica, tmp_path: Path) -> None:
    to = tmp_path / "archive"
    archived(log, to, upto=30)
    task = archiving.RangeTask(str(to), Range(1, 25, 0), FileServers({1: log.path}), (1,))  # type: ignore[arg-type]
    late = archiving.RangeTask(str(to), Range(1, 40, 0), FileServers({1: log.path}), (1,))  # type: ignore[arg-type]
    log.clean(12)
    assert archiving.make_range(task) is None
    with pytest.raises(DataLoss):
        archiving.make_range(late)


class Killed(BaseException):
    pass


def test_killed_at_any_step_it_can_be_run_again(log: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fsync, rename and removal is a step. A process that was killed removes no files."""
    expected = rows(FileOrigin(log.path), 1, 50)
    left = 0
    died = 0

    def step(real: Any) -> Any:
        def do(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return real(*args, **kwargs)

        return do

    for steps in range(200):
        to = tmp_path / f"archive-{steps}"
        left = steps
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", step(__import__("os").fsync))
            patch.setattr(Path, "replace", step(Path.replace))
            patch.setattr(Path, "unlink", step(Path.unlink))
            try:
                archived(log, to, range_rows=25)
            except Killed:
                died += 1
            else:
                break
        if (to / "manifest.json").exists():
            assert read(archivePath=to, verifyArchive="true") == expected
        archived(log, to, range_rows=25)
        assert read(archivePath=to, verifyArchive="true") == expected
        assert not list(to.glob(".partial-*"))
    assert died > 10


def test_what_is_under_way_elsewhere_is_not_cleared(log: Replica, tmp_path: Path) -> None:
    seen: list[Path] = []

    def approve(content: Content) -> None:
        clear_partials(tmp_path)
        seen.extend(tmp_path.glob(".partial-*"))

    write_file(tmp_path, Range(1, 50, 0), batches(log, 1, 50), approve)
    assert len(seen) == 1 and not list(tmp_path.glob(".partial-*"))
    (tmp_path / ".partial-dead").write_bytes(b"")
    clear_partials(tmp_path)
    assert not list(tmp_path.glob(".partial-*"))


def one(first: int, last: int, digest: str = "aa") -> ArchivedRange:
    return ArchivedRange(first, last, last - first + 1, 9, 0, 0, digest, f"{first}-{last}", 9)


def test_archivers_side_by_side_only_add_what_follows_on(tmp_path: Path) -> None:
    extend_manifest(tmp_path, "cc", [one(11, 20), one(1, 10)])
    assert extend_manifest(tmp_path, "cc", [one(1, 10), one(11, 20), one(21, 30)]).next_lsn == 31
    assert extend_manifest(tmp_path, "cc", [one(1, 40), one(25, 50), one(41, 50)]).next_lsn == 31
    assert [r.file for r in (read_manifest(tmp_path) or Manifest("")).ranges] == ["1-10", "11-20", "21-30"]
    with pytest.raises(SourceError, match="ALPO_ARCHIVE_DIFFERS"):
        extend_manifest(tmp_path, "cc", [one(11, 20, "bb")])
    with pytest.raises(SourceError, match="ALPO_OTHER_LOG"):
        extend_manifest(tmp_path, "dd", [one(31, 40)])


@pytest.mark.parametrize(("change", "said"), [
    ({"format": "zip"}, "format zip"), ({"version": 2}, "alpo-archive 2"), ({"ranges": [{}]}, "no manifest"),
    ({"ranges": 5}, "no manifest"), ({"ranges": [one(1, 10)._asdict(), one(12, 20)._asdict()]}, "payload 11 belongs"),
    ({"ranges": [one(1, 10)._replace(rows=9)._asdict()]}, "payload 1 belongs"),
    ({"ranges": [one(1, 10)._replace(file="../x")._asdict()]}, "no file beside it"),
])
def test_a_manifest_that_is_none(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    fields = {"format": "alpo-archive", "version": 1, "cluster": "cc", "ranges": [], **change}
    (tmp_path / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(SourceError, match=said):
        read_manifest(tmp_path)


# -- reading ----------------------------------------------------------------------------------------------------------


def test_without_a_seam(log: Replica, tmp_path: Path) -> None:
    to = tmp_path / "archive"
    expected = rows(FileOrigin(log.path), 1, 50)
    archived(log, to, upto=30)
    first_lsn = next(row[0] for row in expected if row[1] == 13)
    log.clean(12)
    with pytest.raises(DataLoss):
        read(path=log.path, startingLsn=1)
    assert read(path=log.path, startingLsn=1, failOnDataLoss="false") == expected[first_lsn - 1 :]
    for size in (1, 4, 1000):
        assert read(path=log.path, archivePath=to, recordsPerPartition=size) == expected
    assert read(path=log.path, archivePath=to, startingLsn=5, endingLsn=45) == expected[4:45]


def test_a_gap_between_archive_and_log_is_a_loss(log: Replica, tmp_path: Path) -> None:
    to = tmp_path / "archive"
    expected = rows(FileOrigin(log.path), 1, 50)
    archived(log, to, upto=10)
    log.clean(12)
    first_lsn = FileOrigin(log.path).extent().first_lsn
    with pytest.raises(DataLoss) as raised:
        read(path=log.path, archivePath=to)
    assert (raised.value.first_lsn, raised.value.last_lsn) == (11, first_lsn - 1)
    found = read(path=log.path, archivePath=to, failOnDataLoss="false", recordsPerPartition=1000)
    assert found == [row for row in expected if row[0] <= 10 or row[0] >= first_lsn]


def test_the_archive_helps_when_the_log_is_trimmed_after_planning(log: Replica, tmp_path: Path) -> None:
    to = tmp_path / "archive"
    expected = rows(FileOrigin(log.path), 1, 50)
    archived(log, to)
    joined = JoinedOrigin(ArchiveOrigin(str(to)), FileOrigin(log.path), 1)
    log.clean(12)
    assert rows(joined, 1, 50) == expected


def test_a_time_may_lie_in_the_archive(log: Replica, tmp_path: Path) -> None:
    to = tmp_path / "archive"
    expected = rows(FileOrigin(log.path), 1, 50)
    archived(log, to, upto=30)
    log.clean(12)
    for at in (0, 7, 25, 29, 30, 31, 49):
        time = expected[at][2]
        found = read(path=log.path, archivePath=to, startingTimestamp=round(time.timestamp() * 1000))
        assert found == [row for row in expected if row[2] >= time]
    late = round(expected[-1][2].timestamp() * 1000) + 1
    with pytest.raises(SourceError, match="nothing of startingTimestamp"):
        read(archivePath=to, startingTimestamp=late)


def test_another_clusters_archive_is_refused(log: Replica, tmp_path: Path) -> None:
    extend_manifest(tmp_path, "dd" * 16, [one(1, 10)])
    with pytest.raises(SourceError, match="ALPO_OTHER_LOG"):
        read(path=log.path, archivePath=tmp_path)
    with pytest.raises(SourceError, match="ALPO_OTHER_LOG"):
        archived(log, tmp_path)
    with pytest.raises(SourceError, match="is no archive"):
        read(archivePath=tmp_path / "none")


def test_a_damaged_archive_is_told(log: Replica, tmp_path: Path) -> None:
    to = tmp_path / "archive"
    archived(log, to)
    second = sorted(to.glob("*.parquet"))[1]
    sound = second.read_bytes()
    table = pq.read_table(second)
    changed = table.to_pylist()
    changed[3]["payload"] = b"x" * len(changed[3]["payload"])
    pq.write_table(pa.Table.from_pylist(changed, ARROW), second)
    assert len(read(archivePath=to)) == 50  # a file that was written as if it were right
    with pytest.raises(SourceError, match=r"ALPO_ARCHIVE_DAMAGED.*11 to 20"):
        read(archivePath=to, verifyArchive="true")
    at = len(sound) // 3
    second.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
    with pytest.raises(SourceError, match="cannot be read"):
        read(archivePath=to)
    second.unlink()
    with pytest.raises(SourceError, match="cannot be read"):
        read(archivePath=to)


# -- trimming ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cursor", "before", "held_by"), [
    (None, 31, ""), (("slow", 17), 17, "slow"), (("fast", 40), 31, ""), (("first", 1), None, "first"),
])
def test_trimmed_is_what_is_archived_and_not_needed(
    log: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cursor: Any, before: int | None, held_by: str
) -> None:
    to = tmp_path / "archive"
    asked: list[int] = []
    servers = FileServers({1: log.path})
    monkeypatch.setattr(archiving, "members_of", lambda *_: servers.members())
    monkeypatch.setattr(archiving, "slowest_cursor", lambda *_: cursor)

    def trim(servers: object, lsn: int, timeout_s: float, log: str) -> int:
        asked.append(lsn)
        return lsn

    monkeypatch.setattr(archiving, "trim", trim)
    assert trim_archived(("h:1",), to, 1.0).first_lsn == 1 and asked == []
    archived(log, to, upto=30)
    trimmed = trim_archived(("h:1",), to, 1.0)
    assert (asked, trimmed.first_lsn, trimmed.held_by) == ([before] if before else [], before or 1, held_by)
    sorted(to.glob("*.parquet"))[0].unlink()
    if before:
        with pytest.raises(SourceError, match="nothing was trimmed"):
            trim_archived(("h:1",), to, 1.0)


def test_what_was_trimmed_before_it_was_archived_is_told(log: Replica, tmp_path: Path) -> None:
    to = tmp_path / "archive"
    archived(log, to, upto=10)
    log.clean(12)
    with pytest.raises(SourceError, match=r"the archive ends at LSN 10.*trimmed before"):
        archived(log, to)
    with pytest.raises(SourceError, match="--upto is 51"):
        archived(log, tmp_path / "other", upto=51)
    assert archived(log, tmp_path / "rest").first_lsn == FileOrigin(log.path).extent().first_lsn
