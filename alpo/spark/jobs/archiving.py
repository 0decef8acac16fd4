"""Archive ranges of the log to files, each checked against a second replica; then write the manifest, then trim.

Laws:

* A range is read from one replica and compared with another before its file appears; an existing file is compared with
  a replica before it counts. So at least two copies of the log agreed on everything that the manifest lists, except in
  a cluster of one.
* Only payloads are trimmed that the manifest on disk lists, whose files exist, and that no cursor's reader needs.
* An interrupted run can be repeated: files are found by name, and the manifest is continued at its end. Any number of
  archivers may run at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ..archive import (
    ArchivedRange,
    Manifest,
    clear_partials,
    extend_manifest,
    found_file,
    other_cluster,
    read_manifest,
    write_file,
)
from ..columns import ARROW, Content
from ..live import ServerOrigin
from ..origin import DataLoss, Range, SourceError, cut
from ..reading import rows_of
from .copies import members_of, slowest_cursor, trim
from .fan import Progress, Runner, unseen

#: Ranges between two manifests: what has to be checked again after a driver was killed.
WAVE = 64
#: Seconds that one of several replicas may be silent.
SILENT_S = 10.0


@dataclass(frozen=True)
class RangeTask:
    """Task to archive one range; ``replicas``: ids of servers, in the order in which they are asked."""

    directory: str
    wanted: Range
    origin: ServerOrigin
    replicas: tuple[int, ...]


class Made(NamedTuple):
    """A range's file. ``written``: by this task; else it existed, and was right. ``checked``: against a second
    replica."""

    listed: ArchivedRange
    written: bool
    checked: bool


class Archived(NamedTuple):
    """Result of an archiver: ``ranges`` (``rows``, ``bytes`` of payloads, ``file_bytes``), of which ``found`` had been
    written before. The archive now holds ``first_lsn`` … ``last_lsn`` (first - 1: nothing)."""

    cluster: str
    first_lsn: int
    last_lsn: int
    ranges: int
    found: int
    rows: int
    bytes: int
    file_bytes: int
    checked: bool


class Trimmed(NamedTuple):
    """The log now begins at ``first_lsn``. ``held_by``: the cursor that prevents trimming more, or ""."""

    first_lsn: int
    held_by: str


def make_range(task: RangeTask) -> Made | None:
    """Make sure that the range's file exists. None: another archiver has archived and trimmed it. Raises
    `SourceError`."""
    directory = Path(task.directory)
    try:
        there = found_file(directory, task.wanted)
        if there is not None and there.digest == _first_content(task).digest():
            return Made(there, False, len(task.replicas) > 1)
        return _write(directory, task)
    except DataLoss:
        manifest = read_manifest(directory)
        if manifest is not None and manifest.first_lsn <= task.wanted.first and task.wanted.last < manifest.next_lsn:
            return None
        raise


def _write(directory: Path, task: RangeTask) -> Made:
    trouble: SourceError | None = None
    for replica in task.replicas:
        others = tuple(id for id in task.replicas if id != replica)

        def approve(content: Content, replica: int = replica, others: tuple[int, ...] = others) -> None:
            if others and content.digest() != _first_content(replace(task, replicas=others)).digest():
                raise Disagreement(task.wanted, replica)

        try:
            rows = rows_of(_at(task, replica), task.wanted, ARROW.names, True)
            return Made(write_file(directory, task.wanted, rows, approve), True, bool(others))
        except (DataLoss, Disagreement):
            raise
        except SourceError as error:
            trouble = error
    raise trouble or SourceError("there is no replica to read from")


class Disagreement(SourceError):
    """Two replicas hold different payloads in a range."""

    def __init__(self, wanted: Range, replica: int) -> None:
        super().__init__(
            f"ALPO_REPLICAS_DIFFER: server {replica} and another say different things of payloads {wanted.first} to"
            f" {wanted.last}; nothing of them was archived. alpo-pipeline audit --servers tells where they differ"
        )


def _first_content(task: RangeTask) -> Content:
    """Content of the first replica that answers. Raises `SourceError`, `DataLoss`."""
    trouble: SourceError | None = None
    for replica in task.replicas:
        content = Content()
        try:
            for batch in rows_of(_at(task, replica), task.wanted, ARROW.names, True):
                content.add(batch)
            return content
        except DataLoss:
            raise
        except SourceError as error:
            trouble = error
    raise trouble or SourceError("there is no replica to compare with")


def _at(task: RangeTask, replica: int) -> ServerOrigin:
    """One replica's payloads. Others take its place if it is silent, so it is waited for only so long."""
    wait_s = SILENT_S if len(task.replicas) > 1 else task.origin.timeout_s
    return replace(task.origin, read_from=str(replica), timeout_s=min(task.origin.timeout_s, wait_s))


