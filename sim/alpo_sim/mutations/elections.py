"""Mutations of elections (R1-R10) and of the identity of a disk (R27), and plans of deferrals that are refused (R6)."""

from __future__ import annotations

from collections.abc import Iterator

from alpo.core import dispatch
from alpo.core.election import Election
from alpo.core.first_start import FirstStart
from alpo.core.members import MemberList
from alpo.core.messages import (
    CanvassAnswer,
    CanvassRequest,
    DeferAnswer,
    DeferRequest,
    Envelope,
    VoteAnswer,
    VoteRequest,
)
from alpo.core.outbox import Outbox
from alpo.core.ranks import Rank
from alpo.core.ready import PeerGone
from alpo.core.replica import Replica
from alpo.core.replication import Replication

from .. import network
from ..options import MS, SECOND, Network
from .fault_plans import behind_in_terms, dead_holder, long_suffix, lost_disk, lost_vote, stale_first
from .log import LOST
from .mutation import Mutation, edit
from .worlds import (
    BUSY,
    COLLIDING,
    IDLE,
    LATER,
    SLOW,
    SOUND,
    Birth,
    OldAnswers,
    Once,
    Repeated,
    once,
    planned,
    repeated,
    world,
)


def _two_stand(w: Once) -> Iterator[int]:
    """Two servers canvass the third at the same time, and stand in one term; no vote has been asked for yet."""
    voter, *others = w.cast()
    term = w.term(voter)
    yield from w.waits(lambda: len({r.last_id for r in w.replicas()}) == 1)
    w.alone(*w.links.ids)
    yield from w.waits(lambda: not w.leads(voter))

    def passes(x: Envelope) -> bool:
        asks = isinstance(x.message, CanvassRequest) and x.sender.id in others and x.target.id == voter
        return asks or isinstance(x.message, CanvassAnswer)

    w.drops = lambda x: not passes(x)
    w.set_cuts([])
    yield from w.waits(lambda: all(w.stands(id) and w.stage.hosts[id].disk_vote == id for id in others))
    if len({w.term(id) for id in others}) > 1 or w.term(voter) > term:
        w.drops = lambda x: False


def _roles(w: Once) -> tuple[int, int, int] | None:
    """The candidates of lower and of higher rank and the voter, after `_two_stand`; None if it went differently."""
    standing = sorted((r.rank, r.me.id) for r in w.replicas() if w.stands(r.me.id))
    if len(standing) != 2 or len({w.term(id) for _, id in standing}) > 1:
        return None
    (_, low), (_, high) = standing
    return low, high, next(id for id in w.links.ids if id not in (low, high))


def refused_by_the_winner(w: Once) -> Iterator[int]:
    """The candidate of higher rank asks the other to defer; in the same step the other hears that it has won."""
    yield from _two_stand(w)
    roles = _roles(w)
    if roles is None:
        return
    low, _, voter = roles
    w.drops = lambda x: not (isinstance(x.message, VoteRequest) and x.sender.id == low and x.target.id == voter)
    yield from w.waits(lambda: w.vote(voter) == low, 100 * MS)
    w.paused_until[low] = w.now_us + 60 * MS
    w.drops = lambda x: isinstance(x.message, VoteRequest) and voter not in (x.sender.id, x.target.id)
    yield 100 * MS


