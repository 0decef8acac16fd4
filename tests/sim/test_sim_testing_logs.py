"""Further logs of a simulated cluster: each has an order, a leader and readers of its own, on the servers of all."""

from __future__ import annotations

import pytest

import alpo
import alpo.state
from alpo.testing import FAULTS, Broken, Cluster


def test_logs_of_their_own_on_the_same_servers() -> None:
    with Cluster(7, logs=["billing", "audit"]) as cluster:
        assert cluster.recipe == "alpo.testing.Cluster(seed=7, logs=['billing', 'audit'])"
        with cluster.connect_sync(client="one") as first, cluster.connect_sync(client="one", log="billing") as billing:
            assert [first.append(b"to the first"), billing.append(b"1"), billing.append(b"2")] == [1, 1, 2]
            listed = first.logs()
            assert [(log.name, log.number) for log in listed] == [("billing", 2), ("audit", 3)]
            assert len({log.id for log in listed} | {billing.status()[0]["cluster"]}) == 2
            with pytest.raises(alpo.AlpoError, match="keeps the logs that it was made with"):
                first.create_log("another", timeout_s=2)
            with pytest.raises(alpo.AlpoError, match="ask its first log"):
                billing.logs(timeout_s=2)
        assert [record.payload for record in cluster.log()] == [b"to the first"]
        assert [record.payload for record in cluster.log("billing")] == [b"1", b"2"] and not cluster.log("audit")
        with cluster.connect_sync(log="nothing", timeout_s=600) as log:
            began_s = cluster.now_s
            with pytest.raises(alpo.NoSuchLog, match="there is no log nothing") as refused:
                log.append(b"x")
            assert refused.value.log == "nothing" and cluster.now_s - began_s < 60


def test_a_server_ends_stands_still_and_is_cut_off_in_all_logs() -> None:
    with Cluster(3, logs=["billing"]) as cluster:
        worlds = cluster._world.worlds
        for id in cluster.servers[:2]:
            cluster.crash(id)
        assert [[host.replica is not None for host in world.stage.hosts.values()] for world in worlds] == [
            [False, False, True]
        ] * 2
        with cluster.connect_sync(log="billing", timeout_s=3) as log:
            with pytest.raises(alpo.AlpoError):
                log.append(b"nobody is there")
            cluster.heal()
            assert log.append(b"one", timeout_s=20) == 1 or cluster.log("billing")
            for fault in (cluster.pause, cluster.isolate):
                for id in cluster.servers[:2]:
                    fault(id)
                with pytest.raises(alpo.AlpoError):
                    log.append(b"lost?")
                cluster.heal()
            assert cluster.kill_leader(back_after_s=1, log="billing") in cluster.servers
            log.append(b"after the leader", timeout_s=20)
        assert cluster.leader_of("billing") is not None
        with pytest.raises(ValueError, match="there is no log nothing, only default, billing"):
            cluster.log("nothing")


@pytest.mark.parametrize("seed", range(4))
def test_the_same_seed_gives_the_same_run_under_faults(seed: int) -> None:
    def run() -> list[object]:
        with Cluster(seed, faults=FAULTS, logs=("billing",), servers=1 if seed == 3 else 3) as cluster:
            for n in range(8):
                for name in ("default", "billing"):
                    with cluster.connect_sync(log=name, client="one", timeout_s=120) as log:
                        log.append(b"%d" % n)
                cluster.advance(1)
            return [cluster.now_s, cluster.faults(), cluster.log(), cluster.log("billing")]

    once = run()
    assert once == run()
    assert [record.payload for record in once[3]] == [b"%d" % n for n in range(8)]  # type: ignore[attr-defined]


def test_what_a_client_of_another_log_was_told_is_checked() -> None:
    with pytest.raises(Broken, match="acknowledged"):
        with Cluster(1, logs=["billing"]) as cluster, cluster.connect_sync(log="billing") as log:
            log.append(b"one")
            told = cluster._ledgers
            told["default"], told["billing"] = told["billing"], told["default"]


@pytest.mark.anyio
@pytest.mark.alpo(seed=5, logs=["plans"])
async def test_a_state_in_a_log_of_its_own(alpo_cluster: Cluster) -> None:
    async with alpo_cluster.connect(log="plans") as log, alpo.state.State(log) as state:
        written = await state.put("x", b"1")
        assert written.version == len(alpo_cluster.log("plans"))
    assert alpo_cluster.log("plans") and not alpo_cluster.log()


def test_names_that_are_wrong() -> None:
    for logs in (["Billing"], ["default"], ["a", "a"]):
        with pytest.raises(ValueError, match="a log's name is 1 to 63"):
            Cluster(logs=logs)
