"""Pages of the log, as servers send them, asked for one page ahead of the consumer.

Laws:

* The first page fixes where a read ends: at the guaranteed end (R25), or for a local read where its server stands
  (R26). Every later page may come from any server, which waits until it has that much.
* A follower goes on at the LSN after the last one it gave, on whatever server: no gap, no repeat.
* Nothing is given twice, and nothing is skipped: a page that fails is asked for again, as a whole.
* An iterator uses its connection from the consumer's task alone: no task runs behind a reader's back. Between two pages
  the connection may be taken away, and the page that was asked for ahead comes from another.
* An iterator that is over, or that was garbage-collected, has no connection.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal, NamedTuple, Self

import anyio

from alpo.core.entries import CLIENT_BYTES_MAX
from alpo.core.requests import Code
from alpo.errors import Closed, NoSpace, OutOfRange, ProtocolError, Refused, Unavailable
from alpo.wire.framing import WireError
from alpo.wire.requests import (
    ColumnPage,
    Page,
    PageColumns,
    Read,
    ReadColumns,
    RequestRefused,
    ServerReply,
    unpack_page,
)

from .arguments import AsyncIterated, need_datetime, need_int, need_seconds, need_str
from .connection import Connection, Lost
from .reasons import AWAY, kind_of
from .record import PageEntry
from .retry import ATTEMPT_S, Again, retried
from .servers import Final, Servers

PAGE_BYTES_MAX = 1 << 20
#: Longest wait of a server for new payloads before it answers a following reader with an empty page.
POLL_MS = 1000
_NO_LSN = 1 << 63


class Query(NamedTuple):
    """A read: the payloads wanted; 0 or "" for what is not restricted. ``from_end``: only what comes after the end that
    the log has at first."""

    start: int
    stop: int
    local: bool
    server: int | None
    last: int
    since_ms: int
    client: str
    follow: bool
    from_end: bool = False

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._asdict().items() if value not in (0, "", None))

    @staticmethod
    def of(
        start: int | Literal["end"] | None, stop: int | None, local: bool, server: int | None, last: int | None,
        since: datetime | None, client: str | None, follow: bool,
    ) -> Query:
        """The query of a caller's arguments, checked. Raises TypeError, ValueError."""
        begins = [value for value in (start, last, since) if value is not None]
        from_end = start == "end"
        if isinstance(start, str):
            if not (from_end and follow):
                accepted = 'an LSN or "end"' if follow else "an LSN"
                raise ValueError(f"start is {accepted}, not {start!r}")
            start = None
        for name, value in (("start", start), ("stop", stop), ("last", last), ("server", server)):
            if value is None:
                continue
            need_int(**{name: value})
            if name != "server" and value < (0 if name == "stop" else 1):
                raise ValueError(f"{name} must be positive, not {value}")
        if len(begins) > 1:
            raise ValueError("only one of start, last and since can say where to begin")
        if last is not None and stop is not None:
            raise ValueError("last counts from the end: it does not go with stop")
        if server is not None and not local:
            raise ValueError("server goes with local=True: a linearizable read asks the leader")
        if client is not None:
            need_str(client=client)
        if client is not None and not 1 <= len(client.encode()) <= CLIENT_BYTES_MAX:
            raise ValueError(f"a client id is 1 to {CLIENT_BYTES_MAX} bytes")
        since_ms = 0
        if since is not None:
            need_datetime(since=since)
            if since.tzinfo is None:
                raise ValueError("since needs a time zone")
            since_ms = max(1, math.ceil(since.astimezone(UTC).timestamp() * 1000))
        return Query(start or 0, stop or 0, local, server, last or 0, since_ms, client or "", follow, from_end)


