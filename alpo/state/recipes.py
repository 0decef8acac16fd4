"""Locks and elections of a program's processes, made of a variable with a lease.

Laws:

* A lock is a variable that nobody may make while it is there. Its `created` is the token: the LSN of whoever made it,
  higher with every holder. Writes that are fenced by the token are exclusive, whatever clocks do.
* A lease is over when an entry of the log says so, by its time. A waiter that believes it over only tries: its own
  entry decides.
* `Lock.held`, and the cancellation of the body, are local: they follow what this process has folded, and are right as
  long as clocks run at about the same speed. A process that was stopped learns it only when it runs again.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from types import TracebackType
from typing import Self

import anyio

from alpo.client.arguments import need_seconds
from alpo.client.reading import unless
from alpo.client.reasons import LASTING, PASSING
from alpo.client.retry import patiently
from alpo.errors import AlpoError, Closed, NotGuaranteed, Unavailable
from alpo.rsm.outcomes import Command

from .errors import Changed, LockLost
from .machine import Cell, Machine
from .state import State
from .variable import Expunge, If, Keep, Put, Value, Variable, lease_ms, need_name, value_bytes
from .watching import Watch

#: Part of a lease that its holder relies on: the rest is for clocks that run at different speeds.
_SURE = 0.9
#: Longest pause, as part of the lease, before a waiter tries to take a lock that was given back: most then see that
#: another was faster.
_PAUSE = 0.02
_PAUSE_S_MAX = 0.2
#: Longest wait of a lock that is left for its release.
_RELEASE_S = 5.0
#: Looks of a waiter at the lock's lease, for each of its durations.
_LOOKS = 4
#: Pause after a renewal that nobody answered, as part of the lease.
_AGAIN = 0.05
#: Errors after which a renewal may be tried again.
_MAY_PASS = (NotGuaranteed, *PASSING)


class Lock:
    """A lock that one process holds at a time: ``async with`` waits for it, and gives it back. A wait that is cancelled
    gives back what it may have got.

    ``ttl_s``: a holder that is not heard for so long has lost it; it renews every third of that. ``value``: shown to
    all others by `holder`. If the lock is lost, the body of the ``async with`` is cancelled, and `LockLost` raised
    behind it: so the task that entered must leave it too, where `acquire` and `release` may be called by any. A `Lock`
    is used once at a time; after it was given back it may be taken again.
    """

    def __init__(self, state: State, name: str, ttl_s: float = 10.0, value: Value = b"") -> None:
        need_seconds(ttl_s)
        lease_ms(ttl_s)
        self._state = state
        self._name = need_name(name)
        self._ttl_s = ttl_s
        self._value = value_bytes(value)
        self._log = state.log
        self._token = 0
        #: Time until which the lock is surely ours, on the log's local clock.
        self._until_s = 0.0
        self._lost = False
        #: Body of the ``async with``, and the task that entered it.
        self._scope: anyio.CancelScope | None = None
        self._task_id = 0
        self._renewing: anyio.CancelScope | None = None

    def __repr__(self) -> str:
        held = f"held, token {self._token}" if self.held else "lost" if self._lost else "not held"
        return f"<Lock {self._name!r}: {held}>"

    async def __aenter__(self) -> Self:
        await self.acquire()
        self._task_id = anyio.get_current_task().id
        self._scope = anyio.CancelScope()
        self._scope.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        scope, self._scope = self._scope, None
        assert scope is not None
        lost = self._lost
        try:
            if anyio.get_current_task().id != self._task_id:
                text = "only the task that entered a Lock can leave it, since its body is cancelled if the lock is lost"
                raise RuntimeError(f"{text}: elsewhere, use acquire() and release()")
            swallowed = bool(scope.__exit__(kind, error, trace))
        finally:
            with self._log.clock.move_on_after(min(self._ttl_s, _RELEASE_S), shield=True):
                await self.release()
        if lost and (error is None or swallowed):
            raise LockLost(f"the lock {self._name!r} was lost")
        return swallowed

    @property
    def name(self) -> str:
        """The name of the lock, and of its variable."""
        return self._name

    @property
    def token(self) -> int:
        """The LSN at which this process got the lock: a fence, see `State.rows`. Raises `LockLost` if it has none."""
        if not self._token:
            raise LockLost(f"the lock {self._name!r} is not held")
        return self._token

    @property
    def held(self) -> bool:
        """True while this process has the lock, as far as it can tell without asking."""
        return bool(self._token) and not self._lost and self._log.clock.now_s() < self._until_s

    async def holder(self) -> Variable:
        """The lock's variable: its value is the holder's; None if nobody has it. Raises as `State.fetch`."""
        return await self._state.fetch(self._name)

    async def acquire(self, timeout_s: float | None = None) -> None:
        """Wait for the lock, and take it; ``timeout_s`` None: as long as it takes; 0: take it only if nobody has it, as
        `try_acquire`. Raises `Unavailable` at the deadline; `ProtocolError` and `TlsMismatch`, which no other try
        betters; RuntimeError if it is held already, and what ended the state."""
        if timeout_s is not None:
            need_seconds(timeout_s, zero=True)
        give_up_s = math.inf if timeout_s is None else self._log.clock.now_s() + timeout_s
        late = f"the lock {self._name!r} was not free within {timeout_s or 0:g} s"
        try:
            if await (self.try_acquire() if timeout_s == 0 else self._acquire(give_up_s)):
                return
        except LASTING:
            raise
        except _MAY_PASS as error:  # a lock that the try may have got is given back
            raise Unavailable(f"{late}: {error}") from error
        raise Unavailable(late)

    async def try_acquire(self) -> bool:
        """Take the lock if nobody has it; returns True if so. Raises as `State.commit`, by the state's timeout."""
        return await self._acquire(self._log.clock.now_s() + self._state.timeout_s, once=True)

    async def release(self) -> bool:
        """Give the lock back, if it is still ours. False: nobody can tell whether that came through. It is no matter:
        the lease ends it."""
        self._state.need_home()  # before the lock is forgotten
        token, self._token = self._token, 0
        if self._renewing is not None:
            self._renewing.cancel()
        return await self._expunge(token) if token and not self._lost else True

    async def _expunge(self, token: int) -> bool:
        try:
            await self._state.commit([If(self._name, created=token)], [Expunge(self._name)])
        except Changed:
            pass  # it is not ours any more
        except (Closed, *_MAY_PASS):
            return False
        return True

    # -- taking it ------------------------------------------------------------------------------------------

    async def _acquire(self, give_up_s: float, once: bool = False) -> bool:
        """Take the lock by this time of the log's clock; ``once``: at once, or not at all. Raises as `State.commit`,
        unless there is time to try again."""
        if self._token:
            raise RuntimeError(f"the lock {self._name!r} is held already")

        async def taken() -> bool:
            while not await self._try(give_up_s):
                if once or not await self._wait_for_chance(give_up_s):
                    return False
            return True

        def left_s() -> float:
            return 0.0 if once else give_up_s - self._log.clock.now_s()

        return await patiently(self._log.clock, taken, left_s, _MAY_PASS, LASTING)

    def _left_s(self, give_up_s: float) -> float | None:
        """The seconds until then, for one question; None: as long as the state gives it."""
        return None if give_up_s == math.inf else max(0.0, give_up_s - self._log.clock.now_s())

    async def _try(self, give_up_s: float) -> bool:
        """Make the lock's variable, unless it is there; the entry of this very try ends a lease that is over."""
        state, sent_s = self._state, self._log.clock.now_s()
        put = Put(self._name, self._value, lease_s=self._ttl_s)
        sent = await state.command([If(self._name, version=0).plain()], [put.plain()], self._left_s(give_up_s))
        try:
            token = await self._outcome(sent, give_up_s)
            until_s = sent_s + _SURE * self._ttl_s
            while self._log.clock.now_s() > until_s - self._ttl_s / 2:  # too late: the lease may be over
                sent_s = self._log.clock.now_s()
                kept = await self._keep(token, self._left_s(give_up_s))
                if kept is False:
                    return False
                if kept is None and sent_s >= give_up_s:
                    raise Unavailable(f"nobody tells whether the lock {self._name!r} is still held")
                until_s = sent_s + _SURE * self._ttl_s if kept else until_s
        except Changed:
            return False
        except BaseException as error:
            if isinstance(error, _MAY_PASS) or not isinstance(error, Exception):  # outcome unknown: it may be ours yet
                state.start_soon(partial(self._take_back, sent), last=True)
            raise
        machine = await state.folded(local=True)
        if not _is_of(machine.cells.get(self._name), token):
            return False  # taken away already
        self._lost, self._token, self._until_s = False, token, until_s
        self._renewing = anyio.CancelScope()
        guard = _Guard(self._name, token, self._lose)
        state.subscribe(guard)
        state.start_soon(partial(self._renew, token, self._renewing, guard))
        return True

    async def _outcome(self, sent: Command, give_up_s: float) -> int:
        """The LSN of a try, waited for until ``give_up_s`` if the log cannot tell in time. Raises as `State.commit`."""
        try:
            return (await sent.result()).lsn
        except NotGuaranteed:
            token = await unless(_Alarm(self._state, give_up_s), sent.settled)
            if token is None:
                raise
            return token

    async def _take_back(self, sent: Command) -> None:
        """Give back what a try that nobody waits for any more may have got (a task of the state's)."""
        with suppress(AlpoError):
            await self._expunge(await sent.settled())

    async def _wait_for_chance(self, give_up_s: float) -> bool:
        """Wait until nobody holds the lock, or its lease may be over. False: the time is up."""
        log = self._log
        watch = self._state.watch(self._name)
        await watch.enter(None if give_up_s == math.inf else give_up_s)
        with closing(watch):
            seen, renewed_s = Variable(self._name), 0.0
            while log.clock.now_s() < give_up_s:
                now = await self._state.fetch(self._name, local=True)
                if not now.version:
                    pause_s = log.clock.rng.random() * min(_PAUSE * self._ttl_s, _PAUSE_S_MAX)
                    await log.clock.sleep(max(0.0, min(pause_s, give_up_s - log.clock.now_s())))
                    if not (await self._state.fetch(self._name, local=True)).version:
                        return True
                    continue
                if (now.version, now.time) != (seen.version, seen.time):
                    seen, renewed_s = now, log.clock.now_s()
                over_s = renewed_s + (math.inf if now.lease_s is None else now.lease_s)
                if log.clock.now_s() >= over_s:
                    return True
                look_s = min(over_s, give_up_s, log.clock.now_s() + (now.lease_s or self._ttl_s) / _LOOKS)
                await unless(_Alarm(self._state, look_s), partial(self._gone, watch))
        return False

    async def _gone(self, watch: Watch) -> bool:
        """Wait until the lock's variable is gone, or is another's."""
        async for change in watch:
            if change.name == self._name:
                break
        return True

    # -- keeping it -----------------------------------------------------------------------------------------

    async def _renew(self, token: int, scope: anyio.CancelScope, guard: _Guard) -> None:
        """Renew the lease until the lock is given back or lost (a task of the state's)."""
        log = self._log
        with scope, ExitStack() as stack:
            stack.callback(self._state.unsubscribe, guard)
            while True:
                await log.clock.sleep(max(0.0, min(self._ttl_s / 3, self._until_s - log.clock.now_s())))
                sent_s = log.clock.now_s()
                kept = await unless(_Alarm(self._state, self._until_s), partial(self._keep, token))
                if kept:
                    self._until_s = sent_s + _SURE * self._ttl_s
                elif kept is False or log.clock.now_s() >= self._until_s:
                    break
            self._lose(token)

    def _lose(self, token: int) -> None:
        """Take note that the lock of this token is not ours any more."""
        if self._token != token:
            return
        self._lost = True
        if self._renewing is not None:
            self._renewing.cancel()
        if self._scope is not None:
            self._scope.cancel()

    async def _keep(self, token: int, timeout_s: float | None = None) -> bool | None:
        """Renew once. False: the lock is another's; None: nobody knows."""
        guard, keep = If(self._name, created=token), Keep(self._name, self._ttl_s)
        try:
            await (await self._state.command([guard.plain()], [keep.plain()], timeout_s)).result()
        except Changed:
            return False
        except _MAY_PASS:
            await self._log.clock.sleep(_AGAIN * self._ttl_s)
            return None
        except AlpoError:
            return False  # the state has ended
        return True


