"""Appends through a fake cluster, under trio and asyncio."""

from __future__ import annotations

import asyncio
import socket

import anyio
import anyio.to_thread
import pytest
from fake_cluster import CUT, SWALLOW, TAKE, TAKE_CUT, TAKE_MUTE, fake_cluster, until

import alpo
from alpo.client.connection import Connection
from alpo.core.requests import Code
from alpo.wire.requests import Problem

pytestmark = pytest.mark.anyio


async def test_append_returns_the_lsn() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        assert await log.append(b"a") == 1
        assert await log.append_batch([b"b", b"c"]) == range(2, 4)
        assert await log.append(bytearray(b"d")) == 4
        assert log.client is not None and log.client.startswith("~")
        assert (log.epoch, log.last_serial) == (0, 0)
    assert [a.serial for _, a in c.appends] == [1, 2, 3]


async def test_finds_the_leader_from_any_server() -> None:
    async with fake_cluster() as c:
        c.lead(3)
        async with alpo.connect(c.servers[2].address) as log:
            assert await log.append(b"a") == 1
    assert [server for server, _ in c.appends] == [3]


async def test_what_queues_goes_in_one_frame() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        await log.append(b"first")
        handles = [log.append_nowait(b"%d" % n) for n in range(500)]
        lsns = [await handle for handle in handles]
    assert lsns == list(range(2, 502))
    assert len(c.appends) == 2


async def test_large_payloads_arrive_whole_though_the_kernel_takes_a_part_at_a_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        mine = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
    mine.setblocking(False)
    connection = Connection(mine, "other")
    parts = [bytes([n]) * size for n, size in enumerate((10, 9 << 20, 0, 70_000, 3))]
    got = bytearray()

    def read() -> None:
        with other:
            while len(got) < 2 * sum(map(len, parts)):
                got.extend(other.recv(1 << 16))

    for _ in range(2):  # the second time there is a backlog
        connection.send_parts(parts)
    assert connection.backlog
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, read)
        await connection.drain()
    assert got == b"".join(parts) * 2
    connection.close()


async def test_never_more_in_flight_than_the_window() -> None:
    async with fake_cluster() as c:
        c.window = 10
        c.script = lambda server, append: TAKE_MUTE
        async with alpo.connect(c.addresses, timeout_s=1.0) as log:
            handles = [log.append_nowait(b"x") for _ in range(35)]
            await until(lambda: c.appends)
            await until(lambda: all(h.done for h in handles))
            c.script = lambda server, append: TAKE
            assert {len(a.items) for _, a in c.appends} == {10}
            errors = [h.error for h in handles]
            assert [type(e) for e in errors] == [alpo.NotGuaranteed] * 10 + [alpo.Unavailable] * 25
            assert await log.settle(timeout_s=20) == {n: n for n in range(1, 11)}
            assert await log.append(b"y") == 11


async def test_redirect_resends_the_same_serials() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        await log.append(b"a")
        c.lead(2)
        assert await log.append(b"b") == 2
    assert [(server, a.serial) for server, a in c.appends] == [(1, 1), (1, 2), (2, 2)]
    assert c.payloads == [b"a", b"b"]


@pytest.mark.parametrize("verdict", [CUT, TAKE_CUT])
async def test_leader_dies_with_appends_in_flight(verdict: str) -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        await log.append(b"a")

        def die(server: object, append: object) -> str:
            c.lead(2)
            c.servers[1].kill()
            c.script = lambda server, append: TAKE
            return verdict

        c.script = die
        handles = [log.append_nowait(b"%d" % n) for n in range(20)]
        assert [await h for h in handles] == list(range(2, 22))
        assert await log.append(b"z") == 22
        assert all(h.duplicate == (verdict == TAKE_CUT) for h in handles)
    assert c.payloads == [b"a", *(b"%d" % n for n in range(20)), b"z"]


