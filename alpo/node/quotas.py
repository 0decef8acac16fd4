"""The door for appends: there must be room for them, and the client's quota must allow them. A quota is the rate at
which one client may append, so that it cannot starve the others.

Laws:

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
from typing import Protocol, TypeAlias

import trio

from alpo.core.replica import Replica
from alpo.core.settings import Settings
from alpo.wire.requests import Append, AppendAfter

from .counters import Counters

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
        #: Appends that wait, with their bytes, in order.
        self.held: deque[tuple[Appends, int]] = deque()

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
