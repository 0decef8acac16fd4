"""Damage that SQLite does not report: lost commits in the WAL, and a log that ends too early (R31).

SQLite reads its WAL up to the first bad frame and ignores the rest. Laws of the WAL's check:

* SQLite itself says how far it reads: a connection that only reads has built the index of the WAL, and nothing else.
* A frame written after a commit proves that the commit was synced: frames are chained by their checksums, and the next
  transaction's first frame is written only after the fsync of the commit before it has returned or, after a restart,
  that of all that was there (`schema.settle`).
* Not mistaken for it: a torn last commit; frames from before the WAL was started over (other salts); a transaction that
  was given up (nothing follows its last frame).
* The header is synced before the first frame is written: a bad one before frames is damage.

A damaged page that lost its last rows reads as a shorter log. Laws of the end's check:

* SQLite keeps no checksums of pages in ``alpo.db``. A damaged row, or one missing in the middle, shows when it is read;
  one missing at the end does not. So before a store is used, the bytes of its last page are added up: the rows that it
  lists, the gaps between them and the fragments must fill it, as SQLite's integrity check demands too.
* SQLite itself has checked a page that is in the WAL, by its frame's checksum.

The formats: https://www.sqlite.org/walformat.html, https://www.sqlite.org/fileformat2.html#b_tree_pages
"""

from __future__ import annotations

import os
import sqlite3
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

from .interface import DamagedStore, LostCommits, StoreError

_MAGIC = 0x377F0682  # the lowest bit set: checksums of big-endian words
_HEADER = struct.Struct(">IIIIIIII")  # magic, version, page size, checkpoints, 2 salts, 2 checksums
_FRAME = struct.Struct(">IIIIII")  # page, pages after the commit (0: no commit), 2 salts, 2 checksums
_SUMMED_BYTES = 8  # bytes of a frame's header that the checksum covers, beside the page
_INDEX = struct.Struct("=16xI")  # part of the WAL's index: number of frames up to the last commit that SQLite accepts
_MASK = 0xFFFFFFFF

Sum: TypeAlias = tuple[int, int]
Salts: TypeAlias = tuple[int, int]


class _Frame(NamedTuple):
    """Header of a frame."""

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
    """Check that the WAL of database ``path`` holds no commits beyond those that SQLite accepts. A reading connection
    must be inside a transaction. Raises `LostCommits`, `StoreError`."""
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
    """Pages that the WAL of database ``path`` holds, as of its last commit: page number -> offset. A reading connection
    must be inside a transaction. Raises OSError."""
    found: dict[int, int] = {}
    with suppress(FileNotFoundError), path.with_name(path.name + "-wal").open("rb", buffering=1 << 20) as wal:
        wal.seek(_HEADER.size)
        for _ in range(_heeded(path)):
            head = wal.read(_FRAME.size)
            if len(head) < _FRAME.size:  # the file was truncated meanwhile
                break
            found[_FRAME.unpack(head)[0]] = wal.tell()
            wal.seek(page_bytes, os.SEEK_CUR)
    return found


def _heeded(path: Path) -> int:
    """Number of frames that SQLite accepts."""
    index = path.with_name(path.name + "-shm").read_bytes()[: _INDEX.size]
    heeded: int = _INDEX.unpack(index)[0] if len(index) == _INDEX.size else 0
    return heeded


class _Scan:
    """One pass over a WAL, with one page in memory at a time."""

    def __init__(self, descriptor: int, wal: Path, page_bytes: int) -> None:
        self._descriptor = descriptor
        self._wal = wal
        self._page_bytes = page_bytes
        self._frame_bytes = _FRAME.size + page_bytes
        self._frames = max(0, os.fstat(descriptor).st_size - _HEADER.size) // self._frame_bytes
        self._words = "<"

    def check(self, heeded: int) -> None:
        """Look for commits after the ``heeded`` frames. Raises `LostCommits`."""
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
        """Raise `LostCommits` if there are commits: with this header SQLite accepts no frame at all."""
        commits = sum(1 for at in range(1, self._frames + 1) if self._head(at).pages)
        if commits:
            raise LostCommits(f"{self._wal}: the header is damaged, before {commits} commits")

    def _check_beyond(self, heeded: int, salts: Salts, header_sum: Sum) -> None:
        """Raise `LostCommits` if a frame with these salts continues the chain after a commit that SQLite does not
        accept."""
        for at in range(heeded + 2, self._frames + 1):
            commit, head = self._head(at - 1), self._head(at)
            if not commit.pages or head.salts != salts:
                continue
            # Either the content or the checksum of the commit's frame may be damaged: try both.
            before = self._head(at - 2).sum if at > 2 else header_sum
            if head.sum in (self._sum_of(at, commit.sum), self._sum_of(at, self._sum_of(at - 1, before))):
                raise LostCommits(
                    f"{self._wal}: frame {heeded + 1} or one soon after it is damaged, and SQLite would drop all"
                    f" {self._frames - heeded} from there on, the commit at frame {at - 1} among them, which was synced"
                )

    def _head(self, at: int) -> _Frame:
        """Header of frame ``at``, counted from 1."""
        offset = _HEADER.size + (at - 1) * self._frame_bytes
        return _Frame._make(_FRAME.unpack(os.pread(self._descriptor, _FRAME.size, offset)))

    def _sum_of(self, at: int, seed: Sum) -> Sum:
        """Checksum that frame ``at`` should have if the frame before has ``seed``."""
        raw = os.pread(self._descriptor, self._frame_bytes, _HEADER.size + (at - 1) * self._frame_bytes)
        return _checksum(raw[:_SUMMED_BYTES] + raw[_FRAME.size :], seed, self._words)


