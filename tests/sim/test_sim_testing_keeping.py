"""Operators' requests through the client library, to the real core under faults: outcomes, settings."""

from __future__ import annotations

import anyio
import pytest

import alpo
from alpo.testing import Cluster


def test_outcomes_by_the_blocking_client() -> None:
    with Cluster(1) as cluster, cluster.connect_sync(client="billing") as log:
        assert log.append(b"one") == 1
        assert log.append_batch([b"two", b"three"]) == range(2, 4)
        epoch = log.epoch
        assert log.outcome("billing", 2) == alpo.Outcome("appended", 2, epoch)
        assert log.outcome("billing", 3) == alpo.Outcome("not_appended", None, epoch)
        assert log.outcome("billing", 2, epoch=epoch) == alpo.Outcome("appended", 2, epoch)
        assert log.outcome("billing", 2, epoch=epoch - 1) == alpo.Outcome("too_old", None, epoch)
        assert log.outcome("nobody", 1) == alpo.Outcome("too_old", None)
        for client, serial in (("billing", 0), ("", 1), ("x" * 129, 1)):
            with pytest.raises(ValueError, match="1 to 128 bytes"):
                log.outcome(client, serial)


@pytest.mark.parametrize("seed", range(10))
def test_an_unknown_outcome_is_told_once_there_is_a_leader(seed: int) -> None:
    """An append is sent to a leader that dies over it; the outcome told later agrees with the log in the end."""
    with Cluster(seed) as cluster:
        with cluster.connect_sync(client="billing", timeout_s=0.2) as log:
            log.append(b"one")
            cluster.after(0.001 * seed / 10, cluster.kill_leader)
            try:
                log.append(b"two")
            except (alpo.NotGuaranteed, alpo.Unavailable):
                cluster.kill_leader(back_after_s=1) if cluster.leader else None
        for id in cluster.servers:
            if not cluster.up(id):
                cluster.restart(id)
        with cluster.connect_sync() as other:
            told = other.outcome("billing", 2)
        there = [record.lsn for record in cluster.log() if record.payload == b"two"]
        assert (told.outcome, told.lsn) == (("appended", 2) if there else ("not_appended", None))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_outcomes_under_an_event_loop(backend: str) -> None:
    async def main() -> None:
        async with cluster.connect() as log:
            await log.append(b"one")
            assert log.client is not None
            assert await log.outcome(log.client, 1) == alpo.Outcome("appended", 1)
            cluster.isolate(1)
            cluster.isolate(2)
            with pytest.raises(alpo.Unavailable):
                await log.outcome(log.client, 1, timeout_s=1)

    with Cluster(1) as cluster:
        anyio.run(main, backend=backend)


def test_who_waits_for_everyone_is_told_who_is_behind() -> None:
    with Cluster(1) as cluster, cluster.connect_sync(timeout_s=1.0) as log:
        log.wait_everyone(log.append(b"one"))
        away = next(id for id in cluster.servers if id != cluster.leader)
        cluster.pause(away)
        lsn = log.append(b"two")
        with pytest.raises(alpo.NotEverywhere, match=f"LSN 2 is guaranteed, .*: not yet on server {away}$") as told:
            log.wait_everyone(lsn)
        assert (told.value.lsn, told.value.behind) == (2, (away,))
        log.wait_everyone(1)
        cluster.after(0.5, lambda: cluster.resume(away))
        log.wait_everyone(lsn, timeout_s=30)
        with pytest.raises(ValueError, match="1 or more"):
            log.wait_everyone(0)


def test_an_lsn_that_there_is_not_is_out_of_range() -> None:
    with Cluster(1) as cluster, cluster.connect_sync() as log:
        log.append(b"one")
        for lsn in (2, 10**6, 1 << 62):
            began_s = cluster.now_s
            with pytest.raises(alpo.OutOfRange, match=f"LSN {lsn} is not in the log, which holds 1 to 1") as told:
                log.wait_everyone(lsn, timeout_s=60)
            assert (told.value.first_lsn, told.value.last_lsn) == (1, 1)
            assert cluster.now_s - began_s < 5


@pytest.mark.parametrize("seed", range(10))
def test_waiting_for_everyone_outlives_the_leader(seed: int) -> None:
    with Cluster(seed) as cluster, cluster.connect_sync(timeout_s=60) as log:
        lsn = log.append(b"one")
        away = next(id for id in cluster.servers if id != cluster.leader)
        cluster.pause(away)
        lsn = log.append(b"two")
        old = cluster.leader
        cluster.after(0.3, lambda: cluster.kill_leader(back_after_s=3))
        cluster.after(1.0, lambda: cluster.resume(away))
        log.wait_everyone(lsn)
        assert old is not None and cluster.now_s > 1


