"""Stores of a server's logs besides the first, on its disk: made, found at a start, moved away (rules.md#logs).

    DATA/logs/NUMBER/                         data file of a log, and log.json, which says whose log it is
    DATA/deleted/NUMBER-NAME-TIME/            those of a deleted log
    DATA/deleted/NUMBER-NAME-TIME-retired/    those of a log that goes on without them

Laws:

* A store is there if its data file is. Its ``log.json`` is on disk before. A folder with that alone was left by a crash
  while the store was being made; the next store of that number takes it up, or it is removed.
* One rename moves a store, with all that lies beside it. Its ``log.json`` holds before what is told of it later.
* A store that is damaged when it is found is set aside in its folder, and counts as none.
* The lock of the data directory covers all folders in it: one process changes them.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from alpo.core.directory import FIRST_NUMBER
from alpo.core.hosting.facts import standing_in
from alpo.core.hosting.words import NO_LIST, FoundStore, Standing, StoreState
from alpo.core.members import INCARNATION_BYTES, Identity, StartStatus

from . import schema
from .boot import LOCK_NAME, set_aside
from .interface import DamagedStore, StoreError
from .sqlite import SqliteStore

#: Folder of deleted logs in the data directory; the file that says whose store lies beside it.
DELETED, MARK = "deleted", "log.json"
_FORMAT = 1
_TIME, _TIME_CHARS = "%Y%m%dT%H%M%SZ", len("20261124T200100Z")
_RETIRED = "-retired"


class Trouble(NamedTuple):
    """A store that cannot be used: its log's number, and why, for an operator."""

    number: int
    why: str


class _Mark(NamedTuple):
    """Content of ``log.json``. ``incarnation``, ``standing``: as of the move, of a store that was moved away."""

    cluster: bytes
    number: int
    name: str
    incarnation: bytes = b""
    standing: Standing = NO_LIST

    def to_json(self) -> str:
        standing = [
            self.standing.members_id, [[who.id, who.incarnation.hex()] for who in self.standing.voters],
            list(self.standing.replicas),
        ]
        return json.dumps({
            "format": _FORMAT, "cluster": self.cluster.hex(), "number": self.number, "name": self.name,
            "incarnation": self.incarnation.hex(), "standing": standing,
        })

    @staticmethod
    def read(folder: Path) -> _Mark:
        """The mark in a folder. Raises `StoreError`."""
        path = folder / MARK
        try:
            plain = json.loads(path.read_text("utf-8"))
            if plain["format"] != _FORMAT:
                raise StoreError(f"{path} has format {plain['format']}: a newer release has written it")
            members_id, voters, replicas = plain["standing"]
            standing = Standing(
                int(members_id), tuple(Identity(int(id), bytes.fromhex(inc)) for id, inc in voters),
                tuple(map(int, replicas)),
            )
            return _Mark(
                bytes.fromhex(plain["cluster"]), int(plain["number"]), str(plain["name"]),
                bytes.fromhex(plain["incarnation"]), standing,
            )
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} does not say whose log this is: {error}") from error

    def write(self, folder: Path) -> None:
        """Put the mark into a folder, durably. Raises OSError."""
        new = folder / f"{MARK}.new"
        new.write_text(self.to_json(), "utf-8")
        schema.sync(new)
        new.replace(folder / MARK)
        schema.sync(folder)


def folder_of(data: Path, number: int) -> Path:
    """The folder of log ``number`` in the data directory; that itself for the first log."""
    return data if number == FIRST_NUMBER else data / schema.LOGS / str(number)


def make_store(data: Path, server_id: int, number: int, name: str, cluster: bytes) -> FoundStore:
    """Make an empty store of a log of ``cluster``, with a fresh incarnation; on disk when this returns. Raises
    `StoreError`; a store that is there already stays as it is."""
    folder = folder_of(data, number)
    try:
        made_in = schema.make_directory(folder)
        if schema.exists(folder):
            raise StoreError(f"{folder} holds a store already")
        _Mark(cluster, number, name).write(folder)
        schema.settle(folder, made_in)
        incarnation = secrets.token_bytes(INCARNATION_BYTES)
        schema.create(folder, server_id, incarnation)
    except OSError as error:
        raise StoreError(f"{error.filename or folder}: {error.strerror}") from error
    return FoundStore(number, incarnation, StoreState.EMPTY, cluster)


