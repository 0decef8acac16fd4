"""Output of a result: a summary with a histogram, one JSON line, or an SVG file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape as escape_xml
from math import log
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..output import counted, print_json
from .load import Latencies, Result

_BARS = 16
_BAR_WIDTH = 44


def show(title: str, result: Result, as_json: bool, plot: Path | None, extra: dict[str, object] | None = None) -> None:
    """Print a result in the requested form; ``extra`` keys come after the fixed ones."""
    fields = {**result.fields(), **(extra or {})}
    if plot is not None:
        write_plot(plot, title, result)
    if as_json:
        print_json(fields)
        return
    console = Console(highlight=False)
    console.print(f"[bold]{title}[/bold]")
    errors = counted(result.errors, "error")
    console.print(f"  {fields['ops_per_s']:,.0f} a second, {fields['mb_per_s']:,.1f} MB/s, {errors}")
    console.print("  " + "   ".join(f"{name} {fields[key]:,.2f} ms" for name, key in (
        ("median", "p50_ms"), ("99 %", "p99_ms"), ("99.9 %", "p999_ms"), ("max", "max_ms"))))
    for line in histogram(result.latencies):
        console.print(line)


def write_plot(file: Path, title: str, result: Result) -> None:
    """Write the SVG file. Raises OSError."""
    file.write_text(svg(title, result), "utf-8")


def histogram(latencies: Latencies) -> list[str]:
    """Lines of text: from, to, a bar, the share. [] without measurements."""
    bars = latencies.bars(_BARS)
    most = max((count for _, _, count in bars), default=0)
    lines = []
    for from_s, to_s, count in bars:
        eighths = round(count / most * _BAR_WIDTH * 8)
        bar = "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]
        share = f"{count / latencies.count:6.1%}"
        lines.append(f"  {duration(from_s):>8} - {duration(to_s):<8} {share} {bar}")
    return lines


def duration(seconds: float) -> str:
    """Duration with three digits and a suitable unit."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 0.9995 or unit == "µs":
            return f"{seconds * factor:.3g} {unit}"
    return ""


@contextmanager
def progress(title: str, total: float, quiet: bool) -> Iterator[tuple[Progress, TaskID]]:
    """Progress bar on stderr, not shown if that is no terminal or if ``quiet``; yields the bar and its task."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as shown:
        yield shown, shown.add_task(title, total=total, note="")


_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 760, 360, 60, 48, 64


def svg(title: str, result: Result) -> str:
    """SVG of the histogram: log scale of latency, share of operations, lines at the percentiles."""
    bars = result.latencies.bars(80)
    fields = result.fields()
    if not bars:
        bars = [(1e-3, 1e-2, 0)]
    low, high = log(bars[0][0]), log(bars[-1][1])
    most = max(1, *(count for _, _, count in bars)) if bars else 1

    def x(seconds: float) -> float:
        return _LEFT + (log(seconds) - low) / (high - low) * (_WIDTH - _LEFT - 20)

    floor = _HEIGHT - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="24" font-size="16">{escape_xml(title)}</text>',
        f'<text x="{_LEFT}" y="44" font-size="12" fill="#555">{fields["ops_per_s"]:,.0f} a second, '
        f'{fields["mb_per_s"]:,.1f} MB/s, median {fields["p50_ms"]} ms, {counted(result.errors, "error")}</text>',
    ]
    for from_s, to_s, count in bars:
        height = count / most * (floor - _TOP)
        parts.append(f'<rect x="{x(from_s):.1f}" y="{floor - height:.1f}" width="{x(to_s) - x(from_s):.1f}" '
                     f'height="{height:.1f}" fill="#4477aa"/>')
    parts.append(f'<line x1="{_LEFT}" y1="{floor}" x2="{_WIDTH - 20}" y2="{floor}" stroke="#333"/>')
    for tick_s in _ticks(bars[0][0], bars[-1][1]):
        parts.append(f'<text x="{x(tick_s):.1f}" y="{floor + 18}" font-size="11" text-anchor="middle">'
                     f"{duration(tick_s)}</text>")
    for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
        at = x(max(bars[0][0], min(bars[-1][1], result.latencies.percentile(share) or bars[0][0])))
        parts.append(f'<line x1="{at:.1f}" y1="{_TOP - 8}" x2="{at:.1f}" y2="{floor}" stroke="#cc3311" '
                     f'stroke-dasharray="4 3"/><text x="{at + 3:.1f}" y="{_TOP}" font-size="11" '
                     f'fill="#cc3311">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _ticks(low_s: float, high_s: float) -> list[float]:
    """Tick values between the ends: 1, 2 and 5 times powers of ten."""
    ticks = [m * 10.0**power for power in range(-7, 4) for m in (1, 2, 5)]
    return [tick for tick in ticks if low_s <= tick <= high_s]
