"""Measure how a sweep scales with Spark's executors: the same seeds on one executor of one core, and on two.

    python benchmarks/sweep_scaling.py [--seeds 20000] [--seconds 2] [--rounds 1]

Each sweep is a process with a Spark of its own (`local-cluster[N,1,1024]`: executors are separate JVMs, as on a
cluster; PySpark from pip brings all that it needs), into a directory that is removed afterwards. Prints the seconds of
each, Spark's start included, and the ratio of the medians. Meaningful only on a machine with two idle cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

EXECUTORS = (1, 2)
RANGE_SEEDS = 100


def sweep(seeds: int, seconds: int, executors: int) -> float:
    """Run one sweep; returns its seconds, exits if a seed failed."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                sys.executable, "-m", "alpo_sim.main", "sweep", f"1..{seeds}", "--seconds", str(seconds),
                "--to", str(Path(folder) / "sweep"), "--range-seeds", str(RANGE_SEEDS), "--master",
                f"local-cluster[{executors},1,1024]", "--json",
            ],
            capture_output=True, text=True, check=False,
        )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr[-4000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def main() -> None:
    """Run all sweeps and print their times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20_000)
    parser.add_argument("--seconds", type=int, default=2, help="virtual time of each world")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    took: dict[int, list[float]] = {executors: [] for executors in EXECUTORS}
    for _ in range(arguments.rounds):
        for executors in EXECUTORS:
            took[executors].append(sweep(arguments.seeds, arguments.seconds, executors))
            rate = arguments.seeds / took[executors][-1]
            print(f"{executors} executor(s): {took[executors][-1]:,.1f} s, {rate:,.1f} seeds/s", flush=True)
    one, two = (median(took[executors]) for executors in EXECUTORS)
    print(f"two executors against one: {one / two:.2f} times as fast")


if __name__ == "__main__":
    main()