def find_stores(data: Path, server_id: int, *, alone: bool = False) -> tuple[list[FoundStore], list[Trouble]]:
    """The stores in a data directory, also those moved away from deleted logs; and those that cannot be used. The lock
    is held. ``alone``: no other server could restore a log, so a damaged store stays where it is."""
    found: list[FoundStore] = []
    troubles: list[Trouble] = []
    for folder in _folders(data / schema.LOGS):
        if not folder.name.isdecimal():
            continue
        try:
            store = find_store(folder, server_id, alone=alone)
        except StoreError as error:
            troubles.append(Trouble(int(folder.name), str(error)))
        else:
            found += [store] if store is not None else []
    return found + [_moved(mark) for folder, mark in _marked(data) if not folder.name.endswith(_RETIRED)], troubles


def _marked(data: Path) -> Iterator[tuple[Path, _Mark]]:
    """Folders of stores that were moved away, and their marks."""
    for folder in _folders(data / DELETED):
        with suppress(StoreError):  # else it was not moved there by a server
            mark = _Mark.read(folder)
            if len(mark.incarnation) == INCARNATION_BYTES:
                yield folder, mark


def _moved(mark: _Mark) -> FoundStore:
    return FoundStore(mark.number, mark.incarnation, StoreState.STOPPED, mark.cluster, mark.standing)


def find_store(folder: Path, server_id: int, *, alone: bool = False) -> FoundStore | None:
    """The store in a folder of a log; None if there is none, and then the folder goes, if nothing but its mark is left
    in it. A damaged store is set aside, unless ``alone``. Raises `StoreError`."""
    try:
        if not folder.exists():
            return None
        if not schema.exists(folder):
            if all(path.name.startswith((MARK, LOCK_NAME, f"{schema.DB_NAME}.new")) for path in folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)
            return None
        mark = _Mark.read(folder)
        if str(mark.number) != folder.name:
            raise StoreError(f"{folder} holds the store of log {mark.number}: it was moved or copied there")
        store = SqliteStore.open(folder, server_id)
        try:
            boot = store.boot()
            standing = standing_in(boot, store.replay(boot.applied_id + 1))
        finally:
            store.close()
    except DamagedStore as damage:
        if alone:
            raise
        aside = set_aside(folder, datetime.now(UTC))
        raise StoreError(f"{damage}; set aside in {aside}") from damage
    except OSError as error:
        raise StoreError(f"{error.filename or folder}: {error.strerror}") from error
    state = StoreState.STARTED if boot.start.status is StartStatus.STARTED else StoreState.EMPTY
    return FoundStore(mark.number, boot.me.incarnation, state, mark.cluster, standing)


def move_store(data: Path, store: FoundStore, name: str, now: datetime, *, retired: bool = False) -> Path:
    """Move a store that nobody has open to where deleted ones are kept, durably; may be repeated after an error.
    Returns its new folder. Raises `StoreError`."""
    folder = folder_of(data, store.number)
    target = data / DELETED / f"{store.number}-{name}-{now:{_TIME}}{_RETIRED * retired}"
    there = [where for where, mark in _marked(data) if mark.incarnation == store.incarnation]
    try:
        made_in = schema.make_directory(target.parent)
        if there:
            target = there[0]
        else:
            _Mark(store.cluster, store.number, name, store.incarnation, store.standing).write(folder)
            folder.rename(target)
        for parent in (folder.parent, target.parent, *made_in):
            schema.sync(parent)
    except OSError as error:
        raise StoreError(f"{error.filename or folder}: {error.strerror}") from error
    return target


def remove_moved(
    data: Path, may_go: Callable[[bytes, int, bool], bool], before: datetime, known: Collection[int]
) -> list[Path]:
    """Remove the stores that were moved away before this time, if ``may_go`` says so of their cluster, number and of
    whether they are retired. Returns their folders; one that cannot be removed stays for the next call. Of the numbers
    ``known``, the mark stays: it says that this server has stopped the log."""
    gone = []
    for folder, mark in _marked(data):
        name = folder.name.removesuffix(_RETIRED)
        try:
            moved = datetime.strptime(name[-_TIME_CHARS:], _TIME).replace(tzinfo=UTC)
        except ValueError:
            continue  # renamed by somebody, who then wants it
        if moved >= before or not may_go(mark.cluster, mark.number, name != folder.name):
            continue
        with suppress(OSError):
            held = [path for path in folder.iterdir() if path.name != MARK]
            for path in held:  # the mark goes last: without it nobody would finish this
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if mark.number not in known or name != folder.name:
                shutil.rmtree(folder)
            gone += [folder] if held else []
    return gone


def _folders(parent: Path) -> Iterator[Path]:
    """Folders in ``parent``, by name; none if it is not there."""
    try:
        paths = sorted(parent.iterdir())
    except OSError:
        return
    yield from (path for path in paths if path.is_dir())

