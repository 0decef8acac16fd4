"""R31 in the core: what a server does, and does not, while it knows of damaged entries on its disk."""

from __future__ import annotations

from cluster_kit import Cluster
from damage_kit import append, cluster_of, is_copy
from session_leader import CLIENT

from alpo.core.messages import AppendRequest, Envelope, HandOver
from alpo.core.ranks import State
from alpo.core.ready import Clean, Connected, DamageFound
from alpo.core.replica import Replica
from alpo.core.requests import Code, ReadIndex, Refused


def damage(cluster: Cluster, replica: Replica, *ids: int) -> None:
    cluster.give(replica.me.id, DamageFound(ids))
    cluster.run(0.3)


def test_it_counts_nothing_from_there_on_and_goes_on_with_the_rest() -> None:
    cluster, leader, others = cluster_of()
    damage(cluster, others[0], 5)
    cluster.crash(others[1].me.id)
    assert not append(cluster, 11), "the damaged server's copy completed a majority"
    assert others[0].log.last_id == leader.log.last_id > leader.guaranteed_id
    damage(cluster, others[0])
    cluster.run(1.0)
    assert leader.guaranteed_id == leader.log.last_id


def test_its_copy_is_not_needed_while_the_others_are_a_majority() -> None:
    cluster, leader, others = cluster_of()
    had = leader.fully_replicated_id
    damage(cluster, others[0], 5)
    assert append(cluster, 11)
    assert others[0].guaranteed_id == leader.guaranteed_id > had
    assert leader.fully_replicated_id == had


def test_it_gives_no_vote_and_asks_for_none() -> None:
    cluster, leader, others = cluster_of()
    damage(cluster, others[0], 5)
    term, vote = others[0].term, others[0].vote
    cluster.crash(leader.me.id)
    cluster.run(10.0)
    assert cluster.leader is None
    assert others[0].state is State.PASSIVE and (others[0].term, others[0].vote) == (term, vote)
    damage(cluster, others[0])
    cluster.run(3.0)
    assert cluster.leader is not None


def test_a_leader_has_a_sound_one_lead() -> None:
    cluster, leader, others = cluster_of()
    damage(cluster, leader, 3, 5)
    cluster.run(0.5)
    assert cluster.leader in others
    assert append(cluster, 11)
    named = [fields for _, id, name, fields in cluster.events if name == "damage_found" and id == leader.me.id]
    assert named == [{"ids": [3, 5], "count": 2}]


def test_a_leader_whose_damaged_entry_nobody_else_has_lets_the_others_elect_one() -> None:
    cluster = Cluster(3, tail_bytes_max=1)
    cluster.elect()
    assert append(cluster, 1)
    leader = cluster.elect()
    cluster.catches = lambda envelope: isinstance(envelope.message, AppendRequest) and bool(envelope.message.entries)
    lost = cluster.append(CLIENT, 2, b"2")
    lost_id = leader.log.last_id
    for serial in (3, 4):
        cluster.run(0.1)
        cluster.append(CLIENT, serial, b"%d" % serial)
    assert leader.state is State.LEADER and leader.log.entry(lost_id) is None, "its only copy is on disk"
    cluster.catches = is_copy
    damage(cluster, leader, lost_id)
    reply = cluster.reply_to(lost)
    assert isinstance(reply, Refused) and reply.code is Code.LOST_LEADERSHIP
    cluster.run(3.0)
    assert cluster.leader is not None and cluster.leader is not leader
    assert append(cluster, 2)
    assert leader.log.last_id == cluster.leader.log.last_id, "what it alone had is expunged"


def test_a_leader_hands_over_although_appends_keep_coming() -> None:
    cluster, leader, others = cluster_of()
    cluster.append_on(0.0005)
    cluster.run(0.3)
    assert leader.log.last_id > leader.guaranteed_id, "something is always in flight"
    damage(cluster, leader, 3)
    cluster.run_until(lambda: cluster.leader in others, seconds=2.0)
    refused = [reply for reply in cluster.replies if isinstance(reply, Refused)]
    assert {reply.code for reply in refused} <= {Code.NOT_LEADER}, "what it took is guaranteed, and answered"
    told = [fields for _, id, name, fields in cluster.events if name == "handing_over" and id == leader.me.id]
    assert [fields["why"] for fields in told] == ["damaged"]