async def test_lost_leadership_is_retried_and_stays_unknown() -> None:
    async with fake_cluster() as c:
        c.script = lambda server, append: Code.LOST_LEADERSHIP
        async with alpo.connect(c.addresses, timeout_s=1.0) as log:
            with pytest.raises(alpo.NotGuaranteed) as caught:
                await log.append(b"a")
            assert (caught.value.client, caught.value.serial, caught.value.epoch) == (log.client, 1, 0)
            c.script = lambda server, append: TAKE
            assert await log.settle(timeout_s=20) == {1: 1}
            assert await log.settle() == {}
            assert await log.append(b"b") == 2
    assert c.payloads == [b"a", b"b"]


async def test_refused_unseen_is_unavailable_and_its_serial_used_again() -> None:
    async with fake_cluster() as c:

        def step_down(server: object, append: object) -> Code:
            c.lead(0)
            return Code.NOT_LEADER

        c.script = step_down
        async with alpo.connect(c.addresses, timeout_s=1.0) as log:
            first = log.append_nowait(b"a")
            later = log.append_nowait(b"b", timeout_s=30)
            with pytest.raises(alpo.Unavailable):
                await first
            assert len(c.appends) == 1
            c.script = lambda server, append: TAKE
            c.lead(1)
            assert await later == 1
            assert later.serial == 1
    assert c.payloads == [b"b"]


async def test_silent_server_leaves_the_outcome_unknown_and_first_in_line() -> None:
    async with fake_cluster() as c:
        c.script = lambda server, append: SWALLOW
        async with alpo.connect(c.addresses, timeout_s=1.0) as log:
            with pytest.raises(alpo.NotGuaranteed):
                await log.append(b"a")
            c.script = lambda server, append: TAKE
            c.lead(2)
            assert await log.append(b"b", timeout_s=30) == 2
    assert c.payloads == [b"a", b"b"]


async def test_frozen_leader_is_left_for_the_new_one() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses, timeout_s=30) as log:
        await log.append(b"a")
        c.servers[1].frozen = True
        c.lead(2)
        assert await log.append(b"b") == 2
        c.servers[1].frozen = False
        assert await log.append(b"c") == 3


async def test_nobody_there_is_unavailable() -> None:
    async with fake_cluster() as c:
        for server in c.servers.values():
            server.kill()
        async with alpo.connect(c.addresses, timeout_s=0.2) as log:
            with pytest.raises(alpo.Unavailable):
                await log.append(b"a")


async def test_a_full_cluster_is_overloaded() -> None:
    async with fake_cluster() as c:
        for server in c.servers.values():
            server.problem = Problem(Code.OVERLOADED, "1000 clients")
        async with alpo.connect(c.addresses, timeout_s=0.2) as log:
            with pytest.raises(alpo.Overloaded, match="1000 clients"):
                await log.append(b"a")
            for server in c.servers.values():
                server.problem = None
            assert await log.append(b"a", timeout_s=30) == 1


async def test_sizes_are_refused_before_anything_is_sent() -> None:
    async with fake_cluster() as c:
        c.payload_bytes_max, c.batch_bytes_max = 100, 200
        async with alpo.connect(c.addresses) as log:
            early = log.append_nowait(bytes(101))  # no server has said yet what is too large
            with pytest.raises(alpo.TooLarge):
                await early
            with pytest.raises(alpo.TooLarge):
                await log.append(bytes((1 << 20) + 1))
            with pytest.raises(alpo.TooLarge):
                await log.append_batch([bytes(90)] * 3)
            with pytest.raises(alpo.TooLarge):
                await log.append_batch([bytes(101), b""])
            assert await log.append_batch([bytes(90)] * 2) == range(1, 3)


async def test_the_local_queue_is_bounded() -> None:
    async with fake_cluster() as c:
        c.window = 4
        c.script = lambda server, append: SWALLOW
        async with alpo.connect(c.addresses, timeout_s=30, queue_max=10) as log:
            handles = [log.append_nowait(b"x") for _ in range(10)]
            with pytest.raises(alpo.Overloaded):
                log.append_nowait(b"x")
            c.script = lambda server, append: TAKE
            for server in c.servers.values():
                server.script = None
            await log.wait_room()
            handles.append(log.append_nowait(b"x"))
            c.lead(2)
            await handles[-1]
            assert [h.lsn for h in handles] == list(range(1, 12))


