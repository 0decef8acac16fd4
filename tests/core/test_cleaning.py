"""Cleaning and trimming, rule by rule (R18-R20, and R12 in the base)."""

from __future__ import annotations

from cluster_kit import Cluster, ask
from session_leader import CLIENT

from alpo.core.messages import AppendAnswer, AppendRequest, Envelope
from alpo.core.ready import Clean, Received
from alpo.core.replica import Replica
from alpo.core.requests import Code, Refused, Trim, Trimmed


def loaded(size: int = 3, count: int = 20) -> Cluster:
    """A cluster that holds ``count`` payloads, fully replicated."""
    cluster = Cluster(size)
    cluster.elect()
    for serial in range(1, count + 1):
        cluster.append(CLIENT, serial, b"%d" % serial)
    cluster.run(2.0)
    return cluster


def clean(cluster: Cluster, id: int, upto_id: int) -> Replica:
    host = cluster.hosts[id]
    head = host.store.entry_head(upto_id)
    assert head is not None and host.replica is not None
    cluster.give(id, Clean(upto_id, head[0], head[1] + head[2]))
    cluster.run(0.5)
    assert host.replica is not None
    return host.replica


def test_r19_what_all_hold_is_cleaned_and_survives_a_restart() -> None:
    cluster = loaded()
    replica = clean(cluster, 2, 10)
    assert (replica.log.base_id, replica.cleaning.first_lsn) == (10, replica.log.base_next_lsn)
    assert cluster.hosts[2].store.read_entries(10, 10, 1000) == []
    assert cluster.hosts[2].store.read_entries(11, 11, 1000)[0].id == 11
    cluster.crash(2)
    cluster.boot(2)
    cluster.run(2.0)
    again = cluster.hosts[2].replica
    assert again is not None and (again.log.base_id, again.log.last_id) == (10, cluster.reigning.log.last_id)
    cluster.append(CLIENT, 21, b"more")
    cluster.run(1.0)
    assert again.guaranteed_id == cluster.reigning.guaranteed_id


def test_r19_a_server_that_is_away_holds_cleaning_back() -> None:
    cluster = loaded()
    away = next(id for id in (1, 2, 3) if id != cluster.reigning.me.id)
    had = cluster.replica(away).log.last_id
    cluster.crash(away)
    for serial in range(21, 31):
        cluster.append(CLIENT, serial, b"later")
    cluster.run(2.0)
    leader = cluster.leader
    assert leader is not None and leader.cleaning.cleanable_id == had < leader.guaranteed_id
    assert clean(cluster, leader.me.id, had + 1).log.base_id == 0
    assert clean(cluster, leader.me.id, had).log.base_id == had
    cluster.boot(away)
    cluster.run(2.0)
    assert cluster.replica(away).log.last_id == leader.log.last_id


def test_r19_a_log_may_be_cleaned_to_its_end_and_go_on() -> None:
    cluster = loaded()
    last_id = cluster.reigning.log.last_id
    for id in (1, 2, 3):
        assert clean(cluster, id, last_id).log.base_id == last_id
    for id in (1, 2, 3):
        cluster.crash(id)
    for id in (1, 2, 3):
        cluster.boot(id)
    leader = cluster.elect()
    assert leader.log.base_id == last_id and leader.log.next_lsn == 21
    cluster.append(CLIENT, 21, b"more")
    again = cluster.append(CLIENT, 20, b"20")  # the table outlives what was cleaned
    cluster.run(1.0)
    assert cluster.reply_to(again).duplicate  # type: ignore[union-attr]


def test_r12_what_lies_in_the_base_matches() -> None:
    cluster = loaded()
    follower = next(id for id in (1, 2, 3) if id != cluster.reigning.me.id)
    leader = cluster.leader
    assert leader is not None
    entries = cluster.log_of(leader.me.id)
    clean(cluster, follower, 10)
    host = cluster.hosts[follower]
    assert host.replica is not None
    request = AppendRequest(leader.term, 5, entries[4].term, leader.guaranteed_id, 0, 1, entries[5:12])
    envelope = Envelope(leader.cluster, leader.me, host.replica.me, request)
    ready = host.replica.step([Received(envelope)], cluster.now_s, cluster.wall_ms())
    (answer,) = [e.message for e in ready.send if isinstance(e.message, AppendAnswer)]
    assert answer.ok and answer.match_id >= 12


def test_r20_a_trim_counts_once_it_is_guaranteed_and_everywhere() -> None:
    cluster = loaded()
    assert ask(cluster, Trim("trim", 8)) == Trimmed("trim", 8)
    cluster.run(1.0)
    assert [replica.cleaning.first_lsn for replica in cluster.replicas] == [8, 8, 8]
    assert ask(cluster, Trim("back", 3)) == Trimmed("back", 8)
    refused = ask(cluster, Trim("beyond", 22))
    assert isinstance(refused, Refused) and refused.code is Code.OUT_OF_RANGE and refused.detail == "8,20"


def test_r20_a_trim_is_taken_back_by_an_expunge() -> None:
    cluster = loaded()
    old = cluster.leader
    assert old is not None
    cluster.isolate(old.me.id)
    cluster.give(old.me.id, Trim("lost", 8))
    cluster.run(3.0)
    cluster.heal()
    cluster.run(3.0)
    assert [replica.cleaning.first_lsn for replica in cluster.replicas] == [1, 1, 1]
