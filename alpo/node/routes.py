"""Connections between servers: their hellos, and which message leaves over which connection (R27).

Laws of the hello:

* A connection with a known protocol version is closed only for a *different* cluster id or a wrong server id.
* A connection is full only if both hellos name the same cluster, and each the other's incarnation.

Requests leave over the connection that this server dialled, answers over the one on which the request came. A
connection whose hello left a cluster or an incarnation unknown carries only START_ONLY messages. A message without a
connection is dropped: the core repeats what matters.

Long messages leave in pieces, and short ones between them (`alpo.wire.lanes`); entries stay in their order. What a
deposed leader has not sent yet of them is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeAlias

import trio

from alpo.addresses import AddressError, parse_dialled
from alpo.core.directory import FIRST_NUMBER
from alpo.core.hosting.words import HostMessage, LogHello
from alpo.core.members import Identity
from alpo.core.messages import REQUESTS, START_ONLY, AppendRequest, Envelope, wants_answer
from alpo.core.ready import Moving, Received
from alpo.core.replica import Replica
from alpo.wire.codec import WireError, decode_peer, encode_entries, encode_envelope, encode_host, encode_long
from alpo.wire.lanes import PIECE_BYTES_MAX, with_blocks
from alpo.wire.requests import LOGS_VERSION, PeerHello, ServerHello

from .driver import Driver, wall_ms
from .link import Body, Link
from .poller import Poller


@dataclass(frozen=True, slots=True)
class Ourselves:
    """This server's constants. ``timers_ms``: heartbeat, election timeout, stagger. ``process``: a random number drawn
    at the start (`PeerHello`)."""

    me: Identity
    address: str
    timers_ms: tuple[int, int, int]
    process: bytes = b""


def our_hello(us: Ourselves, replica: Replica, target: Identity, version: int) -> PeerHello:
    """The hello to send to ``target``, whose incarnation is b"" if unknown. ``version``: protocol version to speak."""
    return PeerHello(
        version, replica.cluster, us.me.id, us.me.incarnation, us.address, target.id, target.incarnation,
        wall_ms(), replica.horizon_ms, us.timers_ms, us.process,
    )


def server_hello(replica: Replica, version: int, time_ms: int) -> ServerHello:
    """The answer to a client's hello: who this server is, what it takes, and where the others are."""
    settings = replica.settings
    ids = [member.id for member in replica.members.latest.replicas] or [c.id for c in replica.cfg.configured]
    return ServerHello(
        version, replica.cluster, replica.me.id, time_ms, replica.horizon_ms, settings.payload_bytes_max,
        settings.batch_bytes_max, settings.window, replica.leader_id,
        tuple((id, replica.address_of(id)) for id in ids),
    )


def listed_incarnation(replica: Replica, id: int) -> bytes:
    """The incarnation of member ``id`` in this server's list; b"" without a list or such a member."""
    return replica.members.identity(id).incarnation


def objection(us: Ourselves, replica: Replica, hello: PeerHello) -> str:
    """The reason to refuse the sender of ``hello``; "" if it is accepted."""
    if hello.cluster and replica.cluster and hello.cluster != replica.cluster:
        return f"cluster {hello.cluster.hex()}: this server belongs to cluster {replica.cluster.hex()}"
    wanted = replica.cfg.cluster_wanted
    if hello.cluster and wanted and hello.cluster != wanted:
        return f"cluster {hello.cluster.hex()}: this server was told to belong to cluster {wanted.hex()} alone"
    if hello.id == us.me.id:
        return f"server id {hello.id} is this server's own: two servers were given the same id"
    if hello.target_id != us.me.id:
        return f"looking for server {hello.target_id}: this is server {us.me.id}"
    try:
        parse_dialled(hello.address)
    except AddressError as error:
        return f"its address is none: {error}"
    return ""


def is_full(us: Ourselves, replica: Replica, hello: PeerHello) -> bool:
    """True if the (accepted) hello allows all messages, as far as its sender is concerned."""
    return bool(replica.cluster) and hello.cluster == replica.cluster and hello.target_incarnation == us.me.incarnation


