"""The kinds of faults that an audit finds, and the check of one copy of the log by itself: gaps, order, checksums,
exactly once (each client's serials ascend along the log, R21, until its session is dropped and begins again), the
state saved beside it.

In a file everything is checked (`alpo.storage.audit`). A server checks its own checksums, and its digests are compared
with the others'; here its pages are checked for order, gaps and serials.

Copies are then compared: first digests of ranges, then by bisection where they differ, down to single entries. Laws:

* Every entry that at least two copies vouch for is compared, between all that do.
* A difference is reported for the one entry that differs. Entries damaged or missing in one copy are compared between
  the others.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import anyio

from alpo.client.log import connect
from alpo.client.record import PageEntry
from alpo.core.entries import DIGEST_BYTES, Entry, Kind, offset, serials_of, sound_digest
from alpo.errors import AlpoError
from alpo.offline import Fault as FileFault
from alpo.offline import Source, Span, StoreError, open_source, verify
from alpo.storage.tables import by_client, rise

from ..origin import SourceError
from .copies import Copy, DamagedCopy, FileCopy, Look, ServerCopy

#: Two copies have different content for an entry that both call guaranteed.
DIFFERENCE: Final = "difference"
#: Entries or payloads are missing.
GAP: Final = "gap"
#: A client's append is in the log twice.
DUPLICATE: Final = "duplicate"
#: Ids, terms, times or serials decrease.
ORDER: Final = "order"
#: Data does not match its checksum, or cannot be read.
DAMAGE: Final = "damage"
#: The session table, or other state saved beside the log, differs from what the log makes.
STATE: Final = "state"
#: A server could not be asked.
UNREACHABLE: Final = "unreachable"
#: An answer that a client got about an append is wrong.
HISTORY: Final = "history"

#: Most faults of one kind in one copy that are listed one by one.
FAULTS_MAX = 100


class Fault(NamedTuple):
    """Fault in ``copy`` (names, separated by commas) at entries ``first_id`` … ``last_id``, payloads ``first_lsn`` …
    ``last_lsn``; 0 if it concerns none, or unknown ones."""

    first_id: int
    last_id: int
    first_lsn: int
    last_lsn: int
    kind: str
    copy: str
    what: str

    def told(self) -> str:
        """The fault in words, on one line."""
        ids = _span("entry", "entries", self.first_id, self.last_id)
        place = ", ".join(part for part in (ids, _span("LSN", "LSN", self.first_lsn, self.last_lsn)) if part)
        return f"{self.kind.upper()} in {self.copy}{': ' + place if place else ''}: {self.what}"


def _span(one: str, several: str, first: int, last: int) -> str:
    if not first:
        return ""
    return f"{one} {first}" if first == last else f"{several} {first} to {last}"


_SESSION: Final = int(Kind.SESSION)


class Serials:
    """The last serial of each client."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def take(self, client: str, serial: int, number: int = 1) -> int:
        """Take the next ``number`` appends of ``client``, of which ``serial`` is the first. Returns 0 if that ascends,
        else the last serial."""
        last = self._last.get(client, 0)
        self._last[client] = max(last, serial + number - 1)
        return 0 if serial > last else last

    def take_all(self, clients: Sequence[str], serials: Sequence[int]) -> bool:
        """Take many single appends if all their serials ascend; otherwise change nothing and return False: use `take`
        for each."""
        groups = by_client(clients, serials)
        if not all(rise(of_one, self._last.get(client, 0)) for client, of_one in groups.items()):
            return False
        self._last |= {client: of_one[-1] for client, of_one in groups.items()}
        return True

    def begin_anew(self, client: str, serial: int = 0) -> None:
        """Note that the session was dropped and opened again; its last serial is now ``serial``."""
        self._last[client] = serial


def begins_anew(kind: int, body: bytes | None) -> bool:
    """True for a SESSION entry after which serials begin at 1."""
    if kind != _SESSION or body is None:
        return False
    try:
        fields = json.loads(body)
    except ValueError:
        return False
    return isinstance(fields, dict) and (fields.get("op") == "drop" or not fields.get("replaces"))


