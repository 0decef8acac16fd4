"""Search for worlds in which ranking costs availability: clusters without a leader, in bad networks, until one leads.

Each run: 3 to 5 servers that last heard a leader within a fifth of T, some perhaps down, logs of any order of length
and last term, hard states of different terms, and one *family* of trouble. A run counts only if some server reaches,
both ways, a majority whose logs are no fresher than its own: otherwise no server may lead.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from . import alpo, raft
from .arena import Arena, Heartbeat
from .cases import GIVE_UP_TIMEOUTS, LAN, NAMES, NEVER_MS, TERM, Outcome, outcome, over_runs, quantile

TIMEOUT_S = 0.15
FIRST_ID = 100  # from here on logs differ
PROTOCOLS = ("alpo", "raft", "raft-prevote")

FAMILIES = {
    "cuts": "any links cut, both ways",
    "one-way": "any links cut, each way by itself",
    "mute": "the highest-ranked hears all and is not heard",
    "deaf": "the highest-ranked is heard by all and hears nobody",
    "half-heard": "the highest-ranked hears all and is heard by one",
    "flapping": "some links, one way or both, come and go, every 0.02 to 2 T",
    "slow disk": "the highest-ranked needs 0.1 to 1.5 T for an fsync; the others make a majority",
    "slow links": "messages of the highest-ranked take 0.02 to 1 T more, each way; the others make a majority",
    "slow disk, needed": "as slow disk, and no majority without it",
    "slow links, needed": "as slow links, and no majority without it",
}


class Corner(NamedTuple):
    """Bad world. ``logs``: server -> (last term, last id); ``terms``: server -> the term on its disk; ``cut``: links
    that are down all the time, each an ordered pair."""

    family: str
    seed: int
    servers: int
    down: tuple[int, ...]
    logs: dict[int, tuple[int, int]]
    terms: dict[int, int]
    cut: tuple[tuple[int, int], ...]
    flapping: tuple[tuple[tuple[int, int], float], ...]  # (link, period in s)
    fsync_s: dict[int, tuple[float, float]]
    slow_s: dict[int, float]

    @property
    def highest(self) -> int:
        """The server with the highest rank among those that are up."""
        return max((id for id in self.logs if id not in self.down), key=lambda id: (self.logs[id], id))

    @property
    def winnable(self) -> bool:
        """True if some server could win at any time. In slow families that must hold without the slow server too, or,
        if their name ends in "needed", must not hold without it."""
        bad = {*self.cut, *(link for link, _ in self.flapping)}
        up = [id for id in self.logs if id not in self.down]
        if self.fsync_s or self.slow_s:
            spare = self._replace(down=(*self.down, self.highest), fsync_s={}, slow_s={})
            if spare.winnable == self.family.endswith("needed"):
                return False

        def reached(a: int) -> int:
            return sum(
                b == a or (self.logs[b] <= self.logs[a] and (a, b) not in bad and (b, a) not in bad) for b in up
            )

        return any(2 * reached(a) > self.servers for a in up)

    def describe(self) -> str:
        """One line of text that describes the world."""
        parts = [f"{self.servers} servers", f"logs {list(self.logs.values())}", f"terms {list(self.terms.values())}"]
        parts += [f"down {list(self.down)}"] if self.down else []
        parts += ["cut " + " ".join(f"{a}>{b}" for a, b in self.cut)] if self.cut else []
        for (a, b), period_s in self.flapping:
            parts.append(f"{a}>{b} flaps every {period_s / TIMEOUT_S:.2f} T")
        parts += [f"fsync of {id} {low / TIMEOUT_S:.2f}-{high / TIMEOUT_S:.2f} T"
                  for id, (low, high) in self.fsync_s.items()]
        parts += [f"messages of {id} {slow_s / TIMEOUT_S:.2f} T later" for id, slow_s in self.slow_s.items()]
        return ", ".join(parts)


def draw(family: str, seed: int) -> Corner:
    """Draw the first winnable world of ``family`` that ``seed`` gives."""
    rng = random.Random(f"corner {family} {seed}")
    while True:
        corner = _draw(family, seed, rng)
        if corner.winnable:
            return corner


def _draw(family: str, seed: int, rng: random.Random) -> Corner:
    n = rng.choice((3, 3, 4, 5))
    ids = list(range(1, n + 1))
    down = tuple(rng.sample(ids, rng.choice((0, 1, 1, (n - 1) // 2))))
    logs = {id: (TERM - rng.choice((0, 0, 0, 1)), FIRST_ID + rng.randrange(rng.choice((1, n)))) for id in ids}
    terms = {id: TERM + (rng.randrange(4) if rng.random() < 0.2 else 0) for id in ids}
    blank = Corner(family, seed, n, down, logs, terms, (), (), {}, {})
    top, others = blank.highest, [id for id in ids if id != blank.highest]
    links = [(a, b) for a in ids for b in ids if a != b]
    part = rng.random()
    if family == "cuts":
        cut = {(a, b) for a, b in links if a < b and rng.random() < part}
        return blank._replace(cut=tuple(sorted(cut | {(b, a) for a, b in cut})))
    if family == "one-way":
        return blank._replace(cut=tuple(link for link in links if rng.random() < part))
    if family in ("mute", "half-heard"):
        spared = rng.choice(others) if family == "half-heard" else 0
        return blank._replace(cut=tuple((top, id) for id in others if id != spared))
    if family == "deaf":
        return blank._replace(cut=tuple((id, top) for id in others))
    if family == "flapping":
        period_s = TIMEOUT_S * 0.02 * 100 ** rng.random()
        chosen = [link for link in links if (rng.random() < part if rng.random() < 0.5 else top in link)]
        return blank._replace(flapping=tuple((link, period_s * rng.choice((1, 1, 1.1))) for link in chosen))
    if family.startswith("slow disk"):
        slow_s = TIMEOUT_S * 0.1 * 15 ** rng.random()
        return blank._replace(fsync_s={top: (slow_s * 0.9, slow_s * 1.1)})
    return blank._replace(slow_s={top: TIMEOUT_S * 0.02 * 50 ** rng.random()})


def play(corner: Corner, protocol: str) -> Outcome:
    """Run ``corner`` until a leader is followed by all servers that it reaches. The outcome's seconds count from a
    moment at most a fifth of T before a server last heard the old leader."""
    rng = random.Random(f"play {corner.family} {corner.seed}")
    arena = Arena(corner.servers, LAN, rng)
    arena.down = dict.fromkeys(corner.down, True)
    arena.cut = dict.fromkeys(corner.cut, True)
    arena.fsync_s, arena.slow_s = corner.fsync_s, corner.slow_s
    old_leader = rng.choice(arena.ids)
    for id in arena.ids:
        heard_s = rng.random() * TIMEOUT_S / 5
        if id not in corner.down:
            _add(arena, corner, protocol, id, old_leader, heard_s)
    for link, period_s in corner.flapping:
        _flap(arena, link, period_s, rng.random() * period_s)
    arena.begin_s = 0.0
    arena.run(GIVE_UP_TIMEOUTS * TIMEOUT_S, lambda: arena.heard_s is not None)
    return outcome(arena)


def _add(arena: Arena, corner: Corner, protocol: str, id: int, old_leader: int, heard_s: float) -> None:
    """Add server ``id``, which gets a heartbeat of ``old_leader`` at ``heard_s``."""
    term, (last_term, last_id) = corner.terms[id], corner.logs[id]
    if protocol == "alpo":
        timers = alpo.Timers(TIMEOUT_S, max(TIMEOUT_S / 20, LAN.broadcast_s))
        arena.servers[id] = alpo.AlpoServer(
            arena, id, timers, alpo.start_state(corner.servers), corner.seed, term=term, vote=0,
            runs=[(TERM - 2, 1), (last_term, FIRST_ID)], last_id=last_id, above=last_id - FIRST_ID + 1,
        )
        if id != old_leader:
            arena.arrive(heard_s, old_leader, id, alpo.last_heartbeat(old_leader, id, TERM))
        return
    arena.servers[id] = raft.RaftServer(
        arena, id, raft.Timers(TIMEOUT_S, 2 * TIMEOUT_S, TIMEOUT_S / 5), corner.seed, term=term, vote=0,
        log=(last_term, last_id), pre_vote=protocol == "raft-prevote",
    )
    if id != old_leader:
        arena.arrive(heard_s, old_leader, id, Heartbeat(TERM))


def _flap(arena: Arena, link: tuple[int, int], period_s: float, at_s: float) -> None:
    """Cut ``link`` for half of every period, from ``at_s`` on."""

    def turn() -> None:
        if link in arena.cut:
            del arena.cut[link]
        else:
            arena.cut[link] = True
        arena.at(arena.now_s + period_s / 2, turn)

    arena.at(at_s, turn)


CORNER_HEAD = ("trouble", "", "protocol", "runs", "p50", "p99", "max", "no leader in 60 T", "worst seed")


class CornerRow(NamedTuple):
    """Row of the table: one protocol in one family. Times in T; ``worst``: the seed of the longest run; ``none``: runs
    without a leader."""

    family: str
    protocol: str
    runs: int
    p50: float
    p99: float
    max: float
    none: int
    worst: int

    def cells(self) -> list[str]:
        family = [self.family, FAMILIES[self.family]] if self.protocol == "alpo" else ["", ""]
        return [
            *family, NAMES[self.protocol], f"{self.runs:,}", _in_t(self.p50), _in_t(self.p99), _in_t(self.max),
            str(self.none), str(self.worst),
        ]


def _in_t(value: float) -> str:
    return "none" if value == NEVER_MS else f"{value:.2f}"


def corner_rows(runs: int, jobs: int) -> Iterator[CornerRow]:
    """Yield the table's rows, one for each family and protocol: ``runs`` seeds each, on ``jobs`` processes."""
    wanted = [(family, protocol) for family in FAMILIES for protocol in PROTOCOLS]
    every = over_runs(_played, [(each, runs) for each in wanted], jobs)
    for (family, protocol), times in zip(wanted, every, strict=True):
        ordered = sorted(times)
        yield CornerRow(
            family, protocol, runs, quantile(ordered, 0.5), quantile(ordered, 0.99), ordered[-1],
            times.count(NEVER_MS), times.index(ordered[-1]),
        )


def _played(family: str, protocol: str, seed: int) -> float:
    """Time in T until all follow a leader; infinite without one."""
    heard_s = play(draw(family, seed), protocol).heard_s
    return NEVER_MS if heard_s is None else heard_s / TIMEOUT_S
