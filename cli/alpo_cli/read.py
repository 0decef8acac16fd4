"""`alpo read`: guaranteed payloads in order, one a line or in another form (`record_format`).

Laws: what was read is written whole pages at a time; the reader's pace is ours; reads never end 3.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import alpo
from alpo import Record

from . import running
from .connecting import connected
from .options import Target
from .output import Sink
from .record_format import PLAIN, Style


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for; LSNs inclusive, None where not given."""

    start: int | None = None
    stop: int | None = None
    limit: int | None = None
    last: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    client: str | None = None
    style: Style = PLAIN
    follow: bool = False
    local: bool = False
    server: int | None = None


def clip(
    records: Sequence[Record], stop: int | None, left: int | None, until: datetime | None = None
) -> tuple[Sequence[Record], bool]:
    """Of one page what is wanted, up to LSN ``stop``, of time ``until`` or earlier and at most ``left``; and whether
    that was all there will be."""
    done = False
    if until is not None and records and records[-1].time > until:  # times never go back
        records = [record for record in records if record.time <= until]
        done = True
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
    write, head = wanted.style.writer(sink.terminal), wanted.style.head()
    if wanted.limit == 0 or wanted.last == 0:
        return await sink.write(head)
    left = wanted.limit
    async with connected(target) as log:
        async with aclosing(pages(log, wanted)) as stream:  # type: ignore[type-var]
            async for page in stream:
                records, done = clip(page, wanted.stop, left, wanted.until)
                left = None if left is None else left - len(records)
                await sink.write(head + write(records))
                head = b""
                if done:
                    return
    await sink.write(head)


def run(target: Target, wanted: Wanted) -> None:
    """Ctrl-C is the way to end a follow; any other read is then incomplete."""
    try:
        running.run(read, target, wanted, Sink())
    except KeyboardInterrupt:
        if not wanted.follow:
            raise
