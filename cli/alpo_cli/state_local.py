"""A log as one server has it, for `alpo state get --local`: nothing is asked of a leader."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

import alpo
from alpo.client.reading import Batches, StopEvent
from alpo.client.servers import Servers, given_servers, given_tls
from alpo.errors import Unavailable


class LocalLog(alpo.Log):
    """A log that is read from the server that has most of it, and ends where that one stood at `choose`."""

    _server: int | None = None
    _end_lsn = 0

    @classmethod
    def of(cls, servers: str, timeout_s: float) -> Self:
        """The log of these servers, as `alpo.connect` gives one."""
        return cls(Servers(given_servers(servers), tls=given_tls(None)), None, timeout_s, 1, 1)

    async def choose(self) -> None:
        """Find the server that has most of the log, of those that answer. Raises `Unavailable`."""
        ends = [(row["last_lsn"] or 0, row["id"]) for row in await self.status() if row["reachable"]]
        if not ends:
            raise Unavailable("no server answers")
        self._end_lsn, self._server = max(ends, key=lambda end: end[0])

    async def end(self, timeout_s: float | None = None) -> int:
        """The LSN after the last one that the server had."""
        return self._end_lsn + 1

    async def cursors(self, timeout_s: float | None = None) -> list[alpo.CursorInfo]:
        """No cursors: the leader alone knows them."""
        return []

    def read_batches(
        self, start: int | None = None, stop: int | None = None, *, local: bool = True, server: int | None = None,
        last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> Batches:
        """Read as `alpo.Log` does, from that server."""
        return super().read_batches(
            start, stop, local=True, server=self._server, last=last, since=since, client=client, timeout_s=timeout_s)

    def follow_batches(
        self, start: int | Literal["end"] | None = None, *, stop: StopEvent | None = None, local: bool = True,
        server: int | None = None, last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> Batches:
        """Follow as `alpo.Log` does, from that server."""
        return super().follow_batches(
            start, stop=stop, local=True, server=self._server, last=last, since=since, client=client,
            timeout_s=timeout_s)
