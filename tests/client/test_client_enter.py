"""Entering a `Log`, a `State` or a `Registry` may be cancelled at any moment: what was entered is left, in order."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest
from fake_cluster import fake_cluster, until
from ports import free_port

import alpo
import alpo.state
from alpo.registry import Registry
from alpo.state.recipes import Lock

pytestmark = pytest.mark.anyio

Enter = Callable[[str], AbstractAsyncContextManager[Any]]
#: Objects to enter, at servers that do not answer.
ENTERED: dict[str, Enter] = {
    "log": alpo.connect,
    "log with a name": lambda at: alpo.connect(at, client="x"),
    "state": alpo.state.connect,
    "state with a name": lambda at: alpo.state.connect(at, client="x"),
}


@pytest.mark.parametrize("name", ENTERED)
async def test_a_deadline_around_an_opening_is_a_timeout_and_nothing_else(name: str) -> None:
    at = f"127.0.0.1:{free_port()}"
    for steps in range(30):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                async def cancel(steps: int = steps) -> None:
                    for _ in range(steps):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()

                tasks.start_soon(cancel)
                async with ENTERED[name](at):
                    await anyio.sleep_forever()
        assert scope.cancelled_caught
    with anyio.move_on_after(0.05) as scope:
        async with ENTERED[name](at):
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    await anyio.lowlevel.checkpoint()  # the loop is whole


@pytest.mark.parametrize("what", ["lock", "registry"])
async def test_so_is_one_around_what_is_entered_in_a_state(what: str) -> None:
    at = f"127.0.0.1:{free_port()}"
    async with alpo.state.connect(at) as state:
        with anyio.move_on_after(0.05) as scope:
            async with Lock(state, "x", ttl_s=5) if what == "lock" else Registry(state, "x"):
                raise AssertionError("nobody answers")
        assert scope.cancelled_caught


async def test_a_log_whose_opening_was_cancelled_is_closed() -> None:
    async with fake_cluster(1) as c:
        c.servers[1].frozen = True
        log = alpo.connect(c.addresses, client="x")
        with anyio.move_on_after(0.05):
            await log.__aenter__()
        with pytest.raises(alpo.Closed):
            await log.append(b"x")
        await until(lambda: not log._servers._open)
