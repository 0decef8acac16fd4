"""A ledger, and replicas of it over a simulated cluster: repeatable, and on virtual time."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Self, TypeVar

from alpo.client.log import Log
from alpo.rsm import At, Replica
from alpo.rsm.loading import first_lsn
from alpo.testing import Cluster

T = TypeVar("T")


class Refused(Exception):
    """The reason why a transfer is not made."""


class Ledger:
    """Accounts; a command is JSON: ["open", account, sum], ["move", from, to, sum], or ["sum"]."""

    def __init__(self, accounts: dict[str, int] | None = None) -> None:
        self.accounts: dict[str, int] = {} if accounts is None else accounts

    def apply(self, command: bytes, at: At) -> object:
        what, *given = json.loads(command)
        if what == "open":
            name, amount = given
            self.accounts[name] = self.accounts.get(name, 0) + int(amount)
            return self.accounts[name]
        if what == "move":
            source, target, amount = given
            if self.accounts[source] < amount:
                raise Refused(f"{source} has {self.accounts[source]}")
            self.accounts[source] -= amount
            self.accounts[target] = self.accounts.get(target, 0) + amount
            return [self.accounts[source], self.accounts[target]]
        return self.total if what == "sum" else [at.lsn, at.term, at.version]

    @property
    def total(self) -> int:
        return sum(self.accounts.values())

    def items(self) -> Iterator[bytes]:
        for name, amount in self.accounts.items():
            yield json.dumps([name, amount]).encode()

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        return cls(dict(json.loads(item) for item in items))

    def freeze(self) -> Self:
        return type(self)(dict(self.accounts))


def command(*what: Any) -> bytes:
    return json.dumps(what).encode()


def new_log(cluster: Cluster, client: str | None = None, timeout_s: float = 10.0) -> Log:
    """A real client's log, for the cluster's own loop."""
    return cluster._new_log(client, timeout_s, 10_000, 32 << 20)


def run(cluster: Cluster, function: Callable[[], Any]) -> Any:
    """The result of a coroutine function, called in the cluster's loop."""
    return cluster._running().spawn(function).result()


def first_of(cluster: Cluster) -> int:
    """The first LSN that the log serves."""
    async def look() -> int:
        async with new_log(cluster) as log:
            return await first_lsn(log)

    first: int = run(cluster, look)
    return first


def with_replicas(
    cluster: Cluster, work: Callable[..., Awaitable[T]], *classes: type[Any], number: int = 1, **how: Any
) -> T:
    """The result of ``work(replica, …)``: one for each class (`Ledger`, ``number`` times), each with a log of its own.
    Snapshots are made by hand, unless ``how`` differs."""
    made = classes or (Ledger,) * number

    async def go(replicas: list[Replica[Any]]) -> T:
        if len(replicas) == len(made):
            return await work(*replicas)
        async with new_log(cluster, f"program {len(replicas)}") as log:
            at = len(replicas)
            async with Replica(log, made[at], **{"name": "ledger", "snapshots": "off", **how}) as replica:
                return await go([*replicas, replica])

    result: T = run(cluster, lambda: go([]))
    return result