def timers_differ(us: Ourselves, hello: PeerHello) -> bool:
    """True if the other server's timers differ: they are configuration, so a difference is worth a warning."""
    return hello.timers_ms != us.timers_ms


class Route:
    """A connection to one peer, for all messages (``full``) or for those of the first start only."""

    def __init__(self, link: Link, full: bool, version: int, process: bytes = b"") -> None:
        self.link = link
        self.full = full
        #: The other side's process (`PeerHello.process`).
        self.process = process
        #: Protocol version spoken on this connection.
        self.version = version
        #: Identity of the other side, and what its hosting has said last over this connection.
        self.who: Identity | None = None
        self.said: LogHello | None = None
        #: Stores of other logs than the first that have sent something over this connection.
        self.heard: set[Identity] = set()
        #: Bodies of heartbeats that have changed nothing -> what they say: the next ones say the same, mostly.
        self.heartbeats: dict[bytes, Envelope] = {}
        #: Numbers of the blocks that were sent over this connection (`Routes.blocks`).
        self.sent_ahead: set[int] = set()
        #: Time at which the first message that wants an answer left after the last answer; None: nothing is unanswered.
        self.silent_since_s: float | None = None


#: Sends something. Finds the connection for a message to a store: (its identity, whether we dial for such messages).
_Push: TypeAlias = Callable[[], None]
Find: TypeAlias = Callable[[Identity, bool], Route | None]


@dataclass(slots=True)
class _Process:
    """One process of a member: where it says that it is, where its connection came from or went to, and when it was
    first and last heard, on Trio's clock."""

    address: str
    remote: str
    first_s: float
    last_s: float


class _Twins:
    """The processes of a member that were heard lately."""

    def __init__(self) -> None:
        self.processes: dict[bytes, _Process] = {}
        self.seen_ms = 0  # wall clock at which both were last known to run
        self.told_s = -math.inf  # Trio's clock at which that was last told
        self.until_s = -math.inf  # Trio's clock until which both count as running

    def running(self) -> list[_Process]:
        """Processes heard since the newest one was first heard, the one heard first in front."""
        newest_s = max(each.first_s for each in self.processes.values())
        found = [each for each in self.processes.values() if each.last_s >= newest_s]
        return sorted(found, key=lambda each: each.first_s)

    def addresses(self) -> list[str]:
        """Address of each, for an operator."""
        said = [process.address for process in self.running()]
        return sorted(
            each.address if said.count(each.address) == 1 else f"{each.address} (from {each.remote})"
            for each in self.running()
        )


class Heard(NamedTuple):
    """Result of a hello: words for an operator while two processes of the member run, else ""; and whether the address
    that the hello gives may be believed."""

    twice: str
    believed: bool


#: Size of the body of the largest heartbeat, and heartbeats that are remembered of a connection.
_HEARTBEAT_BYTES_MAX, _HEARTBEATS_MAX = 106, 256
#: Seconds for which a process counts as running after a hello, and two of one member as known to run. Processes of one
#: member that are remembered.
TWICE_S, _PROCESSES_MAX = 60.0, 4


