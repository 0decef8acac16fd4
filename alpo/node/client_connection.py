"""One client's connection: requests become inputs, replies become frames, both in groups.

Laws:

* Everything that one pass of the event loop brought, over all connections, is posted before the driver is kicked;
  everything that one group answers leaves in one send. (Refusals made here leave at once.)
* Data of a client that is not read from waits in the kernel's buffers, not in ours: a connection is read again only
  while it has few appends unanswered, holds none, and the client has read most of its answers.
* A server with many bytes in flight takes no appends, but it takes every other request: a request that appends nothing
  never waits behind others' appends.
* An append too large is refused whole, before the core sees any of it.
* Appends beyond a client's quota, those for which there is no room, and those whose bodies go ahead (`Ahead`) wait
  here, in order, and the connection is not read from meanwhile (`admission.Allowance`).

Large bodies of appends go ahead. An entry in the log keeps all later ones waiting until a majority holds it. A body
that takes long to send is therefore sent first, as a block beside whatever else there is to send; its entry is appended
once a majority holds the body, and refers to it. So small appends do not wait for large ones. Laws:

* This is a matter of the connections alone: entries and their order are the core's, and whatever a connection lost, or
  did not take, is sent with its entry as always.
* Nothing goes ahead over links that are known to be quick.
* One request goes ahead at a time, a few more of its log wait for their turn, and all others go the usual way: a log
  whose appends get no further holds no other up. Appends of one connection stay in their order.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, cast

import trio

from alpo.addresses import AddressError, parse_dialled
from alpo.core import requests as q
from alpo.core.directory import FIRST_NAME
from alpo.core.entries import is_random
from alpo.core.machine.verdicts import Accept
from alpo.core.ready import Input
from alpo.core.replica import Replica
from alpo.core.requests import AppendRun, Code, Reply
from alpo.core.settings import size_text
from alpo.tls import Rights
from alpo.wire import requests as w
from alpo.wire.codec import decode_client, encode, encode_appended, largest
from alpo.wire.lanes import BLOCKS_MAX

from .admission import Allowance, Appends, Limits
from .counters import REFUSALS, Counters
from .driver import Driver, Watchers
from .link import Body, Link
from .poller import Poller
from .routes import Route, Routes
from .security import missing_role, refusal

#: Shorter bodies go with their entries, always.
AHEAD_BYTES_MIN = 256 << 10
#: Requests that go ahead, or wait for their turn. The others' bytes count as taken and not yet guaranteed.
_REQUESTS_MAX = 4


class Steps(Protocol):
    """The driver, as far as this module needs it."""

    replica: Replica
    watchers: Watchers

    def pump(self) -> None: ...


class Ahead:
    """Sender of a log's large bodies."""

    def __init__(self, driver: Steps, routes: Routes, number: int) -> None:
        self._driver = driver
        self._routes = routes
        self._number = number
        self._turn = trio.Lock()
        self._requests = 0
        self._changed = trio.Event()

    def wants(self, request: Appends) -> bool:
        """True if these appends should go ahead by `post`."""
        return self._requests < _REQUESTS_MAX and self._is_worth_it(request)

    def _is_worth_it(self, request: Appends) -> bool:
        """True if bodies are so large that the members' links need long for them, and the appends are not in the log
        yet."""
        large_bytes = sum(len(body) for _, body in request.items if len(body) >= AHEAD_BYTES_MIN)
        if not large_bytes or self._routes.blocks_of not in (0, self._number) or not self._is_new(request):
            return False
        routes, needed = self._voters()
        if len(routes) < needed or not needed:
            return False
        rates = sorted((each.link.long_bytes_per_s or 0.0 for each in routes), reverse=True)
        return large_bytes > rates[needed - 1] * self._driver.replica.cfg.heartbeat_s

    def _is_new(self, request: Appends) -> bool:
        """True if this server leads, and would append some of it."""
        replica = self._driver.replica
        run = AppendRun(None, request.client, request.epoch, request.serial, request.items, request.sparse)
        verdicts = replica.sessions.judge(run, replica.last_id + 1, replica.guaranteed_id)
        return replica.reign is not None and any(isinstance(each, Accept) for each in verdicts)

    def _voters(self) -> tuple[list[Route], int]:
        """The connections to other voters, and how many of those must hold a block."""
        members = self._driver.replica.members
        found = [self._routes.find(self._number, voter.identity) for voter in members.other_voters()]
        return [route for route in found if route is not None and route.full], members.latest.majority - members.i_vote

    async def post(self, request: Appends, post: Callable[[], None]) -> None:
        """Send the large bodies ahead, then call ``post``, which hands the appends to the core."""
        self._requests += 1
        try:
            async with self._turn:
                if not self._is_worth_it(request):  # perhaps it was sent again, and is in the log by now
                    return post()
                large = [body for _, body in request.items if len(body) >= AHEAD_BYTES_MIN][:BLOCKS_MAX]
                routes, _ = self._voters()
                numbers: list[int] = []
                try:
                    self._routes.blocks_of = self._number
                    self._send(numbers, large, routes)
                    await self._until(lambda: self._is_held(routes, numbers))
                    post()
                    self._driver.pump()
                    reign, last_id = self._driver.replica.reign, self._driver.replica.last_id
                    await self._until(lambda: self._is_over(reign, last_id))
                finally:
                    self._forget(routes, numbers)
        finally:
            self._requests -= 1

    def _send(self, numbers: list[int], large: list[bytes], routes: list[Route]) -> None:
        numbers += [self._routes.add_block(body) for body in large]
        for route in routes:
            route.link.on_held = self._wake
            for number, body in zip(numbers, large, strict=True):
                route.sent_ahead.add(number)
                route.link.send_block(number, body)

    def _forget(self, routes: list[Route], numbers: list[int]) -> None:
        self._routes.flush()  # messages that refer to the blocks
        for number in numbers:
            del self._routes.blocks[number]
            for route in routes:
                route.sent_ahead.discard(number)
                route.link.forget_block(number)
        for route in routes:
            route.link.on_held = lambda: None
        self._routes.blocks_of = 0

    def _is_held(self, routes: list[Route], numbers: list[int]) -> bool:
        """True if enough members hold the blocks, or cannot any more, or this server does not lead."""
        open_for = {id(route) for route in self._voters()[0]}
        needed = self._voters()[1]
        with_all = [route for route in routes if route.link.held.issuperset(numbers) and id(route) in open_for]
        may_come = [route for route in routes if id(route) in open_for]
        return self._driver.replica.reign is None or len(with_all) >= needed or len(may_come) < needed

    def _is_over(self, reign: object, last_id: int) -> bool:
        replica = self._driver.replica
        return replica.reign is not reign or replica.guaranteed_id >= last_id

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for the condition, which is looked at after each step and each block that is held somewhere."""
        self._driver.watchers.after_step.append(self._wake)
        try:
            while not condition():
                self._changed = trio.Event()
                await self._changed.wait()
        finally:
            self._driver.watchers.after_step.remove(self._wake)

    def _wake(self) -> None:
        self._changed.set()


#: Time of coming, and bytes, of an append that is answered as if it had not come.
_NOT_TAKEN: tuple[float | None, int] = (None, 0)
#: Seconds between signs of life while appends go ahead; clients open another connection after two.
_TELL_S = 1.0
_new_run = functools.partial(tuple.__new__, AppendRun)
#: Requests that append. (A union, made anew for each request, would take longer than the check.)
APPENDS = (w.Append, w.AppendAfter)
#: Requests that are written down with who made them: operators', which change more than the log's end.
AUDITED = frozenset((
    q.Initialise, q.Trim, q.ChangeMember, q.Transfer, q.ChangeSettings, q.DropSession, q.DropCursor, w.Backup,
    w.AcceptClocks, q.CreateLog, q.SetLog, q.RenameLog, q.DeleteLog,
))


def _told(request: Any) -> str:
    """The fields of a request, for an event."""
    return " ".join(f"{name}={value}" for name, value in request._asdict().items() if name != "origin")


def _undialled(address: str) -> str:
    """The reason why others cannot dial the address of a change of members; "" if they may, or there is none."""
    try:
        if address:
            parse_dialled(address)
    except AddressError as error:
        return str(error)
    return ""


#: Answers a numbered request of a client, at once or from a task of the client's.
Handler: TypeAlias = Callable[[Any, Any], None]
#: Keeps the core's answer to a request until it calls the function that it is given.
Hold: TypeAlias = Callable[[Any, Callable[[], None]], None]


class Services(Protocol):
    """Parts of the server that a client's connection uses beside the driver."""

    @property
    def limits(self) -> Limits: ...

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Handlers of the requests that the core does not answer, by their types."""

    def address_of(self, id: int) -> str: ...

    def trouble_with(self, id: int) -> str: ...

    def no_right(self, why: str) -> None: ...

    def asked(self, who: str, what: str, how: str) -> None: ...


class Outgoing(Protocol):
    """Carrier of the answers: a `Link`, or a stand-in in tests without sockets."""

    @property
    def closed(self) -> str: ...

    def push(self, data: bytes) -> None: ...


class Poster(Protocol):
    """Taker of the inputs: a `Driver`, or a stand-in in tests."""

    @property
    def clock_s(self) -> Callable[[], float]: ...

    @property
    def now_s(self) -> float:
        """Time of the present step, by `clock_s`."""

    @property
    def replica(self) -> Replica: ...

    @property
    def counters(self) -> Counters: ...

    def post(self, item: Input, size_bytes: int = 0, /) -> None: ...


class ClientRequests:
    """Requests of one client and their answers. The ``origin`` of its appends is this object: it takes the replies."""

    def __init__(
        self, link: Outgoing, driver: Poster, services: Services, version: int, rights: Rights | None = None,
        log: str = FIRST_NAME,
    ) -> None:
        """``rights``: those of the client's certificate; None: without TLS, all. ``log``: the name by which the log was
        asked for, and rights are judged."""
        self._rights, self._log = rights, log
        #: The client, for events: its certificate's subject, or its address.
        self.who = rights.subject if rights is not None else "?"
        self._allowed: set[type] = set()  # kinds of requests that came, and that the certificate allows
        self._outgoing = link
        self._poster = driver
        self._services = services
        self._limits = services.limits
        #: Protocol version spoken on this connection.
        self.version = version
        self._out: list[bytes] = []
        self.appends = 0  # appends without an answer
        self._taken: dict[tuple[str, int], tuple[float, int]] = {}  # (client, serial) -> when it came, bytes
        self.requests = 0  # numbered requests without an answer

    # -- requests ---------------------------------------------------------------------------------------

    def take(self, request: w.ClientRequest, size_bytes: int) -> None:
        if self._rights is not None and type(request) not in self._allowed and not self._may(self._rights, request):
            return
        if isinstance(request, APPENDS):
            self._append(request, size_bytes)
            return
        number = cast(int, request[0])
        if self.requests >= self._limits.connection_requests_max:
            text = f"{self.requests} requests of this connection are under way"
            self.gather(w.RequestRefused(number, Code.OVERLOADED, 0, 0, "", text))
            return
        self.requests += 1
        handler = self._services.handlers.get(type(request))
        if type(request) in AUDITED:
            self._services.asked(self.who, type(request).__name__, "" if handler is not None else _told(request))
        if handler is not None:
            handler(self, request)
            return
        if isinstance(request, q.ChangeMember) and (why := _undialled(request.address)):
            self.refuse(number, Code.CANNOT_CHANGE, detail=why)
            return
        self.post_for(number, request)

    def post_for(self, number: int, request: Any, hold: Hold | None = None) -> None:
        """Hand a request that was taken to the core; the answer goes to request ``number``. ``hold``: keeps the answer,
        unless it is a refusal, until it calls what it is given."""
        about = request.id if isinstance(request, q.ChangeMember) else 0
        self._poster.post(request._replace(origin=Asked(self, number, about, hold)))

    def _may(self, rights: Rights, request: w.ClientRequest) -> bool:
        """True if the certificate allows the request; otherwise it is refused, and was never taken."""
        needed = missing_role(rights, type(request), self._log)
        if not needed:
            self._allowed.add(type(request))
            return True
        text = refusal(rights, needed)
        self._services.no_right(text)
        if isinstance(request, APPENDS):
            self._poster.counters.appends["no_right"] += len(request.items)
            self.gather(w.AppendRefused(
                request.client, request.serial, len(request.items), Code.NO_RIGHT, 0, 0, "", text,
            ))
        else:
            self.gather(w.RequestRefused(cast(int, request[0]), Code.NO_RIGHT, 0, 0, "", text))
        return False

    def _append(self, request: Appends, size_bytes: int) -> None:
        settings = self._poster.replica.settings
        if size_bytes > min(settings.payload_bytes_max, settings.batch_bytes_max):
            sizes = largest(request.items)
            limit = 0
            if sizes.payload_bytes > settings.payload_bytes_max:
                limit = settings.payload_bytes_max
            elif sizes.batch_bytes > settings.batch_bytes_max:
                limit = settings.batch_bytes_max
            if limit:
                self._poster.counters.appends["too_large"] += len(request.items)
                self.gather(w.AppendRefused(
                    request.client, request.serial, len(request.items), Code.TOO_LARGE, limit, 0, "",
                    f"a payload or batch is larger than {limit} bytes ({size_text(limit)})",
                ))
                return
        self._post(request, size_bytes)

    def _post(self, request: Appends, size_bytes: int) -> None:
        """Hand appends to the core."""
        self._pass_on(request, size_bytes, self._poster.clock_s())

    def _pass_on(self, request: Appends, size_bytes: int, came_s: float) -> None:
        client, serial, items = request.client, request.serial, request.items
        self.appends += len(items)
        self._taken[client, serial] = came_s, size_bytes
        expect_last = request.expect_last if type(request) is w.AppendAfter else None
        self._poster.post(
            _new_run((self, client, request.epoch, serial, items, request.sparse, request.by_hand, expect_last)),
            size_bytes,
        )

    # -- answers ----------------------------------------------------------------------------------------

    def answer(self, reply: Reply) -> None:
        """Take the reply to an append; it leaves with `flush`."""
        counters = self._poster.counters
        if type(reply) is q.Appended:
            _, client, serial, lsns, duplicate = reply
            count = len(lsns)
            self.appends -= count
            came_s, size_bytes = self._taken.pop((client, serial), _NOT_TAKEN)
            counters.appends["duplicate" if duplicate else "appended"] += count
            counters.appended_bytes += 0 if duplicate else size_bytes
            if came_s is not None:
                counters.append_s.add(self._poster.now_s - came_s, count)
            if not self._outgoing.closed:
                self._out.append(encode_appended(reply, self.version))
        else:
            assert type(reply) is q.Refused
            self._taken.pop((reply.client, reply.serial), None)
            self.appends -= reply.count
            counters.appends[REFUSALS.get(reply.code, "refused")] += reply.count
            if not self.appends:
                self._taken.clear()
            self.gather(w.AppendRefused(
                reply.client, reply.serial, reply.count, reply.code, reply.number, reply.leader,
                self._services.address_of(reply.leader), reply.detail,
            ))

    def gather(self, reply: w.ServerReply | Reply) -> None:
        """Keep a reply for the next `flush`."""
        if not self._outgoing.closed:
            self._out.append(encode(reply, self.version))

    def flush(self) -> None:
        """Send the replies kept, at once."""
        out = self._out
        if out:
            self._outgoing.push(out[0] if len(out) == 1 else b"".join(out))
            out.clear()

    def settle(self, reply: w.ServerReply) -> None:
        """Answer a numbered request, at once."""
        self.requests -= 1
        self.gather(reply)
        self.flush()

    def settle_encoded(self, reply: bytes) -> None:
        """Answer a numbered request with a frame, at once."""
        self.requests -= 1
        if not self._outgoing.closed:
            self._out.append(reply)
        self.flush()

    def refuse(self, request: int, code: Code, *, number: int = 0, leader: int = 0, detail: str = "") -> None:
        """Refuse a numbered request that was taken."""
        self.settle(
            w.RequestRefused(request, code, number, leader, self._services.address_of(leader), detail)
        )


class ClientConnection(ClientRequests):
    """A client's requests over a `Link`: when that is read from, and what may run for it. See the module's laws."""

    def __init__(
        self, link: Link, poller: Poller, driver: Driver, services: Services,
        nursery: trio.Nursery, version: int, rights: Rights | None, log: str, ahead: Ahead,
    ) -> None:
        super().__init__(link, driver, services, version, rights, log)
        self.link = link
        self._host = link.remote.rpartition(":")[0]  # a closed link knows it no more
        if rights is None:
            self.who = link.remote
        self._poller = poller
        #: Ends with the connection, and whatever runs in it.
        self.nursery = nursery
        self._driver = driver
        self._answered, self._is_awaited = trio.lowlevel.ParkingLot(), False
        #: One page at a time, so that a slow reader holds one page in memory.
        self.paging = trio.Lock()
        self._allowance = Allowance(driver, self._payer, self._hand_on)
        self._ahead = ahead
        self._behind: deque[tuple[Appends, int]] = deque()  # appends whose bodies go ahead, or that came after those
        self._all_handed_on = trio.lowlevel.ParkingLot()
        self._ended = False

    async def wait_idle(self) -> None:
        """Wait until every append is answered and every answer has left, or the connection is closed."""
        while not (self._ended or self.link.closed) and (self._behind or self.appends or self.link.queued_bytes):
            if self._behind:
                await self._all_handed_on.park()
            elif self.appends:
                await self._until_answered()
            else:
                await self.link.wait_below(0)

    async def serve(self, bodies: list[Body]) -> None:
        """Serve ``bodies`` and what follows until the connection ends. Raises `LinkClosed`, `FrameError`,
        `WireError`."""
        self._driver.came_s = self._driver.clock_s()
        self._take_all(bodies)
        self._driver.kick()
        try:
            await self.link.deliver(self._poller, self._take_all, self._wait_for_room)
        finally:
            self._ended = True  # for `wait_idle`
            self._all_handed_on.unpark_all()
            self._answered.unpark_all()

    def _take_all(self, bodies: list[Body]) -> bool:
        """Post all requests. Returns False if no more may be read for now. Raises `WireError`."""
        settings, limits = self._driver.replica.settings, self._limits
        small_bytes = min(settings.payload_bytes_max, settings.batch_bytes_max)
        for body in bodies:
            request, size_bytes = decode_client(body, self.version), len(body)
            if type(request) is w.Append and size_bytes <= small_bytes and self._rights is None:
                self._post(request, size_bytes)  # where `take` would end, too
            else:
                self.take(request, size_bytes)
        if self._out:
            self.flush()
        return not self._allowance.held and not self._behind and (
            self.appends < limits.connection_inflight_max
            and self.link.queued_bytes <= limits.client_outbox_bytes_high
        )

    async def _wait_for_room(self) -> None:
        """Wait until `_take_all` may go on, or the connection is closed."""
        limits = self._limits
        while not self.link.closed:
            if self._behind:
                await self._all_handed_on.park()
            elif self._allowance.held:
                await self._allowance.wait()
            elif self.appends >= limits.connection_inflight_max:
                await self._until_answered()
            elif self.link.queued_bytes > limits.client_outbox_bytes_high:
                await self.link.wait_below(limits.client_outbox_bytes_high)
            else:
                return

    def _post(self, request: Appends, size_bytes: int) -> None:
        if size_bytes < AHEAD_BYTES_MIN and not self._behind and self._allowance.is_free:
            self._pass_on(request, size_bytes, self._driver.came_s)
        else:
            self._allowance.post(request, size_bytes)

    def _hand_on(self, request: Appends, size_bytes: int) -> None:
        """Hand appends that quotas allow to the core; if they are large, their bodies go ahead to the members."""
        if self._behind:
            self._behind.append((request, size_bytes))
        elif size_bytes >= AHEAD_BYTES_MIN and self._ahead.wants(request):
            self._behind.append((request, size_bytes))
            self.nursery.start_soon(self._hand_on_later)
        else:
            super()._post(request, size_bytes)

    async def _hand_on_later(self) -> None:
        """Hand on what is in `_behind`, in order; meanwhile tell the client that this server works on it, so that it
        does not send all again."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_on)
            while self._behind:
                request, size_bytes = self._behind[0]
                post = functools.partial(super()._post, request, size_bytes)
                if size_bytes >= AHEAD_BYTES_MIN and self._ahead.wants(request):
                    await self._ahead.post(request, post)
                else:
                    post()
                self._behind.popleft()
            nursery.cancel_scope.cancel()
        self._driver.kick()
        self._all_handed_on.unpark_all()

    async def _tell_on(self) -> None:
        """Send an answer to no request now and then; clients count it as a sign of life."""
        while True:
            await trio.sleep(_TELL_S)
            self.link.push(encode(w.Done(0, 0), self.version))

    def _payer(self, client: str) -> str:
        """The name under which an append of ``client`` counts against a quota."""
        if self._rights is not None:
            return self._rights.subject
        return self._host if is_random(client) else client

    def flush(self) -> None:
        out = self._out
        if out:
            self.link.push(out[0] if len(out) == 1 else b"".join(out))
            out.clear()
        if self._is_awaited and self.appends < self._limits.connection_inflight_max:
            self._is_awaited = False
            self._answered.unpark_all()

    async def _until_answered(self) -> None:
        self._is_awaited = True
        await self._answered.park()


