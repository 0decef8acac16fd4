"""What a test holds: the real client in the engine's loop, seen from outside of it.

Law: every call, result and exception is that of `alpo.Log` and `alpo.SyncLog`: they are behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast, overload

import anyio
import anyio.lowlevel

from alpo.client.compacting import FileSpace
from alpo.client.futures import SeenFuture
from alpo.client.handle import Handle, L_co
from alpo.client.log import Log
from alpo.client.misuse import AsyncOnly
from alpo.client.operator.admin import ByHand, SessionInfo
from alpo.client.operator.cursors import CursorInfo
from alpo.client.operator.events import Events
from alpo.client.operator.members import Leadership, MemberInfo
from alpo.client.operator.outcome import Outcome
from alpo.client.operator.settings import Settings
from alpo.client.operator.status import MemberStatus
from alpo.client.payloads import Payload
from alpo.client.portal import Portal
from alpo.client.reading import Batches, Closing
from alpo.client.record import Record
from alpo.client.stopping import StopEvent, polled
from alpo.client.sync import SyncLog
from alpo.errors import AlpoError

from .engine import Engine, EngineFuture, EnginePortal, Stay
from .turns import Turns

T = TypeVar("T")


class SimulatedFuture(SeenFuture, EngineFuture[Handle[Any]]):
    """What `append_nowait` of a blocking log gives."""


class SimulatedSyncLog(SyncLog):
    """`alpo.SyncLog` on virtual time."""

    def __init__(self, log: Log, queue_max: int, engine: Engine) -> None:
        super().__init__(log, queue_max)
        self._engine = engine

    def _open_portal(self) -> Portal:
        return EnginePortal(self._engine)

    def _new_future(self) -> SimulatedFuture:
        return SimulatedFuture(self._engine)


class SimulatedHandle(Handle[L_co]):
    """`alpo.Handle`, for the test's side."""

    def __init__(self, handle: Handle[L_co], turns: Turns) -> None:
        self._handle = handle
        self._turns = turns

    if not TYPE_CHECKING:  # all that a handle has is the real one's

        def __getattribute__(self, name: str) -> Any:
            own = object.__getattribute__
            if name in ("_handle", "_turns", "_wait", "add_done_callback", "__class__", "__await__"):
                return own(self, name)
            return getattr(own(self, "_handle"), name)

    def __await__(self) -> Generator[Any, Any, L_co]:
        return self._wait().__await__()

    async def _wait(self) -> L_co:
        handle = self._handle
        await self._turns.until(lambda: handle.done)
        error = handle.error
        if error is not None:
            raise error.with_traceback(None)
        return cast(L_co, handle.lsn)

    def add_done_callback(self, function: Callable[[Handle[L_co]], object]) -> None:
        """It is called by the cluster's thread, while the test waits; it must not wait itself."""
        self._handle.add_done_callback(lambda handle: function(self))


class _Iterator(Closing):
    """What `Batches` and `Records` share."""

    def __init__(self, log: SimulatedLog, batches: Callable[[], Batches]) -> None:
        self._log = log
        self._batches = log._at_once(batches)

    async def aclose(self) -> None:
        """Give the connection back. The iterator is over."""
        await self._log._run(self._batches.aclose)

    async def _next(self) -> list[Record]:
        found = await self._log._run(self._one)
        if found is None:
            raise StopAsyncIteration
        return found

    async def _one(self) -> list[Record] | None:
        try:
            return await self._batches.__anext__()
        except StopAsyncIteration:  # no future takes it
            return None


class SimulatedBatches(_Iterator):
    async def __anext__(self) -> list[Record]:
        return await self._next()


class SimulatedRecords(_Iterator):
    def __init__(self, log: SimulatedLog, batches: Callable[[], Batches]) -> None:
        super().__init__(log, batches)
        self._records: list[Record] = []

    async def __anext__(self) -> Record:
        if not self._records:
            self._records = (await self._next())[::-1]
        return self._records.pop()


