"""Definition of a mutation: a change of the core's source at run time, a world in which it shows, checks that see it.

Laws:

* The core has no switch for mutations. A change quotes the text that it replaces; if the core does not hold that text
  exactly once, the change raises LookupError instead of changing nothing.
* Objects that were replaced are put back, whatever happens in between.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from alpo._version import build
from alpo_cli.exits import refuse

from ..checks.leadership import ReignChecks
from ..checks.marks import MarkChecks
from ..checks.members import MemberChecks
from ..checks.safety import Safety
from ..checks.sends import SendChecks
from ..checks.session_tables import TableChecks
from ..logs.checks import DirectoryChecks
from ..options import Options
from ..world import Verdict, World, run_world


@contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set ``owner.name`` to ``value`` for a while, in its place in a module's dispatch tables too."""
    before = inspect.getattr_static(owner, name)
    tables = [t for t in vars(owner).values() if isinstance(t, dict)] if isinstance(owner, ModuleType) else []
    places = [(table, key) for table in tables for key, held in table.items() if held is before and key != name]
    for table, key in places:
        table[key] = value
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
        for table, key in places:
            table[key] = before


def require_pure() -> None:
    """Raise `UsageProblem` if the core is compiled: it can then be neither changed nor restored from a copy."""
    refuse(build() == "compiled", "this needs ALPO's pure build (alpo-sim --version says which runs)")


def rewritten(owner: Any, name: str, changes: Sequence[tuple[str, str]]) -> Any:
    """Compile ``owner.name`` (a function, method, property or static method) anew, with pieces of its source replaced.

    Raises LookupError if a piece is not there exactly once.
    """
    require_pure()
    held = inspect.getattr_static(owner, name)
    function: Any = held.fget if isinstance(held, property) else getattr(held, "__func__", held)
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        if source.count(old) != 1:
            raise LookupError(f"{function.__module__}.{function.__qualname__} holds {old!r} {source.count(old)} times")
        source = source.replace(old, new)
    made: dict[str, Any] = {}
    code = compile(source, f"<mutated {function.__qualname__}>", "exec")
    exec(code, sys.modules[function.__module__].__dict__, made)
    return made[name]


def edit(owner: Any, name: str, *changes: tuple[str, str]) -> Patch:
    """A patch that replaces pieces, each (old, new), of the source of ``owner.name``."""
    return lambda: swapped(owner, name, rewritten(owner, name, changes))


def swap(owner: Any, name: str, value: Any) -> Patch:
    """A patch that replaces ``owner.name``."""
    return lambda: swapped(owner, name, value)


Patch = Callable[[], Any]  # makes a context manager in which the change is in force


def _silent(*args: object) -> None:
    """Do nothing, in the place of a check."""


@contextmanager
def _both(*patches: Patch) -> Iterator[None]:
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch())
        yield


#: Invariant -> the patch that leaves its check out, so that a mutation's harm itself has to show.
BLIND: dict[str, Patch] = {
    "durable before sent": lambda: _both(
        swap(SendChecks, "too_soon", _silent), swap(DirectoryChecks, "told", _silent)
    ),
    "guaranteed on a majority": swap(Safety, "_check_on_majority", _silent),
    "fully replicated": swap(MarkChecks, "_check_fully_replicated", _silent),
    "own term": swap(Safety, "_check_own_term", _silent),
    "equal tables": swap(TableChecks, "compare", _silent),
    "steps down": swap(ReignChecks, "_check_heard", _silent),
    "members": lambda: _both(swap(MemberChecks, "check_step", _silent), swap(MarkChecks, "_too_early", _silent)),
    "nothing acknowledged given up": lambda: _both(
        swap(Safety, "_check_accepted", _silent), swap(Safety, "_gives_up", _silent)
    ),
    "cleaned too early": swap(Safety, "_check_cleaning", _silent),
}


@dataclass(frozen=True)
class Mutation:
    """Rule broken on purpose.

    ``rule``, ``title``, ``harm``: the rule, the behaviour instead, and its consequence. ``world``: seed -> options of a
    world in which the mutation shows; ``makes`` makes the world of the options. ``caught_by``: invariants that may see
    it; ``blind``: checks left out, keys of `BLIND`. ``seeds_max``: worlds after which it counts as not caught.
    """

    name: str
    rule: str
    title: str
    harm: str
    patches: tuple[Patch, ...]
    world: Callable[[int], Options]
    caught_by: tuple[str, ...]
    blind: tuple[str, ...] = ()
    makes: Callable[[Options], World] = World
    seeds_max: int = 100

    def options(self, seed: int) -> Options:
        """The options of the world of ``seed``."""
        return self.world(seed)

    @contextmanager
    def applied(self, *, blind: bool = True) -> Iterator[None]:
        """Context in which the core is mutated. ``blind``: the checks of ``self.blind`` are left out too."""
        with ExitStack() as stack:
            for patch in (*self.patches, *(BLIND[name] for name in self.blind if blind)):
                stack.enter_context(patch())
            yield

    def verdict(self, seed: int, *, mutated: bool = True, blind: bool = True) -> Verdict:
        """Run the world of ``seed``, with the core mutated or (``mutated`` False) unchanged."""
        if not mutated:
            return run_world(self.makes(self.options(seed)))
        with self.applied(blind=blind):
            return run_world(self.makes(self.options(seed)))
