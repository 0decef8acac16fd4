"""The world of a test's cluster: servers without clients, faults at random or when the test asks; and wires to clients.
Each log besides the first is an `OtherLog`: a world of its own on the same servers, which end, stand still and are cut
off as wholes, on one time.

Laws:

* A fault that the test asks for stays until the test, or `mend`, undoes it; a random one ends by itself.
* Connections of clients draw from generators of their own: one more of them changes nothing for the others.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from alpo.core.directory import FIRST_NAME, FIRST_NUMBER
from alpo.core.ready import Input
from alpo.core.requests import AppendRun, Origin, Refused, Reply
from alpo_sim.host import Host
from alpo_sim.options import MS, SECOND, Load, Network, Options
from alpo_sim.world import World

#: Random faults: those of the simulator that a cluster comes through by itself, and "client": a client's connections
#: break, or carry nothing for a while.
FAULTS = (
    "crash", "crash_all", "pause", "cut", "one_way", "star", "chain", "bridge", "isolate", "stall", "jump", "drift",
    "stop", "reset", "client",
)
_CALM = Network(loss=0.0, late=0.0, duplication=0.0, damage=0.0, ordered=True)
_PAUSE_STRIDE_US = 10 * MS

#: A function that gets the reply to a request.
Heard = Callable[[Reply], None]


def options(
    seed: int, servers: int, faults: Sequence[str], fault_every_s: float, election_timeout_s: float
) -> Options:
    """The simulator's options for a test's cluster. Raises ValueError for an unknown fault or a wrong number of
    servers."""
    unknown = [name for name in faults if name not in FAULTS]
    if unknown:
        raise ValueError(f"no such fault: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    if not 1 <= servers <= 9:
        raise ValueError(f"a cluster has 1 to 9 servers, not {servers}")
    return Options(
        seed, servers, auto_init=servers > 1, election_timeout_us=int(election_timeout_s * SECOND),
        network=Options.draw(seed).network if faults else _CALM, load=Load(writers=0, readers=0, operators=False),
        fault_every_us=int(fault_every_s * SECOND) if faults else 0,
        faults=tuple(name for name in faults if name != "client") or ("reset",), drift=0.01 if faults else 0.0,
    )


class ClusterWorld(World):
    """A simulated world without clients of its own. To be touched in the engine's thread only."""

    number, name = FIRST_NUMBER, FIRST_NAME

    def __init__(self, options: Options, client_faults: bool, logs: Sequence[str] = ()) -> None:
        #: The cluster's other logs, by name.
        self.others: dict[str, OtherLog] = {}
        self._names = logs
        self._heard: dict[Origin, tuple[Heard, int]] = {}  # -> who gets the reply, answers outstanding
        self._asked = 0
        #: Server id -> functions to call after each of its steps, and after its process has ended.
        self.after_step: dict[int, list[Callable[[], None]]] = {id: [] for id in range(1, options.servers + 1)}
        self.on_down: Callable[[int], None] = lambda id: None
        self.on_wake: Callable[[int], None] = lambda id: None
        #: (client, server), or ("", server) for all clients, between which nothing gets through.
        self.client_cuts: dict[tuple[str, int], bool] = {}
        self.on_mended: Callable[[], None] = lambda: None
        self.on_client_fault: Callable[[random.Random], None] = lambda rng: None
        self._held: dict[int, bool] = {}  # paused by the test
        self._client_rng = random.Random(f"client faults {options.seed}")
        self._client_faults = client_faults
        super().__init__(options)
        self.stage.on_crash = self._ended
        if options.servers == 1:  # a single server is founded by an operator's command only (R29)
            self.initialised = True
            self.after(SECOND, self._initialise, 1)
        for number, name in enumerate(logs, FIRST_NUMBER + 1):
            self.others[name] = OtherLog(self, number, name)

    @property
    def worlds(self) -> list[ClusterWorld]:
        """The worlds of all logs, the first one's at the front."""
        return [self, *self.others.values()]

    # -- servers with several logs ----------------------------------------------------------------------

    def at(self, when_us: int, call: Callable[..., None], *args: Any) -> None:
        if self._names:
            super().at(when_us, self._at_one_time, call, args)
        else:
            super().at(when_us, call, *args)

    def _at_one_time(self, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._tell_time()
        call(*args)

    def _tell_time(self) -> None:
        for other in self.others.values():
            other.stage.now_us = self.stage.now_us

    def run_until(self, until_us: int, condition: Callable[[], bool] = lambda: False) -> bool:
        try:
            return super().run_until(until_us, condition)
        finally:
            self._tell_time()

    def boot(self, id: int) -> None:
        super().boot(id)
        for other in self.others.values():
            other.boot(id)

    def _ended(self, host: Host) -> None:
        self.on_down(host.id)
        for other in self.others.values():
            other.crash(host.id)

    def set_cuts(self, cut: list[tuple[int, int]]) -> None:
        super().set_cuts(cut)
        for other in self.others.values():
            other.set_cuts(cut)

    def set_clock(self, id: int, rate: float, jump_ms: int) -> None:
        super().set_clock(id, rate, jump_ms)
        for other in self.others.values():
            other.set_clock(id, rate, jump_ms)

    # -- asking -----------------------------------------------------------------------------------------

    def request(self, server: int, request: Input, party: int, heard: Heard) -> None:
        """Ask a server that is up; ``heard`` gets every reply. ``party``: who asks, for the checks."""
        self._asked += 1
        origin = (party, self._asked)
        numbered: Input = request._replace(origin=origin)  # type: ignore[call-arg]
        self._heard[origin] = heard, len(request.bodies) if isinstance(request, AppendRun) else 1
        self.history.asked(numbered)
        self.ask(server, numbered)

    def _on_reply(self, host: Host, reply: Reply) -> None:
        if reply.origin == "operator":
            return
        self.history.replied(reply)
        heard, left = self._heard.pop(reply.origin)
        left -= len(getattr(reply, "lsns", ())) or (reply.count if isinstance(reply, Refused) else 0) or 1
        if left > 0:
            self._heard[reply.origin] = heard, left
        heard(reply)

    def _on_ready(self, host: Host, may_stop: bool) -> None:
        super()._on_ready(host, may_stop)
        for look in list(self.after_step[host.id]):
            look()

    # -- random faults ----------------------------------------------------------------------------------

    def begin_faults(self) -> None:
        """Begin with random faults, if the test wants any."""
        if self.options.fault_every_us:
            self.faults.begin()
            if self._client_faults:
                self._next_client_fault()

    def _next_client_fault(self) -> None:
        pause_us = 1 + int(self._client_rng.expovariate(1 / self.options.fault_every_us))
        self.after(pause_us, self._client_fault)

    def _client_fault(self) -> None:
        if self._client_faults:
            self.on_client_fault(self._client_rng)
            self._next_client_fault()

    # -- faults that the test asks for ------------------------------------------------------------------

    def paused(self, id: int) -> bool:
        """True if the server's process stands still."""
        return self.paused_until[id] > self.now_us

    def hold(self, id: int) -> None:
        """Pause a server until `let_go`."""
        self._held[id] = True
        self._keep_paused(id)

    def _keep_paused(self, id: int) -> None:
        if self._held.get(id) and self.up(id):
            self.paused_until[id] = max(self.paused_until[id], self.now_us + 2 * _PAUSE_STRIDE_US)
            self.after(_PAUSE_STRIDE_US, self._keep_paused, id)

    def let_go(self, id: int) -> None:
        """End a pause."""
        if self._held.pop(id, False) and self.up(id):
            self.paused_until[id] = self.now_us
            for each in self.worlds:
                each.poke(each.stage.hosts[id])
            self.on_wake(id)

    def crash(self, id: int) -> None:
        """End a server's process."""
        self._held.pop(id, None)
        super().crash(id)

    def cut(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Cut these links too, in both directions."""
        both = [(b, a) for a, b in pairs]
        self.set_cuts([*dict.fromkeys([*self.links.cut, *pairs, *both])])

    def client_cut(self, client: str, server: int) -> bool:
        """True if nothing gets through between this client and this server."""
        return (client, server) in self.client_cuts or ("", server) in self.client_cuts

    def mend(self, *, for_good: bool) -> None:
        """Undo every cut, pause and crash. ``for_good``: end random faults too."""
        if for_good:
            self.faults.end()
            self._client_faults = False
            for each in self.worlds:
                each.links.quiet = True
        self.client_cuts.clear()
        for id in list(self._held):
            self.let_go(id)
        self.set_cuts([])
        for each in self.worlds:
            each.restart_all()
        for id in self.stage.hosts:
            self.on_wake(id)
        self.on_mended()


class OtherLog(ClusterWorld):
    """The world of a log besides the first: time, ends, pauses, stalls and cuts are those of the first log's world. The
    log is there from the beginning on: its servers found it as they found the first one."""

    def __init__(self, first: ClusterWorld, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self._first = first
        o = first.options
        super().__init__(replace(o, seed=o.seed * 1000 + number, limits=(*o.limits, ("first_log", False))), False)
        self.paused_until, self.stalled_until = first.paused_until, first.stalled_until
        for id, host in first.stage.hosts.items():  # a server has one clock
            ahead_ms = host.wall_offset_ms - self.stage.hosts[id].wall_offset_ms
            self.stage.set_clock(id, host.rate, ahead_ms)

    def at(self, when_us: int, call: Callable[..., None], *args: Any) -> None:
        self._first.at(when_us, call, *args)

    def run_until(self, until_us: int, condition: Callable[[], bool] = lambda: False) -> bool:
        return self._first.run_until(until_us, condition)

    def boot(self, id: int) -> None:
        if self._first.up(id):
            super().boot(id)


DELAY_US = (100, 1000)


class Pipe:
    """One direction of a wire: ``arrive(data)`` is called with what was sent, and with b"" at the end."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._last_us = 0
        self._queue: deque[bytes] = deque()
        self._due = 0  # arrivals scheduled; fewer than what is queued after a cut
        self.arrive: Callable[[bytes], None] = lambda data: None

    def send(self, data: bytes) -> None:
        """Send bytes; b"": nothing follows."""
        self._queue.append(data)
        if not self._wire.cut:
            self.mended()

    def mended(self) -> None:
        """Send on what waited for the end of a cut."""
        world, rng = self._wire.world, self._wire.rng
        while self._due < len(self._queue) and not self._wire.cut:
            self._due += 1
            self._last_us = max(self._last_us, world.now_us + rng.randint(*DELAY_US))
            world.at(self._last_us, self._deliver)

    def _deliver(self) -> None:
        self._due -= 1
        if not self._wire.cut and not self._wire.over:
            self.arrive(self._queue.popleft())


class Wire:
    """One connection of client ``client`` to server ``server``. To be touched in the engine's thread only.

    Bytes arrive in the order in which they were sent, after a delay, or the connection ends. Over a cut nothing gets
    through, in silence; what was sent meanwhile arrives after the heal, if there still is a connection. A process that
    ends takes its connections with it, and the other side is told, unless a cut hides it.
    """

    def __init__(self, world: ClusterWorld, client: str, server: int, party: int, rng: random.Random) -> None:
        self.world = world
        self.client = client
        self.server = server
        self.party = party
        self.rng = rng
        #: True once it was reset.
        self.over = False
        self.to_server, self.to_client = Pipe(self), Pipe(self)

    @property
    def cut(self) -> bool:
        """True if nothing gets through now."""
        return self.world.client_cut(self.client, self.server)

    def mended(self) -> None:
        """Send on, in both directions, what waited for the end of a cut."""
        self.to_server.mended()
        self.to_client.mended()
