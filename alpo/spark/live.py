"""Read from live servers: each range from one replica, continued at the next one if that fails.

All replicas have the same guaranteed entries, so any may answer. For a range planned up to an LSN, a replica that is
behind waits until it has reached that. Where the log begins and ends is asked of the leader, until it answers or the
time is up: no server that is silent holds a read up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import anyio
from anyio.from_thread import start_blocking_portal

from alpo.client.connection import Connection, Lost
from alpo.client.log import Log, connect
from alpo.client.operator.asking import at_leader, probe_read, unwelcome
from alpo.client.operator.status import account
from alpo.client.pages import ColumnPages, Query
from alpo.client.retry import Again
from alpo.client.servers import Servers
from alpo.core.members import Role
from alpo.errors import AlpoError, NoSpace, OutOfRange, Overloaded, Unavailable
from alpo.tls import Tls
from alpo.wire.requests import Page

from .origin import DataLoss, Extent, SourceError, Stretch

T = TypeVar("T")

logger = logging.getLogger("alpo")

_BACKEND = "trio"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Seconds that one replica may take for a page before the range continues with another.
_REPLICA_S = 5.0
#: Seconds that one replica may take to answer at all, doubled so often, with each round of all replicas; pause between
#: rounds.
_HELLO_S, _DOUBLED_MAX, _PAUSE_S = 1.0, 10, 0.25


def place_of(servers: tuple[str, ...], log: str) -> str:
    """Name of a log of these servers in messages."""
    cluster = f"the cluster at {','.join(servers)}"
    return f"log {log} of {cluster}" if log else cluster


@dataclass(frozen=True)
class ServerOrigin:
    """Live servers of a cluster. ``servers``: HOST:PORT each; ``read_from``: "any", "leader", or a server's id;
    ``cluster``: hex id of the only acceptable one, or ""; ``log``: the log's name, "" for the first."""

    servers: tuple[str, ...]
    read_from: str = "any"
    timeout_s: float = 30.0
    cluster: str = ""
    tls: Tls | None = None
    log: str = ""

    @property
    def where(self) -> str:
        return place_of(self.servers, self.log)

    def extent(self) -> Extent:
        async def ask(servers: Servers, leader: Connection) -> Page:
            answer = await leader.ask(probe_read)
            if isinstance(answer, Page):
                return answer
            raise unwelcome(servers, answer)

        page, servers = self._of_leader(ask)
        if self.read_from.isdecimal() and int(self.read_from) not in servers.members:
            ids = ", ".join(map(str, sorted(servers.members)))
            raise SourceError(f"{self.where} has no server {self.read_from} to read from (readFrom); it has {ids}")
        return Extent(servers.cluster.hex(), page.first_lsn, page.end_lsn + 1)

    def _of_leader(self, ask: Callable[[Servers, Connection], Awaitable[T]]) -> tuple[T, Servers]:
        """The leader's answer, and the servers as they are then (closed). Raises `SourceError`."""
        async def until_told() -> tuple[T, Servers]:
            servers = Servers(self.servers, tls=self.tls, log=self.log)
            try:
                return await at_leader(servers, lambda leader: ask(servers, leader), self.timeout_s), servers
            finally:
                servers.close()

        answer, servers = self._run(until_told)
        if servers.cluster.hex() != (self.cluster or servers.cluster.hex()):
            raise SourceError(f"{self.where} is cluster {servers.cluster.hex()}, not {self.cluster}")
        return answer, servers

    def lsn_since(self, time_ms: int) -> int:
        async def ask() -> int | None:
            async with self._connect() as log:
                async with log.read(since=_EPOCH + timedelta(milliseconds=time_ms)) as records:
                    async for record in records:
                        return record.lsn
            return None

        found = self._run(ask)
        return self.extent().next_lsn if found is None else found

    def move_cursor(self, name: str, lsn: int) -> bool:
        """Have the cluster keep what comes from ``lsn`` on for the reader ``name``. False, with a warning, if nobody
        answers or all are too busy, or if the log does not hold ``lsn`` any more. Raises `SourceError`."""
        async def ask() -> bool:
            try:
                async with self._connect() as log:
                    await log.set_cursor(name, lsn)
                    return True
            except (Unavailable, Overloaded, NoSpace, OutOfRange) as error:
                logger.warning("the cursor %s was not moved to LSN %d: %s", name, lsn, error)
                return False

        return self._run(ask)

    def _connect(self) -> Log:
        return connect(self.servers, timeout_s=self.timeout_s, tls=self.tls, log=self.log)

    def _run(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return anyio.run(ask, backend=_BACKEND)
        except AlpoError as error:
            raise SourceError(f"{self.where}: {error}") from error

    def pages(self, first_lsn: int, last_lsn: int, turn: int) -> Iterator[Stretch]:
        gone, troubles, why = False, 0, ""
        replicas = self._replicas(turn)
        until_s = time.monotonic() + self.timeout_s
        while first_lsn <= last_lsn:
            rounds, at = divmod(troubles, len(replicas))
            try:
                hello_s = _HELLO_S * 2 ** min(rounds, _DOUBLED_MAX)
                for page in self._pages_of(replicas[at], first_lsn, last_lsn, hello_s):
                    yield page
                    if page.ids:
                        first_lsn, until_s = page.next_lsn, time.monotonic() + self.timeout_s
            except OutOfRange as error:
                gone, why = True, str(error)
            except (Unavailable, Overloaded) as error:
                why = str(error)
            troubles += 1
            if first_lsn > last_lsn or troubles < 2 * len(replicas):
                continue
            if gone and first_lsn < (begins_lsn := self.extent().first_lsn):
                raise DataLoss(first_lsn, min(last_lsn, begins_lsn - 1), self.where)
            if time.monotonic() >= until_s:
                raise SourceError(f"{self.where}: no replica could give LSN {first_lsn}: {why}")
            time.sleep(_PAUSE_S)

    def _replicas(self, turn: int) -> list[int | None]:
        """Servers in the order in which this range asks them; None: the leader. Those that the leader cannot reach come
        last."""
        if self.read_from != "any":
            return [None if self.read_from == "leader" else int(self.read_from)]
        async def ask(servers: Servers, leader: Connection) -> dict[str, Any]:
            told = await account(leader)
            if not told:
                raise Again(Unavailable(f"{leader.address} gives no account of itself"))
            return told

        told, _ = self._of_leader(ask)
        ids: list[int | None] = sorted(one["id"] for one in told["members"] if one["role"] == Role.VOTER.name)
        silent = {peer["id"] for peer in told["peers"] if not peer["reachable"]}
        turn %= len(ids)
        return sorted([*ids[turn:], *ids[:turn]], key=silent.__contains__)

    def _pages_of(self, replica: int | None, first_lsn: int, last_lsn: int, hello_s: float) -> Iterator[Stretch]:
        query = Query(first_lsn, last_lsn, replica is not None, replica, 0, 0, "", False)
        servers = Servers(self.servers, cluster=bytes.fromhex(self.cluster), tls=self.tls, log=self.log)
        page_s = self.timeout_s if replica is None else min(_REPLICA_S, self.timeout_s)
        with start_blocking_portal(_BACKEND) as portal:
            pages = ColumnPages(servers, query, page_s)
            try:
                if replica is not None:
                    portal.call(_reach, servers, replica, min(hello_s, page_s))
                while not pages.over:
                    portal.call(pages.__anext__)
                    yield Stretch._make(pages.columns).within(first_lsn, last_lsn)
            finally:
                portal.call(pages.aclose)
                portal.call(_close, servers)


async def _reach(servers: Servers, replica: int, within_s: float) -> None:
    """Connect to a replica. Raises `Unavailable`."""
    try:
        with anyio.fail_after(within_s):
            servers.give_back(await servers.any(replica))
    except (Lost, TimeoutError) as error:
        raise Unavailable(str(error) or f"server {replica} does not answer") from error


async def _close(servers: Servers) -> None:
    servers.close()
