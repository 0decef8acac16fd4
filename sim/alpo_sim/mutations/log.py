"""Mutations of the log: matching, guaranteeing, what servers say of their disks (R11-R18); of marks and of doubts,
which are conclusions from answers that say less, or more, than is true (R16, R31); and of runs, several appends in one
entry (R32).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from alpo.core import dispatch, serving
from alpo.core.acceptance import Acceptance
from alpo.core.log import Log, LogClock
from alpo.core.machine import verdicts
from alpo.core.machine.journal import JournalledSessions
from alpo.core.machine.table import SessionState
from alpo.core.machine.verdicts import SessionTable
from alpo.core.messages import AppendRequest, CanvassRequest, CopyAnswer
from alpo.core.ready import Input, Ready
from alpo.core.replication import Replication
from alpo.core.settings import Settings

from ..checks import Broken
from ..host import Host
from ..options import MS, SECOND, Load, Network
from ..stage import Watcher
from ..world import World
from .fault_plans import (
    late_completion,
    leader_falls,
    long_suffix,
    lost_acceptance,
    lost_own_copy,
    old_acceptances,
    older_term,
)
from .mutation import Mutation, edit
from .worlds import (
    BUSY,
    CROWD,
    LATE,
    LATER,
    LOSSY,
    NARROW,
    ONE_BY_ONE,
    ORDERED,
    SOUND,
    Once,
    Repeated,
    once,
    planned,
    repeated,
    world,
)

#: The invariants that may break first when a server holds other entries than it should.
LOST = ("leader completeness", "one log", "nothing guaranteed expunged", "alarm")


def a_tail_of_its_own(w: Once) -> Iterator[int]:
    """A leader that was cut off holds entries that no other server has; the entries that its successor sends in their
    place are lost."""
    old, *others = w.cast()
    w.parted(*others)
    yield from w.waits(lambda: any(map(w.leads, others)), 5 * SECOND)
    w.drops = lambda x: isinstance(x.message, AppendRequest) and x.target.id == old and bool(x.message.entries)
    w.set_cuts([])
    yield SECOND  # long enough for all to connect again
    w.drops = lambda x: False
    yield 3 * SECOND


def a_long_way(w: Repeated) -> Iterator[int]:
    """A leader's links carry so little that its entries take many election timeouts; then they are quick again."""
    leader, *others = w.cast()
    for id in others:
        w.slow.slow(leader, id, 300)
    yield 2 * SECOND
    w.slow.heal()
    yield 2 * SECOND


_CALM = planned(
    network=Network((100, 2000), 0.0, SECOND, 0.0, 0.0, False), load=Load(3, 0, 200 * MS), limits=ONE_BY_ONE, seconds=8
)

