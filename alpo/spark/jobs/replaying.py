"""Replaying: the log folded into tables, one at every multiple of so many LSNs and one at the end.

Laws:

* Each table is made of the one before it and of what the log has between the two; the first one of payload 1 on.
* A table is finished before the next one is begun. Stopped anywhere, a replay goes on from the last that is finished.
* Where a replay begins and ends, and how often, changes nothing in the table at an LSN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..origin import Extent, Origin, SourceError
from ..ranges import Range, cut
from ..reading import pinned
from .folding import FoldTask, ReadTask, fold_part, read_keyed
from .functions import Function
from .grouping import Grouper
from .tables import Identity, Part, Table, alone, clear, finish, identify, place_of, tables_in

#: Payloads between two tables, and of one task that reads.
EVERY, RANGE_ROWS = 1_000_000, 65_536
#: Files of a table, and what folds at a time; one where there is one key.
PARTS = 16

#: (LSNs done, of how many)
Told = Callable[[int, int], None]


@dataclass(frozen=True)
class Wanted:
    """Fold with ``fold`` for each key of ``key`` (None: all as one), up to ``upto_lsn`` (None: what there is now), into
    tables in ``directory``, one every ``every`` LSNs."""

    origin: Origin
    directory: Path
    fold: Function
    key: Function | None = None
    upto_lsn: int | None = None
    every: int = EVERY


class Replayed(NamedTuple):
    """``table``: the one asked for. It goes on from the table at ``from_lsn`` (0: from none); ``made`` tables were made
    of ``payloads``, with ``folded`` calls of the fold; none if it was there."""

    table: Table
    from_lsn: int
    made: int
    payloads: int
    folded: int


def replay(wanted: Wanted, group: Grouper, on_progress: Told = lambda done, all: None) -> Replayed:
    """Have the table there. Raises `SourceError` for what cannot be, or what a function raises."""
    extent = wanted.origin.extent()
    upto_lsn = _upto(wanted, extent)
    key = f"{wanted.key.name} {wanted.key.digest}" if wanted.key is not None else ""
    parts = PARTS if wanted.key is not None else 1
    with alone(wanted.directory):
        identity = Identity(extent.cluster, f"{wanted.fold.name} {wanted.fold.digest}", key, parts)
        identify(wanted.directory, identity)
        clear(wanted.directory)
        table = next((one for one in tables_in(wanted.directory) if one.lsn <= upto_lsn), None)
        from_lsn = table.lsn if table is not None else 0
        _check_begin(wanted, extent, from_lsn, upto_lsn)
        folded = made = 0
        origin = pinned(wanted.origin, extent.cluster)
        for wave in cut(from_lsn + 1, upto_lsn, wanted.every):

            def told(done: int, all: int, wave: Range = wave) -> None:
                on_progress(wave.first - from_lsn - 1 + (wave.last - wave.first + 1) * done // all, upto_lsn - from_lsn)

            table, more = _fold(wanted, identity, origin, table, wave, group, told)
            folded, made = folded + more, made + 1
    assert table is not None
    return Replayed(table, from_lsn, made, upto_lsn - from_lsn, folded)


def _upto(wanted: Wanted, extent: Extent) -> int:
    last_lsn = extent.next_lsn - 1
    if not last_lsn:
        raise SourceError(f"{wanted.origin.where} holds no payloads yet")
    if wanted.upto_lsn is not None and wanted.upto_lsn > last_lsn:
        raise SourceError(f"{wanted.origin.where} ends at LSN {last_lsn}, and --upto is {wanted.upto_lsn}")
    return wanted.upto_lsn or last_lsn


def _check_begin(wanted: Wanted, extent: Extent, from_lsn: int, upto_lsn: int) -> None:
    if from_lsn < upto_lsn and from_lsn + 1 < extent.first_lsn:
        raise SourceError(
            f"ALPO_DATA_LOSS: payloads {from_lsn + 1} to {min(upto_lsn, extent.first_lsn - 1)} are not in"
            f" {wanted.origin.where} any more, and no table reaches beyond them. If they were archived, say where:"
            " --archive DIR"
        )


def _fold(
    wanted: Wanted, identity: Identity, origin: Origin, before: Table | None, wave: Range, group: Grouper, told: Told
) -> tuple[Table, int]:
    """The table at the wave's end, and how often the fold was called."""
    place = place_of(wanted.directory, wave.last)
    task = FoldTask(wanted.fold, str(place))
    if before is not None:
        task = FoldTask(wanted.fold, str(place), str(before.directory), before.parts)
    reads = [ReadTask(origin, one, wanted.key) for one in cut(wave.first, wave.last, RANGE_ROWS)]
    results = group(reads, read_keyed, identity.parts, partial(fold_part, task), told)
    refusals = [one.refusal for one in results if one.refusal is not None]
    if refusals:
        raise SourceError(min(refusals).why)
    parts: list[Part] = [one.part for one in results if one.part is not None]
    table = Table(place, identity.cluster, wave.last, tuple(parts))
    finish(table)
    return table, sum(one.folded for one in results)
