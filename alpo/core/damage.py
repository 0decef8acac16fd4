"""Damaged entries on our own disk (R31).

Laws:

* A damaged entry is not absent: the log keeps its id and term, so this server's rank and its vote stay as they were.
* While damage binds (`Damage.binds`), entries from the first damaged one on do not count as accepted, no vote is given
  or asked for, and nothing is cleaned. A leader with damage hands over, or gives up (`disk_space`).
* Other members are asked for a copy, one entry and one member at a time, an election timeout for each; of the answers
  for one entry the first is taken. A copy counts if it has the id and the term that our log has there, and matches its
  own checksums: by R12 there is only one such entry. It counts as mended once the shell has read it back.
* An entry that another member has cleaned was fully replicated: nobody will need our copy, so its damage binds no more.
* In a cluster with no other voter no copy can be had, and nobody can be misled: damage is reported there, and does not
  bind.
"""

from __future__ import annotations

import math

from .disk import LoadCopy
from .election import Election
from .entries import DamagedEntry, verify
from .members import Identity
from .messages import CopyAnswer, CopyRequest
from .ranks import State
from .ready import CopyLoaded, DamageFound
from .shared import Shared


class Damage:
    """Damaged entries of this server. ``ids``: those known, ascending. ``ask_s``: the time to ask for a copy next,
    monotonic seconds; infinity: never."""

    def __init__(self, shared: Shared, election: Election) -> None:
        self._r = shared
        self._election = election
        self.ids: tuple[int, ...] = ()
        #: The first damaged entry that another member may need; 0: none.
        self.first_id = 0
        self.ask_s = math.inf
        self._gone_id = 0  # highest id up to which some other member has cleaned
        self._turn = 0
        # entry id -> the member whose copy is being written in its place, and was not read back yet
        self._copied: dict[int, int] = {}

    def heard(self, found: DamageFound) -> None:
        """Take the damage that the shell found on our disk now; a candidate whom it binds becomes passive."""
        r = self._r
        fresh = sorted(set(found.ids) - set(self.ids))
        gone = set(self.ids) - set(found.ids)
        self.ids = found.ids
        self._find_first()
        for id in sorted(gone & self._copied.keys()):
            r.out.event("damage_mended", id=id, copy_of=self._copied[id])
        self._copied.clear()
        if fresh:
            r.out.event("damage_found", ids=fresh[:20], count=len(fresh))
        if found.ids:
            if self.binds and r.state is State.CANDIDATE:
                r.become_passive()
            self._election.end_canvass()
        else:
            r.out.event("damage_gone")
        self.ask_s = r.now_s if self.first_id else math.inf

    def _find_first(self) -> None:
        """Find the first damaged entry that another member may need. Call when the damage or what is gone changed."""
        self.first_id = next((id for id in self.ids if id > self._gone_id), 0)

    @property
    def binds(self) -> bool:
        """True while damage on its disk forbids this server to vote, to stand for election and to clean."""
        return self.first_id != 0 and bool(self._r.members.other_voters())

    def sound(self, id: int) -> int:
        """``id``, or the id before the first damaged entry if that binds: entries up to it may count as accepted."""
        return min(id, self.first_id - 1) if self.first_id and self.binds else id

    # -- mending ----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Ask the next member for a copy of the first damaged entry, when it is time."""
        r = self._r
        if r.now_s < self.ask_s:
            return
        others = r.members.other_replicas()
        id = self.first_id
        term = r.log.term_at(id) if r.log.base_id < id <= r.log.stable_id else None
        if not id or not others:
            self.ask_s = math.inf
            return
        self.ask_s = r.now_s + r.cfg.election_timeout_s
        self._copied.clear()  # the last copy did not mend the entry
        if term is not None:  # None: a snapshot is about to replace the entry
            self._turn += 1
            r.out.send(others[self._turn % len(others)].identity, CopyRequest(id, term))

    def moving(self, who: Identity, at_s: float) -> None:
        """Note that part of a message of ``who`` came at ``at_s``: if it was asked for a copy, that may be the
        answer."""
        others = self._r.members.other_replicas()
        if self.first_id and others and who == others[self._turn % len(others)].identity:
            self.ask_s = max(self.ask_s, at_s + self._r.cfg.election_timeout_s)

    def on_request(self, sender: Identity, request: CopyRequest) -> None:
        """Answer a member that asks for a copy of an entry, damaged on its disk; do nothing if we do not hold it."""
        log = self._r.log
        if 0 < request.id <= log.base_id:
            self._r.out.send(sender, CopyAnswer(request.id, log.base_id, []))
        elif request.id <= log.stable_id and log.term_at(request.id) == request.entry_term:
            self._r.out.load_copy(LoadCopy(sender, request.id))

    def loaded(self, copy: CopyLoaded) -> None:
        """Send the copy that the shell has read from our disk."""
        self._r.out.send(copy.peer, CopyAnswer(copy.entry.id, self._r.log.base_id, [copy.entry]))

    def on_answer(self, sender: Identity, answer: CopyAnswer) -> None:
        """Have a copy written in place of the damaged entry, or note that ``sender`` has cleaned the entry."""
        r = self._r
        if answer.id not in self.ids or any(entry.id != answer.id for entry in answer.entries):
            return
        if not answer.entries:
            if answer.base_id < answer.id:
                return  # the sender is no member: ignored
            self._gone_id = max(self._gone_id, answer.base_id)
            self._find_first()
            r.out.event("damage_cleaned_elsewhere", member=sender.id, upto_id=answer.base_id)
            self.ask_s = r.now_s if self.first_id else math.inf
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
