"""Files and directories that a command line names, looked at before anything is done with them.

Law: what is not there, cannot be read or cannot be made where it is wanted is wrong input, exit 2, told with the name
that was given and what the system says. What is in a file, once it can be read, is the command's own matter.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .exits import UsageProblem, reason

_SQLITE = b"SQLite format 3\0"
_DATA_FILE = "alpo.db"


def a_file(path: Path, said: str = "") -> None:
    """``path`` can be read. ``said``: the option that named it. Raises UsageProblem."""
    _look(path, said)


def a_log(path: Path, said: str = "") -> None:
    """A data directory, its data file or a backup is there and can be read. Raises UsageProblem."""
    if path.is_dir():
        file = path / _DATA_FILE
        try:
            file.stat()
        except FileNotFoundError:
            raise UsageProblem(f"{_name(path, said)}: there is no data file or backup") from None
        except OSError as error:
            raise UsageProblem(f"{_name(file, said)}: {reason(error)}") from error
        _look(file, said)  # one that is damaged is told by who looks into it
    elif not path.exists():
        raise UsageProblem(f"{_name(path, said)}: there is no data file or backup")
    elif _look(path, said) != _SQLITE and path.name != _DATA_FILE:
        raise UsageProblem(f"{_name(path, said)}: is no data file or backup (not an SQLite database)")


def a_new_file(path: Path, said: str = "") -> None:
    """A file can be made, or replaced, at ``path``: its directory is there. Raises UsageProblem."""
    if path.is_dir():
        raise UsageProblem(f"{_name(path, said)}: is a directory")
    if not path.absolute().parent.is_dir():
        raise UsageProblem(f"{_name(path, said)}: there is no directory {path.parent}")
    if not path.exists() and not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise UsageProblem(f"{_name(path, said)}: no file can be written in {path.parent}")


def a_new_directory(path: Path, said: str = "") -> None:
    """``path`` is a directory that can be written to, or can be made one. Raises UsageProblem."""
    there = path.absolute()
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        raise UsageProblem(f"{_name(path, said)}: {there} is not a directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageProblem(f"{_name(path, said)}: {there} cannot be written to")


def ending_of(path: Path, endings: Sequence[str], said: str = "") -> str:
    """Which of ``endings`` (``.svg``) the name has. Raises UsageProblem that names them."""
    if path.suffix not in endings:
        raise UsageProblem(f"{_name(path, said)}: the name must end in {' or '.join(endings)}")
    return path.suffix


def _look(path: Path, said: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE))
    except OSError as error:
        raise UsageProblem(f"{_name(path, said)}: {reason(error)}") from error


def _name(path: Path, said: str) -> str:
    return f"{said} {path}" if said else str(path)
