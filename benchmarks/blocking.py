"""Compare an append of the blocking client with one of the async client, one at a time, in turns on the same servers:
medians, and the processor time of the client for each append.

    python benchmarks/blocking.py [--appends 500] [--rounds 6] [--threads 1] [--async-loop trio]

Three fresh servers on loopback; the first 1,000 appends are not measured, as new data files make them slow. With
``--threads`` the appends of a turn are shared out to so many threads, or tasks.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
from against_yardstick import servers

import alpo

PAYLOAD = bytes(100)
WARM = 1_000
#: Appends of a new client that are not measured.
FIRST = 50


def blocking(at: str, appends: int, threads: int) -> tuple[list[float], float]:
    """Seconds of each append, and seconds of processor time in all, of the blocking client."""
    took_s: list[float] = []

    def work(number: int) -> None:
        for _ in range(number):
            began_s = time.perf_counter()
            log.append(PAYLOAD)
            took_s.append(time.perf_counter() - began_s)

    with alpo.connect_sync(at) as log:
        work(FIRST)
        took_s.clear()
        began_s = time.process_time()
        if threads == 1:
            work(appends)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(work, [appends // threads] * threads))
        return took_s, time.process_time() - began_s


async def in_a_loop(at: str, appends: int, tasks: int) -> tuple[list[float], float]:
    """Seconds of each append, and seconds of processor time in all, of the async client."""
    took_s: list[float] = []

    async def work(number: int) -> None:
        for _ in range(number):
            began_s = time.perf_counter()
            await log.append(PAYLOAD)
            took_s.append(time.perf_counter() - began_s)

    async with alpo.connect(at) as log:
        await work(FIRST)
        took_s.clear()
        began_s = time.process_time()
        async with anyio.create_task_group() as group:
            for _ in range(tasks):
                group.start_soon(work, appends // tasks)
        return took_s, time.process_time() - began_s


def main() -> None:
    """Measure both in turns; prints a line for each, and the ratio of their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--appends", type=int, default=500, help="of each turn")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each client")
    parser.add_argument("--threads", type=int, default=1, help="threads, or tasks, that append")
    parser.add_argument("--async-loop", choices=("trio", "asyncio"), default="trio", help="of the async client")
    given = parser.parse_args()
    turns: dict[str, list[tuple[list[float], float]]] = {"async": [], "blocking": []}
    with tempfile.TemporaryDirectory(prefix="alpo-bench-") as directory, servers(Path(directory)) as at:
        blocking(at, WARM, 1)
        for _ in range(given.rounds):
            turns["async"].append(
                anyio.run(in_a_loop, at, given.appends, given.threads, backend=given.async_loop)
            )
            turns["blocking"].append(blocking(at, given.appends, given.threads))
    medians = {}
    for name, found in turns.items():
        p50s = [statistics.median(took_s) * 1e3 for took_s, _ in found]
        spent_us = [spent_s / len(took_s) * 1e6 for took_s, spent_s in found]
        medians[name] = statistics.median(p50s)
        print(f"{name:9} p50 {medians[name]:.3f} ms [{min(p50s):.3f}-{max(p50s):.3f}], "
              f"processor {statistics.median(spent_us):.0f} µs an append [{min(spent_us):.0f}-{max(spent_us):.0f}]")
    each = [statistics.median(b) / statistics.median(a) for (a, _), (b, _) in zip(*turns.values(), strict=True)]
    print(f"ratio {medians['blocking'] / medians['async']:.2f} [{min(each):.2f}-{max(each):.2f}]")


if __name__ == "__main__":
    main()
