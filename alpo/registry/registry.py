"""`Registry`: who is admitted, as one process decides it, and every later one finds it.

Laws:

* Nothing is answered before it is in the log, under our token: "admitted" and "not admitted" alike.
* One write is in flight at most. Whatever queues meanwhile is the next one.
* Whoever recovers is the only one who writes from then on. An older leader that does not know it yet fails at the next
  operation, one that changes nothing too, and knows that nothing was written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import copy
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.lowlevel

from alpo.client.arguments import need_seconds
from alpo.client.retry import patiently
from alpo.client.tasks import Bell, Living
from alpo.errors import AlpoError, Closed, NotGuaranteed, SessionExpired, TooLarge
from alpo.state.codec import By, Do, Guard, Op
from alpo.state.errors import Changed, Full, Unsettled
from alpo.state.machine import Cell
from alpo.state.state import State

from .operations import BATCH_MAX, Batch, Operation, Queue
from .rows import (
    Deposed,
    Header,
    Mirror,
    NotInitialised,
    Rows,
    View,
    look,
    need_header,
    need_registry,
    row_json,
    rows_of,
)

T = TypeVar("T")
#: Errors after which nobody can tell whether the write is in the log, or will be.
UNKNOWN = (NotGuaranteed, Unsettled, SessionExpired)
#: Operations up to which all that wait go together.
_CROWD = 256
#: Rows that are looked at before other tasks get their turn.
_CHUNK = 1000


class Registry:
    """The registry ``name`` in a state, led by this process: enter it with ``async with``, which recovers it.

    ``info``: what this leader says of itself, as JSON can hold it. ``strict``: a registry that is not there yet raises
    `NotInitialised`, where otherwise it is made. ``upgrade`` (``strict`` is then not looked at): it is made, and
    `Readmit` admits whom it does not know. ``recover_timeout_s`` and ``write_timeout_s``: seconds on the log's clock,
    whatever the log's own timeouts.

    Leaving it waits for the operations that are under way, unless it is cancelled. It may be entered, used and left by
    different tasks of one event loop; `open` and `close` are for programs that cannot use ``async with``.
    """

    def __init__(
        self, state: State, name: str, info: Any = None, *, strict: bool = False, upgrade: bool = False,
        recover_timeout_s: float = 60.0, write_timeout_s: float = 20.0,
    ) -> None:
        need_seconds(recover_timeout_s)
        need_seconds(write_timeout_s)
        self._state = state
        self._name = need_registry(name)
        self._header = Header(info, strict, upgrade).encoded()
        self._strict = strict and not upgrade
        self._upgrade = upgrade
        self._recover_timeout_s = recover_timeout_s
        self._write_timeout_s = write_timeout_s
        self._mirror = Mirror(state, name, self._new_header, self._end)
        self._rows = Rows(self._mirror.values)
        self._token = 0
        self._bell = Bell()
        self._tasks = Living("Registry", self._run, ended=self._ended)
        self._entered = self._closing = False
        self._over: AlpoError | None = None
        #: Set once this process does not lead any more, for any reason: `apply` raises it.
        self.deposed = anyio.Event()

    @staticmethod
    async def view(state: State, name: str) -> View:
        """The registry as it is now, for processes that do not lead; see `View`. Linearizable. Raises `Damaged`,
        `NewerFormat`, and as `State.fetch`."""
        return await look(state, need_registry(name))

    @property
    def name(self) -> str:
        """The registry's name."""
        return self._name

    @property
    def token(self) -> int:
        """The LSN at which this process took over: higher with each leader, for others to compare."""
        return self._token

    @property
    def version(self) -> int:
        """The LSN of the last write to this registry, as long as we led it."""
        return self._mirror.version

    @property
    def rows(self) -> Rows:
        """The rows as of the last write, as long as we led: a live, read-only mapping; looking costs no message."""
        return self._rows

    def __repr__(self) -> str:
        return f"<Registry {self._name!r}: {f'token {self._token}' if self._token else 'not led'}>"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._finish(drain=error is None or isinstance(error, Exception))

    async def open(self) -> None:
        """Recover, as entering the ``async with`` does, for a program that cannot use one; `close` it at the end.

        Raises `Deposed`, `NotInitialised`, `Damaged`, `NewerFormat`, and as `State.commit`; RuntimeError the second
        time.
        """
        if self._entered:
            raise RuntimeError("a Registry is entered once: recovering anew takes a new one")
        self._entered = True
        try:
            await self._recover()
            self._new_event = self._tasks.start().new_event
        except BaseException:
            self._mirror.leave()
            raise

    async def close(self) -> None:
        """Leave, as the end of the ``async with`` does; may be called again, and from any task of the loop."""
        await self._finish(drain=True)

    async def _finish(self, drain: bool) -> None:
        """End; ``drain``: once all operations that are under way have ended."""
        self._tasks.need_home()
        self._closing = True
        self._bell.ring()
        try:
            if drain:
                await self._tasks.done()
        finally:
            await self._tasks.end()
            self._left()

    # -- recovering -----------------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Write our header, if nobody else has written one since we looked; then take the rows as of that."""
        state, log, name = self._state, self._state.log, self._name
        deadline_s = log.clock.now_s() + self._recover_timeout_s
        settings = await self._patiently(lambda: log.settings(max(0.0, deadline_s - log.clock.now_s())), deadline_s)
        limits = int(settings["payload_bytes_max"]), int(settings["batch_bytes_max"])
        self._queue = Queue(name, self._mirror.values, self._upgrade, *limits)
        machine = await self._patiently(lambda: state.folded(until_s=deadline_s), deadline_s)
        rows = rows_of(name, machine)
        cell = machine.cells.get(name)
        need_header(name, cell, rows)
        if cell is None and self._strict:
            text = f"there is no registry {name!r} in this log, and a strict one is not made by recovering it"
            raise NotInitialised(f"{text}: is this the right cluster? The first time, start without strict")
        for number, (id, value) in enumerate(rows.items(), 1):
            row_json(id, value)
            if number % _CHUNK == 0:
                await anyio.lowlevel.checkpoint()
        version = 0 if cell is None else cell.version
        ops: list[Op] = [(int(Do.PUT), name, self._header, 0)]
        try:
            command = await state.command([self._guard(version)], ops, max(0.0, deadline_s - log.clock.now_s()))
            self._token = (await command.result()).lsn
        except Changed as error:
            text = f"another process recovered registry {name!r} at the same time, and was first"
            raise Deposed(text, name=name, token=0, version=error.version) from error
        self._mirror.open(await state.folded(at_least=self._token, until_s=deadline_s))
        if self._mirror.token != self._token:
            self._mirror.leave()
            raise self._deposed(self._mirror.token)

    def _guard(self, version: int) -> Guard:
        return int(By.VERSION), self._name, version

    async def _patiently(self, step: Callable[[], Awaitable[T]], deadline_s: float) -> T:
        """The answer to a question, asked until the deadline, seconds on the log's clock."""
        clock = self._state.log.clock
        return await patiently(clock, step, lambda: 0.0 if self._over is not None else deadline_s - clock.now_s())

    # -- operations -----------------------------------------------------------------------------------------

    async def apply(self, operation: Operation) -> Any:
        """Do an operation; returns its result once it is in the log, together with those that came with it.

        Raises `Reject`, and what else the operation itself raises; `Deposed`: another process leads, for good. All
        others are of the whole batch: `Unavailable`, `Full`, `TooLarge`, `NoSpace` and as `Log.append` (nothing
        written; the registry goes on); `NotGuaranteed`, `Unsettled` (unknown: the registry is over, and those that
        had to wait behind it get `Closed`: nothing of them was sent). `Overloaded`: 100,000 wait already.

        An operation whose caller is cancelled before it was taken into a batch is not done. After that it still is.
        """
        if self._over is not None:
            raise copy(self._over)
        tasks = self._tasks
        if not tasks.started or self._closing:
            raise Closed(f"registry {self._name!r} is not entered, or was left")
        tasks.need_home()
        waiting = self._queue.add(operation, self._new_event)
        if self._bell.parked:
            self._bell.ring()
        try:
            await waiting.event.wait()
        except BaseException:
            self._queue.withdraw(waiting)
            raise
        if waiting.error is not None:
            raise waiting.error
        return waiting.result

    async def _run(self) -> None:
        """Write batch after batch (a task)."""
        queue = self._queue
        batch: Batch | None = None
        while self._over is None and not (self._closing and not queue and batch is None):
            if batch is None:
                if not queue:
                    await self._bell.wait()
                    continue
                # Send only half if many wait: the rest is prepared while the write is in flight.
                batch = await self._next(max(len(queue) // 2, _CROWD))
                continue
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()  # callers that were answered may ask for more
            queue.prepare(batch.changes)
            before, batch = batch, None
            if await self._landed(before):
                try:
                    batch = await self._next()
                finally:
                    before.done()

    async def _next(self, most: int = BATCH_MAX) -> Batch | None:
        """Send the next batch, if there is one. None if there is none, or it has failed."""
        if self._over is not None:
            return None
        batch = self._queue.take(most)
        if not batch.taken:
            return None
        try:
            batch.make_ops(self._name, self._mirror.values)
            if batch.ops:
                batch.sent = await self._state.command([self._guard(self._token)], batch.ops, self._write_timeout_s)
        except BaseException as error:
            self._failed(batch, error)
            return None
        return batch

    async def _landed(self, batch: Batch) -> bool:
        """Wait until a batch is in the log; one without a change, until it is sure that we still lead. False: it has
        failed."""
        state = self._state
        try:
            if batch.sent is not None:
                await batch.sent.result()
            else:
                deadline_s = state.log.clock.now_s() + self._write_timeout_s
                await self._patiently(lambda: state.folded(until_s=deadline_s), deadline_s)
                if self._over is not None:
                    raise copy(self._over)
        except BaseException as error:
            self._failed(batch, error)
            return False
        self._queue.grow()
        return True

    def _failed(self, batch: Batch, error: BaseException) -> None:
        """Tell the callers of a batch that failed; end, if that was the end. Raises what is no error (cancellation)."""
        self._queue.discard()
        if isinstance(error, Full | TooLarge):
            if not self._queue.halve(batch):
                batch.fail(error)
        elif isinstance(error, Changed):
            batch.fail(self._deposed(error.version))
            self._end(self._deposed(error.version))
        elif isinstance(error, UNKNOWN):
            batch.fail(error)
            self._end(Closed(f"registry {self._name!r} is over, nobody knows what became of its last write: {error}"))
        elif isinstance(error, Exception):
            batch.fail(error)
            if self._closing:
                self._end(Closed(f"registry {self._name!r} was left"))
        else:
            batch.fail(self._cut(batch))
            raise error

    # -- the end --------------------------------------------------------------------------------------------

    def _cut(self, batch: Batch) -> AlpoError:
        """The error for a batch that was under way when this registry was cancelled."""
        if batch.sent is None:
            return Closed(f"registry {self._name!r} was left")
        handle = batch.sent.handle
        text = f"registry {self._name!r} was left before this write had an outcome"
        return NotGuaranteed(text, client=handle.client, serial=handle.serial, epoch=handle.epoch)

    def _deposed(self, version: int) -> Deposed:
        by = f"at LSN {version}" if version else "and took its header away"
        text = f"another process took over registry {self._name!r} {by}; we led since LSN {self._token}"
        return Deposed(text, name=self._name, token=self._token, version=version)

    def _new_header(self, cell: Cell | None) -> None:
        """Hear that somebody else wrote the header."""
        self._end(self._deposed(0 if cell is None else cell.version))

    def _ended(self, why: str) -> None:
        """End for good, as the task has; ``why``: unless whoever leaves had it end."""
        if not self._closing:
            self._end(Closed(why))
        self._left()

    def _left(self) -> None:
        """End for good, as whoever leaves does."""
        self._end(Closed(f"registry {self._name!r} was left"))
        self._mirror.leave()

    def _end(self, error: AlpoError) -> None:
        """End for good, with what every operation raises from now on."""
        if self._over is None:
            self._over = error
            self._mirror.close()
            if self._tasks.started:
                self._queue.fail(error)
            self._bell.ring()
            self.deposed.set()