LOG = (
    Mutation(
        "M2", "R13", "any entry is guaranteed on a majority, of whatever term",
        "an entry counted guaranteed is expunged by a later leader",
        (edit(Replication, "count", ("mark > r.guaranteed_id and mark >= self.first_id", "mark > r.guaranteed_id")),),
        planned(load=BUSY, limits=ONE_BY_ONE), LOST, ("own term",), makes=repeated(older_term),
    ),
    Mutation(
        "M3", "R12", "entries are accepted when all smaller ids are there, of whatever term",
        "two servers hold different entries at one id for ever",
        (edit(Acceptance, "on_request", (
            "r.log.term_at(request.prev_id) != request.prev_term", "r.log.term_at(request.prev_id) is None",
        )),),
        world(), (*LOST, "log matching", "guaranteed on a majority"),
    ),
    Mutation(
        "M5", "R14", "an acceptance is sent before the fsync",
        "a guaranteed entry vanishes when a majority restarts",
        (edit(Acceptance, "_take", (
            "r.out.send_after_write(sender, self.acceptance(request, upto))",
            "r.out.send(sender, self.acceptance(request, upto))",
        )),),
        planned(), LOST, ("durable before sent", "guaranteed on a majority", "fully replicated"),
        makes=repeated(lost_acceptance),
    ),
    Mutation(
        "M6", "R16", "a passive server takes the carried mark as it comes",
        "a suffix that differs from the leader's is served to readers",
        (edit(Acceptance, "_take", ("min(request.guaranteed_id, self.matched_id)",
                                    "min(request.guaranteed_id, r.log.last_id)")),),
        world(limits=NARROW), (*LOST, "guaranteed on a majority"),
    ),
    Mutation(
        "M13", "R1", "an append request of an older term is taken",
        "a zombie overwrites the log",
        (edit(Acceptance, "on_request", ("request.term < r.term", "False")),),
        planned(load=BUSY, network=LATER), (*LOST, "log matching", "guaranteed on a majority"),
        makes=repeated(leader_falls),
    ),
    Mutation(
        "P1", "R16", "what was matched in an earlier term counts in this one",
        "a suffix that differs from the leader's is called guaranteed",
        (edit(Acceptance, "new_term", ("self.matched_id = 0", "pass")),),
        world(servers=5, limits=NARROW, faults=("cut", "isolate")), (*LOST, "guaranteed on a majority"),
    ),
    Mutation(
        "P2", "R16", "a mark that moved does not leave by itself",
        "readers of a passive server wait for a heartbeat",
        (edit(Replication, "flush", (
            "self.marks_due_s = min(self.marks_due_s, r.now_s + r.cfg.mark_delay_s)", "pass",
        )),),
        world(), ("prompt mark",),
    ),
    Mutation(
        "P3", "R17", "an answer to a heartbeat vouches for all that is on disk, matched or not",
        "the leader counts entries that are not its own",
        (edit(Acceptance, "_take", ("min(self.matched_id, r.log.stable_id)", "r.log.stable_id")),),
        world(limits=NARROW), (*LOST, "guaranteed on a majority", "fully replicated", "no progress"),
    ),
    Mutation(
        "P4", "R17", "an answer to a heartbeat vouches for all that matches, on disk or not",
        "a guaranteed entry vanishes when a majority restarts",
        (edit(Acceptance, "_take", ("min(self.matched_id, r.log.stable_id)", "self.matched_id")),),
        planned(), LOST, ("durable before sent", "guaranteed on a majority", "fully replicated"),
        makes=repeated(lost_acceptance),
    ),
    Mutation(
        "P5", "R14", "a late completion of a write vouches for what replaced its entries (A-B-A)",
        "a server takes for durable what its log no longer holds, and stops itself",
        (edit(Log, "expunge", ("write.last_id = min(write.last_id, self.last_id)", "pass")),),
        planned(load=replace(BUSY, retry_us=2 * SECOND)), (*LOST, "guaranteed on a majority", "durable before sent"),
        makes=repeated(late_completion),
    ),
    Mutation(
        "P6", "R17", "acceptances of an earlier reign count in this one",
        "the leader counts entries that have been expunged since",
        (edit(Replication, "on_answer", ("peer is None or answer.term != r.term", "peer is None")),),
        planned(servers=5, load=BUSY, network=LATE), (*LOST, "guaranteed on a majority", "fully replicated"),
        ("steps down",), makes=repeated(old_acceptances),
    ),
    Mutation(
        "P7", "R17", "what was lost on the way is never sent again for want of an answer",
        "nothing leaves any more for a server whose window is full of lost requests",
        (edit(Replication, "tick", (
            "peer.in_flight and r.now_s - peer.waiting_since_s >= cfg.election_timeout_s", "False",
        )),),
        world(limits=NARROW, faults=("stall",), network=LOSSY), ("no progress",),
    ),
    Mutation(
        "P120", "R17", "what is still on its way for an election timeout counts as lost",
        "over a slow link large entries are sent again for ever",
        (edit(Replication, "moving", ("peer.waiting_since_s = max(peer.waiting_since_s, at_s)", "pass")),),
        planned(load=Load(3, 0, 40 * MS, 8, 2000), network=ORDERED), ("sent once", "no progress"),
        makes=repeated(a_long_way),
    ),
    Mutation(
        "P8", "R13", "the leader's own copy counts before its fsync",
        "an entry is called guaranteed that a majority's disks do not hold",
        (edit(Replication, "mark_with", ("else stable_id)", "else self._r.log.last_id)")),),
        planned(), LOST, ("guaranteed on a majority",),
        makes=repeated(lost_own_copy),
    ),
    Mutation(
        "P9", "R15", "a leader that hears from no majority goes on leading",
        "the others hear it and nobody else may lead: no progress while the cut lasts",
        (edit(Replication, "heard_majority", ("return heard >= r.members.latest.majority", "return True")),),
        world(last_topology="deaf", faults=("crash", "pause")), ("no progress",), ("steps down",),
    ),
    Mutation(
        "P36", "R15", "a leader that hears from no majority leads for twenty election timeouts more",
        "its clients wait for answers that it cannot give, though the others serve",
        (edit(Replication, "heard_majority", (
            "r.now_s - r.cfg.election_timeout_s", "r.now_s - 20 * r.cfg.election_timeout_s",
        )),),
        world(faults=("isolate", "cut")), ("steps down",),
    ),
    Mutation(
        "P92", "R15", "an answer that waited for a leader's next step counts as heard in that step",
        "a leader that nobody hears any more leads on for a heartbeat longer than it may",
        (edit(dispatch, "_on_received", ("min(received.at_s, r.now_s)", "r.now_s")),),
        world(faults=("isolate", "cut")), ("steps down",),
    ),
    Mutation(
        "P10", "entry time", "entry time is the leader's clock, whatever the entry before says",
        "time goes back along the log",
        (edit(Replication, "entry_time_ms", (
            "return r.log_clock.next_ms(r.now_s, self.now_ms(r.wall_ms, r.clocks), r.log.last_time_ms)",
            "return self.now_ms(r.wall_ms, r.clocks)",
        )),),
        world(faults=("jump", "crash")), ("gapless", "entry time", "alarm"),
    ),
    Mutation(
        "P140", "entry time", "the time of a log that is ahead of the clocks stands still until they have caught up",
        "leases and sessions do not end for as long as the clocks were ahead",
        (edit(LogClock, "line_ms", ("max(0.0, now_s - self._line_s)", "0")),),
        world(faults=("jump", "crash")), ("entry time",),
    ),
    Mutation(
        "P78", "R17", "a server with as long a log of its own is taken to have what was sent to it",
        "what was lost on its way is never sent again",
        (edit(Acceptance, "acceptance", ("request.prev_id, self.matched_id,", "request.prev_id, r.log.last_id,")),),
        _CALM, ("no progress",), makes=once(a_tail_of_its_own),
    ),
)


