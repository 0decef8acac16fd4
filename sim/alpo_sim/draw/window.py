"""What of a long run is worth a picture."""

from __future__ import annotations

from bisect import bisect_left

from .layout import Span
from .story import Moment, Story

#: Moments that matter, shown at most around one thing.
_MOST = 110
_AFTER = 14
_PAUSE_US = 12_000


def given(story: Story) -> list[Span]:
    """All that was kept."""
    return [Span("", 0, len(story.when_us))]


def chosen(story: Story) -> list[Span]:
    """The failure if there is one; else the first election, and the first crash of a leader with what follows."""
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
    """From ``loud[at]`` on: where the next reign has something of its own term guaranteed, and a bit."""
    won = next((i for i in range(at, len(loud)) if _leads(loud[i])), len(loud) - 1)
    first_id, leader = loud[won].view.last_id, loud[won].server
    done = next(
        (i for i in range(won, len(loud)) if loud[i].server == leader and loud[i].view.guaranteed_id >= first_id), won
    )
    return min(_pause(loud, done), at + _MOST, len(loud) - 1)


def _pause(loud: list[Moment], done: int) -> int:
    """A good place to stop after ``done``: where nothing happens for a while."""
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


def between(story: Story, from_us: int, until_us: int) -> list[Span]:
    return [Span("", bisect_left(story.when_us, from_us), bisect_left(story.when_us, until_us + 1) - 1)]
