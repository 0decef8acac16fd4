"""Mutations of elections (R1-R10) and of the identity of a disk (R27)."""

from __future__ import annotations

from alpo.core import dispatch
from alpo.core.election import Election
from alpo.core.first_start import FirstStart
from alpo.core.members import MemberList
from alpo.core.outbox import Outbox
from alpo.core.ranks import Rank
from alpo.core.replica import Replica
from alpo.core.replication import Replication

from .. import connections
from ..options import MS, SECOND, Network
from . import directed as plans
from .birth import Birth, OldAnswers
from .directed import directed
from .log import LOST
from .mutation import Mutation, edit
from .worlds import BUSY, COLLIDING, IDLE, LATER, SLOW, planned, world

ELECTIONS = (
    Mutation(
        "M1", "R4", "rank by id alone, without the term of the last entry",
        "a server with a long suffix that was never guaranteed wins and expunges what was",
        (edit(Rank, "log", ("self[:2]", "self[1:2]")),),
        planned(load=BUSY), LOST, makes=directed(plans.long_suffix),
    ),
    Mutation(
        "M4", "R14", "a vote is not on disk before the reply",
        "two leaders in one term after a restart",
        (edit(Outbox, "send", (
            "if self.hard_durable:", "if self.hard_durable or type(message).__name__ == 'VoteAnswer':",
        )),),
        planned(), ("one leader a term",), ("durable before sent",), makes=directed(plans.lost_vote),
    ),
    Mutation(
        "M12", "R27", "a new disk takes its predecessor's place at once",
        "guaranteed entries lost, or two leaders in a term",
        (
            edit(dispatch, "_on_received", ("envelope.target.incarnation != r.me.incarnation", "False")),
            edit(MemberList, "holds", ("member.incarnation == who.incarnation and ", "")),
            edit(MemberList, "is_voter", ("member.incarnation == who.incarnation and ", "")),
            edit(Replication, "progress", ("found.who == who", "found.who.id == who.id")),
            edit(connections, "is_full", (" and listed == other.me.incarnation", "")),
        ),
        planned(wipes=1), (*LOST, "one leader a term"), ("guaranteed on a majority", "fully replicated", "steps down"),
        makes=directed(plans.lost_disk),
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
        planned(load=BUSY, stagger_us=5 * SECOND, network=Network((100, 3000), 0.0, SECOND, 0.0, 0.0, False)),
        ("no progress",), makes=directed(plans.stale_first),
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
        (edit(Election, "on_canvass_answer", ("r.adopt_term(answer.term)", "pass")),),
        planned(), ("no progress",), makes=directed(plans.behind_in_terms),
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
            "self.append_special(Kind.LEADER, json_body(leader=self.me.id))", "self.serving",
        )),),
        world(), ("reign",),
    ),
    Mutation(
        "N4", "R29", "an answer from before one's present map counts",
        "two first lists: two clusters, or one that waits for ever",
        (edit(FirstStart, "on_answer", ("not self._counts_from < answer.number <= self._number", "False")),),
        world(), ("first start",), makes=OldAnswers,
    ),
    Mutation(
        "N5", "R29", "a server votes before it has started",
        "it may start with another list afterwards: two leaders in a term",
        (edit(dispatch, "_on_received", (
            "if kind not in m.START_ONLY and (not r.first_start.started or envelope.cluster != r.cluster):",
            "if not r.first_start.started:\n"
            "        r.out.cluster = envelope.cluster\n"
            "    if kind not in m.START_ONLY and envelope.cluster != r.cluster:",
        )),),
        world(seconds=3, wipes=20, network=Network((1 * MS, 20 * MS), 0.1, SECOND, 0.5, 0.2, False)),
        ("first start", "one leader a term"), makes=Birth, seeds_max=500,
    ),
    Mutation(
        "P16", "R9", "a cycle without result never ends",
        "a candidate of the freshest log waits for ever for a vote that a dead server holds",
        (edit(Election, "tick", ("if r.now_s >= self.cycle.ends_s:", "if False:")),
         edit(Election, "deadline_s", ("min(self.cycle.ends_s, self.cycle.ask_again_s)", "self.cycle.ask_again_s"))),
        planned(network=SLOW), ("no progress",), makes=directed(plans.dead_holder),
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
        (edit(Replica, "become_passive", ("self.leader = None  # clients are not sent back to us", "pass")),),
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
        (edit(Election, "on_defer_answer", (
            "if len(cycle.granted) + made_way >= r.members.latest.majority:", "if made_way:",
        )),),
        world(servers=5, network=COLLIDING, stagger_us=0, faults=("crash_all", "crash"), load=IDLE), ("electable",),
    ),
)
