"""From a seed or a scenario to a picture with its notes."""

from __future__ import annotations

import textwrap

from ..host import NEVER_US
from ..options import MS
from ..scenario import Scenario
from ..world import World
from . import window
from .layout import Picture
from .replays import tell_scenario
from .story import Story
from .words import span
from .worlds import tell

_LINE_CHARACTERS = 165
_NOTES_MAX = 8


def of_world(world: World, from_ms: float | None = None, to_ms: float | None = None) -> tuple[Picture, list[str]]:
    """What `window` chooses, or what happens between ``from_ms`` and ``to_ms`` (None: the beginning, the end)."""
    options = world.options
    if from_ms is None and to_ms is None:
        story = tell(world)
        spans = window.chosen(story)
    else:
        from_us, until_us = int((from_ms or 0) * MS), NEVER_US if to_ms is None else int(to_ms * MS)
        story = tell(world, from_us, until_us)
        spans = window.between(story, from_us, until_us)
    low, high = options.network.delay_us
    notes = [
        f"{options.servers} server{'s' * (options.servers > 1)}, election timeout {span(options.election_timeout_us)}, "
        f"heartbeat {span(options.election_timeout_us / 5)}; messages take {low / MS:g} to {high / MS:g} ms, "
        f"{options.network.loss:.1%} are lost, {options.network.duplication:.1%} come twice"
    ]
    return Picture(story, spans), notes + _failure(story)


def of_scenario(scenario: Scenario) -> tuple[Picture, list[str]]:
    """All of it. The mutation that it names must be in force."""
    story = tell_scenario(scenario)
    notes = [line for note in scenario.notes for line in textwrap.wrap(note, _LINE_CHARACTERS)]
    if scenario.mutation:
        notes.append(f"With the mutation {scenario.mutation}.")
    return Picture(story, window.given(story)), notes[:_NOTES_MAX] + _failure(story)


def _failure(story: Story) -> list[str]:
    return textwrap.wrap(f"BROKEN: {': '.join(story.failure)}", _LINE_CHARACTERS)[:3] if story.failure else []
