"""Arguments of the wrong kind raise TypeError or ValueError, in plain words, whatever kind of log is asked."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from datetime import date
from inspect import isawaitable
from typing import Any

import anyio
import pytest
from test_client_sync import cluster_in_a_thread

import alpo
from alpo.testing import Cluster

#: Calls of a log with a wrong argument, and the message of the TypeError.
WRONG: list[tuple[Callable[[Any], object], str]] = [
    (lambda log: log.append("x"), "a payload is bytes, not str"),
    (lambda log: log.append(b"x", serial="1"), "serial is an int, not str"),
    (lambda log: log.append(b"x", serial=1.0), "serial is an int, not float"),
    (lambda log: log.append(b"x", timeout_s="1"), "timeout_s is a number of seconds, not str"),
    (lambda log: log.append_nowait(b"x", serial="1"), "serial is an int, not str"),
    (lambda log: log.append_nowait(b"x", timeout_s=b"1"), "timeout_s is a number of seconds, not bytes"),
    (lambda log: log.append_batch([b"x"], timeout_s=True), "timeout_s is a number of seconds, not bool"),
    (lambda log: log.append_batch_nowait(3), "a batch is several payloads, not int"),
    (lambda log: log.append_by_hand(b"x", client="c", serial=1), "a batch is several payloads, not one"),
    (lambda log: log.append_by_hand([b"x"], client=3, serial=1), "client is str, not int"),
    (lambda log: log.append_by_hand([b"x"], client="c", serial="1"), "serial is an int, not str"),
    (lambda log: log.append_by_hand([b"x"], client="c", serial=1, epoch="1"), "epoch is an int, not str"),
    (lambda log: log.outcome(1, "c1"), "client is str, not int"),
    (lambda log: log.outcome("c1", "1"), "serial is an int, not str"),
    (lambda log: log.outcome("c1", 1, epoch="1"), "epoch is an int, not str"),
    (lambda log: log.outcome("c1", 1, "5"), "timeout_s is a number of seconds, not str"),
    (lambda log: log.settle("5"), "timeout_s is a number of seconds, not str"),
    (lambda log: log.opened("5"), "timeout_s is a number of seconds, not str"),
    (lambda log: log.end([]), "timeout_s is a number of seconds, not list"),
    (lambda log: log.last("5"), "timeout_s is a number of seconds, not str"),
    (lambda log: log.read(1.5), "start is an int, not float"),
    (lambda log: log.read(1, "2"), "stop is an int, not str"),
    (lambda log: log.read(last="2"), "last is an int, not str"),
    (lambda log: log.read(local=True, server="2"), "server is an int, not str"),
    (lambda log: log.read(since=3), "since is a datetime, not int"),
    (lambda log: log.read_batches(since=date(2026, 1, 1)), "since is a datetime, not date"),
    (lambda log: log.read(client=b"c"), "client is str, not bytes"),
    (lambda log: log.follow(stop=3), "stop is an event, not int"),
    (lambda log: log.follow_batches(stop="4"), "stop is an event, not str"),
    (lambda log: log.follow(b"end"), "start is an int, not bytes"),
    (lambda log: log.trim("3"), "before is an int, not str"),
    (lambda log: log.wait_everyone("3"), "lsn is an int, not str"),
    (lambda log: log.set_cursor(3, 1), "name is str, not int"),
    (lambda log: log.set_cursor("c", "1"), "lsn is an int, not str"),
    (lambda log: log.drop_cursor(b"c"), "name is str, not bytes"),
    (lambda log: log.drop_session(3), "name is str, not int"),
    (lambda log: log.drop_session("c", "1"), "epoch is an int, not str"),
    (lambda log: log.events("yesterday"), "since is a datetime, not str"),
    (lambda log: log.change_settings(3), "settings are a mapping, not int"),
    (lambda log: log.change_settings({}, expected=[]), "settings are a mapping, not list"),
    (lambda log: log.add_member("4", "h:1"), "id is an int, not str"),
    (lambda log: log.add_member(4, 7100), "address is str, not int"),
    (lambda log: log.add_member(4, "h:1", priority="1"), "priority is an int, not str"),
    (lambda log: log.remove_member("4"), "id is an int, not str"),
    (lambda log: log.replace_member(4, None), "address is str, not NoneType"),
    (lambda log: log.transfer("2"), "target is an int, not str"),
    (lambda log: log.compact("2"), "server is an int, not str"),
]


def refused(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        ask()
    assert str(caught.value) == message


@pytest.fixture(scope="module", params=["real", "simulated"])
def blocking(request: pytest.FixtureRequest) -> Iterator[alpo.SyncLog]:
    if request.param == "simulated":
        with Cluster(1) as cluster, cluster.connect_sync() as log:
            yield log
    else:
        with cluster_in_a_thread() as c, alpo.connect_sync(c.addresses) as log:
            yield log


@pytest.mark.parametrize(("ask", "message"), WRONG)
def test_a_blocking_log(blocking: alpo.SyncLog, ask: Callable[[Any], object], message: str) -> None:
    refused(lambda: ask(blocking), message)
    assert blocking.append(b"and it goes on") > 0


async def refuse_all(log: alpo.Log) -> None:
    for ask, message in WRONG:
        with pytest.raises(TypeError) as caught:
            found = ask(log)
            if isawaitable(found):
                await found
        assert str(caught.value) == message
    assert await log.append(b"and it goes on") == 1


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("simulated", [False, True])
def test_an_async_log(backend: str, simulated: bool) -> None:
    async def real(addresses: str) -> None:
        async with alpo.connect(addresses) as log:
            await refuse_all(log)
            with pytest.raises(TypeError, match=r"a threading.Event ends a blocking follow"):
                log.follow(stop=threading.Event())  # type: ignore[arg-type]

    async def virtual(cluster: Cluster) -> None:
        async with cluster.connect() as log:
            await refuse_all(log)

    if simulated:
        with Cluster(1) as cluster:
            anyio.run(virtual, cluster, backend=backend)
    else:
        with cluster_in_a_thread() as c:
            anyio.run(real, c.addresses, backend=backend)


@pytest.mark.parametrize(("given", "message"), [
    ({"servers": 7100}, "servers are HOST:PORT,… or a list of HOST:PORT, not int"),
    ({"servers": b"host"}, "servers are HOST:PORT,… or a list of HOST:PORT, not bytes"),
    ({"servers": ["host", 7100]}, "a server is HOST:PORT, not int"),
    ({"client": 3}, "client is str, not int"),
    ({"timeout_s": "3"}, "timeout_s is a number of seconds, not str"),
    ({"queue_max": "3"}, "queue_max is an int, not str"),
    ({"queue_bytes_max": 1.5}, "queue_bytes_max is an int, not float"),
])
def test_connecting(given: dict[str, Any], message: str) -> None:
    makers: list[Callable[..., object]] = [alpo.connect, alpo.connect_sync]
    with Cluster(1) as cluster:
        if "servers" not in given:
            makers += [cluster.connect, cluster.connect_sync]
        for make in makers:
            refused(lambda make=make: make(**given), message)  # type: ignore[misc]


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_seconds_that_there_are_not(blocking: alpo.SyncLog, seconds: float) -> None:
    asks: list[Callable[[], object]] = [
        lambda: alpo.connect(timeout_s=seconds), lambda: blocking.append(b"x", timeout_s=seconds),
        lambda: blocking.end(seconds),
        *([] if seconds == 0 else [lambda: blocking.settings(seconds)]),
    ]
    for ask in asks:
        with pytest.raises(ValueError, match="timeout_s must be positive"):
            ask()


def test_a_log_is_not_pickled() -> None:
    with Cluster(1) as cluster:
        for log in (alpo.connect(), alpo.connect_sync(), cluster.connect(), cluster.connect_sync()):
            refused(lambda log=log: pickle.dumps(log),  # type: ignore[misc]
                    "a Log cannot be pickled: connect in the other process")


def test_an_async_log_in_a_plain_with() -> None:
    with Cluster(1) as cluster:
        logs: list[Any] = [alpo.connect(), cluster.connect()]
        for log in logs:
            with pytest.raises(TypeError, match=r"async with.*connect_sync"), log:
                pass


def test_a_blocking_log_in_an_async_with() -> None:
    async def main(log: Any) -> None:
        async with log:
            pass

    with Cluster(1) as cluster:
        for log in (alpo.connect_sync(), cluster.connect_sync()):
            with pytest.raises(TypeError, match=r"asynchronous context manager"):
                anyio.run(main, log)

