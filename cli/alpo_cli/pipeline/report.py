"""Sections of a report about a log: its elections, its payloads over time, how far readers and copies are behind.

Laws:

* All copies are of one cluster. The log's data comes from the copy with the highest guaranteed mark, up to that mark.
* Nothing is verified (`alpo log verify` does that), and a read transaction lasts for one page only.
* The page is one HTML file that includes its style and loads nothing. Plots are inline SVG: text stays text, and equal
  data give equal bytes.
"""

from __future__ import annotations

import io
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure

from alpo.client.operator.status import ServerEvent
from alpo.core.entries import Kind
from alpo.offline import Source, StoreError, open_source
from alpo.storage.events import ROWS_MAX, read_events

from .. import story
from ..exits import UsageProblem
from ..output import rfc3339_ms

_PAGE_ROWS = 5_000
_POINTS = 200
_STEPS_MS = (100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000,
             3_600_000, 7_200_000, 21_600_000, 86_400_000, 604_800_000)
_ELECTIONS_MAX = 100
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


class Copy(NamedTuple):
    """One copy. ``end_id``: its guaranteed mark. ``events``: [] for a backup."""

    path: str
    server: int
    cluster: str
    first_id: int
    last_id: int
    end_id: int
    is_backup: bool
    events: list[ServerEvent]


class _Head(NamedTuple):
    id: int
    kind: int
    time_ms: int
    lsn: int
    payloads: int
    size_bytes: int
    body: bytes


@dataclass
class _Sums:
    """Sums by steps of time from ``began_ms`` on. ``behind``: (step, payloads) by cursor."""

    began_ms: int
    step_ms: int
    payloads: dict[int, int] = field(default_factory=dict)
    bytes: dict[int, int] = field(default_factory=dict)
    behind: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    cursors: dict[str, int] = field(default_factory=dict)

    def sample(self, step: int, next_lsn: int) -> None:
        """Record how far each reader is behind at the end of the step."""
        for name, lsn in self.cursors.items():
            self.behind.setdefault(name, []).append((step + 1, next_lsn - lsn))

    def at(self, step: int) -> datetime:
        """Start of a step."""
        return datetime.fromtimestamp((self.began_ms + step * self.step_ms) / 1000, UTC)


def of_logs(paths: Sequence[str]) -> list[Section]:
    """The sections. Raises UsageProblem that names a file that is no copy, or of another cluster."""
    copies = [_copy(path) for path in paths]
    for copy in copies[1:]:
        if copy.cluster != copies[0].cluster:
            raise UsageProblem(f"--log {copy.path} is of cluster {copy.cluster}, the first of {copies[0].cluster}")
    furthest = max(copies, key=lambda copy: (copy.end_id, -copy.first_id))
    sections = [_elections(copies), _over_time(furthest), _behind(copies)]
    return [section for section in sections if section.parts]


def _copy(path: str) -> Copy:
    try:
        with open_source(Path(path)) as source:
            summary = source.summary()
            if summary.hard is None or summary.base is None:
                raise UsageProblem(f"--log {path} is damaged: {'; '.join(summary.damage)}")
            if not summary.hard.cluster:
                raise UsageProblem(f"--log {path} belongs to no cluster yet")
            with source.snapshot() as db:
                kept = read_events(db, 0, ROWS_MAX)
            id = summary.hard.server_id
            events = [ServerEvent(e.time_ms, id, e.number, e.name, json.loads(e.fields)) for e in kept]
            end_id = max(min(summary.guaranteed_id, summary.end_id), summary.base.id)
            return Copy(
                path, id, summary.hard.cluster.hex(), summary.first_id, summary.end_id, end_id, source.is_backup, events
            )
    except (StoreError, sqlite3.Error, ValueError) as error:
        raise UsageProblem(f"--log {path}: {error}") from error


def _elections(copies: Sequence[Copy]) -> Section:
    section = Section("Elections of this log")
    events = sorted(event for copy in copies for event in copy.events)
    rows, times, waits = [], [], []
    for chapter in story.chapters(events, leaderless=False):
        if chapter.reign is None:
            continue
        gone = story.gap(chapter)
        wait_ms = max(0, chapter.reign.time_ms - gone[0]) if gone is not None else None
        rows.append([
            rfc3339_ms(chapter.reign.time_ms), str(chapter.reign.term), f"server {chapter.reign.leader}",
            f"{wait_ms:,} ms" if wait_ms is not None else "the events do not say", gone[1] if gone is not None else "",
        ])
        if wait_ms is not None:
            times.append(datetime.fromtimestamp(chapter.reign.time_ms / 1000, UTC))
            waits.append(wait_ms)
    if not rows:
        return section
    if len(waits) > 1:
        section.parts.append(lines(
            "Time without a leader, by election", [Series("", times, waits)], "time, UTC", "ms", marks=True,
        ))
    if len(rows) > _ELECTIONS_MAX:
        section.say(f"The last {_ELECTIONS_MAX} of {len(rows):,}:")
    section.table(("won at", "term", "by", "no leader for", "since"), rows[-_ELECTIONS_MAX:], 5)
    return section