async def test_many_tasks_append_at_once() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses, queue_max=50) as log:
        lsns: list[int] = []

        async def one(n: int) -> None:
            lsns.append(await log.append(b"%d" % n))

        async with anyio.create_task_group() as tasks:
            for n in range(300):
                tasks.start_soon(one, n)
        assert sorted(lsns) == list(range(1, 301))


async def test_cancelled_before_sending_is_withdrawn() -> None:
    async with fake_cluster() as c:
        c.lead(0)
        async with alpo.connect(c.addresses) as log:
            with anyio.move_on_after(0.05) as scope:
                await log.append(b"never")
            assert scope.cancelled_caught
            c.lead(1)
            assert await log.append(b"a") == 1
    assert c.payloads == [b"a"]


async def test_callbacks_and_closing() -> None:
    async with fake_cluster() as c:
        called: list[int | None] = []
        async with alpo.connect(c.addresses) as log:
            for n in range(10):
                log.append_nowait(b"%d" % n).add_done_callback(lambda h: called.append(h.lsn))
        assert called == list(range(1, 11))
        with pytest.raises(alpo.Closed):
            await log.append(b"late")


async def test_closing_raises_only_what_nobody_was_told() -> None:
    async with fake_cluster() as c:
        c.lead(0)
        with pytest.raises(alpo.Unavailable):
            async with alpo.connect(c.addresses, timeout_s=0.1) as log:
                log.append_nowait(b"a")
        async with alpo.connect(c.addresses, timeout_s=0.1) as log:
            handle = log.append_nowait(b"a")
            with pytest.raises(alpo.Unavailable):
                await handle
        async with alpo.connect(c.addresses, timeout_s=0.1) as log:
            log.append_nowait(b"a").add_done_callback(lambda handle: None)


async def test_errors_of_the_body_come_out_as_they_are() -> None:
    async with fake_cluster() as c:
        with pytest.raises(KeyError):
            async with alpo.connect(c.addresses) as log:
                await log.append(b"a")
                raise KeyError("mine")


async def test_expired_id_is_replaced_silently_only_at_first() -> None:
    async with fake_cluster() as c:
        async with alpo.connect(c.addresses) as log:
            horizon = c.time_ms + 1000

            def end(server: object, append: object) -> str:
                c.horizon_ms = horizon  # set after the hello: the id was made without knowing it
                return TAKE

            c.script = end
            assert await log.append(b"a") == 1
            c.script = lambda server, append: TAKE
            first = log.client
            assert len({a.client for _, a in c.appends}) == 2
            assert first is not None
            del c.sessions[first]
            c.horizon_ms += 10_000
            with pytest.raises(alpo.SessionExpired):
                await log.append(b"b")
            assert await log.append(b"c") == 2
            assert log.client != first
    assert c.payloads == [b"a", b"c"]


async def test_random_ids_are_made_after_the_horizon() -> None:
    async with fake_cluster() as c:
        c.horizon_ms = c.time_ms + 5
        async with alpo.connect(c.addresses) as log:
            await log.append(b"a")
            assert log.client is not None
            assert int(log.client[1:].replace("-", "")[:12], 16) == c.horizon_ms + 1


async def test_a_callback_that_fails_harms_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        def fail(error: BaseException) -> None:
            raise error

        handle = log.append_nowait(b"a")
        for error in (ZeroDivisionError(), asyncio.CancelledError()):  # the latter: a cancelled future's result
            handle.add_done_callback(lambda _, error=error: fail(error))  # type: ignore[misc]
        other = log.append_nowait(b"b")
        other.add_done_callback(lambda _: fail(asyncio.CancelledError()))
        assert (await handle, await other) == (1, 2)
        handle.add_done_callback(lambda _: fail(asyncio.CancelledError()))
        assert await log.append(b"c") == 3
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [
        ZeroDivisionError, asyncio.CancelledError, asyncio.CancelledError, asyncio.CancelledError
    ]
