"""`alpo read`: guaranteed payloads in order, one a line, as JSON, or raw.

Laws: what was read is written whole pages at a time; the reader's pace is ours; reads never end 3.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import alpo
from alpo import Record

from . import running
from .options import Target
from .output import Sink, escape_bytes, json_line, payload_fields, rfc3339


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for; LSNs inclusive, None where not given."""

    start: int | None = None
    stop: int | None = None
    limit: int | None = None
    last: int | None = None
    since: datetime | None = None
    client: str | None = None
    raw: bool = False
    follow: bool = False
    local: bool = False
    server: int | None = None


def line_format(as_json: bool, raw: bool, terminal: bool) -> Callable[[Record], bytes]:
    """How one record is written: JSON, raw bytes without separators, or a line."""
    if as_json:
        return lambda record: (json_line(record_fields(record)) + "\n").encode()
    if raw:
        return lambda record: record.payload
    if terminal:
        return lambda record: (escape_bytes(record.payload) + "\n").encode()
    return lambda record: record.payload + b"\n"


def record_fields(record: Record) -> dict[str, Any]:
    """The JSON keys of a record."""
    return {
        "lsn": record.lsn, "id": record.id, "term": record.term, "time": rfc3339(record.time),
        "client": record.client, "serial": record.serial, **payload_fields(record.payload),
    }


def clip(records: Sequence[Record], stop: int | None, left: int | None) -> tuple[Sequence[Record], bool]:
    """Of one page what is wanted, up to LSN ``stop`` and at most ``left``; and whether that was all there will be."""
    done = False
    if stop is not None and records and records[-1].lsn >= stop:
        records = [record for record in records if record.lsn <= stop]
        done = True
    if left is not None and len(records) >= left:
        records, done = records[:left], True
    return records, done


def pages(log: alpo.Log, wanted: Wanted) -> AsyncIterator[list[Record]]:
    """The library's own pages for what is wanted."""
    options: dict[str, Any] = {
        "local": wanted.local, "server": wanted.server, "last": wanted.last, "since": wanted.since,
        "client": wanted.client,
    }
    if wanted.follow:
        return log.follow_batches(wanted.start, **options)
    return log.read_batches(wanted.start, wanted.stop, **options)


async def read(target: Target, wanted: Wanted, sink: Sink) -> None:
    """Write what is wanted to the sink. Raises what the library raises, and BrokenPipeError."""
    if wanted.limit == 0 or wanted.last == 0:
        return
    write = line_format(target.json, wanted.raw, sink.terminal)
    left = wanted.limit
    async with alpo.connect(",".join(target.servers), timeout_s=target.timeout_s) as log:
        async with aclosing(pages(log, wanted)) as stream:  # type: ignore[type-var]
            async for page in stream:
                records, done = clip(page, wanted.stop, left)
                left = None if left is None else left - len(records)
                await sink.write(b"".join(map(write, records)))
                if done:
                    return


def run(target: Target, wanted: Wanted) -> None:
    """Ctrl-C is the way to end a follow; any other read is then incomplete."""
    try:
        running.run(read, target, wanted, Sink())
    except KeyboardInterrupt:
        if not wanted.follow:
            raise
