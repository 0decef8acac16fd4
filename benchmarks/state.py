"""Measure the replicated state and its registry beside plain appends of the same bytes, on the same three servers.

    python benchmarks/state.py [--seconds 5] [--agents 10000,50000] [PART …]

Parts: admit, large, recover, variables, single, fold, snapshot. A JSON line for each figure; without PART all of them.
Every ratio's two sides are measured in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from bench_sides import REPOSITORY, Alpo

import alpo
import alpo.state
from alpo.registry import Admit, Registry
from alpo.state import State, codec
from alpo.state.machine import Machine

#: Bytes of an agent's row, about: 15 MB of 55,000 are what Mesos' registry was found to hold in production.
ROW_BYTES = 270
LARGE = 55_000
CALLERS = 1_000


def show(what: str, **figures: float | int | str) -> None:
    """Print figures as a JSON line."""
    print(json.dumps({"what": what, **{k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}}),
          flush=True)


def agent(number: int) -> tuple[str, dict[str, Any]]:
    """Id and row of an agent: `ROW_BYTES` together with its place in a command."""
    row = {"host": f"host-{number:06}.example.net", "cpus": 24, "mem": 64 << 30, "pad": "x" * (ROW_BYTES - 100)}
    return f"agent-{number:06}", row


def percentile(values: list[float], part: float) -> float:
    """The value that this part of all is below."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


async def gathered(callers: int, total: int, call: Callable[[int], Awaitable[object]]) -> tuple[float, list[float]]:
    """Have ``callers`` tasks call ``total`` times; returns calls a second, and the seconds that each took."""
    numbers = iter(range(total))
    took: list[float] = []

    async def caller() -> None:
        for number in numbers:
            begun = time.perf_counter()
            await call(number)
            took.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(callers):
            tasks.start_soon(caller)
    return total / (time.perf_counter() - begun), took


async def plain(log: alpo.Log, payload: bytes, total: int, outstanding: int = CALLERS) -> tuple[float, float]:
    """Appends a second with so many outstanding, and their 99th percentile, seconds."""
    took: list[float] = []
    left, under_way, done = total, 0, anyio.Event()

    def one() -> None:
        nonlocal left, under_way
        left -= 1
        under_way += 1
        begun = time.perf_counter()

        def finished(handle: alpo.Handle) -> None:
            nonlocal under_way
            took.append(time.perf_counter() - begun)
            under_way -= 1
            if left:
                one()
            elif not under_way:
                done.set()

        log.append_nowait(payload).add_done_callback(finished)

    begun = time.perf_counter()
    for _ in range(min(outstanding, total)):
        one()
    await done.wait()
    return total / (time.perf_counter() - begun), percentile(took, 0.99)


# -- parts ----------------------------------------------------------------------------------------------------


async def admit(at: str, options: argparse.Namespace) -> None:
    """Many callers admit agents one by one, beside plain appends of the rows."""
    payload = b"x" * ROW_BYTES
    async with alpo.connect(at) as log, alpo.state.connect(at, snapshots="off") as state:
        await plain(log, payload, 20_000)
        rates: list[float] = []
        for agents in options.agents:
            p_rate, p99 = await plain(log, payload, 50_000)
            name = f"agents{agents}"
            async with Registry(state, name) as registry:
                before = await log.end()
                rate, took = await gathered(CALLERS, agents, lambda n: registry.apply(Admit(*agent(n))))
                size = 0
                async with log.read_batches(before, local=True) as batches:
                    async for records in batches:
                        size += sum(len(r.payload) for r in records if r.payload[:2] == codec.MAGIC)
                rows = sum(len(id) + len(json.dumps(row, separators=(",", ":"))) for id, row in registry.rows.items())
            rates.append(rate)
            mine = percentile(took, 0.99)
            show(f"{CALLERS} callers admit {agents}", per_s=rate, plain_per_s=p_rate, ratio=rate / p_rate,
                 p99_ms=1e3 * mine, p99_ratio=mine / p99, log_bytes_ratio=size / rows, rate_ratio=rate / rates[0])
        begun = time.perf_counter()
        for number in range(1000):
            await state.put("one", str(number))
        alone = 1000 / (time.perf_counter() - begun)
        show("against one store after another", times=rates[0] / alone, stores_per_s=alone)


