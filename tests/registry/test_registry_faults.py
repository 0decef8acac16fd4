"""Registrars that depose each other while servers and connections fail: nobody is told what is not so."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any, NamedTuple

import anyio
import pytest
from registry_kit import BACKENDS, NAME, run, states
from some import some

from alpo.errors import AlpoError
from alpo.registry import Admit, Deposed, Readmit, Registry, Reject, Remove
from alpo.state import State
from alpo.testing import Cluster

AGENTS = 12
REIGNS = 4
FAULTS = ("crash", "pause", "isolate", "client")


class Told(NamedTuple):
    """An operation, its outcome, and when it was begun and ended."""

    kind: str
    agent: str
    outcome: Any
    begun_s: float
    ended_s: float


async def reign(cluster: Cluster, state: State, rng: random.Random, told: list[Told]) -> None:
    """Lead until deposed, or for a while; each agent is admitted and removed once at most."""
    async with Registry(state, NAME) as registry, anyio.create_task_group() as tasks:

        async def one(operation: Any) -> None:
            begun_s = cluster.now_s
            try:
                outcome = await registry.apply(operation)
            except AlpoError as error:
                outcome = type(error)
            told.append(Told(type(operation).__name__, operation.id, outcome, begun_s, cluster.now_s))

        for _ in range(25):
            agent = f"a{rng.randrange(AGENTS)}"
            kind = rng.choice((Readmit, Readmit, Remove if rng.random() < 0.3 else Readmit, Admit))
            if kind is not Admit or not any(each.agent == agent for each in told if each.kind == "Admit"):
                tasks.start_soon(one, kind(agent))
            await cluster.sleep(rng.random() * 0.3)
            if registry.deposed.is_set() and rng.random() < 0.3:
                return


async def live(cluster: Cluster, state: State, seed: str, told: list[Told]) -> None:
    rng = random.Random(seed)
    for _ in range(REIGNS):
        await cluster.sleep(rng.random() * 4)
        with suppress(AlpoError, ExceptionGroup):
            await reign(cluster, state, rng, told)


def contradictions(told: list[Told]) -> list[str]:
    """Answers that cannot both be right."""
    wrong = []
    for asked in told:
        if asked.kind != "Readmit" or asked.outcome not in (True, False):
            continue
        before = [each for each in told if each.agent == asked.agent and each.ended_s < asked.begun_s]
        removed = any(each.kind == "Remove" and each.outcome is True for each in before)
        admitted = any(each.kind == "Admit" and each.outcome is True for each in before)
        removing = any(each.kind == "Remove" and each.agent == asked.agent for each in told
                       if each.begun_s <= asked.ended_s and each.outcome not in (Deposed, False))
        if asked.outcome and removed:
            wrong.append(f"{asked} after its removal")
        if not asked.outcome and admitted and not removing:
            wrong.append(f"{asked}, though it was admitted")
    return wrong


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", some(range(6)))
def test_registrars_in_turn(seed: int, backend: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        told: list[Told] = []
        async with states(cluster, 3) as processes:
            async with anyio.create_task_group() as tasks:
                for number, state in enumerate(processes):
                    tasks.start_soon(live, cluster, state, f"{seed}/{number}", told)
            cluster.heal()
            assert contradictions(told) == []
            outcomes = [each.outcome for each in told]
            assert Deposed in outcomes and True in outcomes
            view = await Registry.view(processes[0], NAME)
            for agent in view.rows:
                assert not any(each[:3] == ("Remove", agent, True) for each in told)
            for each in told:
                if each.kind == "Admit" and each.outcome is True and each.agent not in view.rows:
                    assert any(other.kind == "Remove" and other.agent == each.agent for other in told)
                assert each.outcome is not Reject or each.kind == "Admit"

    run(scenario, backend, seed, faults=FAULTS, fault_every_s=3.0)


def test_the_check_can_fail() -> None:
    admitted = Told("Admit", "a", True, 0, 1)
    removed = Told("Remove", "a", True, 2, 3)
    assert contradictions([admitted, removed, Told("Readmit", "a", True, 4, 5)])
    assert contradictions([admitted, Told("Readmit", "a", False, 4, 5)])
    late = [Told("Readmit", "a", False, 4, 5), Told("Readmit", "a", True, 1.5, 5)]
    assert not contradictions([admitted, removed, *late])