def marks_of_a_damaged_follower(w: Once) -> Iterator[int]:
    """A follower does not know yet that its last entry is guaranteed. The entry before that is found damaged, so
    that the leader counts only what lies before; the follower starts again, hears one heartbeat, and the leader
    dies."""
    a, s, c = w.cast()
    yield from w.waits(lambda: all(r.guaranteed_id > 4 for r in w.replicas()), 4 * SECOND)
    yield from w.waits(lambda: len({id for r in w.replicas() for id in (r.fully_replicated_id, r.last_id)}) == 1)
    w.crash(s)
    w.boot(s)  # the server begins with the marks of its last write
    w.drops = lambda x: isinstance(x.message, AppendRequest) and x.target.id == s
    w.set_clock(s, 0.5, 0)
    term = w.term(a)
    w.crash(a)
    yield from w.waits(lambda: w.leads(c, term))
    leader, follower = w.stage.hosts[c].replica, w.stage.hosts[s].replica
    if leader is None or leader.leadership is None or follower is None or follower.last_id < 3:
        w.drops = lambda x: False
        return
    w.drops = lambda x: isinstance(x.message, AppendRequest) and (x.target.id == s or bool(x.message.entries))
    w.set_clock(a, 0.2, 0)
    w.boot(a)
    w.damage(s, (follower.last_id - 1,))
    w.drops = lambda x: isinstance(x.message, CopyAnswer) or (
        isinstance(x.message, AppendRequest) and bool(x.message.entries)
    )
    peer = leader.leadership.peers[s]
    yield from w.waits(lambda: peer.match_id > 0)
    w.crash(s)
    w.boot(s)
    yield from w.waits(lambda: _heard(w, s))
    w.crash(c)
    w.drops = lambda x: isinstance(x.message, CanvassRequest) and x.sender.id == a
    w.set_clock(s, 1.0, 0)
    yield 2 * SECOND


class _FalseDoubts(Watcher):
    """Watcher that counts how often leaders say wrongly that a disk has forgotten entries that it acknowledged."""

    def __init__(self, world: World) -> None:
        self._w = world
        self.false = 0

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        for event in ready.events:
            if event.name in ("store_went_back", "learner_went_back"):
                other = self._w.stage.hosts[event.fields["member"]]
                self.false += other.disk_last_id >= event.fields["held_id"]


def overtaking(w: Once) -> Iterator[int]:
    """Requests and answers overtake each other for seconds: a leader often hears a refusal after a later acceptance,
    and must take it for the old answer that it is. Raises `Broken`."""
    words = _FalseDoubts(w)
    w.stage.watchers.append(words)
    yield 4 * SECOND
    if words.false:
        raise Broken("damage", f"{words.false} times a leader said of a sound disk that it has forgotten")


def _heard(w: Once, id: int) -> bool:
    replica = w.stage.hosts[id].replica
    return replica is not None and replica.acceptance.matched_id > 0


