"""Checks that session tables are a function of the log: equal on all servers at equal entries, and to a model's (R21,
R22, R32).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from alpo.core.disk import SessionRow
from alpo.core.entries import Entry, Kind, created_ms, parse_body
from alpo.core.machine.verdicts import SessionTable
from alpo.core.members import MemberList
from alpo.core.ready import Input, Ready
from alpo.core.settings import Settings

from ..host import Host
from ..stage import Watcher
from . import Broken

_DATA, _SESSION, _SETTINGS = int(Kind.DATA), int(Kind.SESSION), int(Kind.SETTINGS)
#: Interval of ids: tables are compared at entries whose id is a multiple of it.
EVERY_IDS = 16


@dataclass(slots=True)
class ModelSession:
    """Session of the model. ``opened``: epoch, nonce, last serial then; ``last``: serial, entry id, time; ``birth``:
    the entry that first opened its name; ``slots``: the entries remembered, as in `SessionRow`; ``held``: how many
    serials they hold."""

    opened: tuple[int, bytes, int] = (0, b"", 0)
    last: tuple[int, int, int] = (0, 0, 0)
    slots: list[tuple[int, int, int, int, bytes]] = field(default_factory=list)
    birth: int = 0
    held: int = 0

    def forget_oldest(self) -> None:
        """Forget the oldest entry remembered."""
        self.held -= len(serials(self.slots.pop(0)))


def serials(slot: tuple[int, int, int, int, bytes]) -> range:
    """The serials of a remembered entry: one, or as many as a run's digest tells (R32)."""
    return range(slot[0], slot[0] + (int.from_bytes(slot[4][16:20], "little") or 1))


class ModelTable:
    """Model of the session table, as simple as possible, with which the core's is compared (R21, R22, R32)."""

    def __init__(self, settings: Settings) -> None:
        self.settings = replace(settings)
        self.horizon_ms = 0
        self.sessions: dict[str, ModelSession] = {}

    @property
    def names(self) -> int:
        """Number of named sessions."""
        return sum(client[0] != "~" for client in self.sessions)

    def apply(self, entry: Entry) -> None:
        """Apply the next entry of the log."""
        if entry.kind == _DATA:
            self._append(entry)
        elif entry.kind == _SESSION:
            self._session(entry)
        elif entry.kind == _SETTINGS:
            self._change(entry)
        self._forget()
        ttl_ms = self.settings.session_ttl_ms
        for client in [c for c, s in self.sessions.items() if c[0] == "~" and entry.time_ms - s.last[2] > ttl_ms]:
            self._end(client)

    def _forget(self) -> None:
        """Forget whole runs, the oldest first: of a client while it is left with its window, of all likewise (R32)."""
        for session in self.sessions.values():
            while session.slots and session.held - len(serials(session.slots[0])) >= self.settings.window:
                session.forget_oldest()
        while (held := sum(session.held for session in self.sessions.values())) > self.settings.window_total:
            oldest = min((s for s in self.sessions.values() if s.slots), key=lambda s: s.slots[0][1])
            if held - len(serials(oldest.slots[0])) < self.settings.window_total:
                return
            oldest.forget_oldest()

    def _change(self, entry: Entry) -> None:
        self.settings = Settings(**parse_body(entry))
        self._forget()
        while len(randoms := [c for c in self.sessions if c[0] == "~"]) > self.settings.sessions_max:
            self._end(min(randoms, key=lambda client: self.sessions[client].last[1]))

    def _append(self, entry: Entry) -> None:
        session = self.sessions.get(entry.client)
        if session is None:
            randoms = [client for client in self.sessions if client[0] == "~"]
            if len(randoms) >= self.settings.sessions_max:
                self._end(min(randoms, key=lambda client: self.sessions[client].last[1]))
            session = self.sessions[entry.client] = ModelSession()
        session.slots.append((entry.serial, entry.id, entry.lsn, entry.epoch, entry.digest))
        session.held += len(serials(session.slots[-1]))
        session.last = (serials(session.slots[-1])[-1], entry.id, entry.time_ms)

    def _session(self, entry: Entry) -> None:
        body = parse_body(entry)
        if body["op"] == "drop":
            del self.sessions[entry.client]
            return
        session = self.sessions.setdefault(entry.client, ModelSession(birth=entry.id))
        session.opened = (entry.id, bytes.fromhex(body["nonce"]), session.last[0])
        session.last = (session.last[0], entry.id, entry.time_ms)

    def _end(self, client: str) -> None:
        del self.sessions[client]
        self.horizon_ms = max(self.horizon_ms, created_ms(client))

    def remembers(self, client: str, serial: int) -> bool:
        """True if the client's window still holds that serial."""
        session = self.sessions.get(client)
        return session is not None and any(serial in serials(slot) for slot in session.slots)

    def state(self) -> tuple[Settings, int, list[SessionRow]]:
        """Settings, horizon and rows, to be compared with `SessionTable.state`."""
        rows = [SessionRow(c, *s.opened, *s.last, list(s.slots), s.birth) for c, s in sorted(self.sessions.items())]
        return self.settings, self.horizon_ms, rows


