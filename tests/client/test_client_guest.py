"""Trio as a guest in an asyncio loop: both run, and the client belongs to Trio."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType
from typing import Any

import pytest
import trio
from test_client_sync import cluster_in_a_thread

import alpo
from alpo import dialling
from alpo.client.tasks import running_loop
from alpo.threads import in_thread


def test_trio_as_a_guest_of_asyncio() -> None:
    with cluster_in_a_thread() as c:
        async def guest() -> list[int]:
            async with alpo.connect(c.addresses) as log:
                return [await log.append(b"%d" % n, timeout_s=5) for n in range(3)]

        async def host() -> Any:
            loop = asyncio.get_running_loop()
            ended = loop.create_future()
            trio.lowlevel.start_guest_run(
                guest, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=ended.set_result,
                host_uses_signal_set_wakeup_fd=True,
            )
            return (await ended).unwrap()

        assert asyncio.run(host()) == [1, 2, 3]


def test_a_trio_that_another_thread_is_about_to_import_does_not_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trio", ModuleType("trio"))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert running_loop().runs == loop.is_running
        event = asyncio.Event()
        await asyncio.to_thread(dialling._waker(event))  # type: ignore[arg-type]
        await event.wait()
        assert await in_thread(lambda: 7) == 7

    asyncio.run(main())
