"""Cases to be measured (a protocol, its timers, a world, a fault), and runs of them, each drawn from its number.

Law: what happens to a cluster in run k (who led, how long after the last broadcast the fault came, whose log lacks how
much, who sits where in a topology) is drawn without regard to the protocol, and so is equal for all protocols.

`cases` lists all that are measured; `measured` gives a case's summary, as a table shows it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeVar

from alpo_sim.spread import spread

from . import alpo, raft
from .alpo import AlpoServer
from .arena import Arena, Heartbeat, Profile, Server, Voter
from .draft import DraftServer
from .raft import RaftServer

PAPER = Profile("paper", (0.002, 0.008), (0.001, 0.010))
LAN = Profile("LAN", (0.0001, 0.0005), (0.0003, 0.003))

NAMES = {
    "alpo": "ALPO", "raft": "Raft", "raft-prevote": "Raft, pre-vote and check-quorum", "draft": "draft, patient",
    "draft-literal": "draft, at its word",
}
PROTOCOLS = tuple(NAMES)
FAULTS = ("crash", "scattered", "star", "chain", "bridge")
GIVE_UP_TIMEOUTS = 60

TERM = 5  # of the old leader
LAST_ID = 100  # every server holds every entry up to here


@dataclass(frozen=True, slots=True)
class Case:
    """A protocol, its timers, a world and a fault.

    ``low_ms`` to ``high_ms``: election timeout; only Raft draws from the range, the others take ``low_ms``. ``beat``:
    the old leader's heartbeat interval as a part of ``low_ms``. ``equal``: all logs are of one length.
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
        """The stagger of ALPO's timers: a twentieth of the election timeout, at least a round trip and an fsync."""
        return max(self.timeout_s / 20, self.profile.broadcast_s)


class Outcome(NamedTuple):
    """Result of a run. Seconds after the fault; None: not within `GIVE_UP_TIMEOUTS`: ``leaderless_s`` until one leads,
    ``heard_s`` until all servers that the leader reaches follow it.
    """

    leaderless_s: float | None
    heard_s: float | None
    candidacies: int
    terms: int  # terms in which somebody stood, the winner's included
    wins: int  # more than one: the first leader was deposed before all followed it

    @property
    def split(self) -> int:
        """Number of terms with a candidate and without a leader."""
        return self.terms - self.wins


class Draw(NamedTuple):
    """Random choices of one run: who leads, when the fault comes, whose log lacks entries, which links stay."""

    leader: int
    phase: float  # part of a heartbeat interval between the last broadcast and the fault
    missing: dict[int, int]  # server -> how many of the newest entries it lacks
    kept: dict[tuple[int, int], bool] | None  # the links that stand; None: all


def draw(case: Case, run: int) -> Draw:
    """Draw the choices of run ``run`` of ``case``: the same for every protocol."""
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
    """Links of a star: its centre, which is not the leader, reaches all."""
    return _both_ways([(others[0], id) for id in (leader, *others[1:])])


def _chain(leader: int, others: list[int]) -> dict[tuple[int, int], bool]:
    """Links of a chain with the leader at its end. (With more than five servers nobody reaches a majority.)"""
    return _both_ways(list(pairwise([leader, *others])))


def _bridge(leader: int, others: list[int]) -> dict[tuple[int, int], bool]:
    """Links of two sides that one server joins; the leader's side, that server included, lacks one for a majority."""
    pier, rest = others[0], others[1:]
    few = (len(others) + 1) // 2 - 1
    sides = [leader, *rest[: few - 1]], rest[few - 1 :]
    pairs = [(a, b) for side in sides for a in side for b in side if a < b]
    return _both_ways(pairs + [(pier, id) for side in sides for id in side])


_TOPOLOGIES = {"star": _star, "chain": _chain, "bridge": _bridge}


def make_arena(case: Case, run: int) -> Arena:
    """Make the arena of run ``run`` of ``case``; its delays are drawn from the run's number."""
    return Arena(case.servers, case.profile, random.Random(f"delays {case.servers} {case.fault} {case.equal} {run}"))


def measure(case: Case, run: int) -> Outcome:
    """Play run ``run`` of ``case``. Raises `Broken` if two servers lead one term."""
    drawn, arena = draw(case, run), make_arena(case, run)
    if case.fault not in _TOPOLOGIES:
        _crash(case, run, drawn, arena)
    else:
        _partition(case, run, drawn, arena)
    arena.run(arena.begin_s + GIVE_UP_TIMEOUTS * case.timeout_s, lambda: arena.heard_s is not None)
    return outcome(arena)