class Routes:
    """All connections between servers, by peer; and members of which two processes run, as where a directory, a volume
    or a machine was copied.

    Both processes run if the older one, of which a hello came before the first hello of the newer one, says hello again
    on a connection that began after that. (After a restart the process before never comes back.)
    """

    def __init__(self) -> None:
        self.dialled: dict[int, Route] = {}
        self.accepted: dict[Identity, Route] = {}
        #: Bodies of appends that go ahead of their entries, by number: see `client_connection.Ahead`.
        self.blocks: dict[int, bytes] = {}
        #: Number of the log whose bodies those are; 0: none go ahead.
        self.blocks_of = 0
        self._last_block = 0  # no number is used again: an answer to an old block may yet come
        #: Messages of this pass to each peer, while several logs run here; else None.
        self._gathered: dict[Link, list[bytes]] | None = None
        self._twins: dict[Identity, _Twins] = {}
        self.stores = Stores(self)

    def heard(self, driver: Driver, hello: PeerHello, remote: str, began_s: float) -> Heard:
        """Note the hello of a server, on a connection with ``remote`` that began at ``began_s``, Trio's clock. While
        two processes of a member run, only the address of the one that was heard first is believed."""
        who, now_s = Identity(hello.id, hello.incarnation), driver.clock_s()
        members = driver.replica.members.latest
        self._twins = {each: found for each, found in self._twins.items() if members.holds(each)}
        if not members.holds(who):
            return Heard("", True)
        twins = self._twins.setdefault(who, _Twins())
        connected = {route.process for route in self._with(who)}
        alive = {
            key: each for key, each in twins.processes.items() if key in connected or each.last_s > now_s - TWICE_S
        }
        key = hello.process or hello.address.encode()
        mine = alive.pop(key, None) or _Process(hello.address, remote, now_s, now_s)
        mine.address, mine.remote, mine.last_s = hello.address, remote, now_s
        lasts = now_s < twins.until_s
        again = any(mine.first_s < other.first_s < began_s for other in alive.values())
        if again or (lasts and self.rival(who, hello.process)):
            twins.seen_ms, twins.until_s = wall_ms(), now_s + TWICE_S
            for other in connected & alive.keys():
                alive[other].last_s = now_s
        alive[key] = mine
        twins.processes = dict(list(alive.items())[-_PROCESSES_MAX:])
        if now_s >= twins.until_s:
            return Heard("", True)
        if now_s >= twins.told_s + TWICE_S:
            twins.told_s = now_s
            driver.note("twice", member=who.id, addresses=twins.addresses())
        at = " and ".join(twins.addresses())
        words = f"server {who.id} runs twice, at {at}: a copy of its directory was started; stop one of them"
        return Heard(words, mine is twins.running()[0])

    def _with(self, who: Identity) -> list[Route]:
        """Open connections with ``who``."""
        found = [self.accepted.get(who), self.dialled.get(who.id)]
        return [route for route in found if route is not None and not route.link.closed]

    def rival(self, who: Identity, process: bytes) -> bool:
        """True if a connection that ``who`` has dialled belongs to another process than this one."""
        route = self.accepted.get(who)
        return route is not None and not route.link.closed and route.process != process

    def twice(self, now_s: float) -> list[dict[str, Any]]:
        """Value of the status key ``twice``. ``now_s``: Trio's clock."""
        return [
            {"id": who.id, "addresses": twins.addresses(), "last_ms": twins.seen_ms}
            for who, twins in sorted(self._twins.items()) if now_s < twins.until_s
        ]

    def send(self, envelopes: Sequence[Envelope], now_s: float, find: Find | None = None) -> None:
        """Encode and send; the first peer's bytes leave before the next one's are encoded. ``find``: the connections of
        a log besides the first."""
        for push in self._encode(envelopes, now_s, find):
            push()

    def prepare(self, envelopes: Sequence[Envelope], now_s: float, find: Find | None = None) -> Callable[[], None]:
        """Encode now; returns a function that sends, for any thread. ``find``: as in `send`."""
        encoded = list(self._encode(envelopes, now_s, find, from_thread=True))

        def send() -> None:
            for push in encoded:
                push()

        return send

    def abandon(self) -> None:
        """Drop entries that wait to leave in pieces: this server leads the first log no more, and whoever leads now
        sends its own. Not while another log's entries or blocks may be among them."""
        if not self.stores.receivers and self.blocks_of in (0, FIRST_NUMBER):
            for route in self.dialled.values():
                route.link.abandon_long()

    def _encode(
        self, envelopes: Sequence[Envelope], now_s: float, find: Find | None, *, from_thread: bool = False
    ) -> Iterator[_Push]:
        """Yield what sends; consecutive short messages to one peer are joined. Entries for several peers are encoded
        once. ``from_thread``: any thread may send. The silence of a peer counts from a message of another log only if
        that log has spoken over this connection: it may not run there yet."""
        blobs: dict[tuple[int, int], list[bytes]] = {}
        link: Link | None = None
        parts: list[bytes] = []
        for envelope in envelopes:
            message = envelope.message
            appends = message if type(message) is AppendRequest else None
            dialled = appends is not None or isinstance(message, REQUESTS)
            if find is not None:
                route = find(envelope.target, dialled)
            else:
                route = self.dialled.get(envelope.target.id) if dialled else self.accepted.get(envelope.target)
            if route is None or not (route.full or isinstance(message, START_ONLY)):
                continue
            blob = None
            if appends is not None and appends.entries:
                # Entries are consecutive and immutable, so the first and last identify the list.
                ends = (id(appends.entries[0]), id(appends.entries[-1]))
                blob = blobs.get(ends)
                if blob is None:
                    blob = blobs[ends] = encode_entries(appends.entries)
            if route.link is not link:
                if link is not None and parts:
                    yield self._pusher(link, parts, from_thread)
                link, parts = route.link, []
            behind = bool(blob is not None and link.queued_bytes and link.long_entries)
            if blob is not None and len(blob) > 1 and not self.blocks:
                whole = encode_long(envelope, blob, route.version)
            else:
                data = encode_envelope(envelope, blob, route.version)
                if self.blocks and appends is not None and appends.entries:
                    data, here = self._with_blocks(route, appends, data)
                    behind = behind or not here
                whole = [data]
            if behind or sum(map(len, whole)) > PIECE_BYTES_MAX:
                if not from_thread:
                    yield self.flush
                yield partial(link.push_long, *whole, ordered=blob is not None)
            else:
                parts += whole
            if dialled and route.silent_since_s is None and wants_answer(message):
                if find is None or envelope.target in route.heard:
                    route.silent_since_s = now_s
        if link is not None and parts:
            yield self._pusher(link, parts, from_thread)

    def _pusher(self, link: Link, parts: list[bytes], from_thread: bool) -> _Push:
        """A function that sends these messages, or keeps them for the others of this pass."""
        data = b"".join(parts)
        if from_thread:
            return partial(link.push_from_thread, data)
        return partial(link.push, data) if self._gathered is None else partial(self.keep, link, data)

    def keep(self, link: Link, data: bytes) -> None:
        """Send messages, together with the others of this pass."""
        if self._gathered is None:
            link.push(data)
        else:
            self._gathered.setdefault(link, []).append(data)

    def gather(self, several: bool) -> None:
        """Have what one pass of the event loop sends to a peer leave in one piece, by `flush`, while ``several`` logs
        run here; else each log's at once. What writers' threads send leaves at once all the same."""
        self.flush()
        self._gathered = {} if several else None

    def flush(self) -> None:
        """Send what was gathered."""
        if self._gathered:
            gathered, self._gathered = self._gathered, {}
            for link, parts in gathered.items():
                link.push_from_thread(b"".join(parts))  # a rest is sent in time, too

    def find(self, number: int, store: Identity) -> Route | None:
        """The connection on which requests of log ``number`` go to a store; None while there is none."""
        return self.dialled.get(store.id) if number == FIRST_NUMBER else self.stores.find(number, store, True)

    def add_block(self, body: bytes) -> int:
        """Have messages refer to ``body`` by the number returned, where it was sent ahead, until it is deleted."""
        self._last_block = self._last_block + 1 & 0xFFFFFFFF
        self.blocks[self._last_block] = body
        return self._last_block

    def _with_blocks(self, route: Route, message: AppendRequest, data: bytes) -> tuple[bytes, bool]:
        """The frame ``data`` of a message with entries, without the blocks that went ahead; and whether the other side
        is known to hold them."""
        numbers = {id(block): number for number, block in self.blocks.items() if number in route.sent_ahead}
        gone = [(numbers[id(e.body)], e.body) for e in message.entries if id(e.body) in numbers]
        if not gone:
            return data, True
        return with_blocks(data, gone), route.link.held.issuperset(number for number, _ in gone)


