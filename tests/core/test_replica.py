"""Whole replicas against each other: elections, replication, crashes, partitions (rules named in each test)."""

from __future__ import annotations

import random

import pytest
from cluster_kit import Cluster
from session_leader import CLIENT, random_id

from alpo.core.changes import ADDRESS_TIMEOUTS
from alpo.core.handover import Handover
from alpo.core.members import Member, MemberList, Role, StartStatus
from alpo.core.messages import AppendRequest, Envelope
from alpo.core.ranks import State
from alpo.core.ready import Begin, PeerAddress, Stop, Tick
from alpo.core.replica import Replica
from alpo.core.requests import Appended, Code, Initialise, Initialised, ReadAt, ReadIndex, Refused
from alpo.core.settings import Settings


def handover(replica: Replica) -> Handover:
    assert replica.handover is not None, "nobody told it to stop"
    return replica.handover


def test_first_start_elects_a_leader_and_appends() -> None:
    cluster = Cluster(3)
    cluster.elect()
    origin = cluster.append(CLIENT, 1, b"a", b"b", b"c")
    cluster.run_until(lambda: cluster.reply_to(origin) is not None)
    reply = cluster.reply_to(origin)
    assert isinstance(reply, Appended) and list(reply.lsns) == [1, 2, 3] and not reply.duplicate
    cluster.run(1)
    assert cluster.log_of(1) == cluster.log_of(2) == cluster.log_of(3)
    assert len({h.replica.cluster for h in cluster.hosts.values() if h.replica}) == 1


def test_the_retry_of_an_append_gets_the_same_lsns_from_the_next_leader() -> None:
    cluster = Cluster(3)
    old = cluster.elect().me.id
    first = cluster.append(CLIENT, 1, b"a", b"b")
    cluster.run_until(lambda: cluster.reply_to(first) is not None)
    cluster.crash(old)
    cluster.run_until(lambda: cluster.leader is not None and cluster.leader.me.id != old)
    again = cluster.append(CLIENT, 1, b"a", b"b")
    cluster.run_until(lambda: cluster.reply_to(again) is not None)
    reply = cluster.reply_to(again)
    assert isinstance(reply, Appended) and list(reply.lsns) == [1, 2] and reply.duplicate


def test_a_deposed_leader_says_that_the_outcome_is_unknown() -> None:
    """R15, R21: the answer for an entry in its log is LOST_LEADERSHIP, not NOT_LEADER. The entry is expunged (R12)."""
    cluster = Cluster(3)
    old = cluster.elect().me.id
    cluster.isolate(old)
    origin = cluster.append(CLIENT, 1, b"lost", to=old)
    cluster.run_until(lambda: cluster.reply_to(origin) is not None)
    reply = cluster.reply_to(origin)
    assert isinstance(reply, Refused) and reply.code is Code.LOST_LEADERSHIP
    cluster.run_until(lambda: cluster.leader is not None and cluster.leader.me.id != old)
    new = cluster.append(random_id(1), 1, b"kept")
    cluster.run_until(lambda: cluster.reply_to(new) is not None)
    cluster.heal()
    cluster.run(2)
    assert [e.body for e in cluster.log_of(old) if e.count] == [b"kept"]
    assert any(name == "expunge" and id == old for _, id, name, _ in cluster.events)


def test_answers_to_heartbeats_wait_for_the_next_one() -> None:
    """A leader at rest steps for its ticks alone, of which this cluster makes two a heartbeat. It still knows exactly
    when each follower answered."""
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.run(1)
    steps: list[float] = []
    cluster.on_ready = lambda host, may_stop: steps.append(cluster.now_s) if host.replica is leader else None
    cluster.run(10)
    assert len(steps) <= 2 * 10 / leader.cfg.heartbeat_s + 1
    assert leader.leadership is not None
    heard_s = max(peer.heard_s for peer in leader.leadership.peers.values())
    assert heard_s not in steps and steps[-3] < heard_s < steps[-1]


