"""One client's connection: requests become inputs, replies become frames, both in groups.

Laws:

* Everything that one receive brought is posted before the driver is kicked; everything that one group
  answers leaves in one send.
* Whoever is not read from waits in the kernel's buffers, not in ours: a connection is read again only while it
  has few appends unanswered, the server few bytes in flight, and the client has read most of its answers.
* An append too large is refused whole, before the core sees any of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

import trio

from alpo.core import inputs as i
from alpo.core import ready as y
from alpo.core.disk_space import size_text
from alpo.core.ready import Code, Reply
from alpo.wire import requests as w
from alpo.wire.codec import decode_client, encode, largest

from .driver import Driver
from .limits import Limits
from .link import Body, Link


class Services(Protocol):
    """What a client's connection needs beside the driver."""

    limits: Limits

    def address_of(self, id: int) -> str: ...

    def trouble_with(self, id: int) -> str: ...

    def begin_read(self, client: ClientConnection, ask: w.Read | w.ReadColumns) -> None: ...

    def begin_cursors(self, client: ClientConnection, ask: w.ListCursors) -> None: ...

    def begin_await(self, client: ClientConnection, ask: w.AwaitReplicated) -> None: ...

    def begin_backup(self, client: ClientConnection, ask: w.Backup) -> None: ...

    def begin_give_back(self, client: ClientConnection, ask: w.GiveBack) -> None: ...

    def begin_digest(self, client: ClientConnection, ask: w.RangeDigest) -> None: ...

    def begin_status(self, client: ClientConnection, ask: w.Status) -> None: ...

    def begin_events(self, client: ClientConnection, ask: w.ListEvents) -> None: ...


class ClientConnection:
    """See the module's laws. As an `Asker` it is the origin of its appends."""

    def __init__(
        self, link: Link, driver: Driver, services: Services, nursery: trio.Nursery, version: int = w.VERSION
    ) -> None:
        self.link = link
        #: Ends with the connection, and whatever runs in it.
        self.nursery = nursery
        self._version = version
        self._driver = driver
        self._services = services
        self._limits = services.limits
        self._out: list[bytes] = []
        self._answered = trio.lowlevel.ParkingLot()
        #: One page at a time, so that a slow reader holds one page in memory.
        self.paging = trio.Lock()
        self.appends = 0  # without an answer
        self.requests = 0  # numbered ones without an answer

    async def wait_idle(self) -> None:
        """Until every append is answered and every answer has left, or the connection is closed."""
        while not self.link.closed and (self.appends or self.link.queued_bytes):
            if self.appends:
                await self._answered.park()
            else:
                await self.link.wait_below(0)

    async def serve(self, bodies: list[Body]) -> None:
        """Serve requests until the connection ends. Raises `LinkClosed`, `FrameError`, `WireError`."""
        while True:
            for body in bodies:
                self._take(decode_client(body, self._version), len(body))
            self._driver.kick()
            self.flush()
            await self._wait_for_room()
            bodies = await self.link.receive()

    async def _wait_for_room(self) -> None:
        limits = self._limits
        while not self.link.closed:
            if self.appends >= limits.connection_inflight_max:
                await self._answered.park()
            elif self._driver.full:
                await self._driver.room.park()
            elif self.link.queued_bytes > limits.client_outbox_bytes_high:
                await self.link.wait_below(limits.client_outbox_bytes_high)
            else:
                return

    # -- requests ---------------------------------------------------------------------------------------

    def _take(self, request: w.ClientRequest, size_bytes: int) -> None:
        if isinstance(request, w.Append):
            self._append(request, size_bytes)
            return
        if self.requests >= self._limits.connection_requests_max:
            text = f"{self.requests} requests of this connection are under way"
            self.gather(w.RequestRefused(request.request, Code.OVERLOADED, 0, 0, "", text))
            return
        self.requests += 1
        if isinstance(request, w.Read | w.ReadColumns):
            self._services.begin_read(self, request)
        elif isinstance(request, w.Backup):
            self._services.begin_backup(self, request)
        elif isinstance(request, w.GiveBack):
            self._services.begin_give_back(self, request)
        elif isinstance(request, w.RangeDigest):
            self._services.begin_digest(self, request)
        elif isinstance(request, w.ListCursors):
            self._services.begin_cursors(self, request)
        elif isinstance(request, w.AwaitReplicated):
            self._services.begin_await(self, request)
        elif isinstance(request, w.Status):
            self._services.begin_status(self, request)
        elif isinstance(request, w.ListEvents):
            self._services.begin_events(self, request)
        else:
            about = request.id if isinstance(request, w.ChangeMember) else 0
            self._driver.post(_INPUTS[type(request)](Asked(self, request.request, about), *request[1:]))

    def _append(self, request: w.Append, size_bytes: int) -> None:
        settings = self._driver.replica.settings
        if size_bytes > min(settings.payload_bytes_max, settings.batch_bytes_max):
            sizes = largest(request.items)
            limit = 0
            if sizes.payload_bytes > settings.payload_bytes_max:
                limit = settings.payload_bytes_max
            elif sizes.batch_bytes > settings.batch_bytes_max:
                limit = settings.batch_bytes_max
            if limit:
                self.gather(w.AppendRefused(
                    request.client, request.serial, len(request.items), Code.TOO_LARGE, limit, 0, "",
                    f"a payload or batch is larger than {limit} bytes ({size_text(limit)})",
                ))
                return
        self.appends += len(request.items)
        self._driver.post(
            i.AppendRun(
                self, request.client, request.epoch, request.serial, request.items, request.sparse, request.by_hand
            ),
            size_bytes,
        )

    # -- answers ----------------------------------------------------------------------------------------

    def answer(self, reply: Reply) -> None:
        """The reply to an append; it leaves with `flush`."""
        if isinstance(reply, y.Appended):
            self.appends -= len(reply.lsns)
            self.gather(w.Appended(reply.client, reply.serial, reply.lsns, reply.duplicate))
        else:
            assert isinstance(reply, y.Refused)
            self.appends -= reply.count
            self.gather(w.AppendRefused(
                reply.client, reply.serial, reply.count, reply.code, reply.number, reply.leader,
                self._services.address_of(reply.leader), reply.detail,
            ))

    def gather(self, reply: w.ServerReply) -> None:
        """Keep a reply for the next `flush`."""
        if not self.link.closed:
            self._out.append(encode(reply, self._version))

    def flush(self) -> None:
        """Send what was gathered, at once."""
        if self._out:
            out, self._out = self._out, []
            self.link.push(out[0] if len(out) == 1 else b"".join(out))
        if self._answered and self.appends < self._limits.connection_inflight_max:
            self._answered.unpark_all()

    def settle(self, reply: w.ServerReply) -> None:
        """The answer to a numbered request, sent at once."""
        self.requests -= 1
        self.gather(reply)
        self.flush()

    def settle_encoded(self, reply: bytes) -> None:
        """The same, of an answer that is a frame already."""
        self.requests -= 1
        if not self.link.closed:
            self._out.append(reply)
        self.flush()

    def refuse(self, request: int, code: Code, *, number: int = 0, leader: int = 0, detail: str = "") -> None:
        """Refuse a numbered request that was taken."""
        self.settle(
            w.RequestRefused(request, code, number, leader, self._services.address_of(leader), detail)
        )


