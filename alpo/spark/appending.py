"""Append payloads under a writer's own serials.

Laws:

* Entries go in order, and each is whole or absent.
* A serial encodes (batch, entry): ``(batch << BATCH_BITS) + n``, n from 1. Everything up to the session's last serial
  is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from alpo.addresses import parse_servers
from alpo.client.handle import Handle
from alpo.client.log import Log
from alpo.client.operator.members import Settings
from alpo.client.payloads import batch
from alpo.client.servers import Servers
from alpo.errors import AlpoError, OutOfRange

from .options import BATCH_BITS, WriteOptions
from .origin import SourceError
from .staging import LENGTH_BYTES, Part

#: Bytes of an entry if a batch needs several: as much as one frame holds, so that several are in flight at once.
ENTRY_BYTES = 256 << 10
UNDER_WAY_MAX = 32

#: (serial or None for the next one, payloads).
Chunk = tuple[int | None, list[bytes]]


class Writer(Protocol):
    """Open session of a cluster. ``last_serial``: the session's when it was opened."""

    cluster: str
    last_serial: int
    payload_bytes_max: int
    batch_bytes_max: int

    async def append(self, chunks: Iterable[Chunk]) -> None:
        """Append all, in order; returns when all are guaranteed. Raises `AlpoError`, especially `Fenced`."""

    async def held(self, serial: int) -> list[bytes]:
        """The payloads of the entry that this session appended under ``serial``; [] if they are gone. Raises
        `AlpoError`."""


#: (client name or None for a random one, hex id of the only acceptable cluster or "") -> a session.
OpenWriter = Callable[[str | None, str], AbstractAsyncContextManager[Writer]]


def cut(pieces: Iterable[list[bytes]], limit: int) -> Iterator[list[bytes]]:
    """Yield entries of up to ``limit`` bytes, with as many payloads as fit; a larger payload goes alone."""
    chunk: list[bytes] = []
    size = 0
    for piece in pieces:
        for payload in piece:
            takes = len(payload) + LENGTH_BYTES
            if chunk and size + takes > limit:
                yield chunk
                chunk, size = [], 0
            chunk.append(payload)
            size += takes
    if chunk:
        yield chunk


def limit_of(parts: Iterable[Part], writer: Writer) -> int:
    """Size limit of the entries for these parts: one entry for all if the cluster takes that.

    Raises `SourceError` for a payload that the cluster does not take, and if the batch needs too many entries.
    """
    parts = list(parts)
    largest = max((part.largest for part in parts), default=0)
    if largest > writer.payload_bytes_max:
        raise SourceError(f"a payload of {largest} bytes, where the cluster takes {writer.payload_bytes_max} at most")
    whole = sum(part.size for part in parts)
    if whole <= writer.batch_bytes_max:
        return whole
    limit = min(ENTRY_BYTES, writer.batch_bytes_max)
    # two neighbouring entries are together above the limit, so twice as many suffice
    if whole // limit >= 1 << BATCH_BITS - 1:
        raise SourceError(f"a batch of {whole >> 30} GiB takes more entries than can be numbered: make it smaller")
    return limit


def numbered(number: int, chunks: Iterable[list[bytes]], last_serial: int) -> Iterator[Chunk]:
    """Yield the entries of batch ``number`` above ``last_serial``, with their serials."""
    for serial, chunk in enumerate(chunks, (number << BATCH_BITS) + 1):
        if serial > last_serial:
            yield serial, chunk


class ClusterWriter:
    """A `Writer` over the client library."""

    def __init__(self, log: Log, cluster: str, last_serial: int, settings: Settings) -> None:
        self._log = log
        self.cluster = cluster
        self.last_serial = last_serial
        self.payload_bytes_max = settings["payload_bytes_max"]
        self.batch_bytes_max = settings["batch_bytes_max"]

    async def append(self, chunks: Iterable[Chunk]) -> None:
        under_way: deque[Handle] = deque()
        for serial, chunk in chunks:
            if len(under_way) == UNDER_WAY_MAX:
                await under_way.popleft()
            under_way.append(await self._log.enter(batch(chunk), serial, True, None))
        while under_way:
            await under_way.popleft()

    async def held(self, serial: int) -> list[bytes]:
        client, rows = str(self._log.client), []
        there = await self._log.outcome(client, serial)
        if there.lsn is None:
            return []
        try:
            async with self._log.read(there.lsn) as records:
                async for record in records:
                    if (record.client, record.serial) != (client, serial):
                        break
                    rows.append(record.payload)
        except OutOfRange:
            return []  # trimmed
        return rows


def opener(options: WriteOptions) -> OpenWriter:
    """Return a function that opens sessions of the cluster named in ``options``."""

    @asynccontextmanager
    async def open_writer(client: str | None, cluster: str) -> AsyncIterator[Writer]:
        servers = Servers(parse_servers(options.servers), cluster=bytes.fromhex(cluster), tls=options.tls)
        try:
            async with Log(servers, client, options.timeout_s, 2 * UNDER_WAY_MAX, 32 << 20) as log:
                settings = await log.settings()
                await log.opened()
                yield ClusterWriter(log, servers.cluster.hex(), log.last_serial, settings)
        except AlpoError as error:
            error.add_note(f"writing to {','.join(options.servers)}")
            raise

    return open_writer
