"""What may befall the files of a server that is stopped: bytes that flip, and disks that fill up.

Laws:

* What is damaged in ``alpo.db`` may be anything but the header's fields that say what kind of file it is, and of which
  version: with other numbers there it is somebody else's file, which a server leaves alone on purpose.
* What is damaged in ``alpo.db-wal`` lies before its last two commits: damage to those looks like a commit torn by a
  crash (docs/data-file.md, limits).
"""

from __future__ import annotations

import errno
import random
import shutil
import sqlite3
import struct
import subprocess
from collections.abc import Iterable, Iterator
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


class Held(NamedTuple):
    """What a stopped server's disk holds: the last entry, and the term."""

    last_id: int
    term: int


def held(data: Path) -> Held:
    with closing(sqlite3.connect(data / "alpo.db")) as db:
        return Held(*db.execute("SELECT (SELECT max(id) FROM log), term FROM hard").fetchone())


def is_sound(data: Path) -> bool:
    """Does SQLite find nothing wrong with the file? It may be in use."""
    try:
        with closing(sqlite3.connect(f"file:{data / 'alpo.db'}?mode=ro", uri=True, timeout=30)) as db:
            return bool(db.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",))
    except sqlite3.Error:
        return False


def empty(data: Path) -> None:
    """Lose all that is on the disk; the directory itself stays, it may be a mount point."""
    for path in data.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def flip_in_file(data: Path, rng: random.Random) -> None:
    """Up to `FLIPS_MAX` bytes of ``alpo.db``; the scrub forgets what it knew, so that it looks at all of it again."""
    (data / "alpo.scrub").unlink(missing_ok=True)
    path = data / "alpo.db"
    file = bytearray(path.read_bytes())
    places = [rng.randrange(len(file)) for _ in range(rng.choice((1, 3, FLIPS_MAX)))]
    for at in places:
        if at not in _KIND_OF_FILE:
            file[at] ^= rng.randrange(1, 256)
    path.write_bytes(file)


def flip_in_wal(data: Path, rng: random.Random) -> bool:
    """Up to `FLIPS_MAX` bytes of ``alpo.db-wal``, so that commits that had been synced would vanish. False: there are
    too few in it, and nothing was done."""
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
    """Where each commit ends that was written since the WAL was begun."""
    ends = []
    for at in range(_WAL_HEADER_BYTES, len(wal) - _FRAME_BYTES + 1, _FRAME_BYTES):
        if wal[at + 8 : at + 16] != wal[16:24]:  # salts of before
            break
        if struct.unpack_from(">I", wal, at + 4) != (0,):
            ends.append(at + _FRAME_BYTES)
    return ends


@contextmanager
def mounted(directories: Iterable[Path], size_mib: int) -> Iterator[bool]:
    """A small file system in memory in each of these directories; False if none can be mounted here. What is on it in
    the end is in the directory afterwards."""
    done: list[Path] = []
    try:
        for directory in directories:
            directory.mkdir(parents=True)
            command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(directory)]
            if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
                break
            done.append(directory)
        else:
            yield True
            return
        yield False
    finally:
        for directory in done:
            kept = directory.with_name(f"{directory.name}-kept")
            shutil.copytree(directory, kept)
            subprocess.run(["umount", "-l", str(directory)], check=True)
            directory.rmdir()
            kept.rename(directory)


def fill(disk: Path, left_bytes: int) -> None:
    """Take all that is free but so much; `make_room` gives it back."""
    with (disk / "filler").open("ab", buffering=0) as file:
        while (free := shutil.disk_usage(disk).free - left_bytes) > 0:
            try:
                file.write(bytes(min(free, _MIB)))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                return


def make_room(disk: Path) -> None:
    (disk / "filler").unlink()