def refused_by_a_better_one(w: Once) -> Iterator[int]:
    """The voter, which voted for the candidate of higher rank, starts again and has forgotten that rank, so the other
    candidate asks the higher one to defer. That request comes once more, two terms later."""
    yield from _two_stand(w)
    roles = _roles(w)
    if roles is None:
        return
    low, high, voter = roles
    term = w.term(low)
    w.set_clock(low, 0.5, 0)
    w.set_clock(high, 0.3, 0)
    w.drops = lambda x: not (isinstance(x.message, VoteRequest) and x.sender.id == high and x.target.id == voter)
    yield from w.waits(lambda: w.stage.hosts[voter].disk_vote == high, 100 * MS)
    w.crash(voter)
    w.set_clock(voter, 10.0, 0)  # a fast clock has it take no leader for alive
    w.keeps = lambda x: isinstance(x.message, DeferRequest)
    w.drops = lambda x: not (
        (isinstance(x.message, VoteRequest | DeferRequest) and x.sender.id == low)
        or (isinstance(x.message, VoteAnswer | DeferAnswer) and x.target.id == low)
    )
    w.boot(voter)
    yield from w.waits(lambda: not w.stands(low), 300 * MS)
    for id in w.links.ids:
        w.set_clock(id, 1.0, 0)
    w.alone(low)
    w.drops = lambda x: False
    yield from w.waits(lambda: w.term(high) > term)
    w.only((high, low))
    w.drops = lambda x: not isinstance(x.message, DeferAnswer)
    for envelope in w.kept:
        w.stage.deliver(envelope, True)
        w.poke(w.stage.hosts[high])
    yield 20 * MS
    w.drops = lambda x: False
    w.set_cuts([])
    yield SECOND


def one_false_hint(w: Repeated) -> Iterator[int]:
    """One server is refused in the name of the leader, which lives."""
    leader, hinted, *_ = w.cast()
    w.ask(hinted, PeerGone(w.stage.hosts[leader].running.me))
    yield SECOND


def a_late_hint(w: Repeated) -> Iterator[int]:
    """The leader's process ends, another leads, and only then all others notice that the first one is gone."""
    old, *others = w.cast()
    who, term = w.stage.hosts[old].running.me, w.term(old)
    w.crash(old)
    yield from w.waits(lambda: any(w.leads(id, term) for id in others))
    yield 200 * MS
    for id in others:
        w.ask(id, PeerGone(who))
    yield SECOND


_CALM = planned(network=Network((100, 2000), 0.0, SECOND, 0.0, 0.0, False), load=IDLE, seconds=4)

