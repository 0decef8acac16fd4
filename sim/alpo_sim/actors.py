"""Actors that do not append: operators, readers, probes, and clients that misuse the protocol.

Operators look after sessions, settings and cursors, and change the member list. `begin` starts all actors of a random
world; `probes` starts the actors that show whether a cluster makes progress.
"""

from __future__ import annotations

from collections.abc import Callable

from alpo.core.entries import random_client, split_payloads
from alpo.core.members import StartStatus
from alpo.core.ready import Input
from alpo.core.requests import (
    AppendRun,
    ChangeMember,
    ChangeSettings,
    Code,
    DropCursor,
    DropSession,
    Initialise,
    Initialised,
    ListCursors,
    ListSessions,
    MemberStep,
    OpenSession,
    Outcome,
    ReadAt,
    ReadIndex,
    Refused,
    Reply,
    SetCursor,
    SettingsAre,
    ShowSettings,
    Transfer,
    Trim,
)

from .checks import Broken
from .clients import NOT_LEADER, Actor, Clients, Periodic
from .options import MS, SECOND
from .writers import NamedWriter, RandomWriter, Writer, names, new_writer

#: Microseconds for which a member operator repeats the request for one change.
_PATIENCE_US = 20 * SECOND
#: Setting -> range of the random values that operators ask for. Values that contradict other settings are refused.
_SETTINGS_RANGES = {
    "window": (2, 64), "window_total": (8, 200), "sessions_max": (1, 16), "session_ttl_ms": (2000, 20_000),
    "payload_bytes_max": (4096, 1 << 20), "batch_bytes_max": (4096, 8 << 20),
}


class SessionOperator(Periodic):
    """Operator that lists sessions, drops one now and then, trims, and looks at every server's status."""

    def next_us(self) -> int:
        every_us = self.clients.load.operator_every_us
        return (SECOND + self.clients.rng.randrange(10 * SECOND)) * every_us // (6 * SECOND)

    def request(self) -> Input:
        clients, rng = self.clients, self.clients.rng
        self._look_at_status()
        taken = names(clients)
        if rng.random() < 0.3:
            upto = len(clients.cluster.safety.id_of_lsn) + 3
            return Trim(self.origin(), rng.randrange(upto))
        if rng.random() < 0.5 or not taken:
            return ListSessions(self.origin())
        name = rng.choice(taken)
        epoch = rng.choice((0, clients.epoch_of.get(name, 0)))
        return DropSession(self.origin(), name, epoch)

    def _look_at_status(self) -> None:
        """Check the status that servers show: EMPTY or STARTING until started, VOTING only if listed as a voter."""
        for replica in self.clients.cluster.replicas():
            known = all(replica.address_of(each.id) for each in replica.cfg.configured)
            text, latest = replica.status_text, replica.members.latest
            if (text in ("EMPTY", "STARTING")) == replica.first_start.started or not known or (
                text == "VOTING" and not latest.is_voter(replica.me)
            ):
                raise Broken("ready", f"server {replica.me.id} shows {replica.status_text}")


