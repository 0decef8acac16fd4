"""`connect` and `Log`: what a program holds of a cluster.

Laws:

* Entering never fails because a cluster cannot be reached; only calls that need an answer do.
* Every error derives from `alpo.AlpoError`, but for wrong arguments (ValueError, TypeError) and cancellation.
* An append's outcome is told once, to the task that awaits it; closing waits for all that is in flight and raises
  only an error that nobody was told.
* Once closed, and in a process forked from the one that made it, every call raises `Closed` at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

import anyio

from alpo.errors import AlpoError, NotGuaranteed
from alpo.tls import Tls

from .appender import Appender
from .arguments import (
    AsyncOnly,
    Parcel,
    Payload,
    Place,
    batch,
    json_payload,
    need_append,
    place_of,
    single,
    text_payload,
)
from .handle import Handle, Many, chunks
from .operator.asking import servers_of
from .operator.files import BackupInfo, FileCalls
from .operator.logs import LogCalls
from .operator.members import MemberCalls, SettingCalls
from .operator.sessions import CursorCalls, SessionCalls
from .operator.status import StatusCalls
from .reading import Reading
from .servers import Servers, given_log, given_servers, given_tls

#: Longest wait of ``async with`` for a named session to open, so that `Log.epoch` is there when it can be.
OPEN_WAIT_S = 1.0


def connect(
    servers: str | Sequence[str] | None = None,
    client: str | None = None,
    timeout_s: float = 10.0,
    *,
    queue_max: int = 10_000,
    queue_bytes_max: int = 32 << 20,
    tls: Tls | None = None,
    log: str | None = None,
) -> Log:
    """A client of the cluster that ``servers`` ("HOST[:PORT],HOST[:PORT]" or a list) belong to: for ``async with``, or
    `close` it at the end.

    Without ``servers``: those of the environment variable ALPO_SERVERS, else 127.0.0.1:7100; a port left out is 7100.

    ``client`` names a session: its serials go on where they ended, and an older process of that name is fenced. Without
    a name a random id is made with the first append. ``timeout_s``: seconds until the deadline of an append, and of a
    read's next page. ``queue_max`` (appends) and ``queue_bytes_max`` bound the local queue behind the window of 1,024
    appends in flight. ``tls``: what to show and trust; without it what ALPO_CA, ALPO_CERT, ALPO_KEY and ALPO_TLS_NAME
    name, if anything. ``log``: the name of one of the cluster's logs; without it that of ALPO_LOG, else the first.
    Works under trio and asyncio. Raises TypeError or ValueError for arguments that can never be
    right; nothing for a cluster that cannot be reached.
    """
    known = Servers(given_servers(servers), tls=given_tls(tls), log=given_log(log))
    return Log(known, client, timeout_s, queue_max, queue_bytes_max)


def append_after(log: Log, payloads: Iterable[Payload], expect_last: int) -> Handle:
    """Queue a conditional append of payloads, as one batch, and return its handle. For commands."""
    appender = log._appender
    return appender.append(batch(payloads), place_of(None, expect_last), False, appender.deadline_s(None))


def append_at_once(log: Log, payload: Payload, timeout_s: float) -> Handle:
    """Queue one payload as `Log.append_nowait` does, and send it now if nothing is under way. For the library."""
    return log._append_at_once(payload, timeout_s)


def appender_of(log: Log) -> Appender:
    """The tasks behind a log's appends. For the library."""
    return log._appender


async def begin(log: Log) -> None:
    """Start the tasks of a log, and wait a moment for a named session to open. For the library."""
    appender = log._appender
    try:
        if not appender.tasks.started:
            appender.start()
        # A refused open is raised by the first append.
        with suppress(AlpoError), anyio.move_on_after(min(OPEN_WAIT_S, log.timeout_s)):
            await appender.opened()
    except BaseException:
        await finish(log)
        raise


async def finish(log: Log, drain: bool = False) -> Exception | None:
    """End a log's tasks and connections; returns the first error that nobody was told, or None. For the library."""
    if log.forked:
        return None
    appender = log._appender
    appender.tasks.need_home()
    try:
        if drain:
            await appender.drain()
    finally:
        unheard = close_at_once(log)
        await appender.tasks.end()
    return unheard


