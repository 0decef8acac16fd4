"""Does the log end where its file says? A page that forgets its last rows reads as a log that is shorter (R31).

Laws:

* SQLite keeps no checksum of a page in ``alpo.db``. A row that is damaged, or missing in the middle, shows when it is
  read; one that is missing at the end does not. So before a store is used its last page is counted through: the rows
  that it lists, the gaps between them and the odd bytes must be all of it, as SQLite's own integrity check has it.
* A page that the WAL holds has been checked by SQLite, by the checksum of its frame.

The format: https://www.sqlite.org/fileformat2.html#b_tree_pages
"""

from __future__ import annotations

import os
import sqlite3
import struct
from pathlib import Path

from .interface import DamagedStore, StoreError
from .walscan import heeded_pages

_INNER, _LEAF = 5, 13
_HEAD = struct.Struct(">BHHHB")  # kind, first gap, rows, where rows begin, odd bytes
_PLACE = struct.Struct(">H")  # of a row
_GAP = struct.Struct(">HH")  # the next gap, bytes
_RIGHTMOST = struct.Struct(">8xI")  # of an inner page
_ROW_BYTES_MIN = 4
_DEPTH_MAX = 20
_VARINT_BYTES_MAX = 9


def check_end(db: sqlite3.Connection, path: Path, page_bytes: int, *, with_wal: bool) -> None:
    """Is the last page of the log whole? ``db`` only reads, and has begun a transaction.

    Raises `DamagedStore`, `StoreError`, and what SQLite raises.
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
    """The page as it is now. Raises OSError."""
    offset = in_wal.get(number)
    if offset is not None:
        path = path.with_name(path.name + "-wal")
    else:
        offset = (number - 1) * page_bytes
    with path.open("rb", buffering=0) as file:
        return os.pread(file.fileno(), page_bytes, offset) if offset >= 0 else b""


def _is_whole(page: bytes, page_bytes: int) -> bool:
    """Does the leaf list all that it holds?"""
    try:
        kind, gap, rows, begin, odd_bytes = _HEAD.unpack_from(page)
        taken = odd_bytes
        for at in range(_HEAD.size, _HEAD.size + rows * _PLACE.size, _PLACE.size):
            (place,) = _PLACE.unpack_from(page, at)
            taken += _row_bytes(page, place, page_bytes)
        while gap and taken <= page_bytes:
            gap, size = _GAP.unpack_from(page, gap)
            taken += size
    except (struct.error, IndexError):  # beyond its end
        return False
    return bool(kind == _LEAF and taken == page_bytes - begin)


def _row_bytes(page: bytes, place: int, page_bytes: int) -> int:
    """What the row at ``place`` takes of the page; the rest of a large one is elsewhere."""
    payload, at = _varint(page, place)
    _, at = _varint(page, at)  # its id
    most, least = page_bytes - 35, (page_bytes - 12) * 32 // 255 - 23
    if payload > most:
        here = least + (payload - least) % (page_bytes - 4)
        payload = (here if here <= most else least) + 4
    return max(_ROW_BYTES_MIN, at - place + payload)


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """The number at ``at``, and where it ends."""
    value = 0
    for step in range(_VARINT_BYTES_MAX):
        byte = page[at + step]
        if step == _VARINT_BYTES_MAX - 1:
            return value << 8 | byte, at + step + 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            break
    return value, at + step + 1
