"""Layout of the picture: servers are columns, time runs down.

Laws:

* A later instant is never higher, so that arrows go forward in time; labels of a server never overlap.
* Time is not to scale: a short gap is as high as the logarithm of its length, a longer one is left out, and its length
  is written beside.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import log2
from typing import NamedTuple

from .story import Flight, Moment, Story, View
from .words import ids, span

GUTTER_PX = 84
LINE_PX = 15
TEAR_PX = 34
TEAR_US = 30_000
_RUNS_MOST = 3
#: Number of servers -> the width of a lane and of the gap between two lanes, px.
_WIDTHS = {1: (420, 0), 2: (330, 330), 3: (190, 255), 4: (180, 150), 5: (165, 110)}

_NARROW = dict.fromkeys(".,:;|!il'()· ", 0.36) | dict.fromkeys("fjrtI-–[]/", 0.45)
_LETTERS = _NARROW | dict.fromkeys("mwMW→×", 0.98)


def width_px(text: str, size: float, *, bold: bool = False) -> float:
    """The width of ``text`` in DejaVu Sans or Verdana, px: estimated without a font, and rather too wide."""
    return sum(_LETTERS.get(c, 0.64) for c in text) * size * (1.12 if bold else 1.0)


class Item(NamedTuple):
    """Label in a lane. ``style``: state, befell or guaranteed, at the left; or took, held or expunged, for entries, at
    the right. ``term`` gives entries their colour.
    """

    instant: int
    style: str
    text: str
    term: int = 0

    @property
    def is_entry(self) -> bool:
        return self.style in ("took", "held", "expunged")

    @property
    def width_px(self) -> float:
        extra = {"expunged": 16, "guaranteed": 15}.get(self.style, 8)
        return width_px(self.text, 11, bold=self.style in ("state", "befell")) + extra


class Stretch(NamedTuple):
    """Time from one instant to another: of a pause, a cut or a write. ``done`` False: the write does not end in it."""

    first: int
    last: int
    words: str = ""
    done: bool = True


class Band(NamedTuple):
    """Time from one instant to another in which a server has one state and term. ``term``: 0 before its first start."""

    first: int
    last: int
    state: str
    term: int


class Span(NamedTuple):
    """Part of the story to be shown: from instant ``first`` to ``last``, both included."""

    heading: str
    first: int
    last: int


class Tear(NamedTuple):
    """Gap between two instants that is left out, drawn from ``y`` on. ``words``: its length and what is left out."""

    y: float
    first: int
    last: int
    words: list[str]


class Placed(NamedTuple):
    item: Item
    x: float
    y: float


@dataclass(slots=True)
class Section:
    """Part of the picture, from instant ``first`` to before ``last``. Instant ``points[i]`` is at height ``ys[i]``."""

    heading: str
    first: int
    last: int
    top: float
    bottom: float = 0.0
    points: list[int] = field(default_factory=list)
    ys: list[float] = field(default_factory=list)
    placed: list[Placed] = field(default_factory=list)
    tears: list[Tear] = field(default_factory=list)

    def holds(self, stretch: Stretch | Band) -> bool:
        """True if any part of the stretch or band is in this section."""
        return stretch.first < self.last and stretch.last >= self.first


class Lane:
    """A server's column: its bands, labels, writes under way and pauses."""

    def __init__(self, story: Story, server: int) -> None:
        moments = [m for m in story.moments if m.server == server]
        end = len(story.when_us)
        self._instants = [-1, *(m.instant for m in moments)]
        self._views = [story.views_before[server], *(m.view for m in moments)]
        self.bands = list(_bands(self._instants, self._views, end))
        self.items = [item for m in moments for item in _items(m)]
        self.writes = list(_writes(moments, end))
        self.pauses: list[Stretch] = []
        for mark in story.marks:
            if mark.server == server:
                first = story.instant_at(mark.from_us)
                self.items.append(Item(first, "befell", mark.words))
                if mark.name == "pause":
                    self.pauses.append(Stretch(first, story.instant_at(mark.until_us)))

    def view_before(self, instant: int) -> View:
        return self._views[bisect_right(self._instants, instant - 1) - 1]

    def standing(self, instant: int) -> Iterator[Item]:
        """Labels of the whole state of the server at the top of a section that begins at ``instant``."""
        view = self.view_before(instant)
        yield Item(instant, "state", _state_label(None, view))
        yield from _held(instant, view)
        if view.guaranteed_id:
            yield Item(instant, "guaranteed", str(view.guaranteed_id))


