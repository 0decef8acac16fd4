"""Audit a log: each copy by itself, all copies against each other, and against what clients were told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..origin import SourceError, cut
from .checking import DAMAGE, UNREACHABLE, CheckTask, Fault, check_copy
from .comparing import RANGE_ENTRIES, CompareTask, compare
from .copies import Copy, FileCopy, ServerCopy
from .fan import Progress, Runner, unseen
from .history import HistoryTask, Told, check_history, history_tasks
from .members import members_of

Task = CheckTask | CompareTask | HistoryTask


@dataclass(frozen=True)
class Wanted:
    """Scope of an audit: ``servers``, ``paths`` (data directories and backups), or both, all of one cluster."""

    servers: tuple[str, ...]
    paths: tuple[str, ...]
    history: tuple[Told, ...] = ()
    timeout_s: float = 30.0


class Audit(NamedTuple):
    """Result of an audit. ``compared``: entries that two or more copies vouch for. Of the history, ``told`` answers
    were checked; ``trimmed`` were not, because no copy has them any more."""

    cluster: str
    copies: tuple[Copy, ...]
    compared: int
    told: int
    trimmed: int
    faults: tuple[Fault, ...]


def audit(wanted: Wanted, run: Runner, on_progress: Progress = unseen) -> Audit:
    """Check and compare everything. Raises `SourceError` for a copy that cannot be examined."""
    copies, faults = survey(wanted)
    tasks: list[Task] = [*_check_tasks(copies), *_compare_tasks(copies)]
    trimmed = 0
    if wanted.history:
        of_history, beyond, trimmed = history_tasks(copies, wanted.history)
        tasks += of_history
        faults += beyond
    for found in run(do, tasks, on_progress):
        faults += found
    told = sum(len(task.told) for task in tasks if isinstance(task, HistoryTask))
    compared = sum(task.last_id - task.first_id + 1 for task in tasks if isinstance(task, CompareTask))
    return Audit(copies[0].cluster, copies, compared, told, trimmed, tuple(sorted(faults)))


def do(task: Task) -> list[Fault]:
    """Run one task of any kind. A copy that cannot be read is a fault of that copy."""
    if isinstance(task, CompareTask):
        return compare(task)
    try:
        return check_copy(task) if isinstance(task, CheckTask) else check_history(task)
    except SourceError as error:
        return [Fault(0, 0, 0, 0, DAMAGE, task.copy.name, str(error))]


def survey(wanted: Wanted) -> tuple[tuple[Copy, ...], list[Fault]]:
    """The copies, servers first, and faults for servers that could not be asked. Raises `SourceError`."""
    copies: list[Copy] = []
    faults: list[Fault] = []
    if wanted.servers:
        for member in members_of(wanted.servers, wanted.timeout_s):
            name = f"server {member.id}" if member.id is not None else member.address
            why = member.problem or "it does not answer"
            if member.reachable and member.id is not None:
                try:
                    copies.append(ServerCopy.of(wanted.servers, member, wanted.timeout_s))
                    continue
                except SourceError as error:
                    why = str(error)
            faults.append(Fault(0, 0, 0, 0, UNREACHABLE, name, f"{member.address} was not looked at: {why}"))
    copies += [FileCopy.of(path) for path in wanted.paths]
    for copy in copies:
        if copy.cluster != copies[0].cluster:
            raise SourceError(
                f"ALPO_OTHER_LOG: {copy.name} is of cluster {copy.cluster}, and {copies[0].name} of"
                f" {copies[0].cluster}: they are not copies of one log"
            )
    if not copies:
        raise SourceError("there is nothing to look at")
    return tuple(copies), faults


def _check_tasks(copies: Sequence[Copy]) -> list[Task]:
    """Tasks to check copies, the longest first. One server is enough: if servers differ, the comparison reports it."""
    servers = [copy for copy in copies if isinstance(copy, ServerCopy)]
    files = [copy for copy in copies if isinstance(copy, FileCopy)]
    looked_at: list[Copy] = [*files, *servers[:1]]
    return [CheckTask(copy) for copy in looked_at]


def _compare_tasks(copies: Sequence[Copy]) -> list[Task]:
    """Tasks to compare, where at least two copies vouch for anything."""
    ends = sorted((copy.end_id for copy in copies), reverse=True)
    firsts = sorted(copy.first_id for copy in copies)
    if len(copies) < 2:
        return []
    spans = cut(firsts[1], ends[1], RANGE_ENTRIES)
    return [
        CompareTask(those, span.first, span.last) for span in spans
        if len(those := tuple(c for c in copies if c.first_id <= span.last and span.first <= c.end_id)) > 1
    ]

