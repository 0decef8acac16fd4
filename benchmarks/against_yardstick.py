"""Compare ALPO's appends with the yardstick's, in turns on the same machine: medians, their ratios, processor time.

The yardstick is three bare servers and a load on loopback that do what such a system must (three disks fsynced) and
check nothing; its ``run.py --payload B --outstanding N --connections C --seconds S`` prints a JSON line with
``ops_per_s``, ``mb_per_s``, ``p50_ms``.

    python benchmarks/against_yardstick.py [--yardstick run.py] [--cases lone,clients] [--seconds 5] [--rounds 5]
    python benchmarks/against_yardstick.py --rounds 1 --seconds 2                   # a quick look
    python benchmarks/against_yardstick.py --peers [etcd zookeeper rabbitmq nats]   # those installed, or just these
    python benchmarks/against_yardstick.py --also before=../alpo-before --also venv-with-a-wheel/bin/python

``--also`` measures ALPO from elsewhere in the same turns: a checkout (its sources, this interpreter) or an interpreter
(what is installed for it). A round of a case is one turn of each side: fresh servers, one load, all of it ended before
the next turn begins. No side is warmed up: the first 500 lone appends of a fresh server take longer, on all sides.

A ratio is of two medians, and the range beside it that of the rounds: for appends a second higher is better, for
medians in ms and processor time lower is better. Processor time (µs an append) is that of the three servers together,
of the leader, of a follower, of the load; `processor_time.py` says how it is measured. It moves less than the rest.

The table goes to stderr, a JSON line for each case to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from bench_sides import REPOSITORY, Alpo, Case, Turn, Void, Yardstick
from peer_servers import PEERS, Missing

DEFAULT = REPOSITORY.parent / "shared" / "yardstick" / "run.py"

CASES = {case.name: case for case in (
    Case("small", 100, 1_000, 10, "ops_per_s"),
    Case("kib", 1_024, 1_000, 10, "ops_per_s"),
    Case("lone", 100, 1, 1, "p50_ms"),
    Case("clients", 100, 64, 64, "ops_per_s"),
    Case("large", 65_536, 64, 8, "mb_per_s"),
    Case("blocking", 100, 1, 1, "p50_ms", blocking=True),
)}


class Side(Protocol):
    """One of those that are compared."""

    @property
    def name(self) -> str: ...

    def turn(self, case: Case, seconds: float) -> Turn: ...


@dataclass
class Row:
    """One side's turns in a case. ``bases``: the names of the rows that it is compared with."""

    name: str
    run: Callable[[float], Turn]
    bases: tuple[str, ...]
    turns: list[Turn] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(turn.figure for turn in self.turns)

    def cpu_us(self) -> dict[str, float] | None:
        """Medians of the processor times; None if a turn has none."""
        found = [asdict(turn.cpu_us) for turn in self.turns if turn.cpu_us is not None]
        if len(found) < len(self.turns):
            return None
        return {key: round(statistics.median(one[key] for one in found), 1) for key in found[0]}

    def compared(self, base: Row) -> dict[str, Any]:
        """Ratio of the medians, range of the rounds' ratios, ratio of the servers' processor times."""
        ratios = [mine.figure / theirs.figure for mine, theirs in zip(self.turns, base.turns, strict=True)]
        mine, theirs = self.cpu_us(), base.cpu_us()
        return {
            "ratio": round(self.median / base.median, 3),
            "range": [round(min(ratios), 3), round(max(ratios), 3)],
            "cpu_ratio": round(mine["servers"] / theirs["servers"], 3) if mine and theirs else None,
        }


def rows_of(case: Case, sides: Sequence[Side]) -> list[Row]:
    """List what is measured in a case. The blocking client is compared with the same ALPO's other one, the
    rest with the
    first side, and ALPO from elsewhere also with ALPO from here."""
    def run(side: Side, case: Case) -> Callable[[float], Turn]:
        return lambda seconds: side.turn(case, seconds)

    ours = [side for side in sides if isinstance(side, Alpo)]
    if case.blocking:
        plain = Case(case.name, case.payload, case.outstanding, case.connections, case.key)
        pairs = [(Row(side.name, run(side, plain), ()), Row(f"{side.name}, blocking", run(side, case), (side.name,)))
                 for side in ours]
        return [row for pair in pairs for row in pair]
    first = sides[0].name
    return [
        Row(side.name, run(side, case), () if side is sides[0] else tuple(
            dict.fromkeys([first, *([ours[0].name] if side in ours[1:] else [])])))
        for side in sides
    ]


def measure(case: Case, sides: Sequence[Side], seconds: float, rounds: int) -> list[Row]:
    """Measure all sides in turns, so that other load on the machine hits all of them. Raises Void."""
    rows = rows_of(case, sides)
    for number in range(rounds):
        for row in rows:
            print(f"{case.text}: round {number + 1} of {rounds}, {row.name}", file=sys.stderr)
            row.turns.append(row.run(seconds))
            os.sync()  # Write out what this side has left: it is not to hit the next.
    return rows


def as_fields(case: Case, rows: Sequence[Row]) -> dict[str, Any]:
    """A case's JSON line."""
    named = {row.name: row for row in rows}
    return {"case": case.name, "load": case.text, "compared": case.key, "sides": {
        row.name: {
            "median": row.median, "runs": [turn.figure for turn in row.turns], "cpu_us": row.cpu_us(),
            "of": {base: row.compared(named[base]) for base in row.bases},
        } for row in rows
    }}


