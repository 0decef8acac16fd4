"""Members come, go and lose their disks (R27, R28, R30), in a small cluster on virtual time."""

from __future__ import annotations

import itertools
import random

import pytest
from cluster_kit import Cluster

from alpo.core.members import Role
from alpo.core.messages import StartQuestion
from alpo.core.ready import Clean
from alpo.core.requests import (
    ChangeMember,
    Code,
    HandedOver,
    Initialise,
    MembersChanged,
    MemberStep,
    Refused,
    Reply,
    Transfer,
)


def started(size: int = 3, seed: int = 1, entries: int = 30, **options: int) -> Cluster:
    cluster = Cluster(size, seed, auto_init=size > 1, **options)
    if size == 1:
        cluster.give(1, Initialise("init"))
    cluster.elect()
    cluster.append_some(entries)
    return cluster


def ask(cluster: Cluster, request: ChangeMember | Transfer, seconds: float = 30.0) -> Reply:
    cluster.give(cluster.elect().me.id, request)
    cluster.run_until(lambda: cluster.reply_to(request.origin) is not None, seconds)
    reply = cluster.reply_to(request.origin)
    assert reply is not None
    return reply


def votes(cluster: Cluster, id: int) -> bool:
    """True if the server is a voter in the leader's guaranteed list and in its own list, and has the leader's mark."""
    leader, mine = cluster.leader, cluster.hosts[id].replica
    return (
        leader is not None and mine is not None and leader.members.latest.is_voter(mine.me)
        and leader.members.latest_id <= leader.guaranteed_id and mine.status_text == "VOTING"
        and mine.guaranteed_id == leader.guaranteed_id
    )


def clean(cluster: Cluster, upto_id: int) -> None:
    """Clean the log up to ``upto_id`` on every server, as a retention would."""
    for host in cluster.hosts.values():
        if host.replica is not None:
            head = host.store.entry_head(upto_id)
            assert head is not None
            time_ms, lsn, count = head
            cluster.give(host.id, Clean(upto_id, time_ms, lsn + count))
    cluster.run_until(lambda: all(h.replica.log.base_id == upto_id for h in cluster.hosts.values() if h.replica))


def same_logs(cluster: Cluster, *ids: int) -> None:
    logs = [cluster.log_of(id) for id in ids]
    assert all(log == logs[0] for log in logs)
    states = [cluster.replica(id).sessions.state() for id in ids]
    assert all(state == states[0] for state in states)


@pytest.mark.parametrize("cleaned", [0, 20])
def test_a_lost_disk_comes_back_by_itself(cleaned: int) -> None:
    cluster = started()
    leader = cluster.elect()
    lost = next(id for id in (1, 2, 3) if id != leader.me.id)
    cluster.run(1.0)
    if cleaned:
        clean(cluster, cleaned)
    before = cluster.replica(lost).me
    cluster.wipe(lost)
    cluster.boot(lost)
    seen: set[str] = set()

    def back() -> bool:
        seen.add(cluster.replica(lost).status_text)
        return votes(cluster, lost)

    cluster.run_until(back)
    assert {"EMPTY", "RECOVERING", "VOTING"} <= seen
    mine = cluster.replica(lost).members.latest.get(lost)
    assert mine is not None and mine.retired == (before.incarnation,) and mine.identity == cluster.replica(lost).me
    cluster.append_some(5)
    cluster.run(1.0)
    same_logs(cluster, 1, 2, 3)
    assert cluster.replica(lost).log.base_id == cleaned


def test_what_came_back_is_whole_after_a_crash_at_any_moment() -> None:
    for seed in range(12):
        cluster = started(seed=seed, entries=40)
        leader = cluster.elect()
        lost = next(id for id in (1, 2, 3) if id != leader.me.id)
        cluster.run(1.0)
        clean(cluster, 20)
        cluster.wipe(lost)
        cluster.boot(lost)
        rng = random.Random(seed)
        for _ in range(3):
            cluster.run(rng.uniform(0.01, 0.4))
            cluster.crash(lost)
            cluster.run(rng.uniform(0.0, 0.2))
            cluster.boot(lost)
        cluster.run_until(lambda: votes(cluster, lost))
        cluster.run(0.5)
        same_logs(cluster, 1, 2, 3)


