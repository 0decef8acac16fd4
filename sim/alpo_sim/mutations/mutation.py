"""What a mutation is: a change of the core's source made while it runs, the world in which it shows, who sees it.

Laws:

* The core has no switch for any of this. A change names the very text that it replaces; if the core no longer holds
  that text exactly once, it fails loudly instead of mutating nothing.
* What was patched is put back, the same objects, whatever happens in between.
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

from ..checks.claims import Claims
from ..checks.lists import Lists
from ..checks.reigning import Reigning
from ..checks.safety import Safety
from ..checks.tables import Tables
from ..options import Options
from ..verdict import Verdict, run_world
from ..world import World


@contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    """``owner.name`` is ``value`` for a while; a module's dispatch tables too hold it in the place of the original."""
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


def rewritten(owner: Any, name: str, changes: Sequence[tuple[str, str]]) -> Any:
    """``owner.name`` (a function, method, property or static method) with pieces of its source replaced.

    Raises LookupError if a piece is not there exactly once.
    """
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
    """A patch that replaces pieces (old, new) of the source of ``owner.name``."""
    return lambda: swapped(owner, name, rewritten(owner, name, changes))


def swap(owner: Any, name: str, value: Any) -> Patch:
    """A patch that replaces ``owner.name``."""
    return lambda: swapped(owner, name, value)


Patch = Callable[[], Any]  # makes a context manager


def _silent(*args: object) -> None:
    """A check that sees nothing."""


@contextmanager
def _both(*patches: Patch) -> Iterator[None]:
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch())
        yield


#: How a check is left out so that the harm itself has to show.
BLIND: dict[str, Patch] = {
    "durable before sent": swap(Safety, "too_soon", _silent),
    "guaranteed on a majority": swap(Safety, "_check_on_majority", _silent),
    "fully replicated": swap(Claims, "_check_fully_replicated", _silent),
    "own term": swap(Safety, "_check_own_term", _silent),
    "equal tables": swap(Tables, "compare", _silent),
    "steps down": swap(Reigning, "_check_heard", _silent),
    "members": lambda: _both(swap(Lists, "check_step", _silent), swap(Claims, "_too_early", _silent)),
    "nothing acknowledged given up": lambda: _both(
        swap(Safety, "_check_accepted", _silent), swap(Safety, "_gives_up", _silent)
    ),
    "cleaned too early": swap(Safety, "_check_cleaning", _silent),
}


@dataclass(frozen=True)
class Mutation:
    """``caught_by``: the invariants that may see it; ``blind``: checks left out, keys of `BLIND`.

    ``world``: the options of the world of a seed in which it shows; ``makes`` is what is made of them.
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
    #: Worlds after which it counts as not caught.
    seeds_max: int = 100

    def options(self, seed: int) -> Options:
        return self.world(seed)

    @contextmanager
    def applied(self, *, blind: bool = True) -> Iterator[None]:
        """The core is mutated meanwhile. ``blind``: and the checks of ``blind`` are left out."""
        with ExitStack() as stack:
            for patch in (*self.patches, *(BLIND[name] for name in self.blind if blind)):
                stack.enter_context(patch())
            yield

    def verdict(self, seed: int, *, mutated: bool = True, blind: bool = True) -> Verdict:
        """Run the world of ``seed``, mutated or (``mutated`` False) as the core is."""
        if not mutated:
            return run_world(self.makes(self.options(seed)))
        with self.applied(blind=blind):
            return run_world(self.makes(self.options(seed)))
