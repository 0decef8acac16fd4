"""Acknowledgements of a learner, and conclusions that its leader may draw from its answers (R27, R31)."""

from __future__ import annotations

from typing import Any

from cluster_kit import Cluster
from test_members import ask, started, votes

from alpo.core.members import Role, StartStatus
from alpo.core.messages import (
    AppendAnswer,
    AppendRequest,
    Envelope,
    Message,
    SnapshotAnswer,
    SnapshotPart,
    StartAnswer,
    WentBack,
)
from alpo.core.ready import Received, Tick
from alpo.core.replica import Replica
from alpo.core.replication import Progress
from alpo.core.requests import ChangeMember, MemberStep
from alpo.core.snapshots import snapshot_head


def recovering() -> tuple[Cluster, Replica, int]:
    """A server with a new disk has become a learner and taken its base; none of its acceptances has arrived."""
    cluster = started()
    leader = cluster.elect()
    lost = next(id for id in (1, 2, 3) if id != leader.me.id)
    cluster.run(0.5)
    cluster.wipe(lost)
    cluster.catches = lambda e: e.sender.id == lost and isinstance(e.message, AppendAnswer | StartAnswer) and (
        not isinstance(e.message, StartAnswer) or e.message.status is StartStatus.STARTED
    )
    cluster.boot(lost)
    cluster.run_until(lambda: cluster.replica(lost).status_text == "RECOVERING")
    return cluster, leader, lost


def bases(cluster: Cluster) -> int:
    return sum(name == "base_sent" for _, _, name, _ in cluster.events)


def test_a_late_word_that_it_has_not_started_begins_no_second_base() -> None:
    """R27: another base would wipe what it has acknowledged since."""
    cluster, leader, lost = recovering()
    mine = cluster.replica(lost)
    cluster.run_until(lambda: mine.last_id == leader.last_id == mine.log.stable_id)
    assert leader.changes is not None and leader.leadership is not None
    number = leader.changes.newcomers._asked[lost]

    def late() -> None:
        empty = StartAnswer(number, StartStatus.EMPTY, mine.first_start.digest, (), b"", "", "")
        cluster.arrive(Envelope(b"", mine.me, leader.me, empty))
        cluster.run(0.05)

    assert leader.changes.newcomers._asked[lost] == number, "the word answers the newest question"
    late()
    assert bases(cluster) == 1, "that it has taken the whole snapshot says that it has started"
    cluster.arrive(next(e for e in cluster.caught if isinstance(e.message, AppendAnswer)))
    late()
    assert bases(cluster) == 1


def test_who_holds_what_a_base_stands_for_keeps_what_it_has() -> None:
    """R27, R14: a learner that holds a base's entries keeps later ones, whether it knows them guaranteed or not."""
    cluster, leader, lost = recovering()
    mine, store = cluster.replica(lost), cluster.hosts[leader.me.id].store
    cluster.catches = lambda e: lost in (e.sender.id, e.target.id)
    entries = AppendRequest(leader.term, 0, 0, 0, 0, 0, cluster.log_of(leader.me.id))
    cluster.arrive(Envelope(leader.cluster, leader.me, mine.me, entries))
    cluster.run(0.1)
    cluster.give(lost, Tick())  # a step, so that the server sees that its write is done: no message comes
    upto_id = mine.last_id - 3
    assert mine.log.stable_id == leader.last_id and upto_id > mine.guaranteed_id
    head, snapshot, state = store.entry_head(upto_id), store.read_snapshot(), leader.first_start.state
    assert head is not None and snapshot is not None
    base = snapshot.base._replace(id=upto_id, term=leader.term, time_ms=head[0], next_lsn=head[1] + head[2])
    table = snapshot.table._replace(applied_id=leader.last_id)
    text = snapshot_head(snapshot._replace(base=base, table=table), state.first_list, state.settings)
    before = mine.last_id
    part = SnapshotPart(leader.term, 1 << 50, 0, 1, text, tuple(snapshot.table.changed))
    cluster.caught.clear()
    cluster.arrive(Envelope(leader.cluster, leader.me, mine.me, part))
    cluster.run(0.1)
    assert mine.last_id == before and mine.log.base_id < upto_id
    told = [e.message for e in cluster.caught if isinstance(e.message, SnapshotAnswer)]
    assert told == [SnapshotAnswer(leader.term, 1 << 50, 1, upto_id)]


