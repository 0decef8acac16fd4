"""Logs that hold a replicated state, among other payloads; and what plain code makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from jobs_kit import FileServers
from spark_kit import FileLog, rows_in

from alpo.core.entries import split_payloads
from alpo.spark import folded as folding
from alpo.spark import states
from alpo.spark.jobs import archiving
from alpo.spark.jobs.fan import run_here
from alpo.spark.options import ReadOptions
from alpo.spark.reading import end_of, origin_of
from alpo.state import codec
from alpo.state.codec import Guard, Limits, Op
from alpo.state.machine import Machine
from alpo.state.parts import Encoder

ID = b"s" * 16
FOUND = codec.found(ID, Limits())
Row = dict[str, Any]


def do(*ops: Op, guards: Sequence[Guard] = (), bytes_max: int = 1 << 20) -> list[bytes]:
    """The payloads of a command, one entry."""
    return codec.command(guards, ops, bytes_max)


def put(name: str, value: bytes, lease_ms: int = 0) -> Op:
    return 0, name, value, lease_ms


#: Entries of a log, a millisecond after each other: foreign payloads, rows, leases, a command of several payloads.
STORY: list[list[bytes]] = [
    [b"not of a state"], [], [FOUND],
    do(put("a", b"one"), put("empty", b"")),  # 3
    [b"\xc1", b"", b"{}"],  # 4 … 6
    do(put("lock", b"me", 4)), do(put("kept", b"us", 4)),  # 7, 8
    do(put("a\0r1", b"first"), put("a\0r2", b"\xff\xfe"), guards=[(0, "a", 3)]),  # 9
    do((2, "kept", 100)), [b"the lock lapses here, by the log's clock"],  # 10, 11
    do(put("großes", b"x" * 3000), put("b", b"y" * 2000), bytes_max=2048),  # 12 … 17
    do(put("a", b"refused"), guards=[(0, "a", 1)]),  # 18
    do((3, "n", 41)), do((3, "n", 1)), do((1, "empty")), [b"\xc1\x41\x01broken"],  # 19 … 22
]
END, FOUNDED, MIDDLE = 22, 2, 14


def story(directory: Path) -> FileLog:
    log = FileLog(directory)
    log.append(STORY)
    return log


def payloads_of(log: FileLog) -> Iterator[tuple[int, int, bytes]]:
    """(LSN, time in ms, payload) of all payloads."""
    for entry in log.entries:
        if entry.count:
            yield from (
                (lsn, entry.time_ms, payload)
                for lsn, payload in enumerate(split_payloads(entry.count, entry.body), entry.lsn)
            )


def machine_at(log: FileLog, lsn: int) -> Machine:
    """The machine that has folded all payloads up to ``lsn``, trimmed or not."""
    machine = Machine()
    for at, time_ms, payload in payloads_of(log):
        if at <= lsn:
            machine.apply(at, time_ms, payload)
    assert machine.lsn == lsn
    return machine


def snapshot_at_end(log: FileLog, sid: bytes = b"u" * 16, part_bytes: int = 800) -> list[bytes]:
    """The payloads of a snapshot of the state as it stands, to be appended, the first at once."""
    begin = codec.begin(sid)
    last = log.entries[-1]
    machine = machine_at(log, last.lsn + last.count - 1)
    machine.apply(machine.lsn + 1, last.time_ms + 1, begin)
    encoder = Encoder(machine.freeze(), part_bytes)
    parts = [codec.part(sid, index, part) for index, part in enumerate(encoder)]
    return [begin, *parts, codec.end(sid, encoder.parts, encoder.chain, encoder.digest)]


def folded(log: FileLog, lsn: int) -> list[Row]:
    """The rows of the state as of ``lsn``, by the machine alone."""
    rows = []
    for name, cell in sorted(machine_at(log, lsn).cells.items()):
        owner, _, row = name.partition("\0")
        rows.append({
            "name": name, "owner": owner if row else None, "row": row or None, "version": cell.version,
            "created": cell.created, "time": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=cell.time_ms),
            "lease_s": cell.lease_ms / 1000 or None, "value": cell.value,
            "text": None if b"\xff" in cell.value else cell.value.decode(), "state_id": ID.hex(), "as_of_lsn": lsn,
        })
    return rows


def state(columns: Sequence[str] = states.ARROW.names, /, **given: object) -> list[Row]:
    """A read of the state, as Spark does it."""
    options = ReadOptions.of({"state": "true", **{n: str(v) for n, v in given.items()}}, streaming=False)
    origin = origin_of(options)
    extent = origin.extent()
    found = folding.state_at(origin, extent, end_of(options, origin, extent))
    batches = list(states.batches_of(found, columns))
    return [dict(zip(columns, row, strict=True)) for batch in batches for row in rows_in(batch)]


def archived(path: str, to: Path, upto: int) -> None:
    """An archive of the payloads 1 … ``upto``."""
    servers: Any = FileServers({1: path, 2: path})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archiving, "members_of", lambda *_: servers.members())
        archiving.archive(servers, to, 10, upto, run_here)
