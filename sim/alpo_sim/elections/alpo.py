"""ALPO as built: the real core in the arena, byte for byte what alpod runs. No check is attached."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

from alpo.core.config import ReplicaConfig
from alpo.core.disk import Boot, StartState
from alpo.core.entries import Entry, Kind, seal
from alpo.core.inputs import AppendRun, Connected, Input, Persisted, Received, Tick
from alpo.core.members import Identity, Member, MemberList, Role, StartStatus
from alpo.core.messages import AppendRequest, Envelope, HandOver, Message
from alpo.core.ready import Ready
from alpo.core.replica import Replica
from alpo.core.settings import Settings

from ..broken import Broken
from .arena import Arena, Server

CLUSTER = bytes(16)
TICK_S = 1e-6
SETTINGS = Settings()
WALL_ZERO_MS = 1_700_000_000_000
CLIENT = "~018bcfe5-6800-7000-8000-000000000001"


class Timers:
    """Seconds; as in `alpo.core.config.ReplicaConfig`."""

    def __init__(self, timeout_s: float, stagger_s: float) -> None:
        self.timeout_s, self.stagger_s = timeout_s, stagger_s
        self.heartbeat_s = timeout_s / 5


def identity(id: int) -> Identity:
    return Identity(id, id.to_bytes(16, "big"))


def envelope(source: int, target: int, message: Message) -> Envelope:
    return Envelope(CLUSTER, identity(source), identity(target), message)


@cache
def entry(term: int, id: int) -> Entry:
    """One that says nothing."""
    return seal(id, term, Kind.LEADER, 0, 1, b"{}")


@cache
def start_state(size: int) -> StartState:
    """A cluster that was founded long ago."""
    members = MemberList.of(Member(i, f"10.0.0.{i}:7100", 0, identity(i).incarnation, Role.VOTER)
                            for i in range(1, size + 1))
    return StartState(StartStatus.STARTED, cluster=CLUSTER, first_list=members.to_plain())


class AlpoServer(Server):
    """One real replica, booted with ``last_id`` entries in ``runs`` of (term, first id), the last ``above`` of them not
    yet known to be guaranteed."""

    def __init__(
        self, arena: Arena, id: int, timers: Timers, start: StartState, seed: int, *, term: int, vote: int,
        runs: list[tuple[int, int]], last_id: int, above: int = 0,
    ) -> None:
        super().__init__(arena, id)
        boot = Boot(
            identity(id), term, vote, start, last_id - above, 0, last_id, runs[-1][0], 1,
            runs=runs, applied_id=last_id - above, settings=SETTINGS.to_plain(),
        )
        cfg = ReplicaConfig(
            me=boot.me, address=f"10.0.0.{id}:7100", configured=(), settings=SETTINGS,
            heartbeat_s=timers.heartbeat_s, election_timeout_s=timers.timeout_s, stagger_s=timers.stagger_s,
        )
        self.replica = Replica(cfg, boot, random.Random(seed * 16 + id))
        self.replica.replay(entry(runs[-1][0], last_id - above + count) for count in range(1, above + 1))
        self._handle(self.replica.start(arena.now_s, WALL_ZERO_MS))
        self.step([Connected(other) for other in arena.ids if other != id])

    def step(self, inputs: Sequence[Input]) -> None:
        now_s = self.arena.now_s
        self._handle(self.replica.step(inputs, now_s, WALL_ZERO_MS + int(now_s * 1000)))

    def receive(self, source: int, message: Envelope) -> None:
        self.step((Received(message),))

    def written(self, number: int) -> None:
        self.step((Persisted(number),))

    def woken(self) -> None:
        self.step((Tick(),))

    def _handle(self, ready: Ready) -> None:
        arena = self.arena
        if ready.alarm is not None:
            raise Broken("alarm", f"server {self.id} stopped itself: {ready.alarm}")
        for event in ready.events:
            if event.name == "candidate":
                arena.stands(event.fields["term"])
            elif event.name == "leader":
                arena.wins_term(self.id, event.fields["term"])
            elif event.name == "following":
                arena.follows(self.id, event.fields["leader"])
        if ready.write is not None:
            arena.write(self, ready.write.number, [(e.target.id, e) for e in ready.send_after_write])
        for each in ready.send:
            arena.send(self.id, each.target.id, each)
        # A deadline that has come must not hold time still.
        arena.wake(self, max(ready.deadline_s, arena.now_s + TICK_S))


def last_heartbeat(leader: int, target: int, term: int) -> Envelope:
    """What a leader that is about to crash has sent."""
    return envelope(leader, target, AppendRequest(term, 0, 0, 0, 0, 1, []))


def make_leader(server: AlpoServer, predecessor: int, term: int, last_id: int) -> None:
    """``server``, booted in ``term - 1``, is told by ``predecessor`` to stand in ``term`` (R28)."""
    heartbeat = AppendRequest(term - 1, last_id, term - 1, 0, 0, 1, [])
    server.step([
        Received(envelope(predecessor, server.id, heartbeat)),
        Received(envelope(predecessor, server.id, HandOver(term - 1))),
    ])


def append(server: AlpoServer, serial: int) -> None:
    """A client's append to the leader."""
    server.step((AppendRun(None, CLIENT, 0, serial, [(1, b"x")]),))
