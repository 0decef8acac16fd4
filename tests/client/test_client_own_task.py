"""Appends in the task of a caller who is alone, to which the connection is lent: nothing is lost, doubled or told late,
whatever else comes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from opcode import opname
from types import FrameType
from typing import Any

import anyio
import pytest
from fake_cluster import CUT, SWALLOW, TAKE, TAKE_CUT, Appends, FakeCluster, FakeServer, fake_cluster, hands_over, until
from test_client_own_thread import WARM, Stepping, interrupt, once

import alpo
from alpo.client import appender
from alpo.client.loan import Loan
from alpo.client.log import appender_of
from alpo.core.requests import Code

pytestmark = pytest.mark.anyio


def loan_of(log: alpo.Log) -> Loan | None:
    return appender_of(log).loan


async def warm(c: FakeCluster, log: alpo.Log) -> None:
    """Append until the connection is the caller's own."""
    while loan_of(log) is None:
        await log.append(b"warm")


@asynccontextmanager
async def alone(client: str | None = None, timeout_s: float = 20) -> AsyncIterator[tuple[FakeCluster, alpo.Log]]:
    """A cluster, and a log whose next append is its caller's own."""
    async with fake_cluster() as c, alpo.connect(c.addresses, client, timeout_s) as log:
        await warm(c, log)
        assert c.last_lsn == WARM
        yield c, log


@pytest.mark.parametrize("client", [None, "n"])
async def test_one_append_after_the_other_is_its_callers_own(client: str | None) -> None:
    async with alone(client) as (c, log):
        loan = loan_of(log)
        for n in range(20):
            assert await log.append(b"%d" % n) == WARM + n + 1
            assert [r.payload async for r in log.read(start=WARM + n + 1)] == [b"%d" % n]
        assert await log.append_batch([b"x", b"y"]) == range(WARM + 21, WARM + 23)
        assert loan_of(log) is loan is not None
        assert [append.serial for _, append in c.appends] == list(range(1, WARM + 22))
        with pytest.raises(ValueError, match="positive"):
            await log.append(b"x", timeout_s=-1)
        with pytest.raises(alpo.TooLarge):
            await log.append(bytes(2 << 20))


CALLS: dict[str, Callable[[alpo.Log, int], Awaitable[Any]]] = {
    "append_nowait": lambda log, last: log.append_nowait(b"b"),
    "append_many": lambda log, last: log.append_many([b"b"]),
    "serial": lambda log, last: log.append(b"b", serial=last + 1),
    "expect_last": lambda log, last: log.append(b"b", expect_last=last),
    "large": lambda log, last: log.append(b"b" * 100_000),
    "hurry": lambda log, last: log.append(b"b", timeout_s=0.4),
}


@pytest.mark.parametrize("call", CALLS)
async def test_another_call_between_keeps_its_place(call: str) -> None:
    async with alone("n") as (c, log):
        for last in range(WARM, 5 * (WARM + 2), WARM + 2):
            assert await log.append(b"a") == last + 1
            await CALLS[call](log, last + 1)
            assert loan_of(log) is None
            for _ in range(WARM):
                await log.append(b"warm")
            assert c.payloads[last:] == [b"a", b"b" * (100_000 if call == "large" else 1), *[b"warm"] * WARM]


@pytest.mark.parametrize("ends", ["answered", "first cancelled", "both cancelled", "cut"])
async def test_a_second_append_while_one_is_under_way(ends: str) -> None:
    async def append(payload: bytes, scope: anyio.CancelScope) -> None:
        with scope:
            await log.append(payload)

    async with alone() as (c, log):
        c.servers[1].frozen = True
        scopes = anyio.CancelScope(), anyio.CancelScope()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append, b"first", scopes[0])
            await until(lambda: (loan := loan_of(log)) is not None and loan._under_way)
            tasks.start_soon(append, b"second", scopes[1])
            await until(lambda: loan_of(log) is None)
            for scope in scopes[: {"first cancelled": 1, "both cancelled": 2}.get(ends, 0)]:
                scope.cancel()
            if ends == "cut":
                once(c, CUT)
            c.servers[1].frozen = False
        assert await log.append(b"third") == WARM + 3
        assert c.payloads[WARM:] == [b"first", b"second", b"third"]


