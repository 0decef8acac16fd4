"""A planned handover: leadership moves without an election timeout (R28).

Laws:

* While one is under way the leader takes no appends; the heir is told to stand once it holds all that there is.
* A server that is leaving never resumes; one that only hands over does so when nothing happens for T.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .inputs import Origin, Transfer
from .messages import HandOver
from .ranks import State
from .ready import Code, HandedOver
from .replication import Progress

if TYPE_CHECKING:
    from .replica import Replica

STAY_S = 5.0  # how long a leader stays for the others' sake, at most


class Handing:
    """A handover under way. ``wanted``: the only heir, for ``origin``, who asked for it; 0: this server is leaving, and
    whoever is best is the heir."""

    def __init__(self, replica: Replica, wanted: int = 0, origin: Origin = None) -> None:
        self._r = replica
        self.leaving = wanted == 0
        self._wanted = wanted
        self._origin = origin
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
        if not self.leaving:
            self._advance_transfer()
            return False
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
        self._tell()
        # Nobody to lead after us (all are leaving, perhaps): with nothing in flight there is nothing to stay for.
        return self._target is None and r.now_s >= self._heir_by_s and r.guaranteed_id == r.log.last_id

    def _tell(self) -> None:
        r, target = self._r, self._target
        if target is not None and not self._told and target.match_id == r.log.last_id == r.guaranteed_id:
            self._told = True
            r.out.send(target.who, HandOver(r.term))
            r.out.event("handing_over", term=r.term, to=target.who.id)

    def _choose(self) -> None:
        """The best heir not tried yet; then the next."""
        r = self._r
        fit = heirs(r)
        untried = [p for p in fit if p.who.id not in self._tried]
        if not untried:
            self._tried.clear()
            untried = fit
        self._target = untried[0] if untried else None
        self._told = False
        wait_s = r.cfg.election_timeout_s if self._target else r.cfg.heartbeat_s
        self._try_next_s = r.now_s + wait_s
        if self._target is not None:
            self._tried.append(self._target.who.id)

    # -- on request -------------------------------------------------------------------------------------

    def _advance_transfer(self) -> None:
        r = self._r
        if r.leadership is None or r.term != self._led_term:
            if r.leader_id and r.term > self._led_term:
                r.out.reply(HandedOver(self._origin, r.leader_id, r.term))
                r.handing = None
            elif r.now_s >= self._ends_s:
                self.give_up("leadership was given up, and nobody is known to lead yet")
            return
        if self._target is None:
            self._target = next((p for p in heirs(r) if p.who.id == self._wanted), None)
            self._try_next_s = r.now_s + r.cfg.election_timeout_s
        if self._target is None:
            self.give_up(f"server {self._wanted} has not been heard of lately, or is stopping")
            return
        self._tell()
        if r.now_s >= self._try_next_s:
            self.give_up(f"server {self._wanted} did not take over within {r.cfg.election_timeout_s:g} s")

    def give_up(self, why: str) -> None:
        """Nothing comes of it: whoever asked is told, and the leader resumes."""
        r = self._r
        assert not self.leaving
        r.out.refuse(self._origin, Code.CANNOT_CHANGE, leader=r.leader_id, detail=why)
        r.handing = None


def heirs(r: Replica) -> list[Progress]:
    """The voters heard within 2h that are not stopping: the highest accepted id first, then priority."""
    assert r.leadership is not None

    def order(peer: Progress) -> tuple[int, int, int]:
        member = r.members.latest.get(peer.who.id)
        return peer.match_id, member.priority if member else 0, peer.who.id

    fit = [p for p in r.leadership.heard_within(2 * r.cfg.heartbeat_s) if not p.stopping]
    return sorted(fit, key=order, reverse=True)


def leave_if_removed(r: Replica) -> None:
    """A leader that is removed leads until that entry is guaranteed; then the best of the others takes over."""
    if r.leadership is None or r.members.i_vote or r.members.latest_id > r.guaranteed_id:
        return
    best = next(iter(heirs(r)), None)
    if best is not None:
        r.out.send(best.who, HandOver(r.term))
    r.become_passive()


def transfer(r: Replica, request: Transfer) -> None:
    """An operator wants another leader. Refused with what is wrong."""
    member = r.members.latest.get(request.target)
    if not r.serving.serves:
        r.serving.not_leader(request.origin)
    elif request.target == r.me.id:
        r.reads.ask(request)  # only who is known to lead now may say that it does (R25)
    elif member is None or not r.members.latest.is_voter(member.identity):
        r.out.refuse(request.origin, Code.CANNOT_CHANGE, detail=f"server {request.target} is not a voting member")
    else:
        r.handing = Handing(r, request.target, request.origin)


def stop(r: Replica) -> None:
    """This server is leaving; a handover on request under way gives way."""
    if r.handing is not None and not r.handing.leaving:
        r.handing.give_up("the server is stopping")
    if r.handing is None:
        r.handing = Handing(r)
