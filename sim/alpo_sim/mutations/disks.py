"""Mutations of cleaning and trimming (R19, R20), and of what servers do with full and damaged disks (R31)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from alpo.core import dispatch, replica
from alpo.core.acceptance import Acceptance
from alpo.core.cleaning import Cleaning
from alpo.core.damage import Damage
from alpo.core.disk_space import Disks
from alpo.core.machine.cursors import Trims
from alpo.core.messages import CopyAnswer, VoteAnswer
from alpo.core.ready import Clean
from alpo.core.replication import Replication

from ..options import MS
from .log import LOST
from .mutation import Mutation, edit
from .planned import Once, once
from .worlds import BUSY, ORDERED, planned, world

_FULL = world(faults=("full", "full", "crash"), load=BUSY)

_DAMAGED = world(faults=("damage", "damage", "crash", "isolate"), load=BUSY)

_TAILS = world(faults=("damage", "isolate", "isolate"), load=BUSY)

_CLEANED = world(
    faults=("damage", "damage", "crash"), load=BUSY, clean_every_us=50 * MS, fault_every_us=150 * MS, seconds=8,
)


def _damage_beyond(w: Once) -> Iterator[int]:
    """Two entries of a follower's are damaged, one that the others have cleaned and one that they have not; no copies
    come."""
    leader, damaged, other, *_ = w.cast()
    w.drops = lambda x: isinstance(x.message, CopyAnswer) and bool(x.message.entries)
    yield from w.waits(lambda: min(w.mark_id(id) for id in w.links.ids) > 20)
    upto_id = w.mark_id(damaged) // 2
    for id in (leader, other):
        time_ms, lsn, count = w.stage.hosts[id].store.entry_head(upto_id) or (0, 0, 0)
        w.ask(id, Clean(upto_id, time_ms, lsn + count))
    yield from w.waits(lambda: all(w.stage.hosts[id].running.log.base_id == upto_id for id in (leader, other)))
    w.damage(damaged, (upto_id, upto_id + 1))
    yield 300 * MS


def _damaged_candidate(w: Once) -> Iterator[int]:
    """An entry of a candidate's is found damaged before it has any answer."""
    leader, *_ = w.cast()
    yield 200 * MS
    w.drops = lambda x: isinstance(x.message, VoteAnswer)
    w.crash(leader)
    yield from w.waits(lambda: any(w.stands(id) for id in w.links.ids))
    for id in w.links.ids:
        if w.stands(id):
            w.damage(id, (1,))
    yield 100 * MS


