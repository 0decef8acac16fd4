"""Reading: pages of the log into records, one page ahead of the consumer.

Laws:

* The first page fixes where a read ends (R25, or R26 for a local one); every later page may come from any server, which
  waits until it has that much.
* A follower goes on at the LSN after the last one it gave, on whatever server: no gap, no repeat.
* Nothing is given twice and nothing skipped: a page that fails is asked for again, as a whole.
* An iterator owns its connection and uses it from the consumer's task alone: no task runs behind a reader's back.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from types import TracebackType
from typing import NamedTuple, Self

import anyio

from alpo.core.ready import Code
from alpo.errors import AlpoError, OutOfRange, Overloaded, Refused, Unavailable
from alpo.wire.requests import Page, Read, RequestRefused, ServerReply

from .connection import Connection, Lost
from .ids import NAME_BYTES_MAX
from .record import Record, records_of
from .servers import PAUSE_FIRST_S, PAUSE_MAX_S, Servers
from .verdicts import AWAY

PAGE_BYTES_MAX = 1 << 20
#: How long a server may wait for something new before it answers a follower with nothing.
POLL_MS = 1000
#: How long one server may take over a page before another is asked; doubles with every try.
ATTEMPT_S = 1.0
_NO_LSN = 1 << 63


class Query(NamedTuple):
    """What to read; 0 or "" for what is not restricted."""

    start: int
    stop: int
    local: bool
    server: int | None
    last: int
    since_ms: int
    client: str
    follow: bool

    @staticmethod
    def of(
        start: int | None, stop: int | None, local: bool, server: int | None, last: int | None,
        since: datetime | None, client: str | None, follow: bool,
    ) -> Query:
        """Check a caller's arguments. Raises ValueError."""
        for name, value in (("start", start), ("stop", stop), ("last", last)):
            if value is not None and value < (0 if name == "stop" else 1):
                raise ValueError(f"{name} must be positive, not {value}")
        if sum(value is not None for value in (start, last, since)) > 1:
            raise ValueError("only one of start, last and since can say where to begin")
        if server is not None and not local:
            raise ValueError("server goes with local=True: a linearizable read asks the leader")
        if client is not None and not 1 <= len(client.encode()) <= NAME_BYTES_MAX:
            raise ValueError(f"a client id is 1 to {NAME_BYTES_MAX} bytes")
        since_ms = 0
        if since is not None:
            if since.tzinfo is None:
                raise ValueError("since needs a time zone")
            since_ms = max(1, math.ceil(since.astimezone(UTC).timestamp() * 1000))
        return Query(start or 0, stop or 0, local, server, last or 0, since_ms, client or "", follow)