class Asked:
    """Origin of a numbered request: the connection on which it came, and its number there."""

    def __init__(self, client: ClientRequests, number: int, about: int = 0, hold: Hold | None = None) -> None:
        self._client = client
        self._number = number
        self._about = about  # the server that the request is about; 0: none
        self._hold = hold

    def answer(self, reply: Reply) -> None:
        hold, self._hold = self._hold, None
        if hold is not None and not isinstance(reply, q.Refused):
            hold(reply, functools.partial(self._release, reply))
            return
        self._client.requests -= 1
        if isinstance(reply, q.Refused):
            services, detail = self._client._services, reply.detail
            if self._about and (trouble := services.trouble_with(self._about)):
                detail += f" (last seen: {trouble})"
            self._client.gather(w.RequestRefused(
                self._number, reply.code, reply.number, reply.leader, services.address_of(reply.leader), detail,
            ))
        elif isinstance(reply, q.Trimmed):
            first_lsn = self._client._poster.replica.cleaning.first_lsn  # an earlier trim may have gone further
            self._client.gather(q.Trimmed(self._number, max(reply.first_lsn, first_lsn)))
        else:
            self._client.gather(reply._replace(origin=self._number))

    def _release(self, reply: Reply) -> None:
        self.answer(reply)
        self.flush()

    def flush(self) -> None:
        self._client.flush()
