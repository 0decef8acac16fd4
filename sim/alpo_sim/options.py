"""Options of a world, which are drawn from its seed before the world begins."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, fields, replace
from typing import Any

from alpo.core.settings import Settings

MS = 1000  # virtual time is in microseconds
SECOND = 1_000_000

FAULTS = (
    "crash", "crash_all", "pause", "cut", "one_way", "star", "chain", "bridge", "isolate", "stall", "full", "jump",
    "drift", "stop", "reset", "move",
)
#: Faults of what works half, in three of ten worlds: a generator of their own leaves the other worlds as they were.
HALF_FAULTS = ("slices", "slow", "lossy", "slow")
TOPOLOGIES = ("whole", "star", "chain", "bridge")


@dataclass(frozen=True, slots=True)
class Network:
    """Delays and probabilities for each message. ``ordered``: links deliver in order, as TCP does."""

    delay_us: tuple[int, int] = (100, 2000)
    late: float = 0.001  # the part that arrives up to ``late_us`` later
    late_us: int = 3 * SECOND
    loss: float = 0.005
    duplication: float = 0.005
    ordered: bool = False
    damage: float = 0.001
    #: Share of messages, append requests and their answers excepted, of which a copy arrives up to ``again_us`` later.
    again: float = 0.0
    again_us: int = 2 * SECOND


@dataclass(frozen=True, slots=True)
class Load:
    """Number and habits of the actors of a world. ``pace_us``: mean pause between two new requests of one client."""

    writers: int = 4
    readers: int = 2
    pace_us: int = 150 * MS
    depth: int = 8  # appends in flight for each client
    payload_bytes_max: int = 200
    operators: bool = True
    retry_us: int = 700 * MS
    #: Bytes not yet guaranteed at which a server stops reading from clients, as the node's driver does.
    inflight_bytes_max: int = 8 << 20
    copied: float = 0.02  # the part of requests that arrives a second time, up to 8 s later
    #: Most appends that a client makes at once, to be sent in one frame; retries group them anew.
    frame: int = 1
    large: float = 0.0  # the part of such frames whose payloads are large: more than one run may hold
    conditional: float = 0.0  # the part of appends, of a client with none in flight, that expect an LSN to be the last
    same_name: float = 0.3  # the part of new named writers that take a name in use
    quits: float = 0.005  # the probability that a writer dies before a request
    alike: bool = False  # all payloads are equal
    #: Number of operators that ask about outcomes, settings and cursors (`operators.StateOperator`); ``keep`` holds the
    #: subjects from which each request's is drawn.
    keepers: int = 0
    #: Mean pause between two requests of the operator that lists and drops sessions.
    operator_every_us: int = 6 * SECOND
    keep: tuple[str, ...] = ("outcome", "outcome", "outcome", "outcome", "settings", "cursor", "cursor")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a world. Two worlds with equal options run alike, to the byte."""

    seed: int
    servers: int = 3
    seconds: int = 60
    election_timeout_us: int = 500 * MS
    #: Stagger of the election timers. None: T/20, at least 10 ms. Candidates collide if a round trip and an fsync take
    #: longer.
    stagger_us: int | None = None
    #: Range of an fsync's duration; most are near the lower end.
    fsync_us: tuple[int, int] = (300, 6300)
    priorities: tuple[int, ...] = ()
    auto_init: bool = True
    network: Network = field(default_factory=Network)
    load: Load = field(default_factory=Load)
    settings: Settings = field(default_factory=Settings)
    limits: tuple[tuple[str, int], ...] = ()
    #: Mean time between two faults; 0: none.
    fault_every_us: int = 2 * SECOND
    faults: tuple[str, ...] = FAULTS
    #: Share of the processes that end of which the servers connected to them find out (R33); of the others they hear
    #: nothing, as if the host had lost power.
    refusals: float = 0.0
    wipes: int = 0
    drift: float = 0.01  # the part by which clocks run too fast or too slow, at most
    last_topology: str = "whole"
    #: Number of voters, a minority, that are down the last time but one that progress is demanded.
    last_down: int = 0
    #: True: one server is first started with another list of founders.
    misconfigured: bool = False
    #: Mean time between two cleanings of one server; 0: none.
    clean_every_us: int = 0
    #: Number of servers that may be added; ``stewards``: of operators that change members (`operators.MemberOperator`).
    spares: int = 0
    stewards: int = 0
    #: True: faults also follow on events that servers report (`faults.Aimed`).
    aimed: bool = False

    @staticmethod
    def draw(seed: int, *, servers: int | None = None, seconds: int = 60, **fixed: Any) -> Options:
        """Draw the options of the world of ``seed``; options that are given are not drawn."""
        rng = random.Random(f"options {seed}")
        size = rng.choice((1, 2, 3, 3, 3, 3, 3, 3, 4, 5, 5, 5, 7, 9))
        size = size if servers is None else servers
        drawn: dict[str, Any] = {
            "servers": size,
            "seconds": seconds,
            "election_timeout_us": rng.choice((60, 150, 300, 500, 500, 1000)) * MS,
            "stagger_us": rng.choice((None, None, None, 0, 1 * MS)),
            "priorities": tuple(rng.randrange(3) for _ in range(size)) if rng.random() < 0.3 else (),
            "auto_init": size > 1 and rng.random() < 0.9,
            "network": _overtaking(_network(rng), seed),
            "load": replace(_load(rng, size), **_habits(seed)),
            "settings": _settings(rng),
            "limits": _limits(rng) + _parts(seed),
            "fault_every_us": rng.choice((500, 1000, 2000, 4000)) * MS,
            "faults": tuple(f for f in FAULTS if rng.random() < 0.6) or ("crash",),
            "wipes": rng.randint(0, (size - 1) // 2) if rng.random() < 0.3 else 0,
            "drift": rng.choice((0.0, 0.0001, 0.01, 0.05)),
            "clean_every_us": rng.choice((0, 500 * MS, 5 * SECOND)),
            "misconfigured": rng.random() < 0.1,
            "last_topology": rng.choice(TOPOLOGIES) if size >= 3 else "whole",
        }
        drawn["fsync_us"] = rng.choice(((300, 6300), (300, 6300), (100, 500), (1000, 60_000)))
        drawn["last_down"] = rng.randint(0, (size - 1) // 2) if rng.random() < 0.5 else 0
        for name, chance, more in (
            ("damage", 0.3, ("damage",)), ("hangs", 0.3, ("hang",)), ("refusals", 0.5, ("refuse",)),
            ("half", 0.3, HALF_FAULTS),
        ):
            if _of_its_own(name, seed).random() < chance:
                drawn["faults"] += more
                drawn |= {"refusals": 0.7} if name == "refusals" else {}
        drawn |= _members(seed, size, drawn["wipes"])
        drawn["aimed"] = _of_its_own("aimed", seed).random() < 0.5
        return Options(seed, **(drawn | fixed))

    def describe(self) -> dict[str, Any]:
        """All options as JSON values, nested as the classes are."""
        return _plain(self)  # type: ignore[no-any-return]


def _of_its_own(name: str, seed: int) -> random.Random:
    """A generator that leaves what others draw for that seed as it is."""
    return random.Random(f"{name} {seed}")


def _plain(value: Any) -> Any:
    if isinstance(value, (Options, Network, Load, Settings)):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _network(rng: random.Random) -> Network:
    low = rng.choice((50, 100, 500))
    return Network(
        (low, low + rng.choice((100, 1000, 5000))), rng.choice((0.0, 0.001, 0.01)), rng.choice((1, 3, 10)) * SECOND,
        rng.choice((0.0, 0.0, 0.005, 0.05, 0.3)), rng.choice((0.0, 0.0, 0.005, 0.05)), rng.random() < 0.5,
    )


def _overtaking(network: Network, seed: int) -> Network:
    """``network`` with late copies of messages about starts, bases and elections, in most worlds without order."""
    again = _of_its_own("again", seed).choice((0.0, 0.1, 0.3))
    return network if network.ordered else replace(network, again=again)


def _load(rng: random.Random, size: int) -> Load:
    """Draw the load. The more servers, the longer the pauses: every request costs steps on all servers."""
    return Load(
        rng.randint(1, 6), rng.randint(0, 3), rng.choice((50, 150, 400)) * MS * max(3, size) // 3,
        rng.choice((1, 4, 16)), rng.choice((20, 200, 2000)), rng.random() < 0.5, rng.choice((300, 700, 2000)) * MS,
        rng.choice((500, 5000, 8 << 20)),
    )


def _habits(seed: int) -> dict[str, Any]:
    """Draw two keepers in every third world, conditional appends in every third, the size of frames, and rarely large
    appends."""
    frames = _of_its_own("frames", seed)
    return {
        "keepers": _of_its_own("keepers", seed).choice((0, 0, 2)),
        "conditional": _of_its_own("conditional", seed).choice((0.0, 0.0, 0.3)),
        "frame": frames.choice((1, 4, 16)), "large": 0.01 if frames.random() < 0.1 else 0.0,
    }


def _members(seed: int, size: int, wipes: int) -> dict[str, int]:
    """Draw the number of disks to lose and, in every third world, of spares and operators that change members."""
    rng = _of_its_own("members", seed)
    if wipes:
        wipes = rng.choice((wipes, 3, 8))
    if rng.random() < 0.67:
        return {"wipes": wipes}
    wipes = max(wipes, rng.choice((0, 2, 8)))
    return {"wipes": wipes, "stewards": rng.choice((1, 1, 2)), "spares": min(9 - size, rng.choice((0, 1, 2, 4)))}


def _settings(rng: random.Random) -> Settings:
    """Draw the settings: the defaults, or values so small that sessions end, windows slide and names run out."""
    if rng.random() < 0.4:
        return Settings()
    return Settings(
        session_ttl_ms=rng.choice((2000, 5000, 20_000)), window=rng.choice((2, 4, 16, 64)),
        window_total=rng.choice((8, 32, 200)), sessions_max=rng.choice((1, 2, 4, 16)), names_max=rng.choice((1, 3, 10)),
    )


def _parts(seed: int) -> tuple[tuple[str, int], ...]:
    """Draw the most slots that one part of a snapshot holds: so few, in most worlds, that a snapshot has many parts."""
    slots = _of_its_own("parts", seed).choice((0, 1, 1, 12, 40))
    return (("part_slots_max", slots),) if slots else ()


def _limits(rng: random.Random) -> tuple[tuple[str, int], ...]:
    """Draw bounds of the core, by field of `ReplicaConfig`; small ones make it read, save and hold back often."""
    if rng.random() < 0.4:
        return ()
    return (
        ("tail_bytes_max", rng.choice((1000, 10_000, 1 << 20))),
        ("peer_inflight_bytes_max", rng.choice((300, 5000, 1 << 20))),
        ("request_bytes_max", rng.choice((100, 2000, 1 << 20))),
        ("table_save_entries", rng.choice((5, 50, 1000))),
    )
