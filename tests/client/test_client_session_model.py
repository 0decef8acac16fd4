"""The bookkeeping of appends against a hostile network: frames are lost, late, refused, taken without an answer.

Whatever happens, what the session says of an append must agree with the log, now and when the last late frame is in.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from alpo.client.arguments import After, single
from alpo.client.handle import Handle
from alpo.client.session import Session
from alpo.core.requests import Appended, Code
from alpo.errors import AlpoError, Conflict, NoSuchLog, NotGuaranteed, Overloaded, Unavailable
from alpo.wire.requests import VERSION, Append, AppendAfter, AppendRefused, ServerHello

OTHER = "~another client"
AWAY = (Code.NOT_LEADER, Code.LOST_LEADERSHIP)


class Cluster:
    """R21 for one log, as any leader of the moment has it."""

    def __init__(self) -> None:
        self.log: list[tuple[str, int, bytes]] = []
        self.last: dict[str, int] = {}
        self.ended: list[str] = []

    def take(self, client: str, serial: int, payload: bytes, expect_last: int | None) -> Appended | AppendRefused:
        if client in self.ended:
            return AppendRefused(client, serial, 1, Code.SESSION_EXPIRED, 0, 0, "", "")
        last = self.last.setdefault(client, 0)
        if serial <= last:
            if (client, serial, payload) not in self.log:
                return AppendRefused(client, serial, 1, Code.SERIAL_REUSED, 0, 0, "", "")
            return Appended(None, client, serial, [self.lsn(client, serial)], True)
        if serial != last + 1:
            return AppendRefused(client, serial, 1, Code.SERIAL_EXPECTED, last + 1, 0, "", "")
        if expect_last is not None and expect_last != len(self.log):
            return AppendRefused(client, serial, 1, Code.CONFLICT, len(self.log), 0, "", "")
        self.last[client] = serial
        self.log.append((client, serial, payload))
        return Appended(None, client, serial, [len(self.log)], False)

    def lsn(self, client: str, serial: int) -> int:
        return next(n for n, row in enumerate(self.log, 1) if row[:2] == (client, serial))


class Appends(RuleBasedStateMachine):
    """One random client. A frame on its way may arrive after its connection is long gone."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.session = Session(None, 50, 1 << 20)
        self.session.limit(ServerHello(VERSION, b"", 1, 0, 0, 1000, 1000, 5, 1, ()))
        self.connected = self.deleted = False
        self.ids = 0
        self.now_s = 0.0
        self.handles: list[Handle] = []
        #: Frames of the present connection that wait to be read, answers that wait to be heard.
        self.frames: deque[Append | AppendAfter] = deque()
        self.answers: deque[Any] = deque()
        #: Frames of lost connections.
        self.ghosts: list[Append | AppendAfter] = []

    # -- what the appender does ---------------------------------------------------------------------------------

    def pump(self) -> None:
        if not self.connected:
            return
        if self.session.client is None or not self.session.ready:
            self.ids += 1
            self.session.begin(f"~{self.ids}", 0, 0)
        while (append := self.session.next_append()) is not None:
            self.frames.append(append)

    def disconnect(self) -> None:
        self.ghosts += self.frames
        self.frames.clear()
        self.answers.clear()
        self.connected = False
        self.session.lost()

    def hear(self, answer: Any) -> None:
        if isinstance(answer, Appended):
            self.session.appended(answer)
        else:
            self.session.refused(answer)
        stalled = self.session.stalled
        if stalled is not None and not self.session.waits():
            if stalled in AWAY:
                self.disconnect()
            else:
                self.session.rewind()
        self.pump()

    def read_frame(self, frame: Append | AppendAfter) -> list[Any]:
        expect_last = frame.expect_last if isinstance(frame, AppendAfter) else None
        return [
            self.cluster.take(frame.client, frame.serial + n, item, expect_last) for n, item in enumerate(frame.items)
        ]

    # -- what happens -------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.connect()

    @rule(count=st.integers(1, 8), timeout_s=st.sampled_from([1.0, 5.0]))
    def append(self, count: int, timeout_s: float) -> None:
        for _ in range(count):
            payload = b"%d" % len(self.handles)
            try:
                self.handles.append(self.session.append(single(payload), 0, False, self.now_s + timeout_s))
            except Overloaded:
                return
        self.pump()

    @rule(beyond=st.sampled_from([-1, 0, 0, 0, 1, 2]), timeout_s=st.sampled_from([1.0, 5.0]))
    def append_after(self, beyond: int, timeout_s: float) -> None:
        payload, after = single(b"%d" % len(self.handles)), After(max(0, len(self.cluster.log) + beyond), 0)
        with suppress(Overloaded):
            self.handles.append(self.session.append(payload, after, False, self.now_s + timeout_s))
        self.pump()

    @rule(count=st.integers(1, 2))
    def another_client_appends(self, count: int) -> None:
        self.cluster.log += [(OTHER, 0, b"")] * count

    @precondition(lambda self: not self.connected)
    @rule()
    def delete(self) -> None:
        """The log is deleted, or was: nobody is found who takes anything."""
        self.deleted = True
        self.ghosts.clear()
        self.session.gone(NoSuchLog("there is no log"))
        assert self.session.idle

    @precondition(lambda self: not self.connected and not self.deleted)
    @rule()
    def connect(self) -> None:
        self.connected = True
        self.pump()

    @rule()
    def cut(self) -> None:
        if self.connected:
            self.disconnect()

    @rule(count=st.integers(1, 4))
    def serve(self, count: int) -> None:
        for _ in range(min(count, len(self.frames))):
            self.answers += self.read_frame(self.frames.popleft())

    @precondition(lambda self: self.frames)
    @rule(code=st.sampled_from([Code.NOT_LEADER, Code.OVERLOADED, Code.NOT_READY]))
    def refuse(self, code: Code) -> None:
        frame = self.frames.popleft()
        self.answers.append(AppendRefused(frame.client, frame.serial, len(frame.items), code, 0, 0, "", ""))

    @precondition(lambda self: self.frames)
    @rule(taken=st.booleans())
    def depose(self, taken: bool) -> None:
        frame = self.frames.popleft()
        if taken:
            self.read_frame(frame)
        code = Code.LOST_LEADERSHIP
        self.answers.append(AppendRefused(frame.client, frame.serial, len(frame.items), code, 0, 0, "", ""))

    @precondition(lambda self: self.ghosts)
    @rule(data=st.data())
    def ghost(self, data: st.DataObject) -> None:
        self.read_frame(self.ghosts.pop(data.draw(st.integers(0, len(self.ghosts) - 1))))

    @rule(count=st.integers(1, 8))
    def answer(self, count: int) -> None:
        for _ in range(count):
            if self.answers:
                self.hear(self.answers.popleft())

    @rule(passed_s=st.sampled_from([0.5, 2.0]))
    def pass_time(self, passed_s: float) -> None:
        self.now_s += passed_s
        self.session.expire(self.now_s)

    @precondition(lambda self: self.session.client is not None)
    @rule()
    def end_session(self) -> None:
        assert self.session.client is not None
        self.cluster.ended.append(self.session.client)

    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        if self.handles:
            self.session.withdraw(self.handles[data.draw(st.integers(0, len(self.handles) - 1))])

    # -- what must hold -----------------------------------------------------------------------------------------

    @invariant()
    def agrees_with_the_log(self) -> None:
        payloads = [payload for _, _, payload in self.cluster.log]
        mine = [payload for client, _, payload in self.cluster.log if client != OTHER]
        assert len(mine) == len(set(mine)), "appended twice"
        order = [int(payload) for payload in mine if not self.in_doubt(self.handles[int(payload)])]
        assert order == sorted(order), "out of order"
        for n, handle in enumerate(self.handles):
            payload = b"%d" % n
            if handle.done and handle.lsn is not None:
                assert payloads[handle.lsn - 1] == payload
                assert not isinstance(handle.wanted, After) or handle.lsn == handle.wanted.expect_last + 1
            elif isinstance(handle.error, Conflict):
                assert isinstance(handle.wanted, After) and handle.error.last_lsn != handle.wanted.expect_last
                assert payload not in payloads, "told of a conflict, yet in the log"
            elif handle.done and not isinstance(handle.error, NotGuaranteed):
                assert payload not in payloads, f"told {handle.error!r}, yet in the log"
        assert len(self.session.line) <= 5
        assert self.session.line.bytes == sum(h.parcel.size for h in self.session.line)
        assert self.session.queue.bytes == sum(h.parcel.size for h in self.session.queue.handles)
        serials = [h.serial for h in self.session.line]
        assert serials == list(range(self.session.next_serial - len(serials), self.session.next_serial))

    def in_doubt(self, handle: Handle) -> bool:
        """True if nobody can tell any more: what comes late under an id that was given up may be behind later ones. A
        conditional one may have been told as unknown before its id was given up."""
        given_up = isinstance(handle.wanted, After) and handle.client != self.session.client
        return isinstance(handle.error, NotGuaranteed) and (handle.error.too_old or given_up)

    def teardown(self) -> None:
        """The network heals: everything is settled, and late frames change nothing."""
        ghosts, self.ghosts = self.ghosts, []
        if self.deleted:
            self.delete()
        while not self.session.idle:
            if not self.connected:
                self.connect()
            self.serve(100)
            assert self.answers, "nothing is on its way, yet something waits"
            while self.answers:
                self.hear(self.answers.popleft())
        for frame in [*ghosts, *self.ghosts]:
            self.read_frame(frame)
        self.agrees_with_the_log()
        assert all(h.done for h in self.handles)
        assert self.session.outcomes.unknown == 0
        payloads = [payload for _, _, payload in self.cluster.log]
        settled = self.session.outcomes.take_settled()
        for serial, outcome in settled.items():
            if not isinstance(outcome, AlpoError):
                assert outcome is not None
                assert self.cluster.log[outcome - 1][1] == serial
        for n, handle in enumerate(self.handles):
            if isinstance(handle.error, Unavailable):
                assert b"%d" % n not in payloads


def test_a_conditional_append_comes_after_it_was_told_as_unknown_and_its_id_given_up() -> None:
    appends = Appends()
    appends.begin()
    appends.append_after(beyond=1, timeout_s=1.0)
    appends.cut()
    appends.pass_time(passed_s=2.0)
    appends.append(count=1, timeout_s=1.0)
    appends.teardown()


TestAppends = Appends.TestCase
TestAppends.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
