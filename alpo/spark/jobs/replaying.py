"""Replay: the log folded into tables, one at every multiple of a number of LSNs, and one at the end.

Laws:

* Each table is made from the previous one and the log between the two; the first one from payload 1 on.
* A table is finished before the next one is begun. An interrupted replay continues from the last finished one.
* Where a replay begins and ends, and how often it is interrupted, does not change the table at an LSN.
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

#: Payloads between two tables; payloads in one reading task.
EVERY, RANGE_ROWS = 1_000_000, 65_536
#: Files of a table, folded in parallel; one file if there is one key.
PARTS = 16

#: Called with (LSNs done, of how many).
Told = Callable[[int, int], None]


@dataclass(frozen=True)
class Wanted:
    """Request for a replay: fold with ``fold`` for each key of ``key`` (None: all as one), up to ``upto_lsn`` (None:
    what exists now), into tables in ``directory``, one for every ``every`` LSNs."""

    origin: Origin
    directory: Path
    fold: Function
    key: Function | None = None
    upto_lsn: int | None = None
    every: int = EVERY


class Replayed(NamedTuple):
    """Result of a replay. ``table``: the one asked for. It continues the table at ``from_lsn`` (0: none); ``made``
    tables were made of ``payloads`` payloads, with ``folded`` calls of the fold; all 0 if the table existed."""

    table: Table
    from_lsn: int
    made: int
    payloads: int
    folded: int


def replay(wanted: Wanted, group: Grouper, on_progress: Told = lambda done, all: None) -> Replayed:
    """Make the table if it does not exist. Raises `SourceError` if it cannot be made, or a function raises."""
    extent = wanted.origin.extent()
    upto_lsn = upto_of(wanted.origin, extent, wanted.upto_lsn)
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


def upto_of(origin: Origin, extent: Extent, upto_lsn: int | None) -> int:
    """The last payload to fold: ``upto_lsn``, or the last one that exists. Raises `SourceError`."""
    last_lsn = extent.next_lsn - 1
    if not last_lsn:
        raise SourceError(f"{origin.where} holds no payloads yet")
    if upto_lsn is not None and upto_lsn > last_lsn:
        raise SourceError(f"{origin.where} ends at LSN {last_lsn}, and --upto is {upto_lsn}")
    return upto_lsn or last_lsn


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
    """Make the table at the wave's end; returns it and the number of calls of the fold."""
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
