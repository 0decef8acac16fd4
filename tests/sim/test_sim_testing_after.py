"""Conditional appends in `alpo.testing`: programs of a test compete for the next place in the log."""

from __future__ import annotations

import pytest

from alpo import Conflict, NotGuaranteed, SyncLog
from alpo.testing import FAULTS, Cluster


def count_up(log: SyncLog, name: bytes) -> int:
    """Append right behind what is the last, whatever that is by now; the LSN."""
    last = log.end() - 1
    while True:
        try:
            return log.append(name, expect_last=last)
        except Conflict as conflict:
            last = conflict.last_lsn


@pytest.mark.parametrize("seed", range(4))
def test_competing_programs_under_faults(seed: int) -> None:
    with Cluster(seed, faults=FAULTS) as cluster:
        with cluster.connect_sync(client="one", timeout_s=120) as one, cluster.connect_sync(timeout_s=120) as two:
            lsns = []
            for number in range(10):
                lsns += [count_up(one, b"same"), count_up(two, b"%d" % number)]
                if number == 5:
                    cluster.kill_leader(back_after_s=1)
            with pytest.raises(Conflict) as caught:
                one.append(b"late", expect_last=lsns[0])
            assert caught.value.last_lsn == lsns[-1]
            assert lsns == sorted(set(lsns))
            assert [record.payload for record in one.read(client="one")] == [b"same"] * 10


def test_an_append_that_a_leader_took_before_it_died_is_found_again() -> None:
    for seed in range(10):
        with Cluster(seed) as cluster, cluster.connect_sync(timeout_s=60) as log:
            assert log.append(b"a", expect_last=0) == 1
            cluster.kill_leader(back_after_s=1)
            assert log.append_batch([b"b", b"c"], expect_last=1) == range(2, 4)
            with pytest.raises(Conflict):
                log.append(b"d", expect_last=2)
            assert [record.payload for record in log.read()] == [b"a", b"b", b"c"]


def test_without_a_majority_its_outcome_is_settled_later() -> None:
    with Cluster(1) as cluster, cluster.connect_sync() as log, cluster.connect_sync() as other:
        assert log.append(b"a", expect_last=0) == 1
        others = [id for id in cluster.servers if id != cluster.leader]
        for id in others:
            cluster.crash(id)
        with pytest.raises(NotGuaranteed):
            log.append(b"b", expect_last=1, timeout_s=0.05)
        for id in others:
            cluster.restart(id)
        settled = log.settle(timeout_s=60)
        assert list(settled) == [2]
        assert settled[2] == 2 or isinstance(settled[2], Conflict)
        assert count_up(other, b"c") == (3 if settled[2] == 2 else 2)
