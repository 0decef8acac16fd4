"""Layout of the picture: servers are columns, time runs down.

Laws:

* A later instant is never higher, so that arrows go forward in time; labels of a server never overlap.
* Time is not to scale: a short gap is as high as the logarithm of its length, a longer one is left out, and its length
  is written beside.

`of_world` and `of_scenario` run what is to be drawn, follow its story, choose the parts to show, and write notes.
"""

from __future__ import annotations

import textwrap
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import log2
from typing import NamedTuple

from alpo.core.messages import Envelope, Room
from alpo.core.ready import Space

from ..faults import Faults
from ..host import NEVER_US
from ..options import MS
from ..replay import Replay
from ..scenario import Scenario
from ..stage import Action, Ask, Stage
from ..world import World, run_world
from .story import Enough, Flight, Mark, Moment, Story, View, cut_words, ids, span

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


_LINE_CHARACTERS = 165
_NOTES_MAX = 8
#: Bounds of a chosen part: most visible moments; moments after its cause, if no pause comes; shortest pause at which
#: it may end.
_MOST = 110
_AFTER = 14
_PAUSE_US = 12_000
_CUTS = ("cut", "one_way", "star", "chain", "bridge", "isolate")


def of_world(world: World, from_ms: float | None = None, to_ms: float | None = None) -> tuple[Picture, list[str]]:
    """Run ``world`` and draw the time between ``from_ms`` and ``to_ms`` (None: the beginning, the end).

    Without both, draw its failure, or the first election and the first crash of a leader. Also returns lines of notes.
    """
    options = world.options
    chosen = from_ms is None and to_ms is None
    from_us, until_us = int((from_ms or 0) * MS), NEVER_US if to_ms is None else int(to_ms * MS)
    story = _told(world, from_us, until_us)
    spans = _chosen(story) if chosen else [
        Span("", bisect_left(story.when_us, from_us), bisect_left(story.when_us, until_us + 1) - 1)
    ]
    low, high = options.network.delay_us
    notes = [
        f"{options.servers} server{'s' * (options.servers > 1)}, election timeout {span(options.election_timeout_us)}, "
        f"heartbeat {span(options.election_timeout_us / 5)}; messages take {low / MS:g} to {high / MS:g} ms, "
        f"{options.network.loss:.1%} are lost, {options.network.duplication:.1%} come twice"
    ]
    return Picture(story, spans), notes + _failure(story)


def of_scenario(scenario: Scenario) -> tuple[Picture, list[str]]:
    """Replay a scenario and draw all of it, with lines of notes. The mutation that it names must be in force.

    Of a founded cluster only the time after its first start is drawn.
    """
    stories: list[Story] = []

    def make(stage: Stage) -> Story:
        stories.append(Story(stage))
        return stories[0]

    def on_line(at: int) -> None:
        if at == 0 and scenario.founded:
            stories[0].begin_anew()

    outcome = Replay(scenario, watchers=[make], on_line=on_line).run()
    story = stories[0]
    if outcome.invariant or outcome.problem:
        story.failure = (outcome.invariant or "impossible", outcome.detail or outcome.problem)
    story.finish()
    notes = [line for note in scenario.notes for line in textwrap.wrap(note, _LINE_CHARACTERS)]
    if scenario.mutation:
        notes.append(f"With the mutation {scenario.mutation}.")
    return Picture(story, [Span("", 0, len(story.when_us))]), notes[:_NOTES_MAX] + _failure(story)


def _failure(story: Story) -> list[str]:
    return textwrap.wrap(f"BROKEN: {': '.join(story.failure)}", _LINE_CHARACTERS)[:3] if story.failure else []


