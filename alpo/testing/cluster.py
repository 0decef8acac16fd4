"""`Cluster`: a whole ALPO cluster inside a test, on virtual time, repeatable from its seed."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from types import TracebackType
from typing import Any, Self, TypeVar

from alpo.client.record import PageEntry, Record, records_of
from alpo.client.servers import Servers, given_log
from alpo.core.directory import FIRST_NAME, LOG_NAME_WANTED, valid_log
from alpo.core.entries import Kind, parts
from alpo.core.ranks import State
from alpo.errors import Unavailable
from alpo_sim.checks import Broken
from alpo_sim.options import SECOND
from alpo_sim.world import LEADER_WITHIN_TIMEOUTS, demand_settled

from .connections import Network
from .engine import Engine
from .ledger import Ledger, WatchedLog
from .logs import SimulatedLog, SimulatedSyncLog, Turns
from .world import FAULTS, ClusterWorld, options

T = TypeVar("T")


def _recipe(**given: Any) -> str:
    """The call of `Cluster` that makes the same cluster, without arguments that have their default."""
    default = inspect.signature(Cluster).parameters
    told = [f"{name}={value!r}" for name, value in given.items() if name == "seed" or value != default[name].default]
    return f"alpo.testing.Cluster({', '.join(told)})"


class Cluster:
    """Servers of the real protocol core, and the real client, in one process on virtual time.

    ``seed``: equal seeds give the same run, of the same code. ``servers``: 1 to 9. ``faults``: True for random faults
    of all kinds, or the names of those wanted (`alpo.testing.FAULTS`), on average one in ``fault_every_s`` virtual
    seconds; faults that the test itself asks for need none of this. ``patience_s``: virtual seconds after which a call
    that waits raises `Stuck`. ``logs``: names of the logs that the servers keep besides the first
    one. Use it in a ``with``: leaving it heals everything, demands that the cluster makes progress, and checks what
    every client was told against the log. Raises `Broken`, with the seed.
    """

    def __init__(
        self, seed: int = 0, servers: int = 3, faults: bool | Sequence[str] = False, *, fault_every_s: float = 2.0,
        election_timeout_s: float = 0.5, patience_s: float = 600.0, logs: Sequence[str] = (),
    ) -> None:
        names = tuple(FAULTS if faults else ()) if isinstance(faults, bool) else tuple(faults)
        self.seed = seed
        #: The call that makes the same cluster again.
        self.recipe = _recipe(
            seed=seed, servers=servers, faults=faults, fault_every_s=fault_every_s,
            election_timeout_s=election_timeout_s, patience_s=patience_s,
            logs=logs,
        )
        for name in logs:
            if not valid_log(name) or list(logs).count(name) > 1:
                raise ValueError(f"logs {logs!r}: {LOG_NAME_WANTED}, and each is another one")
        chosen = options(seed, servers, names, fault_every_s, election_timeout_s)
        self._world = ClusterWorld(chosen, "client" in names, logs)
        self._network = Network(self._world)
        self._ledgers = {world.name: Ledger() for world in self._world.worlds}
        self._patience_s = patience_s
        self._addresses = [host.address for host in self._world.stage.hosts.values()]
        self._parties = 0
        self._told: list[tuple[int, str]] = []
        self._engine: Engine | None = None

    # -- the whole of it --------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return self.recipe

    def __enter__(self) -> Self:
        self.open()
        return self

    def open(self) -> None:
        """Start the servers and wait for a leader; random faults begin after that. Entering the ``with`` does it."""
        if self._engine is not None:
            raise RuntimeError("a Cluster is entered once")
        self._engine = Engine(self._world, self.recipe, self._patience_s)
        self._turns = Turns(self._engine)
        try:
            self._engine.drive(lambda: all(world.leader() is not None for world in self._world.worlds))
            self._engine.call(self._world.begin_faults)
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.check()
            elif self.recipe not in str(error) and self.recipe not in getattr(error, "__notes__", ()):
                error.add_note(self.recipe)
        finally:
            self.close()

    def close(self) -> None:
        """End the cluster, without checks. Leaving the ``with`` checks and closes."""
        if self._engine is not None:
            self._engine.close()

    def check(self) -> None:
        """Heal everything for good, demand progress, and check what all clients were told. Raises `Broken`."""
        self._call(partial(self._world.mend, for_good=True))
        bound_s = LEADER_WITHIN_TIMEOUTS * self._world.options.election_timeout_us / SECOND + 3
        for world in self._world.worlds:
            try:
                with self.connect_sync(timeout_s=bound_s, log=world.name) as log:
                    list(log.read(last=1))
            except Unavailable as error:
                raise Broken("no progress", f"{error}, after everything was healed [{self.recipe}]") from error
            self._call(partial(demand_settled, world.clients))
            self._call(partial(self._ledgers[world.name].check, world.safety.guaranteed))

    # -- clients ----------------------------------------------------------------------------------------

    def connect_sync(
        self, client: str | None = None, timeout_s: float = 10.0, *, queue_max: int = 10_000,
        queue_bytes_max: int = 32 << 20, log: str = FIRST_NAME,
    ) -> SimulatedSyncLog:
        """A `SyncLog`, as of `alpo.connect_sync`; its calls let virtual time go on until they are answered."""
        made = self._new_log(client, timeout_s, queue_max, queue_bytes_max, log)
        return SimulatedSyncLog(made, queue_max, self._running())

    def connect(
        self, client: str | None = None, timeout_s: float = 10.0, *, queue_max: int = 10_000,
        queue_bytes_max: int = 32 << 20, log: str = FIRST_NAME,
    ) -> SimulatedLog:
        """A `Log`, as of `alpo.connect`, under trio or asyncio. Virtual time goes on while all tasks wait for the
        cluster."""
        made = self._new_log(client, timeout_s, queue_max, queue_bytes_max, log)
        return SimulatedLog(made, self._running(), self._turns)

    def _new_log(
        self, client: str | None, timeout_s: float, queue_max: int, queue_bytes_max: int, log: str = FIRST_NAME
    ) -> WatchedLog:
        self._parties += 1
        party = self._parties
        dialler = self._network.dialler(client or f"client {party}", party)
        ledger = self._ledgers.get(log or FIRST_NAME) or Ledger()  # another one will never be told anything
        rng = random.Random(f"{self.seed}/client/{party}")
        servers = Servers(self._addresses, dialler.open, rng, log=given_log(log))
        return WatchedLog(servers, client, timeout_s, queue_max, queue_bytes_max, ledger)

    # -- time -------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """Virtual seconds since the beginning."""
        return self._world.now_us / SECOND

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` of virtual time go by."""
        until_us = self._world.now_us + int(seconds * SECOND)
        self.until(lambda: self._world.now_us >= until_us, seconds + 1)

    def until(self, condition: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Let virtual time go by until ``condition()``, which is called often and must not wait. Raises `Stuck`."""
        self._running().drive(condition, timeout_s=timeout_s)

    async def sleep(self, seconds: float) -> None:
        """Let ``seconds`` of virtual time go by, from async code: other tasks go on meanwhile."""
        until_us = self._world.now_us + int(seconds * SECOND)
        self.after(seconds, lambda: None)
        await self._turns.until(lambda: self._world.now_us >= until_us)

    def after(self, seconds: float, function: Callable[..., object], *args: Any) -> None:
        """Call ``function(*args)`` in ``seconds`` of virtual time, while the test waits for something.

        For faults in the middle of a call. The function must not wait for the cluster itself.
        """
        self._call(lambda: self._world.after(int(seconds * SECOND), self._due, function, args))

    def _due(self, function: Callable[..., object], args: tuple[Any, ...]) -> None:
        function(*args)

    # -- what is the case -------------------------------------------------------------------------------

    @property
    def servers(self) -> tuple[int, ...]:
        """The ids of all servers."""
        return self._world.links.ids

    @property
    def leader(self) -> int | None:
        """The id of the first log's leader of the highest term; None while nobody leads."""
        return self.leader_of(FIRST_NAME)

    def leader_of(self, log: str) -> int | None:
        """The id of a log's leader of the highest term; None while nobody leads."""
        leading = [r for r in self._world_of(log).replicas() if r.state is State.LEADER]
        return max(leading, key=lambda r: r.term).me.id if leading else None

    def up(self, id: int) -> bool:
        """True if this server's process runs."""
        return self._world.up(self._known(id))

    def log(self, name: str = FIRST_NAME) -> list[Record]:
        """Every payload of a log that is guaranteed by now, in order, whether any client was told yet or not."""
        found = list(self._world_of(name).safety.guaranteed)
        rows: list[PageEntry] = [
            (e.id, e.term, e.time_ms, e.client, *part) for e in found if e.kind == Kind.DATA for part in parts(e)
        ]
        return records_of(rows, 1, 1 << 62)

    def faults(self) -> list[str]:
        """The faults so far, random ones and those the test asked for: a line each."""
        drawn = [(at_us, f"{name} {id or ''}".strip()) for at_us, name, id in self._world.faults.log]
        return [f"{at_us / SECOND:9.3f} s  {what}" for at_us, what in sorted([*drawn, *self._told], key=itemgetter(0))]

    # -- faults -----------------------------------------------------------------------------------------

    def crash(self, id: int, *, back_after_s: float | None = None) -> None:
        """End a server's process at once; what was not fsynced may be gone.

        The server stays down until `restart`, or for ``back_after_s`` virtual seconds.
        """
        self._known(id)
        self._do(f"crash {id}", partial(self._world.crash, id))
        if back_after_s is not None:
            self.after(back_after_s, self.restart, id)

    def restart(self, id: int) -> None:
        """Start a server that is down, on the disk that it had."""
        self._known(id)
        self._do(f"restart {id}", partial(self._world.boot, id))

    def kill_leader(self, *, back_after_s: float | None = None, log: str = FIRST_NAME) -> int:
        """`crash` a log's leader; returns its id.

        Waits for a leader if there is none; called by `after`, it does nothing then and returns 0.
        """
        if self.leader_of(log) is None and not self._running().inside:
            self.until(lambda: self.leader_of(log) is not None)
        id = self.leader_of(log)
        if id is None:
            return 0
        self.crash(id, back_after_s=back_after_s)
        return id

    def pause(self, id: int) -> None:
        """Have a server's process stand still, as under SIGSTOP, until `resume`. Its connections stay."""
        self._known(id)
        self._do(f"pause {id}", partial(self._world.hold, id))

    def resume(self, id: int) -> None:
        """Let a paused server go on."""
        self._known(id)
        self._do(f"resume {id}", partial(self._world.let_go, id))

    def cut(self, a: int | str, b: int | str) -> None:
        """Let nothing through between two servers, or a named client and a server, until `heal`. No side is told."""
        if isinstance(a, str) or isinstance(b, str):
            client, server = (a, b) if isinstance(a, str) else (b, a)
            if isinstance(server, str):
                raise ValueError("clients do not talk to each other")
            self._known(server)
            self._do(f"cut {a} {b}", lambda: self._world.client_cuts.__setitem__((str(client), server), True))
        else:
            pair = (self._known(a), self._known(b))
            self._do(f"cut {a} {b}", lambda: self._world.cut([pair]))

    def isolate(self, id: int, *, clients: bool = True) -> None:
        """Cut a server off from all others and, unless told otherwise, from all clients, until `heal`."""
        others = [(self._known(id), other) for other in self.servers if other != id]

        def unplug() -> None:
            self._world.cut(others)
            if clients:
                self._world.client_cuts["", id] = True

        self._do(f"isolate {id}", unplug)

    def heal(self) -> None:
        """Undo every cut, pause and crash. Random faults go on."""
        self._do("heal", partial(self._world.mend, for_good=False))

    # -- inside -----------------------------------------------------------------------------------------

    def _world_of(self, log: str) -> ClusterWorld:
        """The world of a log. Raises ValueError if there is none of that name."""
        for world in self._world.worlds:
            if world.name == log:
                return world
        raise ValueError(f"there is no log {log}, only {', '.join(self._ledgers)}")

    def _known(self, id: int) -> int:
        """``id``, if there is such a server. Raises ValueError."""
        if id not in self._world.stage.hosts:
            raise ValueError(f"there is no server {id}, only {', '.join(map(str, self.servers))}")
        return id

    def _do(self, what: str, function: Callable[[], object]) -> None:
        """Note a fault that the test asks for, and make it."""
        def do() -> None:
            self._told.append((self._world.now_us, what))
            function()

        self._call(do)

    def _running(self) -> Engine:
        """The engine. Raises RuntimeError before `open`."""
        if self._engine is None:
            raise RuntimeError("use the Cluster in a `with`")
        return self._engine

    def _call(self, function: Callable[[], T]) -> T:
        return self._running().call(function)