class StateOperator(Periodic):
    """Operator that asks about outcomes, settings and cursors, and changes settings and cursors."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self._settings: dict[str, int] = {}  # as last told

    def first_us(self) -> int:
        return self.clients.pause_us()

    def next_us(self) -> int:
        return 2 * self.clients.pause_us()

    def request(self) -> Input | None:
        return _STATE_REQUESTS[self.clients.rng.choice(self.clients.load.keep)](self)

    def _change(self) -> Input:
        """Change one or two settings, believing them to be as they were last told, perhaps long ago. (``names_max`` is
        left alone: the checks compare the number of names with one bound.)"""
        rng, now = self.clients.rng, self._settings
        if not now or rng.random() < 0.3:
            return ShowSettings(self.origin())
        chosen = rng.sample(sorted(_SETTINGS_RANGES), rng.choice((1, 1, 2)))
        changes = tuple((name, now[name], rng.randint(*_SETTINGS_RANGES[name])) for name in chosen)
        return ChangeSettings(self.origin(), changes)

    def _outcome(self) -> Input | None:
        """Ask about an append that is not answered yet, or just was; sometimes about an old one, or one never made."""
        rng = self.clients.rng
        writers = [actor for actor in self.clients.actors if isinstance(actor, Writer)]
        if not writers:
            return None
        writer = rng.choice(writers)
        waiting = [op.serial for op in writer.queue]
        answered = writer.next_serial - 1 - len(waiting)
        serial = rng.choice((*waiting[:1], answered, answered, rng.randint(1, writer.next_serial + 1)))
        return Outcome(self.origin(), writer.client, max(1, serial))

    def _cursor(self) -> Input:
        """Move one of four cursors, mostly forward; sometimes move it back, drop it, list all cursors, or trim."""
        rng, chance = self.clients.rng, self.clients.rng.random()
        end_lsn = len(self.clients.cluster.safety.id_of_lsn)
        name = f"reader-{rng.randrange(4)}"
        if chance < 0.1:
            return DropCursor(self.origin(), name)
        if chance < 0.3:
            return ListCursors(self.origin())
        if chance < 0.4:
            return Trim(self.origin(), rng.randint(1, end_lsn + 1), rng.random() < 0.3)
        return SetCursor(self.origin(), name, max(1, end_lsn + 1 - rng.choice((0, 1, 5, 20, rng.randint(0, end_lsn)))))

    def heard(self, server: int, reply: Reply) -> None:
        if isinstance(reply, Refused):
            if reply.code is Code.CHANGED:
                self._settings = {}
            elif reply.code in NOT_LEADER:
                self.follow(reply)
            return
        self.server = server
        if isinstance(reply, SettingsAre):
            self._settings = reply.values


_STATE_REQUESTS: dict[str, Callable[[StateOperator], Input | None]] = {
    "outcome": StateOperator._outcome, "settings": StateOperator._change, "cursor": StateOperator._cursor,
}


class MemberOperator(Actor):
    """Operator that changes the member list and hands leadership over (R27, R28): one change at a time, asked for until
    it is done or refused, or `_PATIENCE_US` have passed.
    """

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self._wanted: Input | None = None
        self._until_us = 0
        self._origin: tuple[int, int] | None = None
        clients.after(SECOND, self._next)

    @property
    def settled(self) -> bool:
        return self._wanted is None

    def _next(self) -> None:
        clients = self.clients
        if clients.closing or not clients.faults.on:
            return
        self._wanted = self._request()
        if self._wanted is None:
            self._later()
        else:
            self._until_us = clients.cluster.now_us + _PATIENCE_US
            self._ask()

    def _later(self) -> None:
        self._wanted = None
        self.clients.after(1 + int(self.clients.rng.expovariate(1 / SECOND)), self._next)

    def _ask(self) -> None:
        clients = self.clients
        if self._wanted is None:
            return
        if clients.cluster.now_us >= self._until_us or clients.closing:
            return self._later()
        self._origin = self.origin()
        request = self._wanted._replace(origin=self._origin)  # type: ignore[call-arg]
        if isinstance(request, ChangeMember) and request.step is MemberStep.REMOVE:
            # The request may arrive seconds late, and its change may be given up later still.
            clients.cluster.disks.removing_until_us = clients.cluster.now_us + 15 * SECOND
        clients.send(self.server, request)
        clients.after(2 * clients.load.retry_us, self._again, self._origin)

    def _again(self, origin: tuple[int, int]) -> None:
        if origin == self._origin:
            self._ask()

    def heard(self, server: int, reply: Reply) -> None:
        if reply.origin != self._origin or self._wanted is None:
            return
        if isinstance(reply, Refused) and reply.code in NOT_LEADER:
            self.follow(reply)
        else:
            self._origin = None
            self._later()

    def _request(self) -> Input | None:
        """A random change, or a handover; None if what was drawn cannot be asked for now."""
        rng, cluster = self.clients.rng, self.clients.cluster
        latest = cluster.lists.latest
        if latest is None:
            return None
        listed = [member.id for member in latest.replicas]
        others = [id for id in cluster.stage.hosts if id not in listed]
        chance = rng.random()
        if chance < 0.4 and others:
            return self._add(rng.choice(others))
        if chance < 0.6:
            return ChangeMember(None, MemberStep.REMOVE, rng.choice(listed), "", 0)
        if chance < 0.75:
            return self._replace(rng.choice(listed))
        return Transfer(None, rng.choice(list(cluster.stage.hosts)))

    def _add(self, id: int) -> Input | None:
        """Boot host ``id`` and ask for it to be added; a disk that was a member before is mostly wiped first."""
        cluster, host = self.clients.cluster, self.clients.cluster.stage.hosts[id]
        if host.store.boot().start.status is StartStatus.STARTED and self.clients.rng.random() < 0.9:
            if id not in cluster.disks.that_may_go():
                return None
            cluster.wipe(id)
        if not host.joining:
            cluster.stage.join(id)
            cluster.crash(id)
        cluster.boot(id)
        return ChangeMember(None, MemberStep.ADD, id, host.address, self.clients.rng.randrange(3))

    def _replace(self, id: int) -> Input | None:
        """Boot another host, with an empty disk, under the same id, and ask for the member to be replaced."""
        cluster, host = self.clients.cluster, self.clients.cluster.stage.hosts[id]
        if id not in cluster.disks.that_may_go():
            return None
        cluster.wipe(id)
        cluster.stage.move(id)
        cluster.boot(id)
        return ChangeMember(None, MemberStep.REPLACE, id, host.address, 0)


def begin(clients: Clients) -> None:
    """Start as many actors of every kind as the world's `Options` say."""
    load = clients.load
    for _ in range(load.writers):
        new_writer(clients)
    for _ in range(load.readers):
        Reader(clients)
    if load.operators:
        SessionOperator(clients)
        Misuser(clients)
    for _ in range(load.keepers):
        StateOperator(clients)
    for _ in range(clients.cluster.options.stewards):
        MemberOperator(clients)


