"""A story as it stands on lanes: bands of state and term, labels at instants, writes under way, pauses.

A lane has three lines: state and what befalls the server, entries by their ids, the guaranteed mark.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from .story import Mark, Moment, Story, View
from .text import width_px
from .words import ids

STATE, IDS, GUARANTEED = range(3)
UNFINISHED = "unfinished"
_RUNS_MOST = 3


class Item(NamedTuple):
    """A label in a lane; of a cut, above them all, if ``server`` is 0.

    ``style``: state, befell, took, held, expunged, guaranteed or cut; ``term`` colours entries.
    """

    instant: int
    server: int
    line: int
    style: str
    text: str
    term: int = 0

    @property
    def width(self) -> float:
        extra = {"took": 6, "held": 6, "expunged": 16, "guaranteed": 13}.get(self.style, 6)
        return width_px(self.text, 11, bold=self.style in ("state", "befell", "cut")) + extra


class Band(NamedTuple):
    """A server as it is from one instant to another. ``started``: it has had its first start (R29)."""

    first: int
    last: int
    state: str
    term: int
    started: bool


class Stretch(NamedTuple):
    """From one instant to another: a write under way (`UNFINISHED`: never on disk as far as is shown), or a mark."""

    first: int
    last: int
    words: str = ""


@dataclass(slots=True)
class Lane:
    server: int
    bands: list[Band] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    writes: list[Stretch] = field(default_factory=list)
    pauses: list[Stretch] = field(default_factory=list)
    _instants: list[int] = field(default_factory=list)
    _views: list[View] = field(default_factory=list)

    def view_before(self, instant: int) -> View:
        return self._views[bisect_right(self._instants, instant - 1) - 1]


def status_words(view: View) -> str:
    """What a reader should know of a server beyond term and state."""
    if view.state == "down":
        return "down"
    if view.status in ("EMPTY", "STARTING"):
        return view.status.lower()
    rest = "" if view.status == "VOTING" else f" ({view.status.lower()})"
    return f"{view.state}{rest}"


def state_label(old: View | None, new: View) -> str:
    """What is different, or everything if ``old`` is None; "" if nothing is."""
    before = status_words(old) if old is not None and old.state != "down" else ""
    now, started = status_words(new), new.state != "down" and new.status not in ("EMPTY", "STARTING")
    parts = [now] if now != before else []
    if started and (old is None or new.term != old.term or not before):
        parts.append(f"term {new.term}")
    return " · ".join(parts)


def held(instant: int, server: int, view: View) -> list[Item]:
    """The whole log as labels: its last runs of one term each, and all before them as one."""
    if not view.last_id:
        return []
    firsts = [1, *(first for _, first in view.runs[-_RUNS_MOST:][1:])]
    lasts = [*(first - 1 for first in firsts[1:]), view.last_id]
    terms = [term for term, _ in view.runs[-_RUNS_MOST:]]
    return [
        Item(instant, server, IDS, "held", ids(first, last), term)
        for first, last, term in zip(firsts, lasts, terms, strict=True)
    ]


def lanes_of(story: Story) -> dict[int, Lane]:
    lanes = {id: _Builder(story, id) for id in story.servers}
    for moment in story.moments:
        lanes[moment.server].add(moment)
    for mark in story.marks:
        if mark.server:
            lanes[mark.server].mark(mark)
    return {id: builder.done() for id, builder in lanes.items()}


def cuts_of(story: Story) -> list[Stretch]:
    return [
        Stretch(story.instant_at(m.from_us), story.instant_at(m.until_us), m.words) for m in story.marks if not m.server
    ]


class _Builder:
    def __init__(self, story: Story, server: int) -> None:
        self._story, self._server = story, server
        self._lane = Lane(server)
        view = story.views_before[server]
        self._lane._instants, self._lane._views = [-1], [view]
        self._band = self._band_of(-1, view)
        self._writing: list[tuple[int, int]] = []  # (first instant, last id)

    def _band_of(self, instant: int, view: View) -> Band:
        started = view.status not in ("", "EMPTY", "STARTING")
        return Band(instant, instant, view.state, view.term if started or view.state == "down" else 0, started)

    def add(self, moment: Moment) -> None:
        lane, view = self._lane, moment.view
        lane._instants.append(moment.instant)
        lane._views.append(view)
        band = self._band_of(moment.instant, view)
        if band[2:] != self._band[2:]:
            lane.bands.append(self._band._replace(last=moment.instant))
            self._band = band
        self._labels(moment)
        self._write(moment)

    def _item(self, moment: Moment, line: int, style: str, text: str, term: int = 0) -> None:
        if text:
            self._lane.items.append(Item(moment.instant, self._server, line, style, text, term))

    def _labels(self, moment: Moment) -> None:
        old, new = moment.before, moment.view
        self._item(moment, STATE, "befell", moment.label)
        if new.state != "down":
            self._item(moment, STATE, "state", state_label(None if old.state == "down" else old, new))
        if moment.expunged is not None:
            self._item(moment, IDS, "expunged", ids(*moment.expunged))
        for first, last, term in moment.took:
            self._item(moment, IDS, "took", ids(first, last), term)
        if moment.name == "boot":
            self._lane.items += held(moment.instant, self._server, new)
        if new.state != "down" and new.guaranteed_id and (
            new.guaranteed_id != old.guaranteed_id or moment.name == "boot"
        ):
            self._item(moment, GUARANTEED, "guaranteed", str(new.guaranteed_id))

    def _write(self, moment: Moment) -> None:
        if moment.took:
            self._writing.append((moment.instant, moment.took[-1][1]))
        if moment.view.state == "down":
            self._unfinished(moment.instant)
        elif moment.name == "disk":
            done = [each for each in self._writing if each[1] <= moment.view.disk_id]
            self._writing = [each for each in self._writing if each[1] > moment.view.disk_id]
            self._lane.writes += [Stretch(first, moment.instant) for first, _ in done]

    def _unfinished(self, instant: int) -> None:
        self._lane.writes += [Stretch(first, instant, UNFINISHED) for first, _ in self._writing]
        self._writing.clear()

    def mark(self, mark: Mark) -> None:
        first, last = self._story.instant_at(mark.from_us), self._story.instant_at(mark.until_us)
        self._lane.items.append(Item(first, self._server, STATE, "befell", mark.words))
        if mark.name == "pause":
            self._lane.pauses.append(Stretch(first, last))

    def done(self) -> Lane:
        self._unfinished(len(self._story.when_us))
        self._lane.bands.append(self._band._replace(last=len(self._story.when_us)))
        self._lane.items.sort(key=lambda item: item.instant)
        return self._lane
