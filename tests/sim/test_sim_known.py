"""Inputs that change nothing but times: what they do without a step is what the step would do."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest

from alpo.core.ready import Input, Ready, Received
from alpo.core.replica import Replica
from alpo_sim.options import Options
from alpo_sim.world import World, run_world


def state(it: Any, seen: set[int]) -> Any:
    """Contents of an object, for comparisons; what was met before is left out."""
    if isinstance(it, int | float | str | bytes | None):
        return it
    if id(it) in seen:
        return "seen"
    if not isinstance(it, tuple):
        seen.add(id(it))
    if isinstance(it, dict):
        return {repr(key): state(value, seen) for key, value in it.items()}
    if hasattr(it, "__dict__"):
        return {name: state(value, seen) for name, value in vars(it).items() if name != "rng"}
    slots = [name for name in getattr(type(it), "__slots__", ()) if hasattr(it, name)]
    if isinstance(it, tuple) or not slots:
        return [state(each, seen) for each in it] if hasattr(it, "__iter__") else repr(type(it))
    return {name: state(getattr(it, name), seen) for name in slots}


@pytest.mark.pure  # methods of the core are replaced
def test_a_step_would_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    take, known = Replica.take_known, Counter[str]()

    def compared(replica: Replica, item: Input, now_s: float, wall_ms: int) -> Ready | None:
        known.update(["asked"])
        if known["asked"] % 3:
            return take(replica, item, now_s, wall_ms)
        twin, ready = copy.deepcopy(replica), take(replica, item, now_s, wall_ms)
        if ready is not None:
            with monkeypatch.context() as patch:
                patch.setattr(Replica, "take_known", lambda *_: None)
                assert twin.step([item], now_s, wall_ms) == ready
            assert state(twin, set()) == state(replica, set()) and twin.rng.getstate() == replica.rng.getstate()
            known.update([type(item.envelope.message if isinstance(item, Received) else item).__name__])
        return ready

    monkeypatch.setattr(Replica, "take_known", compared)
    monkeypatch.setattr(Replica, "can_wait", lambda *_: False)  # answers come one by one, as to a shell
    for seed in (4, 14, 18):
        verdict = run_world(World(Options.draw(seed, seconds=4)))
        assert verdict.ok, verdict.detail
    assert {"AppendRequest", "AppendAnswer", "Tick"} <= known.keys() and min(known.values()) > 20, known