def _checksum(data: bytes, seed: Sum, words: str) -> Sum:
    """SQLite's WAL checksum, over pairs of 32-bit words."""
    first, second = seed
    each = iter(struct.unpack(f"{words}{len(data) // 4}I", data))
    for x, y in zip(each, each, strict=True):
        first = (first + x + second) & _MASK
        second = (second + y + first) & _MASK
    return first, second


_INNER, _LEAF = 5, 13
_LEAF_HEAD = struct.Struct(">BHHHB")  # kind, first gap, rows, where rows begin, fragment bytes
_PLACE = struct.Struct(">H")  # where a row begins
_GAP = struct.Struct(">HH")  # the next gap, bytes
_RIGHTMOST = struct.Struct(">8xI")  # of an inner page
_ROW_BYTES_MIN = 4
_DEPTH_MAX = 20
_VARINT_BYTES_MAX = 9


def check_end(db: sqlite3.Connection, path: Path, page_bytes: int, *, with_wal: bool) -> None:
    """Check that the log's last page is whole. ``db``: a reading connection inside a transaction. ``with_wal``: also
    look for the page in the WAL.

    Raises `DamagedStore`, `StoreError` and sqlite3.Error.
    """
    row = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'log'").fetchone()
    if row is None:
        raise DamagedStore(f"{path}: there is no log in it")
    number, page = row[0], b""
    try:
        in_wal = heeded_pages(path, page_bytes) if with_wal else {}
        for _ in range(_DEPTH_MAX):
            page = _read(path, number, page_bytes, in_wal)
            if len(page) < page_bytes or page[0] != _INNER:
                break
            (number,) = _RIGHTMOST.unpack_from(page)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    if number not in in_wal and not _is_whole(page, page_bytes):
        raise DamagedStore(f"{path}: page {number}, where the log ends, is damaged")


def _read(path: Path, number: int, page_bytes: int, in_wal: dict[int, int]) -> bytes:
    """Read the newest version of a page, from the WAL or the file. Raises OSError."""
    offset = in_wal.get(number)
    if offset is not None:
        path = path.with_name(path.name + "-wal")
    else:
        offset = (number - 1) * page_bytes
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), page_bytes, offset) if offset >= 0 else b""


def _is_whole(page: bytes, page_bytes: int) -> bool:
    """True if rows, gaps and fragments fill the leaf page."""
    try:
        kind, gap, rows, begin, odd_bytes = _LEAF_HEAD.unpack_from(page)
        taken = odd_bytes
        for at in range(_LEAF_HEAD.size, _LEAF_HEAD.size + rows * _PLACE.size, _PLACE.size):
            (place,) = _PLACE.unpack_from(page, at)
            taken += _row_bytes(page, place, page_bytes)
        while gap and taken <= page_bytes:
            gap, size = _GAP.unpack_from(page, gap)
            taken += size
    except (struct.error, IndexError):  # an offset beyond the page's end
        return False
    return bool(kind == _LEAF and taken == page_bytes - begin)


def _row_bytes(page: bytes, place: int, page_bytes: int) -> int:
    """Bytes that the row at ``place`` takes on this page; the rest of a large row is on other pages."""
    payload, at = _varint(page, place)
    _, at = _varint(page, at)  # its id
    most, least = page_bytes - 35, (page_bytes - 12) * 32 // 255 - 23
    if payload > most:
        here = least + (payload - least) % (page_bytes - 4)
        payload = (here if here <= most else least) + 4
    return max(_ROW_BYTES_MIN, at - place + payload)


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """Decode SQLite's variable-length integer at ``at``: (value, offset after it)."""
    value = 0
    for step in range(_VARINT_BYTES_MAX):
        byte = page[at + step]
        if step == _VARINT_BYTES_MAX - 1:
            return value << 8 | byte, at + step + 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            break
    return value, at + step + 1
