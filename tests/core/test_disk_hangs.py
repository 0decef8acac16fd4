"""Disks that hang (R34): writes neither return nor fail. The tests show which server leads then, which ones stay
silent, and that leadership does not go to and fro."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cluster_kit import Cluster
from damage_kit import cluster_of
from session_leader import CLIENT, random_id

from alpo.core.messages import CanvassRequest, Envelope, HandOver, VoteAnswer, VoteRequest
from alpo.core.ranks import State
from alpo.core.replica import Replica
from alpo.core.requests import Appended, Code, ReadAt, ReadIndex, Refused
from alpo_sim.host import Host

T_S = 0.5


class Load:
    """A load: one append every ``every_s`` to the leader, if there is one. ``origins``: of the appends sent."""

    def __init__(self, cluster: Cluster, every_s: float = 0.01) -> None:
        self._cluster, self._every_s = cluster, every_s
        self.count = 0
        self.origins: list[str] = []
        self._more()

    def _more(self) -> None:
        leader = self._cluster.leader
        if leader is not None and leader.serves:
            self.count += 1
            self.origins.append(self._cluster.append(random_id(10_000 + self.count), 1, b"x", to=leader.me.id))
        self._cluster.later(self._every_s, self._more)

    def appended(self) -> int:
        return sum(isinstance(self._cluster.reply_to(origin), Appended) for origin in self.origins)


def hang(cluster: Cluster, *servers: int) -> None:
    """Exactly these disks hang from now on."""
    moving = [id for id in cluster.hosts if id not in servers]
    cluster.stalls = lambda host, count: host.id in servers
    for id in moving:
        if cluster.hosts[id].replica is not None and cluster.hosts[id].writes:
            cluster.commit(id)


def told(cluster: Cluster, server: int, *names: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of these names of a server, in order."""
    return [(name, fields) for _, id, name, fields in cluster.events if id == server and name in names]


def at_s(cluster: Cluster, server: int, name: str) -> float:
    """The time of the first such event."""
    return next(time_s for time_s, id, each, _ in cluster.events if id == server and each == name)


def is_handover(envelope: Envelope) -> bool:
    return isinstance(envelope.message, HandOver)


@pytest.mark.parametrize("size", [3, 5])
def test_a_leader_whose_disk_hangs_hands_over_and_appends_go_on(size: int) -> None:
    cluster, leader, others = cluster_of(size)
    load = Load(cluster, 0.01)
    cluster.run(0.2)
    began_s = cluster.now_s
    hang(cluster, leader.me.id)
    cluster.run(0.4)
    assert cluster.leader is leader, "not yet"
    (_, fields), = told(cluster, leader.me.id, "disk_hangs")
    assert fields["limit_ms"] == 125 <= fields["under_way_ms"] < 140, "told while the write is under way"
    cluster.run_until(lambda: cluster.leader in others and cluster.reigning.guaranteed_id > leader.guaranteed_id)
    assert cluster.now_s - began_s < T_S + 0.05, "a few round trips after T"
    (_, fields), = told(cluster, leader.me.id, "handing_over")
    assert fields["why"] == "its disk hangs"
    before = load.appended()
    cluster.run(1.0)
    assert load.appended() > before + 60
    hang(cluster)
    cluster.run(2.0)
    assert leader.guaranteed_id >= cluster.reigning.guaranteed_id - 50, "it follows"
    assert cluster.reigning in others and len(told(cluster, leader.me.id, "disk_moves_again")) == 1
    refused = [reply for reply in cluster.replies if isinstance(reply, Refused)]
    assert {reply.code for reply in refused} <= {Code.NOT_LEADER}, "what was taken is answered"


def test_a_handover_that_comes_to_nothing_makes_it_passive_and_the_others_elect() -> None:
    cluster, leader, others = cluster_of()
    Load(cluster)
    cluster.catches = is_handover
    hang(cluster, leader.me.id)
    cluster.run_until(lambda: leader.state is State.PASSIVE, 2.0)
    assert told(cluster, leader.me.id, "leader_gives_up") == [
        ("leader_gives_up", {"term": 1, "why": "its disk hangs"})
    ]
    cluster.run_until(lambda: cluster.leader in others, 2.0)
    cluster.run(3.0)
    assert cluster.leader in others and cluster.reigning.term == 2


