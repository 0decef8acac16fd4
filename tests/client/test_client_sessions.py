"""Named sessions (R22) through a fake cluster, under trio and asyncio."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest
from fake_cluster import CUT, TAKE, TAKE_CUT, TAKE_MUTE, FakeServer, fake_cluster, until

import alpo
from alpo.core.requests import Code
from alpo.wire.requests import Append, RequestRefused

pytestmark = pytest.mark.anyio


async def test_serials_go_on_where_they_ended() -> None:
    async with fake_cluster() as c:
        async with alpo.connect(c.addresses, client="billing") as log:
            first = log.epoch
            assert log.last_serial == 0
            await log.append(b"a")
            await log.append(b"b")
        async with alpo.connect(c.addresses, client="billing") as log:
            assert log.epoch > first
            assert log.last_serial == 2
            assert await log.append(b"c") == 3
    assert [(a.serial, a.epoch) for _, a in c.appends] == [(1, first), (2, first), (3, log.epoch)]
    assert [(o.replaces, len(o.nonce)) for _, o in c.opens] == [(0, 16), (0, 16), (first, 16)]
    assert len({o.nonce for _, o in c.opens}) == 3


async def test_the_older_process_is_fenced_for_good() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses, client="n") as old:
        await old.append(b"a")
        async with alpo.connect(c.addresses, client="n") as new:
            with pytest.raises(alpo.Fenced) as caught:
                await old.append(b"late")
            assert caught.value.epoch == new.epoch
            with pytest.raises(alpo.Fenced):
                old.append_nowait(b"later")
            assert await new.append(b"b") == 2
    assert c.payloads == [b"a", b"b"]
    assert len(c.opens) == 3


async def test_fenced_with_a_lost_try_is_unknown() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses, client="n") as old:
        await old.append(b"a")

        def lose(server: object, append: object) -> str:
            c.sessions["n"].epoch += 100
            c.script = lambda server, append: TAKE
            return CUT

        c.script = lose
        handle = old.append_nowait(b"b")
        with pytest.raises(alpo.NotGuaranteed) as caught:
            await handle
        assert caught.value.too_old
        with pytest.raises(alpo.Fenced):
            await old.append(b"c")


async def test_fenced_though_the_newer_process_has_used_the_serial() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses, client="n") as old:
        await old.append(b"a")
        async with alpo.connect(c.addresses, client="n") as new:
            await new.append(b"b")
            with pytest.raises(alpo.Fenced):
                await old.append(b"c")
            with pytest.raises(alpo.Fenced):
                await old.append(b"d")
    assert c.payloads == [b"a", b"b"]


@pytest.mark.parametrize("verdict", [CUT, TAKE_CUT])
async def test_a_lost_open_is_asked_again_with_its_nonce(verdict: str) -> None:
    async with fake_cluster() as c:

        def once(server: object, append: object) -> str:
            c.script = lambda server, append: TAKE
            return verdict

        c.script = once
        async with alpo.connect(c.addresses, client="n") as log:
            await log.opened()
            assert await log.append(b"a") == 1
    assert len({(o.replaces, o.nonce) for _, o in c.opens}) == 1
    assert len(c.opens) == 2


async def test_two_processes_open_at_once() -> None:
    async with fake_cluster() as c:
        ended: list[str] = []

        async def one(name: bytes) -> None:
            async with alpo.connect(c.addresses, client="n") as log:
                await log.opened()
                try:
                    for _ in range(20):
                        await log.append(name)
                except alpo.Fenced:
                    ended.append("fenced")
                else:
                    ended.append("done")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, b"a")
            tasks.start_soon(one, b"b")
        assert "done" in ended
    assert [e[4] for e in c.entries] == list(range(1, len(c.entries) + 1))


async def test_connect_does_not_raise_and_opens_later() -> None:
    async with fake_cluster() as c:
        c.lead(0)
        async with alpo.connect(c.addresses, client="n", timeout_s=0.2) as log:
            for name in ("epoch", "last_serial"):
                with pytest.raises(alpo.Unavailable, match="opened"):
                    getattr(log, name)
            with pytest.raises(alpo.Unavailable):
                await log.opened(timeout_s=0.05)
            with pytest.raises(alpo.Unavailable):
                await log.append(b"a")
            c.lead(2)
            assert await log.append(b"b", timeout_s=30) == 1
            assert log.last_serial == 0


async def test_too_many_names() -> None:
    async with fake_cluster() as c, anyio.create_task_group() as tasks:
        refused = alpo.wire.requests.RequestRefused
        real = c.open
        c.open = lambda ask: refused(cast(int, ask.origin), Code.TOO_MANY_NAMES, 0, 0, "", "10000 names")  # type: ignore[method-assign]
        async with alpo.connect(c.addresses, client="n", timeout_s=30) as log:
            with pytest.raises(alpo.Refused, match="10000"):
                await log.append(b"a")
            c.open = real  # type: ignore[method-assign]
            assert await log.append(b"b") == 1
        tasks.cancel_scope.cancel()


async def test_a_program_that_numbers_its_payloads() -> None:
    async with fake_cluster() as c:
        async with alpo.connect(c.addresses, client="n") as log:
            handles = [log.append_nowait(b"%d" % n, serial=n) for n in range(1, 6)]
            assert [await h for h in handles] == [1, 2, 3, 4, 5]
            assert await log.append(b"3", serial=3) == 3
            with pytest.raises(alpo.SerialReused):
                await log.append(b"other", serial=3)
            with pytest.raises(alpo.SerialExpected) as caught:
                await log.append(b"9", serial=9)
            assert caught.value.expected == 6
            with pytest.raises(ValueError, match="serial"):
                await log.append(b"0", serial=0)
            assert await log.append(b"6") == 6
        async with alpo.connect(c.addresses, client="n") as log:
            assert await log.append(b"4", serial=4) is None
            assert await log.append(b"7", serial=7) == 7


async def test_sparse_batches_skip_serials() -> None:
    async with fake_cluster() as c:
        async with alpo.connect(c.addresses, client="spark") as log:
            assert await log.append_batch([b"a", b"b"], serial=10) == range(1, 3)
            assert await log.append_batch([b"a", b"b"], serial=10) == range(1, 3)
            assert await log.append_batch([b"c"], serial=20) == range(3, 4)
            with pytest.raises(alpo.Skipped):
                await log.append_batch([b"x"], serial=15)
            assert await log.append(b"d") == 4
        async with alpo.connect(c.addresses, client="spark") as log:
            assert log.last_serial == 21
            assert await log.append_batch([b"c"], serial=20) is None
            with pytest.raises(alpo.Skipped):
                await log.append_batch([b"x"], serial=15)
    first = c.appends[0][1]
    assert (first.serial, first.sparse) == (10, True)


async def test_a_sparse_batch_goes_alone_and_is_retried_as_sparse() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses, client="n", timeout_s=30) as log:
        count = 0

        def cut_the_sparse(server: object, append: object) -> str:
            nonlocal count
            if getattr(append, "sparse", False):
                count += 1
                return CUT if count < 3 else TAKE
            return TAKE

        c.script = cut_the_sparse
        before = [log.append_nowait(b"%d" % n) for n in range(5)]
        sparse = log.append_batch_nowait([b"s", b"t"], serial=100)
        after = [log.append_nowait(b"%d" % n) for n in range(5)]
        assert [await h for h in [*before, sparse, *after]] == [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12]
        assert [h.serial for h in after] == [101, 102, 103, 104, 105]
    assert count == 3


async def test_a_random_client_may_not_skip() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        with pytest.raises(alpo.SerialExpected):
            await log.append_batch([b"a"], serial=5)


async def test_too_old_to_tell() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses, client="n", timeout_s=1.0) as log:
        await log.append(b"a")
        c.script = lambda server, append: TAKE_MUTE
        with pytest.raises(alpo.NotGuaranteed) as caught:
            await log.append(b"b")
        assert (caught.value.client, caught.value.serial, caught.value.epoch) == ("n", 2, log.epoch)
        c.script = lambda server, append: Code.TOO_OLD
        c.lead(2)
        settled = await log.settle(timeout_s=30)
        error = settled[2]
        assert isinstance(error, alpo.NotGuaranteed)
        assert error.too_old


async def test_retry_by_hand() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        done = await log.append_by_hand([b"a"], client="n", serial=1)
        assert (done.lsn, done.duplicate, done.count) == (1, False, 1)
        again = await log.append_by_hand([b"a"], client="n", serial=1, epoch=done.epoch)
        assert (again.lsn, again.duplicate, again.epoch) == (1, True, done.epoch)
        recorded = await log.append_by_hand([b"b", b"c"], client="n", serial=2)
        assert (recorded.lsn, recorded.epoch, recorded.count) == (2, done.epoch, 2)
        with pytest.raises(alpo.SerialReused):
            await log.append_by_hand([b"other"], client="n", serial=1, epoch=done.epoch)
        with pytest.raises(alpo.SerialExpected) as caught:
            await log.append_by_hand([b"x"], client="n", serial=9)
        assert caught.value.expected == 3
        with pytest.raises(alpo.Fenced):
            await log.append_by_hand([b"x"], client="n", serial=3, epoch=done.epoch + 100)
        c.script = lambda server, append: Code.TOO_OLD
        with pytest.raises(alpo.NotGuaranteed) as old:
            await log.append_by_hand([b"x"], client="n", serial=3)
        assert old.value.too_old
        c.script = lambda server, append: Code.DROPPED
        with pytest.raises(alpo.NotGuaranteed) as dropped:  # a repeat is possible: no certain "no"
            await log.append_by_hand([b"x"], client="n", serial=3, epoch=done.epoch)
        assert dropped.value.too_old
        c.script = lambda server, append: TAKE_MUTE
        with pytest.raises(alpo.NotGuaranteed) as unknown:
            await log.append_by_hand([b"x"], client="n", serial=3, timeout_s=1.0)
        assert (unknown.value.client, unknown.value.serial, unknown.value.epoch) == ("n", 3, done.epoch)
        c.script = lambda server, append: Code.NOT_LEADER
        told: type[Exception] = alpo.NotGuaranteed
        while told is alpo.NotGuaranteed:  # a try was under way at the deadline
            with pytest.raises((alpo.Unavailable, alpo.NotGuaranteed)) as refused:
                await log.append_by_hand([b"x"], client="n", serial=4, timeout_s=0.2)
            told = refused.type
        c.script = lambda server, append: TAKE
        random = await log.append_by_hand([b"r"], client="~018bcfe5-6be9-7cc8-b85e-116d6884b4b4", serial=1)
        assert random.epoch == 0
    assert all(a.by_hand for _, a in c.appends)


async def test_a_retry_by_hand_needs_no_right_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read shows whether a server that expects another serial still leads. A certificate for appends alone may not
    read: then the server's word stands, as long as no earlier try may have been appended."""
    async def refused(server: FakeServer, stream: Any, ask: Any) -> None:
        await server._send(stream, RequestRefused(ask.request, Code.NO_RIGHT, 0, 0, "", "it takes the role read"))

    monkeypatch.setattr(FakeServer, "_read", refused)
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        with pytest.raises(alpo.SerialExpected) as caught:
            await log.append_by_hand([b"x"], client="n", serial=9)
        assert caught.value.expected == 1
        told = iter(list[str | Code]([CUT, Code.SERIAL_EXPECTED, Code.SERIAL_EXPECTED]))
        c.script = lambda server, append: next(told, TAKE) if isinstance(append, Append) else TAKE
        assert (await log.append_by_hand([b"x"], client="n", serial=1)).lsn == 1


