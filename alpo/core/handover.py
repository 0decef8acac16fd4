"""A planned handover: leaving without an election timeout (R28)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .messages import HandOver
from .replication import Progress
from .state import State

if TYPE_CHECKING:
    from .replica import Replica

STAY_S = 5.0  # how long a leaver stays for the others' sake, at most


class Handing:
    """A server that is leaving. Made when it is told to stop; it never resumes."""

    def __init__(self, replica: Replica) -> None:
        self._r = replica
        self._led_term = replica.term if replica.state is State.LEADER else 0
        self._ends_s = replica.now_s + STAY_S
        self._heir_by_s = replica.now_s + 3 * replica.cfg.heartbeat_s  # before R15 would end the reign
        self._tried: list[int] = []
        self._target: Progress | None = None
        self._told = False
        self._try_next_s = 0.0

    @property
    def target_id(self) -> int:
        """Who is to lead next; 0 if nobody is known."""
        return self._target.who.id if self._target else 0

    def deadline_s(self) -> float:
        if self._r.leadership is None:
            return self._ends_s  # what it waits for comes as a message
        return min(self._ends_s, max(self._try_next_s, self._r.now_s + self._r.cfg.heartbeat_s / 10))

    def advance(self) -> bool:
        """Take the next step; True once the server may leave."""
        r = self._r
        if r.now_s >= self._ends_s:
            return True
        if r.leadership is None:
            # It stays, votes and accepts: with one follower down the next leader needs it.
            return not self._led_term or (
                r.guaranteed_id > 0 and (r.log.term_at(r.guaranteed_id) or 0) > self._led_term
            )
        if not r.members.other_voters():
            return r.guaranteed_id == r.log.last_id
        silent = self._target is not None and r.now_s - self._target.heard_s > 2 * r.cfg.heartbeat_s
        if self._target is None or silent or r.now_s >= self._try_next_s:
            self._choose()
        target = self._target
        if target is not None and not self._told and target.match_id == r.log.last_id == r.guaranteed_id:
            self._told = True
            r.out.send(target.who, HandOver(r.term))
            r.out.event("handing_over", term=r.term, to=target.who.id)
        # Nobody to lead after us (all are leaving, perhaps): with nothing in flight there is nothing to stay for.
        return target is None and r.now_s >= self._heir_by_s and r.guaranteed_id == r.log.last_id

    def _choose(self) -> None:
        """The voter heard within 2h with the highest accepted id, then priority, not itself stopping; then the next."""
        r = self._r
        assert r.leadership is not None
        fit = [p for p in r.leadership.heard_within(2 * r.cfg.heartbeat_s) if not p.stopping]
        untried = [p for p in fit if p.who.id not in self._tried]
        if not untried:
            self._tried.clear()
            untried = fit

        def order(peer: Progress) -> tuple[int, int, int]:
            member = r.members.latest.get(peer.who.id)
            return peer.match_id, member.priority if member else 0, peer.who.id

        self._target = max(untried, key=order, default=None)
        self._told = False
        wait_s = r.cfg.election_timeout_s if self._target else r.cfg.heartbeat_s
        self._try_next_s = r.now_s + wait_s
        if self._target is not None:
            self._tried.append(self._target.who.id)
