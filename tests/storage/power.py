"""A disk that loses power: a cut leaves files as last synced, under the names in the directory as last synced.

Only a sync through `os.fsync` is seen, so all that SQLite syncs counts as not synced: files that a test then finds
whole were synced by the project's own code. A sync that fails leaves the file marked clean, as Linux does: later syncs
succeed and write nothing, and reads return the unwritten content until the file is dropped from memory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

#: Gives the content on disk after a cut, from a file's content as last synced and as in memory.
Survivor = Callable[[bytes, bytes], bytes]


class Power:
    """The disk with the tree under ``root``. At the start, only files given to `synced` count as synced."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._files: dict[int, bytes] = {}  # by inode
        self._names: dict[Path, dict[str, int]] = {}  # by directory
        self._kept_open: dict[int, int] = {}  # open files, so that no inode number is used again
        self._lost: set[int] = set()  # a sync of these failed
        self._failing = ""
        self._fsync, self._advise = os.fsync, os.posix_fadvise
        monkeypatch.setattr(os, "fsync", self._on_fsync)
        monkeypatch.setattr(os, "posix_fadvise", self._on_advise)

    def fail(self, name: str) -> None:
        """Let syncs of files of this name fail from now on; "": let none fail."""
        self._failing = name

    def synced(self, directory: Path, files: Mapping[str, bytes]) -> None:
        """Count these files, with this content, and their directory as synced."""
        for name, content in files.items():
            self._files[self._inode(directory / name)] = content
        for listed in (directory, *directory.parents):
            if listed.is_relative_to(self._root):
                self._list(listed)

    def cut(self, to: Path, survivor: Survivor = lambda synced, now: synced) -> Path:
        """The directory ``to``, made as ``root`` is after a power cut."""
        self._restore(self._root, to, survivor)
        return to

    def _restore(self, directory: Path, to: Path, survivor: Survivor) -> None:
        to.mkdir()
        for name, inode in self._names.get(directory, {}).items():
            path = directory / name
            if path.is_dir():
                self._restore(path, to / name, survivor)
            else:
                now = path.read_bytes() if path.exists() and path.stat().st_ino == inode else b""
                (to / name).write_bytes(survivor(self._files.get(inode, b""), now))

    def _on_fsync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_relative_to(self._root):
            if path.name == self._failing:
                self._lost.add(self._inode(path))
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if path.is_dir():
                self._list(path)
            elif (inode := self._inode(path)) not in self._lost:
                self._files[inode] = path.read_bytes()
        self._fsync(descriptor)

    def _on_advise(self, descriptor: int, offset: int, length: int, advice: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if advice == os.POSIX_FADV_DONTNEED and path.is_file() and (inode := self._inode(path)) in self._lost:
            path.write_bytes(self._files.get(inode, b""))
            self._lost.discard(inode)
        self._advise(descriptor, offset, length, advice)

    def _list(self, directory: Path) -> None:
        self._names[directory] = {path.name: self._inode(path) for path in directory.iterdir()}

    def _inode(self, path: Path) -> int:
        descriptor = os.open(path, os.O_RDONLY)
        inode = os.fstat(descriptor).st_ino
        if inode in self._kept_open:
            os.close(descriptor)
        else:
            self._kept_open[inode] = descriptor
        return inode

    def close(self) -> None:
        for descriptor in self._kept_open.values():
            os.close(descriptor)
