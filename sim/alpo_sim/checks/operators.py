"""Checks of what operators were told of outcomes, settings and cursors against the one log (R21, R25,
rules.md#settings).

Laws:

* An answer was true, and guaranteed, at some moment between the question and the answer.
* Every change was asked for, and made on the values that its asker believed to be in force; a change that was refused
  as overtaken was overtaken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from alpo.core.entries import Entry, Kind, created_ms, parse_body
from alpo.core.ready import Input, Ready
from alpo.core.requests import (
    ChangeSettings,
    Code,
    CursorIs,
    CursorsAre,
    Fate,
    ListCursors,
    Origin,
    Outcome,
    Refused,
    SettingsAre,
    ShowSettings,
    Told,
)
from alpo.core.settings import Settings

from ..host import Host
from ..stage import Watcher
from . import Broken
from .safety import Safety
from .session_tables import ModelTable

_SETTINGS, _CURSOR, _TRIM = int(Kind.SETTINGS), int(Kind.CURSOR), int(Kind.TRIM)
#: Cursors, each (name, LSN), sorted by name.
Rows: TypeAlias = tuple[tuple[str, int], ...]
#: Changes of settings, each (name, value believed, value wanted), as in `ChangeSettings`.
Changes: TypeAlias = tuple[tuple[str, int, int], ...]
#: Interval of ids: cursors are compared whenever a server's guaranteed mark passes a multiple of it.
EVERY_IDS = 8


class _Version(NamedTuple):
    """Settings in force from entry ``id`` on."""

    id: int
    values: dict[str, int]


def _makes(changes: Changes, before: dict[str, int], after: dict[str, int]) -> bool:
    """True if ``before`` is as the asker of the changes believed, and the changes make ``after`` of it."""
    as_believed = all(before.get(name) in (old, wanted) for name, old, wanted in changes)
    return as_believed and after == {**before, **{name: wanted for name, _, wanted in changes}}


class StateHistory:
    """Checks of answers about settings and cursors, and of their changes, against the one log. Fed by `History`."""

    def __init__(self) -> None:
        self.cursors: list[tuple[int, Rows]] = [(0, ())]  # (entry id, cursors from there on)
        self._listing: dict[Origin, int] = {}
        self._versions: list[_Version] = []
        self._wanted: dict[Changes, bool] = {}
        self._asked: dict[Origin, tuple[ShowSettings | ChangeSettings, int]] = {}

    def begin(self, settings: Settings) -> None:
        """Set the settings of the first start."""
        self._versions = [_Version(0, settings.values())]

    def guaranteed(self, entry: Entry) -> None:
        """Take the next entry of the one log. Raises `Broken`."""
        if entry.kind in (_CURSOR, _TRIM):
            self._guaranteed_cursor(entry)
        if entry.kind != _SETTINGS:
            return
        before, after = self._versions[-1].values, Settings.from_plain(parse_body(entry)).values()
        if not any(_makes(changes, before, after) for changes in self._wanted):
            raise Broken("settings", f"entry {entry.id} makes {after} of {before}, which nobody asked for")
        self._versions.append(_Version(entry.id, after))

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
        """The cursors as of entry ``id`` of the one log."""
        return next(rows for since_id, rows in reversed(self.cursors) if since_id <= id)

    def asked_cursors(self, request: ListCursors, floor_id: int) -> None:
        """Note a request for all cursors; ``floor_id`` is that of `asked`."""
        self._listing.setdefault(request.origin, floor_id)

    def listed(self, reply: CursorsAre) -> None:
        """Check a list of cursors that leaves a server. Raises `Broken`."""
        floor_id = self._listing[reply.origin]
        first = max(at for at, (id, _) in enumerate(self.cursors) if id <= floor_id)
        if reply.rows not in [rows for _, rows in self.cursors[first:]]:
            raise Broken("cursors", f"{reply.rows} were told; since entry {floor_id} there were {self.cursors[first:]}")

    def moved(self, reply: CursorIs) -> None:
        """Check a reply that says to which LSN a cursor was set, or where it was when dropped. Raises `Broken`."""
        if not any((reply.name, reply.lsn) in rows for _, rows in self.cursors):
            raise Broken("cursors", f"{reply.name} was told to be at LSN {reply.lsn}, and never was")

    def asked(self, request: ShowSettings | ChangeSettings, floor_id: int) -> None:
        """Note a request about settings. All answers so far rest on entries up to ``floor_id``."""
        self._asked.setdefault(request.origin, (request, floor_id))
        if isinstance(request, ChangeSettings):
            self._wanted[request.changes] = True

    def _since(self, floor_id: int) -> list[_Version]:
        """The settings in force at entry ``floor_id``, and all later ones."""
        later = next((at for at, version in enumerate(self._versions) if version.id > floor_id), len(self._versions))
        return self._versions[max(0, later - 1) :]

    def replied(self, reply: SettingsAre) -> int:
        """Check settings that leave a server. Returns the id of the entry that made them. Raises `Broken`."""
        request, floor_id = self._asked[reply.origin]
        since = self._since(floor_id)
        known = [version for version in since if version.values == reply.values]
        if not known:
            raise Broken("settings", f"{reply.values} were told; since entry {floor_id} there were {since}")
        if isinstance(request, ChangeSettings) and any(reply.values[name] != new for name, _, new in request.changes):
            raise Broken("settings", f"{request.changes} was told as done, and is not in {reply.values}")
        return known[0].id

    def refused(self, reply: Refused) -> None:
        """Check a refusal that leaves a server: a change may be called overtaken only if it was. Raises `Broken`."""
        if reply.code is not Code.CHANGED or reply.origin not in self._asked:
            return
        request, floor_id = self._asked[reply.origin]
        assert isinstance(request, ChangeSettings)
        if not any(v.values[name] not in (old, wanted) for v in self._since(floor_id)
                   for name, old, wanted in request.changes):
            raise Broken("settings", f"{request.changes} was refused as overtaken, and nothing else was ever there")


class OutcomeHistory:
    """Checks of answers about the outcomes of appends against the one log (R21, R25). Fed by `History`.

    "Appended" stays true for ever. "Not appended" was true at the question: no earlier answer says otherwise. "Too old"
    is never said of an append that is remembered. After an operator has dropped a session its appends are unknown.
    """

    def __init__(self) -> None:
        self._asked: dict[Origin, tuple[str, int, int]] = {}  # -> (client, serial, floor)
        self._places: dict[tuple[str, int], list[tuple[int, int]]] = {}  # -> (entry id, LSN)

    def guaranteed(self, client: str, serial: int, id: int, lsn: int) -> None:
        """Take the next append of the one log: entry ``id`` holds it."""
        self._places.setdefault((client, serial), []).append((id, lsn))

    def asked(self, request: Outcome, floor_id: int) -> None:
        """Note a question. All answers so far rest on entries up to ``floor_id``."""
        self._asked[request.origin] = (request.client, request.serial, floor_id)

    def replied(self, reply: Told, table: ModelTable | None, dropped: Mapping[str, bool]) -> int:
        """Check an answer that leaves a server. Returns the id of the entry it names, 0 for none. Raises `Broken`."""
        client, serial, floor_id = self._asked[reply.origin]
        places = self._places.get((client, serial), [])
        what = f"{client} serial {serial} was told {reply.fate.name}"
        if reply.fate is Fate.APPENDED:
            if reply.lsn not in [lsn for _, lsn in places]:
                raise Broken("outcome", f"{what} at LSN {reply.lsn}; guaranteed at {[lsn for _, lsn in places]}")
            return max(id for id, lsn in places if lsn == reply.lsn)
        if reply.fate is Fate.NOT_APPENDED:
            if client not in dropped and any(id <= floor_id for id, _ in places):
                raise Broken("outcome", f"{what}, and it was known to be at entry {places[0][0]}")
        elif table is not None and created_ms(client) >= 0 and table.remembers(client, serial):
            raise Broken("outcome", f"{what}, and is remembered")
        return 0


class CursorChecks(Watcher):
    """Check *cursors*: equal to the log's, at equal ids on all servers; no server cleans what its own cursors need."""

    def __init__(self, state: StateHistory, safety: Safety) -> None:
        self._state, self._safety = state, safety
        self._compared: dict[int, int] = {}  # server -> last entry at which its cursors were compared

    def booted(self, host: Host) -> None:
        self._compare(host)

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        replica = host.replica
        if ready.write is None or replica is None:
            return
        base = ready.write.base
        if base is not None:
            for name, lsn in self._state.cursors_at(max(replica.guaranteed_id, replica.applied_id)):
                if lsn < base.next_lsn:
                    raise Broken("cursors", f"server {host.id} cleans up to LSN {base.next_lsn - 1}; the cursor {name} "
                                 f"needs LSN {lsn}")
        if replica.guaranteed_id // EVERY_IDS != self._compared.get(host.id, 0) // EVERY_IDS:
            self._compare(host)

    def _compare(self, host: Host) -> None:
        replica = host.replica
        if replica is None or replica.guaranteed_id > len(self._safety.guaranteed):
            return
        if replica.applied_id > replica.guaranteed_id:  # cursors came with a base, and are ahead of the log
            return
        id = self._compared[host.id] = replica.guaranteed_id
        if replica.cursors.rows_at(id) != self._state.cursors_at(id):
            raise Broken("cursors", f"server {host.id} has {replica.cursors.rows_at(id)} at entry {id}; the log says "
                         f"{self._state.cursors_at(id)}")
