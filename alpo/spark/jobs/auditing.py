"""Audit a log: each copy by itself, all copies against each other, and against what clients were told.

A history of what clients were told is JSON lines as `alpo append --json` prints them: ``client``, ``serial``, ``lsn``
of the first payload, and ``count`` (1 if missing). Other keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from ..origin import Extent, SourceError, cut
from .checking import DAMAGE, HISTORY, RANGE_ENTRIES, UNREACHABLE, CheckTask, CompareTask, Fault, check_copy, compare
from .copies import Copy, FileCopy, ServerCopy, members_of
from .fan import Progress, Runner, unseen

#: Payloads in one task.
RANGE_LSNS = 65_536


class Told(NamedTuple):
    """An answer to a client: its append ``serial``, of ``payloads`` payloads, is at ``lsn``."""

    lsn: int
    payloads: int
    client: str
    serial: int


@dataclass(frozen=True)
class HistoryTask:
    """Task to compare answers with a copy that has all their LSNs."""

    copy: Copy
    told: tuple[Told, ...]


def read_history(path: Path) -> list[Told]:
    """Read a history; returns it in order of LSNs. Raises `SourceError`."""
    try:
        with path.open(encoding="utf-8") as lines:
            return sorted(_told(path, number, line) for number, line in enumerate(lines, 1) if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: {error}") from error


def _told(path: Path, number: int, line: str) -> Told:
    try:
        fields = json.loads(line)
        told = Told(fields["lsn"], fields.get("count", 1), fields["client"], fields["serial"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"{path}, line {number}: no answer to an append ({error!r})") from error
    if [type(value) for value in told] != [int, int, str, int] or min(told.lsn, told.payloads) < 1:
        raise SourceError(f"{path}, line {number}: no answer to an append (lsn, count, client, serial: {told})")
    return told


def history_tasks(
    copies: Sequence[Copy], history: Iterable[Told]
) -> tuple[list[HistoryTask], list[Fault], int]:
    """Divide a history into tasks. Each answer goes to the copy with the latest end that has its LSNs. Returns the
    tasks, the faults for answers beyond all copies, and the number of answers that no copy has any more. Raises
    `SourceError`."""
    extents = sorted(((copy.origin().extent(), copy) for copy in copies), key=lambda one: -one[0].next_lsn)
    inside: dict[str, list[Told]] = {copy.name: [] for copy in copies}
    beyond, trimmed = [], 0
    for told in history:
        fits = [copy for extent, copy in extents if _within(told, extent)]
        if fits:
            inside[fits[0].name].append(told)
        elif told.lsn + told.payloads > extents[0][0].next_lsn:
            beyond.append(_fault(extents[0][1], told, f"the log ends at {extents[0][0].next_lsn - 1}"))
        else:
            trimmed += 1
    return [
        HistoryTask(copy, tuple(group)) for copy in copies
        for _, group in groupby(inside[copy.name], lambda told: told.lsn // RANGE_LSNS)
    ], beyond, trimmed


def _within(told: Told, extent: Extent) -> bool:
    return extent.first_lsn <= told.lsn and told.lsn + told.payloads <= extent.next_lsn


def check_history(task: HistoryTask) -> list[Fault]:
    """Faults for answers that do not match the log. Raises `SourceError`."""
    appends = _appends(task)
    append = next(appends, None)
    faults = []
    for told in task.told:
        while append is not None and append.lsn + append.payloads <= told.lsn:
            append = next(appends, None)
        if append is None or append != told:
            there = "nothing" if append is None else f"serial {append.serial} of {append.client!r}"
            if append is not None and (append.lsn, append.payloads) != (told.lsn, told.payloads):
                there += f", LSN {append.lsn} to {append.lsn + append.payloads - 1}"
            faults.append(_fault(task.copy, told, f"{there} is there"))
    return faults


def _appends(task: HistoryTask) -> Iterator[Told]:
    """The appends that the copy holds, as they are told."""
    last = task.told[-1]
    for page in task.copy.origin().pages(task.told[0].lsn, last.lsn + last.payloads - 1, 0):
        if not any(page.steps):
            yield from map(Told, page.lsns, page.counts, page.clients, page.serials)
            continue
        for lsn, count, client, serial, step in zip(
            page.lsns, page.counts, page.clients, page.serials, page.steps, strict=True
        ):
            if step:  # a run (R32): each payload was an append, with an answer of its own
                yield from (Told(lsn + at, 1, client, serial + at) for at in range(count))
            else:
                yield Told(lsn, count, client, serial)


def _fault(copy: Copy, told: Told, why: str) -> Fault:
    what = f"client {told.client!r} was told that its serial {told.serial} is there: {why}"
    return Fault(0, 0, told.lsn, told.lsn + told.payloads - 1, HISTORY, copy.name, what)


Task = CheckTask | CompareTask | HistoryTask


@dataclass(frozen=True)
class Wanted:
    """Scope of an audit: ``servers``, ``paths`` (data directories and backups), or both, all of one log. ``log``: its
    name at the servers, "" for the first."""

    servers: tuple[str, ...]
    paths: tuple[str, ...]
    history: tuple[Told, ...] = ()
    timeout_s: float = 30.0
    log: str = ""


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
        for member in members_of(wanted.servers, wanted.timeout_s, wanted.log):
            name = f"server {member.id}" if member.id is not None else member.address
            why = member.problem or "it does not answer"
            if member.reachable and member.id is not None:
                try:
                    copies.append(ServerCopy.of(wanted.servers, member, wanted.timeout_s, wanted.log))
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
