"""The tasks behind a `Log`'s appends: one finds the leader and hears its answers, one sends, one watches the time.

Laws:

* `session` decides what is sent and what an answer means; this module decides only where and when.
* Everything that queued goes into one frame; everything that one receive brought is heard before anything is sent.
* No task, event or timer per append: deadlines are looked at every `TICK_S`.
* Callers that wait may append by themselves, in their own task or thread, once `LONE` of their appends in a row met
  nothing else under way: the connection and the serials are lent to them, until anything else comes.
* A server that is silent while appends are unanswered is suspected: the others are asked who leads, and the connection
  is given up only for a better one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from functools import partial
from threading import get_ident

import anyio

from alpo.core.requests import Appended, Code, Opened
from alpo.errors import AlpoError, Closed, NoSpace, Refused, Unavailable
from alpo.wire.client_codec import encode, encode_parts
from alpo.wire.requests import AppendRefused, RequestRefused, ServerReply, Status, StatusAnswer

from .arguments import Parcel, Place, check_name, need_append, need_seconds
from .connection import Connection, Lost
from .handle import Handle
from .loan import LONG_S, Loan, Maker
from .reasons import AWAY
from .retry import Pauses
from .servers import CLOSED, Final, Servers
from .session import Opening, Session, nonces, random_id
from .tasks import FORKED_WHY, Bell, Event, Living, News, watch_forks

TICK_S = 0.05
#: A server silent for SUSPECT_S with appends unanswered: ask the others. Silent for STUCK_S: a new connection to the
#: same server is better than the old one; the next time only after twice as long, until it answers, since all is sent
#: again. A connection on which bytes still move is not silent.
SUSPECT_S, STUCK_S = 0.3, 2.0
PROBE_EVERY_S, PROBE_S = 0.2, 1.0
#: Seconds before a deadline from which on a leader that has not answered is asked what it lacks, and between two such
#: questions.
INQUIRE_S = 1.0
#: Appends of waiting callers in a row, each with nothing else under way, before callers append by themselves.
LONE = 8
#: Longest wait for the answers that are still on their way from a server that leads no more.
PARTING_S = 0.02
#: Bytes of appends under way from which on it is looked whether they can be sent without a copy.
_LARGE_BYTES = 32 << 10


class Appender:
    """The tasks that send one client's appends, in one event loop: the one where `start` was called, or else the first
    append made."""

    def __init__(
        self, servers: Servers, client: str | None, timeout_s: float, queue_max: int, queue_bytes_max: int
    ) -> None:
        self.tasks = Living("Log", self._run_manager, self._run_writer, self._run_watch, ended=self._all_over)
        # Facts about the loop of the tasks, which every append reads. (More than 30 attributes would be slower.)
        self._clock: Callable[[], float]
        self._new_event: Callable[[], Event]
        self._runs: Callable[[], bool]
        self._thread = 0
        self.named = client is not None
        self._servers = servers
        self._timeout_s = timeout_s
        self._session = Session(
            None if client is None else check_name(client), queue_max, queue_bytes_max, self._begin_wait
        )
        self._opening = None if client is None else Opening(client, nonces(servers.rng))
        self._open_refused: AlpoError | None = None
        self._horizon_ms = 0
        self._connection: Connection | None = None
        self._stuck_s = STUCK_S
        self._moved_bytes: int | None = None  # `Connection.moved_bytes` at the last look; None: not looked yet
        #: A better connection than the present one, found by the watch.
        self._better: Connection | None = None
        self._scope: anyio.CancelScope
        self._heard_s = self._probed_s = 0.0
        self._probing = False
        #: Number of the latest question about what the leader lacks, on the connection that it was sent on.
        self._inquiry = 0
        self._inquired_s = 0.0
        #: The loan to callers, while there is one; and the number of lone appends in a row.
        self.loan: Loan | None = None
        self._lone = 0
        #: The pauses before appends without an answer are sent again.
        self._pauses = Pauses()
        self._manager, self._writer, self._watch = Bell(), Bell(), Bell()
        self.news, self._room = News(), News()
        watch_forks(self)

    # -- the caller's side ------------------------------------------------------------------------------------

    @property
    def client(self) -> str | None:
        return self._session.client

    @property
    def epoch(self) -> int:
        """The session's epoch. Raises `Unavailable` while the named session is not open."""
        self._require_open()
        return self._session.epoch

    @property
    def last_serial(self) -> int:
        """The session's last serial as of its opening. Raises `Unavailable` while the named session is not open."""
        self._require_open()
        return self._session.opened_last

    def start(self) -> None:
        """Start the tasks. Raises `Closed`."""
        self._require_usable()
        loop = self.tasks.start()
        self._clock, self._new_event = loop.clock, loop.new_event
        self._runs, self._thread = loop.runs, get_ident()

    def _require_usable(self) -> None:
        """Raises `Closed` once the session was closed."""
        if isinstance(self._session.ended, Closed):
            raise copy(self._session.ended)

    def _come_home(self) -> None:
        """Start the tasks, unless they are. Raises `Closed`, and RuntimeError in another loop than theirs."""
        self._require_usable()
        if not self.tasks.started:
            self.start()
        self.tasks.need_home()

    def _require_open(self) -> None:
        if self.named and not self._session.ready:
            self._require_usable()
            raise self.unavailable("the session is not open yet: await opened()")

    def forked(self) -> None:
        """End everything in a forked child: the appends under way are the parent's."""
        self._session.leave(Closed(FORKED_WHY))
        self._connection = self._better = self.loan = None

    def deadline_s(self, timeout_s: float | None) -> float:
        """The deadline of an append made now, seconds of the loop's clock: every append begins here. Raises TypeError,
        ValueError, and as `_come_home`."""
        if get_ident() != self._thread or not self._runs():
            self._come_home()
        if timeout_s is None:
            return self._clock() + self._timeout_s
        need_seconds(timeout_s)
        return self._clock() + timeout_s

    def append(
        self, parcel: Parcel, place: Place, sparse: bool, deadline_s: float, awaited: bool = False
    ) -> Handle:
        """Queue an append and return its handle; ``awaited``: the caller awaits it at once. Raises as `Session.append`,
        and TypeError or ValueError for a wrong serial."""
        if self.loan is not None:
            self.take_back()
        if place is None:
            handle = self._session.append(parcel, 0, False, deadline_s)
        else:
            need_append(place, None)
            handle = self._session.append(parcel, place, sparse, deadline_s)
        if self._writer.parked and not (awaited and not self._session.line.handles):
            self._writer.ring()
        if self._watch.parked:
            self._watch.ring()
        if self._manager.parked:
            self._manager.ring()
        return handle

    def withdraw(self, handle: Handle) -> None:
        self._session.withdraw(handle)

    def unavailable(self, what: str) -> AlpoError:
        """The error for what was not done, with the last known reason."""
        self._session.reason = self._servers.reason
        return self._session.unavailable(what)

    async def wait_room(self, size: int, deadline_s: float | None) -> None:
        """Wait until ``size`` bytes may be queued, or the session has ended. Raises `Unavailable` at the deadline."""
        session = self._session
        if session.queue.has_room(size) or session.ended is not None:
            return
        with anyio.CancelScope(deadline=float("inf") if deadline_s is None else deadline_s):
            while not session.queue.has_room(size) and session.ended is None:
                await self._room.wait()
            return
        raise self.unavailable("there was no room in the local queue in time")

    async def opened(self) -> None:
        """Wait until the named session is open. Raises `Refused` if the cluster takes no more names."""
        self.tasks.need_home()
        if self.named and not self.tasks.started:
            self.start()
        while self.named and not self._session.ready:
            if self._open_refused is not None:
                raise self._open_refused.with_traceback(None)
            if self._session.ended is not None:
                raise self._session.ended.with_traceback(None)
            await self.news.wait()

    async def settle(self) -> dict[int, int | None | AlpoError]:
        """Wait until every append told as unknown has an outcome; returns the outcomes, by serial."""
        self.tasks.need_home()
        while self._session.outcomes.unknown:
            await self.news.wait()
            self._require_usable()
        return self._session.outcomes.take_settled()

    async def drain(self) -> None:
        """Wait until every append has been told an outcome; the deadlines bound the wait."""
        self.take_back()
        while not self._session.told:
            await self.news.wait()

    def close(self, why: str = CLOSED) -> Exception | None:
        """End the session and all its appends; returns the first error that nobody was told, or None."""
        self.take_back()
        error = self._session.close(why)
        self._tell()
        return error

    def _all_over(self, why: str) -> None:
        """End the whole log, whose tasks have ended: its loop is about to, or one of them has failed."""
        self.close(why)
        self._servers.close(why)

    # -- appends of callers -----------------------------------------------------------------------------------

    def note_lone(self, lone: bool) -> None:
        """Note an append that its caller waits for, and which is queued; ``lone``: nothing else was on the way to this
        log."""
        alone = lone and len(self._session.queue) + len(self._session.line) == 1
        self._lone = self._lone + 1 if alone else 0

    @property
    def maker(self) -> Maker:
        """The maker of appends of those to whom the connection is lent."""
        return self._session.own_append

    async def _lend(self, connection: Connection, serial: int) -> list[ServerReply]:
        """Lend the connection to callers, until it is taken back; returns what they heard and left. Raises `Lost`."""
        session = self._session
        loan = Loan(connection, self.maker, serial, session.sure_bytes, self._clock, self._timeout_s, self.end)
        self.loan = loan
        self._watch.ring()
        try:
            await loan.ended.wait()
        finally:
            self.take_back()
        if loan.lost is not None:
            raise loan.lost
        return loan.heard

    def take_back(self) -> None:
        """End the loan to callers, if there is one: the append under way is sent, and goes on here."""
        loan, self.loan = self.loan, None
        if loan is None:
            return
        self._lone = 0
        under_way = loan.end()
        if loan.lost is not None:
            self._connection = None  # nothing more is sent there
        self._session.take_back(loan.serial, under_way)
        self._heard_s = self._clock() if under_way is None else loan.sent_s
        self._writer.ring()
        self._watch.ring()

    def end(self, loan: Loan) -> None:
        """End this loan, unless that was done."""
        if self.loan is loan:
            self.take_back()

    async def go_on(self, loan: Loan, handle: Handle) -> None:
        """End this loan, and wait for the append that was under way; `Handle.error` tells how it ended."""
        self.end(loan)
        with suppress(AlpoError):
            await handle

    # -- finding the leader, hearing it -----------------------------------------------------------------------

    async def _run_manager(self) -> None:
        while True:
            while not self._wanted():
                await self._manager.wait()
            connection = self._better
            self._better = None
            try:
                if connection is None:
                    await anyio.sleep(self._pauses.take_s())
                    connection = await self._servers.leader()
                await self._serve(connection)
            except Final as lost:
                self._open_refused = lost.reason
                self._session.gone(lost.reason)
                self._tell()
            except Lost:
                pass  # the log is closed, and this task is about to be cancelled
            finally:
                self._connection = None
                if connection is not None:
                    self._servers.drop(connection)
                self._session.lost()
                if self._opening is not None:
                    self._opening.lost()

    def _wanted(self) -> bool:
        """True if a leader is needed: a session is to be opened, or appends are not settled."""
        session = self._session
        unopened = self.named and not session.ready and session.ended is None and self._open_refused is None
        return unopened or not session.idle

    async def _serve(self, connection: Connection) -> None:
        """Work with this leader until it is lost, leads no more, or a better one is found."""
        hello = connection.hello
        self._servers.hint = connection.address
        self._horizon_ms = max(self._horizon_ms, hello.horizon_ms)
        self._session.limit(hello)
        self._heard_s = self._clock()
        self._moved_bytes = None
        with anyio.CancelScope() as self._scope:
            try:
                self._begin(connection)
                self._connection = connection
                self._pump()
                while not connection.closed and await self._go_on(connection):
                    pass
            except Lost as lost:
                self._servers.reasons.lost(connection.address, lost.reason)
                if self._servers.hint == connection.address:
                    self._servers.hint = None

    def _begin(self, connection: Connection) -> None:
        session = self._session
        if session.ready or session.ended is not None:
            return
        if self._opening is None:
            id = random_id(connection.hello.time_ms, self._horizon_ms, self._servers.rng.randbytes)
            session.begin(id, 0, 0)
        else:
            self._open_refused = None
            connection.send(self._opening.ask(connection.next_request()))

    async def _go_on(self, connection: Connection) -> bool:
        """Take one turn: hear what one receive brings, then send. False if this server is to be left."""
        session = self._session
        stalled = session.stalled
        serial = session.lend() if self._lone >= LONE and not connection.backlog else None
        if serial is not None:
            messages = await self._lend(connection, serial)
        elif stalled is None:
            messages = await connection.receive()
        elif session.waits():
            messages = []
            with anyio.move_on_after(PARTING_S if stalled in AWAY else None):
                messages = await connection.receive()
            if not messages:
                return False
        elif stalled in AWAY:
            return False
        else:
            await anyio.sleep(self._pauses.take_s())
            session.rewind()
            self._pump()
            return True
        stay = True
        for message in messages:
            stay = self._hear(connection, message) and stay
        if messages and not (self._inquiry and all(isinstance(message, StatusAnswer) for message in messages)):
            self._heard_s = self._clock()  # a server that tells of itself, and answers no append, is silent
            self._stuck_s = STUCK_S
        if session.client is None:
            self._begin(connection)
        self._pump()
        self._tell()
        return stay

    def _hear(self, connection: Connection, message: ServerReply) -> bool:
        session = self._session
        if isinstance(message, Appended):
            session.appended(message)
            self._servers.reasons.over()
            self._pauses.next_s = 0.0
        elif isinstance(message, AppendRefused):
            session.refused(message)
            if message.code in AWAY:
                self._servers.hint = message.leader_address or None
                away = Unavailable(f"{connection.address} does not lead any more")
                self._servers.reasons.says(connection.address, away)
            elif message.code == Code.NO_SPACE:
                self._servers.reasons.answered(connection.address, NoSpace(message.detail))
            elif message.code == Code.SESSION_EXPIRED:
                self._horizon_ms = max(self._horizon_ms, message.number)
        elif isinstance(message, StatusAnswer):
            if message.request == self._inquiry and connection is self._connection:
                self._hear_lacks(connection, message.fields.get("appends"))
        elif self._opening is not None and message[0] == self._opening.request != 0:
            return self._hear_opening(connection, self._opening, message)
        return True

    def _hear_lacks(self, connection: Connection, appends: object) -> None:
        """Note why appends are stuck, if the leader says that they are; a leader of an older version does not say."""
        if not isinstance(appends, Mapping) or appends.get("work") is not False:
            return
        lacks = appends.get("why")
        if isinstance(lacks, list | tuple) and lacks:
            why = f"{connection.address} leads, but {', '.join(map(str, lacks))}"
            kind = NoSpace if isinstance(self._servers.reason, NoSpace) else Unavailable  # keep the kind of its refusal
            self._servers.reasons.answered(connection.address, kind(why))

    def _hear_opening(self, connection: Connection, opening: Opening, message: ServerReply) -> bool:
        session = self._session
        opening.lost()
        if isinstance(message, Opened):
            self._pauses.next_s = 0.0
            session.begin(session.client or "", message.epoch, message.last_serial)
            return True
        if not isinstance(message, RequestRefused):
            return True
        if message.code == Code.EPOCH:
            opening.outdated(message.number)
            connection.send(opening.ask(connection.next_request()))
            return True
        if message.code in AWAY:
            self._servers.hint = message.leader_address or None
        elif message.code == Code.NO_SPACE:
            self._servers.reasons.answered(connection.address, NoSpace(message.detail))
        elif message.code in (Code.TOO_MANY_NAMES, Code.INVALID, Code.NO_RIGHT):
            self._open_refused = Refused(message.detail or "the cluster does not open this session")
            session.refuse_all(self._open_refused)
        return False

    # -- sending ----------------------------------------------------------------------------------------------

    async def _run_writer(self) -> None:
        while True:
            await self._writer.wait()
            connection = self._connection
            if connection is None:
                continue
            self._pump()
            try:
                while connection.backlog:
                    await connection.drain()
                    self._pump()
            except Lost as lost:
                self._give_up(connection, lost)

    def _begin_wait(self) -> Event:
        """Give a handle's first waiter its event, once it is sent, or gathers with others."""
        self.tasks.need_home()
        self.send_first()
        return self._new_event()

    def send_first(self) -> None:
        """Send at once what somebody waits for if nothing is under way; else let a group gather."""
        if not self._session.line.handles:
            self._pump()

    def _pump(self) -> None:
        """Send whatever may be sent now, as long as the kernel takes it."""
        connection, session = self._connection, self._session
        if connection is None or connection.backlog or connection.closed:
            return
        if not session.line.handles:
            self._heard_s = self._clock()
        try:
            while session.has_more and (append := session.next_append()) is not None:
                if session.line.bytes < _LARGE_BYTES:
                    connection.send_now(encode(append, connection.version))
                else:
                    connection.send_parts(encode_parts(append, connection.version))
                if connection.backlog:
                    self._writer.ring()
                    return
        except Lost as lost:
            self._give_up(connection, lost)

    def _give_up(self, connection: Connection, lost: Lost) -> None:
        self._servers.reasons.lost(connection.address, lost.reason)
        if self._connection is connection:
            self._servers.hint = None
            self._scope.cancel()

    # -- time -------------------------------------------------------------------------------------------------

    async def _run_watch(self) -> None:
        while True:
            while not self._wanted() and self.loan is None:
                await self._watch.wait()
            if self.loan is not None:
                with anyio.move_on_after(max(TICK_S, min(LONG_S, self.loan.left_s(self._clock())))):
                    await self._watch.wait()
                if self.loan is not None and self.loan.left_s(self._clock()) <= 0:
                    self.take_back()
                continue
            await anyio.sleep(TICK_S)
            now_s = self._clock()
            self._session.reason = self._servers.reason
            self._session.expire(now_s)
            self._inquire(now_s)
            self._suspect(now_s)
            self._tell()

    def _inquire(self, now_s: float) -> None:
        """Ask a silent leader that owes answers what it lacks, once a deadline is near: the error then says it."""
        connection, session = self._connection, self._session
        if connection is None or not session.line or session.soonest_s - now_s > INQUIRE_S:
            return
        if now_s - self._heard_s < SUSPECT_S or now_s - self._inquired_s < INQUIRE_S or connection.backlog:
            return
        self._inquiry, self._inquired_s = connection.next_request(), now_s
        try:
            connection.send(Status(self._inquiry))
        except Lost as lost:
            self._give_up(connection, lost)

    def _suspect(self, now_s: float) -> None:
        """Start a probe for a better connection if the present one has been silent with appends unanswered."""
        connection = self._connection
        waits = self._session.line or (self._opening is not None and self._opening.request)
        if connection is None or not waits or self._probing or now_s - self._heard_s < SUSPECT_S:
            return
        before, self._moved_bytes = self._moved_bytes, connection.moved_bytes
        if before is not None and self._moved_bytes > before:
            self._heard_s = now_s
            return
        every_s = max(PROBE_EVERY_S, self._servers.busy_pause_s)
        if now_s - self._probed_s >= every_s:
            self._probing = True
            self._probed_s = now_s
            self.tasks.start_soon(partial(self._probe, connection))

    async def _probe(self, connection: Connection) -> None:
        """Ask all servers who leads; leave the present connection, which is silent, for a better one if any."""
        found: Connection | None = None
        try:
            with anyio.move_on_after(PROBE_S), suppress(Final):
                found = await self._servers.find_leader()
            silent_s = self._clock() - self._heard_s
            if found is None or self._connection is not connection or silent_s < SUSPECT_S:
                return
            if found.hello.id == connection.hello.id and silent_s >= self._stuck_s:
                self._stuck_s *= 2
                self._better, found = found, None
                self._scope.cancel()
            elif found.hello.id != connection.hello.id:
                self._better, found = found, None
                self._scope.cancel()
        finally:
            self._probing = False
            if found is not None:
                self._servers.drop(found)

    def _tell(self) -> None:
        """Wake the tasks that wait for room, or for anything to be settled."""
        session = self._session
        if self._room.awaited and (session.ended is not None or session.queue.half_empty):
            self._room.tell()
        self.news.tell()