async def converse(
    driver: Driver, poller: Poller, routes: Routes, route: Route, who: Identity, bodies: list[Body]
) -> NoReturn:
    """Post the messages in ``bodies`` and all that follow, until the connection ends. Raises `LinkClosed`,
    `FrameError`, and `WireError` for a message that is not from ``who``, or not allowed on this connection."""

    def take(bodies: list[Body]) -> bool:
        _take_messages(driver, routes, route, who, bodies)
        return True

    told_s = [-math.inf, -math.inf]

    def moving(incoming: bool) -> None:
        now_s = driver.clock_s()
        if now_s - told_s[incoming] >= driver.replica.cfg.heartbeat_s / 2:
            told_s[incoming] = now_s
            if route.silent_since_s is not None:
                route.silent_since_s = now_s
            driver.post(Moving(who, incoming, now_s))

    route.link.moving = moving
    take(bodies)
    driver.kick(at_once=True)
    await route.link.deliver(poller, take, trio.lowlevel.checkpoint)


def _take_messages(driver: Driver, routes: Routes, route: Route, who: Identity, bodies: list[Body]) -> None:
    """Hand each message on to the log of the store that has sent it; one of a store that the peer does not tell of any
    more, or whose log does not run here, is dropped."""
    route.silent_since_s = None
    now_s = driver.clock_s()
    others: set[Driver] = set()
    answers: list[Envelope] | None = [] if route.full and routes.accepted.get(who) is route else None
    for body in bodies:
        small = bytes(body) if len(body) <= _HEARTBEAT_BYTES_MAX else b""
        envelope = route.heartbeats.get(small) or decode_peer(body, route.version)
        if not isinstance(envelope, Envelope):
            routes.stores.hear(route, who, envelope)
            continue
        if envelope.sender.id != who.id:
            raise WireError(f"a message of {envelope.sender.id} on the connection of {who.id}")
        owner = driver if envelope.sender == who else routes.stores.receivers.get(envelope.sender)
        if owner is None:
            continue
        if owner is not driver:
            route.heard.add(envelope.sender)
        elif not route.full and not isinstance(envelope.message, START_ONLY):
            raise WireError("this connection is open for first-start messages only")
        received = Received(envelope, now_s)
        if not owner.take_known(received, now_s, answers):
            owner.post(received)
            if owner is not driver:
                others.add(owner)
        elif small and type(envelope.message) is AppendRequest:
            if len(route.heartbeats) >= _HEARTBEATS_MAX:
                route.heartbeats.clear()
            route.heartbeats[small] = envelope
    if answers:
        routes.keep(route.link, b"".join([encode_envelope(each, None, route.version) for each in answers]))
    for other in others:
        other.kick()


