"""Make a cluster of one member from the remains of another: from a backup, or from a server's data directory.

Laws:

* The log continues: one MEMBERS entry, in a term of its own, is appended, and lists this server alone. Every server
  that replays the log ends with that list. From then on the whole log counts as guaranteed.
* Cluster id and incarnation are new, so servers of the old cluster and this one reject each other.
* The change is one transaction or, from a backup, one rename: after a crash either all of it or none is there.
* A file that is not sound throughout is left alone.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from alpo.addresses import parse_dialled
from alpo.core.disk import Boot, StartState
from alpo.core.entries import Entry, Kind, parse_body, seal
from alpo.core.members import INCARNATION_BYTES, Member, MemberList, Role, StartStatus, members_body

from . import schema
from .audit import Verdict, require_sound
from .boot import LOCK_NAME, DirectoryLock, read_boot, require_caught_up
from .connections import as_database, connect_reader, connect_writer, translate
from .events import event_row
from .interface import DamagedStore, StoreError, StoreFull, WrongStore
from .offline import open_source
from .rows import Hard, run_checksum, start_to_json
from .tables import COLUMNS

#: Called with (step, done, total).
OnProgress = Callable[[str, int, int], None]
_COPY_BYTES = 1 << 20
_NEW = schema.DB_NAME + ".new"
#: Files that a killed `restore` may have left.
_LEFTOVERS = {LOCK_NAME, *(_NEW + suffix for suffix in ("", "-journal", "-wal", "-shm"))}


class Founded(NamedTuple):
    """The new cluster and its log; ``address``: that of its one member."""

    cluster: bytes
    server_id: int
    address: str
    first_lsn: int
    last_lsn: int
    bytes: int


class Remains(NamedTuple):
    """State that `Recovery.go_on` would start from. ``address``: this server's in the last member list. ``members``:
    (id, address) of that list. ``unguaranteed``: number of entries beyond the guaranteed mark on disk."""

    boot: Boot
    cluster: bytes
    address: str
    members: list[tuple[int, str]]
    first_lsn: int
    last_lsn: int
    unguaranteed: int


def restore(
    file: Path, directory: Path, server_id: int, address: str, now_ms: int,
    on_progress: OnProgress = lambda what, done, all: None,
) -> Founded:
    """Make ``directory`` the data directory of a new cluster's only member, from a backup.

    Raises `StoreError` and its subclasses: ``directory`` is not empty, ``file`` is no backup or not sound; and
    `alpo.addresses.AddressError` unless others can dial ``address``.
    """
    parse_dialled(address)
    if not file.is_file():
        raise StoreError(f"{file}: there is no such file")
    made_in = schema.make_directory(directory)
    try:
        _require_empty(directory)
        lock = DirectoryLock.take(directory)
    except OSError as error:
        raise StoreError(f"{error.filename or directory}: {error.strerror}") from error
    try:
        _require_empty(directory)
        founded = _restore(file, directory, made_in, server_id, address, now_ms, on_progress)
    except BaseException:
        for name in sorted(_LEFTOVERS):
            (directory / name).unlink(missing_ok=True)
        if made_in:
            directory.rmdir()
        raise
    finally:
        lock.release()
    return founded


def _require_empty(directory: Path) -> None:
    there = sorted({entry.name for entry in directory.iterdir()} - _LEFTOVERS)
    if there:
        raise StoreError(f"{directory} is not empty ({there[0]} is in it); nothing was written")


def _restore(
    file: Path, directory: Path, made_in: Collection[Path], server_id: int, address: str, now_ms: int,
    on_progress: OnProgress,
) -> Founded:
    new = directory / _NEW
    try:
        for name in sorted(_LEFTOVERS - {LOCK_NAME}):
            (directory / name).unlink(missing_ok=True)
        try:
            with closing(connect_reader(file, immutable=True)) as db:
                schema.check_kind(db, file, backup=True)
        except sqlite3.Error as error:
            raise translate(error, file) from error
        _copy(file, new, on_progress)
        with closing(sqlite3.connect(new, isolation_level=None)) as db:
            db.execute("PRAGMA synchronous=FULL")
            schema.migrate(db)
        with open_source(new) as source:
            verdict = require_sound(source, lambda id, end_id: on_progress("checking", id, end_id))
        with closing(sqlite3.connect(new, isolation_level=None)) as db:
            cluster = _found(db, new, server_id, address, now_ms, "restored", {"from": file.name})
            db.execute("PRAGMA journal_mode=WAL")
        schema.sync(new)
        new.replace(directory / schema.DB_NAME)
        schema.settle(directory, made_in)
    except (sqlite3.Error, DamagedStore, WrongStore) as error:
        told = translate(error, new) if isinstance(error, sqlite3.Error) else error
        # the copy's fault is the backup's: name the file that is there to be looked at
        if isinstance(told, DamagedStore | WrongStore):
            told = type(told)(str(told).replace(str(new), str(file)))
        raise told from error
    except OSError as error:
        raise StoreError(f"{error.filename or new}: {error.strerror}") from error
    return _founded(cluster, server_id, address, verdict, directory / schema.DB_NAME)


def _copy(file: Path, new: Path, on_progress: OnProgress) -> None:
    size, done = file.stat().st_size, 0
    free = shutil.disk_usage(new.parent).free
    if free < size + size // 20:
        raise StoreFull(f"{new.parent}: {free} bytes are free, and the backup has {size}")
    with file.open("rb") as source, new.open("wb") as target:
        while chunk := source.read(_COPY_BYTES):
            target.write(chunk)
            done += len(chunk)
            on_progress("copying", done, size)


def _founded(cluster: bytes, server_id: int, address: str, verdict: Verdict, path: Path) -> Founded:
    return Founded(cluster, server_id, address, verdict.first_lsn, verdict.last_lsn, path.stat().st_size)


def _found(
    db: sqlite3.Connection, path: Path, server_id: int, address: str, now_ms: int, event: str, fields: dict[str, Any]
) -> bytes:
    """Append the new member list and write a hard state with a new incarnation, in one transaction. Returns the new
    cluster's id."""
    boot = read_boot(db, path)
    if boot.start.status is not StartStatus.STARTED:
        raise StoreError(f"{path} has never belonged to a cluster: there is nothing to go on from")
    require_caught_up(boot, path)
    incarnation = secrets.token_bytes(INCARNATION_BYTES)
    members = MemberList.of([Member(server_id, address, 0, incarnation, Role.VOTER)])
    term, cluster = max(boot.term, boot.last_term) + 1, members.digest()
    entry = seal(
        boot.last_id + 1, term, Kind.MEMBERS, max(boot.last_time_ms, now_ms), boot.next_lsn, members_body(members)
    )
    start = StartState(
        StartStatus.STARTED, (), boot.start.configured_digest, cluster, members.to_plain(), boot.start.settings
    )
    hard = Hard(server_id, incarnation, term, 0, entry.id, entry.id, cluster, start_to_json(start))
    fields = {"term": term, "last_id": boot.last_id, "old_cluster": boot.start.cluster, **fields}
    with as_database(db).atomic() as tables:
        tables.table("log").insert(entry._asdict())
        tables.table("runs").insert({"first_id": entry.id, "term": term, "checksum": run_checksum(term, entry.id)})
        schema.insert_hard(db, hard)
        tables.table("event_log").insert(event_row(now_ms, event, fields)._asdict())
        db.execute(f"PRAGMA application_id={schema.APPLICATION_ID}")
    return cluster


