"""`make demo`: append a real file to a cluster whose leader is killed in the middle, and read it back whole.

Three alpod processes on loopback in a temporary directory. Exits with 0 only if every check held; in any case no
process and no file is left behind.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path

import trio
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import alpo
from alpo.client.handle import Handle
from alpo.core.directory import FIRST_NAME

from .exits import Failed, guarded
from .local_cluster import LocalCluster, caught_up_within, free_base_port, leader_within
from .running import unless_interrupted

TEXT = Path(__file__).resolve().parents[2] / "tests" / "data" / "alice.txt"
CLIENT = "demo"
SIZE = 3
WITHIN_S = 20.0
IN_FLIGHT_MAX = 64
#: Most appends per second: slow enough to watch.
PACE = 1_200.0
#: Seconds that the killed server stays away once the others continue.
AWAY_S = 0.5
NEXT = """  [bold]Next, for you to paste[/bold]

[cyan]{}[/cyan]

  docs/cli.md: every command; docs/client.md: Python"""
PASTED = """export ALPO_SERVERS=$(alpo cluster start --dir /tmp/alpo --detach)
alpo append hello; alpo read; alpo status
alpo cluster stop --dir /tmp/alpo"""


@dataclass(slots=True)
class Story:
    """Record of what happened while the file was appended. ``goes_on``: set when appends continue after the kill."""

    killed: int
    killed_at: int = 0
    killed_s: float = 0.0
    leaderless_s: float = 0.0
    elapsed_s: float = 0.0
    goes_on: trio.Event = field(default_factory=trio.Event)


async def append_all(console: Console, cluster: LocalCluster, lines: list[bytes], story: Story) -> None:
    """Append every line; half-way kill the leader, and start it again once the others continue."""
    started_s = time.perf_counter()
    columns = (TextColumn("  appending"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=len(lines))
        async with trio.open_nursery() as beside:
            beside.start_soon(_revive, console, cluster, story)
            async with alpo.connect(cluster.addresses, client=CLIENT, timeout_s=WITHIN_S, log=FIRST_NAME) as log:
                under_way: deque[Handle] = deque()
                for number, line in enumerate(lines):
                    if number == len(lines) // 2:
                        _kill(console, cluster, story, number)
                    under_way.append(log.append_nowait(line))
                    if number == story.killed_at and number:
                        under_way[-1].add_done_callback(lambda handle: _note(story, handle))
                    while len(under_way) >= IN_FLIGHT_MAX or (under_way and under_way[0].done):
                        await under_way.popleft()
                    bar.update(task, completed=number + 1 - len(under_way))
                    await trio.sleep(max(0.0, started_s + number / PACE - time.perf_counter()))
                while under_way:
                    await under_way.popleft()
                bar.update(task, completed=len(lines))
    story.elapsed_s = time.perf_counter() - started_s


def _kill(console: Console, cluster: LocalCluster, story: Story, number: int) -> None:
    story.killed_at, story.killed_s = number, time.perf_counter()
    if not cluster.get(story.killed).send(signal.SIGKILL):
        raise Failed("the leader had ended before it was killed")
    console.print(f"  [red]✗[/red] line {number + 1:,}: [bold]kill -9[/bold] of the leader, server {story.killed}")


def _note(story: Story, handle: Handle) -> None:
    if handle.error is None:
        story.leaderless_s = time.perf_counter() - story.killed_s
        story.goes_on.set()


async def _revive(console: Console, cluster: LocalCluster, story: Story) -> None:
    with trio.fail_after(WITHIN_S * 2):
        await story.goes_on.wait()
        console.print(f"  [green]✓[/green] [bold]{story.leaderless_s * 1000:.0f} ms[/bold] after the kill the next "
                      "append is guaranteed, by a new leader")
        await trio.sleep(AWAY_S)
        while cluster.get(story.killed).running():
            await trio.sleep(0.01)
    cluster.spawn([cluster.get(story.killed)])
    console.print(f"  [green]✓[/green] server {story.killed} is started again and catches up")


@dataclass(frozen=True, slots=True)
class Copy:
    """One server's copy of the log, compared with the file."""

    server: int
    payloads: int
    digest: str
    lost: int
    doubled: int
    in_order: bool

    def whole(self, digest: str) -> bool:
        return self.digest == digest and not self.lost and not self.doubled and self.in_order


