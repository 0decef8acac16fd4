"""A disk that has forgotten what it acknowledged is a lost disk, and is found to be one (R31 b)."""

from __future__ import annotations

import random

from cluster_kit import Cluster

from alpo.core.config import ReplicaConfig
from alpo.core.messages import AppendAnswer, AppendRequest, Envelope, WentBack
from alpo.core.ready import Connected, Ready, Received
from alpo.core.replica import Replica
from alpo.storage.memory import MemoryStore


def running(entries: int) -> Cluster:
    cluster = Cluster(3, 5)
    cluster.elect()
    cluster.append_some(entries)
    cluster.run(1.0)
    return cluster


def older(cluster: Cluster, id: int) -> MemoryStore:
    """A copy of a server's disk as it is now, which somebody may put back later."""
    store = cluster.hosts[id].store
    copy = MemoryStore(id, store._hard.incarnation)
    copy._hard, copy._applied, copy._base = store._hard, store._applied, store._base
    copy._entries, copy._runs, copy._sessions = list(store._entries), list(store._runs), dict(store._sessions)
    return copy


def boot(cluster: Cluster, store: MemoryStore) -> Replica:
    """A replica on it, started, its outputs in the test's hands."""
    found = store.boot()
    cfg = ReplicaConfig(me=found.me, address="10.0.0.9:7100", configured=cluster.configured, settings=cluster.settings)
    replica = Replica(cfg, found, random.Random(1))
    replica.replay(store.replay(found.applied_id + 1))
    replica.start(cluster.now_s, cluster.wall_ms())
    return replica


def hear(cluster: Cluster, replica: Replica, message: AppendRequest | WentBack) -> Ready:
    leader = cluster.elect()
    envelope = Envelope(leader.cluster, leader.me, replica.me, message)
    return replica.step([Received(envelope)], cluster.now_s, cluster.wall_ms())


def request(leader: Replica, fully_replicated_id: int) -> AppendRequest:
    prev = leader.log.last_id
    return AppendRequest(leader.term, prev, leader.log.term_at(prev) or 0, prev, fully_replicated_id, 7, [])


def test_its_log_ends_below_what_all_are_known_to_hold() -> None:
    cluster = running(5)
    leader = cluster.elect()
    id = leader.me.id % 3 + 1
    copy = older(cluster, id)
    cluster.append_some(10)
    cluster.run(1.0)
    assert leader.fully_replicated_id > copy.boot().last_id
    ready = hear(cluster, boot(cluster, copy), request(leader, leader.fully_replicated_id))
    assert ready.lost and ready.alarm is not None and "is known to have held" in ready.alarm
    assert not ready.send and ready.write is None
    whole = boot(cluster, older(cluster, id))
    assert not hear(cluster, whole, request(leader, leader.fully_replicated_id)).lost


def test_the_leader_proves_it_by_an_answer_to_a_new_round() -> None:
    """An old refusal, which may come late, proves nothing."""
    cluster = running(5)
    leader = cluster.elect()
    id = leader.me.id % 3 + 1
    assert leader.leadership is not None
    peer = leader.leadership.peers[id]
    held_id, wall_ms = peer.match_id, cluster.wall_ms()

    def refused(round: int) -> list[object]:
        answer = AppendAnswer(leader.term, False, 0, held_id, 3, 0, 0, round, wall_ms, False, *_EXTRA)
        envelope = Envelope(leader.cluster, peer.who, leader.me, answer)
        ready = leader.step([Received(envelope)], cluster.now_s, wall_ms)
        return [each.message for each in ready.send if each.target == peer.who]

    assert not any(isinstance(message, WentBack) for message in refused(leader.round))
    assert peer.doubted_round == leader.round
    assert not any(isinstance(message, WentBack) for message in refused(peer.doubted_round - 1))
    assert WentBack(leader.term, held_id) in refused(peer.doubted_round)


_EXTRA = AppendAnswer._field_defaults.values()


def test_who_is_told_so_by_its_leader_stops_and_nobody_else() -> None:
    cluster = running(5)
    leader = cluster.elect()
    id = leader.me.id % 3 + 1
    replica = boot(cluster, older(cluster, id))
    told = WentBack(leader.term, replica.log.last_id + 1)
    assert not hear(cluster, replica, told).lost, "it has heard of no leader yet"
    replica.step([Connected(leader.me.id)], cluster.now_s, cluster.wall_ms())
    hear(cluster, replica, request(leader, 0))
    assert not hear(cluster, replica, told._replace(held_id=replica.log.last_id)).lost
    assert not hear(cluster, replica, told._replace(term=leader.term + 1)).lost
    assert hear(cluster, replica, told).lost
