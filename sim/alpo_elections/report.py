"""Writer of the files in `docs/generated`: the tables, the CSV file and the plots."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path

from .cases import LAN, NAMES, PAPER, PROTOCOLS, Case
from .cells import CSV_HEAD, NEVER_MS, RANDOMNESS, SIZES, TIMEOUTS, TOPOLOGIES, Cell, csv_row, one
from .corners import CORNER_HEAD, CornerRow
from .plots import Line, Panel, draw

COLOURS = {
    "alpo": "#0b5cad", "raft": "#d9480f", "raft-prevote": "#e8a33d", "draft": "#2b8a3e", "draft-literal": "#7048a8"
}
SCALE = ("#a61e4d", "#d9480f", "#e8a33d", "#2b8a3e", "#0c8599", "#5f3dc4")

Cells = dict[Case, Cell]


def ms(value: float) -> str:
    """Milliseconds as text; "none" for infinity."""
    return "none" if value == NEVER_MS else f"{value:,.0f}"


def label(case: Case) -> str:
    """The name of a case's protocol and its election timeout."""
    return NAMES[case.protocol] + (f" {case.low_ms:g}-{case.high_ms:g}" if case.protocol.startswith("raft")
                                   else f" T = {case.low_ms:g}")


HEAD = (
    "runs", "leads: p50", "p99", "max", "all follow: p50", "p99", "max", "first one lost", "no leader in 60 T",
    "candidacies", "terms", "most", "split votes",
)


def row(cell: Cell) -> list[str]:
    """The figures of ``cell`` in a table, in the order of `HEAD`."""
    return [
        f"{cell.runs:,}", ms(cell.p50_ms), ms(cell.p99_ms), ms(cell.max_ms), ms(cell.heard_p50_ms),
        ms(cell.heard_p99_ms), ms(cell.heard_max_ms), f"{100 * cell.lost:.1f} %",
        f"{100 * cell.none / cell.runs:.1f} %" if cell.none else "0",
        f"{cell.candidacies:.2f}", f"{cell.terms:.2f}", str(cell.terms_max), f"{100 * cell.split:.1f} %",
    ]


def table(head: Iterable[str], rows: Iterable[Iterable[str]], words: int) -> str:
    """A Markdown table whose first ``words`` columns are text, the others numbers."""
    names = list(head)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * words + "---:|" * (len(names) - words)]
    return "\n".join([*lines, *("| " + " | ".join(each) + " |" for each in rows)])


def _rows(cells: Cells, wanted: Iterable[tuple[list[str], Case]]) -> list[list[str]]:
    return [[*words, *row(cells[case])] for words, case in wanted if case in cells]


def logs(equal: bool) -> str:
    """The word for a case's logs: of equal or unequal length."""
    return "equal" if equal else "unequal"


def tables(cells: Cells, corners: list[CornerRow]) -> str:
    """All tables that have a row, each under its heading."""
    five = [Case("raft", 5, low, high) for low, high in (*RANDOMNESS, *TIMEOUTS[:-1])]
    five += [Case(p, 5, low, low) for p in ("alpo", "draft") for low, _ in TIMEOUTS]
    sizes, ours = (
        [
            ([str(n), logs(equal), NAMES[p]], find(p, n, equal))
            for n in SIZES for equal in (False, True) for p in PROTOCOLS
        ]
        for find in (_paper, lambda p, n, equal: one(p, n, 500, "crash", equal, LAN, 0.2))
    )
    rough = [([logs(equal), NAMES[p]], _paper(p, 3, equal, "scattered")) for equal in (False, True) for p in PROTOCOLS]
    parts, parts_lan = (
        [
            ([f"{n} {fault}", logs(equal), NAMES[p]], one(p, n, low_ms, fault, equal, profile, 0.2))
            for n, fault in TOPOLOGIES for equal in both for p in PROTOCOLS
        ]
        for low_ms, profile, both in ((150, PAPER, (False, True)), (500, LAN, (False,)))
    )
    servers = ("servers", "logs", "protocol")
    sections = [
        ("Figure 16 again: 5 servers, every log of another length, one broadcast to all before the crash",
         table(("timeouts, ms", *HEAD), _rows(cells, [([label(case)], case) for case in five]), 1)),
        ("T = 150 ms (Raft: 150-300 ms): one broadcast to all before the crash",
         table((*servers, *HEAD), _rows(cells, sizes), 3)),
        ("T = 150 ms, 3 servers: to each its last message at another time before the crash",
         table((*servers[1:], *HEAD), _rows(cells, rough), 2)),
        ("T = 500 ms (Raft: 500-1000 ms) on a LAN", table((*servers, *HEAD), _rows(cells, ours), 3)),
        ("Partial partitions, T = 150 ms: the leader lives and no longer reaches a majority",
         table((*servers, *HEAD), _rows(cells, parts), 3)),
        ("Partial partitions, T = 500 ms on a LAN", table((*servers, *HEAD), _rows(cells, parts_lan), 3)),
        ("Bad worlds: time until all that it reaches follow a leader, in T",
         table(CORNER_HEAD, [each.cells() for each in corners], 3)),
    ]
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in sections if text.count("\n") > 1)