class SimulatedLog(AsyncOnly):
    """`alpo.Log` on virtual time, under trio or asyncio: the same methods, results and exceptions."""

    def __init__(self, log: Log, engine: Engine, turns: Turns) -> None:
        self._log = log
        self._engine = engine
        self._turns = turns
        self._stay: Stay[Log] | None = None

    async def __aenter__(self) -> Self:
        self._stay = Stay(self._engine, self._log)
        try:
            await self._turns.result(self._stay.enter_soon())
        except BaseException:
            self._stay.give_up()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._stay is not None
        left = self._stay.leave_soon(kind, error, trace)
        with anyio.CancelScope(shield=error is not None):
            await self._turns.result(left)

    def _at_once(self, function: Callable[[], T]) -> T:
        """At once, in the engine's loop."""
        return self._engine.call(function)

    async def _run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """In the engine's loop; virtual time goes on until it ends."""
        return await self._turns.result(self._engine.spawn(function))

    async def close(self) -> None:
        await self._run(self._log.close)

    # -- who we are -------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._log.closed

    @property
    def client(self) -> str | None:
        return self._log.client

    @property
    def epoch(self) -> int:
        return self._log.epoch

    @property
    def last_serial(self) -> int:
        return self._log.last_serial

    async def opened(self, timeout_s: float | None = None) -> None:
        await self._run(partial(self._log.opened, timeout_s))

    # -- appending --------------------------------------------------------------------------------------

    @overload
    async def append(self, payload: Payload, *, serial: None = None, timeout_s: float | None = None) -> int: ...
    @overload
    async def append(self, payload: Payload, *, serial: int, timeout_s: float | None = None) -> int | None: ...

    async def append(
        self, payload: Payload, *, serial: int | None = None, timeout_s: float | None = None
    ) -> int | None:
        call: Callable[..., Coroutine[Any, Any, int | None]] = self._log.append
        return await self._run(partial(call, payload, serial=serial, timeout_s=timeout_s))

    @overload
    async def append_text(self, text: str, *, serial: None = None, timeout_s: float | None = None) -> int: ...
    @overload
    async def append_text(self, text: str, *, serial: int, timeout_s: float | None = None) -> int | None: ...

    async def append_text(
        self, text: str, *, serial: int | None = None, timeout_s: float | None = None
    ) -> int | None:
        call: Callable[..., Coroutine[Any, Any, int | None]] = self._log.append_text
        return await self._run(partial(call, text, serial=serial, timeout_s=timeout_s))

    @overload
    async def append_json(self, value: object, *, serial: None = None, timeout_s: float | None = None) -> int: ...
    @overload
    async def append_json(self, value: object, *, serial: int, timeout_s: float | None = None) -> int | None: ...

    async def append_json(
        self, value: object, *, serial: int | None = None, timeout_s: float | None = None
    ) -> int | None:
        call: Callable[..., Coroutine[Any, Any, int | None]] = self._log.append_json
        return await self._run(partial(call, value, serial=serial, timeout_s=timeout_s))

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
        call: Callable[..., Coroutine[Any, Any, range | None]] = self._log.append_batch
        return await self._run(partial(call, payloads, serial=serial, timeout_s=timeout_s))

    @overload
    def append_nowait(
        self, payload: Payload, *, serial: None = None, timeout_s: float | None = None
    ) -> Handle[int]: ...
    @overload
    def append_nowait(self, payload: Payload, *, serial: int, timeout_s: float | None = None) -> Handle[int | None]: ...

    def append_nowait(
        self, payload: Payload, *, serial: int | None = None, timeout_s: float | None = None
    ) -> Handle[Any]:
        call: Callable[..., Handle[Any]] = self._log.append_nowait
        append = partial(call, payload, serial=serial, timeout_s=timeout_s)
        return SimulatedHandle(self._engine.call(append), self._turns)

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
        call: Callable[..., Handle[Any]] = self._log.append_batch_nowait
        append = partial(call, payloads, serial=serial, timeout_s=timeout_s)
        return SimulatedHandle(self._engine.call(append), self._turns)

    async def wait_room(self) -> None:
        await self._run(self._log.wait_room)

    async def settle(self, timeout_s: float | None = None) -> dict[int, int | None | AlpoError]:
        return await self._run(partial(self._log.settle, timeout_s))

    # -- reading ----------------------------------------------------------------------------------------

    def read(
        self, start: int | None = None, stop: int | None = None, *, local: bool = False, server: int | None = None,
        last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> SimulatedRecords:
        return SimulatedRecords(self, partial(
            self._log.read_batches, start, stop, local=local, server=server, last=last, since=since, client=client,
            timeout_s=timeout_s,
        ))

    def read_batches(
        self, start: int | None = None, stop: int | None = None, *, local: bool = False, server: int | None = None,
        last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> SimulatedBatches:
        return SimulatedBatches(self, partial(
            self._log.read_batches, start, stop, local=local, server=server, last=last, since=since, client=client,
            timeout_s=timeout_s,
        ))

    def follow(
        self, start: int | Literal["end"] | None = None, *, stop: StopEvent | None = None, local: bool = False,
        server: int | None = None, last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> SimulatedRecords:
        return SimulatedRecords(self, partial(
            self._log.follow_batches, start, stop=polled(stop), local=local, server=server, last=last, since=since,
            client=client, timeout_s=timeout_s,
        ))

    def follow_batches(
        self, start: int | Literal["end"] | None = None, *, stop: StopEvent | None = None, local: bool = False,
        server: int | None = None, last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> SimulatedBatches:
        return SimulatedBatches(self, partial(
            self._log.follow_batches, start, stop=polled(stop), local=local, server=server, last=last, since=since,
            client=client, timeout_s=timeout_s,
        ))

    async def last(self, timeout_s: float | None = None) -> Record | None:
        return await self._run(partial(self._log.last, timeout_s))

    async def end(self, timeout_s: float | None = None) -> int:
        return await self._run(partial(self._log.end, timeout_s))

    # -- the operator's ---------------------------------------------------------------------------------

    async def append_by_hand(
        self, payloads: Iterable[Payload], *, client: str, serial: int, epoch: int | None = None,
        timeout_s: float | None = None,
    ) -> ByHand:
        return await self._run(partial(
            self._log.append_by_hand, payloads, client=client, serial=serial, epoch=epoch, timeout_s=timeout_s
        ))

    async def status(self, timeout_s: float | None = None) -> list[MemberStatus]:
        return await self._run(partial(self._log.status, timeout_s))

    async def events(self, since: datetime | None = None, timeout_s: float | None = None) -> Events:
        return await self._run(partial(self._log.events, since, timeout_s))

    async def sessions(self, timeout_s: float | None = None) -> list[SessionInfo]:
        return await self._run(partial(self._log.sessions, timeout_s))

    async def drop_session(self, name: str, epoch: int | None = None, timeout_s: float | None = None) -> int:
        return await self._run(partial(self._log.drop_session, name, epoch, timeout_s))

    async def outcome(
        self, client: str, serial: int, timeout_s: float | None = None, *, epoch: int | None = None
    ) -> Outcome:
        return await self._run(partial(self._log.outcome, client, serial, timeout_s, epoch=epoch))

    async def wait_everyone(self, lsn: int, timeout_s: float | None = None) -> None:
        await self._run(partial(self._log.wait_everyone, lsn, timeout_s))

    async def settings(self, timeout_s: float | None = None) -> Settings:
        return await self._run(partial(self._log.settings, timeout_s))

    async def change_settings(
        self, wanted: Settings | Mapping[str, float], *, expected: Settings | Mapping[str, float] | None = None,
        timeout_s: float | None = None,
    ) -> Settings:
        return await self._run(
            partial(self._log.change_settings, wanted, expected=expected, timeout_s=timeout_s)
        )

    async def add_member(
        self, id: int, address: str, *, priority: int = 0, timeout_s: float | None = None
    ) -> list[MemberInfo]:
        add = partial(self._log.add_member, id, address, priority=priority, timeout_s=timeout_s)
        return await self._run(add)

    async def remove_member(self, id: int, timeout_s: float | None = None) -> list[MemberInfo]:
        return await self._run(partial(self._log.remove_member, id, timeout_s))

    async def replace_member(self, id: int, address: str, timeout_s: float | None = None) -> list[MemberInfo]:
        return await self._run(partial(self._log.replace_member, id, address, timeout_s))

    async def transfer(self, target: int, timeout_s: float | None = None) -> Leadership:
        return await self._run(partial(self._log.transfer, target, timeout_s))

    async def set_cursor(self, name: str, lsn: int, timeout_s: float | None = None) -> None:
        await self._run(partial(self._log.set_cursor, name, lsn, timeout_s))

    async def cursors(self, timeout_s: float | None = None) -> list[CursorInfo]:
        return await self._run(partial(self._log.cursors, timeout_s))

    async def drop_cursor(self, name: str, timeout_s: float | None = None) -> int:
        return await self._run(partial(self._log.drop_cursor, name, timeout_s))

    async def trim(self, before: int, timeout_s: float | None = None, *, force: bool = False) -> int:
        return await self._run(partial(self._log.trim, before, timeout_s, force=force))

    async def compact(self, server: int, timeout_s: float | None = None) -> FileSpace:
        return await self._run(partial(self._log.compact, server, timeout_s))

    async def init(self, timeout_s: float | None = None) -> None:
        await self._run(partial(self._log.init, timeout_s))
