"""All checks of one stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpo.core.entries import Entry

from .claims import Claims
from .disturbed import Disturbed
from .held import Held
from .history import History
from .lists import Lists
from .reigning import Reigning
from .safety import Safety
from .tables import Tables

if TYPE_CHECKING:
    from ..stage import Stage


class Checks:
    """Watch ``stage`` from now on. What clients ask and are told is for the director to say, to `history`."""

    def __init__(self, stage: Stage) -> None:
        self.history = History()
        self.history.kept.begin(stage.settings)
        self.tables = Tables(stage.settings)
        self.safety = self.history.safety = Safety(stage, self._guaranteed)
        self.history.table = self.tables.plain
        self.lists = self.safety.lists = Lists(stage, self.safety)
        self.lists.floors = self.history.floors
        stage.watchers += [
            self.safety, self.lists, Claims(stage, self.safety), self.tables, Disturbed(stage), Reigning(stage),
        ]
        stage.watchers.append(Held(self.history.kept, self.safety))

    def _guaranteed(self, entry: Entry) -> None:
        self.lists.taken(entry)
        self.tables.guaranteed(entry)
        self.history.guaranteed(entry)
