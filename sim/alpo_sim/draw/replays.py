"""The story of a scenario, by replaying it."""

from __future__ import annotations

from ..replay import Replay
from ..scenario import Scenario
from ..stage import Stage
from .story import Story


def tell_scenario(scenario: Scenario) -> Story:
    """All of it; of a founded cluster what comes after its first start."""
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
    return story
