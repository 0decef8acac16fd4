"""Operators who ask for what cannot be are refused, with the right words, and every check holds meanwhile."""

from __future__ import annotations

import pytest

from alpo.core import operator_requests
from alpo_sim.mutations import operators
from alpo_sim.mutations.operators import MISTAKES, Mistaken
from alpo_sim.world import run_world

#: Instead of a thousand, which take long.
CURSORS_MAX = 50
TOLD = {
    "what cannot be": {
        "a stranger goes": "CANNOT_CHANGE", "two at one address": "CANNOT_CHANGE", "no serial": "INVALID",
        "no such setting": "INVALID", "a setting too large": "INVALID", "fewer names than open": "INVALID",
        "a cursor without a name": "INVALID", "a cursor that is no text": "INVALID",
        f"cursor {CURSORS_MAX - 1}": "CursorIs", f"cursor {CURSORS_MAX}": "TOO_MANY_CURSORS",
    },
    "a server alone": {"the last one goes": "CANNOT_CHANGE"},
    "started wrongly": {"to join and to found": "CANNOT_INIT"},
    "of two minds": {"a handover broken off": "CANNOT_CHANGE", "settings of one who leaves": "NOT_LEADER"},
    "handed over to nobody": {"a handover in vain": "CANNOT_CHANGE"},
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_do_no_harm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (operator_requests, operators):
        monkeypatch.setattr(module, "CURSORS_MAX", CURSORS_MAX)
    options, makes = MISTAKES[name]
    world = makes(options(1))
    verdict = run_world(world)
    assert verdict.ok, verdict.detail
    assert verdict.entries > 0  # there was a cluster
    if name in TOLD:
        assert isinstance(world, Mistaken)
        assert {what: world.asker.told.get(what) for what in TOLD[name]} == TOLD[name]