class Asked:
    """The origin of a numbered request."""

    def __init__(self, client: ClientConnection, request: int, about: int = 0) -> None:
        self._client = client
        self._request = request
        self._about = about  # the server that it is about; 0: none

    def answer(self, reply: Reply) -> None:
        self._client.requests -= 1
        if isinstance(reply, y.Refused):
            services, detail = self._client._services, reply.detail
            if self._about and (trouble := services.trouble_with(self._about)):
                detail += f" (last seen: {trouble})"
            self._client.gather(w.RequestRefused(
                self._request, reply.code, reply.number, reply.leader, services.address_of(reply.leader), detail,
            ))
        elif isinstance(reply, y.Trimmed):
            first_lsn = self._client._driver.replica.cleaning.first_lsn  # an earlier trim may have gone further
            self._client.gather(w.Trimmed(self._request, max(reply.first_lsn, first_lsn)))
        else:
            self._client.gather(_ANSWERS[type(reply)](self._request, reply))

    def flush(self) -> None:
        self._client.flush()




def _opened(request: int, reply: y.Opened) -> w.ServerReply:
    return w.Opened(request, reply.epoch, reply.last_serial)


def _dropped(request: int, reply: y.Dropped) -> w.ServerReply:
    return w.Done(request, reply.epoch)


def _initialised(request: int, reply: y.Initialised) -> w.ServerReply:
    return w.Done(request, 0)


def _session_table(request: int, reply: y.Sessions) -> w.ServerReply:
    rows = [(r.client, r.epoch, r.last_serial, r.last_id, r.last_time_ms) for r in reply.rows]
    return w.SessionTable(request, rows, reply.horizon_ms)


def _told(request: int, reply: y.Told) -> w.ServerReply:
    return w.Told(request, reply.fate, reply.lsn, reply.birth)


def _cursor(request: int, reply: y.CursorIs) -> w.ServerReply:
    return w.Done(request, reply.lsn)


def _settings(request: int, reply: y.SettingsAre) -> w.ServerReply:
    return w.SettingsAre(request, tuple(reply.values.items()))


def _members_changed(request: int, reply: y.MembersChanged) -> w.ServerReply:
    return w.MemberTable(request, json.dumps(reply.members, separators=(",", ":")))


def _handed_over(request: int, reply: y.HandedOver) -> w.ServerReply:
    return w.HandedOver(request, reply.leader, reply.term)


#: What is asked of the core alone: the fields after the number are the input's after the origin.
_INPUTS: dict[type, Callable[..., i.Input]] = {
    w.Open: i.OpenSession, w.Drop: i.DropSession, w.ListSessions: i.ListSessions, w.Init: i.Initialise, w.Trim: i.Trim,
    w.Outcome: i.Outcome, w.ShowSettings: i.ShowSettings, w.ChangeSettings: i.ChangeSettings,
    w.SetCursor: i.SetCursor, w.DropCursor: i.DropCursor, w.ChangeMember: i.ChangeMember, w.Transfer: i.Transfer,
}
_ANSWERS: dict[type, Callable[..., w.ServerReply]] = {
    y.Opened: _opened, y.Dropped: _dropped, y.Initialised: _initialised, y.Sessions: _session_table,
    y.Told: _told, y.SettingsAre: _settings, y.CursorIs: _cursor, y.MembersChanged: _members_changed,
    y.HandedOver: _handed_over,
}
