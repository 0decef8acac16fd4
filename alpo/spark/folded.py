"""The fold of a log's payloads into what is replicated in it, as of any LSN: its state (`alpo.state`), or a machine of
the user's own (`alpo.rsm`). Independent of Spark.

Laws:

* The fold is one pass over the payloads in the order of the log. Beside the machine itself only a page of them is in
  memory.
* Nothing is guessed: if the beginning is gone and no snapshot stands for it, a payload is missing, or one is in a newer
  format or of another machine, the fold ends with an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple

import pyarrow as pa

from alpo.errors import AlpoError
from alpo.rsm.errors import Diverged, NewerFormat, NewerVersion, WrongMachine
from alpo.rsm.kind import Kind
from alpo.rsm.loading import Uploads
from alpo.rsm.machine import Outcome
from alpo.rsm.parts import M
from alpo.state.folder import KIND

from .origin import DataLoss, Extent, Origin, Range, SourceError
from .reading import rows_of
from .states import State

#: Columns of the log that a fold looks at.
_READ = ("lsn", "time", "term", "payload")
#: Words that name what ends a fold, beside what is missing.
_WORDS: dict[type[AlpoError], str] = {
    NewerFormat: "ALPO_NEWER_FORMAT", NewerVersion: "ALPO_NEWER_VERSION", WrongMachine: "ALPO_OTHER_MACHINE",
    Diverged: "ALPO_DIVERGED",
}

#: Called with the LSN that was folded last.
Told = Callable[[int], None]


class Folded(NamedTuple, Generic[M]):
    """A machine as of an LSN. The fold began with the snapshot as of ``from_lsn`` (0: with nothing), and took
    ``payloads`` payloads, of which ``own`` are the machine's."""

    machine: M
    from_lsn: int
    payloads: int
    own: int


def state_at(origin: Origin, extent: Extent, lsn: int, told: Told = lambda lsn: None) -> State:
    """The state as of ``lsn``, which the origin holds. Raises `SourceError`."""
    return State(*folded_at(KIND, origin, extent, lsn, told))


def upto_of(origin: Origin, extent: Extent, upto_lsn: int | None) -> int:
    """The last payload to fold: ``upto_lsn``, or the last one that exists. Raises `SourceError`."""
    last_lsn = extent.next_lsn - 1
    if not last_lsn:
        raise SourceError(f"{origin.where} holds no payloads yet")
    if upto_lsn is not None and upto_lsn > last_lsn:
        raise SourceError(f"{origin.where} ends at LSN {last_lsn}, and --upto is {upto_lsn}")
    return upto_lsn or last_lsn


def folded_at(
    kind: Kind[M], origin: Origin, extent: Extent, lsn: int, told: Told = lambda lsn: None
) -> Folded[M]:
    """The machine as of ``lsn``, which the origin holds. Raises `SourceError`."""
    try:
        return _folded_at(kind, origin, extent, lsn, told)
    except tuple(_WORDS) as error:
        raise SourceError(f"{_WORDS[type(error)]}: {error}") from error


def _folded_at(kind: Kind[M], origin: Origin, extent: Extent, lsn: int, told: Told) -> Folded[M]:
    while True:
        try:
            machine = _beginning(kind, origin, extent, lsn)
            from_lsn = machine.lsn
            own = _fold(machine, origin, lsn, told)
            break
        except DataLoss as loss:
            now = origin.extent()
            if now.first_lsn <= extent.first_lsn:
                raise SourceError(
                    f"ALPO_DATA_LOSS: payloads {loss.first_lsn} to {loss.last_lsn} are not in {loss.where} any more"
                ) from loss
            extent = now  # trimmed while it was read: a later snapshot is whole by now
    if not machine.founded:
        noun = kind.noun
        raise SourceError(f"ALPO_NO_{noun.upper()}: {origin.where} holds no {noun} up to LSN {lsn}")
    return Folded(machine, from_lsn, lsn - from_lsn, own)


def _beginning(kind: Kind[M], origin: Origin, extent: Extent, lsn: int) -> M:
    """The machine to begin with: an empty one, or that of the first whole snapshot. Raises `SourceError`."""
    first_lsn, noun = extent.first_lsn, kind.noun
    if first_lsn == 1:
        return kind.machine()
    if lsn < first_lsn:
        raise _begins_late(origin, first_lsn, f"the {noun} as of LSN {lsn} was asked for")
    machine = _first_snapshot(kind, origin, Range(first_lsn, extent.next_lsn - 1, 0))
    if machine is None:
        raise _begins_late(origin, first_lsn, f"holds no whole snapshot of a {noun}")
    if machine.lsn > lsn:
        why = f"its first snapshot of the {noun} is as of LSN {machine.lsn}, not {lsn}"
        raise _begins_late(origin, first_lsn, why)
    return machine


def _begins_late(origin: Origin, first_lsn: int, why: str) -> SourceError:
    return SourceError(
        f"ALPO_DATA_LOSS: {origin.where} begins at LSN {first_lsn}, and {why}. If what came before was archived, give"
        " the archive too (option archivePath, or --archive DIR)"
    )


def _first_snapshot(kind: Kind[M], origin: Origin, within: Range) -> M | None:
    """The machine of the first whole snapshot in a range. Raises `SourceError`."""
    with Uploads(kind) as uploads:
        for batch in rows_of(origin, within, ("lsn", "payload"), True):
            for at, payload in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                whole = uploads.take(at, payload)
                if whole is not None:
                    upload, end = whole
                    for _ in uploads.thaw(upload, end):
                        pass  # the pauses are for other tasks, and there are none here
                    if upload.machine is not None:
                        return upload.machine
                    uploads.forget(upload)
    return None


def _fold(machine: M, origin: Origin, lsn: int, told: Told) -> int:
    """Fold what follows up to ``lsn``; returns the number of payloads that were the machine's. Raises `SourceError`,
    and what ends the folding of a process."""
    own = 0
    apply, foreign, newer, founded = machine.apply, Outcome.FOREIGN, Outcome.NEWER, Outcome.FOUNDED
    for batch in rows_of(origin, Range(machine.lsn + 1, lsn, 0), _READ, True):
        lsns, times, terms, payloads = batch.columns
        for at, time_us, term, payload in zip(
            lsns.to_pylist(), times.cast(pa.int64()).to_pylist(), terms.to_pylist(), payloads.to_pylist(), strict=True
        ):
            result = apply(at, time_us // 1000, payload, term)
            outcome = result.outcome
            if outcome is newer:
                raise machine.newer(result)
            if outcome is founded:
                machine.need(b"")
            own += outcome is not foreign
        told(machine.lsn)
    return own