def test_a_handover_that_comes_to_nothing_lets_a_damaged_leader_take_appends_again() -> None:
    cluster, leader, others = cluster_of()
    cluster.catches = lambda envelope: is_copy(envelope) or isinstance(envelope.message, HandOver)
    damage(cluster, leader, 3)
    assert not leader.serves
    cluster.run_until(lambda: leader.serves, seconds=1.0)
    assert cluster.leader is leader
    assert append(cluster, 11)
    told: list[int] = []

    def both() -> bool:
        told[:] = [f["to"] for _, id, name, f in cluster.events if name == "handing_over" and id == leader.me.id]
        return len(told) > 1

    cluster.run_until(both, seconds=10.0)
    assert set(told) == {other.me.id for other in others}, "one after the other"


def test_a_damaged_server_is_sent_on_although_nothing_of_it_counts() -> None:
    """R17, R31: else it stood still after one window, and its readers with it."""
    cluster, leader, others = cluster_of()
    had = leader.last_id
    damage(cluster, others[0], 5)
    ends = cluster.append_on(0.01)
    for _ in range(10):
        cluster.run(0.2)
        cluster.give(leader.me.id, ReadIndex("keeps it heard"))
    ends()
    cluster.run(0.3)
    assert leader.leadership is not None
    peer = leader.leadership.peers[others[0].me.id]
    assert others[0].guaranteed_id == leader.last_id > 200
    assert (peer.match_id, len(peer.in_flight), peer.in_flight_bytes) == (had, 0, 0)


def test_what_a_damaged_server_holds_is_not_sent_to_it_again() -> None:
    cluster, leader, others = cluster_of()
    damage(cluster, others[0], 5)
    sent: list[int] = []

    def note(envelope: Envelope) -> bool:
        if envelope.target == others[0].me and isinstance(envelope.message, AppendRequest):
            sent.extend(entry.id for entry in envelope.message.entries)
        return is_copy(envelope)

    assert append(cluster, 11) and append(cluster, 12)
    cluster.catches = note
    cluster.give(leader.me.id, Connected(others[0].me.id))
    cluster.run(0.5)
    assert append(cluster, 13)
    assert sent == [leader.last_id]


def test_it_cleans_nothing() -> None:
    cluster, leader, others = cluster_of()
    head = cluster.hosts[others[0].me.id].store.entry_head(8)
    assert head is not None and others[0].cleaning.cleanable_id >= 8
    damage(cluster, others[0], 9)
    assert others[0].cleaning.cleanable_id == 0
    cluster.give(others[0].me.id, Clean(8, head[0], head[1] + head[2]))
    cluster.run(0.2)
    assert others[0].log.base_id == 0
    damage(cluster, others[0])
    cluster.give(others[0].me.id, Clean(8, head[0], head[1] + head[2]))
    cluster.run(0.2)
    assert others[0].log.base_id == 8
    assert leader.log.base_id == 0


def test_a_damaged_server_that_counts_less_than_its_leader_has_cleaned() -> None:
    cluster, leader, others = cluster_of()
    for host in cluster.hosts.values():
        head = host.store.entry_head(8)
        assert head is not None and host.replica is not None
        if host.replica is not others[0]:
            cluster.give(host.id, Clean(8, head[0], head[1] + head[2]))
    cluster.run(0.5)
    assert leader.log.base_id == 8
    damage(cluster, others[0], 4)
    cluster.crash(leader.me.id)
    cluster.boot(leader.me.id)
    cluster.run(5.0)
    assert cluster.leader is not None and cluster.leader is not others[0]
    assert append(cluster, 11)
    damage(cluster, others[0])
    cluster.run(2.0)
    assert cluster.leader.fully_replicated_id == cluster.leader.log.last_id


def test_alone_it_is_an_alarm_and_nothing_else() -> None:
    cluster, leader, _ = cluster_of(1)
    damage(cluster, leader, 4)
    assert append(cluster, 11)
    assert leader.cleaning.cleanable_id == leader.guaranteed_id
    cluster.crash(1)
    cluster.boot(1)
    replica = cluster.hosts[1].replica
    assert replica is not None
    damage(cluster, replica, 4)
    cluster.run(3.0)
    assert append(cluster, 12)
