"""Payloads as entries of the log, appended under a writer's own serials; and what is needed of a cluster for that.

Laws:

* Entries go in order, and each is whole or not there.
* Serials name (batch, entry): ``(batch << BATCH_BITS) + n``, n from 1. What the session's last serial covers is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from alpo.addresses import parse_servers
from alpo.client.handle import Handle
from alpo.client.log import Log
from alpo.client.operator.settings import Settings
from alpo.client.payloads import batch
from alpo.client.servers import Servers
from alpo.errors import AlpoError

from .options import BATCH_BITS, WriteOptions
from .origin import SourceError
from .staging import LENGTH_BYTES, Part

#: Entries of a batch that does not fit in one: as much as goes into one frame, so that several are under way at once.
ENTRY_BYTES = 256 << 10
UNDER_WAY_MAX = 32

#: A serial (None: whichever is next) and its payloads.
Chunk = tuple[int | None, list[bytes]]


class Writer(Protocol):
    """A session of the cluster, open. ``last_serial``: as it was then."""

    cluster: str
    last_serial: int
    payload_bytes_max: int
    batch_bytes_max: int

    async def append(self, chunks: Iterable[Chunk]) -> None:
        """Append all, in order; returns when all are guaranteed. Raises `AlpoError`, `Fenced` above all."""


#: From a client name (None: a random one) and the only cluster (hex) that will do ("": any).
OpenWriter = Callable[[str | None, str], AbstractAsyncContextManager[Writer]]


def cut(pieces: Iterable[list[bytes]], limit: int) -> Iterator[list[bytes]]:
    """Payloads as entries of up to ``limit`` bytes, as many in each as fit; one that is larger goes alone."""
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
    """How large the entries of these parts are to be: one for all of them if the cluster takes that.

    Raises `SourceError` for a payload that the cluster does not take, and for far too many of them.
    """
    parts = list(parts)
    largest = max((part.largest for part in parts), default=0)
    if largest > writer.payload_bytes_max:
        raise SourceError(f"a payload of {largest} bytes, where the cluster takes {writer.payload_bytes_max} at most")
    whole = sum(part.size for part in parts)
    if whole <= writer.batch_bytes_max:
        return whole
    limit = min(ENTRY_BYTES, writer.batch_bytes_max)
    if whole // limit >= 1 << BATCH_BITS - 1:  # two neighbours are above the limit together, so twice that are enough
        raise SourceError(f"a batch of {whole >> 30} GiB takes more entries than can be numbered: make it smaller")
    return limit


def numbered(number: int, chunks: Iterable[list[bytes]], last_serial: int) -> Iterator[Chunk]:
    """The entries of batch ``number`` that ``last_serial`` does not cover."""
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


def opener(options: WriteOptions) -> OpenWriter:
    """Opens sessions of the cluster that the options name."""

    @asynccontextmanager
    async def open_writer(client: str | None, cluster: str) -> AsyncIterator[Writer]:
        servers = Servers(parse_servers(options.servers), cluster=bytes.fromhex(cluster))
        try:
            async with Log(servers, client, options.timeout_s, 2 * UNDER_WAY_MAX, 32 << 20) as log:
                settings = await log.settings()
                await log.opened()
                yield ClusterWriter(log, servers.cluster.hex(), log.last_serial, settings)
        except AlpoError as error:
            error.add_note(f"writing to {','.join(options.servers)}")
            raise

    return open_writer