async def test_operators_requests() -> None:
    async with fake_cluster() as c:
        c.lead(2)
        async with alpo.connect(c.addresses, client="n") as log:
            await log.append(b"a")
            rows = await log.sessions()
            assert [(s.client, s.epoch, s.last_serial) for s in rows] == [("n", log.epoch, 1)]
            assert rows[0].last_time.tzinfo is not None
            with pytest.raises(alpo.Refused):
                await log.drop_session("n", epoch=log.epoch + 1)
            assert await log.drop_session("n") == log.epoch
            with pytest.raises(alpo.Refused, match="no session"):
                await log.drop_session("n")
            with pytest.raises(alpo.Fenced) as caught:
                await log.append(b"b")
            assert caught.value.epoch == 0
            await log.init()
            c.servers[3].kill()
            rows_ = await log.status()
            assert [(r["id"], r["reachable"], r["state"]) for r in rows_] == [
                (1, True, "passive"), (2, True, "leader"), (3, False, None),
            ]


async def test_status_when_nobody_is_there() -> None:
    async with fake_cluster() as c:
        for server in c.servers.values():
            server.kill()
        async with alpo.connect(c.addresses) as log:
            rows = await log.status()
            assert [r["reachable"] for r in rows] == [False] * 3
            assert [r["address"] for r in rows] == c.addresses.split(",")


async def test_bad_names() -> None:
    for name in ("", "~x", "x" * 129):
        with pytest.raises(ValueError, match="client name"):
            alpo.connect("127.0.0.1:1", client=name)
    for servers in ("", "host:", "host:0", ["a:1", "b:c"]):
        with pytest.raises(ValueError):
            alpo.connect(servers)


async def test_the_cluster_is_pinned() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses, timeout_s=1.0) as log:
        await log.append(b"a")
        c.cluster = b"d" * 16
        c.servers[1].script = lambda server, append: CUT
        c.lead(2)
        with pytest.raises((alpo.NotGuaranteed, alpo.Unavailable)):
            await log.append(b"b")
        await until(lambda: len(c.appends) == 2)
