"""Registries as processes see them that do not lead."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest
from registry_kit import BACKENDS, NAME, cut, on_cluster, states

from alpo.registry import Admit, Damaged, Registry, Remove, Step, View
from alpo.registry.rows import Mirror
from alpo.state import Expunge, If, Put, State, codec
from alpo.state.machine import Cell, Machine
from alpo.testing import Cluster


class Swap:
    """An operation that moves a row."""

    def __init__(self, old: str, new: str) -> None:
        self.old = old
        self.new = new

    def apply(self, rows: Any) -> Step:
        return Step(put={self.new: rows[self.old]}, remove=[self.old])


@pytest.mark.parametrize("backend", BACKENDS)
@on_cluster
async def test_a_view_is_linearizable_and_never_changes(cluster: Cluster, backend: str) -> None:
    async with states(cluster, 2) as (state, other):
        view = await Registry.view(other, NAME)
        assert (view.leader, dict(view.rows), view.token, view.changed) == (None, {}, 0, frozenset())
        async with Registry(state, NAME, {"host": "m1"}) as registry:
            view = await Registry.view(other, NAME)
            assert (view.leader, dict(view.rows), view.token) == ({"host": "m1"}, {}, registry.token)
            await registry.apply(Admit("a1", 1))
            later = await Registry.view(other, NAME)
            assert (dict(later.rows), later.version, later.token) == ({"a1": 1}, registry.version, registry.token)
            assert later.changed == {"a1"}
        assert not view.rows
        assert "State" not in repr(later)
        assert (await Registry.view(other, NAME)).leader == {"host": "m1"}  # who led last


class Folded:
    """A state that has folded some commands, as a mirror needs it; nobody is told of them."""

    def __init__(self) -> None:
        self.machine = Machine()
        self._take(codec.found(b"s" * 16, codec.Limits()))

    def _take(self, payload: bytes) -> None:
        self.machine.apply(self.lsn + 1, 0, payload)

    @property
    def lsn(self) -> int:
        return self.machine.lsn

    def write(self, **values: str | None) -> None:
        """Write the header and its rows, in the order given, each by itself; None takes one away."""
        owner = If(NAME, created=2).plain()
        for id, value in values.items():
            name = NAME if id == "header" else f"{NAME}\0{id}"
            op = Expunge(name) if value is None else Put(name, value)
            self._take(codec.command([owner] if self.lsn > 1 else [], [op.plain()], 1 << 20)[0])

    def subscribe(self, watcher: object) -> None:
        pass


def test_a_mirror_takes_a_jump_as_the_changes_in_it() -> None:
    folded, headers, ids = Folded(), list[int](), list[str]()
    mirror: Mirror

    def on_header(cell: Cell | None) -> None:
        headers.append(0 if cell is None else cell.version)
        if len(headers) == 2:
            mirror.close()

    folded.write(header="{}", a="1", b="2", c="3")
    mirror = Mirror(cast(State, folded), NAME, on_header, lambda error: None, ids.append)
    mirror.open(folded.machine)
    assert (mirror.values, mirror.token, mirror.version, ids) == ({"a": b"1", "b": b"2", "c": b"3"}, 2, 2, [])
    mirror.jumped(folded.machine)
    assert (mirror.version, headers, ids) == (2, [], [])
    folded.write(d="4", b=None, c="5")
    mirror.jumped(folded.machine)
    assert (mirror.values, mirror.token, mirror.version) == ({"a": b"1", "c": b"5", "d": b"4"}, 2, folded.lsn)
    assert (headers, ids) == ([], ["b", "c", "d"])
    folded.write(header="[]")
    mirror.jumped(folded.machine)
    assert (headers, mirror.token, ids) == ([folded.lsn], folded.lsn, ["b", "c", "d", ""])
    folded.write(header="0", a=None)
    mirror.jumped(folded.machine)
    assert (len(headers), mirror.token, list(mirror.values)) == (2, headers[0], ["a", "c", "d"])


async def next_that(views: Any, wanted: Any) -> tuple[View, set[str]]:
    """The first view that is as wanted, and what changed on the way."""
    changed: set[str] = set()
    async for view in views:
        changed |= view.changed
        if wanted(view):
            return view, changed
    raise AssertionError("the watch has ended")


@pytest.mark.parametrize("backend", BACKENDS)
@on_cluster
async def test_watching(cluster: Cluster, backend: str) -> None:
    async with states(cluster, 3) as (state, other, watcher):
        async with (await Registry.view(watcher, NAME)).watch() as views:
            first = await anext(views)
            assert (first.token, len(first.rows)) == (0, 0)
            async with Registry(state, NAME, 1) as registry:
                view, changed = await next_that(views, lambda view: view.token)
                assert (view.leader, view.token, changed) == (1, registry.token, set())
                await registry.apply(Admit("a1", 1))
                await registry.apply(Admit("a2", 2))
                view, changed = await next_that(views, lambda view: len(view.rows) == 2)
                assert (view.version, changed) == (registry.version, {"a1", "a2"})
                await registry.apply(Remove("a1"))
                view, changed = await next_that(views, lambda view: len(view.rows) == 1)
                assert (dict(view.rows), changed) == ({"a2": 2}, {"a1"})
            async with Registry(other, NAME, 2) as registry:
                view, changed = await next_that(views, lambda view: view.leader == 2)
                assert (view.token, dict(view.rows), changed) == (registry.token, {"a2": 2}, set())
        with pytest.raises(StopAsyncIteration):
            await anext(views)
        async with (await Registry.view(watcher, NAME)).watch() as views:
            assert (await anext(views)).changed == {"a2"}


@on_cluster
async def test_a_step_is_seen_whole(cluster: Cluster) -> None:
    async with states(cluster, 2) as (state, watcher), Registry(state, NAME) as registry:
        await registry.apply(Admit("r0"))
        async with (await Registry.view(watcher, NAME)).watch() as views, anyio.create_task_group() as tasks:

            async def move() -> None:
                for n in range(30):
                    await registry.apply(Swap(f"r{n}", f"r{n + 1}"))

            tasks.start_soon(move)
            async for view in views:
                assert len(view.rows) == 1
                if "r30" in view.rows:
                    break


@on_cluster
async def test_a_watch_goes_on_after_it_was_cut_off(cluster: Cluster) -> None:
    async with states(cluster, 2) as (state, watcher), Registry(state, NAME) as registry:
        async with (await Registry.view(watcher, NAME)).watch() as views:
            await anext(views)
            cut(cluster, "p2")
            for n in range(20):
                await registry.apply(Admit(f"a{n}"))
            cluster.after(20, cluster.heal)
            view, changed = await next_that(views, lambda view: len(view.rows) == 20)
            assert changed == set(view.rows)


@on_cluster
async def test_a_header_that_is_taken_away(cluster: Cluster) -> None:
    async with states(cluster, 2) as (state, watcher), Registry(state, NAME) as registry:
        await registry.apply(Admit("a1"))
        async with (await Registry.view(watcher, NAME)).watch() as views:
            await anext(views)
            await state.commit([If(NAME, version=registry.token)], [Expunge(NAME)])
            with pytest.raises(Damaged):
                await anext(views)
        with pytest.raises(Damaged):
            await Registry.view(watcher, NAME)


@on_cluster
async def test_a_watch_ends_with_its_state(cluster: Cluster) -> None:
    async with cluster.connect() as log, states(cluster) as (watcher,):
        async with (await Registry.view(watcher, NAME)).watch() as views:
            await anext(views)
            await log.append(b"\xc1\x41\x02")  # of a later release
            with pytest.raises(Exception, match="newer release"):
                await anext(views)


@on_cluster
async def test_a_watch_that_was_not_entered(cluster: Cluster) -> None:
    async with states(cluster) as (watcher,):
        with pytest.raises(RuntimeError, match="async with"):
            await anext((await Registry.view(watcher, NAME)).watch())
