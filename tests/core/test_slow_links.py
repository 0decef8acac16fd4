"""Messages that take many election timeouts to arrive: nothing is sent twice, nobody is deposed (R2, R17, R31)."""

from __future__ import annotations

from cluster_kit import Cluster
from session_leader import CLIENT

from alpo.core.messages import AppendRequest, CopyRequest, Envelope
from alpo.core.ready import DamageFound, Disconnected, Moving, Tick
from alpo.core.replica import Replica
from alpo.core.replication import OWING_TIMEOUTS, Lack
from alpo.core.requests import Appended
from alpo.core.snapshots import Sending


def carries(envelope: Envelope) -> bool:
    return isinstance(envelope.message, AppendRequest) and bool(envelope.message.entries)


def settled(size: int = 3) -> tuple[Cluster, Replica, list[int]]:
    """A cluster with a leader, and the others' ids."""
    cluster = Cluster(size)
    leader = cluster.elect()
    cluster.run(0.5)
    return cluster, leader, [id for id in cluster.hosts if id != leader.me.id]


def at_s(cluster: Cluster, id: int) -> float:
    return cluster.hosts[id].mono_s(cluster.now_us)


def move(cluster: Cluster, at: int, who: Replica, incoming: bool, seconds: float) -> None:
    """Bytes of a long message between server ``at`` and ``who`` move all the while."""
    for _ in range(round(seconds / 0.05)):
        cluster.run(0.05)
        cluster.give(at, Moving(who.me, incoming, at_s(cluster, at)))


def test_entries_that_are_still_leaving_are_not_sent_again() -> None:
    for moves in (True, False):
        cluster, leader, (slow, other) = settled()
        cluster.crash(other)
        cluster.catches = lambda e, slow=slow: carries(e) and e.target.id == slow  # type: ignore[misc]
        origin = cluster.append(CLIENT, 1, b"a")
        target = cluster.hosts[slow].running
        if moves:
            move(cluster, leader.me.id, target, False, 5)
        else:
            cluster.run(5)
        sent = [e for e in cluster.caught if e.message.entries[-1].id == leader.last_id]  # type: ignore[union-attr]
        assert (len(sent) == 1) is moves, sent
        cluster.catches = lambda e: False
        cluster.arrive(cluster.caught[0])
        cluster.run(1)
        assert isinstance(cluster.reply_to(origin), Appended) and cluster.leader is leader


def test_what_was_leaving_on_a_connection_that_ended_is_sent_again() -> None:
    cluster, leader, (slow, other) = settled()
    cluster.crash(other)
    cluster.catches = lambda e: carries(e) and e.target.id == slow
    origin = cluster.append(CLIENT, 1, b"a")
    move(cluster, leader.me.id, cluster.hosts[slow].running, False, 1)
    cluster.catches = lambda e: False
    cluster.give(leader.me.id, Disconnected(slow))
    cluster.link(leader.me.id, slow, True)
    cluster.step(leader.me.id)
    cluster.run(1)
    assert isinstance(cluster.reply_to(origin), Appended)


def test_a_leader_whose_messages_are_still_leaving_waits_for_the_answers() -> None:
    for moves in (True, False):
        cluster, leader, others = settled()
        followers = [cluster.hosts[id].running for id in others]
        for id in others:
            cluster.cut |= {(id, leader.me.id), (leader.me.id, id)}
        for _ in range(40):
            cluster.run(0.05)
            if moves:
                for follower in followers:
                    cluster.give(leader.me.id, Moving(follower.me, False, at_s(cluster, leader.me.id)))
                    cluster.give(follower.me.id, Moving(leader.me, True, at_s(cluster, follower.me.id)))
        assert (leader.reign is not None) is moves
        cluster.run(1)
        assert leader.reign is None, "nothing leaves any more, and nobody is heard"


def test_a_follower_that_confirms_nothing_of_what_it_has_is_told_while_more_leaves_for_it() -> None:
    cluster, leader, (hung, _) = settled()
    cluster.stalls = lambda host, count: host.id == hung
    cluster.append(CLIENT, 1, b"a")
    move(cluster, leader.me.id, cluster.hosts[hung].running, False, OWING_TIMEOUTS * leader.cfg.election_timeout_s + 1)
    assert leader.leadership is not None and leader.leadership.lacks() == {hung: Lack.OWES}


def test_bytes_of_the_leader_are_a_leader_heard() -> None:
    for moves in (True, False):
        cluster, leader, others = settled()
        term = leader.term
        for id in others:
            cluster.cut.add((leader.me.id, id))
        if moves:
            for _ in range(40):
                cluster.run(0.05)
                for id in others:
                    cluster.give(id, Moving(leader.me, True, at_s(cluster, id)))
            assert all(cluster.hosts[id].running.leader == leader.me for id in others)
        else:
            cluster.run(2)
        assert (max(cluster.hosts[id].running.term for id in others) == term) is moves


def test_bytes_of_others_and_of_leaders_that_are_gone_are_not() -> None:
    cluster, leader, (one, other) = settled()
    follower, now_s = cluster.hosts[one].running, at_s(cluster, one)
    heard_s = follower.heard_s
    for who, incoming in (
        (cluster.hosts[other].running.me, True), (leader.me._replace(incarnation=b"z" * 16), True), (leader.me, False),
    ):
        cluster.give(one, Moving(who, incoming, now_s))
        assert follower.heard_s == heard_s
    cluster.give(one, Moving(leader.me, True, now_s + 9))
    assert follower.heard_s == follower.now_s  # it came no later than now
    cluster.give(leader.me.id, Moving(cluster.hosts[other].running.me, True, now_s), Tick())


def test_it_can_wait() -> None:
    _, leader, (one, _) = settled()
    assert leader.can_wait(Moving(leader.me._replace(id=one), False, 0.0))


def test_a_copy_that_is_still_coming_is_not_asked_for_again() -> None:
    for moves in (True, False):
        cluster, leader, (damaged, _) = settled()
        cluster.append(CLIENT, 1, b"a")
        cluster.run(1)
        cluster.catches = lambda e: isinstance(e.message, CopyRequest)
        cluster.give(damaged, DamageFound((leader.last_id,)))
        (asked,) = {e.target for e in cluster.caught}
        if moves:
            move(cluster, damaged, cluster.hosts[asked.id].running, True, 2)
        else:
            cluster.run(2)
        assert (len(cluster.caught) == 1) is moves


def test_a_part_of_a_snapshot_that_is_still_leaving_is_not_sent_again() -> None:
    cluster, leader, (one, other) = settled()
    who = cluster.hosts[one].running.me
    assert leader.reign is not None
    sending = leader.reign.changes.newcomers.transfers[one] = Sending(who, 1, 0.0)
    moved_s = at_s(cluster, leader.me.id)
    newcomers = leader.reign.changes.newcomers
    newcomers.moving(who, moved_s)
    assert sending.sent_s == 0.0  # it was not read yet
    sending.head = "it was read"
    newcomers.moving(cluster.hosts[other].running.me, moved_s)
    assert sending.sent_s == 0.0
    newcomers.moving(who, moved_s)
    assert sending.sent_s == moved_s
