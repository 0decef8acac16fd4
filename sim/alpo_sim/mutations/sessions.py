"""Mutations of what clients are promised: exactly once, sessions, replies, reads (R21-R25)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from alpo.core import replica, serving
from alpo.core.entries import random_client
from alpo.core.machine.journal import JournalledSessions
from alpo.core.machine.verdicts import SERIAL_MAX, SessionTable
from alpo.core.parts import Reign
from alpo.core.replica import Replica
from alpo.core.replication import Replication
from alpo.core.requests import OpenSession
from alpo.core.serving import Reads, Serving
from alpo.core.settings import Settings

from ..host import WALL_ZERO_MS
from ..options import MS, SECOND, Load
from ..writers import NamedWriter
from .fault_plans import astray, behind, long_suffix, slow_zombie
from .mutation import Mutation, edit, swap
from .worlds import (
    CROWD,
    IDLE,
    LATE,
    LATER,
    NARROW,
    NEW_NAMES,
    ORDERED,
    READING,
    SAVING,
    Once,
    once,
    planned,
    repeated,
    world,
)


def _open_with_one_nonce(self: NamedWriter, *, fresh: bool) -> None:
    """Stand in for `NamedWriter._open`, with one nonce for all processes of a name."""
    if self.clients.closing or self.dead:
        return
    nonce = hashlib.blake2b(self.client.encode(), digest_size=16).digest()
    self._opening = self.origin()
    self._sent_at_us = self.clients.cluster.now_us
    self.clients.send(self.server, OpenSession(self._opening, self.client, self._replaces, nonce))


def _says(what: str, condition: str) -> tuple[str, str]:
    """A change of `Serving.answer` by which replies leave at once if ``condition`` holds."""
    return "if rests_on <= r.guaranteed_id and", f"if {condition} or rests_on <= r.guaranteed_id and"


def _last_serials(w: Once) -> Iterator[int]:
    """A client's last serial, and one beyond it, come together, twice."""
    leader, *_ = w.cast()
    client = random_client(WALL_ZERO_MS, 1)
    w.append(leader, client, SERIAL_MAX - 1, b"last but one", sparse=True)
    for _ in range(2):
        yield 50 * MS
        w.append(leader, client, SERIAL_MAX, b"last", b"beyond")


#: Load of many writers of one name each, most of whose appends are conditional.
CONDITIONAL = Load(6, 1, 20 * MS, 8, 20, False, 300 * MS, copied=0.2, same_name=0.0, conditional=0.8)
_READABLE = "min(self.guaranteed_id, self.log.stable_id)"