async def filled(state: State, name: str, agents: int) -> None:
    """Make a registry of so many agents."""
    async with Registry(state, name) as registry:
        await gathered(CALLERS, agents, lambda n: registry.apply(Admit(*agent(n))))


async def large(at: str, options: argparse.Namespace) -> None:
    """One admit after another, into ten agents and into `LARGE`, and plain appends, in turns."""
    async with alpo.connect(at) as log, alpo.state.connect(at, snapshots="off") as state:
        await filled(state, "ten", 10)
        await filled(state, "large", LARGE)
        took: dict[str, list[float]] = {"ten": [], "large": [], "append": []}
        async with Registry(state, "ten") as ten, Registry(state, "large") as much:
            for number in range(600):
                for name, call in (
                    ("ten", partial(ten.apply, Admit(*agent(100_000 + number)))),
                    ("large", partial(much.apply, Admit(*agent(100_000 + number)))),
                    ("append", partial(log.append, b"x" * ROW_BYTES)),
                ):
                    begun = time.perf_counter()
                    await call()
                    took[name].append(time.perf_counter() - begun)
        ms = {name: 1e3 * statistics.median(each) for name, each in took.items()}
        show(f"one admit into {LARGE}", median_ms=ms["large"], into_ten=ms["large"] / ms["ten"],
             to_append=ms["large"] / ms["append"])


