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
from .members import Identity, Member, MemberList, Role, members_body
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
        self._heard: Identity | None = None  # the one that is listed, if that answered there since it was asked for
        self._confirming_round = 0  # the round since then that shows that we lead; 0: none yet
        self._lost: dict[int, Identity] = {}  # id -> who answers in its place
        self._round: tuple[Member, int, float] | None = None  # to take it out: the member as it shall be, round, end
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
            self._give_up(self._waits_for(advise=True))
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
            return self._done(request) if confirmed else r.reads.ask(request)
        why = self._objection(request, listed if there else None)
        if why:
            return r.out.refuse(request.origin, Code.CANNOT_CHANGE, detail=why)
        self._pending_ends_s = r.now_s + PATIENCE * r.cfg.election_timeout_s
        self._found = None
        self._round = None
        self._look_for(request)

    def _ask_again(self, request: ChangeMember) -> None:
        """The change under way is asked for once more, most often by one whose connection broke: that one is answered.
        """
        assert self.pending is not None
        self._r.out.refuse(self.pending.origin, Code.CANNOT_CHANGE, detail="it was asked for again, by another request")
        self._look_for(request)

    def _look_for(self, request: ChangeMember) -> None:
        """What the listed server said before it was asked for says nothing of its disk now, nor did a round."""
        self.pending = request
        self._heard = None
        self._confirming_round = 0
        if request.address:
            self.newcomers.ask_anew(request.id)

    def _done_already(self, request: ChangeMember, listed: Member | None) -> bool:
        """Somebody asks again whose answer was lost."""
        if listed is None or self.pending is not None:
            return False
        if request.step is MemberStep.REMOVE:
            return listed.role is Role.GONE
        if request.step is MemberStep.REPLACE:  # whether another one lives it has to say itself: see `_answered_there`
            return listed.identity == self._r.me and self._is_at(request, listed) and listed.retired != ()
        return listed.role is not Role.GONE and listed.address == request.address

    def _address(self, member: Member) -> str:
        """Where it is to be found, as it said itself if it did."""
        r = self._r
        return r.cfg.address if member.identity == r.me else r.seen_addresses.get(member.identity) or member.address

    def _is_at(self, request: ChangeMember, listed: Member | None) -> bool:
        """Is it to be replaced where it is?"""
        return listed is not None and request.step is MemberStep.REPLACE and request.address == self._address(listed)

    def _objection(self, request: ChangeMember, listed: Member | None) -> str:
        latest = self._r.members.latest
        if self.pending is not None or not (self.may_change or self._is_at(request, listed)):
            which = self.under_way or "its entry is not guaranteed yet"
            return f"another change of the member list is under way ({which}): try again once it is done"
        if request.step is MemberStep.ADD and listed is not None:
            return (
                f"server {request.id} is a member already, at {listed.address}: to put a server with an empty disk in"
                f" its place, `alpo member replace {request.id}={request.address}`"
            )
        if request.step is not MemberStep.ADD and listed is None:
            return f"server {request.id} is not a member"
        other = next((m for m in latest.replicas if m.address == request.address and m.id != request.id), None)
        if request.step is not MemberStep.REMOVE and other is not None:
            return f"{request.address} is the address of server {other.id}"
        if listed is not None and latest.voters == (listed,):
            return f"server {request.id} is the only voting member"
        if listed is not None and request.step is MemberStep.REPLACE and listed.identity == self._r.me:
            heir = next(m.id for m in latest.voters if m.id != request.id)
            leads = f"server {request.id} leads: let another server lead first (`alpo transfer {heir}`)"
            return _not_lost(request) if self._is_at(request, listed) else leads
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

    def heard(self, who: Identity) -> None:
        """A server that is listed answers a question that was asked since there is a pending change of it. If it is to
        be replaced where it is, it counts no more who answered there before."""
        pending = self.pending
        if pending is not None and pending.id == who.id and self._is_at(pending, self._r.members.latest.get(who.id)):
            self._heard = who
            self._found = self._round = None

    def found(self, who: Identity, started: bool) -> None:
        """A server answers, of an incarnation that the list does not hold."""
        pending, member = self.pending, self._r.members.latest.get(who.id)
        if pending is not None and pending.id == who.id and pending.step is not MemberStep.REMOVE:
            if started:
                self._give_up(f"the server at {pending.address} belongs to a cluster already: give it an empty "
                              "data directory")
            elif member is None or who.incarnation not in member.retired:
                self._found = who
                self._heard = None
                self._confirming_round = 0
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
            if listed is not None and listed.identity == self._heard:
                self._answered_there(listed)
            return
        else:
            stays = listed is not None and listed.role is not Role.GONE
            priority = listed.priority if listed is not None and stays else pending.priority
            retired = _retired(listed) if listed is not None else ()
            wanted = Member(
                pending.id, pending.address, priority, self._found.incarnation, Role.LEARNER, retired
            )
        if self._may_take_out(wanted):
            self._append(wanted)
            self._done(pending)

    def _answered_there(self, listed: Member) -> None:
        """Where a lost disk was to be replaced the one that is listed answers: it is not lost. If it is one that came
        in another's place, or is to, what is asked for is done; that is said after a round (R25)."""
        r, pending = self._r, self.pending
        assert pending is not None
        if not listed.retired:
            return self._give_up(_not_lost(pending))
        self._confirming_round = self._confirming_round or r.reads.begin_round()
        if self._answered(self._confirming_round, r.members.latest) >= r.members.latest.majority:
            self._done(pending)

    def _done(self, request: ChangeMember) -> None:
        r = self._r
        self.pending = None
        r.serving.answer_once_guaranteed(
            MembersChanged(request.origin, r.members.latest.to_plain()), r.members.latest_id
        )

    def _waits_for(self, *, advise: bool = False) -> str:
        pending = self.pending
        assert pending is not None
        if not self.may_change:
            return "the change before it is not guaranteed yet"
        if self._round is not None or pending.step is MemberStep.REMOVE:
            return f"no majority of the servers that would remain without server {pending.id} answers"
        if self._confirming_round:
            return "no majority has answered yet that it takes this server for the leader"
        join = f"alpod --id {pending.id} --data DIR --listen {pending.address} --join {self._r.cfg.address}"
        advice = f"; start it there: {join}" if advise else ""
        return f"no server {pending.id} that waits to join answers at {pending.address}{advice}"

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
                self._lives(id)
            elif r.now_s - peer.heard_s < 2 * r.cfg.heartbeat_s:
                self._lives(id)  # whoever answered in its place may answer again
            else:
                retired = _retired(listed)
                wanted = listed._replace(incarnation=who.incarnation, role=Role.LEARNER, retired=retired)
                if self._may_take_out(wanted):
                    del self._lost[id]
                    self._append(wanted)
                return

    def _lives(self, id: int) -> None:
        """Nobody is to be put in its place."""
        del self._lost[id]
        if self._round is not None and self._round[0].id == id:
            self._round = None

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
            address = self._address(member)
            if address != member.address:
                r.out.event("address_change", member=member.id, old=member.address, new=address)
                changed = r.members.latest.with_member(member._replace(address=address))
                r.append_special(Kind.MEMBERS, members_body(changed))
                return
        self.addresses_changed = False


def _not_lost(request: ChangeMember) -> str:
    return (
        f"server {request.id} runs at {request.address} with its own disk: to replace that disk stop the server, and "
        "start it there with an empty data directory"
    )


def _retired(member: Member) -> tuple[bytes, ...]:
    """Its retired incarnations once the present one is among them."""
    if member.incarnation in member.retired:
        return member.retired
    return (*member.retired, member.incarnation)
