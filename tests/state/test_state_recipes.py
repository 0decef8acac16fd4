"""Locks: at most one body runs, what was got is given back, limits are kept; and a state that is left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from inspect import Signature, signature
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from snapshot_rig import cut_off

from alpo.errors import Closed, ProtocolError, TlsMismatch, Unavailable
from alpo.state import Changed, If, LockLost, Put, State, SyncState
from alpo.state.recipes import Election, Lock
from alpo.testing import Cluster

BACKENDS = ["asyncio", "trio"]


def both(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """The test that a coroutine function is: its first arguments are a cluster, and the states of two clients, "one"
    and "two". Its argument ``backend``, if it has one, is also the event loop."""
    async def go(cluster: Cluster, given: dict[str, Any]) -> None:
        async with cluster.connect("one") as a, cluster.connect("two") as b:
            async with State(a) as one, State(b) as two:
                await one.put("x", "founded")
                await two.fetch("x")
                await test(cluster, one, two, **given)

    @wraps(test)
    def on_its_own(**given: Any) -> None:
        with Cluster(seed=3) as cluster:
            anyio.run(go, cluster, given, backend=given.get("backend", "asyncio"))

    _, _, _, *others = signature(test).parameters.values()
    on_its_own.__signature__ = Signature(others)  # type: ignore[attr-defined]  # pytest looks for fixtures in it
    return on_its_own


@pytest.mark.parametrize("backend", BACKENDS)
@both
async def test_a_lock_that_was_told_of_too_late_is_not_entered(
    cluster: Cluster, one: State, two: State, backend: str
) -> None:
    """The reply to the try is lost; when it comes at last, another process has the lock."""
    inside: list[str] = []

    async def body(state: State, name: str, stay_s: float) -> None:
        async with Lock(state, "lock", ttl_s=3) as lock:
            assert lock.held and not inside
            inside.append(name)
            await state.log.clock.sleep(stay_s)
            inside.remove(name)

    async def later() -> None:
        await two.log.clock.sleep(4)
        await body(two, "two", 2)

    cluster.after(0.003, lambda: cut_off(cluster, "one"))
    cluster.after(8, cluster.heal)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(body, one, "one", 1)
        tasks.start_soon(later)


@pytest.mark.parametrize("backend", BACKENDS)
@both
async def test_a_lock_that_is_left_leaves_nothing_behind(
    cluster: Cluster, one: State, two: State, backend: str
) -> None:
    lock = Lock(one, "lock", ttl_s=1)
    for _ in range(3):
        async with lock:
            pass
        assert await lock.try_acquire()
        await lock.release()
    before = len(cluster.log())
    await one.log.clock.sleep(20)
    assert len(cluster.log()) == before, "a renewal goes on"
    assert not (await two.fetch("lock")).version


@pytest.mark.parametrize("backend", BACKENDS)
@both
async def test_a_wait_that_is_cancelled_gives_back_what_it_got(
    cluster: Cluster, one: State, two: State, backend: str
) -> None:
    for number in range(8):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Lock(one, f"x{number}", ttl_s=10_000).acquire)
            await one.log.clock.sleep(0.0005 * number)
            tasks.cancel_scope.cancel()
        await one.log.clock.sleep(1)
        assert not (await two.fetch(f"x{number}")).version


@both
async def test_limits_are_kept(cluster: Cluster, one: State, two: State) -> None:
    lock = Lock(one, "lock", ttl_s=3600)
    await lock.acquire()
    begun = cluster.now_s
    with pytest.raises(Unavailable, match="not free within 2 s"):
        await Lock(two, "lock", ttl_s=3600).acquire(timeout_s=2)
    assert cluster.now_s - begun < 3
    assert not await Lock(two, "lock", ttl_s=3600).try_acquire()
    await lock.release()
    begun = cluster.now_s
    await Lock(two, "lock", ttl_s=3600).acquire(timeout_s=2)
    assert cluster.now_s - begun < 1


@both
async def test_a_wait_without_a_limit_outlasts_an_outage(cluster: Cluster, one: State, two: State) -> None:
    cut_off(cluster, "one")
    cluster.after(25, cluster.heal)
    await Lock(one, "lock", ttl_s=5).acquire()


@pytest.mark.parametrize("backend", BACKENDS)
@both
async def test_a_lost_lock_cancels_its_body_and_is_told(cluster: Cluster, one: State, two: State, backend: str) -> None:
    lock = Lock(one, "lock", ttl_s=2)
    begun = cluster.now_s
    with pytest.raises(LockLost):
        async with lock:
            cut_off(cluster, "one")
            await one.log.clock.sleep(100)
    assert cluster.now_s - begun < 5 and not lock.held
    with pytest.raises(LockLost):
        _ = lock.token
    cluster.heal()
    async with lock, anyio.create_task_group() as tasks:  # again; a body may hold tasks
        tasks.start_soon(one.log.clock.sleep, 0.1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", ["taken by this process", "taken by another", "the state is loaded anew"])
@both
async def test_a_lock_is_lost_as_soon_as_its_process_knows(
    cluster: Cluster, one: State, two: State, backend: str, way: str
) -> None:
    """The lease lasts an hour; the holder's next renewal, in 20 minutes, would show the loss too late."""
    lock, anew = Lock(one, "lock", ttl_s=3600), way == "the state is loaded anew"
    begun = cluster.now_s

    async def take() -> None:
        if anew:
            cut_off(cluster, "one")
        await (one if way == "taken by this process" else two).put("lock", None)
        assert await Lock(two, "lock", ttl_s=3600).try_acquire()
        for _ in range(2 if anew else 0):
            await two.put("x", "1")
            await two.snapshot(trim=True)
        cluster.heal()
        await one.fetch("lock")
        assert not lock.held

    async with anyio.create_task_group() as tasks:
        with pytest.raises(LockLost):
            async with lock:
                assert lock.held
                tasks.start_soon(take)
                await one.log.clock.sleep(3600)
    assert cluster.now_s - begun < 60
    assert not lock.held and await lock.release()
    assert not await Lock(one, "lock", ttl_s=3600).try_acquire()


