"""Encodings of hard state, runs, sessions and the applied state, each with a checksum of its own.

Log entries are not encoded here: they carry their own checksum, and each field is a column. Every decoder raises
`DamagedRow` if the data was not encoded here.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped]

from alpo.core.disk import Base, SessionRow, StartState, TableSave, Write
from alpo.core.entries import is_digest
from alpo.core.members import Identity, StartStatus

#: Marks are written with whatever else rewrites the hard row, or once one has moved this many ids, or after this many
#: payloads. Rewriting that row in every commit would double what a commit of one entry writes, and marks may be late.
MARKS_LAG_MAX = 1024

_HARD = struct.Struct("<QQQQQ")
_RUN = struct.Struct("<QQ")
_BASE = struct.Struct("<QQQQ")
_CRC = struct.Struct("<I")


class DamagedRow(ValueError):
    """A stored row differs from what was written."""


class Hard(NamedTuple):
    """The hard row; ``start`` as JSON text, so that the checksum covers the stored bytes."""

    server_id: int
    incarnation: bytes
    term: int
    vote: int
    guaranteed_id: int
    fully_replicated_id: int
    cluster: bytes
    start: str

    def checksum(self) -> int:
        """CRC-32 of all fields. Raises `DamagedRow` if a column has a wrong type."""
        try:
            numbers = _HARD.pack(
                self.server_id, self.term, self.vote, self.guaranteed_id, self.fully_replicated_id
            )
            return zlib.crc32(numbers + self.incarnation + self.cluster + self.start.encode())
        except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
            raise DamagedRow(f"the hard state is not of its types: {error}") from error

    def after(self, write: Write, start: StartState | None) -> Hard:
        """The row after ``write``; ``start`` None leaves the start state unchanged."""
        cluster, text = (self.cluster, self.start) if start is None else (start.cluster, start_to_json(start))
        return Hard(
            self.server_id, self.incarnation, write.term, write.vote, write.guaranteed_id, write.fully_replicated_id,
            cluster, text,
        )

    def is_due(self, new: Hard, payloads: int) -> bool:
        """True if ``new`` must be written; False if only marks have moved, and not far. ``payloads``: how many were
        written since this row was."""
        return (
            self.term != new.term
            or self.vote != new.vote
            or self.start != new.start
            or new.guaranteed_id - self.guaranteed_id >= MARKS_LAG_MAX
            or new.fully_replicated_id - self.fully_replicated_id >= MARKS_LAG_MAX
            or (payloads >= MARKS_LAG_MAX and new.guaranteed_id > self.guaranteed_id)
        )


EMPTY_START = StartState(StartStatus.EMPTY)


def start_to_json(start: StartState) -> str:
    """Encode a `StartState` as JSON, bytes in hex."""
    fields = {
        "status": int(start.status),
        "incarnations": [[who.id, who.incarnation.hex()] for who in start.incarnations],
        "configured_digest": start.configured_digest.hex(),
        "cluster": start.cluster.hex(),
        "first_list": start.first_list,
        "settings": start.settings,
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def start_from_json(text: str) -> StartState:
    """Decode what `start_to_json` encoded. Raises `DamagedRow`."""
    try:
        fields = json.loads(text)
        return StartState(
            StartStatus(fields["status"]),
            tuple(Identity(id, bytes.fromhex(incarnation)) for id, incarnation in fields["incarnations"]),
            bytes.fromhex(fields["configured_digest"]),
            bytes.fromhex(fields["cluster"]),
            fields["first_list"],
            fields["settings"],
        )
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedRow(f"the start state cannot be read: {error}") from error


def text_checksum(text: str) -> int:
    """CRC-32 of a text."""
    return zlib.crc32(text.encode())


def run_checksum(term: int, first_id: int) -> int:
    """CRC-32 of a run. Raises `DamagedRow` if a value is not a number."""
    try:
        return zlib.crc32(_RUN.pack(term, first_id))
    except struct.error as error:
        raise DamagedRow(f"a run is not of its types: {error}") from error


def base_checksum(base: Base) -> int:
    """CRC-32 of the base (the last cleaned entry). Raises `DamagedRow` if a value is not a number."""
    try:
        return zlib.crc32(_BASE.pack(*base))
    except struct.error as error:
        raise DamagedRow(f"the base is not of its types: {error}") from error


def session_to_blob(row: SessionRow) -> bytes:
    """Encode a session: CRC-32 (u32, little endian), then msgpack of every field, the client included."""
    packed: bytes = msgpack.packb(tuple(row), use_bin_type=True)
    return _CRC.pack(zlib.crc32(packed)) + packed


def session_columns(row: SessionRow) -> tuple[str, int, int, int, int, bytes]:
    """Columns of a `saved_sessions` row: some for people (view `sessions`), and the encoded state, the only one read
    back."""
    return row.client, row.epoch, row.last_serial, row.last_id, row.last_time_ms, session_to_blob(row)


def session_from_blob(client: str, blob: bytes) -> SessionRow:
    """Decode what `session_to_blob` encoded; ``client``: the key of its row. Raises `DamagedRow`."""
    if type(blob) is not bytes or len(blob) < _CRC.size or _CRC.unpack_from(blob)[0] != zlib.crc32(blob[_CRC.size :]):
        raise DamagedRow(f"the session of {client!r} does not match its checksum")
    try:
        fields = msgpack.unpackb(blob[_CRC.size :], raw=False)
        slots = [(s, i, lsn, e, d) for s, i, lsn, e, d in fields[7]]
        if not all(is_digest(slot[4]) for slot in slots):
            raise ValueError("an entry's digest of another form")
        row = SessionRow._make([*fields[:7], slots, fields[8]])
    except (ValueError, TypeError, IndexError) as error:
        raise DamagedRow(f"the session of {client!r} cannot be read: {error}") from error
    if row.client != client:
        raise DamagedRow(f"the session of {row.client!r} stands under {client!r}")
    return row


def applied_to_json(table: TableSave, sessions: int) -> str:
    """Encode a `TableSave` without its session rows but with their number, so that a missing row is noticed."""
    fields = {
        "applied_id": table.applied_id,
        "horizon_ms": table.horizon_ms,
        "members": table.members,
        "members_id": table.members_id,
        "settings": table.settings,
        "trim_lsn": table.trim_lsn,
        "cursors": table.cursors,
        "ahead": table.ahead,
        "sessions": sessions,
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def applied_from_json(text: str, checksum: int) -> dict[str, Any]:
    """Decode what `applied_to_json` encoded. Raises `DamagedRow`."""
    if type(text) is not str or text_checksum(text) != checksum:
        raise DamagedRow("the applied state does not match its checksum")
    fields: dict[str, Any] = json.loads(text)
    fields["cursors"] = tuple((name, lsn) for name, lsn in fields["cursors"])
    return fields
