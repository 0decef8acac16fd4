"""The fold of a log's payloads into its replicated state (`alpo.state`), as of any LSN. Independent of Spark.

Laws:

* The fold is one pass over the payloads in the order of the log. Beside the state itself only a page of them is in
  memory.
* A state is never guessed: if its beginning is gone and no snapshot stands for it, a payload is missing, or one is in a
  newer format, the fold ends with an error.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from alpo.rsm.loading import Uploads
from alpo.rsm.machine import Outcome
from alpo.state.codec import FORMAT
from alpo.state.folder import KIND
from alpo.state.machine import Machine

from .origin import DataLoss, Extent, Origin, Range, SourceError
from .reading import rows_of
from .states import State

#: Columns of the log that a fold looks at.
_READ = ("lsn", "time", "payload")

#: Called with the LSN that was folded last.
Told = Callable[[int], None]


def state_at(origin: Origin, extent: Extent, lsn: int, told: Told = lambda lsn: None) -> State:
    """The state as of ``lsn``, which the origin holds. Raises `SourceError`."""
    while True:
        try:
            machine = _beginning(origin, extent, lsn)
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
        raise SourceError(f"ALPO_NO_STATE: {origin.where} holds no state up to LSN {lsn}")
    return State(machine, from_lsn, lsn - from_lsn, own)


def _beginning(origin: Origin, extent: Extent, lsn: int) -> Machine:
    """The machine to begin with: an empty one, or that of the first whole snapshot. Raises `SourceError`."""
    first_lsn = extent.first_lsn
    if first_lsn == 1:
        return Machine()
    if lsn < first_lsn:
        raise _begins_late(origin, first_lsn, f"the state as of LSN {lsn} was asked for")
    machine = _first_snapshot(origin, Range(first_lsn, extent.next_lsn - 1, 0))
    if machine is None:
        raise _begins_late(origin, first_lsn, "holds no whole snapshot of a state")
    if machine.lsn > lsn:
        raise _begins_late(origin, first_lsn, f"its first snapshot of the state is as of LSN {machine.lsn}, not {lsn}")
    return machine


def _begins_late(origin: Origin, first_lsn: int, why: str) -> SourceError:
    return SourceError(
        f"ALPO_DATA_LOSS: {origin.where} begins at LSN {first_lsn}, and {why}. If what came before was archived, give"
        " the archive too (option archivePath, or --archive DIR)"
    )


def _first_snapshot(origin: Origin, within: Range) -> Machine | None:
    """The machine of the first whole snapshot in a range. Raises `SourceError`."""
    with Uploads(KIND) as uploads:
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


def _fold(machine: Machine, origin: Origin, lsn: int, told: Told) -> int:
    """Fold what follows up to ``lsn``; returns the number of payloads that were the state's. Raises `SourceError`."""
    own = 0
    apply, foreign, newer = machine.apply, Outcome.FOREIGN, Outcome.NEWER
    for batch in rows_of(origin, Range(machine.lsn + 1, lsn, 0), _READ, True):
        lsns, times, payloads = batch.columns
        for at, time_us, payload in zip(
            lsns.to_pylist(), times.cast(pa.int64()).to_pylist(), payloads.to_pylist(), strict=True
        ):
            result = apply(at, time_us // 1000, payload)
            if result.outcome is newer:
                raise SourceError(
                    f"ALPO_NEWER_FORMAT: payload {at} is in format {result.have} of the state; this release knows"
                    f" {FORMAT}: use a newer release"
                )
            own += result.outcome is not foreign
        told(machine.lsn)
    return own