def close_at_once(log: Log) -> Exception | None:
    """Close all of a log that can be closed without waiting: everything, if no task was started. Returns as `finish`.
    For the library."""
    unheard = log._appender.close()
    servers_of(log).close()
    return unheard


def withdraw(log: Log, handles: Iterable[Handle]) -> None:
    """Take back what was not sent yet. For the library."""
    for handle in handles:
        log._appender.withdraw(handle)


class Log(
    AsyncOnly, Reading, LogCalls, StatusCalls, SessionCalls, CursorCalls, MemberCalls, SettingCalls, FileCalls
):
    """One client of a cluster, made by `connect`, for one event loop: in another, every call raises RuntimeError.

    Use it in ``async with``; or as it is, and await `close` at the end: then its tasks begin with the first append, and
    end with the loop at the latest. It may be entered, used and left by different tasks.
    """

    def __init__(
        self, servers: Servers, client: str | None, timeout_s: float, queue_max: int, queue_bytes_max: int
    ) -> None:
        super().__init__(servers, timeout_s)
        self._appender = Appender(servers, client, timeout_s, queue_max, queue_bytes_max)
        servers.need_home = self._need_home
        self._entered = False

    async def __aenter__(self) -> Self:
        self._servers.require_open()
        if self._entered:
            raise RuntimeError("a Log is entered once")
        self._entered = True
        await begin(self)
        return self

    def _need_home(self) -> None:
        """Raise RuntimeError in another event loop than that of the tasks, if they were started."""
        self._appender.tasks.need_home()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unheard = await finish(self, drain=error is None or isinstance(error, Exception))
        if error is None and unheard is not None:
            raise unheard

    async def close(self) -> None:
        """Close, as leaving the ``async with`` does; may be called again, and from any task of the loop.

        Waits for all appends in flight, for each until its own deadline at most. Raises the first error of an append
        that nobody was told.
        """
        unheard = await finish(self, drain=True)
        if unheard is not None:
            raise unheard

    # -- who we are -----------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        named = "a random client" if self.client is None else f"client {self.client!r}"
        return f"<{type(self).__name__} of {self._servers}: {named}, {'closed' if self.closed else 'open'}>"

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
        """The session's last serial as of its opening (0 for random clients). Raises as `epoch` does."""
        return self._appender.last_serial

    async def opened(self, timeout_s: float | None = None) -> None:
        """Wait until the named session is open (random clients need no opening: returns at once).

        Raises `Unavailable` at the deadline, `Refused` when the cluster takes no more names.
        """
        seconds = self._seconds(timeout_s)
        try:
            with anyio.fail_after(seconds):
                await self._appender.opened()
        except TimeoutError as error:
            raise self._appender.unavailable("the session could not be opened") from error

    # -- appending ------------------------------------------------------------------------------------------

    @overload
    async def append(
        self, payload: Payload, *, serial: None = None, expect_last: int | None = None, timeout_s: float | None = None
    ) -> int: ...
    @overload
    async def append(
        self, payload: Payload, *, serial: int, expect_last: int | None = None, timeout_s: float | None = None
    ) -> int | None: ...

    async def append(
        self, payload: Payload, *, serial: int | None = None, expect_last: int | None = None,
        timeout_s: float | None = None,
    ) -> int | None:
        """Append one payload; returns its LSN once it is guaranteed.

        ``serial`` is for a program that numbers its payloads: the next serial, or one that this session appended
        already (returns its LSN). A serial at or below `last_serial` was appended before this session was opened:
        returns None.

        ``expect_last``: append only right behind that LSN, which must be the log's last (0: the log has never held a
        payload); else raises `Conflict`, which tells the last LSN, and the serial stays free. Such an append is sent
        alone: it waits for all that is in flight, and later appends wait for it.

        Raises `NotGuaranteed` (outcome unknown at the deadline; still first in line, see `settle`), `Unavailable` (not
        in the log, repeating is safe), `Conflict`, `Fenced`, `SerialReused`, `Skipped`, `SerialExpected`,
        `SessionExpired`, `Refused`, `NoSpace`, `Overloaded`, `TooLarge`, `Closed`.
        """
        return await self._append(single(payload), place_of(serial, expect_last), False, timeout_s)

    @overload
    async def append_text(
        self, text: str, *, serial: None = None, expect_last: int | None = None, timeout_s: float | None = None
    ) -> int: ...
    @overload
    async def append_text(
        self, text: str, *, serial: int, expect_last: int | None = None, timeout_s: float | None = None
    ) -> int | None: ...

    async def append_text(
        self, text: str, *, serial: int | None = None, expect_last: int | None = None,
        timeout_s: float | None = None,
    ) -> int | None:
        """Append a string as UTF-8, as `append` does; `Record.text` reads it."""
        return await self._append(text_payload(text), place_of(serial, expect_last), False, timeout_s)

    @overload
    async def append_json(
        self, value: object, *, serial: None = None, expect_last: int | None = None, timeout_s: float | None = None
    ) -> int: ...
    @overload
    async def append_json(
        self, value: object, *, serial: int, expect_last: int | None = None, timeout_s: float | None = None
    ) -> int | None: ...

    async def append_json(
        self, value: object, *, serial: int | None = None, expect_last: int | None = None,
        timeout_s: float | None = None,
    ) -> int | None:
        """Append a value as JSON, in UTF-8 and without spaces, as `append` does; `Record.json` reads it.

        Raises TypeError, or ValueError (NaN, say), for a value that JSON cannot hold.
        """
        return await self._append(json_payload(value), place_of(serial, expect_last), False, timeout_s)

    @overload
    async def append_batch(
        self, payloads: Iterable[Payload], *, serial: None = None, expect_last: int | None = None,
        timeout_s: float | None = None,
    ) -> range: ...
    @overload
    async def append_batch(
        self, payloads: Iterable[Payload], *, serial: int, expect_last: int | None = None,
        timeout_s: float | None = None,
    ) -> range | None: ...

    async def append_batch(
        self, payloads: Iterable[Payload], *, serial: int | None = None, expect_last: int | None = None,
        timeout_s: float | None = None,
    ) -> range | None:
        """Append several payloads as one entry, all or nothing; returns their LSNs. Raises as `append`, and ValueError
        for no payloads.

        ``serial``, of a named client, may skip some serials, which are then refused for good. Such an append goes
        alone: it waits for all that is in flight. For a serial at or below `last_serial` the cluster is asked: None if
        it was appended before this session was opened, else `Skipped` is raised. With ``expect_last``, which is of the
        first payload, it skips none.
        """
        parcel = batch(payloads)
        lsn = await self._append(parcel, place_of(serial, expect_last), expect_last is None, timeout_s)
        return None if lsn is None else range(lsn, lsn + parcel.number)

    async def _append(self, parcel: Parcel, place: Place, sparse: bool, timeout_s: float | None) -> int | None:
        """Queue an append and wait for its outcome."""
        appender = self._appender
        appender.tasks.need_home()
        loan = appender.loan if place is None else None
        handle = await loan.append_here(parcel, timeout_s) if loan is not None else None
        if handle is None:
            deadline_s = appender.deadline_s(timeout_s)
            await appender.wait_room(parcel.size, deadline_s)
            handle = appender.append(parcel, place, sparse, deadline_s, awaited=True)
            appender.note_lone(True)
        elif handle.lsn is not None:
            return handle.lsn
        try:
            return await handle
        except anyio.get_cancelled_exc_class():
            appender.withdraw(handle)
            raise

    async def enter(self, parcel: Parcel, place: Place, sparse: bool, timeout_s: float | None) -> Handle:
        """Queue an append as soon as there is room. For the library."""
        deadline_s = self._appender.deadline_s(timeout_s)
        await self._appender.wait_room(parcel.size, deadline_s)
        return self._appender.append(parcel, place, sparse, deadline_s)

    async def append_many(
        self, payloads: Iterable[Payload], *, serial: int | None = None,
        progress: Callable[[int], object] | None = None, timeout_s: float | None = None,
    ) -> int:
        """Append each payload by itself, in order, with many in flight and bounded memory; returns their number once
        all are in the log. The fast way to append much.

        Not atomic: after an error the log holds some of them, at least those that ``progress`` was told of. ``serial``,
        of a named client, is that of the first payload; each of the others has the next. Payloads up to `last_serial`
        were appended before and are not sent: a program that starts anew with the same payloads goes on where it ended.
        ``progress(number)`` is called now and then with how many, from the first on, are in the log. ``timeout_s`` is
        for each append. Raises as `append`.
        """
        self._servers.require_open()
        self._need_home()
        need_append(serial, timeout_s)
        many = Many(lambda parcel, number: self.enter(parcel, number, False, timeout_s), serial)
        try:
            for chunk in chunks(payloads):
                done = await many.feed(chunk)
                if progress is not None:
                    progress(done)
            return await many.finish()
        except BaseException:
            withdraw(self, many.under_way)
            raise

    @overload
    def append_nowait(
        self, payload: Payload, *, serial: None = None, timeout_s: float | None = None
    ) -> Handle[int]: ...
    @overload
    def append_nowait(self, payload: Payload, *, serial: int, timeout_s: float | None = None) -> Handle[int | None]: ...

    def append_nowait(
        self, payload: Payload, *, serial: int | None = None, timeout_s: float | None = None
    ) -> Handle[Any]:
        """Queue one payload and return its `Handle` at once; awaiting that gives the LSN. The fast path.

        Raises `TooLarge`, `Overloaded` (the local queue is full: `await log.wait_room()`), `Fenced`, `Closed`.
        """
        appender = self._appender
        return appender.append(single(payload), serial, False, appender.deadline_s(timeout_s))

    @overload
    def append_batch_nowait(
        self, payloads: Iterable[Payload], *, serial: None = None, timeout_s: float | None = None
    ) -> Handle[int]: ...
    @overload
    def append_batch_nowait(
        self, payloads: Iterable[Payload], *, serial: int, timeout_s: float | None = None
    ) -> Handle[int | None]: ...

    def append_batch_nowait(
        self, payloads: Iterable[Payload], *, serial: int | None = None, timeout_s: float | None = None
    ) -> Handle[Any]:
        """Queue a batch, as `append_nowait` does one payload; the handle's `lsns` are those of all payloads."""
        appender = self._appender
        return appender.append(batch(payloads), serial, True, appender.deadline_s(timeout_s))

    def _append_at_once(self, payload: Payload, timeout_s: float) -> Handle:
        appender = self._appender
        handle = appender.append(single(payload), None, False, appender.deadline_s(timeout_s), awaited=True)
        appender.send_first()
        return handle

    async def wait_room(self) -> None:
        """Wait until `append_nowait` has room for a payload in the local queue. Raises `Closed`."""
        self._servers.require_open()
        self._need_home()
        await self._appender.wait_room(1, None)

    async def settled(self, handle: Handle) -> int | None | AlpoError:
        """The final outcome of one append, in the form of `settle`. Waits for it without a limit. For libraries built
        on this log."""
        self._servers.require_here()
        while not handle.done or (isinstance(handle.error, NotGuaranteed) and handle.last_word is None):
            await self._appender.news.wait()
            self._servers.require_open()
        return handle.last_word[0] if handle.last_word is not None else handle.error or handle.lsn

    async def settle(self, timeout_s: float | None = None) -> dict[int, int | None | AlpoError]:
        """Wait until every append that was told as `NotGuaranteed` has an outcome.

        Returns the outcomes that came since the last call: serial -> LSN, or the error that it ended with. Raises
        `Unavailable` at the deadline (outcomes known by then stay for the next call).
        """
        seconds = self._seconds(timeout_s)
        try:
            with anyio.fail_after(seconds):
                return await self._appender.settle()
        except TimeoutError as error:
            raise self._appender.unavailable("there are appends whose outcome is still unknown") from error

    # -- what needs a store -------------------------------------------------------------------------------------

    async def backup(
        self, file: str | PathLike[str], *, server: int | None = None,
        progress: Callable[[int, int], object] | None = None, timeout_s: float | None = None,
    ) -> BackupInfo:
        """Copy the log of server ``server`` into ``file``, while it serves: as far as that knows it to be guaranteed.
        None: the leader's, all that was acknowledged by now. The file appears whole, and synced, or not at all.

        ``progress(done, about)`` is called now and then, with bytes. ``timeout_s`` bounds how long nothing may come.
        Raises `BackupFailed`, `Refused`, `Unavailable`, `ProtocolError`.
        """
        seconds = self._seconds(timeout_s)
        from alpo.backup import back_up  # with all of a store

        return await back_up(self._servers, Path(file), server, seconds, progress)
