"""Connections between servers: their hellos, and which message leaves over which connection (R27).

Laws of the hello:

* A connection with a known protocol version is closed only for a *different* cluster id or a wrong server id.
* A connection is full only if both hellos name the same cluster, and each the other's incarnation.

Requests leave over the connection that this server dialled, answers over the one on which the request came. A
connection whose hello left a cluster or an incarnation unknown carries only START_ONLY messages. A message without a
connection is dropped: the core repeats what matters.

From protocol version 4 on, long messages leave in pieces, and short ones between them (`alpo.wire.lanes`); entries stay
in their order. What a deposed leader has not sent yet of them is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeAlias

import trio

from alpo.addresses import AddressError, parse_dialled
from alpo.core.inputs import Moving, Received
from alpo.core.members import Identity
from alpo.core.messages import REQUESTS, START_ONLY, AppendRequest, Envelope, wants_answer
from alpo.core.replica import Replica
from alpo.wire.codec import TooNewForPeer, WireError, decode_envelope, encode_entries, encode_envelope
from alpo.wire.lanes import PIECE_BYTES_MAX, with_blocks
from alpo.wire.requests import LANES_VERSION, PeerHello, ServerHello

from .driver import Driver, wall_ms
from .link import Body, Link
from .poller import Poller


@dataclass(frozen=True, slots=True)
class Ourselves:
    """This server's constants. ``timers_ms``: heartbeat, election timeout, stagger."""

    me: Identity
    address: str
    timers_ms: tuple[int, int, int]


def our_hello(us: Ourselves, replica: Replica, target: Identity, version: int) -> PeerHello:
    """The hello to send to ``target``, whose incarnation is b"" if unknown. ``version``: protocol version to speak."""
    return PeerHello(
        version, replica.cluster, us.me.id, us.me.incarnation, us.address, target.id, target.incarnation,
        wall_ms(), replica.horizon_ms, us.timers_ms,
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

    def __init__(self, link: Link, full: bool, version: int) -> None:
        self.link = link
        self.full = full
        #: Protocol version spoken on this connection; whether that has long messages leave in pieces.
        self.version = version
        self.in_lanes = version >= LANES_VERSION
        #: Numbers of the blocks that were sent over this connection (`Routes.blocks`).
        self.sent_ahead: set[int] = set()
        #: Time at which the first message that wants an answer left after the last answer; None: nothing is unanswered.
        self.silent_since_s: float | None = None


#: A link's way to send, and the bytes.
_Push: TypeAlias = tuple[Callable[[bytes], None], bytes]


class Routes:
    """All connections between servers, by peer."""

    def __init__(self) -> None:
        self.dialled: dict[int, Route] = {}
        self.accepted: dict[Identity, Route] = {}
        #: Bodies of appends that go ahead of their entries, by number: see `ahead`.
        self.blocks: dict[int, bytes] = {}

    def send(self, envelopes: Sequence[Envelope], now_s: float) -> None:
        """Encode and send; the first peer's bytes leave before the next one's are encoded."""
        for push, data in self._encode(envelopes, now_s):
            push(data)

    def prepare(self, envelopes: Sequence[Envelope], now_s: float) -> Callable[[], None]:
        """Encode now; returns a function that sends, for any thread."""
        encoded = list(self._encode(envelopes, now_s, from_thread=True))

        def send() -> None:
            for push, data in encoded:
                push(data)

        return send

    def abandon(self) -> None:
        """Drop entries that wait to leave in pieces: this server leads no more, and whoever leads now sends its own."""
        for route in self.dialled.values():
            route.link.abandon_long()

    def _encode(self, envelopes: Sequence[Envelope], now_s: float, *, from_thread: bool = False) -> Iterator[_Push]:
        """Yield what sends, and the bytes; consecutive short messages to one peer are joined. Entries for several peers
        are encoded once. ``from_thread``: any thread may send."""
        blobs: dict[tuple[int, int], bytes] = {}
        link: Link | None = None
        parts: list[bytes] = []
        for envelope in envelopes:
            message = envelope.message
            route = self._route(envelope)
            if route is None:
                continue
            blob = None
            if type(message) is AppendRequest and message.entries:
                # Entries are consecutive and immutable, so the first and last identify the list.
                ends = (id(message.entries[0]), id(message.entries[-1]))
                blob = blobs.get(ends)
                if blob is None:
                    blob = blobs[ends] = encode_entries(message.entries)
            if route.link is not link:
                if link is not None and parts:
                    yield link.push_from_thread if from_thread else link.push, b"".join(parts)
                link, parts = route.link, []
            try:
                data = encode_envelope(envelope, blob, route.version)
            except TooNewForPeer as error:
                route.link.close(str(error))
                continue
            behind = bool(blob is not None and link.long_entries)
            if self.blocks and route.in_lanes and type(message) is AppendRequest and message.entries:
                data, here = self._with_blocks(route, message, data)
                behind = behind or not here
            if route.in_lanes and (len(data) > PIECE_BYTES_MAX or behind):
                yield partial(link.push_long, ordered=blob is not None), data
            else:
                parts.append(data)
            if route.silent_since_s is None and wants_answer(message):
                route.silent_since_s = now_s
        if link is not None and parts:
            yield link.push_from_thread if from_thread else link.push, b"".join(parts)

    def _with_blocks(self, route: Route, message: AppendRequest, data: bytes) -> tuple[bytes, bool]:
        """The frame ``data`` of a message with entries, without the blocks that went ahead; and whether the other side
        is known to hold them."""
        numbers = {id(block): number for number, block in self.blocks.items() if number in route.sent_ahead}
        gone = [(numbers[id(e.body)], e.body) for e in message.entries if id(e.body) in numbers]
        if not gone:
            return data, True
        return with_blocks(data, gone), route.link.held.issuperset(number for number, _ in gone)

    def _route(self, envelope: Envelope) -> Route | None:
        message = envelope.message
        if isinstance(message, REQUESTS):
            route = self.dialled.get(envelope.target.id)
        else:
            route = self.accepted.get(envelope.target)
        if route is None or not (route.full or isinstance(message, START_ONLY)):
            return None
        return route


async def converse(driver: Driver, poller: Poller, route: Route, who: Identity, bodies: list[Body]) -> NoReturn:
    """Post the messages in ``bodies`` and all that follow, until the connection ends. Raises `LinkClosed`,
    `FrameError`, and `WireError` for a message that is not from ``who``, or not allowed on this connection."""

    def take(bodies: list[Body]) -> bool:
        _take_messages(driver, route, who, bodies)
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


def _take_messages(driver: Driver, route: Route, who: Identity, bodies: list[Body]) -> None:
    route.silent_since_s = None
    now_s = driver.clock_s()
    for body in bodies:
        envelope = decode_envelope(body, route.version)
        if envelope.sender != who:
            raise WireError(f"a message of {envelope.sender.id} on the connection of {who.id}")
        if not route.full and not isinstance(envelope.message, START_ONLY):
            raise WireError("this connection is open for first-start messages only")
        driver.post(Received(envelope, now_s))
