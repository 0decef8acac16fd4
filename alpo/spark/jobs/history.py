"""Compare what clients were told of their appends with the log.

A history is JSON lines as `alpo append --json` prints them: ``client``, ``serial``, ``lsn`` of the first payload, and
``count`` (1 if missing). Other keys are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from ..origin import Extent, SourceError
from .checking import HISTORY, Fault
from .copies import Copy

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