def _bands(instants: list[int], views: list[View], end: int) -> Iterator[Band]:
    looks = [(v.state, v.term if v.state == "down" or _started(v) else 0) for v in views]
    changes = [0, *(at for at in range(1, len(looks)) if looks[at] != looks[at - 1])]
    for at, following in zip(changes, [*changes[1:], None], strict=True):
        yield Band(instants[at], end if following is None else instants[following], *looks[at])


def _started(view: View) -> bool:
    return view.status not in ("", "EMPTY", "STARTING")


def _items(moment: Moment) -> Iterator[Item]:
    at, old, new = moment.instant, moment.before, moment.view
    if moment.label:
        yield Item(at, "befell", moment.label)
    if new.state != "down" and (label := _state_label(None if old.state == "down" else old, new)):
        yield Item(at, "state", label)
    if moment.expunged is not None:
        yield Item(at, "expunged", ids(*moment.expunged))
    for first, last, term in moment.took:
        yield Item(at, "took", ids(first, last), term)
    if moment.name == "boot":
        yield from _held(at, new)
    if new.state != "down" and new.guaranteed_id and (new.guaranteed_id != old.guaranteed_id or moment.name == "boot"):
        yield Item(at, "guaranteed", str(new.guaranteed_id))


def _state_label(old: View | None, new: View) -> str:
    """Text of the changes of state and term from ``old`` to ``new``; of both if ``old`` is None; "" without changes."""
    before = _status(old) if old is not None and old.state != "down" else ""
    now = _status(new)
    parts = [now] if now != before else []
    if new.state != "down" and _started(new) and (old is None or new.term != old.term or not before):
        parts.append(f"term {new.term}")
    return " · ".join(parts)


def _status(view: View) -> str:
    if view.state == "down":
        return "down"
    if not _started(view):
        return view.status.lower()
    return view.state + ("" if view.status == "VOTING" else f" ({view.status.lower()})")


def _held(instant: int, view: View) -> Iterator[Item]:
    """The whole log as labels: its last runs of one term each, and all before them as one."""
    runs = view.runs[-_RUNS_MOST:] if view.last_id else ()
    firsts = [1, *(first for _, first in runs[1:])]
    for (term, _), first, following in zip(runs, firsts, [*firsts[1:], view.last_id + 1], strict=False):
        yield Item(instant, "held", ids(first, following - 1), term)


def _writes(moments: list[Moment], end: int) -> Iterator[Stretch]:
    under_way: list[tuple[int, int]] = []  # (first instant, last id)
    for moment in moments:
        if moment.took:
            under_way.append((moment.instant, moment.took[-1][1]))
        down = moment.view.state == "down"
        if down or moment.name == "disk":
            over = [each for each in under_way if down or each[1] <= moment.view.disk_id]
            yield from (Stretch(first, moment.instant, done=not down) for first, _ in over)
            under_way = [each for each in under_way if each not in over]
    yield from (Stretch(first, end, done=False) for first, _ in under_way)


