"""A schedule: what happens on a stage, in which order, and what must come of it. `scenario_text` is its text.

Laws:

* A message is named by what it is (`Arrive`), not by its bytes, so that a schedule survives the loss of earlier lines.
* What arrives at a server, or is asked of it, is taken in a step of its own at once, unless the line says that more
  follows (`Line.more`); then the next line of that server that does not say so, or its `Step`, takes it all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from alpo.core.inputs import Input, Origin
from alpo.core.settings import Settings

from .actions import Ask, Boot, Clock, Configure, Crash, Join, Link, Move, Persist, PutBack, Serve, Step, Wipe
from .checks import INVARIANTS
from .stage import Timers

#: What a core may raise that should not; a replay reports it under `CRASHED`.
CORE_ERRORS = (AssertionError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
CRASHED = "crashed"
#: The names that may follow `expect broken`.
BREAKABLE = (*INVARIANTS, CRASHED)


class Arrive(NamedTuple):
    """The oldest message of ``kind`` on its way from ``source`` to ``target`` whose fields are as named arrives.

    ``nth``: not the oldest of those but the second, third …; ``copy``: another copy of it stays on its way.
    """

    at_us: int
    source: int
    target: int
    kind: str
    fields: tuple[tuple[str, str], ...] = ()
    nth: int = 1
    copy: bool = False


class Seen(NamedTuple):
    """A delivery as it was once, for lenient replays only, never in a file.

    ``behind``: so many newer ones of its kind waited then.
    """

    at_us: int
    source: int
    target: int
    kind: str
    main: tuple[tuple[str, str], ...]
    more: tuple[tuple[str, str], ...]
    behind: int
    copy: bool


class Tick(NamedTuple):
    """The server's deadline has come, and nothing else."""

    at_us: int
    id: int


#: `Persist.count` 0 is all that is under way. The origin of an `Ask.request` is only who asks, "" for nobody who asks
#: anything else; a replay gives every request one of its own.
Deed: TypeAlias = (
    Boot | Crash | Wipe | PutBack | Join | Move | Configure | Arrive | Seen | Persist | Serve | Link | Ask | Step | Tick
    | Clock
)
INPUTS = (Arrive, Seen, Persist, Serve, Link, Ask)


class Line(NamedTuple):
    """One thing that happens; ``more``: what it brings is not taken yet."""

    what: Deed
    more: bool = False


def with_origin(request: Input, origin: Origin) -> Input:
    """The request under another origin, if it is one that has any."""
    return request._replace(origin=origin) if hasattr(request, "origin") else request  # type: ignore[call-arg]


def party_of(request: Input) -> str:
    """Who asks; "" also for requests without an origin."""
    return str(getattr(request, "origin", ""))


class Times(NamedTuple):
    """Timers of all servers, microseconds."""

    election_timeout_us: int = 500_000
    heartbeat_us: int = 100_000
    stagger_us: int = 25_000
    mark_delay_us: int = 1000

    def timers(self) -> Timers:
        return Timers(*(each / 1e6 for each in self))

    @staticmethod
    def of(timers: Timers) -> Times:
        return Times(
            *(
                round(each * 1e6)
                for each in (timers.election_timeout_s, timers.heartbeat_s, timers.stagger_s, timers.mark_delay_s)
            )
        )


class Expect(NamedTuple):
    """What must hold at the end. ``what`` is a key of `EXPECTS`; the others are 0 or "" where they do not apply."""

    what: str
    server: int = 0
    number: int = 0
    invariant: str = ""


#: How each is written, and what it means.
EXPECTS = {
    "ok": ("ok", "every check held"),
    "broken": ("broken INVARIANT", "that check failed, at the last line"),
    "leader": ("leader SERVER term TERM", "the server leads that term"),
    "passive": ("passive SERVER", "the server is up, and neither leads nor stands"),
    "guaranteed": ("guaranteed ID", "so many entries are guaranteed, as some server or other knows"),
    "knows": ("knows SERVER ID", "the server's own guaranteed mark stands there"),
    "last": ("last SERVER ID", "the server's log ends there"),
    "logs equal": ("logs equal", "all servers that are up hold the same log"),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a replay needs. Defaults are what a file need not say.

    ``spares``: so many more servers than found the cluster, which wait to be added to it.
    ``founded``: all servers are up, connected and through their first start before the first line, at time 0.
    ``prompt``: what a server writes is on its disk at once, and what it reads from there it has at once.
    ``mutation``: what is broken on purpose, a key of `mutations.MUTATIONS`; "" for nothing.
    ``notes``: the text at the top of the file, for readers.
    """

    servers: int
    seed: int = 0
    times: Times = field(default_factory=Times)
    settings: Settings = field(default_factory=Settings)
    priorities: tuple[int, ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    auto_init: bool = True
    founded: bool = False
    prompt: bool = False
    mutation: str = ""
    lines: tuple[Line, ...] = ()
    expects: tuple[Expect, ...] = field(default=(Expect("ok"),))
    notes: tuple[str, ...] = ()
    spares: int = 0
