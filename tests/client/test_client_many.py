"""`append_many`: each payload once and in order, bounded memory, a true number, and a second start goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from fake_cluster import SWALLOW, TAKE, TAKE_MUTE, FakeCluster, fake_cluster, until

import alpo
from alpo.client.handle import CHUNK, IN_FLIGHT_MAX

pytestmark = pytest.mark.anyio


def payloads(c: FakeCluster) -> list[bytes]:
    return [entry[7] for entry in c.entries]


def numbers(count: int, taken: list[int] | None = None) -> Iterator[bytes]:
    for n in range(count):
        if taken is not None:
            taken.append(n)
        yield b"%d" % n


def take_again(c: FakeCluster) -> None:
    c.script = lambda server, append: TAKE
    for server in c.servers.values():
        server.script = None
    c.lead(2)


async def test_each_payload_is_there_once_and_in_order() -> None:
    told: list[int] = []
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        assert await log.append_many([]) == 0
        assert await log.append_many(numbers(5_000), progress=told.append) == 5_000
        assert await log.append_many(b"ab" for _ in range(3)) == 3
    assert payloads(c) == [*numbers(5_000), b"ab", b"ab", b"ab"]
    assert told == sorted(told) and 0 < told[-1] <= 5_000


async def test_the_source_is_not_read_far_ahead() -> None:
    taken: list[int] = []
    async with fake_cluster() as c:
        c.script = lambda server, append: SWALLOW
        async with alpo.connect(c.addresses, timeout_s=60) as log:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(log.append_many, numbers(100_000, taken))
                await until(lambda: len(taken) >= IN_FLIGHT_MAX)
                await anyio.wait_all_tasks_blocked()
                assert len(taken) <= IN_FLIGHT_MAX + CHUNK
                tasks.cancel_scope.cancel()
            take_again(c)


async def test_what_was_not_sent_is_taken_back_when_it_is_cancelled() -> None:
    async with fake_cluster() as c:
        c.window = 4
        c.script = lambda server, append: SWALLOW
        async with alpo.connect(c.addresses, timeout_s=60) as log:
            with anyio.move_on_after(0.2):
                await log.append_many(numbers(10_000))
            take_again(c)
            await log.append(b"next")
    assert payloads(c) in ([b"next"], [*numbers(4), b"next"])


@pytest.mark.parametrize("at", [0, 700, 5_999])
async def test_after_an_error_no_more_is_sent(at: int) -> None:
    told: list[int] = []
    async with fake_cluster() as c:
        c.payload_bytes_max = 100
        async with alpo.connect(c.addresses) as log:
            await log.append(b"first")
            source = (bytes(101) if n == at else b"%d" % n for n in range(6_000))
            with pytest.raises(alpo.TooLarge):
                await log.append_many(source, progress=told.append)
    assert payloads(c) == [b"first", *numbers(at)]
    assert all(done <= at for done in told)


async def test_a_payload_of_another_type_is_refused() -> None:
    wrong: Any = [b"a", "b"]
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        with pytest.raises(TypeError):
            await log.append_many(wrong)
    assert payloads(c) == []


async def test_an_unknown_outcome_is_told_before_any_other_error() -> None:
    async with fake_cluster() as c:
        c.script = lambda server, append: TAKE_MUTE
        c.window = 3
        async with alpo.connect(c.addresses, timeout_s=1.0) as log:
            with pytest.raises(alpo.NotGuaranteed) as caught:
                await log.append_many(numbers(10))
            assert caught.value.serial == 1
            c.script = lambda server, append: TAKE
            assert set((await log.settle(timeout_s=20)).values()) == {1, 2, 3}


async def test_a_second_start_goes_on_where_the_first_ended() -> None:
    async with fake_cluster() as c:
        async with alpo.connect(c.addresses, client="import") as log:
            assert await log.append_many(numbers(1_000), serial=1) == 1_000
        async with alpo.connect(c.addresses, client="import") as log:
            assert await log.append_many(numbers(3_000), serial=1) == 3_000
    assert payloads(c) == list(numbers(3_000))


async def test_from_a_thread() -> None:
    told: list[int] = []

    def work(addresses: str) -> None:
        with alpo.connect_sync(addresses, client="import") as log:
            assert log.append_many(numbers(3_000), serial=1, progress=told.append) == 3_000
            with pytest.raises(TypeError):
                log.append_many([1])  # type: ignore[list-item]
        with pytest.raises(alpo.Closed):
            log.append_many([b"x"])

    async with fake_cluster() as c:
        await anyio.to_thread.run_sync(work, c.addresses)
    assert payloads(c) == list(numbers(3_000))
    assert told == sorted(told)


@pytest.mark.parametrize("blocking", [False, True])
async def test_what_was_not_sent_is_taken_back_when_the_source_fails(blocking: bool) -> None:
    def source() -> Iterator[bytes]:
        yield from numbers(1_000)
        raise OSError("unplugged")

    def work(addresses: str) -> None:
        with alpo.connect_sync(addresses, timeout_s=60) as log, pytest.raises(OSError, match="unplugged"):
            log.append_many(source())

    async with fake_cluster() as c:
        c.window = 4
        if blocking:
            await anyio.to_thread.run_sync(work, c.addresses)
        else:
            async with alpo.connect(c.addresses, timeout_s=60) as log:
                with pytest.raises(OSError, match="unplugged"):
                    await log.append_many(source())
        assert payloads(c) == list(numbers(len(c.entries)))
        assert len(c.entries) < CHUNK or blocking  # the loop of a thread may have sent them meanwhile