_DATA: Final = int(Kind.DATA)
_PAGE_IDS = 4096
#: The digest of a run (R32), NULL of any other entry.
_RUN = f"CASE WHEN length(digest) > {DIGEST_BYTES} THEN CAST(digest AS BLOB) END"
_HEADS = (
    f"SELECT id, kind, client, serial, lsn, count, {_RUN}, CASE kind WHEN 4 THEN body END FROM log"
    " WHERE id BETWEEN ? AND ? ORDER BY id"
)
#: Entries of a client before another, the latest first, that may hold any serial from one to another.
_EARLIER = (
    f"SELECT id, lsn, serial, count, {_RUN} FROM log WHERE client = ? AND serial + count > ? AND serial <= ?"
    " AND kind = 1 AND id < ? ORDER BY id DESC"
)
#: Beginnings of `alpo.storage.audit`'s texts -> kind of fault.
_KINDS = {"missing": GAP, "its LSN is": GAP, "its term": ORDER, "it is older": ORDER, "a run of term": ORDER}
_REPEATS = "repeats serial"


@dataclass(frozen=True)
class CheckTask:
    """Task to check one copy."""

    copy: Copy


def check_copy(task: CheckTask) -> list[Fault]:
    """All faults of the copy. Raises `SourceError`."""
    if isinstance(task.copy, FileCopy):
        return _check_file(task.copy)
    assert isinstance(task.copy, ServerCopy)
    return _check_server(task.copy)


def _check_file(copy: FileCopy) -> list[Fault]:
    try:
        with open_source(Path(copy.path)) as source:
            repeats = list(_repeats(copy, source))
            verdict = verify(source)
            found = [_of_file(copy, source, fault) for fault in verdict.faults if _REPEATS not in fault.what]
    except StoreError as error:
        raise SourceError(str(error)) from error
    if verdict.faults_more:
        found.append(Fault(0, 0, 0, 0, DAMAGE, copy.name, f"and {verdict.faults_more} faults more"))
    return found + repeats


def _of_file(copy: FileCopy, source: Source, fault: FileFault) -> Fault:
    first_id, last_id, what = fault
    if not first_id:
        return Fault(0, 0, 0, 0, STATE, copy.name, what)
    kind = next((kind for begin, kind in _KINDS.items() if what.startswith(begin)), DAMAGE)
    before, after = _lsn_after(source, first_id - 1), _lsn_of(source, last_id + 1)
    if what == "missing" and before and after > before:
        return Fault(first_id, last_id, before, after - 1, kind, copy.name, what)
    lsn = _lsn_of(source, first_id) if first_id == last_id and what != "missing" else 0
    return Fault(first_id, last_id, lsn, lsn, kind, copy.name, what)


def _lsn_of(source: Source, id: int) -> int:
    """The LSN of entry ``id``; 0 if it cannot be read."""
    try:
        return source.read(id, id)[0].lsn
    except StoreError:
        return 0


def _lsn_after(source: Source, id: int) -> int:
    try:
        return source.next_lsn_after(id)
    except StoreError:
        return 0


def _repeats(copy: FileCopy, source: Source) -> Iterator[Fault]:
    """Faults of serials that do not ascend. (`verify` cannot follow them after a gap.)"""
    serials = Serials()
    told = 0
    for first_id in range(copy.first_id, copy.end_id + 1, _PAGE_IDS):
        with source.snapshot() as db:
            rows = db.execute(_HEADS, (first_id, min(copy.end_id, first_id + _PAGE_IDS - 1))).fetchall()
        if not rows:
            continue
        _, kinds, clients, numbers, _, _, runs, _ = zip(*rows, strict=True)
        if set(kinds) == {_DATA} and set(runs) == {None} and serials.take_all(clients, numbers):
            continue
        for id, kind, client, serial, lsn, count, run, body in rows:
            if kind != _DATA:
                if begins_anew(kind, body):
                    serials.begin_anew(client)
                continue
            number = _number(count, run)
            last = serials.take(client, serial, number)
            if last and told < FAULTS_MAX:
                told += 1
                with source.snapshot() as db:
                    again, earlier = _earlier_in(db, id, client, serial, serial + number - 1)
                yield _repeat(copy, id, lsn, lsn + count - 1, client, again, last, earlier)


def _number(count: int, run: bytes | None) -> int:
    """The number of serials of a DATA entry; 1 if it is damaged, which is reported elsewhere."""
    return serials_of(run) if run is not None and sound_digest(_DATA, count, run) else 1


def _earlier_in(
    db: sqlite3.Connection, id: int, client: str, serial: int, last: int
) -> tuple[int, tuple[int, int] | None]:
    """The latest entry before ``id`` that holds any of the serials ``serial`` … ``last``: the first of these that it
    holds, and its id with that serial's LSN. (``serial``, None) if there is none."""
    for earlier_id, lsn, begins, count, run in db.execute(_EARLIER, (client, serial, last, id)):
        if begins + _number(count, run) > serial:
            again = max(serial, begins)
            return again, (earlier_id, lsn + offset(run, again - begins))
    return serial, None


