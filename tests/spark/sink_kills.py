"""Kill tests of the streaming sink: a driver is killed at every point of a micro-batch, and another goes on.

    python tests/spark/sink_kills.py [--points mid-append,after-append] [--plans 2-3,random] [--leader] [--zombie]

What comes out of the log must be every row once, batch after batch. Without options: the whole matrix, once with the
log's leader killed as well, and the zombie. Prints a line a case; the exit code is 1 if one failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import trio

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]

from harness import Cluster, cluster  # noqa: E402
from probe import until  # noqa: E402
from sink_driver import POINTS  # noqa: E402

from alpo import connect  # noqa: E402

ROWS, BATCHES, KILL_BATCH = 400, 4, 2
LIFE_S = 300.0
#: Partitions before and after, and whether the bytes and their order change too.
PLANS = {"2-2": (2, 2, "same"), "2-3": (2, 3, "same"), "3-2": (3, 2, "same"), "random": (2, 3, "random")}
#: Small enough for a micro-batch to take many entries.
SETTINGS = {"payload_bytes_max": 512, "batch_bytes_max": 1024}


@dataclass(frozen=True)
class Case:
    """``point``: where the first driver is killed; ``leader``: the log's leader is killed, too; ``zombie``: the driver
    is only paused, and goes on when the second one has finished."""

    point: str
    plan: str = "2-3"
    leader: bool = False
    zombie: bool = False


@dataclass(frozen=True)
class Verdict:
    doubled: int
    lost: int
    disorder: int
    from_before: int  # rows of the batch in question that the killed driver had appended

    @property
    def good(self) -> bool:
        return self.doubled == self.lost == self.disorder == 0


def judge(payloads: list[bytes], from_before: int) -> Verdict:
    """Judge the batches below `BATCHES`; a later batch may be cut off."""
    found = [tuple(map(int, payload.split(b":")[:2])) for payload in payloads]
    found = [row for row in found if row[0] < BATCHES]
    batches = [batch for batch, _ in found]
    disorder = sum(a > b for a, b in pairwise(batches))
    return Verdict(len(found) - len(set(found)), ROWS * BATCHES - len(set(found)), disorder, from_before)


async def life(order: dict[str, Any], log: Path) -> trio.Process:
    """A driver that runs."""
    file = log.open("ab")
    with file:
        return await trio.lowlevel.open_process(
            [sys.executable, str(HERE / "sink_driver.py"), json.dumps(order)], stdout=file, stderr=file,
            start_new_session=True,
        )


async def ended(process: trio.Process, log: Path) -> int:
    with trio.move_on_after(LIFE_S):
        return await process.wait()
    process.kill()
    raise AssertionError(f"a driver did not end within {LIFE_S:g} s\n{tail(log)}")


def tail(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-40:])


async def payloads_since(servers: str, lsn: int) -> list[bytes]:
    async with connect(servers, timeout_s=30) as log:
        return [record.payload async for record in log.read(start=lsn)]


async def run_case(running: Cluster, case: Case, home: Path) -> Verdict:
    """Let one driver die and the next one go on; judge the log. AssertionError if either driver did not do its part."""
    await trio.Path(home).mkdir(parents=True)
    first_lsn = await running.level() + 1
    before, after, plan = PLANS[case.plan]
    order = {
        "servers": running.addresses, "checkpoint": str(home / "checkpoint"), "batches": BATCHES, "rows": ROWS,
        "plan": plan, "partitions": before, "kill_at": case.point, "kill_batch": KILL_BATCH, "pause": case.zombie,
    }
    died, logs = home / "checkpoint.died", (home / "first.log", home / "second.log")
    first = await life(order, logs[0])
    killed = None
    with suppress(trio.TooSlowError):
        await until(lambda: died.exists() or first.poll() is not None, LIFE_S)
    assert died.exists(), f"the driver never came to {case.point}\n{tail(logs[0])}"
    if not case.zombie:
        await ended(first, logs[0])
    else:
        pids = json.loads(died.read_text("utf-8"))
    if case.leader:
        killed = await running.leader()
        running.servers[killed].kill()
        await running.leader(running.others(killed))
    there = [row for row in await payloads_since(running.addresses, first_lsn) if row.startswith(b"%d:" % KILL_BATCH)]
    second = await life(order | {"partitions": after, "kill_at": ""}, logs[1])
    assert await ended(second, logs[1]) == 0, tail(logs[1])
    if case.zombie:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
        assert await ended(first, logs[0]) != 0, "the zombie has ended well"
        text = logs[0].read_text("utf-8", "replace")
        assert "Fenced" in text or "CONCURRENT_STREAM_LOG_UPDATE" in text, tail(logs[0])
    if killed is not None:
        running.start(killed)
    await running.level()
    return judge(await payloads_since(running.addresses, first_lsn), len(there))


def cases(points: list[str], plans: list[str], leader: bool, zombie: bool) -> Iterator[Case]:
    for point in points:
        for plan in plans:
            yield Case(point, plan)
    if leader:
        for point in points:
            yield Case(point, "2-3", leader=True)
    if zombie:
        yield Case("mid-append", "2-3", zombie=True)
        yield Case("before-manifest", "2-3", zombie=True)


async def main(chosen: list[Case]) -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        async with cluster(Path(folder), 3, settings=SETTINGS) as running:
            for number, case in enumerate(chosen, 1):
                began_s = time.monotonic()
                try:
                    verdict: object = await run_case(running, case, Path(folder) / f"case-{number}")
                    good = isinstance(verdict, Verdict) and verdict.good
                except AssertionError as error:
                    verdict, good = error, False
                failed += not good
                print(f"{'ok' if good else 'FAILED'} {case} {verdict} {time.monotonic() - began_s:.0f} s", flush=True)
    print(f"{len(chosen)} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", default=",".join(POINTS))
    parser.add_argument("--plans", default=",".join(PLANS))
    parser.add_argument("--leader", action="store_true")
    parser.add_argument("--zombie", action="store_true")
    given = parser.parse_args()
    everything = len(sys.argv) == 1
    sys.exit(trio.run(main, list(cases(
        [point for point in given.points.split(",") if point], [plan for plan in given.plans.split(",") if plan],
        given.leader or everything, given.zombie or everything,
    ))))