def _is_of(cell: Cell | None, token: int) -> bool:
    """True if a lock's variable is that of the holder with this token."""
    return cell is not None and cell.created == token


class _Guard:
    """A `Watcher` that calls ``lose(token)`` once the fold says that a lock is not this token's any more, or ends."""

    def __init__(self, name: str, token: int, lose: Callable[[int], None]) -> None:
        self._name = name
        self._token = token
        self._lose = lose

    def note(self, name: str, cell: Cell | None, time_ms: int) -> None:
        if name == self._name and not _is_of(cell, self._token):
            self._lose(self._token)

    def jumped(self, machine: Machine) -> None:
        self.note(self._name, machine.cells.get(self._name), machine.time_ms)

    def ended(self, error: AlpoError) -> None:
        self._lose(self._token)


class _Alarm:
    """A `StopEvent` that is set at a time of the log's local clock."""

    def __init__(self, state: State, at_s: float) -> None:
        self._log = state.log
        self._at_s = at_s

    def is_set(self) -> bool:
        return self._log.clock.now_s() >= self._at_s

    async def wait(self) -> None:
        while not self.is_set():
            await self._log.clock.sleep(self._at_s - self._log.clock.now_s())


class Election:
    """The choice of one process as leader, under ``name``; ``value`` tells all others who it is."""

    def __init__(self, state: State, name: str, value: Value = b"", ttl_s: float = 10.0) -> None:
        self._lock = partial(Lock, state, name, ttl_s, value)
        self._lock()  # what is wrong is told now
        self._state = state
        self._name = name

    def __repr__(self) -> str:
        return f"<Election {self._name!r}>"

    def lead(self) -> Lock:
        """The reign: ``async with`` waits until this process leads. Its body is cancelled when it leads no more, and
        `LockLost` is raised behind it."""
        return self._lock()

    async def leader(self) -> Variable:
        """The present leader's variable; its value is None if there is none. Raises as `State.fetch`.

        One that has died is named until something is appended after its lease, as another candidate's try is.
        """
        return await self._state.fetch(self._name)

    async def observe(self) -> AsyncIterator[Variable]:
        """Iterate over the leaders: the present one, then each that follows; the value None: nobody leads, as far as
        `leader` can tell."""
        async with self._state.watch(self._name) as watch:
            first = await self._state.fetch(self._name, local=True)
            if not first.version:
                yield first
            async for change in watch:
                if change.name == self._name:
                    yield change