SESSIONS = (
    Mutation(
        "P89", "R23", "the appends of one request go into the log from the last to the first",
        "a reader finds a client's second append before its first",
        (edit(serving, "seal_appends", (
            "id, lsn = first_id, first_lsn", "id, lsn, serial = first_id, first_lsn, serial + len(bodies) - 1"), (
            "_groups(bodies) if together else ([each] for each in bodies)", "[[each] for each in bodies[::-1]]"), (
            "serial += len(group)", "serial -= 1",
        )),),
        world(load=CROWD), ("sessions", "exactly once"),
    ),
    Mutation(
        "P90", "R26", "a local reader sees what is not guaranteed", "it has seen what is expunged later",
        (edit(Replica, "readable_id", (_READABLE, "self.log.stable_id")),), world(), ("one log",),
    ),
    Mutation(
        "P91", "R26", "a local reader sees what is not on this disk", "it has seen what is lost in a crash",
        (edit(Replica, "readable_id", (_READABLE, "self.guaranteed_id")),), world(), ("durable before sent",),
    ),
    Mutation(
        "M7", "R25", "the leader answers reads at once",
        "a zombie serves stale data as current",
        (edit(Reads, "ask", (
            "self._new.append(request)", "self._r.out.reply(ReadAt(request.origin, self._r.guaranteed_id))",
        )),),
        planned(load=READING), ("linearizable",), makes=repeated(slow_zombie),
    ),
    Mutation(
        "P17", "R25", "any answer ends a read round, to whichever request",
        "a late answer to an earlier request proves nothing: stale data is served as current",
        (edit(Replication, "on_answer", ("max(peer.round, answer.round)", "r.round")),),
        planned(load=READING, network=LATE), ("linearizable",), makes=repeated(slow_zombie),
    ),
    Mutation(
        "P18", "R25", "a leader answers reads before an entry of its term is guaranteed",
        "it does not know yet what is guaranteed: stale data is served as current",
        (edit(Reads, "advance", ("and r.guaranteed_id >= self._replication.first_id", "")),),
        world(load=READING, faults=("crash", "crash_all", "stall")), ("linearizable",),
    ),
    Mutation(
        "M9", "R21", "the session table is not rolled back on an expunge",
        "a retried append is dropped though it was never guaranteed",
        (edit(Replica, "expunge", ("self.sessions.expunge(from_id)", "pass")),),
        world(load=CROWD, faults=("isolate", "cut", "crash")),
        ("no progress", "sessions", "acknowledged", "exactly once"), ("equal tables",),
    ),
    Mutation(
        "M10", "R21", "the session table forgets entries in flight",
        "a retry is appended twice",
        (edit(SessionTable, "_judge_known", ("parts = _joined(", (
            "if any(slot[0] == run.serial and slot[1] > guaranteed_id for slot in session.slots):\n"
            "        return [Accept(run.serial, run.bodies)]\n"
            "    parts = _joined("
        ))),),
        world(), ("exactly once", "sessions"),
    ),
    Mutation(
        "M11", "R21", "serial gaps are accepted",
        "a reordered retry is dropped as a duplicate",
        (edit(SessionTable, "_judge_new", ("run.sparse and not run.by_hand and len(run.bodies) == 1", "True")),),
        world(), ("refused for good",),
    ),
    Mutation(
        "S1", "R21", "a refusal for good leaves before what it rests on is guaranteed",
        "an entry that was refused for good is in the log; a live client is stranded",
        (edit(Serving, "answer", _says("refusals", "isinstance(reply, Refused)")),),
        world(load=CROWD, faults=("isolate", "pause", "cut", "crash")),
        ("refused for good", "sessions", "acknowledged"),
    ),
    Mutation(
        "S2", "R22", "an open is taken without comparing the epoch that it replaces",
        "a live writer is fenced by a ghost",
        (edit(SessionTable, "judge_open", ("if request.replaces != epoch:", "if False:")),),
        world(load=CROWD), ("sessions",),
    ),
    Mutation(
        "S2n", "R22", "every process of a name opens with the same nonce",
        "two live processes share an epoch: neither fences the other",
        (swap(NamedWriter, "_open", _open_with_one_nonce),),
        world(load=CROWD), ("sessions", "refused for good"),
    ),
    Mutation(
        "S2h", "R22", "an open is answered from the head of the log",
        "a client is given an epoch that is not in the log",
        (edit(Serving, "answer", _says("opens", "isinstance(reply, Opened)")),),
        world(load=CROWD), ("acknowledged",),
    ),
    Mutation(
        "S3", "R22", "the horizon is ignored",
        "a late retry of a session that has ended is appended twice",
        (edit(SessionTable, "_judge_unknown", ("if made_ms <= self.horizon_ms:", "if False:")),),
        world(settings=Settings(sessions_max=2, session_ttl_ms=2000), load=CROWD), ("exactly once", "sessions"),
    ),
    Mutation(
        "S4", "R21", "the payloads of a remembered serial are not compared",
        "a payload is acknowledged that is not in the log",
        (edit(SessionTable, "_judge_old", (" and same(digest, nth, *run.bodies[at])", "")),),
        world(load=CROWD), ("acknowledged",),
    ),
    Mutation(
        "S4e", "R21", "the epoch of a remembered serial is not compared",
        "a zombie's append is acknowledged that is not in the log",
        (edit(SessionTable, "_judge_old", ("epoch == run.epoch and same", "same")),),
        world(load=replace(CROWD, alike=True)),
        ("acknowledged",),
    ),
    Mutation(
        "S9", "R22", "an epoch from before a drop is told FENCED",
        "an entry that was refused for good is in the log",
        (
            edit(SessionTable, "_judge_unknown", ("Code.DROPPED", "Code.FENCED")),
            edit(SessionTable, "_judge_known", ("if run.epoch < session.birth:", "if False:")),
        ),
        world(load=replace(CROWD, operators=True, operator_every_us=SECOND)),
        ("refused for good", "sessions", "acknowledged"),
    ),
    Mutation(
        "P19", "R21", "an older epoch's serial that the table has forgotten is refused for good",
        "an append is refused for good that is in the log",
        (edit(SessionTable, "_judge_old", (
            "run.epoch != current and (after > 0 or serial > opened_last_serial or run.epoch > current)",
            "run.epoch != current",
        )),),
        world(settings=Settings(window=2), load=CROWD), ("refused for good",),
    ),
    Mutation(
        "P96", "R21", "a conditional append is compared with the last LSN that is guaranteed",
        "of two that expect the same LSN both are appended",
        (edit(Serving, "_holds", (
            "last_lsn = self._r.log.next_lsn - 1",
            "last = self._r.log.entry(self._r.guaranteed_id)\n"
            "    last_lsn = last.lsn + last.count - 1 if last else self._r.log.next_lsn - 1",
        )),),
        world(load=CONDITIONAL), ("nothing invented",),
    ),
    Mutation(
        "P97", "R21", "a conflict is told before the entries that it rests on are guaranteed",
        "an append is refused for good because of another that is expunged, and is appended by the next leader",
        (edit(Serving, "_holds", (
            "self.answer(conflict, self._r.log.last_id, taken=False)", "self._r.out.reply(conflict)",
        )),),
        world(load=CONDITIONAL, faults=("isolate", "pause", "cut", "crash")), ("refused for good",),
    ),
    Mutation(
        "P98", "R21", "a leader that no read round has confirmed says that the log does not reach so far",
        "a deposed leader refuses an append that expects what its client was told of",
        (edit(Serving, "_holds", (" and not confirmed", " and False")),),
        planned(load=replace(CONDITIONAL, quits=0.2, conditional=1.0)), ("linearizable",), makes=repeated(behind),
    ),
    Mutation(
        "P99", "R21", "the condition of an append is judged before its serial",
        "a retry of an append that is in the log is refused for good",
        (edit(Serving, "append_run", (
            "    for part in",
            "    if run.expect_last is not None and not self._holds(run, run.expect_last, confirmed):\n"
            "        return\n"
            "    for part in",
        )),),
        world(load=CONDITIONAL), ("refused for good", "linearizable"),
    ),
    Mutation(
        "P20", "R21", "a deposed leader says NOT_LEADER of what it had appended",
        "a client is told that its append was never taken, and the append is in the log",
        (edit(Serving, "end", ("Code.LOST_LEADERSHIP if waiting.taken else Code.NOT_LEADER", "Code.NOT_LEADER")),),
        world(faults=("isolate", "pause", "cut")), ("never taken",),
    ),
    Mutation(
        "P21", "R22", "an unknown epoch gets a verdict from a leader that has not come so far",
        "a live writer is fenced by a leader that does not know it yet",
        (
            edit(SessionTable, "_judge_unknown", ("if run.epoch > guaranteed_id:", "if False:")),
            edit(SessionTable, "_judge_known", ("if run.epoch > epoch and run.epoch > guaranteed_id:", "if False:")),
        ),
        planned(load=NEW_NAMES), ("sessions", "refused for good"), makes=repeated(astray),
    ),
    Mutation(
        "P22", "replicated state", "the table is saved as of the head of the log, not of the guaranteed mark",
        "what is expunged after a restart stays in the table: a retried append is dropped",
        (edit(replica, "table_save", ("r.sessions.rows_at(r.guaranteed_id)", "r.sessions.rows_at(r.log.last_id)")),),
        world(limits=SAVING + NARROW, network=LATER, faults=("crash", "crash_all", "isolate", "cut")),
        ("equal tables", "alarm", "no progress", "sessions", "acknowledged"),
    ),
    Mutation(
        "P143", "R21", "whether a serial is beyond the last one is not asked of appends that continue a client's",
        "an append is acknowledged, and its retry is refused for good",
        (edit(SessionTable, "judge", ("serial + count <= SERIAL_MAX + 1", "True")),),
        planned(network=ORDERED, load=IDLE, seconds=2), ("refused for good",), makes=once(_last_serials),
    ),
    Mutation(
        "P32", "R22", "the horizon is not taken back with what moved it",
        "a server that expunged the end of a session refuses new clients as if they had ended",
        (edit(JournalledSessions, "expunge", ("self.horizon_ms = before", "pass")),),
        planned(settings=Settings(sessions_max=1), limits=NARROW, load=replace(CROWD, quits=0.1)),
        ("equal tables", "sessions", "refused for good"), makes=repeated(long_suffix),
    ),
    Mutation(
        "P35", "R25", "a leader that is deposed keeps the reads that wait",
        "readers wait for a server that has forgotten them, though others serve",
        (edit(Reign, "end", ("self.reads.end()", "pass")),),
        world(load=READING, faults=("isolate", "pause", "cut")), ("answered",),
    ),
    Mutation(
        "P23", "R24", "success is told when the leader has appended",
        "an append is acknowledged that is lost with its leader",
        (edit(Serving, "_accept", (
            "self._waiting.append(Waiting(r.log.last_id, reply, True, size_bytes))", "r.out.reply(reply)"), (
            "self._waiting.append(Waiting(entry.id, reply, True, len(entry.body)))", "r.out.reply(reply)",
        )),),
        world(), ("acknowledged",),
    ),
    Mutation(
        "P24", "R24", "a retry is told that it is done while its entry is in flight",
        "an append is acknowledged that is lost with its leader",
        (edit(Serving, "answer", _says("duplicates", "isinstance(reply, Appended)")),),
        world(), ("acknowledged",),
    ),
)