def probes(clients: Clients) -> list[RandomWriter | Probe]:
    """Start a writer of one append, and a probe of every other kind of request. Each is ``done`` once answered."""
    clients.calm = True
    name, nonce = f"probe-{len(clients.actors)}", clients.rng.randbytes(16)
    return [
        RandomWriter(clients, sparse=False, only_one=True),
        Probe(clients, ReadIndex),
        Probe(clients, ListSessions),
        Probe(clients, lambda origin: OpenSession(origin, name, 0, nonce)),
        Probe(clients, lambda origin: DropSession(origin, f"{name}, unknown", 0)),
    ]


class Reader(Periodic):
    """Actor that asks for linearizable reads, and compares the server's disk then with the one log."""

    _waiting: tuple[int, int] | None = None

    def first_us(self) -> int:
        return self.clients.pause_us()

    def next_us(self) -> int:
        return self.clients.load.retry_us + self.clients.pause_us()

    def request(self) -> Input:
        self._waiting = self.origin()
        return ReadIndex(self._waiting)

    def heard(self, server: int, reply: Reply) -> None:
        if reply.origin != self._waiting:
            return
        self._waiting = None
        super().heard(server, reply)
        if isinstance(reply, ReadAt):
            self._read(server, reply.id)

    def _read(self, server: int, upto_id: int) -> None:
        """Compare the last entries up to ``upto_id``, on the server's disk and in its memory, with the one log. Raises
        `Broken`."""
        host, safety = self.clients.cluster.stage.hosts[server], self.clients.cluster.safety
        if host.replica is None or host.replica.log.last_id < upto_id:
            return  # the server has started again since
        log = host.replica.log
        first_id, stable_id = max(log.base_id + 1, upto_id - 10), min(upto_id, log.stable_id)
        held = host.store.read_entries(first_id, stable_id, 1 << 20) if first_id <= stable_id else []
        in_memory = [log.entry(id) for id in range(max(first_id, stable_id + 1), upto_id + 1)]
        for entry in [*held, *(entry for entry in in_memory if entry is not None)]:
            if entry != safety.guaranteed[entry.id - 1]:
                raise Broken("one log", f"server {server} serves another entry {entry.id} than was guaranteed")
            if entry.count and len(split_payloads(entry.count, entry.body)) != entry.count:
                raise Broken("ready", f"entry {entry.id} is not {entry.count} payloads")


