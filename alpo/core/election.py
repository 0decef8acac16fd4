"""Elections (R1-R10): a canvass (Raft's pre-vote) comes first, and of rival candidates the higher rank wins at once,
because the other one defers to it.

Laws:

* A term moves only by R1 or R3, one vote is given a term, and no message tells of either before it is on disk (the
  outbox sees to that).
* Answers count only from voters of our own latest list, under the incarnation listed there (R27).
* Only an electable candidate, with a majority of votes granted or refused as HELD, asks others to defer (R5).
"""

from __future__ import annotations

from .members import Identity, MemberList
from .messages import (
    Canvass,
    CanvassAnswer,
    CanvassRequest,
    Defer,
    DeferAnswer,
    DeferRequest,
    HandOver,
    Vote,
    VoteAnswer,
    VoteRequest,
)
from .ranks import Rank, State
from .shared import Shared

NEVER_S = float("inf")


class Round:
    """One round of a canvass (R2). ``again``: a voter answered RIVAL to the round before, and no voter may do so to
    this one; ``yes``: voters that answered YES, by id; ``rival``: one answered RIVAL; ``earlier``: number -> start time
    of earlier rounds whose late answers still count. Times are monotonic seconds."""

    def __init__(self, number: int, again: bool, began_s: float, ends_s: float, earlier: dict[int, float]) -> None:
        self.number = number
        self.again = again
        self.began_s = began_s
        self.ends_s = ends_s
        self.earlier = earlier
        self.yes: dict[int, bool] = {}
        self.rival = False
        self.late_rival = False  # a RIVAL answer that came too late for this round and counts for the next


class Cycle:
    """One candidacy, in one term (R3). ``span_s``: how long it may last, from when our own vote is on disk (R9);
    ``handed_over``: the leader told this server to stand (R28). The dictionaries are by voter id."""

    def __init__(self, span_s: float, handed_over: bool) -> None:
        self.span_s = span_s
        self.ends_s = NEVER_S  # set once our vote is on disk; until then no request has left (R14)
        self.ask_again_s = NEVER_S
        self.handed_over = handed_over
        self.granted: dict[int, bool] = {}
        self.outranked: dict[int, bool] = {}
        self.held: dict[int, tuple[int, Rank | None]] = {}  # voter -> (candidate that has its vote, rank if known)
        self.deferred: dict[int, bool] = {}  # candidate asked to defer -> whether it did

    def answered(self, voter: int) -> bool:
        """True if the voter with this id has answered."""
        return voter in self.granted or voter in self.held or voter in self.outranked


