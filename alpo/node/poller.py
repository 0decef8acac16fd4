"""The sockets that are read from, waited for by one task: all that one pass of the event loop brings is one group.

A task for each socket would cost a task switch and a system call to wait again, for every receive.

Laws:

* The function of a socket is called whenever that can be read, in no particular order, until it is removed.
* After all functions of a pass, ``after`` is called once. Then other tasks run.

A file of its own: links, peers and routes hold it, and it knows none of them.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable

import trio


class Poller:
    """Readable sockets, each with a function to call; `run` it in one task. ``after``: called after each group."""

    def __init__(self, after: Callable[[], None]) -> None:
        self._selector = selectors.DefaultSelector()
        self._after = after

    def add(self, sock: socket.socket, readable: Callable[[], None]) -> None:
        """Call ``readable`` whenever there is something to receive, or the end of it, until `remove`."""
        self._selector.register(sock, selectors.EVENT_READ, readable)

    def remove(self, sock: socket.socket) -> None:
        """Watch the socket no longer; to be called before it is closed."""
        self._selector.unregister(sock)

    async def run(self) -> None:
        """Call the sockets' functions until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._selector)
            for key, _ in self._selector.select(0):
                key.data()
            self._after()

    def close(self) -> None:
        """Release the system's resources; the last call."""
        self._selector.close()
