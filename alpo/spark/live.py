"""Read from live servers: each range from one replica, continued at the next one if that fails.

All replicas have the same guaranteed entries, so any may answer. For a range planned up to an LSN, a replica that is
behind waits until it has reached that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import anyio
from anyio.from_thread import start_blocking_portal

from alpo.client.log import connect
from alpo.client.pages import ColumnPages, Query
from alpo.client.servers import Servers
from alpo.errors import AlpoError, OutOfRange, Unavailable
from alpo.tls import Tls

from .origin import DataLoss, Extent, SourceError, Stretch

T = TypeVar("T")

_BACKEND = "trio"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Seconds that one replica may take for a page before the range continues with another.
_REPLICA_S = 5.0


@dataclass(frozen=True)
class ServerOrigin:
    """Live servers of a cluster. ``servers``: HOST:PORT each; ``read_from``: "any", "leader", or a server's id;
    ``cluster``: hex id of the only acceptable one, or ""."""

    servers: tuple[str, ...]
    read_from: str = "any"
    timeout_s: float = 30.0
    cluster: str = ""
    tls: Tls | None = None

    @property
    def where(self) -> str:
        return f"the cluster at {','.join(self.servers)}"

    def extent(self) -> Extent:
        rows = self._reachable()
        return Extent(
            rows[0]["cluster"], min(row["first_lsn"] for row in rows), max(row["last_lsn"] for row in rows) + 1
        )

    def _reachable(self) -> list[dict[str, Any]]:
        async def ask() -> list[dict[str, Any]]:
            async with connect(self.servers, timeout_s=self.timeout_s, tls=self.tls) as log:
                return [dict(row) for row in await log.status()]

        rows = [row for row in self._run(ask) if row["reachable"] and row["status"] == "VOTING"]
        clusters = {row["cluster"] for row in rows}
        if not rows:
            raise SourceError(f"{self.where}: no server answers within {self.timeout_s:g} s")
        if clusters != {self.cluster or rows[0]["cluster"]}:
            raise SourceError(f"{self.where} is cluster {', '.join(sorted(clusters))}, not {self.cluster}")
        return rows

    def lsn_since(self, time_ms: int) -> int:
        async def ask() -> int | None:
            async with connect(self.servers, timeout_s=self.timeout_s, tls=self.tls) as log:
                async with log.read(since=_EPOCH + timedelta(milliseconds=time_ms)) as records:
                    async for record in records:
                        return record.lsn
            return None

        found = self._run(ask)
        return self.extent().next_lsn if found is None else found

    def _run(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return anyio.run(ask, backend=_BACKEND)
        except AlpoError as error:
            raise SourceError(f"{self.where}: {error}") from error

    def pages(self, first_lsn: int, last_lsn: int, turn: int) -> Iterator[Stretch]:
        gone = troubles = 0
        why = ""
        replicas = self._replicas(turn)
        while first_lsn <= last_lsn:
            replica = replicas[troubles % len(replicas)]
            try:
                for page in self._pages_of(replica, first_lsn, last_lsn):
                    yield page
                    if page.ids:
                        first_lsn = page.next_lsn
            except OutOfRange as error:
                gone, why = max(gone, 1), str(error)
            except Unavailable as error:
                why = str(error)
            troubles += 1
            if first_lsn <= last_lsn and troubles >= 2 * len(replicas):
                extent = self.extent()
                if gone and first_lsn < extent.first_lsn:
                    raise DataLoss(first_lsn, min(last_lsn, extent.first_lsn - 1), self.where)
                raise SourceError(f"{self.where}: no replica could give LSN {first_lsn}: {why}")

    def _replicas(self, turn: int) -> list[int | None]:
        """Servers in the order in which this range asks them; None: the leader."""
        if self.read_from == "leader":
            return [None]
        ids = sorted(row["id"] for row in self._reachable())
        if self.read_from != "any":
            return [int(self.read_from)]
        turn %= len(ids)
        return [*ids[turn:], *ids[:turn]]

    def _pages_of(self, replica: int | None, first_lsn: int, last_lsn: int) -> Iterator[Stretch]:
        local = replica is not None
        query = Query(first_lsn, last_lsn, local, replica, 0, 0, "", False)
        servers = Servers(self.servers, cluster=bytes.fromhex(self.cluster), tls=self.tls)
        with start_blocking_portal(_BACKEND) as portal:
            pages = ColumnPages(servers, query, min(_REPLICA_S, self.timeout_s) if local else self.timeout_s)
            try:
                while not pages.over:
                    portal.call(pages.__anext__)
                    yield Stretch._make(pages.columns).within(first_lsn, last_lsn)
            finally:
                portal.call(pages.aclose)
                portal.call(_close, servers)


async def _close(servers: Servers) -> None:
    servers.close()
