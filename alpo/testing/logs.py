"""What a test holds: the real client in the engine's loop, seen from outside of it.

Laws:

* Every call, result and exception is that of `alpo.Log` and `alpo.SyncLog`: they are behind it.
* Under an event loop all tasks of the test get their turns before virtual time goes on, and again at least every
  virtual second (`Turns`): what waits for something else than the cluster is not starved.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.lowlevel

from alpo.client.admin import ByHand, SessionInfo
from alpo.client.batches import Payload
from alpo.client.compacting import FileSpace
from alpo.client.cursors import CursorInfo
from alpo.client.events import Events
from alpo.client.handle import Handle
from alpo.client.keeping import Outcome
from alpo.client.log import Log
from alpo.client.members import Leadership, MemberInfo
from alpo.client.reading import Batches, Closing
from alpo.client.record import Record
from alpo.client.settings import Settings
from alpo.client.sync import Portal, SyncLog
from alpo_sim.options import SECOND

from .engine import Engine, EngineFuture, EnginePortal, Stay

T = TypeVar("T")
#: Turns that everybody else gets before virtual time goes on: what one task hands to another is taken up by then.
_TURNS = 12
_STRIDE_US = SECOND


class SimulatedSyncLog(SyncLog):
    """`alpo.SyncLog` on virtual time."""

    def __init__(self, log: Log, queue_max: int, engine: Engine) -> None:
        super().__init__(log, queue_max)
        self._engine = engine

    def _open_portal(self) -> AbstractContextManager[Portal]:
        return EnginePortal.of(self._engine)

    def _new_future(self) -> EngineFuture[Handle]:
        return EngineFuture(self._engine)


class Turns:
    """Who of a test's tasks lets virtual time go on, on behalf of all of them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._driving = False
        self._awaited: list[Callable[[], bool]] = []
        self._parked: list[anyio.Event] = []

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait for ``ready()``; virtual time goes on meanwhile. A checkpoint in any case."""
        await anyio.lowlevel.checkpoint()
        self._awaited.append(ready)
        world, patience_us = self._engine.world, self._engine.patience_us
        began_us = world.now_us
        try:
            while not ready():
                if world.now_us - began_us >= patience_us:
                    raise self._engine.stuck(patience_us)
                if self._driving:
                    event = anyio.Event()
                    self._parked.append(event)
                    await event.wait()
                else:
                    await self._drive(ready)
        finally:
            self._awaited.remove(ready)

    async def _drive(self, ready: Callable[[], bool]) -> None:
        self._driving = True
        try:
            for _ in range(_TURNS):
                await anyio.lowlevel.checkpoint()
            if not ready():
                world = self._engine.world
                until_us = world.now_us + _STRIDE_US
                self._engine.drive(lambda: world.now_us >= until_us or any(each() for each in self._awaited))
        finally:
            self._driving = False
            parked, self._parked = self._parked, []
            for event in parked:
                event.set()

    async def result(self, future: EngineFuture[T]) -> T:
        """What became of ``future``; being cancelled cancels it."""
        try:
            await self.until(future.done)
        except BaseException:
            if not future.done():
                future.undo()
            raise
        return future.result()


class SimulatedHandle:
    """`alpo.Handle`, for the test's side."""

    def __init__(self, handle: Handle, turns: Turns) -> None:
        self._handle = handle
        self._turns = turns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def __await__(self) -> Generator[Any, Any, int | None]:
        return self._wait().__await__()

    async def _wait(self) -> int | None:
        handle = self._handle
        await self._turns.until(lambda: handle.done)
        error = handle.error
        if error is not None:
            raise error.with_traceback(None)
        return handle.lsn

    def add_done_callback(self, function: Callable[[SimulatedHandle], object]) -> None:
        """It is called by the cluster's thread, while the test waits; it must not wait itself."""
        self._handle.add_done_callback(lambda handle: function(self))


class _Iterator(Closing):
    """What `Batches` and `Records` share."""

    def __init__(self, log: SimulatedLog, batches: Callable[[], Batches]) -> None:
        self._log = log
        self._batches = log.turns_call(batches)

    async def aclose(self) -> None:
        """Give the connection back. The iterator is over."""
        await self._log.run(self._batches.aclose)

    async def _next(self) -> list[Record]:
        found = await self._log.run(self._one)
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