def test_an_old_disk_put_back_is_refused_and_says_so() -> None:
    cluster = started()
    leader = cluster.elect()
    lost = next(id for id in (1, 2, 3) if id != leader.me.id)
    cluster.crash(lost)
    cluster.wipe(lost)
    cluster.boot(lost)
    cluster.run_until(lambda: votes(cluster, lost))
    cluster.crash(lost)
    cluster.put_back(lost)
    cluster.boot(lost)
    cluster.run_until(lambda: cluster.replica(lost).status_text == "RETIRED")
    term = cluster.elect().term
    cluster.run(10.0)
    assert cluster.elect().term == term, "it disturbs nobody"
    cluster.append_some(3)
    assert cluster.replica(lost).status_text == "RETIRED"


def test_one_lost_disk_and_one_server_down_wait() -> None:
    cluster = started()
    leader = cluster.elect()
    lost, down = (id for id in (1, 2, 3) if id != leader.me.id)
    cluster.crash(down)
    cluster.wipe(lost)
    cluster.boot(lost)
    cluster.run(20.0)
    assert cluster.replica(lost).status_text == "EMPTY"
    cluster.boot(down)
    cluster.run_until(lambda: votes(cluster, lost))
    cluster.run(1.0)
    same_logs(cluster, 1, 2, 3)


def test_a_removed_member_stays_removed_though_its_lost_disk_had_answered() -> None:
    cluster = started()
    leader = cluster.elect()
    lost = next(id for id in (1, 2, 3) if id != leader.me.id)
    cluster.run(1.0)
    cluster.wipe(lost)
    cluster.boot(lost)
    cluster.run_until(lambda: any(name == "lost_disk" for *_, name, _ in cluster.events))
    assert isinstance(ask(cluster, ChangeMember("remove", MemberStep.REMOVE, lost, "", 0)), MembersChanged)
    cluster.run(10.0)
    listed = cluster.elect().members.latest.get(lost)
    assert listed is not None and listed.role is Role.GONE


def test_one_grows_to_three_and_back() -> None:
    cluster = started(1)
    for id in (2, 3):
        cluster.newcomer(id)
        reply = ask(cluster, ChangeMember(f"add {id}", MemberStep.ADD, id, f"10.0.0.{id}:7100", 0))
        assert isinstance(reply, MembersChanged)
        cluster.run_until(lambda: votes(cluster, id))
        cluster.append_some(5)
    cluster.run(1.0)
    same_logs(cluster, 1, 2, 3)
    for id in (1, 2):
        cluster.run(1.0)
        reply = ask(cluster, ChangeMember(f"remove {id}", MemberStep.REMOVE, id, "", 0))
        assert isinstance(reply, MembersChanged)
        cluster.run_until(lambda: cluster.replica(id).status_text == "GONE")
        cluster.run_until(lambda: cluster.leader is not None and cluster.reigning.me.id != id)
        cluster.append_some(5)
    leader = cluster.elect()
    assert leader.me.id == 3 and leader.members.latest.voters == (leader.members.latest.get(3),)


def test_replaced_by_another_host() -> None:
    cluster = started()
    leader = cluster.elect()
    other = next(id for id in (1, 2, 3) if id != leader.me.id)
    cluster.crash(other)
    old = cluster.replica(leader.me.id).members.latest.get(other)
    cluster.newcomer(other)
    reply = ask(cluster, ChangeMember("replace", MemberStep.REPLACE, other, "10.0.9.9:7100", 0))
    assert isinstance(reply, MembersChanged)
    cluster.run_until(lambda: votes(cluster, other))
    new = cluster.elect().members.latest.get(other)
    assert old is not None and new is not None and old.incarnation in new.retired


def test_a_replacement_that_was_found_before_it_was_asked_for_is_done() -> None:
    """A lost disk counts as lost as soon as the new server answers; an operator's command that comes later succeeds."""
    for waits in (0.0, 0.05, 0.2):
        cluster = started()
        leader = cluster.elect()
        other = next(id for id in (1, 2, 3) if id != leader.me.id)
        listed = leader.members.latest.get(other)
        assert listed is not None
        cluster.crash(other)
        cluster.run(2 * leader.cfg.heartbeat_s)
        cluster.newcomer(other)
        cluster.run(waits)
        reply = ask(cluster, ChangeMember("replace", MemberStep.REPLACE, other, listed.address, 0))
        assert isinstance(reply, MembersChanged), (waits, reply)
        cluster.run_until(lambda: votes(cluster, other))
        settled = cluster.replica(leader.me.id).members.latest
        again = ask(cluster, ChangeMember("voting", MemberStep.REPLACE, other, listed.address, 0))
        assert isinstance(again, MembersChanged) and cluster.replica(leader.me.id).members.latest == settled


