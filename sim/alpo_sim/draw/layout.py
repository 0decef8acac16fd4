"""Where things go: instants to x, in rows as wide as the page; lanes to y.

Laws:

* Later is never further left, so an arrow goes forward in time; a server's labels never overlap.
* Time is neither true to scale nor hidden: short gaps grow with their logarithm, longer ones are broken, with their
  length written on the break.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from math import log2
from typing import NamedTuple

from .lanes import GUARANTEED, STATE, Item, Lane, Stretch, cuts_of, held, lanes_of, state_label
from .story import Flight, Story
from .text import width_px
from .words import span

GUTTER_PX = 78
BAND_PX = 46
BREAK_US = 30_000
_BREAK_PX = 46  # of the torn piece itself
_PAD_PX = 6


class Span(NamedTuple):
    """What is to be shown: instants, both ends included."""

    heading: str
    first: int
    last: int


class Break(NamedTuple):
    """Where time is cut short between two instants, drawn from ``x`` to ``end_x``."""

    x: float
    end_x: float
    first: int
    last: int
    words: str
    heartbeats: str


class Placed(NamedTuple):
    item: Item
    x: float


@dataclass(slots=True)
class Row:
    """One system of lanes. ``points`` and ``xs`` go together; x counts from the row's left edge."""

    heading: str
    first: int
    last: int
    points: list[int] = field(default_factory=list)
    xs: list[float] = field(default_factory=list)
    placed: list[Placed] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    end_x: float = 0.0
    y: float = 0.0
    has_cuts: bool = False


