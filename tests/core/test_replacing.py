"""An operator's replacement of a server at the address where it is listed (R30): done if the disk that is listed is the
one that runs there now, and done anew if that one is lost."""

from __future__ import annotations

import pytest
from cluster_kit import Cluster
from test_members import ask, started, votes

from alpo.core.members import Member, Role
from alpo.core.messages import AppendAnswer, StartAnswer
from alpo.core.ready import PeerAddress
from alpo.core.replica import Replica
from alpo.core.requests import ChangeMember, Code, HandedOver, MembersChanged, MemberStep, Refused, Reply, Transfer

H_S, T_S = 0.1, 0.5
PATIENCE_S = 10 * T_S


def listed(leader: Replica, id: int) -> Member:
    found = leader.members.latest.get(id)
    assert found is not None
    return found


def replaced_once(role: Role = Role.VOTER) -> tuple[Cluster, Replica, int]:
    """A cluster of three, its leader, and a server whose disk was lost once: it votes again, or is to."""
    cluster = started()
    leader = cluster.elect()
    id = leader.me.id % 3 + 1
    cluster.wipe(id)
    cluster.catches = lambda e: role is Role.LEARNER and e.sender.id == id and isinstance(e.message, AppendAnswer)
    cluster.boot(id)
    cluster.run_until(lambda: listed(leader, id).retired != () and (role is Role.LEARNER or votes(cluster, id)))
    cluster.run(1.0)
    assert cluster.leader is leader and len(listed(leader, id).retired) == 1
    return cluster, leader, id


def with_a_learner() -> tuple[Cluster, Replica, int]:
    """A cluster of three and its leader, and a server that was added and does not vote yet."""
    cluster = started()
    cluster.newcomer(4)
    cluster.catches = lambda e: e.sender.id == 4 and isinstance(e.message, AppendAnswer)
    assert isinstance(ask(cluster, ChangeMember("add", MemberStep.ADD, 4, "10.0.0.4:7100", 0)), MembersChanged)
    cluster.run(1.0)
    leader = cluster.elect()
    assert listed(leader, 4).role is Role.LEARNER
    return cluster, leader, 4


def replace(cluster: Cluster, id: int, origin: str = "replace", seconds: float = PATIENCE_S + H_S) -> Reply:
    address = listed(cluster.elect(), id).address
    return ask(cluster, ChangeMember(origin, MemberStep.REPLACE, id, address, 0), seconds)


def holds_what_runs(cluster: Cluster, reply: Reply, id: int) -> bool:
    """True if the member list in ``reply`` gives server ``id`` the incarnation that is on its disk."""
    assert isinstance(reply, MembersChanged), reply
    told = next(member for member in reply.members if member[0] == id)
    return bool(told[3] == cluster.replica(id).me.incarnation.hex())


@pytest.mark.parametrize("silent_s", [0.0, 1.5 * H_S, 3 * H_S])
def test_a_server_that_was_replaced_and_lost_its_disk_again_is_replaced_again(silent_s: float) -> None:
    """The second replacement works however recently the second disk answered."""
    cluster, leader, id = replaced_once()
    before = listed(leader, id)
    cluster.crash(id)
    cluster.run(silent_s)
    cluster.newcomer(id)
    assert holds_what_runs(cluster, replace(cluster, id), id)
    assert listed(leader, id).retired == (*before.retired, before.incarnation)
    cluster.run_until(lambda: votes(cluster, id))


@pytest.mark.parametrize("silent_s", [0.0, 3 * H_S])
def test_a_learner_that_lost_its_disk_is_replaced(silent_s: float) -> None:
    cluster, leader, id = with_a_learner()
    before = listed(leader, id)
    cluster.crash(id)
    cluster.run(silent_s)
    cluster.catches = lambda e: False
    cluster.newcomer(id)
    assert holds_what_runs(cluster, replace(cluster, id), id)
    assert listed(leader, id).retired == (before.incarnation,)
    cluster.run_until(lambda: votes(cluster, id))


def test_a_dead_one_is_not_called_replaced_while_nobody_is_there() -> None:
    for cluster, _, id in (replaced_once(), with_a_learner()):
        cluster.crash(id)
        reply = replace(cluster, id)
        assert isinstance(reply, Refused) and reply.code is Code.CANNOT_CHANGE
        assert f"no server {id} that waits to join answers" in reply.detail


@pytest.mark.parametrize("role", [Role.VOTER, Role.LEARNER])
def test_one_that_lives_is_replaced_already(role: Role) -> None:
    cluster, leader, id = replaced_once(role)
    before = leader.members.latest
    reply = replace(cluster, id, seconds=T_S)
    assert holds_what_runs(cluster, reply, id)
    assert leader.members.latest is before and listed(leader, id).role is role