def test_a_log_that_was_just_founded_has_a_leader_at_once() -> None:
    cluster = Cluster(3, first_log=False, auto_init=False)
    begun_s = cluster.now_s
    me = {id: host.replica.me for id, host in cluster.hosts.items() if host.replica is not None}
    first = MemberList.of(Member(id, f"host-{id}:1", 0, me[id].incarnation, Role.VOTER) for id in me)
    for id in me:
        cluster.give(id, Begin(first.to_plain(), Settings().to_plain()))
    leader = cluster.elect()
    assert leader.me.id == 3 and cluster.now_s - begun_s < leader.cfg.election_timeout_s / 2


def test_heartbeats_of_the_other_logs_leave_together() -> None:
    cluster = Cluster(3, first_log=False)
    leader = cluster.elect()
    every_s, sent = leader.cfg.heartbeat_s, []

    def note(envelope: Envelope) -> bool:
        if isinstance(envelope.message, AppendRequest) and not envelope.message.entries:
            sent.append(cluster.now_s)
        return False

    cluster.run(1.03 * every_s)
    assert cluster.append(random_id(1), 1, b"one") is not None
    asked_s = cluster.now_s
    cluster.run(every_s / 2)  # the entry, and its mark
    cluster.catches = note
    cluster.run(10 * every_s)
    assert len(sent) == 2 * 5 and sent[0] - asked_s < 2 * every_s
    assert all(at_s % (2 * every_s) < every_s / 10 for at_s in sent), sent


def test_a_server_back_from_a_partition_deposes_nobody() -> None:
    """R2: a server that was cut off for 20 s changes neither the leader nor the term when it is back."""
    cluster = Cluster(5)
    leader = cluster.elect()
    away = next(id for id in cluster.hosts if id != leader.me.id)
    cluster.isolate(away)
    cluster.run(20)
    cluster.heal()
    cluster.run(5)
    assert cluster.leader is leader and cluster.replica(away).term == leader.term


def test_a_zombie_answers_no_linearizable_read() -> None:
    """R25: a leader that was deposed without knowing it refuses a linearizable read; its successor answers one."""
    cluster = Cluster(3)
    old = cluster.elect()
    cluster.isolate(old.me.id)
    cluster.give(old.me.id, ReadIndex("stale"))
    cluster.run_until(lambda: cluster.reply_to("stale") is not None)
    assert isinstance(cluster.reply_to("stale"), Refused)
    cluster.heal()
    cluster.elect()
    cluster.give(cluster.reigning.me.id, ReadIndex("fresh"))
    cluster.run_until(lambda: cluster.reply_to("fresh") is not None)
    reply = cluster.reply_to("fresh")
    assert isinstance(reply, ReadAt) and reply.id >= 1


def test_handover_is_faster_than_any_timeout() -> None:
    """R28: another server leads within 0.1 s after the leader was told to stop."""
    cluster = Cluster(3)
    old = cluster.elect()
    before_s = cluster.now_s
    cluster.give(old.me.id, Stop())
    cluster.run_until(lambda: cluster.leader not in (None, old))
    heir = cluster.elect()
    assert cluster.now_s - before_s < 0.1
    ready = old.step([], cluster.now_s + 0.3, cluster.wall_ms())
    assert old.state is State.PASSIVE
    assert heir.leadership is not None
    assert ready.may_stop or old.guaranteed_id < heir.leadership.first_id


@pytest.mark.parametrize("moment_s", [0.3 + at * 0.009 for at in range(20)])
def test_all_may_leave_at_once(moment_s: float) -> None:
    """R28: a leader without an heir does not stay for five seconds, whatever messages of the others it has by then."""
    cluster = Cluster(3)
    cluster.elect()
    cluster.run(moment_s)
    for id in cluster.hosts:
        cluster.give(id, Stop())
    leaving: dict[int, float] = {}
    began_s = cluster.now_s
    while len(leaving) < 3 and cluster.now_s < began_s + 5:
        cluster.run(0.01)
        for id, host in cluster.hosts.items():
            if host.replica is not None and handover(host.replica).advance(host.replica.leadership):
                leaving[id] = cluster.now_s - began_s
                cluster.crash(id)
    assert len(leaving) == 3 and max(leaving.values()) < 0.5, "before R15 ends the reign"


