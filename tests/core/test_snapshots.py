"""A base of several parts reaches its learner whatever either side loses on the way (R27)."""

from __future__ import annotations

from functools import partial
from random import Random

from cluster_kit import Cluster
from test_members import same_logs, votes

from alpo.core.disk import Base, Snapshot, StartState, TableSave
from alpo.core.members import Member, MemberList, Role, StartStatus
from alpo.core.messages import Envelope, SnapshotAnswer, SnapshotPart
from alpo.core.replica import Replica
from alpo.core.settings import Settings
from alpo.core.snapshots import parse_head, snapshot_head


def test_a_head_gives_back_the_very_state() -> None:
    """JSON has no tuples; a compiled core takes nothing else for one."""
    list_, settings = MemberList((Member(1, "h:1", 0, b"i" * 16, Role.VOTER),)).to_plain(), Settings().to_plain()
    table = TableSave(10, 5, [], [], list_, 2, settings, 3, (("nightly", 51), ("tail", 101)), True)
    snapshot = Snapshot(Base(9, 1, 5, 8), table, StartState(StartStatus.STARTED))
    assert parse_head(snapshot_head(snapshot, list_, settings), [], b"d" * 16)[:2] == (snapshot.base, table)


def about_to_recover(clients: int = 12) -> tuple[Cluster, Replica, int]:
    """A cluster whose table makes as many parts as there are clients, its leader, and who has lost its disk."""
    cluster = Cluster(3, 11, part_slots_max=4)
    leader = cluster.elect()
    for _ in range(clients):
        cluster.append_some(1)
    cluster.run(0.5)
    lost = next(id for id in (3, 2, 1) if id != leader.me.id)
    cluster.wipe(lost)
    return cluster, leader, lost


def parts_sent(cluster: Cluster) -> list[SnapshotPart]:
    """A list to which every snapshot part sent from now on is added."""
    parts: list[SnapshotPart] = []

    def note(envelope: Envelope) -> bool:
        if isinstance(envelope.message, SnapshotPart):
            parts.append(envelope.message)
        return False

    cluster.catches = note
    return parts


def caught_part(cluster: Cluster) -> SnapshotPart:
    part = cluster.caught[0].message
    assert isinstance(part, SnapshotPart)
    return part


def back(cluster: Cluster, lost: int, seconds: float = 10.0) -> None:
    """Check that server ``lost`` becomes a voter without a new election, and has the log of the others."""
    leader = cluster.elect()
    term = leader.term
    cluster.run_until(lambda: votes(cluster, lost), seconds)
    assert cluster.elect().term == term
    cluster.run(0.5)
    same_logs(cluster, 1, 2, 3)


def test_a_learner_that_restarts_amid_a_transfer() -> None:
    cluster, _, lost = about_to_recover()
    parts = parts_sent(cluster)
    cluster.boot(lost)
    cluster.run_until(lambda: len(parts) >= 5)
    cluster.crash(lost)
    cluster.boot(lost)
    back(cluster, lost)
    assert len({part.number for part in parts}) == 1, "the same transfer was gone on with"


def test_a_late_part_of_a_deposed_leaders_transfer() -> None:
    cluster, old, lost = about_to_recover()
    cluster.catches = lambda envelope: isinstance(envelope.message, SnapshotPart)
    cluster.boot(lost)
    cluster.run_until(lambda: bool(cluster.caught))
    late, term = cluster.caught[0], caught_part(cluster).term
    cluster.crash(old.me.id)
    cluster.boot(old.me.id)
    parts = parts_sent(cluster)
    cluster.run_until(lambda: len(parts) >= 5)
    assert parts[-1].term > term and not cluster.replica(lost).first_start.started
    cluster.arrive(late)
    back(cluster, lost)


def some_of_the_transfer(rng: Random, envelope: Envelope) -> bool:
    return isinstance(envelope.message, SnapshotPart | SnapshotAnswer) and rng.random() < 0.3


def test_lost_parts_and_answers() -> None:
    for seed in range(5):
        cluster, _, lost = about_to_recover()
        cluster.rng.seed(seed)
        cluster.boot(lost)
        cluster.catches = partial(some_of_the_transfer, cluster.rng)
        back(cluster, lost, 60.0)


def test_copies_of_answers_make_no_copies_of_parts() -> None:
    for seed in range(5):
        cluster, _, lost = about_to_recover(clients=40)
        cluster.rng.seed(seed)
        cluster.duplication = 0.5
        parts = parts_sent(cluster)
        cluster.boot(lost)
        back(cluster, lost)
        assert len(parts) == parts[0].parts


def test_what_a_learner_says_to_each_part() -> None:
    cluster, _, lost = about_to_recover()
    cluster.catches = lambda envelope: isinstance(envelope.message, SnapshotPart | SnapshotAnswer)
    cluster.boot(lost)
    cluster.run_until(lambda: bool(cluster.caught))
    first = caught_part(cluster)

    def answers() -> list[int]:
        """Numbers of the parts that the learner asks for next, one in each of its answers."""
        told = [e.message for e in cluster.caught if isinstance(e.message, SnapshotAnswer)]
        assert all((m.term, m.number, m.base_id) == (first.term, first.number, 0) for m in told)
        return [message.wanted for message in told]

    def arrive(part: int, number: int = first.number) -> None:
        message = first._replace(number=number, part=part, head=first.head if part == 0 else "")
        cluster.arrive(cluster.caught[0]._replace(message=message))

    for part in (0, 1, 1, 0, 3, 2):
        arrive(part)
    assert answers() == [1, 2, 2, 2, 3], "the part after a gap is not answered: T later the leader begins again"
    arrive(0, first.number - 1)
    arrive(3)
    assert answers()[5:] == [4], "an older transfer is not answered, and costs nothing"
    arrive(4, first.number + 1)
    arrive(4)
    assert len(answers()) == 6, "a newer one takes its place"
