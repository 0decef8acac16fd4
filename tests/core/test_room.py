"""Full disks in the core: which servers take entries, which one leads, and the answers to clients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from cluster_kit import Cluster
from session_leader import CLIENT

from alpo.core import replication
from alpo.core.disk_space import Appends
from alpo.core.messages import AppendRequest, Room
from alpo.core.ready import DamageFound, Disconnected, Space
from alpo.core.replica import Replica
from alpo.core.requests import (
    Appended,
    AppendRun,
    Code,
    Dropped,
    DropSession,
    Initialise,
    Opened,
    OpenSession,
    ReadAt,
    ReadIndex,
    Refused,
    Trim,
    Trimmed,
)

_numbers = itertools.count()


def cluster_of(size: int = 3) -> tuple[Cluster, Replica, list[int]]:
    """A cluster with one payload, its leader, and the ids of the others."""
    cluster = Cluster(size)
    if size == 1:
        cluster.give(1, Initialise("init"))
    cluster.elect()
    cluster.append(CLIENT, 1, b"first")
    cluster.run(1.0)
    leader = cluster.leader
    assert leader is not None
    return cluster, leader, [id for id in cluster.hosts if id != leader.me.id]


def ask(cluster: Cluster, server: int, request: Any) -> Any:
    cluster.give(server, request)
    cluster.run(0.05)
    return cluster.reply_to(request.origin)


def append(cluster: Cluster, server: int, serial: int, *bodies: bytes) -> Any:
    origin = f"append {next(_numbers)}"
    return ask(cluster, server, AppendRun(origin, CLIENT, 0, serial, [(1, body) for body in bodies]))


def fill(cluster: Cluster, room: Room, *servers: int) -> None:
    for server in servers:
        cluster.give(server, Space(room, 1234))
    cluster.run(0.3)


def test_a_low_server_alone_takes_no_appends_and_no_opens_and_goes_on_with_the_rest() -> None:
    cluster, _, _ = cluster_of(1)
    opened = ask(cluster, 1, OpenSession("open", "alice", 0, b"n" * 16))
    assert isinstance(opened, Opened)
    fill(cluster, Room.LOW, 1)
    refused = append(cluster, 1, 2, b"second")
    assert (refused.code, refused.count) == (Code.NO_SPACE, 1)
    assert refused.detail == "server 1 is low on disk space: 1.2 KiB free"
    assert ask(cluster, 1, OpenSession("other", "bob", 0, b"m" * 16)).code is Code.NO_SPACE
    assert isinstance(ask(cluster, 1, OpenSession("open again", "alice", 0, b"n" * 16)), Opened)
    assert isinstance(ask(cluster, 1, Trim("trim", 2)), Trimmed)
    assert isinstance(ask(cluster, 1, ReadIndex("read")), ReadAt)
    assert isinstance(ask(cluster, 1, DropSession("drop", "alice", opened.epoch)), Dropped)
    fill(cluster, Room.PLENTY, 1)
    assert isinstance(append(cluster, 1, 2, b"second"), Appended)
    assert [e[2] for e in cluster.events if e[2] in ("low_on_space", "space_is_back")] == [
        "low_on_space", "space_is_back"
    ]


def test_a_full_log_takes_no_appends_where_it_is_and_goes_on_with_the_rest() -> None:
    """A handover would not help: the log is as large on every other server."""
    cluster, leader, _ = cluster_of()
    at, term = leader.me.id, leader.term
    cluster.give(at, Space(Room.PLENTY, 1234, "the log is full"))
    cluster.run(0.3)
    refused = append(cluster, at, 2, b"second")
    assert (refused.code, refused.detail) == (Code.NO_SPACE, "the log is full")
    assert ask(cluster, at, OpenSession("open", "alice", 0, b"n" * 16)).code is Code.NO_SPACE
    assert isinstance(ask(cluster, at, Trim("trim", 2)), Trimmed)
    assert leader.leadership is not None
    assert leader.disks.appends(leader.leadership) == Appends(False, ["the log is full"], 0)
    cluster.run(5.0)
    assert cluster.leader is leader and leader.term == term
    cluster.give(at, Space(Room.PLENTY, 1234))
    assert isinstance(append(cluster, at, 2, b"second"), Appended)


def test_what_is_in_the_log_already_is_answered_as_ever() -> None:
    """The part of a request that is in the log already is acknowledged; its new part is refused."""
    cluster, _, _ = cluster_of(1)
    fill(cluster, Room.LOW, 1)
    cluster.give(1, AppendRun("both", CLIENT, 0, 1, [(1, b"first"), (1, b"second")]))
    cluster.run(0.1)
    told, refused = (reply for reply in cluster.replies if reply.origin == "both")
    assert isinstance(told, Appended) and told.serial == 1 and told.duplicate
    assert isinstance(refused, Refused) and refused.serial == 2 and refused.code is Code.NO_SPACE


@pytest.mark.parametrize("room", [Room.LOW, Room.NONE])
def test_a_low_leader_has_one_lead_that_has_room(room: Room) -> None:
    cluster, leader, others = cluster_of()
    cluster.give(others[0], Space(Room.LOW, 1))
    cluster.run(0.3)
    fill(cluster, room, leader.me.id)
    cluster.run(0.3)
    low = [leader.me.id, others[0]]
    assert cluster.leader is leader, f"two of three are low: {low}"
    fill(cluster, Room.PLENTY, others[0])
    cluster.run(0.5)
    assert cluster.leader is not None and cluster.leader.me.id in others
    assert isinstance(append(cluster, cluster.leader.me.id, 2, b"second"), Appended)
    took = leader.log.last_id == cluster.leader.log.last_id
    assert took is (room is Room.LOW)
    fill(cluster, Room.PLENTY, leader.me.id)
    cluster.run(2.0)
    assert leader.guaranteed_id == cluster.leader.log.last_id


def test_a_leader_takes_nothing_while_a_majority_is_low() -> None:
    cluster, leader, others = cluster_of(5)
    fill(cluster, Room.LOW, *others[:2])
    assert isinstance(append(cluster, leader.me.id, 2, b"second"), Appended)
    fill(cluster, Room.NONE, others[2])
    refused = append(cluster, leader.me.id, 3, b"third")
    assert refused.code is Code.NO_SPACE
    rooms = {others[2]: "is low on disk space and takes no entries"}
    assert refused.detail == ", ".join(
        f"server {id} {rooms.get(id, 'is low on disk space')}" for id in sorted(others[:3])
    )
    fill(cluster, Room.PLENTY, others[0])
    assert isinstance(append(cluster, leader.me.id, 3, b"third"), Appended)


def test_a_server_without_room_takes_no_entries_votes_and_catches_up() -> None:
    cluster, leader, others = cluster_of()
    full = others[0]
    replica = cluster.hosts[full].replica
    assert replica is not None
    had = replica.log.last_id
    fill(cluster, Room.NONE, full)
    for serial in range(2, 12):
        assert isinstance(append(cluster, leader.me.id, serial, b"more"), Appended)
    cluster.run(2.0)
    assert replica.log.last_id == had == replica.guaranteed_id
    assert replica.leader == leader.me
    cluster.crash(leader.me.id)
    cluster.run(5.0)
    assert cluster.leader is not None and cluster.leader.me.id == others[1], "its vote is needed"
    assert replica.log.last_id == had
    fill(cluster, Room.PLENTY, full)
    cluster.run(2.0)
    assert replica.guaranteed_id == cluster.leader.log.last_id > had + 10
    assert isinstance(append(cluster, others[1], 12, b"on"), Appended)


# -- whether appends work ------------------------------------------------------------------------------------


def answer_of(cluster: Cluster) -> Appends:
    """The leader's report on whether appends work."""
    leader = cluster.leader
    assert leader is not None and leader.leadership is not None
    return leader.disks.appends(leader.leadership)


