"""Damaged entries on our own disk (R31).

Laws:

* A damaged entry is not absent: the log keeps its place, its term and its rank, and so does the server its vote.
* While any is known, nothing from the first of them on is counted as accepted, no vote is given or asked for, and
  nothing is cleaned. A leader in that state has another one lead (`room`).
* The others are asked for their copies, one entry and one member at a time, T for each; of the answers to a question
  one is taken. A copy counts if it has the id
  and the term that our log has there, and matches its own checksums: by R12 there is only one such entry. It is taken
  for mended once the shell has read it back.
* What another member has cleaned was fully replicated, and nobody will ever need it of us: it binds no more.
* A cluster of one has nobody to have an entry back from and nobody to mislead: there it is an alarm, and nothing else.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .disk import LoadCopy
from .entries import DamagedEntry, verify
from .inputs import CopyLoaded, DamageFound
from .members import Identity
from .messages import CopyAnswer, CopyRequest
from .ranks import State

if TYPE_CHECKING:
    from .replica import Replica


class Damage:
    """``ids``: all that are known, ascending. ``ask_s``: when a copy is to be asked for (again)."""

    def __init__(self, replica: Replica) -> None:
        self._r = replica
        self.ids: tuple[int, ...] = ()
        self.ask_s = math.inf
        self._gone_id = 0  # another member has cleaned up to here
        self._turn = 0
        self._copied: dict[int, int] = {}  # entry -> whose copy is on its way to our disk, not read back yet

    def heard(self, found: DamageFound) -> None:
        """The shell has looked at our disk."""
        r = self._r
        fresh = sorted(set(found.ids) - set(self.ids))
        gone = set(self.ids) - set(found.ids)
        self.ids = found.ids
        for id in sorted(gone & self._copied.keys()):
            r.out.event("damage_mended", id=id, copy_of=self._copied[id])
        self._copied.clear()
        if fresh:
            r.out.event("damage_found", ids=fresh[:20], count=len(fresh))
        if found.ids:
            if self.binds and r.state is State.CANDIDATE:
                r.become_passive()
            r.election.round = None
        else:
            r.out.event("damage_gone")
        self.ask_s = r.now_s if self._first else math.inf

    @property
    def _first(self) -> int:
        """The first damaged entry that somebody else may need; 0: none."""
        if self.ids and self.ids[0] > self._gone_id:
            return self.ids[0]
        return next((id for id in self.ids if id > self._gone_id), 0)

    @property
    def binds(self) -> bool:
        """Must this server hold back?"""
        return bool(self._first and self._r.members.other_voters())

    def sound(self, id: int) -> int:
        """Of what is accepted up to ``id`` the part that may be counted."""
        return min(id, self._first - 1) if self.binds else id

    # -- having them back -------------------------------------------------------------------------------

    def tick(self) -> None:
        """Ask the next member, when it is time."""
        r = self._r
        if r.now_s < self.ask_s:
            return
        others = r.members.other_replicas()
        id = self._first
        term = r.log.term_at(id) if r.log.base_id < id <= r.log.stable_id else None
        if not id or not others:
            self.ask_s = math.inf
            return
        self.ask_s = r.now_s + r.cfg.election_timeout_s
        self._copied.clear()  # what came in answer to the last question has not helped
        if term is not None:  # else what lies there is about to be replaced
            self._turn += 1
            r.out.send(others[self._turn % len(others)].identity, CopyRequest(id, term))

    def on_request(self, sender: Identity, request: CopyRequest) -> None:
        """Somebody else's entry is damaged."""
        log = self._r.log
        if 0 < request.id <= log.base_id:
            self._r.out.send(sender, CopyAnswer(request.id, log.base_id, []))
        elif request.id <= log.stable_id and log.term_at(request.id) == request.entry_term:
            self._r.out.ready.copies.append(LoadCopy(sender, request.id))

    def loaded(self, copy: CopyLoaded) -> None:
        """The shell has read what was asked of us."""
        self._r.out.send(copy.peer, CopyAnswer(copy.entry.id, self._r.log.base_id, [copy.entry]))

    def on_answer(self, sender: Identity, answer: CopyAnswer) -> None:
        """A copy has come, or word that there is none any more."""
        r = self._r
        if answer.id not in self.ids or any(entry.id != answer.id for entry in answer.entries):
            return
        if not answer.entries:
            if answer.base_id < answer.id:
                return  # no member says so
            self._gone_id = max(self._gone_id, answer.base_id)
            r.out.event("damage_cleaned_elsewhere", member=sender.id, upto_id=answer.base_id)
            self.ask_s = r.now_s if self._first else math.inf
            return
        entry = answer.entries[0]
        try:
            verify(entry)
        except DamagedEntry:
            return
        if entry.id in self._copied or not r.log.base_id < entry.id <= r.log.stable_id:
            return
        if r.log.term_at(entry.id) == entry.term:
            r.out.mend(entry)
            self._copied[entry.id] = sender.id
