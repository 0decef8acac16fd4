"""Operations: what they return and write, alone and in batches."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import anyio
import pytest
from registry_kit import BACKENDS, NAME, Breaks, Label, Outcomes, commands, cut, on_cluster, outcome, run, states

import alpo
from alpo.registry import Admit, Damaged, Deposed, NotInitialised, Readmit, Registry, Reject, Remove, Rows, Step
from alpo.registry import operations as operations_module
from alpo.registry.rows import Overlay, row_json
from alpo.state import Full
from alpo.state.codec import Limits
from alpo.testing import Cluster


class Does:
    """An operation made of a function."""

    def __init__(self, function: Any) -> None:
        self.apply = function


@pytest.mark.parametrize("backend", BACKENDS)
@on_cluster
async def test_admit_readmit_remove(cluster: Cluster, backend: str) -> None:
    async with states(cluster) as (state,), Registry(state, NAME) as registry:
        assert registry.version == registry.token
        assert await registry.apply(Admit("a1", {"cpus": 24})) is True
        assert registry.version == len(cluster.log()) > registry.token
        assert await outcome(registry.apply(Admit("a1", {"cpus": 25}))) == "Reject"
        version = registry.version
        assert await registry.apply(Readmit("a1", {"cpus": 25})) is True
        assert (dict(registry.rows), registry.version) == ({"a1": {"cpus": 24}}, version)
        assert await registry.apply(Label("a1", "rack-7")) == 1
        assert dict(registry.rows) == {"a1": {"cpus": 24, "label": "rack-7"}}
        assert await registry.apply(Remove("a1")) is True
        assert registry.version == len(cluster.log())
        assert await registry.apply(Remove("a1")) is False
        assert await registry.apply(Readmit("a1", {})) is False
        assert not registry.rows
        assert await registry.apply(Admit("a1")) is True
        assert dict(registry.rows) == {"a1": None}


async def in_one_batch(cluster: Cluster, registry: Registry, *operations: Any) -> list[Any]:
    """The outcomes of operations that queue while a write is under way."""
    async with anyio.create_task_group() as tasks:
        outcomes = Outcomes(registry, tasks)
        cut(cluster, "p1")
        outcomes.begin(Admit("a write under way"))
        await cluster.sleep(0.5)
        await outcomes.begin_in_order(*operations)
        cluster.heal()
    return outcomes.of[1:]


@pytest.mark.parametrize("backend", BACKENDS)
@on_cluster
async def test_a_batch_is_one_commit_and_each_sees_those_before_it(cluster: Cluster, backend: str) -> None:
    async with states(cluster) as (state,), Registry(state, NAME) as registry:
        await registry.apply(Admit("old", {"n": 1}))
        before = len(commands(cluster))
        got = await in_one_batch(
            cluster, registry,
            Admit("a"), Admit("a"), Readmit("a"), Label("b", "x"), Admit("b", {}), Label("b", "x"), Breaks(),
            Remove("old"), Readmit("old"), Remove("old"), Admit("c"), Remove("c"), Readmit("c"), Label("old", "x"),
            Does(lambda rows: Step(result=sorted(rows))),
        )
        assert got == [
            True, "Reject", True, "Reject", True, 4, "ZeroDivisionError",
            True, False, False, True, True, False, "Reject", ["a", "a write under way", "b"],
        ]
        _, batch = commands(cluster)[before:]
        assert [op[1].partition("\0")[2] for op in batch.ops] == ["a", "b", "old"]  # c came and went
        assert dict(registry.rows) == {"a": None, "b": {"label": "x"}, "a write under way": None}


@on_cluster
async def test_a_batch_in_which_all_is_refused_writes_nothing(cluster: Cluster) -> None:
    async with states(cluster) as (state,), Registry(state, NAME) as registry:
        await registry.apply(Admit("a"))
        length = len(commands(cluster))
        assert await in_one_batch(cluster, registry, Admit("a"), Breaks(), Admit("c"), Remove("c")) == [
            "Reject", "ZeroDivisionError", True, True,
        ]
        assert len(commands(cluster)) == length + 1


@pytest.mark.parametrize(("returned", "error"), [
    (None, TypeError),
    ({"a": 1}, TypeError),
    (Step(put={"": 1}), ValueError),
    (Step(put={"a\0b": 1}), ValueError),
    (Step(put={"x" * 513: 1}), ValueError),
    (Step(put={"\ud800": 1}), ValueError),
    (Step(put={3: 1}), TypeError),  # type: ignore[dict-item]
    (Step(put={"a": {1, 2}}), TypeError),
    (Step(put={"a": float("nan")}), ValueError),
    (Step(put={"a": "x" * (7 << 20)}), alpo.TooLarge),
    (Step(remove="a"), TypeError),
    (Step(remove=[""]), ValueError),
    (Step(put={"a": 1}, remove=["a"]), ValueError),
])
@on_cluster
async def test_a_wrong_step_fails_alone(cluster: Cluster, returned: Any, error: type[Exception]) -> None:
    async with states(cluster) as (state,), Registry(state, NAME) as registry:
        got = await in_one_batch(cluster, registry, Admit("b"), Does(lambda rows: returned), Admit("c"))
        assert got == [True, error.__name__, True]
        assert set(registry.rows) == {"a write under way", "b", "c"}


@on_cluster
async def test_what_is_no_operation_fails_alone(cluster: Cluster) -> None:
    async with states(cluster) as (state,), Registry(state, NAME) as registry:
        assert await in_one_batch(cluster, registry, "no operation", Admit("b")) == ["AttributeError", True]
        assert await outcome(registry.apply(Readmit(""))) == "ValueError"
        assert await outcome(registry.apply(Remove("a\0b"))) == "ValueError"


def test_operations_change_rows_by_their_step_alone() -> None:
    def meddle(rows: Any) -> Step:
        rows["a"]["cpus"] = 5
        with pytest.raises(TypeError):
            rows["b"] = 1
        return Step(result=rows["a"])

    async def scenario(cluster: Cluster) -> None:
        async with states(cluster) as (state,), Registry(state, NAME) as registry:
            await registry.apply(Admit("a", {"cpus": 24}))
            assert await registry.apply(Does(meddle)) == {"cpus": 24}
            registry.rows["a"]["cpus"] = 7
            assert registry.rows["a"] == {"cpus": 24}
            with pytest.raises(TypeError):
                registry.rows["b"] = 1  # type: ignore[index]

    run(scenario)


def test_rows_are_a_mapping() -> None:
    changes: dict[str, bytes | None] = {}
    rows = Rows(Overlay({"a": b"1", "b": b"[2]"}, changes))
    assert dict(rows) == {"a": 1, "b": [2]}
    assert repr(rows) == "Rows({'a': 1, 'b': [2]})"
    changes.update({"a": None, "b": b"3", "c": b"null", "d": None})
    assert (dict(rows), len(rows), list(rows)) == ({"b": 3, "c": None}, 2, ["b", "c"])
    assert [id in rows for id in "abcde"] == [False, True, True, False, False]
    assert rows.get("a", "none") == "none"
    assert rows == {"b": 3, "c": None}
    with pytest.raises(KeyError):
        rows["d"]
    assert repr(Rows({str(n): b"0" for n in range(11)})) == "<Rows: 11>"


@pytest.mark.parametrize("backend", BACKENDS)
@on_cluster
async def test_a_caller_cancelled_before_its_batch_takes_its_operation_along(cluster: Cluster, backend: str) -> None:
    async with states(cluster) as (state,), Registry(state, NAME) as registry:
        async with anyio.create_task_group() as tasks, anyio.create_task_group() as hasty:
            outcomes, cancelled = Outcomes(registry, tasks), Outcomes(registry, hasty)
            cut(cluster, "p1")
            outcomes.begin(Admit("first"))
            await cluster.sleep(0.5)
            await outcomes.begin_in_order(Admit("a"))
            cancelled.begin(*(Admit(f"b{n}") for n in range(100)))
            await cancelled.queued()
            await outcomes.begin_in_order(Admit("c"))
            hasty.cancel_scope.cancel()
            cluster.after(1, cluster.heal)
        assert outcomes.of == [True] * 3
        assert list(registry.rows) == ["first", "a", "c"]


@pytest.mark.parametrize("backend", BACKENDS)
@on_cluster
async def test_a_caller_cancelled_after_that_does_not(cluster: Cluster, backend: str) -> None:
    async with states(cluster) as (state,), Registry(state, NAME) as registry:
        cut(cluster, "p1")
        async with anyio.create_task_group() as tasks:
            Outcomes(registry, tasks).begin(Admit("sent"))
            await cluster.sleep(0.5)
            tasks.cancel_scope.cancel()
        cluster.heal()
        assert await registry.apply(Readmit("sent"))


#: Number of operations at once of which half are prepared while the write of the others is under way.
CROWD = 600


@on_cluster
async def test_what_is_made_ready_ahead_sees_what_is_under_way(cluster: Cluster) -> None:
    async with states(cluster) as (state,), Registry(state, NAME) as registry:
        async with anyio.create_task_group() as tasks:
            outcomes = Outcomes(registry, tasks)
            outcomes.begin(*(Admit(f"a{n}", {}) for n in range(CROWD // 2)))
            outcomes.begin(*(Label(f"a{n}", "x") for n in range(CROWD // 2)))
        assert set(outcomes.of[:CROWD // 2]) == {True}
        assert set(outcomes.of[CROWD // 2:]) == {CROWD // 2}
        assert [len(each.ops) for each in commands(cluster)] == [1, CROWD // 2, CROWD // 2]


def test_what_was_made_ready_ahead_is_made_anew_if_what_it_follows_on_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpo.state.state.Limits", lambda: Limits(variables_max=100))

    async def scenario(cluster: Cluster) -> None:
        async with states(cluster) as (state,), Registry(state, NAME) as registry:
            async with anyio.create_task_group() as tasks:
                outcomes = Outcomes(registry, tasks)
                outcomes.begin(*(Admit(f"a{n}") for n in range(CROWD // 2)))
                outcomes.begin(*(Readmit(f"a{n}") for n in range(CROWD // 2)))
            admitted, readmitted = outcomes.of[:CROWD // 2], outcomes.of[CROWD // 2:]
            assert set(admitted) == {True, "Full"}
            assert [each is True for each in admitted] == readmitted
            assert len(registry.rows) == sum(readmitted) == 99

    run(scenario)


@on_cluster
async def test_a_caller_cancelled_while_its_batch_is_made_ready_takes_its_operation_along(cluster: Cluster) -> None:
    async with states(cluster) as (state,), Registry(state, NAME) as registry:
        async with anyio.create_task_group() as tasks, anyio.create_task_group() as hasty:
            cut(cluster, "p1")
            outcomes, cancelled = Outcomes(registry, tasks), Outcomes(registry, hasty)
            outcomes.begin(*(Admit(f"a{n}") for n in range(CROWD // 2)))
            cancelled.begin(*(Admit(f"b{n}") for n in range(CROWD // 2 - 1)))
            outcomes.begin(Admit("c"))
            await cluster.sleep(0.5)
            hasty.cancel_scope.cancel()
            cluster.after(1, cluster.heal)
        assert set(outcomes.of) == {True}
        assert list(registry.rows) == [*(f"a{n}" for n in range(CROWD // 2)), "c"]


def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations_module, "QUEUE_MAX", 10)

    async def scenario(cluster: Cluster) -> None:
        async with states(cluster) as (state,), Registry(state, NAME) as registry:
            got = await in_one_batch(cluster, registry, *(Admit(f"a{n}") for n in range(12)))
            assert got == [True] * 10 + ["Overloaded"] * 2
            assert await registry.apply(Admit("b"))

    run(scenario)


@pytest.mark.parametrize("operations", [
    [Admit(f"{n:0512}") for n in range(4000)],  # names alone are more than a payload holds
    [Admit(f"a{n}", "x" * 1_000_000) for n in range(9)],  # more than a batch holds
    [Admit("a", "x" * 7_000_000), Admit("b", "y" * 7_000_000), Admit("c", "z")],  # one is more than its share
    [Does(lambda rows, first=first: Step({f"{first}-{n}": n for n in range(40_000)})) for first in range(3)],
], ids=["names", "values", "great ones", "many rows"])
@on_cluster
async def test_a_batch_keeps_to_the_log_s_limits(cluster: Cluster, operations: list[Any]) -> None:
    async with states(cluster) as (state,), Registry(state, NAME) as registry:
        async with anyio.create_task_group() as tasks:
            outcomes = Outcomes(registry, tasks)
            cut(cluster, "p1")
            outcomes.begin(Admit("first"))
            await cluster.sleep(0.5)
            outcomes.begin(*operations)
            await outcomes.queued()
            cluster.heal()
        assert set(outcomes.of) == {True}
        rows = sum(len(op.apply({}).put) for op in operations)
        assert len(registry.rows) == rows + 1
        assert len(commands(cluster)) >= 4


@on_cluster
async def test_an_operation_that_no_batch_holds_fails_alone(cluster: Cluster) -> None:
    async with states(cluster) as (state,), Registry(state, NAME) as registry:
        many = Does(lambda rows: Step({f"{n}": n for n in range(70_000)}))
        large = Does(lambda rows: Step({f"{n}": "x" * 5_000_000 for n in range(2)}))
        got = await in_one_batch(cluster, registry, Admit("a"), many, Admit("b"), large, Admit("c"))
        assert got == [True, "TooLarge", True, "TooLarge", True]
        assert set(registry.rows) == {"a write under way", "a", "b", "c"}


def test_in_a_full_state_what_makes_room_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpo.state.state.Limits", lambda: Limits(variables_max=12))

    async def scenario(cluster: Cluster) -> None:
        async with states(cluster) as (state,), Registry(state, NAME) as registry:
            assert await in_one_batch(cluster, registry, *(Admit(f"a{n}") for n in range(10))) == [True] * 10
            operations = Admit("b0"), Admit("b1"), Remove("a0"), Readmit("a1"), Admit("b2")
            got = await in_one_batch(cluster, registry, *operations)
            assert got == ["Full", "Full", True, True, True]
            with pytest.raises(Full):
                await registry.apply(Admit("b3"))
            assert await registry.apply(Remove("b2"))

    run(scenario)


@pytest.mark.parametrize("error", [
    Deposed("m", name="n", token=1, version=2), NotInitialised("m"), Damaged("m"), Reject("m"),
])
def test_errors_survive_pickling(error: alpo.AlpoError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(again), str(again), vars(again)) == (type(error), "m", vars(error))


def test_what_is_nested_too_deeply_is_damaged() -> None:
    with pytest.raises(Damaged, match="is no JSON"):
        row_json("a", b"[" * 200_000)
