"""The story of a `World`: its cuts, pauses and stalls too, which no stage knows of."""

from __future__ import annotations

from alpo.core.inputs import Space
from alpo.core.messages import Envelope, Room

from ..actions import Action, Ask
from ..faults import Faults
from ..host import NEVER_US
from ..verdict import run_world
from ..world import World
from .story import Enough, Mark, Moment, Story
from .words import cut_words, span

_CUTS = ("cut", "one_way", "star", "chain", "bridge", "isolate")


class WorldStory(Story):
    """Looks at the world's faults and links as every action begins."""

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
        log = self._faults.log
        news = log[self._seen :]
        self._seen = len(log)
        for at_us, name, id in news:
            if name == "pause" and self.world.paused_until[id] > at_us:
                until_us = self.world.paused_until[id]
                self.marks.append(Mark("pause", id, at_us, until_us, f"paused {span(until_us - at_us)}"))
            elif name == "stall" and self.world.stalled_until[id] > at_us:
                until_us = self.world.stalled_until[id]
                self.marks.append(Mark("stall", id, at_us, until_us, f"disk stalls {span(until_us - at_us)}"))
        if self.world.links.cut is not self._cut:
            cut_us = next((at_us for at_us, name, _ in reversed(news) if name in _CUTS), now_us)
            self._end_cut(cut_us)
            self._cut, self._cut_since_us = self.world.links.cut, cut_us

    def _end_cut(self, at_us: int) -> None:
        if self._cut:
            words = cut_words(self._cut, self.servers)
            self.marks.append(Mark("cut", 0, self._cut_since_us, at_us, words))

    def _describe(self, moment: Moment, action: Action) -> None:
        super()._describe(moment, action)
        if isinstance(action, Ask) and isinstance(action.request, Space):
            low = action.request.room is not Room.PLENTY
            moment.label, moment.words = ("disk full", ["finds its disk low"]) if low else ("room", ["has room again"])

    def finish_world(self) -> None:
        """Also tells what was lost from what was still on its way."""
        self._look(self.stage.now_us)
        self._end_cut(min(self.stage.now_us, self.until_us))
        scheduled = [args[0] for _, _, _, args in self.world._heap if args]
        self.finish([each for each in scheduled if isinstance(each, Envelope)])


def tell(world: World, from_us: int = 0, until_us: int = NEVER_US) -> WorldStory:
    """Run ``world`` until then, or to its end, or to the first check that fails."""
    story = WorldStory(world, from_us, until_us)
    world.stage.watchers.append(story)
    try:
        verdict = run_world(world)
        story.failure = None if verdict.ok else (verdict.invariant, verdict.detail)
    except Enough:
        pass
    story.finish_world()
    return story
