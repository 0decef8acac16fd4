"""The logs that a test holds: the real client in the engine's loop, seen from outside of it.

Laws:

* Every call, result and exception is that of `alpo.Log` and `alpo.SyncLog`, which do the work.
* All tasks of the test get their turns before virtual time goes on, and again at least every virtual second: a task
  that waits for something else than the cluster is not starved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from inspect import getmembers, iscoroutinefunction
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import anyio
import anyio.lowlevel

from alpo.client.blocking import Portal, SeenFuture
from alpo.client.handle import Handle, L_co
from alpo.client.log import Log
from alpo.client.operator.asking import servers_of
from alpo.client.reading import Batches, polled
from alpo.client.record import Record
from alpo.client.retry import Clock
from alpo.client.sync import SyncLog
from alpo.errors import AlpoError
from alpo_sim.options import SECOND

from .engine import Engine, EngineFuture, EnginePortal

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
#: Turns of all other tasks before virtual time goes on: enough for one task to take up what another hands it.
_TURNS = 12
_STRIDE_US = SECOND


class Turns:
    """The turns of a test's tasks: one of them lets virtual time go on, on behalf of all."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._driving = False
        self._awaited: list[Callable[[], bool]] = []
        self._parked: list[anyio.Event] = []
        self._posted: deque[Callable[[], None]] = deque()
        #: Scopes and the virtual times at which they are cancelled.
        self._deadlines: list[tuple[float, anyio.CancelScope]] = []

    def post(self, call: Callable[[], None]) -> None:
        """Have ``call()`` made in the test's loop before virtual time goes on: from the cluster's thread."""
        self._posted.append(call)

    @contextmanager
    def move_on_at(self, at_us: float, shield: bool) -> Iterator[anyio.CancelScope]:
        """A scope that is cancelled at a virtual time."""
        with anyio.CancelScope(shield=shield) as scope:
            deadline = (at_us, scope)
            self._deadlines.append(deadline)
            self._cancel_late()
            try:
                yield scope
            finally:
                self._deadlines.remove(deadline)

    def _cancel_late(self) -> None:
        for at_us, scope in self._deadlines:
            if self._engine.world.now_us >= at_us:
                scope.cancel()

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait for ``ready()``; virtual time goes on meanwhile. A checkpoint in any case. Raises `Stuck`."""
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
        """Give all other tasks their turns, then let virtual time go on for one of the waits, a second at most."""
        self._driving = True
        try:
            for _ in range(_TURNS):
                await anyio.lowlevel.checkpoint()
            if not ready():
                world = self._engine.world
                ends_us = [at_us for at_us, scope in self._deadlines if not scope.cancel_called]
                until_us = min([world.now_us + _STRIDE_US, *ends_us])
                self._engine.drive(
                    lambda: world.now_us >= until_us or bool(self._posted) or any(each() for each in self._awaited)
                )
                self._cancel_late()
                while self._posted:
                    self._posted.popleft()()
        finally:
            self._driving = False
            parked, self._parked = self._parked, []
            for event in parked:
                event.set()

    async def result(self, future: EngineFuture[T]) -> T:
        """The result of ``future``, waited for; cancelling the wait cancels it."""
        try:
            await self.until(future.done)
        except BaseException:
            if not future.done():
                future.undo()
            raise
        return future.result()


class SimulatedFuture(SeenFuture, EngineFuture[Handle[Any]]):
    """The future of a blocking log's `append_nowait`."""


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
    """An `alpo.Handle` for the test's side: waiting lets virtual time go on."""

    def __init__(self, handle: Handle[L_co], turns: Turns) -> None:
        self._handle = handle
        self._turns = turns

    if not TYPE_CHECKING:  # every attribute is the real handle's

        def __getattribute__(self, name: str) -> Any:
            own = object.__getattribute__
            if name in ("_handle", "_turns", "_wait", "add_done_callback", "__class__", "__await__"):
                return own(self, name)
            return getattr(own(self, "_handle"), name)

    def __await__(self) -> Generator[Any, Any, L_co]:
        return self._wait().__await__()

    async def _wait(self) -> L_co:
        handle = self._handle
        if handle.error is None:  # looking counts as being told, as awaiting does
            await self._turns.until(lambda: handle.done)
        error = handle.error
        if error is not None:
            raise error.with_traceback(None)
        return cast(L_co, handle.lsn)

    def add_done_callback(self, function: Callable[[Handle[L_co]], object]) -> None:
        """Call ``function(handle)`` once done, in the test's loop; the function must not wait."""
        def call() -> None:
            self._handle.add_done_callback(lambda handle: function(self))  # done: at once

        if self._handle.done:
            call()
        else:
            self._handle.add_done_callback(lambda handle: self._turns.post(call))


