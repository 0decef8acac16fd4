"""States over a simulated cluster, run in the cluster's own loop: repeatable, and on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import anyio
from rsm_kit import first_of, new_log, run

import alpo.state
from alpo.client.log import Log
from alpo.client.reading import Batches
from alpo.client.record import Record
from alpo.rsm.machine import time_ms_of
from alpo.state import State
from alpo.state.machine import Machine
from alpo.testing import Cluster

T = TypeVar("T")
Work = Callable[[State], Awaitable[T]]


def with_state(cluster: Cluster, work: Work[T], client: str | None = None, **how: Any) -> T:
    """The result of ``work(state)``, with a state of its own. Snapshots are made by hand, unless ``how`` differs."""
    async def go() -> T:
        async with new_log(cluster, client) as log, State(log, **{"snapshots": "off", **how}) as state:
            return await work(state)

    result: T = run(cluster, go)
    return result


def with_states(cluster: Cluster, number: int, work: Callable[[list[State]], Awaitable[T]], **how: Any) -> T:
    """The result of ``work(states)``, with several states that each have a log of their own."""
    async def go(states: list[State]) -> T:
        if len(states) == number:
            return await work(states)
        async with new_log(cluster, f"program {len(states)}") as log:
            async with State(log, **{"snapshots": "off", **how}) as state:
                return await go([*states, state])

    result: T = run(cluster, lambda: go([]))
    return result


def cut_off(cluster: Cluster, client: str = "program") -> None:
    """Let nothing through between a client and the servers."""
    for server in cluster.servers:
        cluster.cut(client, server)


def small_payloads(cluster: Cluster, payload_bytes_max: int = 8192) -> None:
    """Let the cluster take small payloads only, so that snapshots have many parts."""
    with cluster.connect_sync() as log:
        log.change_settings({"payload_bytes_max": payload_bytes_max})


def folded(records: list[Record]) -> Machine:
    """The fold of these records, from LSN 1."""
    machine = Machine()
    for record in records:
        machine.apply(record.lsn, time_ms_of(record.time), record.payload)
    return machine


def truth(cluster: Cluster) -> Machine:
    """The fold of the whole history, of which no trim takes anything."""
    return folded(cluster.log())


def plain(machine: Machine) -> tuple[Any, ...]:
    """All parts of a machine on which the effect of a later payload depends."""
    registers, cells, _ = machine.freeze()
    return registers, dict(sorted(cells.items())), machine.digest, machine.bytes


async def machine_of(state: State) -> Machine:
    """The machine of a state, folded to the end."""
    return await state._folder.now()


def fresh(cluster: Cluster, **how: Any) -> Machine:
    """The machine of a process that starts now. It is compared with the fold of the whole history."""
    async def look(state: State) -> Machine:
        return await machine_of(state)

    machine = with_state(cluster, look, **how)
    right = folded(cluster.log()[: machine.lsn])
    assert plain(machine) == plain(right), f"a fresh start at LSN {machine.lsn} is wrong"
    return machine


def check_trims(cluster: Cluster) -> None:
    """Check that no trim removed what a start from the last but one snapshot needs, nor a payload of others."""
    right, first = truth(cluster), first_of(cluster)
    assert first <= (1 if right.previous is None else right.previous.begin), "trimmed too far"
    assert first == 1 or right.foreign_lsn < first or _foreign(cluster, first) == [], "a foreign payload was trimmed"


def _foreign(cluster: Cluster, first: int) -> list[int]:
    return [record.lsn for record in cluster.log()[: first - 1] if record.payload[:2] != b"\xc1\x41"]


async def fill(state: State, variables: int = 30, size: int = 1000, tag: str = "") -> None:
    """Write some variables, each of its own value."""
    for i in range(variables):
        await state.put(f"name/{tag}{i}", (b"%d-%d " % (i, size)) * (size // 6))


class Steps:
    """An awaitable that runs a coroutine up to its ``stop``-th wait, counted from 0; there it calls ``crash()``, and
    cancels the coroutine. ``waits``: number of waits so far; ``ended``: True if the coroutine came to its end."""

    def __init__(self, coroutine: Any, stop: int, crash: Callable[[], object] = lambda: None) -> None:
        self._coroutine = coroutine
        self._stop = stop
        self._crash = crash
        self.waits = 0
        self.ended = False

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        steps = self._coroutine.__await__()
        step = partial(steps.send, None)
        while True:
            try:
                waited_for = step()
            except StopIteration as end:
                self.ended = True
                return end.value
            except asyncio.CancelledError:
                task.uncancel()
                return None
            if self.waits == self._stop:
                self._crash()
                task.cancel()  # arrives at this wait
            self.waits += 1
            try:
                yield waited_for
                step = partial(steps.send, None)
            except BaseException as error:
                step = partial(steps.throw, error)


class Hooked:
    """Reads and follows of ``log`` call ``hook(number)`` before each page, numbered from 0."""

    def __init__(self, log: Log, hook: Callable[[int], Awaitable[None]]) -> None:
        self.pages = 0
        self._hook = hook
        for name in ("read_batches", "follow_batches"):
            setattr(log, name, partial(self._pages, getattr(log, name)))

    def _pages(self, real: Callable[..., Batches], *given: Any, **named: Any) -> Any:
        return _Gated(real(*given, **named), self.before)

    async def before(self) -> None:
        self.pages += 1
        await self._hook(self.pages - 1)


class Gate:
    """A gate before the pages of a follower: closed, the process folds nothing, as under SIGSTOP."""

    def __init__(self, log: Log) -> None:
        self._open = anyio.Event()
        self._open.set()
        self._real = log.follow_batches
        log.follow_batches = self._follow  # type: ignore[method-assign]

    def close(self) -> None:
        self._open = anyio.Event()

    def open(self) -> None:
        self._open.set()

    def _follow(self, *given: Any, **named: Any) -> Any:
        return _Gated(self._real(*given, **named), after=self.wait)

    async def wait(self) -> None:
        await self._open.wait()


async def _nothing() -> None:
    pass


class _Gated(AbstractAsyncContextManager["_Gated"]):
    """Pages of a read, with a function to await before and after each."""

    def __init__(
        self, batches: Batches, before: Callable[[], Awaitable[None]] = _nothing,
        after: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self._batches = batches
        self._before, self._after = before, after

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._batches.aclose()

    def __aiter__(self) -> _Gated:
        return self

    async def __anext__(self) -> list[Record]:
        await self._before()
        records = await self._batches.__anext__()
        await self._after()
        return records


@contextmanager
def unrecoverable() -> Iterator[None]:
    """The body may raise `Unrecoverable`: the log no longer holds the state."""
    try:
        yield
    except alpo.state.Unrecoverable as error:
        assert error.first_lsn > 1
        assert str(error.first_lsn) in str(error) and str(error.last_lsn) in str(error)


def cursor_of(cluster: Cluster) -> int:
    """The LSN of the state's cursor; 0 without one."""
    with cluster.connect_sync() as log:
        return next((cursor.lsn for cursor in log.cursors() if cursor.name == "state"), 0)
