"""Logs, states, registries and watches entered in one task may be left in another, in none, or by a dying interpreter:
nothing hangs, and the event loop stays whole. One that belongs to an event loop refuses calls in another.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import unittest
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import pytest
import trio
from fake_cluster import FakeCluster, fake_cluster, until
from test_client_sync import cluster_in_a_thread

import alpo
import alpo.state
from alpo.errors import Closed
from alpo.registry import Admit, Registry
from alpo.state.recipes import Lock

pytestmark = pytest.mark.anyio

T = TypeVar("T")
Entered = Any
Make = Callable[[str], Awaitable[list[Entered]]]
Use = Callable[[Entered], Coroutine[Any, Any, object]]


async def log(at: str, *, client: str | None = None) -> list[Entered]:
    return [await alpo.connect(at, client=client).__aenter__()]


async def state(at: str) -> list[Entered]:
    return [await alpo.state.connect(at).__aenter__()]


async def bare_state(at: str) -> list[Entered]:
    return [alpo.state.connect(at)]


async def registry(at: str) -> list[Entered]:
    [entered] = await state(at)
    led = Registry(entered, "agents")
    await led.open()
    return [entered, led]


async def watch(at: str) -> list[Entered]:
    [entered] = await state(at)
    return [entered, await entered.watch().__aenter__()]


async def views(at: str) -> list[Entered]:
    entered, led = await registry(at)
    return [entered, led, await (await Registry.view(entered, "agents")).watch().__aenter__()]


NUMBERS = count()
#: Functions that enter objects, the last inside those before it; and one use of the last.
ENTERED: dict[str, tuple[Make, Use]] = {
    "Log": (log, lambda it: it.append(b"x")),
    "Log with a name": (partial(log, client="n"), lambda it: it.append(b"x")),
    "State": (state, lambda it: it.put("x", "1")),
    "State without async with": (bare_state, lambda it: it.put("x", "1")),
    "Registry": (registry, lambda it: it.apply(Admit(f"a{next(NUMBERS)}", 1))),
    "Watch": (watch, lambda it: it._folder.now()),
    "ViewWatch": (views, lambda it: it._state.fetch("x")),
}


async def in_a_task(work: Callable[[], Awaitable[T]]) -> T:
    """The result of ``work()`` in a task of its own, which has ended when this returns."""
    given: list[T] = []

    async def run() -> None:
        given.append(await work())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
    return given[0]


async def leave(entered: Entered) -> None:
    await entered.__aexit__(None, None, None)


async def close(entered: Entered) -> None:
    ended = entered.close()  # a watch's `close` is no coroutine
    if ended is not None:
        await ended


def running() -> int:
    """Number of tasks of the loop, where that can be told."""
    return len(asyncio.all_tasks()) if sys.modules.get("trio") is None or not trio.lowlevel.in_trio_task() else 0


@pytest.mark.parametrize("end", [leave, close])
@pytest.mark.parametrize("name", ENTERED)
async def test_what_one_task_enters_another_leaves(name: str, end: Callable[[Entered], Awaitable[None]]) -> None:
    make, use = ENTERED[name]
    async with fake_cluster(1) as c:
        before = running()
        *others, entered = await in_a_task(lambda: make(c.addresses))
        await in_a_task(lambda: use(entered))
        await in_a_task(lambda: end(entered))
        await in_a_task(lambda: close(entered))  # again: nothing
        if "Watch" in name:
            assert [each async for each in entered] == []
        else:
            with pytest.raises(Closed):
                await use(entered)
        for other in reversed(others):
            await close(other)
        await until(lambda: running() <= before)


@pytest.mark.parametrize("name", ENTERED)
async def test_a_deadline_around_the_entering_alone_ends_with_it(name: str) -> None:
    """An object outlives a deadline around its entering alone, such as `asyncio.timeout` around one await."""
    make, use = ENTERED[name]
    async with fake_cluster(1) as c:
        with anyio.fail_after(60):
            entered = await make(c.addresses)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use, entered[-1])
        await use(entered[-1])
        for each in reversed(entered):
            await close(each)


async def test_what_a_cancelled_task_had_entered_lives_on() -> None:
    async with fake_cluster(1) as c, AsyncExitStack() as stack:
        entered: list[alpo.Log] = []

        async def handle_a_request() -> None:
            entered.append(await stack.enter_async_context(alpo.connect(c.addresses)))
            await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handle_a_request)
            while not entered:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        assert await entered[0].append(b"x") == 1


async def test_a_generator_that_other_tasks_resume() -> None:
    """An async generator may be resumed by other tasks, as fixtures are, and as a framework's lifespan is."""
    @asynccontextmanager
    async def lifespan(at: str) -> AsyncIterator[alpo.state.State]:
        async with alpo.connect(at) as log, alpo.state.State(log) as state, Registry(state, "agents") as registry:
            await registry.apply(Admit("a", 1))
            yield state

    async with fake_cluster(1) as c:
        context = lifespan(c.addresses)
        state = await in_a_task(context.__aenter__)
        assert (await state.put("x", "1")).version > 0
        await in_a_task(partial(context.__aexit__, None, None, None))
        assert state.log.closed


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(1) as c:
        yield c


