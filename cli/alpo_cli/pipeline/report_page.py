"""Page of a report, and its plots: one HTML file that includes its style and loads nothing.

Plots are inline SVG: text stays text, and equal data give equal bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure

_STYLE = """
body { font: 15px/1.45 system-ui, "Helvetica Neue", Arial, sans-serif; color: #222; background: #fff;
       max-width: 960px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; margin: 0.8em 0; font-size: 0.93em; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2em 0.8em 0.2em 0; text-align: right; vertical-align: top; border-bottom: 1px solid #eee; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
figure { margin: 0.8em 0; } figure svg { width: 100%; height: auto; }
p.note { color: #555; } code { font-size: 0.92em; }
"""


@dataclass
class Section:
    """Part of the page; ``parts``: HTML."""

    title: str
    parts: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Add a paragraph."""
        self.parts.append(f'<p class="note">{escape(text)}</p>')

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], text: int = 1) -> None:
        """Add a table; its first ``text`` columns are text."""
        def line(cells: Sequence[str], tag: str) -> str:
            drawn = (
                f"<{tag}{' class=text' if at < text else ''}>{escape(cell)}</{tag}>" for at, cell in enumerate(cells)
            )
            return f"<tr>{''.join(drawn)}</tr>"

        body = "".join(line(row, "td") for row in rows)
        self.parts.append(f"<table><thead>{line(head, 'th')}</thead><tbody>{body}</tbody></table>")


def page(title: str, made: str, sections: Sequence[Section]) -> str:
    """The file's content."""
    body = "".join(f"<section><h2>{escape(one.title)}</h2>{''.join(one.parts)}</section>\n" for one in sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>"
        f'<p class="note">{escape(made)}</p>\n{body}</body></html>\n'
    )


#: Colours that people with colour blindness can tell apart (Paul Tol, "bright").
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")
_PLOT_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10, "axes.grid": True, "grid.color": "#e4e4e4",
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.edgecolor": "#888888",
    "legend.frameon": False, "axes.titlesize": 11, "axes.titlelocation": "left", "text.parse_math": False,
}
WIDTH_IN, HEIGHT_IN = 9.0, 3.4


class Series(NamedTuple):
    """Values ``y`` at ``x``."""

    label: str
    x: Sequence[Any]
    y: Sequence[float]


def bars(title: str, groups: Sequence[str], values: Sequence[float], unit: str) -> str:
    """Bar chart, as HTML."""
    with _figure(title) as (figure, axes, out):
        figure.set_figheight(max(2.0, 0.9 + 0.3 * len(groups)))
        axes.barh(range(len(groups)), values, 0.736, color=COLOURS[0])
        axes.set_yticks(range(len(groups)), groups)
        axes.set_ylim(len(groups) - 0.4, -0.6)
        axes.grid(False, axis="y")
        axes.set_xlabel(unit)
        axes.xaxis.set_major_formatter("{x:,g}")
    return out[0]


def lines(
    title: str, series: Sequence[Series], unit_x: str, unit_y: str, *, steps: bool = False, marks: bool = False
) -> str:
    """Curves, or points if ``marks``, as HTML. ``x``: numbers or datetimes. ``steps``: a value holds until the next."""
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
    with mpl.rc_context({**_PLOT_STYLE, "svg.hashsalt": title}):  # ids must be unique within the page
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        axes = figure.subplots()
        axes.set_title(title)
        yield figure, axes, out
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    out.append(f'<figure role="img">{svg}</figure>')
