"""Draw what the log store of the sources draws in its Figure 7: throughput and latency over payload size, batch size,
rate and number of servers; and the bytes that a server writes and keeps for each byte of payload.

    python benchmarks/log_store.py DIR [--seconds 4] [--only sizes,batches,rates,replicas] [--json FILE]
    python benchmarks/log_store.py DIR --draw FILE

Fresh servers on loopback for each point, as `alpo cluster start` runs them; a load in a process of its own that offers
payloads at a fixed rate, whatever the answers take, over ten connections. DIR gets a plot of each kind, SVG; ``--json``
keeps the figures, and ``--draw`` draws those again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

import alpo
from alpo.client.handle import Handle
from alpo_cli.bench.load import Latencies
from alpo_cli.local_cluster import LocalCluster, free_base_port

CONNECTIONS = 10
#: Seconds between two sends of a connection.
TICK_S = 0.005
#: Payload bytes under way on a connection beyond which nothing more is offered: the servers are saturated.
UNDER_WAY_BYTES_MAX, UNDER_WAY_MAX = 4 << 20, 2_000
#: Payloads under way on a connection where no rate is given.
AS_MANY_AS_GO = 100
#: Seconds for the servers to copy their WAL back, before bytes written are read.
SETTLE_S = 3.0
SIZES = (128, 1_024, 4_096)


@dataclass(frozen=True)
class Point:
    """A load: ``rate`` payloads a second of ``payload`` bytes, ``batch`` an append; 0: as many as go."""

    kind: str
    payload: int
    batch: int
    rate: int
    replicas: int = 3


@dataclass(frozen=True)
class Figures:
    """Results: payloads a second, latencies in ms, bytes written and kept for each byte of payload by the leader."""

    point: Point
    per_s: float
    p50_ms: float
    p99_ms: float
    written: float
    kept: float

    @property
    def mb_per_s(self) -> float:
        return self.per_s * self.point.payload / 1e6


def points() -> Iterator[Point]:
    """Yield every load of the four figures."""
    for payload in (128, 512, 1_024, 4_096, 16_384, 65_536):
        yield Point("sizes", payload, 1, 0)
    for payload in SIZES:
        for batch in (1, 4, 16, 64, 256):
            yield Point("batches", payload, batch, 10_000)
    for payload in SIZES:
        for rate in (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000):
            yield Point("rates", payload, 1, rate)
    for payload in SIZES:
        for replicas in (1, 3, 5, 7):
            yield Point("replicas", payload, 1, 32_000, replicas)


# -- the load, in a process of its own


class Offered:
    """One connection's share of the load."""

    def __init__(self, log: alpo.Log, point: Point, latencies: Latencies) -> None:
        self._log = log
        self._payloads = [os.urandom(point.payload)] * point.batch
        self._every_s = point.batch * CONNECTIONS / point.rate if point.rate else 0.0
        most = UNDER_WAY_MAX if point.rate else AS_MANY_AS_GO
        self._most = max(1, min(most, UNDER_WAY_BYTES_MAX // point.payload) // point.batch)
        self._latencies = latencies
        self._under_way = 0
        self.appended = 0
        self.error = ""
        self.took_s = 0.0

    async def run(self, seconds: float) -> None:
        """Offer appends for so long, then wait until all are answered."""
        begin_s = time.perf_counter()
        offered = 0
        while (now_s := time.perf_counter()) < begin_s + seconds:
            due = int((now_s - begin_s) / self._every_s) if self._every_s else offered + self._most
            for _ in range(min(due - offered, self._most - self._under_way)):
                self._send(now_s)
            offered = due  # appends that found no room are dropped: beyond saturation latencies would only grow
            await asyncio.sleep(TICK_S)
        while self._under_way:
            await asyncio.sleep(TICK_S)
        self.took_s = time.perf_counter() - begin_s

    def _send(self, now_s: float) -> None:
        single = len(self._payloads) == 1
        handle = self._log.append_nowait(self._payloads[0]) if single else self._log.append_batch_nowait(self._payloads)
        self._under_way += 1
        handle.add_done_callback(lambda handle: self._answered(handle, now_s))

    def _answered(self, handle: Handle, sent_s: float) -> None:
        self._under_way -= 1
        if handle.error is not None:
            self.error = self.error or str(handle.error)
            return
        self.appended += len(self._payloads)
        self._latencies.add(time.perf_counter() - sent_s)


async def load(servers: str, point: Point, seconds: float) -> None:
    """Offer the load; prints what was appended, the seconds that took, and the latencies."""
    latencies = Latencies()
    async with asyncio.TaskGroup() as tasks:
        shares = []

        async def one() -> None:
            async with alpo.connect(servers, timeout_s=60) as log:
                await log.append(b"ready")
                share = Offered(log, point, latencies)
                shares.append(share)
                while len(shares) < CONNECTIONS:
                    await asyncio.sleep(TICK_S)
                await share.run(seconds)

        for _ in range(CONNECTIONS):
            tasks.create_task(one())
    wrong = next((share.error for share in shares if share.error), "")
    if wrong:
        sys.exit(f"figures void: {wrong}")
    print(json.dumps({
        "appended": sum(share.appended for share in shares), "took_s": max(share.took_s for share in shares),
        "p50_ms": latencies.percentile(0.5) * 1e3, "p99_ms": latencies.percentile(0.99) * 1e3,
    }))


# -- one point


def written_bytes(pid: int) -> int:
    """Bytes that a process has had written to disk."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text("ascii").splitlines())
    return int(fields["write_bytes"])


def measure(point: Point, seconds: float) -> Figures:
    """Run one load against fresh servers."""
    with tempfile.TemporaryDirectory(prefix="alpo-log-store-") as folder:
        cluster = LocalCluster.create(Path(folder) / "cluster", point.replicas, free_base_port(point.replicas))
        cluster.spawn(cluster.servers)
        try:
            with alpo.connect_sync(cluster.addresses, timeout_s=60) as log:
                if point.replicas == 1:
                    log.init()  # a server that is alone starts by command only
                log.append(b"ready")
                leader = next(row["id"] for row in log.status() if row["reachable"] and row["state"] == "leader")
            server = next(server for server in cluster.servers if server.id == leader)
            before = written_bytes(server.pid)
            done = subprocess.run(
                [sys.executable, __file__, folder, "--load", cluster.addresses, json.dumps(asdict(point)),
                 "--seconds", str(seconds)],
                capture_output=True, text=True, check=False,
            )
            if done.returncode:
                sys.exit(f"{point}: {done.stderr}")
            got = json.loads(done.stdout)
            time.sleep(SETTLE_S)
            payload_bytes = max(1, got["appended"] * point.payload)
            kept = (cluster.directory / f"server-{leader}" / "alpo.db").stat().st_size
            written = written_bytes(server.pid) - before
        finally:
            cluster.stop(grace_s=0.0)
    return Figures(
        point, got["appended"] / got["took_s"], got["p50_ms"], got["p99_ms"], written / payload_bytes,
        kept / payload_bytes,
    )


# -- the plots

#: Kind -> title, label of the horizontal axis, the field of `Point` there.
AXES = {
    "sizes": ("As many as go, over payload size", "payload, bytes", "payload"),
    "batches": ("10,000 payloads a second, over batch size", "payloads a batch", "batch"),
    "rates": ("Over the rate", "offered payloads a second", "rate"),
    "replicas": ("32,000 payloads a second, over servers", "servers", "replicas"),
}
COLOURS = ("#4477aa", "#ee6677", "#228833")
STYLE = {
    "svg.fonttype": "none", "font.family": "sans-serif", "axes.grid": True, "grid.color": "#e4e4e4",
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "axes.titlelocation": "left",
    "svg.hashsalt": "alpo",
}


def draw(kind: str, found: list[Figures], file: Path) -> None:
    """Write the plot of one kind: throughput, latency; for sizes also the bytes on disk."""
    title, label, key = AXES[kind]
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        panels = 3 if kind == "sizes" else 2
        figure = Figure(figsize=(4.6 * panels, 3.6), layout="constrained")
        figure.suptitle(title)
        throughput, latency, *disk = figure.subplots(1, panels)
        groups = [0] if kind == "sizes" else sorted({each.point.payload for each in found})
        for size, colour in zip(groups, COLOURS, strict=False):
            line = [each for each in found if size in (0, each.point.payload)]
            x = [getattr(each.point, key) for each in line]
            name = f"{size:,} B" if size else "median"
            throughput.plot(x, [each.mb_per_s for each in line], marker="o", color=colour, label=name)
            latency.plot(x, [each.p50_ms for each in line], marker="o", color=colour, label=name)
            tail = None if size else "99 %"
            latency.plot(x, [each.p99_ms for each in line], marker=".", linestyle=":", color=colour, label=tail)
        if disk:
            x = [each.point.payload for each in found]
            disk[0].plot(x, [each.written for each in found], marker="o", color=COLOURS[0], label="written")
            disk[0].plot(x, [each.kept for each in found], marker="o", color=COLOURS[1], label="kept")
            disk[0].set_ylim(bottom=0)
            disk[0].set_ylabel("bytes for each byte of payload")
        throughput.set_ylabel("MB/s")
        throughput.set_yscale("log")
        latency.set_ylabel("ms (dotted: 99 %)")
        latency.set_yscale("log")
        for axes in (throughput, latency, *disk):
            if kind != "replicas":
                axes.set_xscale("log", base=2)
                axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.set_xlabel(label)
            axes.legend()
        figure.savefig(file, format="svg", metadata={"Date": None})


def main() -> None:
    """Measure all points and draw them; prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load (default 4)")
    parser.add_argument("--only", default=",".join(AXES), help="kinds, separated by commas (default: all)")
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    parser.add_argument("--draw", type=Path, help="measure nothing: draw the figures of this file")
    parser.add_argument("--load", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        asyncio.run(load(args.load[0], Point(**json.loads(args.load[1])), args.seconds))
        return
    found: list[Figures] = []
    if args.draw:
        for line in args.draw.read_text("utf-8").splitlines():
            fields = json.loads(line)
            found.append(Figures(**{**fields, "point": Point(**fields["point"])}))
    else:
        for point in points():
            if point.kind in args.only.split(","):
                found.append(measure(point, args.seconds))
                each = found[-1]
                print(f"{point}: {each.per_s:,.0f} /s, {each.mb_per_s:.1f} MB/s, p50 {each.p50_ms:.2f} ms, p99"
                      f" {each.p99_ms:.1f} ms, written {each.written:.2f}, kept {each.kept:.2f}", flush=True)
    if args.json:
        args.json.write_text("".join(json.dumps(asdict(each)) + "\n" for each in found), "utf-8")
    args.directory.mkdir(parents=True, exist_ok=True)
    for kind in AXES:
        if some := [each for each in found if each.point.kind == kind]:
            draw(kind, some, args.directory / f"log-store-{kind}.svg")


if __name__ == "__main__":
    main()