MARKS = (
    Mutation(
        "N10", "R16", "a passive server takes the carried fully replicated mark as it comes",
        "it is beyond the guaranteed one: a sound server stops itself on winning",
        (edit(Acceptance, "_take", (
            "r.set_fully_replicated(request.fully_replicated_id)",
            "r.fully_replicated_id = max(r.fully_replicated_id, request.fully_replicated_id)",
        )),),
        planned(network=SOUND, load=Load(1, 0, 300 * MS), seconds=8), ("alarm", "fully replicated"),
        makes=once(marks_of_a_damaged_follower),
    ),
    Mutation(
        "P80", "R31", "a doubt that newer acknowledgements have settled goes on",
        "operators are told of lost disks, again and again, where there are none",
        (edit(Replication, "on_answer", ("if answer.round >= peer.doubted_round:", "if False:")),
         edit(Replication, "_doubt", ("answer.last_id >= peer.doubted_id", "False"))),
        planned(
            network=Network((100, 9000), 0.0, SECOND, 0.0, 0.0, False), load=BUSY, seconds=8,
            limits=(("request_bytes_max", 1),),
        ), ("damage",), makes=once(overtaking),
    ),
)


#: Load of many quick writers that send several appends at once, and group them anew when they send them again.
FRAMES = replace(CROWD, frame=6)

RUNS = (
    Mutation(
        "S5", "R32", "a run that holds the first serial of a request answers for all of it",
        "a serial is acknowledged that is not in the log, or with another's LSN",
        (edit(SessionTable, "_judge_known", ("    if known == count:", (
            "    if parts and type(parts[0]) is Duplicate:\n"
            "        lsn = parts[0].lsns[0]\n"
            "        return [Duplicate(run.serial, list(range(lsn, lsn + count)), parts[0].rests_on)]\n"
            "    if known == count:"
        ))),),
        world(load=FRAMES), ("acknowledged",),
    ),
    Mutation(
        "S6", "R32", "LSNs within a run are counted by serials, not by payloads",
        "a wrong LSN is told",
        (
            edit(verdicts, "offset", ("return nth if starts is None else starts[nth]", "return nth")),
            edit(serving, "lsns_of", ("if each is None:", "if True:")),
        ),
        world(load=FRAMES), ("acknowledged",),
    ),
    Mutation(
        "S7", "R32", "the window forgets a run together with its first serial",
        "what is in flight is told TOO_OLD",
        (edit(SessionState, "_over", (
            "(number := serials_of(slots[over][4])) <= spare", "spare > 0 and (number := serials_of(slots[over][4]))",
        )),),
        world(settings=Settings(window=8), load=FRAMES), ("sessions", "equal tables"),
    ),
    Mutation(
        "S8", "R32", "an expunge takes back the last serial of a run alone",
        "what nobody appended counts as skipped: an append is refused for good that is in the log",
        (edit(JournalledSessions, "expunge", (
            "-serials_of(session.slots.pop()[4]))\n            session.last = before",
            "-serials_of((gone := session.slots.pop())[4]))\n            "
            "session.last = before if len(gone[4]) == 16 else (session.last[0] - 1, *before[1:])",
        )),),
        planned(load=FRAMES), ("refused for good", "acknowledged", "sessions", "exactly once", "no progress", "alarm"),
        ("equal tables",), makes=repeated(long_suffix),
    ),
    Mutation(
        "S10", "R32", "of a run the first serial's mark alone is compared",
        "a payload is acknowledged that is not in the log",
        (edit(SessionTable, "_judge_old", (
            "same(digest, nth, *run.bodies[at])", "(nth > 0 or same(digest, nth, *run.bodies[at]))",
        )),),
        world(load=FRAMES), ("acknowledged",),
    ),
    Mutation(
        "P93", "R32", "what is in flight is counted in entries, not in serials",
        "more is in flight than is remembered: a retry is told TOO_OLD",
        (edit(SessionTable, "_room", ("sum(serials_of(slot[4]) for slot in recent)", "len(recent)")),),
        world(settings=Settings(window=8), load=FRAMES), ("bounds",),
    ),
    Mutation(
        "P95", "R32", "a retry from the middle of a run is compared with the mark of its first serial",
        "an append is refused for good that is in the log",
        (edit(SessionTable, "_judge_old", ("same(digest, nth, *run.bodies[at])", "same(digest, 0, *run.bodies[at])")),),
        world(load=FRAMES), ("refused for good",),
    ),
)