ELECTIONS = (
    Mutation(
        "M1", "R4", "rank by id alone, without the term of the last entry",
        "a server with a long suffix that was never guaranteed wins and expunges what was",
        (edit(Rank, "log", ("self[:2]", "self[1:2]")),),
        planned(load=BUSY), LOST, makes=repeated(long_suffix),
    ),
    Mutation(
        "M4", "R14", "a vote is not on disk before the reply",
        "two leaders in one term after a restart",
        (edit(Outbox, "send", (
            "if self.hard_durable:", "if self.hard_durable or type(message).__name__ == 'VoteAnswer':",
        )),),
        planned(), ("one leader a term",), ("durable before sent",), makes=repeated(lost_vote),
    ),
    Mutation(
        "M12", "R27", "a new disk takes its predecessor's place at once",
        "guaranteed entries lost, or two leaders in a term",
        (
            edit(dispatch, "_on_received", ("envelope.target.incarnation != r.me.incarnation", "False")),
            edit(MemberList, "holds", ("member.incarnation == who.incarnation and ", "")),
            edit(MemberList, "is_voter", ("member.incarnation == who.incarnation and ", "")),
            edit(Replication, "progress", ("found.who == who", "found.who.id == who.id")),
            edit(network, "is_full", (" and listed == other.me.incarnation", "")),
        ),
        planned(wipes=1), (*LOST, "one leader a term"), ("guaranteed on a majority", "fully replicated", "steps down"),
        makes=repeated(lost_disk),
    ),
    Mutation(
        "M14", "R5", "a candidate asks others to defer before it is electable",
        "rivals are held down by one that cannot win",
        (edit(Election, "_ask_to_defer", (
            "if len(cycle.granted) + len(cycle.held) < r.members.latest.majority:", "if False:",
        )),),
        world(servers=5, network=SLOW, faults=("crash_all", "cut", "bridge", "chain")), ("electable",),
    ),
    Mutation(
        "P86", "R3", "a candidate does not vote for itself",
        "it votes for a rival too: two leaders in a term",
        (edit(Election, "stand", ("vote=r.me.id", "vote=0")),),
        world(servers=5, network=SLOW, faults=("crash_all", "cut")), ("alarm", "one leader a term"),
    ),
    Mutation(
        "P87", "R8", "who answers OUTRANKED waits for its own timer",
        "the freshest log may have the longest: no leader meanwhile",
        (edit(Election, "_fresher_stands", ("self.canvass()", "pass")),),
        planned(load=BUSY, stagger_us=5 * SECOND, network=SOUND),
        ("no progress",), makes=repeated(stale_first),
    ),
    Mutation(
        "P88", "R10", "a candidate leads with one vote fewer than a majority",
        "two leaders in a term",
        (edit(Election, "_settle_cycle", ("len(cycle.granted) >= majority:", "len(cycle.granted) >= majority - 1:")),),
        world(servers=5, network=SLOW, faults=("crash_all", "cut")), ("one leader a term", *LOST),
    ),
    Mutation(
        "M15", "R2", "no canvass: who hears no leader stands at once",
        "a server that comes back from a partition deposes a healthy leader",
        (edit(Election, "canvass", (
            "before = self.round\n", "return self.stand(handed_over=False)\n",
        )),),
        world(faults=("isolate",), fault_every_us=SECOND), ("disturbed",),
    ),
    Mutation(
        "P11", "R2", "a server that hears its leader says yes to a canvass all the same",
        "a server that comes back from a partition deposes a healthy leader",
        (edit(Election, "_canvass_answer", ("if self._another_leads(sender):", "if False:")),),
        world(faults=("isolate",), fault_every_us=SECOND, load=IDLE), ("disturbed",),
    ),
    Mutation(
        "P12", "R2", "RIVAL is an answer to every round",
        "a rival of higher rank that can reach no majority holds everyone down for ever",
        (edit(Election, "_canvass_answer", ("not request.again and ", "")),),
        world(servers=5, last_topology="star", faults=("crash", "isolate"), seconds=3, load=IDLE), ("no progress",),
    ),
    Mutation(
        "P13", "R1", "a canvasser that is told of a higher term keeps its own",
        "the freshest log, behind in terms, never wins: no leader for ever",
        (edit(Election, "on_canvass_answer", ("return r.adopt_term(answer.term)", "return")),),
        planned(), ("no progress",), makes=repeated(behind_in_terms),
    ),
    Mutation(
        "P14", "R4", "a vote is given to whoever asks, however often in a term",
        "two leaders in a term",
        (edit(Election, "on_vote_request", ("elif r.vote in (0, sender.id):", "elif True:")),),
        world(servers=5, network=SLOW, faults=("crash_all", "cut")), ("one leader a term",), ("durable before sent",),
    ),
    Mutation(
        "P15", "R11", "a reign begins without a leadership-change entry",
        "nothing of the terms before is guaranteed until somebody appends",
        (edit(Replica, "become_leader", (
            "leadership.append_special(Kind.LEADER, json_body(leader=self.me.id))", "pass",
        )),),
        world(), ("reign",),
    ),
    Mutation(
        "N4", "R29", "an answer from before one's present map counts",
        "two first lists: two clusters, or one that waits for ever",
        (edit(FirstStart, "on_answer", ("not self._counts_from < answer.number <= self.number", "False")),),
        world(), ("first start",), makes=OldAnswers,
    ),
    Mutation(
        "N5", "R29", "a server votes before it has started",
        "it may start with another list afterwards: two leaders in a term",
        (edit(dispatch, "_on_received", (
            "if kind not in m.START_ONLY and (not r.first_start.started or envelope.cluster != r.out.cluster):",
            "if not r.first_start.started:\n"
            "        r.out.cluster = envelope.cluster\n"
            "    if kind not in m.START_ONLY and envelope.cluster != r.out.cluster:",
        )),),
        world(seconds=3, wipes=20, network=Network((1 * MS, 20 * MS), 0.1, SECOND, 0.5, 0.2, False)),
        ("first start", "one leader a term"), makes=Birth, seeds_max=500,
    ),
    Mutation(
        "P16", "R9", "a cycle without result never ends",
        "a candidate of the freshest log waits for ever for a vote that a dead server holds",
        (edit(Election, "tick", ("if r.now_s >= self.cycle.ends_s:", "if False:")),
         edit(Election, "deadline_s", ("min(self.cycle.ends_s, self.cycle.ask_again_s)", "self.cycle.ask_again_s"))),
        planned(network=SLOW), ("no progress",), makes=repeated(dead_holder),
    ),
    Mutation(
        "P26", "R2", "late answers to a canvass do not count",
        "no leader for ever once a round trip takes longer than a round",
        (edit(Election, "on_canvass_answer", ("if late and answer.round not in round.earlier:", "if late:")),),
        world(network=Network((35 * MS, 40 * MS), 0.0, SECOND, 0.0, 0.0, True), faults=("crash",), seconds=2),
        ("no progress",),
    ),
    Mutation(
        "P27", "R9", "a cycle is timed from its beginning, not from when its own vote is on disk",
        "no leader for ever once an fsync takes longer than a cycle",
        (edit(Election, "stand", ("self._ask()", "self.cycle.ends_s = r.now_s + spread_s\n    self._ask()")),),
        world(fsync_us=(85 * MS, 95 * MS), faults=("crash",), seconds=2), ("no progress",),
    ),
    Mutation(
        "P25", "R24", "a leader that was deposed names itself as the leader",
        "a client cut off with it asks nobody else, though the others serve",
        (edit(Replica, "become_passive", ("self.leader = None", "pass")),),
        world(faults=("isolate",)), ("referral",),
    ),
    Mutation(
        "P33", "R4", "a vote that is refused for a live leader moves the term",
        "a request for votes that comes late deposes a healthy leader",
        (edit(Election, "on_vote_request", (
            "return self._answer_vote(sender, request, Vote.LEADER)",
            "if request.term > r.term:\n"
            "            r.adopt_term(request.term)\n"
            "        return self._answer_vote(sender, request, Vote.LEADER)",
        )),),
        world(network=LATER, faults=("crash", "isolate", "cut")), ("disturbed",),
    ),
    Mutation(
        "P34", "R7", "a candidate stands anew after any one deferral",
        "terms are used up, and candidacies that could have won are given up",
        (edit(Election, "_enough_deferred", (
            "made_way > 0 and len(cycle.granted) + made_way >= self._r.members.latest.majority", "made_way > 0",
        )),),
        world(servers=7, network=COLLIDING, stagger_us=0, faults=("crash_all", "crash", "crash"), load=IDLE),
        ("electable",),
    ),
    Mutation(
        "P76", "R6", "a leader that is asked to defer steps down",
        "an election is over, and there is no leader",
        (edit(Election, "on_defer_request", ("elif r.state is State.LEADER:", "elif False:")),),
        _CALM, ("disturbed",), makes=once(refused_by_the_winner),
    ),
    Mutation(
        "P77", "R6", "a candidate defers to one of lower rank",
        "a candidacy that could have won is given up",
        (edit(Election, "on_defer_request", (
            "elif r.state is State.CANDIDATE and r.rank > request.rank:", "elif False:",
        )),),
        _CALM, ("disturbed",), makes=once(refused_by_a_better_one),
    ),
    Mutation(
        "G1", "R33", "a server that is told that the leader's process is gone stands at once",
        "a server that alone is refused in the leader's name deposes a healthy leader",
        (edit(Election, "on_peer_gone", ("self.timer_s = min(", "self.stand(handed_over=False) or min(")),),
        _CALM, ("disturbed",), makes=repeated(one_false_hint),
    ),
    Mutation(
        "G2", "R33", "news of any process that is gone counts for the present leader",
        "late news of the leader before deposes the present one",
        (edit(Election, "on_peer_gone", (" and r.leader == who and ", " and ")),),
        planned(network=SOUND, load=IDLE, seconds=6, servers=5), ("disturbed",), makes=repeated(a_late_hint),
    ),
)