def archive(
    origin: ServerOrigin, directory: Path, range_rows: int, upto_lsn: int | None, run: Runner,
    on_progress: Progress = unseen,
) -> Archived:
    """Archive what exists now, or up to ``upto_lsn``. ``on_progress`` counts payloads. Raises `SourceError`."""
    members = members_of(origin.servers, origin.timeout_s, origin.log)
    reachable = [member for member in members if member.reachable and member.votes and member.id is not None]
    if len(reachable) < min(len(members), 2):
        raise SourceError(
            f"only {len(reachable)} of {len(members)} servers can be read: a second is needed to check against"
        )
    cluster, replicas = reachable[0].cluster, tuple(member.id for member in reachable if member.id is not None)
    first_lsn = min(member.first_lsn for member in reachable)
    last_lsn = max(member.last_lsn for member in reachable)
    if upto_lsn is not None and upto_lsn > last_lsn:
        raise SourceError(f"the log ends at LSN {last_lsn}, and --upto is {upto_lsn}")
    last_lsn = upto_lsn or last_lsn
    manifest = _begin(directory, cluster)
    began = manifest.next_lsn if manifest.ranges else first_lsn
    made: list[Made] = []
    if began < first_lsn:
        raise SourceError(
            f"the archive ends at LSN {began - 1}, and the log begins at {first_lsn}: what is between was trimmed"
            " before it was archived. Archive the rest into another directory"
        )
    while (next_lsn := manifest.next_lsn if manifest.ranges else first_lsn) <= last_lsn:
        wave = [
            RangeTask(str(directory), wanted, replace(origin, cluster=cluster), _turned(replicas, wanted.turn))
            for wanted in cut(next_lsn, last_lsn, range_rows)[:WAVE]
        ]

        def told(done: int, all: int, next_lsn: int = next_lsn, wave: list[RangeTask] = wave) -> None:
            upto = wave[done - 1].wanted.last if done else next_lsn - 1
            on_progress(upto - began + 1, last_lsn - began + 1)

        now = [one for one in run(make_range, wave, told) if one is not None]
        made += now
        manifest = extend_manifest(directory, cluster, [one.listed for one in now])
    listed = [one.listed for one in made]
    return Archived(
        cluster, manifest.first_lsn, manifest.next_lsn - 1, len(made), sum(not one.written for one in made),
        sum(one.rows for one in listed), sum(one.bytes for one in listed), sum(one.file_bytes for one in listed),
        all(one.checked for one in made),
    )


def _begin(directory: Path, cluster: str) -> Manifest:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        clear_partials(directory)
    except OSError as error:
        raise SourceError(f"{directory}: {error.strerror}") from error
    manifest = read_manifest(directory) or Manifest(cluster)
    if manifest.cluster != cluster:
        raise other_cluster(directory, manifest.cluster, cluster)
    return manifest


def _turned(replicas: tuple[int, ...], turn: int) -> tuple[int, ...]:
    """Replicas rotated, so that neighbouring ranges begin with different ones."""
    turn %= len(replicas)
    return (*replicas[turn:], *replicas[:turn])


def trim_archived(servers: tuple[str, ...], directory: Path, timeout_s: float, log: str = "") -> Trimmed:
    """Trim a log up to what the archive holds and no cursor needs. ``log``: its name, "" for the first. Raises
    `SourceError`."""
    members = [member for member in members_of(servers, timeout_s, log) if member.reachable]
    first_lsn = max(member.first_lsn for member in members)
    manifest = read_manifest(directory)
    if manifest is None or not manifest.ranges:
        return Trimmed(first_lsn, "")
    if manifest.cluster != members[0].cluster:
        raise other_cluster(directory, manifest.cluster, members[0].cluster)
    if not manifest.first_lsn <= first_lsn <= manifest.next_lsn:
        return Trimmed(first_lsn, "")  # the archive does not cover the log's beginning
    before, held_by = manifest.next_lsn, ""
    cursor = slowest_cursor(servers, timeout_s, log)
    if cursor is not None and cursor[1] < before:
        held_by, before = cursor
    if before <= first_lsn:
        return Trimmed(first_lsn, held_by)
    for one in manifest.of(first_lsn, before - 1):
        path = directory / one.file
        if not path.is_file() or path.stat().st_size != one.file_bytes:
            raise SourceError(f"{path} is not there as the manifest says: nothing was trimmed")
    return Trimmed(trim(servers, before, timeout_s, log), held_by)
