"""Maker of pictures: runs a world or a scenario, follows its story, chooses the parts to show, and writes notes."""

from __future__ import annotations

import textwrap
from bisect import bisect_left

from alpo.core.inputs import Space
from alpo.core.messages import Envelope, Room

from ..faults import Faults
from ..host import NEVER_US
from ..options import MS
from ..replay import Replay
from ..scenario import Scenario
from ..stage import Action, Ask, Stage
from ..world import World, run_world
from .layout import Picture, Span
from .story import Enough, Mark, Moment, Story
from .words import cut_words, span

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
