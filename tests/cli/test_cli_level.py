"""Condition under which the demos and `alpo bench failover` take a cluster for level."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio.testing

from alpo_cli import local_cluster
from alpo_cli.local_cluster import LocalCluster


def members(*last_lsns: int) -> list[dict[str, Any]]:
    states = ["leader", "passive", "passive"]
    return [
        {"id": id, "state": state, "guaranteed_id": 9, "last_lsn": lsn}
        for id, (state, lsn) in enumerate(zip(states, last_lsns, strict=True), 1)
    ]


@pytest.mark.trio
async def test_a_copy_that_is_not_on_its_disk_yet_is_not_level(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock,
) -> None:
    """A passive server may know of a guaranteed entry that its own disk has yet to take."""
    answers = iter([[], members(9, 9, 4), members(9, 9, 9)])

    async def statuses(log: object) -> list[dict[str, Any]]:
        return next(answers)

    monkeypatch.setattr(local_cluster, "statuses", statuses)
    cluster = cast(LocalCluster, SimpleNamespace(addresses="127.0.0.1:1", servers=[1, 2, 3]))
    assert await local_cluster.caught_up_within(cluster, 5.0) == 1
    assert list(answers) == []