def outcome(arena: Arena) -> Outcome:
    """The result of the run that ``arena`` has played."""
    begin_s, won_s, heard_s = arena.begin_s, arena.won_s, arena.heard_s
    return Outcome(
        None if won_s is None else won_s - begin_s, None if heard_s is None else heard_s - begin_s,
        arena.candidacies, len(arena.terms), arena.wins,
    )


def make_server(case: Case, arena: Arena, run: int, id: int, leader: int, lacks: int, newest: int) -> Server:
    """Make server ``id`` in the old leader's term, without the ``lacks`` newest of ``newest`` entries of that term."""
    last_id = LAST_ID + newest - lacks
    if case.protocol in ("raft", "raft-prevote"):
        timers = raft.Timers(case.timeout_s, case.high_ms / 1000, case.heartbeat_s)
        return RaftServer(
            arena, id, timers, run, term=TERM, vote=leader, log=(TERM, last_id),
            pre_vote=case.protocol == "raft-prevote",
        )
    if case.protocol in ("draft", "draft-literal"):
        return DraftServer(
            arena, id, case.timeout_s, case.heartbeat_s, term=TERM, vote=leader, last_id=last_id,
            patient=case.protocol == "draft",
        )
    timers_ = alpo.Timers(case.timeout_s, case.stagger_s)
    start = alpo.start_state(case.servers)
    runs, above = [(TERM - 1, 1)], last_id - LAST_ID
    if above:
        runs.append((TERM, LAST_ID + 1))
    return AlpoServer(arena, id, timers_, start, run, term=TERM, vote=leader, runs=runs, last_id=last_id, above=above)


def _crash(case: Case, run: int, drawn: Draw, arena: Arena) -> None:
    """Crash the leader a part of a heartbeat interval after one broadcast to all at once. Scattered: every server has
    its last heartbeat at a time of its own within the interval."""
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
        message = alpo.last_heartbeat(drawn.leader, id, TERM) if case.protocol == "alpo" else Heartbeat(TERM)
        sent_s = case.heartbeat_s * arena.rng.random() if scattered else 0.0
        arena.arrive(sent_s + low_s + (high_s - low_s) * arena.rng.random(), drawn.leader, id, message)


def _partition(case: Case, run: int, drawn: Draw, arena: Arena) -> None:
    """Let the leader lead, then cut all links but those of the topology."""
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
        assert isinstance(server, Voter)
        server.lead()

    def part() -> None:
        arena.cut.update({(a, b): True for a in arena.ids for b in arena.ids if a != b and (a, b) not in kept})
        arena.begin_s = arena.now_s

    arena.at(begin_s, part)
    arena.run(begin_s, lambda: arena.begin_s <= arena.now_s)


def _alpo_leads(case: Case, run: int, drawn: Draw, arena: Arena, begin_s: float, newest: int) -> None:
    """Make the leader by a handover. Then it appends an entry a millisecond, and one follower after the other is cut
    off before the next entry."""
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


SIZES = (3, 5, 9)
RANDOMNESS = ((150, 150), (150, 151), (150, 155), (150, 175), (150, 200), (150, 300))
TIMEOUTS = ((12, 24), (25, 50), (50, 100), (100, 200), (150, 300))
TOPOLOGIES = ((5, "star"), (5, "chain"), (5, "bridge"), (9, "star"), (9, "bridge"))
CHUNK = 100
POINTS = 200  # of a curve, at most
NEVER_MS = float("inf")

T = TypeVar("T")


def cases() -> list[Case]:
    """All cases that are measured, each once."""
    found: dict[Case, bool] = {}
    for n in SIZES:
        for equal in (False, True):
            for low, high in RANDOMNESS + TIMEOUTS:
                found[Case("raft", n, low, high, equal=equal)] = True
            for low, _ in TIMEOUTS:
                found[Case("alpo", n, low, low, equal=equal)] = True
                found[Case("draft", n, low, low, equal=equal)] = True
            found[Case("raft-prevote", n, 150, 300, equal=equal)] = True
            found[Case("draft-literal", n, 150, 150, equal=equal)] = True
            for protocol in PROTOCOLS:
                found[one(protocol, n, 150, "scattered", equal, PAPER, 0.5)] = True
                found[one(protocol, n, 500, "crash", equal, LAN, 0.2)] = True
    for n, fault in TOPOLOGIES:
        for equal in (False, True):
            for protocol in PROTOCOLS:
                found[one(protocol, n, 150, fault, equal, PAPER, 0.2)] = True
                found[one(protocol, n, 500, fault, equal, LAN, 0.2)] = True
    return list(found)


def one(protocol: str, servers: int, low_ms: int, fault: str, equal: bool, profile: Profile, beat: float) -> Case:
    """Make a case; Raft's longest timeout is twice its shortest, ``low_ms``, as the paper advises."""
    high_ms = 2 * low_ms if protocol.startswith("raft") else low_ms
    return Case(protocol, servers, low_ms, high_ms, fault, equal, profile, beat)