class Learner:
    """A learner that the test plays: the leader receives answers that the test makes in its name."""

    def __init__(self) -> None:
        cluster, self.leader, self.id = recovering()
        self.cluster = cluster
        cluster.watchers[:] = [cluster]  # leave the checks out: the learner's answers here are on no disk
        cluster.run_until(lambda: cluster.replica(self.id).last_id == self.leader.last_id)
        self.me = cluster.replica(self.id).me
        cluster.crash(self.id)
        cluster.catches = lambda e: e.target.id == self.id
        cluster.caught.clear()

    @property
    def peer(self) -> Progress:
        assert self.leader.leadership is not None
        return self.leader.leadership.peers[self.id]

    def role(self) -> Role:
        member = self.leader.members.latest.get(self.id)
        assert member is not None
        return member.role

    def says(self, ok: bool, last_id: int, round: int) -> list[Message]:
        """Messages that the leader sends after this answer of the learner."""
        match_id, prev_id = (last_id, last_id) if ok else (0, self.leader.last_id)
        answer = AppendAnswer(
            self.leader.term, ok, match_id, prev_id, last_id, 0, 0, round, self.cluster.wall_ms(), False
        )
        self.cluster.caught.clear()
        envelope = Envelope(self.leader.cluster, self.me, self.leader.me, answer)
        self.cluster.give(self.leader.me.id, Received(envelope))
        return [e.message for e in self.cluster.caught]

    def told(self, event: str) -> int:
        return sum(name == event for _, _, name, _ in self.cluster.events)


def test_a_refusals_round_promotes_nobody() -> None:
    learner = Learner()
    leader, held_id = learner.leader, learner.leader.last_id
    learner.says(True, held_id, 0)
    learner.cluster.run(0.05)
    final = leader.round
    learner.says(False, held_id, final)
    learner.cluster.run(0.05)
    assert learner.peer.round == final and learner.role() is Role.LEARNER
    learner.says(True, held_id, final)
    assert learner.role() is Role.VOTER


def test_a_learner_in_doubt_is_not_promoted() -> None:
    learner = Learner()
    leader, held_id = learner.leader, learner.leader.last_id
    learner.says(True, held_id, 0)
    learner.cluster.run(0.05)
    final = leader.round
    learner.says(False, held_id - 5, 0)
    assert learner.peer.doubted_round > final
    learner.says(True, held_id, final)
    learner.cluster.run(0.05)
    assert learner.role() is Role.LEARNER
    learner.says(True, held_id, learner.peer.doubted_round)
    assert learner.role() is Role.VOTER


def test_a_learner_that_went_back_is_brought_up_again() -> None:
    learner = Learner()
    leader, held_id = learner.leader, learner.leader.last_id
    learner.says(True, held_id, 0)
    learner.says(False, held_id - 5, 0)
    sent = learner.says(False, held_id - 5, learner.peer.doubted_round)
    assert learner.peer.match_id == learner.peer.doubted_round == 0 and not learner.peer.matched
    probe = next(m for m in sent if isinstance(m, AppendRequest))
    assert probe.prev_id <= held_id - 5 and not any(isinstance(m, WentBack) for m in sent)
    assert learner.told("learner_went_back") == 1 and learner.told("store_went_back") == 0
    again = learner.says(True, held_id - 5, leader.round)
    assert any(isinstance(m, AppendRequest) and m.entries for m in again), "what it has forgotten is sent to it"


def test_an_acceptance_of_a_new_round_ends_a_doubt() -> None:
    """R31: a refusal that comes after such an acceptance begins a new doubt, and proves nothing."""
    cluster = started()
    leader = cluster.elect()
    cluster.run(0.5)
    assert leader.leadership is not None
    peer = next(iter(leader.leadership.peers.values()))
    held_id = peer.match_id

    def says(ok: bool, round: int) -> None:
        match_id, last_id = (held_id, held_id) if ok else (0, 3)
        answer = AppendAnswer(leader.term, ok, match_id, held_id, last_id, 0, 0, round, 0, False)
        leader.step([Received(Envelope(leader.cluster, peer.who, leader.me, answer))], cluster.now_s, cluster.wall_ms())

    says(False, 0)
    doubted_round = peer.doubted_round
    says(True, doubted_round - 1)
    assert peer.doubted_round == doubted_round > 0
    says(True, doubted_round)
    assert peer.doubted_round == 0
    says(False, doubted_round)
    assert peer.doubted_round > doubted_round, "a doubt of its own, not a proof"