async def test_a_cancelled_append_is_sent_once_and_the_next_follows() -> None:
    async with alone("n") as (c, log):
        for verdict in (TAKE, CUT, TAKE_CUT, SWALLOW) * 3:
            last = c.last_lsn

            def script(server: FakeServer, append: Appends, verdict: str = verdict) -> str:
                once(c, CUT) if verdict == SWALLOW else setattr(c, "script", lambda server, append: TAKE)
                scope.cancel()
                return verdict

            c.script = script
            with anyio.CancelScope() as scope:
                await log.append(b"cancelled")
            assert await log.append(b"next") == last + 2
            assert c.payloads[last:] == [b"cancelled", b"next"]
            await warm(c, log)


@pytest.mark.parametrize("verdict", [CUT, TAKE_CUT, Code.NOT_LEADER, Code.LOST_LEADERSHIP, "kill", "kill idle"])
async def test_a_leader_that_goes_loses_and_doubles_nothing(verdict: str | Code) -> None:
    async with alone() as (c, log):
        for number in range(10):
            old, last = c.servers[c.leader], c.last_lsn

            if verdict == "kill idle":
                c.lead(old.id % 3 + 1)
                old.kill()
                await anyio.wait_all_tasks_blocked()
            else:
                c.script = hands_over(c, verdict)
            assert await log.append(b"%d" % number) == last + 1
            assert c.payloads[last:] == [b"%d" % number]
            if str(verdict).startswith("kill"):
                await old.revive()
            await warm(c, log)


@pytest.mark.parametrize("frozen", [True, False])
async def test_a_deadline_is_told_while_the_server_is_silent_and_the_append_is_settled(frozen: bool) -> None:
    async with alone("n") as (c, log):
        c.servers[1].frozen, c.script = frozen, lambda server, append: SWALLOW
        with pytest.raises(alpo.NotGuaranteed, match="no answer in time") as caught:
            await log.append(b"late", timeout_s=0.7)
        assert caught.value.serial == WARM + 1
        once(c, TAKE if frozen else CUT)
        c.servers[1].frozen = False
        assert await log.append_nowait(b"next") == WARM + 2
        assert await log.settle() == {WARM + 1: WARM + 1}
        assert c.payloads[WARM:] == [b"late", b"next"]


@pytest.mark.parametrize("drain", [True, False])
async def test_closing_while_an_append_is_under_way(drain: bool) -> None:
    told: list[object] = []

    async def appending() -> None:
        try:
            told.append(await log.append(b"x"))
        except alpo.AlpoError as error:
            told.append(type(error))

    async with fake_cluster() as c:
        log = alpo.connect(c.addresses, timeout_s=20)
        await warm(c, log)
        c.servers[1].frozen = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(appending)
            await until(lambda: (loan := loan_of(log)) is not None and loan._under_way)
            if drain:
                tasks.start_soon(log.close)
                await until(lambda: loan_of(log) is None)
            else:
                appender_of(log).close()
            c.servers[1].frozen = False
        assert told == [WARM + 1 if drain else alpo.NotGuaranteed]
        await log.close()
        with pytest.raises(alpo.Closed):
            await log.append(b"x")


class Mine(Stepping):
    """Steps in the task that made it, but never as that yields: no signal comes between that and the event loop."""

    def __init__(self, at: int) -> None:
        super().__init__(at, interrupt)
        self._task = anyio.get_current_task().id

    def __call__(self, frame: FrameType, event: str, arg: object) -> Stepping | None:
        try:
            if anyio.get_current_task().id != self._task:
                return None
        except (RuntimeError, AttributeError):  # no task runs
            return None
        yields = event == "opcode" and opname[frame.f_code.co_code[frame.f_lasti]] == "YIELD_VALUE"
        return self if yields else super().__call__(frame, event, arg)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # coroutines that were never awaited
async def test_an_interrupt_at_any_instruction_loses_and_doubles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "LONE", 1)
    async with fake_cluster() as c, alpo.connect(c.addresses, "n", 20) as log:
        for at in range(1, 10_000, 3):
            await warm(c, log)
            last, payload, step = c.last_lsn, b"%d" % at, Mine(at)
            sys.settrace(step)
            with suppress(KeyboardInterrupt):
                await log.append(payload)
            sys.settrace(None)
            assert await log.append(b"next") > last
            assert c.payloads[last:] in ([b"next"], [payload, b"next"])
            if step.left > 0:
                break
        assert at > 300