def runs_of(case: Case, runs: int) -> int:
    """Number of runs for a case: ``runs``, or a fiftieth where most runs elect nobody and so take longest."""
    near = case.timeout_s < 2 * case.profile.broadcast_s
    even = case.protocol == "raft" and case.high_ms - case.low_ms <= 1
    parted = case.protocol == "draft-literal" and case.fault not in ("crash", "scattered")
    return max(1, runs // 50) if near or even or parted else runs


@dataclass(frozen=True, slots=True)
class Cell:
    """Summary of a case's runs. Quantiles are of all runs; a run without a leader in 60 T counts as infinite."""

    case: Case
    runs: int
    none: int  # runs without a leader within 60 T
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    heard_p50_ms: float  # time until all servers that the leader reaches follow it
    heard_p99_ms: float
    heard_max_ms: float
    lost: float  # share of the runs whose first leader was deposed before that
    candidacies: float  # a run, on average
    terms: float  # terms in which somebody stood, on average
    terms_max: int
    split: float  # share of the runs in which a term had candidates and no leader
    curve_ms: list[float]  # times until all follow, at even shares of the ``followed``
    followed: float  # share of the runs with a leader that all follow


def quantile(ordered: list[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the ascending ``ordered`` lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _ordered_ms(seconds: list[float | None]) -> list[float]:
    return sorted(NEVER_MS if each is None else each * 1000 for each in seconds)


def summarise(case: Case, outcomes: list[Outcome]) -> Cell:
    """Make the cell of ``case`` from the outcomes of its runs."""
    led = _ordered_ms([o.leaderless_s for o in outcomes])
    heard = _ordered_ms([o.heard_s for o in outcomes])
    count = len(outcomes)
    finite = [ms for ms in heard if ms < NEVER_MS]
    step = max(1, len(finite) // POINTS)
    return Cell(
        case, count, led.count(NEVER_MS), quantile(led, 0.5), quantile(led, 0.9), quantile(led, 0.99), led[-1],
        quantile(heard, 0.5), quantile(heard, 0.99), heard[-1], sum(o.wins > 1 for o in outcomes) / count,
        sum(o.candidacies for o in outcomes) / count,
        sum(o.terms for o in outcomes) / count, max(o.terms for o in outcomes),
        sum(o.split > 0 for o in outcomes) / count, finite[::step] + finite[-1:],
        len(finite) / count,
    )


def over_runs(
    call: Callable[..., T], wanted: Sequence[tuple[tuple[object, ...], int]], jobs: int,
    done: Callable[[int], None] = lambda count: None,
) -> Iterator[list[T]]:
    """Yield for each (arguments, runs) of ``wanted``, in order, the results of ``call(*arguments, run)`` for every run.

    The calls are spread over ``jobs`` processes, so ``call`` is a module's function. ``done`` is called with the number
    of further runs that are over.
    """
    parts: list[Callable[[], list[T]]] = [
        partial(_some, call, arguments, range(first, min(first + CHUNK, runs)))
        for arguments, runs in wanted for first in range(0, runs, CHUNK)
    ]
    results = spread(parts, jobs, 8)
    for _, runs in wanted:
        found: list[T] = []
        while len(found) < runs:
            more = next(results)
            done(len(more))
            found += more
        yield found


def _some(call: Callable[..., T], arguments: tuple[object, ...], runs: range) -> list[T]:
    return [call(*arguments, run) for run in runs]


def measured(
    wanted: list[Case], runs: int, jobs: int = os.cpu_count() or 1, done: Callable[[int], None] = lambda count: None,
) -> Iterator[Cell]:
    """Measure every case; yields a cell for each. ``done`` is called with the number of further runs that are over."""
    every = [((case,), runs_of(case, runs)) for case in wanted]
    for case, outcomes in zip(wanted, over_runs(measure, every, jobs, done), strict=True):
        yield summarise(case, outcomes)


CSV_HEAD = [
    "protocol", "servers", "low_ms", "high_ms", "fault", "equal_logs", "profile", "heartbeat_of_low",
    "runs",
    *(f.name for f in fields(Cell) if f.name not in ("case", "curve_ms", "runs")),
]


def csv_row(cell: Cell) -> list[str]:
    """The row of ``cell`` in the CSV file, in the order of `CSV_HEAD`."""
    c = cell.case
    row: list[object] = [c.protocol, c.servers, c.low_ms, c.high_ms, c.fault, c.equal, c.profile.name, c.beat]
    row += [getattr(cell, name) for name in CSV_HEAD[len(row):]]
    return [f"{each:.3f}" if isinstance(each, float) else str(each) for each in row]
