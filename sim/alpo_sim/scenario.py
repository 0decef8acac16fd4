"""Scenarios: the deeds on a stage, in order, and the outcome to expect. `scenario_text` reads and writes their files.

Laws:

* A line names a message by its kind and fields (`Arrive`), so that lines still fit when earlier ones are left out.
* A server takes an input in a step of its own at once, unless the line says that more follows (`Line.more`): then the
  input waits for that server's next input without ``more``, or for its `Step`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from alpo.core.ready import Input
from alpo.core.requests import Origin
from alpo.core.settings import Settings

from .checks import INVARIANTS
from .stage import Ask, Boot, Clock, Configure, Crash, Join, Link, Move, Persist, PutBack, Serve, Step, Timers, Wipe

#: Exceptions of the core that a replay reports under the name `CRASHED`.
CORE_ERRORS = (AssertionError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
CRASHED = "crashed"
#: The names that may follow `expect broken`.
BREAKABLE = (*INVARIANTS, CRASHED)


class Arrive(NamedTuple):
    """Arrival of the oldest message on its way from ``source`` to ``target`` that is of ``kind`` and has ``fields``.

    ``nth``: 2 for the second oldest such message, and so on; ``copy``: another copy of it stays on its way.
    """

    at_us: int
    source: int
    target: int
    kind: str
    fields: tuple[tuple[str, str], ...] = ()
    nth: int = 1
    copy: bool = False


class Seen(NamedTuple):
    """Delivery recorded in a run, for lenient replays; never written to a file. ``main``, ``more``: the message's
    fields; ``behind``: number of newer messages of ``kind`` that were on their way to ``target`` as well."""

    at_us: int
    source: int
    target: int
    kind: str
    main: tuple[tuple[str, str], ...]
    more: tuple[tuple[str, str], ...]
    behind: int
    copy: bool


class Tick(NamedTuple):
    """Step of the server, with no input but its deadline, which has come."""

    at_us: int
    id: int


#: Deeds of a scenario. `Persist.count` 0 means all writes under way. The origin of an `Ask.request` is a word for who
#: asks, "" for a client with no other request; a replay gives every request an origin of its own.
Deed: TypeAlias = (
    Boot | Crash | Wipe | PutBack | Join | Move | Configure | Arrive | Seen | Persist | Serve | Link | Ask | Step | Tick
    | Clock
)
INPUTS = (Arrive, Seen, Persist, Serve, Link, Ask)


class Line(NamedTuple):
    """Line of a scenario: one deed. ``more``: the input waits for the next one."""

    what: Deed
    more: bool = False


def with_origin(request: Input, origin: Origin) -> Input:
    """``request`` with another origin; unchanged if its kind has none."""
    return request._replace(origin=origin) if hasattr(request, "origin") else request  # type: ignore[call-arg]


def party_of(request: Input) -> str:
    """The word for who asks in a scenario's request; "" if there is none."""
    return str(getattr(request, "origin", ""))


class Times(NamedTuple):
    """The timers of all servers, in microseconds."""

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
    """Expectation of a scenario. ``what`` is a key of `EXPECTS`; fields that it does not need are 0 or ""."""

    what: str
    server: int = 0
    number: int = 0
    invariant: str = ""


#: Kind of expectation -> (its form in a file, its meaning).
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
    """Input of a replay; a file leaves out fields at their defaults.

    ``spares``: servers that do not found the cluster, but wait to be added to it.
    ``founded``: before the first line, at time 0, all servers are up and connected, and their first start is done.
    ``prompt``: writes are on disk at once, and reads from disk are answered at once.
    ``mutation``: the rule that is broken on purpose, a key of `mutations.MUTATIONS`; "" for none.
    ``notes``: the comment at the top of the file.
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
