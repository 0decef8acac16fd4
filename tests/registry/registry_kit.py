"""Registries over a simulated cluster, under asyncio and trio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial, wraps
from inspect import Signature, signature
from typing import Any, TypeVar

import anyio

from alpo.registry import Registry, Reject, Step
from alpo.state import State
from alpo.state.codec import Command, decode
from alpo.testing import Cluster

T = TypeVar("T")
BACKENDS = ("asyncio", "trio")
NAME = "agents"


def run(scenario: Callable[[Cluster], Awaitable[T]], backend: str = "asyncio", seed: int = 0, **how: Any) -> T:
    """The scenario's result, on a cluster of its own."""
    with Cluster(seed, **how) as cluster:
        return anyio.run(partial(scenario, cluster), backend=backend)


def on_cluster(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The test that a coroutine function is, on a cluster of its own, which is its first argument. Its argument
    ``backend``, if it has one, is also the event loop."""
    @wraps(test)
    def on_its_own(**given: Any) -> None:
        run(partial(test, **given), given.get("backend", BACKENDS[0]))

    _, *others = signature(test).parameters.values()
    on_its_own.__signature__ = Signature(others)  # type: ignore[attr-defined]  # pytest looks for fixtures in it
    return on_its_own


@asynccontextmanager
async def states(cluster: Cluster, number: int = 1, **how: Any) -> AsyncIterator[list[State]]:
    """States of ``number`` processes: their clients are called p1, p2 …"""
    async with AsyncExitStack() as stack:
        opened = []
        for each in range(1, number + 1):
            log = await stack.enter_async_context(cluster.connect(client=f"p{each}"))
            opened.append(await stack.enter_async_context(State(log, **how)))
        yield opened


def cut(cluster: Cluster, client: str) -> None:
    """Let nothing through between a process and the servers."""
    for server in cluster.servers:
        cluster.cut(client, server)


def commands(cluster: Cluster) -> list[Command]:
    """The commands in the log, done or refused."""
    decoded = (decode(record.payload) for record in cluster.log())
    return [each for each in decoded if isinstance(each, Command)]


async def outcome(call: Awaitable[Any]) -> Any:
    """The value that a call returns, or the name of the error that it raises."""
    try:
        return await call
    except Exception as error:
        return type(error).__name__


class Outcomes:
    """Operations that run beside each other, each with its outcome, in the order in which they were begun."""

    def __init__(self, registry: Registry, tasks: anyio.abc.TaskGroup) -> None:
        self._registry = registry
        self._tasks = tasks
        self.of: list[Any] = []
        self.waiting = 0

    def begin(self, *operations: Any) -> None:
        """Begin operations, in any order."""
        for operation in operations:
            self.of.append(None)
            self._tasks.start_soon(self._one, len(self.of) - 1, operation)

    async def _one(self, number: int, operation: Any) -> None:
        self.waiting += 1
        self.of[number] = await outcome(self._registry.apply(operation))
        self.waiting -= 1

    async def begin_in_order(self, *operations: Any) -> None:
        """Begin operations, each once the one before it is queued."""
        for operation in operations:
            self.begin(operation)
            await self.queued()

    async def queued(self) -> None:
        """Wait until all have begun."""
        while self.waiting < sum(each is None for each in self.of):
            await anyio.lowlevel.checkpoint()


class Label:
    """An operation of a program's own."""

    def __init__(self, agent: str, label: str) -> None:
        self.agent = agent
        self.label = label

    def apply(self, rows: Any) -> Step:
        if self.agent not in rows:
            raise Reject("no such agent")
        return Step(put={self.agent: {**rows[self.agent], "label": self.label}}, result=len(rows))


class Breaks:
    """An operation with a mistake."""

    def apply(self, rows: Any) -> Step:
        return Step(result=1 // 0)
