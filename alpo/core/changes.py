"""The leader's work on the member list (R27, R28, R30).

Laws:

* No MEMBERS entry before the last one, and an entry of our own term, are guaranteed (M16, N3). It changes one member by
  one step.
* A voter is taken out only after a round that a majority of the voters who remain has answered; a learner becomes a
  voter only after it caught up, and a round begun after that was accepted by it and answered by as many voters as the
  new majority needs (N2; waived when there is one voter). A member in doubt (R31) proves nothing.
* A lost disk is two entries: the new incarnation comes in as a LEARNER, its predecessor retired (N1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .entries import Kind
from .inputs import ChangeMember, MemberStep
from .members import Identity, Member, MemberList, Role
from .membership import members_body
from .newcomers import Newcomers
from .ready import Code, MembersChanged
from .replication import Progress

if TYPE_CHECKING:
    from .replica import Replica

PATIENCE = 10  # election timeouts that an operator's change may take before its entry


class CatchUp(NamedTuple):
    """How far the promotion of a learner is: the round under way, what it must have accepted, when this is over."""

    who: Identity
    round: int
    upto_id: int
    final: bool
    ends_s: float


class Changes:
    """One reign's changes of the list. A new one is made for every reign."""

    def __init__(self, replica: Replica) -> None:
        self._r = replica
        self.newcomers = Newcomers(replica, self)
        #: The operator's change whose entry is still to come.
        self.pending: ChangeMember | None = None
        self._pending_ends_s = 0.0
        self._found: Identity | None = None  # who answered where the pending one should be
        self._lost: dict[int, Identity] = {}  # id -> who answers in its place
        self._round: tuple[Member, int, float] | None = None  # for a removal: the member as it shall be, round, end
        self._catch_up: CatchUp | None = None
        #: Some member may be elsewhere than the list says.
        self.addresses_changed = True

    @property
    def may_change(self) -> bool:
        """N3 and M16."""
        r = self._r
        assert r.leadership is not None
        return r.leadership.first_id <= r.guaranteed_id >= r.members.latest_id

    def deadline_s(self) -> float:
        """Within h while anything is under way: with other members a leader steps that often anyway."""
        busy = self.pending is not None or self.newcomers.sending or self._r.members.latest.learners
        return self._r.now_s + self._r.cfg.heartbeat_s if busy else float("inf")

    def advance(self) -> None:
        """Whatever can be done now; at most one entry."""
        self.newcomers.tick()
        if self.pending is not None and self._r.now_s >= self._pending_ends_s:
            self._give_up(self._waits_for())
        busy = self.pending is not None or self._lost or self.addresses_changed or self._r.members.latest.learners
        if not busy or not self.may_change:
            return
        if self.pending is not None:
            self._advance_pending()
        elif self._lost:
            self._replace_lost()
        elif self._r.members.latest.learners:
            self._promote()
        if self.addresses_changed and self.may_change and self._round is None:
            self._correct_address()

    def lose(self) -> None:
        """No longer leader; an entry that was appended is answered with all others."""
        if self.pending is not None:
            self._r.serving.not_leader(self.pending.origin)
            self.pending = None

    # -- an operator's change ---------------------------------------------------------------------------

    def request(self, request: ChangeMember, *, confirmed: bool = False) -> None:
        """Begin it, or refuse it with what is wrong. ``confirmed``: a round begun since has shown that we lead: only
        then is it said that it is done already (R25)."""
        r = self._r
        listed = r.members.latest.get(request.id)
        there = listed is not None and listed.role != Role.GONE
        if self.pending is not None and self.pending._replace(origin=request.origin) == request:
            return self._ask_again(request)
        if self._done_already(request, listed):
            if not confirmed:
                return r.reads.ask(request)
            return r.serving.answer_once_guaranteed(
                MembersChanged(request.origin, r.members.latest.to_plain()), r.members.latest_id
            )
        why = self._objection(request, listed if there else None)
        if why:
            return r.out.refuse(request.origin, Code.CANNOT_CHANGE, detail=why)
        self.pending = request
        self._pending_ends_s = r.now_s + PATIENCE * r.cfg.election_timeout_s
        self._found = None
        self._round = None

    def _ask_again(self, request: ChangeMember) -> None:
        """The change under way is asked for once more, most often by one whose connection broke: that one is answered.
        """
        assert self.pending is not None
        self._r.out.refuse(self.pending.origin, Code.CANNOT_CHANGE, detail="it was asked for again, by another request")
        self.pending = request

    def _done_already(self, request: ChangeMember, listed: Member | None) -> bool:
        """Somebody asks again whose answer was lost."""
        if listed is None or self.pending is not None:
            return False
        if request.step is MemberStep.REMOVE:
            return listed.role is Role.GONE
        if request.step is MemberStep.REPLACE:  # or it was found there before anybody asked
            return listed.address == request.address and (
                listed.role is Role.LEARNER or (listed.retired != () and self._lives(listed))
            )
        return listed.role is not Role.GONE and listed.address == request.address

    def _lives(self, listed: Member) -> bool:
        """True if this very incarnation was heard lately, so that its disk is not a lost one."""
        r = self._r
        assert r.leadership is not None
        peer = r.leadership.progress(listed.identity)
        return peer is not None and peer.really_heard and r.now_s - peer.heard_s < 2 * r.cfg.heartbeat_s

    def _objection(self, request: ChangeMember, listed: Member | None) -> str:
        latest = self._r.members.latest
        if self.pending is not None or not self.may_change:
            which = self.under_way or "its entry is not guaranteed yet"
            return f"another change of the member list is under way ({which}): try again once it is done"
        if request.step is MemberStep.ADD and listed is not None:
            return f"server {request.id} is a member already, at {listed.address}"
        if request.step is not MemberStep.ADD and listed is None:
            return f"server {request.id} is not a member"
        other = next((m for m in latest.replicas if m.address == request.address and m.id != request.id), None)
        if request.step is not MemberStep.REMOVE and other is not None:
            return f"{request.address} is the address of server {other.id}"
        if listed is not None and latest.voters == (listed,):
            return f"server {request.id} is the only voting member"
        return ""

    @property
    def under_way(self) -> str:
        """The operator's change whose entry is still to come, and what it waits for, as users read it; "" for none."""
        pending = self.pending
        if pending is None:
            return ""
        where = f" at {pending.address}" if pending.address else ""
        return f"to {pending.step.name.lower()} server {pending.id}{where}: {self._waits_for()}"

    @property
    def asked_id(self) -> int:
        """The server that is to be found at `asked_address`; 0: none."""
        return self.pending.id if self.pending is not None and self.pending.address else 0

    def asked_address(self, id: int) -> str:
        """Where a server is to be found that is being added or replaced; "" for any other."""
        pending = self.pending
        return pending.address if pending is not None and pending.id == id else ""

    def found(self, who: Identity, started: bool) -> None:
        """A server answers, of an incarnation that the list does not hold."""
        pending, member = self.pending, self._r.members.latest.get(who.id)
        if pending is not None and pending.id == who.id and pending.step is not MemberStep.REMOVE:
            if started:
                self._give_up(f"the server at {pending.address} belongs to a cluster already: give it an empty "
                              "data directory")
            elif member is None or who.incarnation not in member.retired:
                self._found = who
        elif (
            not started and member is not None and member.role is not Role.GONE
            and who.incarnation not in member.retired and self._lost.get(who.id) != who
        ):
            self._lost[who.id] = who
            self._r.out.event("lost_disk", member=who.id, answers_as=who.incarnation.hex())

    def _advance_pending(self) -> None:
        pending, latest = self.pending, self._r.members.latest
        assert pending is not None
        listed = latest.get(pending.id)
        if pending.step is MemberStep.REMOVE:
            assert listed is not None
            wanted = listed._replace(role=Role.GONE, retired=_retired(listed))
        elif self._found is None:
            self.pending = None
            if self._done_already(pending, listed):  # found there as a lost disk's successor, before it was asked for
                self._r.reads.ask(pending)
            else:
                self.pending = pending
            return
        else:
            stays = listed is not None and listed.role is not Role.GONE
            priority = listed.priority if listed is not None and stays else pending.priority
            retired = _retired(listed) if listed is not None else ()
            wanted = Member(
                pending.id, pending.address, priority, self._found.incarnation, Role.LEARNER, retired
            )
        if self._may_take_out(wanted):
            self.pending = None
            self._append(wanted)
            self._r.serving.answer_once_guaranteed(
                MembersChanged(pending.origin, self._r.members.latest.to_plain()), self._r.members.latest_id
            )

    def _waits_for(self) -> str:
        pending = self.pending
        assert pending is not None
        if self._round is not None:
            return f"no majority of the servers that would remain without server {pending.id} answers"
        if pending.step is not MemberStep.REMOVE and self._found is None:
            return f"no server {pending.id} that waits to join answers at {pending.address}"
        return "the change before it is not guaranteed yet"

    def _give_up(self, why: str) -> None:
        assert self.pending is not None
        self._r.out.refuse(self.pending.origin, Code.CANNOT_CHANGE, detail=why)
        self.pending = None
        self._round = None

    # -- lost disks (R30) -------------------------------------------------------------------------------

    def _replace_lost(self) -> None:
        """X has been silent for 2h, and Y answers where it should be."""
        r = self._r
        assert r.leadership is not None
        for id, who in list(self._lost.items()):
            listed, peer = r.members.latest.get(id), r.leadership.peers.get(id)
            if listed is None or peer is None or listed.identity == who or who.incarnation in listed.retired:
                del self._lost[id]
            elif r.now_s - peer.heard_s < 2 * r.cfg.heartbeat_s:
                del self._lost[id]  # it lives; whoever answered in its place may answer again
            else:
                retired = _retired(listed)
                wanted = listed._replace(incarnation=who.incarnation, role=Role.LEARNER, retired=retired)
                if self._may_take_out(wanted):
                    del self._lost[id]
                    self._append(wanted)
                return

    # -- rounds -----------------------------------------------------------------------------------------

    def _may_take_out(self, wanted: Member) -> bool:
        """Has the majority that remains answered a round? Begins one if none is under way."""
        r = self._r
        listed = r.members.latest.get(wanted.id)
        if listed is None or listed.role is not Role.VOTER:
            return True
        if self._round is None or self._round[0] != wanted or r.now_s >= self._round[2]:
            self._round = (wanted, r.reads.begin_round(), r.now_s + r.cfg.election_timeout_s)
        remain = r.members.latest.with_member(wanted)
        return self._answered(self._round[1], remain) >= remain.majority

    def _answered(self, round: int, among: MemberList) -> int:
        """How many voters of ``among`` have answered ``round``, we ourselves included."""
        r = self._r
        assert r.leadership is not None
        peers = [r.leadership.peers.get(m.id) for m in among.voters if m.id != r.me.id]
        sound = [peer for peer in peers if peer is not None and not peer.doubted_round]
        return among.is_voter(r.me) + sum(peer.round >= round for peer in sound)

    # -- learners become voters -------------------------------------------------------------------------

    def _promote(self) -> None:
        """First a round, and what was guaranteed then; once the learner has that, another round."""
        r = self._r
        assert r.leadership is not None
        now = self._catch_up
        if now is None or not r.members.latest.holds(now.who) or r.now_s >= now.ends_s:
            now = self._catch_up = self._begin_catch_up()
        if now is None:
            return
        peer = r.leadership.peers[now.who.id]
        if peer.match_id < now.upto_id or not peer.matched or peer.doubted_round:
            return
        if not now.final:
            ends_s = r.now_s + r.cfg.election_timeout_s
            now = self._catch_up = now._replace(round=r.reads.begin_round(), final=True, ends_s=ends_s)
        if peer.accepted_round < now.round:
            return
        latest = r.members.latest
        listed = latest.get(now.who.id)
        assert listed is not None
        wanted = listed._replace(role=Role.VOTER)
        need = latest.with_member(wanted).majority
        if len(latest.voters) == 1 or self._answered(now.round, latest) >= need:
            self._catch_up = None
            self._append(wanted)

    def _begin_catch_up(self) -> CatchUp | None:
        """With the learner that is furthest."""
        r = self._r
        assert r.leadership is not None
        peers = [r.leadership.peers[m.id] for m in r.members.latest.learners]
        fit = [p for p in peers if p.matched and p.match_id >= r.members.latest_id and not p.doubted_round]
        if not fit:
            return None
        peer: Progress = max(fit, key=lambda p: p.match_id)
        ends_s = r.now_s + r.cfg.election_timeout_s
        return CatchUp(peer.who, r.reads.begin_round(), max(r.guaranteed_id, r.members.latest_id), False, ends_s)

    # -- the entries ------------------------------------------------------------------------------------

    def _append(self, wanted: Member) -> None:
        r = self._r
        self._round = None
        old = r.members.latest.get(wanted.id)
        r.out.event(
            "member_change", member=wanted.id, role=wanted.role.name, address=wanted.address,
            before=old.role.name if old is not None else "none",
        )
        r.append_special(Kind.MEMBERS, members_body(r.members.latest.with_member(wanted)))

    def _correct_address(self) -> None:
        """Addresses are hints; the leader writes down where it sees a member, one change at a time."""
        r = self._r
        for member in r.members.latest.replicas:
            address = r.cfg.address if member.id == r.me.id else r.seen_addresses.get(member.identity, "")
            if address and address != member.address:
                r.out.event("address_change", member=member.id, old=member.address, new=address)
                changed = r.members.latest.with_member(member._replace(address=address))
                r.append_special(Kind.MEMBERS, members_body(changed))
                return
        self.addresses_changed = False


def _retired(member: Member) -> tuple[bytes, ...]:
    """Its retired incarnations once the present one is among them."""
    if member.incarnation in member.retired:
        return member.retired
    return (*member.retired, member.incarnation)
