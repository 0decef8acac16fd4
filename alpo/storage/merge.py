"""Several `Write`s as one transaction: what is left to do when they are applied in their order.

All deletions of the result come before all of its insertions, so an entry that one write appends and a later
one expunges never reaches the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from alpo.core.entries import Entry
from alpo.core.ready import StartState, TableSave, Write

from .interface import StoreError


class Merged(NamedTuple):
    """First delete from ``expunge_from`` on (None: nothing), then add ``entries`` and ``runs``.

    Term, vote and marks are the last write's; ``start`` is the last one given, ``tables`` all of them in order.
    """

    expunge_from: int | None
    entries: list[Entry]
    runs: list[tuple[int, int]]
    last: Write
    start: StartState | None
    tables: list[TableSave]
    last_id: int
    bodies_bytes: int


def merge(writes: Sequence[Write], last_id: int) -> Merged:
    """Merge ``writes``, at least one, onto a log that ends at ``last_id``.

    Raises `StoreError` when entries do not follow on: a gap must never reach the disk.
    """
    if len(writes) == 1:
        write = writes[0]
        expunge, entries, runs = write.expunge_from, write.entries, write.runs
    else:
        expunge, entries, runs = None, [], []
        for write in writes:
            x = write.expunge_from
            if x is not None:
                expunge = x if expunge is None else min(expunge, x)
                if entries:
                    del entries[max(0, x - entries[0].id) :]
                runs = [run for run in runs if run[1] < x]
            entries.extend(write.entries)
            runs.extend(write.runs)
    kept = last_id if expunge is None else min(last_id, expunge - 1)
    if entries:
        first, last = entries[0].id, entries[-1].id
        if first != kept + 1 or last - first + 1 != len(entries):
            raise StoreError(f"entries {first} … {last} ({len(entries)}) do not follow entry {kept}")
        kept = last
    return Merged(
        expunge, entries, runs, writes[-1],
        next((w.start for w in reversed(writes) if w.start is not None), None),
        [w.table for w in writes if w.table is not None],
        kept,
        sum(w.bodies_bytes for w in writes),
    )