def test_a_leader_whose_heirs_vanish_leaves() -> None:
    """R28: the others vanish without notice just before the leader stops; it leaves within 0.5 s."""
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.run(0.3)
    for id in list(cluster.hosts):
        if id != leader.me.id:
            cluster.crash(id)
    cluster.give(leader.me.id, Stop())
    began_s = cluster.now_s
    cluster.run_until(lambda: handover(leader).advance(leader.leadership), 2.0)
    assert cluster.now_s - began_s < 0.5


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_auto_init_waits_for_the_command(size: int) -> None:
    """R29: with ``auto_init=False``, servers stay EMPTY until the command to initialise comes."""
    cluster = Cluster(size, auto_init=False)
    cluster.run(5)
    assert [r.first_start.state.status for r in cluster.replicas] == [StartStatus.EMPTY] * size
    cluster.give(1, Initialise("init"))
    cluster.elect()
    cluster.run_until(lambda: isinstance(cluster.reply_to("init"), Initialised))


def test_a_wiped_server_that_nobody_can_take_in_waits_and_says_so() -> None:
    """R27, R29, R30: a wiped server neither votes nor accepts entries, and founds no cluster."""
    cluster = Cluster(3)
    leader = cluster.elect()
    wiped, down = (id for id in cluster.hosts if id != leader.me.id)
    cluster.crash(down)
    cluster.wipe(wiped)
    cluster.boot(wiped)
    cluster.run(3)
    replica = cluster.replica(wiped)
    assert replica.status_text == "EMPTY" and replica.last_id == 0 and replica.vote == 0
    assert any("lost or wiped" in why for why in replica.first_start.waits_for.values())
    cluster.boot(down)
    cluster.elect()
    origin = cluster.append(CLIENT, 1, b"two of three")
    cluster.run_until(lambda: isinstance(cluster.reply_to(origin), Appended))


def test_members_move_to_other_addresses() -> None:
    """R27: a MEMBERS entry that changes only the address."""
    cluster = Cluster(3)
    leader = cluster.elect()
    other = next(id for id in cluster.hosts if id != leader.me.id)
    cluster.give(leader.me.id, PeerAddress(other, cluster.replica(other).me.incarnation, "10.9.9.9:1"))
    cluster.run(1)
    members = [replica.members.latest.get(other) for replica in cluster.replicas]
    assert [member and member.address for member in members] == ["10.9.9.9:1"] * 3


def test_an_address_that_goes_back_and_forth_is_seldom_written() -> None:
    """R27: two processes with one identity, each at an address of its own, call 20 times a second."""
    cluster = Cluster(3)
    leader = cluster.elect()
    other = next(id for id in cluster.hosts if id != leader.me.id)
    incarnation = cluster.replica(other).me.incarnation
    ids, wait_s = set(), ADDRESS_TIMEOUTS * leader.cfg.election_timeout_s
    for turn in range(round(4 * wait_s * 20)):
        cluster.give(leader.me.id, PeerAddress(other, incarnation, f"10.9.9.{turn % 2}:1"))
        cluster.run(0.05)
        ids.add(leader.members.latest_id)
    assert 3 <= len(ids) <= 6
    cluster.give(leader.me.id, PeerAddress(other, incarnation, "10.9.9.7:1"))
    cluster.run(wait_s + 0.1)
    listed = leader.members.latest.get(other)
    assert listed is not None and listed.address == "10.9.9.7:1", "the last one is written without another word of it"


