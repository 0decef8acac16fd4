"""Payloads of every size over TLS arrive as they were, whatever the program runs on: Trio, asyncio, or threads."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
import trio
from node_rig import rig
from tls_kit import Open, greeted, security_of, tls_of

import alpo
from alpo.core import requests as q
from alpo.core.settings import Settings
from alpo.secure import Contexts
from alpo.tls import Tls
from alpo.wire import requests as w

MIB = 1 << 20
SIZES = (1, 16_383, 16_384, 16_385, MIB, 8 * MIB)
PAYLOADS = [random.Random(size).randbytes(size) for size in SIZES]


async def over_a_loop(address: str, tls: Tls) -> list[bytes]:
    async with alpo.connect(address, tls=tls, timeout_s=60) as log:
        assert [await log.append(payload) for payload in PAYLOADS] == list(range(1, len(SIZES) + 1))
        assert await log.append_batch([bytes(MIB)] * 8) == range(len(SIZES) + 1, len(SIZES) + 9)
        return [record.payload async for record in log.read(stop=len(SIZES))]


async def on_trio(address: str, tls: Tls) -> list[bytes]:
    return await over_a_loop(address, tls)


async def on_asyncio(address: str, tls: Tls) -> list[bytes]:
    return await trio.to_thread.run_sync(lambda: anyio.run(over_a_loop, address, tls, backend="asyncio"))


async def in_threads(address: str, tls: Tls) -> list[bytes]:
    def work() -> list[bytes]:
        with alpo.connect_sync(address, tls=tls, timeout_s=60) as log:
            assert [log.append(payload) for payload in PAYLOADS] == list(range(1, len(SIZES) + 1))
            assert log.append_batch([bytes(MIB)] * 8) == range(len(SIZES) + 1, len(SIZES) + 9)
            return [record.payload for record in log.read(stop=len(SIZES))]

    return await trio.to_thread.run_sync(work)


@pytest.mark.parametrize("way", [on_trio, on_asyncio, in_threads])
@pytest.mark.trio
async def test_payloads_of_every_size(certs: Path, way: Callable[..., Awaitable[list[bytes]]]) -> None:
    settings = Settings(payload_bytes_max=8 * MIB, batch_bytes_max=9 * MIB)
    async with rig(settings=settings, security=lambda id: security_of(certs, id)) as servers:
        tls = tls_of(certs, "ops")
        async with Open(servers.addresses[0], Contexts.load(tls).client) as (_, stream):
            assert await (await greeted(stream)).ask(q.Initialise(1)) == w.Done(1, 0)
            await servers.leader()
        assert await way(servers.addresses[0], tls) == PAYLOADS
