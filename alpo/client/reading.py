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
from typing import Literal, NamedTuple, Self

import anyio

from alpo.core.ready import Code
from alpo.errors import Closed, OutOfRange, Overloaded, ProtocolError, Refused, Unavailable
from alpo.wire.column_pages import PageColumns, unpack_page
from alpo.wire.requests import ColumnPage, Page, Read, ReadColumns, RequestRefused, ServerReply
from alpo.wire.shapes import WireError

from .arguments import need_datetime, need_int, need_seconds, need_str
from .connection import Connection, Lost
from .ids import NAME_BYTES_MAX
from .record import PageEntry, Record, records_of
from .servers import PAUSE_FIRST_S, PAUSE_MAX_S, NoSuchServer, Servers
from .stopping import StopEvent, need_stop, unless
from .verdicts import AWAY

PAGE_BYTES_MAX = 1 << 20
#: How long a server may wait for something new before it answers a follower with nothing.
POLL_MS = 1000
#: How long one server may take over a page before another is asked; doubles with every try.
ATTEMPT_S = 1.0
_NO_LSN = 1 << 63


class Query(NamedTuple):
    """What to read; 0 or "" for what is not restricted. ``from_end``: only what comes after the end as it is found."""

    start: int
    stop: int
    local: bool
    server: int | None
    last: int
    since_ms: int
    client: str
    follow: bool
    from_end: bool = False

    @staticmethod
    def of(
        start: int | Literal["end"] | None, stop: int | None, local: bool, server: int | None, last: int | None,
        since: datetime | None, client: str | None, follow: bool,
    ) -> Query:
        """Check a caller's arguments. Raises TypeError, ValueError."""
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
        if client is not None and not 1 <= len(client.encode()) <= NAME_BYTES_MAX:
            raise ValueError(f"a client id is 1 to {NAME_BYTES_MAX} bytes")
        since_ms = 0
        if since is not None:
            need_datetime(since=since)
            if since.tzinfo is None:
                raise ValueError("since needs a time zone")
            since_ms = max(1, math.ceil(since.astimezone(UTC).timestamp() * 1000))
        return Query(start or 0, stop or 0, local, server, last or 0, since_ms, client or "", follow, from_end)


class Closing:
    """What ``async for`` and ``async with`` ask of an iterator that has a connection, beside its ``__anext__``."""

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
        raise NotImplementedError


class PagePart(NamedTuple):
    """What came over the wire: whole entries, of which payloads ``first_lsn`` … ``last_lsn`` were asked for."""

    entries: list[PageEntry]
    first_lsn: int
    last_lsn: int


class Pages(Closing):
    """An iterator over pages as they come; one may be empty."""

    _ask: type[Read] | type[ReadColumns] = Read

    def __init__(self, servers: Servers, query: Query, timeout_s: float) -> None:
        need_seconds(timeout_s)
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
        #: What the last server that could not serve the read said of it.
        self._said = ""

    async def aclose(self) -> None:
        self._over = True
        self._let_go()

    async def __anext__(self) -> PagePart:
        self._servers.require_here()  # before anything that needs the parent's event loop
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
        """Was that the last page?"""
        return self._over

    @property
    def follows(self) -> bool:
        return self._query.follow

    @property
    def end_lsn(self) -> int:
        """Where a read ends, once its first page has come."""
        return self._end_lsn

    def _take(self, page: Page | ColumnPage) -> PagePart:
        """Move on by one page, and ask for the next one before anybody looks at this one."""
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
        elif self._connection is not None:
            try:
                self._send(self._connection)
            except Lost:
                self._drop()  # the next page is asked for elsewhere
        return PagePart(entries, first_lsn, _NO_LSN if query.follow else self._end_lsn)

    async def _next_page(self) -> Page | ColumnPage:
        attempt_s = ATTEMPT_S + (POLL_MS / 1000 if self._query.follow else 0)
        pause_s = 0.0
        try:
            with anyio.fail_after(self._timeout_s):
                while True:
                    self._servers.require_open()
                    reply: ServerReply | None = None
                    try:
                        connection = self._connection = self._connection or await self._choose()
                        with anyio.move_on_after(attempt_s):
                            reply = await self._exchange(connection)
                        if isinstance(reply, Page | ColumnPage) and self._moves_on(reply):
                            self._servers.reasons.over()
                            return reply
                        self._judge(reply)
                    except NoSuchServer as lost:
                        raise lost.reason from lost
                    except Lost as lost:
                        if self._connection is not None:  # else it is known already
                            self._servers.reasons.lost(self._connection.address, lost.reason)
                    self._avoid = self._connection.address if self._connection is not None else None
                    self._drop()
                    attempt_s *= 2
                    await anyio.sleep(pause_s)
                    pause_s = min(max(pause_s * 2, PAUSE_FIRST_S), PAUSE_MAX_S)
        except TimeoutError as error:
            self._judge(None)
            reason = self._servers.reason
            why = f": {reason}" if reason is not None else ""
            kind = Overloaded if isinstance(reason, Overloaded) else Unavailable
            raise kind(f"no server answered a read within {self._timeout_s:g} s{why}") from error

    def _moves_on(self, page: Page | ColumnPage) -> bool:
        """Is this page an answer, or does its server only say that it is behind?"""
        self._asked = 0
        return self._query.follow or self._next_lsn == 0 or page.next_lsn > self._next_lsn

    async def _choose(self) -> Connection:
        if self._query.local or (self._next_lsn and not self._query.follow):
            return await self._servers.any(self._query.server, self._avoid)
        return await self._servers.leader(fresh=self._avoid is not None)

    async def _exchange(self, connection: Connection) -> ServerReply:
        if self._asked == 0:
            self._send(connection)
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
        """Why the server that is connected, if one is, would not do. Raises what no other server could better."""
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