class SimulatedBatches(Batches):
    """An `alpo.Batches` for the test's side: every page is fetched in the engine's loop."""

    def __init__(self, log: SimulatedLog, make: Callable[[], Batches]) -> None:
        self._log = log
        self._batches = log._at_once(make)
        self.servers, self.stop = self._batches.servers, self._batches.stop

    def __repr__(self) -> str:
        return repr(self._batches)

    @property
    def follows(self) -> bool:
        return self._batches.follows

    async def aclose(self) -> None:
        await self._log._run(self._batches.aclose)

    async def __anext__(self) -> list[Record]:
        records = await self._log._run(self._next)
        if records is None:
            raise StopAsyncIteration
        return records

    async def _next(self) -> list[Record] | None:
        try:
            return await self._batches.__anext__()
        except StopAsyncIteration:  # no future can hold it
            return None


def _handing(call: F) -> F:
    """A method of `SimulatedLog` that returns a `SimulatedHandle`."""
    @wraps(call)
    def append_nowait(self: SimulatedLog, *given: Any, **named: Any) -> Handle[Any]:
        append = partial(getattr(self._log, call.__name__), *given, **named)
        return SimulatedHandle(self._at_once(append), self._turns)

    return cast(F, append_nowait)


def _paging(call: F, **convert: Callable[[Any], Any]) -> F:
    """A method of `SimulatedLog` that returns `SimulatedBatches`; ``convert``: functions to apply to arguments, by
    name."""
    @wraps(call)
    def batches(self: SimulatedLog, *given: Any, **named: Any) -> Batches:
        named |= {name: change(named[name]) for name, change in convert.items() if name in named}
        return SimulatedBatches(self, partial(getattr(self._log, call.__name__), *given, **named))

    return cast(F, batches)


class SimulatedClock(Clock):
    """The virtual time of a log."""

    def __init__(self, log: SimulatedLog) -> None:
        super().__init__(log._servers.rng)
        self._log = log

    def now_s(self) -> float:
        return self._log._engine.world.now_us / SECOND

    async def sleep(self, seconds: float) -> None:
        await self._log._run(partial(anyio.sleep, seconds))

    def move_on_after(self, seconds: float, shield: bool = False) -> AbstractContextManager[anyio.CancelScope]:
        return self._log._turns.move_on_at(self._log._engine.world.now_us + seconds * SECOND, shield)


class SimulatedLog(Log):
    """`alpo.Log` on virtual time, under trio or asyncio: every call goes to ``log``, in the engine's loop."""

    def __init__(self, log: Log, engine: Engine, turns: Turns) -> None:
        self._log = log
        self._servers = servers_of(log)
        self._engine = engine
        self._turns = turns
        self.clock = SimulatedClock(self)

    async def __aenter__(self) -> Self:
        await self._run(self._log.__aenter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=error is not None):
            await self._run(partial(self._log.__aexit__, kind, error, trace))

    def _at_once(self, function: Callable[[], T]) -> T:
        """Call ``function()`` in the engine's loop; returns its result. No virtual time goes by."""
        return self._engine.call(function)

    async def _run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``function()`` in the engine's loop; returns its result. Virtual time goes on until it ends."""
        return await self._turns.result(self._engine.spawn(function))

    async def settled(self, handle: Handle) -> int | None | AlpoError:
        """The cluster's last word on one append of this log, as of `alpo.Log`."""
        assert isinstance(handle, SimulatedHandle)
        return await self._run(partial(self._log.settled, handle._handle))

    append_nowait = _handing(Log.append_nowait)
    _append_at_once = _handing(Log._append_at_once)
    append_batch_nowait = _handing(Log.append_batch_nowait)
    read_batches = _paging(Log.read_batches)
    follow_batches = _paging(Log.follow_batches, stop=polled)


def _simulated(name: str, member: Any) -> Any:
    """The member of `SimulatedLog` for a coroutine method, or a property, of `Log`."""
    if isinstance(member, property):
        return property(lambda self: getattr(self._log, name), doc=member.__doc__)

    @wraps(member)
    async def call(self: SimulatedLog, *given: Any, **named: Any) -> Any:
        return await self._run(partial(getattr(self._log, name), *given, **named))

    return call


# All others, but for `read` and `follow`: `Log` makes them of `read_batches` and `follow_batches`.
for _name, _member in getmembers(Log):
    if _name.startswith("_") or _name in vars(SimulatedLog):
        continue
    if isinstance(_member, property) or iscoroutinefunction(_member):
        setattr(SimulatedLog, _name, _simulated(_name, _member))
