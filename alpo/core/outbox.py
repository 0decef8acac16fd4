"""The output of a step, gathered: what may leave at once, and what only after the step's write (R14).

Laws:

* No message leaves before the term, vote and start state that it was made under are durable: while their write is under
  way, every message waits for this step's write, which reaches the disk later.
* A step makes at most one write, which holds all hard state as it is at the step's end.
"""

from __future__ import annotations

from typing import Any

from .disk import (
    Base,
    Load,
    LoadCopy,
    LoadSnapshot,
    StartState,
    TableSave,
    Write,
)
from .entries import Entry
from .members import Identity
from .messages import AppendAnswer, Envelope, Message
from .ready import Event, Ready
from .requests import AppendRun, Code, Origin, Refused, Reply


class Outbox:
    """The output of the present step. ``me``: the sender of all messages; ``cluster``: b"" before the first start;
    ``persisted``: number of the last write on disk."""

    def __init__(self, me: Identity, cluster: bytes) -> None:
        self.me = me
        self.cluster = cluster
        self.number = 0  # number of the last write handed out
        self.persisted = 0
        self.hard_number = 0  # number of the last write with a new term, vote or start state
        self._hard_dirty = False
        #: True if the present term, vote and start state are on disk.
        self.hard_durable = True
        self._durable_replies: list[Reply] = []  # replies that leave once the hard state is on disk
        self.begin()

    def begin(self) -> None:
        """Begin a step with an empty `Ready`."""
        self.ready = Ready()
        self._needed = False
        self._expunge_from: int | None = None
        self._entries: list[Entry] = []
        self._runs: list[tuple[int, int]] = []
        self._bodies_bytes = 0
        self._start: StartState | None = None
        self._install: tuple[Base, TableSave] | None = None
        self._mended: tuple[Entry, ...] = ()

    @property
    def has_write(self) -> bool:
        """True if this step needs a write for more than marks and saves."""
        return self._needed or self._hard_dirty

    def reported(self, number: int) -> None:
        """Note that every write up to ``number`` is on disk."""
        self.persisted = max(self.persisted, number)
        self.hard_durable = not self._hard_dirty and self.hard_number <= self.persisted

    def hard_changed(self) -> None:
        """Have the next write carry a changed term or vote."""
        self._hard_dirty, self.hard_durable = True, False

    def start_changed(self, start: StartState) -> None:
        """Have the next write carry a changed start state (R29)."""
        self._start = start
        self.cluster = start.cluster
        self._hard_dirty, self.hard_durable = True, False

    def expunge(self, from_id: int) -> None:
        """Have the write delete every entry from ``from_id`` on, before it adds what is appended in this step."""
        if self._entries and self._entries[-1].id >= from_id:
            keep = max(0, from_id - self._entries[0].id)
            del self._entries[keep:]
            self._runs = [run for run in self._runs if run[1] < from_id]
            self._bodies_bytes = sum(len(entry.body) for entry in self._entries)
        self._expunge_from = from_id if self._expunge_from is None else min(self._expunge_from, from_id)
        self._needed = True

    def install(self, base: Base, table: TableSave) -> None:
        """Have the write replace everything on disk by a snapshot; what this step had to write before that is dropped.

        No message that rests on the snapshot leaves before it is on disk (R14).
        """
        self._install = (base, table)
        self._expunge_from, self._entries, self._runs, self._bodies_bytes = None, [], [], 0
        self._hard_dirty, self.hard_durable = True, False

    def mend(self, entry: Entry) -> None:
        """Have the write put ``entry`` in place of the damaged entry with its id (R31)."""
        self._mended += (entry,)
        self._needed = True

    def append(self, entries: list[Entry], runs: list[tuple[int, int]], bodies_bytes: int) -> None:
        """Have the write add entries, with ``bodies_bytes`` of bodies in all; ``runs``: (term, first id) that begin
        there."""
        self._bodies_bytes += bodies_bytes
        self._entries.extend(entries)
        self._runs.extend(runs)
        self._needed = True

    def send(self, target: Identity, message: Message) -> None:
        """Send a message at once if the present term, vote and start state are durable, else after this step's
        write."""
        envelope = Envelope(self.cluster, self.me, target, message)
        if self.hard_durable:
            self.ready.send.append(envelope)
        else:
            self.ready.send_after_write.append(envelope)

    def send_after_write(self, target: Identity, message: Message) -> None:
        """Send a message after this step's write. A later acceptance to the same leader replaces an earlier one."""
        waiting = self.ready.send_after_write
        envelope = Envelope(self.cluster, self.me, target, message)
        if waiting and type(message) is AppendAnswer:
            last = waiting[-1]
            if last.target == target and type(last.message) is AppendAnswer and last.message.ok and message.ok:
                waiting[-1] = envelope
                return
        waiting.append(envelope)

    def reply(self, reply: Reply) -> None:
        self.ready.replies.append(reply)

    def reply_when_durable(self, reply: Reply) -> None:
        """Reply once the present term, vote and start state are on disk."""
        self._durable_replies.append(reply)

    def refuse(self, origin: Origin, code: Code, *, number: int = 0, leader: int = 0, detail: str = "") -> None:
        """Refuse a request that is not an append."""
        self.ready.replies.append(Refused(origin, "", 0, 0, code, number, leader, detail))

    def refuse_run(self, run: AppendRun, code: Code, *, leader: int = 0) -> None:
        """Refuse all appends of ``run``."""
        self.ready.replies.append(Refused(run.origin, run.client, run.serial, len(run.bodies), code, leader=leader))

    def load(self, load: Load) -> None:
        self.ready.loads.append(load)

    def load_snapshot(self, wanted: LoadSnapshot) -> None:
        self.ready.snapshots.append(wanted)

    def load_copy(self, wanted: LoadCopy) -> None:
        self.ready.copies.append(wanted)

    def event(self, name: str, **fields: Any) -> None:
        """Add a line for the log."""
        self.ready.events.append(Event(name, fields))

    def finish(
        self, term: int, vote: int, guaranteed_id: int, fully_replicated_id: int, table: TableSave | None,
        base: Base | None = None,
    ) -> Ready:
        """Close the step: returns its `Ready`, with a write if one is needed. ``table``: the save to write; ``base``:
        the base to clean up to."""
        ready = self.ready
        if self._durable_replies and self.hard_durable:
            ready.replies += self._durable_replies
            self._durable_replies = []
        # Messages that wait for an earlier write may wait for one of this step instead: writes are durable in order.
        install = None
        if self._install is not None:
            install, table = self._install
        if self._needed or self._hard_dirty or ready.send_after_write or base is not None or table is not None:
            self.number += 1
            if self._hard_dirty:
                self.hard_number = self.number
                self._hard_dirty = False
            ready.write = Write(
                self.number, term, vote, self._expunge_from, self._entries, self._runs,
                guaranteed_id, fully_replicated_id, self._start, table,
                self._bodies_bytes, base, install, self._mended,
            )
        return ready