@pytest.mark.parametrize("room", [Room.LOW, Room.NONE])
@pytest.mark.parametrize("silenced", ["crash", "isolate"])
def test_a_voter_that_does_not_answer_counts_as_none_with_space(room: Room, silenced: str) -> None:
    """A silent voter's last answer, and its open connection, do not count as a sign that it can take entries."""
    cluster, leader, (low, silent) = cluster_of()
    assert answer_of(cluster) == (True, [], 1)
    fill(cluster, room, low)
    lacks = "is low on disk space" + (" and takes no entries" if room is Room.NONE else "")
    assert answer_of(cluster) == (True, [f"server {low} {lacks}"], 0)
    assert isinstance(append(cluster, leader.me.id, 2, b"two take it"), Appended)
    getattr(cluster, silenced)(silent)
    cluster.run(2.0)
    assert cluster.leader is leader
    refused = append(cluster, leader.me.id, 3, b"one would")
    causes = f"server {low} {lacks}, server {silent} does not answer"
    assert (refused.code, refused.detail) == (Code.NO_SPACE, causes)
    assert ask(cluster, leader.me.id, OpenSession("open", "alice", 0, b"n" * 16)).detail == causes
    assert answer_of(cluster) == (False, causes.split(", "), 0)
    fill(cluster, Room.PLENTY, low)
    assert isinstance(append(cluster, leader.me.id, 3, b"two again"), Appended)
    assert answer_of(cluster) == (True, [f"server {silent} does not answer"], 0)


def test_a_low_leader_names_who_else_lacks_something() -> None:
    cluster, leader, (low, silent) = cluster_of()
    cluster.crash(silent)
    cluster.run(1.0)
    fill(cluster, Room.LOW, low, leader.me.id)
    refused = append(cluster, leader.me.id, 2, b"second")
    assert refused.detail == (
        f"server {leader.me.id} is low on disk space: 1.2 KiB free, server {low} is low on disk space,"
        f" server {silent} does not answer"
    )
    assert answer_of(cluster) == (False, refused.detail.split(", "), 0)


