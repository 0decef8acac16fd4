"""Measure what three idle servers cost: percent of one core for each, by process accounting.

Real servers on loopback with their default configuration. ``python benchmarks/idle.py DIR``: the directory is made, and
removed at the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from pathlib import Path

import alpo
from alpo_cli.local_cluster import LocalCluster, free_base_port

_BATCH = 1000
#: Seconds after the load until its remaining work is done.
_SETTLE_S = 20.0


def _cpu_s(pid: int) -> float:
    """User and system time of all threads of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Load the servers, then print each one's cost while idle."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--entries", type=int, default=100_000, help="appended before (default 100,000)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement (default 60)")
    parser.add_argument("--times", type=int, default=3, help="measurements (default 3)")
    args = parser.parse_args()
    directory = args.directory / "idle"
    directory.mkdir(parents=True)
    cluster = LocalCluster.create(directory, 3, free_base_port(3))
    cluster.spawn(cluster.servers)
    try:
        with alpo.connect_sync(cluster.addresses, timeout_s=120) as log:
            log.append(b"")  # returns once there is a leader
            for first in range(0, args.entries, _BATCH):
                for sent in [log.append_nowait(b"payload %d" % (first + at)) for at in range(_BATCH)]:
                    sent.result()
            leader = next(row["id"] for row in log.status() if row["reachable"] and row["state"] == "leader")
        time.sleep(_SETTLE_S)
        for _ in range(args.times):
            before, start_s = [_cpu_s(server.pid) for server in cluster.servers], time.monotonic()
            time.sleep(args.seconds)
            took_s = time.monotonic() - start_s
            for server, then_s in zip(cluster.servers, before, strict=True):
                what = "leader" if server.id == leader else "passive"
                print(f"{what:8} {100 * (_cpu_s(server.pid) - then_s) / took_s:5.2f} %", flush=True)
    finally:
        cluster.stop(grace_s=0.0)
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
