"""The passive side of the log: matching, expunging, accepting (R12, R14, R16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .entries import Entry
from .invariants import InvariantBroken, StoreWentBack
from .members import Identity
from .messages import AppendAnswer, AppendRequest, WentBack
from .ranks import State

if TYPE_CHECKING:
    from .replica import Replica


class Acceptance:
    """Takes append requests. ``matched_id``: the last id known to equal the leader's in this term."""

    def __init__(self, replica: Replica) -> None:
        self._r = replica
        self.matched_id = 0

    def new_term(self) -> None:
        self.matched_id = 0

    def on_request(self, sender: Identity, request: AppendRequest) -> None:
        r = self._r
        if request.term < r.term:  # R1: a zombie is told the term, nothing else
            r.out.send(sender, self._refusal(request))
            return
        if request.term > r.term:
            r.adopt_term(request.term)
        if r.state is State.LEADER:
            r.out.event("second_leader", term=r.term, sender=sender.id)
            return
        r.hear_leader(sender)
        if r.members.i_vote and request.fully_replicated_id > r.log.last_id:
            held_id = request.fully_replicated_id
            raise StoreWentBack(f"the log ends at entry {r.log.last_id}, and this disk is known to have held {held_id}")
        if request.prev_id < r.log.base_id:
            request = self._above_base(request)
        if r.log.term_at(request.prev_id) != request.prev_term:
            r.out.send(sender, self._refusal(request))
            return
        self._take(sender, request)

    def on_went_back(self, sender: Identity, told: WentBack) -> None:
        """The leader has proof that we no longer hold what we acknowledged to it."""
        r = self._r
        if told.term == r.term and r.leader == sender and r.members.i_vote and told.held_id > r.log.last_id:
            raise StoreWentBack(f"the log ends at entry {r.log.last_id}, and this disk has acknowledged {told.held_id}")

    def _above_base(self, request: AppendRequest) -> AppendRequest:
        """What lies in our base is guaranteed: it matches (R12). The request as if it began there."""
        log = self._r.log
        entries = request.entries[log.base_id - request.prev_id :]
        return request._replace(prev_id=log.base_id, prev_term=log.base_term, entries=entries)

    def _take(self, sender: Identity, request: AppendRequest) -> None:
        r = self._r
        entries = request.entries
        wrote = False
        upto = request.prev_id + len(entries)
        if entries:
            if entries[0].id != request.prev_id + 1 or entries[-1].id != upto:
                return  # not a run of entries: as good as not sent
            fresh = self._fresh(entries)
            if fresh and not r.disks.takes_entries:
                upto, fresh = fresh[0].id - 1, []
            if fresh:
                if fresh[0].id <= r.log.last_id:
                    self._expunge(fresh[0].id)
                r.append_entries(fresh)
                wrote = True
        self.matched_id = max(self.matched_id, upto)
        r.set_guaranteed(min(request.guaranteed_id, self.matched_id))
        r.fully_replicated_id = max(r.fully_replicated_id, min(request.fully_replicated_id, r.guaranteed_id))
        if wrote:
            r.out.send_after_write(sender, self._acceptance(request, upto))
        elif request.round or entries:
            # Of all that matches, not of this request alone: an acceptance that was lost on its way is told again.
            r.out.send(sender, self._acceptance(request, min(self.matched_id, r.log.stable_id)))

    def _fresh(self, entries: list[Entry]) -> list[Entry]:
        """What we do not hold yet: from the first entry whose term differs from ours at its id."""
        log = self._r.log
        if entries[0].id == log.last_id + 1:
            return entries
        for at, entry in enumerate(entries):
            if log.term_at(entry.id) != entry.term:
                return entries[at:]
        return []

    def _expunge(self, from_id: int) -> None:
        r = self._r
        if from_id <= r.guaranteed_id:
            raise InvariantBroken(f"asked to expunge entry {from_id}, but {r.guaranteed_id} is guaranteed")
        r.out.event("expunge", from_id=from_id, last_id=r.log.last_id, term=r.term, guaranteed_id=r.guaranteed_id)
        r.expunge(from_id)

    def _acceptance(self, request: AppendRequest, match_id: int) -> AppendAnswer:
        r = self._r
        return AppendAnswer(
            r.term, True, r.damage.sound(match_id), request.prev_id, self.matched_id, 0, 0, request.round, r.wall_ms,
            r.stopping, r.disks.room,
        )

    def _refusal(self, request: AppendRequest) -> AppendAnswer:
        r = self._r
        term = first_id = 0
        if r.log.base_id < request.prev_id <= r.log.last_id:
            term, first_id = r.log.run_at(request.prev_id)
        round = request.round if request.term == r.term else 0
        return AppendAnswer(
            r.term, False, 0, request.prev_id, r.log.last_id, term, first_id, round, r.wall_ms, r.stopping,
            r.disks.room,
        )
