"""The parts of a replica by name, those that only a leader has, and the invariants that hold over all of them.

`Reign` is made when a reign begins and dropped when it ends. No part imports this module: `dispatch` and `replica` do.
`check_cheap` runs after every step in production too, `check_all` in tests and simulation. A server that breaks an
invariant stops itself (rules.md#invariants).
"""

from __future__ import annotations

from typing import Protocol

from .acceptance import Acceptance
from .changes import Changes
from .cleaning import Cleaning
from .damage import Damage
from .disk_space import Disks
from .election import Election
from .first_start import FirstStart
from .handover import Handover
from .members import Identity
from .messages import AppendAnswer, HandOver
from .operator_requests import OperatorRequests
from .ranks import State
from .replication import Progress, Replication
from .requests import AppendRun
from .serving import Asking, Reads, Serving
from .shared import InvariantBroken, Shared
from .snapshots import Installing


class Reign:
    """The parts of one reign, the time in which this server leads one term."""

    def __init__(
        self, shared: Shared, first_start: FirstStart, cleaning: Cleaning, disks: Disks, damage: Damage
    ) -> None:
        self._r = shared
        self._disks = disks
        self._damage = damage
        self.replication = Replication(shared, damage)
        self.reads = Reads(shared, self.replication, self._judge)
        self.serving = Serving(shared, disks, self.replication, self.reads)
        self.changes = Changes(shared, self.replication, self.serving, self.reads, first_start)
        self.operators = OperatorRequests(
            shared, self.replication, self.serving, self.reads, self.changes, cleaning
        )

    def _judge(self, request: Asking) -> None:
        if isinstance(request, AppendRun):
            self.serving.append_confirmed(request)
        else:
            self.operators.judge(request)

    def tick(self) -> None:
        """Do what is due by time: heartbeats, and stepping down when a majority is silent (R15), which ends the
        reign."""
        self.replication.tick()

    def advance(self) -> None:
        """Do what follows from all inputs of a step together: changes, reads, handovers, then sending. May end the
        reign."""
        r = self._r
        self.changes.advance()
        if self.reads.waiting:
            self.reads.advance()
        if self._disks.room or self._damage.ids or r.log.writes:
            self._disks.advance(self.replication)
        if r.state is State.LEADER:
            self.replication.flush()
            if not r.members.i_vote and r.members.latest_id <= r.guaranteed_id:
                self._leave()

    def deadline_s(self) -> float:
        due_s = self.replication.deadline_s()
        return due_s if self.changes.idle else min(due_s, self.changes.deadline_s())

    # -- inputs that change nothing ----------------------------------------------------------------------

    def _is_quiet(self) -> bool:
        """True if nothing is under way, and every member has all entries."""
        r = self._r
        return (
            r.guaranteed_id == r.fully_replicated_id == r.log.last_id and r.members.i_vote
            and self.changes.idle and not self.reads.waiting and not self._disks.room
        )

    def _is_level(self, peer: Progress) -> bool:
        """True if a peer is told all that there is, and has said that it has it, lately."""
        r = self._r
        return (
            peer.match_id == r.log.last_id and peer.sent_guaranteed_id == r.guaranteed_id and not peer.in_flight
            and not peer.probing and not peer.doubted_round and peer.who.id in r.connected
            and r.now_s - peer.heard_s < r.cfg.lately_s
        )

    def hears_again(self, sender: Identity, answer: AppendAnswer) -> bool:
        """Take an acceptance that only tells that its sender lives; returns False, and does nothing, if it tells more,
        or if something else is to be done."""
        r, replication = self._r, self.replication
        peer = replication.progress(sender)
        if (
            peer is None or not answer.ok or answer.term != r.term or answer.match_id != peer.match_id
            or answer.conflict_id or answer.room is not peer.room or answer.stopping is not peer.stopping
            or not self._is_level(peer) or not self._is_quiet() or r.now_s >= replication.quiet_until_s
        ):
            return False
        peer.heard_s, peer.really_heard = max(peer.heard_s, r.came_s), True
        peer.round, peer.accepted_round = max(peer.round, answer.round), max(peer.accepted_round, answer.round)
        peer.last_id = answer.last_id
        r.note_clock(sender.id, answer.wall_ms)
        self.advance()
        return True

    def beat(self) -> bool:
        """Send the heartbeats that are due; returns False, and does nothing, if something else is to be done."""
        replication = self.replication
        if not self._is_quiet() or not all(map(self._is_level, replication.peers.values())):
            return False
        replication.tick()
        self.advance()
        return True

    def _leave(self) -> None:
        """Hand over to the best heir and become passive: the entry that removes this leader is guaranteed (R27)."""
        r = self._r
        best = next(iter(self.replication.heirs()), None)
        if best is not None:
            r.out.send(best.who, HandOver(r.term))
        r.become_passive()

    def end(self) -> None:
        """Refuse every request that waits, as this server leads no more; each refusal tells whether the request may be
        in the log."""
        self.changes.end()
        self.serving.end()
        self.reads.end()


