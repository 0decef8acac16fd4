"""Check a whole file, a data directory's or a backup's, against all that it promises (`alpo log verify`).

Laws:

* Every fault is reported with the ids it is at, and the check continues after it.
* The log is read once, in bounded memory. The session table is replayed from it and compared with the saved one. After
  a damaged entry a replay could give anything, so it stops there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import add
from typing import Any, NamedTuple

from alpo.core.directory import Listing, changed, listing_of
from alpo.core.disk import NO_BASE, Base, SessionRow
from alpo.core.entries import DIGEST_BYTES, DamagedEntry, Entry, Kind, parse_body
from alpo.core.machine.table import SessionState
from alpo.core.settings import Settings

from . import schema
from .boot import read_applied
from .connections import as_database
from .filescan import check_end, check_wal
from .interface import DamagedStore
from .offline import Found, Source, Summary, as_found, summarise
from .rows import DamagedRow, run_checksum, session_columns, start_from_json
from .tables import Columns, by_client

#: Faults listed one by one; further ones are only counted.
FAULTS_MAX = 1000
_DATA = int(Kind.DATA)
#: Attempts at finding lost commits: it takes two reads, and a running server may write between them.
_LOOKS = 3


class Fault(NamedTuple):
    """A fault at entries ``first_id`` … ``last_id``; both 0 if it is not about an entry."""

    first_id: int
    last_id: int
    what: str


@dataclass(slots=True)
class Verdict:
    """Result of `verify`: the entries checked (``first_id`` … ``last_id``), the LSNs of their payloads, the faults."""

    first_id: int = 1
    last_id: int = 0
    first_lsn: int = 1
    last_lsn: int = 0
    entries: int = 0
    payloads: int = 0
    guaranteed_id: int = 0
    faults: list[Fault] = field(default_factory=list)
    faults_more: int = 0

    def add(self, first_id: int, last_id: int, what: str) -> None:
        """Record a fault, or only count it if `FAULTS_MAX` are listed."""
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(Fault(first_id, last_id, what))
        else:
            self.faults_more += 1


class Saved(NamedTuple):
    """The file's state beside the log, all read in one transaction."""

    runs: list[tuple[int, int]]  # (first id, term)
    applied: dict[str, Any]  # the result of `applied_from_json`; {} before the first save
    sessions: list[SessionRow]


def verify(source: Source, on_progress: Callable[[int, int], None] = lambda id, end_id: None) -> Verdict:
    """Check the whole file. ``on_progress(id, end_id)`` is called after every page. Raises `StoreError` if the file
    cannot be read at all, or its log was rewritten meanwhile."""
    verdict = Verdict()
    with source.snapshot() as db:
        summary = summarise(db, source.path)
        saved = _read_saved(db, verdict)
    verdict.first_id, verdict.last_id = summary.first_id, summary.end_id
    verdict.guaranteed_id = summary.guaranteed_id
    for what in summary.damage:
        verdict.add(0, 0, what)
    _check_ends(source, verdict)
    walk = _Walk(summary, saved, verdict)
    for page in source.walk_pages(summary.first_id, summary.end_id):
        if not (isinstance(page, Columns) and walk.take_all(page)):
            for found in as_found(page):
                walk.take(found)
        on_progress(walk.next_id - 1, summary.end_id)
    walk.finish()
    on_progress(summary.end_id, summary.end_id)
    return verdict


def _check_ends(source: Source, verdict: Verdict) -> None:
    """Check that the WAL and the log end where they should. A running server's write can look like damage once, so the
    check is repeated."""
    for left in reversed(range(_LOOKS)):
        try:
            with source.snapshot() as db:
                if source.live:
                    check_wal(source.path, schema.PAGE_BYTES)
                check_end(db, source.path, schema.PAGE_BYTES, with_wal=source.live)
            return
        except DamagedStore as error:
            if not left:
                verdict.add(0, 0, str(error))


