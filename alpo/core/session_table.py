"""The state of the session table: what the log makes of it, and how an expunge takes that back (R21, R22).

Laws:

* The table is a function of the log alone: equal entries 1 … n make equal tables, whatever was applied and
  expunged on the way. `SessionState.apply_all` is total: an entry that no right leader makes changes nothing
  more than it must, the same everywhere (`SessionState.inconsistency` says why it is wrong).
* It stands at the head of the log. Every change is journalled until `SessionState.settle` says that its entry
  can no longer be expunged.
* An entry first does its own work, then ends what its time makes too old. So nobody's session ends at his own
  entry, and a verdict taken at the head holds for the entry that follows from it.
* A session's slots are ordered by serial and by id at once; if there are any, the last has the last serial.
* The heaps are derived: their keys are lower bounds, set right when they come up. Nothing else may depend on them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from .client_ids import created_ms, valid_name
from .entries import DamagedEntry, Entry, Kind, parse_body
from .members import Settings
from .ready import SessionRow
from .session_journal import (
    APPENDED,
    CREATED,
    ENDED,
    FORGOT,
    OPENED,
    RUN,
    Last,
    Opened,
    Record,
    Run,
    Session,
    Slot,
    expanded,
)

_RANDOM: Opened = (0, b"", 0)
_NEVER_MS = 1 << 63
_DATA, _SESSION, _SETTINGS = int(Kind.DATA), int(Kind.SESSION), int(Kind.SETTINGS)
_ONLY_DATA = {_DATA}
#: Settled journal records are dropped so many ids at a time: a list loses its front at the cost of its rest.
_SETTLE_IDS = 1024
_HEAP_SLACK = 1024

#: From so many entries on it pays to look for runs.
_RUNS_FROM = 8


class Saved(NamedTuple):
    """What `SessionState.rows_at` gives: the parts of a `TableSave`."""

    changed: list[SessionRow]
    ended: list[str]
    horizon_ms: int


class SessionState:
    """The table at the head of the log. `alpo.core.sessions.SessionTable` adds the verdicts."""

    def __init__(self, settings: Settings) -> None:
        self._clear(settings)

    def _clear(self, settings: Settings) -> None:
        self.settings = settings
        #: The newest creation time among the random sessions that ended, ms; 0: none did.
        self.horizon_ms = 0
        self.names = 0
        self.randoms = 0
        self._sessions: dict[str, Session] = {}
        self._slots_total = 0
        self._journal: list[Record] = []
        self._settings_before: list[tuple[int, Settings]] = []
        self._settled_id = 0
        #: Clients changed since the last `rows_at`, and those of every `rows_at` not yet `saved`.
        self._touched: dict[str, None] = {}
        self._unsaved: list[tuple[int, dict[str, None]]] = []
        #: (id, ms, client): one for each random session, a lower bound of its last entry.
        self._idle: list[tuple[int, int, str]] = []
        self._idle_after_ms = _NEVER_MS
        #: (id, client): of each session with slots a lower bound of its oldest; None until it is needed.
        self._oldest: list[tuple[int, str]] | None = None

    def load(self, rows: Iterable[SessionRow], horizon_ms: int, settings: Settings, applied_id: int) -> None:
        """Become the table as of ``applied_id``, as it was saved; entries above it are applied next."""
        self._clear(settings)
        self.horizon_ms = horizon_ms
        self._settled_id = applied_id
        for row in rows:
            self._put(Session(row.client, row[1:4], row[4:7], list(row.slots)))
        self._derive()

    # Applying.

    def apply(self, entry: Entry) -> None:
        """`apply_all` of one."""
        self.apply_all((entry,))

    def apply_all(self, entries: Sequence[Entry]) -> None:
        """Apply entries of any kind, in id order, each exactly once. Never raises, whatever they hold."""
        if len(entries) < _RUNS_FROM:
            self._apply_each(entries)
            return
        ids, _, kinds, times, clients, serials, epochs, lsns, _, digests, _, _ = zip(*entries, strict=True)
        at = 0
        for client, same in groupby(clients):
            end = at + len(list(same))
            run = slice(at, end)
            session = self._sessions.get(client)
            if (
                session is not None
                and times[at] == times[end - 1] <= self._idle_after_ms
                and serials[at] > session.last[0]
                and serials[run] == tuple(range(serials[at], serials[at] + end - at))
                and set(kinds[run]) == _ONLY_DATA
                and self._slots_total + end - at <= self.settings.window_total
                and (self._oldest is None or session.slots)
            ):
                added = list(zip(serials[run], ids[run], lsns[run], epochs[run], digests[run], strict=True))
                self._append_run(session, added, times[at])
            else:
                self._apply_each(entries[run])
            at = end

    def _append_run(self, session: Session, added: list[Slot], time_ms: int) -> None:
        """What `_apply_each` does with consecutive appends of one session, at a fraction of the cost an entry."""
        slots = session.slots
        slots.extend(added)
        over = max(0, len(slots) - self.settings.window)
        forgot = slots[:over]
        del slots[:over]
        last = added[-1]
        self._journal.append((last[1], RUN, session, Run(session.last, time_ms, added, forgot), None))
        session.last = (last[0], last[1], time_ms)
        self._slots_total += len(added) - over
        self._touched[session.client] = None

    def _apply_each(self, entries: Iterable[Entry]) -> None:
        sessions, touched, journal = self._sessions, self._touched, self._journal.append
        window = self.settings.window
        for entry in entries:
            id, _, kind, time_ms, client, serial, epoch, lsn, _, digest, _, _ = entry
            if kind == _DATA:
                session = sessions.get(client)
                if session is None:
                    session = self._begin(id, time_ms, client, serial)
                if session is not None and serial > session.last[0]:
                    slots = session.slots
                    slots.append((serial, id, lsn, epoch, digest))
                    if len(slots) > window:
                        journal((id, APPENDED, session, session.last, slots.pop(0)))
                        session.last = (serial, id, time_ms)
                    else:
                        journal((id, APPENDED, session, session.last, None))
                        session.last = (serial, id, time_ms)
                        self._count_slot(id, session)
                    touched[client] = None
            elif kind == _SESSION:
                self._apply_session(entry)
            elif kind == _SETTINGS:
                self._apply_settings(entry)
                window = self.settings.window
            if time_ms > self._idle_after_ms:
                self._end_idle(id, time_ms)

    def inconsistency(self, entry: Entry) -> str | None:
        """Why no right leader would append ``entry`` here, or None. To be asked before it is applied; not cheap."""
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
        """A new random session, in the place of the longest idle if need be. None: the entry opens nothing."""
        if client[:1] != "~" or serial < 1:
            return None
        while self._idle and len(self._idle) >= self.settings.sessions_max:
            self._end_longest_idle(id)
        session = Session(client, _RANDOM, (0, 0, 0), [])
        self._put(session)
        self._journal.append((id, CREATED, session, None, None))
        heapq.heappush(self._idle, (id, time_ms, client))
        self._idle_after_ms = self._idle[0][1] + self.settings.session_ttl_ms
        return session

    def _count_slot(self, id: int, session: Session) -> None:
        """One slot more: keep to `window_total`."""
        self._slots_total += 1
        if self._oldest is not None and len(session.slots) == 1:
            heapq.heappush(self._oldest, (session.slots[0][1], session.client))
        if self._slots_total > self.settings.window_total:
            self._forget_oldest(id)

    def _apply_session(self, entry: Entry) -> None:
        change = _session_change(entry)
        session = self._sessions.get(entry.client)
        if change is None:
            return
        if isinstance(change, int):
            if session is not None and not session.random and session.opened[0] == change:
                self._end(entry.id, session)
            return
        if session is None:
            session = Session(entry.client, (entry.id, change, 0), (0, entry.id, entry.time_ms), [])
            self._put(session)
            self._journal.append((entry.id, CREATED, session, None, None))
        else:
            serial = session.last[0]
            self._journal.append((entry.id, OPENED, session, (session.opened, session.last), None))
            session.opened, session.last = (entry.id, change, serial), (serial, entry.id, entry.time_ms)
        self._touched[entry.client] = None

    def _apply_settings(self, entry: Entry) -> None:
        try:
            settings = Settings.from_plain(parse_body(entry))
        except (DamagedEntry, ValueError, RecursionError):
            return
        self._settings_before.append((entry.id, self.settings))
        self.settings = settings
        for session in self._sessions.values():
            while len(session.slots) > settings.window:
                self._forget(entry.id, session)
        if self._slots_total > settings.window_total:
            self._forget_oldest(entry.id)
        while len(self._idle) > settings.sessions_max:
            self._end_longest_idle(entry.id)
        self._end_idle(entry.id, entry.time_ms)

    # Ending and forgetting.

    def _longest_idle(self) -> Session | None:
        """The random session of the lowest last id, its key in the heap set right."""
        idle = self._idle
        while idle:
            id, _, client = idle[0]
            session = self._sessions[client]
            if session.last[1] == id:
                return session
            heapq.heapreplace(idle, (session.last[1], session.last[2], client))
        return None

    def _end_idle(self, id: int, time_ms: int) -> None:
        ttl_ms = self.settings.session_ttl_ms
        while (session := self._longest_idle()) is not None and time_ms - session.last[2] > ttl_ms:
            self._end_longest_idle(id)
        self._idle_after_ms = self._idle[0][1] + ttl_ms if self._idle else _NEVER_MS

    def _end_longest_idle(self, id: int) -> None:
        session = self._longest_idle()
        if session is not None:
            heapq.heappop(self._idle)
            self._end(id, session)

    def _end(self, id: int, session: Session) -> None:
        self._journal.append((id, ENDED, session, self.horizon_ms, None))
        self._touched[session.client] = None
        self._take(session)
        if session.created_ms > self.horizon_ms:
            self.horizon_ms = session.created_ms
        if self._oldest is not None and len(self._oldest) > 2 * len(self._sessions) + _HEAP_SLACK:
            self._oldest = None

    def _forget(self, id: int, session: Session) -> None:
        """Forget the oldest slot of ``session``."""
        self._journal.append((id, FORGOT, session, None, session.slots.pop(0)))
        self._touched[session.client] = None
        self._slots_total -= 1

    def _forget_oldest(self, id: int) -> None:
        """Forget slots, the oldest by entry id first, down to `window_total`."""
        if self._oldest is None:
            self._oldest = [(s.slots[0][1], s.client) for s in self._sessions.values() if s.slots]
            heapq.heapify(self._oldest)
        oldest = self._oldest
        while self._slots_total > self.settings.window_total:
            key, client = oldest[0]
            session = self._sessions.get(client)
            if session is not None and session.slots and session.slots[0][1] == key:
                self._forget(id, session)
            if session is not None and session.slots:
                heapq.heapreplace(oldest, (session.slots[0][1], client))
            else:
                heapq.heappop(oldest)

    # Taking back.

    def expunge(self, from_id: int) -> None:
        """Undo every entry with id >= ``from_id``. Raises ValueError if one of them was settled."""
        if from_id <= self._settled_id:
            raise ValueError(f"entry {from_id} is settled: everything up to {self._settled_id} is")
        journal = self._journal = expanded(self._journal)
        while journal and journal[-1][0] >= from_id:
            _, what, session, before, slot = journal.pop()
            self._touched[session.client] = None
            if what == APPENDED:
                session.slots.pop()
                session.last = before
                self._slots_total -= 1
            elif what == CREATED:
                self._take(session)
            elif what == ENDED:
                self._put(session)
                self.horizon_ms = before
            elif what == OPENED:
                session.opened, session.last = before
            if slot is not None:
                session.slots.insert(0, slot)
                self._slots_total += 1
        while self._settings_before and self._settings_before[-1][0] >= from_id:
            self.settings = self._settings_before.pop()[1]
        self._derive()

    def settle(self, guaranteed_id: int) -> None:
        """Entries up to ``guaranteed_id`` will never be expunged, nor asked for by `rows_at` below it."""
        self._settled_id = max(self._settled_id, guaranteed_id)
        journal = self._journal
        if journal and self._settled_id - journal[0][0] >= _SETTLE_IDS:
            del journal[: bisect_left(journal, (self._settled_id + 1,))]
        while self._settings_before and self._settings_before[0][0] <= self._settled_id:
            del self._settings_before[0]

    def _put(self, session: Session) -> None:
        self._sessions[session.client] = session
        self._slots_total += len(session.slots)
        self._count_session(session, 1)

    def _take(self, session: Session) -> None:
        del self._sessions[session.client]
        self._slots_total -= len(session.slots)
        self._count_session(session, -1)

    def _count_session(self, session: Session, more: int) -> None:
        if session.random:
            self.randoms += more
        else:
            self.names += more

    def _derive(self) -> None:
        """Make the heaps anew."""
        self._idle = [(s.last[1], s.last[2], s.client) for s in self._sessions.values() if s.random]
        heapq.heapify(self._idle)
        self._idle_after_ms = self._idle[0][1] + self.settings.session_ttl_ms if self._idle else _NEVER_MS
        self._oldest = None

    # Saving and showing.

    def rows_at(self, at_id: int) -> Saved:
        """The table as of entry ``at_id``: every session that changed since the saves that `saved` confirmed.

        Nothing below the settled id can be asked for: raises ValueError.
        """
        if at_id < self._settled_id:
            raise ValueError(f"the table cannot be had as of {at_id}: everything up to {self._settled_id} is settled")
        clients = dict(self._touched)
        for _, unsaved in self._unsaved:
            clients |= unsaved
        above = expanded(self._journal[bisect_left(self._journal, (at_id + 1,)) :])
        above = above[bisect_left(above, (at_id + 1,)) :]
        there: dict[str, Session | None] = {}
        opened: dict[Session, Opened] = {}
        last: dict[Session, Last] = {}
        forgotten: dict[Session, list[Slot]] = {}
        horizon_ms = self.horizon_ms
        for _, what, session, before, slot in reversed(above):
            if what == APPENDED:
                last[session] = before
            elif what == CREATED:
                there[session.client] = None
            elif what == ENDED:
                there[session.client], horizon_ms = session, before
            elif what == OPENED:
                opened[session], last[session] = before
            if slot is not None:
                forgotten.setdefault(session, []).append(slot)
        changed: list[SessionRow] = []
        ended: list[str] = []
        for client in sorted(clients):
            then = there[client] if client in there else self._sessions.get(client)
            if then is None:
                ended.append(client)
                continue
            slots = [*reversed(forgotten.get(then, ())), *then.slots]
            while slots and slots[-1][1] > at_id:
                slots.pop()
            changed.append(then.row(opened.get(then, then.opened), last.get(then, then.last), slots))
        self._unsaved.append((at_id, self._touched))
        self._touched = {record[2].client: None for record in above}
        return Saved(changed, ended, horizon_ms)

    def settings_at(self, at_id: int) -> Settings:
        """The settings as of entry ``at_id``, which is not below the settled id."""
        return next((before for id, before in self._settings_before if id > at_id), self.settings)

    def saved(self, at_id: int) -> None:
        """What `rows_at` gave up to ``at_id`` is on disk, or will be before anything that is handed out later."""
        self._unsaved = [unsaved for unsaved in self._unsaved if unsaved[0] > at_id]

    def snapshot_rows(self) -> list[SessionRow]:
        """Every session at the head, by client, without slots."""
        return [s.row(s.opened, s.last, []) for _, s in sorted(self._sessions.items())]

    def state(self) -> tuple[Settings, int, list[SessionRow]]:
        """Everything that the log makes, to be compared: settings, horizon, sessions by client."""
        rows = [s.row(s.opened, s.last, list(s.slots)) for _, s in sorted(self._sessions.items())]
        return self.settings, self.horizon_ms, rows

    def same_as(self, other: SessionState) -> bool:
        return self.state() == other.state()


def _session_change(entry: Entry) -> bytes | int | None:
    """What a SESSION entry does: the nonce of an open, the epoch of a drop, or None if it is neither."""
    try:
        fields = parse_body(entry)
        if fields.get("op") == "open" and valid_name(entry.client):
            return bytes.fromhex(fields.get("nonce", ""))
    except (DamagedEntry, ValueError, TypeError, RecursionError):
        return None
    epoch = fields.get("epoch")
    return epoch if fields.get("op") == "drop" and type(epoch) is int else None
