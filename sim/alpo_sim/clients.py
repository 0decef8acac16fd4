"""Base of all actors outside the cluster (clients, operators), and the network between them and the servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alpo.core.ready import Input
from alpo.core.requests import Code, Refused, Reply

from .cluster import Cluster
from .faults import Faults
from .options import MS, SECOND

#: Factor by which pauses are longer while servers catch up: a slow network cannot carry full load and transfers too.
_RESTING = 20
#: Refusals after which another server is asked.
NOT_LEADER = (Code.NOT_LEADER, Code.LOST_LEADERSHIP)


class Clients:
    """All actors of one cluster, what they share, and the network between them and the servers."""

    def __init__(self, cluster: Cluster, faults: Faults) -> None:
        self.cluster = cluster
        self.faults = faults
        self.rng = cluster.rng
        self.load = cluster.options.load
        self.actors: list[Actor] = []
        self.closing = False  # nobody begins anything new
        self.resting = False  # long pauses, while servers catch up
        self.calm = False  # requests and replies are no longer lost, copied or delayed
        self._payloads = 0
        self.ids_created = 0
        #: Name of a client -> the highest epoch that an actor was told for it.
        self.epoch_of: dict[str, int] = {}

    def wind_down(self) -> None:
        """Let actors begin nothing new, and finish what is under way."""
        self.closing = True
        self.calm = True

    def unsettled(self) -> list[str]:
        """The actors that still wait for an answer, as text."""
        return [str(actor) for actor in self.actors if not actor.settled]

    def join(self, actor: Actor) -> int:
        """Add an actor. Returns its index in `actors`, which replies are routed by."""
        self.actors.append(actor)
        return len(self.actors) - 1

    def some_server(self) -> int:
        """The id of a random server."""
        return self.rng.choice(self.cluster.links.ids)

    def pause_us(self) -> int:
        """A random pause between two requests of one client; exponential, mean `Load.pace_us`."""
        pace_us = self.load.pace_us * (_RESTING if self.resting else 1)
        return 1 + int(self.rng.expovariate(1 / pace_us))

    def after(self, delay_us: int, call: Callable[..., Any], *args: Any) -> None:
        self.cluster.after(delay_us, call, *args)

    def payload(self, *, large: bool = False) -> bytes:
        """A payload different from all others, unless `Load.alike` makes all equal. ``large``: of some 100 KiB."""
        if self.load.alike:
            return b"as ever"
        self._payloads += 1
        head = b"%d " % self._payloads
        if large:
            return head + b"x" * self.rng.randint(60 << 10, 140 << 10)
        return head + b"x" * int(self.rng.random() ** 4 * self.load.payload_bytes_max)

    @property
    def last_lsn(self) -> int:
        """The last LSN that is guaranteed."""
        log = self.cluster.history.log.guaranteed
        return log[-1].lsn + log[-1].count - 1 if log else 0

    def some_last_lsn(self) -> int:
        """An LSN that a client may take for the last; mostly it is."""
        return max(0, self.last_lsn + self.rng.choice((0, 0, 0, 0, 0, 0, -1, 1, 2)))

    # -- the network ------------------------------------------------------------------------------------

    def send(self, server: int, request: Input) -> None:
        """Send ``request`` to ``server``. It may be lost, arrive twice, or arrive seconds late."""
        chance = 1.0 if self.calm else self.rng.random()
        delays_us = [] if chance < 0.01 else [200 + self.rng.randrange(2 * MS)]
        if 0.01 <= chance < 0.01 + self.load.copied:
            delays_us.append(self.rng.randrange(8 * SECOND))
        for delay_us in delays_us:
            self.cluster.history.asked(request)
            self.after(delay_us, self._arrive, server, request)

    def _arrive(self, server: int, request: Input) -> None:
        replica = self.cluster.stage.hosts[server].replica
        if replica is not None and replica.inflight_bytes > self.load.inflight_bytes_max:
            self.after(5 * MS, self._arrive, server, request)
        elif replica is not None:
            self.cluster.ask(server, request)
        else:
            index = request.origin[0]  # type: ignore[union-attr, index]
            refusal = Refused(request.origin, "", 0, 0, Code.NOT_LEADER)  # type: ignore[union-attr]
            self.after(MS, self.actors[index].heard, server, refusal)  # the connection is refused

    def replied(self, server: int, reply: Reply) -> None:
        """Send a server's ``reply`` back to the actor that asked; it may be lost."""
        if not self.calm and self.rng.random() < 0.01:
            return
        index = reply.origin[0]  # type: ignore[index]
        self.after(200 + self.rng.randrange(2 * MS), self.actors[index].heard, server, reply)


class Actor:
    """Base class of all that ask servers. ``index``: place in `Clients.actors`; ``server``: id of the server to ask."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.index = clients.join(self)
        self._asked = 0
        self.server = clients.some_server()

    def origin(self) -> tuple[int, int]:
        """A new request's origin: (this actor's index, number of the request)."""
        self._asked += 1
        return self.index, self._asked

    def heard(self, server: int, reply: Reply) -> None:
        """Take a reply of ``server`` to one of this actor's requests."""
        raise NotImplementedError

    @property
    def settled(self) -> bool:
        """True if no request of this actor waits to be sent again."""
        return True

    def follow(self, refused: Refused) -> None:
        """Ask the leader that the refusal names from now on, or else a random server."""
        self.server = refused.leader or self.clients.some_server()


class Periodic(Actor):
    """Base class of actors that send one request after another, with pauses, until the world winds down."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        clients.after(self.first_us(), self._turn)

    def _turn(self) -> None:
        if not self.clients.closing:
            request = self.request()
            if request is not None:
                self.clients.send(self.server, request)
            self.clients.after(self.next_us(), self._turn)

    def request(self) -> Input | None:
        """The next request; None if nothing is to be asked this time."""
        raise NotImplementedError

    def first_us(self) -> int:
        """The pause before the first request."""
        return self.clients.rng.randrange(5 * SECOND)

    def next_us(self) -> int:
        """The pause after a request."""
        return self.clients.rng.randrange(5 * SECOND)

    def heard(self, server: int, reply: Reply) -> None:
        if isinstance(reply, Refused):
            self.follow(reply)
