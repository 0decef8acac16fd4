"""Losing a registry: deposed leaders, writes that hang, unknown outcomes, leaving."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from registry_kit import BACKENDS, NAME, Label, Outcomes, commands, cut, on_cluster, outcome, states

import alpo
from alpo.registry import Admit, Deposed, Readmit, Registry, Remove
from alpo.state import Changed, Expunge, If
from alpo.testing import Cluster

QUEUED = 10_000


@pytest.mark.parametrize("operation", [
    Admit("new"), Remove("a1"), Label("a1", "x"),  # these write
    Readmit("a1"), Readmit("new"), Remove("new"), Admit("a1"), Label("new", "x"),  # and these only answer
], ids=lambda operation: f"{type(operation).__name__} {operation!r:.12}")
@pytest.mark.parametrize("backend", BACKENDS)
@on_cluster
async def test_a_rogue_leader_is_told_nothing_but_deposed(cluster: Cluster, operation: Any, backend: str) -> None:
    """The old leader's process was cut off while another took over; an operation's answer tells it so."""
    async with states(cluster, 2) as (old, new), Registry(old, NAME, "old") as rogue:
        await rogue.apply(Admit("a1"))
        cut(cluster, "p1")
        async with Registry(new, NAME, "new") as registry:
            await registry.apply(Remove("a1"))
            await registry.apply(Admit("a2"))
            assert not rogue.deposed.is_set()  # it cannot know
            cluster.after(1, cluster.heal)
            with pytest.raises(Deposed) as told:
                await rogue.apply(operation)
            assert (told.value.token, told.value.version) == (rogue.token, registry.token)
            assert rogue.deposed.is_set()
            assert dict(rogue.rows) == {"a1": None}  # as long as we led
            assert dict(registry.rows) == {"a2": None}
            for again in (operation, Readmit("a1"), Admit("x")):
                assert await outcome(rogue.apply(again)) == "Deposed"
            assert await registry.apply(Readmit("a2"))
        assert list((await Registry.view(old, NAME)).rows) == ["a2"]


@on_cluster
async def test_an_idle_leader_hears_that_it_was_deposed(cluster: Cluster) -> None:
    async with states(cluster, 2) as (old, new), Registry(old, NAME) as first, Registry(new, NAME) as second:
        await first.deposed.wait()
        assert not second.deposed.is_set()
        token = second.token
        await old.commit([If(NAME, version=token)], [Expunge(NAME)])
        await second.deposed.wait()
        with pytest.raises(Deposed, match="took its header away") as told:
            await second.apply(Readmit("a"))
        assert (told.value.token, told.value.version) == (token, 0)


@pytest.mark.parametrize("backend", BACKENDS)
@on_cluster
async def test_what_queued_while_a_write_hung_is_the_next_write(cluster: Cluster, backend: str) -> None:
    async with states(cluster) as (state,), Registry(state, NAME) as registry:
        async with anyio.create_task_group() as tasks:
            outcomes = Outcomes(registry, tasks)
            cut(cluster, "p1")
            outcomes.begin(Admit("first"))
            await cluster.sleep(1)
            outcomes.begin(*(Admit(f"a{n}", {"n": n}) for n in range(QUEUED)))
            await cluster.sleep(14)  # longer than the log's own deadline
            assert set(outcomes.of) == {None}
            cluster.heal()
        assert outcomes.of == [True] * (1 + QUEUED)
        assert set(registry.rows) == {"first", *(f"a{n}" for n in range(QUEUED))}
        assert [len(each.ops) for each in commands(cluster)] == [1, 1, 4096, 4096, QUEUED - 2 * 4096]


@pytest.mark.parametrize("taken_over", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@on_cluster
async def test_an_unknown_outcome_ends_the_registry_and_settles_either_way(
    cluster: Cluster, backend: str, taken_over: bool
) -> None:
    async with states(cluster, 2) as (state, other), Registry(state, NAME) as registry:
        async with anyio.create_task_group() as tasks:
            outcomes = Outcomes(registry, tasks)
            cut(cluster, "p1")
            began_s = cluster.now_s
            outcomes.begin(Admit("sent"))
            await cluster.sleep(1)
            outcomes.begin(*(Admit(f"a{n}") for n in range(QUEUED)))
        assert 20 <= cluster.now_s - began_s < 22
        # Operations in the write may be in the log; operations behind it never will be.
        assert outcomes.of == ["NotGuaranteed"] + ["Closed"] * QUEUED
        assert registry.deposed.is_set()
        assert await outcome(registry.apply(Readmit("sent"))) == "Closed"
        if taken_over:
            async with Registry(other, NAME) as successor:
                assert not await successor.apply(Readmit("sent"))
        cluster.heal()
        [settled] = (await state.settle()).values()
        async with Registry(state, NAME) as anew:
            if taken_over:
                assert isinstance(settled, Changed)
                assert not anew.rows
            else:
                assert isinstance(settled, int) and registry.token < settled < anew.token
                assert list(anew.rows) == ["sent"]


@on_cluster
async def test_no_second_write_before_the_first_is_settled(cluster: Cluster) -> None:
    """A registry that is recovered at once, by the same process, finds what the unknown write left."""
    async with states(cluster) as (state,):
        async with Registry(state, NAME, write_timeout_s=3) as registry:
            cut(cluster, "p1")
            assert await outcome(registry.apply(Admit("a1"))) == "NotGuaranteed"
            cluster.after(2, cluster.heal)
            async with Registry(state, NAME) as anew:
                assert list(anew.rows) == ["a1"]
                assert await outcome(anew.apply(Admit("a1"))) == "Reject"


@pytest.mark.parametrize("backend", BACKENDS)
@on_cluster
async def test_a_write_that_never_left_fails_and_the_registry_goes_on(cluster: Cluster, backend: str) -> None:
    async with states(cluster) as (state,), Registry(state, NAME) as registry:
        for server in cluster.servers:
            cluster.crash(server)
        await cluster.sleep(1)
        assert await outcome(registry.apply(Admit("a1"))) == "Unavailable"
        cluster.heal()
        assert await registry.apply(Admit("a1"))


@on_cluster
async def test_answers_without_a_write_wait_for_the_cluster(cluster: Cluster) -> None:
    async with states(cluster) as (state,), Registry(state, NAME) as registry:
        cut(cluster, "p1")
        cluster.after(15, cluster.heal)
        assert not await registry.apply(Readmit("a1"))
        assert cluster.now_s > 15
        cut(cluster, "p1")
        assert await outcome(registry.apply(Readmit("a1"))) == "Unavailable"
        cluster.heal()
        assert not await registry.apply(Readmit("a1"))


@pytest.mark.parametrize("backend", BACKENDS)
@on_cluster
async def test_leaving_waits_for_what_is_under_way(cluster: Cluster, backend: str) -> None:
    async with states(cluster) as (state,), anyio.create_task_group() as tasks:
        async with Registry(state, NAME) as registry:
            outcomes = Outcomes(registry, tasks)
            outcomes.begin(*(Admit(f"a{n}") for n in range(5000)))
            await outcomes.queued()
        assert len(registry.rows) == 5000
        assert await outcome(registry.apply(Admit("late"))) == "Closed"
        assert registry.deposed.is_set()
    assert outcomes.of == [True] * 5000


@pytest.mark.parametrize("backend", BACKENDS)
@on_cluster
async def test_cancelled_it_leaves_at_once_and_tells_what_is_known(cluster: Cluster, backend: str) -> None:
    async with states(cluster) as (state,), anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            async with Registry(state, NAME) as registry:
                outcomes = Outcomes(registry, tasks)
                cut(cluster, "p1")
                outcomes.begin(Admit("sent"))
                await cluster.sleep(1)
                outcomes.begin(Admit("queued"))
                await cluster.sleep(1)
                scope.cancel()
                await anyio.sleep_forever()
        cluster.heal()
    assert outcomes.of == ["NotGuaranteed", "Closed"]


@on_cluster
async def test_a_state_that_ends_ends_its_registry(cluster: Cluster) -> None:
    async with cluster.connect() as log:
        async with states(cluster) as (state,):
            registry = Registry(state, NAME)
            await registry.__aenter__()
            await log.append(b"\xc1\x41\x02")  # a message of a later release
            await registry.deposed.wait()
            assert await outcome(registry.apply(Readmit("a"))) == "NewerFormat"
            await registry.__aexit__(None, None, None)


@on_cluster
async def test_the_log_s_own_errors_reach_the_caller(cluster: Cluster) -> None:
    async with states(cluster) as (state,), Registry(state, NAME) as registry, cluster.connect(client="p1") as log:
        await log.opened()  # another process under our client's name
        assert await outcome(registry.apply(Admit("a1"))) == "Fenced"
        assert not registry.rows


@on_cluster
async def test_closed_is_what_a_closed_log_gives(cluster: Cluster) -> None:
    async with states(cluster) as (state,), Registry(state, NAME) as registry:
        await state.log.close()
        with pytest.raises(alpo.Closed):
            await registry.apply(Admit("a1"))
