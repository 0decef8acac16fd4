"""ALPO as built: the real core in the arena, byte for byte what alpod runs. No check is attached."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

from alpo.core.config import ReplicaConfig
from alpo.core.disk import Boot, Load, LoadCopy, LoadSnapshot, StartState, Write
from alpo.core.entries import Entry, Kind, seal
from alpo.core.members import Identity, Member, MemberList, Role, StartStatus
from alpo.core.messages import AppendRequest, Envelope, HandOver, Message
from alpo.core.ready import Alarm, Connected, Event, Input, Persisted, Ready, Received, Tick, carry_out
from alpo.core.replica import Replica
from alpo.core.requests import AppendRun, Reply
from alpo.core.settings import Settings
from alpo_sim.checks import Broken

from .arena import Arena, Server

CLUSTER = bytes(16)
TICK_S = 1e-6
SETTINGS = Settings()
WALL_ZERO_MS = 1_700_000_000_000
CLIENT = "~018bcfe5-6800-7000-8000-000000000001"


class Timers:
    """ALPO's timers in seconds, named as in `alpo.core.config.ReplicaConfig`."""

    def __init__(self, timeout_s: float, stagger_s: float) -> None:
        self.timeout_s, self.stagger_s = timeout_s, stagger_s
        self.heartbeat_s = timeout_s / 5


def identity(id: int) -> Identity:
    """The identity of server ``id``; its incarnation is made of the id."""
    return Identity(id, id.to_bytes(16, "big"))


def envelope(source: int, target: int, message: Message) -> Envelope:
    """``message`` addressed from server ``source`` to server ``target``."""
    return Envelope(CLUSTER, identity(source), identity(target), message)


@cache
def entry(term: int, id: int) -> Entry:
    """An entry of ``term`` under ``id`` whose content does not matter."""
    return seal(id, term, Kind.LEADER, 0, 1, b"{}")


@cache
def start_state(size: int) -> StartState:
    """The start state of a cluster of ``size`` voters that was founded long ago."""
    members = MemberList.of(Member(i, f"10.0.0.{i}:7100", 0, identity(i).incarnation, Role.VOTER)
                            for i in range(1, size + 1))
    return StartState(StartStatus.STARTED, cluster=CLUSTER, first_list=members.to_plain())


class AlpoServer(Server):
    """Server that runs the real core, booted with ``last_id`` entries in ``runs`` of (term, first id); the last
    ``above`` of them are not yet known to be guaranteed."""

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
        try:
            carry_out(ready, self)
        except Alarm as error:
            raise Broken("alarm", f"server {self.id} stopped itself: {error}") from None
        for each in ready.send:
            self.arena.send(self.id, each.target.id, each)
        # A deadline that has come must not hold time still.
        self.arena.wake(self, max(ready.deadline_s, self.arena.now_s + TICK_S))

    # -- `alpo.core.ready.Shell` ------------------------------------------------------------------------

    def send(self, envelopes: list[Envelope]) -> None:
        """Do nothing: `_handle` sends after the step, as the published figures drew the disk's delays first."""

    def write(self, write: Write, then_send: list[Envelope]) -> None:
        self.arena.write(self, write.number, [(each.target.id, each) for each in then_send])

    def reply(self, replies: list[Reply]) -> None:
        """Do nothing: there are no clients."""

    def load(self, wanted: Load | LoadSnapshot | LoadCopy) -> None:
        """Do nothing: logs are so short that nothing is ever loaded."""

    def event(self, event: Event) -> None:
        if event.name == "candidate":
            self.arena.stands(event.fields["term"])
        elif event.name == "leader":
            self.arena.wins_term(self.id, event.fields["term"])
        elif event.name == "following":
            self.arena.follows(self.id, event.fields["leader"])


def last_heartbeat(leader: int, target: int, term: int) -> Envelope:
    """The last heartbeat of ``leader`` to ``target`` before the leader crashes."""
    return envelope(leader, target, AppendRequest(term, 0, 0, 0, 0, 1, []))


def make_leader(server: AlpoServer, predecessor: int, term: int, last_id: int) -> None:
    """Make ``server``, booted in ``term - 1``, stand in ``term``, by a handover from ``predecessor`` (R28)."""
    heartbeat = AppendRequest(term - 1, last_id, term - 1, 0, 0, 1, [])
    server.step([
        Received(envelope(predecessor, server.id, heartbeat)),
        Received(envelope(predecessor, server.id, HandOver(term - 1))),
    ])


def append(server: AlpoServer, serial: int) -> None:
    """Give the leader ``server`` a client's append with this serial."""
    server.step((AppendRun(None, CLIENT, 0, serial, [(1, b"x")]),))
