"""One port for peers and clients: the first frame decides who it is and what may be said (R27).

Laws:

* A connection that is wrong in whatever way is told so where possible, and closed; nothing else is touched.
* Clients are limited; peers have their own slots; of those that say nothing the oldest makes room.
* A peer speaks for the identity of its hello only; of two connections of one identity the newer stands.
"""

from __future__ import annotations

import errno
import socket

import structlog
import trio

from alpo.core.inputs import PeerAddress
from alpo.core.members import Identity
from alpo.core.ready import Code
from alpo.wire import requests as w
from alpo.wire.codec import WireError, decode_hello, encode, encode_problem
from alpo.wire.framing import FrameError

from .clients import ClientConnection, Services
from .driver import Driver, wall_ms
from .hello import Ourselves, is_full, listed_incarnation, objection, our_hello, timers_differ
from .limits import Limits
from .link import Body, Link, LinkClosed
from .peers import Peers, take_messages
from .routes import Route, Routes

log = structlog.get_logger()

_ACCEPTS_A_TURN = 64
_PAUSE_WHEN_FULL_S = 0.1
_PEER_CONNECTIONS_MAX = 64
_STRANGERS_MAX = 16
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ListenError(Exception):
    """The address cannot be listened on: one line for the operator."""


def open_listener(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `ListenError`, which says what is wrong with the address."""
    sock = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, proto, _, where = found[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(1024)
    except OSError as error:
        if sock is not None:
            sock.close()
        why = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise ListenError(f"cannot listen on {host}:{port}: {why}") from error
    sock.setblocking(False)
    return sock


class Listener:
    """Accepts, judges hellos, serves."""

    def __init__(
        self, us: Ourselves, driver: Driver, routes: Routes, peers: Peers, services: Services, limits: Limits
    ) -> None:
        self._us = us
        self._driver = driver
        self._replica = driver.replica
        self._routes = routes
        self._peers = peers
        self._services = services
        self._limits = limits
        self._silent: dict[Link, None] = {}
        self._peer_links = 0
        self.clients: dict[ClientConnection, None] = {}
        #: What was wrong with those turned away, by remote host: the newest few, for status.
        self.strangers: dict[str, str] = {}

    async def run(self, listening: socket.socket) -> None:
        """Accept and serve until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.wait_readable(listening)
                for _ in range(_ACCEPTS_A_TURN):
                    try:
                        sock, _address = listening.accept()
                    except (BlockingIOError, InterruptedError):
                        break
                    except OSError as error:
                        if error.errno in _OUT_OF_RESOURCES:
                            log.error("cannot_accept", why=error.strerror)
                            await trio.sleep(_PAUSE_WHEN_FULL_S)
                        break
                    nursery.start_soon(self._serve, sock)

    async def _serve(self, sock: socket.socket) -> None:
        try:
            link = Link(sock, self._limits.outbox_bytes_max)
        except OSError:  # it is gone already
            sock.close()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.drain)
            try:
                await self._greet(link, nursery)
            except LinkClosed:
                pass
            except (FrameError, WireError) as error:
                self._note(link, str(error))
                await link.part(encode_problem(Code.INVALID, str(error)), str(error))
            finally:
                self._silent.pop(link, None)
                link.close("served")
                nursery.cancel_scope.cancel()

    async def _greet(self, link: Link, nursery: trio.Nursery) -> None:
        """Wait for the hello, then serve whoever it is."""
        self._silent[link] = None
        if len(self._silent) > self._limits.silent_connections_max:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.close("no hello, and others wait")
        bodies: list[Body] = []
        with trio.move_on_after(self._limits.hello_timeout_s):
            bodies = await link.receive()
        if not bodies:
            await link.part(encode_problem(Code.INVALID, "no hello in time"), "no hello in time")
            return
        self._silent.pop(link, None)
        hello = decode_hello(bodies[0])
        link.allow_frames(self._limits.frame_bytes_max)
        if isinstance(hello, w.PeerHello):
            await self._serve_peer(link, hello, bodies[1:])
        elif isinstance(hello, w.ClientHello):
            await self._serve_client(link, hello, bodies[1:], nursery)
        else:
            raise WireError("a connection begins with the hello of a server or a client")

    def _note(self, link: Link, why: str) -> None:
        """For log and status; bounded."""
        host = link.remote.rpartition(":")[0]
        if self.strangers.pop(host, None) != why:
            log.warning("turned_away", remote=link.remote, why=why)
        self.strangers[host] = why
        if len(self.strangers) > _STRANGERS_MAX:
            del self.strangers[next(iter(self.strangers))]

    async def _turn_away(self, link: Link, code: Code, why: str) -> None:
        self._note(link, why)
        await link.part(encode_problem(code, why), why)

    # -- clients ----------------------------------------------------------------------------------------

    async def _serve_client(
        self, link: Link, hello: w.ClientHello, bodies: list[Body], nursery: trio.Nursery
    ) -> None:
        cluster = self._replica.cluster
        if len(self.clients) >= self._limits.client_connections_max:
            await self._turn_away(link, Code.OVERLOADED, f"{len(self.clients)} clients are connected already")
            return
        if hello.cluster and hello.cluster != cluster:
            why = f"cluster {hello.cluster.hex()}: this server belongs to {cluster.hex() or 'none yet'}"
            if cluster:
                await self._turn_away(link, Code.INVALID, why)
            else:  # a client that was quicker than our first start: nothing to keep in mind
                await link.part(encode_problem(Code.INVALID, why), why)
            return
        link.push(encode(self._server_hello()))
        client = ClientConnection(link, self._driver, self._services, nursery)
        self.clients[client] = None
        try:
            await client.serve(bodies)
        finally:
            del self.clients[client]

    def _server_hello(self) -> w.ServerHello:
        replica = self._replica
        settings = replica.settings
        ids = [member.id for member in replica.members.latest.replicas] or [c.id for c in replica.cfg.configured]
        return w.ServerHello(
            w.VERSION, replica.cluster, self._us.me.id, wall_ms(), replica.horizon_ms, settings.payload_bytes_max,
            settings.batch_bytes_max, settings.window, replica.leader_id,
            tuple((id, replica.address_of(id)) for id in ids),
        )

    # -- peers ------------------------------------------------------------------------------------------

    async def _serve_peer(self, link: Link, hello: w.PeerHello, bodies: list[Body]) -> None:
        problem = objection(self._us, self._replica, hello)
        if problem:
            await self._turn_away(link, Code.INVALID, problem)
            return
        if self._peer_links >= _PEER_CONNECTIONS_MAX:
            await self._turn_away(link, Code.OVERLOADED, f"{self._peer_links} servers are connected already")
            return
        if timers_differ(self._us, hello):
            log.warning("timers_differ", peer=hello.id, theirs_ms=hello.timers_ms, ours_ms=self._us.timers_ms)
        who = Identity(hello.id, hello.incarnation)
        full = is_full(self._us, self._replica, hello)
        link.push(encode(our_hello(self._us, self._replica, who)))
        route = Route(link, full)
        older = self._routes.accepted.get(who)
        if older is not None:
            older.link.close("the same server has connected anew")
        self._routes.accepted[who] = route
        known = listed_incarnation(self._replica, who.id) == who.incarnation
        self._peers.heard_from(who, hello.address, open_for_all=full and known)
        self._driver.post(PeerAddress(who.id, who.incarnation, hello.address))
        self._driver.kick()
        self._peer_links += 1
        try:
            while True:
                take_messages(self._driver, route, who, bodies)
                bodies = await link.receive()
        finally:
            self._peer_links -= 1
            if self._routes.accepted.get(who) is route:
                del self._routes.accepted[who]