class Stores:
    """The stores of the logs besides the first that peers have, as they told, and the connections between them.

    An envelope names its sender's store, and every store has an incarnation of its own: so an envelope goes to the log
    of the store that has sent it, and to no other. Words between hostings, and the messages that rest on them, leave
    over the same connection, in this order.
    """

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        #: Id of a peer that is connected in both directions -> who it is, and its stores by the number of the log; and
        #: these connections.
        self._peers: dict[int, tuple[Identity, dict[int, Identity]]] = {}
        self._pairs: dict[int, tuple[Route, Route]] = {}
        self._last: dict[Identity, dict[int, Identity]] = {}
        #: A peer's store -> the driver of its log here.
        self.receivers: dict[Identity, Driver] = {}
        #: Called with a peer, its stores, and True once it is connected in both directions, False when it is no more.
        self.on_connected: Callable[[Identity, dict[int, Identity], bool], None] = lambda who, stores, connected: None
        #: Called with a peer, and a message of its hosting.
        self.on_message: Callable[[Identity, HostMessage], None] = lambda who, message: None
        #: Called with the stores of a peer whose process must be gone.
        self.on_gone: Callable[[dict[int, Identity]], None] = lambda stores: None

    def look(self, id: int) -> None:
        """Look whether peer ``id`` is connected in both directions, after a connection has begun or ended."""
        dialled = self._routes.dialled.get(id)
        pair = self._pair(dialled) if dialled is not None else None
        before = self._peers.get(id)
        if before is not None and pair != self._pairs.get(id):
            del self._peers[id], self._pairs[id]
            for store in before[1].values():
                self.receivers.pop(store, None)
            self.on_connected(*before, False)
            before = None
        if pair is not None and before is None and dialled is not None and dialled.who is not None:
            who = dialled.who
            self._peers[id], self._pairs[id] = (who, {}), pair
            self.on_connected(who, {}, True)
            if pair[1].said is not None:
                self.on_message(who, pair[1].said)

    def _pair(self, dialled: Route) -> tuple[Route, Route] | None:
        """A connection to a peer, and the one that this peer has dialled, if both are whole, and both sides know logs.
        """
        accepted = self._routes.accepted.get(dialled.who) if dialled.who is not None else None
        if accepted is None or not (dialled.full and accepted.full):
            return None
        return (dialled, accepted) if min(dialled.version, accepted.version) >= LOGS_VERSION else None

    def hear(self, route: Route, who: Identity, message: HostMessage) -> None:
        """Take a message of a peer's hosting: kept with its connection, if it has come too early."""
        if isinstance(message, LogHello):
            route.said = message
        if who.id in self._peers and self._peers[who.id][0] == who and self._routes.accepted.get(who) is route:
            self.on_message(who, message)

    def of(self, id: int) -> dict[int, Identity]:
        """The stores of a peer that is connected, by the number of the log."""
        found = self._peers.get(id)
        return found[1] if found is not None else {}

    def gone(self, who: Identity) -> None:
        """Note that a peer's process must be gone."""
        self.on_gone(self._last.pop(who, {}))

    def drop(self, driver: Driver) -> None:
        """Hand nothing on to ``driver`` any more."""
        self.receivers = {store: each for store, each in self.receivers.items() if each is not driver}

    def learn(self, who: Identity, stores: dict[int, Identity]) -> None:
        """Note the stores of a peer that is connected."""
        self._peers[who.id] = who, stores
        self._last[who] = stores
        known = {*stores.values(), *(each for _, held in self._peers.values() for each in held.values())}
        self.receivers = {store: driver for store, driver in self.receivers.items() if store in known}

    def holders(self, number: int) -> list[Identity]:
        """The stores of a log that connected peers have."""
        return [stores[number] for _, stores in self._peers.values() if number in stores]

    def find(self, number: int, target: Identity, dialled: bool) -> Route | None:
        """The connection for a message of log ``number`` to a store, or to whichever store the peer has (R30)."""
        found = self._peers.get(target.id)
        store = found[1].get(number) if found is not None else None
        if found is None or store is None or target.incarnation not in (store.incarnation, b""):
            return None
        return self._routes.dialled.get(target.id) if dialled else self._routes.accepted.get(found[0])

    def tell(self, peer: int | None, message: HostMessage) -> None:
        """Send a message to the hosting of one connected peer, or of all."""
        for id in [peer] if peer is not None else list(self._peers):
            route = self._routes.dialled.get(id) if id in self._peers else None
            if route is not None:
                route.link.push(encode_host(message))


class LogRoutes:
    """The connections as one log besides the first uses them (`alpo.node.log_server.Carrier`)."""

    def __init__(self, routes: Routes, number: int) -> None:
        self._routes, self._find = routes, partial(routes.stores.find, number)

    def send(self, envelopes: Sequence[Envelope], now_s: float) -> None:
        """Encode and send, as `Routes.send`."""
        self._routes.send(envelopes, now_s, self._find)

    def prepare(self, envelopes: Sequence[Envelope], now_s: float) -> Callable[[], None]:
        """Encode now; returns a function that sends, for any thread."""
        return self._routes.prepare(envelopes, now_s, self._find)
