"""Rules broken on purpose, one at a time, to see that the checks notice. `alpo-sim mutants` runs them all.

M1-M16, N1-N10, S1-S4 and S9 were listed before there was any code; P1 and on came with it. Each names its rule in
docs/rules.md: by number, or, of a section without one, by the words of its anchor.

`mutation` says what a mutation is; `worlds`, `directed`, `changing` and `birth` are where they show; `log`,
`elections`, `deferring`, `dropping`, `doubts`, `sessions`, `cleaning`, `keeping`, `leaving`, `members`, `bases`,
`room` and `zombies` list them.
"""

from __future__ import annotations

from .bases import BASES
from .cleaning import CLEANING
from .deferring import DEFERRING
from .doubts import DOUBTS
from .dropping import DROPPING
from .elections import ELECTIONS
from .keeping import KEEPING
from .leaving import LEAVING
from .log import LOG
from .members import MEMBERS
from .mutation import Mutation
from .room import ROOM
from .sessions import SESSIONS
from .zombies import ZOMBIES


def _order(mutation: Mutation) -> tuple[int, int, str]:
    name = mutation.name
    return "MNSP".index(name[0]), int("".join(filter(str.isdigit, name))), name


_ALL = (
    *BASES, *LOG, *ELECTIONS, *SESSIONS, *CLEANING, *DEFERRING, *DOUBTS, *DROPPING, *KEEPING, *LEAVING, *MEMBERS, *ROOM,
    *ZOMBIES,
)
#: By name, P last.
MUTATIONS = {m.name: m for m in sorted(_ALL, key=_order)}

__all__ = ["MUTATIONS", "Mutation"]
