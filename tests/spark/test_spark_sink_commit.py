"""The sink's commit without Spark and without servers: replays, crashes at every step, zombies, damage."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from fake_log import Crash, FakeLog, FakeWriter

from alpo.errors import Fenced
from alpo.spark import committing, ledger
from alpo.spark.committing import Chunk, Job, commit, commit_one_entry, commit_unnumbered
from alpo.spark.ledger import Ledger, Manifest, Part, Tag, stage
from alpo.spark.origin import SourceError

QUERY = "q"
CLIENT = f"spark:{QUERY}"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limits, so that little data takes several entries, and files; and do not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(ledger, "INLINE_BYTES", 600)
    for module in (committing, committing):
        monkeypatch.setattr(module, "ENTRY_BYTES", 100)


def staged(payloads: list[bytes], ledger: Ledger | None, batch: int, partitions: int, run: str = "r") -> list[Part]:
    """Stage the payloads as ``partitions`` tasks do, a consecutive piece each; the last task ends first."""
    size = -(-len(payloads) // partitions) or 1
    parts = []
    for partition in range(partitions):
        mine = payloads[partition * size : (partition + 1) * size]
        batches = [
            pa.RecordBatch.from_arrays([pa.array(mine[at : at + 7], pa.binary())], names=["payload"])
            for at in range(0, len(mine), 7)
        ]
        tag = Tag(QUERY, run, batch, partition, partition)
        parts.append(stage(batches, tag, ledger.staged if ledger else None))
    return parts[::-1]


def rows(batch: int, count: int = 40, seed: int = 0) -> list[bytes]:
    rng = random.Random(f"{batch} {seed}")
    return [b"%d-%d-" % (batch, at) + rng.randbytes(rng.randrange(30)) for at in range(count)]


class Driver:
    """One run of the query: a ledger over the checkpoint, and commits. ``repeat``: that of a stream, if not given."""

    def __init__(self, checkpoint: Path, log: FakeLog, run: str = "r", repeat: str = "last") -> None:
        self.ledger = Ledger(str(checkpoint))
        self.log, self.run, self.repeat = log, run, repeat

    def commit(self, batch: int, payloads: list[bytes], partitions: int = 2) -> None:
        parts = staged(payloads, self.ledger, batch, partitions, self.run)
        job = Job(CLIENT, batch, self.run, self.repeat, self.ledger.plan(batch, self.run))
        trio.run(commit, job, parts, self.ledger, self.log.open)


def test_batches_come_once_and_in_order(tmp_path: Path) -> None:
    log = FakeLog()
    driver = Driver(tmp_path, log)
    for batch in range(5):
        driver.commit(batch, rows(batch))
        driver.commit(batch, rows(batch))
    assert log.payloads == [payload for batch in range(5) for payload in rows(batch)]
    assert sorted(path.name for path in (tmp_path / "alpo" / "commits").iterdir()) == [
        "2", "2.done", "3", "3.done", "4", "4.done"
    ]


def test_a_replay_with_other_partitions_and_other_bytes_takes_what_was_fixed(tmp_path: Path) -> None:
    for seed, partitions in ((0, 3), (0, 1), (1, 2), (1, 5)):
        log = FakeLog()
        checkpoint = tmp_path / f"{seed}-{partitions}"
        log.crash_after = 3
        with pytest.raises(Crash):
            Driver(checkpoint, log).commit(0, rows(0), 2)
        log.crash_after = None
        assert 0 < len(log.payloads) < 40
        Driver(checkpoint, log, "next").commit(0, rows(0, 37, seed), partitions)
        assert log.payloads == rows(0)


def test_a_replay_without_any_rows_finishes_what_was_fixed(tmp_path: Path) -> None:
    log = FakeLog()
    log.crash_after = 2
    with pytest.raises(Crash):
        Driver(tmp_path, log).commit(0, rows(0))
    log.crash_after = None
    Driver(tmp_path, log, "next").commit(0, [])
    assert log.payloads == rows(0)


@contextmanager
def dying_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Iterator[list[str]]:
    """Whatever touches the disk dies at its ``step``-th call; yields what was called."""
    calls: list[str] = []

    def dying(name: str, function: object) -> object:
        def call(*arguments: object, **options: object) -> object:
            calls.append(name)
            if len(calls) == step:
                raise Crash
            return function(*arguments, **options)  # type: ignore[operator]
        return call

    with monkeypatch.context() as patch:
        for module, names in (
            (os, ("link", "fsync")), (ledger, ("sync_directory",)), (Path, ("unlink", "touch", "rename", "open")),
        ):
            for name in names:
                patch.setattr(module, name, dying(name, getattr(module, name)))
        yield calls


def test_a_driver_that_dies_at_any_step_leaves_nothing_out_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, survived = 0, False
    while not survived:
        step += 1
        log, checkpoint = FakeLog(), tmp_path / str(step)
        Driver(checkpoint, log, "a").commit(0, rows(0))
        with dying_at(monkeypatch, step) as calls:
            try:
                Driver(checkpoint, log, "b").commit(1, rows(1), 2)
                survived = True
            except Crash:
                pass
        Driver(checkpoint, log, "c").commit(1, rows(1, 40, seed=step), 3)
        Driver(checkpoint, log, "c").commit(2, rows(2), 3)
        found = [p for p in log.payloads if p.startswith(b"1-")]
        assert found in (rows(1), rows(1, 40, seed=step)), (step, calls)
        assert len(log.payloads) == 120 and log.payloads[:40] == rows(0) and log.payloads[80:] == rows(2)
    assert step > 10


@pytest.mark.parametrize("appends", range(9))
def test_a_driver_that_dies_between_appends(tmp_path: Path, appends: int) -> None:
    log = FakeLog()
    log.crash_after = appends
    with pytest.raises(Crash):
        Driver(tmp_path, log, "a").commit(7, rows(7))
    log.crash_after = appends
    done = 6
    with pytest.raises(Crash):
        Driver(tmp_path, log, "b").commit(7, rows(7, 20, seed=1))
        done = 7
        Driver(tmp_path, log, "b").commit(8, rows(8))
    log.crash_after = None
    if done == 6:  # Spark repeats no batch that it has noted as done
        Driver(tmp_path, log, "c").commit(7, rows(7, 20, seed=2))
    Driver(tmp_path, log, "c").commit(8, rows(8))
    assert log.payloads == rows(7) + rows(8)


def test_a_zombie_driver_is_fenced(tmp_path: Path) -> None:
    log = FakeLog()
    old, new = Driver(tmp_path, log, "old"), Driver(tmp_path, log, "new")
    old.commit(0, rows(0))
    new.commit(1, rows(1))
    for batch in (1, 2):
        with pytest.raises(Fenced):
            old.commit(batch, rows(batch, seed=1))
    new.commit(2, rows(2))
    assert log.payloads == rows(0) + rows(1) + rows(2)


@pytest.mark.parametrize("sleeps", range(10))
def test_a_zombie_that_wakes_in_the_middle_of_a_commit(tmp_path: Path, sleeps: int) -> None:
    """The zombie sleeps before it opens the session (0), before it reads its claim again (1), or between two appends.
    Meanwhile another run takes over and writes this batch and the next."""
    log = FakeLog()
    old, new = Driver(tmp_path, log, "old"), Driver(tmp_path, log, "new")
    old.commit(0, rows(0))
    replayed = [staged(rows(batch, 30, seed=9), new.ledger, batch, 3, "new") for batch in (1, 2)]

    async def sleep() -> None:
        for batch, parts in zip((1, 2), replayed, strict=True):
            await commit(Job(CLIENT, batch, "new"), parts, new.ledger, log.open)

    @asynccontextmanager
    async def open_sleepily(client: str | None, cluster: str) -> AsyncIterator[Any]:
        if sleeps == 0:
            await sleep()
        async with log.open(client, cluster) as writer:
            if sleeps == 1:
                await sleep()
            yield Sleepy(writer)

    class Sleepy:
        def __init__(self, writer: FakeWriter) -> None:
            self.writer = writer

        def __getattr__(self, name: str) -> object:
            return getattr(self.writer, name)

        async def append(self, chunks: Iterable[Chunk]) -> None:
            for number, chunk in enumerate(chunks, 2):
                if number == sleeps:
                    await sleep()
                await self.writer.append([chunk])

    parts = staged(rows(1), old.ledger, 1, 2, "old")
    with pytest.raises(Fenced):
        trio.run(commit, Job(CLIENT, 1, "old"), parts, old.ledger, open_sleepily)
    assert log.payloads == rows(0) + (rows(1, 30, seed=9) if sleeps < 2 else rows(1)) + rows(2, 30, seed=9)


def test_a_run_takes_back_the_session_that_a_dying_zombie_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = FakeLog()
    left, plain = 2, committing.numbered

    def numbered(number: int, chunks: Iterable[list[bytes]], last_serial: int) -> Iterator[Chunk]:
        nonlocal left
        for at, chunk in enumerate(plain(number, chunks, last_serial)):
            if left and at == 2:
                left -= 1
                log.epochs[CLIENT] += 1
            yield chunk

    monkeypatch.setattr(committing, "numbered", numbered)
    Driver(tmp_path, log).commit(0, rows(0))
    assert left == 0 and log.payloads == rows(0)


def test_another_query_in_the_same_checkpoint_is_refused(tmp_path: Path) -> None:
    log = FakeLog()
    Driver(tmp_path, log).commit(0, rows(0))
    ledger = Ledger(str(tmp_path))
    with pytest.raises(SourceError, match="ALPO_OTHER_WRITER"):
        trio.run(commit, Job("spark:other", 0, "r"), staged(rows(0), ledger, 0, 1), ledger, log.open)
    other = FakeLog()
    other.cluster = "bb"
    with pytest.raises((SourceError, AssertionError)):
        Driver(tmp_path, other).commit(1, rows(1))


def test_a_manifest_that_is_gone_is_not_guessed(tmp_path: Path) -> None:
    log = FakeLog()
    log.crash_after = 2
    with pytest.raises(Crash):
        Driver(tmp_path, log).commit(0, rows(0))
    log.crash_after = None
    (tmp_path / "alpo" / "commits" / "0").unlink()
    with pytest.raises(SourceError, match="has 2 entries of batch 0"):
        Driver(tmp_path, log).commit(0, rows(0))


def test_an_earlier_version_that_was_interrupted_is_finished_first(tmp_path: Path) -> None:
    log = FakeLog()
    log.crash_after = 2
    with pytest.raises(Crash):
        Driver(tmp_path, log, "a", "any").commit(100, rows(5))
    log.crash_after = None
    Driver(tmp_path, log, "b", "any").commit(2000, rows(6))
    Driver(tmp_path, log, "c", "any").commit(100, rows(5))
    assert log.payloads == rows(5) + rows(6)


@pytest.mark.parametrize("place", ["staged", "commits"])
def test_damage_is_told(tmp_path: Path, place: str) -> None:
    log = FakeLog()
    log.crash_after = 2
    with pytest.raises(Crash):
        Driver(tmp_path, log).commit(0, rows(0, 100))
    log.crash_after = None
    [path] = (tmp_path / "alpo" / place).iterdir() if place == "commits" else [
        next((tmp_path / "alpo" / place).iterdir())
    ]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    before = list(log.payloads)
    with pytest.raises(SourceError, match="damaged"):
        Driver(tmp_path, log, "next").commit(0, rows(0, 100))
    assert log.payloads == before


def test_any_damaged_byte_of_a_manifest_is_told(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    ledger.fix(Manifest(0, 100, tuple(staged(rows(0, 5), ledger, 0, 1))))
    [path] = (tmp_path / "alpo" / "commits").iterdir()
    sound = path.read_bytes()
    for at in range(len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        with pytest.raises(SourceError, match="damaged"):
            ledger.manifest(0)


def test_the_first_manifest_wins(tmp_path: Path) -> None:
    """The first manifest stays, even if the second one was made before the first was there."""
    ledger = Ledger(str(tmp_path))
    first, second = (Manifest(0, 100, tuple(staged(rows(0, 5, seed), ledger, 0, 1))) for seed in (0, 1))
    ledger.fix(first)
    ledger.fix(second)
    assert ledger.manifest(0) == first != second
    assert [path.name for path in (tmp_path / "alpo" / "commits").iterdir()] == ["0"]


def test_a_staged_file_that_is_gone_is_told(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path))
    parts = staged(rows(0, 200), ledger, 0, 1)
    assert parts[0].name
    (ledger.staged / parts[0].name).unlink()
    with pytest.raises(SourceError, match="must be a directory that the driver and all executors share"):
        trio.run(commit, Job(CLIENT, 0, "r"), parts, ledger, FakeLog().open)


def test_a_failed_batch_leaves_no_files_unless_it_is_fixed(tmp_path: Path) -> None:
    log, ledger = FakeLog(), Ledger(str(tmp_path))
    parts = staged(rows(0, 200), ledger, 0, 2)
    assert len(list(ledger.staged.iterdir())) == 2
    ledger.discard(parts, 0)
    assert not list(ledger.staged.iterdir())
    log.crash_after = 1
    parts = staged(rows(0, 200), ledger, 0, 2)
    with pytest.raises(Crash):
        trio.run(commit, Job(CLIENT, 0, "r"), parts, ledger, log.open)
    ledger.discard(parts, 0)
    assert len(list(ledger.staged.iterdir())) == 2


def test_what_nobody_needs_any_more_goes(tmp_path: Path) -> None:
    driver = Driver(tmp_path, FakeLog())
    for batch in range(6):
        staged(rows(batch, 200), driver.ledger, batch, 1, "dead")  # another attempt that nobody heard of
        (driver.ledger.staged / f"{batch}-0-0-q-r-.ff.tmp").touch()
        driver.commit(batch, rows(batch, 200))
    assert {path.name.split("-")[0] for path in driver.ledger.staged.iterdir()} == {"3", "4", "5"}


def test_a_payload_that_is_too_large_fixes_nothing(tmp_path: Path) -> None:
    driver = Driver(tmp_path, FakeLog())
    with pytest.raises(SourceError, match="a payload of 501 bytes, where the cluster takes 500"):
        driver.commit(0, [b"x" * 501])
    driver.commit(0, [b"x" * 500])
    assert driver.log.payloads == [b"x" * 500]


def test_what_fits_is_one_entry_and_more_is_cut_by_bytes(tmp_path: Path) -> None:
    driver = Driver(tmp_path, FakeLog(batch_bytes_max=1000))
    driver.commit(0, [b"x" * 6] * 100)
    assert [len(entry) for entry in driver.log.entries] == [100]
    driver.commit(1, [b"x" * 6] * 101 + [b"y" * 500] + [b"z"])
    assert [len(entry) for entry in driver.log.entries[1:]] == [10] * 10 + [1, 1, 1]


def test_runs_that_are_remembered_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpo.spark.ledger.RUNS_KEPT", 3)
    ledger = Ledger(str(tmp_path))
    for run in range(10):
        ledger.claim(f"run-{run}")
        ledger.claim(f"run-{run}")
    assert sorted(int(path.name) for path in (tmp_path / "alpo" / "runs").iterdir()) == [7, 8, 9, 10]
    with pytest.raises(Fenced):
        ledger.claim("run-8")


# -- no row is dropped in silence -----------------------------------------------------------------------------


@pytest.mark.parametrize("copied_at", range(5))
def test_an_older_copy_of_the_checkpoint_is_told(tmp_path: Path, copied_at: int) -> None:
    log, checkpoint = FakeLog(), tmp_path / "checkpoint"
    for batch in range(5):
        if batch == copied_at and batch:
            shutil.copytree(checkpoint, tmp_path / "copy")
        Driver(checkpoint, log).commit(batch, rows(batch))
    before = list(log.payloads)
    driver = Driver(tmp_path / "copy", log, "after")
    for batch in range(copied_at, 5):
        said = f"_BATCH: batch {batch} of spark:q .*the log has batch 4 already" if batch < 4 else "entries of batch 4"
        with pytest.raises(SourceError, match=said):
            driver.commit(batch, rows(batch, seed=1))
    assert log.payloads == before
    driver.commit(5, rows(5))
    assert log.payloads == before + rows(5)


def test_a_copy_whose_first_batches_come_out_empty_writes_again(tmp_path: Path) -> None:
    """docs/spark.md warns of this: nothing shows that a batch above the log's last one has rows of that one."""
    log, checkpoint = FakeLog(2000), tmp_path / "checkpoint"
    Driver(checkpoint, log).commit(0, rows(0))
    shutil.copytree(checkpoint, tmp_path / "copy")
    Driver(checkpoint, log).commit(1, rows(1))
    driver = Driver(tmp_path / "copy", log, "after")
    driver.commit(1, [])
    driver.commit(2, rows(1))
    assert log.payloads == rows(0) + rows(1) + rows(1)


