"""What is measured: a case is a protocol, its timers, a world and a fault; a run of it is drawn from its number.

Law: what befalls a cluster in run k (who led, how long after its last broadcast the fault came, whose log lacks what,
who sits where in a topology) is drawn without regard to the protocol, and so alike for all.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from . import alpo, draft, raft
from .alpo import AlpoServer
from .arena import Arena, Profile, Server
from .draft import DraftServer
from .raft import RaftServer

PAPER = Profile("paper", (0.002, 0.008), (0.001, 0.010))
LAN = Profile("LAN", (0.0001, 0.0005), (0.0003, 0.003))

PROTOCOLS = ("alpo", "raft", "raft-prevote", "draft", "draft-literal")
FAULTS = ("crash", "scattered", "star", "chain", "bridge")
GIVE_UP_TIMEOUTS = 60

TERM = 5  # of the old leader
LAST_ID = 100  # what everybody holds


@dataclass(frozen=True, slots=True)
class Case:
    """``low_ms``, ``high_ms``: election timeout; only Raft draws from a range, the others take ``low_ms``.

    ``beat``: heartbeats of the old leader, as a part of ``low_ms``. ``equal``: all logs are.
    """

    protocol: str
    servers: int
    low_ms: float
    high_ms: float
    fault: str = "crash"
    equal: bool = False
    profile: Profile = PAPER
    beat: float = 0.5

    @property
    def timeout_s(self) -> float:
        return self.low_ms / 1000

    @property
    def heartbeat_s(self) -> float:
        return self.timeout_s * self.beat

    @property
    def stagger_s(self) -> float:
        """ALPO's: T/20, at least a round trip and an fsync."""
        return max(self.timeout_s / 20, self.profile.broadcast_s)


class Outcome(NamedTuple):
    """Seconds since the fault; None: not within `GIVE_UP_TIMEOUTS`. ``heard_s``: all that it reaches follow it."""

    leaderless_s: float | None
    heard_s: float | None
    candidacies: int
    terms: int  # in which somebody stood, the winner's included
    wins: int  # more than one: the first leader was deposed before all followed it

    @property
    def split(self) -> int:
        """Terms that somebody stood in and nobody won."""
        return self.terms - self.wins


class Draw(NamedTuple):
    """What befalls the cluster."""

    leader: int
    phase: float  # of a heartbeat interval, between the last broadcast and the fault
    missing: dict[int, int]  # how many of the newest entries a server lacks
    kept: dict[tuple[int, int], bool] | None  # the links that stand; None: all


def draw(case: Case, run: int) -> Draw:
    n = case.servers
    rng = random.Random(f"{n} {case.fault} {case.equal} {run}")
    leader = rng.randint(1, n)
    others = [id for id in range(1, n + 1) if id != leader]
    rng.shuffle(others)
    kept = _TOPOLOGIES[case.fault](leader, others) if case.fault in _TOPOLOGIES else None
    missing = dict.fromkeys(range(1, n + 1), 0)
    if not case.equal:
        # Every log of another length, as in the paper; who still hears the old leader is sent all of it.
        for count, id in enumerate(rng.sample(others, n - 1)):
            missing[id] = 0 if kept and (leader, id) in kept else count
    return Draw(leader, rng.random(), missing, kept)


def _both_ways(pairs: list[tuple[int, int]]) -> dict[tuple[int, int], bool]:
    return {link: True for a, b in pairs for link in ((a, b), (b, a))}


def _star(leader: int, others: list[int]) -> dict[tuple[int, int], bool]:
    """Only the centre, not the leader, sees all."""
    return _both_ways([(others[0], id) for id in (leader, *others[1:])])


def _chain(leader: int, others: list[int]) -> dict[tuple[int, int], bool]:
    """The leader is at the end of it. (With more than five servers nobody sees a majority.)"""
    row = [leader, *others]
    return _both_ways(list(pairwise(row)))


def _bridge(leader: int, others: list[int]) -> dict[tuple[int, int], bool]:
    """One server sees all; of the two sides the leader's lacks one for a majority."""
    pier, rest = others[0], others[1:]
    few = (len(others) + 1) // 2 - 1
    sides = [leader, *rest[: few - 1]], rest[few - 1 :]
    pairs = [(a, b) for side in sides for a in side for b in side if a < b]
    return _both_ways(pairs + [(pier, id) for side in sides for id in side])


_TOPOLOGIES = {"star": _star, "chain": _chain, "bridge": _bridge}


def make_arena(case: Case, run: int) -> Arena:
    return Arena(case.servers, case.profile, random.Random(f"delays {case.servers} {case.fault} {case.equal} {run}"))


def measure(case: Case, run: int) -> Outcome:
    """Run ``run`` of ``case``."""
    drawn, arena = draw(case, run), make_arena(case, run)
    if case.fault not in _TOPOLOGIES:
        _crash(case, run, drawn, arena)
    else:
        _partition(case, run, drawn, arena)
    arena.run(arena.begin_s + GIVE_UP_TIMEOUTS * case.timeout_s, lambda: arena.heard_s is not None)
    return outcome(arena)


