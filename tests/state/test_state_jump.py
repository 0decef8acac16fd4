"""A process that stands still while others write two snapshots and trim: it jumps, and tells nothing wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from rsm_kit import new_log, run
from snapshot_rig import Gate, fill, folded, fresh, machine_of, plain, unrecoverable, with_states

from alpo.errors import AlpoError, OutOfRange
from alpo.state import Behind, Changed, NoInteger, State, Unrecoverable, Unsettled, Variable
from alpo.testing import Cluster


class Stopped:
    """A state whose process will stand still, with calls under way, while another goes on."""

    def __init__(self, state: State, other: State, gate: Gate) -> None:
        self.state = state
        self.other = other
        self.gate = gate

    async def stop(self) -> None:
        """Let the process stand still. Pages on their way to it, or asked for ahead, hold nothing that comes later."""
        self.gate.close()
        for _ in range(2):
            await self.other.put("a page", b"1")
            await anyio.sleep(2)

    async def trim(self) -> None:
        """Have the other write two snapshots, so that all up to here is gone."""
        for i in range(2):
            await self.other.put(f"between/{i}", b"1")
            await self.other.snapshot(trim=True)


def stopped(work: Callable[[Stopped], Awaitable[None]]) -> None:
    """Run ``work`` with a process that can be stopped, and another; a start after that finds the whole state."""
    async def go() -> None:
        async with new_log(cluster) as log, new_log(cluster) as others:
            gate = Gate(log)
            async with State(others, snapshots="off") as other, State(log, snapshots="off", timeout_s=500) as state:
                await fill(other, 5, 60)
                await state.add("counter", 1)
                await machine_of(state)
                await work(Stopped(state, other, gate))

    with Cluster(seed=1, servers=1) as cluster:
        run(cluster, go)
        with unrecoverable():
            fresh(cluster)


async def outcomes_of(
    s: Stopped, calls: dict[str, Callable[[], Awaitable[Any]]], meanwhile: Callable[[], Awaitable[Any]]
) -> dict[str, Any]:
    """Start the calls in order while the process stands still; trim them away; then let it go on."""
    told: dict[str, Any] = {}

    async def call(name: str) -> None:
        try:
            told[name] = await calls[name]()
        except AlpoError as error:
            told[name] = error

    async with anyio.create_task_group() as tasks:
        for name in calls:
            tasks.start_soon(call, name)
            await anyio.sleep(0.5)
        assert not told
        await meanwhile()
        await s.trim()
        assert not told
        s.gate.open()
    return told


def test_commands_that_were_jumped_over() -> None:
    """Mutation L: done or refused only if the state tells so, and else `Unsettled`; never "failed" by default."""
    async def work(s: Stopped) -> None:
        await s.stop()
        state, other = s.state, s.other
        one = await state.fetch("name/1", local=True)
        two = await other.fetch("name/2")
        await other.put("name/2", b"newer")

        async def meanwhile() -> None:
            await other.put("overwritten", b"by another")
            await other.expunge(await other.fetch("expunged after"))

        told = await outcomes_of(s, {
            "put": lambda: state.put("mine", b"1"),
            "store": lambda: state.store(one.mutate(b"stored")),
            "refused": lambda: state.store(two.mutate(b"too late")),
            "no number": lambda: state.add("name/4", 1),
            "overwritten": lambda: state.put("overwritten", b"mine"),
            "expunged": lambda: state.put("expunged after", b"mine"),
            "add": lambda: state.add("counter", 10),
            "gone": lambda: state.put("name/3", None),
        }, meanwhile)
        assert isinstance(told["put"], Variable) and told["put"] == await other.fetch("mine")
        assert told["store"] == await other.fetch("name/1") and told["store"].value == b"stored"
        assert isinstance(told["refused"], Changed) and told["refused"].name == "name/2"
        newer = await other.fetch("name/2")
        assert (told["refused"].expected, told["refused"].version) == (two.version, newer.version)
        assert isinstance(told["no number"], NoInteger)
        for name in ("overwritten", "expunged", "add", "gone"):
            assert isinstance(told[name], Unsettled), name
            assert told[name].lsn > 0
        # all of those were done
        assert (await other.fetch("counter")).value == b"11"
        assert (await state.fetch("counter")).value == b"11"
        assert (await state.fetch("name/3")).value is None
        assert await state.add("counter", 1) == 12

    stopped(work)


def test_the_fold_after_the_jump_is_right() -> None:
    async def work(s: Stopped) -> None:
        await s.stop()
        before = s.state._folder.machine
        await s.trim()
        local = await s.state.fetch("between/1", local=True)
        assert local.version == 0 and s.state.lsn == before.lsn  # type: ignore[union-attr]
        s.gate.open()
        after = await machine_of(s.state)
        assert after is not before
        assert plain(after) == plain(await machine_of(s.other))
        await s.state.put("a", b"1")
        assert await s.state.names() == await s.other.names()

    stopped(work)


def test_watches_see_what_is_now() -> None:
    async def work(s: Stopped) -> None:
        async with s.state.watch("") as changes, s.state.watch("", every=True) as every:
            first = [(await anext(changes)).name for _ in range(6)]
            assert first == sorted([*(f"name/{i}" for i in range(5)), "counter"])
            await s.stop()
            await s.other.put("name/1", b"other")
            await s.other.put("name/1", b"last")
            await s.other.put("name/2", None)
            await s.other.put("new", b"n")
            await s.other.put("came and went", b"n")
            await s.other.put("came and went", None)
            await s.trim()
            s.gate.open()
            await machine_of(s.state)
            seen: dict[str, Variable] = {}
            with anyio.move_on_after(5):
                async for variable in changes:
                    assert variable.name not in seen
                    seen[variable.name] = variable
            gone = seen.pop("name/2")
            assert gone.value is None and gone.version == 0
            assert set(seen) - {"a page"} == {"name/1", "new", "between/0", "between/1"}
            assert list(seen.values()) == [await s.other.fetch(name) for name in seen]
            with pytest.raises(Behind):
                for _ in range(20):
                    await anext(every)
            # and it goes on
            await s.other.put("name/4", b"after")
            assert (await anext(changes)).value == b"after"

    stopped(work)


def test_it_is_stopped_again_and_again() -> None:
    async def go() -> None:
        async with new_log(cluster) as log, new_log(cluster) as others:
            gate = Gate(log)
            async with State(others, snapshots="off") as other, State(log, snapshots="off", timeout_s=100) as state:
                for i in range(6):
                    await state.put("mine", b"%d" % i)
                    gate.close()
                    for k in range(3):
                        await fill(other, 2, 60, str(k))
                        await anyio.sleep(2)
                        await other.snapshot(trim=True)
                    gate.open()
                    assert (await state.fetch("mine")).value == b"%d" % i
                machine = await machine_of(state)
                assert plain(machine) == plain(folded(cluster.log()[: machine.lsn]))

    with Cluster(seed=1, servers=1) as cluster:
        run(cluster, go)


def test_a_snapshot_that_was_jumped_over() -> None:
    """A snapshot whose begin was trimmed before its writer read it ends with `Unsettled`."""
    async def work(s: Stopped) -> None:
        now = s.state._folder.now

        async def now_and_stop(until_s: float | None = None) -> Any:
            machine = await now(until_s)
            await s.stop()
            return machine

        async def meanwhile() -> None:
            await anyio.sleep(40)  # its grant may be taken over

        s.state._folder.now = now_and_stop  # type: ignore[method-assign]
        told = await outcomes_of(s, {"snapshot": s.state.snapshot}, meanwhile)
        assert isinstance(told["snapshot"], Unsettled)
        s.state._folder.now = now  # type: ignore[method-assign]
        await s.state.snapshot(trim=True)

    stopped(work)


def test_everything_is_gone_while_it_stands_still() -> None:
    """A trim by hand removes every snapshot: waits end with `Unrecoverable`, and no call answers from the old fold."""
    async def work(s: Stopped) -> None:
        await s.stop()
        await s.other.put("a", b"1")
        await s.state.log.trim(await s.state.log.end(), force=True)
        s.gate.open()
        with pytest.raises(Unrecoverable):
            await s.state.fetch("a")
        end = await s.other.log.end()
        for call in (s.state.put("a", b"2"), s.state.fetch("a", local=True), s.state.snapshot()):
            with pytest.raises(Unrecoverable):
                await call
        assert await s.other.log.end() == end  # a call that cannot be judged sends nothing

    stopped(work)


def test_the_log_says_so_itself() -> None:
    """The follower's error is `OutOfRange`, so that the tests above test what they say."""
    async def work(states: list[State]) -> None:
        await fill(states[0], 3, 60)
        for _ in range(3):
            await states[0].snapshot(trim=True)
        with pytest.raises(OutOfRange):
            async for _ in states[1].log.follow(3):
                pass

    with Cluster(seed=1, servers=1) as cluster:
        with_states(cluster, 2, work)
