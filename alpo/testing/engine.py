"""Virtual time for the real client: an event loop whose clock is the simulated world's, in a thread of its own.

Laws:

* Virtual time goes on only while somebody outside waits (`Engine.drive`). Otherwise the loop's thread sleeps.
* A wait ends only when the loop has nothing left to do at that microsecond. So the user's code runs while nothing else
  does, and the same code does the same again.
* Nothing hangs: a wait ends after `patience_s` of virtual time with `Stuck`.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import selectors
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar, TypeVarTuple

from alpo_sim.checks import Broken
from alpo_sim.options import SECOND
from alpo_sim.world import World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
#: The virtual time that goes by at most before the loop looks for other work.
_STRIDE_US = SECOND


class Stuck(AssertionError):
    """The error of a wait that took longer than its virtual seconds, `patience_s` if nothing else was said."""


class _Waiter:
    """A wait of another thread, until ``ready()`` or the deadline."""

    __slots__ = ("deadline_us", "error", "let_go", "patience_us", "ready")

    def __init__(self, ready: Callable[[], bool], now_us: int, patience_us: int) -> None:
        self.ready = ready
        self.patience_us = patience_us
        self.deadline_us = now_us + patience_us
        self.let_go = threading.Event()
        self.error: BaseException | None = None


class _Loop(asyncio.SelectorEventLoop):
    """asyncio's own loop, with the world's clock; its idle time goes to the world (`_Selector`)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.busy = False
        super().__init__(_Selector(engine, self))

    def time(self) -> float:
        return self._engine.world.now_us / SECOND

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        self.busy = True
        return super().call_soon(callback, *args, context=context)


class _Selector(selectors.DefaultSelector):
    """A selector that lets the world go on where asyncio would sleep."""

    def __init__(self, engine: Engine, loop: _Loop) -> None:
        super().__init__()
        self._engine = engine
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        self._loop.busy = False
        if self._engine.release():
            self._engine.advance(timeout)
            return super().select(0)
        return super().select(None)


