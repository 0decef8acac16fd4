"""Admission: the bounds of the node (docs/operations.md tells what happens at each), connections that have not said who
they are, and the door for appends.

Connections that have not said hello yet, or were turned away and are to read why, are counted by the host that they
come from: a crowd of one host displaces and delays itself, not other hosts' connections, members' among them.

Laws of quotas, the rate at which one client may append, so that it cannot starve the others:

* Nothing is refused: what comes too fast, or while there is no room, waits here, and that connection is not read from
  meanwhile. Requests that append nothing never come to this door.
* A quota is one client's, over all its connections: those of one certificate; without TLS those of one client name,
  and all clients without a name of one host.
* At most `BURST_S` of unused rate is kept. An append larger than that is let through, and paid for afterwards.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import trio

from alpo.core.replica import Replica
from alpo.core.settings import BATCH_BYTES_MOST, Settings
from alpo.storage.scrub import ScrubMark
from alpo.wire.framing import frame_bytes_max
from alpo.wire.requests import Append, AppendAfter

from .counters import Counters
from .link import Link


@dataclass(slots=True)
class Limits:
    """The bounds. The first six are configurable, and may change while the server runs; the others are fixed."""

    #: Clients that have said hello; one more is refused with OVERLOADED. Peers are not counted.
    client_connections_max: int = 1000
    #: Seconds after which a connection that has not said hello is closed.
    hello_timeout_s: float = 5.0
    #: Bytes of appends taken and not yet guaranteed, of all clients; above it no more are taken.
    inflight_bytes_max: int = 12 << 20
    #: Unanswered appends of one connection; above it that connection is not read from.
    connection_inflight_max: int = 4096
    #: Rate of reading the log for servers that are behind, all together; 0: no bound.
    catch_up_bytes_per_s: int = 24 << 20
    #: Rate of reads in columns while appends come, all together; an entry counts `threads.ENTRY_BYTES` more; 0: no
    #: bound.
    bulk_read_bytes_per_s: int = 192 << 20
    #: Connections that have not said hello yet, or were turned away; one more closes the oldest.
    silent_connections_max: int = 512
    #: Clients beyond `client_connections_max` that an operator, or another server, may have.
    operator_connections_max: int = 16
    #: Connections to the HTTP port.
    visitor_connections_max: int = 64
    #: Numbered requests (reads, opens …) of one connection under way; one more is refused with OVERLOADED.
    connection_requests_max: int = 64
    #: Bytes of answers that a client has not read; above it that connection is not read from, and gets no page.
    client_outbox_bytes_high: int = 1 << 20
    #: Bytes of one page of a read.
    page_bytes_max: int = 1 << 20
    #: Threads that read from the store at the same time.
    read_threads: int = 3
    #: Longest long poll, whatever the client asked for.
    poll_s_max: float = 60.0

    def take(self, fresh: Limits) -> None:
        """Copy the configurable bounds from ``fresh``, and those that follow from them (`fitted`)."""
        for name in (*LIVE_LIMITS, "silent_connections_max", "operator_connections_max", "visitor_connections_max"):
            setattr(self, name, getattr(fresh, name))


#: Names of the configurable bounds.
LIVE_LIMITS = (
    "client_connections_max", "hello_timeout_s", "inflight_bytes_max", "connection_inflight_max",
    "catch_up_bytes_per_s", "bulk_read_bytes_per_s",
)


#: Files of a server's own: the store and its readers, logs, listening sockets. For each other member: a connection in
#: each direction, and one for questions.
OWN_FILES, MEMBER_FILES = 20, 3


def fitted(limits: Limits, files: int, others: int) -> Limits:
    """Bounds on connections that ``files`` open files suffice for, beside what the server and its ``others`` need: a
    crowd of clients takes no member's place. The same object if they do already."""
    room = max(files - OWN_FILES - MEMBER_FILES * max(others, 2), 8)
    wanted = (
        limits.client_connections_max + limits.silent_connections_max + limits.operator_connections_max
        + limits.visitor_connections_max
    )
    if wanted <= room:
        return limits
    silent = min(limits.silent_connections_max, room // 4)
    operators = min(limits.operator_connections_max, room // 8)
    visitors = min(limits.visitor_connections_max, room // 8)
    return replace(
        limits, client_connections_max=min(limits.client_connections_max, room - silent - operators - visitors),
        silent_connections_max=silent, operator_connections_max=operators, visitor_connections_max=visitors,
    )


@dataclass(frozen=True, slots=True)
class DiskCare:
    """Checks of this server's disk to make; 0 or None: not this one. ``mark``: file with the scrub's position."""

    low_water_bytes: int = 0
    scrub_bytes_per_s: int = 0
    mark: ScrubMark | None = None
    #: Duration of a pass of the scrub, and of the comparison.
    scrub_pass_s: float = 86_400.0


NO_CARE = DiskCare()

#: Longest frame between members, and from a server to a client: entries already in the log may be larger than the
#: present limits allow.
FRAME_BYTES_MOST = frame_bytes_max(BATCH_BYTES_MOST)
#: Bytes that may wait for one client; above it the connection is closed. Never reached in practice: a client that does
#: not read is not read from, and no page is made for it.
OUTBOX_BYTES_MOST = 2 * FRAME_BYTES_MOST


def frame_bytes(settings: Settings) -> int:
    """Longest frame that clients and unlisted servers may send after the hello: it holds the largest batch allowed at
    present."""
    return frame_bytes_max(settings.batch_bytes_max)


#: Handshakes of one host that compute, or are next, at a time.
_AT_ONCE = 2


class _Host:
    def __init__(self) -> None:
        self.links: dict[Link, None] = {}
        self.turns = trio.CapacityLimiter(_AT_ONCE)


class Silent:
    """The connections, oldest first within a host; ``len`` is their number."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}
        self._host_of: dict[Link, str] = {}

    def __len__(self) -> int:
        return len(self._host_of)

    def add(self, link: Link, most: int) -> trio.CapacityLimiter:
        """Keep one more; returns its host's turns to have a handshake computed. Beyond ``most``, the oldest of the host
        with the most connections is closed."""
        name = link.remote.rpartition(":")[0]
        host = self._hosts.setdefault(name, _Host())
        host.links[link] = None
        self._host_of[link] = name
        if len(self) > most:
            self.make_room()
        return host.turns

    def make_room(self) -> None:
        """Close the oldest of the host with the most connections, if there is one."""
        crowd = max(self._hosts.values(), key=lambda one: len(one.links), default=None)
        if crowd is not None:
            oldest = next(iter(crowd.links))
            self.discard(oldest)
            oldest.close("no hello, and others wait")

    def discard(self, link: Link) -> None:
        """Forget a connection that has said hello, or has ended; does nothing if it is not kept."""
        name = self._host_of.pop(link, None)
        if name is not None:
            host = self._hosts[name]
            del host.links[link]
            if not host.links:
                del self._hosts[name]


#: Seconds of unused rate that a client may use at once.
BURST_S = 0.25
#: Longest time until a connection that waits is looked at again: it may be closed, the quota changed.
_LOOK_S = 0.5
#: Clients that are remembered; one that has paid for all costs nothing to forget.
_KNOWN_MAX = 10_000


#: Appends as they come from a client.
Appends: TypeAlias = Append | AppendAfter


class _Client:
    def __init__(self) -> None:
        self.paid_s = float("-inf")  # time up to which the appends taken are paid for
        self.slowed_s = float("-inf")  # time when the client last had to wait
        self.turn = trio.Lock()  # held by the one of its connections whose appends go next


class Quotas:
    """Accounts of all clients. Times are monotonic seconds of one clock."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._rates = (0, 0)
    def take(self, who: str, appends: int, size_bytes: int, settings: Settings, now_s: float) -> int:
        """Take as many of ``appends``, which have so many bytes in all, as may go now; returns how many."""
        self._follow(settings)
        client = self._account(who, now_s)
        cost_s = _cost_s(appends, size_bytes, settings)
        credit_s = now_s - client.paid_s
        if credit_s < 0:
            client.slowed_s = now_s
            return 0
        count = appends if cost_s <= credit_s else max(1, int(appends * credit_s / cost_s))
        client.paid_s += cost_s * count / appends
        if count < appends:
            client.slowed_s = now_s
        return count

    def _follow(self, settings: Settings) -> None:
        """Forgive all debts when the rates change: they are seconds of the former rates."""
        rates = settings.quota_appends_per_s, settings.quota_bytes_per_s
        if rates != self._rates:
            self._rates = rates
            for client in self._clients.values():
                client.paid_s = float("-inf")

    def _account(self, who: str, now_s: float) -> _Client:
        client = self._clients.setdefault(who, _Client())
        self._clients.move_to_end(who)
        client.paid_s = max(client.paid_s, now_s - BURST_S)
        if len(self._clients) > _KNOWN_MAX:
            self._clients.popitem(last=False)
        return client

    def wait_s(self, who: str, now_s: float) -> float:
        """Seconds until the client may append again."""
        client = self._clients.get(who)
        return max(0.0, client.paid_s - now_s) if client is not None else 0.0

    def turn(self, who: str, now_s: float) -> trio.Lock:
        """The turns of a client's connections, in the order in which they came: one waits for time to pass, and the
        others for it."""
        return self._account(who, now_s).turn

    def slowed(self, now_s: float, within_s: float = 10.0) -> list[str]:
        """Clients that had to wait lately."""
        return sorted(who for who, client in self._clients.items() if now_s - client.slowed_s < within_s)


def _cost_s(appends: int, size_bytes: int, settings: Settings) -> float:
    """Seconds of a client's rate that these appends cost."""
    rates = (appends, settings.quota_appends_per_s), (size_bytes, settings.quota_bytes_per_s)
    return max((amount / rate for amount, rate in rates if rate), default=0.0)


class Payer(Protocol):
    """Part of the driver that an `Allowance` needs."""

    quotas: Quotas
    counters: Counters
    replica: Replica
    room: trio.lowlevel.ParkingLot

    @property
    def full(self) -> bool: ...

    def kick(self) -> None: ...


class Allowance:
    """Appends of one connection, handed on as room and quotas allow. ``payer`` returns whose quota a client's appends
    count against; ``post`` takes appends, with their bytes."""

    def __init__(self, driver: Payer, payer: Callable[[str], str], post: Callable[[Appends, int], None]) -> None:
        self._driver = driver
        self._payer = payer
        self._hand_on = post
        self._without_quotas: Settings | None = None  # the settings, once seen to have none
        #: Appends that wait, with their bytes, in order.
        self.held: deque[tuple[Appends, int]] = deque()

    @property
    def is_free(self) -> bool:
        """True if `post` would hand appends on at once."""
        driver, settings = self._driver, self._driver.replica.settings
        if settings is not self._without_quotas:
            if settings.has_quotas:
                return False
            self._without_quotas = settings
        return not (self.held or driver.full)

    def post(self, request: Appends, size_bytes: int) -> None:
        """Hand the appends on, or hold as many as must wait."""
        if self.held or self._driver.full:
            self.held.append((request, size_bytes))
        elif not self._driver.replica.settings.has_quotas:
            self._hand_on(request, size_bytes)
        elif self._turn(request).locked():  # others of this client came first
            self._driver.counters.quota_waits += 1
            self.held.append((request, size_bytes))
        else:
            all_went = self._post_allowed(request, size_bytes)
            self._driver.counters.quota_waits += not all_went

    def _turn(self, request: Appends) -> trio.Lock:
        return self._driver.quotas.turn(self._payer(request.client), trio.current_time())

    def _post_allowed(self, request: Appends, size_bytes: int) -> bool:
        """Hand on as many of the appends as may go now, and hold the rest. True if nothing is held. A server that
        does not lead refuses them anyway."""
        items, replica = request.items, self._driver.replica
        count, who = len(items), self._payer(request.client)
        if replica.reign is not None and replica.settings.has_quotas:
            count = self._driver.quotas.take(who, count, size_bytes, replica.settings, trio.current_time())
        if count == len(items):
            self._hand_on(request, size_bytes)
            return True
        if not count or isinstance(request, AppendAfter):
            self.held.appendleft((request, size_bytes))
            return False
        first_bytes = size_bytes * count // len(items)
        self._hand_on(request._replace(items=items[:count], sparse=False), first_bytes)
        rest = request._replace(items=items[count:], serial=request.serial + count, sparse=False)
        self.held.appendleft((rest, size_bytes - first_bytes))
        return False

    async def wait(self) -> None:
        """Wait until the next append that is held may go, at most for a while, and hand on what may."""
        if self._driver.full:
            await self._driver.room.park()
        first = self.held[0][0]
        async with self._turn(first) if self._driver.replica.settings.has_quotas else contextlib.nullcontext():
            wait_s = self._driver.quotas.wait_s(self._payer(first.client), trio.current_time())
            await trio.sleep(min(wait_s, _LOOK_S))
            # one goes though there is no room again: all that were woken have their turn, in whatever order they run
            while self.held and self._post_allowed(*self.held.popleft()) and not self._driver.full:
                pass
            self._driver.kick()
