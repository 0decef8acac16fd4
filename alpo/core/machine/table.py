"""The session table as a function of the log (R21, R22).

Laws:

* The table is a function of the log alone: equal entries 1 … n make equal tables, whatever was applied and
  expunged on the way. `SessionState.apply_all` accepts any entry: one that no correct leader makes has the same,
  harmless effect on all servers (`SessionState.inconsistency` says what is wrong with it).
* Every change is journalled, and `alpo.core.machine.journal` can undo it.
* An entry first has its own effect, then ends the sessions that are too old by its time. So no session ends at an
  entry of its own client, and a verdict taken at the head holds for the entry that it lets in.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from operator import lt

from alpo.core.entries import (
    DIGEST_BYTES,
    INT_MAX,
    DamagedEntry,
    Entry,
    Kind,
    created_ms,
    parse_body,
    serials_of,
    valid_name,
)
from alpo.core.settings import Settings

from .journal import APPENDED, CREATED, ENDED, FORGOT, NEVER_MS, OPENED, JournalledSessions, Opened, Session, Slot

_RANDOM: Opened = (0, b"", 0)
_DATA, _SESSION, _SETTINGS = int(Kind.DATA), int(Kind.SESSION), int(Kind.SETTINGS)
_HEAP_SLACK = 1024


class SessionState(JournalledSessions):
    """The session table at the head of the log. `alpo.core.machine.verdicts.SessionTable` adds the verdicts."""

    def apply(self, entry: Entry) -> None:
        """Apply one entry, as `apply_all` does."""
        self.apply_all((entry,))

    def apply_all(self, entries: Iterable[Entry]) -> None:
        """Apply entries of any kind, in id order, each exactly once. Never raises, whatever they hold."""
        sessions, touched, journal, flying = self._sessions, self._touched, self._journal.append, self._flying.append
        window = self.settings.window
        for entry in entries:
            id, _, kind, time_ms, client, serial, epoch, lsn, _, digest, _, _ = entry
            if kind == _DATA:
                session = sessions.get(client)
                if session is None:
                    session = self._begin(id, time_ms, client, serial)
                if session is not None and serial > session.last[0]:
                    number = 1 if len(digest) == DIGEST_BYTES else serials_of(digest)
                    session.slots.append((serial, id, lsn, epoch, digest))
                    session.held += number
                    self._held_total += number
                    self._flying_total += number
                    self.unsaved_serials += number
                    flying((id, number))
                    forgot = self._over(session, window) if session.held > window else ()
                    journal((id, APPENDED, session, session.last, forgot))
                    session.last = (serial + number - 1, id, time_ms)
                    if self._oldest is not None and len(session.slots) == 1:
                        heapq.heappush(self._oldest, (id, client))
                    if self._held_total > self.settings.window_total:
                        self._forget_oldest(id)
                    touched[client] = None
            elif kind == _SESSION:
                self._apply_session(entry)
            elif kind == _SETTINGS:
                self._apply_settings(entry)
                window = self.settings.window
            if time_ms > self._idle_after_ms:
                self._end_idle(id, time_ms)

    def entries_of(self, client: str) -> tuple[int, list[int]]:
        """(id, ids): at and above entry ``id``, the client's DATA entries are exactly those with these ids, ascending.
        Of what is below, the table knows nothing."""
        session = self._sessions.get(client)
        if session is None:  # a random one that has not ended has not begun
            return 0 if created_ms(client) > self.horizon_ms else INT_MAX, []
        if not session.slots:
            return session.last[1] + 1, []
        begins = session.random and session.slots[0][0] == 1
        return 0 if begins else session.slots[0][1], [slot[1] for slot in session.slots]

    def may_end(self, time_ms: int) -> bool:
        """True if an entry of ``time_ms`` may end a session that has been idle for too long."""
        return time_ms > self._idle_after_ms

    def would_append(self, serials: dict[str, list[int]], epochs: set[tuple[str, int]], until_ms: int) -> bool:
        """True if these entries of one serial are surely consistent with the table; if False, ask `inconsistency` for
        each. ``serials``: each client's, in order; ``epochs``: (client, epoch) of each; ``until_ms``: the last entry's
        time."""
        for client, epoch in epochs:
            session = self._sessions.get(client)
            if session is None or epoch != session.opened[0] or serials[client][0] <= session.last[0]:
                return False
            mine = serials[client]
            if not all(map(lt, mine, mine[1:])) or session.last[2] + self.settings.session_ttl_ms < until_ms:
                return False  # the session may have ended meanwhile
        return True

    def inconsistency(self, entry: Entry) -> str | None:
        """The reason why no correct leader would append ``entry`` next, or None if one would. Slow; to be asked before
        the entry is applied."""
        session = self._sessions.get(entry.client)
        if entry.kind == Kind.SESSION:
            change, epoch = _session_change(entry), session.opened[0] if session is not None else None
            sound = isinstance(change, bytes) or (change == epoch and change)
            return None if sound else f"entry {entry.id} changes no session"
        if entry.kind != Kind.DATA:
            return None
        if session is None:
            made_ms = created_ms(entry.client)
            if made_ms < 0:
                return f"entry {entry.id} is of {entry.client!r}, which is not open"
            if made_ms <= self.horizon_ms:
                return f"entry {entry.id} is of {entry.client!r}, which has ended"
            return None if entry.serial > 0 and entry.epoch == 0 else f"entry {entry.id} begins no session"
        if entry.serial <= session.last[0]:
            return f"entry {entry.id} repeats serial {entry.serial} of {entry.client!r}"
        if entry.epoch != session.opened[0]:
            return f"entry {entry.id} is of epoch {entry.epoch} of {entry.client!r}, not of {session.opened[0]}"
        return None

    def _begin(self, id: int, time_ms: int, client: str, serial: int) -> Session | None:
        """Begin the session of a random client with its first entry, ending the longest idle ones beyond
        `sessions_max`. Returns None if the entry begins no session."""
        if client[:1] != "~" or serial < 1:
            return None
        while self._idle and len(self._idle) >= self.settings.sessions_max:
            self._end_longest_idle(id)
        session = Session(client, _RANDOM, (0, 0, 0), [])
        self._put(session)
        self._journal.append((id, CREATED, session, None, ()))
        heapq.heappush(self._idle, (id, time_ms, client))
        self._idle_after_ms = self._idle[0][1] + self.settings.session_ttl_ms
        return session

    def _apply_session(self, entry: Entry) -> None:
        """Apply a SESSION entry: open a name (again), or drop it."""
        change = _session_change(entry)
        session = self._sessions.get(entry.client)
        if change is None:
            return
        if isinstance(change, int):
            if session is not None and not session.random and session.opened[0] == change:
                self._end(entry.id, session)
            return
        if session is None:
            session = Session(entry.client, (entry.id, change, 0), (0, entry.id, entry.time_ms), [], entry.id)
            self._put(session)
            self._journal.append((entry.id, CREATED, session, None, ()))
        else:
            serial = session.last[0]
            self._journal.append((entry.id, OPENED, session, (session.opened, session.last), ()))
            session.opened, session.last = (entry.id, change, serial), (serial, entry.id, entry.time_ms)
        self._touched[entry.client] = None

    def _apply_settings(self, entry: Entry) -> None:
        """Apply a SETTINGS entry, and forget and end what the new settings do not allow."""
        try:
            settings = Settings.from_plain(parse_body(entry))
        except (DamagedEntry, ValueError, RecursionError):
            return
        self._settings.add(entry.id, settings)
        self.settings = settings
        for session in self._sessions.values():
            if forgot := self._over(session, settings.window):
                self._note_forgotten(entry.id, session, forgot)
        if self._held_total > settings.window_total:
            self._forget_oldest(entry.id)
        while len(self._idle) > settings.sessions_max:
            self._end_longest_idle(entry.id)
        self._end_idle(entry.id, entry.time_ms)

    # -- ending and forgetting --------------------------------------------------------------------------

    def _longest_idle(self) -> Session | None:
        """The random session whose last entry is the oldest; None if there is none. Corrects keys in the heap."""
        idle = self._idle
        while idle:
            id, _, client = idle[0]
            session = self._sessions[client]
            if session.last[1] == id:
                return session
            heapq.heapreplace(idle, (session.last[1], session.last[2], client))
        return None

    def _end_idle(self, id: int, time_ms: int) -> None:
        """End the random sessions that are idle for longer than `session_ttl_ms` at ``time_ms``, by entry ``id``."""
        ttl_ms = self.settings.session_ttl_ms
        while (session := self._longest_idle()) is not None and time_ms - session.last[2] > ttl_ms:
            self._end_longest_idle(id)
        self._idle_after_ms = self._idle[0][1] + ttl_ms if self._idle else NEVER_MS

    def _end_longest_idle(self, id: int) -> None:
        session = self._longest_idle()
        if session is not None:
            heapq.heappop(self._idle)
            self._end(id, session)

    def _end(self, id: int, session: Session) -> None:
        self._journal.append((id, ENDED, session, self.horizon_ms, ()))
        self._touched[session.client] = None
        self._take(session)
        if session.created_ms > self.horizon_ms:
            self.horizon_ms = session.created_ms
        if self._oldest is not None and len(self._oldest) > 2 * len(self._sessions) + _HEAP_SLACK:
            self._oldest = None

    def _over(self, session: Session, window: int) -> list[Slot]:
        """Take off the oldest slots without which ``session`` still remembers ``window`` serials (R32)."""
        slots, spare, over = session.slots, session.held - window, 0
        while spare > 0 and over < len(slots) and (number := serials_of(slots[over][4])) <= spare:
            spare -= number
            over += 1
        forgot = slots[:over]
        del slots[:over]
        self._hold(session, window + spare - session.held)
        return forgot

    def _note_forgotten(self, id: int, session: Session, forgot: list[Slot]) -> None:
        """Journal that entry ``id`` made ``session`` forget slots other than by an append of its own."""
        self._journal.append((id, FORGOT, session, None, forgot))
        self._touched[session.client] = None

    def _forget_oldest(self, id: int) -> None:
        """Forget the oldest slots of all sessions, as long as `window_total` serials are left."""
        if self._oldest is None:
            self._oldest = [(s.slots[0][1], s.client) for s in self._sessions.values() if s.slots]
            heapq.heapify(self._oldest)
        oldest = self._oldest
        while self._held_total > self.settings.window_total:
            key, client = oldest[0]
            session = self._sessions.get(client)
            if session is not None and session.slots and session.slots[0][1] == key:
                number = serials_of(session.slots[0][4])
                if self._held_total - number < self.settings.window_total:
                    break
                self._hold(session, -number)
                self._note_forgotten(id, session, [session.slots.pop(0)])
            if session is not None and session.slots:
                heapq.heapreplace(oldest, (session.slots[0][1], client))
            else:
                heapq.heappop(oldest)


def _session_change(entry: Entry) -> bytes | int | None:
    """The change in a SESSION entry: the nonce of an open, the epoch of a drop, or None if it is neither."""
    try:
        fields = parse_body(entry)
        if fields.get("op") == "open" and valid_name(entry.client):
            return bytes.fromhex(fields.get("nonce", ""))
    except (DamagedEntry, ValueError, TypeError, RecursionError):
        return None
    epoch = fields.get("epoch")
    return epoch if fields.get("op") == "drop" and type(epoch) is int else None