def _read_saved(db: sqlite3.Connection, verdict: Verdict) -> Saved:
    tables = as_database(db)
    runs: list[tuple[int, int]] = []
    applied: dict[str, Any] = {}
    sessions: list[SessionRow] = []
    try:
        for run in tables.table("runs").rows_where(order_by="first_id"):
            if run_checksum(run["term"], run["first_id"]) != run["checksum"]:
                raise DamagedRow(f"the run of term {run['term']} at {run['first_id']} does not match its checksum")
            runs.append((run["first_id"], run["term"]))
        if [term for _, term in runs] != sorted({term for _, term in runs}):
            raise DamagedRow("the runs are out of order")
    except (ValueError, sqlite3.Error) as error:
        verdict.add(0, 0, f"the table of runs: {error}")
    try:
        applied, sessions = read_applied(db)
        shown = tables.table("saved_sessions").rows_where(order_by="client")
        # the columns are for people to read; the state is the truth
        for row, columns in zip(sessions, shown, strict=True):
            if tuple(columns.values()) != session_columns(row):
                raise DamagedRow(f"the columns of {row.client!r} differ from its state")
    except (ValueError, TypeError, sqlite3.Error) as error:
        verdict.add(0, 0, f"the session table: {error}")
    return Saved(runs, applied, sessions)


class _Walk:
    """Compare each entry with the one before it, the table of runs and the replayed session table."""

    def __init__(self, summary: Summary, saved: Saved, verdict: Verdict) -> None:
        base = summary.base or NO_BASE
        self._summary, self._saved, self._verdict, self._base = summary, saved, verdict, base
        self._term, self._time_ms = base.term, base.time_ms
        self._next_lsn: int | None = base.next_lsn if summary.base is not None else None
        self._next_id = summary.first_id
        self._before: Entry | None = None  # the entry just before, if it was sound
        self._runs = dict(saved.runs)
        self._replay: _Replay | None = _Replay(base, summary, saved, verdict)
        verdict.first_lsn, verdict.last_lsn = base.next_lsn, base.next_lsn - 1
        self._run_term = next((term for first, term in reversed(saved.runs) if first <= base.id), None)

    @property
    def next_id(self) -> int:
        """The id after the last entry taken."""
        return self._next_id

    def take_all(self, page: Columns) -> bool:
        """Take a whole page if nothing is wrong in it; otherwise take nothing and return False: use `take` for each
        entry."""
        dues = [self._next_lsn, *map(add, page.lsns, page.counts)]
        if not (
            page.ids[0] == self._next_id
            and dues[:-1] == list(page.lsns)
            and {self._run_term} == set(page.terms) and page.terms[0] >= self._term
            and self._runs.keys().isdisjoint(page.ids)
            and self._time_ms <= page.times_ms[0] and sorted(page.times_ms) == list(page.times_ms)
            and (self._replay is None or self._replay.take_all(page))
        ):
            return False
        verdict = self._verdict
        verdict.entries += len(page.ids)
        verdict.payloads += sum(page.counts)
        self._term, self._time_ms, self._next_lsn = page.terms[-1], page.times_ms[-1], dues[-1]
        self._next_id, verdict.last_lsn = page.ids[-1] + 1, page.lsns[-1] + page.counts[-1] - 1
        self._before = page.last()
        return True

    def take(self, found: Found) -> None:
        verdict = self._verdict
        entry = found.entry
        if found.first_id > self._next_id:  # a server cleaned the entries between
            self._before, self._next_lsn, self._replay = None, None, None
            self._run_term = next((term for id, term in reversed(self._saved.runs) if id <= found.first_id), None)
        self._next_id = found.last_id + 1
        if entry is None or found.damage:
            verdict.add(found.first_id, found.last_id, found.damage)
            self._before, self._next_lsn, self._replay = None, None, None
            if found.first_id == found.last_id and found.first_id in self._runs:
                self._run_term = self._runs[found.first_id]
            elif found.first_id != found.last_id:
                began = [first for first in self._runs if found.first_id <= first <= found.last_id]
                self._run_term = self._runs[max(began)] if began else self._run_term
            return
        verdict.entries += 1
        verdict.payloads += entry.count
        for what in self._wrong(entry):
            verdict.add(entry.id, entry.id, what)
        self._term, self._time_ms = max(self._term, entry.term), max(self._time_ms, entry.time_ms)
        self._next_lsn = entry.lsn + entry.count
        verdict.last_lsn = self._next_lsn - 1
        self._before = entry
        if self._replay is not None:
            self._replay.take(entry)

    def _wrong(self, entry: Entry) -> Iterator[str]:
        if entry.term < self._term:
            yield f"its term {entry.term} is below {self._term} before it"
        if entry.time_ms < self._time_ms:
            yield "it is older than an entry before it"
        if self._next_lsn is not None and entry.lsn != self._next_lsn:
            yield f"its LSN is {entry.lsn} where {self._next_lsn} belongs"
        self._run_term = self._runs.get(entry.id, self._run_term)
        if self._run_term != entry.term:
            yield f"its term is {entry.term}, and {self._run_term or 'none'} by the table of runs"
        elif entry.id in self._runs and self._before is not None and self._before.term == entry.term:
            yield f"a run of term {entry.term} begins here by the table of runs, but began before"

    def finish(self) -> None:
        """Check the marks and the saved state, after the last entry."""
        verdict, last_id = self._verdict, self._summary.end_id
        applied_id = self._saved.applied.get("applied_id", 0)
        if self._summary.hard is not None and self._base.id > min(self._summary.guaranteed_id, applied_id):
            verdict.add(0, 0, f"the log was cleaned up to {self._base.id}, beyond what was guaranteed or applied")
        if applied_id > last_id and not self._saved.applied.get("ahead"):
            verdict.add(0, 0, f"the session table stands at {applied_id}, beyond the end of the log")


