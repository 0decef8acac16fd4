"""`make demo-spark`: Spark counts a log's words into a second log and is killed in the middle; archive, trim, audit.

Six alpod processes on loopback and Spark on two cores, all in a temporary directory. Exits with 0 only if every check
held; in any case no process and no file is left behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

import alpo
from alpo.client.handle import Handle

from ..demo import TEXT
from ..exits import Failed, UsageProblem, guarded
from ..local_cluster import LocalCluster, caught_up_within, free_base_port, leader_within
from ..running import unless_interrupted
from . import spark
from .demo_proof import Proof, approved, batch_of, ends_of, prove, row_of

SIZE = 3
CLIENT = "demo"
WITHIN_S = 30.0
#: Time limit of the whole demo: Spark takes 10 to 30 s to start on two cores, twice.
ALL_WITHIN_S = 600.0
#: Appends per second, so that the stream continues while Spark starts, dies, and starts again.
PACE = 120.0
IN_FLIGHT_MAX = 64
#: Micro-batch in which Spark is killed, the third.
KILL_BATCH = 2
LINES_MIN = 1_500
NEXT = """  [bold]Next[/bold]  [cyan]alpo spark doctor[/cyan]; docs/spark.md: read and write the log in your own Spark
        [cyan]alpo-pipeline --help[/cyan]; docs/spark-jobs.md: archive, audit"""


@dataclass(frozen=True)
class Stage:
    """Places of the demo. ``lines`` and ``counts``: the two logs; ``home``: directory of all files."""

    console: Console
    home: Path
    lines: LocalCluster
    counts: LocalCluster

    @property
    def checkpoint(self) -> Path:
        return self.home / "checkpoint"

    @property
    def history(self) -> Path:
        return self.home / "history.jsonl"

    @property
    def said(self) -> Path:
        """File with Spark's output."""
        return self.home / "spark.log"

    def good(self, text: str) -> None:
        """Print a line for something that went well."""
        self.console.print(f"  [green]✓[/green] {text}", soft_wrap=True)

    def bad(self, text: str) -> None:
        """Print a line for a failure."""
        self.console.print(f"  [red]✗[/red] {text}", soft_wrap=True)

    def order(self, lines: list[bytes]) -> dict[str, Any]:
        """Arguments for the driver process."""
        return {
            "home": str(self.home), "lines": self.lines.addresses, "counts": self.counts.addresses,
            "checkpoint": str(self.checkpoint), "total": len(lines), "archive": str(self.home / "archive"),
            "archive_upto": len(lines) * 2 // 3, "history": str(self.history),
        }


@asynccontextmanager
async def driver(stage: Stage, order: dict[str, Any]) -> AsyncIterator[trio.Process]:
    """Run a Spark driver in its own process group; kills the group at the end."""
    with stage.said.open("ab") as said:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "alpo_cli.pipeline.demo_driver", json.dumps(order)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await process.wait()


async def steps(process: trio.Process) -> AsyncIterator[dict[str, Any]]:
    """Yield the steps that a driver reports, until it ends."""
    assert process.stdout is not None
    rest = b""
    async for chunk in process.stdout:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)


async def append_all(stage: Stage, lines: list[bytes]) -> None:
    """Append every line at a fixed pace; answers are written to the history for the audit."""
    started_s = time.perf_counter()
    with stage.history.open("w") as history:
        async with alpo.connect(stage.lines.addresses, client=CLIENT, timeout_s=WITHIN_S) as log:
            under_way: deque[tuple[int, Handle]] = deque()

            async def answered() -> None:
                serial, handle = under_way.popleft()
                await handle
                history.write(json.dumps({"client": CLIENT, "serial": serial, "lsn": handle.lsn, "count": 1}) + "\n")

            for number, line in enumerate(lines):
                under_way.append((number + 1, log.append_nowait(line)))
                while len(under_way) >= IN_FLIGHT_MAX or (under_way and under_way[0][1].done):
                    await answered()
                await trio.sleep(max(0.0, started_s + number / PACE - time.perf_counter()))
            while under_way:
                await answered()
    took_s = time.perf_counter() - started_s
    stage.good(f"all {len(lines):,} lines are in the first log, {took_s:.0f} s after the first one")


async def first_life(stage: Stage, order: dict[str, Any]) -> None:
    """Run Spark, and kill it when a micro-batch's rows are in the second log but Spark has not recorded that."""
    async with driver(stage, order | {"last_batch": KILL_BATCH}) as process:
        async for step in steps(process):
            if step["step"] == "begun":
                stage.good(f"Spark counts words into the second log ({step['took_s']:.0f} s to begin)")
            if step["step"] == "appended":
                break
        else:
            raise Failed("Spark has ended by itself")
        os.killpg(process.pid, signal.SIGKILL)
    if (stage.checkpoint / "commits" / str(KILL_BATCH)).exists():
        raise Failed("Spark was done with the micro-batch in which it was to be killed")
    there = sum(batch_of(row) == KILL_BATCH for row in await read_counts(stage))
    stage.bad(f"micro-batch {KILL_BATCH + 1}: [bold]kill -9[/bold] of Spark; its {there:,} rows are in the second log, "
              "and Spark, which has not noted that, will do the batch again")


