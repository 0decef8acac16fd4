"""`connect` and `Log`: what a program holds of a cluster.

Laws:

* Entering never fails for a cluster that cannot be reached; only calls that need an answer do.
* Whatever a call raises derives from `alpo.AlpoError`, but for wrong arguments (ValueError, TypeError) and
  cancellation.
* An append's outcome is told once, to whoever awaits it; leaving the ``async with`` waits for all that is in
  flight and raises only what nobody was told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Self, overload

import anyio
from anyio.abc import TaskGroup

from alpo.core.inputs import MemberStep
from alpo.errors import AlpoError

from . import admin, compacting, cursors, events, keeping, members, settings
from .admin import ByHand, SessionInfo
from .appender import Appender
from .batches import Parcel, Payload, batch, single
from .compacting import FileSpace
from .cursors import CursorInfo
from .events import Events
from .handle import Handle
from .keeping import Outcome
from .members import Leadership, MemberInfo
from .reading import Batches, Query, Records
from .servers import Servers, parse_servers
from .settings import Settings

#: How long entering waits for a named session to open, so that `Log.epoch` is there when it can be.
OPEN_WAIT_S = 1.0


def connect(
    servers: str | Sequence[str],
    client: str | None = None,
    timeout_s: float = 10.0,
    *,
    queue_max: int = 10_000,
    queue_bytes_max: int = 32 << 20,
) -> Log:
    """A client of the cluster that ``servers`` ("HOST:PORT,HOST:PORT" or a list) belong to; ``async with`` it.

    ``client`` names a session (R22): its serials go on where they ended, and an older process of that name is
    fenced. Without a name a random id is made with the first append. ``timeout_s`` is the deadline of an
    append, and of a read's next page. ``queue_max`` and ``queue_bytes_max`` bound what waits behind the
    window of 1,024 appends in flight. Works under trio and asyncio. Raises ValueError for arguments that can never
    be right; never anything for a cluster that cannot be reached.
    """
    return Log(Servers(parse_servers(servers)), client, timeout_s, queue_max, queue_bytes_max)


class Log:
    """One client of a cluster. Make it with `connect`; use it within ``async with``, in one event loop."""

    def __init__(
        self, servers: Servers, client: str | None, timeout_s: float, queue_max: int, queue_bytes_max: int
    ) -> None:
        if timeout_s <= 0:
            raise ValueError("timeout_s must be positive")
        self._servers = servers
        self._timeout_s = timeout_s
        self._appender = Appender(servers, client, timeout_s, queue_max, queue_bytes_max)
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            raise RuntimeError("a Log is entered once")
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._appender.start(self._tasks)
        try:
            # An open that is refused is told by the first append.
            with suppress(AlpoError), anyio.move_on_after(min(OPEN_WAIT_S, self._timeout_s)):
                await self._appender.opened()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None or isinstance(error, Exception):
                await self._appender.drain()
        finally:
            unheard = await self._end()
        if error is None and unheard is not None:
            raise unheard

    async def _end(self) -> AlpoError | None:
        """End every task and connection; the first error that nobody was told."""
        assert self._tasks is not None
        unheard = self._appender.close()
        self._servers.close()
        self._tasks.cancel_scope.cancel()
        # The task group is not shown the body's error: it would come back wrapped in an ExceptionGroup.
        await self._tasks.__aexit__(None, None, None)
        return unheard

    # -- who we are -----------------------------------------------------------------------------------------

    @property
    def client(self) -> str | None:
        """The client id: the name given, or the random id, which is None until the first append is sent."""
        return self._appender.client

    @property
    def epoch(self) -> int:
        """The session's epoch (0 for random clients). Raises `Unavailable` while a named session is not open."""
        return self._appender.epoch

    @property
    def last_serial(self) -> int:
        """The last serial as the session stood when it was opened (0 for random clients). Raises as `epoch` does."""
        return self._appender.last_serial

    async def opened(self, timeout_s: float | None = None) -> None:
        """Wait until the named session is open (random clients need no opening: returns at once).

        Raises `Unavailable` at the deadline, `Refused` when the cluster takes no more names.
        """
        try:
            with anyio.fail_after(self._seconds(timeout_s)):
                await self._appender.opened()
        except TimeoutError as error:
            raise self._appender.unavailable("the session could not be opened") from error

    def _seconds(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s

    # -- appending ------------------------------------------------------------------------------------------

    @overload
    async def append(self, payload: Payload, *, serial: None = None, timeout_s: float | None = None) -> int: ...
    @overload
    async def append(self, payload: Payload, *, serial: int, timeout_s: float | None = None) -> int | None: ...

    async def append(
        self, payload: Payload, *, serial: int | None = None, timeout_s: float | None = None
    ) -> int | None:
        """Append one payload; returns its LSN once it is guaranteed.

        ``serial``: for a program that numbers its payloads. The next one, or one already appended by this
        session (returns its LSN); at or below `last_serial` it was done before this session was opened: returns None.

        Raises `NotGuaranteed` (outcome unknown at the deadline; still first in line, see `settle`),
        `Unavailable` (not in the log, repeating is safe), `Fenced`, `SerialReused`, `Skipped`,
        `SerialExpected`, `SessionExpired`, `Refused`, `NoSpace`, `Overloaded`, `TooLarge`.
        """
        return await self._append(single(payload), serial, False, timeout_s)

    @overload
    async def append_batch(
        self, payloads: Iterable[Payload], *, serial: None = None, timeout_s: float | None = None
    ) -> range: ...
    @overload
    async def append_batch(
        self, payloads: Iterable[Payload], *, serial: int, timeout_s: float | None = None
    ) -> range | None: ...

    async def append_batch(
        self, payloads: Iterable[Payload], *, serial: int | None = None, timeout_s: float | None = None
    ) -> range | None:
        """Append several payloads as one entry, all or nothing; returns their LSNs. Raises as `append`, and
        ValueError for no payloads.

        ``serial``, of a named client: may skip some (R21, sparse); it goes alone, so it waits for what is in
        flight. One at or below `last_serial` is asked about: None if it was appended before this session was
        opened, else `Skipped`.
        """
        parcel = batch(payloads)
        lsn = await self._append(parcel, serial, True, timeout_s)
        return None if lsn is None else range(lsn, lsn + parcel.number)

    async def _append(self, parcel: Parcel, serial: int | None, sparse: bool, timeout_s: float | None) -> int | None:
        deadline_s = self._appender.deadline_s(timeout_s)
        await self._appender.wait_room(parcel.size, deadline_s)
        handle = self._appender.append(parcel, serial, sparse, deadline_s, awaited=True)
        try:
            return await handle
        except anyio.get_cancelled_exc_class():
            self._appender.withdraw(handle)
            raise

    async def enter(self, parcel: Parcel, serial: int | None, sparse: bool, timeout_s: float | None) -> Handle:
        """Queue an append as soon as there is room. For the library."""
        deadline_s = self._appender.deadline_s(timeout_s)
        await self._appender.wait_room(parcel.size, deadline_s)
        return self._appender.append(parcel, serial, sparse, deadline_s)

    def append_nowait(self, payload: Payload, *, serial: int | None = None, timeout_s: float | None = None) -> Handle:
        """The fast path: queue one payload and return its `Handle` at once.

        Raises `TooLarge`, `Overloaded` (the local queue is full: `await log.wait_room()`), `Fenced`.
        """
        appender = self._appender
        return appender.append(single(payload), serial, False, appender.deadline_s(timeout_s))

    def append_batch_nowait(
        self, payloads: Iterable[Payload], *, serial: int | None = None, timeout_s: float | None = None
    ) -> Handle:
        """As `append_nowait`, for a batch; the handle's `lsns` are those of all payloads."""
        appender = self._appender
        return appender.append(batch(payloads), serial, True, appender.deadline_s(timeout_s))

    async def wait_room(self) -> None:
        """Wait until `append_nowait` has room for a payload in the local queue. Raises nothing of its own."""
        await self._appender.wait_room(1, None)

    async def settle(self, timeout_s: float | None = None) -> dict[int, int | None | AlpoError]:
        """Wait until nothing told as `NotGuaranteed` is unresolved any more.

        Returns what became of those settled since the last call: serial -> LSN, or the error it ended with. Raises
        `Unavailable` at the deadline (what is settled by then stays for the next call).
        """
        try:
            with anyio.fail_after(self._seconds(timeout_s)):
                return await self._appender.settle()
        except TimeoutError as error:
            raise self._appender.unavailable("there are appends whose outcome is still unknown") from error

    # -- reading --------------------------------------------------------------------------------------------

    def read(
        self, start: int | None = None, stop: int | None = None, *, local: bool = False, server: int | None = None,
        last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> Records:
        """Iterate (``async for``) over the guaranteed payloads ``start`` … ``stop``, ends included.

        By default from the first available to the guaranteed end as of the call, linearizable (R25). ``last``: the last
        so many payloads; ``since``: from that time on; ``client``: only that client's. ``local=True``: a
        server's own copy up to where that stands (R26), of server ``server`` if given, else of any.
        ``timeout_s`` is for each page, not the whole. Raises `OutOfRange`; `Unavailable` when no answer came in time,
        midway too.
        """
        return Records(self.read_batches(
            start, stop, local=local, server=server, last=last, since=since, client=client, timeout_s=timeout_s,
        ))

    def read_batches(
        self, start: int | None = None, stop: int | None = None, *, local: bool = False, server: int | None = None,
        last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> Batches:
        """As `read`, in lists of records as they come over the wire: the fast way to read much."""
        query = Query.of(start, stop, local, server, last, since, client, follow=False)
        return Batches(self._servers, query, self._seconds(timeout_s))

    def follow(
        self, start: int | None = None, *, local: bool = False, server: int | None = None, last: int | None = None,
        since: datetime | None = None, client: str | None = None, timeout_s: float | None = None,
    ) -> Records:
        """As `read`, but never ends: waits for more, survives failovers, no gap and no repeat.

        Raises `OutOfRange` when trimmed ahead of it, `Unavailable` when no server answers for ``timeout_s``.
        """
        return Records(self.follow_batches(
            start, local=local, server=server, last=last, since=since, client=client, timeout_s=timeout_s,
        ))

    def follow_batches(
        self, start: int | None = None, *, local: bool = False, server: int | None = None, last: int | None = None,
        since: datetime | None = None, client: str | None = None, timeout_s: float | None = None,
    ) -> Batches:
        """As `follow`, in lists of records as they come over the wire."""
        query = Query.of(start, None, local, server, last, since, client, follow=True)
        return Batches(self._servers, query, self._seconds(timeout_s))

    # -- the operator's ---------------------------------------------------------------------------------------

    async def append_by_hand(
        self, payloads: Iterable[Payload], *, client: str, serial: int, epoch: int | None = None,
        timeout_s: float | None = None,
    ) -> ByHand:
        """Retry across processes what was sent as (client, serial, epoch): see `admin.append_by_hand`."""
        return await admin.append_by_hand(
            self._servers, payloads, client, serial, epoch, self._seconds(timeout_s)
        )

    async def status(self, timeout_s: float | None = None) -> list[dict[str, Any]]:
        """Every member's own account of itself: see `admin.status`."""
        return await admin.status(self._servers, self._seconds(timeout_s))

    async def events(self, since: datetime | None = None, timeout_s: float | None = None) -> Events:
        """What happened to the servers, elections above all: see `events.gather`."""
        return await events.gather(self._servers, since, self._seconds(timeout_s))

    async def sessions(self, timeout_s: float | None = None) -> list[SessionInfo]:
        """All sessions of the cluster. Raises `Unavailable`."""
        return await admin.sessions(self._servers, self._seconds(timeout_s))

    async def drop_session(self, name: str, epoch: int | None = None, timeout_s: float | None = None) -> int:
        """Forget the named session (R22): see `admin.drop_session`."""
        return await admin.drop_session(
            self._servers, name, epoch, self._seconds(timeout_s)
        )

    async def outcome(
        self, client: str, serial: int, timeout_s: float | None = None, *, epoch: int | None = None
    ) -> Outcome:
        """What became of the append (``client``, ``serial``), as of now: see `Outcome`. With the ``epoch`` that it was
        sent under, what was appended under another does not count, and from before a drop nobody can tell.

        "not_appended" is no promise for later: a transmission that is still on its way may arrive. Raises ValueError,
        `Unavailable`.
        """
        return await keeping.outcome(self._servers, client, serial, epoch, self._seconds(timeout_s))

    async def wait_everyone(self, lsn: int, timeout_s: float | None = None) -> None:
        """Wait until every member has payload ``lsn``, which was appended, on its disk: see `keeping.wait_everyone`."""
        await keeping.wait_everyone(self._servers, lsn, self._seconds(timeout_s))

    async def settings(self, timeout_s: float | None = None) -> Settings:
        """The settings that all servers share, by name. Raises `Unavailable`."""
        return await settings.settings(self._servers, self._seconds(timeout_s))

    async def change_settings(
        self, wanted: Settings, *, expected: Settings | None = None, timeout_s: float | None = None
    ) -> Settings:
        """Change settings, all of ``wanted`` or none: see `settings.change_settings`."""
        return await settings.change_settings(self._servers, wanted, expected, self._seconds(timeout_s))

    async def set_cursor(self, name: str, lsn: int, timeout_s: float | None = None) -> None:
        """Keep payload ``lsn`` and all after it for the reader of that name: see `cursors.set_cursor`."""
        await cursors.set_cursor(self._servers, name, lsn, self._seconds(timeout_s))

    async def cursors(self, timeout_s: float | None = None) -> list[CursorInfo]:
        """All cursors, by name. Raises `Unavailable`."""
        return await cursors.cursors(self._servers, self._seconds(timeout_s))

    async def drop_cursor(self, name: str, timeout_s: float | None = None) -> int:
        """Forget a cursor: see `cursors.drop_cursor`."""
        return await cursors.drop_cursor(self._servers, name, self._seconds(timeout_s))

    async def trim(self, before: int, timeout_s: float | None = None, *, force: bool = False) -> int:
        """Let nothing below LSN ``before`` be read any more; returns the first LSN that is served: see `admin.trim`."""
        return await admin.trim(self._servers, before, force, self._seconds(timeout_s))

    async def add_member(
        self, id: int, address: str, *, priority: int = 0, timeout_s: float | None = None
    ) -> list[MemberInfo]:
        """Take the server that waits at ``address`` into the cluster (R27): see `members.change`."""
        return await self._change_member(MemberStep.ADD, id, address, priority, timeout_s)

    async def remove_member(self, id: int, timeout_s: float | None = None) -> list[MemberInfo]:
        """Take a server out of the cluster (R27): see `members.change`."""
        return await self._change_member(MemberStep.REMOVE, id, "", 0, timeout_s)

    async def replace_member(self, id: int, address: str, timeout_s: float | None = None) -> list[MemberInfo]:
        """Have the server that waits at ``address``, with an empty disk, take member ``id``'s place: see
        `members.change`."""
        return await self._change_member(MemberStep.REPLACE, id, address, 0, timeout_s)

    async def _change_member(
        self, step: MemberStep, id: int, address: str, priority: int, timeout_s: float | None
    ) -> list[MemberInfo]:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        return await members.change(self._servers, step, id, address, priority, timeout_s)

    async def transfer(self, target: int, timeout_s: float | None = None) -> Leadership:
        """Have server ``target`` lead (R28): see `members.transfer`."""
        return await members.transfer(self._servers, target, self._timeout_s if timeout_s is None else timeout_s)

    async def compact(self, server: int, timeout_s: float | None = None) -> FileSpace:
        """Have a server give the free space of its data file back to the file system, while it serves, and wait until
        it has; how the file is then: see `compacting.watch`."""
        return await compacting.compact(self._servers, server, self._seconds(timeout_s))

    async def init(self, timeout_s: float | None = None) -> None:
        """Found the cluster (R29): see `admin.init`."""
        await admin.init(self._servers, self._seconds(timeout_s))