class _Replay:
    """Replay of the session table from the log. Starts at the first entry if nothing was cleaned, else from the saved
    table; entries that the saved table remembers from before are looked up one by one."""

    def __init__(self, base: Base, summary: Summary, saved: Saved, verdict: Verdict) -> None:
        self._saved, self._verdict = saved, verdict
        self._applied_id: int = saved.applied.get("applied_id", 0)
        self._whole = base.id == 0
        settings = _first_settings(summary, verdict)
        self._table = SessionState(settings)
        if not self._whole:
            self._load()
        #: id -> (client, (serial, lsn, epoch, digest)) of each append that the saved table remembers above the base.
        self._remembered = {} if self._whole else {
            id: (row.client, (serial, lsn, epoch, digest))
            for row in saved.sessions for serial, id, lsn, epoch, digest in row.slots if id > base.id
        }
        self._members: tuple[int, Any] | None = None
        self._directory = Listing() if self._whole else self._saved_directory()

    def _saved_directory(self) -> Listing:
        try:
            return listing_of(self._saved.applied.get("directory"))
        except ValueError as error:
            self._verdict.add(0, 0, f"the saved directory of logs: {error}")
            return Listing()

    def _load(self) -> None:
        applied = self._saved.applied
        settings = Settings.from_plain(applied.get("settings") or self._table.settings.to_plain())
        self._table.load(self._saved.sessions, applied.get("horizon_ms", 0), settings, self._applied_id)

    def take_all(self, page: Columns) -> bool:
        """Replay a whole page, or change nothing and return False, like `_Walk.take_all`."""
        replayed = self._whole or page.ids[0] > self._applied_id
        if set(page.kinds) != {_DATA} or page.ids[0] <= self._applied_id <= page.ids[-1]:
            return False
        if not replayed:
            return self._remembered.keys().isdisjoint(page.ids)
        if set(map(len, page.digests)) != {DIGEST_BYTES}:
            return False  # `would_append` knows entries of one serial
        epochs = set(zip(page.clients, page.epochs, strict=True))
        if not self._table.would_append(by_client(page.clients, page.serials), epochs, page.times_ms[-1]):
            return False
        self._table.apply_all(page.entries())
        self._table.settle(page.ids[-1])
        return True

    def take(self, entry: Entry) -> None:
        if self._whole or entry.id > self._applied_id:
            wrong = self._table.inconsistency(entry)
            if wrong is not None:
                self._verdict.add(entry.id, entry.id, wrong)
            self._table.apply(entry)
            self._table.settle(entry.id)
            if entry.kind == Kind.LOGS:
                self._take_logs(entry)
        elif entry.id in self._remembered:
            said = entry.client, (entry.serial, entry.lsn, entry.epoch, entry.digest)
            if self._remembered.pop(entry.id) != said:
                self._verdict.add(entry.id, entry.id, "the session table remembers another entry here")
        if entry.kind == Kind.MEMBERS and entry.id <= self._applied_id:
            self._members = entry.id, _members_of(entry)
        if entry.id == self._applied_id:
            self._compare()

    def _take_logs(self, entry: Entry) -> None:
        try:
            self._directory = changed(self._directory, parse_body(entry))
        except ValueError as error:  # also `DamagedEntry`
            self._verdict.add(entry.id, entry.id, f"does not change the directory of logs: {error}")

    def _compare(self) -> None:
        """Compare the replay with the saved table, at the entry that the table was saved at."""
        applied, add = self._saved.applied, self._verdict.add
        if self._whole:
            made, kept = self._table.state(), SessionState(self._table.settings)
            kept.load(
                self._saved.sessions, applied["horizon_ms"], Settings.from_plain(applied["settings"]), self._applied_id
            )
            if made != kept.state():
                names = _differing(made[2], kept.state()[2])
                add(0, 0, f"the saved session table is not what the log makes: {names or 'settings or horizon'}")
            if self._directory != self._saved_directory():
                add(0, 0, "the saved directory of logs is not what the log makes")
        elif self._remembered:
            add(0, 0, f"the session table remembers entry {min(self._remembered)}, which is not in the log")
        if self._members is not None and self._members != (applied["members_id"], applied["members"]):
            add(0, 0, f"the saved member list is not that of entry {self._members[0]}")


