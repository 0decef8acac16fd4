"""The leader's process is gone, and its host refuses connections (R33): a canvass at once, and no false alarm."""

from __future__ import annotations

import pytest
from cluster_kit import Cluster

from alpo.core.members import Identity
from alpo.core.ranks import State
from alpo.core.ready import PeerGone
from alpo.core.requests import Refused


def names(cluster: Cluster, since: int) -> list[str]:
    return [name for _, _, name, _ in cluster.events[since:]]


def test_the_others_elect_without_waiting_for_the_timeout() -> None:
    cluster = Cluster()
    old = cluster.elect()
    others = [id for id in cluster.hosts if id != old.me.id]
    cluster.crash(old.me.id)
    began_s = cluster.now_s
    for id in others:
        cluster.give(id, PeerGone(old.me))
        assert cluster.replica(id).leader_id == 0, "clients are not sent to it any more"
    cluster.run_until(lambda: cluster.leader is not None)
    cfg = old.cfg
    assert cluster.now_s - began_s < cfg.election_timeout_s / 4
    assert cluster.reigning.me.id == max(others), "the best ranked goes first"


def test_one_that_is_refused_alone_deposes_nobody() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    term, hinted = leader.term, next(id for id in cluster.hosts if id != leader.me.id)
    since = len(cluster.events)
    cluster.give(hinted, PeerGone(leader.me))
    assert cluster.replica(hinted).election.leader_gone
    cluster.run(2.0)
    assert (leader.state, leader.term) == (State.LEADER, term)
    assert not cluster.replica(hinted).election.leader_gone and cluster.replica(hinted).leader_id == leader.me.id
    assert names(cluster, since).count("leader_gone") == 1


def test_a_round_that_fails_is_soon_followed_by_the_next() -> None:
    """The server that noticed first canvasses again within two staggers, not after a heartbeat: others notice later."""
    cluster = Cluster()
    leader = cluster.elect()
    hinted = max(id for id in cluster.hosts if id != leader.me.id)
    cluster.crash(leader.me.id)
    cluster.give(hinted, PeerGone(leader.me))
    cluster.run(10 * leader.cfg.stagger_s)
    rounds = [at_s for at_s, id, name, _ in cluster.events if (id, name) == (hinted, "canvass")]
    assert len(rounds) >= 4


@pytest.mark.parametrize("what", ["another server", "another disk", "a candidate", "switched off"])
def test_every_other_hint_is_ignored(what: str) -> None:
    cluster = Cluster(refused_means_dead=what != "switched off")
    leader = cluster.elect()
    one, other = (cluster.replica(id) for id in cluster.hosts if id != leader.me.id)
    gone = {"another server": other.me, "another disk": Identity(leader.me.id, b"x" * 16)}.get(what, leader.me)
    if what == "a candidate":
        cluster.isolate(one.me.id)
        one.election.stand(handed_over=False)
    before = one.election.timer_s, one.leader_id
    cluster.give(one.me.id, PeerGone(gone))
    assert not one.election.leader_gone and (one.election.timer_s, one.leader_id) == before


def test_clients_are_told_of_no_leader() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    hinted = next(id for id in cluster.hosts if id != leader.me.id)
    cluster.isolate(hinted)
    cluster.give(hinted, PeerGone(leader.me))
    reply = cluster.reply_to(cluster.append("~" + "0" * 36, 1, b"x", to=hinted))
    assert isinstance(reply, Refused) and reply.leader == 0
