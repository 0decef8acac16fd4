"""Connections between servers: each server dials every other one; the hellos decide what a connection carries (R27).

Laws:

* A request leaves over the connection that its sender dialled, an answer over the one that its addressee dialled.
* A connection is full if its two ends are of one cluster and the dialler's list has the other end's incarnation; any
  other connection carries only what unstarted servers may say to each other (START_ONLY).
* Servers may find out that a process has ended: they are refused a new connection (R33).
* A server whose list or cluster has changed dials again where that makes a difference.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from alpo.core.members import Identity
from alpo.core.messages import REQUESTS, START_ONLY, Envelope
from alpo.core.ready import PeerAddress, PeerGone
from alpo.core.replica import Replica

from .host import Host
from .network import Links
from .options import MS
from .stage import Stage


def is_full(dialler: Replica, other: Replica) -> bool:
    """True if a connection that ``dialler`` dials to ``other`` is full, by the hellos of both."""
    listed = dialler.members.identity(other.me.id).incarnation
    return bool(dialler.cluster) and dialler.cluster == other.cluster and listed == other.me.incarnation


class Connections:
    """All connections between servers, by (dialler, other).

    ``after(delay_us, call, *args)`` schedules a call; ``poke(host)`` lets a server take its waiting inputs;
    ``refusals``: see `Options.refusals`.
    """

    def __init__(
        self, stage: Stage, links: Links, rng: random.Random, after: Callable[..., None], poke: Callable[[Host], None],
        refusals: float,
    ) -> None:
        self._refusals = refusals
        self._stage, self._links, self._rng, self._after, self._poke = stage, links, rng, after, poke
        ids = list(stage.hosts)
        #: (source, target) -> how often that direction was cut or made anew. Each time an ordered network loses the
        #: messages under way.
        self.resets = dict.fromkeys(((a, b) for a in ids for b in ids), 0)
        self._full: dict[tuple[int, int], bool] = {}
        self._redialling: dict[tuple[int, int], bool] = {}
        self._seen: dict[int, tuple[object, bytes]] = {}  # server -> list and cluster after its last step

    def carries(self, envelope: Envelope) -> bool:
        """True if there is a connection that carries the message."""
        if isinstance(envelope.message, START_ONLY):
            return True
        one, other = envelope.sender.id, envelope.target.id
        return (one, other) in self._full if isinstance(envelope.message, REQUESTS) else (other, one) in self._full

    def booted(self, id: int) -> None:
        """Forget a server's connections: its process is a new one."""
        self._seen.pop(id, None)
        for pair in [pair for pair in self._full if id in pair]:
            del self._full[pair]

    def ends(self, id: int) -> None:
        """Let the servers that have a connection with a process that ends be refused a new one, or hear nothing."""
        who = self._stage.hosts[id].running.me
        if not self._refusals or self._rng.random() >= self._refusals:
            return
        for host in self._stage.hosts.values():
            known = (host.id, id) in self._full or (id, host.id) in self._full
            if known and host.replica is not None and self._links.connected(host.id, id):
                self._after(self._rng.randrange(200, 5 * MS), self._refused, host.id, host.boots, who)

    def _refused(self, id: int, boots: int, who: Identity) -> None:
        host = self._stage.hosts[id]
        if host.replica is None or host.boots != boots or not self._links.connected(id, who.id):
            return
        if self._stage.hosts[who.id].replica is None:  # else a new process takes connections
            self._drop(id, who.id)
            self._stage.ask(id, PeerGone(who))
            self._poke(host)

    def connect(self, a: int, b: int) -> None:
        """Let two servers dial each other, a little later."""
        self._dial(a, b)
        self._dial(b, a)

    def _dial(self, id: int, peer: int) -> None:
        self._after(self._rng.randrange(200, 20 * MS), self._connected, id, peer, self._stage.hosts[id].boots)

    def _connected(self, id: int, peer: int, boots: int) -> None:
        self._redialling.pop((id, peer), None)
        stage = self._stage
        host, other = stage.hosts[id], stage.hosts[peer]
        if host.replica is None or host.boots != boots or other.replica is None:
            return
        if not self._links.connected(id, peer):
            return
        self.resets[id, peer] += 1
        # The hello tells the address; until then a server dials where it was last told.
        if host.replica.address_of(peer) != other.address:
            stage.ask(id, PeerAddress(peer, other.replica.me.incarnation, other.address))
        if is_full(host.replica, other.replica):
            self._full[id, peer] = True
            stage.link(id, peer, True)
        else:
            self._drop(id, peer)
        self._poke(host)

    def _drop(self, id: int, peer: int) -> None:
        self._full.pop((id, peer), None)
        replica = self._stage.hosts[id].replica
        if replica is not None and peer in replica.connected:
            self._stage.link(id, peer, False)

    def disconnect(self, a: int, b: int) -> None:
        """Break the connections of two servers, which notice it; messages under way are lost."""
        for one, other in ((a, b), (b, a)):
            self.resets[one, other] += 1
            self._full.pop((one, other), None)
            if self._stage.hosts[one].replica is not None:
                self._stage.link(one, other, False)
                self._poke(self._stage.hosts[one])

    def stepped(self, host: Host) -> None:
        """Dial those connections of the server again whose fullness its last step changed (its list, its cluster)."""
        replica = host.running
        now = replica.members.latest, replica.cluster
        seen = self._seen.get(host.id)
        if seen is not None and seen[0] is now[0] and seen[1] == now[1]:
            return
        self._seen[host.id] = now
        for other in self._stage.hosts.values():
            if other.replica is None or other is host or not self._links.connected(host.id, other.id):
                continue
            for one, peer in ((host, other), (other, host)):
                pair = one.id, peer.id
                if is_full(one.running, peer.running) != (pair in self._full) and pair not in self._redialling:
                    self._redialling[pair] = True
                    self._dial(*pair)
