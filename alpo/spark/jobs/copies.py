"""Copies of one log in an audit: running servers, data directories, backups; and the jobs' requests to a cluster: its
members, its slowest cursor, and to trim.

Laws:

* A copy vouches for its entries from the first one it holds to its guaranteed mark; later entries may differ.
* All copies give the same digest for the same entries (`alpo.storage.scrub`); it covers every field. Servers compute
  it themselves: no payload is sent.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from alpo import offline
from alpo.client.connection import Connection, Lost
from alpo.client.log import Log, connect
from alpo.client.operator.status import MemberStatus
from alpo.client.servers import Servers
from alpo.core.entries import Entry
from alpo.core.requests import Code
from alpo.errors import AlpoError, Unavailable
from alpo.offline import DamagedAt, Source, Span, StoreError, open_source
from alpo.tls import Tls, tls_given
from alpo.wire import requests as w

from ..files import FileOrigin
from ..live import ServerOrigin, place_of
from ..origin import Origin, SourceError

T = TypeVar("T")

#: Seconds until servers are asked again, and how often one that does not answer is asked while another does.
_PAUSE_S, _TRIES = 0.25, 3


class Member(NamedTuple):
    """A member's status. ``id`` is None for an address where no server answers; 0 and "" if unknown. ``problem``: the
    reason why it does not answer."""

    id: int | None
    address: str
    reachable: bool
    votes: bool
    cluster: str
    guaranteed_id: int
    first_lsn: int
    last_lsn: int
    problem: str = ""


def members_of(servers: tuple[str, ...], timeout_s: float, log: str = "") -> list[Member]:
    """The status of every member. Raises `SourceError` if none answers in time, or they belong to several clusters.
    ``log``: the log's name, "" for the first."""
    async def ask(log: Log) -> list[MemberStatus]:
        until_s, tries = anyio.current_time() + timeout_s, 1
        while True:
            rows = await log.status()
            answers = [row["reachable"] for row in rows]
            if all(answers) or (any(answers) and tries >= _TRIES) or anyio.current_time() >= until_s:
                return rows
            tries += 1
            await anyio.sleep(_PAUSE_S)

    members = [_member(dict(row)) for row in _ask(servers, timeout_s, ask, log)]
    clusters = {member.cluster for member in members if member.reachable}
    if not clusters:
        why = "; ".join(dict.fromkeys(member.problem for member in members))
        raise SourceError(f"no server of {','.join(servers)} answers within {timeout_s:g} s: {why}")
    if len(clusters) > 1:
        raise SourceError(f"{','.join(servers)} are of several clusters: {', '.join(sorted(clusters))}")
    return members


def _member(row: dict[str, Any]) -> Member:
    return Member(
        row["id"], row["address"], row["reachable"], row["status"] == "VOTING", row.get("cluster") or "",
        row["guaranteed_id"] or 0, row["first_lsn"] or 0, row["last_lsn"] or 0, row.get("problem") or "",
    )


def slowest_cursor(servers: tuple[str, ...], timeout_s: float, log: str = "") -> tuple[str, int] | None:
    """Name and LSN of the cursor furthest behind; None without cursors. Raises `SourceError`."""
    found = _ask(servers, timeout_s, lambda log: log.cursors(), log)
    return min(((one.name, one.lsn) for one in found), key=lambda one: one[1], default=None)


def trim(servers: tuple[str, ...], before_lsn: int, timeout_s: float, log: str = "") -> int:
    """Trim the log; returns the first LSN that is now served. Raises `SourceError`."""
    return _ask(servers, timeout_s, lambda log: log.trim(before_lsn), log)


def _ask(servers: tuple[str, ...], timeout_s: float, what: Callable[[Log], Awaitable[T]], name: str) -> T:
    async def ask() -> T:
        async with connect(servers, timeout_s=timeout_s, log=name) as log:
            return await what(log)

    try:
        return anyio.run(ask, backend="trio")
    except AlpoError as error:
        raise SourceError(f"{place_of(servers, name)}: {error}") from error


_BACKEND = "trio"
#: Seconds to wait for a digest: a server makes one at a time, each within a second.
_ANSWER_S = 30.0
_TRIES = 3


class DamagedCopy(SourceError):
    """Entry ``id`` of the copy is damaged or missing."""

    def __init__(self, id: int, why: str) -> None:
        super().__init__(why)
        self.id = id


class Look(Protocol):
    """A copy that is open for reading."""

    def digest(self, first_id: int, last_id: int) -> Span:
        """Digest of as many of these entries as one answer covers, at least one. If the first entries were cleaned, it
        begins later, and may be empty. Raises `DamagedCopy`, `SourceError`."""

    def entry(self, id: int) -> Entry | None:
        """The entry itself, if the copy can give it. Raises `SourceError`."""


