"""Keep the WAL small: when to checkpoint, and in which mode.

Laws:

* The WAL is copied back (PASSIVE, which waits for nobody) when the writer is idle, past `LULL_BYTES` of frames when
  nothing else waits to be written, past `CHECKPOINT_BYTES` in any case. The next commit then starts over at its
  beginning, in blocks that exist: a commit of one entry takes half the time that it takes on a growing file.
* A file past `TRUNCATE_BYTES` is truncated to zero, which waits up to `TRUNCATE_WAIT_S` for readers.
* If a reader or a full disk is in the way, the next attempt comes only after `RETRY_BYTES` more have been written.
* A server's file has its size before the first append (`grow`): the blocks behind the last frame hold zeros, which are
  no frame, so SQLite does not read on there.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from .connections import BUSY_S
from .interface import Rest
from .schema import wal_bytes

LULL_BYTES = 2 << 20
CHECKPOINT_BYTES = 16 << 20
TRUNCATE_BYTES = 64 << 20
RETRY_BYTES = 8 << 20
TRUNCATE_WAIT_S = 0.2

#: Size of a file that only lone appends are written to: it starts over past `LULL_BYTES`, at the next look.
_GROWN_BYTES = LULL_BYTES + (1 << 20)
_FRAME_BYTES = 4096 + 24
#: Bytes of a row beside its body.
_ROW_BYTES = 100
#: Pages that a commit rewrites: the last leaf; if it adds pages also the header, the map and an inner node.
_REWRITTEN_MAX = 5


class WalKeeper:
    """Estimates the size of the WAL's content (SQLite tells only at a checkpoint) and checkpoints when due."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self._path = path
        self._frames_bytes = wal_bytes(path)
        self._checkpoint_at = CHECKPOINT_BYTES
        self._lull_at = LULL_BYTES
        self._truncate_at = TRUNCATE_BYTES

    def grow(self) -> None:
        """Give a small file the size up to which it will be written, in blocks that exist; on a full disk do nothing.
        Nobody else may write meanwhile."""
        at, size = wal_bytes(self._path), _GROWN_BYTES
        try:
            number = os.open(self._path.with_name(self._path.name + "-wal"), os.O_WRONLY)
            try:
                if at < size and os.pwrite(number, bytes(size - at), at) != size - at:
                    os.ftruncate(number, at)
                os.fsync(number)
            finally:
                os.close(number)
        except OSError:
            return

    @property
    def is_full(self) -> bool:
        """True if the WAL is as large as it should get: housekeeping adds nothing until it is copied back."""
        return self._frames_bytes >= CHECKPOINT_BYTES

    def rewrote(self, pages: int) -> None:
        """Count ``pages`` written by something other than an append."""
        self._frames_bytes += (pages + _REWRITTEN_MAX) * _FRAME_BYTES

    def grew(self, entries: int, bodies_bytes: int, other: bool) -> None:
        """Count a commit of ``entries`` entries; ``other``: it did more than append."""
        rows = bodies_bytes + bodies_bytes // 8 + entries * _ROW_BYTES
        rewritten = 2 * _REWRITTEN_MAX if other else min(_REWRITTEN_MAX, 1 + rows // _FRAME_BYTES)
        self._frames_bytes += rows + rewritten * _FRAME_BYTES

    def checkpoint(self, rest: Rest) -> bool:
        """Checkpoint if due. True if nothing is left to copy back. Raises sqlite3.Error."""
        if rest is not Rest.IDLE and self._frames_bytes < (
            self._lull_at if rest is Rest.LULL else self._checkpoint_at
        ):
            return False
        size = wal_bytes(self._path)
        if size >= self._truncate_at:
            self._db.execute(f"PRAGMA busy_timeout={int(TRUNCATE_WAIT_S * 1000)}")
            try:
                self._run("TRUNCATE")
            finally:
                self._db.execute(f"PRAGMA busy_timeout={int(BUSY_S * 1000)}")
            size = wal_bytes(self._path)
            self._truncate_at = max(TRUNCATE_BYTES, size + RETRY_BYTES)
        elif self._frames_bytes:
            self._run("PASSIVE")
        return not self._frames_bytes

    def _run(self, mode: str) -> None:
        try:
            _, frames, copied = self._db.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            if frames >= 0:  # negative: another connection is checkpointing
                self._frames_bytes = (frames - copied) and frames * _FRAME_BYTES
        finally:
            self._checkpoint_at = max(CHECKPOINT_BYTES, self._frames_bytes + RETRY_BYTES)
            self._lull_at = max(LULL_BYTES, self._frames_bytes + LULL_BYTES)
