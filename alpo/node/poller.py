"""Sockets and times that the event loop waits for: all that one pass brings of the sockets is one group.

A task for each socket would cost a task switch and a system call to wait again, for every receive.

Laws:

* The function of a socket is called whenever that can be read, in no particular order, until it is removed.
* After all functions of a pass, `Owner.take_group` is called once. Then other tasks run.
* While one client appends alone, or one group of a crowd's appends is under way at a time, a pass of the event loop
  costs more than what is done in it. So the poller then waits for its sockets itself, and the event loop stands still
  meanwhile: at most `_WAIT_S` at a time and `_IN_A_ROW_S` in a row, not beyond the owner's next deadline, and only
  while no other task can run (`Owner.patience_s`). What wakes tasks in other ways (timers, new connections, other
  threads) is held up for that long at most.
* While a crowd waits for answers, what it brings next waits with it: once nothing has come, only the sockets of servers
  end such a wait (`Owner.for_servers`), and all are looked at after it.
"""

from __future__ import annotations

import math
import select
import selectors
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import trio

#: Milliseconds by which wall clock and event loop's clock must have moved apart for a suspension to be looked for.
_APART_MS = 1000
#: The longest wait of the poller's own, and how long it goes on without a pass of the event loop, in seconds.
_WAIT_S, _IN_A_ROW_S = 0.001, 0.005


class Owner(Protocol):
    """The user of what the sockets bring: a `Driver`."""

    @property
    def clock_s(self) -> Callable[[], float]: ...

    #: Time at which the present group came, by that clock; set by the poller.
    came_s: float

    def take_group(self) -> None:
        """Step what a group has brought."""

    def patience_s(self) -> float:
        """Seconds for which only the sockets are to be waited for; 0 if something else may have to be done."""

    @property
    def for_servers(self) -> bool:
        """True if such a wait is to end only when a server has sent something."""

    def go_on(self) -> None:
        """Do what is due by time; other tasks run next."""


class OneOfMany(Owner, Protocol):
    """Part of an owner that is needed besides where there are several."""

    @property
    def has_inputs(self) -> bool:
        """True if a group has brought something for this owner."""

    @property
    def writes_under_way(self) -> bool:
        """True if a write of this owner is not on disk yet."""

    @property
    def unguaranteed_bytes(self) -> int:
        """Bytes of appends taken and not yet guaranteed."""


class Sharers:
    """The drivers of one server's logs, and those of them that may have something to do: to ask each of many would cost
    every step of one more than the step itself."""

    def __init__(self, drivers: Sequence[OneOfMany]) -> None:
        self.drivers = drivers
        #: Drivers to which something was posted, in that order.
        self.posted: dict[OneOfMany, None] = {each: None for each in drivers if each.has_inputs}
        self._writing = set(drivers)

    def wrote(self, driver: OneOfMany) -> None:
        """Note that ``driver`` hands a write over."""
        self._writing.add(driver)

    def others_busy(self, driver: OneOfMany) -> bool:
        """True if another one has an input to step, or a write under way."""
        if any(each is not driver and each.has_inputs for each in self.posted):
            return True
        self._writing = {each for each in self._writing if each.writes_under_way}
        return not self._writing <= {driver}


class Owners:
    """Several owners of what the sockets bring, the drivers of several logs. A log to which a pass brings nothing takes
    no part in it. The poller waits itself as long as one log alone takes part; the others' times are held up by that,
    as those of other tasks are."""

    def __init__(self, sharers: Sharers) -> None:
        self._owners, self._posted = sharers.drivers, sharers.posted
        self._taking: list[OneOfMany] = []
        self._took: set[OneOfMany] = set()
        self.clock_s = self._owners[0].clock_s

    @property
    def came_s(self) -> float:
        """Time at which the present group came: requests count from then."""
        return self._owners[0].came_s

    @came_s.setter
    def came_s(self, came_s: float) -> None:
        for owner in self._owners:
            owner.came_s = came_s

    def take_group(self) -> None:
        """Step what a group has brought, in each log."""
        self._taking = [owner for owner in self._posted if owner.has_inputs]
        self._posted.clear()
        self._took.update(self._taking)
        for owner in self._taking:
            owner.take_group()
            if owner.has_inputs:
                self._posted[owner] = None

    def patience_s(self) -> float:
        """Seconds for which only the sockets are to be waited for; 0 if more than one log has something to do."""
        return self._taking[0].patience_s() if len(self._taking) == 1 else 0.0

    @property
    def for_servers(self) -> bool:
        """True if such a wait is to end only when a server has sent something."""
        return len(self._taking) == 1 and self._taking[0].for_servers

    def go_on(self) -> None:
        """Do what is due by time, in each log that took part."""
        for owner in self._took:
            owner.go_on()
        self._took.clear()