@pytest.fixture
async def opened(cluster: FakeCluster) -> AsyncIterator[alpo.state.State]:
    async with alpo.state.connect(cluster.addresses, client="n") as state:
        yield state


async def test_a_fixture_of_pytest(opened: alpo.state.State) -> None:
    async with Lock(opened, "lock") as lock:
        assert lock.held


async def test_closing_before_anything_was_done() -> None:
    async with fake_cluster(1) as c:
        state = alpo.state.connect(c.addresses)
        await state.close()
        with pytest.raises(Closed):
            await state.fetch("x")
        async with alpo.connect(c.addresses) as log:
            registry = Registry(alpo.state.State(log), "agents")
            await registry.close()
            with pytest.raises(Closed):
                await registry.apply(Admit("a", 1))


async def test_a_mistake_in_a_task_behind_is_told_to_who_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_cluster(1) as c:
        log = alpo.connect(c.addresses)
        monkeypatch.setattr(log._appender, "_pump", lambda: 1 // 0)
        with pytest.raises(BaseExceptionGroup) as told:
            async with log:
                with pytest.raises(Closed):
                    await log.append(b"x")
        assert told.group_contains(ZeroDivisionError)


# -- asyncio's own ways --------------------------------------------------------------------------------------------


def test_the_context_of_an_isolated_asyncio_test_case() -> None:
    with cluster_in_a_thread() as c:
        class Case(unittest.IsolatedAsyncioTestCase):
            async def asyncSetUp(self) -> None:
                self.state = await self.enterAsyncContext(alpo.state.connect(c.addresses))

            async def test_writing(self) -> None:
                await self.state.put("x", "1")

        result = unittest.TestResult()
        Case("test_writing").run(result)
        assert (result.testsRun, result.errors, result.failures) == (1, [], [])


def test_a_lock_that_another_task_leaves_is_given_back() -> None:
    """The other task gets a RuntimeError; the lock is free afterwards, and the event loop is unharmed."""
    async def main(at: str) -> None:
        async with alpo.state.connect(at) as state:
            lock = Lock(state, "lock")
            await asyncio.create_task(lock.__aenter__())
            with pytest.raises(RuntimeError, match=r"acquire\(\) and release\(\)"):
                await asyncio.create_task(lock.__aexit__(None, None, None))
            assert not lock.held
            async with Lock(state, "lock"):
                pass

    with cluster_in_a_thread() as c:
        asyncio.run(main(c.addresses))


@pytest.mark.parametrize("name", ENTERED)
def test_what_is_never_left_ends_with_its_loop(name: str, anyio_backend: str) -> None:
    make, use = ENTERED[name]
    left: list[Entered] = []

    async def main(at: str) -> None:
        left.extend(await make(at))
        await use(left[-1])

    async def again() -> None:
        under: Any = getattr(left[0], "log", left[0])
        assert under.closed  # with its connections
        with pytest.raises(Closed, match="ended with its event loop"):
            await use(left[-1])
        for each in reversed(left):
            await close(each)

    with cluster_in_a_thread() as c:
        anyio.run(main, c.addresses, backend=anyio_backend)
        anyio.run(again, backend=anyio_backend)


# -- blocking ones -------------------------------------------------------------------------------------------------

#: Programs that never leave what they entered. Each of them is to end by itself.
NEVER_LEFT = '''
import contextlib, sys, threading
import alpo, alpo.state
from alpo.state import SyncState

def plain(at):
    return alpo.state.connect_sync(at).__enter__()

def of_a_log(at):
    state = SyncState(alpo.connect_sync(at))
    state.put("x", "1")  # it opens with the first call
    return state

def generator(at):
    def states():
        with alpo.state.connect_sync(at) as state:
            yield state
    found = states()
    next(found)
    return found

def in_a_thread(at):
    kept = []
    thread = threading.Thread(target=lambda: kept.append(plain(at)))
    thread.start()
    thread.join()
    return kept

at = sys.argv[1]
kept = [plain(at), of_a_log(at), generator(at), in_a_thread(at)]
lock = kept[0].lock("lock")
lock.acquire()
watch = kept[0].watch()
next(watch)
print("used", flush=True)
with contextlib.ExitStack() as stack:
    stack.enter_context(alpo.state.connect_sync(at))
    sys.exit(3)
'''


def test_a_process_ends_that_leaves_no_blocking_state() -> None:
    with cluster_in_a_thread() as c:
        ran = subprocess.run(
            [sys.executable, "-c", NEVER_LEFT, c.addresses], capture_output=True, text=True, timeout=60, check=False
        )
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "used\n", "")


def test_after_an_interrupt_the_end_waits_for_no_append() -> None:
    """Python's exit after Ctrl-C waits for no append, just as the end of a `with` waits for none."""
    program = (
        "import sys, alpo; log = alpo.connect_sync(sys.argv[1], timeout_s=3600); log.append_nowait(b'x');"
        " raise KeyboardInterrupt"
    )
    with cluster_in_a_thread() as c:
        c.leader = 0
        ran = subprocess.run(
            [sys.executable, "-c", program, c.addresses], capture_output=True, text=True, timeout=60, check=False
        )
    assert "KeyboardInterrupt" in ran.stderr


