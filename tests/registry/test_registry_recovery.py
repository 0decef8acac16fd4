"""Recovering a registry: strict, upgrade, initialised; and who leads afterwards."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from registry_kit import BACKENDS, NAME, cut, on_cluster, outcome, run, states

import alpo
from alpo.registry import Admit, Damaged, Deposed, NotInitialised, Readmit, Registry, Remove
from alpo.state import Expunge, If, NewerFormat, Put, State, WrongState
from alpo.testing import Cluster

MODES = {
    "plain": {}, "strict": {"strict": True}, "upgrade": {"upgrade": True},
    "strict and upgrade": {"strict": True, "upgrade": True},
}


async def prepare(state: State, before: str) -> None:
    if before == "nothing":
        return
    if before == "another state's variables":
        await state.put("agents2", b"x")
        return
    async with Registry(state, NAME) as registry:
        if before != "a header":
            await registry.apply(Admit("a1", {"cpus": 1}))
        token = registry.token
    if before == "rows alone":
        await state.commit([If(NAME, version=token)], [Expunge(NAME)])


#: (state before, mode) -> the error of recovering; or the answers of Readmit for an admitted and an unknown agent.
TABLE: dict[tuple[str, str], type[Exception] | tuple[bool, bool]] = {
    ("nothing", "plain"): (False, False),
    ("nothing", "strict"): NotInitialised,
    ("nothing", "upgrade"): (True, True),
    ("nothing", "strict and upgrade"): (True, True),
    ("another state's variables", "plain"): (False, False),
    ("another state's variables", "strict"): NotInitialised,
    ("another state's variables", "upgrade"): (True, True),
    ("a header", "plain"): (False, False),
    ("a header", "strict"): (False, False),
    ("a header", "upgrade"): (True, True),
    ("rows", "plain"): (True, False),
    ("rows", "strict"): (True, False),
    ("rows", "upgrade"): (True, True),
    ("rows", "strict and upgrade"): (True, True),
    ("rows alone", "plain"): Damaged,
    ("rows alone", "strict"): Damaged,
    ("rows alone", "upgrade"): Damaged,
    ("rows alone", "strict and upgrade"): Damaged,
}


@pytest.mark.parametrize(("before", "mode"), TABLE)
@pytest.mark.parametrize("backend", BACKENDS)
def test_recovering(before: str, mode: str, backend: str) -> None:
    wanted = TABLE[before, mode]

    async def scenario(cluster: Cluster) -> None:
        async with states(cluster, 2) as (first, second):
            await prepare(first, before)
            length = len(cluster.log())
            if not isinstance(wanted, tuple):
                with pytest.raises(wanted):
                    await Registry(second, NAME, **MODES[mode]).__aenter__()
                assert len(cluster.log()) == length  # nothing was written
                return
            async with Registry(second, NAME, {"host": "m2"}, **MODES[mode]) as registry:
                got = await registry.apply(Readmit("a1", {"cpus": 2})), await registry.apply(Readmit("new"))
                assert got == wanted
                assert registry.rows.get("a1") == ({"cpus": 1} if before == "rows" else {"cpus": 2} if got[0] else None)
            view = await Registry.view(first, NAME)
            assert (view.leader, view.token) == ({"host": "m2"}, registry.token)

    run(scenario, backend)


def test_the_wrong_cluster_is_refused() -> None:
    async def scenario(cluster: Cluster) -> str:
        async with states(cluster) as (state,), Registry(state, NAME):
            return (await state.status()).state

    expected = run(scenario)

    async def elsewhere(cluster: Cluster) -> None:
        async with states(cluster) as (state,):
            await state.put("x", b"")
        async with states(cluster, expect=expected) as (state,):
            for mode in MODES.values():
                with pytest.raises(WrongState):
                    await Registry(state, NAME, **mode).__aenter__()

    run(elsewhere, seed=1)


@pytest.mark.parametrize(("value", "error"), [
    (b"no json", Damaged), (b"[]", Damaged), (b'{"leader":1}', Damaged), (b'{"format":"1"}', Damaged),
    (json.dumps({"leader": 1, "format": 2, "flags": {}}).encode(), NewerFormat),
])
@on_cluster
async def test_a_header_that_is_none(cluster: Cluster, value: bytes, error: type[Exception]) -> None:
    async with states(cluster) as (state,):
        written = await state.put(NAME, value)
        for call in (Registry(state, NAME, upgrade=True).__aenter__(), Registry.view(state, NAME)):
            with pytest.raises(error):
                await call
        assert (await state.fetch(NAME)).version == written.version


@on_cluster
async def test_a_row_that_nobody_can_read(cluster: Cluster) -> None:
    async with states(cluster) as (state,):
        async with Registry(state, NAME) as registry:
            await state.commit([If(NAME, version=registry.token)], [Put(f"{NAME}\0a1", b"{")])
        with pytest.raises(Damaged, match="a1"):
            await Registry(state, NAME).__aenter__()


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_two_that_recover_at_once_one_leads(backend: str) -> None:
    losers = []

    async def scenario(cluster: Cluster) -> None:
        ended: list[Any] = [None, None]

        async def lead(number: int, state: State) -> None:
            try:
                async with Registry(state, NAME, number) as registry:
                    await cluster.sleep(2)
                    ended[number] = await outcome(registry.apply(Admit(f"of {number}")))
            except Deposed as error:
                ended[number] = "lost"
                assert (error.token, error.version) == (0, (await state.fetch(NAME)).version)

        async with states(cluster, 2) as both:
            await both[0].put("x", b"founded")
            async with anyio.create_task_group() as tasks:
                for number, state in enumerate(both):
                    tasks.start_soon(lead, number, state)
            winner = ended.index(True)
            assert ended[1 - winner] in ("lost", "Deposed")
            losers.append(ended[1 - winner])
            view = await Registry.view(both[0], NAME)
            assert (view.leader, set(view.rows)) == (winner, {f"of {winner}"})

    for seed in range(8):
        run(scenario, backend, seed)
    assert "lost" in losers  # they did meet


@on_cluster
async def test_rows_are_those_as_of_the_token(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old leader writes after the successor has read the state and before it writes its header."""
    async with states(cluster, 2) as (old, new), Registry(old, NAME) as registry:
        await registry.apply(Admit("a1"))
        asked = new.command

        async def late(*given: Any) -> Any:
            await registry.apply(Admit("a2"))
            await registry.apply(Remove("a1"))
            return await asked(*given)

        monkeypatch.setattr(new, "command", late)
        async with Registry(new, NAME) as successor:
            assert list(successor.rows) == ["a2"]


