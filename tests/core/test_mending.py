"""R31 in the core: damaged entries are had back from other members."""

from __future__ import annotations

import pytest
from cluster_kit import Cluster
from damage_kit import append, cluster_of, is_copy
from session_leader import CLIENT

from alpo.core import messages as m
from alpo.core.entries import Entry, Kind, seal
from alpo.core.ready import Clean, DamageFound, Received
from alpo.core.replica import Replica


def damage(cluster: Cluster, replica: Replica, *ids: int) -> None:
    cluster.give(replica.me.id, DamageFound(ids))


def mended_by(cluster: Cluster, replica: Replica) -> dict[int, int]:
    """The server that each repaired entry was copied from, by the entry's id."""
    return {
        fields["id"]: fields["copy_of"] for _, id, name, fields in cluster.events
        if name == "damage_mended" and id == replica.me.id
    }


def test_all_of_it_comes_back_and_counts_again() -> None:
    cluster, _, others = cluster_of(mending=True)
    damage(cluster, others[0], 2, 5, 6)
    cluster.run(3.0)
    assert sorted(mended_by(cluster, others[0])) == [2, 5, 6]
    assert not others[0].damage.ids and not others[0].damage.binds
    cluster.crash(others[1].me.id)
    assert append(cluster, 11)


def test_a_leader_has_its_own_back_from_those_who_follow() -> None:
    cluster, leader, others = cluster_of(mending=True)
    damage(cluster, leader, 4)
    cluster.run(3.0)
    assert mended_by(cluster, leader)[4] in [other.me.id for other in others]
    assert not leader.damage.ids


def test_of_two_with_the_same_damage_each_finds_the_third() -> None:
    cluster, leader, others = cluster_of(mending=True)
    damage(cluster, others[0], 5)
    damage(cluster, others[1], 5)
    cluster.run(5.0)
    assert mended_by(cluster, others[0]) == mended_by(cluster, others[1]) == {5: leader.me.id}


def test_who_does_not_answer_is_passed_over() -> None:
    cluster, leader, others = cluster_of(mending=True)
    cluster.crash(others[1].me.id)
    damage(cluster, others[0], 5)
    cluster.run(5.0)
    assert mended_by(cluster, others[0]) == {5: leader.me.id}


def test_alone_nobody_is_asked() -> None:
    cluster, leader, others = cluster_of(mending=True)
    for other in others:
        cluster.crash(other.me.id)
    damage(cluster, leader, 5)
    cluster.run(5.0)
    assert not mended_by(cluster, leader) and leader.damage.binds


@pytest.mark.parametrize(
    "wrong", [
        lambda entry: seal(entry.id, entry.term + 1, Kind.DATA, entry.time_ms, entry.lsn, b"x", entry.client, 0, 0, 1),
        lambda entry: entry._replace(body=b"another"),
        lambda entry: entry._replace(id=entry.id + 1),
        lambda entry: seal(entry.id - 1, entry.term, Kind.DATA, entry.time_ms, entry.lsn, b"x", entry.client, 0, 0, 1),
    ],
    ids=["of another term", "whose body is damaged", "whose id is damaged", "of another id"],
)
def test_a_copy_of_anything_else_is_not_taken(wrong: object) -> None:
    cluster, leader, others = cluster_of(mending=True)
    (entry,) = cluster.hosts[leader.me.id].store.read_entries(5, 5, 1)
    assert callable(wrong)
    copy: Entry = wrong(entry)
    cluster.catches = is_copy  # nobody else answers
    cluster.give(others[0].me.id, DamageFound((5,)))
    answer = m.Envelope(leader.cluster, leader.me, others[0].me, m.CopyAnswer(5, 0, [copy]))
    cluster.give(others[0].me.id, Received(answer))
    cluster.run(1.0)
    assert not mended_by(cluster, others[0]) and others[0].damage.ids == (5,)
    cluster.give(others[0].me.id, Received(answer._replace(message=m.CopyAnswer(5, 0, [entry]))))
    cluster.run(0.1)
    assert mended_by(cluster, others[0]) == {5: leader.me.id}


def test_one_copy_is_taken_a_question_and_told_of_once_it_is_sound() -> None:
    cluster, leader, others = cluster_of(mending=True)
    host = cluster.hosts[others[0].me.id]
    (entry,) = host.store.read_entries(5, 5, 1)
    cluster.catches = is_copy  # nobody answers
    cluster.give(host.id, DamageFound((5,)))
    host.damaged = ()  # repaired entries are not checked again
    answer = Received(m.Envelope(leader.cluster, leader.me, others[0].me, m.CopyAnswer(5, 0, [entry])))
    cluster.give(host.id, answer, answer)
    cluster.give(host.id, answer)
    assert [len(write.mended) for write in host.writes] == [1]
    cluster.run(1.0)
    assert not mended_by(cluster, others[0])
    cluster.give(host.id, answer)
    assert [len(write.mended) for write in host.writes] == [1], "another question, another try"