def test_a_server_that_was_never_replaced_is_not_called_replaced() -> None:
    """A server that runs with its first disk is not reported as replaced: an operator would expect a new disk then."""
    cluster = started()
    leader = cluster.elect()
    cluster.run(0.5)
    other = next(m for m in leader.members.latest.members if m.id != leader.me.id)
    reply = ask(cluster, ChangeMember("replace", MemberStep.REPLACE, other.id, other.address, 0))
    assert isinstance(reply, Refused) and reply.code is Code.CANNOT_CHANGE


@pytest.mark.parametrize("step, id, address, why", [
    (MemberStep.ADD, 2, "10.0.9.9:7100", "is a member already, at 10.0.0.2:7100: to put a server with an empty disk in"
     " its place, `alpo member replace 2=10.0.9.9:7100`"),
    (MemberStep.ADD, 4, "10.0.0.2:7100", "is the address of server 2"),
    (MemberStep.ADD, 4, "10.0.0.4:7100", "no server 4 that waits to join answers"),
    (MemberStep.REMOVE, 4, "", "is not a member"),
    (MemberStep.REPLACE, 4, "10.0.0.4:7100", "is not a member"),
])
def test_what_cannot_be_is_refused(step: MemberStep, id: int, address: str, why: str) -> None:
    cluster = started()
    cluster.run(1.0)
    reply = ask(cluster, ChangeMember("change", step, id, address, 0))
    assert isinstance(reply, Refused) and reply.code is Code.CANNOT_CHANGE and why in reply.detail
    assert cluster.elect().members.latest_id == 0


def test_one_change_at_a_time_and_no_majority_is_given_up() -> None:
    cluster = started()
    leader = cluster.elect()
    away, stays = (id for id in (1, 2, 3) if id != leader.me.id)
    cluster.crash(away)
    cluster.run(0.5)
    cluster.give(leader.me.id, ChangeMember("first", MemberStep.REMOVE, stays, "", 0))
    reply = ask(cluster, ChangeMember("second", MemberStep.REMOVE, away, "", 0))
    assert isinstance(reply, Refused)
    assert f"under way (to remove server {stays}: no majority of the servers that would remain" in reply.detail
    cluster.run_until(lambda: cluster.reply_to("first") is not None)
    first = cluster.reply_to("first")
    assert isinstance(first, Refused) and "no majority" in first.detail
    assert leader.members.latest_id == 0
    reply = ask(cluster, ChangeMember("third", MemberStep.REMOVE, away, "", 0))
    assert isinstance(reply, MembersChanged)


def test_a_change_that_is_asked_for_again_is_the_same_one() -> None:
    """A client whose connection broke repeats a change: the later request succeeds, and the earlier one is refused."""
    cluster = started()
    cluster.run(1.0)
    lost, again = (ChangeMember(origin, MemberStep.ADD, 4, "10.0.0.4:7100", 0) for origin in ("lost", "again"))
    cluster.give(cluster.elect().me.id, lost)
    cluster.newcomer(4)
    assert isinstance(ask(cluster, again), MembersChanged)
    earlier = cluster.reply_to("lost")
    assert isinstance(earlier, Refused) and "asked for again" in earlier.detail


def test_of_two_who_ask_again_as_soon_as_they_are_refused_neither_spins() -> None:
    cluster = started()
    cluster.run(1.0)
    leader, asked = cluster.elect(), itertools.count()

    def ask_again(before: str) -> None:
        origin = f"{next(asked)}"
        cluster.give(leader.me.id, ChangeMember(origin, MemberStep.ADD, 9, "10.0.0.9:7100", 0))
        refused[origin] = before

    refused: dict[str, str] = {}
    ask_again("")
    ask_again("")
    seen: set[str] = set()
    began_s = cluster.now_s
    while cluster.now_s < began_s + 2.0 and len(seen) < 100:
        cluster.run(0.001)
        for reply in list(cluster.replies):
            if isinstance(reply, Refused) and reply.origin in refused and reply.origin not in seen:
                seen.add(str(reply.origin))
                ask_again(str(reply.origin))
    assert 10 < len(seen) < 2.0 / (leader.cfg.heartbeat_s / 2) + 2