def test_a_far_behind_server_is_brought_up_from_disk() -> None:
    """R12, R17: entries that are no longer in the tail in memory are loaded from disk."""
    cluster = Cluster(3)
    leader = cluster.elect()
    leader.log.tail_bytes_max = 2000
    away = next(id for id in cluster.hosts if id != leader.me.id)
    cluster.crash(away)
    for at in range(40):
        origin = cluster.append(CLIENT, 1 + at * 10, *[b"x" * 100] * 10)
        cluster.run_until(lambda: isinstance(cluster.reply_to(origin), Appended))
    cluster.boot(away)
    cluster.run_until(lambda: cluster.replica(away).last_id == leader.last_id)
    cluster.run(1)
    assert cluster.log_of(away) == cluster.log_of(leader.me.id)


@pytest.mark.parametrize("seed", range(25))
def test_random_schedules(seed: int) -> None:
    """Crashes, cuts, loss, duplication: safety as it goes (of the kit), liveness and exactly-once at the end."""
    rng = random.Random(seed)
    size = rng.choice([3, 3, 5])
    cluster = Cluster(size, seed, loss=rng.choice([0, 0.05]), duplication=rng.choice([0, 0.1]))
    cluster.elect()
    clients = [random_id(n) for n in (1, 2, 3)]
    serial = dict.fromkeys(clients, 1)
    done: dict[tuple[str, int], int] = {}
    for _ in range(60):
        action = rng.random()
        id = rng.choice(list(cluster.hosts))
        if action < 0.15:
            if cluster.hosts[id].replica is not None:
                cluster.crash(id)
            else:
                cluster.boot(id)
        elif action < 0.25:
            cluster.cut.add((id, rng.choice(list(cluster.hosts))))
        elif action < 0.35:
            cluster.heal()
        elif cluster.leader is not None:
            client = rng.choice(clients)
            cluster.append(client, serial[client], b"%d" % serial[client])
        cluster.run(rng.uniform(0, 0.3))
        for reply in cluster.replies:
            if isinstance(reply, Appended):
                done[reply.client, reply.serial] = reply.lsns[0]
                serial[reply.client] = max(serial[reply.client], reply.serial + 1)
    for id, host in cluster.hosts.items():
        if host.replica is None:
            cluster.boot(id)
    cluster.loss = 0
    cluster.heal()
    cluster.run(3)
    leader = cluster.elect()
    cluster.run_until(lambda: all(r.guaranteed_id == leader.last_id for r in cluster.replicas))
    cluster.run(0.5)
    logs = [cluster.log_of(id) for id in cluster.hosts]
    assert all(log == logs[0] for log in logs)
    found = {(e.client, e.serial): e.lsn for e in logs[0] if e.count}
    assert len(found) == sum(1 for e in logs[0] if e.count), "doubled"
    assert {key: found.get(key) for key in done} == done, "lost"
    tables = [replica.sessions.state() for replica in cluster.replicas]
    assert all(table == tables[0] for table in tables)


def test_a_leaver_waits_without_spinning() -> None:
    """R28: while it waits, the next deadline is never now."""
    cluster = Cluster(3)
    old = cluster.elect()
    cluster.run(0.3)
    cluster.give(old.me.id, Stop())
    ready = old.step([Tick()], cluster.now_s, cluster.wall_ms())
    assert ready.deadline_s > cluster.now_s
    cluster.run_until(lambda: cluster.leader not in (None, old))
    for _ in range(3):
        cluster.now_us += 10_000
        assert old.step([Tick()], cluster.now_s, cluster.wall_ms()).deadline_s > cluster.now_s


def test_a_list_of_one_that_was_told_to_start_goes_on_after_a_crash() -> None:
    """R29: that it is STARTING says that the command was given."""
    cluster = Cluster(1, auto_init=False)
    cluster.run(2.0)
    assert cluster.leader is None
    cluster.give(1, Initialise("operator"))
    host = cluster.hosts[1]
    cluster.run_until(lambda: host.store.boot().start.status is StartStatus.STARTING)
    cluster.crash(1)
    cluster.boot(1)
    cluster.elect()
