"""A log in a process forked from its own: over there at once, unharmed here."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
import trio
from fake_cluster import SWALLOW, FakeCluster, fake_cluster
from test_client_sync import cluster_in_a_thread

import alpo

#: Seconds after which a child that hangs is killed.
CHILD_S = 20
ARGUMENTS: dict[str, Any] = {
    "payload": b"x", "payloads": [b"x"], "text": "x", "value": 1, "client": "n", "serial": 1, "name": "n", "lsn": 1,
    "wanted": {"window": 9}, "before": 1, "id": 4, "address": "h:1", "target": 2, "server": 1,
    "function": None, "handle": None, "file": "never", "new": "another",
}


def in_child(work: Callable[[], Any]) -> Any:
    """The result of ``work()`` in a forked child, as JSON carries it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(CHILD_S)
            os.write(write, json.dumps(work()).encode())
            status = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    os.close(write)
    with open(read, "rb") as pipe:  # noqa: PTH123
        told = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0, "the child hung, or failed"
    return json.loads(told)


def calls(log: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every public method, with arguments that will do."""
    for name, method in inspect.getmembers(log, callable):
        if name.startswith("_") or name in ("close", "enter"):
            continue
        needed = [p for p in inspect.signature(method).parameters.values() if p.default is p.empty]
        given = {p.name: ARGUMENTS[p.name] for p in needed}
        yield name, partial(method, **given)


def outcome(call: Callable[[], Any]) -> str:
    try:
        call()
    except BaseException as error:
        return type(error).__name__
    return "nothing"


@pytest.mark.parametrize("state", ["fresh", "open", "named", "busy"])
def test_every_call_of_a_blocking_log_says_so_at_once(state: str) -> None:
    with cluster_in_a_thread() as c:
        log = alpo.connect_sync(c.addresses, client="n" if state == "named" else None)
        pending: list[Any] = []
        if state != "fresh":
            assert log.append_batch([b"before", b"and more"]) == range(1, 3)
        following = log.follow() if state != "fresh" else iter(())
        if state != "fresh":
            assert next(following).lsn == 1  # the other one is here already
        if state == "busy":
            c.script = lambda server, append: SWALLOW
            pending.append(log.append_nowait(b"on its way"))
            while len(c.appends) < 2:
                threading.Event().wait(0.001)
            log._lock.acquire()  # another thread holds it at that moment
            log._opening.acquire()

        def child() -> dict[str, str]:
            told = {name: outcome(call) for name, call in calls(log)}
            for future in pending:
                told |= {"result": outcome(future.result), "exception": outcome(future.exception)}
            if state != "fresh":
                told["next"] = outcome(lambda: next(following))
            with pytest.raises(alpo.Closed), log:
                pass
            log.close()
            return told

        told = in_child(child)
        assert len(told) > 30
        assert set(told.values()) == {"Closed"}, told
        if state == "busy":
            log._lock.release()
            log._opening.release()
            c.script = lambda server, append: "take"
            for server in c.servers.values():
                server.connections = 0
            log.close()
            assert pending[0].exception() is not None or pending[0].result().lsn == 3
            return
        connections = sum(server.connections for server in c.servers.values())
        assert log.append(b"after") == (1 if state == "fresh" else 3)
        if state != "fresh":
            assert [next(following).payload for _ in range(2)] == [b"and more", b"after"]
            assert sum(server.connections for server in c.servers.values()) == connections  # the same ones
        log.close()


def test_the_child_connects_anew_and_ends_in_peace() -> None:
    """An application may be loaded and used before its workers are forked, as `gunicorn --preload` does."""
    script = """
import os, sys, alpo
log = alpo.connect_sync(sys.argv[1])
kept = log.append_nowait(b"parent")
assert kept.result().lsn == 1
reading = log.follow()
next(reading)
children = []
for worker in range(2):
    pid = os.fork()
    if pid == 0:
        try:
            log.append(b"never", timeout_s=3)
        except alpo.Closed as error:
            assert "connect anew" in str(error)
        own = alpo.connect_sync(sys.argv[1])
        own.append(b"worker")
        log.close()
        if worker:
            own.close()
            del own, log, reading, kept
        sys.exit(0)
    children.append(pid)
assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0]
log.append(b"parent")
print([record.payload.decode() for record in log.read()])
"""
    with cluster_in_a_thread() as c:
        ran = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "ignore::DeprecationWarning", "-c", script, c.addresses],
            capture_output=True, text=True, timeout=60, check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout == "['parent', 'worker', 'worker', 'parent']\n"


def test_a_child_that_leaves_the_with_of_its_parent_does_not_end_the_session() -> None:
    script = """
import os, sys, alpo
with alpo.connect_sync(sys.argv[1], client="n") as log:
    log.append(b"1")
    if (pid := os.fork()) == 0:
        sys.exit(0)  # through the `with`
    assert os.waitpid(pid, 0)[1] == 0
    log.append(b"2")
"""
    with cluster_in_a_thread() as c:
        ran = subprocess.run(
            [sys.executable, "-c", script, c.addresses], capture_output=True, text=True, timeout=60, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert c.payloads == [b"1", b"2"]
        assert len(c.opens) == 1


def step(call: Callable[[], Any]) -> str:
    """The outcome of an async call that must not wait: there is no loop to go on."""
    async def whole() -> None:
        found = call()
        if hasattr(found, "__anext__"):
            found = found.__anext__()
        if isinstance(found, Awaitable):
            await found

    coroutine = whole()
    try:
        coroutine.send(None)
    except StopIteration:
        return "nothing"
    except BaseException as error:
        return type(error).__name__
    finally:
        coroutine.close()
    return "waits"


async def used_around_a_fork(c: FakeCluster) -> None:
    async with alpo.connect(c.addresses) as log, alpo.connect(c.addresses) as entered:
        fresh, alone = alpo.connect(c.addresses), alpo.connect(c.addresses, client="n")
        assert await log.append(b"1") == 1
        assert await alone.append(b"2") == 2
        following = log.follow()
        assert (await anext(following)).lsn == 1
        handles = [log.append_nowait(b"3"), alone.append_nowait(b"4")]
        heard: list[object] = []
        handles[0].add_done_callback(heard.append)

        def child() -> list[str]:
            told = [step(call) for each in (log, entered, fresh, alone) for _, call in calls(each)]
            told += [step(lambda: handle) for handle in handles]
            told += [step(following.__anext__)] + ["Closed" for handle in handles if handle.done]
            return told + ["heard"] * len(heard)

        told = in_child(child)
        assert len(told) > 120
        assert set(told) == {"Closed"}
        assert sorted([await handle for handle in handles]) == [3, 4]
        assert len(heard) == 1
        assert (await anext(following)).lsn == 2
        assert await log.append(b"5") == 5
        await alone.close()
        await fresh.close()


def run_asyncio(main: Callable[[], Any]) -> None:
    asyncio.run(main())


@pytest.mark.parametrize("run", [run_asyncio, trio.run], ids=["asyncio", "trio"])
def test_every_call_of_an_async_log_says_so_at_once(run: Callable[[Any], None]) -> None:
    async def main() -> None:
        async with fake_cluster() as c:
            await used_around_a_fork(c)

    run(main)
