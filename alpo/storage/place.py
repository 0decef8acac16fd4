"""Are the files that are open still those that a restart would find?

A file that was deleted, or that another was put in place of, takes every write and every fsync, and nobody finds it
again.
"""

from __future__ import annotations

from pathlib import Path

from .interface import StoreGone


class Place:
    """The data file and its WAL as they are now, just opened."""

    def __init__(self, path: Path) -> None:
        files = (path, path.with_name(path.name + "-wal"))
        self._files = {file: _which(file) for file in files}

    def check(self) -> None:
        """Raises `StoreGone` unless both are where they were. What cannot be looked at is taken to be there."""
        for file, opened in self._files.items():
            try:
                there = _which(file) == opened
            except OSError:
                continue
            if not there:
                raise StoreGone(
                    f"{file} was removed or replaced under the running server: what it writes would be lost; start it"
                    " again, on what shall be its data"
                )


def _which(file: Path) -> tuple[int, int] | None:
    """The file at this path; None if there is none."""
    try:
        found = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
