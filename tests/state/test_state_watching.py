"""Watches of a state: their beginning."""

from __future__ import annotations

import pytest
from snapshot_rig import machine_of, with_state, with_states

from alpo.state import Behind, State, watching
from alpo.testing import Cluster


def test_a_watch_of_every_change_begins_with_more_variables_than_changes_may_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "EVERY_MAX", 5)

    async def work(states: list[State]) -> None:
        state, other = states
        for n in range(8):
            await other.put(f"n{n}", b"0")
        async with state.watch("", every=True) as changes:
            for _ in range(5):
                await other.add("n3")
            await machine_of(state)
            seen = [await anext(changes) for _ in range(13)]
            assert [each.name for each in seen[:8]] == [f"n{n}" for n in range(8)]
            assert [each.value for each in seen if each.name == "n3"] == [b"%d" % n for n in range(6)]
            for _ in range(6):
                await other.add("n3")
            await machine_of(state)
            for _ in range(5):
                await anext(changes)
            with pytest.raises(Behind):
                await anext(changes)

    with Cluster(seed=1) as cluster:
        with_states(cluster, 2, work)


@pytest.mark.parametrize("every", [False, True])
def test_a_watch_that_was_not_entered(every: bool) -> None:
    async def work(state: State) -> None:
        with pytest.raises(RuntimeError, match="async with"):
            await anext(state.watch("", every=every))

    with Cluster(seed=1) as cluster:
        with_state(cluster, work)


@pytest.mark.parametrize("every", [False, True])
def test_a_watch_gives_the_names_under_its_prefix_and_no_others(every: bool) -> None:
    async def work(states: list[State]) -> None:
        state, other = states
        for name in ("agent/a", "agents", "b", "agent/c"):
            await other.put(name, b"before")
        async with state.watch("agent/", every=every) as changes:
            for name in ("b", "agent/d", "agents", "agent/a"):
                await other.put(name, b"after")
            await machine_of(state)
            seen = [await anext(changes) for _ in range(4 if every else 3)]
            last = {each.name: each.value for each in seen}
            assert last == {"agent/a": b"after", "agent/c": b"before", "agent/d": b"after"}
            await other.put("b", b"again")
            await other.put("agent/c", b"again")
            assert (await anext(changes))[:2] == ("agent/c", b"again")

    with Cluster(seed=1) as cluster:
        with_states(cluster, 2, work)
