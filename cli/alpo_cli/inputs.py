"""Files and directories that a command line names, looked at before anything is done with them.

Law: what is not there, cannot be read or cannot be made where it is wanted is wrong input, exit 2, told with the name
that was given and what the system says. What is in a file, once it can be read and is ALPO's, is the command's own
matter.

Law: nothing is written over a log that is there. No output is what is read, a data file or, but for `alpo backup`, a
backup; none is in a server's data directory, or has a name that a server takes for its own.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from .exits import UsageProblem, reason

_SQLITE = b"SQLite format 3\0"
_DATA_FILE, _LOCK = "alpo.db", "alpo.lock"
_SERVERS_NAMES = {_LOCK, *(_DATA_FILE + suffix for suffix in ("", "-wal", "-shm", "-journal", ".new"))}
#: Where an SQLite file has its application id, and those of ALPO's.
_APPLICATION = slice(68, 72)
_DATA, _BACKUP = b"ALPO", b"ALPB"
#: What is behind a name until it is put in place.
_PARTIAL = ".partial"


def a_file(path: Path, said: str = "") -> None:
    """``path`` can be read. ``said``: the option that named it. Raises UsageProblem."""
    _look(path, said)


def a_log(path: Path, said: str = "", *, backup: bool = False) -> None:
    """A data directory, its data file or a backup is there and can be read; if so wanted, a ``backup``. What it is, is
    told by its head alone: one that is damaged is told by who looks into it. Raises UsageProblem."""
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


def a_new_file(
    path: Path, said: str = "", *, inputs: Iterable[Path] = (), replaced: bool = False, backup: bool = False
) -> None:
    """A file can be made, or replaced, at ``path``, and that takes no log from anybody.

    ``inputs``: what is read for it. ``replaced``: it appears by a rename, from a name with ``.partial`` behind.
    ``backup``: it may take an older backup's place. Raises UsageProblem.
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
    """Raises UsageProblem for what must not be written over, wherever symlinks lead."""
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
    """Can one be made there? Rights alone do not tell of /proc, and of what is mounted read-only. A full disk is for
    the command to tell."""
    if not os.access(directory, os.W_OK | os.X_OK):
        return False
    from tempfile import TemporaryFile

    try:
        with TemporaryFile(dir=directory):
            return True
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)


def a_new_directory(path: Path, said: str = "", *, of_server: bool = False) -> None:
    """``path`` is a directory that can be written to, or can be made one; a server's data directory only if it is to
    be one. Raises UsageProblem."""
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
    """Which of ``endings`` (``.svg``) the name has. Raises UsageProblem that names them."""
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