def test_nobody_tells_who_is_behind() -> None:
    with Cluster(1) as cluster, cluster.connect_sync() as log:
        log.append(b"one")
        for id in cluster.servers:
            cluster.crash(id)
        with pytest.raises(alpo.NotEverywhere, match="nobody tells: no answer within 1 s") as told:
            log.wait_everyone(1, timeout_s=1)
        assert told.value.behind == ()
        for id in cluster.servers:
            cluster.restart(id)


def test_settings_by_the_blocking_client() -> None:
    with Cluster(1) as cluster, cluster.connect_sync() as log, cluster.connect_sync() as other:
        before = log.settings()
        assert (before["session_ttl_s"], before["window"]) == (7 * 24 * 3600, 1024)
        after = log.change_settings({"window": 64, "session_ttl_s": 90.5})
        assert after == {**before, "window": 64, "session_ttl_s": 90.5} == other.settings()
        with pytest.raises(alpo.Refused, match="changed meanwhile, nothing was set: window is 64 by now, not 1024"):
            other.change_settings({"window": 32}, expected=before)
        assert other.change_settings({"window": 64}, expected=before) == after
        assert other.change_settings({"window": 32}, expected=after)["window"] == 32


@pytest.mark.parametrize(("wanted", "why"), [
    ({"colour": 7}, "no setting 'colour'; there are session_ttl_s, window,"), ({}, "no setting is named"),
    ({"window": 0}, "window = 0 is not from 1 to 65536"), ({"window": 1.5}, "window = 1.5 is not from"),
    ({"window": True}, "window = True is not"), ({"session_ttl_s": 0.5}, "session_ttl_s = 0.5 is not from 1 to"),
    ({"session_ttl_s": float("nan")}, "session_ttl_s = nan"),
    ({"payload_bytes_max": 16 << 20}, "batch_bytes_max = 8388608 is less than payload_bytes_max = 16777216"),
])
def test_settings_that_cannot_be(wanted: dict[str, float], why: str) -> None:
    with Cluster(1) as cluster, cluster.connect_sync() as log, pytest.raises(ValueError, match=why):
        log.change_settings(wanted)


@pytest.mark.parametrize("seed", range(10))
def test_settings_are_changed_once_over_leader_kills(seed: int) -> None:
    with Cluster(seed) as cluster, cluster.connect_sync(timeout_s=60) as log:
        before = log.settings()
        cluster.after(0.0005 * seed, lambda: cluster.kill_leader(back_after_s=2))
        assert log.change_settings({"window": 64}, expected=before)["window"] == 64


def test_cursors_by_the_blocking_client() -> None:
    with Cluster(1) as cluster, cluster.connect_sync() as log:
        for n in range(10):
            log.append(b"%d" % n)
        log.set_cursor("nightly", 4)
        log.set_cursor("tail", 11)
        log.set_cursor("nightly", 6)
        assert [(c.name, c.lsn) for c in log.cursors()] == [("nightly", 6), ("tail", 11)]
        assert log.trim(6) == 6
        with pytest.raises(alpo.Refused, match=r"the cursor nightly needs LSN 6 and what follows$"):
            log.trim(7)
        for lsn in (5, 12):
            with pytest.raises(alpo.OutOfRange) as told:
                log.set_cursor("nightly", lsn)
            assert (told.value.first_lsn, told.value.last_lsn) == (6, 10)
        assert log.trim(11, force=True) == 11
        assert [(c.name, c.lsn, c.lag_bytes, c.lag_s) for c in log.cursors()] == [("tail", 11, 0, 0.0)]
        assert log.drop_cursor("tail") == 11
        with pytest.raises(alpo.Refused, match="there is no cursor tail"):
            log.drop_cursor("tail")
        for name in ("", "x" * 129, "\udc80"):
            with pytest.raises(ValueError, match="1 to 128 bytes"):
                log.set_cursor(name, 1)


@pytest.mark.parametrize("seed", range(10))
def test_cursors_are_moved_over_leader_kills(seed: int) -> None:
    with Cluster(seed) as cluster, cluster.connect_sync(timeout_s=60) as log:
        log.append(b"one")
        log.set_cursor("nightly", 1)
        cluster.after(0.0005 * seed, lambda: cluster.kill_leader(back_after_s=2))
        log.set_cursor("nightly", 2)
        assert [(c.name, c.lsn) for c in log.cursors()] == [("nightly", 2)]
        cluster.after(0.0005 * seed, lambda: cluster.kill_leader(back_after_s=2))
        log.drop_cursor("nightly")
        assert log.cursors() == []
