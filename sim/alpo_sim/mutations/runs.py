"""Mutations of runs: several appends in one entry (R32)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from alpo.core import serving
from alpo.core.client_ids import random_client
from alpo.core.machine import verdicts
from alpo.core.machine.table import SessionState
from alpo.core.machine.undo import JournalledSessions
from alpo.core.machine.verdicts import SessionTable
from alpo.core.members import Role
from alpo.core.messages import AppendAnswer, AppendRequest
from alpo.core.requests import MemberStep
from alpo.core.serving import Serving
from alpo.core.settings import Settings

from ..host import WALL_ZERO_MS
from ..options import MS, SECOND
from .fault_plans import long_suffix
from .mutation import Mutation, edit
from .planned import Once, once, repeated, spare
from .worlds import CROWD, IDLE, ORDERED, planned, world

#: Load of many quick writers that send several appends at once, and group them anew when they send them again.
FRAMES = replace(CROWD, frame=6)

_CLIENT = random_client(WALL_ZERO_MS, 1)


def _removal_undone(w: Once) -> Iterator[int]:
    """A leader removes the member of an older version and makes a run, and nobody else gets either. It is deposed, its
    log is corrected, and the member is in its list again; then it leads once more."""
    a, old, *_ = w.cast()
    w.older(old)
    w.crash(old)
    w.boot(old)
    yield 200 * MS
    last_id, term = w.last_id(a), w.term(a)
    w.drops = lambda x: isinstance(x.message, AppendRequest) and x.sender.id == a and bool(x.message.entries)
    w.change(a, MemberStep.REMOVE, old)
    yield from w.waits(lambda: w.role(a, old) is Role.GONE)
    w.alone(a)
    w.connections.disconnect(a, old)  # else the leader would send on, for the member to learn of its removal
    w.append(a, _CLIENT, 1, b"one", b"two")
    yield from w.waits(lambda: not w.leads(a, term - 1) and w.leader() is not None)
    w.drops = lambda x: False
    w.set_cuts([])
    yield from w.waits(lambda: w.role(a, old) is Role.VOTER and w.mark_id(a) > last_id)
    yield from w.hand_over(a)
    w.append(a, _CLIENT, 1, b"one", b"two")
    yield 100 * MS


def _older_learner(w: Once) -> Iterator[int]:
    """A server of an older version is added, and a frame of appends comes while it catches up."""
    a, d = w.cast()[0], spare(w)
    w.older(d)
    w.boot(d)
    w.drops = lambda x: isinstance(x.message, AppendAnswer) and x.sender.id == d
    w.change(a, MemberStep.ADD, d)
    yield from w.waits(lambda: w.role(a, d) is Role.LEARNER and d in w.stage.hosts[a].running.connected, 3 * SECOND)
    w.append(a, _CLIENT, 1, b"one", b"two")
    yield 100 * MS
    w.drops = lambda x: False
    yield 200 * MS


_CALM = planned(network=ORDERED, load=replace(IDLE, writers=0), seconds=4)

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
        "P94", "R32", "a leader makes runs although a member does not take them",
        "a member of an older version takes no entries any more",
        (edit(Serving, "all_take_runs", ("r.sessions.has_runs or ", "True or ")),),
        world(load=FRAMES, older_us=8 * SECOND), ("older versions",),
    ),
    Mutation(
        "P141", "R32", "a run that was expunged counts as one that all members took",
        "a member of an older version, whose removal was expunged too, takes no entries any more",
        (edit(JournalledSessions, "expunge", ("if self.first_run_id >= from_id:", "if False:")),),
        _CALM, ("older versions",), makes=once(_removal_undone),
    ),
    Mutation(
        "P142", "R32", "a leader makes runs although a learner does not take them",
        "a server of an older version that is being added is never caught up",
        (edit(Serving, "all_take_runs", ("r.members.other_replicas()", "r.members.other_voters()")),),
        planned(network=ORDERED, load=replace(IDLE, writers=0), seconds=4, spares=1), ("older versions",),
        makes=once(_older_learner),
    ),
    Mutation(
        "P95", "R32", "a retry from the middle of a run is compared with the mark of its first serial",
        "an append is refused for good that is in the log",
        (edit(SessionTable, "_judge_old", ("same(digest, nth, *run.bodies[at])", "same(digest, 0, *run.bodies[at])")),),
        world(load=FRAMES), ("refused for good",),
    ),
)