class Recovery:
    """A stopped server's directory, checked and locked, ready to become a new cluster's only member; see `recovery`."""

    def __init__(self, directory: Path, verdict: Verdict, remains: Remains) -> None:
        self.remains = remains
        self._directory = directory
        self._path = directory / schema.DB_NAME
        self._verdict = verdict

    def go_on(self, now_ms: int, name: str) -> Founded:
        """Make the change. The old hard state is kept beside the data file, in file ``name``. Raises `StoreError`."""
        boot = self.remains.boot
        try:
            self._keep(self._directory / name)
            with closing(connect_writer(self._path)) as db:
                schema.migrate(db)
                cluster = _found(db, self._path, boot.me.id, self.remains.address, now_ms, "recovered", {"kept": name})
        except sqlite3.Error as error:
            raise translate(error, self._path) from error
        except OSError as error:
            raise StoreError(f"{error.filename or self._directory}: {error.strerror}") from error
        return _founded(cluster, boot.me.id, self.remains.address, self._verdict, self._path)

    def _keep(self, file: Path) -> None:
        """Save the old hard state as JSON, for later investigation."""
        boot = self.remains.boot
        start = json.loads(start_to_json(boot.start))
        fields = {
            "server": boot.me.id, "incarnation": boot.me.incarnation.hex(), "term": boot.term, "vote": boot.vote,
            "guaranteed_id": boot.guaranteed_id, "fully_replicated_id": boot.fully_replicated_id,
            "last_id": boot.last_id, "last_term": boot.last_term, "last_lsn": boot.next_lsn - 1, "start": start,
            "members": boot.members, "last_members": self.remains.members,
        }
        with file.open("x") as target:
            json.dump(fields, target, indent=1)
            target.write("\n")
            target.flush()
            os.fsync(target.fileno())
        schema.sync(self._directory)


@contextmanager
def recovery(
    directory: Path, on_progress: OnProgress = lambda what, done, all: None
) -> Iterator[Recovery]:
    """Lock a stopped server's directory and check it whole; nothing is changed before `Recovery.go_on`.

    Raises `DirectoryInUse` if the server runs, `StoreError` and its subclasses if the store is not sound.
    """
    path = directory / schema.DB_NAME
    if not path.is_file():
        raise StoreError(f"{directory}: there is no data file")
    lock = DirectoryLock.take(directory)
    try:
        schema.settle(directory)
        with open_source(path) as source:
            if source.is_backup:
                raise StoreError(f"{path} is a backup: `alpo restore` makes a data directory of it")
            verdict = require_sound(source, lambda id, end_id: on_progress("checking", id, end_id))
            with source.snapshot() as db:
                remains = _remains(db, path, verdict)
        yield Recovery(directory, verdict, remains)
    finally:
        lock.release()


def _remains(db: sqlite3.Connection, path: Path, verdict: Verdict) -> Remains:
    boot = read_boot(db, path)
    if boot.start.status is not StartStatus.STARTED:
        raise StoreError(f"{path} has never belonged to a cluster: there is nothing to go on from")
    require_caught_up(boot, path)
    row = db.execute(
        f"SELECT {COLUMNS} FROM log WHERE kind = ? ORDER BY id DESC LIMIT 1", (int(Kind.MEMBERS),)
    ).fetchone()
    plain = parse_body(Entry(*row))["members"] if row is not None else boot.members or boot.start.first_list
    members = MemberList.from_plain(plain)
    mine = members.get(boot.me.id)
    return Remains(
        boot, boot.start.cluster, mine.address if mine is not None else "",
        [(member.id, member.address) for member in members.replicas], verdict.first_lsn, verdict.last_lsn,
        boot.last_id - max(boot.guaranteed_id, boot.applied_id),
    )
