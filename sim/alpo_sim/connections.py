"""The connections between servers: each dials every other one, and its hello decides what they carry (R27).

Laws:

* Requests leave over the connection that the sender dialled, answers over the one that their addressee dialled.
* Full is a connection whose two ends are of one cluster, and whose dialler's list has the other end's incarnation; any
  other one carries what unstarted servers may say to each other (START_ONLY), and nothing else.
* A server whose list or cluster has changed dials anew where that makes a difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpo.core.inputs import PeerAddress
from alpo.core.messages import REQUESTS, START_ONLY, Envelope
from alpo.core.replica import Replica

from .host import Host
from .options import MS

if TYPE_CHECKING:
    from .world import World


def is_full(dialler: Replica, other: Replica) -> bool:
    """What the hellos of the two make of a connection that the first one dials."""
    listed = dialler.members.identity(other.me.id).incarnation
    return bool(dialler.cluster) and dialler.cluster == other.cluster and listed == other.me.incarnation


class Connections:
    """All of them, by (dialler, other)."""

    def __init__(self, world: World) -> None:
        self._w = world
        ids = list(world.stage.hosts)
        #: How often each direction was cut or made anew: what was on its way then is lost where order is kept.
        self.resets = dict.fromkeys(((a, b) for a in ids for b in ids), 0)
        self._full: dict[tuple[int, int], bool] = {}
        self._redialling: dict[tuple[int, int], bool] = {}
        self._seen: dict[int, tuple[object, bytes]] = {}  # server -> list and cluster after its last step

    def carries(self, envelope: Envelope) -> bool:
        """Does a message leave at all?"""
        if isinstance(envelope.message, START_ONLY):
            return True
        one, other = envelope.sender.id, envelope.target.id
        return (one, other) in self._full if isinstance(envelope.message, REQUESTS) else (other, one) in self._full

    def booted(self, id: int) -> None:
        """A new process has no connections yet."""
        self._seen.pop(id, None)
        for pair in [pair for pair in self._full if id in pair]:
            del self._full[pair]

    def connect(self, a: int, b: int) -> None:
        """Both dial each other, a little later."""
        self._dial(a, b)
        self._dial(b, a)

    def _dial(self, id: int, peer: int) -> None:
        self._w.after(self._w.rng.randrange(200, 20 * MS), self._connected, id, peer, self._w.stage.hosts[id].boots)

    def _connected(self, id: int, peer: int, boots: int) -> None:
        self._redialling.pop((id, peer), None)
        stage = self._w.stage
        host, other = stage.hosts[id], stage.hosts[peer]
        if host.replica is None or host.boots != boots or other.replica is None:
            return
        if not self._w.links.connected(id, peer):
            return
        self.resets[id, peer] += 1
        # What the hello says; a host that does not know it yet dials where it was last told.
        if host.replica.address_of(peer) != other.address:
            stage.ask(id, PeerAddress(peer, other.replica.me.incarnation, other.address))
        if is_full(host.replica, other.replica):
            self._full[id, peer] = True
            stage.link(id, peer, True)
        else:
            self._drop(id, peer)
        self._w.poke(host)

    def _drop(self, id: int, peer: int) -> None:
        self._full.pop((id, peer), None)
        replica = self._w.stage.hosts[id].replica
        if replica is not None and peer in replica.connected:
            self._w.stage.link(id, peer, False)

    def disconnect(self, a: int, b: int) -> None:
        """Both notice that their connection is gone; what was on its way is lost."""
        for one, other in ((a, b), (b, a)):
            self.resets[one, other] += 1
            self._full.pop((one, other), None)
            if self._w.up(one):
                self._w.stage.link(one, other, False)
                self._w.poke(self._w.stage.hosts[one])

    def stepped(self, host: Host) -> None:
        """Its list or its cluster may have changed."""
        replica = host.replica
        assert replica is not None
        now = replica.members.latest, replica.cluster
        seen = self._seen.get(host.id)
        if seen is not None and seen[0] is now[0] and seen[1] == now[1]:
            return
        self._seen[host.id] = now
        for other in self._w.stage.hosts.values():
            if other.replica is None or other is host or not self._w.links.connected(host.id, other.id):
                continue
            for one, peer in ((host, other), (other, host)):
                assert one.replica is not None and peer.replica is not None
                pair = one.id, peer.id
                if is_full(one.replica, peer.replica) != (pair in self._full) and pair not in self._redialling:
                    self._redialling[pair] = True
                    self._dial(*pair)
