"""Measure a machine of one's own (`alpo.rsm`) beside plain appends of the same bytes, on the same three servers.

    python benchmarks/rsm.py [--backend trio] [PART …]

Parts: single, many, fold, start, snapshot. A JSON line for each figure; without PART all of them. Every ratio's two
sides are measured in one run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import anyio
from bench_sides import REPOSITORY, Alpo
from state import CALLERS, gathered, percentile, plain, show

import alpo
import alpo.rsm
from alpo.rsm import At
from alpo.rsm.hosted import Hosted, Made, commands_head, found
from alpo.rsm.machine import time_ms_of

COMMAND = b"x" * 100
#: Pieces of a machine of 100 MB, and the bytes of each.
PIECES, PIECE_BYTES = 100_000, 1_000


class Adder:
    """A machine that counts its commands, and holds as many pieces as the first one asked for."""

    def __init__(self, count: int = 0, pieces: list[bytes] | None = None) -> None:
        self.count = count
        self.pieces = pieces or []

    def apply(self, command: bytes, at: At) -> object:
        if command[:1] == b"+":
            self.pieces = [b"%0*d" % (PIECE_BYTES, n) for n in range(int(command))]
        self.count += 1
        return self.count

    def items(self) -> Iterator[bytes]:
        yield b"%d" % self.count
        yield from self.pieces

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        first, *pieces = items
        return cls(int(first), pieces)

    def freeze(self) -> Self:
        return type(self)(self.count, self.pieces)


async def single(at: str) -> None:
    """One command at a time, beside one append at a time."""
    async with alpo.connect(at) as log, alpo.rsm.connect(Adder, at, name="adder", snapshots="off") as adder:
        await adder.run(COMMAND)
        ratios = []
        for _ in range(5):
            appends = (await gathered(1, 1_000, lambda n: log.append(COMMAND)))[1]
            runs = (await gathered(1, 1_000, lambda n: adder.run(COMMAND)))[1]
            ratios.append((percentile(runs, 0.5) / percentile(appends, 0.5), runs, appends))
        ratio, runs, appends = sorted(ratios)[2]
        run_ms, append_ms = 1e3 * percentile(runs, 0.5), 1e3 * percentile(appends, 0.5)
        show("run, one at a time", ms=run_ms, append_ms=append_ms, ratio=ratio)


async def many(at: str) -> None:
    """Many tasks that each run one command after the other, beside as many that append, and appends outstanding."""
    async with alpo.connect(at) as log, alpo.rsm.connect(Adder, at, name="adder", snapshots="off") as adder:
        await adder.run(COMMAND)
        await plain(log, COMMAND, 50_000)
        rates = []
        for _ in range(3):
            rate, took = await gathered(CALLERS, 100_000, lambda n: adder.run(COMMAND))
            t_rate, _ = await gathered(CALLERS, 100_000, lambda n: log.append(COMMAND))
            p_rate, p99 = await plain(log, COMMAND, 200_000)
            rates.append((rate / t_rate, rate / p_rate, rate, t_rate, p_rate, percentile(took, 0.99), p99))
        to_tasks, ratio, rate, t_rate, p_rate, run_p99, p99 = sorted(rates)[1]
        show("run, 1,000 outstanding", per_s=rate, appends_per_s=p_rate, ratio=ratio, p99_ratio=run_p99 / p99,
             tasks_with_appends_per_s=t_rate, to_tasks=to_tasks)


async def fold(at: str) -> None:
    """The fold alone, on one core."""
    made = Made(Adder, "adder", 1)
    payload, number = commands_head(1) + COMMAND, 500_000
    machine: Hosted[Adder] = Hosted(made)
    time_ms = time_ms_of(datetime.now(UTC))
    machine.apply(1, time_ms, found(bytes(16), "adder", 1))
    begun = time.perf_counter()
    for lsn in range(2, number + 2):
        machine.apply(lsn, time_ms, payload, 1)
    show("fold", per_s=number / (time.perf_counter() - begun))


async def start(at: str) -> None:
    """A start from a snapshot of 100 MB, beside reading its bytes."""
    async with alpo.rsm.connect(Adder, at, name="adder", snapshots="off", timeout_s=60) as adder:
        await adder.run(b"+%d" % PIECES)
        for _ in range(2):
            await adder.run(COMMAND)
            info = await adder.snapshot(trim=True)
    starts, reads = [], []
    for _ in range(3):
        async with alpo.connect(at) as log:
            begun = time.perf_counter()
            async with log.read_batches(info.begin, info.end) as batches:
                size = sum([len(record.payload) async for records in batches for record in records])
            reads.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        async with alpo.rsm.connect(Adder, at, name="adder", snapshots="off", timeout_s=60) as adder:
            assert await adder.read(lambda machine: machine.count) == 3
        starts.append(time.perf_counter() - begun)
    took, read = sorted(starts)[1], sorted(reads)[1]
    show("start from a snapshot", s=took, reading_s=read, ratio=took / read, mb=size / 1e6)


async def snapshot(at: str) -> None:
    """A snapshot of 15 MB beside others' appends, with its proof and trim."""
    async with alpo.connect(at) as log, alpo.rsm.connect(Adder, at, name="adder", snapshots="off") as adder:
        await adder.run(b"+15000")
        await plain(log, COMMAND, 50_000)
        _, alone = await plain(log, COMMAND, 200_000)
        took = 0.0

        async def write() -> None:
            nonlocal took
            begun = time.perf_counter()
            await adder.snapshot(trim=True)
            took = time.perf_counter() - begun

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            _, beside = await plain(log, COMMAND, 200_000)
        show("snapshot beside 1,000 outstanding", p99_alone_ms=1e3 * alone, p99_ms=1e3 * beside, ratio=beside / alone,
             snapshot_s=took)


PARTS = {part.__name__: part for part in (single, many, fold, start, snapshot)}


def main() -> None:
    """Run the parts asked for, each on servers of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--backend", default="asyncio", choices=["asyncio", "trio"])
    options = parser.parse_args()
    here = Alpo("alpo", Path(sys.executable), REPOSITORY)
    for name in options.parts or PARTS:
        if name not in PARTS:
            parser.error(f"no such part: {name}; there are {', '.join(PARTS)}")
        with tempfile.TemporaryDirectory(prefix="alpo-bench") as directory, here.servers(Path(directory)) as (at, _):
            anyio.run(PARTS[name], at, backend=options.backend)


if __name__ == "__main__":
    main()
