"""The passive server's side of replication: matching, expunging and accepting entries (R12, R14, R16)."""

from __future__ import annotations

from .damage import Damage
from .disk_space import Disks
from .entries import Entry
from .members import Identity
from .messages import AppendAnswer, AppendRequest, WentBack
from .ranks import State
from .shared import InvariantBroken, Shared, StoreWentBack


class Acceptance:
    """Takes append requests and answers them. ``matched_id``: the last id up to which our log is known to equal that of
    this term's leader; 0: none."""

    def __init__(self, shared: Shared, disks: Disks, damage: Damage) -> None:
        self._r = shared
        self._disks = disks
        self._damage = damage
        self.matched_id = 0

    def new_term(self) -> None:
        """Forget how far the log matched: that was the log of the last term's leader."""
        self.matched_id = 0

    def installed(self, base_id: int) -> None:
        """Note that a snapshot of this term's leader has replaced the log up to ``base_id``."""
        self.matched_id = base_id

    def on_request(self, sender: Identity, request: AppendRequest) -> None:
        """Take the entries and marks of a leader, and answer. Raises `StoreWentBack` if our disk has lost entries,
        `InvariantBroken` if a guaranteed entry would be expunged."""
        r = self._r
        if request.term < r.term:  # a deposed leader gets the term and nothing else (R1)
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

    def is_known(self, sender: Identity, request: AppendRequest) -> bool:
        """True if a request says nothing that this server does not know, and is to be answered by an acceptance."""
        r, log = self._r, self._r.log
        return (
            r.state is State.PASSIVE and r.leader == sender and request.term == r.term
            and request.prev_id == log.last_id == self.matched_id and request.prev_term == log.last_term
            and request.guaranteed_id <= r.guaranteed_id and request.fully_replicated_id <= r.fully_replicated_id
            and request.round > 0 and not request.entries
        )

    def on_went_back(self, sender: Identity, told: WentBack) -> None:
        """Raise `StoreWentBack` if our leader has proof that our disk lost entries that it acknowledged (R31)."""
        r = self._r
        if told.term == r.term and r.leader == sender and r.members.i_vote and told.held_id > r.log.last_id:
            raise StoreWentBack(f"the log ends at entry {r.log.last_id}, and this disk has acknowledged {told.held_id}")

    def _above_base(self, request: AppendRequest) -> AppendRequest:
        """The request without its entries up to our base: we have cleaned those, so they are guaranteed and match
        (R12)."""
        log = self._r.log
        entries = request.entries[log.base_id - request.prev_id :]
        return request._replace(prev_id=log.base_id, prev_term=log.base_term, entries=entries)

    def _take(self, sender: Identity, request: AppendRequest) -> None:
        """Accept a request that matches: expunge what contradicts it, append what is new, move the marks, answer."""
        r = self._r
        entries = request.entries
        wrote = False
        upto = request.prev_id + len(entries)
        if entries:
            if entries[0].id != request.prev_id + 1 or entries[-1].id != upto:
                return  # ids with gaps, which no leader sends: ignored
            fresh = entries if entries[0].id == r.log.last_id + 1 else self._fresh(entries)
            if fresh and not self._disks.takes_entries:
                upto, fresh = fresh[0].id - 1, []
            if fresh:
                if fresh[0].id <= r.log.last_id:
                    self._expunge(fresh[0].id)
                r.append_entries(fresh)
                r.log_clock.heard(r.now_s, r.wall_ms, r.log.last_time_ms)
                wrote = True
        self.matched_id = max(self.matched_id, upto)
        r.set_guaranteed(min(request.guaranteed_id, self.matched_id))
        r.set_fully_replicated(request.fully_replicated_id)
        if wrote:
            r.out.send_after_write(sender, self.acceptance(request, upto))
        elif request.round or entries:
            # Acknowledge all that matches, not this request's entries alone: an earlier answer may have been lost.
            r.out.send(sender, self.acceptance(request, min(self.matched_id, r.log.stable_id)))

    def _fresh(self, entries: list[Entry]) -> list[Entry]:
        """The part of ``entries`` that this log lacks: from the first entry whose id it holds in another term, or not
        at all."""
        log = self._r.log
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

    def acceptance(self, request: AppendRequest, match_id: int) -> AppendAnswer:
        """The answer to a request that matches. All up to ``match_id`` is on disk once the answer leaves."""
        r = self._r
        sound_id = self._damage.sound(match_id) if self._damage.first_id else match_id
        written_id = match_id if sound_id < match_id else 0
        return AppendAnswer(
            r.term, True, sound_id, request.prev_id, self.matched_id, 0, written_id, request.round,
            r.wall_ms, r.stopping, self._disks.room,
        )

    def _refusal(self, request: AppendRequest) -> AppendAnswer:
        """The answer to a request that does not match: where this log ends, and the conflicting run, if any (R12)."""
        r = self._r
        term = first_id = 0
        if r.log.base_id < request.prev_id <= r.log.last_id:
            term, first_id = r.log.run_at(request.prev_id)
        round = request.round if request.term == r.term else 0
        return AppendAnswer(
            r.term, False, 0, request.prev_id, r.log.last_id, term, first_id, round, r.wall_ms, r.stopping,
            self._disks.room,
        )