class Watch:
    """Marks as of the step before, for `check_cheap`."""

    def __init__(self) -> None:
        self.term = 0
        self.guaranteed_id = 0
        self.persisted = 0


class Parts(Shared, Protocol):
    """A replica and its parts. `dispatch` sets the attributes that are no properties."""

    came_s: float
    connected: set[int]
    seen_addresses: dict[Identity, str]
    wrong_incarnations: dict[int, bytes]
    #: True once a member has told us that our incarnation is no member any more (R30).
    retired: bool

    @property
    def election(self) -> Election: ...

    @property
    def acceptance(self) -> Acceptance: ...

    @property
    def cleaning(self) -> Cleaning: ...

    @property
    def disks(self) -> Disks: ...

    @property
    def damage(self) -> Damage: ...

    @property
    def first_start(self) -> FirstStart: ...

    @property
    def installing(self) -> Installing: ...

    @property
    def reign(self) -> Reign | None:
        """The parts that only a leader has; None while this server does not lead."""

    @property
    def handover(self) -> Handover | None:
        """The handover under way; None if there is none."""

    @property
    def watch(self) -> Watch: ...


def check_cheap(r: Parts) -> None:
    """Check marks and states, against each other and against the step before. Raises `InvariantBroken`."""
    seen, log = r.watch, r.log
    if r.term < seen.term or r.guaranteed_id < seen.guaranteed_id or r.out.persisted < seen.persisted:
        raise InvariantBroken("the term, the guaranteed mark or what is on disk went back")
    if not log.base_id <= r.guaranteed_id <= log.last_id or log.stable_id > log.last_id:
        raise InvariantBroken(
            f"marks out of order: guaranteed {r.guaranteed_id}, stable {log.stable_id}, last {log.last_id}"
        )
    if r.fully_replicated_id > r.guaranteed_id:
        raise InvariantBroken("the fully replicated mark is beyond the guaranteed one (R16, R18)")
    if (r.state is State.LEADER) != (r.reign is not None) or (r.state is State.CANDIDATE) != (
        r.election.cycle is not None
    ):
        raise InvariantBroken(f"state {r.state.value} and its parts do not fit")
    if r.state is not State.PASSIVE and (r.vote != r.me.id or not r.first_start.started):
        raise InvariantBroken(f"{r.state.value} without its own vote, or before the first start (R3, R29)")
    seen.term, seen.guaranteed_id, seen.persisted = r.term, r.guaranteed_id, r.out.persisted


def check_all(r: Parts) -> None:
    """Check everything that can be checked within one server. Raises `InvariantBroken`."""
    check_cheap(r)
    log = r.log
    terms = [term for term, _ in log.runs]
    firsts = [first for _, first in log.runs]
    if terms != sorted(set(terms)) or firsts != sorted(set(firsts)):
        raise InvariantBroken(f"runs out of order: {log.runs}")
    if log.runs and (log.runs[-1][0] != log.last_term or log.last_term > r.term):
        raise InvariantBroken("the last run is not the last term, or beyond the server's term")
    before = None
    for id in range(max(log.stable_id - 4, log.base_id) + 1, log.last_id + 1):
        entry = log.entry(id)
        if entry is None:
            if id > log.stable_id:
                raise InvariantBroken(f"entry {id} is neither on disk nor in memory")
            continue
        if entry.id != id or entry.term != log.term_at(id):
            raise InvariantBroken(f"entry {id} is not where it should be")
        if before is not None and (entry.lsn != before.lsn + before.count or entry.time_ms < before.time_ms):
            raise InvariantBroken(f"entry {id} does not follow on: LSN or time")
        before = entry
    if before is not None and log.next_lsn != before.lsn + before.count:
        raise InvariantBroken("the next LSN does not follow the last entry")
    if r.reign is not None:
        for peer in r.reign.replication.peers.values():
            if not peer.match_id <= log.last_id or peer.next_id <= peer.match_id or peer.next_id > log.last_id + 1:
                raise InvariantBroken(f"progress of {peer.who.id} out of order")
