"""Outcomes of appends: the verdict of the session table, and when a leader may tell it (R21, R22, R25)."""

from __future__ import annotations

from typing import Any

from cluster_kit import Cluster
from session_leader import CLIENT, RANDOM, A, B, C, Leader, random_id

from alpo.core.entries import Kind
from alpo.core.machine.verdicts import Found, Refuse
from alpo.core.requests import Code, Fate, Outcome, Refused, Told


def verdict(leader: Leader, client: str, serial: int, epoch: int = 0) -> Any:
    return leader.table.judge_outcome(Outcome(None, client, serial, epoch), leader.head + 1)


def test_appended_at_its_lsn_not_appended_and_forgotten() -> None:
    leader = Leader(window=2)
    for serial, body in enumerate([A, (2, b"\1\0\0\0x\1\0\0\0y"), C], 1):
        leader.append(RANDOM, 0, serial, body)
    assert verdict(leader, RANDOM, 2) == Found(Fate.APPENDED, 2, 0, 2)
    assert verdict(leader, RANDOM, 3) == Found(Fate.APPENDED, 4, 0, 3)
    assert verdict(leader, RANDOM, 4) == Found(Fate.NOT_APPENDED, 0, 0, 3)
    assert verdict(leader, RANDOM, 1) == Found(Fate.TOO_OLD, 0, 0, 3)


def test_a_skipped_serial_was_not_appended() -> None:
    leader = Leader()
    leader.append(RANDOM, 0, 1, A)
    leader.append(RANDOM, 0, 5, B, sparse=True)
    assert verdict(leader, RANDOM, 3) == Found(Fate.NOT_APPENDED, 0, 0, 2)


def test_an_unknown_random_client_is_told_by_the_horizon() -> None:
    leader = Leader(sessions_max=1)
    leader.append(random_id(1000), 0, 1, A)
    leader.append(random_id(2000), 0, 1, A)
    assert verdict(leader, random_id(1000), 1) == Found(Fate.TOO_OLD, 0, 0, 2)
    assert verdict(leader, random_id(999), 1) == Found(Fate.TOO_OLD, 0, 0, 2)
    assert verdict(leader, random_id(1001), 1) == Found(Fate.NOT_APPENDED, 0, 0, 2)


def test_of_a_name_that_is_not_open_nobody_can_tell() -> None:
    leader = Leader()
    assert verdict(leader, "alice", 1) == Found(Fate.TOO_OLD, 0, 0, 0)
    epoch = leader.open()
    leader.append("alice", epoch, 1, A)
    assert verdict(leader, "alice", 1) == Found(Fate.APPENDED, 1, epoch, 2)
    leader.drop("alice", epoch)
    assert verdict(leader, "alice", 1) == Found(Fate.TOO_OLD, 0, 0, 3)


def test_an_older_epochs_serial_is_told_after_the_name_was_opened_again() -> None:
    leader = Leader()
    leader.append("alice", leader.open(), 1, A)
    leader.open("alice", 2)
    assert verdict(leader, "alice", 1) == Found(Fate.APPENDED, 1, 1, 2)
    assert verdict(leader, "alice", 2) == Found(Fate.NOT_APPENDED, 0, 1, 3)


def test_a_name_is_told_of_in_its_present_life_and_since_when_that_is() -> None:
    leader = Leader()
    dropped = leader.open()
    leader.append("alice", dropped, 1, A)
    leader.drop("alice", dropped)
    birth = leader.open(n=2)
    leader.append("alice", birth, 1, B)
    newer = leader.open(n=3)
    leader.append("alice", newer, 2, C)
    for epoch in (0, birth):
        assert verdict(leader, "alice", 1, epoch) == Found(Fate.APPENDED, 2, birth, 5)
    assert verdict(leader, "alice", 1, newer) == Found(Fate.NOT_APPENDED, 0, birth, leader.head)
    for serial in (1, 2, 3):
        assert verdict(leader, "alice", serial, dropped) == Found(Fate.TOO_OLD, 0, birth, leader.head)


def test_what_can_never_be_right_is_refused() -> None:
    leader = Leader()
    for client, serial in (("", 1), ("~no-uuid", 1), ("x" * 129, 1), ("alice", 0), ("alice", -1), ("alice", 1 << 63)):
        assert verdict(leader, client, serial) == Refuse(0, 0, Code.INVALID, 0, 0)
    assert verdict(leader, RANDOM, 1, 5) == Refuse(0, 0, Code.INVALID, 0, 0)


def ask(cluster: Cluster, to: int, serial: int, name: str) -> None:
    cluster.give(to, Outcome(name, CLIENT, serial))


def test_a_leader_tells_it_and_others_say_who_leads() -> None:
    cluster = Cluster()
    leader = cluster.elect().me.id
    cluster.append(CLIENT, 1, b"one")
    cluster.run(1.0)
    ask(cluster, leader, 1, "one")
    ask(cluster, leader, 2, "two")
    other = next(id for id in cluster.hosts if id != leader)
    ask(cluster, other, 1, "elsewhere")
    cluster.run(1.0)
    assert cluster.reply_to("one") == Told("one", Fate.APPENDED, 1, 0)
    assert cluster.reply_to("two") == Told("two", Fate.NOT_APPENDED, 0, 0)
    assert cluster.reply_to("elsewhere") == Refused("elsewhere", "", 0, 0, Code.NOT_LEADER, 0, leader)


def test_r25_a_deposed_leader_that_does_not_know_it_tells_nothing() -> None:
    cluster = Cluster()
    old = cluster.elect().me.id
    cluster.isolate(old)
    cluster.run_until(lambda: cluster.leader is not None and cluster.leader.me.id != old)
    cluster.elect()
    cluster.append(CLIENT, 1, b"one")
    ask(cluster, old, 1, "of the old one")
    cluster.run(3.0)
    reply = cluster.reply_to("of the old one")
    assert isinstance(reply, Refused) and reply.code is Code.NOT_LEADER


def test_r21_an_outcome_waits_until_what_it_rests_on_is_guaranteed() -> None:
    """The round is answered, the disks are slow: the append is at the head, and not guaranteed."""
    cluster = Cluster()
    leader = cluster.elect()
    cluster.stalls = lambda host, count: True
    cluster.append(CLIENT, 1, b"one")
    ask(cluster, leader.me.id, 1, "appended?")
    ask(cluster, leader.me.id, 2, "the next?")
    before = leader.round
    cluster.run(0.2)
    assert leader.round > before and leader.reign is not None and not leader.reign.reads.waiting
    assert cluster.reply_to("appended?") is None and cluster.reply_to("the next?") is None
    cluster.stalls = lambda host, count: False
    for id in cluster.hosts:
        cluster.commit(id)
    cluster.run(1.0)
    assert cluster.reply_to("appended?") == Told("appended?", Fate.APPENDED, 1, 0)
    assert cluster.reply_to("the next?") == Told("the next?", Fate.NOT_APPENDED, 0, 0)
    assert leader.log.entry(leader.last_id).kind == Kind.DATA  # type: ignore[union-attr]
