"""What was told of settings and cursors, and what changed them, held against the one log (R21, R25, rules.md#settings).

Laws:

* What is told was in force, guaranteed, at some moment between the question and the answer.
* Every change is one that somebody asked for, made on what he believed to be there. One refused as overtaken was.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from alpo.core.entries import Entry, Kind, parse_body
from alpo.core.inputs import ChangeSettings, ListCursors, Origin, ShowSettings
from alpo.core.ready import Code, CursorIs, CursorsAre, Refused, SettingsAre
from alpo.core.settings import Settings

from ..broken import Broken

_SETTINGS, _CURSOR, _TRIM = int(Kind.SETTINGS), int(Kind.CURSOR), int(Kind.TRIM)
#: (name, LSN), by name.
Rows: TypeAlias = tuple[tuple[str, int], ...]
#: As in `ChangeSettings`.
Changes: TypeAlias = tuple[tuple[str, int, int], ...]


class _Version(NamedTuple):
    """The settings since entry ``id``."""

    id: int
    values: dict[str, int]


def _makes(changes: Changes, before: dict[str, int], after: dict[str, int]) -> bool:
    """Is this what these changes make of settings that are as their asker believes?"""
    as_believed = all(before.get(name) in (old, wanted) for name, old, wanted in changes)
    return as_believed and after == {**before, **{name: wanted for name, _, wanted in changes}}


class Kept:
    """Fed by `History`, of which it is a part. ``settings``: of the first start."""

    def __init__(self) -> None:
        self.told = 0
        self.changes = 0
        self.cursors: list[tuple[int, Rows]] = [(0, ())]  # since which entry
        self._listing: dict[Origin, int] = {}
        self._versions: list[_Version] = []
        self._wanted: dict[Changes, bool] = {}
        self._asked: dict[Origin, tuple[ShowSettings | ChangeSettings, int]] = {}

    def begin(self, settings: Settings) -> None:
        self._versions = [_Version(0, settings.to_plain())]

    def guaranteed(self, entry: Entry) -> None:
        """The next entry of the one log."""
        if entry.kind in (_CURSOR, _TRIM):
            self._guaranteed_cursor(entry)
        if entry.kind != _SETTINGS:
            return
        before, after = self._versions[-1].values, parse_body(entry)
        if not any(_makes(changes, before, after) for changes in self._wanted):
            raise Broken("settings", f"entry {entry.id} makes {after} of {before}, which nobody asked for")
        self._versions.append(_Version(entry.id, after))
        self.changes += 1

    def _guaranteed_cursor(self, entry: Entry) -> None:
        fields, cursors = parse_body(entry), dict(self.cursors[-1][1])
        if entry.kind == _TRIM:
            cursors = {name: lsn for name, lsn in cursors.items() if lsn >= fields["before"]}
        elif fields["op"] == "set":
            cursors[fields["name"]] = fields["lsn"]
        else:
            del cursors[fields["name"]]
        self.cursors.append((entry.id, tuple(sorted(cursors.items()))))

    def cursors_at(self, id: int) -> Rows:
        """As of entry ``id`` of the one log."""
        return next(rows for since_id, rows in reversed(self.cursors) if since_id <= id)

    def asked_cursors(self, request: ListCursors, floor_id: int) -> None:
        self._listing.setdefault(request.origin, floor_id)

    def listed(self, reply: CursorsAre) -> None:
        """Raises `Broken`."""
        floor_id = self._listing[reply.origin]
        first = max(at for at, (id, _) in enumerate(self.cursors) if id <= floor_id)
        if reply.rows not in [rows for _, rows in self.cursors[first:]]:
            raise Broken("cursors", f"{reply.rows} were told; since entry {floor_id} there were {self.cursors[first:]}")

    def moved(self, reply: CursorIs) -> None:
        """It is told as set there, or dropped from there. Raises `Broken`."""
        if not any((reply.name, reply.lsn) in rows for _, rows in self.cursors):
            raise Broken("cursors", f"{reply.name} was told to be at LSN {reply.lsn}, and never was")

    def asked(self, request: ShowSettings | ChangeSettings, floor_id: int) -> None:
        """All that has been answered so far lies at or below ``floor_id``."""
        self._asked.setdefault(request.origin, (request, floor_id))
        if isinstance(request, ChangeSettings):
            self._wanted[request.changes] = True

    def _since(self, floor_id: int) -> list[_Version]:
        """What was in force when all up to there was guaranteed, and since."""
        later = next((at for at, version in enumerate(self._versions) if version.id > floor_id), len(self._versions))
        return self._versions[max(0, later - 1) :]

    def replied(self, reply: SettingsAre) -> int:
        """They leave a server; they tell of the log up to the entry returned. Raises `Broken`."""
        request, floor_id = self._asked[reply.origin]
        since = self._since(floor_id)
        self.told += 1
        known = [version for version in since if version.values == reply.values]
        if not known:
            raise Broken("settings", f"{reply.values} were told; since entry {floor_id} there were {since}")
        if isinstance(request, ChangeSettings) and any(reply.values[name] != new for name, _, new in request.changes):
            raise Broken("settings", f"{request.changes} was told as done, and is not in {reply.values}")
        return known[0].id

    def refused(self, reply: Refused) -> None:
        """A refusal leaves a server. Raises `Broken`."""
        if reply.code is not Code.CHANGED or reply.origin not in self._asked:
            return
        request, floor_id = self._asked[reply.origin]
        assert isinstance(request, ChangeSettings)
        if not any(v.values[name] not in (old, wanted) for v in self._since(floor_id)
                   for name, old, wanted in request.changes):
            raise Broken("settings", f"{request.changes} was refused as overtaken, and nothing else was ever there")