DISKS = (
    Mutation(
        "M8", "R19", "what some member does not hold yet is cleaned",
        "a server that was away can never be caught up",
        (edit(Cleaning, "cleanable_id", ("r.fully_replicated_id, ", "")),),
        world(clean_every_us=200 * MS, load=BUSY), ("no progress", "alarm"), ("cleaned too early",),
    ),
    Mutation(
        "P28", "replicated state", "a cleaning does not wait for the table of sessions to be saved",
        "after a restart the table is made of what is left of the log: retries are appended twice",
        (edit(replica, "table_save", (
            "if not wanted and lag < r.cfg.table_save_entries and (base is None or base.id <= r.applied_id):",
            "if not wanted and lag < r.cfg.table_save_entries:",
        )),),
        world(clean_every_us=200 * MS, load=BUSY, faults=("crash", "crash_all")),
        ("equal tables", "exactly once", "sessions", "alarm", *LOST),
    ),
    Mutation(
        "P29", "R20", "a trim counts before its entry is guaranteed",
        "payloads are refused that a later leader still serves",
        (edit(Trims, "_derive", ("self._stack[0][1]", "self.head")),),
        world(load=replace(BUSY, operators=True), seconds=30), ("trimmed",),
    ),
    Mutation(
        "P50", "full disks", "a leader whose disk is low goes on taking appends",
        "the disk fills up to where votes and cleaning have no room either",
        (edit(Disks, "why_not", ("self.room is Room.PLENTY and (", "(")),), _FULL, ("no space",),
    ),
    Mutation(
        "P51", "full disks", "a server whose disk is all but full takes entries",
        "the disk fills up to where votes and cleaning have no room either",
        (edit(Disks, "takes_entries", ("self.room is not Room.NONE", "True")),), _FULL, ("no space",),
    ),
    Mutation(
        "P52", "full disks, R14", "a server without room vouches for the entries that it did not take",
        "guaranteed entries lost",
        (edit(Acceptance, "_take", ("upto, fresh = fresh[0].id - 1, []", "fresh = []")),), _FULL,
        ("alarm", "durable before sent", *LOST),
    ),
    Mutation(
        "P53", "full disks", "a server that had no room is never again taken to have some",
        "it stays behind for good",
        (edit(Replication, "on_answer", ("peer.room = answer.room", "peer.room = max(peer.room, answer.room)")),),
        _FULL, ("no progress",),
    ),
    Mutation(
        "P130", "full disks", "a voter that does not answer counts as one with space",
        "appends are taken that no majority can accept, and nobody is told why they wait",
        (edit(Disks, "_short_of_space", ("if lack is Lack.SILENT}", "if False}")),), _FULL, ("no space",),
    ),
    Mutation(
        "P54", "R31", "damage is treated as absence: the log ends before the first damaged entry",
        "guaranteed entries lost",
        (edit(Damage, "heard", ("self.ids = found.ids", "found.ids and r.expunge(found.ids[0])")),), _DAMAGED,
        ("alarm", "nothing guaranteed expunged", *LOST),
    ),
    Mutation(
        "P55", "R31", "a server whose disk is damaged gives votes",
        "a leader is made by a server that may not hold what it thinks it holds",
        (edit(dispatch, "_on_received", ("(r.damage.binds or r.disks.hangs)", "r.disks.hangs")),),
        _DAMAGED, ("damage",),
    ),
    Mutation(
        "P56", "R31", "a server whose disk is damaged accepts on",
        "an entry is called guaranteed that too few disks hold",
        (edit(Damage, "sound", ("min(id, self.first_id - 1) if self.first_id and self.binds else id", "id")),),
        _DAMAGED, ("damage",),
    ),
    Mutation(
        "P57", "R31", "a server whose disk was damaged is never sound again",
        "it votes and accepts no more",
        (edit(Damage, "heard", ("self.ids = found.ids", "self.ids = found.ids or self.ids")),), _DAMAGED,
        ("no progress", "damage"),
    ),
    Mutation(
        "P70", "R31", "copies of damaged entries are asked for, and the answers are not heeded",
        "it votes and accepts no more",
        (edit(Damage, "on_answer", ("r.out.mend(entry)", "pass")),), _DAMAGED, ("no progress",),
    ),
    Mutation(
        "P71", "R31", "a copy is taken whatever its term",
        "two servers hold different entries at one id for ever",
        (
            edit(Damage, "on_request", ("log.term_at(request.id) == request.entry_term", "True")),
            edit(Damage, "on_answer", ("if r.log.term_at(entry.id) == entry.term:", "if True:")),
        ),
        _TAILS, ("damage",),
    ),
    Mutation(
        "P72", "R31", "what another member has cleaned binds for ever",
        "it votes and accepts no more",
        (edit(Damage, "on_answer", ("self._gone_id = max(self._gone_id, answer.base_id)", "pass")),),
        _CLEANED, ("no progress",),
    ),
    Mutation(
        "P144", "R31", "what another member has cleaned says that all damage binds no more",
        "a server accepts entries beyond one that it lacks and others need",
        (edit(Damage, "on_answer", (
            "max(self._gone_id, answer.base_id)", "max(self._gone_id, answer.base_id, self.ids[-1])",
        )),),
        planned(network=ORDERED, load=BUSY, seconds=4), ("damage",), makes=once(_damage_beyond),
    ),
    Mutation(
        "P145", "R31", "a candidate whose disk is found damaged goes on",
        "a leader is made that may not hold what it thinks it holds",
        (edit(Damage, "heard", ("if self.binds and r.state is State.CANDIDATE:", "if False:")),),
        planned(network=ORDERED, load=BUSY, seconds=4), ("damage",), makes=once(_damaged_candidate),
    ),
)