def test_silence_alone_refuses_nothing() -> None:
    """Appends wait until the leader steps down if too many voters are silent, as more space would not help then."""
    cluster, leader, others = cluster_of(5)
    fill(cluster, Room.LOW, others[0])
    for id in others[1:3]:
        cluster.crash(id)
    cluster.run(1.0)
    assert append(cluster, leader.me.id, 2, b"two are silent").code is Code.NO_SPACE
    cluster.crash(others[3])
    cluster.give(leader.me.id, Disconnected(others[3]))
    assert append(cluster, leader.me.id, 2, b"three are") is None
    assert not answer_of(cluster).work
    cluster.run(2.0)
    assert cluster.leader is None


def test_a_minority_that_is_silent_leaves_appends_alone() -> None:
    cluster, leader, others = cluster_of(5)
    for id in others[:2]:
        cluster.isolate(id)
    cluster.run(2.0)
    assert isinstance(append(cluster, leader.me.id, 2, b"second"), Appended)
    assert answer_of(cluster) == (True, [f"server {id} does not answer" for id in sorted(others[:2])], 0)


@pytest.mark.parametrize("hangs", ["leader", "others"])
def test_a_disk_that_hangs_is_not_counted_on(hangs: str) -> None:
    """A follower whose disk hangs answers heartbeats and confirms no entries. A leader whose disk hangs is succeeded by
    another server, and cannot answer in the new term, because that term is not on its disk (R34, R14)."""
    cluster, leader, others = cluster_of()
    cluster.run(5.0)
    assert answer_of(cluster) == (True, [], 1), "who owes nothing hangs at nothing, however long nothing comes"
    stuck = [leader.me.id] if hangs == "leader" else others
    lack = "does not answer" if hangs == "leader" else "confirms no entries"
    cluster.stalls = lambda host, count: host.id in stuck
    said = append(cluster, leader.me.id, 2, b"second")
    cluster.run(3.0)
    assert (said is None) == (hangs == "others")
    assert (cluster.leader is leader) == (hangs == "others")
    assert answer_of(cluster) == (hangs == "leader", [f"server {id} {lack}" for id in sorted(stuck)], 0)
    cluster.stalls = lambda host, count: False
    for id in stuck:
        cluster.commit(id)
    cluster.run(1.0)
    assert answer_of(cluster) == (True, [], 1)


def test_a_voter_that_takes_nothing_in_is_not_counted_on() -> None:
    """A voter that answers heartbeats, but receives no entries, does not count."""
    cluster, leader, others = cluster_of()
    cluster.catches = lambda e: e.target.id == others[0] and isinstance(e.message, AppendRequest) and bool(
        e.message.entries
    )
    assert isinstance(append(cluster, leader.me.id, 2, b"two take it"), Appended)
    cluster.run(3.0)
    assert answer_of(cluster) == (True, [f"server {others[0]} confirms no entries"], 0)
    cluster.catches = lambda e: False
    cluster.run(1.0)
    assert answer_of(cluster) == (True, [], 1)


def test_a_disk_that_is_slow_and_moves_is_counted_on() -> None:
    cluster, leader, others = cluster_of()
    cluster.stalls = lambda host, count: host.id == others[0]
    for serial in range(2, 12):
        append(cluster, leader.me.id, serial, b"more")
        cluster.run(0.7)
        cluster.commit(others[0])
        cluster.run(0.05)
        assert answer_of(cluster) == (True, [], 1)


def test_a_voter_far_behind_is_not_counted_on_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "CAUGHT_UP_ENTRIES", 5)
    cluster, leader, others = cluster_of()
    cluster.isolate(others[0])
    for serial in range(2, 12):
        append(cluster, leader.me.id, serial, b"more")
    cluster.catches = lambda e: e.target.id == others[0] and isinstance(e.message, AppendRequest) and bool(
        e.message.entries
    )
    cluster.heal()
    cluster.run(0.3)
    assert answer_of(cluster) == (True, [f"server {others[0]} has yet to catch up"], 0)
    cluster.catches = lambda e: False
    cluster.run(2.0)
    assert answer_of(cluster) == (True, [], 1)


def test_damage_counts_for_nothing_where_others_could_be_misled() -> None:
    cluster, leader, _ = cluster_of()
    cluster.give(leader.me.id, DamageFound((leader.log.last_id,)))
    assert leader.leadership is not None
    assert leader.disks.appends(leader.leadership).why == [f"server {leader.me.id} holds damaged entries"]
    cluster, leader, _ = cluster_of(1)
    assert answer_of(cluster) == (True, [], 0)
def test_a_server_that_has_room_again_is_sent_entries_although_appends_keep_coming() -> None:
    """The leader learns from answers to heartbeats that there is room: marks sent alone must not replace heartbeats."""
    cluster, leader, others = cluster_of()
    full = cluster.replica(others[0])
    cluster.append_on(0.01)
    fill(cluster, Room.NONE, full.me.id)
    had = full.last_id
    cluster.run(1.0)
    assert full.last_id == had
    fill(cluster, Room.PLENTY, full.me.id)
    cluster.run(0.5)
    assert full.last_id > leader.last_id - 10