def outcome(arena: Arena) -> Outcome:
    begin_s, won_s, heard_s = arena.begin_s, arena.won_s, arena.heard_s
    return Outcome(
        None if won_s is None else won_s - begin_s, None if heard_s is None else heard_s - begin_s,
        arena.candidacies, len(arena.terms), arena.wins,
    )


def make_server(case: Case, arena: Arena, run: int, id: int, leader: int, lacks: int, newest: int) -> Server:
    """Server ``id`` in the old leader's term, without the ``lacks`` newest of ``newest`` entries of that term."""
    last_id = LAST_ID + newest - lacks
    if case.protocol in ("raft", "raft-prevote"):
        timers = raft.Timers(case.timeout_s, case.high_ms / 1000, case.heartbeat_s)
        return RaftServer(
            arena, id, timers, run, term=TERM, vote=leader, log=(TERM, last_id),
            pre_vote=case.protocol == "raft-prevote",
        )
    if case.protocol in ("draft", "draft-literal"):
        return DraftServer(
            arena, id, draft.Timers(case.timeout_s, case.heartbeat_s), term=TERM, vote=leader, last_id=last_id,
            patient=case.protocol == "draft",
        )
    timers_ = alpo.Timers(case.timeout_s, case.stagger_s)
    start = alpo.start_state(case.servers)
    runs, above = [(TERM - 1, 1)], last_id - LAST_ID
    if above:
        runs.append((TERM, LAST_ID + 1))
    return AlpoServer(arena, id, timers_, start, run, term=TERM, vote=leader, runs=runs, last_id=last_id, above=above)


def _crash(case: Case, run: int, drawn: Draw, arena: Arena) -> None:
    """One broadcast to all, at once, and a part of a heartbeat interval later the leader is gone. Scattered: to each
    its last heartbeat at its own time within the interval."""
    arena.down[drawn.leader] = True
    scattered = case.fault == "scattered"
    arena.begin_s = case.heartbeat_s * (1 if scattered else drawn.phase)
    newest = max(drawn.missing.values())
    low_s, high_s = case.profile.delay_s
    for id in arena.ids:
        if id == drawn.leader:
            continue
        server = make_server(case, arena, run, id, drawn.leader, drawn.missing[id], newest)
        arena.servers[id] = server
        message: NamedTuple
        if case.protocol == "alpo":
            message = alpo.last_heartbeat(drawn.leader, id, TERM)
        else:
            message = (draft.Heartbeat if case.protocol.startswith("draft") else raft.Heartbeat)(TERM)
        sent_s = case.heartbeat_s * arena.rng.random() if scattered else 0.0
        arena.arrive(sent_s + low_s + (high_s - low_s) * arena.rng.random(), drawn.leader, id, message)


def _partition(case: Case, run: int, drawn: Draw, arena: Arena) -> None:
    """The leader leads and all is well; then only some links stand."""
    assert drawn.kept is not None
    kept, leader = drawn.kept, drawn.leader
    begin_s = (2 + drawn.phase) * case.heartbeat_s
    newest = max(drawn.missing.values())
    if case.protocol == "alpo":
        _alpo_leads(case, run, drawn, arena, begin_s, newest)
    else:
        for id in arena.ids:
            arena.servers[id] = make_server(case, arena, run, id, leader, drawn.missing[id], newest)
        server = arena.servers[leader]
        assert isinstance(server, RaftServer | DraftServer)
        server.lead()

    def part() -> None:
        arena.cut.update({(a, b): True for a in arena.ids for b in arena.ids if a != b and (a, b) not in kept})
        arena.begin_s = arena.now_s

    arena.at(begin_s, part)
    arena.run(begin_s, lambda: arena.begin_s <= arena.now_s)


def _alpo_leads(case: Case, run: int, drawn: Draw, arena: Arena, begin_s: float, newest: int) -> None:
    """The leader is made by a handover; then it appends, an entry a millisecond, and one follower after the other is
    cut off before the next entry."""
    leader, timers, start = drawn.leader, alpo.Timers(case.timeout_s, case.stagger_s), alpo.start_state(case.servers)
    for id in arena.ids:
        term, vote = (TERM - 1, 0) if id == leader else (TERM, leader)
        arena.servers[id] = AlpoServer(
            arena, id, timers, start, run, term=term, vote=vote, runs=[(TERM - 1, 1)], last_id=LAST_ID
        )
    server = arena.servers[leader]
    assert isinstance(server, AlpoServer)
    alpo.make_leader(server, 1 if leader != 1 else 2, TERM, LAST_ID)
    for count in range(1, newest + 1):
        def one(serial: int = count) -> None:
            arena.cut.update({(leader, id): True for id in arena.ids if drawn.missing[id] == newest - serial + 1})
            alpo.append(server, serial)

        arena.at(begin_s - 0.001 * (newest - count + 1), one)