class Probe(Actor):
    """Actor that repeats one request until it is answered; ``done`` then. ``make(origin)`` makes the request."""

    EVERY_US = 50 * MS

    def __init__(self, clients: Clients, make: Callable[[tuple[int, int]], Input]) -> None:
        super().__init__(clients)
        self.done = False
        self._make = make
        self._waiting: tuple[int, int] | None = None
        self._asked_us = 0
        self._look()

    def __str__(self) -> str:
        return type(self._make((0, 0))).__name__

    def _look(self) -> None:
        clients = self.clients
        now_us = clients.cluster.now_us
        if self.done:
            return
        if self._waiting is None or now_us - self._asked_us >= clients.load.retry_us:
            self._waiting, self._asked_us = self.origin(), now_us
            clients.send(self.server, self._make(self._waiting))
        clients.after(self.EVERY_US, self._look)

    def heard(self, server: int, reply: Reply) -> None:
        if reply.origin != self._waiting:
            return
        self._waiting = None
        if isinstance(reply, Refused) and reply.code in NOT_LEADER:
            self.follow(reply)
        else:
            self.done = True


class Misuser(Periodic):
    """Actor that sends invalid requests. Every server must refuse them, and go on."""

    def request(self) -> Input:
        origin, body = self.origin(), [(1, self.clients.payload())]
        wrong: list[Input] = [
            AppendRun(origin, "", 0, 1, body), AppendRun(origin, "~no-uuid", 0, 1, body),
            AppendRun(origin, "someone", 0, 0, body), AppendRun(origin, "someone", -1, 1, body),
            AppendRun(origin, "someone", 0, 1 << 62, body), AppendRun(origin, "\udc80", 0, 1, body),
            OpenSession(origin, "", 0, bytes(16)), OpenSession(origin, "someone", 0, b"short"),
            OpenSession(origin, "someone", 1 << 40, bytes(16)), DropSession(origin, "x" * 200, 0),
            DropSession(origin, "someone", 1 << 40), AppendRun(origin, "someone", 1 << 40, 1, body),
            AppendRun(origin, random_client(1, 1).replace("-", "x"), 0, 1, body),
            AppendRun(origin, random_client(1, 1)[:15] + "4" + random_client(1, 1)[16:], 0, 1, body),
        ]
        for writer in self.clients.actors:
            if isinstance(writer, RandomWriter):
                wrong.append(AppendRun(origin, writer.client, 3, writer.next_serial, body))
            elif isinstance(writer, NamedWriter):
                wrong.append(AppendRun(origin, writer.client, 1 << 40, writer.next_serial, body))
        # A list of one is founded by command alone: on a new disk the command would found another cluster.
        cluster = self.clients.cluster
        if cluster.leader() is not None and cluster.options.servers > 1:
            wrong.append(Initialise(origin))
        return self.clients.rng.choice(wrong)

    def heard(self, server: int, reply: Reply) -> None:
        if not isinstance(reply, Refused | Initialised):
            raise Broken("ready", f"a request that can never be right was answered: {reply}")
        super().heard(server, reply)