def test_what_was_done_a_moment_ago_may_be_to_do_anew() -> None:
    cluster, leader, id = replaced_once()
    before = leader.members.latest
    assert holds_what_runs(cluster, replace(cluster, id, "first"), id)
    assert leader.members.latest is before
    cluster.crash(id)
    cluster.newcomer(id)
    cluster.catches = lambda e: isinstance(e.message, StartAnswer)
    address = listed(leader, id).address
    cluster.give(leader.me.id, ChangeMember("second", MemberStep.REPLACE, id, address, 0))
    cluster.run(T_S / 2)
    assert cluster.reply_to("second") is None, "what was heard for the first one does not count"
    cluster.catches = lambda e: False
    assert holds_what_runs(cluster, replace(cluster, id, "third"), id)


def test_one_that_moved_is_not_taken_to_be_where_it_was() -> None:
    """A server that runs at a new address is not replaced at its old address, at which it did not answer."""
    cluster, leader, id = replaced_once()
    address = listed(leader, id).address
    cluster.give(leader.me.id, PeerAddress(id, listed(leader, id).incarnation, "10.0.9.9:7100"))
    cluster.run(H_S)
    request = ChangeMember("replace", MemberStep.REPLACE, id, address, 0)
    cluster.give(leader.me.id, request)
    cluster.run(T_S)
    assert cluster.reply_to("replace") is None and leader.changes is not None and leader.changes.pending == request


def test_it_waits_for_the_change_before_it() -> None:
    """A replacement waits for a change that the leader began by itself, here of an address."""
    cluster, leader, id = replaced_once()
    cluster.catches = lambda e: e.target == leader.me and isinstance(e.message, AppendAnswer)
    other = next(m for m in leader.members.latest.voters if m.id not in (id, leader.me.id))
    cluster.give(leader.me.id, PeerAddress(other.id, other.incarnation, "10.0.9.9:7100"))
    assert leader.members.latest_id > leader.guaranteed_id
    address = listed(leader, id).address
    cluster.give(leader.me.id, ChangeMember("replace", MemberStep.REPLACE, id, address, 0))
    cluster.run(T_S / 2)
    assert leader.changes is not None and "the change before it is not guaranteed yet" in leader.changes.under_way
    cluster.catches = lambda e: False
    cluster.run_until(lambda: cluster.reply_to("replace") is not None, T_S)
    assert isinstance(cluster.reply_to("replace"), MembersChanged)


def test_one_that_starts_again_with_its_disk_is_replaced_already() -> None:
    cluster, leader, id = replaced_once()
    before = leader.members.latest
    cluster.crash(id)
    cluster.run(T_S)
    cluster.later(T_S, lambda: cluster.boot(id))
    assert holds_what_runs(cluster, replace(cluster, id), id)
    assert leader.members.latest is before


def test_what_a_server_said_before_it_was_asked_for_does_not_count() -> None:
    """An answer to an earlier question of the leader, still on its way when the disk is lost, must not count."""
    cluster, leader, id = replaced_once()
    cluster.catches = lambda e: e.sender.id == id
    cluster.run(T_S)
    said = next(e for e in reversed(cluster.caught) if isinstance(e.message, StartAnswer))
    cluster.crash(id)
    address = listed(leader, id).address
    cluster.give(leader.me.id, ChangeMember("replace", MemberStep.REPLACE, id, address, 0))
    cluster.arrive(said)
    cluster.run(T_S)
    assert cluster.reply_to("replace") is None
    cluster.catches = lambda e: False
    cluster.newcomer(id)
    cluster.run_until(lambda: cluster.reply_to("replace") is not None, T_S)
    reply = cluster.reply_to("replace")
    assert reply is not None and holds_what_runs(cluster, reply, id)


def test_it_is_said_to_be_done_only_after_a_round() -> None:
    """A leader that was deposed and does not know it must not answer with a list that is no longer in force (R25)."""
    cluster, leader, id = replaced_once()
    cluster.catches = lambda e: e.target == leader.me and isinstance(e.message, AppendAnswer)
    address = listed(leader, id).address
    cluster.give(leader.me.id, ChangeMember("replace", MemberStep.REPLACE, id, address, 0))
    cluster.run(T_S / 2)
    assert cluster.reply_to("replace") is None and leader.changes is not None
    cluster.catches = lambda e: False
    cluster.run_until(lambda: cluster.reply_to("replace") is not None, T_S)
    assert isinstance(cluster.reply_to("replace"), MembersChanged)


def test_whoever_asks_again_is_told_of_a_round_since_then() -> None:
    cluster, leader, id = replaced_once()
    address = listed(leader, id).address
    first, again = (ChangeMember(origin, MemberStep.REPLACE, id, address, 0) for origin in ("first", "again"))
    cluster.catches = lambda e: e.target == leader.me and isinstance(e.message, AppendAnswer)
    cluster.give(leader.me.id, first)
    cluster.run(T_S / 2)
    late, cluster.caught = cluster.caught, []
    cluster.give(leader.me.id, again)
    cluster.run(H_S)
    cluster.arrive(*late)
    assert cluster.reply_to("again") is None
    assert isinstance(cluster.reply_to("first"), Refused), "the later request has the answer"
    cluster.catches = lambda e: False
    cluster.run_until(lambda: cluster.reply_to("again") is not None, T_S)
    assert isinstance(cluster.reply_to("again"), MembersChanged)