class Copy(Protocol):
    """One copy, which vouches for entries ``first_id`` … ``end_id``. Can be pickled."""

    @property
    def name(self) -> str: ...

    @property
    def first_id(self) -> int: ...

    @property
    def end_id(self) -> int: ...

    @property
    def cluster(self) -> str: ...

    def open(self) -> AbstractContextManager[Look]: ...

    def origin(self) -> Origin: ...


@dataclass(frozen=True)
class FileCopy:
    """A data directory or a backup at ``path``."""

    path: str
    cluster: str
    first_id: int
    end_id: int

    @staticmethod
    def of(path: str) -> FileCopy:
        """The copy as it is now. Raises `SourceError`."""
        with _errors(), open_source(Path(path)) as source:
            summary = source.summary()
        if summary.hard is None or not summary.hard.cluster or summary.base is None:
            raise SourceError(f"{path} belongs to no cluster: {'; '.join(summary.damage) or 'it is new'}")
        end_id = max(summary.base.id, min(summary.guaranteed_id, summary.end_id))
        return FileCopy(path, summary.hard.cluster.hex(), summary.first_id, end_id)

    @property
    def name(self) -> str:
        return self.path

    def origin(self) -> Origin:
        return FileOrigin(self.path)

    @contextmanager
    def open(self) -> Iterator[FileLook]:
        with _errors(), open_source(Path(self.path)) as source:
            yield FileLook(source)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise SourceError(str(error)) from error


class FileLook:
    """`Look` of a file."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def digest(self, first_id: int, last_id: int) -> Span:
        try:
            return offline.digest(self.source, first_id, last_id)
        except DamagedAt as error:
            raise DamagedCopy(error.id, str(error)) from error

    def entry(self, id: int) -> Entry | None:
        return self.source.read(id, id)[0]


@dataclass(frozen=True)
class ServerCopy:
    """Server ``id`` of those at ``servers``. ``log``: the log's name, "" for the first."""

    servers: tuple[str, ...]
    id: int
    cluster: str
    first_id: int
    end_id: int
    timeout_s: float
    tls: Tls | None = None
    log: str = ""

    @staticmethod
    def of(servers: tuple[str, ...], member: Member, timeout_s: float, log: str = "") -> ServerCopy:
        """The copy as it is now. Raises `SourceError`."""
        assert member.id is not None
        tls = tls_given(os.environ)  # the driver's own: executors show and trust the same files
        copy = ServerCopy(servers, member.id, member.cluster, 1, member.guaranteed_id, timeout_s, tls, log)
        with copy.open() as look:
            first_id = look.digest(1, 1).first_id  # the answer begins where the log does
        return replace(copy, first_id=first_id)

    @property
    def name(self) -> str:
        return f"server {self.id}"

    def origin(self) -> Origin:
        return ServerOrigin(self.servers, str(self.id), self.timeout_s, self.cluster, self.tls, self.log)

    @contextmanager
    def open(self) -> Iterator[ServerLook]:
        with start_blocking_portal(_BACKEND) as portal:
            look = ServerLook(self, portal)
            try:
                yield look
            finally:
                look.close()


class ServerLook:
    """`Look` of a server, over one connection at a time."""

    def __init__(self, copy: ServerCopy, portal: BlockingPortal) -> None:
        self._copy = copy
        self._portal = portal
        self._servers = Servers(copy.servers, cluster=bytes.fromhex(copy.cluster), tls=copy.tls, log=copy.log)
        self._connection: Connection | None = None

    def digest(self, first_id: int, last_id: int) -> Span:
        answer = self._portal.call(self._ask, first_id, last_id)
        if isinstance(answer, w.DigestIs):
            return Span(*answer[1:], 0)
        if isinstance(answer, w.RequestRefused) and answer.code == Code.NOT_READY:
            if first_id <= answer.number <= last_id:
                raise DamagedCopy(answer.number, answer.detail)
        why = answer.detail if isinstance(answer, w.RequestRefused) else f"it answers {type(answer).__name__}"
        raise SourceError(f"{self._copy.name} gives no digest of entries {first_id} to {last_id}: {why}")

    def entry(self, id: int) -> Entry | None:
        return None

    async def _ask(self, first_id: int, last_id: int) -> Any:
        reason: AlpoError = Unavailable(f"{self._copy.name} does not answer within {_ANSWER_S:g} s")
        for _ in range(_TRIES):
            try:
                with anyio.move_on_after(_ANSWER_S):
                    self._connection = self._connection or await self._servers.any(self._copy.id)
                    return await self._connection.ask(lambda number: w.RangeDigest(number, first_id, last_id))
            except Lost as lost:
                reason = lost.reason
            self._drop()
        raise SourceError(str(reason)) from reason

    def _drop(self) -> None:
        if self._connection is not None:
            self._servers.drop(self._connection)
            self._connection = None

    def close(self) -> None:
        self._portal.call(_in_loop(self._servers.close))


def _in_loop(do: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        do()

    return run
