"""Writer of the files in `docs/generated`: the tables, the CSV file and the plots.

Plots are cumulative curves as SVG, written by hand: readable in a browser, diffable in a repository.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from .cases import (
    CSV_HEAD,
    LAN,
    NAMES,
    NEVER_MS,
    PAPER,
    PROTOCOLS,
    RANDOMNESS,
    SIZES,
    TIMEOUTS,
    TOPOLOGIES,
    Case,
    Cell,
    csv_row,
    one,
)
from .corners import CORNER_HEAD, CornerRow

PANEL_W, PANEL_H, LEFT, TOP, GAP, LEGEND_W = 400, 320, 58, 50, 62, 180
FONT = 'font-family="Helvetica, Arial, sans-serif"'


class Line(NamedTuple):
    """Cumulative curve: ``curve_ms`` ascends; its last value is reached by ``share`` of the runs."""

    label: str
    curve_ms: Sequence[float]
    share: float
    colour: str
    dash: str = ""
    width: float = 1.8


class Panel(NamedTuple):
    title: str
    lines: list[Line]


class Axis:
    """A logarithmic scale of milliseconds that all panels share."""

    def __init__(self, panels: Sequence[Panel]) -> None:
        times = [ms for panel in panels for line in panel.lines for ms in line.curve_ms if ms > 0]
        self.low = math.log10(max(1.0, min(times)) * 0.9) if times else 0.0
        self.high = math.log10(max(times) * 1.05) if times else 3.0

    def x(self, ms: float) -> float:
        return PANEL_W * (math.log10(max(ms, 10**self.low)) - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        decades = range(math.floor(self.low), math.ceil(self.high) + 1)
        found = [step * 10.0**d for d in decades for step in (1, 2, 5)]
        return [ms for ms in found if self.low <= math.log10(ms) <= self.high]


def draw(title: str, panels: Sequence[Panel]) -> str:
    """The SVG file's text: panels side by side, one legend to the right."""
    axis = Axis(panels)
    width = LEFT + len(panels) * PANEL_W + (len(panels) - 1) * GAP + LEGEND_W + 20
    height = TOP + PANEL_H + 56
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold" {FONT}>{escape(title)}</text>',
    ]
    for at, panel in enumerate(panels):
        parts += _panel(panel, axis, LEFT + at * (PANEL_W + GAP), at == 0)
    seen = {line.label: line for panel in panels for line in panel.lines}
    x = LEFT + len(panels) * PANEL_W + (len(panels) - 1) * GAP + 16
    for at, line in enumerate(seen.values()):
        y = TOP + 12 + at * 20
        parts.append(f'<path d="M{x} {y}h26" {_stroke(line)}/>')
        parts.append(f'<text x="{x + 32}" y="{y + 4}" font-size="12" {FONT}>{escape(line.label)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _stroke(line: Line) -> str:
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    return f'fill="none" stroke="{line.colour}" stroke-width="{line.width}" stroke-linejoin="round"{dash}'


def _panel(panel: Panel, axis: Axis, left: float, first: bool) -> list[str]:
    bottom = TOP + PANEL_H
    parts = [f'<text x="{left}" y="{TOP - 9}" font-size="12" fill="#333" {FONT}>{escape(panel.title)}</text>']
    for percent in range(0, 101, 20):
        y = bottom - PANEL_H * percent / 100
        parts.append(f'<path d="M{left} {y:.1f}h{PANEL_W}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{left - 6}" y="{y + 4:.1f}" font-size="11" text-anchor="end" {FONT}>{percent} %</text>'
        )
    shown = -100.0
    for ms in axis.ticks():
        x = left + axis.x(ms)
        parts.append(f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#eee"/>')
        if x - shown >= 34:
            parts.append(
                f'<text x="{x:.1f}" y="{bottom + 16}" font-size="11" text-anchor="middle" {FONT}>{ms:g}</text>'
            )
            shown = x
    parts.append(f'<rect x="{left}" y="{TOP}" width="{PANEL_W}" height="{PANEL_H}" fill="none" stroke="#888"/>')
    parts.append(
        f'<text x="{left + PANEL_W / 2}" y="{bottom + 36}" font-size="12" text-anchor="middle" {FONT}>'
        "until all follow a leader, ms</text>"
    )
    if first:
        middle = TOP + PANEL_H / 2
        parts.append(
            f'<text x="14" y="{middle}" font-size="12" text-anchor="middle" {FONT} '
            f'transform="rotate(-90 14 {middle})">share of the runs</text>'
        )
    return parts + [_curve(line, axis, left, bottom) for line in panel.lines if line.curve_ms]


def _curve(line: Line, axis: Axis, left: float, bottom: float) -> str:
    count = len(line.curve_ms)
    points = [
        f"{left + axis.x(ms):.1f} {bottom - PANEL_H * line.share * (at + 1) / count:.1f}"
        for at, ms in enumerate(line.curve_ms)
    ]
    end = f"H{left + PANEL_W}" if line.share < 1 else ""
    return f'<path d="M{left + axis.x(line.curve_ms[0]):.1f} {bottom}L{"L".join(points)}{end}" {_stroke(line)}/>'


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