def table(found: dict[str, Any], skipped: dict[str, str]) -> list[str]:
    """Lines of a case's table; ``skipped`` sides have a word instead of figures."""
    lines = [f"{found['load']}: {found['compared']}; processor time: µs an append",
             f"  {'':18}{'median':>12}  {'servers':>9}{'leader':>9}{'follower':>9}{'load':>9}   ratios"]
    for name, side in found["sides"].items():
        cpu = side["cpu_us"]
        times = "".join(f"{cpu[key]:>9,.1f}" for key in ("servers", "leader", "follower", "load")) if cpu else " " * 36
        ratios = "; ".join(
            f"{of['ratio']:.2f} of {base} [{of['range'][0]:.2f}-{of['range'][1]:.2f}]"
            + (f", servers' time {of['cpu_ratio']:.2f}" if of["cpu_ratio"] is not None else "")
            for base, of in side["of"].items()
        )
        lines.append(f"  {name:18}{side['median']:>12,.2f}  {times}   {ratios}".rstrip())
    return [*lines, *(f"  {name:18}{word}" for name, word in skipped.items()), ""]


def refuse(text: str) -> NoReturn:
    """End the program: nothing can be measured as it was asked for."""
    print(text, file=sys.stderr)
    sys.exit(2)


def cases_of(text: str) -> list[Case]:
    """Cases by their names. Raises argparse's error for one that there is not."""
    unknown = [name for name in text.split(",") if name not in CASES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    return [CASES[name] for name in text.split(",")]


def alpo_from(text: str) -> Alpo:
    """ALPO from ``[NAME=]PATH``: a checkout, an interpreter, or the directory of a virtual environment."""
    name, _, given = text.rpartition("=")
    path = Path(given).absolute()  # never resolved: the link in a virtual environment is what makes it one
    if (path / "alpo" / "__init__.py").is_file():
        return Alpo(name or path.name, Path(sys.executable), path.resolve())
    if (path / "bin" / "python").is_file():
        path = path / "bin" / "python"
    if path.is_file() and os.access(path, os.X_OK):
        return Alpo(name or path.parents[1 if path.parents[1].name != '.venv' else 2].name, path, None)
    raise argparse.ArgumentTypeError(f"{given} is no checkout of ALPO and no Python interpreter")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yardstick", default=os.environ.get("ALPO_YARDSTICK", DEFAULT), metavar="RUN.PY",
                        help="'none' for ALPO alone (default: the environment's ALPO_YARDSTICK, or "
                             "../shared/yardstick/run.py)")
    parser.add_argument("--also", type=alpo_from, action="append", default=[], metavar="[NAME=]PATH",
                        help="ALPO from elsewhere: a checkout or an interpreter; may be given several times")
    parser.add_argument("--peers", nargs="*", choices=PEERS, metavar="PEER",
                        help=f"{', '.join(PEERS)}; without a name those that are installed")
    parser.add_argument("--peers-at", type=Path, default=os.environ.get("ALPO_PEERS"), metavar="DIR",
                        help="where to look before the PATH (default: the environment's ALPO_PEERS)")
    parser.add_argument("--cases", type=cases_of, default=list(CASES.values()), metavar="A,B", help=", ".join(CASES))
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=5, help="of each case")
    return parser.parse_args(arguments)


def sides_of(given: argparse.Namespace) -> list[Side]:
    """All sides, in the order of their turns; says on stderr where each ALPO comes from. Ends the program with 2 if one
    is not there."""
    ours = [Alpo("alpo", Path(sys.executable), REPOSITORY), *given.also]
    names = [side.name for side in ours]
    if len({*names, "yardstick"}) < len(names) + 1:
        refuse(f"sides of the same name: {', '.join(names)}; give --also NAME=PATH")
    base: list[Side] = []
    if str(given.yardstick) != "none":
        if not Path(given.yardstick).is_file():
            refuse(f"no yardstick at {given.yardstick}: give --yardstick PATH/run.py (or none), or set ALPO_YARDSTICK")
        base = [Yardstick(Path(given.yardstick))]
    for side in ours:
        try:
            print(f"{side.name}: {side.origin()}", file=sys.stderr)
        except Void as error:
            refuse(str(error))
    return [*base, *ours]


def peers_of(names: Sequence[str] | None, at: Path | None) -> tuple[list[Side], dict[str, str]]:
    """Peers to measure, and those left out with a word each; no names: all that are installed. Says on stderr what is
    missing. Ends the program with 2 if that was asked for by name."""
    there: list[Side] = []
    skipped = {}
    for name in PEERS if names == [] else names or ():
        try:
            there.append(PEERS[name](at))
        except Missing as error:
            if names:
                refuse(str(error))
            print(f"left out: {error}", file=sys.stderr)
            skipped[name] = "not installed"
    return there, skipped


def main() -> None:
    """Measure all cases; prints a table on stderr and a JSON line a case on stdout."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers are ended on the way
    given = parse(None)
    peers, skipped = peers_of(given.peers, given.peers_at)
    sides = [*sides_of(given), *peers]
    results = []
    for case in given.cases:
        try:
            results.append(as_fields(case, measure(case, sides, given.seconds, given.rounds)))
        except Void as error:
            sys.exit(f"figures void: {error}")
        print(json.dumps(results[-1]), flush=True)
    for found in results:
        print("\n".join(table(found, skipped)), file=sys.stderr)


if __name__ == "__main__":
    main()
