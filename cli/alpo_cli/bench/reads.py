"""The read load: the whole log, from its first payload to its end, again and again, on several connections."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from math import ceil

import trio

import alpo
from alpo.client.handle import Handle

from ..exits import Failed
from .stats import Latencies, Result

#: Payloads that an empty log is filled with before it is read.
FILL_PAYLOADS = 20_000


async def fill_if_empty(servers: str, payload_bytes: int, outstanding: int, batch: int, timeout_s: float) -> int:
    """Append payloads if the log is empty; returns how many. Raises `AlpoError`."""
    async with alpo.connect(servers, timeout_s=timeout_s) as log:
        async for _ in log.read(last=1):
            return 0
        payloads = [os.urandom(payload_bytes) for _ in range(batch)]
        under_way: deque[Handle] = deque()
        for _ in range(ceil(FILL_PAYLOADS / batch)):
            if len(under_way) == outstanding:
                await under_way.popleft()
            under_way.append(log.append_batch_nowait(payloads))
        for handle in under_way:
            await handle
    return ceil(FILL_PAYLOADS / batch) * batch


async def read_load(
    servers: str, connections: int, seconds: float, local: bool, timeout_s: float,
    on_progress: Callable[[float, int], None],
) -> Result:
    """Read for ``seconds``. A latency is that of one page, from the request until it is there. Raises Failed for an
    empty log, `AlpoError`."""
    latencies = Latencies()
    records = moved = 0
    clock = time.perf_counter
    started_s = clock()

    async def one() -> None:
        nonlocal records, moved
        async with alpo.connect(servers, timeout_s=timeout_s) as log:
            while clock() - started_s < seconds:
                asked_s, found = clock(), 0
                async for page in log.read_batches(local=local):
                    latencies.add(clock() - asked_s)
                    found += len(page)
                    moved += sum(len(record.payload) for record in page)
                    on_progress(clock() - started_s, records + found)
                    if clock() - started_s >= seconds:
                        break
                    asked_s = clock()
                records += found
                if not found:
                    raise Failed("the log is empty: nothing to read")

    async with trio.open_nursery() as nursery:
        for _ in range(connections):
            nursery.start_soon(one)
    return Result(records, moved, clock() - started_s, latencies, 0)