def test_an_answer_that_acknowledgements_have_overtaken_accuses_nobody() -> None:
    """Acknowledgements that come after a doubt began do not count against the server (R31)."""
    cluster = started()
    leader = cluster.elect()
    cluster.run(0.5)
    assert leader.leadership is not None
    peer = next(iter(leader.leadership.peers.values()))
    held_id = peer.match_id - 2

    def says(ok: bool, id: int, round: int) -> list[Any]:
        answer = AppendAnswer(leader.term, ok, id if ok else 0, peer.base_id, id, 0, 0, round, 0, False)
        received = Received(Envelope(leader.cluster, peer.who, leader.me, answer))
        ready = leader.step([received], cluster.now_s, cluster.wall_ms())
        return [event.name for event in ready.events]

    peer.match_id = peer.base_id = held_id  # the last two acknowledgements are still under way
    says(False, held_id - 1, 0)
    doubted_round = peer.doubted_round
    assert doubted_round > 0
    says(True, held_id + 2, 0)
    assert says(False, held_id, doubted_round) == [] and peer.doubted_round == 0
    says(False, held_id, doubted_round)
    assert "store_went_back" in says(False, held_id, peer.doubted_round)


def test_a_removal_counts_on_nobody_in_doubt() -> None:
    cluster = started()
    leader = cluster.elect()
    cluster.run(0.5)
    assert leader.leadership is not None
    stays, goes = leader.leadership.peers.values()
    cluster.crash(stays.who.id)
    held_id = stays.match_id

    def says(ok: bool, round: int) -> None:
        match_id, last_id = (held_id, held_id) if ok else (0, 3)
        answer = AppendAnswer(leader.term, ok, match_id, held_id, last_id, 0, 0, round, 0, False)
        cluster.arrive(Envelope(leader.cluster, stays.who, leader.me, answer))
        cluster.run(0.01)

    says(False, 0)
    cluster.give(leader.me.id, ChangeMember("remove", MemberStep.REMOVE, goes.who.id, "", 0))
    cluster.run(0.01)
    says(False, leader.round)
    assert leader.members.latest.holds(goes.who) and stays.round == leader.round
    says(True, leader.round)
    assert not leader.members.latest.holds(goes.who)


def test_who_comes_back_has_the_priority_that_it_is_given_now() -> None:
    cluster = started()
    leader = cluster.elect()
    gone = next(id for id in (1, 2, 3) if id != leader.me.id)
    cluster.run(1.0)
    ask(cluster, ChangeMember("remove", MemberStep.REMOVE, gone, "", 0))
    cluster.crash(gone)
    cluster.newcomer(gone)
    ask(cluster, ChangeMember("add", MemberStep.ADD, gone, f"10.0.0.{gone}:7100", 7))
    cluster.run_until(lambda: votes(cluster, gone))
    member = cluster.elect().members.latest.get(gone)
    assert member is not None and member.priority == 7


def test_a_learner_is_sent_no_entries_before_one_of_the_leaders_term_is_guaranteed() -> None:
    """R27: it would outrank voters that need its vote by a list that it does not know."""
    cluster = started()
    first = cluster.elect()
    cluster.newcomer(4)
    cluster.catches = lambda e: e.sender.id == 4 and isinstance(e.message, AppendAnswer)  # so it stays a learner
    cluster.give(first.me.id, ChangeMember("add", MemberStep.ADD, 4, "10.0.0.4:7100", 0))
    cluster.run_until(lambda: cluster.replica(4).last_id == first.guaranteed_id >= first.members.latest_id > 0)
    cluster.catches = lambda e: e.sender.id != 4 and isinstance(e.message, AppendAnswer)
    cluster.crash(first.me.id)
    cluster.run_until(lambda: cluster.leader is not None)
    leader, learner = cluster.reigning, cluster.replica(4)
    assert leader.leadership is not None
    cluster.run_until(lambda: leader.leadership is not None and leader.leadership.peers[4].matched)
    cluster.run(0.2)
    others = [r for r in cluster.replicas if r is not leader and r is not learner]
    assert [r.log.last_term for r in others] == [leader.term]
    assert learner.term == leader.term > learner.log.last_term and leader.guaranteed_id < leader.leadership.first_id
    cluster.arrive(*cluster.caught)
    cluster.catches = lambda e: False
    cluster.run_until(lambda: learner.last_id == leader.last_id and learner.guaranteed_id == leader.guaranteed_id)