class Picture:
    """A story laid out. ``width``: of the page, px."""

    def __init__(self, story: Story, spans: list[Span], width: float = 1240) -> None:
        self.story, self.width = story, width
        self.lanes: dict[int, Lane] = lanes_of(story)
        self.cuts: list[Stretch] = cuts_of(story)
        self.gap_px = {1: 0, 2: 96, 3: 86, 4: 74, 5: 66}.get(len(self.lanes), 54)
        self.flights = story.flights
        self._plain = [f for f in story.flights if f.plain]
        self._items: dict[int, list[Item]] = {}
        for lane in self.lanes.values():
            for item in lane.items:
                self._items.setdefault(item.instant, []).append(item)
        for cut in self.cuts:
            self._items.setdefault(cut.first, []).append(Item(cut.first, 0, STATE, "cut", cut.words))
        self._points = self._points_of()
        self.rows: list[Row] = []
        for each in spans:
            self._lay_out(each)

    # -- y ----------------------------------------------------------------------------------------------

    def lane_y(self, row: Row, server: int) -> float:
        """Top of the band; for server 0, of the bar that shows cuts."""
        if not server:
            return row.y + 18
        return row.y + 22 + (20 if row.has_cuts else 0) + list(self.lanes).index(server) * (BAND_PX + self.gap_px)

    def row_height(self, row: Row) -> float:
        n = len(self.lanes)
        return 22 + (20 if row.has_cuts else 0) + n * BAND_PX + (n - 1) * self.gap_px + 30

    # -- x ----------------------------------------------------------------------------------------------

    def x(self, row: Row, instant: int) -> float:
        """On the page. Between two points in proportion to time."""
        at = bisect_right(row.points, instant) - 1
        if at < 0:
            return GUTTER_PX
        if row.points[at] == instant or at + 1 == len(row.points):
            return GUTTER_PX + (row.xs[at] if row.points[at] == instant else row.end_x)
        when = self.story.when_us
        low, high = row.points[at], row.points[at + 1]
        whole = when[high] - when[low]
        part = (when[instant] - when[low]) / whole if whole else (instant - low) / (high - low)
        return GUTTER_PX + row.xs[at] + part * (row.xs[at + 1] - row.xs[at])

    def _points_of(self) -> list[int]:
        """The instants that need a place of their own."""
        points = dict.fromkeys(self._items)
        for flight in self.flights:
            if not flight.plain:
                points |= dict.fromkeys((flight.sent, *flight.arrived))
        for lane in self.lanes.values():
            points |= dict.fromkeys(w.last for w in lane.writes)
            points |= dict.fromkeys(p.last for p in lane.pauses)
        for cut in self.cuts:
            points |= dict.fromkeys((cut.first, cut.last))
        # A write that is still under way ends with the story, after its last instant.
        return sorted(at for at in points if at < len(self.story.when_us))

    def _lay_out(self, span: Span) -> None:
        points = self._points[bisect_left(self._points, span.first) : bisect_right(self._points, span.last)]
        done, heading = 0, span.heading
        while done < len(points):
            row = self._row(points[done:], heading)
            done += len(row.points)
            row.last = points[done] if done < len(points) else span.last + 1
            row.has_cuts = any(c.first < row.last and c.last > row.first for c in self.cuts)
            self.rows.append(row)
            heading = ""

    def _row(self, points: list[int], heading: str) -> Row:
        """As many of ``points`` as the page is wide, cut where the fewest messages are under way."""
        limit = self.width - GUTTER_PX - 2 * _PAD_PX
        row = Row(heading, points[0], points[0])
        ends: dict[tuple[int, int], float] = {}
        for item in self._standing(points[0]):
            self._place(row, item, ends.get((item.server, item.line), _PAD_PX - 3) + 3, ends)
        x = float(_PAD_PX)
        widest: list[float] = []
        for point in points:
            x = self._next_x(row, point, x, ends)
            row.points.append(point)
            row.xs.append(x)
            starts: dict[int, float] = {}
            for item in self._items.get(point, ()):
                starts[item.server * 3 + item.line] = self._place(
                    row, item, starts.get(item.server * 3 + item.line, x), ends
                )
            widest.append(max([x + 8, *ends.values()]))
            if widest[-1] > limit:
                break
        keep = len(row.points)
        if widest[-1] > limit and keep > 1:
            keep = self._best_cut(row, points)
        if keep < len(row.points):
            gone = row.points[keep]
            row.points, row.xs = row.points[:keep], row.xs[:keep]
            row.placed = [p for p in row.placed if p.item.instant < gone]
            row.breaks = [b for b in row.breaks if b.x < row.xs[-1]]
        row.end_x = widest[keep - 1] + _PAD_PX
        return row

    def _best_cut(self, row: Row, points: list[int]) -> int:
        last = len(row.points) - 1
        first = max(1, bisect_left(row.xs, 0.72 * (self.width - GUTTER_PX)))
        when = self.story.when_us

        def cost(at: int) -> tuple[int, int, int]:
            return self._under_way(row.points[at]), when[row.points[at - 1]] - when[row.points[at]], -at

        return min(range(min(first, last), last + 1), key=cost)

    def _under_way(self, instant: int) -> int:
        return sum(
            not f.plain and f.sent < instant and any(a >= instant for a in f.arrived) for f in self.flights
        )

    def _next_x(self, row: Row, point: int, x: float, ends: dict[tuple[int, int], float]) -> float:
        items = self._items.get(point, ())
        clear = max((ends.get((i.server, i.line), 0) + 5 for i in items), default=0.0)
        if not row.points:
            return max(x + 4, clear)
        low, when = row.points[-1], self.story.when_us
        gap_us = when[point] - when[low]
        if gap_us <= BREAK_US:
            return max(x + 7 + 19 * log2(1 + gap_us / 1000), clear)
        words, told = span(gap_us), self._left_out(low, point)
        at = max([x + 8, *ends.values()]) + 4
        end = at + max(_BREAK_PX, width_px(words, 10), width_px(told, 9))
        row.breaks.append(Break(GUTTER_PX + at, GUTTER_PX + end, low, point, words, told))
        return max(end + 6, clear)

    def _left_out(self, first: int, last: int) -> str:
        gone = [f for f in self._plain if first < f.sent < last]
        beats = sum(f.said.kind == "heartbeat" for f in gone)
        told = [f"{n} {word}" for n, word in ((beats, "heartbeats"), (len(gone) - beats, "repeats")) if n > 1]
        return ", ".join(told)

    def torn(self, row: Row, flight: Flight) -> bool:
        """Does it begin or end where time is cut short, or after the row's last point?"""
        ends = (flight.sent, *flight.arrived)
        return any(row.points[-1] < at < row.last or any(b.first < at < b.last for b in row.breaks) for at in ends)

    def _place(self, row: Row, item: Item, x: float, ends: dict[tuple[int, int], float]) -> float:
        row.placed.append(Placed(item, GUTTER_PX + x))
        ends[item.server, item.line] = x + item.width
        return x + item.width + 4

    def _standing(self, instant: int) -> list[Item]:
        """What a row must say at its beginning, for it may be read alone."""
        found = [Item(-1, 0, STATE, "cut", c.words) for c in self.cuts if c.first < instant < c.last]
        for lane in self.lanes.values():
            view = lane.view_before(instant)
            found.append(Item(-1, lane.server, STATE, "state", state_label(None, view)))
            found += held(-1, lane.server, view)
            if view.guaranteed_id:
                found.append(Item(-1, lane.server, GUARANTEED, "guaranteed", str(view.guaranteed_id)))
        return found

    def seen(self, row: Row, flight: Flight) -> bool:
        """Is anything of it in this row?"""
        return flight.sent < row.last and max([flight.sent, *flight.arrived]) >= row.first
