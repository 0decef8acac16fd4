"""One port for peers and clients: the first frame says which it is, and what it may send (R27).

Laws:

* A connection that breaks a rule gets the reason, if possible, and is closed; nothing else is affected. Status shows it
  for an hour. A connection whose other side goes away during the handshake has broken no rule.
* With TLS, the hello's time includes the handshake. A server's hello is accepted only if its certificate is that
  server's.
* The number of clients is bounded; of connections without a hello, or turned away, the oldest of the host with the most
  is closed for a new one, and when files run out.
* One host's clients leave a tenth of the places to others. Operators and other servers have a few more places.
* A listed member is always accepted. Unlisted servers, whose hellos anybody could invent, are few for each id, and few
  in all for unknown ids: the oldest is closed for a new one. So they displace only each other.
* A peer speaks only for the identity of its hello. Of two connections of one identity the later one stands, even if its
  hello is read first: after a pause, connections that the peer has given up still wait to be read.
"""

from __future__ import annotations

import errno
import math
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import structlog
import trio

from alpo.core.directory import FIRST_NAME, FIRST_NUMBER
from alpo.core.members import Identity
from alpo.core.ready import PeerAddress
from alpo.core.requests import Code
from alpo.core.settings import Settings
from alpo.errors import TlsError
from alpo.secure import TlsBroken, TlsLeft
from alpo.tls import Rights, looks_like_tls
from alpo.wire import requests as w
from alpo.wire.codec import WireError, decode_hello, encode, encode_problem
from alpo.wire.framing import CLUSTER_TOLD, TLS_ONLY_TOLD, FrameError

from .admission import FRAME_BYTES_MOST, OUTBOX_BYTES_MOST, Limits, Silent, frame_bytes
from .client_connection import Ahead, ClientConnection, Services
from .compare import INQUIRER
from .driver import Driver, wall_ms
from .link import Body, Link, LinkClosed
from .peers import Peers, note_timers
from .poller import Poller
from .routes import (
    TWICE_S,
    Ourselves,
    Route,
    Routes,
    converse,
    is_full,
    listed_incarnation,
    objection,
    our_hello,
    server_hello,
    timers_differ,
)
from .security import Security, refusal
from .threads import in_thread

log = structlog.get_logger()

_ACCEPTS_A_TURN = 64
_SAY_AGAIN_S = 10.0
_PAUSE_WHEN_FULL_S = 0.1
#: Most connections of non-members: per known id, and for all unknown ids together.
_UNLISTED_AN_ID_MAX = 4
_UNLISTED_MAX = 16
#: Reasons for turning hosts away that are remembered, and seconds for which each is.
_STRANGERS_MAX, STRANGER_S = 16, 3600.0
#: Seconds that answers under way may take before a client has to connect again.
_GREET_ANEW_S = 0.5
#: Seconds between two looks at the files of certificates.
CERTIFICATES_LOOK_S = 60.0
#: Seconds between closing one server's connection and the next one's, to be opened anew: no majority is lost for long.
_BETWEEN_PEERS_S = 0.2
#: Labels of the metric of connections refused.
_REASONS = {Code.NO_RIGHT: "no_right", Code.OVERLOADED: "overloaded"}
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ListenError(Exception):
    """The address cannot be listened on; the message is one line for the operator."""