def test_a_blocking_log_may_be_left_before_its_states() -> None:
    with cluster_in_a_thread() as c:
        with alpo.connect_sync(c.addresses) as log:
            state = alpo.state.SyncState(log).__enter__()
            state.put("x", "1")
        with pytest.raises(Closed):
            state.fetch("x")
        state.close()
        state.close()


def test_a_blocking_state_may_be_left_in_another_thread() -> None:
    with cluster_in_a_thread() as c, ExitStack() as stack:
        states: list[alpo.state.SyncState] = []

        def work() -> None:
            states.append(stack.enter_context(alpo.state.connect_sync(c.addresses)))
            states[0].put("x", "1")

        for function in (work, stack.close):
            thread = threading.Thread(target=function)
            thread.start()
            thread.join()
        with pytest.raises(Closed):
            states[0].fetch("x")


# -- other event loops ---------------------------------------------------------------------------------------------


def foreign_calls(
    log: alpo.Log, state: alpo.state.State, registry: Registry, watch: Any, views: Any, handle: Any
) -> list[Any]:
    """Functions to call in another event loop than the log's; each returns an awaitable, or raises."""
    lock = Lock(state, "lock")

    async def awaited() -> None:
        await handle

    async def queued() -> None:
        log.append_nowait(b"x")

    async def queued_batch() -> None:
        log.append_batch_nowait([b"x"])

    async def left() -> None:
        watch.close()

    async def views_left() -> None:
        views.close()

    return [
        lambda: log.append(b"x"), lambda: log.append_many([b"x"]), queued, queued_batch,
        awaited, left, views_left, log.end, log.last, log.settle, log.opened, log.wait_room, log.status, log.settings,
        lambda: anext(log.read()), lambda: anext(log.follow()),
        log.close, lambda: state.fetch("x"), lambda: state.fetch("x", local=True), lambda: state.put("x", "1"),
        state.names, state.status, state.snapshot, state.settle, state.watch().__aenter__, watch.__anext__, state.close,
        lambda: state.update("x", lambda variable: None), lock.acquire, lock.try_acquire, lock.holder,
        lock.release, lambda: registry.apply(Admit("b", 1)), lambda: Registry.view(state, "agents"), registry.close,
    ]


def told_in_another_loop(calls: list[Any], backend: str) -> list[BaseException | None]:
    """Errors that the calls raise in a new event loop; None for a call that raises none."""
    told: list[BaseException | None] = []

    async def main() -> None:
        for call in calls:
            try:
                with anyio.move_on_after(20):
                    await call()
                told.append(None)
            except BaseException as error:
                told.append(error)

    anyio.run(main, backend=backend)
    return told


@pytest.mark.parametrize("where", ["another thread", "the same thread"])
def test_a_call_of_another_loop_is_refused_at_once(where: str) -> None:
    async def main(at: str, use: Callable[[list[Any]], Awaitable[list[BaseException | None]]]) -> None:
        async with alpo.connect(at) as log, alpo.state.State(log) as state, Registry(state, "agents") as registry:
            unheard = alpo.connect("127.0.0.1:1", timeout_s=0.1)
            seen = await Registry.view(state, "agents")
            async with state.watch() as watch, seen.watch() as views:
                calls = foreign_calls(log, state, registry, watch, views, unheard.append_nowait(b"x"))
                for number, error in enumerate(await use(calls)):
                    assert isinstance(error, RuntimeError), (number, error)
                    assert "another" in str(error) and "event loop" in str(error), number
                await unheard.close()
                await calls[0]()  # here all of them work yet
                await state.put("x", "1")
                await registry.apply(Admit("c", 1))

    async def in_a_thread(calls: list[Any]) -> list[BaseException | None]:
        return await asyncio.to_thread(told_in_another_loop, calls, "asyncio")

    with cluster_in_a_thread() as c:
        if where == "another thread":
            asyncio.run(main(c.addresses, in_a_thread))
            return
        # Fixtures of a wider scope run in a loop of their own, which stands still while a test runs: do so here.
        loop = asyncio.new_event_loop()
        turn: asyncio.Future[list[BaseException | None]] = loop.create_future()
        asked: list[list[Any]] = []

        async def standing_still(calls: list[Any]) -> list[BaseException | None]:
            asked.append(calls)
            loop.call_soon(loop.stop)
            return await turn

        task = loop.create_task(main(c.addresses, standing_still))
        task.add_done_callback(lambda task: loop.stop())
        loop.run_forever()
        turn.set_result(told_in_another_loop(asked[0], "asyncio"))
        loop.run_until_complete(task)
        loop.close()


def test_a_log_that_only_reads_belongs_to_no_loop() -> None:
    with cluster_in_a_thread() as c:
        log = alpo.connect(c.addresses)
        assert [asyncio.run(log.end()) for _ in range(2)] == [1, 1]
        trio.run(log.close)