class Picture:
    """Story laid out: ``sections`` one below the other, ``height`` px in all, every lane at its `lane_x`."""

    def __init__(self, story: Story, spans: list[Span]) -> None:
        self.story, self.flights = story, story.flights
        self.lanes = {id: Lane(story, id) for id in story.servers}
        self.lane_px, self.gap_px = _WIDTHS.get(len(self.lanes), (135, 84))
        self.right = GUTTER_PX + len(self.lanes) * (self.lane_px + self.gap_px) - self.gap_px
        self.cuts = [
            Stretch(story.instant_at(m.from_us), story.instant_at(m.until_us), m.words)
            for m in story.marks if not m.server
        ]
        beside = max((40 + width_px(c.words, 11, bold=True) for c in self.cuts), default=14)
        self.width = max(1220.0, self.right + beside)
        self._items: dict[int, dict[int, list[Item]]] = {}  # instant -> server -> labels
        for id, lane in self.lanes.items():
            for item in lane.items:
                self._items.setdefault(item.instant, {}).setdefault(id, []).append(item)
        self._points = self._points_of()
        self.height = 0.0
        self.sections = [section for each in spans if (section := self._section(each)) is not None]

    def lane_x(self, server: int) -> float:
        """The left edge of a server's lane."""
        return GUTTER_PX + list(self.lanes).index(server) * (self.lane_px + self.gap_px)

    def y(self, section: Section, instant: int) -> float:
        """The height of an instant, px: at the section's edge if outside, between two points in proportion to time."""
        at = bisect_right(section.points, instant) - 1
        if at < 0 or instant < section.first:
            return section.top
        if section.points[at] == instant:
            return section.ys[at]
        if instant >= section.last or at + 1 == len(section.points):
            return section.bottom
        when, low, high = self.story.when_us, section.points[at], section.points[at + 1]
        whole = when[high] - when[low]
        part = (when[instant] - when[low]) / whole if whole else (instant - low) / (high - low)
        return section.ys[at] + part * (section.ys[at + 1] - section.ys[at])

    def shown(self, section: Section, flight: Flight) -> bool:
        """True if a part of a message is drawn in a section. Plain ones that begin or end in a left-out gap are not."""
        if flight.source not in self.lanes or flight.target not in self.lanes:
            return False
        ends = (flight.sent, *flight.arrived)
        if not (min(ends) < section.last and max(ends) >= section.first):
            return False
        torn = any(
            section.points[-1] < at < section.last or any(t.first < at < t.last for t in section.tears) for at in ends
        )
        return not (flight.plain and torn)

    def _points_of(self) -> list[int]:
        """The instants that need a height of their own."""
        points = dict.fromkeys(self._items)
        for flight in self.flights:
            if not flight.plain:
                points |= dict.fromkeys((flight.sent, *flight.arrived))
        for lane in self.lanes.values():
            points |= dict.fromkeys(each.last for each in (*lane.writes, *lane.pauses))
        for cut in self.cuts:
            points |= dict.fromkeys((cut.first, cut.last))
        # A write that is still under way ends with the story, after its last instant.
        return sorted(at for at in points if at < len(self.story.when_us))

    def _section(self, span: Span) -> Section | None:
        points = self._points[bisect_left(self._points, span.first) : bisect_right(self._points, span.last)]
        if not points:
            return None
        top = self.height + (46 if span.heading else 26)
        section = Section(span.heading, points[0], span.last + 1, top)
        free = {id: self._place(section, id, list(lane.standing(points[0])), top) for id, lane in self.lanes.items()}
        y = max(free.values()) - 6
        for point in points:
            items = self._items.get(point, {})
            y = max(self._next_y(section, point, y, max(free.values())), *(free[id] for id in items), y)
            section.points.append(point)
            section.ys.append(y)
            for id, each in items.items():
                free[id] = self._place(section, id, each, y)
        section.bottom = max(y + 10, *free.values())
        self.height = section.bottom + 24
        return section

    def _next_y(self, section: Section, point: int, y: float, clear: float) -> float:
        """The height of ``point``, after the one at ``y``; a left-out gap goes below ``clear``, where all is free."""
        if not section.points:
            return y + 4
        low, when = section.points[-1], self.story.when_us
        gap_us = when[point] - when[low]
        if gap_us <= TEAR_US:
            return y + 6 + 10 * log2(1 + gap_us / 1000)
        gone = [f for f in self.flights if f.plain and low < f.sent < point]
        beats = sum(f.said.kind == "heartbeat" for f in gone)
        told = [f"{n} {words}" for n, words in ((beats, "heartbeats"), (len(gone) - beats, "repeats")) if n > 1]
        at = max(y + 8, clear) + 4
        section.tears.append(Tear(at, low, point, [span(gap_us), *told]))
        return at + TEAR_PX + 6

    def _place(self, section: Section, server: int, items: list[Item], y: float) -> float:
        """Put labels into a lane from ``y`` on, in as many lines as they need. Returns the height for the next ones."""
        left = self.lane_x(server) + 5
        right = left + self.lane_px - 10
        x, line = left, 0
        for item in (i for i in items if not i.is_entry):
            if x > left and x + item.width_px > right:
                x, line = left, line + 1
            section.placed.append(Placed(item, x, y + line * LINE_PX))
            x += item.width_px
        entries = [i for i in items if i.is_entry]
        width = sum(i.width_px + 3 for i in entries)
        if entries and x > left and x + width > right:
            line += 1
        x = max(left, right - width)
        for item in entries:
            section.placed.append(Placed(item, x, y + line * LINE_PX))
            x += item.width_px + 3
        return y + (line + 1) * LINE_PX if items else y