def test_a_change_that_waits_for_its_server_holds_up_no_other() -> None:
    """A learner becomes a voter, and a lost disk is replaced, while a change waits for its server."""
    cluster = started(4)
    leader = cluster.elect()
    cluster.run(0.5)
    cluster.newcomer(5)
    ask(cluster, ChangeMember("add", MemberStep.ADD, 5, "10.0.0.5:7100", 0))
    waits = ChangeMember("w", MemberStep.ADD, 9, "10.0.0.9:7100", 0)
    cluster.give(leader.me.id, waits)
    cluster.run_until(lambda: votes(cluster, 5), 3.0)
    lost = next(id for id in (1, 2, 3, 4) if id != leader.me.id)
    before = leader.members.latest.identity_of(lost)
    cluster.wipe(lost)
    cluster.boot(lost)
    cluster.run_until(lambda: leader.members.latest.identity_of(lost) != before, 3.0)
    assert leader.changes is not None and leader.changes.pending == waits
    cluster.run_until(lambda: votes(cluster, lost), 3.0)
    cluster.run_until(lambda: cluster.reply_to("w") is not None, 6.0)


def test_a_learner_that_died_holds_up_no_other() -> None:
    cluster = started()
    leader = cluster.elect()
    away = next(id for id in (1, 2, 3) if id != leader.me.id)
    cluster.crash(away)  # too few are left for a promotion
    for id in (4, 5):
        cluster.newcomer(id)
        ask(cluster, ChangeMember(f"add {id}", MemberStep.ADD, id, f"10.0.0.{id}:7100", 0))
    reign = leader.leadership
    assert reign is not None
    cluster.run_until(lambda: all(reign.peers[id].match_id == leader.last_id for id in (4, 5)))
    cluster.run(0.5)
    cluster.crash(4)
    cluster.run(0.1)
    cluster.boot(away)
    cluster.run_until(lambda: votes(cluster, 5), 3.0)
    four = leader.members.latest.get(4)
    assert four is not None and four.role is Role.LEARNER


@pytest.mark.parametrize("first_log", [True, False])
def test_a_disk_that_was_taken_out_before_it_held_anything_does_not_come_back(first_log: bool) -> None:
    """An operator is told why. In a further log nobody looks after, the store hears of it, and makes room."""
    cluster = started(first_log=first_log)
    cluster.newcomer(4)
    cluster.catches = lambda each: each.target.id == 4 and not isinstance(each.message, StartQuestion)
    add = ChangeMember("add", MemberStep.ADD, 4, "10.0.0.4:7100", 0)
    assert isinstance(ask(cluster, add), MembersChanged)
    assert isinstance(ask(cluster, ChangeMember("remove", MemberStep.REMOVE, 4, "", 0)), MembersChanged)
    cluster.catches = lambda each: False
    refused = ask(cluster, add._replace(origin="again"))
    assert isinstance(refused, Refused) and "taken out of this cluster before" in refused.detail
    cluster.run(0.1)
    assert cluster.replica(4).retired is not first_log
    cluster.newcomer(4)
    assert isinstance(ask(cluster, add._replace(origin="with another disk")), MembersChanged)


def test_a_learner_that_was_taken_out_while_it_was_away_hears_of_it_when_it_is_asked_again() -> None:
    """Learners do not stand for election, and so ask nobody by themselves."""
    cluster = started(first_log=False)
    cluster.newcomer(4)
    add = ChangeMember("add", MemberStep.ADD, 4, "10.0.0.4:7100", 0)
    assert isinstance(ask(cluster, add), MembersChanged)
    cluster.run_until(lambda: cluster.replica(4).first_start.started)
    cluster.isolate(4)
    assert isinstance(ask(cluster, ChangeMember("remove", MemberStep.REMOVE, 4, "", 0)), MembersChanged)
    cluster.run(20 * cluster.elect().cfg.election_timeout_s)
    cluster.heal()
    refused = ask(cluster, add._replace(origin="again"))
    assert isinstance(refused, Refused) and "taken out of this cluster before" in refused.detail
    cluster.run(0.1)
    assert cluster.replica(4).retired