def test_a_member_that_says_it_is_cleaned_and_lies_is_not_asked_in_a_loop() -> None:
    cluster, leader, others = cluster_of(mending=True)
    cluster.catches = is_copy
    cluster.give(others[0].me.id, DamageFound((5,)))
    lie = m.Envelope(leader.cluster, leader.me, others[0].me, m.CopyAnswer(5, 4, []))
    cluster.give(others[0].me.id, Received(lie))
    assert others[0].damage.binds and others[0].damage.ask_s > cluster.now_s


def test_what_is_found_is_told_once() -> None:
    cluster, _, others = cluster_of(mending=True)
    damage(cluster, others[0], 2, 5)
    cluster.run(3.0)
    found = [fields for _, id, name, fields in cluster.events if name == "damage_found" and id == others[0].me.id]
    assert found == [{"ids": [2, 5], "count": 2}]


def test_a_copy_of_an_entry_that_was_expunged_meanwhile_is_not_taken() -> None:
    cluster, leader, others = cluster_of(mending=True)
    for other in others:
        cluster.cut |= {(other.me.id, leader.me.id), (leader.me.id, other.me.id)}
    cluster.append(CLIENT, 11, b"never guaranteed", to=leader.me.id)
    cluster.run(0.1)
    (gone,) = cluster.hosts[leader.me.id].store.read_entries(leader.last_id, leader.last_id, 1)
    damage(cluster, leader, gone.id)
    cluster.hosts[leader.me.id].damaged = ()  # repaired entries are not checked again
    cluster.run(3.0)
    cluster.cut.clear()
    cluster.catches = is_copy  # nobody else answers
    cluster.run(3.0)
    assert leader.log.term_at(gone.id) != gone.term and gone.id <= leader.log.stable_id
    copy = m.Envelope(leader.cluster, others[0].me, leader.me, m.CopyAnswer(gone.id, 0, [gone]))
    cluster.give(leader.me.id, Received(copy))
    assert gone.id in leader.damage.ids and not mended_by(cluster, leader)


def test_what_another_member_has_cleaned_binds_no_more() -> None:
    cluster, leader, others = cluster_of(mending=True)
    head = cluster.hosts[leader.me.id].store.entry_head(8)
    assert head is not None
    for replica in (leader, others[1]):
        cluster.give(replica.me.id, Clean(8, head[0], head[1] + head[2]))
    cluster.run(0.5)
    assert leader.log.base_id == others[1].log.base_id == 8
    damage(cluster, others[0], 4)
    cluster.run(2.0)
    assert others[0].damage.ids == (4,) and not others[0].damage.binds
    assert not mended_by(cluster, others[0])
    cluster.crash(others[1].me.id)
    assert append(cluster, 11), "it counts again"
    cluster.give(others[0].me.id, Clean(8, head[0], head[1] + head[2]))
    cluster.run(0.5)
    assert others[0].log.base_id == 8


def test_what_another_member_has_cleaned_says_nothing_of_later_damage() -> None:
    """R31: an entry that others may still need binds, although one before it binds no more."""
    cluster, leader, others = cluster_of(mending=True)
    damaged, other = others
    head = cluster.hosts[leader.me.id].store.entry_head(8)
    assert head is not None
    for replica in (leader, other):
        cluster.give(replica.me.id, Clean(8, head[0], head[1] + head[2]))
    cluster.run(0.5)
    assert leader.log.base_id == other.log.base_id == 8
    cluster.catches = lambda envelope: isinstance(envelope.message, m.CopyAnswer) and bool(envelope.message.entries)
    damage(cluster, damaged, 4, 9)
    cluster.run(1.0)
    assert any(name == "damage_cleaned_elsewhere" for _, _, name, _ in cluster.events)
    assert damaged.damage.binds and damaged.damage.first_id == 9
    assert damaged.cleaning.cleanable_id == 0
    cluster.crash(other.me.id)
    assert not append(cluster, 11), "it counts nothing from entry 9 on"
    cluster.catches = lambda envelope: False
    cluster.run(3.0)
    assert mended_by(cluster, damaged) == {9: leader.me.id} and damaged.damage.ids == (4,)
    assert not damaged.damage.binds
    assert append(cluster, 12), "it counts again"