class Election:
    """The election timer, canvass and candidacy of a server that does not lead, and its answers to those of others.
    ``timer_s``: the time to canvass, monotonic seconds; ``round``: the canvass under way; ``cycle``: the candidacy;
    ``leader_gone``: the process that led this term is gone (R33)."""

    def __init__(self, shared: Shared) -> None:
        self._r = shared
        self.timer_s = NEVER_S
        self.round: Round | None = None
        self.cycle: Cycle | None = None
        self.leader_gone = False
        self.round_number = 0
        self._known_ranks: dict[int, Rank] = {}  # ranks of the candidates of the present term
        self._counted: tuple[MemberList | None, int, int] = (None, 0, 0)  # (list, last leader, the turn)

    # -- time -------------------------------------------------------------------------------------------

    def restart_timer(self) -> None:
        """Set the timer: an election timeout, and a stagger for each voter that goes before us (rules.md#timers)."""
        r, cfg, (latest, last_id, turn) = self._r, self._r.cfg, self._counted
        if latest is not r.members.latest or last_id != r.last_leader_id:
            turn = self._turn()
        self.timer_s = r.now_s + cfg.election_timeout_s + turn * cfg.stagger_s

    def postpone(self, heard_s: float) -> None:
        """Set the timer to no earlier than if the leader had been heard at ``heard_s``; a canvass under way goes on."""
        cfg = self._r.cfg
        self.timer_s = max(self.timer_s, heard_s + cfg.election_timeout_s + self._turn() * cfg.stagger_s)

    def _turn(self) -> int:
        """The number of voters with a higher (priority, id) than this server's, the last leader not counted."""
        latest, last_id = self._r.members.latest, self._r.last_leader_id
        if self._counted[0] is not latest or self._counted[1] != last_id:  # else each heartbeat would count voters
            mine = (self._r.rank.priority, self._r.me.id)
            turn = sum(1 for m in latest.voters if (m.priority, m.id) > mine and m.id != last_id)
            self._counted = latest, last_id, turn
        return self._counted[2]

    def on_peer_gone(self, who: Identity) -> None:
        """Count the leader of our term as not heard if ``who`` is that very process, and canvass soon, the best ranked
        first (R33). This alone deposes no leader: voters that still hear it say so in their answers."""
        r = self._r
        if r.cfg.refused_means_dead and r.state is State.PASSIVE and r.leader == who and not self.leader_gone:
            self.leader_gone = True
            r.out.event("leader_gone", leader=who.id, term=r.term)
            self.timer_s = min(self.timer_s, r.now_s + r.cfg.stagger_s * (0.5 + self._turn()))
            if self.round is not None:
                self.round.ends_s = min(self.round.ends_s, r.now_s + self._round_s())

    def canvass_first(self) -> None:
        """Canvass soon, the best ranked first: the log has just been founded, and nobody leads it yet."""
        self.timer_s = self._r.now_s + self._r.cfg.stagger_s * (0.5 + self._turn())

    def _round_s(self) -> float:
        """The random length of a canvass round: about a heartbeat, or a stagger or two while the leader is gone."""
        cfg, random = self._r.cfg, self._r.rng.random()
        return cfg.stagger_s * (1 + random) if self.leader_gone else cfg.heartbeat_s * (0.5 + random)

    def canvass_within_h(self) -> None:
        """End the canvass, and set the timer to a random moment within a heartbeat (R2 after TERM, and R9)."""
        self.timer_s = self._r.now_s + self._r.cfg.heartbeat_s * self._r.rng.random()
        self.round = None

    def live_leader(self) -> bool:
        """True if this server leads, or heard its leader within an election timeout less a heartbeat, and the leader's
        process is not known to be gone."""
        r = self._r
        if r.state is State.LEADER:
            return True
        heard = r.heard_s is not None and r.now_s - r.heard_s < r.cfg.election_timeout_s - r.cfg.heartbeat_s
        return heard and not self.leader_gone

    def _another_leads(self, asker: Identity) -> bool:
        """True if there is a live leader, and it is not ``asker`` (which leads no more if it asks for votes)."""
        return self.live_leader() and self._r.leader != asker

    def deadline_s(self) -> float:
        """The time at which `tick` has something to do, monotonic seconds; infinity: never."""
        if self.cycle is not None:
            return min(self.cycle.ends_s, self.cycle.ask_again_s)
        if not self._r.may_stand:
            return NEVER_S
        return self.round.ends_s if self.round is not None else self.timer_s

    @property
    def busy(self) -> bool:
        """True if a canvass or a candidacy is under way."""
        return self.round is not None or self.cycle is not None

    def tick(self) -> None:
        """Do what is due now: begin a canvass or its next round, repeat requests, or end a candidacy."""
        r = self._r
        if self.cycle is not None:
            if r.now_s >= self.cycle.ends_s:
                r.out.event("election_cycle_ended", term=r.term, granted=sorted(self.cycle.granted))
                r.become_passive()
                self.canvass_within_h()
            elif r.now_s >= self.cycle.ask_again_s:
                self._ask()
        elif r.state is State.PASSIVE and r.may_stand and r.now_s >= self.deadline_s():
            self.canvass()

    # -- canvass (R2) -----------------------------------------------------------------------------------

    def canvass(self) -> None:
        """Begin a round: ask all voters whether they would vote for us in the next term (R2)."""
        r = self._r
        before = self.round
        again = before is not None and (before.rival or before.late_rival)
        earlier: dict[int, float] = {}
        if before is not None:  # a round trip may outlast a round: earlier rounds of the same term still count
            earlier = {**before.earlier, before.number: before.began_s}
            earlier = {n: at_s for n, at_s in earlier.items() if r.now_s - at_s < r.cfg.election_timeout_s}
        self.round_number += 1
        self.round = Round(self.round_number, again, r.now_s, r.now_s + self._round_s(), earlier)
        self.timer_s = r.now_s
        r.out.event(
            "canvass", term=r.term + 1, round=self.round_number, again=again, leader=r.last_leader_id,
            silent_ms=None if r.heard_s is None else round((r.now_s - r.heard_s) * 1000),
        )
        request = CanvassRequest(r.term + 1, self.round_number, r.rank, again)
        for voter in r.members.other_voters():
            r.out.send(voter.identity, request)
        if r.members.i_vote:
            self.round.yes[r.me.id] = True
        self._settle_round()

    def _settle_round(self) -> None:
        """Stand for election if a majority answered YES and none RIVAL (R2)."""
        round = self.round
        if round is not None and len(round.yes) >= self._r.members.latest.majority and not round.rival:
            self.stand(handed_over=False)

    def on_canvass_request(self, sender: Identity, request: CanvassRequest) -> None:
        """Answer a canvass; its term does not become ours (R1)."""
        r = self._r
        answer = self._canvass_answer(sender, request)
        r.out.send(sender, CanvassAnswer(r.term, request.round, answer))
        if answer is Canvass.OUTRANKED:
            self._fresher_stands()

    def _canvass_answer(self, sender: Identity, request: CanvassRequest) -> Canvass:
        r = self._r
        if r.term > request.term or (r.term == request.term and r.vote not in (0, sender.id)):
            return Canvass.TERM
        if self._another_leads(sender):
            return Canvass.LEADER
        if r.rank.log > request.rank.log:
            return Canvass.OUTRANKED
        if not request.again and (self.round is not None or self.cycle is not None) and r.rank > request.rank:
            return Canvass.RIVAL
        return Canvass.YES

    def on_canvass_answer(self, sender: Identity, answer: CanvassAnswer) -> None:
        """Count a voter's answer to this round or, if it comes late, to an earlier one."""
        r = self._r
        # A canvass moves the asker's term only by such an answer. Without that a server with the newest log and an
        # older term could never win.
        if answer.term > r.term:
            return r.adopt_term(answer.term)
        round = self.round
        if round is None or not r.members.latest.is_voter(sender):
            return
        late = answer.round != round.number
        if late and answer.round not in round.earlier:
            return
        if answer.answer is Canvass.YES:
            round.yes[sender.id] = True
        elif answer.answer is Canvass.RIVAL and late:
            round.late_rival = True
        elif answer.answer is Canvass.RIVAL:
            round.rival = True
        elif answer.answer is Canvass.TERM:
            return self.canvass_within_h()
        self._settle_round()

    def _fresher_stands(self) -> None:
        """Canvass at once if this passive server may, and knows no live leader: its log outranks the asker's (R8)."""
        r = self._r
        if r.state is State.PASSIVE and self.round is None and r.may_stand and not self.live_leader():
            self.canvass()

    # -- candidacy (R3, R9, R10) ------------------------------------------------------------------------

    def stand(self, *, handed_over: bool) -> None:
        """Begin a candidacy: a new term, our own vote, and a request to every other voter (R3)."""
        r = self._r
        r.set_term(r.term + 1, vote=r.me.id)
        r.become_candidate()
        self.round, self.leader_gone = None, False
        spread_s = r.cfg.election_timeout_s * (0.5 + 0.5 * r.rng.random())
        self.cycle = Cycle(spread_s, handed_over)
        r.out.event("candidate", term=r.term, rank=list(r.rank), handed_over=handed_over)
        self._ask()

    def _ask(self) -> None:
        """Ask the voters that have not answered for their votes, and rivals that hold votes to defer (R5)."""
        r, cycle = self._r, self.cycle
        assert cycle is not None
        if r.out.hard_durable:
            cycle.ask_again_s = r.now_s + r.cfg.heartbeat_s
        request = VoteRequest(r.term, r.rank, cycle.handed_over)
        for voter in r.members.other_voters():
            if not cycle.answered(voter.id):
                r.out.send(voter.identity, request)
        self._ask_to_defer(again=True)

    def own_vote_durable(self) -> None:
        """Count our own vote, now that it is on disk (R14), and start the clock of the candidacy (R9)."""
        r, cycle = self._r, self.cycle
        if cycle is None:
            return
        if cycle.ends_s == NEVER_S:
            cycle.ends_s = r.now_s + cycle.span_s
            cycle.ask_again_s = r.now_s + r.cfg.heartbeat_s
        if r.members.i_vote and r.me.id not in cycle.granted:
            cycle.granted[r.me.id] = True
            self._settle_cycle()

    def on_vote_request(self, sender: Identity, request: VoteRequest) -> None:
        """Answer a candidate, granting our vote if R4 allows it."""
        r = self._r
        if request.term < r.term:
            return self._answer_vote(sender, request, Vote.STALE)
        if self._another_leads(sender) and not request.handed_over:
            return self._answer_vote(sender, request, Vote.LEADER)
        if request.term > r.term:
            r.adopt_term(request.term)
        self._known_ranks[sender.id] = request.rank
        mine = r.rank
        if mine.log > request.rank.log:
            self._answer_vote(sender, request, Vote.OUTRANKED)
            self._fresher_stands()
        elif r.vote in (0, sender.id):
            if r.vote == 0:
                r.set_term(r.term, vote=sender.id)
                r.out.event("vote", term=r.term, to=sender.id)
                self.restart_timer()
                self.round = None
            self._answer_vote(sender, request, Vote.GRANTED)
        else:
            self._answer_vote(sender, request, Vote.HELD)

    def _answer_vote(self, sender: Identity, request: VoteRequest, answer: Vote) -> None:
        r = self._r
        holder, rank = 0, None
        if answer is Vote.HELD:
            holder = r.vote
            rank = r.rank if holder == r.me.id else self._known_ranks.get(holder)
        r.out.send(sender, VoteAnswer(r.term, request.term, answer, holder, rank, r.wall_ms))

    def on_vote_answer(self, sender: Identity, answer: VoteAnswer) -> None:
        """Count a voter's answer. A higher term ends the candidacy, unless the answer is LEADER."""
        r, cycle = self._r, self.cycle
        if answer.answer is not Vote.LEADER and answer.term > r.term:
            return r.adopt_term(answer.term)
        if cycle is None or answer.request_term != r.term or not r.members.latest.is_voter(sender):
            return
        r.note_clock(sender.id, answer.wall_ms)
        if answer.answer is Vote.GRANTED:
            cycle.granted[sender.id] = True
            cycle.held.pop(sender.id, None)
        elif answer.answer is Vote.HELD:
            cycle.held[sender.id] = (answer.holder, answer.holder_rank)
        elif answer.answer is Vote.OUTRANKED:
            cycle.outranked[sender.id] = True
        self._settle_cycle()

    def _settle_cycle(self) -> None:
        """Lead with a majority of votes (R10), give up when outranked by too many (R8), else ask rivals to defer."""
        r, cycle = self._r, self.cycle
        assert cycle is not None
        majority = r.members.latest.majority
        if len(cycle.granted) >= majority:  # R10
            r.become_leader()
        elif len(r.members.latest.voters) - len(cycle.outranked) < majority:  # R8
            r.become_passive()
        elif self._enough_deferred():  # the last vote that counts may come after the deferrals
            self.stand(handed_over=cycle.handed_over)
        else:
            self._ask_to_defer(again=False)

    def _enough_deferred(self) -> bool:
        """True if some rival has deferred, and the votes granted and those whose holders have deferred are a majority
        together (R7)."""
        cycle = self.cycle
        assert cycle is not None
        made_way = sum(1 for holder, _ in cycle.held.values() if cycle.deferred.get(holder))
        return made_way > 0 and len(cycle.granted) + made_way >= self._r.members.latest.majority

    # -- deferral (R5-R7), handing over (R28) -----------------------------------------------------------

    def _ask_to_defer(self, *, again: bool) -> None:
        """Ask other candidates that hold votes, and do not outrank this one, to defer, if it is electable (R5, R6).
        ``again``: also those that were asked before and have not deferred."""
        r, cycle = self._r, self.cycle
        assert cycle is not None
        if len(cycle.granted) + len(cycle.held) < r.members.latest.majority:
            return
        for holder, rank in sorted(cycle.held.values(), key=lambda held: held[0]):
            if (asked := cycle.deferred.get(holder)) is True or (asked is False and not again):
                continue
            member = r.members.latest.get(holder)
            if member is not None and (rank is None or r.rank > rank):
                cycle.deferred[holder] = False
                r.out.send(member.identity, DeferRequest(r.term, r.rank))

    def on_defer_request(self, sender: Identity, request: DeferRequest) -> None:
        """Become passive for an electable candidate, unless this server leads or outranks it (R6)."""
        r = self._r
        if request.term > r.term:
            r.adopt_term(request.term)
        if request.term < r.term:
            answer = Defer.STALE
        elif r.state is State.LEADER:
            answer = Defer.LEADER
        elif r.state is State.CANDIDATE and r.rank > request.rank:
            answer = Defer.OUTRANKED
        else:
            answer = Defer.DEFERRED
            r.out.event("deferred", term=r.term, to=sender.id)
            r.become_passive()
        r.out.send(sender, DeferAnswer(r.term, request.term, answer))

    def on_defer_answer(self, sender: Identity, answer: DeferAnswer) -> None:
        """Stand again in the next term once enough rivals have deferred (R7); give up if one leads or outranks us."""
        r, cycle = self._r, self.cycle
        if answer.term > r.term:
            return r.adopt_term(answer.term)
        if cycle is None or answer.request_term != r.term:
            return
        if answer.answer is Defer.DEFERRED:
            cycle.deferred[sender.id] = True
            if self._enough_deferred():
                self.stand(handed_over=cycle.handed_over)
        elif answer.answer in (Defer.LEADER, Defer.OUTRANKED):
            r.become_passive()

    def on_hand_over(self, sender: Identity, message: HandOver) -> None:
        """Stand for election at once: the leader of our term hands over to this server (R28), which stays."""
        r = self._r
        may_lead = r.may_stand and not r.stopping
        if message.term == r.term and r.state is State.PASSIVE and r.leader == sender and may_lead:
            self.stand(handed_over=True)

    def end_canvass(self) -> None:
        """End the canvass under way: its answers count no more."""
        self.round = None

    def leave(self) -> None:
        """End the canvass and the candidacy under way: a leader was heard, or this server leads, or is passive."""
        self.round, self.cycle, self.leader_gone = None, None, False

    def new_term(self) -> None:
        """Forget the candidates' ranks of the term before, and begin a canvass anew within a heartbeat."""
        self._known_ranks.clear()
        self.leader_gone = False
        if self.round is not None:
            self.canvass_within_h()
