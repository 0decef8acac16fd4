"""Changes of the member list, made by the leader (R27, R28, R30).

Laws:

* A MEMBERS entry is appended only once the last one, and an entry of our own term, are guaranteed (M16, N3). It
  changes one member by one step.
* A voter is taken out only after a majority of the remaining voters has answered a read round. A learner becomes a
  voter only after it caught up and accepted a later round, answered by as many voters as the new majority needs (N2;
  waived where there is one voter). Answers of a member in doubt (R31) count for nothing.
* A lost disk takes two entries: its new incarnation comes in as a LEARNER, the old one retired, then it votes (N1).
* A change that waits (for a server, or for a round) holds up no other: each goes on when it can. Where one member is to
  change in two ways, the operator's word comes first.
"""

from __future__ import annotations

from typing import NamedTuple

from .entries import Kind
from .first_start import FirstStart
from .members import Identity, Member, MemberList, Role, StartStatus, members_body
from .messages import Retired, StartAnswer
from .replication import Progress, Replication
from .requests import ChangeMember, Code, MembersChanged, MemberStep
from .serving import Reads, Serving
from .shared import Shared
from .snapshots import Newcomers

PATIENCE = 10  # election timeouts that an operator's change may wait before its entry is appended
EARLIER_MAX = 16  # earlier requests for the pending change whose refusal may wait
ADDRESS_TIMEOUTS = 10  # election timeouts between two changes of one member's address


class CatchUp(NamedTuple):
    """The promotion of learner ``who``: it must accept entry ``upto_id`` and then, if ``final``, round ``round``."""

    who: Identity
    round: int
    upto_id: int
    final: bool
    ends_s: float


