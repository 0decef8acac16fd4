"""A log in memory with named sessions as the cluster keeps them (R21, R22), for the sink's tests; breaks on demand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from alpo.errors import Fenced, Skipped
from alpo.spark.committing import Chunk


class Crash(BaseException):
    """The end of the driver. No code catches it."""


class FakeLog:
    """Entries in order; ``crash_after`` appends more the driver that appends dies."""

    def __init__(self, batch_bytes_max: int = 500) -> None:
        self.entries: list[list[bytes]] = []
        self.epochs: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.held: dict[tuple[str, int], list[bytes]] = {}
        self.cluster = "aa"
        self.batch_bytes_max = batch_bytes_max
        self.crash_after: int | None = None

    @property
    def payloads(self) -> list[bytes]:
        return [payload for entry in self.entries for payload in entry]

    @asynccontextmanager
    async def open(self, client: str | None, cluster: str) -> AsyncIterator[FakeWriter]:
        assert cluster in ("", self.cluster)
        name = "~" if client is None else client
        self.epochs[name] = self.epochs.get(name, 0) + 1
        yield FakeWriter(self, name, self.epochs[name], 0 if client is None else self.last.get(name, 0))


class FakeWriter:
    """One session, open."""

    def __init__(self, log: FakeLog, name: str, epoch: int, last_serial: int) -> None:
        self._log, self._name, self._epoch = log, name, epoch
        self.cluster = log.cluster
        self.last_serial = last_serial
        self.payload_bytes_max = self.batch_bytes_max = log.batch_bytes_max

    async def append(self, chunks: Iterable[Chunk]) -> None:
        for serial, chunk in chunks:
            if self._log.crash_after == 0:
                raise Crash
            if self._log.epochs[self._name] != self._epoch:
                raise Fenced("a newer process", epoch=self._log.epochs[self._name])
            assert len(chunk) == 1 or sum(map(len, chunk)) + 4 * len(chunk) <= self._log.batch_bytes_max
            if serial is not None:
                if serial <= self._log.last.get(self._name, 0):
                    raise Skipped("an older serial")
                self._log.last[self._name] = serial
                self._log.held[self._name, serial] = chunk
            self._log.entries.append(chunk)
            if self._log.crash_after is not None:
                self._log.crash_after -= 1

    async def held(self, serial: int) -> list[bytes]:
        return self._log.held.get((self._name, serial), [])
