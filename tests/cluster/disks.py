"""Harm to the files of a server: bytes that flip, disks that fill up, power that is cut.

Laws:

* Damage to ``alpo.db`` may hit anything but the header's fields that say what kind of file it is, and of which
  version: with other numbers there it is somebody else's file, which a server leaves alone on purpose.
* Damage to ``alpo.db-wal`` lies before its last two commits: damage to those looks like a commit torn by a
  crash (docs/data-file.md, limits).
* A power cut is real: an ext4 file system is shut down under the server, and mounted again. What was not synced is gone
  but for pieces of files that the kernel happened to write.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import random
import shutil
import sqlite3
import struct
import subprocess
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

FLIPS_MAX = 40
#: Fields of the header: write and read version, schema format, user version, application id.
_KIND_OF_FILE = {*range(18, 20), *range(44, 48), *range(60, 64), *range(68, 72)}
_WAL_HEADER_BYTES, _FRAME_HEADER_BYTES, _PAGE_BYTES = 32, 24, 4096
_FRAME_BYTES = _FRAME_HEADER_BYTES + _PAGE_BYTES
#: Commits at the end of a WAL that are left alone.
_LAST_COMMITS = 2
_MIB = 1 << 20
#: `ioctl` and flag of linux/ext4.h; flags of sync_file_range(2).
_EXT4_SHUTDOWN, _WITHOUT_THE_JOURNAL = 0x8004587D, 2
_WRITE_AND_WAIT = 7


class Held(NamedTuple):
    """The last entry's id, and the term, on a stopped server's disk."""

    last_id: int
    term: int


def held(data: Path) -> Held:
    with closing(sqlite3.connect(data / "alpo.db")) as db:
        return Held(*db.execute("SELECT (SELECT max(id) FROM log), term FROM hard").fetchone())


def is_sound(data: Path) -> bool:
    """True if SQLite finds nothing wrong with the file, which may be in use."""
    try:
        with closing(sqlite3.connect(f"file:{data / 'alpo.db'}?mode=ro", uri=True, timeout=30)) as db:
            return bool(db.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",))
    except sqlite3.Error:
        return False


def empty(data: Path, but: Collection[str] = ()) -> None:
    """Delete all that is on the disk, but for these names; the directory itself stays: it may be a mount point."""
    for path in data.iterdir():
        if path.name in but:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def flip_in_file(data: Path, rng: random.Random) -> None:
    """Flip up to `FLIPS_MAX` bytes of ``alpo.db``; the scrub forgets its progress, so that it checks the whole file."""
    (data / "alpo.scrub").unlink(missing_ok=True)
    path = data / "alpo.db"
    file = bytearray(path.read_bytes())
    places = [rng.randrange(len(file)) for _ in range(rng.choice((1, 3, FLIPS_MAX)))]
    for at in places:
        if at not in _KIND_OF_FILE:
            file[at] ^= rng.randrange(1, 256)
    path.write_bytes(file)


def flip_in_wal(data: Path, rng: random.Random) -> bool:
    """Flip up to `FLIPS_MAX` bytes of ``alpo.db-wal``, so that commits that had been synced would vanish. False: the
    file holds too few commits, and nothing was done."""
    path = data / "alpo.db-wal"
    wal = bytearray(path.read_bytes()) if path.exists() else bytearray()
    commits = _commit_ends(bytes(wal))
    if len(commits) <= _LAST_COMMITS:
        return False
    end = commits[-_LAST_COMMITS - 1]
    for _ in range(rng.choice((1, 3, FLIPS_MAX))):
        wal[rng.randrange(end)] ^= rng.randrange(1, 256)
    path.write_bytes(wal)
    return True


def _commit_ends(wal: bytes) -> list[int]:
    """Offsets at which the commits end that were written since the WAL was begun."""
    ends = []
    for at in range(_WAL_HEADER_BYTES, len(wal) - _FRAME_BYTES + 1, _FRAME_BYTES):
        if wal[at + 8 : at + 16] != wal[16:24]:  # salts of before
            break
        if struct.unpack_from(">I", wal, at + 4) != (0,):
            ends.append(at + _FRAME_BYTES)
    return ends


class OwnDisk:
    """A small file system of a directory's own: ext4 in a file, or in memory where none can be mounted from a file."""

    def __init__(self, directory: Path, size_mib: int) -> None:
        self.directory = directory
        self._image = directory.with_name(f"{directory.name}.ext4")
        directory.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(size_mib * _MIB)
        #: Power can be cut.
        self.is_real = _ran("mkfs.ext4", "-q", "-m", "0", "-b", str(_PAGE_BYTES), str(self._image)) and self._mount()
        in_memory = ("-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(directory))
        self.is_mounted = self.is_real or _ran("mount", *in_memory)
        if self.is_real:
            (directory / "lost+found").rmdir()

    def _mount(self) -> bool:
        return _ran("mount", "-t", "ext4", "-o", "loop", str(self._image), str(self.directory))

    def cut_power(self, rng: random.Random) -> None:
        """Let nothing be written from now on: data that was not synced is lost, but for some pieces of files, written
        before. No process may run that has files there open."""
        libc = ctypes.CDLL(None, use_errno=True)
        for path in self.directory.rglob("alpo.db*"):
            with path.open("rb") as file:
                for _ in range(rng.choice((0, 2, 20))):
                    at = rng.randrange(max(1, path.stat().st_size)) // _PAGE_BYTES * _PAGE_BYTES
                    length = rng.randint(1, 8) * _PAGE_BYTES
                    libc.sync_file_range(file.fileno(), ctypes.c_int64(at), ctypes.c_int64(length), _WRITE_AND_WAIT)
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _EXT4_SHUTDOWN, struct.pack("I", _WITHOUT_THE_JOURNAL))
        finally:
            os.close(descriptor)

    def restore_power(self) -> None:
        """Mount what is left. No process may have files there open."""
        _must("umount", str(self.directory))
        assert self._mount()

    def keep(self) -> None:
        """Unmount the disk; the directory then holds what was on it."""
        if self.is_mounted:
            kept = self.directory.with_name(f"{self.directory.name}-kept")
            shutil.copytree(self.directory, kept)
            _must("umount", "-l", str(self.directory))
            self.directory.rmdir()
            kept.rename(self.directory)
        self._image.unlink()


def _ran(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _must(*command: str) -> None:
    subprocess.run(command, check=True)


@contextmanager
def own_disks(directories: Iterable[Path], size_mib: int) -> Iterator[dict[Path, OwnDisk]]:
    """A disk for each of these directories, by directory; none, if none can be mounted here."""
    made: dict[Path, OwnDisk] = {}
    try:
        for directory in directories:
            made[directory] = OwnDisk(directory, size_mib)
            if not made[directory].is_mounted:
                break
        yield made if all(disk.is_mounted for disk in made.values()) else {}
    finally:
        for disk in made.values():
            disk.keep()


def fill(disk: Path, left_bytes: int) -> None:
    """Take all free space but so many bytes; `make_room` gives it back."""
    with (disk / "filler").open("ab", buffering=0) as file:
        while (free := shutil.disk_usage(disk).free - left_bytes) > 0:
            try:
                file.write(bytes(min(free, _MIB)))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                return


def make_room(disk: Path) -> None:
    (disk / "filler").unlink()
