"""What a server claims, held against its disk, against what it heard and against what it was given as bounds.

Laws:

* What readers may see is guaranteed and on that server's own disk (R25, R26).
* Everything here is an account of our own: what is on which disk, who answered whom, whose clock stood where.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from alpo.core.disk import StartState, Write
from alpo.core.entries import Entry, Kind
from alpo.core.inputs import Input, Received
from alpo.core.members import Identity, StartStatus
from alpo.core.messages import (
    Defer,
    DeferAnswer,
    DeferRequest,
    Envelope,
    StartAnswer,
    Vote,
    VoteAnswer,
)
from alpo.core.ranks import State
from alpo.core.ready import ReadAt, Ready
from alpo.core.replica import Replica
from alpo.core.replication import REQUESTS_MAX

from ..broken import Broken
from ..host import WALL_ZERO_MS, Host
from .lists import list_before
from .safety import Safety

if TYPE_CHECKING:
    from ..stage import Stage

_DATA, _MEMBERS = int(Kind.DATA), int(Kind.MEMBERS)
#: Clocks are carried forward by monotonic ones, which may run so much too fast for as long as the world has lasted.
DRIFT_MAX = 0.1
CLOCK_SLACK_MS = 1000


class Answered:
    """What a candidate was told in a term. ``held``: voter -> who has its vote; ``granted`` and ``held`` hold all that
    make it electable (R5)."""

    def __init__(self, term: int) -> None:
        self.term = term
        self.granted: dict[int, bool] = {}
        self.held: dict[int, int] = {}
        self.deferred: dict[int, bool] = {}

    def note(self, sender: Identity, answer: VoteAnswer | DeferAnswer) -> None:
        if isinstance(answer, DeferAnswer):
            if answer.answer is Defer.DEFERRED:
                self.deferred[sender.id] = True
        elif answer.answer is Vote.GRANTED:
            self.granted[sender.id] = True
            self.held.pop(sender.id, None)
        elif answer.answer is Vote.HELD:
            self.held[sender.id] = answer.holder

    @property
    def electable(self) -> int:
        """Voters that granted or held, itself included."""
        return 1 + len(self.granted.keys() | self.held.keys())

    @property
    def free(self) -> int:
        """Votes granted, its own included, and those whose holders made way (R7)."""
        return 1 + len(self.granted) + sum(holder in self.deferred for holder in self.held.values())


class Claims:
    """One watcher for all servers. ``safety`` knows what is guaranteed, and what is on every disk."""

    def __init__(self, stage: Stage, safety: Safety) -> None:
        self._stage, self._safety = stage, safety
        #: On that disk, the last; before it those that its last commit passed through: what waited for one of its
        #: writes leaves once all are there, and speaks of then.
        self._starts: dict[Identity, list[StartState]] = {}
        self._answered: dict[int, Answered] = {}  # of candidates
        self._stood: dict[int, int] = {}  # server -> the term in which it stood after its last step, or 0
        self._offset_ms: dict[int, int] = {}  # server -> the furthest ahead that its wall clock ever was
        self._fully_id = 0  # found to be on all disks

    def booted(self, host: Host) -> None:
        assert host.replica is not None
        self._starts[host.replica.me] = [host.replica.first_start.state]
        self._answered.pop(host.id, None)
        self._stood[host.id] = 0

    def committing(self, host: Host, writes: Sequence[Write]) -> None:
        assert host.replica is not None
        self._starts[host.replica.me].extend(write.start for write in writes if write.start is not None)

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        replica = host.replica
        assert replica is not None
        del self._starts[replica.me][:-1]
        self._offset_ms[host.id] = max(host.wall_offset_ms, self._offset_ms.get(host.id, host.wall_offset_ms))
        self._check_readable(host, replica, ready)
        if replica.fully_replicated_id > replica.guaranteed_id:
            raise Broken("fully replicated", f"server {host.id} calls entry {replica.fully_replicated_id} fully "
                         f"replicated, and {replica.guaranteed_id} is guaranteed")
        if replica.fully_replicated_id > self._fully_id:
            self._check_fully_replicated(host, replica, ready)
        for each in inputs:
            if type(each) is Received and isinstance(each.envelope.message, VoteAnswer | DeferAnswer):
                self._note_answer(host, each.envelope.sender, each.envelope.message)
        self._check_stands(host, replica)
        if replica.leadership is not None:
            self._check_window(host, replica)
            if ready.write is not None and ready.write.entries:
                self._check_in_flight(host, replica)
                for entry in ready.write.entries:
                    if entry.term == replica.term:
                        self._check_appended(host, replica, entry)

    def sent(self, host: Host, envelope: Envelope) -> None:
        if type(envelope.message) is StartAnswer:
            self._check_start_answer(host, envelope.message)
        elif type(envelope.message) is DeferRequest:
            self._check_electable(host, envelope.message)

    # -- readers ----------------------------------------------------------------------------------------

    def _check_readable(self, host: Host, replica: Replica, ready: Ready) -> None:
        readable = replica.readable_id
        if readable > replica.guaranteed_id:
            raise Broken("one log", f"server {host.id} shows readers entry {readable}; {replica.guaranteed_id} is "
                         f"guaranteed")
        for upto_id in (readable, *(reply.id for reply in ready.replies if type(reply) is ReadAt)):
            if upto_id > host.disk_last_id:
                self._safety.too_soon(host, f"readers to entry {upto_id}")

    # -- the leader -------------------------------------------------------------------------------------

    def _check_fully_replicated(self, host: Host, replica: Replica, ready: Ready) -> None:
        """On the disks of all members of the list in force, and of the one before it while that one is guaranteed and
        this one is not."""
        mark, guaranteed = replica.fully_replicated_id, self._safety.guaranteed
        term = guaranteed[mark - 1].term if mark <= len(guaranteed) else 0
        last_id, members = list_before(replica, ready)
        lists = [members] if last_id <= replica.guaranteed_id else [members, replica.members.at(last_id - 1)[1]]
        for member in [member for each in lists for member in each.replicas]:
            if not term or self._safety.disk_term_at(member.identity, mark) != term:
                raise Broken("fully replicated", f"server {host.id} calls entry {mark} fully replicated; server "
                             f"{member.id} does not have it")
        self._fully_id = mark

    def _check_window(self, host: Host, replica: Replica) -> None:
        assert replica.leadership is not None
        for peer in replica.leadership.peers.values():
            flying = peer.in_flight
            if flying and (
                len(flying) > REQUESTS_MAX
                or peer.in_flight_bytes - flying[-1][1] >= replica.cfg.peer_inflight_bytes_max
            ):
                raise Broken("bounds", f"leader {host.id} has {len(flying)} requests of {peer.in_flight_bytes} bytes "
                             f"in flight to {peer.who.id}")

    def _check_in_flight(self, host: Host, replica: Replica) -> None:
        assert replica.leadership is not None
        size_bytes = 0
        for id in range(max(replica.guaranteed_id + 1, replica.leadership.first_id), replica.last_id + 1):
            entry = replica.log.entry(id)
            if entry is not None and entry.kind == _DATA:
                size_bytes += len(entry.body)
        if replica.inflight_bytes < size_bytes:
            raise Broken("bounds", f"leader {host.id} counts {replica.inflight_bytes} bytes in flight; there are "
                         f"{size_bytes}")

    def _check_appended(self, host: Host, replica: Replica, entry: Entry) -> None:
        assert replica.leadership is not None
        before = replica.log.entry(entry.id - 1)
        if before is not None and entry.time_ms > before.time_ms and entry.time_ms > self._time_max_ms(replica, entry):
            raise Broken("entry time", f"entry {entry.id} of leader {host.id} is later than all voters' clocks but one")
        if entry.kind == _MEMBERS:
            last_id = replica.members.at(entry.id - 1)[0]
            if max(last_id, replica.leadership.first_id) > replica.guaranteed_id:
                self._too_early(host, entry.id, max(last_id, replica.leadership.first_id))

    def _too_early(self, host: Host, id: int, waits_for_id: int) -> None:
        raise Broken("members", f"leader {host.id} appends member list {id} before entry {waits_for_id} is guaranteed")

    def _time_max_ms(self, replica: Replica, entry: Entry) -> float:
        """No entry may be later than where all voters' clocks but one stand, or ever stood; a leader that is about to
        leave the list goes by its own as well."""
        ids = {voter.id for voter in replica.members.at(entry.id - 1)[1].voters} | {replica.me.id}
        offsets = sorted(self._offset_ms.get(id, 0) for id in ids)
        ahead_ms = offsets[-2] if len(offsets) > 1 else offsets[-1] if offsets else 0
        return WALL_ZERO_MS + self._stage.now_us / 1000 * (1 + DRIFT_MAX) + ahead_ms + CLOCK_SLACK_MS

    # -- candidates and first starts --------------------------------------------------------------------

    def _note_answer(self, host: Host, sender: Identity, answer: VoteAnswer | DeferAnswer) -> None:
        known = self._answered.get(host.id)
        if known is None or known.term < answer.request_term:
            known = self._answered[host.id] = Answered(answer.request_term)
        if known.term == answer.request_term:  # else a late one
            known.note(sender, answer)

    def _check_electable(self, host: Host, request: DeferRequest) -> None:
        assert host.replica is not None
        known = self._answered.get(host.id)
        count = known.electable if known is not None and known.term == request.term else 1
        if count < host.replica.members.latest.majority:
            raise Broken("electable", f"server {host.id} asks others to defer; {count} granted or held in its term")

    def _check_stands(self, host: Host, replica: Replica) -> None:
        """R7: whoever stands anew at a deferral has votes enough, granted or given up by their holders."""
        stood = self._stood.get(host.id, 0)
        self._stood[host.id] = replica.term if replica.state is State.CANDIDATE else 0
        cycle = replica.election.cycle
        if not stood or cycle is None or replica.term != stood + 1 or cycle.handed_over:
            return
        known = self._answered.get(host.id)
        free = known.free if known is not None and known.term == stood else 1
        if free < replica.members.latest.majority:
            raise Broken("electable", f"candidate {host.id} stands anew, in term {replica.term}; {free} votes of term "
                         f"{stood} were granted or given up")

    def _check_start_answer(self, host: Host, answer: StartAnswer) -> None:
        assert host.replica is not None
        states = self._starts[host.replica.me]
        starting = answer.status is StartStatus.STARTING
        if not any(
            answer.status is state.status and (not starting or answer.incarnations == state.incarnations)
            for state in states
        ):
            self._safety.too_soon(host, f"that it is {answer.status.name}, and is {states[-1].status.name}")