def _over_time(copy: Copy) -> Section:
    section = Section("The log over time")
    try:
        with open_source(Path(copy.path)) as source:
            sums = _sums(source, copy)
    except (StoreError, sqlite3.Error, ValueError) as error:
        raise UsageProblem(f"--log {copy.path}: {error}") from error
    if not sums.payloads:
        return section
    steps = range(max(sums.payloads) + 1)
    per_s = 1000 / sums.step_ms
    times = [sums.at(step) for step in (*steps, len(steps))]
    section.say(
        f"From {copy.path}, entries {copy.first_id:,} to {copy.end_id:,}: {sum(sums.payloads.values()):,} payloads,"
        f" {sum(sums.bytes.values()):,} bytes, in steps of {sums.step_ms / 1000:g} s, by the leaders' clocks."
    )
    for title, unit, counts, scale in (
        ("Throughput", "payloads a second", sums.payloads, 1.0), ("Throughput in bytes", "MB/s", sums.bytes, 1e6),
    ):
        rates = [counts.get(step, 0) * per_s / scale for step in steps]
        section.parts.append(lines(title, [Series("", times, [*rates, rates[-1]])], "time, UTC", unit, steps=True))
    if sums.behind:
        section.parts.append(lines("Lag of the readers (cursors)", [
            Series(name, [sums.at(step) for step, _ in found], [behind for _, behind in found])
            for name, found in sorted(sums.behind.items())
        ], "time, UTC", "payloads behind the end"))
    return section


def _sums(source: Source, copy: Copy) -> _Sums:
    if copy.end_id < copy.first_id:
        return _Sums(0, 1)
    first, last = (next(_heads(source, id, id)) for id in (copy.first_id, copy.end_id))
    span_ms = max(1, last.time_ms - first.time_ms)
    step_ms = next((step for step in _STEPS_MS if span_ms / step <= _POINTS), _STEPS_MS[-1])
    return summed(_heads(source, copy.first_id, copy.end_id), first.time_ms, step_ms)


def summed(heads: Iterable[_Head], began_ms: int, step_ms: int) -> _Sums:
    """Sums of the entries, by steps of ``step_ms``."""
    sums = _Sums(began_ms, step_ms)
    now = next_lsn = 0
    for head in heads:
        step = (head.time_ms - began_ms) // step_ms
        if step > now:
            for quiet in sorted({now, step - 1}):  # constant between them
                sums.sample(quiet, head.lsn)
            now = step
        if head.kind == Kind.DATA:
            sums.payloads[step] = sums.payloads.get(step, 0) + head.payloads
            sums.bytes[step] = sums.bytes.get(step, 0) + head.size_bytes
        elif head.kind in (Kind.CURSOR, Kind.TRIM):
            _follow(sums.cursors, head)
        next_lsn = head.lsn + head.payloads
    sums.sample(now, next_lsn)
    return sums


def _follow(cursors: dict[str, int], head: _Head) -> None:
    """Apply an entry to the cursors, like `alpo.core.machine.cursors`."""
    fields = json.loads(head.body)
    if head.kind == Kind.TRIM:
        for name in [name for name, lsn in cursors.items() if lsn < fields["before"]]:
            del cursors[name]
    elif fields["op"] == "set":
        cursors[fields["name"]] = fields["lsn"]
    else:
        cursors.pop(fields["name"], None)


def _heads(source: Source, first_id: int, end_id: int) -> Iterator[_Head]:
    sql = (
        "SELECT id, kind, time_ms, lsn, count, length(body), CASE WHEN kind = 1 THEN x'' ELSE body END FROM log"
        " WHERE id BETWEEN ? AND ? ORDER BY id"
    )
    while first_id <= end_id:
        with source.snapshot() as db:
            page = [_Head(*row) for row in db.execute(sql, (first_id, min(end_id, first_id + _PAGE_ROWS - 1)))]
        if not page:
            raise StoreError(f"entry {first_id} is missing (alpo log verify says what is wrong)")
        yield from page
        first_id = page[-1].id + 1


def _behind(copies: Sequence[Copy]) -> Section:
    section = Section("The copies")
    end_id = max(copy.end_id for copy in copies)
    section.table(("copy", "what", "first entry", "guaranteed up to", "entries behind"), [
        [copy.path, "backup" if copy.is_backup else f"server {copy.server}", f"{copy.first_id:,}", f"{copy.end_id:,}",
         f"{end_id - copy.end_id:,}"] for copy in copies
    ], 2)
    if any(copy.end_id < end_id for copy in copies):
        names = [Path(copy.path).name for copy in copies]
        section.parts.append(
            bars("Lag of the copies", names, [end_id - copy.end_id for copy in copies], "entries")
        )
    return section


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
