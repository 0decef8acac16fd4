"""Client requests at the leader, and the replies that wait for their entries to be guaranteed (R21-R24).

Laws:

* Success and every verdict leave only once what they rest on is guaranteed; replies wait in the order of the log.
* A leader that is deposed says LOST_LEADERSHIP for whatever it had appended or knew to be on its way, NOT_LEADER only
  for what it never took (R21).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from .entries import Kind
from .inputs import AppendRun, DropSession, OpenSession, Origin
from .machine.verdicts import (
    Accept,
    DropNow,
    Duplicate,
    OpenAgain,
    OpenNew,
    Refuse,
    seal_run,
)
from .ranks import State
from .ready import Appended, Code, Dropped, Opened, Refused, Reply

if TYPE_CHECKING:
    from .replica import Replica


class Waiting(NamedTuple):
    """A reply that leaves once ``id`` is guaranteed. ``taken``: the log may hold what it is about."""

    id: int
    reply: Reply
    taken: bool
    size_bytes: int


class Serving:
    """What the leader owes its clients."""

    def __init__(self, replica: Replica) -> None:
        self._r = replica
        self._waiting: deque[Waiting] = deque()  # ids never decrease
        #: Bytes of appends that are not yet guaranteed.
        self.inflight_bytes = 0

    @property
    def serves(self) -> bool:
        """Does it take what goes into the log?"""
        return self._r.state is State.LEADER and self._r.handing is None

    def _leader_hint(self) -> int:
        r = self._r
        return r.handing.target_id if r.handing is not None and r.state is State.LEADER else r.leader_id

    def not_leader(self, origin: Origin) -> None:
        self._r.out.refuse(origin, Code.NOT_LEADER, leader=self._leader_hint())

    # -- appends ----------------------------------------------------------------------------------------

    def append_run(self, run: AppendRun) -> None:
        r = self._r
        if not self.serves:
            r.out.reply(
                Refused(
                    run.origin, run.client, run.serial, len(run.bodies), Code.NOT_LEADER, leader=self._leader_hint()
                )
            )
            return
        for part in r.sessions.judge(run, r.log.last_id + 1, r.guaranteed_id):
            if type(part) is Accept:
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
        if why_not := r.disks.why_not:
            r.out.reply(
                Refused(run.origin, run.client, part.serial, len(part.bodies), Code.NO_SPACE, detail=why_not)
            )
            return
        entries = seal_run(
            part, run.client, run.epoch, r.log.last_id + 1, r.term, r.entry_time_ms(), r.log.next_lsn
        )
        size_bytes = r.append_entries(entries)
        self.inflight_bytes += size_bytes
        reply = Appended(run.origin, run.client, part.serial, [e[7] for e in entries], False)
        self._waiting.append(Waiting(r.log.last_id, reply, True, size_bytes))

    # -- sessions ---------------------------------------------------------------------------------------

    def open_session(self, request: OpenSession) -> None:
        r = self._r
        if not self.serves:
            return self.not_leader(request.origin)
        verdict = r.sessions.judge_open(request, r.log.last_id + 1, r.guaranteed_id)
        if isinstance(verdict, OpenNew) and (why_not := r.disks.why_not):
            return r.out.refuse(request.origin, Code.NO_SPACE, detail=why_not)
        if isinstance(verdict, OpenNew):
            entry = r.append_special(Kind.SESSION, verdict.body, request.name)
            verdict = r.sessions.judge_open(request, entry.id + 1, r.guaranteed_id)
        if isinstance(verdict, OpenAgain):
            self.answer(Opened(request.origin, verdict.epoch, verdict.last_serial), verdict.rests_on, taken=True)
        elif isinstance(verdict, Refuse):
            self.refuse(request.origin, verdict)

    def drop_session(self, request: DropSession) -> None:
        r = self._r
        if not self.serves:
            return self.not_leader(request.origin)
        verdict = r.sessions.judge_drop(request, r.log.last_id + 1, r.guaranteed_id)
        if isinstance(verdict, DropNow):
            entry = r.append_special(Kind.SESSION, verdict.body, request.name)
            self.answer(Dropped(request.origin, verdict.epoch), entry.id, taken=True)
        else:
            self.refuse(request.origin, verdict)

    def refuse(self, origin: Origin, verdict: Refuse) -> None:
        """The verdict on what is no append."""
        leader = self._r.leader_id if verdict.code is Code.NOT_LEADER else 0
        reply = Refused(origin, "", 0, 0, verdict.code, verdict.number, leader)
        self.answer(reply, verdict.rests_on, taken=False)

    # -- replies ----------------------------------------------------------------------------------------

    def answer(self, reply: Reply, rests_on: int, *, taken: bool) -> None:
        """At once if what it rests on is guaranteed; else behind what is under way, so that order is kept."""
        r = self._r
        if rests_on <= r.guaranteed_id and rests_on <= r.log.last_id:
            r.out.reply(reply)
        else:
            self._waiting.append(Waiting(r.log.last_id, reply, taken, 0))

    def answer_once_guaranteed(self, reply: Reply, id: int) -> None:
        """The reply to what entry ``id``, just appended, does."""
        self.answer(reply, id, taken=True)

    def release(self, guaranteed_id: int) -> None:
        """The mark has moved."""
        waiting, reply = self._waiting, self._r.out.reply
        while waiting and waiting[0].id <= guaranteed_id:
            done = waiting.popleft()
            self.inflight_bytes -= done.size_bytes
            reply(done.reply)

    def lose(self) -> None:
        """Deposed: the outcome of what was taken is unknown to us from now on."""
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
        self._waiting.clear()
        self.inflight_bytes = 0