def _repeat(
    copy: Copy, id: int, first_lsn: int, last_lsn: int, client: str, serial: int, last: int,
    earlier: tuple[int, int] | None,
) -> Fault:
    if earlier is None:
        what = f"serial {serial} of client {client!r} comes after its serial {last}"
        return Fault(id, id, first_lsn, last_lsn, ORDER, copy.name, what)
    what = f"serial {serial} of client {client!r} is in the log already: entry {earlier[0]}, LSN {earlier[1]}"
    return Fault(id, id, first_lsn, last_lsn, DUPLICATE, copy.name, what)


def _check_server(copy: ServerCopy) -> list[Fault]:
    origin = copy.origin()
    extent = origin.extent()
    if extent.next_lsn == extent.first_lsn:
        return []
    check = _Served(copy)
    for page in origin.pages(extent.first_lsn, extent.next_lsn - 1, 0):
        for entry in page.entries():
            check.take(entry)
            if len(check.faults) >= FAULTS_MAX:
                return check.faults
    return check.faults


class _Served:
    """Check of a server's entries, one after the other."""

    def __init__(self, copy: ServerCopy) -> None:
        self.faults: list[Fault] = []
        self._copy = copy
        self._serials = Serials()
        self._before: PageEntry | None = None

    def take(self, entry: PageEntry) -> None:
        id, term, time_ms, client, serial, lsn, count, body = entry
        before = self._before
        if before is not None:
            next_lsn = before[5] + before[6]
            if lsn > next_lsn:
                self._add(entry, GAP, f"LSN {next_lsn} to {lsn - 1} are missing before it")
            follows = id > before[0] or (id, serial) == (before[0], before[4] + 1)  # appends of a run share its id
            if lsn < next_lsn or not follows or term < before[1] or time_ms < before[2]:
                self._add(entry, ORDER, f"its LSN, term or time is below that of entry {before[0]} before it")
        self._before = entry
        last = self._serials.take(client, serial)
        if not last:
            return
        earlier = _earlier(self._copy, client, serial, lsn)
        if earlier is not None and not client.startswith("~") and earlier[2] != (body if count == 1 else None):
            # A repeated append would have the same payload: so the session was dropped, and the name begins again.
            self._serials.begin_anew(client, serial)
            return
        where = None if earlier is None else earlier[:2]
        self.faults.append(_repeat(self._copy, id, lsn, lsn + count - 1, client, serial, last, where))

    def _add(self, entry: PageEntry, kind: str, what: str) -> None:
        self.faults.append(Fault(entry[0], entry[0], entry[5], entry[5] + entry[6] - 1, kind, self._copy.name, what))


def _earlier(copy: ServerCopy, client: str, serial: int, below_lsn: int) -> tuple[int, int, bytes | None] | None:
    """Id, LSN and payload (None for a batch) of the last append with that serial before ``below_lsn``."""

    async def ask() -> tuple[int, int, bytes | None] | None:
        found: tuple[int, int, bytes | None] | None = None
        async with connect(copy.servers, timeout_s=copy.timeout_s, tls=copy.tls, log=copy.log) as log:
            async with log.read(None, below_lsn - 1, local=True, server=copy.id, client=client) as records:
                async for record in records:
                    if record.serial != serial:
                        continue
                    if found is not None and found[0] == record.id:
                        found = record.id, found[1], None
                    else:
                        found = record.id, record.lsn, record.payload
        return found

    try:
        return anyio.run(ask, backend="trio")
    except AlpoError as error:
        raise SourceError(f"{copy.name}: {error}") from error


#: Entries in one task.
RANGE_ENTRIES = 50_000


@dataclass(frozen=True)
class CompareTask:
    """Task to compare entries ``first_id`` … ``last_id`` of all copies that vouch for any of them."""

    copies: tuple[Copy, ...]
    first_id: int
    last_id: int


class _Open(NamedTuple):
    copy: Copy
    look: Look


def compare(task: CompareTask) -> list[Fault]:
    """Faults: differences, and what a copy cannot give. Raises `SourceError`."""
    with ExitStack() as stack:
        return _Comparison(
            [_Open(copy, stack.enter_context(copy.open())) for copy in task.copies]
        ).run(task.first_id, task.last_id)