class Changes:
    """The changes of the member list that one leader makes in one term; made anew for each term led."""

    def __init__(
        self, shared: Shared, replication: Replication, serving: Serving, reads: Reads, first_start: FirstStart
    ) -> None:
        self._r, self._replication, self._serving, self._reads = shared, replication, serving, reads
        self.newcomers = Newcomers(shared, replication, first_start)
        #: The operator's change whose entry is not appended yet; None if there is none.
        self.pending: ChangeMember | None = None
        self._earlier: list[ChangeMember] = []  # earlier requests for the pending change, refused at ``_refuse_s``
        self._refuse_s = 0.0
        self._pending_ends_s = 0.0
        self._found: Identity | None = None  # the newcomer that answered at the pending change's address
        self._heard: Identity | None = None  # the listed member, if it answered since the operator asked
        self._confirming_round = 0  # a read round begun since then, whose answers show that we lead; 0: none
        self._lost: dict[int, Identity] = {}  # member id -> the server that answers in its place
        self._told_lost: dict[int, Identity] = {}  # member id -> the latest such server that an event reported
        # member id -> (member as the entry would have it, read round, deadline) of a voter that is to be taken out
        self._rounds: dict[int, tuple[Member, int, float]] = {}
        self._catch_up: CatchUp | None = None
        #: True if some member may have another address than the list says.
        self.addresses_changed = True
        #: True if nothing was under way, nor due later, when `advance` looked last.
        self.idle = False
        self._next_address_s: dict[int, float] = {}  # member id -> time from which its address may be changed again

    @property
    def may_change(self) -> bool:
        """True if the last MEMBERS entry, and an entry of our own term, are guaranteed (N3, M16)."""
        r = self._r
        return self._replication.first_id <= r.guaranteed_id >= r.members.latest_id

    def deadline_s(self) -> float:
        """The time of the next step, monotonic seconds: in a heartbeat while a change is under way, when an address may
        be changed again, or an earlier request is refused; else infinity."""
        r = self._r
        busy = self.pending is not None or self.newcomers.transfers or r.members.latest.learners
        due_s = [r.now_s + r.cfg.heartbeat_s] if busy else []
        if self.addresses_changed:
            due_s += [each_s for each_s in self._next_address_s.values() if each_s > r.now_s]
        if self._earlier:
            due_s.append(max(self._refuse_s, r.now_s))
        return min(due_s, default=float("inf"))

    def advance(self) -> None:
        """Append the next MEMBERS entry if it may be now; give up an operator's change that has waited too long."""
        newcomers = self.newcomers
        if self._r.now_s >= newcomers.ask_again_s or newcomers.transfers:
            newcomers.tick(self.pending.id if self.pending is not None else None)
        if self.pending is not None and self._r.now_s >= self._pending_ends_s:
            self._give_up(self._waits_for(advise=True))
        if self._earlier and self._r.now_s >= self._refuse_s:
            self._refuse_earlier()
        learners = self._r.members.latest.learners
        busy = self.pending is not None or self._lost or self.addresses_changed or learners
        self.idle = not (busy or newcomers.transfers or self._earlier)
        if not busy or not self.may_change:
            return
        if self.pending is not None:
            self._advance_pending()
        if self.may_change:
            self._replace_lost()
        if self.may_change and self._r.members.latest.learners:
            self._promote()
        if self.addresses_changed and self.may_change and not self._rounds:
            self._correct_address()

    def end(self) -> None:
        """Refuse the pending request: this server leads no more. (`Serving` answers if its entry is appended.)"""
        if self.pending is not None:
            for each in (*self._earlier, self.pending):
                self._r.not_leader(each)

    # -- an operator's change ---------------------------------------------------------------------------

    def request(self, request: ChangeMember, *, confirmed: bool = False) -> None:
        """Begin a change that an operator asks for, or refuse it and say why. One that is in force already is reported
        done only if ``confirmed``: a read round begun after the request has shown that this server leads (R25)."""
        r = self._r
        listed = r.members.latest.get(request.id)
        there = listed is not None and listed.role != Role.GONE
        if self.pending is not None and self.pending._replace(origin=request.origin) == request:
            return self._ask_again(request)
        if self._done_already(request, listed):
            return self._done(request) if confirmed else self._reads.ask(request)
        why = self._objection(request, listed if there else None)
        if why:
            return r.out.refuse(request.origin, Code.CANNOT_CHANGE, detail=why)
        self._pending_ends_s = r.now_s + PATIENCE * r.cfg.election_timeout_s
        self._found = None
        self._rounds.pop(request.id, None)
        self._look_for(request)

    def _ask_again(self, request: ChangeMember) -> None:
        """Let a repeated request take the place of the pending one, whose connection may have broken. The earlier
        request is refused half a heartbeat later, so that two askers that repeat after each refusal do not spin."""
        assert self.pending is not None
        if not self._earlier:
            self._refuse_s = self._r.now_s + self._r.cfg.heartbeat_s / 2
        self._earlier.append(self.pending)
        self._refuse_earlier(EARLIER_MAX)
        self._look_for(request)

    def _refuse_earlier(self, spared: int = 0) -> None:
        """Refuse the earlier requests for the pending change, but for the latest ``spared``."""
        why = "it was asked for again, by another request"
        while len(self._earlier) > spared:
            self._r.out.refuse(self._earlier.pop(0).origin, Code.CANNOT_CHANGE, detail=why)

    def _look_for(self, request: ChangeMember) -> None:
        """Make ``request`` pending, and ask its address anew: older answers and rounds say nothing of its disk now."""
        self.pending, self.idle = request, False
        self._heard = None
        self._confirming_round = 0
        if request.address:
            self.newcomers.ask_anew(request.id)

    def _done_already(self, request: ChangeMember, listed: Member | None) -> bool:
        """True if the latest list has what ``request`` asks for already, as when its first answer was lost."""
        if listed is None or self.pending is not None:
            return False
        if request.step is MemberStep.REMOVE:
            return listed.role is Role.GONE
        # the server itself must say whether it is a new one: see `_answered_there`
        if request.step is MemberStep.REPLACE:
            return listed.identity == self._r.me and self._is_at(request, listed) and listed.retired != ()
        return listed.role is not Role.GONE and listed.address == request.address

    def _address(self, member: Member) -> str:
        """The address of a member: as the server itself said in its hello, else as the list has it."""
        r = self._r
        return r.cfg.address if member.identity == r.me else r.seen_addresses.get(member.identity) or member.address

    def _is_at(self, request: ChangeMember, listed: Member | None) -> bool:
        """True if ``request`` replaces the disk of a listed member at that member's own address."""
        return listed is not None and request.step is MemberStep.REPLACE and request.address == self._address(listed)

    def _objection(self, request: ChangeMember, listed: Member | None) -> str:
        """The reason to refuse ``request``, in words for an operator; "" if there is none."""
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
        """The pending change of an operator and what it waits for, in words for users; "" if there is none."""
        pending = self.pending
        if pending is None:
            return ""
        where = f" at {pending.address}" if pending.address else ""
        return f"to {pending.step.name.lower()} server {pending.id}{where}: {self._waits_for()}"

    @property
    def asked_id(self) -> int:
        """The id of the server that is being added or replaced (see `asked_address`); 0 if there is none."""
        return self.pending.id if self.pending is not None and self.pending.address else 0

    def asked_address(self, id: int) -> str:
        """The address that the operator gave for a server that is being added or replaced; "" for any other."""
        pending = self.pending
        return pending.address if pending is not None and pending.id == id else ""

    def on_start_answer(self, sender: Identity, answer: StartAnswer) -> None:
        """Take the answer of a server that was asked because a member is silent, or a server is to join."""
        r = self._r
        if sender.id == r.me.id or not self.newcomers.has_asked(sender.id, answer.number):
            return
        started = answer.status is StartStatus.STARTED
        if not r.members.latest.holds(sender):
            if self.asked_id == sender.id and self._is_out(sender) and answer.cluster in (b"", r.out.cluster):
                r.out.send(sender, Retired())  # a store of a further log then makes room for another one
            return self.found(sender, started)
        self.heard(sender)
        if not started and not self._replication.peers[sender.id].really_heard:
            self.newcomers.want_snapshot(sender)

    def _is_out(self, who: Identity) -> bool:
        """True if a guaranteed list refuses this incarnation for ever (R30)."""
        member = self._r.members.latest.get(who.id)
        sure = self._r.members.latest_id <= self._r.guaranteed_id
        return sure and member is not None and who.incarnation in member.retired

    def heard(self, who: Identity) -> None:
        """Note that member ``who`` answered: if its disk is to be replaced there, no newcomer is at that address."""
        pending = self.pending
        if pending is not None and pending.id == who.id and self._is_at(pending, self._r.members.latest.get(who.id)):
            self._heard = who
            self._found = None
            self._rounds.pop(who.id, None)

    def found(self, who: Identity, started: bool) -> None:
        """Note that ``who``, not listed under this incarnation, answered; ``started``: it belongs to a cluster."""
        pending, member = self.pending, self._r.members.latest.get(who.id)
        retired = member is not None and who.incarnation in member.retired
        if pending is not None and pending.id == who.id and pending.step is not MemberStep.REMOVE:
            if retired:
                self._give_up(f"the disk of the server at {pending.address} was taken out of this cluster before: give "
                              "it an empty data directory")
            elif started:
                self._give_up(f"the server at {pending.address} belongs to a cluster already: give it an empty "
                              "data directory")
            else:
                self._found = who
                self._heard = None
                self._confirming_round = 0
        elif (
            not started and member is not None and member.role is not Role.GONE and not retired
            and self._lost.get(who.id) != who
        ):
            self._lost[who.id] = who
            if self._told_lost.get(who.id) != who:  # else an event has reported it before
                self._told_lost[who.id] = who
                self._r.out.event("lost_disk", member=who.id, answers_as=who.incarnation.hex())

    def _advance_pending(self) -> None:
        pending, latest = self.pending, self._r.members.latest
        assert pending is not None
        listed = latest.get(pending.id)
        if pending.step is MemberStep.REMOVE:
            assert listed is not None
            wanted = listed._replace(role=Role.GONE, retired=listed.all_incarnations)
        elif self._found is None:
            if listed is not None and listed.identity == self._heard:
                self._answered_there(listed)
            return
        else:
            stays = listed is not None and listed.role is not Role.GONE
            priority = listed.priority if listed is not None and stays else pending.priority
            retired = listed.all_incarnations if listed is not None else ()
            wanted = Member(pending.id, pending.address, priority, self._found.incarnation, Role.LEARNER, retired)
        if self._may_take_out(wanted):
            self._append(wanted)
            self._done(pending)

    def _answered_there(self, listed: Member) -> None:
        """Settle a REPLACE whose listed member answers at its address: its disk is not lost. If it has replaced another
        disk before, the request counts as done, once a read round confirms that we lead (R25); else it is refused."""
        r, pending = self._r, self.pending
        assert pending is not None
        if not listed.retired:
            return self._give_up(_not_lost(pending))
        self._confirming_round = self._confirming_round or self._replication.begin_round()
        if self._answered(self._confirming_round, r.members.latest) >= r.members.latest.majority:
            self._done(pending)

    def _done(self, request: ChangeMember) -> None:
        r = self._r
        if request == self.pending:
            self.pending = None
            self._refuse_earlier()
        self._serving.answer_once_guaranteed(
            MembersChanged(request.origin, r.members.latest.to_plain()), r.members.latest_id
        )

    def _waits_for(self, *, advise: bool = False) -> str:
        """The reason why the pending change is not done, for an operator; ``advise``: with a command to type."""
        pending = self.pending
        assert pending is not None
        if not self.may_change:
            return "the change before it is not guaranteed yet"
        if pending.id in self._rounds or pending.step is MemberStep.REMOVE:
            return f"no majority of the servers that would remain without server {pending.id} answers"
        if self._confirming_round:
            return "no majority has answered yet that it takes this server for the leader"
        join = f"alpod --id {pending.id} --data DIR --listen {pending.address} --join {self._r.cfg.address}"
        advice = f"; start it there: {join}" if advise else ""
        return f"no server {pending.id} that waits to join answers at {pending.address}{advice}"

    def _give_up(self, why: str) -> None:
        assert self.pending is not None
        self._r.out.refuse(self.pending.origin, Code.CANNOT_CHANGE, detail=why)
        self._rounds.pop(self.pending.id, None)
        self.pending = None
        self._refuse_earlier()

    # -- lost disks (R30) -------------------------------------------------------------------------------

    def _replace_lost(self) -> None:
        """Replace a lost disk: its member was not heard lately, and another incarnation answers for it."""
        r = self._r
        for id, who in list(self._lost.items()):
            if self.pending is not None and self.pending.id == id:
                continue
            listed, peer = r.members.latest.get(id), self._replication.peers.get(id)
            if listed is None or listed.role is Role.GONE or peer is None or who.incarnation in listed.all_incarnations:
                self._lives(id)
            elif r.now_s - peer.heard_s < r.cfg.lately_s:
                self._lives(id)  # the other incarnation may answer again later
            else:
                retired = listed.all_incarnations
                wanted = listed._replace(incarnation=who.incarnation, role=Role.LEARNER, retired=retired)
                if self._may_take_out(wanted):
                    del self._lost[id]
                    return self._append(wanted)

    def _lives(self, id: int) -> None:
        """Drop the replacement of member ``id``, which was heard, is replaced already or is listed no more."""
        del self._lost[id]
        self._rounds.pop(id, None)

    # -- rounds -----------------------------------------------------------------------------------------

    def _may_take_out(self, wanted: Member) -> bool:
        """True if ``wanted`` takes no vote away, or a majority of the remaining voters has answered a round for it."""
        r = self._r
        listed = r.members.latest.get(wanted.id)
        if listed is None or listed.role is not Role.VOTER:
            return True
        now = self._rounds.get(wanted.id)
        if now is None or now[0] != wanted or r.now_s >= now[2]:
            now = (wanted, self._replication.begin_round(), r.now_s + r.cfg.election_timeout_s)
            self._rounds[wanted.id] = now
        remain = r.members.latest.with_member(wanted)
        return self._answered(now[1], remain) >= remain.majority

    def _answered(self, round: int, among: MemberList) -> int:
        """The number of voters of ``among`` that have answered ``round`` and are not in doubt, this server included."""
        r = self._r
        peers = [self._replication.peers.get(m.id) for m in among.voters if m.id != r.me.id]
        sound = [peer for peer in peers if peer is not None and not peer.doubted_round]
        return among.is_voter(r.me) + sum(peer.round >= round for peer in sound)

    # -- learners become voters -------------------------------------------------------------------------

    def _promote(self) -> None:
        """Make a learner a voter: it accepts all that is guaranteed at first, then a read round begun after that."""
        r = self._r
        now = self._catch_up
        if now is None or not r.members.latest.holds(now.who) or r.now_s >= now.ends_s:
            now = self._catch_up = self._begin_catch_up()
        if now is None:
            return
        peer = self._replication.peers[now.who.id]
        if peer.match_id < now.upto_id or not peer.matched or peer.doubted_round:
            return
        if not now.final:
            ends_s = r.now_s + r.cfg.election_timeout_s
            now = self._catch_up = now._replace(round=self._replication.begin_round(), final=True, ends_s=ends_s)
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
        """Begin to promote the learner that has accepted most, of those heard within an election timeout; returns None
        if no learner is fit."""
        r = self._r
        since_s = r.now_s - r.cfg.election_timeout_s
        peers = [self._replication.peers[m.id] for m in r.members.latest.learners]
        heard = [p for p in peers if p.heard_s > since_s]
        fit = [p for p in heard if p.matched and p.match_id >= r.members.latest_id and not p.doubted_round]
        if not fit:
            return None
        peer: Progress = max(fit, key=lambda p: p.match_id)
        ends_s = r.now_s + r.cfg.election_timeout_s
        upto_id = max(r.guaranteed_id, r.members.latest_id)
        return CatchUp(peer.who, self._replication.begin_round(), upto_id, False, ends_s)

    # -- the entries ------------------------------------------------------------------------------------

    def _append(self, wanted: Member) -> None:
        r = self._r
        self._rounds.clear()
        old = r.members.latest.get(wanted.id)
        r.out.event(
            "member_change", member=wanted.id, role=wanted.role.name, address=wanted.address,
            before=old.role.name if old is not None else "none",
        )
        self._replication.append_special(Kind.MEMBERS, members_body(r.members.latest.with_member(wanted)))

    def _correct_address(self) -> None:
        """Append a list with the address that one member's hello gave, if it is new. Addresses are hints (R27): one
        that changes again and again, because two processes have this identity, is not written each time."""
        r, waits = self._r, False
        for member in r.members.latest.replicas:
            address = self._address(member)
            if address != member.address and r.now_s < self._next_address_s.get(member.id, r.now_s):
                waits = True
            elif address != member.address:
                self._next_address_s[member.id] = r.now_s + ADDRESS_TIMEOUTS * r.cfg.election_timeout_s
                r.out.event("address_change", member=member.id, old=member.address, new=address)
                changed = r.members.latest.with_member(member._replace(address=address))
                self._replication.append_special(Kind.MEMBERS, members_body(changed))
                return
        self.addresses_changed = waits


def _not_lost(request: ChangeMember) -> str:
    return (
        f"server {request.id} runs at {request.address} with its own disk: to replace that disk stop the server, and "
        "start it there with an empty data directory"
    )