def _first_settings(summary: Summary, verdict: Verdict) -> Settings:
    if summary.hard is not None:
        try:
            return Settings.from_plain(start_from_json(summary.hard.start).settings or {})
        except ValueError as error:
            verdict.add(0, 0, f"the start state: {error}")
    return Settings()


def _members_of(entry: Entry) -> Any:
    try:
        return parse_body(entry).get("members")
    except DamagedEntry:
        return None


def _differing(made: list[SessionRow], kept: list[SessionRow]) -> str:
    """Names of the first three clients whose rows differ."""
    left, right = {row.client: row for row in made}, {row.client: row for row in kept}
    names = sorted(client for client in {*left, *right} if left.get(client) != right.get(client))
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


def require_sound(source: Source, on_progress: Callable[[int, int], None] = lambda id, end_id: None) -> Verdict:
    """Check like `verify`. Raises `DamagedStore` with the first few faults if there are any."""
    verdict = verify(source, on_progress)
    if verdict.faults:
        told = "; ".join(tell(fault) for fault in verdict.faults[:3])
        raise DamagedStore(f"{source.path}: {told}" + (" …" if len(verdict.faults) > 3 else ""))
    return verdict


def tell(fault: Fault) -> str:
    """The fault as a sentence with its ids."""
    if not fault.first_id:
        return fault.what
    if fault.first_id == fault.last_id:
        return f"entry {fault.first_id}: {fault.what}"
    return f"entries {fault.first_id} to {fault.last_id}: {fault.what}"