class _Comparison:
    def __init__(self, copies: Sequence[_Open]) -> None:
        self._copies = copies
        #: The first id that each copy holds; grows if it cleans meanwhile.
        self._first_ids = [one.copy.first_id for one in copies]
        self._faults: list[Fault] = []
        #: (index of a copy, id) of damaged entries.
        self._damaged: set[tuple[int, int]] = set()

    def run(self, first_id: int, last_id: int) -> list[Fault]:
        """Compare these entries; returns the faults."""
        to_do = [(first_id, last_id)]
        while to_do:
            at, last = to_do.pop()
            active, upto = self._active(at, last)
            spans, upto = self._spans(active, at, upto)
            if upto < last:
                to_do.append((max(upto + 1, at), last))
            if len({span.digest for span in spans.values()}) < 2:
                continue
            if upto == at or len(self._faults) >= FAULTS_MAX:
                self._faults.append(self._difference(spans, at, upto))
            else:
                middle = (at + upto) // 2
                to_do += [(middle + 1, upto), (at, middle)]
        return self._faults

    def _active(self, at: int, last: int) -> tuple[list[int], int]:
        """Indexes of the copies that vouch for entry ``at``, and the last id up to which exactly these do."""
        active = []
        for place, (copy, _) in enumerate(self._copies):
            if self._first_ids[place] > at:
                last = min(last, self._first_ids[place] - 1)
            elif copy.end_id >= at and (place, at) not in self._damaged:
                active.append(place)
                last = min(last, copy.end_id)
        return active, min([last, *(id - 1 for place, id in self._damaged if id > at and place in active)])

    def _spans(self, active: Sequence[int], at: int, upto: int) -> tuple[dict[int, Span], int]:
        """Digests of one range from ``at`` on, by copy, and its last id (``at - 1``: look again)."""
        if any(id == at for _, id in self._damaged):
            upto = at  # one copy has nothing here
        while True:
            spans: dict[int, Span] = {}
            for place in active:
                copy, look = self._copies[place]
                try:
                    span = look.digest(at, upto)
                except DamagedCopy as damage:
                    self._damage(place, copy, damage)
                    return {}, at - 1
                if span.first_id > at:
                    self._first_ids[place] = span.first_id
                    return {}, at - 1
                if span.last_id < at:
                    raise SourceError(
                        f"{copy.name} vouched for entry {at} and does not any more (was it restarted?): run it again"
                    )
                spans[place] = span
                upto = min(upto, span.last_id)
            if all(span.last_id == upto for span in spans.values()):
                return spans, upto

    def _damage(self, place: int, copy: Copy, damage: DamagedCopy) -> None:
        self._damaged.add((place, damage.id))
        if sum(1 for where, _ in self._damaged if where == place) > FAULTS_MAX:
            self._first_ids[place] = copy.end_id + 1  # too much damage to go on
            self._faults.append(
                Fault(damage.id, copy.end_id, 0, 0, DAMAGE, copy.name, "too much of it: not compared from here on")
            )
        elif not isinstance(copy, FileCopy):  # a file's damage is reported by its check
            self._faults.append(Fault(damage.id, damage.id, 0, 0, DAMAGE, copy.name, str(damage)))

    def _difference(self, spans: dict[int, Span], first_id: int, last_id: int) -> Fault:
        """Fault that names the copies in the minority; of two, both."""
        counts = Counter(span.digest for span in spans.values())
        most = max(counts.values())
        winners = [digest for digest, count in counts.items() if count == most]
        names = {place: self._copies[place].copy.name for place in spans}
        odd = [place for place, span in spans.items() if len(winners) > 1 or span.digest != winners[0]]
        others = [names[place] for place in spans if place not in odd]
        lsns = [(span.first_lsn, span.last_lsn) for span in spans.values()]
        verb = "has" if len(others) == 1 else "have"
        what = f"not what {', '.join(others)} {verb}" if others else "they do not agree"
        if first_id == last_id:
            what += self._fields(spans, first_id)
        else:
            what += "; there may be more than one difference"
        first_lsn, last_lsn = min(lsns)[0], max(lsns)[1]
        if last_lsn < first_lsn:  # an entry without payloads
            first_lsn = last_lsn = 0
        return Fault(first_id, last_id, first_lsn, last_lsn, DIFFERENCE, ", ".join(names[place] for place in odd), what)

    def _fields(self, spans: dict[int, Span], id: int) -> str:
        """Text naming the fields that differ, if two of the copies can show the entry."""
        entries = [entry for place in spans if (entry := self._copies[place].look.entry(id)) is not None]
        differing = [name for at, name in enumerate(Entry._fields[:-1]) if len({entry[at] for entry in entries}) > 1]
        if "body" in differing:
            differing.remove("digest")  # which then says nothing new
        return f" ({', '.join(differing)})" if differing else ""
