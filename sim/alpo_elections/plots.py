"""Cumulative curves as SVG, written by hand: readable in a browser, diffable in a repository."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

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
