"""Network between servers: links, the connections over them, and links with little bandwidth.

Laws of `Links`: they decide whether, when and how often a message arrives.

Laws of `Connections`: each server dials every other one; the hellos decide what a connection carries (R27).

* A request leaves over the connection that its sender dialled, an answer over the one that its addressee dialled.
* A connection is full if its two ends are of one cluster and the dialler's list has the other end's incarnation; any
  other connection carries only what unstarted servers may say to each other (START_ONLY).
* Servers may find out that a process has ended: they are refused a new connection (R33).
* A server whose list or cluster has changed dials again where that makes a difference.

Laws of `SlowLinks`: long messages take their time, one after the other, and short ones pass between them.

* What is under way moves while both ends run and the link is whole; both ends are told so (`Moving`), as by the bytes.
* It is lost with the connection, or with the process at either end; what is told to move is not lost otherwise.
* Entries stay behind entries. A link that is slow no longer delivers at once what was under way.
* Nothing here is random.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from alpo.core.members import Identity
from alpo.core.messages import REQUESTS, START_ONLY, AppendRequest, CopyAnswer, Envelope, SnapshotPart
from alpo.core.ready import Input, Moving, PeerAddress, PeerGone
from alpo.core.replica import Replica

from .host import Host
from .options import MS, Network
from .stage import Stage


class Links:
    """All links of a cluster, by (source, target). A cut link loses all messages."""

    def __init__(self, options: Network, rng: random.Random, ids: Sequence[int]) -> None:
        self.options = options
        self._rng = rng
        self.ids = tuple(ids)
        self.cut: dict[tuple[int, int], bool] = {}
        self.lossy: dict[int, float] = {}  # server -> part of the messages that its links lose for a while
        self.quiet = False  # True: nothing is lost, copied or late from now on
        self._last_us: dict[tuple[int, int], int] = {}  # the latest arrival so far, where order is kept

    def arrivals_us(self, now_us: int, source: int, target: int, *, seldom: bool = False) -> list[int]:
        """The times at which copies of a message that leaves now arrive, in order; [] if it is lost.

        ``seldom``: the message is of a kind of which a late copy may come (`Network.again`).
        """
        rng, o = self._rng, self.options
        arrivals = self._arrivals_us(now_us, source, target)
        if seldom and o.again and not self.quiet and (source, target) not in self.cut and rng.random() < o.again:
            arrivals.append(now_us + 1 + int(o.again_us * 0.02 ** rng.random()))  # soon as likely as late
            arrivals.sort()
        return arrivals

    def _arrivals_us(self, now_us: int, source: int, target: int) -> list[int]:
        rng, o = self._rng, self.options
        low, high = o.delay_us
        at_us = now_us + low + int(rng.random() * (high - low))
        if self.quiet:
            return [] if (source, target) in self.cut else [self._in_order(source, target, at_us)]
        chance = rng.random()
        if (source, target) in self.cut:
            return []
        if self.lossy and rng.random() < max(self.lossy.get(source, 0.0), self.lossy.get(target, 0.0)):
            return []
        if chance < o.loss:
            return []
        if chance < o.loss + o.late:
            return [at_us + int(rng.random() * o.late_us)]
        if chance < o.loss + o.late + o.duplication:
            return [at_us, at_us + int(rng.random() * 20 * high)]
        return [self._in_order(source, target, at_us)]

    def heal_lossy(self, id: int, loss: float) -> None:
        """End that loss on a server's links, if no later one has begun."""
        if self.lossy.get(id) == loss:
            del self.lossy[id]

    def damages(self) -> bool:
        """Draw whether a message is damaged on the way."""
        return not self.quiet and self._rng.random() < self.options.damage

    def _in_order(self, source: int, target: int, at_us: int) -> int:
        if self.options.ordered:
            at_us = max(at_us, self._last_us.get((source, target), 0))
            self._last_us[source, target] = at_us
        return at_us

    def connected(self, a: int, b: int) -> bool:
        """True if the links between two servers are whole in both directions."""
        return (a, b) not in self.cut and (b, a) not in self.cut

    def set_cuts(self, cut: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Cut exactly these links. Returns the pairs, lower id first, that are connected again."""
        before = self.cut
        self.cut = dict.fromkeys(cut, True)
        return [
            (a, b) for a in self.ids for b in self.ids
            if a < b and ((a, b) in before or (b, a) in before) and self.connected(a, b)
        ]

    def topology(self, name: str) -> list[tuple[int, int]]:
        """The links to cut for the topology ``name``, a key of `_KEPT`; the places of the servers in it are random."""
        order = list(self.ids)
        self._rng.shuffle(order)
        return [
            (a, b) for i, a in enumerate(order) for j, b in enumerate(order)
            if i != j and not _KEPT[name](i, j, len(order))
        ]


def _side(i: int, n: int) -> int:
    """The side of a bridge, 1 or 2, on which position ``i`` is; 0 for the position between them."""
    return 0 if i == 0 else 1 + (i > n // 2)


#: Topology -> function of (i, j, n): true if the link from position i to position j, of n, is whole.
_KEPT: dict[str, Callable[[int, int, int], bool]] = {
    "whole": lambda i, j, n: True,
    "star": lambda i, j, n: i == 0 or j == 0,
    "chain": lambda i, j, n: abs(i - j) == 1,
    "bridge": lambda i, j, n: _side(i, n) == _side(j, n) or 0 in (_side(i, n), _side(j, n)),
    "halves": lambda i, j, n: (i < n // 2) == (j < n // 2),
    "isolate": lambda i, j, n: i != 0 and j != 0,
    "mute": lambda i, j, n: i != 0,  # the first hears, and is not heard
    "deaf": lambda i, j, n: j != 0,
}


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


#: Bytes of a message beside its entries; messages that are longer than `LONG_BYTES` take time on a slow link.
_HEAD_BYTES, LONG_BYTES = 60, 200


class _Sent(NamedTuple):
    """A message under way, with the numbers of its ends' processes and of the connection."""

    envelope: Envelope
    boots: tuple[int, int]
    resets: int


def size_of(envelope: Envelope) -> int:
    """About the bytes of a message."""
    message = envelope.message
    if isinstance(message, AppendRequest | CopyAnswer):
        return _HEAD_BYTES + sum(_HEAD_BYTES + len(entry.body) for entry in message.entries)
    if isinstance(message, SnapshotPart):
        return _HEAD_BYTES + len(message.head) + sum(_HEAD_BYTES + 40 * len(row.slots) for row in message.rows)
    return _HEAD_BYTES


class SlowLinks:
    """Messages under way on slow links. ``runs(id)``: that process is up, not paused; ``arrive``: a message is there;
    ``ask``: a server gets an input."""

    def __init__(
        self, stage: Stage, links: Links, connections: Connections, after: Callable[..., None],
        runs: Callable[[int], bool], arrive: Callable[[Envelope], None], ask: Callable[[int, Input], None],
    ) -> None:
        self._stage, self._links, self._connections = stage, links, connections
        self._after, self._runs, self._arrive, self._ask = after, runs, arrive, ask
        self._tick_us = max(1, round(stage.timers.heartbeat_s * 500_000))
        self._bytes_per_s: dict[tuple[int, int], int] = {}
        self._under_way: dict[tuple[int, int], deque[_Sent]] = {}
        self._left_bytes: dict[tuple[int, int], float] = {}  # of the first one

    def slow(self, source: int, target: int, bytes_per_s: int) -> None:
        """Let a link carry so many bytes a second; 0: as many as it is given."""
        if bytes_per_s:
            self._bytes_per_s[source, target] = bytes_per_s
        else:
            self._bytes_per_s.pop((source, target), None)

    def heal(self) -> None:
        """Let no link be slow."""
        self._bytes_per_s.clear()

    def takes(self, envelope: Envelope) -> bool:
        """True if a message has to wait here: it is long, or it has entries and others wait."""
        pair = envelope.sender.id, envelope.target.id
        message = envelope.message
        waiting = self._under_way.get(pair)
        behind = bool(waiting) and isinstance(message, AppendRequest) and bool(message.entries)
        if not behind and (pair not in self._bytes_per_s or size_of(envelope) <= LONG_BYTES):
            return False
        sent = _Sent(envelope, self._boots(pair), self._connections.resets[pair])
        if waiting:
            waiting.append(sent)
        else:
            self._under_way[pair] = deque([sent])
            self._left_bytes[pair] = size_of(envelope)
            self._after(self._tick_us, self._move, pair)
        return True

    def _boots(self, pair: tuple[int, int]) -> tuple[int, int]:
        return self._stage.hosts[pair[0]].boots, self._stage.hosts[pair[1]].boots

    def _move(self, pair: tuple[int, int]) -> None:
        """Let what is under way on a link move for one tick."""
        waiting, now = self._under_way[pair], (self._boots(pair), self._connections.resets[pair])
        while waiting and (waiting[0].boots, waiting[0].resets) != now:
            waiting.popleft()
            self._begin_next(pair)
        if waiting and all(map(self._runs, pair)) and pair not in self._links.cut:
            bytes_per_s = self._bytes_per_s.get(pair)
            room = bytes_per_s * self._tick_us / 1e6 if bytes_per_s is not None else float("inf")
            while waiting and room >= self._left_bytes[pair]:
                room -= self._left_bytes[pair]
                sent = waiting.popleft()
                self._begin_next(pair)
                self._arrive(sent.envelope)
            if waiting:
                self._left_bytes[pair] -= room
                self._tell(pair)
        if waiting:
            self._after(self._tick_us, self._move, pair)
        else:
            del self._under_way[pair], self._left_bytes[pair]

    def _begin_next(self, pair: tuple[int, int]) -> None:
        waiting = self._under_way[pair]
        self._left_bytes[pair] = size_of(waiting[0].envelope) if waiting else 0.0

    def _tell(self, pair: tuple[int, int]) -> None:
        envelope = self._under_way[pair][0].envelope
        self._ask(pair[0], Moving(envelope.target, False))
        self._ask(pair[1], Moving(envelope.sender, True))
