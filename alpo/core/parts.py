"""A replica as `dispatch` and `invariants` see it: `Shared`, and every part by name. No part imports this module."""

from __future__ import annotations

from typing import Protocol

from .acceptance import Acceptance
from .cleaning import Cleaning
from .damage import Damage
from .disk_space import Disks
from .election import Election
from .first_start import FirstStart
from .handover import Handover
from .installing import Installing
from .members import Identity
from .reign import Reign
from .shared import Shared


class Watch:
    """Marks as of the step before, for `invariants.check_cheap`."""

    def __init__(self) -> None:
        self.term = 0
        self.guaranteed_id = 0
        self.persisted = 0


class Parts(Shared, Protocol):
    """A replica and its parts. `dispatch` sets the attributes that are no properties."""

    came_s: float
    connected: set[int]
    seen_addresses: dict[Identity, str]
    wrong_incarnations: dict[int, bytes]
    #: True once a member has told us that our incarnation is no member any more (R30).
    retired: bool

    @property
    def election(self) -> Election: ...

    @property
    def acceptance(self) -> Acceptance: ...

    @property
    def cleaning(self) -> Cleaning: ...

    @property
    def disks(self) -> Disks: ...

    @property
    def damage(self) -> Damage: ...

    @property
    def first_start(self) -> FirstStart: ...

    @property
    def installing(self) -> Installing: ...

    @property
    def reign(self) -> Reign | None:
        """The parts that only a leader has; None while this server does not lead."""

    @property
    def handover(self) -> Handover | None:
        """The handover under way; None if there is none."""

    @property
    def watch(self) -> Watch: ...
