"""Answers that only the present leader may give: a leader that was deposed and does not know it gives none (R25)."""

from __future__ import annotations

import pytest
from cluster_kit import Cluster
from test_members import started

from alpo.core.members import Role
from alpo.core.ranks import State
from alpo.core.ready import Input
from alpo.core.replica import Replica
from alpo.core.requests import (
    ChangeMember,
    Code,
    HandedOver,
    ListSessions,
    MembersChanged,
    MemberStep,
    OpenSession,
    Refused,
    Reply,
    Sessions,
    Transfer,
)


def questions(leader: int) -> dict[str, tuple[Input, type]]:
    """(request, type of a leader's answer) by name: requests that are done already, or that append nothing."""
    other = leader % 3 + 1
    return {
        "sessions": (ListSessions("asked"), Sessions),
        "add": (ChangeMember("asked", MemberStep.ADD, other, f"10.0.0.{other}:7100", 0), MembersChanged),
        "remove": (ChangeMember("asked", MemberStep.REMOVE, 9, "", 0), MembersChanged),
        "transfer": (Transfer("asked", leader), HandedOver),
    }


def cluster_with_one_gone() -> tuple[Cluster, Replica]:
    """Server 9 has been a member."""
    cluster = started()
    cluster.newcomer(9)
    cluster.give(cluster.elect().me.id, ChangeMember("add 9", MemberStep.ADD, 9, "10.0.0.9:7100", 0))
    cluster.run_until(lambda: len(cluster.elect().members.latest.voters) == 4)
    cluster.run(1.0)
    cluster.give(cluster.elect().me.id, ChangeMember("remove 9", MemberStep.REMOVE, 9, "", 0))
    cluster.run_until(lambda: isinstance(cluster.reply_to("remove 9"), MembersChanged))
    cluster.crash(9)
    cluster.run(1.0)
    leader = cluster.elect()
    member = leader.members.latest.get(9)
    assert member is not None and member.role is Role.GONE
    return cluster, leader


def answer(cluster: Cluster) -> Reply | None:
    return cluster.reply_to("asked")


@pytest.mark.parametrize("what", questions(1))
def test_a_leader_tells_it_after_a_round(what: str) -> None:
    cluster, leader = cluster_with_one_gone()
    request, kind = questions(leader.me.id)[what]
    before = leader.round
    cluster.give(leader.me.id, request)
    assert answer(cluster) is None and leader.round == before + 1
    cluster.run_until(lambda: answer(cluster) is not None, 0.1)
    assert isinstance(answer(cluster), kind)


@pytest.mark.parametrize("what", questions(1))
def test_a_deposed_one_that_does_not_know_it_tells_nothing(what: str) -> None:
    cluster, old = cluster_with_one_gone()
    request, _ = questions(old.me.id)[what]
    cluster.isolate(old.me.id)
    cluster.run_until(lambda: cluster.leader is not None and cluster.leader is not old)
    cluster.elect()
    cluster.give(cluster.elect().me.id, OpenSession("open", "since", 0, b"n" * 16))
    assert old.state is State.LEADER, "it does not know"
    cluster.give(old.me.id, request)
    cluster.run(3.0)
    reply = answer(cluster)
    assert isinstance(reply, Refused) and reply.code is Code.NOT_LEADER


def test_what_was_done_when_it_was_asked_may_be_to_do_once_we_are_confirmed() -> None:
    """The server is taken out between the question and the answers to the round."""
    cluster, leader = cluster_with_one_gone()
    other = leader.me.id % 3 + 1
    cluster.catches = lambda envelope: envelope.target == leader.me
    cluster.give(leader.me.id, ChangeMember("asked", MemberStep.ADD, other, f"10.0.0.{other}:7100", 0))
    assert answer(cluster) is None
    cluster.give(leader.me.id, ChangeMember("out", MemberStep.REMOVE, other, "", 0))
    cluster.run(0.05)
    cluster.catches = lambda envelope: False
    cluster.run_until(lambda: answer(cluster) is not None)
    reply = answer(cluster)
    assert isinstance(reply, Refused) and reply.code is Code.CANNOT_CHANGE and "another change" in reply.detail
