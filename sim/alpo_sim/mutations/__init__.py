"""Rules broken on purpose, one at a time, to see that the checks notice. `alpo-sim mutants` runs them all.

M1-M16, N1-N10 and S1-S10 were listed before there was any code; P1 and on came with it. Each names its rule in
docs/rules.md: by number, or by the words of the anchor of a section without a number.

`mutation` defines mutations, `worlds` makes the worlds in which they show, `fault_plans` has plans that several of them
share, `hunt` runs them. The other modules list mutations, by subject.
"""

from __future__ import annotations

from .disks import DISKS, SNAPSHOTS
from .elections import ELECTIONS
from .log import LOG, MARKS, RUNS
from .members import MEMBERS
from .mutation import Mutation
from .operators import OPERATORS
from .sessions import SESSIONS
from .waits import HANGS, WAITS


def _order(mutation: Mutation) -> tuple[int, int, str]:
    name = mutation.name
    return "MNSGPWH".index(name[0]), int("".join(filter(str.isdigit, name))), name


_ALL = (*SNAPSHOTS, *DISKS, *ELECTIONS, *LOG, *MARKS, *MEMBERS, *OPERATORS, *SESSIONS, *RUNS, *WAITS, *HANGS)
#: Name -> mutation, in the order M, N, S, G, P, W, H.
MUTATIONS = {m.name: m for m in sorted(_ALL, key=_order)}

__all__ = ["MUTATIONS", "Mutation"]
