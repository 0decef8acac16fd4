"""Sections of a report about measurements: sweeps, `alpo bench --json`, `alpo-sim elections`.

Law: wrong input ends in one `UsageProblem` that names the file.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from alpo.errors import AlpoError
from alpo_elections.cases import NAMES

from ..exits import UsageProblem, reason
from .report_page import Section, Series, bars, dots

_ROWS_MAX = 50
_NAN = float("nan")
#: Cases of docs/elections.csv that are drawn: (fault, timers and network, T in ms).
_DRAWN = (("crash", "LAN", 500.0), ("crash", "paper", 150.0))
_ELECTION_COLUMNS = {
    "protocol", "servers", "low_ms", "high_ms", "fault", "equal_logs", "profile", "runs", "none", "p50_ms", "p99_ms",
    "max_ms",
}
_BENCH_KEYS = ("ops_per_s", "p50_ms", "p99_ms", "p999_ms", "max_ms")


def swept(directory: Path) -> Section:
    """Section on a sweep's results. Raises UsageProblem."""
    from . import sweep_files

    try:
        wish = sweep_files.read_wish(directory)
        rows = sweep_files.read_rows(directory).to_pylist()
    except AlpoError as error:
        raise UsageProblem(f"--sweep {error}") from error
    first, last = wish["seeds"]
    section = Section(f"Sweep {directory}")
    mutation = f", mutation {wish['mutation']}" if wish.get("mutation") else ""
    section.say(
        f"{len(rows):,} of seeds {first:,} to {last:,}{mutation}, ALPO {wish.get('alpo')}, code {wish.get('code')}:"
        f" {sum(row['steps'] for row in rows):,} core steps in {sum(row['cpu_s'] for row in rows):,.1f} core-seconds."
    )
    broke = [row for row in rows if row["outcome"] != "held"]
    sizes = sorted({row["servers"] for row in rows})
    table = []
    for size in sizes:
        of = [row for row in rows if row["servers"] == size]
        table.append([
            str(size), f"{len(of):,}", f"{sum(row['outcome'] != 'held' for row in of):,}",
            *(f"{sum(row[name] for row in of):,}" for name in ("faults", "terms", "acknowledged", "entries")),
        ])
    section.table(
        ("servers", "seeds", "failed", "faults", "terms led", "appends acknowledged", "entries guaranteed"), table
    )
    if broke:
        section.table(("seed", "check", "what was seen", "repeat"), [
            [str(row["seed"]), row["invariant"], row["detail"], row["repeat"]] for row in broke[:_ROWS_MAX]
        ], 4)
        if len(broke) > _ROWS_MAX:
            section.say(f"and {len(broke) - _ROWS_MAX:,} more")
    else:
        section.say("Every check held.")
    for title, column in (("Faults", "faults_by_kind"), ("Events of the servers", "events")):
        counts: Counter[str] = Counter()
        for row in rows:
            counts.update(dict(row[column]))
        if counts:
            names = [name for name, _ in counts.most_common(24)]
            section.parts.append(bars(
                f"{title}, all worlds together", names, [Series("", names, [counts[name] for name in names])], "number"
            ))
    return section


