"""Gathers what one step asks for, and decides what may leave before which write (R14).

Laws:

* A message never leaves before the term and vote that it speaks from are durable: while such a write is under
  way every message waits for a write of this step, which comes after it.
* At most one write a step; it holds all hard state as it stands at the step's end.
"""

from __future__ import annotations

from typing import Any

from .disk import (
    Base,
    Load,
    StartState,
    TableSave,
    Write,
)
from .entries import Entry
from .inputs import Origin
from .members import Identity
from .messages import AppendAnswer, Envelope, Message
from .ready import (
    Code,
    Event,
    Ready,
    Refused,
    Reply,
)


class Outbox:
    """One step's output. ``me`` speaks; ``cluster`` is b"" before the first start."""

    def __init__(self, me: Identity, first_number: int = 0) -> None:
        self.me = me
        self.cluster = b""
        self.number = first_number  # of the last write handed out
        self.persisted = first_number
        self._hard_number = first_number  # the last write that carried new hard state
        self._hard_dirty = False
        self.begin()

    def begin(self) -> None:
        """A new step."""
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
    def hard_durable(self) -> bool:
        """Are the present term, vote and start state on disk?"""
        return not self._hard_dirty and self._hard_number <= self.persisted

    @property
    def has_write(self) -> bool:
        return self._needed or self._hard_dirty

    def hard_changed(self) -> None:
        """Term or vote have changed."""
        self._hard_dirty = True

    def start_changed(self, start: StartState) -> None:
        """The first start has come to another state (R29)."""
        self._start = start
        self._hard_dirty = True

    def expunge(self, from_id: int) -> None:
        """Expunge on disk too; before whatever is appended in this step."""
        if self._entries and self._entries[-1].id >= from_id:
            keep = max(0, from_id - self._entries[0].id)
            del self._entries[keep:]
            self._runs = [run for run in self._runs if run[1] < from_id]
            self._bodies_bytes = sum(len(entry.body) for entry in self._entries)
        self._expunge_from = from_id if self._expunge_from is None else min(self._expunge_from, from_id)
        self._needed = True

    def install(self, base: Base, table: TableSave) -> None:
        """A base takes the place of everything on disk; of all else in this step only what comes after it counts.
        Nothing that rests on it leaves before it is there (R14)."""
        self._install = (base, table)
        self._expunge_from, self._entries, self._runs, self._bodies_bytes = None, [], [], 0
        self._hard_dirty = True

    def mend(self, entry: Entry) -> None:
        """It takes the place of the damaged one on disk (R31)."""
        self._mended += (entry,)
        self._needed = True

    def append(self, entries: list[Entry], runs: list[tuple[int, int]], bodies_bytes: int) -> None:
        """Entries to be written, ``bodies_bytes`` in all."""
        self._bodies_bytes += bodies_bytes
        if self._entries:
            self._entries.extend(entries)
        else:
            self._entries = list(entries)
        self._runs.extend(runs)
        self._needed = True

    def send(self, target: Identity, message: Message) -> None:
        """At once, if the hard state that it speaks from is durable; else after this step's write."""
        envelope = Envelope(self.cluster, self.me, target, message)
        if self.hard_durable:
            self.ready.send.append(envelope)
        else:
            self.ready.send_after_write.append(envelope)

    def send_after_write(self, target: Identity, message: Message) -> None:
        """After this step's write. A later acceptance to the same leader replaces an earlier one."""
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

    def refuse(self, origin: Origin, code: Code, *, number: int = 0, leader: int = 0, detail: str = "") -> None:
        """Refuse a request that is not an append."""
        self.ready.replies.append(Refused(origin, "", 0, 0, code, number, leader, detail))

    def load(self, load: Load) -> None:
        self.ready.loads.append(load)

    def event(self, name: str, **fields: Any) -> None:
        """A line for the log."""
        self.ready.events.append(Event(name, fields))

    def finish(
        self, term: int, vote: int, guaranteed_id: int, fully_replicated_id: int, table: TableSave | None,
        base: Base | None = None,
    ) -> Ready:
        """Close the step: number its write, if it needs one."""
        ready = self.ready
        # What still waits on earlier hard state rides on a write of this step: writes are durable in order.
        install = None
        if self._install is not None:
            install, table = self._install
        if self.has_write or ready.send_after_write or base is not None or table is not None:
            self.number += 1
            if self._hard_dirty:
                self._hard_number = self.number
                self._hard_dirty = False
            ready.write = Write(
                self.number, term, vote, self._expunge_from, self._entries, self._runs,
                guaranteed_id, fully_replicated_id, self._start, table,
                self._bodies_bytes, base, install, self._mended,
            )
        return ready