def open_listener(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises `ListenError`, which says what is wrong with the address."""
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


class Strangers:
    """Hosts whose connections were turned away within the last hour, and why; the newest few."""

    def __init__(self) -> None:
        # (host, why) -> (times, wall clock in ms and Trio's clock of the last time), the newest last
        self._known: dict[tuple[str, str], tuple[int, int, float]] = {}

    def note(self, remote: str, why: str) -> bool:
        """Note that a connection from host ``remote`` was turned away. True if that is news."""
        self._age()
        times = self._known.pop((remote, why), (0, 0, 0.0))[0]
        self._known[remote, why] = times + 1, wall_ms(), trio.current_time()
        if len(self._known) > _STRANGERS_MAX:
            del self._known[next(iter(self._known))]
        return not times

    def _age(self) -> None:
        since_s = trio.current_time() - STRANGER_S
        self._known = {key: seen for key, seen in self._known.items() if seen[2] > since_s}

    def fields(self) -> list[dict[str, Any]]:
        """Value of the status key ``strangers``: ``last_ms`` is this server's wall clock."""
        self._age()
        return [
            {"remote": remote, "why": why, "last_ms": last_ms, "times": times}
            for (remote, why), (times, last_ms, _) in self._known.items()
        ]


def _told_limits(settings: Settings) -> tuple[int, int, int]:
    """The settings that a hello tells clients: a change makes them connect again."""
    return settings.payload_bytes_max, settings.batch_bytes_max, settings.window


async def _greet_anew(client: ClientConnection) -> None:
    with trio.move_on_after(_GREET_ANEW_S):
        await client.link.wait_below(0)
    client.link.close("to be opened anew: what it rests on has changed")


class Front:
    """One log as its clients meet it. ``name`` may change."""

    def __init__(self, number: int, name: str, driver: Driver, services: Services, routes: Routes) -> None:
        self.number, self.name = number, name
        self.driver, self.services = driver, services
        self.ahead = Ahead(driver, routes, number)
        self._greet_anew: Callable[[Front], None] | None = None
        self._told_limits = _told_limits(self._settings)
        self._settled: Settings | None = None  # the settings, once looked at, if the last ones are guaranteed

    @property
    def _settings(self) -> Settings:
        """The guaranteed settings: no new leader takes them back."""
        return self.driver.replica.sessions.settings_at(self.driver.replica.guaranteed_id)

    def follow(self, greet_anew: Callable[[Front], None]) -> None:
        """Have all clients connect again whenever limits in the hello have changed."""
        if self._greet_anew is None:
            self._greet_anew = greet_anew
            self.driver.watchers.after_change.append(self._follow_settings)
            self._follow_settings()  # changes since this was made are told too

    def _follow_settings(self) -> None:
        latest = self.driver.replica.settings
        if latest is self._settled:
            return
        guaranteed = self._settings
        self._settled = latest if guaranteed == latest else None
        watchers = self.driver.watchers.after_mark  # until the settings are guaranteed
        if self._settled is None and self._follow_settings not in watchers:
            watchers.append(self._follow_settings)
        elif self._settled is not None and self._follow_settings in watchers:
            watchers.remove(self._follow_settings)
        told = _told_limits(guaranteed)
        if told != self._told_limits and self._greet_anew is not None:
            self._told_limits = told
            self._greet_anew(self)


class Listener:
    """Accepts connections, judges their hellos, and serves them."""

    def __init__(
        self, us: Ourselves, driver: Driver, poller: Poller, routes: Routes, peers: Peers,
        services: Services, limits: Limits, security: Security,
    ) -> None:
        self._us = us
        self._security = security
        self._driver = driver
        self._poller = poller
        self._replica = driver.replica
        self._routes = routes
        self._peers = peers
        self._limits = limits
        self._silent = Silent()
        #: The logs that clients may ask for, by number; the first one is always there.
        self.fronts = {FIRST_NUMBER: Front(FIRST_NUMBER, FIRST_NAME, driver, services, routes)}
        self._accepts = 0
        self._numbers: dict[Identity, int] = {}  # key of `Routes.accepted` -> number of its accept
        self.clients: dict[ClientConnection, Front] = {}
        self._of_host: Counter[str] = Counter()  # clients
        self._inquiries = 0  # other servers' among them
        self.strangers = Strangers()
        #: True from the signal to stop on.
        self.leaving = False

    @property
    def count(self) -> int:
        """The number of clients, without other servers that ask for something."""
        return len(self.clients) - self._inquiries

    @property
    def silent(self) -> int:
        """The number of connections that have not said hello yet."""
        return len(self._silent)

    def follow_logs(self, others: Iterable[Front]) -> None:
        """Serve clients of the first log and of ``others``, and of no other any more."""
        ended = {number: front for number, front in self.fronts.items() if number != FIRST_NUMBER}
        for front in others:
            if ended.pop(front.number, None) is None:
                self.fronts[front.number] = front
        for front in self.fronts.values():
            front.follow(self._greet_anew)
        for number in ended:
            front = self.fronts.pop(number)
            self._greet_anew(front, encode_problem(*self._why_not(front.name)))

    def _why_not(self, name: str) -> tuple[Code, str]:
        """Reason why a log of this name cannot be served: NOT_READY if it may be later."""
        replica = self._replica
        if self.leaving:
            return Code.NOT_READY, "it is stopping"
        if replica.directory.guaranteed.named(name) is not None:
            return Code.NOT_READY, f"the log {name} does not run here yet"
        if not replica.leader_id:
            return Code.NOT_READY, f"this server knows no leader, and so not whether there is a log {name}"
        return Code.NO_SUCH_LOG, f"there is no log {name} on this server"

    def rename(self, front: Front, name: str) -> None:
        """Give a log another name; its clients connect again by that, and their rights are judged by it."""
        if front.name != name:
            front.name = name
            self._greet_anew(front)

    def _greet_anew(self, front: Front, words: bytes = b"") -> None:
        """Have all clients of a log connect again; answers under way are sent first, then ``words``."""
        for client in [client for client, of in self.clients.items() if of is front]:
            if words:
                client.link.push(words)
            client.nursery.start_soon(_greet_anew, client)

    def _front(self, name: str) -> Front | None:
        """The log of this name, if it is here; "": the first. A deleted one may still be about to stop."""
        if name in ("", FIRST_NAME):
            return self.fronts[FIRST_NUMBER]
        listing = self._replica.directory.guaranteed
        log = listing.named(name)
        if log is not None:
            return self.fronts.get(log.number)
        # Some run though the directory here is behind, which it stays on a server that was removed.
        early = [front for number, front in self.fronts.items() if listing.get(number) is None and front.name == name]
        return next((front for front in early if not listing.lacks(front.number)), None)

    async def run(self, listening: socket.socket) -> None:
        """Accept and serve until cancelled."""
        self.follow_logs([])
        say_again_s = 0.0
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.wait_readable(listening)
                for _ in range(_ACCEPTS_A_TURN):
                    try:
                        sock, address = listening.accept()
                    except (BlockingIOError, InterruptedError):
                        break
                    except OSError as error:
                        if error.errno in _OUT_OF_RESOURCES:
                            if trio.current_time() >= say_again_s:
                                log.error("cannot_accept", why=error.strerror)
                                say_again_s = trio.current_time() + _SAY_AGAIN_S
                            self._silent.make_room()
                            await trio.sleep(_PAUSE_WHEN_FULL_S)
                        break
                    self._accepts += 1
                    nursery.start_soon(self._serve, sock, address, self._accepts)

    async def _serve(self, sock: socket.socket, address: tuple[Any, ...], number: int) -> None:
        try:
            link = Link(sock, OUTBOX_BYTES_MOST, address=address)
        except OSError:  # the other side is gone already
            sock.close()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.drain)
            try:
                await self._greet(link, number, nursery)
            except LinkClosed:
                pass
            except (FrameError, WireError) as error:
                self._driver.counters.connections_refused["invalid"] += 1
                self._note(link, str(error))
                await link.part(encode_problem(Code.INVALID, str(error)), str(error))
            finally:
                self._silent.discard(link)
                link.close("served")
                nursery.cancel_scope.cancel()

    async def _greet(self, link: Link, number: int, nursery: trio.Nursery) -> None:
        """Wait for the hello, then serve a peer or a client."""
        began_s = trio.current_time()
        turns = self._silent.add(link, self._limits.silent_connections_max)
        bodies: list[Body] = []
        rights: Rights | None = None
        generation = self._security.generation
        counters = self._driver.counters
        with trio.move_on_after(self._limits.hello_timeout_s):
            try:
                rights = await self._secure(link, turns)
            except TlsLeft as error:  # a command that is done may leave while its second connection begins
                counters.handshakes["left"] += 1
                log.debug("handshake_left", remote=link.remote, why=str(error))
                link.close(str(error))
                return
            except TlsBroken as error:
                counters.handshakes["failed"] += 1
                counters.connections_refused["tls"] += 1
                self._note(link, str(error))
                await link.linger(str(error))
                return
            bodies = await link.receive()
        if rights is not None:
            counters.handshakes["ok"] += 1
        if not bodies:
            counters.connections_refused["timeout"] += 1
            await link.part(encode_problem(Code.INVALID, "no hello in time"), "no hello in time")
            return
        self._silent.discard(link)
        hello = decode_hello(bodies[0])
        link.allow_frames(frame_bytes(self._replica.settings))
        if rights is not None and generation != self._security.generation:
            link.close("the certificates have changed")
        elif rights is None and not self._security.takes_plain:
            await self._turn_away(link, Code.NO_RIGHT, TLS_ONLY_TOLD)
        elif isinstance(hello, w.PeerHello):
            if rights is not None and hello.id not in rights.peers:
                needed = f"peer/{hello.id}"
                await self._turn_away(link, Code.NO_RIGHT, refusal(rights, needed))
            else:
                await self._serve_peer(link, number, began_s, hello, bodies[1:])
        elif isinstance(hello, w.ClientHello):
            if rights is not None and not (rights.roles or rights.peers):
                await self._turn_away(link, Code.NO_RIGHT, refusal(rights, "append, read or admin"))
            else:
                await self._serve_client(link, hello, bodies[1:], nursery, rights)
        else:
            raise WireError("a connection begins with the hello of a server or a client")

    async def _secure(self, link: Link, of_host: trio.CapacityLimiter) -> Rights | None:
        """Begin TLS if the other side does; returns the rights of its certificate, None for a plain connection.
        ``of_host``: its host's turns. Raises `TlsBroken`, `LinkClosed`."""
        security = self._security
        contexts, roles = security.contexts, security.roles  # read once: a reload may change them meanwhile
        if contexts is None or not looks_like_tls(await link.first_bytes()):
            return None
        return await link.secure(contexts, security.accepted_turns, roles=roles, first=of_host)

    async def follow_certificates(self) -> None:
        """Read certificates anew when their files change, until cancelled."""
        while True:
            await trio.sleep(CERTIFICATES_LOOK_S)
            before = self._security.contexts
            try:
                fresh = await in_thread(self._security.fresh)
            except TlsError as error:
                self._driver.note("tls_reload_failed", why=str(error))
            else:
                if fresh is not None and self._security.contexts is before:  # else a reload has read newer ones
                    await self.secure_with(fresh)

    async def secure_with(self, fresh: Security) -> None:
        """Put other certificates, or another mode, into force. Connections that no longer fit (another CA, or plain
        where TLS is required) are closed one by one, once their requests under way are done, and are opened anew by the
        other side."""
        anew = self._security.replace(fresh)
        self._driver.note("tls_reloaded", mode=self._security.mode)
        if anew:
            for client in self.clients:
                client.nursery.start_soon(_greet_anew, client)
            for route in [*self._routes.accepted.values(), *self._routes.dialled.values()]:
                route.link.close("the certificates have changed")
                await trio.sleep(_BETWEEN_PEERS_S)

    def _note(self, link: Link, why: str) -> None:
        """Log why a connection was turned away, and remember it for status."""
        if self.strangers.note(link.remote.rpartition(":")[0], why):
            self._driver.note("turned_away", remote=link.remote, why=why)

    async def _turn_away(self, link: Link, code: Code, why: str) -> None:
        reason = "cluster" if why.startswith("cluster ") else _REASONS.get(code, "invalid")
        self._driver.counters.connections_refused[reason] += 1
        self._note(link, why)
        self._silent.add(link, self._limits.silent_connections_max)  # while it reads why
        await link.part(encode_problem(code, why), why)

    # -- clients ----------------------------------------------------------------------------------------

    async def _serve_client(
        self, link: Link, hello: w.ClientHello, bodies: list[Body], nursery: trio.Nursery, rights: Rights | None
    ) -> None:
        front, host = self._front(hello.log), link.remote.rpartition(":")[0]
        if front is None:
            code, why = self._why_not(hello.log)
            self._silent.add(link, self._limits.silent_connections_max)  # while it reads why
            await link.part(encode_problem(code, why), why)
            return
        link.allow_frames(frame_bytes(front.driver.replica.settings))
        cluster = front.driver.replica.cluster
        if crowded := self._no_place(hello, rights, host):
            await self._turn_away(link, Code.OVERLOADED, crowded)
            return
        if hello.cluster and hello.cluster != cluster and cluster and front.number != FIRST_NUMBER:
            why = f"the log {front.name} is another one by now, {cluster.hex()}"
            self._silent.add(link, self._limits.silent_connections_max)  # while it reads why
            await link.part(encode_problem(Code.NO_SUCH_LOG, why), why)
            return
        if hello.cluster and hello.cluster != cluster:
            why = f"cluster {hello.cluster.hex()}: {CLUSTER_TOLD} {cluster.hex() or 'none yet'}"
            if cluster:
                await self._turn_away(link, Code.INVALID, why)
            else:  # a client that came before our first start: nothing to remember
                await link.part(encode_problem(Code.INVALID, why), why)
            return
        told = server_hello(front.driver.replica, hello.version, wall_ms())
        if not front.driver.replica.members.latest.members:  # while it waits to be added, they are the first's
            told = told._replace(members=server_hello(self._replica, hello.version, 0).members)
        link.push(encode(told._replace(number=front.number, name=front.name)))
        client = ClientConnection(
            link, self._poller, front.driver, front.services, nursery, hello.version, rights, front.name, front.ahead
        )
        self.clients[client] = front
        self._of_host[host] += 1
        asks = hello.library.startswith(INQUIRER)
        self._inquiries += asks
        try:
            await client.serve(bodies)
        finally:
            del self.clients[client]
            self._inquiries -= asks
            self._of_host[host] -= 1
            if not self._of_host[host]:
                del self._of_host[host]

    def _no_place(self, hello: w.ClientHello, rights: Rights | None, host: str) -> str:
        """The reason why no place is left for this client; "" if there is one. Without TLS every client that claims to
        be an operator's counts as one: there are no rights to check."""
        most = self._limits.client_connections_max
        if rights is not None:
            is_ours = "admin" in rights.roles or bool(rights.peers)
        else:
            is_ours = hello.library.startswith((w.COMMAND, INQUIRER))
        if len(self.clients) >= most + is_ours * self._limits.operator_connections_max:
            return f"{len(self.clients)} clients are connected already"
        if not is_ours and self._of_host[host] >= most - most // 10:
            return f"{self._of_host[host]} clients of {host} are connected already: the last places are for other hosts"
        return ""

    # -- peers ------------------------------------------------------------------------------------------

    async def _serve_peer(
        self, link: Link, number: int, began_s: float, hello: w.PeerHello, bodies: list[Body]
    ) -> None:
        problem = objection(self._us, self._replica, hello)
        if problem:
            await self._turn_away(link, Code.INVALID, problem)
            return
        who = Identity(hello.id, hello.incarnation)
        if self._numbers.get(who, 0) > number:
            link.close("the same server has connected anew")
            return
        twice, believed = self._routes.heard(self._driver, hello, link.remote.rpartition(":")[0], began_s)
        if not believed and self._routes.rival(who, hello.process):
            self._driver.counters.connections_refused["twice"] += 1
            await link.part(encode_problem(Code.INVALID, twice), twice)
            return
        if timers_differ(self._us, hello):
            note_timers(self._driver, hello.id, hello, self._us)
        full = is_full(self._us, self._replica, hello)
        link.open_lanes()
        link.push(encode(our_hello(self._us, self._replica, who, hello.version)))
        route = Route(link, full, hello.version, hello.process)
        self._admit(who, route, number)
        known = listed_incarnation(self._replica, who.id) == who.incarnation
        if known:
            link.allow_frames(FRAME_BYTES_MOST)
        self._routes.stores.look(who.id)
        self._peers.heard_from(who, hello.address if believed else "", open_for_all=full and known)
        if believed:
            self._driver.post(PeerAddress(who.id, who.incarnation, hello.address))
            self._driver.kick()
        try:
            with trio.move_on_after(math.inf if believed else TWICE_S):  # then its next hello is judged anew
                await converse(self._driver, self._poller, self._routes, route, who, bodies)
        finally:
            if self._routes.accepted.get(who) is route:
                self._forget(who)
                self._routes.stores.look(who.id)
                self._peers.accepted_ended(who)

    def _admit(self, who: Identity, route: Route, number: int) -> None:
        """Register the route. Closes an older one of the same server or, if too many unlisted servers are connected,
        the oldest of them."""
        accepted, latest, known = self._routes.accepted, self._replica.members.latest, self._peers.by_id
        if who in accepted:
            self._forget(who).link.close("the same server has connected anew")
        if not latest.holds(who):
            unlisted = [other for other in accepted if not latest.holds(other)]
            if who.id in known:
                crowd, most = [other for other in unlisted if other.id == who.id], _UNLISTED_AN_ID_MAX
            else:
                crowd, most = [other for other in unlisted if other.id not in known], _UNLISTED_MAX
            for other in crowd[: max(0, len(crowd) + 1 - most)]:
                self._forget(other).link.close("not a member, and others wait")
                self._routes.stores.look(other.id)
        accepted[who] = route
        if who.id in known:
            route.link.traffic = self._driver.counters.traffic_with(who.id)[1]
        self._numbers[who] = number

    def _forget(self, who: Identity) -> Route:
        del self._numbers[who]
        return self._routes.accepted.pop(who)