async def recover(at: str, options: argparse.Namespace) -> None:
    """A new process recovers `LARGE` agents, 10,000 commands after the snapshot."""
    async with alpo.state.connect(at, snapshots="off") as state:
        await filled(state, "r", LARGE)
        info = await state.snapshot()
        await gathered(CALLERS, 10_000, lambda n: state.put(f"v{n % 100}", b"x" * ROW_BYTES))
    begun = time.perf_counter()
    async with alpo.state.connect(at, snapshots="off") as state, Registry(state, "r") as registry:
        show(f"recovery of {LARGE} agents", s=time.perf_counter() - begun, agents=len(registry.rows),
             snapshot_mb=info.bytes / 1e6, mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


async def variables(at: str, options: argparse.Namespace) -> None:
    """A new process loads 100,000 variables of 250 bytes, beside reading as many bytes."""
    async with alpo.connect(at) as log, alpo.state.connect(at, snapshots="off") as state:
        for start in range(0, 100_000, 1000):
            await state.commit([], [alpo.state.Put(f"v{n}", b"x" * 250) for n in range(start, start + 1000)])
        begun = time.perf_counter()
        info = await state.snapshot()
        show("snapshot of 100,000 variables", s=time.perf_counter() - begun, mb=info.bytes / 1e6)
        first = await log.end()
        await plain(log, b"x" * 270, 100_000)
        begun = time.perf_counter()
        async with log.read_batches(first) as batches:
            async for _ in batches:
                pass
        reading = time.perf_counter() - begun
        last = await state.snapshot(trim=True)
    begun = time.perf_counter()
    async with alpo.state.connect(at, snapshots="off") as state:
        assert len(await state.names()) == 100_000
    took = time.perf_counter() - begun
    show("loading of 100,000 variables", s=took, reading_s=reading, ratio=took / reading, mb=last.bytes / 1e6)


async def single(at: str, options: argparse.Namespace) -> None:
    """Stores one at a time, and fetches, beside appends and questions for the end, in turns."""
    async with alpo.connect(at) as log, alpo.state.connect(at, snapshots="off") as state:
        took: dict[str, list[float]] = {"append": [], "store": [], "end": [], "fetch": []}
        await state.put("v", b"x" * 100)
        for _ in range(1500):
            variable = (await state.fetch("v", local=True)).mutate(b"x" * 100)
            for name, call in (
                ("append", partial(log.append, b"x" * 100)), ("store", partial(state.store, variable)),
                ("end", log.end), ("fetch", partial(state.fetch, "v")),
            ):
                begun = time.perf_counter()
                await call()
                took[name].append(time.perf_counter() - begun)
        ms = {name: 1e3 * statistics.median(each) for name, each in took.items()}
        show("store, one at a time", median_ms=ms["store"], to_append=ms["store"] / ms["append"])
        show("fetch with nothing new", median_ms=ms["fetch"], to_end=ms["fetch"] / ms["end"])
        together: list[float] = []
        for _ in range(20):
            begun = time.perf_counter()
            if options.backend == "asyncio":
                await asyncio.gather(*[state.fetch("v") for _ in range(CALLERS)])
            else:
                await gathered(CALLERS, CALLERS, lambda n: state.fetch("v"))
            together.append(time.perf_counter() - begun)
        show(f"{CALLERS} fetches at once", ms=1e3 * statistics.median(together),
             to_one=1e3 * statistics.median(together) / ms["fetch"])


async def fold(at: str, options: argparse.Namespace) -> None:
    """The fold alone, in one process, without servers."""
    number = 100_000
    single = [codec.command([], [(0, f"agents/{n:08}", b"x" * 250, 0)], 1 << 20)[0] for n in range(number)]
    owner = codec.command([], [(0, "agents", b"", 0)], 1 << 20)[0]
    rows = [
        codec.command([(0, "agents", 2)], [(0, f"agents\0{n:08}", b"x" * 250, 0) for n in range(start, start + 500)],
                      1 << 20)[0]
        for start in range(0, number, 500)
    ]
    for what, payloads in (("single PUTs", single), ("rows in batches of 500", [owner, *rows])):
        machine = Machine()
        machine.apply(1, 0, codec.found(b"s" * 16, codec.Limits()))
        begun = time.perf_counter()
        for lsn, payload in enumerate(payloads, 2):
            machine.apply(lsn, lsn, payload)
        show(f"fold, {what}", per_s=number / (time.perf_counter() - begun))


async def snapshot(at: str, options: argparse.Namespace) -> None:
    """A snapshot of 15 MB beside others' appends; and the memory of the process that holds the state."""
    async with alpo.connect(at) as log, alpo.state.connect(at, snapshots="off") as state:
        before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        await filled(state, "s", LARGE)
        _, alone = await plain(log, b"x" * 100, 200_000)
        other, mine = await beside(log, state)
        size_mb = (await state.status(local=True)).bytes / 1e6
        show("snapshot beside 1,000 outstanding", p99_alone_ms=1e3 * alone, p99_ms=1e3 * other, ratio=other / alone,
             snapshot_s=mine, state_mb=size_mb)
        show("memory", mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, before_mb=before_mb,
             limit_mb=3 * size_mb + 64)


async def beside(log: alpo.Log, state: State) -> tuple[float, float]:
    """99th percentile of appends while a snapshot is written, and how long it took, seconds."""
    mine = 0.0

    async def write() -> None:
        nonlocal mine
        begun = time.perf_counter()
        await state.snapshot()
        mine = time.perf_counter() - begun

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        _, p99 = await plain(log, b"x" * 100, 200_000)
    return p99, mine


PARTS = {part.__name__: part for part in (admit, large, recover, variables, single, fold, snapshot)}


def main() -> None:
    """Run the parts asked for, each on servers of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--agents", default="10000,50000", help="sizes of the registry")
    parser.add_argument("--backend", default="asyncio", choices=["asyncio", "trio"])
    options = parser.parse_args()
    options.agents = [int(each) for each in options.agents.split(",")]
    here = Alpo("alpo", Path(sys.executable), REPOSITORY)
    for name in options.parts or PARTS:
        if name not in PARTS:
            parser.error(f"no such part: {name}; there are {', '.join(PARTS)}")
        with tempfile.TemporaryDirectory(prefix="alpo-bench") as directory, here.servers(Path(directory)) as (at, _):
            anyio.run(PARTS[name], at, options, backend=options.backend)


if __name__ == "__main__":
    main()