async def read_copy(cluster: LocalCluster, server: int, count: int) -> Copy:
    """Read one server's copy, and count missing and doubled payloads by their serials (one per line of the file)."""
    digest, serials, lsns = hashlib.sha256(), Counter[int](), []
    async with alpo.connect(cluster.addresses, timeout_s=WITHIN_S, log=FIRST_NAME) as log:
        async for record in log.read(local=True, server=server):
            digest.update(record.payload + b"\n")
            serials[record.serial] += 1
            lsns.append(record.lsn)
    lost = sum(1 for serial in range(1, count + 1) if not serials[serial])
    in_order = lsns == list(range(1, count + 1)) and list(serials) == list(range(1, count + 1))
    return Copy(server, len(lsns), digest.hexdigest(), lost, len(lsns) - len(serials), in_order)


def show_copies(console: Console, copies: list[Copy], digest: str) -> None:
    """Print a table with a row for each server."""
    drawn = Table(box=None, padding=(0, 2), header_style="bold")
    for column in ("read back from", "lines", "lost", "doubled", "sha256", ""):
        drawn.add_column(column, justify="right" if column in ("lines", "lost", "doubled") else "left")
    drawn.add_row("the file", "", "", "", digest[:16] + "…", "")
    for copy in copies:
        verdict = "[green]✓ identical[/green]" if copy.whole(digest) else "[red]✗ DIFFERS[/red]"
        drawn.add_row(f"server {copy.server}", f"{copy.payloads:,}", str(copy.lost), str(copy.doubled),
                      copy.digest[:16] + "…", verdict)
    console.print(drawn)


async def tell(console: Console, cluster: LocalCluster, name: str, content: bytes) -> None:
    """Run the demo. Raises Failed unless every copy equals the file, byte for byte."""
    lines = content.removesuffix(b"\n").split(b"\n")
    digest = hashlib.sha256(content.removesuffix(b"\n") + b"\n").hexdigest()
    console.print(Panel.fit("[bold]ALPO[/bold]  a replicated log: durable, exactly once,\n"
                            "and still there after its leader is not", border_style="cyan"))
    begun_s = time.perf_counter()
    cluster.spawn(cluster.servers)
    story = Story(await leader_within(cluster, WITHIN_S))
    up_s = time.perf_counter() - begun_s
    console.print(f"  [green]✓[/green] {SIZE} servers; after {up_s:.1f} s server {story.killed} leads")
    console.print(f"  [green]✓[/green] {name}: {len(lines):,} lines, each one append, fsynced by a majority")
    await append_all(console, cluster, lines, story)
    await caught_up_within(cluster, WITHIN_S)
    copies = [await read_copy(cluster, server.id, len(lines)) for server in cluster.servers]
    console.print()
    show_copies(console, copies, digest)
    if not all(copy.whole(digest) for copy in copies):
        raise Failed("the copies are not what was appended")
    console.print(f"\n  [bold green]Nothing lost, nothing doubled[/bold green] in {len(lines):,} appends; "
                  f"[bold]{story.leaderless_s * 1000:.0f} ms[/bold] without a leader.\n")
    console.print(NEXT.format(pasted()), highlight=False, soft_wrap=True)


def pasted() -> str:
    """Commands to try next; with a PATH if the shell may not find alpo."""
    if shutil.which("alpo"):
        return PASTED
    return f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\n{PASTED}"


def run(text: Path, tls: bool = False) -> None:
    """Set up, run the demo, clean up. Raises Failed, KeyboardInterrupt, or the library's errors."""
    if not text.is_file():
        raise Failed(f"{text} is missing: run the demo from a checkout, or give a text file")
    content = text.read_bytes()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="alpo-demo-") as directory:
        cluster = LocalCluster.create(Path(directory), SIZE, free_base_port(SIZE), tls)
        done = False

        async def body() -> None:
            nonlocal done
            await tell(console, cluster, text.name, content)
            done = True

        try:
            if trio.run(unless_interrupted, body):
                raise KeyboardInterrupt
        finally:
            if not done:
                for server in cluster.servers:
                    print(f"--- the log of server {server.id} ends:\n{server.log_tail(5)}", file=sys.stderr)
            cluster.stop(grace_s=0.0)  # the directory is deleted as well: no handover needed


def main() -> None:
    """Run ``python -m alpo_cli.demo [--tls] [FILE]``."""
    words = [word for word in sys.argv[1:] if word != "--tls"]
    text = Path(words[0]) if words else TEXT
    sys.exit(guarded(lambda: run(text, "--tls" in sys.argv)))


if __name__ == "__main__":
    main()
