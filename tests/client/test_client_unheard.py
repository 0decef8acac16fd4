"""Errors of appends that a blocking program has not looked at: closing raises the first, and none that it has seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from fake_cluster import SWALLOW
from test_client_sync import cluster_in_a_thread

import alpo
from alpo.client.pipeline import KEPT_MAX, Unheard
from alpo.testing import Cluster


@contextmanager
def nowhere(kind: str) -> Iterator[alpo.SyncLog]:
    """A blocking log that no server answers; leaving this context does not close it."""
    if kind == "real":
        yield alpo.connect_sync("127.0.0.1:1", timeout_s=0.2)
    else:
        with Cluster() as cluster:
            log = cluster.connect_sync(timeout_s=0.2)
            for id in (1, 2, 3):
                cluster.crash(id)
            yield log


@pytest.fixture(params=["real", "simulated"])
def log(request: pytest.FixtureRequest) -> Iterator[alpo.SyncLog]:
    with nowhere(request.param) as log:
        yield log


def test_leaving_raises_what_nobody_saw(log: alpo.SyncLog) -> None:
    with pytest.raises(alpo.Unavailable, match="no server took the append"), log:
        log.append_nowait(b"x")
    log.close()  # told once


def test_closing_raises_what_nobody_saw(log: alpo.SyncLog) -> None:
    log.append_nowait(b"x")
    log.append_batch_nowait([b"y", b"z"])
    with pytest.raises(alpo.Unavailable, match="no server took the append"):
        log.close()
    log.close()


def test_another_exception_goes_first(log: alpo.SyncLog) -> None:
    with pytest.raises(LookupError), log:
        log.append_nowait(b"x")
        raise LookupError


def see_by_result(future: Future[Any]) -> None:
    with suppress(alpo.AlpoError):
        future.result()


@pytest.mark.parametrize("see", [
    see_by_result, lambda future: future.exception(), lambda future: future.add_done_callback(lambda done: None),
])
def test_what_was_seen_is_not_raised_again(log: alpo.SyncLog, see: Callable[[Future[Any]], object]) -> None:
    with log:
        see(log.append_nowait(b"x"))


def test_a_blocking_append_is_seen(log: alpo.SyncLog) -> None:
    with log, pytest.raises(alpo.Unavailable):
        log.append(b"x")


def test_waiting_in_vain_is_not_seeing(log: alpo.SyncLog) -> None:
    with pytest.raises(alpo.Unavailable), log:
        future = log.append_nowait(b"x")
        for look in (future.result, future.exception):
            with pytest.raises(TimeoutError):
                look(0.001)


def test_waiting_for_all_is_not_seeing(log: alpo.SyncLog) -> None:
    with pytest.raises(alpo.Unavailable), log:
        future = log.append_nowait(b"x")
        if type(future).__module__ == "alpo.client.blocking":  # virtual time goes on only in the log's own calls
            wait_for_all([future])


def test_what_never_became_a_handle_counts() -> None:
    with cluster_in_a_thread() as c:
        log = alpo.connect_sync(c.addresses, timeout_s=5)
        assert log.append(b"fits") == 1
        log.append_nowait(bytes(2 << 20))
        with pytest.raises(alpo.TooLarge):
            log.close()


def test_an_unknown_outcome_counts() -> None:
    with cluster_in_a_thread() as c:
        c.script = lambda server, append: SWALLOW
        with pytest.raises(alpo.NotGuaranteed), alpo.connect_sync(c.addresses, timeout_s=1.0) as log:
            log.append_nowait(b"x")


class Told:
    """Stand-in for a handle or a future."""

    def __init__(self, number: int) -> None:
        self.unheard: alpo.AlpoError | None = alpo.Unavailable(f"{number}")


def test_what_is_kept_is_bounded_and_what_was_seen_pushes_nothing_out() -> None:
    kept = Unheard()
    first = Told(0)
    kept.note(first)
    for n in range(1, 5 * KEPT_MAX):
        each = Told(n)
        kept.note(each)
        assert len(kept) <= KEPT_MAX
        each.unheard = None  # seen
    assert kept.take_first() is first.unheard
    for n in range(5 * KEPT_MAX):
        kept.note(Told(n))
        assert len(kept) <= KEPT_MAX
    assert isinstance(kept.take_first(), alpo.Unavailable)