def _paper(protocol: str, servers: int, equal: bool, fault: str = "crash") -> Case:
    return one(protocol, servers, 150, fault, equal, PAPER, 0.5)


def pictures(cells: Cells) -> dict[str, str]:
    """The plots: file name -> SVG text."""

    def line(case: Case, name: str, colour: str, dash: str = "", width: float = 1.8) -> list[Line]:
        cell = cells.get(case)
        return [Line(name, cell.curve_ms, cell.followed, colour, dash, width)] if cell else []

    def protocols(title: str, find: Callable[[str], Case]) -> Panel:
        lines = [
            each for p in PROTOCOLS
            for each in line(find(p), NAMES[p].replace(", pre-vote and check-quorum", ", pre-vote"), COLOURS[p],
                             "5 3" if p in ("raft-prevote", "draft-literal") else "", 2.6 if p == "alpo" else 1.8)
        ]
        return Panel(title, lines)

    randomness = [
        each for (low, high), colour in zip(RANDOMNESS, SCALE, strict=True)
        for each in line(Case("raft", 5, low, high), f"Raft {low}-{high}", colour)
    ]
    randomness += line(Case("alpo", 5, 150, 150), "ALPO T = 150", COLOURS["alpo"], "", 3)
    randomness += line(Case("draft", 5, 150, 150), "draft T = 150", "#555", "5 3")
    timeouts = [
        each for (low, high), colour in zip(TIMEOUTS, SCALE, strict=False)
        for each in line(Case("raft", 5, low, high), f"Raft {low}-{high}", colour)
        + line(Case("alpo", 5, low, low), f"ALPO T = {low}", colour, "5 3", 2.4)
    ]
    sizes = [
        protocols(f"{n} servers, {logs(False)} logs", lambda p, n=n: one(p, n, 500, "crash", False, LAN, 0.2))  # type: ignore[misc]
        for n in SIZES
    ]
    parts = [
        protocols(f"5 servers, {fault}, unequal logs",
                  lambda p, fault=fault: one(p, 5, 150, fault, False, PAPER, 0.2))  # type: ignore[misc]
        for fault in ("star", "chain", "bridge")
    ]
    found = {
        "elections-randomness.svg": ("A leader crashes: Raft with ever more randomness, ALPO without any",
                                     [Panel("5 servers, unequal logs, broadcast time 15 ms", randomness)]),
        "elections-timeouts.svg": ("A leader crashes: shorter timeouts",
                                   [Panel("5 servers, unequal logs, broadcast time 15 ms", timeouts)]),
        "elections-lan.svg": ("A leader crashes: ALPO's default, T = 500 ms, on a LAN", sizes),
        "elections-partitions.svg": ("Partial partitions that cost the leader its majority, T = 150 ms", parts),
    }
    return {name: draw(title, panels) for name, (title, panels) in found.items() if any(p.lines for p in panels)}


def page_of(cells: Cells, corners: list[CornerRow], command: str) -> str:
    """The text of the page with all tables."""
    return (
        "# Elections measured: tables\n\n"
        f"Made by `{command}`. Times in milliseconds since the fault.\n\n{tables(cells, corners)}\n"
    )


def write(folder: Path, cells: Cells, corners: list[CornerRow], command: str) -> list[Path]:
    """Write `elections.md`, `elections.csv` and `img/*.svg`; returns their paths. Raises OSError."""
    images = folder / "img"
    images.mkdir(parents=True, exist_ok=True)
    page, sheet = folder / "elections.md", folder / "elections.csv"
    page.write_text(page_of(cells, corners, command), encoding="utf-8")
    with sheet.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CSV_HEAD)
        writer.writerows(csv_row(cell) for cell in cells.values())
    paths = [page, sheet]
    for name, svg in pictures(cells).items():
        (images / name).write_text(svg, encoding="utf-8")
        paths.append(images / name)
    return paths
