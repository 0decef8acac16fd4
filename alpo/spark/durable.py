"""Files that are either whole or absent, and permanent: what a checkpoint needs of a file system (POSIX; NFS too).

Laws:

* No file has its final name before all of its bytes are on disk, and the name is on disk before anything relies on it.
* If several processes make the same file, one wins, and nobody ever overwrites it (`make`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4


def make_directory(path: Path) -> None:
    """Make a directory and its parents, and sync their names."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_directory(folder.parent)


def sync_directory(path: Path) -> None:
    """Sync a directory, so that names made in it are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unfinished(path: Path) -> Path:
    """Unique temporary name for a file to be written, beginning with its final name."""
    return path.with_name(f"{path.name}.{uuid4().hex}.tmp")


def make(path: Path, parts: Iterable[bytes]) -> bool:
    """Make a new file of these bytes; False if one of that name exists, which stays unchanged. Raises OSError."""
    temporary = unfinished(path)
    try:
        with temporary.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # unlike a rename, fails if the name exists
        except FileExistsError:
            return False
        finally:
            sync_directory(path.parent)  # another process's file, too, must be on disk before anyone relies on it
        return True
    finally:
        temporary.unlink(missing_ok=True)