async def read_counts(stage: Stage) -> list[alpo.Record]:
    """All records of the second log."""
    async with alpo.connect(stage.counts.addresses, timeout_s=WITHIN_S) as log:
        return [record async for record in log.read()]


async def second_life(stage: Stage, order: dict[str, Any], lines: list[bytes]) -> Proof:
    """Run another driver, which continues from the checkpoint and runs the jobs. Raises Failed if a claim does not
    hold."""
    digest = hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()
    proof = None
    done = []
    async with driver(stage, order) as process:
        async for step in steps(process):
            done.append(step["step"])
            if step["step"] == "batch" and step["upto"] == len(lines):
                proof = prove(lines, ends_of(stage.checkpoint), [row_of(r) for r in await read_counts(stage)])
            if words := approved(step, len(lines), digest):
                stage.good(words)
        code = await process.wait()
    if code or proof is None or done[-6:] != ["batch", "archive", "trim", "read", "audit", "audit"]:
        raise Failed("Spark did not come to its end")
    return proof


def show_proof(console: Console, proof: Proof) -> None:
    """Print the proof as a table."""
    drawn = Table(box=None, padding=(0, 2), header_style="bold")
    drawn.add_column("second log")
    for column in ("batches", "rows", "lost", "doubled", "words"):
        drawn.add_column(column, justify="right")
    drawn.add_column("plain Python")
    verdict = f"[red]✗ {proof.wrong} WRONG[/red]" if proof.wrong else "[green]✓ the same[/green]"
    drawn.add_row("word counts", *(f"{number:,}" for number in proof[:5]), verdict)
    console.print()
    console.print(drawn)


async def tell(stage: Stage, name: str, content: bytes) -> None:
    """Run the demo. Raises Failed unless every claim holds."""
    lines = content.removesuffix(b"\n").split(b"\n")
    if len(lines) < LINES_MIN:
        raise UsageProblem(f"{name} has {len(lines)} lines: {LINES_MIN} or more are needed to kill Spark in the middle")
    began_s = time.perf_counter()
    stage.console.print(Panel.fit("[bold]ALPO in Spark[/bold]  a stream out of one log and into another,\n"
                                  "exactly once; then archive, trim, read on, audit", border_style="cyan"))
    order = stage.order(lines)
    with trio.fail_after(ALL_WITHIN_S):
        for cluster in (stage.lines, stage.counts):
            cluster.spawn(cluster.servers)
        for cluster in (stage.lines, stage.counts):
            await leader_within(cluster, WITHIN_S)
        stage.good(f"two logs, {SIZE} servers each; {name} flows into the first, {PACE:.0f} lines a second")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append_all, stage, lines)
            await first_life(stage, order)
        await caught_up_within(stage.lines, WITHIN_S)
        proof = await second_life(stage, order, lines)
    show_proof(stage.console, proof)
    if not proof.holds:
        raise Failed(f"the second log is not what it should be: {proof}")
    took_s = time.perf_counter() - began_s
    stage.console.print("\n  [bold green]Exactly once[/bold green] through a killed Spark: nothing lost, nothing "
                        f"doubled. {took_s:.0f} s in all.\n", soft_wrap=True)
    stage.console.print(NEXT, highlight=False, soft_wrap=True)


def run(text: Path) -> None:
    """Set up, run the demo, clean up. Raises Failed, UsageProblem, KeyboardInterrupt, or the library's errors."""
    spark.require()
    if not text.is_file():
        raise Failed(f"{text} is missing: run the demo from a checkout, or give a text file")
    content = text.read_bytes()
    with tempfile.TemporaryDirectory(prefix="alpo-demo-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        base = free_base_port(2 * SIZE)
        stage = Stage(Console(), home, LocalCluster.create(home / "lines", SIZE, base),
                      LocalCluster.create(home / "counts", SIZE, base + SIZE))
        done = False

        async def body() -> None:
            nonlocal done
            await tell(stage, text.name, content)
            done = True

        try:
            if trio.run(unless_interrupted, body):
                raise KeyboardInterrupt
        finally:
            if not done and stage.said.exists():
                said = stage.said.read_text("utf-8", "replace").splitlines()
                print("--- Spark's last words:", *said[-15:], sep="\n", file=sys.stderr)
            for cluster in (stage.lines, stage.counts):
                cluster.stop(grace_s=0.0)  # the directory is deleted as well: no handover needed


def main() -> None:
    """Run ``python -m alpo_cli.pipeline.demo [FILE]``."""
    text = Path(sys.argv[1]) if len(sys.argv) > 1 else TEXT
    sys.exit(guarded(lambda: run(text)))


if __name__ == "__main__":
    main()
