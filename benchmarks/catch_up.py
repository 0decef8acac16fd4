"""Measure how fast a server catches up after an absence and after losing its disk, and how long a start takes, while
appends continue.

Three real servers on loopback, everything fsynced. ``python benchmarks/catch_up.py DIR``: the directory is made, and
removed at the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import alpo
from alpo_cli.local_cluster import LocalCluster, free_base_port, port_free

_OUTSTANDING = 1000


def _status(address: str) -> alpo.MemberStatus | None:
    with alpo.connect_sync(address, timeout_s=5) as log:
        rows = log.status()
    return next((row for row in rows if row["address"] == address and row["reachable"]), None)


class Rig:
    """A cluster with a known leader; ``victim`` is another server, killed and started at will."""

    def __init__(self, directory: Path, size: int) -> None:
        self.size = size
        self.cluster = LocalCluster.create(directory, 3, free_base_port(3))
        self.cluster.spawn(self.cluster.servers)
        self._until(lambda: self.leader() is not None)
        leader = self.leader()
        self.victim = next(server for server in self.cluster.servers if server.id != leader)

    def leader(self) -> int | None:
        """Id of the leader; None if none is known."""
        rows = [_status(server.address) for server in self.cluster.servers]
        return next((row["id"] for row in rows if row and row["state"] == "leader"), None)

    def _until(self, done: Callable[[], bool], pause_s: float = 0.05) -> float:
        """Poll until ``done()``; returns the seconds it took."""
        start_s = time.monotonic()
        while not done():
            time.sleep(pause_s)
        return time.monotonic() - start_s

    def append(self, count: int) -> float:
        """Append ``count`` entries, a thousand at a time in flight; returns seconds."""
        start_s = time.monotonic()
        payload = os.urandom(self.size)
        under_way: deque[Future[Any]] = deque()
        with alpo.connect_sync(self.cluster.addresses, timeout_s=120) as log:
            for _ in range(count):
                under_way.append(log.append_nowait(payload))
                if len(under_way) >= _OUTSTANDING:
                    under_way.popleft().result()
        return time.monotonic() - start_s

    def kill(self) -> None:
        """Kill the victim, and wait until its port is free."""
        self.victim.send(signal.SIGKILL)
        self._until(lambda: not self.victim.running() and port_free(self.victim.port), 0.01)

    def start(self) -> None:
        """Start the victim again."""
        self.cluster.spawn([self.victim])

    def mine(self) -> Mapping[str, Any]:
        """Status of the victim; {} if it does not answer."""
        return _status(self.victim.address) or {}

    @contextmanager
    def appends(self) -> Iterator[list[float]]:
        """Append one entry after the other meanwhile; yields the list of their latencies in ms."""
        latencies: list[float] = []
        stop = threading.Event()

        def run() -> None:
            with alpo.connect_sync(self.cluster.addresses, timeout_s=120) as log:
                while not stop.is_set():
                    start_s = time.perf_counter()
                    log.append(bytes(100))
                    latencies.append((time.perf_counter() - start_s) * 1000)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield latencies
        finally:
            stop.set()
            thread.join()


def _p(values: list[float]) -> str:
    cuts = statistics.quantiles(values, n=100)
    return f"p50 {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms of {len(values)} appends"


def main() -> None:
    """Run all measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--entries", type=int, default=1_000_000, help="behind (default 1,000,000)")
    parser.add_argument("--size", type=int, default=100, help="bytes of payload an entry (default 100)")
    args = parser.parse_args()
    directory = args.directory / "catch-up"
    directory.mkdir(parents=True)
    rig = Rig(directory, args.size)
    try:
        _measure(rig, args.entries)
    finally:
        rig.cluster.stop(grace_s=0.0)
        shutil.rmtree(directory)


def _measure(rig: Rig, entries: int) -> None:
    with rig.appends() as alone:
        time.sleep(5)
    print(f"appends, all servers up:      {_p(alone)}", flush=True)
    rig.kill()
    print(f"{entries} entries of {rig.size} B appended in {rig.append(entries):.0f} s", flush=True)
    os.sync()  # writes that those appends left to the disk are not measured
    with rig.appends() as beside:
        rig.start()
        up_s = rig._until(lambda: bool(rig.mine()))
        took_s = rig._until(lambda: rig.mine().get("last_id", 0) >= entries)
    print(f"one that was away: up after {up_s:.1f} s, level {took_s:.1f} s later: {entries / took_s:,.0f} entries/s")
    print(f"  appends meanwhile:          {_p(beside)}", flush=True)
    rig.kill()
    rig.start()
    print(f"a start: up after {rig._until(lambda: rig.mine().get('status') == 'VOTING'):.2f} s", flush=True)
    rig.kill()
    shutil.rmtree(rig.victim.data)
    with rig.appends() as beside:
        rig.start()
        took_s = rig._until(lambda: rig.mine().get("status") == "VOTING")
    size = rig.mine().get("disk_bytes", 0) / (1 << 30)
    print(f"a lost disk, {size:.2f} GiB: votes again after {took_s:.1f} s: {entries / took_s:,.0f} entries/s")
    print(f"  appends meanwhile:          {_p(beside)}", flush=True)


if __name__ == "__main__":
    main()
