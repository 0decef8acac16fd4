"""A small HTTP/1.1 server, for probes, metrics and the page: GET and HEAD, no bodies, a bounded number of connections.

Laws:

* Nothing a visitor sends ends anything but its own connection.
* Everything is bounded: connections, the size of a request and the time for it, the time to take an answer. If too many
  are connected, the oldest that has no request under way makes room.
* With TLS a certificate is asked for, and not required: probes have none. `Site` decides what needs one.
"""

from __future__ import annotations

import errno
import http
import socket

import h11
import structlog
import trio

from alpo.node.admission import Limits, Silent
from alpo.node.counters import Counters
from alpo.node.link import Link, LinkClosed
from alpo.node.security import Security
from alpo.node.threads import Pace
from alpo.secure import TlsBroken, TlsLeft
from alpo.tls import Rights, looks_like_tls
from alpo.wire.framing import LOG_PORT_TOLD

from .site import Answer, Site, Visit

log = structlog.get_logger()

#: Requests answered a second, of all visitors together: about a twentieth of a processor. More wait.
REQUESTS_PER_S = 200
HEAD_BYTES_MAX = 8 << 10
#: Seconds for a handshake and the first request; between requests; for an answer to be taken.
REQUEST_S, KEEP_ALIVE_S, ANSWER_S = 5.0, 15.0, 10.0
_OUTBOX_BYTES_MAX = 4 << 20
_PAUSE_WHEN_FULL_S = 0.1
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
)


_WORDS = {400: "this is no request in HTTP/1.1", 431: f"the head of a request is at most {HEAD_BYTES_MAX} bytes"}


class _Wrong(Exception):
    """The request cannot be answered; ``status`` says why, and the connection is closed."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Connection:
    """One visitor's connection."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.busy = False
        self.protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._head_only = False  # the last request was for a head

    async def request(self) -> h11.Request | None:
        """The next request, without a body; None if the visitor has none any more. Raises `_Wrong`, `LinkClosed`."""
        try:
            while True:
                event = self.protocol.next_event()
                if event is h11.NEED_DATA:
                    self.protocol.receive_data(await self.link.receive_some())
                elif isinstance(event, h11.Request):
                    self._head_only = event.method == b"HEAD"
                    return _required(event)
                else:
                    return None
        except h11.RemoteProtocolError as error:
            raise _Wrong(error.error_status_hint, _WORDS.get(error.error_status_hint, _WORDS[400])) from error

    async def send(self, answer: Answer, *, last: bool) -> None:
        """Send an answer, and wait until it was taken. Raises `LinkClosed`, trio.TooSlowError."""
        told = ("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))
        headers = [*_HEADERS, *told, *answer.headers]
        if last:
            headers.append(("Connection", "close"))
        reason = http.HTTPStatus(answer.status).phrase
        head = self.protocol.send(h11.Response(status_code=answer.status, headers=headers, reason=reason.encode()))
        data = head or b""
        if not self._head_only:
            data += self.protocol.send(h11.Data(data=answer.body)) or b""
        data += self.protocol.send(h11.EndOfMessage()) or b""
        if last:
            await self.link.part(data, "answered")
        self.link.push(data)
        with trio.fail_after(ANSWER_S):
            await self.link.wait_below(0)

    def again(self) -> bool:
        """Make ready for another request on this connection; False if there will be none."""
        self.protocol.next_event()  # the end of the request
        if self.protocol.our_state is not h11.DONE or self.protocol.their_state is not h11.DONE:
            return False
        self.protocol.start_next_cycle()
        return True


def _required(request: h11.Request) -> h11.Request:
    """The request, if it is small and has no body. Raises `_Wrong`."""
    size = len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers)
    if size > HEAD_BYTES_MAX:
        raise _Wrong(431, _WORDS[431])
    for name, value in request.headers:
        if name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0")):
            raise _Wrong(413, "no request has a body here")
    return request


