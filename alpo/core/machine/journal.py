"""A client's session, the sessions at the head of the log, and the journal by which an expunge undoes what entries did
to them (R21).

Laws:

* A record undoes exactly what its entry did; records are in the order of their entries.
* Every change is journalled until `JournalledSessions.settle` tells that its entry can no longer be expunged.
* A session's slots (the entries that it remembers) ascend by serial and by entry id; the last slot has the last serial.
* The heaps are derived from the sessions. Their keys are lower bounds, corrected when they come to the front.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from alpo.core.disk import SessionRow
from alpo.core.entries import created_ms, serials_of
from alpo.core.settings import Settings

from .cursors import Versions

#: A remembered entry: (first serial, entry id, first LSN, epoch, digest), as in `SessionRow`.
Slot: TypeAlias = tuple[int, int, int, int, bytes]
#: (epoch, nonce, last serial when opened); (0, b"", 0) of a random client.
Opened: TypeAlias = tuple[int, bytes, int]
#: (last serial, id of the last entry, its time in ms); the last entry may be the SESSION entry.
Last: TypeAlias = tuple[int, int, int]


class Session:
    """One client's session. ``created_ms``: of a random client id, ms since 1970; -1 for a name (or an id that tells no
    time). ``birth``: see `SessionRow`; it never changes, as a name that is opened after a drop is another session.
    ``held``: number of serials that the slots remember."""

    __slots__ = ("birth", "client", "created_ms", "held", "last", "opened", "slots")

    def __init__(self, client: str, opened: Opened, last: Last, slots: list[Slot], birth: int = 0) -> None:
        self.client = client
        self.created_ms = created_ms(client)
        self.opened = opened
        self.last = last
        self.slots = slots
        self.held = sum(serials_of(slot[4]) for slot in slots)
        self.birth = birth

    @property
    def random(self) -> bool:
        return self.client[0] == "~"

    def row(self, opened: Opened, last: Last, slots: list[Slot]) -> SessionRow:
        """The row of this session as it was with these values."""
        return SessionRow(self.client, *opened, *last, slots, self.birth)


# Kinds of journal records. A record: (entry id, kind, session, value before the entry, slots forgotten, oldest first).
APPENDED = 0  # before: Last
FORGOT = 1  # before: None
CREATED = 2  # before: None
ENDED = 3  # before: the horizon
OPENED = 4  # before: (Opened, Last)
Record: TypeAlias = "tuple[int, int, Session, Any, Sequence[Slot]]"


NEVER_MS = 1 << 63
#: Settled journal records are dropped once they span this many ids: cutting off a list's front moves all the rest.
_SETTLE_IDS = 1024


class Saved(NamedTuple):
    """The fields of a `TableSave` that `JournalledSessions.rows_at` gives."""

    changed: list[SessionRow]
    ended: list[str]
    horizon_ms: int


class JournalledSessions:
    """Client sessions with an undo journal, and their saves. `alpo.core.machine.table.SessionState` applies entries.
    ``names`` and ``randoms``: numbers of named and random sessions."""

    def __init__(self, settings: Settings) -> None:
        self._clear(settings)

    def _clear(self, settings: Settings) -> None:
        self.settings = settings
        #: The horizon: newest creation time among the random sessions that ended, ms since 1970; 0 if none did.
        self.horizon_ms = 0
        self.names = 0
        self.randoms = 0
        self._sessions: dict[str, Session] = {}
        #: Number of serials that all sessions remember.
        self._held_total = 0
        #: (entry id, number of serials) of each DATA entry that is not settled, and the sum of those serials.
        self._flying: deque[tuple[int, int]] = deque()
        self._flying_total = 0
        #: The number of serials applied since the last `rows_at`.
        self.unsaved_serials = 0
        self._journal: list[Record] = []
        self._settings = Versions(settings)
        self._settled_id = 0
        #: Clients changed since the last `rows_at`, and those of every `rows_at` not yet `saved`.
        self._touched: dict[str, None] = {}
        self._unsaved: list[tuple[int, dict[str, None]]] = []
        #: A heap of (id, ms, client), one for each random session: lower bounds of its last entry's id and time.
        self._idle: list[tuple[int, int, str]] = []
        self._idle_after_ms = NEVER_MS
        #: A heap of (id, client), at least one for each session with slots: a lower bound of its oldest slot's id; None
        #: until it is needed.
        self._oldest: list[tuple[int, str]] | None = None

    def load(self, rows: Iterable[SessionRow], horizon_ms: int, settings: Settings, applied_id: int) -> None:
        """Begin with a saved table, as of entry ``applied_id``; entries above that are applied next."""
        self._clear(settings)
        self.horizon_ms = horizon_ms
        self._settled_id = applied_id
        for row in rows:
            session = Session(row.client, row[1:4], row[4:7], list(row.slots), row.birth)
            self._put(session)
        self._derive()

    # -- undoing ----------------------------------------------------------------------------------------

    def expunge(self, from_id: int) -> None:
        """Undo every entry with id >= ``from_id``. Raises ValueError if one of them was settled."""
        if from_id <= self._settled_id:
            raise ValueError(f"entry {from_id} is settled: everything up to {self._settled_id} is")
        journal, flying = self._journal, self._flying
        while flying and flying[-1][0] >= from_id:
            self._flying_total -= flying.pop()[1]
        while journal and journal[-1][0] >= from_id:
            _, what, session, before, forgot = journal.pop()
            self._touched[session.client] = None
            if what == APPENDED:
                self._hold(session, -serials_of(session.slots.pop()[4]))
                session.last = before
            elif what == CREATED:
                self._take(session)
            elif what == ENDED:
                self._put(session)
                self.horizon_ms = before
            elif what == OPENED:
                session.opened, session.last = before
            if forgot:
                session.slots[:0] = forgot
                self._hold(session, sum(serials_of(slot[4]) for slot in forgot))
        self._settings.expunge(from_id)
        self.settings = self._settings.head
        self._derive()

    def settle(self, guaranteed_id: int) -> None:
        """Allow the journal to be dropped up to ``guaranteed_id``: neither `expunge` nor `rows_at` may go below any
        more."""
        self._settled_id = max(self._settled_id, guaranteed_id)
        journal, flying = self._journal, self._flying
        while flying and flying[0][0] <= self._settled_id:
            self._flying_total -= flying.popleft()[1]
        if journal and self._settled_id - journal[0][0] >= _SETTLE_IDS:
            del journal[: bisect_left(journal, (self._settled_id + 1,))]
        if self._settled_id >= self._settings.unsettled_id:
            self._settings.settle(self._settled_id)

    def _flying_above(self, guaranteed_id: int) -> int:
        """The number of serials in entries above ``guaranteed_id`` that are not settled."""
        settled = 0
        for id, number in self._flying:
            if id > guaranteed_id:
                break
            settled += number
        return self._flying_total - settled

    def _put(self, session: Session) -> None:
        self._sessions[session.client] = session
        self._held_total += session.held
        self._count_session(session, 1)

    def _take(self, session: Session) -> None:
        del self._sessions[session.client]
        self._held_total -= session.held
        self._count_session(session, -1)

    def _hold(self, session: Session, more: int) -> None:
        """Count ``more`` serials as remembered."""
        session.held += more
        self._held_total += more

    def _count_session(self, session: Session, more: int) -> None:
        if session.random:
            self.randoms += more
        else:
            self.names += more

    def _derive(self) -> None:
        """Rebuild the heaps."""
        self._idle = [(s.last[1], s.last[2], s.client) for s in self._sessions.values() if s.random]
        heapq.heapify(self._idle)
        self._idle_after_ms = self._idle[0][1] + self.settings.session_ttl_ms if self._idle else NEVER_MS
        self._oldest = None

    # -- saving and showing -----------------------------------------------------------------------------

    def rows_at(self, at_id: int) -> Saved:
        """The save of the table as of entry ``at_id``: every session changed or ended since the saves that `saved`
        confirmed. Raises ValueError if ``at_id`` is below the settled id."""
        if at_id < self._settled_id:
            raise ValueError(f"the table cannot be had as of {at_id}: everything up to {self._settled_id} is settled")
        self.unsaved_serials = 0
        clients = dict(self._touched)
        for _, unsaved in self._unsaved:
            clients |= unsaved
        above = self._journal[bisect_left(self._journal, (at_id + 1,)) :]
        there: dict[str, Session | None] = {}
        opened: dict[Session, Opened] = {}
        last: dict[Session, Last] = {}
        forgotten: dict[Session, list[Slot]] = {}
        horizon_ms = self.horizon_ms
        for _, what, session, before, forgot in reversed(above):
            if what == APPENDED:
                last[session] = before
            elif what == CREATED:
                there[session.client] = None
            elif what == ENDED:
                there[session.client], horizon_ms = session, before
            elif what == OPENED:
                opened[session], last[session] = before
            if forgot:
                forgotten.setdefault(session, []).extend(reversed(forgot))
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

    def unsaved(self) -> tuple[dict[str, None], list[tuple[int, dict[str, None]]]]:
        """The clients that the next `rows_at` looks at: those changed since the last one, and those of every earlier
        one that is not `saved`."""
        return self._touched, self._unsaved

    def settings_at(self, at_id: int) -> Settings:
        """The settings as of entry ``at_id``, which is not below the settled id."""
        return self._settings.at(at_id)[1]

    def saved(self, at_id: int) -> None:
        """Note that the save as of ``at_id`` is on disk, or will be before any later save."""
        self._unsaved = [unsaved for unsaved in self._unsaved if unsaved[0] > at_id]

    def snapshot_rows(self) -> list[SessionRow]:
        """The rows of all sessions at the head, by client, without slots."""
        return [s.row(s.opened, s.last, []) for _, s in sorted(self._sessions.items())]

    def state(self) -> tuple[Settings, int, list[SessionRow]]:
        """The whole state, for comparisons: settings, horizon, sessions by client."""
        rows = [s.row(s.opened, s.last, list(s.slots)) for _, s in sorted(self._sessions.items())]
        return self.settings, self.horizon_ms, rows

    def same_as(self, other: JournalledSessions) -> bool:
        """True if both have the same `state`."""
        return self.state() == other.state()
