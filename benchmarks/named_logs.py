"""Measure what several logs in one cluster cost, beside one log on the same machine in the same run.

    python benchmarks/named_logs.py [--seconds 5] [--idle-s 30] [PART …]

Parts: idle, spread, beside, flood, killed, begun. A JSON line for each figure; without PART all of them. Each part has
servers of its own; idle servers cost less beside other work, so measure on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from pathlib import Path

import anyio
from bench_sides import REPOSITORY, Alpo, Void
from processor_time import threads_ns
from state import gathered, percentile, show

import alpo

PAYLOAD = b"x" * 100
#: Seconds after logs were created until the rest of that work is done.
SETTLE_S = 10.0
#: Idle logs beside the one that is measured.
MANY = 49
OUTSTANDING = 1_000


def _used_s(pids: Sequence[int]) -> list[float]:
    return [sum(threads_ns(pid).values()) / 1e9 for pid in pids]


def _resident_mb(pids: Sequence[int]) -> float:
    """The largest resident memory of these processes, in MB."""
    kb = [line.split()[1] for pid in pids for line in Path(f"/proc/{pid}/status").read_text().splitlines()
          if line.startswith("VmRSS")]
    return max(map(int, kb)) / 1000


async def _create(log: alpo.Log, count: int, first: int = 0) -> list[str]:
    names = [f"log-{first + n}" for n in range(count)]
    for name in names:
        await log.create_log(name, timeout_s=60)
    return names


async def idle(at: str, pids: Sequence[int], options: argparse.Namespace) -> None:
    """Processor time and memory of idle servers with 1, 10 and 50 logs."""
    there = 1
    async with alpo.connect(at) as log:
        await log.append(PAYLOAD)
        for logs in (1, 10, 50):
            await _create(log, logs - there, there)
            there = logs
            await anyio.sleep(SETTLE_S)
            before, begun = _used_s(pids), time.monotonic()
            await anyio.sleep(options.idle_s)
            took = time.monotonic() - begun
            shares = [100 * (now - then) / took for now, then in zip(_used_s(pids), before, strict=True)]
            show("idle", logs=logs, percent_max=max(shares), percent_mean=statistics.mean(shares),
                 resident_mb=_resident_mb(pids))


async def _rate(logs: Sequence[alpo.Log], outstanding: int, seconds: float) -> float:
    """Appends a second with so many outstanding in all, evenly over these logs."""
    each, done, over = outstanding // len(logs), 0, False

    async def one(log: alpo.Log) -> None:
        nonlocal done
        while not over:
            sent = [log.append_nowait(PAYLOAD) for _ in range(max(1, each // 4))]
            for handle in sent:
                await handle
            done += len(sent)

    async with anyio.create_task_group() as tasks:
        for log in logs:
            for _ in range(4):
                tasks.start_soon(one, log)
        await anyio.sleep(0.5)
        before, begun = done, time.perf_counter()
        await anyio.sleep(seconds)
        rate = (done - before) / (time.perf_counter() - begun)
        over = True
    return rate


async def spread(at: str, pids: Sequence[int], options: argparse.Namespace) -> None:
    """1,000 outstanding over 1, 4 and 16 logs, and on each of 4; as a share of one log's rate."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(alpo.connect(at))
        names = await _create(first, 16)
        others = [await stack.enter_async_context(alpo.connect(at, log=name)) for name in names]
        for log in others:
            await log.append(PAYLOAD)
        rounds = []
        for _ in range(3):
            one = await _rate([first], OUTSTANDING, options.seconds)
            four = await _rate(others[:4], OUTSTANDING, options.seconds)
            all_16 = await _rate(others, OUTSTANDING, options.seconds)
            many_one = await _rate([first], 4 * OUTSTANDING, options.seconds)
            many_four = await _rate(others[:4], 4 * OUTSTANDING, options.seconds)
            rounds.append((one, four / one, all_16 / one, many_four / many_one))
        one, four, all_16, each = (statistics.median(figures) for figures in zip(*rounds, strict=True))
        show("1,000 outstanding", one_log_per_s=one, over_4=four, over_16=all_16)
        show("1,000 outstanding on each of 4, of 4,000 in one log", ratio=each)