@pytest.mark.parametrize("more", [1, 2])
def test_nobody_hands_over_while_no_majority_of_sound_disks_is_left(more: int) -> None:
    cluster, leader, others = cluster_of()
    Load(cluster)
    cluster.run(0.1)
    hung = [leader.me.id, *(other.me.id for other in others[:more])]
    hang(cluster, *hung)
    cluster.run(5.0)
    assert cluster.leader is leader and leader.term == 1
    assert not told(cluster, leader.me.id, "handing_over", "leader_gives_up")
    hang(cluster)
    cluster.run(1.0)
    assert leader.term == 1 and leader.guaranteed_id > 10


def test_a_hung_server_neither_canvasses_nor_votes_nor_takes_over() -> None:
    cluster, leader, others = cluster_of(5)
    Load(cluster)
    hung = others[-1]
    hang(cluster, hung.me.id)
    cluster.run(1.0)
    assert cluster.leader is leader
    leader.out.begin()
    before = hung.term
    cluster.arrive(Envelope(hung.cluster, leader.me, hung.me, HandOver(leader.term)))
    assert hung.term == before
    sent: list[Envelope] = []

    def look(envelope: Envelope) -> bool:
        if envelope.sender == hung.me and isinstance(envelope.message, CanvassRequest | VoteRequest | VoteAnswer):
            sent.append(envelope)
        return False

    cluster.catches = look
    cluster.crash(leader.me.id)
    cluster.run_until(lambda: cluster.leader in others and cluster.reigning.guaranteed_id > hung.guaranteed_id, 3.0)
    assert cluster.leader is not hung and sent == [] and not told(cluster, hung.me.id, "canvass", "candidate")
    term = cluster.reigning.term
    cluster.run(3.0)
    assert cluster.reigning.term == term
    hang(cluster)
    cluster.run(1.0)
    assert hung.leader_id == cluster.reigning.me.id and cluster.reigning.term == term


def test_two_of_three_cannot_elect_while_one_of_them_hangs_and_terms_stand_still() -> None:
    cluster, leader, others = cluster_of()
    Load(cluster)
    sound, hung = others
    hang(cluster, hung.me.id)
    cluster.run(1.0)
    cluster.crash(leader.me.id)
    cluster.run(1.0)
    term = max(sound.term, hung.term)
    cluster.run(5.0)
    assert cluster.leader is None and max(sound.term, hung.term) == term
    hang(cluster)
    cluster.run_until(lambda: cluster.leader is not None, 2.0)


def slow(cluster: Cluster, takes_s: dict[int, float]) -> Callable[[Host, int], bool]:
    """Disks on which a write takes so long; one at a time, and what came meanwhile goes with the next."""
    busy: set[int] = set()

    def done(host: Host, process: Replica | None, count: int) -> None:
        busy.discard(host.id)
        if host.replica is process and process is not None:
            cluster.persist(host.id, min(count, len(host.writes)))
            cluster.step(host.id)
            if host.replica is process and host.writes:
                stalls(host, len(host.writes))

    def stalls(host: Host, count: int) -> bool:
        if host.id not in takes_s:
            return False
        if host.id not in busy:
            busy.add(host.id)
            process, whole = host.replica, len(host.writes)
            cluster.later(takes_s[host.id], lambda: done(host, process, whole))
        return True

    return stalls


@pytest.mark.parametrize(("leads_s", "follows_s", "moves"), [
    (0.8, 0.1, True), (0.3, 0.01, True), (0.3, 0.3, False), (0.28, 0.3, False),
])
def test_of_two_slow_disks_the_one_that_is_clearly_better_leads_and_goes_on_leading(
    leads_s: float, follows_s: float, moves: bool
) -> None:
    """Leadership moves once if the followers' disks, which are equal, are much quicker than the leader's."""
    cluster, leader, others = cluster_of()
    Load(cluster, 0.05)
    takes_s = {leader.me.id: leads_s, **{other.me.id: follows_s for other in others}}
    cluster.stalls = slow(cluster, takes_s)
    cluster.run(10.0)
    assert (cluster.leader in others) is moves
    assert cluster.reigning.term == (2 if moves else 1), "once at most"
    assert cluster.reigning.guaranteed_id > 100


def test_a_read_needs_what_a_majority_holds_and_not_the_leaders_disk() -> None:
    cluster, leader, _ = cluster_of()
    hang(cluster, leader.me.id)
    cluster.append(CLIENT, 11, b"11")
    cluster.run(0.1)
    assert leader.guaranteed_id > leader.log.stable_id
    cluster.give(leader.me.id, ReadIndex("read"))
    cluster.run(0.1)
    assert cluster.reply_to("read") == ReadAt("read", leader.guaranteed_id)
