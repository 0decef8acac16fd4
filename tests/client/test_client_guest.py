"""Trio as a guest in an asyncio loop: both run, and the client belongs to Trio."""

from __future__ import annotations

import asyncio
from typing import Any

import trio
from test_client_sync import cluster_in_a_thread

import alpo


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
