"""Compare ALPO's appends with the yardstick's, in turns on the same machine: medians of three, and their ratios.

The yardstick is three bare servers and a load on loopback that do what such a system must (three disks fsynced) and
check nothing; its ``run.py --payload B --outstanding N --seconds S`` prints a JSON line with ``ops_per_s``, ``p50_ms``.

    python benchmarks/against_yardstick.py [--yardstick run.py] [--seconds 5] [--rounds 3]

A ratio is ALPO / yardstick: for appends a second higher is better, for medians lower is better.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alpo_cli.local_cluster import free_base_port

REPOSITORY = Path(__file__).resolve().parents[1]
DEFAULT = REPOSITORY.parent / "shared" / "yardstick" / "run.py"
ALPO = [sys.executable, "-m", "alpo_cli.main"]
ALPOD = [sys.executable, "-m", "alpo.daemon"]


@dataclass(frozen=True)
class Case:
    """One load; ``key`` names the compared figure."""

    payload: int
    outstanding: int
    connections: int
    key: str

    @property
    def name(self) -> str:
        return f"{self.payload} B, {self.outstanding} outstanding"


CASES = [Case(100, 1_000, 10, "ops_per_s"), Case(1_024, 1_000, 10, "ops_per_s"), Case(100, 1, 1, "p50_ms")]


def last_json(command: list[str]) -> dict[str, Any]:
    """Run a command; returns the JSON in its last line of stdout. If it fails, exit with its stderr."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    fields: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return fields


def yardstick(run: Path, case: Case, seconds: float) -> dict[str, Any]:
    """Run the yardstick once; it starts fresh servers of its own."""
    flags = ["--payload", str(case.payload), "--outstanding", str(case.outstanding), "--seconds", str(seconds)]
    return last_json([sys.executable, str(run), *flags])


@contextmanager
def servers(directory: Path) -> Iterator[str]:
    """Start three fresh alpod; yields their addresses once one leads. They run in this session, as the yardstick's do:
    Linux may share out the processor by session (`sched_autogroup_enabled`)."""
    base_port = free_base_port(3)
    at = [f"127.0.0.1:{base_port + n}" for n in range(3)]
    members = [flag for n in range(3) for flag in ("--member", f"{n + 1}={at[n]}")]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for n in range(3):
            command = [*ALPOD, "--id", str(n + 1), "--data", str(directory / str(n + 1)), "--listen", at[n], *members]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        append = [*ALPO, "append", "--servers", ",".join(at), "--timeout", "30", "ready"]
        started = subprocess.run(append, capture_output=True, text=True, check=False)
        if started.returncode:
            sys.exit(f"no cluster: {started.stderr}")
        yield ",".join(at)
    finally:
        for server in running:
            server.kill()
            server.wait()


def ours(case: Case, seconds: float) -> dict[str, Any]:
    """Run `alpo bench append` once, against three fresh alpod processes."""
    with tempfile.TemporaryDirectory(prefix="alpo-bench-") as directory, servers(Path(directory)) as at:
        return last_json([
            *ALPO, "bench", "append", "--yes", "--json", "--servers", at,
            "--payload", str(case.payload), "--outstanding", str(case.outstanding),
            "--connections", str(case.connections), "--seconds", str(seconds),
        ])


def compare(run: Path, case: Case, seconds: float, rounds: int) -> dict[str, Any]:
    """Measure both in turns, so that other load on the machine hits both; returns medians and their ratio."""
    theirs, own = [], []
    for number in range(rounds):
        print(f"{case.name}: round {number + 1} of {rounds}", file=sys.stderr)
        theirs.append(yardstick(run, case, seconds)[case.key])
        result = ours(case, seconds)
        if result["errors"]:
            sys.exit(f"{case.name}: {result['errors']} appends failed, figures void")
        own.append(result[case.key])
    base, mine = statistics.median(theirs), statistics.median(own)
    return {
        "case": case.name, "compared": case.key, "yardstick": base, "alpo": mine, "ratio": round(mine / base, 3),
        "yardstick_runs": theirs, "alpo_runs": own,
    }


def main() -> None:
    """Measure all cases; prints a table on stderr and a JSON line a case on stdout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yardstick", type=Path, default=Path(os.environ.get("ALPO_YARDSTICK", DEFAULT)),
                        help="its run.py (default: the environment's ALPO_YARDSTICK, or ../shared/yardstick/run.py)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3, help="of each case and side")
    given = parser.parse_args()
    if not given.yardstick.is_file():
        print(f"no yardstick at {given.yardstick}: give --yardstick PATH/run.py or set ALPO_YARDSTICK", file=sys.stderr)
        sys.exit(2)
    results = [compare(given.yardstick, case, given.seconds, given.rounds) for case in CASES]
    print(f"{'':26}{'compared':>10}{'yardstick':>12}{'ALPO':>12}{'ratio':>8}", file=sys.stderr)
    for r in results:
        print(f"{r['case']:26}{r['compared']:>10}{r['yardstick']:>12,.2f}{r['alpo']:>12,.2f}{r['ratio']:>8.2f}",
              file=sys.stderr)
    for result in results:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