class ColumnPages(Pages):
    """The same column by column: each part comes without entries, and ``columns`` are its entries."""

    _ask: type[Read] | type[ReadColumns] = ReadColumns
    columns: PageColumns

    def _take(self, page: Page | ColumnPage) -> PagePart:
        assert isinstance(page, ColumnPage)
        try:
            self.columns = unpack_page(page)
        except WireError as error:
            raise ProtocolError(f"a page is damaged: {error}") from error
        return super()._take(page)


class Batches(Closing):
    """An iterator over lists of records, as `Log.read_batches` and `Log.follow_batches` return it.

    Close it (``aclose``, or ``async with``) when leaving early, or let the `Log` do so.
    """

    def __init__(self, servers: Servers, query: Query, timeout_s: float, stop: StopEvent | None = None) -> None:
        if stop is not None:
            need_stop(stop)
        self._pages = Pages(servers, query, timeout_s)
        self.servers = servers
        self.stop = stop
        #: Of the last so many of one client a batch may begin before them: they are counted at the end.
        self._last = query.last if query.client and not query.follow else 0
        self._held: list[Record] = []

    async def aclose(self) -> None:
        await self._pages.aclose()

    async def __anext__(self) -> list[Record]:
        while True:
            records = records_of(*await self._page())
            if self._last:
                self._held = (self._held + records)[-self._last :]
                records = self._held if self._pages.over else []
            if records:
                return records

    @property
    def follows(self) -> bool:
        """Does it wait for more, so that it ends when the log is closed?"""
        return self._pages.follows

    @property
    def stopped(self) -> bool:
        """Was it told to stop?"""
        return self.stop is not None and self.stop.is_set()

    async def _page(self) -> PagePart:
        if self.stop is None:
            return await self._pages.__anext__()
        self.servers.require_here()
        page = None if self.stopped else await unless(self.stop, self._pages.__anext__)
        if page is None:
            await self.aclose()
            raise StopAsyncIteration
        return page


class Records(Closing):
    """An iterator over records, as `Log.read` and `Log.follow` return it."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._records: list[Record] = []
        self._servers = batches.servers
        self._stop = batches.stop

    async def __anext__(self) -> Record:
        if self._servers.inherited or (self._stop is not None and self._stop.is_set()):
            self._records = []
        if not self._records:
            self._records = await self._batches.__anext__()
            self._records.reverse()
        return self._records.pop()

    async def aclose(self) -> None:
        self._records = []
        await self._batches.aclose()


def _first_lsn(query: Query, page: Page | ColumnPage) -> int:
    """Where the records of the first page begin: the entry that holds it comes whole."""
    if query.last:
        return 1 if query.client else page.end_lsn - query.last + 1
    return query.start or 1


async def end_lsn(servers: Servers, timeout_s: float) -> int:
    """The last guaranteed LSN as of the call: linearizable (R25). Raises `Unavailable`."""
    async with Pages(servers, Query.of(None, None, False, None, 1, None, None, follow=False), timeout_s) as pages:
        await anext(pages)
        return pages.end_lsn


def out_of_range(what: str, detail: str) -> OutOfRange:
    """``what`` begins the message; ``detail`` is a refusal's."""
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
