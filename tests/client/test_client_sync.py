"""The blocking facade, used from several threads, against the same fake cluster in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from anyio.from_thread import start_blocking_portal
from fake_cluster import SWALLOW, FakeCluster, fake_cluster

import alpo


@contextmanager
def cluster_in_a_thread() -> Iterator[FakeCluster]:
    with start_blocking_portal("trio") as portal, portal.wrap_async_context_manager(fake_cluster()) as cluster:
        yield cluster


def test_the_same_calls_blocking() -> None:
    with cluster_in_a_thread() as c, alpo.connect_sync(c.addresses, client="n") as log:
        assert log.append(b"a") == 1
        assert log.append_batch([b"b", b"c"]) == range(2, 4)
        futures = [log.append_nowait(b"%d" % n) for n in range(100)]
        assert [f.result().lsn for f in futures] == list(range(4, 104))
        assert [r.payload for r in log.read(stop=3)] == [b"a", b"b", b"c"]
        assert (log.client, log.last_serial) == ("n", 0)
        assert log.epoch > 0
        for record in log.follow(start=100):
            if record.lsn == 103:
                break
        assert log.append_by_hand([b"h"], client="m", serial=1).lsn == 104
        assert len(log.status()) == 3
        assert {s.client for s in log.sessions()} == {"n", "m"}
        log.drop_session("m")
        log.init()
        assert log.settle() == {}
        with pytest.raises(alpo.TooLarge):
            log.append(bytes(2 << 20))
        with pytest.raises(alpo.OutOfRange):
            list(log.read(start=1000))
    with pytest.raises(alpo.Closed):
        log.append(b"late")


def test_several_threads() -> None:
    with cluster_in_a_thread() as c, alpo.connect_sync(c.addresses, queue_max=20) as log:
        def work(thread: int) -> list[int]:
            return [log.append(b"%d %d" % (thread, n)) for n in range(50)]

        with ThreadPoolExecutor(8) as pool:
            lsns = list(pool.map(work, range(8)))
        assert all(one == sorted(one) for one in lsns)
        assert sorted(lsn for one in lsns for lsn in one) == list(range(1, 401))
        places = {p: n for n, p in enumerate(c.payloads, 1)}
        assert all(places[b"%d %d" % (t, n)] == lsns[t][n] for t in range(8) for n in range(50))


def test_closing_waits_for_what_was_queued() -> None:
    with cluster_in_a_thread() as c:
        with alpo.connect_sync(c.addresses) as log:
            futures = [log.append_nowait(b"%d" % n) for n in range(1000)]
        assert [f.result(0).lsn for f in futures] == list(range(1, 1001))


def test_no_thread_is_left() -> None:
    with cluster_in_a_thread() as c:
        before = threading.active_count()
        with alpo.connect_sync(c.addresses) as log:
            log.append(b"a")
        assert threading.active_count() <= before


def test_without_a_with_it_opens_with_the_first_call_and_ends_with_close() -> None:
    with cluster_in_a_thread() as c:
        before = threading.active_count()
        log = alpo.connect_sync(c.addresses)
        assert threading.active_count() == before
        assert log.append(b"early") == 1
        with log:
            assert log.append_nowait(b"late").result().lsn == 2
        assert log.closed
        assert threading.active_count() <= before
        log.close()  # again
        with pytest.raises(alpo.Closed):
            log.append(b"too late")
        with pytest.raises(alpo.Closed), log:
            pass
        unopened = alpo.connect_sync(c.addresses)
        unopened.close()
        with pytest.raises(alpo.Closed):
            unopened.append(b"never")
        assert c.payloads == [b"early", b"late"]


@pytest.mark.parametrize("payload", [b"x", bytes(2 << 20)], ids=["good", "too large"])
def test_a_cancelled_future_takes_its_append_back_or_can_not_be_cancelled(
    payload: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster_in_a_thread() as c, alpo.connect_sync(c.addresses) as log:
        log.append(b"first")
        futures = [log.append_nowait(payload) for _ in range(200)]
        cancelled = [future.cancel() for future in reversed(futures)]
        log.append_nowait(b"last").result(20)
        assert cancelled == [future.cancelled() for future in reversed(futures)]
        failed = [future.exception() is not None for future in futures if not future.cancelled()]
        assert failed == [len(payload) > 1] * cancelled.count(False)
        if len(payload) == 1:
            assert len(c.payloads) == 2 + cancelled.count(False)
    assert not caplog.records


def test_a_task_that_ends_early_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster_in_a_thread() as c, alpo.connect_sync(c.addresses) as log:
        begun = threading.Event()

        async def enter(*_: object) -> None:
            begun.wait(20)
            raise MemoryError

        monkeypatch.setattr(log._log, "enter", enter)
        futures = [log.append_nowait(b"x") for _ in range(3)]
        begun.set()
        assert [type(future.exception(20)) for future in futures] == [alpo.Closed] * 3
        monkeypatch.undo()
        assert log.append(b"y") == 1


def test_closing_ends_a_follower_in_another_thread() -> None:
    with cluster_in_a_thread() as c, ThreadPoolExecutor(1) as pool:
        begun = threading.Event()

        def follow() -> None:
            for _ in log.follow():
                begun.set()

        with alpo.connect_sync(c.addresses) as log:
            log.append(b"x")
            following = pool.submit(follow)
            assert begun.wait(20)
        assert following.exception(20) is None


def test_a_log_that_closed_with_an_error_is_closed() -> None:
    with cluster_in_a_thread() as c:
        c.script = lambda server, append: SWALLOW
        with pytest.raises(alpo.NotGuaranteed), alpo.connect_sync(c.addresses, timeout_s=1.0) as log:
            log.append_nowait(b"x")
        for call in (lambda: log.append(b"x"), lambda: list(log.read()), log.status):
            with pytest.raises(alpo.Closed):
                call()