class Engine:
    """One world and the loop in which its clients run. `close` it at the end."""

    def __init__(self, world: World, recipe: str, patience_s: float) -> None:
        self.world = world
        #: The call that makes this world again, added to every error.
        self._recipe = recipe
        #: The first error of the world: every wait from then on raises it.
        self.failure: BaseException | None = None
        self.patience_us = int(patience_s * SECOND)
        self._posts: deque[Callable[[], None]] = deque()
        self._waiters: list[_Waiter] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._loop = _Loop(self)
        self._thread = threading.Thread(target=self._run, name="alpo.testing", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    @property
    def inside(self) -> bool:
        """True in the loop's thread."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End every task, then the thread."""
        if self._thread.is_alive() and not self._loop.is_closed():
            self.failure = self.failure or Stuck("the cluster is closed")
            self._post(self._cancel_all)
            self._thread.join()

    def _cancel_all(self) -> None:
        for task in asyncio.all_tasks(self._loop):  # `_tasks` lacks those that logs start
            task.cancel()
        self._stop_when_done()

    def _stop_when_done(self) -> None:
        if asyncio.all_tasks(self._loop):
            self._loop.call_soon(self._stop_when_done)
        else:
            self._loop.stop()

    # -- in the loop's thread ---------------------------------------------------------------------------

    def release(self) -> bool:
        """End the waits that are over; returns True if there are others. Called when the loop has nothing left to do
        now."""
        left: list[_Waiter] = []
        gone: list[_Waiter] = []
        for waiter in self._waiters:
            if self.failure is not None:
                waiter.error = self.failure
            elif not waiter.ready():
                if self.world.now_us < waiter.deadline_us:
                    left.append(waiter)
                    continue
                waiter.error = self.stuck(waiter.patience_us)
            gone.append(waiter)
        self._waiters = left
        for waiter in gone:
            waiter.let_go.set()
        return bool(left)

    def advance(self, timeout: float | None) -> None:
        """Let the world go on until the loop has something to do, a wait is over, or ``timeout`` seconds have gone by.
        """
        world, waiters, loop, posts = self.world, self._waiters, self._loop, self._posts
        until_us = world.now_us + _STRIDE_US
        if timeout is not None:
            until_us = min(until_us, world.now_us + math.ceil(timeout * SECOND))
        until_us = min(until_us, *(w.deadline_us for w in waiters))
        try:
            world.run_until(until_us, lambda: bool(loop.busy or posts or any(w.ready() for w in waiters)))
        except Exception as error:
            self.failure = self._told(error)

    def _told(self, error: BaseException) -> BaseException:
        """The error, with what makes this world again."""
        if isinstance(error, Broken):
            return Broken(error.invariant, f"{error.detail} [{self._recipe}]")
        error.add_note(self._recipe)
        return error

    def _take_posts(self) -> None:
        while self._posts:
            self._posts.popleft()()

    def start(self, function: Callable[[], Coroutine[Any, Any, T]], future: EngineFuture[T]) -> asyncio.Task[None]:
        """Start a task that settles ``future``. In the loop's thread only."""
        task = self._loop.create_task(_settle(function, future), context=contextvars.Context())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def stuck(self, waited_us: int) -> Stuck:
        """The error for a wait of so many virtual microseconds."""
        return Stuck(f"waited for {waited_us / SECOND:g} s of virtual time, in vain [{self._recipe}]")

    # -- from anywhere ----------------------------------------------------------------------------------

    def _post(self, function: Callable[[], None]) -> None:
        """Have ``function`` called in the loop's thread."""
        self._posts.append(function)
        # The context is a new one: the caller's may say that Trio runs.
        self._loop.call_soon_threadsafe(self._take_posts, context=contextvars.Context())

    def drive(
        self, ready: Callable[[], bool], first: Callable[[], None] | None = None, timeout_s: float | None = None
    ) -> None:
        """Do ``first``, then let virtual time go on until ``ready()``. Raises `Stuck`, and what broke.

        Raises RuntimeError in the loop's thread: what is called there cannot wait.
        """
        if self.inside:
            raise RuntimeError("what the cluster calls by itself (after, callbacks) cannot wait for it")
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        patience_us = self.patience_us if timeout_s is None else int(timeout_s * SECOND)
        waiter = _Waiter(ready, self.world.now_us, patience_us)

        def begin() -> None:
            if first is not None:
                first()
            self._waiters.append(waiter)

        self._post(begin)
        try:
            waiter.let_go.wait()
        except BaseException:
            self._post(lambda: self._waiters.remove(waiter) if waiter in self._waiters else None)
            raise
        if waiter.error is not None:
            raise waiter.error.with_traceback(None)

    def call(self, function: Callable[[], T]) -> T:
        """Call ``function()`` in the loop's thread; returns its result. No virtual time goes by."""
        if self.inside:
            return function()
        outcome: Future[T] = Future()

        def run() -> None:
            try:
                outcome.set_result(function())
            except Broken as error:
                self.failure = self._told(error)
                outcome.set_exception(self.failure)
            except BaseException as error:
                outcome.set_exception(error)

        self.drive(outcome.done, run)
        return outcome.result()

    def spawn(self, function: Callable[[], Coroutine[Any, Any, T]]) -> EngineFuture[T]:
        """Start a task in the loop; the future is that of its result. The future's ``undo`` cancels the task."""
        future: EngineFuture[T] = EngineFuture(self)

        def start() -> None:
            task = self.start(function, future)
            future.undo = lambda: self.call(lambda: (task.cancel(), None)[1])

        self.call(start)
        return future


async def _settle(function: Callable[[], Coroutine[Any, Any, T]], future: EngineFuture[T]) -> None:
    """Run the coroutine and give the future its result or its error."""
    try:
        result = await function()
    except BaseException as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)


class EngineFuture(Future[T]):
    """A future whose `result` lets virtual time go on."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self.undo: Callable[[], None] = lambda: None

    def _wait(self, timeout: float | None) -> None:
        """Let virtual time go on until it is done, ``timeout`` virtual seconds at most."""
        if self.done() or self._engine.inside:
            return
        if timeout is None:
            self._engine.drive(self.done)
        else:
            world = self._engine.world
            end_us = world.now_us + int(timeout * SECOND)
            self._engine.drive(lambda: self.done() or world.now_us >= end_us)

    def result(self, timeout: float | None = None) -> T:
        """Result of the future, as `Future.result` gives it; ``timeout`` is in virtual seconds."""
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Exception of the future, as `Future.exception` gives it; ``timeout`` is in virtual seconds."""
        self._wait(timeout)
        return super().exception(0)


class EnginePortal:
    """A `Portal` into the engine's loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def call(self, func: Callable[[], Coroutine[Any, Any, T]], /) -> T:
        future = self._engine.spawn(func)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.undo()
            raise

    def start_task_soon(self, func: Callable[[], Coroutine[Any, Any, T]], /) -> EngineFuture[T]:
        return self._engine.spawn(func)

    def close(self) -> None:
        """Do nothing: other logs are in the same loop."""
