"""Plots as SVG that stands inside a page: text stays text, nothing is fetched, the same data give the same bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

#: Told apart also by those who see fewer colours (Paul Tol, "bright").
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10, "axes.grid": True, "grid.color": "#e4e4e4",
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.edgecolor": "#888888",
    "legend.frameon": False, "axes.titlesize": 11, "axes.titlelocation": "left", "text.parse_math": False,
}
WIDTH_IN, HEIGHT_IN = 9.0, 3.4


class Series(NamedTuple):
    """``y`` at ``x``, or at the groups of a bar chart; nan: nothing there."""

    label: str
    x: Sequence[Any]
    y: Sequence[float]


def bars(title: str, groups: Sequence[str], series: Sequence[Series], unit: str) -> str:
    """A bar of each series in each group."""
    with _figure(title) as (figure, axes, out):
        _group(figure, axes, groups, len(series))
        width = 0.8 / len(series)
        for at, one in enumerate(series):
            places = [group + (at - (len(series) - 1) / 2) * width for group in range(len(groups))]
            axes.barh(places, one.y, width * 0.92, label=one.label, color=COLOURS[at % len(COLOURS)])
        axes.set_xlabel(unit)
        axes.xaxis.set_major_formatter("{x:,g}")
        _legend(axes, series)
    return out[0]


def dots(title: str, groups: Sequence[str], series: Sequence[Series], unit: str) -> str:
    """A dot of each series in each group, on a logarithmic scale."""
    with _figure(title) as (figure, axes, out):
        _group(figure, axes, groups, 2)
        for at, one in enumerate(series):
            axes.plot(
                one.y, range(len(groups)), label=one.label, color=COLOURS[at % len(COLOURS)], linestyle="none",
                marker="osD^v"[at % 5], markersize=7,
            )
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set_xlabel(unit)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        _legend(axes, series)
    return out[0]


def _group(figure: Any, axes: Any, groups: Sequence[str], lanes: int) -> None:
    figure.set_figheight(max(2.0, 0.9 + len(groups) * (0.16 * lanes + 0.14)))
    axes.set_yticks(range(len(groups)), groups)
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.grid(False, axis="y")


def lines(
    title: str, series: Sequence[Series], unit_x: str, unit_y: str, *, steps: bool = False, marks: bool = False
) -> str:
    """Curves; ``marks``: their points alone. ``x``: numbers or datetimes. ``steps``: a value holds until the next."""
    with _figure(title) as (_, axes, out):
        for at, one in enumerate(series):
            axes.plot(
                one.x, one.y, label=one.label, color=COLOURS[at % len(COLOURS)], linewidth=1.6,
                drawstyle="steps-post" if steps else "default", marker="o" if marks else None, markersize=4,
                linestyle="none" if marks else "solid",
            )
        axes.set_xlabel(unit_x)
        axes.set_ylabel(unit_y)
        axes.set_ylim(0, 1.08 * max((y for one in series for y in one.y), default=0) or 1)
        if isinstance(series[0].x[0], datetime):
            axes.xaxis.set_major_formatter(ConciseDateFormatter(axes.xaxis.get_major_locator()))  # type: ignore[no-untyped-call]
        axes.yaxis.set_major_formatter("{x:,g}")
        _legend(axes, series)
    return out[0]


def _legend(axes: Any, series: Sequence[Series]) -> None:
    if len(series) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)


@contextmanager
def _figure(title: str) -> Iterator[tuple[Any, Any, list[str]]]:
    out: list[str] = []
    with mpl.rc_context({**_STYLE, "svg.hashsalt": title}):  # of its own each: their ids share one page
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        axes = figure.subplots()
        axes.set_title(title)
        yield figure, axes, out
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    out.append(f'<figure role="img">{svg}</figure>')
