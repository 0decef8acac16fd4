"""The ends of the log, of a follower, and of a `Log` itself; text and JSON. Under trio and asyncio."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
from fake_cluster import SWALLOW, fake_cluster, until
from test_client_sync import cluster_in_a_thread

import alpo
from alpo.client.blocking import LoopThread, SeenFuture
from alpo_cli.output import payload_fields, rfc3339

pytestmark = pytest.mark.anyio


async def test_last_and_end() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        assert (await log.last(), await log.end()) == (None, 1)
        await log.append_batch([b"a", b"b", b"c"])
        last = await log.last()
        assert last is not None
        assert (last.lsn, last.payload, await log.end()) == (3, b"c", 4)
        assert all(ask.linearizable for _, ask in c.reads)
        await log.trim(before=4)
        assert (await log.last(), await log.end()) == (None, 4)
        opened = sum(server.connections for server in c.servers.values())
        for _ in range(10):
            await log.last()
            await log.end()
        assert sum(server.connections for server in c.servers.values()) == opened


async def test_following_from_the_end() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        following = log.follow(start="end")
        c.append("w", 1, 0, 1, b"before the first step")
        seen: list[bytes] = []
        async with anyio.create_task_group() as tasks:
            @tasks.start_soon
            async def follow() -> None:
                async for record in following:
                    seen.append(record.payload)
                    if record.payload == b"2":
                        return

            await until(lambda: len(c.reads) > 1)
            for payload in (b"1", b"2"):
                await log.append(payload)
        assert seen == [b"1", b"2"]
        of_one = log.follow("end", client="nobody")
        with anyio.move_on_after(0.2):
            await anext(of_one)
            raise AssertionError("there is nothing of nobody")
        wrongs: list[dict[str, Any]] = [{"start": "begin"}, {"start": "end", "last": 1}]
        for wrong in wrongs:
            with pytest.raises(ValueError):
                log.follow(**wrong)
        with pytest.raises(ValueError, match="start is an LSN, not 'end'"):
            log.read("end")  # type: ignore[arg-type]


@pytest.mark.parametrize("make", ["anyio", "native"])
async def test_an_event_ends_a_follower(make: str, anyio_backend: str) -> None:
    native: Callable[[], Any] = trio.Event if anyio_backend == "trio" else asyncio.Event
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        await log.append_batch([b"a", b"b", b"c"])
        stop = anyio.Event() if make == "anyio" else native()
        seen = []
        async for record in log.follow(stop=stop):  # with more at hand
            seen.append(record.lsn)
            if record.lsn == 2:
                stop.set()
        assert seen == [1, 2]
        assert [record async for record in log.follow(stop=stop)] == []
        stop = anyio.Event() if make == "anyio" else native()
        async with anyio.create_task_group() as tasks:
            @tasks.start_soon
            async def follow() -> None:
                assert [page async for page in log.follow_batches("end", stop=stop)] == []
                seen.append(0)

            await until(lambda: len(c.reads) > 5)
            stop.set()  # while it waits
        assert seen == [1, 2, 0]
        c.first_lsn = 4
        with pytest.raises(alpo.OutOfRange):  # raised as it is, not in an exception group
            await anext(log.follow(1, stop=native()))


async def test_closing_ends_a_follower_and_not_a_read() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        await log.append(b"a")
        c.page_entries_max = 1
        seen: list[str] = []
        async with anyio.create_task_group() as tasks:
            @tasks.start_soon
            async def follow() -> None:
                async for _ in log.follow():
                    seen.append("record")
                seen.append("end")

            await until(lambda: seen)
            await log.append(b"b")
            reading = log.read()
            await anext(reading)
            await log.close()
        assert seen[-1] == "end"
        with pytest.raises(alpo.Closed):
            async for _ in reading:
                seen.append("of a read that is cut short")


async def test_used_without_a_with() -> None:
    async with fake_cluster() as c:
        log = alpo.connect(c.addresses, client="n")
        await log.opened()
        assert (log.last_serial, await log.append(b"a")) == (0, 1)
        handle = log.append_nowait(b"b")
        async with anyio.create_task_group() as tasks:  # from any task
            tasks.start_soon(log.close)
        assert (await handle, log.closed) == (2, True)
        await log.close()
        with pytest.raises(alpo.Closed):
            log.append_nowait(b"c")
        unheard = alpo.connect(c.addresses, timeout_s=0.1)
        c.lead(0)
        unheard.append_nowait(b"d")
        with pytest.raises(alpo.Unavailable):
            await unheard.close()
        for never in (alpo.connect(c.addresses), alpo.connect(c.addresses, client="m")):
            await never.close()
            with pytest.raises(alpo.Closed):
                await never.append(b"e")
            with pytest.raises(alpo.Closed):
                async with never:
                    pass


async def test_closing_within_the_with() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        await log.append(b"a")
        await log.close()
        await anyio.lowlevel.checkpoint()  # the block goes on
        with pytest.raises(alpo.Closed):
            await log.append(b"b")


@pytest.mark.parametrize("run", [asyncio.run, trio.run], ids=["asyncio", "trio"])
def test_one_that_nobody_closes_ends_with_its_loop(run: Callable[..., Any]) -> None:
    with cluster_in_a_thread() as c:
        handles: list[alpo.Handle] = []

        async def main() -> None:
            log = alpo.connect(c.addresses)
            await log.append(b"a")
            c.script = lambda server, append: SWALLOW
            handles.append(log.append_nowait(b"b"))
            await until(lambda: len(c.appends) == 2)

        run(main() if run is asyncio.run else main)
        assert isinstance(handles[0].error, alpo.NotGuaranteed)


def test_the_end_of_the_program_closes_what_nobody_did() -> None:
    script = """
