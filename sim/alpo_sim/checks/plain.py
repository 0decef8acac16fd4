"""The session table in the plainest words: an account of our own, to hold the core's against (R21, R22)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from alpo.core.client_ids import created_ms
from alpo.core.disk import SessionRow
from alpo.core.entries import Entry, Kind, parse_body
from alpo.core.settings import Settings

_DATA, _SESSION, _SETTINGS = int(Kind.DATA), int(Kind.SESSION), int(Kind.SETTINGS)


@dataclass(slots=True)
class Plain:
    """One session; ``last``: serial, entry id and time; ``slots``: what is remembered, as in `SessionRow`."""

    opened: tuple[int, bytes, int] = (0, b"", 0)
    last: tuple[int, int, int] = (0, 0, 0)
    slots: list[tuple[int, int, int, int, bytes]] = field(default_factory=list)
    birth: int = 0


class PlainTable:
    """What the one log makes, entry by entry. ``sessions``: by client."""

    def __init__(self, settings: Settings) -> None:
        self.settings = replace(settings)
        self.horizon_ms = 0
        self.sessions: dict[str, Plain] = {}
        self._slots = 0

    @property
    def names(self) -> int:
        return sum(client[0] != "~" for client in self.sessions)

    def apply(self, entry: Entry) -> None:
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
        while self._slots > self.settings.window_total:
            min((s for s in self.sessions.values() if s.slots), key=lambda s: s.slots[0][1]).slots.pop(0)
            self._slots -= 1

    def _change(self, entry: Entry) -> None:
        self.settings = Settings(**parse_body(entry))
        for session in self.sessions.values():
            while len(session.slots) > self.settings.window:
                del session.slots[0]
                self._slots -= 1
        self._forget()
        while len(randoms := [c for c in self.sessions if c[0] == "~"]) > self.settings.sessions_max:
            self._end(min(randoms, key=lambda client: self.sessions[client].last[1]))

    def _append(self, entry: Entry) -> None:
        session = self.sessions.get(entry.client)
        if session is None:
            randoms = [client for client in self.sessions if client[0] == "~"]
            if len(randoms) >= self.settings.sessions_max:
                self._end(min(randoms, key=lambda client: self.sessions[client].last[1]))
            session = self.sessions[entry.client] = Plain()
        session.slots.append((entry.serial, entry.id, entry.lsn, entry.epoch, entry.digest))
        self._slots += 1
        if len(session.slots) > self.settings.window:
            del session.slots[0]
            self._slots -= 1
        session.last = (entry.serial, entry.id, entry.time_ms)

    def _session(self, entry: Entry) -> None:
        body = parse_body(entry)
        if body["op"] == "drop":
            self._slots -= len(self.sessions.pop(entry.client).slots)
            return
        session = self.sessions.setdefault(entry.client, Plain(birth=entry.id))
        session.opened = (entry.id, bytes.fromhex(body["nonce"]), session.last[0])
        session.last = (session.last[0], entry.id, entry.time_ms)

    def _end(self, client: str) -> None:
        self._slots -= len(self.sessions.pop(client).slots)
        self.horizon_ms = max(self.horizon_ms, created_ms(client))

    def remembers(self, client: str, serial: int) -> bool:
        session = self.sessions.get(client)
        return session is not None and any(slot[0] == serial for slot in session.slots)

    def state(self) -> tuple[Settings, int, list[SessionRow]]:
        """As `SessionTable.state`."""
        rows = [SessionRow(c, *s.opened, *s.last, list(s.slots), s.birth) for c, s in sorted(self.sessions.items())]
        return self.settings, self.horizon_ms, rows