def elections(path: Path) -> Section:
    """Section on leaderless time by protocol and size. Raises UsageProblem."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = _ELECTION_COLUMNS - set(reader.fieldnames or ())
            if missing:
                raise UsageProblem(f"--elections {path}: not what alpo-sim elections writes: no column {min(missing)}")
            rows = [{**row, **{key: float(row[key]) for key in _NUMBERS}} for row in reader]
    except OSError as error:
        raise UsageProblem(f"--elections {path}: {reason(error)}") from error
    except (ValueError, TypeError, csv.Error) as error:
        raise UsageProblem(f"--elections {path}: {error}") from error
    section = Section(f"Elections {path.name}")
    drawn = 0
    for fault, profile, low_ms in _DRAWN:
        for equal in ("False", "True"):
            drawn += _leaderless(section, rows, fault, profile, low_ms, equal)
    if not drawn:
        section.say("None of the cases that are drawn here is in this file: crashes at T = 150 and T = 500 ms.")
    return section


_NUMBERS = ("servers", "low_ms", "runs", "none", "p50_ms", "p99_ms", "max_ms")


def _leaderless(
    section: Section, rows: list[dict[str, Any]], fault: str, profile: str, low_ms: float, equal: str
) -> bool:
    chosen = [
        row for row in rows
        if (row["fault"], row["profile"], row["low_ms"], row["equal_logs"]) == (fault, profile, low_ms, equal)
        and not (row["protocol"].startswith("raft") and float(row["high_ms"]) != 2 * low_ms)
    ]
    if not chosen:
        return False
    groups, table = [], []
    for row in sorted(chosen, key=lambda row: (row["servers"], list(NAMES).index(row["protocol"])
                                               if row["protocol"] in NAMES else len(NAMES))):
        groups.append(f"{row['servers']:g}: {NAMES.get(row['protocol'], row['protocol'])}")
        table.append((row["p50_ms"], row["p99_ms"], row["none"] / row["runs"]))
    logs = "equal" if equal == "True" else "unequal"
    title = f"No leader after a crash, T = {low_ms:g} ms ({profile}), {logs} logs; servers: protocol"
    section.parts.append(bars(title, groups, [
        Series(name, groups, [_finite(cells[at]) for cells in table]) for at, name in enumerate(("median", "99 %"))
    ], "ms"))
    never = [f"{group}: {cells[2]:.1%}" for group, cells in zip(groups, table, strict=True) if cells[2]]
    if never:
        section.say(f"No leader within 60 T in so many of the runs (infinite bars are left out): {'; '.join(never)}.")
    return True


def _finite(value: float) -> float:
    return value if math.isfinite(value) else _NAN


def benched(paths: list[Path]) -> Section:
    """Section with latency percentiles and rates, a bar for each line of each file. Raises UsageProblem."""
    names, found = [], []
    for path in paths:
        for at, fields in enumerate(lines := _bench_lines(path), 1):
            names.append(path.stem + (f" {at}" if len(lines) > 1 else ""))
            found.append(fields)
    section = Section("Measured by alpo bench")
    section.table(
        ("", "operations a second", "MB/s", "median ms", "99 % ms", "99.9 % ms", "max ms", "errors"),
        [[name, f"{f['ops_per_s']:,.0f}", f"{f.get('mb_per_s', 0):,.1f}",
          *(f"{f[key]:,.2f}" for key in _BENCH_KEYS[1:]), f"{f.get('errors', 0):,}"]
         for name, f in zip(names, found, strict=True)],
    )
    labels = ("median", "99 %", "99.9 %", "max")
    section.parts.append(dots("Latency", names, [
        Series(label, names, [fields[key] or _NAN for fields in found])
        for label, key in zip(labels, _BENCH_KEYS[1:], strict=True)
    ], "ms"))
    # without failovers
    rates = {name: f["ops_per_s"] for name, f in zip(names, found, strict=True) if "rounds" not in f}
    if rates:
        section.parts.append(
            bars("Rate", list(rates), [Series("", list(rates), list(rates.values()))], "operations a second")
        )
    return section


def _bench_lines(path: Path) -> list[dict[str, Any]]:
    try:
        found = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise UsageProblem(f"--bench {path}: {reason(error)}") from error
    except ValueError as error:
        raise UsageProblem(f"--bench {path}: not what alpo bench --json prints: {error}") from error
    for fields in found:
        for key in _BENCH_KEYS:
            if not isinstance(fields, dict) or type(fields.get(key)) not in (int, float):
                raise UsageProblem(f"--bench {path}: not what alpo bench --json prints: no number {key}")
    if not found:
        raise UsageProblem(f"--bench {path}: the file is empty")
    return found