import sys, alpo
log = alpo.connect_sync(sys.argv[1])
for n in range(1000):
    log.append_nowait(b"x")
"""
    with cluster_in_a_thread() as c:
        ran = subprocess.run(
            [sys.executable, "-c", script, c.addresses], capture_output=True, text=True, timeout=60, check=False
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
        assert len(c.payloads) == 1000


@pytest.mark.parametrize("loop", ["for record in log.follow(): print(record.lsn, flush=True)",
                                  "for page in log.follow_batches(): print(len(page), flush=True)"])
def test_ctrl_c_in_a_follower_is_no_more_than_that(loop: str) -> None:
    # A background job of a shell inherits that SIGINT is ignored, and Python leaves that as it is.
    script = f"""
import signal, sys, alpo
signal.signal(signal.SIGINT, signal.default_int_handler)
log = alpo.connect_sync(sys.argv[1])
{loop}
"""
    with cluster_in_a_thread() as c:
        c.append("w", 1, 0, 1, b"x")
        with subprocess.Popen(
            [sys.executable, "-c", script, c.addresses], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running:
            assert running.stdout is not None and running.stderr is not None
            assert running.stdout.readline() == "1\n"
            running.send_signal(signal.SIGINT)
            told = running.stderr.read().splitlines()
        assert told[-1] == "KeyboardInterrupt"
        assert len([line for line in told if line.startswith("  File")]) <= 2, told
        assert len(told) <= 6, told


class Torn(threading.Condition):
    """Condition whose wait is interrupted when it does not have its lock back yet."""

    def wait(self, timeout: float | None = None) -> bool:
        self.release()
        raise KeyboardInterrupt


def test_ctrl_c_at_the_end_of_a_wait_is_no_error_of_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    future, other, loop = SeenFuture(), Future[None](), LoopThread()
    future._condition = other._condition = Torn()
    with pytest.raises(KeyboardInterrupt):
        future.result()
    with monkeypatch.context() as patched:
        patched.setattr(loop, "start_task_soon", lambda function: other)
        with pytest.raises(KeyboardInterrupt):
            loop.call(anyio.lowlevel.checkpoint)
    loop.close()


def test_an_event_of_threads_ends_a_blocking_follower() -> None:
    with cluster_in_a_thread() as c, alpo.connect_sync(c.addresses) as log:
        log.append(b"a")
        stop, begun, seen = threading.Event(), threading.Event(), []

        def follow() -> None:
            for record in log.follow(stop=stop):
                seen.append(record)
                begun.set()

        following = threading.Thread(target=follow)
        following.start()
        assert begun.wait(20)
        stop.set()
        following.join(20)
        assert [record.lsn for record in seen] == [1]
        assert list(log.read_batches()) == [seen]
        futures = [log.append_batch_nowait([b"b", b"c"]) for _ in range(3)]
        log.wait_room()
        assert [future.result().lsns for future in futures] == [range(n, n + 2) for n in (2, 4, 6)]


async def test_text_and_json() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses, client="n") as log:
        value = {"name": "Zoë", "n": [1, None]}
        assert await log.append_text("Grüße") == 1
        assert await log.append_json(value, serial=2) == 2
        assert await log.append(b"\xff") == 3
        text, found, raw = [record async for record in log.read()]
    assert (text.text, found.json(), found.text) == ("Grüße", value, '{"name":"Zoë","n":[1,null]}')
    with pytest.raises(UnicodeDecodeError):
        _ = raw.text
    with pytest.raises(ValueError):
        text.json()
    for record in (text, found, raw):
        told = json.loads(json.dumps(record.to_dict()))
        fields = {**record._asdict(), "time": rfc3339(record.time), **payload_fields(record.payload)}
        if record is raw:
            del fields["payload"]
        assert told == fields
    for wrong, error in ((float("nan"), ValueError), (object(), TypeError)):
        with pytest.raises(error):
            await log.append_json(wrong)
    with pytest.raises(TypeError, match="text is str, not bytes"):
        await log.append_text(b"x")  # type: ignore[call-overload]
