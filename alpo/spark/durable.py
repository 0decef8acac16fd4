"""Files that are whole or not there, and stay: what a checkpoint needs of a file system (POSIX; NFS too).

Laws:

* Nothing has its final name before all of its bytes are on disk, and the name is before anything relies on it.
* Of several who make the same file one wins, and nobody ever overwrites it (`make`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4


def make_directory(path: Path) -> None:
    """With its parents, its name on disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_directory(folder.parent)


def sync_directory(path: Path) -> None:
    """Names made in it are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unfinished(path: Path) -> Path:
    """A name for a file that is being written; what it may become, and then some."""
    return path.with_name(f"{path.name}.{uuid4().hex}.tmp")


def make(path: Path, parts: Iterable[bytes]) -> bool:
    """A new file of these bytes; False if there is one of that name, which is then as it was. Raises OSError."""
    temporary = unfinished(path)
    try:
        with temporary.open("xb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)  # a rename would overwrite
        except FileExistsError:
            return False
        finally:
            sync_directory(path.parent)  # the other's name, too, before it is relied on
        return True
    finally:
        temporary.unlink(missing_ok=True)
