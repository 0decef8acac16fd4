"""Runs (R32) in `alpo.testing`: payloads that came together are read, and compared with the log append by append."""

from __future__ import annotations

import pytest

from alpo.testing import Cluster


@pytest.mark.parametrize("seed", range(3))
def test_what_is_appended_together_is_read_one_by_one(seed: int) -> None:
    """Over the end of a leader, and trimmed in the middle."""
    sizes = [1 + n % 2 for n in range(300)]
    many = [b"%d" % n for n in range(100)]
    with Cluster(seed) as cluster:
        cluster.advance(2)  # all servers are connected
        with cluster.connect_sync(client="fast") as log:
            assert log.append_many(iter(many)) == 100
            cluster.kill_leader(back_after_s=1)  # appends that wait reach the next leader together
            futures = [log.append_batch_nowait([b"%d" % n, b"more"][:size]) for n, size in enumerate(sizes)]
            lsns = [future.result().lsns for future in futures]
            found = list(log.read())
            assert found == cluster.log() and [record.lsn for record in found] == list(range(1, 551))
            assert [record.payload for record in found[:100]] == many
            for n, (size, batch) in enumerate(zip(sizes, lsns, strict=True)):
                held = [found[lsn - 1] for lsn in batch]
                assert [record.payload for record in held] == [b"%d" % n, b"more"][:size]
                assert {record.serial for record in held} == {101 + n}
            assert len({record.id for record in found}) < 50
            log.trim(before=301)  # the second payload of a batch, in the middle of a run
            assert list(log.read()) == found[300:]
