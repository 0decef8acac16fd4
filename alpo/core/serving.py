"""Service of a leader to clients: linearizable reads (R25), appends, opens and drops, and the replies that wait until
their entries are guaranteed (R21-R24).

Laws of reads:

* A read notes ``guaranteed_id`` only once an entry of the leader's own term is guaranteed.
* The read is answered only after a majority has answered a round of heartbeats that began after that. Rounds are
  numbered; a late answer to an earlier round proves nothing. The answer may cover entries that a majority holds and our
  own disk does not have yet: the shell takes those from the log's tail in memory.
* One round at a time serves all reads that wait.
* Operators' requests that only a confirmed leader may answer wait for a round in the same way (`operator_requests`),
  and so do appends that expect the log to be longer than it is (`serving`).

Laws of appends:

* Success and every verdict leave only once the entries that they rest on are guaranteed; replies wait in the order of
  the log.
* A deposed leader answers LOST_LEADERSHIP to requests that may be in the log, NOT_LEADER only to others (R21).
* A conditional append is taken only as the payload right behind the one that it expects to be the last. If another
  payload is the last, the refusal is a verdict. If the log does not reach so far, it is a verdict only of a leader that
  a read round confirms: a deposed leader may lack payloads that its asker knows of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from .disk_space import Disks
from .entries import Kind, lsns_of, seal_appends, seal_group
from .machine.verdicts import (
    Accept,
    DropNow,
    Duplicate,
    OpenAgain,
    OpenNew,
    Refuse,
)
from .replication import Replication
from .requests import (
    Appended,
    AppendRun,
    ChangeMember,
    ChangeSettings,
    Code,
    DropCursor,
    Dropped,
    DropSession,
    ListCursors,
    ListSessions,
    LogRequest,
    Opened,
    OpenSession,
    Origin,
    Outcome,
    ReadAt,
    ReadIndex,
    Refused,
    Reply,
    SetCursor,
    ShowSettings,
    Transfer,
    Trim,
)
from .shared import Shared

#: Requests that wait for a read round.
Asking: TypeAlias = (
    ReadIndex | Outcome | ListSessions | ChangeMember | Transfer | ShowSettings | ChangeSettings | SetCursor
    | DropCursor | ListCursors | Trim | AppendRun | LogRequest
)


class Reads:
    """The reads, and other requests, that wait for a round, in one reign. ``judge`` takes those requests after it."""

    def __init__(self, shared: Shared, replication: Replication, judge: Callable[[Asking], None]) -> None:
        self._r = shared
        self._replication = replication
        self._judge = judge
        self._new: list[Asking] = []
        self._asked: tuple[int, list[Asking]] | None = None  # (guaranteed id noted, requests) of the round under way
        #: True if any request waits for a round.
        self.waiting = False

    def ask(self, request: Asking) -> None:
        """Have ``request`` wait for the next round that begins."""
        self._new.append(request)
        self.waiting = True

    def advance(self) -> None:
        """Begin a round if requests wait for one, end the one that a majority answered, and answer its reads."""
        r = self._r
        if self._asked is not None and self._answered():
            index, requests = self._asked
            self._asked = None
            for request in requests:
                if isinstance(request, ReadIndex):
                    r.out.reply(ReadAt(request.origin, index))
                else:
                    self._judge(request)
        if self._asked is None and self._new and r.guaranteed_id >= self._replication.first_id:
            self._asked = (r.guaranteed_id, self._new)
            self._new = []
            self._replication.begin_round()
            if self._answered():  # a single voter needs no other's answer
                self.advance()
        self.waiting = bool(self._new or self._asked)

    def _answered(self) -> bool:
        r = self._r
        count = sum(1 for m in r.members.other_voters() if self._replication.peers[m.id].round >= r.round)
        return count + r.members.i_vote >= r.members.latest.majority

    def end(self) -> None:
        """Refuse every request that waits: this server leads no more, another may answer."""
        r = self._r
        waiting = [*self._new, *(self._asked[1] if self._asked else [])]
        for request in waiting:
            if isinstance(request, AppendRun):
                r.out.refuse_run(request, Code.NOT_LEADER, leader=r.leader_id)
            else:
                r.out.refuse(request.origin, Code.NOT_LEADER, leader=r.leader_id)


class Waiting(NamedTuple):
    """A reply that leaves once entry ``id`` is guaranteed. ``taken``: the request may be in the log."""

    id: int
    reply: Reply
    taken: bool
    size_bytes: int


class Serving:
    """Clients' requests in one reign, and the replies that wait."""

    def __init__(self, shared: Shared, disks: Disks, replication: Replication, reads: Reads) -> None:
        self._r = shared
        self._disks = disks
        self._replication = replication
        self._reads = reads
        self._waiting: deque[Waiting] = deque()  # ids never decrease
        #: Bytes of bodies of appends that are not yet guaranteed, or wait for a read round.
        self.inflight_bytes = 0

    @property
    def unanswered(self) -> int:
        """The number of replies that wait."""
        return len(self._waiting)

    # -- appends ----------------------------------------------------------------------------------------

    def append_runs(self, runs: Sequence[AppendRun]) -> None:
        """Judge runs of appends (R21) that came together, append those that are new, and answer them all, at once or
        later. Neighbours of different clients that bring one new append each become a group, which is appended at
        once: the work for one more of them is small."""
        r, at = self._r, 0
        while at < len(runs):
            count = r.sessions.group(runs, at, r.guaranteed_id) if r.serves else 0
            if count:
                at += self._append_group(runs[at : at + count])
            else:
                self.append_run(runs[at])
                at += 1

    def _append_group(self, group: Sequence[AppendRun]) -> int:
        """Append a group, or only the first of it, if its entry may end sessions of others; returns their number."""
        r = self._r
        if why_not := self._disks.why_not(self._replication):
            for run in group:
                r.out.reply(Refused(run.origin, run.client, run.serial, 1, Code.NO_SPACE, detail=why_not))
            return len(group)
        time_ms = self._replication.entry_time_ms()
        if r.sessions.may_end(time_ms):
            group = group[:1]
        appends = [(run.client, run.epoch, run.serial, run.bodies[0]) for run in group]
        entries = seal_group(appends, r.log.last_id + 1, r.term, time_ms, r.log.next_lsn)
        self.inflight_bytes += r.append_entries(entries)
        new, wait = tuple.__new__, self._waiting.append
        for run, entry in zip(group, entries, strict=True):
            lsn = entry[7]
            reply = new(Appended, (run[0], run[1], run[3], range(lsn, lsn + 1), False))
            wait(new(Waiting, (entry[0], reply, True, len(entry[10]))))
        return len(group)

    def append_run(self, run: AppendRun, *, confirmed: bool = False) -> None:
        """Judge a run of appends (R21), append those that are new, and answer them all, at once or later.
        ``confirmed``: a read round has confirmed this leader since the run came."""
        r = self._r
        if not r.serves:
            return r.not_leader(run)
        for part in r.sessions.judge(run, r.log.last_id + 1, r.guaranteed_id):
            if type(part) is Accept:
                if run.expect_last is None or self._holds(run, run.expect_last, confirmed):
                    self._accept(run, part)
            elif type(part) is Duplicate:
                reply = Appended(run.origin, run.client, part.serial, part.lsns, True)
                self.answer(reply, part.rests_on, taken=True)
            elif type(part) is Refuse:
                self.answer(
                    Refused(run.origin, run.client, part.serial, part.count, part.code, part.number,
                            leader=r.leader_id if part.code is Code.NOT_LEADER else 0),
                    part.rests_on, taken=False,
                )

    def _accept(self, run: AppendRun, part: Accept) -> None:
        r = self._r
        if why_not := self._disks.why_not(self._replication):
            r.out.reply(
                Refused(run.origin, run.client, part.serial, len(part.bodies), Code.NO_SPACE, detail=why_not)
            )
            return
        together = len(part.bodies) > 1
        entries = seal_appends(
            part.bodies, run.client, part.serial, run.epoch, r.log.last_id + 1, r.term,
            self._replication.entry_time_ms(), r.log.next_lsn, together=together,
        )
        size_bytes = r.append_entries(entries)
        self.inflight_bytes += size_bytes
        if not together:
            lsns = [e[7] for e in entries] if len(entries) > 1 else range(entries[0][7], entries[0][7] + 1)
            reply = Appended(run.origin, run.client, part.serial, lsns, False)
            self._waiting.append(Waiting(r.log.last_id, reply, True, size_bytes))
            return
        for entry in entries:
            reply = Appended(run.origin, run.client, entry.serial, lsns_of(entry), False)
            self._waiting.append(Waiting(entry.id, reply, True, len(entry.body)))

    def _holds(self, run: AppendRun, expect_last: int, confirmed: bool) -> bool:
        """True if a conditional append is to be taken; else it is refused, or judged again after a read round."""
        last_lsn = self._r.log.next_lsn - 1
        if expect_last == last_lsn:
            return True
        if expect_last > last_lsn and not confirmed:
            self.inflight_bytes += len(run.bodies[0][1])
            self._reads.ask(run)
        else:
            conflict = Refused(run.origin, run.client, run.serial, 1, Code.CONFLICT, last_lsn)
            self.answer(conflict, self._r.log.last_id, taken=False)
        return False

    def append_confirmed(self, run: AppendRun) -> None:
        """Judge a conditional append that has waited for a read round."""
        self.inflight_bytes -= len(run.bodies[0][1])
        self.append_run(run, confirmed=True)

    # -- sessions ---------------------------------------------------------------------------------------

    def open_session(self, request: OpenSession) -> None:
        """Open a named session, or answer that it was opened already, or refuse (R22)."""
        r = self._r
        if not r.serves:
            return r.not_leader(request)
        verdict = r.sessions.judge_open(request, r.log.last_id + 1, r.guaranteed_id)
        if isinstance(verdict, OpenNew) and (why_not := self._disks.why_not(self._replication)):
            return r.out.refuse(request.origin, Code.NO_SPACE, detail=why_not)
        if isinstance(verdict, OpenNew):
            entry = self._replication.append_special(Kind.SESSION, verdict.body, request.name)
            verdict = r.sessions.judge_open(request, entry.id + 1, r.guaranteed_id)
        if isinstance(verdict, OpenAgain):
            self.answer(Opened(request.origin, verdict.epoch, verdict.last_serial), verdict.rests_on, taken=True)
        elif isinstance(verdict, Refuse):
            self.refuse(request.origin, verdict)

    def drop_session(self, request: DropSession) -> None:
        """Drop a named session, or refuse (R22)."""
        r = self._r
        if not r.serves:
            return r.not_leader(request)
        verdict = r.sessions.judge_drop(request, r.log.last_id + 1, r.guaranteed_id)
        if isinstance(verdict, DropNow):
            entry = self._replication.append_special(Kind.SESSION, verdict.body, request.name)
            self.answer(Dropped(request.origin, verdict.epoch), entry.id, taken=True)
        else:
            self.refuse(request.origin, verdict)

    def refuse(self, origin: Origin, verdict: Refuse, detail: str = "") -> None:
        """Refuse a request other than an append by ``verdict``."""
        leader = self._r.leader_id if verdict.code is Code.NOT_LEADER else 0
        reply = Refused(origin, "", 0, 0, verdict.code, verdict.number, leader, detail)
        self.answer(reply, verdict.rests_on, taken=False)

    # -- replies ----------------------------------------------------------------------------------------

    def answer(self, reply: Reply, rests_on: int, *, taken: bool) -> None:
        """Reply at once if entry ``rests_on`` is guaranteed, else once the present head of the log is. ``taken``: the
        request may be in the log, so that its outcome is unknown if this leader is deposed first."""
        r = self._r
        if rests_on <= r.guaranteed_id and rests_on <= r.log.last_id:
            r.out.reply(reply)
        else:
            self._waiting.append(Waiting(r.log.last_id, reply, taken, 0))

    def answer_once_guaranteed(self, reply: Reply, id: int) -> None:
        """Hold the reply until entry ``id``, just appended, is guaranteed."""
        self.answer(reply, id, taken=True)

    def release(self, guaranteed_id: int) -> None:
        """Send the replies that waited for entries up to ``guaranteed_id``."""
        waiting, replies = self._waiting, self._r.out.ready.replies
        while waiting and waiting[0][0] <= guaranteed_id:
            _, reply, _, size_bytes = waiting.popleft()
            self.inflight_bytes -= size_bytes
            replies.append(reply)

    def end(self) -> None:
        """Refuse every request that waits: this leader is deposed, and cannot tell the outcome of those in the log."""
        r = self._r
        for waiting in self._waiting:
            reply = waiting.reply
            code = Code.LOST_LEADERSHIP if waiting.taken else Code.NOT_LEADER
            if isinstance(reply, Appended):
                count = len(reply.lsns)
                r.out.reply(Refused(reply.origin, reply.client, reply.serial, count, code, leader=r.leader_id))
            elif isinstance(reply, Refused):
                r.out.reply(reply._replace(code=code, number=0, leader=r.leader_id))
            else:
                r.out.refuse(reply.origin, code, leader=r.leader_id)