def test_a_blocking_lock_is_lost_as_soon_as_its_process_knows() -> None:
    with Cluster(seed=3) as cluster, cluster.connect_sync("one") as a, cluster.connect_sync("two") as b:
        with SyncState(a) as one, SyncState(b) as two:
            lock, other = one.lock("lock", 3600), two.lock("lock", 3600)
            lock.acquire()
            lock.require()
            two.put("lock", None)
            assert other.try_acquire()
            one.fetch("x")
            with pytest.raises(LockLost):
                lock.require()
            assert (lock.held, other.held) == (False, True)


@both
async def test_a_lock_taken_away_before_its_taker_looked_is_not_taken(cluster: Cluster, one: State, two: State) -> None:
    """The page with the try also holds the writes that take the lock away, so its taker folds all at once."""
    lock, told = Lock(one, "lock", ttl_s=3600), one._settling.result_of

    async def told_late(sent: Any) -> Any:
        result = await told(sent)
        await two.put("lock", "another's")
        await two.put("lock", None)
        await two.put("lock", "another's")
        await one.fetch("lock")
        return result

    one._settling.result_of = told_late  # type: ignore[method-assign]
    assert not await lock.try_acquire()
    assert not lock.held


@pytest.mark.parametrize("backend", BACKENDS)
@both
async def test_an_error_of_the_body_gives_the_lock_back(cluster: Cluster, one: State, two: State, backend: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Lock(one, "lock", ttl_s=1000) as lock:
            rows = one.rows("lock", fence=lock.token)
            await rows.put("r", "1")
            raise ZeroDivisionError
    async with Election(two, "lock", "two", ttl_s=1000).lead() as reign:
        assert reign.token > 0 and (await reign.holder()).text == "two"
        with pytest.raises(Changed):
            await rows.put("r", "2")


@both
async def test_a_lease_that_can_never_be_is_told_at_once(cluster: Cluster, one: State, two: State) -> None:
    for wrong in (0, -1, 2e9, float("nan")):
        with pytest.raises(ValueError, match="s"):
            Lock(one, "lock", ttl_s=wrong)


# -- a state that is left ---------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_that_is_left_answers_nothing_any_more(backend: str) -> None:
    async def go(cluster: Cluster) -> None:
        async with cluster.connect() as log:
            state = State(log)
            told: list[object] = []

            async def fetch() -> None:
                try:
                    told.append(await state.fetch("a"))
                except Closed as error:
                    told.append(error)

            async with anyio.create_task_group() as tasks:
                async with state:
                    await state.put("a", "1")
                    tasks.start_soon(fetch)
                    await anyio.lowlevel.checkpoint()
            assert all(isinstance(each, Closed) or each.text == "1" for each in told)  # type: ignore[attr-defined]
            for call in (lambda: state.fetch("a"), lambda: state.put("a", "1"), state.names):
                with pytest.raises(Closed):
                    await call()

    with Cluster(seed=1) as cluster:
        anyio.run(go, cluster, backend=backend)


@both
async def test_outcomes_are_told_to_those_whose_they_are(cluster: Cluster, one: State, two: State) -> None:
    """A plain append and a write of the state over one log, both of unknown outcome."""
    cut_off(cluster, "one")
    failed: list[str] = []

    async def appended() -> None:
        try:
            await one.log.append(b"plain", timeout_s=1)
        except Exception as error:
            failed.append(type(error).__name__)

    async def put() -> None:
        try:
            await one.put("y", "1")
        except Exception as error:
            failed.append(type(error).__name__)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(appended)
        tasks.start_soon(put)
    cluster.heal()
    assert failed == ["NotGuaranteed"] * 2
    mine = await one.settle()
    plain = await one.log.settle()
    assert len(mine) == 1 and set(plain) - set(mine), (mine, plain)
    assert (await one.fetch("y")).version == next(iter(mine.values()))
    assert await one.settle() == {}


@pytest.mark.parametrize("backend", BACKENDS)
@both
async def test_deadlines_are_on_the_logs_clock(cluster: Cluster, one: State, two: State, backend: str) -> None:
    log = one.log
    began_s = log.clock.now_s()
    with pytest.raises(Unavailable, match="did not come within 10 s"):
        await one.fetch("x", at_least=one.lsn + 1000)
    assert 10 <= log.clock.now_s() - began_s < 11
    lock = Lock(one, "lock", ttl_s=3)
    async with lock:
        cut_off(cluster, "one")
        began_s = log.clock.now_s()
    assert 3 <= log.clock.now_s() - began_s < 4
    cluster.heal()
    await lock.acquire()
    assert await lock.release() and await lock.release()
    await lock.acquire()
    cut_off(cluster, "one")
    assert not await lock.release()
    cluster.heal()


@pytest.mark.parametrize("error", [ProtocolError("another cluster"), TlsMismatch("a: TLS")], ids=["cluster", "tls"])
@both
async def test_a_lock_is_not_asked_for_again_where_no_other_try_betters_it(
    cluster: Cluster, one: State, two: State, error: Exception
) -> None:
    asked: list[float | None] = []

    async def refused(ifs: object, changes: object, timeout_s: float | None) -> Any:
        asked.append(timeout_s)
        raise error if len(asked) > 1 else Unavailable("no server answers")

    one.command = refused  # type: ignore[method-assign, assignment]
    with pytest.raises(type(error)):
        await Lock(one, "lock").acquire()
    assert len(asked) == 2


@both
async def test_no_time_to_wait_is_time_to_take_what_is_free(cluster: Cluster, one: State, two: State) -> None:
    lock, other = Lock(one, "lock"), Lock(two, "lock")
    await lock.acquire(timeout_s=0)
    began_s = one.log.clock.now_s()
    with pytest.raises(Unavailable, match="not free within 0 s"):
        await other.acquire(timeout_s=0)
    assert lock.held and one.log.clock.now_s() - began_s < 1


@pytest.mark.parametrize("version", [1, 1000])
def test_a_condition_that_cannot_hold_founds_no_state(version: int) -> None:
    async def go(cluster: Cluster) -> None:
        async with cluster.connect() as log, State(log) as state:
            with pytest.raises(Changed, match=f"'x' is not there, not at {version}"):
                await state.commit([If("x", version=version)], [Put("x", b"1")])
            assert await log.end() == 1

    with Cluster(seed=1) as cluster:
        anyio.run(go, cluster)