class Closing(AsyncIterated):
    """The base of iterators with a connection: ``async for``, ``async with`` and `aclose`, all but ``__anext__``."""

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the iterator and give its connection back."""
        raise NotImplementedError


class PagePart(NamedTuple):
    """Whole entries, as they came over the wire, of which payloads ``first_lsn`` … ``last_lsn`` were asked for."""

    entries: list[PageEntry]
    first_lsn: int
    last_lsn: int


class Pages(Closing):
    """An iterator over pages as they come; a page may be empty."""

    _ask: type[Read] | type[ReadColumns] = Read
    _connection: Connection | None = None

    def __init__(self, servers: Servers, query: Query, timeout_s: float) -> None:
        need_seconds(timeout_s)
        self._servers = servers
        self._query = query
        self._timeout_s = timeout_s
        #: Number of the request under way on the connection; 0 for none.
        self._asked = 0
        #: The first LSN of the next page, and the last of the read; 0 until the first page has come.
        self._next_lsn = 0
        self._end_lsn = 0
        self._over = False
        self._avoid: str | None = None
        #: True after an empty page of a following reader: the next request makes sure that its server leads.
        self._doubt = False
        #: Reason given by the last server that could not serve the read; "" if there was none.
        self._said = ""

    def __del__(self) -> None:
        if self._connection is not None:
            self._servers.left(self._connection)

    async def aclose(self) -> None:
        self._over = True
        self._let_go()

    async def __anext__(self) -> PagePart:
        self._servers.require_here()  # a forked child must not touch the parent's event loop
        self._servers.need_home()
        if self._over:
            self._let_go()
            raise StopAsyncIteration
        try:
            page = await self._next_page()
        except Closed:
            self._over = True
            self._drop()
            if self._query.follow:
                raise StopAsyncIteration from None
            raise
        except BaseException:
            self._over = True
            self._drop()
            raise
        return self._take(page)

    @property
    def over(self) -> bool:
        """True once the last page has been given."""
        return self._over

    @property
    def follows(self) -> bool:
        """True if it waits for more at the end."""
        return self._query.follow

    @property
    def end_lsn(self) -> int:
        """The last LSN of the read, known once its first page has come."""
        return self._end_lsn

    def _take(self, page: Page | ColumnPage) -> PagePart:
        """The part of a page that was asked for; moves on, and asks for the next page before this one is looked at."""
        query = self._query
        entries = page.entries if isinstance(page, Page) else []
        if query.from_end and self._next_lsn == 0:
            entries, page = [], page._replace(next_lsn=page.end_lsn + 1)
        first_lsn = self._next_lsn or _first_lsn(query, page)
        if not query.follow and self._next_lsn == 0:
            self._end_lsn = min(page.end_lsn, query.stop) if query.stop else page.end_lsn
        self._next_lsn = page.next_lsn
        self._doubt = query.follow and not query.local and not entries and not self._doubt
        if not query.follow and self._next_lsn > self._end_lsn:
            self._over = True
            self._let_go()
        elif self._servers.crowded:
            self._let_go()
        elif self._connection is not None:
            try:
                self._send(self._connection)
                self._servers.rest(self._connection)
            except Lost:
                self._drop()  # the next page is asked for elsewhere
        return PagePart(entries, first_lsn, _NO_LSN if query.follow else self._end_lsn)

    async def _next_page(self) -> Page | ColumnPage:
        """The next page, from whichever server gives it. Raises `Closed`, and as `Log.read`."""
        self._resume()
        attempt_s, timeout_s = ATTEMPT_S + (POLL_MS / 1000 if self._query.follow else 0), self._timeout_s
        try:
            if self._asked:  # the usual way: one bound is enough
                began_s = anyio.current_time()
                try:
                    return await self._attempt(min(attempt_s, timeout_s))
                except Again:
                    attempt_s, timeout_s = 2 * attempt_s, timeout_s + began_s - anyio.current_time()
            return await retried(self._attempt, timeout_s, attempt_s)
        except TimeoutError as error:
            self._judge(None)
            reason = self._servers.reason
            why = f": {reason}" if reason is not None else ""
            kind = Unavailable if isinstance(reason, NoSpace) else kind_of(reason)  # that error was another call's
            raise kind(f"no server answered a read within {self._timeout_s:g} s{why}") from error

    async def _attempt(self, attempt_s: float) -> Page | ColumnPage:
        """The next page, from one server that has so many seconds for it. Raises `Again`, and as `_next_page`."""
        self._servers.require_open()
        reply: ServerReply | None = None
        try:
            connection = self._connection = self._connection or await self._servers.lend(self._choose)
            with anyio.move_on_after(attempt_s):
                reply = await self._exchange(connection)
            if isinstance(reply, Page | ColumnPage) and self._moves_on(reply):
                self._servers.reasons.over()
                return reply
            self._judge(reply)
        except Final as lost:
            raise lost.reason from lost
        except Lost as lost:
            if self._connection is not None:  # else the code that dialled has noted the loss
                self._servers.reasons.lost(self._connection.address, lost.reason)
        self._avoid = self._connection.address if self._connection is not None else None
        self._drop()
        raise Again

    def _moves_on(self, page: Page | ColumnPage) -> bool:
        """True if the page is an answer; False if it only says that its server is behind."""
        self._asked = 0
        return self._query.follow or self._next_lsn == 0 or page.next_lsn > self._next_lsn

    async def _choose(self) -> Connection:
        """A connection to a server that may answer the next page: the leader, or any. Raises `Lost`."""
        if self._query.local or (self._next_lsn and not self._query.follow):
            return await self._servers.any(self._query.server, self._avoid)
        return await self._servers.leader(fresh=self._avoid is not None)

    async def _exchange(self, connection: Connection) -> ServerReply:
        """The answer to the request under way, which is sent if none is. Raises `Lost`."""
        if self._asked == 0:
            self._send(connection)
        if connection.backlog:
            await connection.drain()
        return await connection.answer(self._asked)

    def _send(self, connection: Connection) -> None:
        query = self._query
        begun = self._next_lsn > 0
        self._asked = connection.next_request()
        connection.send(self._ask(
            self._asked,
            self._next_lsn if begun else query.start,
            self._end_lsn if begun else query.stop,
            0 if begun else 1 if query.from_end else query.last,
            0 if begun else query.since_ms,
            PAGE_BYTES_MAX,
            not query.local and (not begun or self._doubt),
            POLL_MS if begun else 0,
            "" if query.from_end and not begun else query.client,
        ))

    def _judge(self, reply: ServerReply | None) -> None:
        """Note why the connected server cannot answer. Raises a refusal that every other server would repeat."""
        if isinstance(reply, RequestRefused):
            self._refused(reply)
        if self._connection is not None:
            what = "does not answer" if reply is None else "could not serve the read"
            why = f"{self._connection.address} {what}"
            if isinstance(reply, RequestRefused) and reply.code == Code.NOT_READY and reply.detail:
                self._said = f"{why}: {reply.detail}"
            note = self._servers.reasons.answered if reply is not None or self._said else self._servers.reasons.lost
            note(self._connection.address, Unavailable(self._said or why))

    def _refused(self, reply: RequestRefused) -> None:
        if reply.code == Code.OUT_OF_RANGE:
            where = self._next_lsn or self._query.start or self._query.stop
            raise out_of_range(f"LSN {where} is" if where else "what was asked for is", reply.detail)
        if reply.code in AWAY:
            self._servers.hint = reply.leader_address or None
        elif reply.code in (Code.INVALID, Code.NO_RIGHT):
            raise Refused(reply.detail or "the server takes no such read")

    def _resume(self) -> None:
        """Take the connection back, unless it was taken away while the consumer looked at the last page."""
        if self._connection is not None:
            self._servers.resume(self._connection)
            if self._connection.closed:
                self._connection, self._asked = None, 0

    def _let_go(self) -> None:
        self._resume()
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


class ColumnPages(Pages):
    """An iterator over pages column by column: each part has no entries, and ``columns`` holds them instead."""

    _ask: type[Read] | type[ReadColumns] = ReadColumns
    columns: PageColumns

    def _take(self, page: Page | ColumnPage) -> PagePart:
        assert isinstance(page, ColumnPage)
        try:
            self.columns = unpack_page(page)
        except WireError as error:
            raise ProtocolError(f"a page is damaged: {error}") from error
        return super()._take(page)


def _first_lsn(query: Query, page: Page | ColumnPage) -> int:
    """The first LSN that was asked for, told by the first page (which begins with a whole entry)."""
    if query.last:
        return 1 if query.client else page.end_lsn - query.last + 1
    return query.start or 1


async def end_lsn(servers: Servers, timeout_s: float) -> int:
    """The last guaranteed LSN as of the call, linearizable (R25); 0 while there is none. Raises `Unavailable`."""
    async with Pages(servers, Query.of(None, None, False, None, 1, None, None, follow=False), timeout_s) as pages:
        await anext(pages)
        return pages.end_lsn


def out_of_range(what: str, detail: str) -> OutOfRange:
    """The error for a refusal with ``detail`` "first,last"; its message begins with ``what``."""
    first, _, last = detail.partition(",")
    try:
        first_lsn, last_lsn = int(first), int(last)
    except ValueError:
        first_lsn = last_lsn = 0
    if last_lsn >= first_lsn:
        span = f"{first_lsn} to {last_lsn}"
    else:
        span = f"nothing; its next LSN is {first_lsn}" if first_lsn > 1 else "nothing"
    return OutOfRange(f"{what} not in the log, which holds {span}", first_lsn=first_lsn, last_lsn=last_lsn)
