"""Logs to archive and to audit, and replicas that are files."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from sound_log import fill
from store_kit import LogBuilder, SqliteBench, base_of, table, write

from alpo.core.disk import StartState
from alpo.core.entries import Entry, seal
from alpo.core.members import StartStatus
from alpo.spark.columns import ARROW
from alpo.spark.files import FileOrigin
from alpo.spark.jobs.auditing import Audit, Told, Wanted, audit
from alpo.spark.jobs.copies import Member
from alpo.spark.jobs.fan import run_here
from alpo.spark.options import ReadOptions
from alpo.spark.origin import Extent, Origin, Range, SourceError, Stretch, cut
from alpo.spark.reading import origin_of, pinned, rows_of, span_of
from alpo.storage.schema import DB_NAME
from alpo.storage.tables import COLUMNS

CLUSTER = (b"c" * 16).hex()
_MEMBERS = [[1, "h:1", 0, "aa" * 16, 1, []]]
_STARTED = StartState(StartStatus.STARTED, (), b"d" * 16, b"c" * 16, _MEMBERS, {"window": 1024})


class Replica:
    """A data directory of one cluster; all that is appended is guaranteed."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory)
        self._bench = SqliteBench(directory)
        self._builder = LogBuilder()
        self._bench.store.commit([write(start=_STARTED, term=1)])
        self._entries: list[Entry] = []

    def append(self, *batches: Sequence[bytes]) -> None:
        """An entry for each; () is one without payloads."""
        entries = [self._builder.data(payloads=tuple(b)) if b else self._builder.leader() for b in batches]
        id = entries[-1].id
        self._bench.store.commit([write(
            entries, runs=[] if self._entries else None, guaranteed_id=id, fully_replicated_id=id, table=table(id, []),
        )])
        self._entries += entries

    def clean(self, id: int) -> None:
        """Clean the log up to entry ``id``."""
        mark = self._entries[-1].id
        base = base_of(self._entries[id - 1])
        self._bench.store.commit([write(base=base, term=1, guaranteed_id=mark, fully_replicated_id=mark)])

    def close(self) -> None:
        self._bench.store.close()


def some(first: int, last: int) -> list[tuple[bytes, ...]]:
    """Entries with payloads ``first`` … ``last`` by name: one, one, and a batch of three, and so on."""
    batches: list[tuple[bytes, ...]] = []
    while first <= last:
        size = min(3 if len(batches) % 3 == 2 else 1, last - first + 1)
        batches.append(tuple(b"payload %d" % lsn for lsn in range(first, first + size)))
        first += size
    return batches


@dataclass(frozen=True)
class FileServers:
    """Stands for live servers: each replica a file, by id."""

    paths: dict[int, str]
    read_from: str = "any"
    cluster: str = ""
    log: str = ""
    servers: tuple[str, ...] = ("files:1",)
    timeout_s: float = 1.0
    down: frozenset[int] = field(default_factory=frozenset)

    @property
    def where(self) -> str:
        return "the files"

    def extent(self) -> Extent:
        return FileOrigin(min(self.paths.items())[1]).extent()

    def pages(self, first_lsn: int, last_lsn: int, turn: int) -> Iterator[Stretch]:
        if int(self.read_from) in self.down:
            raise SourceError("it does not answer")
        return FileOrigin(self.paths[int(self.read_from)]).pages(first_lsn, last_lsn, turn)

    def members(self) -> list[Member]:
        """The members, as `members_of` reports them."""
        extents = {id: FileOrigin(path).extent() for id, path in self.paths.items()}
        return [
            Member(id, f"h:{id}", id not in self.down, True, e.cluster, 1, e.first_lsn, e.next_lsn - 1)
            for id, e in extents.items()
        ]


def read(*, streaming: bool = False, **given: object) -> list[tuple[Any, ...]]:
    """Read a batch as Spark does: (lsn, id, payload) of every row."""
    options = ReadOptions.of({name: str(value) for name, value in given.items()}, streaming=streaming)
    origin = origin_of(options)
    extent, first, last = span_of(options, origin)
    return rows(pinned(origin, extent.cluster), first, last, options.records_per_partition, options.fail_on_data_loss)


def rows(origin: Origin, first: int, last: int, size: int = 7, fail: bool = True) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for part in cut(first, last, size):
        for batch in rows_of(origin, part, ("lsn", "id", "time", "client", "serial", "payload"), fail):
            found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return found


def sound_copy(directory: Path, guaranteed_id: int = 35, entries: list[Entry] | None = None) -> str:
    """A data directory as a server leaves it, with these entries; or 1 … 41, client "web", serials 1 … 36."""
    bench = SqliteBench(directory)
    fill(bench, entries, guaranteed_id=guaranteed_id, applied_id=min(30, guaranteed_id))
    bench.store.close()
    return str(directory)


def look(*paths: str, history: Sequence[Told] = ()) -> Audit:
    """The audit of these copies."""
    return audit(Wanted((), paths, tuple(history)), run_here)


def told(found: Audit, *kinds: str) -> list[tuple[str, int, int, str]]:
    """(kind, first id, first LSN, copy) of what was found."""
    return [(f.kind, f.first_id, f.first_lsn, f.copy) for f in found.faults if not kinds or f.kind in kinds]


def copy_of(path: str, directory: Path) -> str:
    shutil.copytree(path, directory)
    return str(directory)


def edit(path: str, sql: str, *parameters: Any) -> None:
    """Change a copy's file."""
    with closing(sqlite3.connect(Path(path) / DB_NAME)) as db, db:
        assert db.execute(sql, parameters).rowcount > 0


def reseal(path: str, id: int, **changed: Any) -> Entry:
    """Change fields of an entry and its checksums, so that the entry alone looks sound; return the entry of before."""
    with closing(sqlite3.connect(Path(path) / DB_NAME)) as db, db:
        before = Entry(*db.execute(f"SELECT {COLUMNS} FROM log WHERE id = ?", (id,)).fetchone())
        e = before._replace(**changed)
        after = seal(e.id, e.term, e.kind, e.time_ms, e.lsn, e.body, e.client, e.serial, e.epoch, e.count)
        names = COLUMNS.replace(",", " = ?,") + " = ?"
        db.execute(f"UPDATE log SET {names} WHERE id = ?", (*after, id))
        return before


def fifty(directory: Path) -> Replica:
    """Payloads 1 … 50, every third entry a batch of three, some entries without payloads."""
    replica, found = Replica(directory), some(1, 50)
    replica.append((), *found[:9], (), *found[9:])
    return replica


def batches(log: Replica, first: int, last: int) -> list[pa.RecordBatch]:
    """LSNs ``first`` to ``last``, all columns."""
    return list(rows_of(FileOrigin(log.path), Range(first, last, 0), ARROW.names, True))


def by_definition(found: list[dict[str, Any]]) -> str:
    """The digest as docs/spark.md has it."""
    parts: list[bytes] = []
    for name in ("lsn", "id", "term", "time", "client", "serial", "payload"):
        values = [row[name] for row in found]
        if name == "time":
            values = [round(value.timestamp() * 1_000_000) for value in values]
        if name in ("client", "payload"):
            values = [value.encode() if isinstance(value, str) else value for value in values]
            parts += [b"".join(struct.pack("<i", len(value)) for value in values), b"".join(values)]
        else:
            parts.append(b"".join(struct.pack("<q", value) for value in values))
    digests = [hashlib.blake2b(part, digest_size=16).digest() for part in parts]
    return hashlib.blake2b(b"".join(digests), digest_size=16).hexdigest()
