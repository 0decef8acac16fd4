"""Checks of the command line's values before anything is done: files and directories, and times (`--since`).

Law: a file that does not exist, cannot be read or cannot be made is wrong input (exit 2); the message has the name as
given and the system's reason. The content of a readable file of ALPO's is the command's own matter.

Law: no existing log is overwritten. Outputs are never an input, a data file or, except for `alpo backup`, a backup;
none is in a server's data directory, or has one of a server's file names.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from .exits import UsageProblem, reason, store_errors

_SQLITE = b"SQLite format 3\0"
_DATA_FILE, _LOCK = "alpo.db", "alpo.lock"
_SERVERS_NAMES = {_LOCK, *(_DATA_FILE + suffix for suffix in ("", "-wal", "-shm", "-journal", ".new"))}
#: Position of the application id in an SQLite file; ALPO's two ids.
_APPLICATION = slice(68, 72)
_DATA, _BACKUP = b"ALPO", b"ALPB"
#: Ending of a file's name until it is whole.
_PARTIAL = ".partial"


def a_file(path: Path, said: str = "") -> None:
    """Check that ``path`` can be read. ``said``: option that named it. Raises UsageProblem."""
    _look(path, said)


def a_log(path: Path, said: str = "", *, backup: bool = False) -> None:
    """Check that a data directory, its data file or a backup (only a backup if ``backup``) exists and can be read. Only
    its header is examined: the command reports damage further on. Raises UsageProblem."""
    file = path
    if path.is_dir():
        if backup:
            raise UsageProblem(f"{_name(path, said)}: is a directory: make a backup of it first: alpo backup FILE")
        file = path / _DATA_FILE
        try:
            file.stat()
        except FileNotFoundError:
            raise UsageProblem(f"{_name(path, said)}: there is no data file or backup") from None
        except OSError as error:
            raise UsageProblem(f"{_name(file, said)}: {reason(error)}") from error
    elif not path.exists():
        raise UsageProblem(f"{_name(path, said)}: there is no data file or backup")
    head = _look(file, said)
    if not head.startswith(_SQLITE):
        if path.name != _DATA_FILE and not path.is_dir():
            raise UsageProblem(f"{_name(path, said)}: is no data file or backup (not an SQLite database)")
    elif len(head) == _APPLICATION.stop and head[_APPLICATION] not in (_DATA, _BACKUP):
        raise UsageProblem(f"{_name(file, said)}: is not an ALPO data file")
    elif backup and head[_APPLICATION] == _DATA:
        raise UsageProblem(f"{_name(path, said)}: is no backup but a server's data file: make a backup of it first:"
                           " alpo backup FILE")


def picked(path: Path, log: str, said: str = "") -> Path:
    """The data directory of log ``log`` in the one at ``path``; "": that itself, or a file, checked by `a_log`. Raises
    UsageProblem; Failed if there is no such log."""
    a_log(path, said)
    if not log:
        return path
    from alpo.offline import folder_named

    with store_errors():
        path = folder_named(path, log)
    a_log(path, said)
    return path


def a_new_file(
    path: Path, said: str = "", *, inputs: Iterable[Path] = (), replaced: bool = False, backup: bool = False
) -> None:
    """Check that a file can be made or replaced at ``path`` without destroying a log.

    ``inputs``: files that are read. ``replaced``: the file appears by a rename from a name ending in ``.partial``.
    ``backup``: it may replace an older backup. Raises UsageProblem.
    """
    name, directory = _name(path, said), path.absolute().parent
    if path.is_dir():
        raise UsageProblem(f"{name}: is a directory")
    if not directory.is_dir():
        raise UsageProblem(f"{name}: there is no directory {path.parent}")
    read = tuple(inputs)
    _spare(path, name, read, backup)
    if replaced:
        _spare(path.with_name(path.name + _PARTIAL), f"{name}{_PARTIAL}", read, True)
    if replaced and path.exists() and not path.is_file():
        raise UsageProblem(f"{name}: is no regular file")
    if path.exists() and not replaced:
        if not os.access(path, os.W_OK):
            raise UsageProblem(f"{name}: cannot be written to")
    elif not _takes_files(directory):
        raise UsageProblem(f"{name}: no file can be written in {path.parent}")


def _spare(path: Path, name: str, inputs: Iterable[Path], backup: bool) -> None:
    """Raise UsageProblem if ``path`` must not be overwritten; symlinks are followed."""
    real = Path(os.path.realpath(path))
    if path.exists() and any(file.exists() and path.samefile(file) for file in inputs):
        raise UsageProblem(f"{name}: is what is read; give another name")
    for place in (path.absolute(), real):
        _spare_directory(place.parent, name)
        if place.name in _SERVERS_NAMES:
            raise UsageProblem(f"{name}: a server's own files are named {place.name}; give another name")
    head = _look(path, "") if path.is_file() else b""
    if head.startswith(_SQLITE) and head[_APPLICATION] in ((_DATA,) if backup else (_DATA, _BACKUP)):
        what = "an ALPO data file" if head[_APPLICATION] == _DATA else "a backup"
        raise UsageProblem(f"{name}: is {what}, which is not written over; give another name")


def _spare_directory(directory: Path, name: str) -> None:
    if any(os.path.lexists(directory / file) for file in (_LOCK, _DATA_FILE)):
        raise UsageProblem(f"{name}: {directory} is a server's data directory, and nothing else is written there")


def _takes_files(directory: Path) -> bool:
    """True if a file can be made in ``directory``: tried out, since permissions say nothing about /proc or read-only
    mounts. A full disk counts as yes: the command reports that."""
    if not os.access(directory, os.W_OK | os.X_OK):
        return False
    from tempfile import TemporaryFile

    try:
        with TemporaryFile(dir=directory):
            return True
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)


def a_new_directory(path: Path, said: str = "", *, of_server: bool = False) -> None:
    """Check that ``path`` is a writable directory or can be made one; a server's data directory only if ``of_server``.
    Raises UsageProblem."""
    if not of_server:
        _spare_directory(path, _name(path, said))
    there = path.absolute()
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        raise UsageProblem(f"{_name(path, said)}: {there} is not a directory")
    if not _takes_files(there):
        raise UsageProblem(f"{_name(path, said)}: {there} cannot be written to")


def ending_of(path: Path, endings: Sequence[str], said: str = "") -> str:
    """The one of ``endings`` (``.svg``) that the name has. Raises UsageProblem listing them."""
    if path.suffix not in endings:
        raise UsageProblem(f"{_name(path, said)}: the name must end in {' or '.join(endings)}")
    return path.suffix


def _look(path: Path, said: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_APPLICATION.stop)
    except OSError as error:
        raise UsageProblem(f"{_name(path, said)}: {reason(error)}") from error


def _name(path: Path, said: str) -> str:
    return f"{said} {path}" if said else str(path)


_AGO = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


def parse_since(text: str, now: datetime, option: str = "--since") -> datetime:
    """Parse the option's ``text``; returns a time in UTC. Raises UsageProblem for anything but RFC 3339 with an offset,
    or a duration."""
    if ago := _AGO.fullmatch(text):
        try:
            return now.astimezone(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        except OverflowError as error:
            raise UsageProblem(f"{option} {text}: too long ago") from error
    if _RFC3339.fullmatch(text):
        try:
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise UsageProblem(f"{option} {text}: {error}") from error
    if _RFC3339.fullmatch(f"{text}Z"):
        raise UsageProblem(
            f"{option} {text}: the offset is missing: {text}Z is UTC, {text}+01:00 an hour before it"
        )
    raise UsageProblem(f"{option} {text}: accepted: RFC 3339 (2026-01-31T08:00:00Z) or how long ago (90s, 10m, 2h, 3d)")