class TableChecks(Watcher):
    """Check *equal tables*: compares session tables and member lists at every multiple of `EVERY_IDS`, and on request.

    The one log is applied, entry by entry, to two more tables: one of the core's, which finds entries that no correct
    leader appends, and `model`, which finds mistakes that all servers make alike.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._straight = SessionTable(settings or Settings())
        self.model = ModelTable(settings or Settings())
        self._at: dict[tuple[int, int], tuple[Any, int]] = {}  # (last id, its term) -> (table, whose)
        self._lists: dict[tuple[int, int], tuple[MemberList, int]] = {}
        self._checked: dict[int, tuple[int, int]] = {}

    def guaranteed(self, entry: Entry) -> None:
        """Take the next entry of the one log. Raises `Broken`."""
        wrong = self._straight.inconsistency(entry)
        if wrong:
            raise Broken("sessions", wrong)
        self._straight.apply(entry)
        self._straight.settle(entry.id)
        self.model.apply(entry)
        if self.model.names > self.model.settings.names_max:
            raise Broken("sessions", f"entry {entry.id} opens one name more than there may be")
        if entry.id % EVERY_IDS == 0:
            table = self._straight.state()
            if table != self.model.state():
                raise Broken("equal tables", f"the table and a plain account of the log differ at entry {entry.id}")
            self._compare((entry.id, entry.term), table, 0)

    def booted(self, host: Host) -> None:
        self.compare(host)

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        if ready.write is not None and host.replica is not None and host.replica.log.last_id % EVERY_IDS == 0:
            self.compare(host)

    def compare(self, host: Host) -> None:
        """Compare a server's table with the first one that was seen at the same entry. Raises `Broken`."""
        replica = host.replica
        if replica is None or not replica.first_start.started or replica.applied_id > replica.log.last_id:
            return  # no table yet, or one that came with a base and is ahead of the log
        place = (replica.log.last_id, replica.log.last_term)
        if self._checked.get(host.id) == place:
            return
        self._checked[host.id] = place
        self._compare(place, replica.sessions.state(), host.id)
        if not replica.log.last_id:
            return  # *first start* checks first lists
        members = replica.members.latest
        known, other = self._lists.setdefault(place, (members, host.id))
        if known != members:
            raise Broken("equal tables", f"member lists of servers {other} and {host.id} differ at entry {place[0]}")

    def _compare(self, place: tuple[int, int], table: Any, whose: int) -> None:
        known, other = self._at.setdefault(place, (table, whose))
        if known != table:
            names = [f"server {id}" if id else "the log itself" for id in (other, whose)]
            raise Broken("equal tables", f"{' and '.join(names)} differ at entry {place[0]} of term {place[1]}")
