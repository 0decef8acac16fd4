"""All checks of one stage. A file of its own: it alone knows every check, and they do not know each other."""

from __future__ import annotations

from collections.abc import Callable

from alpo.core.entries import Entry

from ..stage import Stage
from .history import History
from .leadership import CandidateChecks, DepositionChecks, HungDiskChecks, ReignChecks
from .marks import MarkChecks
from .members import MemberChecks
from .operators import CursorChecks
from .safety import Safety
from .sends import ResendChecks, RunChecks, StartChecks
from .session_tables import TableChecks


class Checks:
    """All checks, which watch ``stage`` from now on. The stage's director tells ``history`` of requests and replies."""

    def __init__(self, stage: Stage) -> None:
        #: Called with each entry of the one log too.
        self.also: list[Callable[[Entry], None]] = []
        self.tables = TableChecks(stage.settings)
        self.safety = Safety(stage, self._guaranteed, lambda: self.lists.latest)
        self.history = History(self.safety, self.tables.model, stage.settings)
        self.lists = MemberChecks(stage, self.safety, self.history.floors)
        # The first of these watchers reports if two checks break in one step.
        stage.watchers += [
            self.safety, self.safety.sends, self.lists, StartChecks(), RunChecks(), MarkChecks(stage, self.safety),
            CandidateChecks(), self.tables, DepositionChecks(stage), HungDiskChecks(stage), ReignChecks(stage),
            CursorChecks(self.history.state, self.safety), ResendChecks(stage),
        ]

    def _guaranteed(self, entry: Entry) -> None:
        self.lists.taken(entry)
        self.tables.guaranteed(entry)
        self.history.guaranteed(entry)
        for call in self.also:
            call(entry)