class HttpServer:
    """Serves a `Site`, over TLS if this server has certificates."""

    def __init__(self, site: Site, security: Security, counters: Counters, limits: Limits) -> None:
        self._site = site
        self._limits = limits
        self._security = security
        self._counters = counters
        self._open: dict[Connection, None] = {}
        self._pace = Pace(REQUESTS_PER_S)
        self._turns = trio.CapacityLimiter(1)  # turns at handshakes: visitors delay no member's and no client's
        self._shaking = Silent()

    async def run(self, listening: socket.socket) -> None:
        """Accept and serve until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._site.run)
            while True:
                await trio.lowlevel.wait_readable(listening)
                try:
                    sock, _ = listening.accept()
                except (BlockingIOError, InterruptedError):
                    continue
                except OSError as error:
                    if error.errno in _OUT_OF_RESOURCES:
                        self._close_one()
                        await trio.sleep(_PAUSE_WHEN_FULL_S)
                    continue
                if self._has_room():
                    nursery.start_soon(self._serve, sock)
                else:
                    sock.close()

    def _has_room(self) -> bool:
        """Make room for one more connection; False if every one waits for an answer."""
        return len(self._open) < self._limits.visitor_connections_max or self._close_one()

    def _close_one(self) -> bool:
        """Close the oldest visitor that waits for no answer; False if there is none."""
        idle = next((one for one in self._open if not one.busy), None)
        if idle is None:  # then one whose visitor does not take its answer
            idle = next((one for one in self._open if one.link.queued_bytes), None)
        if idle is not None:
            del self._open[idle]
            idle.link.close("others wait")
        return idle is not None

    async def _serve(self, sock: socket.socket) -> None:
        try:
            link = Link(sock, _OUTBOX_BYTES_MAX)
        except OSError:  # the other side is gone already
            sock.close()
            return
        connection = Connection(link)
        self._open[connection] = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.drain)
            try:
                await self._converse(connection)
            except (LinkClosed, trio.TooSlowError, h11.LocalProtocolError):
                pass
            except Exception as error:  # a visitor is no reason to end a server that keeps a log
                log.error("page_failed", path="", why=f"{type(error).__name__}: {error}")
            finally:
                self._open.pop(connection, None)
                link.close("served")
                nursery.cancel_scope.cancel()

    async def _converse(self, connection: Connection) -> None:
        link, wait_s, begun, rights, secure = connection.link, REQUEST_S, False, None, False
        while True:
            try:
                with trio.fail_after(wait_s):
                    if not begun:
                        secure, rights = await self._secure(link)
                        begun = True
                    request = await connection.request()
            except TlsBroken as error:
                await link.linger(str(error))
                return
            except _Wrong as wrong:
                await self._refuse(connection, wrong)
                return
            if request is None:
                return
            connection.busy = True
            await self._pace.keep(1)
            visit = Visit(request.method, request.target, _host(request), rights, secure)
            with trio.fail_after(ANSWER_S):  # a store may hang, and visitors that gave up must not fill all places
                answer = await self._site.answer(visit)
            self._counters.http[visit.label, str(answer.status)] += 1
            await connection.send(answer, last=False)
            connection.busy = False
            if not connection.again():
                await link.part(b"", "answered")
                return
            wait_s = KEEP_ALIVE_S

    async def _secure(self, link: Link) -> tuple[bool, Rights | None]:
        """Begin TLS if the visitor does. Returns if it did, and the rights of its certificate."""
        contexts, roles = self._security.contexts, self._security.roles
        if contexts is None or not looks_like_tls(await link.first_bytes()):
            return False, None
        of_host = self._shaking.add(link, self._limits.visitor_connections_max)
        try:
            rights = await link.secure(contexts.for_visitors(), self._turns, roles=roles, first=of_host)
        except TlsBroken as error:
            self._counters.handshakes["left" if isinstance(error, TlsLeft) else "failed"] += 1
            raise
        finally:
            self._shaking.discard(link)
        self._counters.handshakes["ok"] += 1
        return True, rights

    async def _refuse(self, connection: Connection, wrong: _Wrong) -> None:
        self._counters.http["other", str(wrong.status)] += 1
        connection.busy = True
        if connection.protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            told = f"{wrong}; {LOG_PORT_TOLD} {self._site.log_port}" if wrong.status == 400 else str(wrong)
            await connection.send(Answer.text(wrong.status, told), last=True)


def _host(request: h11.Request) -> str | None:
    """The name of this server as the visitor has it, without the port; None if it names none (HTTP/1.0)."""
    for name, value in request.headers:
        if name == b"host":
            text = value.decode("latin-1")
            return text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
    return None