async def beside(at: str, pids: Sequence[int], options: argparse.Namespace) -> None:
    """One append at a time, alone and beside 49 idle logs."""
    async with alpo.connect(at) as first:
        count = int(400 * options.seconds)
        await gathered(1, count, lambda n: first.append(PAYLOAD))
        alone = percentile((await gathered(1, count, lambda n: first.append(PAYLOAD)))[1], 0.5)
        await _create(first, MANY)
        await anyio.sleep(SETTLE_S)
        now = percentile((await gathered(1, count, lambda n: first.append(PAYLOAD)))[1], 0.5)
        show("one at a time beside 49 idle logs", alone_ms=1e3 * alone, ms=1e3 * now, ratio=now / alone)


async def flood(at: str, pids: Sequence[int], options: argparse.Namespace) -> None:
    """One append at a time beside 1,000 outstanding, in the same log and in another one."""
    async with alpo.connect(at) as first, alpo.connect(at) as twin:
        await _create(first, 1, 7)
        async with alpo.connect(at, log="log-7") as other:
            await other.append(PAYLOAD)
            found = {}
            for name, loaded in (("same", twin), ("other", other)):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_rate, [loaded], OUTSTANDING, options.seconds)
                    await anyio.sleep(0.5)
                    took: list[float] = []
                    until = time.perf_counter() + options.seconds
                    while (begun := time.perf_counter()) < until:
                        await first.append(PAYLOAD)
                        took.append(time.perf_counter() - begun)
                found[name] = percentile(took, 0.99)
            show("p99 beside 1,000 outstanding", same_log_ms=1e3 * found["same"], other_log_ms=1e3 * found["other"],
                 ratio=found["other"] / found["same"])


async def killed(at: str, pids: Sequence[int], options: argparse.Namespace) -> None:
    """The server that leads most of 50 logs is killed: time until each has taken an append."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(alpo.connect(at))
        names = await _create(first, MANY)
        logs = [first, *[await stack.enter_async_context(alpo.connect(at, log=name)) for name in names]]
        leaders: list[int] = []
        for log in logs:
            await log.append(PAYLOAD)
            leaders.append(next(row["id"] or 0 for row in await log.status() if row["state"] == "leader"))
        await anyio.sleep(SETTLE_S)
        target = statistics.mode(leaders)
        took: list[float] = []
        begun = time.perf_counter()
        os.kill(pids[target - 1], signal.SIGKILL)

        async def one(log: alpo.Log) -> None:
            await log.append(PAYLOAD, timeout_s=60)
            took.append(time.perf_counter() - begun)

        async with anyio.create_task_group() as tasks:
            for log, leader in zip(logs, leaders, strict=True):
                if leader == target:
                    tasks.start_soon(one, log)
        show("leader killed", led=len(took), p50_ms=1e3 * percentile(took, 0.5), max_ms=1e3 * max(took))


async def begun(at: str, pids: Sequence[int], options: argparse.Namespace) -> None:
    """Seconds of a creation, and of a deletion."""
    async with alpo.connect(at) as log:
        await log.append(PAYLOAD)
        created, deleted = [], []
        for n in range(10):
            start = time.perf_counter()
            await log.create_log(f"log-{n}")
            made = time.perf_counter()
            await log.delete_log(f"log-{n}")
            created.append(made - start)
            deleted.append(time.perf_counter() - made)
        show("create and delete", create_s=statistics.median(created), create_max_s=max(created),
             delete_s=statistics.median(deleted), delete_max_s=max(deleted))


PARTS = {part.__name__: part for part in (idle, spread, beside, flood, killed, begun)}


def main() -> None:
    """Run the parts asked for, each on servers of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load (default 5)")
    parser.add_argument("--idle-s", type=float, default=30.0, help="of each idle measurement (default 30)")
    parser.add_argument("--checkout", type=Path, default=REPOSITORY, help="the tree to measure (default: this one)")
    options = parser.parse_args()
    here = Alpo("alpo", Path(sys.executable), options.checkout)
    for name in options.parts or PARTS:
        if name not in PARTS:
            parser.error(f"no such part: {name}; there are {', '.join(PARTS)}")
        may_end = suppress(Void) if name == "killed" else nullcontext()
        with may_end, tempfile.TemporaryDirectory(prefix="alpo-bench") as directory:
            with here.servers(Path(directory)) as (at, pids):
                anyio.run(PARTS[name], at, pids, options)


if __name__ == "__main__":
    main()
