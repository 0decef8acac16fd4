"""Planned handovers: leadership moves to another server, the heir, without an election timeout (R28).

Laws:

* While a handover is under way the leader takes no appends. The heir is told to stand for election once it has accepted
  the whole log, and all of it is guaranteed.
* A server that is leaving never takes appends again. A server that hands over on an operator's request, or by itself
  (`disk_space`), takes them again if the heir does not lead within an election timeout.
"""

from __future__ import annotations

from .messages import HandOver
from .ranks import State
from .replication import Progress, Replication, next_in_turn
from .requests import Code, HandedOver, Origin
from .shared import Shared

STAY_S = 5.0  # longest time that a leaving server stays to help its heir


class Handover:
    """A handover under way. ``wanted``: the id of the only heir that ``origin`` asked for; 0: this server is leaving,
    and the best of the others is the heir. ``why``: the reason of a server that hands over to ``wanted`` by itself
    (``origin`` is None then, and no reply is due); "" for any other handover."""

    def __init__(self, shared: Shared, wanted: int, origin: Origin, why: str = "") -> None:
        self._r = shared
        self._why = {"why": why} if why else {}
        self.leaving = wanted == 0
        self._wanted = wanted
        self._origin = origin
        self._led_term = shared.term if shared.state is State.LEADER else 0
        self._ends_s = shared.now_s + STAY_S
        # a leaver that found no heir by then may go; a silent majority would depose it only later (R15)
        self._heir_by_s = shared.now_s + 3 * shared.cfg.heartbeat_s
        self._tried: list[int] = []
        self._target: Progress | None = None
        self._told = False
        self._try_next_s = 0.0

    @property
    def target_id(self) -> int:
        """The id of the server that is to lead next; 0 if there is none yet."""
        return self._target.who.id if self._target else 0

    def deadline_s(self) -> float:
        if self._r.state is not State.LEADER:
            return self._ends_s  # a server that does not lead acts on messages alone
        return min(self._ends_s, max(self._try_next_s, self._r.now_s + self._r.cfg.heartbeat_s / 10))

    def advance(self, replication: Replication | None) -> bool:
        """Take the next step; returns True once the server may leave. ``replication``: None if this server does not
        lead."""
        if not self.leaving:
            self._advance_transfer(replication)
            return False
        r = self._r
        if r.now_s >= self._ends_s:
            return True
        if replication is None:
            # The leaver stays, votes and accepts: with another server down the next leader needs it.
            return not self._led_term or (
                r.guaranteed_id > 0 and (r.log.term_at(r.guaranteed_id) or 0) > self._led_term
            )
        if not r.members.other_voters():
            return r.guaranteed_id == r.log.last_id
        target = self._target
        leaves = target is not None and (target.stopping or r.now_s - target.heard_s > r.cfg.lately_s)
        if target is None or leaves or r.now_s >= self._try_next_s:
            self._choose(replication)
        self._tell()
        # No heir (perhaps all servers are leaving): with nothing in flight there is nothing to stay for.
        return self._target is None and r.now_s >= self._heir_by_s and r.guaranteed_id == r.log.last_id

    def _tell(self) -> None:
        """Tell the heir to stand for election, once, when it holds the whole log and all of it is guaranteed."""
        r, target = self._r, self._target
        if target is not None and not self._told and target.match_id == r.log.last_id == r.guaranteed_id:
            self._told = True
            r.out.send(target.who, HandOver(r.term))
            r.out.event("handing_over", term=r.term, to=target.who.id, **self._why)

    def _choose(self, replication: Replication) -> None:
        """Choose the best heir that was not tried yet, for an election timeout; look again in a heartbeat if there is
        none.
        """
        r = self._r
        self._target = next_in_turn(replication.heirs(), self._tried)
        self._told = False
        wait_s = r.cfg.election_timeout_s if self._target else r.cfg.heartbeat_s
        self._try_next_s = r.now_s + wait_s

    # -- on request, or by itself ------------------------------------------------------------------------

    def _advance_transfer(self, replication: Replication | None) -> None:
        """Take the next step of a handover to one heir; it ends, and is answered, once another server leads."""
        r = self._r
        if replication is None or r.term != self._led_term:
            if r.leader_id and r.term > self._led_term:
                if not self._why:
                    r.out.reply(HandedOver(self._origin, r.leader_id, r.term))
                r.end_handover()
            elif r.now_s >= self._ends_s:
                self.give_up("leadership was given up, and nobody is known to lead yet")
            return
        if self._target is None:
            self._target = next((p for p in replication.heirs() if p.who.id == self._wanted), None)
            self._try_next_s = r.now_s + r.cfg.election_timeout_s
        if self._target is None:
            self.give_up(f"server {self._wanted} has not been heard of lately, or is stopping")
            return
        self._tell()
        if r.now_s >= self._try_next_s:
            self.give_up(f"server {self._wanted} did not take over within {r.cfg.election_timeout_s:g} s")

    def give_up(self, why: str) -> None:
        """End a handover to one heir without result: refuse the operator's request, if there is one; if this server
        leads, it takes appends again."""
        r = self._r
        assert not self.leaving
        if not self._why:
            r.out.refuse(self._origin, Code.CANNOT_CHANGE, leader=r.leader_id, detail=why)
        r.end_handover()
