"""Every public call that waits ends by its deadline, whatever it asks for within: a server that stands still is asked,
on virtual time. A call that is new is missing here until somebody says what it is given.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Generator
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import pytest
import trio.testing
from fake_cluster import fake_cluster

import alpo
import alpo.state
from alpo.errors import AlpoError, NotGuaranteed
from alpo.registry import Admit, Registry
from alpo.registry.rows import View, ViewWatch
from alpo.state import State, SyncState
from alpo.state.recipes import Election, Lock
from alpo.state.state import Rows
from alpo.state.sync import SyncLock, SyncRows
from alpo.state.variable import Add, Variable
from alpo.state.watching import Watch
from alpo.testing import Cluster

#: Timeouts in seconds: of the objects, and of calls that take a timeout.
MADE_WITH_S, GIVEN_S = 5.0, 2.0
#: Virtual seconds that a call may take beyond its timeout: timers are looked at every 0.05 s.
GRACE_S = 0.2
THEN = datetime(2026, 1, 1, tzinfo=UTC)
FENCE = 7

#: Arguments of every call that waits.
GIVEN: dict[str, dict[str, dict[str, Any]]] = {
    "Log": {
        "append": {"payload": b"x"}, "append_text": {"text": "x"}, "append_json": {"value": 1},
        "append_batch": {"payloads": [b"x", b"y"]}, "append_many": {"payloads": [b"x"] * 3},
        "append_nowait": {"payload": b"x"}, "append_batch_nowait": {"payloads": [b"x"]}, "wait_room": {}, "settle": {},
        "opened": {}, "read": {}, "read_batches": {}, "follow": {}, "follow_batches": {}, "last": {}, "end": {},
        "append_by_hand": {"payloads": [b"x"], "client": "other", "serial": 1}, "status": {}, "events": {"since": THEN},
        "sessions": {}, "drop_session": {"name": "other"}, "outcome": {"client": "other", "serial": 1},
        "wait_everyone": {"lsn": 1}, "settings": {}, "change_settings": {"wanted": {"window": 9}},
        "set_cursor": {"name": "n", "lsn": 1}, "cursors": {}, "drop_cursor": {"name": "n"}, "trim": {"before": 1},
        "add_member": {"id": 4, "address": "h:1"}, "remove_member": {"id": 1},
        "replace_member": {"id": 1, "address": "h:1"}, "transfer": {"target": 2}, "compact": {"server": 1}, "init": {},
        "backup": {"file": "never"}, "create_log": {"name": "b"}, "logs": {}, "set_log": {"name": "b", "lead": 1},
        "rename_log": {"name": "b", "new": "c"}, "delete_log": {"name": "b"},
        "close": {},
    },
    "State": {
        "fetch": {"name": "x"}, "names": {}, "status": {}, "snapshot": {}, "put": {"name": "x", "value": b"1"},
        "store": {"variable": Variable("x", b"1")}, "expunge": {"variable": Variable("x", b"1")},
        "update": {"name": "x", "function": lambda variable: b"1"}, "add": {"name": "n"},
        "keep": {"variable": Variable("x", b"1", 1, 1, THEN, 5.0)},
        "commit": {"guards": [], "operations": [Add("n", 1)]}, "settle": {}, "watch": {}, "close": {},
        "command": {"guards": [], "ops": [Add("n", 1).plain()]}, "folded": {},
    },
    "Rows": {"fetch": {"row": "r"}, "names": {}, "put": {"row": "r", "value": b"1"}},
    "Lock": {"acquire": {"timeout_s": MADE_WITH_S}, "try_acquire": {}, "holder": {}, "release": {}},
    "Election": {"leader": {}, "observe": {}},
    "Registry": {"open": {}, "apply": {"operation": Admit("a", 1)}, "close": {}},
    "View": {"watch": {}},
}
#: Calls that wait for nothing, or, by what they are, for ever; and what the table has instead of them.
NO_WAIT = {
    "Log": {
        "closed", "client", "epoch", "last_serial", "enter", "forked", "timeout_s", "cluster", "reason", "settled",
        "log", "run",
    },
    "State": {
        "log", "lsn", "time", "rows", "lock", "timeout_s", "subscribe", "unsubscribe", "start_soon", "need_home",
        "in_doubt", "close_at_once",
    },
    "Rows": {"name"}, "Lock": {"name", "token", "held", "require"}, "Election": {"lead"},
    "Registry": {"name", "token", "version", "rows", "view"},
    "View": {"name", "leader", "rows", "version", "token", "changed"},
}
KINDS: dict[type, str] = {
    alpo.Log: "Log", alpo.SyncLog: "Log", State: "State", SyncState: "State", Rows: "Rows", SyncRows: "Rows",
    Lock: "Lock", SyncLock: "Lock", Election: "Election", Registry: "Registry", View: "View",
}
#: Classes whose calls only wait for what others do: `close` ends that. (A `Command`'s result is what `put` waits for.)
FOR_EVER = {"Command", "Watch", "ViewWatch", "Records", "Batches"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_call_is_forgotten(kind: type) -> None:
    public = {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}
    own = set(getattr(kind, "__annotations__", {})) if kind is View else set()
    table = GIVEN[KINDS[kind]].keys() | NO_WAIT[KINDS[kind]]
    assert (public | own) - {"_state"} - table == set()


def test_no_class_is_forgotten() -> None:
    """Whatever a module of the library exports that has calls to await or to block in."""
    modules = (alpo, alpo.state, alpo.registry, alpo.state.recipes)
    classes = {each for module in modules for each in vars(module).values() if inspect.isclass(each)}
    waiting = {
        kind.__name__ for kind in classes if kind.__module__.startswith("alpo") and not kind.__name__.startswith("_")
        and any(inspect.iscoroutinefunction(member) for _, member in inspect.getmembers(kind))
    }
    assert waiting - {kind.__name__ for kind in KINDS} <= FOR_EVER


# -- servers that stand still --------------------------------------------------------------------------------------


def calls(kind: str, there: type) -> list[tuple[str, dict[str, Any], float]]:
    """(name, arguments, longest time in seconds) of each call that this class has."""
    found = []
    for name, given in GIVEN[kind].items():
        call = getattr(there, name, None)
        if call is None:  # a blocking class lacks some
            continue
        steps = 2 if name == "snapshot" else 1  # the deadline is for each of a snapshot's steps
        found.append((name, given, steps * MADE_WITH_S))
        if "timeout_s" in inspect.signature(call).parameters:
            found.append((name, {**given, "timeout_s": GIVEN_S}, GIVEN_S))
    return found


async def made(cluster: Cluster, kind: str, warm: bool, stack: AsyncExitStack) -> Any:
    """An object of this class; ``warm``: that the server has served."""
    log = await stack.enter_async_context(cluster.connect(timeout_s=MADE_WITH_S))
    if kind == "Log":
        if warm:
            await log.append(b"x")
        return log
    state = await stack.enter_async_context(State(log, timeout_s=MADE_WITH_S))
    registry = Registry(state, "agents", recover_timeout_s=MADE_WITH_S, write_timeout_s=MADE_WITH_S)
    fence = FENCE
    view = View("agents", None, registry.rows, 0, 0, frozenset(), state)
    if warm:
        fence = (await state.put("x", b"1")).created
        if kind == "View":
            view = await Registry.view(state, "agents")
    return {
        "State": state, "Rows": state.rows("x", fence), "Lock": Lock(state, "lock", 60),
        "Election": Election(state, "e"), "Registry": registry, "View": view,
    }[kind]


async def begin(it: Any, name: str, warm: bool) -> None:
    """Have the call make sense: an operation takes a registry that is led, say."""
    if warm and name in ("apply", "close") and isinstance(it, Registry):
        await it.open()
    if warm and name == "release":
        await it.acquire()


async def wait_for(result: Any) -> None:
    """Wait for what a call gave, once."""
    if inspect.isawaitable(result):
        result = await result
    elif isinstance(result, AsyncIterator) and not isinstance(result, Watch | ViewWatch):
        await anext(result)
    if isinstance(result, Watch | ViewWatch):
        async with result:
            pass


async def measured(cluster: Cluster, it: Any, name: str, given: dict[str, Any]) -> tuple[float, str]:
    """The seconds that a call takes, 100 at most, and what it raises."""
    began_s, told = cluster.now_s, ""
    try:
        with cluster._turns.move_on_at((began_s + 100) * 1e6, False):
            await wait_for(getattr(it, name)(**given))
    except (AlpoError, RuntimeError, ValueError) as error:
        told = f"{type(error).__name__}: {error}"
    return cluster.now_s - began_s, told


#: True if the server has served before it stands still; and for how many seconds it goes on, `AGAIN_S` later.
STANDING: dict[str, tuple[bool, float]] = {
    "from before": (False, 0), "all the time": (True, 0), "but for a moment": (True, 0.002),
    "but for a second": (True, 1),
}
AGAIN_S = 3.0


def faults(kind: str, row: tuple[str, dict[str, Any], float], took_s: float, told: str) -> list[str]:
    """A line for a call that took too long, or that could not be made."""
    name, given, most_s = row
    if took_s <= most_s + GRACE_S and not told.startswith(("RuntimeError", "ValueError")):
        return []
    return [f"{kind}.{name}{given}: {took_s:.1f} s of {most_s:g}; {told or 'returned'}"]


@pytest.mark.parametrize("standing", STANDING)
@pytest.mark.parametrize("kind", GIVEN)
def test_every_call_ends_by_its_deadline(kind: str, standing: str) -> None:
    warm, moment_s = STANDING[standing]
    late: list[str] = []

    async def main(cluster: Cluster, row: tuple[str, dict[str, Any], float]) -> None:
        async with AsyncExitStack() as stack:
            if not warm:
                cluster.pause(1)
            it = await made(cluster, kind, warm, stack)
            await begin(it, row[0], warm)
            over, stop = anyio.Event(), partial(cluster.pause, 1)
            cluster.pause(1)
            if moment_s:
                cluster.after(AGAIN_S, cluster.heal)
                cluster.after(AGAIN_S + moment_s, lambda: None if over.is_set() else stop())
            late.extend(faults(kind, row, *await measured(cluster, it, *row[:2])))
            over.set()
            cluster.heal()

    for row in calls(kind, next(each for each, of in KINDS.items() if of == kind)):
        with Cluster(seed=1, servers=1) as cluster:
            anyio.run(main, cluster, row)
    assert not late, "\n".join(["", *late])


@pytest.mark.parametrize("timeout_s", [0.5, 3.0, 7.0])
def test_so_does_a_page_that_was_asked_for_ahead(timeout_s: float) -> None:
    async def main(cluster: Cluster) -> None:
        async with cluster.connect() as log, log.follow(timeout_s=timeout_s) as records:
            await log.append(b"x")
            await anext(records)
            cluster.pause(1)
            took_s, told = await measured(cluster, records, "__anext__", {})
            assert abs(took_s - timeout_s) < GRACE_S and told.startswith("Unavailable")
            cluster.heal()

    with Cluster(seed=1, servers=1) as cluster:
        anyio.run(main, cluster)


def test_so_does_settling_what_nobody_tells() -> None:
    """Settling ends by its deadline, too; the tests above leave nothing to settle."""
    async def main(cluster: Cluster) -> None:
        async with cluster.connect(timeout_s=MADE_WITH_S) as log, State(log, timeout_s=MADE_WITH_S) as state:
            await state.put("x", b"1")
            cluster.pause(1)
            for it in (state, log):
                with pytest.raises(NotGuaranteed):
                    await (state.put("x", b"2") if it is state else log.append(b"x"))
                took_s, told = await measured(cluster, it, "settle", {})
                assert took_s <= MADE_WITH_S + GRACE_S and told.startswith("Unavailable: there are")
            cluster.heal()
            assert [type(lsn) for lsn in (await state.settle()).values()] == [int]
            assert await state.settle() == {}

    with Cluster(seed=1, servers=1) as cluster:
        anyio.run(main, cluster)


def blocked(cluster: Cluster, kind: type, log: alpo.SyncLog, row: tuple[str, dict[str, Any], float]) -> list[str]:
    """Faults of one call of a blocking class while the only server stands still."""
    it: Any = log
    if kind is not alpo.SyncLog:
        state = SyncState(log, timeout_s=MADE_WITH_S)
        rows, lock = state.rows("x", state.put("x", b"1").created), state.lock("lock", 60)
        if row[0] == "release":
            lock.acquire()
        it = {SyncState: state, SyncRows: rows, SyncLock: lock}[kind]
    cluster.pause(1)
    began_s, told = cluster.now_s, ""
    try:
        result = getattr(it, row[0])(**row[1])
        if isinstance(result, Future):
            result.result()
        elif isinstance(result, Generator):
            next(result)
    except (AlpoError, RuntimeError, ValueError) as error:
        told = f"{type(error).__name__}: {error}"
    found = faults(kind.__name__, row, cluster.now_s - began_s, told)
    cluster.heal()
    return found


@pytest.mark.parametrize("kind", [alpo.SyncLog, SyncState, SyncRows, SyncLock])
def test_so_does_every_blocking_one(kind: type) -> None:
    late: list[str] = []
    for row in calls(KINDS[kind], kind):
        with Cluster(seed=1, servers=1) as cluster, cluster.connect_sync(timeout_s=MADE_WITH_S) as log:
            late += blocked(cluster, kind, log, row)
    assert not late, "\n".join(["", *late])


@pytest.mark.trio
@pytest.mark.parametrize("name", ["status", "events", "end", "append", "settings", "change_settings"])
@pytest.mark.parametrize("silent", ["every server", "one of two"])
async def test_so_does_one_over_sockets_that_nobody_answers(
    name: str, silent: str, autojump_clock: trio.testing.MockClock
) -> None:
    """A deadline covers every step of a real connection, which a simulated one lacks: TCP, the hello, the answer."""
    async with fake_cluster(2) as c:
        c.servers[2].frozen = True
        c.servers[1].frozen = silent == "every server"
        c.leader = 2
        log = alpo.connect(c.addresses, timeout_s=MADE_WITH_S)
        for timeout_s in (GIVEN_S, 0.5):
            with trio.move_on_after(timeout_s + GRACE_S) as scope, suppress(AlpoError):
                await getattr(log, name)(**GIVEN["Log"][name], timeout_s=timeout_s)
            assert not scope.cancelled_caught
        with suppress(AlpoError):
            await log.close()