@pytest.mark.parametrize("backend", BACKENDS)
@on_cluster
async def test_recovering_without_a_cluster_ends_in_time(cluster: Cluster, backend: str) -> None:
    async with states(cluster) as (state,):
        cut(cluster, "p1")
        began_s = cluster.now_s
        with pytest.raises(alpo.Unavailable):
            await Registry(state, NAME, recover_timeout_s=25).__aenter__()
        assert 25 <= cluster.now_s - began_s < 40
        cluster.heal()
        async with Registry(state, NAME) as registry:
            assert await registry.apply(Admit("a1"))


@on_cluster
async def test_recovering_outlasts_the_log_s_own_timeout(cluster: Cluster) -> None:
    async with states(cluster) as (state,):
        cut(cluster, "p1")
        cluster.after(30, cluster.heal)
        async with Registry(state, NAME) as registry:
            assert cluster.now_s > 30
            assert await registry.apply(Admit("a1"))


@on_cluster
async def test_arguments(cluster: Cluster) -> None:
    async with states(cluster) as (state,):
        for name in ("", "a\0b", "a\nb", "x" * 513):
            with pytest.raises(ValueError):
                Registry(state, name)
            with pytest.raises(ValueError):
                await Registry.view(state, name)
        with pytest.raises(TypeError):
            Registry(state, NAME, info={1, 2})
        with pytest.raises(ValueError):
            Registry(state, NAME, info=float("nan"))
        with pytest.raises(ValueError):
            Registry(state, NAME, write_timeout_s=0)
        registry = Registry(state, NAME)
        with pytest.raises(alpo.Closed):
            await registry.apply(Admit("a"))
        async with registry:
            pass
        with pytest.raises(RuntimeError):
            await registry.__aenter__()
