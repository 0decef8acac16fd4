"""Are synced commits about to vanish? SQLite heeds its WAL up to the first bad frame, and drops the rest (R31).

Laws:

* What SQLite heeds it says itself: a connection that only reads has built the index of the WAL, and nothing else.
* A commit is proven to have been synced by a frame that was written after it: frames are chained by their checksums,
  and the next transaction's first frame is written only once the fsync of the commit before it has returned, or, after
  a restart, that of all that was there (`schema.settle`).
* A torn last commit never looks so, nor do frames left over from before the WAL was begun anew (their salts are
  others) or from a transaction that was given up (nothing follows its last frame).
* The header is synced before the first frame is written: a bad one before frames is damage.

The format: https://www.sqlite.org/walformat.html
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from .interface import LostCommits, StoreError

_MAGIC = 0x377F0682  # with the lowest bit set: checksums of big-endian words
_HEADER = struct.Struct(">IIIIIIII")  # magic, version, page size, checkpoints, 2 salts, 2 checksums
_FRAME = struct.Struct(">IIIIII")  # page, pages after the commit (0: no commit), 2 salts, 2 checksums
_SUMMED_BYTES = 8  # of a frame's header, before its page
_INDEX = struct.Struct("=16xI")  # of the WAL's index: frames up to the last commit that SQLite heeds
_MASK = 0xFFFFFFFF

Sum: TypeAlias = tuple[int, int]
Salts: TypeAlias = tuple[int, int]


class _Frame(NamedTuple):
    """The head of a frame."""

    page: int
    pages: int
    salt_1: int
    salt_2: int
    sum_1: int
    sum_2: int

    @property
    def salts(self) -> Salts:
        return self.salt_1, self.salt_2

    @property
    def sum(self) -> Sum:
        return self.sum_1, self.sum_2


def check_wal(path: Path, page_bytes: int) -> None:
    """Does the WAL of the database ``path`` hold commits beyond what SQLite heeds? A connection that only
    reads must have begun a transaction. Raises `LostCommits`, `StoreError`."""
    wal = path.with_name(path.name + "-wal")
    try:
        descriptor = os.open(wal, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"{wal}: {error.strerror}") from error
    try:
        _Scan(descriptor, wal, page_bytes).check(_heeded(path))
    except OSError as error:
        raise StoreError(f"{wal}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def heeded_pages(path: Path, page_bytes: int) -> dict[int, int]:
    """Where the WAL of the database ``path`` holds a page, as its last commit has it: offset by number of the page. A
    connection that only reads must have begun a transaction. Raises OSError."""
    found: dict[int, int] = {}
    with suppress(FileNotFoundError), path.with_name(path.name + "-wal").open("rb", buffering=1 << 20) as wal:
        wal.seek(_HEADER.size)
        for _ in range(_heeded(path)):
            head = wal.read(_FRAME.size)
            if len(head) < _FRAME.size:  # it was cut meanwhile
                break
            found[_FRAME.unpack(head)[0]] = wal.tell()
            wal.seek(page_bytes, os.SEEK_CUR)
    return found


def _heeded(path: Path) -> int:
    """How many frames SQLite heeds."""
    index = path.with_name(path.name + "-shm").read_bytes()[: _INDEX.size]
    heeded: int = _INDEX.unpack(index)[0] if len(index) == _INDEX.size else 0
    return heeded


class _Scan:
    """One look through a WAL; a page is in memory at a time."""

    def __init__(self, descriptor: int, wal: Path, page_bytes: int) -> None:
        self._descriptor = descriptor
        self._wal = wal
        self._page_bytes = page_bytes
        self._frame_bytes = _FRAME.size + page_bytes
        self._frames = max(0, os.fstat(descriptor).st_size - _HEADER.size) // self._frame_bytes
        self._words = "<"

    def check(self, heeded: int) -> None:
        """Raises `LostCommits`."""
        if not self._frames:
            return
        raw = os.pread(self._descriptor, _HEADER.size, 0)
        magic, _, _, _, salt_1, salt_2, sum_1, sum_2 = _HEADER.unpack(raw)
        self._words = ">" if magic & 1 else "<"
        if magic & ~1 != _MAGIC or _checksum(raw[:-8], (0, 0), self._words) != (sum_1, sum_2):
            self._check_behind_bad_header()
        else:
            self._check_beyond(heeded, (salt_1, salt_2), (sum_1, sum_2))

    def _check_behind_bad_header(self) -> None:
        """SQLite heeds no frame at all."""
        commits = sum(1 for at in range(1, self._frames + 1) if self._head(at).pages)
        if commits:
            raise LostCommits(f"{self._wal}: the header is damaged, before {commits} commits")

    def _check_beyond(self, heeded: int, salts: Salts, header_sum: Sum) -> None:
        """Does a frame of these salts continue what ends in a commit that is not heeded?"""
        for at in range(heeded + 2, self._frames + 1):
            commit, head = self._head(at - 1), self._head(at)
            if not commit.pages or head.salts != salts:
                continue
            # Of a commit frame either what was written or its checksum may be what is damaged.
            before = self._head(at - 2).sum if at > 2 else header_sum
            if head.sum in (self._sum_of(at, commit.sum), self._sum_of(at, self._sum_of(at - 1, before))):
                raise LostCommits(
                    f"{self._wal}: frame {heeded + 1} or one soon after it is damaged, and SQLite would drop all"
                    f" {self._frames - heeded} from there on, the commit at frame {at - 1} among them, which was synced"
                )

    def _head(self, at: int) -> _Frame:
        """Of frame ``at``, counted from 1."""
        offset = _HEADER.size + (at - 1) * self._frame_bytes
        return _Frame._make(_FRAME.unpack(os.pread(self._descriptor, _FRAME.size, offset)))

    def _sum_of(self, at: int, seed: Sum) -> Sum:
        """The checksum that frame ``at`` has if the one before it has ``seed``."""
        raw = os.pread(self._descriptor, self._frame_bytes, _HEADER.size + (at - 1) * self._frame_bytes)
        return _checksum(raw[:_SUMMED_BYTES] + raw[_FRAME.size :], seed, self._words)


def _checksum(data: bytes, seed: Sum, words: str) -> Sum:
    """SQLite's, of whole pairs of 32-bit words."""
    first, second = seed
    each = iter(struct.unpack(f"{words}{len(data) // 4}I", data))
    for x, y in zip(each, each, strict=True):
        first = (first + x + second) & _MASK
        second = (second + y + first) & _MASK
    return first, second