class WorldStory(Story):
    """Story of a world, with its cuts, pauses and stalls, which no stage knows."""

    def __init__(self, world: World, from_us: int = 0, until_us: int = NEVER_US) -> None:
        super().__init__(world.stage, from_us, until_us)
        self.world = world
        self._cut = world.links.cut
        self._cut_since_us = 0
        self._faults: Faults = world.faults
        self._seen = 0

    def performed(self, action: Action) -> None:
        self._look(action.at_us)
        super().performed(action)

    def _look(self, now_us: int) -> None:
        """Note the faults since the last look."""
        news = self._faults.log[self._seen :]
        self._seen += len(news)
        world = self.world
        for at_us, name, id in news:
            for fault, until, words in (
                ("pause", world.paused_until, "paused"), ("stall", world.stalled_until, "disk stalls"),
            ):
                if name == fault and until[id] > at_us:
                    self.marks.append(Mark(name, id, at_us, until[id], f"{words} {span(until[id] - at_us)}"))
        if world.links.cut is not self._cut:
            cut_us = next((at_us for at_us, name, _ in reversed(news) if name in _CUTS), now_us)
            self._end_cut(cut_us)
            self._cut, self._cut_since_us = world.links.cut, cut_us

    def _end_cut(self, at_us: int) -> None:
        if self._cut:
            self.marks.append(Mark("cut", 0, self._cut_since_us, at_us, cut_words(self._cut, self.servers)))

    def _describe(self, moment: Moment, action: Action) -> None:
        super()._describe(moment, action)
        if isinstance(action, Ask) and isinstance(action.request, Space):
            low = action.request.room is not Room.PLENTY
            moment.label = "disk full" if low else "room"

    def finish_world(self) -> None:
        """End the story. Messages that are scheduled to arrive count as still on their way."""
        self._look(self.stage.now_us)
        self._end_cut(min(self.stage.now_us, self.until_us))
        scheduled = [args[0] for args in self.world.scheduled() if args]
        self.finish([each for each in scheduled if isinstance(each, Envelope)])


def _told(world: World, from_us: int, until_us: int) -> WorldStory:
    """Run ``world`` until ``until_us``, or to its end, or to the first check that fails."""
    story = WorldStory(world, from_us, until_us)
    world.stage.watchers.append(story)
    try:
        verdict = run_world(world)
        story.failure = None if verdict.ok else (verdict.invariant, verdict.detail)
    except Enough:
        pass
    story.finish_world()
    return story


def _chosen(story: Story) -> list[Span]:
    """Choose the failure if there is one; else the first election, and the first crash of a leader and its effects."""
    loud = [m for m in story.moments if m.seen]
    if story.failure is not None:
        return [Span("The failure", loud[-_MOST].instant if len(loud) > _MOST else 0, len(story.when_us))]
    spans = [s for s in (_first_election(loud), _leader_crash(loud)) if s is not None]
    if len(spans) == 2 and spans[1].first <= spans[0].last:
        return [Span("The first election, and the first crash of a leader", spans[0].first, spans[1].last)]
    return spans or [Span("The beginning", 0, loud[min(_MOST, len(loud) - 1)].instant if loud else 0)]


def _leads(moment: Moment) -> bool:
    return moment.view.state == "leader" and moment.before.state != "leader"


def _settled(loud: list[Moment], at: int) -> int:
    """Find the index, soon after the next reign from ``loud[at]`` on has an entry of its own term guaranteed."""
    won = next((i for i in range(at, len(loud)) if _leads(loud[i])), len(loud) - 1)
    first_id, leader = loud[won].view.last_id, loud[won].server
    done = next(
        (i for i in range(won, len(loud)) if loud[i].server == leader and loud[i].view.guaranteed_id >= first_id), won
    )
    return min(_pause(loud, done), at + _MOST, len(loud) - 1)


def _pause(loud: list[Moment], done: int) -> int:
    """Find a place to stop soon after ``done``, where nothing happens for a while."""
    for at in range(done + 3, min(done + 3 * _AFTER, len(loud) - 1)):
        if loud[at + 1].at_us - loud[at].at_us > _PAUSE_US:
            return at
    return done + _AFTER


def _first_election(loud: list[Moment]) -> Span | None:
    won = next((i for i, m in enumerate(loud) if _leads(m)), None)
    if won is None:
        return None
    canvassed = next((i for i, m in enumerate(loud) if any(f.said.kind == "canvass" for f in m.sent)), won)
    first = max(canvassed, won - _MOST // 2) - 1
    return Span("The first election", loud[max(first, 0)].instant, loud[_settled(loud, won)].instant)


def _leader_crash(loud: list[Moment]) -> Span | None:
    crash = next((i for i, m in enumerate(loud) if m.name == "crash" and m.before.state == "leader"), None)
    if crash is None:
        return None
    return Span(
        "The first crash of a leader", loud[max(0, crash - _AFTER)].instant, loud[_settled(loud, crash)].instant
    )