def test_one_that_lives_and_was_never_replaced_is_refused_at_once() -> None:
    cluster = started()
    leader = cluster.elect()
    cluster.run(0.5)
    reply = replace(cluster, leader.me.id % 3 + 1, seconds=2 * H_S)
    assert isinstance(reply, Refused) and reply.code is Code.CANNOT_CHANGE
    assert "runs at" in reply.detail and "empty data directory" in reply.detail


def test_a_leader_is_alive_at_its_own_address() -> None:
    """A leader counts as alive: to replace it is refused if its disk was never lost, and is done already if it was."""
    cluster, leader, id = replaced_once()
    refused = replace(cluster, leader.me.id, seconds=H_S)
    assert isinstance(refused, Refused) and "runs at" in refused.detail
    assert isinstance(ask(cluster, Transfer("transfer", id)), HandedOver)
    now = cluster.elect()
    assert now.me.id == id
    before = now.members.latest
    assert isinstance(replace(cluster, id, "again", seconds=H_S), MembersChanged)
    assert now.members.latest is before


def test_a_leader_is_not_replaced_elsewhere_before_another_one_leads() -> None:
    cluster = started()
    leader = cluster.elect()
    cluster.run(0.5)
    request = ChangeMember("replace", MemberStep.REPLACE, leader.me.id, "10.0.9.9:7100", 0)
    reply = ask(cluster, request, H_S)
    assert isinstance(reply, Refused) and reply.code is Code.CANNOT_CHANGE
    assert reply.detail in [
        f"server {leader.me.id} leads: let another server lead first (`alpo transfer {id}`)"
        for id in (1, 2, 3) if id != leader.me.id
    ]


def test_a_change_that_turns_out_to_be_to_do_keeps_its_deadline() -> None:
    """Shortly before the deadline the server answers once more, and is lost again before a majority has confirmed."""
    cluster, leader, id = replaced_once()
    cluster.crash(id)
    cluster.run(3 * H_S)
    asked_s = cluster.now_s
    address = listed(leader, id).address
    cluster.give(leader.me.id, ChangeMember("replace", MemberStep.REPLACE, id, address, 0))
    cluster.run(PATIENCE_S - T_S)
    assert cluster.reply_to("replace") is None
    cluster.boot(id)
    # The answers to the round that would confirm the replacement are held back for a while.
    cluster.catches = lambda e: e.target == leader.me and isinstance(e.message, AppendAnswer) and e.sender.id != id
    assert leader.leadership is not None
    peer = leader.leadership.peers[id]
    heard_s = peer.heard_s
    cluster.run_until(lambda: peer.heard_s > heard_s or cluster.reply_to("replace") is not None)
    cluster.crash(id)
    cluster.run(2.5 * H_S)
    cluster.catches = lambda e: False
    cluster.run(asked_s + PATIENCE_S + 2 * H_S - cluster.now_s)
    assert cluster.reply_to("replace") is not None


def put_back(cluster: Cluster, leader: Replica, begins: bool) -> tuple[int, Member]:
    """A server answers from an empty disk while another's answers are late, and then runs on its own disk again.
    ``begins``: an operator asks for the replacement as ``r``; else the leader thinks of it by itself."""
    id, late = (id for id in (1, 2, 3) if id != leader.me.id)
    assert leader.changes is not None
    cluster.crash(id)
    old = listed(leader, id)
    cluster.newcomer(id)
    cluster.catches = lambda e: e.sender.id == late and isinstance(e.message, AppendAnswer)
    if begins:
        cluster.give(leader.me.id, ChangeMember("r", MemberStep.REPLACE, id, old.address, 0))
    cluster.run_until(lambda: leader.changes is not None and bool(leader.changes._rounds), 1.0)
    cluster.crash(id)
    cluster.put_back(id)
    cluster.hosts[id].joining = False
    cluster.boot(id)
    cluster.run(0.3)
    cluster.catches = lambda e: False
    cluster.run(1.0)
    assert cluster.leader is leader and listed(leader, id) == old
    return late, old


def test_an_own_disk_that_is_put_back_in_time_is_not_replaced() -> None:
    cluster = started()
    leader = cluster.elect()
    cluster.run(0.5)
    put_back(cluster, leader, begins=True)
    reply = cluster.reply_to("r")
    assert isinstance(reply, Refused) and "with its own disk" in reply.detail


def test_a_lost_disk_that_is_put_back_holds_up_no_other_change() -> None:
    cluster = started()
    leader = cluster.elect()
    cluster.run(0.5)
    late, _ = put_back(cluster, leader, begins=False)
    moved = listed(leader, late)
    cluster.give(leader.me.id, PeerAddress(late, moved.incarnation, "10.0.9.9:7100"))
    cluster.run(1.0)
    assert listed(leader, late).address == "10.0.9.9:7100"


def test_who_was_added_and_lives_is_not_said_to_be_a_replacement() -> None:
    cluster, _, id = with_a_learner()
    reply = replace(cluster, id)
    assert isinstance(reply, Refused) and "with its own disk" in reply.detail
