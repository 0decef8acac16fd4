"""Actors that neither append nor operate the cluster: readers, probes, and clients that misuse the protocol.

`begin` starts all actors of a random world; `probes` starts the actors that show whether a cluster makes progress.
"""

from __future__ import annotations

from collections.abc import Callable

from alpo.core.entries import random_client, split_payloads
from alpo.core.ready import Input
from alpo.core.requests import (
    AppendRun,
    DropSession,
    Initialise,
    Initialised,
    ListSessions,
    OpenSession,
    ReadAt,
    ReadIndex,
    Refused,
    Reply,
)

from .broken import Broken
from .clients import NOT_LEADER, Actor, Clients, Periodic
from .operators import MemberOperator, SessionOperator, StateOperator
from .options import MS
from .writers import NamedWriter, RandomWriter, new_writer


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
