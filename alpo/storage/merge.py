"""Several `Write`s as one transaction: what is left to do when they are applied in their order.

All deletions of the result come before all of its insertions, so an entry that one write appends and a later
one expunges never reaches the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from alpo.core.disk import Base, StartState, TableSave, Write
from alpo.core.entries import Entry

from .interface import StoreError


class Merged(NamedTuple):
    """First, ``mended`` entries take the place of what is on disk at their ids, and all gives way to the base
    ``install`` (None: it stays). Then delete from ``expunge_from`` on (None: nothing), add ``entries`` and ``runs``,
    and clean up to ``base`` (None: nothing); what that covers was on disk before these writes.

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
    base: Base | None
    install: Base | None
    mended: list[Entry]


def merge(writes: Sequence[Write], base_id: int, last_id: int) -> Merged:
    """Merge ``writes``, at least one, onto a log that was cleaned up to ``base_id`` and ends at ``last_id``.

    Raises `StoreError` when entries do not follow on, or a base is not of this log: a gap must never reach the disk.
    """
    first = next((at for at in range(len(writes) - 1, -1, -1) if writes[at].install is not None), None)
    install = None
    starts = [w.start for w in writes if w.start is not None]
    if first is not None:  # nothing that came before is left
        writes = writes[first:]
        install = writes[0].install
        assert install is not None
        base_id = last_id = install.id
    if len(writes) == 1:
        write = writes[0]
        expunge, entries, runs = write.expunge_from, write.entries, write.runs
        tables, bodies_bytes = [write.table] if write.table is not None else [], write.bodies_bytes
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
        tables = [w.table for w in writes if w.table is not None]
        bodies_bytes = sum([w.bodies_bytes for w in writes])
    if expunge is not None and expunge <= base_id:
        raise StoreError(f"entry {expunge} was cleaned (up to {base_id}) and cannot be expunged")
    kept = last_id if expunge is None else min(last_id, expunge - 1)
    if entries:
        begin, last = entries[0].id, entries[-1].id
        if begin != kept + 1 or last - begin + 1 != len(entries):
            raise StoreError(f"entries {begin} … {last} ({len(entries)}) do not follow entry {kept}")
        kept = last
    base = next((w.base for w in reversed(writes) if w.base is not None), None)
    if base is not None and not base_id < base.id <= kept:
        raise StoreError(f"a base at {base.id} is not of the log from {base_id + 1} to {kept}")
    start = starts[-1] if starts else None
    mended = [entry for write in writes for entry in write.mended if base_id < entry.id <= last_id]
    return Merged(expunge, entries, runs, writes[-1], start, tables, kept, bodies_bytes, base, install, mended)