def test_a_batch_that_spark_planned_anew_is_told(tmp_path: Path) -> None:
    """The newest files of Spark's own were deleted, and what the sink keeps beside them was not."""
    log, planned = FakeLog(), tmp_path / "offsets" / "1"
    planned.parent.mkdir()
    Driver(tmp_path, log).commit(0, rows(0))
    planned.write_text('v1\n{"batchTimestampMs": 1}\n{"lsn": 80}', "utf-8")
    Driver(tmp_path, log).commit(1, rows(1))
    Driver(tmp_path, log, "again").commit(1, rows(1, 50, seed=1))  # a repetition, whatever its rows are
    planned.write_text('v1\n{"batchTimestampMs": 2}\n{"lsn": 90}', "utf-8")
    with pytest.raises(SourceError, match="planned it anew, and the log's batch 1 is another"):
        Driver(tmp_path, log, "anew").commit(1, rows(1, 50))
    assert log.payloads == rows(0) + rows(1)


def test_a_plan_that_is_not_known_is_warned_of_once_in_each_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark keeps its checkpoint elsewhere (fs.defaultFS), or this machine's file system does not answer."""
    log, offsets = FakeLog(), tmp_path / "offsets"
    offsets.mkdir()
    (offsets / "0").write_text("v1", "utf-8")
    Driver(tmp_path, log, "a").commit(0, rows(0))
    assert not caplog.records
    for run, batch in (("a", 1), ("a", 2), ("b", 2), ("b", 3)):
        Driver(tmp_path, log, run).commit(batch, rows(batch))
    first, second = (record.getMessage() for record in caplog.records)
    assert f"{offsets / '1'}: No such file" in first and f"{offsets / '2'}: No such file" in second
    for said in ("it is not checked", "rows are lost", "fs.defaultFS", f"file://{tmp_path}"):
        assert said in first

    def broken(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    caplog.clear()
    ledger = Ledger(str(tmp_path))
    monkeypatch.setattr(Path, "read_bytes", broken)
    assert ledger.plan(0, "c") == ledger.plan(0, "c") == ""
    (only,) = caplog.records
    assert f"{offsets / '0'}: Permission denied" in only.getMessage() and only.levelname == "WARNING"
    assert log.payloads == [row for batch in range(4) for row in rows(batch)]


class Function:
    """Appends for one name as `append_batch` makes them, with or without a checkpoint of their own."""

    def __init__(self, checkpoint: Path | None, log: FakeLog) -> None:
        self.ledger = Ledger(str(checkpoint)) if checkpoint else None
        self.log = log

    def append(self, batch: int, payloads: list[bytes], repeat: str = "same", partitions: int = 2) -> None:
        parts = staged(payloads, self.ledger, batch, partitions)
        job = Job(CLIENT, batch, "r", repeat)
        if self.ledger is None:
            trio.run(commit_one_entry, job, parts, self.log.open)
        else:
            trio.run(commit, job, parts, self.ledger, self.log.open)


@pytest.mark.parametrize("with_checkpoint", [False, True])
@pytest.mark.parametrize("last", [0, 1, 3])
def test_a_name_that_another_query_goes_on_with_is_told(tmp_path: Path, with_checkpoint: bool, last: int) -> None:
    log = FakeLog(2000)
    function = Function(tmp_path if with_checkpoint else None, log)
    for batch in range(last + 1):
        function.append(batch, rows(batch, 20))
    before = list(log.payloads)
    for batch in range(last + 1):  # the query has a new checkpoint
        other = f"the log has batch {last} already" if batch < last else r"other rows \(20\) than this one \(21\)"
        with pytest.raises(SourceError, match=rf"OTHER_BATCH: batch {batch} of spark:q .*{other}.*another query="):
            function.append(batch, rows(batch, 21, seed=1))
        function.append(batch, [])  # nothing is lost
    assert log.payloads == before
    function.append(last + 1, rows(last + 1, 20))
    assert log.payloads == before + rows(last + 1, 20)


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_a_function_that_is_called_again_appends_once(tmp_path: Path, with_checkpoint: bool) -> None:
    log = FakeLog(2000)
    function = Function(tmp_path if with_checkpoint else None, log)
    payloads = [*rows(2, 20), b"twice", b"twice"]
    for partitions in (2, 3, 1):
        function.append(2, payloads, partitions=partitions)
        function.append(2, payloads[::-1], partitions=partitions)
    function.append(2, rows(2, 7, seed=1), "last")
    for batch in (1, 2):
        function.append(batch, rows(batch, 7, seed=1), "any")
    with pytest.raises(SourceError, match="the log has batch 2 already"):
        function.append(1, rows(1), "last")
    with pytest.raises(SourceError, match=r'other rows .*repeat="last"'):
        function.append(2, [*payloads[:-1], b"once"])
    assert log.payloads == payloads


def test_what_was_written_in_several_entries_needs_its_checkpoint(tmp_path: Path) -> None:
    log = FakeLog()
    Function(tmp_path, log).append(2, rows(2, 40))
    for repeat in ("any", "last", "same"):
        with pytest.raises(SourceError, match="entries of batch 2 of spark:q, which were written with a checkpoint"):
            Function(None, log).append(2, rows(2, 40), repeat)


@pytest.mark.parametrize("repeat", ["any", "last", "same"])
def test_a_first_entry_of_several_is_not_taken_for_the_whole_batch(tmp_path: Path, repeat: str) -> None:
    log = FakeLog()
    log.crash_after = 1
    with pytest.raises(Crash):
        Function(tmp_path, log).append(2, rows(2, 40), repeat)
    log.crash_after = None
    with pytest.raises(SourceError, match="give checkpointLocation"):
        Function(None, log).append(2, rows(2, 40), repeat)
    Function(tmp_path, log).append(2, rows(2, 40), repeat)
    assert log.payloads == rows(2, 40)


@pytest.mark.parametrize("entries", [1, 3])
def test_what_another_copy_of_the_checkpoint_wrote_is_not_taken_for_this_ones(tmp_path: Path, entries: int) -> None:
    """A run fixed batch 1 and died. A run on a copy of its checkpoint then planned and wrote other rows for it."""
    log, count = FakeLog(2000 if entries == 1 else 500), 40
    Driver(tmp_path / "this", log).commit(0, rows(0, count))
    shutil.copytree(tmp_path / "this", tmp_path / "copy")
    log.crash_after = 0
    with pytest.raises(Crash):
        Driver(tmp_path / "this", log).commit(1, rows(1, count))
    log.crash_after = entries
    with suppress(Crash):
        Driver(tmp_path / "copy", log, "copy").commit(1, rows(1, count, seed=1))
    log.crash_after = None
    before = list(log.payloads)
    with pytest.raises(SourceError, match=r"OTHER_BATCH: batch 1 of .*another copy of the checkpoint wrote it"):
        Driver(tmp_path / "this", log, "again").commit(1, rows(1, count))
    assert log.payloads == before
    Driver(tmp_path / "copy", log, "on").commit(1, rows(1, count, seed=1))
    assert log.payloads == rows(0, count) + rows(1, count, seed=1)


def test_a_last_batch_that_was_trimmed(tmp_path: Path) -> None:
    """A manifest says that a trimmed batch was written. Without a manifest, only the user knows."""
    log = FakeLog(2000)
    Driver(tmp_path, log).commit(0, rows(0, 20))
    (tmp_path / "alpo" / "commits" / "0.done").unlink()
    log.held.clear()
    Driver(tmp_path, log, "next").commit(0, rows(0, 20, seed=1))
    function = Function(None, log)
    with pytest.raises(SourceError, match=r'batch 0 was trimmed.* give repeat="last"'):
        function.append(0, rows(0, 20))
    function.append(0, rows(0, 20), "last")
    assert log.payloads == rows(0, 20)


# -- without a checkpoint -------------------------------------------------------------------------------------


def test_one_entry_needs_no_checkpoint(tmp_path: Path) -> None:
    log = FakeLog()
    for batch, seed in ((3, 0), (3, 1), (2, 0), (4, 0)):
        trio.run(
            commit_one_entry, Job(CLIENT, batch, "r"), staged(rows(batch, 20, seed), None, batch, 2), log.open
        )
    assert log.payloads == rows(3, 20) + rows(4, 20)
    with pytest.raises(SourceError, match="give checkpointLocation"):
        trio.run(commit_one_entry, Job(CLIENT, 5, "r"), staged(rows(5, 200), None, 5, 2), log.open)
    assert len(log.entries) == 2


def test_an_unnumbered_job_appends_again_when_it_is_run_again(tmp_path: Path) -> None:
    log = FakeLog()
    for _ in range(2):
        trio.run(commit_unnumbered, staged(rows(0, 100), None, 0, 3), None, log.open)
    assert log.payloads == rows(0, 100) * 2


def test_a_partition_without_a_directory_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "INLINE_ALONE_BYTES", 1000)
    with pytest.raises(SourceError, match="give checkpointLocation"):
        staged(rows(0, 500), None, 0, 1)