def test_the_only_voter_stays() -> None:
    cluster = started(1)
    reply = ask(cluster, ChangeMember("remove", MemberStep.REMOVE, 1, "", 0))
    assert isinstance(reply, Refused) and "only voting member" in reply.detail


def test_a_newcomer_that_dies_is_not_promoted() -> None:
    """N2: four voters with two dead would have no leader."""
    cluster = started()
    cluster.newcomer(4)
    ask(cluster, ChangeMember("add", MemberStep.ADD, 4, "10.0.0.4:7100", 0))
    leader = cluster.elect()
    cluster.run_until(lambda: leader.leadership is not None and leader.leadership.peers[4].matched)
    cluster.crash(4)
    cluster.run(20.0)
    four = cluster.elect().members.latest.get(4)
    assert four is not None and four.role is Role.LEARNER
    cluster.boot(4)
    cluster.run_until(lambda: votes(cluster, 4))


def test_leadership_is_handed_to_whom_the_operator_names() -> None:
    cluster = started()
    leader = cluster.elect()
    for _ in range(3):
        leader = cluster.elect()
        target = leader.me.id % 3 + 1
        cluster.run(0.5)
        before_s = cluster.now_s
        reply = ask(cluster, Transfer(f"to {target} {before_s}", target))
        assert isinstance(reply, HandedOver) and (reply.leader, reply.term) == (target, leader.term)
        assert cluster.elect().me.id == target
        assert cluster.now_s - before_s < leader.cfg.election_timeout_s
        cluster.append_some(3)
    same = ask(cluster, Transfer("same", cluster.elect().me.id))
    assert isinstance(same, HandedOver)


def test_a_handover_that_comes_to_nothing_is_taken_back() -> None:
    cluster = started()
    leader = cluster.elect()
    target = leader.me.id % 3 + 1
    cluster.run(0.5)
    cluster.cut |= {(leader.me.id, target)}
    reply = ask(cluster, Transfer("transfer", target))
    assert isinstance(reply, Refused) and reply.code is Code.CANNOT_CHANGE
    assert cluster.elect() is leader
    cluster.append_some(3)
    nobody = ask(cluster, Transfer("nobody", 7))
    assert isinstance(nobody, Refused) and "not a voting member" in nobody.detail


@pytest.mark.parametrize("seed", range(16))
def test_random_lives(seed: int) -> None:
    """Disks lost, servers added, removed and restarted at random, with loss and appends: whatever was guaranteed stays,
    and in the end everybody is level."""
    rng = random.Random(seed)
    cluster = Cluster(3, seed, loss=0.02, duplication=0.05, table_save_entries=10)
    cluster.append_some(5)
    extra = [4, 5]
    for turn in range(12):
        cluster.run(rng.uniform(0.05, 1.5))
        id = rng.choice([1, 2, 3])
        others_up = all(h.replica is not None for h in cluster.hosts.values())
        match rng.randrange(5):
            case 0 if others_up and cluster.leader is not None and all(votes(cluster, i) for i in (1, 2, 3)):
                cluster.wipe(id)
                cluster.run(rng.uniform(0.0, 1.0))
                cluster.boot(id)
            case 1 if others_up:
                cluster.crash(id)
                cluster.run(rng.uniform(0.0, 1.0))
                cluster.boot(id)
            case 2 if extra and cluster.leader is not None:
                new = extra.pop()
                cluster.newcomer(new)
                cluster.give(
                    cluster.leader.me.id,
                    ChangeMember(f"add {new}", MemberStep.ADD, new, f"10.0.0.{new}:7100", 0),
                )
            case 3 if cluster.leader is not None:
                gone = rng.choice(list(cluster.hosts))
                if gone > 3:
                    cluster.give(
                        cluster.leader.me.id, ChangeMember(f"remove {turn}", MemberStep.REMOVE, gone, "", 0)
                    )
            case _:
                cluster.append_some(rng.randint(1, 6))
    cluster.loss = 0.0
    cluster.run_until(lambda: all(votes(cluster, id) for id in (1, 2, 3)), 60.0)
    cluster.append_some(3)
    cluster.run(1.0)
    logs = [cluster.log_of(id) for id in (1, 2, 3)]
    longest = max(logs, key=len)
    assert all(log == longest[len(longest) - len(log):] for log in logs)