class Timed(Protocol):
    """The timer's use of a driver."""

    @property
    def due_s(self) -> float:
        """The time at which something is to be done even if nothing comes, by Trio's clock."""

    def do_due(self, now_s: float) -> None:
        """Do what is due."""


class Timer:
    """The time of the next step of several drivers, kept in one task: a task for each of many would cost more than the
    steps."""

    def __init__(self) -> None:
        #: Drivers that keep time by it.
        self.drivers: list[Timed] = []
        #: Time at which it goes off, by Trio's clock.
        self.armed_s = math.inf
        self.scope = trio.CancelScope()

    def arm(self, at_s: float) -> None:
        """Have it go off at this time."""
        self.scope.deadline = self.armed_s = at_s

    async def run(self) -> None:
        """Have each driver do what is due by time."""
        while True:
            self.armed_s = min([driver.due_s for driver in self.drivers])
            with trio.CancelScope(deadline=self.armed_s) as self.scope:
                await trio.sleep_forever()
            now_s = trio.current_time()
            for driver in tuple(self.drivers):
                if now_s >= driver.due_s:
                    driver.do_due(now_s)


def _boot_s() -> float:
    """Seconds since the host's start, suspension included; 0 on systems that do not say."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else 0.0


class Suspension:
    """Notices that the host was suspended: meanwhile the event loop's clock stood still, and the wall clock did not."""

    def __init__(self, boot_s: Callable[[], float] = _boot_s) -> None:
        self._boot_s = boot_s
        self._wall_ms, self._now_s, self._slept_s = 0, math.inf, 0.0

    def look(self, now_ms: int, now_s: float) -> float:
        """Seconds of suspension since the last look; ``now_ms`` and ``now_s``: wall clock and event loop's clock. Costs
        a system call only if the two have moved apart."""
        apart_ms = now_ms - self._wall_ms - (now_s - self._now_s) * 1000
        self._wall_ms, self._now_s = now_ms, now_s
        if apart_ms < _APART_MS:
            return 0.0
        before_s, self._slept_s = self._slept_s, self._boot_s() - now_s
        return max(0.0, self._slept_s - before_s) if apart_ms < math.inf else 0.0


class _Selector(selectors.DefaultSelector):
    """The part of `select.epoll` that is needed, on systems without that."""

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """Wait at most so long; returns (descriptor, mask) of each that can be read."""
        return [(key.fd, mask) for key, mask in self.select(timeout_s)]


class Poller:
    """Readable sockets, each with a function to call; `run` it in one task."""

    def __init__(self, owner: Owner) -> None:
        if sys.platform == "linux":  # a selector takes longer for each socket that can be read than its receive
            self._selector, self._servers, self._mask = select.epoll(), select.epoll(), select.EPOLLIN
        else:
            self._selector, self._servers, self._mask = _Selector(), _Selector(), selectors.EVENT_READ
        self._calls: dict[int, Callable[[], None]] = {}
        #: Owner from the next pass on; changes when logs begin or end.
        self.owner = owner

    def add(self, sock: socket.socket, readable: Callable[[], None], *, server: bool = False) -> None:
        """Call ``readable`` whenever there is something to receive, or the end of it, until `remove`. ``server``: the
        other side is one. Raises OSError if the system watches no more sockets."""
        if server:
            self._servers.register(sock.fileno(), self._mask)
        self._selector.register(sock.fileno(), self._mask)
        self._calls[sock.fileno()] = readable

    def remove(self, sock: socket.socket) -> None:
        """Watch the socket no longer; to be called before it is closed."""
        del self._calls[sock.fileno()]
        self._selector.unregister(sock.fileno())
        with suppress(KeyError, FileNotFoundError):  # it is no server's
            self._servers.unregister(sock.fileno())

    async def run(self) -> None:
        """Call the sockets' functions until cancelled."""
        clock_s, poll, calls = self.owner.clock_s, self._selector.poll, self._calls
        while True:
            await trio.lowlevel.wait_readable(self._selector)
            owner = self.owner
            found = poll(0)
            began_s = owner.came_s = clock_s()
            while found:
                for fd, _ in found:
                    if (call := calls.get(fd)) is not None:  # else removed by another's in the same pass
                        call()
                owner.take_group()
                wait_s = min(owner.patience_s(), _WAIT_S)
                if wait_s <= 0 or owner.came_s > began_s + _IN_A_ROW_S:
                    break
                found = poll(0 if (for_servers := owner.for_servers) else wait_s)
                if for_servers and not found:
                    self._servers.poll(wait_s)
                    found = poll(0)
                owner.came_s = clock_s()
            owner.go_on()

    def close(self) -> None:
        """Release the system's resources; the last call."""
        self._selector.close()
        self._servers.close()