class Batches:
    """An iterator over lists of records, as `Log.read_batches` and `Log.follow_batches` return it.

    Close it (``aclose``, or ``async with``) when leaving early, or let the `Log` do so.
    """

    def __init__(self, servers: Servers, query: Query, timeout_s: float) -> None:
        if timeout_s <= 0:
            raise ValueError("timeout_s must be positive")
        self._servers = servers
        self._query = query
        self._timeout_s = timeout_s
        self._connection: Connection | None = None
        #: Number of the request under way on the connection; 0 for none.
        self._asked = 0
        #: Where to go on, and the fixed end; 0 until the first page has come.
        self._next_lsn = 0
        self._end_lsn = 0
        self._over = False
        self._avoid: str | None = None
        #: A follower's server had nothing new for a while: is it still the one to ask?
        self._doubt = False
        self._held: list[Record] = []

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give the connection back. The iterator is over."""
        self._over = True
        self._let_go()

    async def __anext__(self) -> list[Record]:
        while not self._over:
            try:
                page = await self._next_page()
            except BaseException:
                self._over = True
                self._drop()
                raise
            records = self._take(page)
            if records:
                return records
        self._let_go()
        raise StopAsyncIteration

    def _take(self, page: Page) -> list[Record]:
        """Move on by one page, ask for the next one, and only then unpack this one."""
        query = self._query
        first_lsn = self._next_lsn or _first_lsn(query, page)
        if not query.follow and self._next_lsn == 0:
            self._end_lsn = min(page.end_lsn, query.stop) if query.stop else page.end_lsn
        self._next_lsn = page.next_lsn
        self._doubt = query.follow and not query.local and not page.entries and not self._doubt
        if not query.follow and self._next_lsn > self._end_lsn:
            self._over = True
        elif self._connection is not None:
            try:
                self._send(self._connection)
            except Lost:
                self._drop()  # the next page is asked for elsewhere
        records = records_of(page.entries, first_lsn, _NO_LSN if query.follow else self._end_lsn)
        return self._last_of(records) if query.last and query.client and not query.follow else records

    def _last_of(self, records: list[Record]) -> list[Record]:
        """The last so many of one client: a batch may begin before them, so they are counted at the end."""
        self._held = (self._held + records)[-self._query.last :]
        return self._held if self._over else []

    async def _next_page(self) -> Page:
        attempt_s = ATTEMPT_S + (POLL_MS / 1000 if self._query.follow else 0)
        pause_s = 0.0
        reason: AlpoError | None = None
        try:
            with anyio.fail_after(self._timeout_s):
                while True:
                    reply: ServerReply | None = None
                    try:
                        with anyio.move_on_after(attempt_s):
                            reply = await self._exchange()
                    except Lost as lost:
                        reason = lost.reason
                    if isinstance(reply, Page) and self._moves_on(reply):
                        return reply
                    reason = self._failed(reply) or reason
                    attempt_s *= 2
                    await anyio.sleep(pause_s)
                    pause_s = min(max(pause_s * 2, PAUSE_FIRST_S), PAUSE_MAX_S)
        except TimeoutError as error:
            why = f": {reason}" if reason is not None else ""
            kind = Overloaded if isinstance(reason, Overloaded) else Unavailable
            raise kind(f"no server answered a read within {self._timeout_s:g} s{why}") from error

    def _moves_on(self, page: Page) -> bool:
        """Is this page an answer, or does its server only say that it is behind?"""
        self._asked = 0
        return self._query.follow or self._next_lsn == 0 or page.next_lsn > self._next_lsn

    async def _exchange(self) -> ServerReply:
        connection = self._connection
        if connection is None:
            if self._query.local or (self._next_lsn and not self._query.follow):
                connection = await self._servers.any(self._query.server, self._avoid)
            else:
                connection = await self._servers.leader(fresh=self._avoid is not None)
            self._connection = connection
        if self._asked == 0:
            self._send(connection)
        await connection.drain()
        return await connection.answer(self._asked)

    def _send(self, connection: Connection) -> None:
        query = self._query
        begun = self._next_lsn > 0
        self._asked = connection.next_request()
        connection.send(Read(
            self._asked,
            self._next_lsn if begun else query.start,
            self._end_lsn if begun else query.stop,
            0 if begun else query.last,
            0 if begun else query.since_ms,
            PAGE_BYTES_MAX,
            not query.local and (not begun or self._doubt),
            POLL_MS if begun else 0,
            query.client,
        ))

    def _failed(self, reply: ServerReply | None) -> AlpoError | None:
        """Another server, or the same after a while; why. Raises what no other server could better."""
        self._avoid = self._connection.address if self._connection is not None else None
        if isinstance(reply, RequestRefused):
            self._refused(reply)
        self._drop()
        if reply is None:
            return None
        return Unavailable(f"{self._avoid} could not serve the read")

    def _refused(self, reply: RequestRefused) -> None:
        if reply.code == Code.OUT_OF_RANGE:
            raise _out_of_range(reply.detail)
        if reply.code in AWAY:
            self._servers.hint = reply.leader_address or None
        elif reply.code == Code.INVALID:
            raise Refused(reply.detail or "the server takes no such read")

    def _let_go(self) -> None:
        if self._connection is not None and self._asked == 0 and not self._connection.backlog:
            connection, self._connection = self._connection, None
            self._servers.give_back(connection)
        else:
            self._drop()

    def _drop(self) -> None:
        self._asked = 0
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self._servers.drop(connection)


class Records:
    """An iterator over records, as `Log.read` and `Log.follow` return it."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._records: list[Record] = []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        if not self._records:
            self._records = await self._batches.__anext__()
            self._records.reverse()
        return self._records.pop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give the connection back. The iterator is over."""
        self._records = []
        await self._batches.aclose()


def _first_lsn(query: Query, page: Page) -> int:
    """Where the records of the first page begin: the entry that holds it comes whole."""
    if query.last:
        return 1 if query.client else page.end_lsn - query.last + 1
    return query.start or 1


def _out_of_range(detail: str) -> OutOfRange:
    first, _, last = detail.partition(",")
    try:
        first_lsn, last_lsn = int(first), int(last)
    except ValueError:
        first_lsn = last_lsn = 0
    span = f"{first_lsn} to {last_lsn}" if last_lsn >= first_lsn else "nothing"
    return OutOfRange(f"not in the log, which holds {span}", first_lsn=first_lsn, last_lsn=last_lsn)
