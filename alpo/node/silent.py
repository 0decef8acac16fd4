"""Connections that have not said hello yet, or were turned away and are to read why, by the host that they come from:
a crowd of one host displaces and delays itself, not other hosts' connections, members' among them."""

from __future__ import annotations

import trio

from .link import Link

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
