"""The sockets that are read from, waited for by one task: all that one pass of the event loop brings is one group.

A task for each socket would cost a task switch and a system call to wait again, for every receive.

Laws:

* The function of a socket is called whenever that can be read, in no particular order, until it is removed.
* After all functions of a pass, `Owner.take_group` is called once. Then other tasks run.
* While one client appends alone, a pass of the event loop costs more than what is done in it. So the poller then waits
  for its sockets itself, and the event loop stands still meanwhile: at most `_WAIT_S` at a time and `_IN_A_ROW_S` in a
  row, not beyond the owner's next deadline, and only while no other task can run (`Owner.patience_s`). What wakes tasks
  in other ways (timers, new connections, other threads) is held up for that long at most.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from typing import Protocol

import trio

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

    def go_on(self) -> None:
        """Do what is due by time; other tasks run next."""


class Poller:
    """Readable sockets, each with a function to call; `run` it in one task."""

    def __init__(self, owner: Owner) -> None:
        self._selector = selectors.DefaultSelector()
        self._owner = owner

    def add(self, sock: socket.socket, readable: Callable[[], None]) -> None:
        """Call ``readable`` whenever there is something to receive, or the end of it, until `remove`. Raises OSError if
        the system watches no more sockets."""
        self._selector.register(sock, selectors.EVENT_READ, readable)

    def remove(self, sock: socket.socket) -> None:
        """Watch the socket no longer; to be called before it is closed."""
        self._selector.unregister(sock)

    async def run(self) -> None:
        """Call the sockets' functions until cancelled."""
        owner, clock_s, select = self._owner, self._owner.clock_s, self._selector.select
        while True:
            await trio.lowlevel.wait_readable(self._selector)
            found = select(0)
            began_s = owner.came_s = clock_s()
            while found:
                for key, _ in found:
                    key.data()
                owner.take_group()
                wait_s = min(owner.patience_s(), _WAIT_S)
                if wait_s <= 0 or owner.came_s > began_s + _IN_A_ROW_S:
                    break
                found = select(wait_s)
                owner.came_s = clock_s()
            owner.go_on()

    def close(self) -> None:
        """Release the system's resources; the last call."""
        self._selector.close()