class SimulatedLog:
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

    def turns_call(self, function: Callable[[], T]) -> T:
        """At once, in the engine's loop."""
        return self._engine.call(function)

    async def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """In the engine's loop; virtual time goes on until it ends."""
        return await self._turns.result(self._engine.spawn(function))

    # -- who we are -------------------------------------------------------------------------------------

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
        await self.run(partial(self._log.opened, timeout_s))

    # -- appending --------------------------------------------------------------------------------------

    async def append(
        self, payload: Payload, *, serial: int | None = None, timeout_s: float | None = None
    ) -> Any:
        """The LSN; None as `alpo.Log.append` says."""
        call: Any = self._log.append
        return await self.run(partial(call, payload, serial=serial, timeout_s=timeout_s))

    async def append_batch(
        self, payloads: Iterable[Payload], *, serial: int | None = None, timeout_s: float | None = None
    ) -> Any:
        """The LSNs, a range; None as `alpo.Log.append_batch` says."""
        call: Any = self._log.append_batch
        return await self.run(partial(call, payloads, serial=serial, timeout_s=timeout_s))

    def append_nowait(
        self, payload: Payload, *, serial: int | None = None, timeout_s: float | None = None
    ) -> SimulatedHandle:
        append = partial(self._log.append_nowait, payload, serial=serial, timeout_s=timeout_s)
        return SimulatedHandle(self._engine.call(append), self._turns)

    def append_batch_nowait(
        self, payloads: Iterable[Payload], *, serial: int | None = None, timeout_s: float | None = None
    ) -> SimulatedHandle:
        append = partial(self._log.append_batch_nowait, payloads, serial=serial, timeout_s=timeout_s)
        return SimulatedHandle(self._engine.call(append), self._turns)

    async def wait_room(self) -> None:
        await self.run(self._log.wait_room)

    async def settle(self, timeout_s: float | None = None) -> Any:
        return await self.run(partial(self._log.settle, timeout_s))

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
        self, start: int | None = None, *, local: bool = False, server: int | None = None,
        last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> SimulatedRecords:
        return SimulatedRecords(self, partial(
            self._log.follow_batches, start, local=local, server=server, last=last, since=since, client=client,
            timeout_s=timeout_s,
        ))

    def follow_batches(
        self, start: int | None = None, *, local: bool = False, server: int | None = None,
        last: int | None = None, since: datetime | None = None, client: str | None = None,
        timeout_s: float | None = None,
    ) -> SimulatedBatches:
        return SimulatedBatches(self, partial(
            self._log.follow_batches, start, local=local, server=server, last=last, since=since, client=client,
            timeout_s=timeout_s,
        ))

    # -- the operator's ---------------------------------------------------------------------------------

    async def append_by_hand(
        self, payloads: Iterable[Payload], *, client: str, serial: int, epoch: int | None = None,
        timeout_s: float | None = None,
    ) -> ByHand:
        return await self.run(partial(
            self._log.append_by_hand, payloads, client=client, serial=serial, epoch=epoch, timeout_s=timeout_s
        ))

    async def status(self, timeout_s: float | None = None) -> list[dict[str, Any]]:
        return await self.run(partial(self._log.status, timeout_s))

    async def events(self, since: datetime | None = None, timeout_s: float | None = None) -> Events:
        return await self.run(partial(self._log.events, since, timeout_s))

    async def sessions(self, timeout_s: float | None = None) -> list[SessionInfo]:
        return await self.run(partial(self._log.sessions, timeout_s))

    async def drop_session(self, name: str, epoch: int | None = None, timeout_s: float | None = None) -> int:
        return await self.run(partial(self._log.drop_session, name, epoch, timeout_s))

    async def outcome(
        self, client: str, serial: int, timeout_s: float | None = None, *, epoch: int | None = None
    ) -> Outcome:
        return await self.run(partial(self._log.outcome, client, serial, timeout_s, epoch=epoch))

    async def wait_everyone(self, lsn: int, timeout_s: float | None = None) -> None:
        await self.run(partial(self._log.wait_everyone, lsn, timeout_s))

    async def settings(self, timeout_s: float | None = None) -> Settings:
        return await self.run(partial(self._log.settings, timeout_s))

    async def change_settings(
        self, wanted: Settings, *, expected: Settings | None = None, timeout_s: float | None = None
    ) -> Settings:
        return await self.run(
            partial(self._log.change_settings, wanted, expected=expected, timeout_s=timeout_s)
        )

    async def add_member(
        self, id: int, address: str, *, priority: int = 0, timeout_s: float | None = None
    ) -> list[MemberInfo]:
        add = partial(self._log.add_member, id, address, priority=priority, timeout_s=timeout_s)
        return await self.run(add)

    async def remove_member(self, id: int, timeout_s: float | None = None) -> list[MemberInfo]:
        return await self.run(partial(self._log.remove_member, id, timeout_s))

    async def replace_member(self, id: int, address: str, timeout_s: float | None = None) -> list[MemberInfo]:
        return await self.run(partial(self._log.replace_member, id, address, timeout_s))

    async def transfer(self, target: int, timeout_s: float | None = None) -> Leadership:
        return await self.run(partial(self._log.transfer, target, timeout_s))

    async def set_cursor(self, name: str, lsn: int, timeout_s: float | None = None) -> None:
        await self.run(partial(self._log.set_cursor, name, lsn, timeout_s))

    async def cursors(self, timeout_s: float | None = None) -> list[CursorInfo]:
        return await self.run(partial(self._log.cursors, timeout_s))

    async def drop_cursor(self, name: str, timeout_s: float | None = None) -> int:
        return await self.run(partial(self._log.drop_cursor, name, timeout_s))

    async def trim(self, before: int, timeout_s: float | None = None, *, force: bool = False) -> int:
        return await self.run(partial(self._log.trim, before, timeout_s, force=force))

    async def compact(self, server: int, timeout_s: float | None = None) -> FileSpace:
        return await self.run(partial(self._log.compact, server, timeout_s))

    async def init(self, timeout_s: float | None = None) -> None:
        await self.run(partial(self._log.init, timeout_s))
