"""A base of several parts reaches its learner whatever either side loses on the way (R27)."""

from __future__ import annotations

from mini import Cluster
from test_members import replica, same_logs, votes

from alpo.core.messages import BaseAnswer, BasePart, Envelope
from alpo.core.replica import Replica


def about_to_recover(clients: int = 12, **options: float) -> tuple[Cluster, Replica, int]:
    """A cluster whose table makes as many parts as there are clients, its leader, and who has lost its disk."""
    cluster = Cluster(3, 11, part_slots_max=4, **options)  # type: ignore[arg-type]
    leader = cluster.elect()
    for _ in range(clients):
        cluster.append_some(1)
    cluster.run(0.5)
    lost = next(id for id in (3, 2, 1) if id != leader.me.id)
    cluster.wipe(lost)
    return cluster, leader, lost


def sent(cluster: Cluster, kind: type, into: list[Envelope]) -> None:
    """From now on ``into`` is every message of this kind that is sent."""

    def note(envelope: Envelope) -> bool:
        if isinstance(envelope.message, kind):
            into.append(envelope)
        return False

    cluster.catches = note


def back(cluster: Cluster, lost: int, seconds: float = 10.0) -> None:
    """It becomes a voter in the reign that it came to, and has what the others have."""
    leader = cluster.elect()
    term = leader.term
    cluster.run_until(lambda: votes(cluster, lost), seconds)
    assert cluster.elect().term == term
    cluster.run(0.5)
    same_logs(cluster, 1, 2, 3)


def test_a_learner_that_restarts_amid_a_transfer() -> None:
    cluster, _, lost = about_to_recover()
    parts: list[Envelope] = []
    sent(cluster, BasePart, parts)
    cluster.boot(lost)
    cluster.run_until(lambda: len(parts) >= 5)
    cluster.crash(lost)
    cluster.boot(lost)
    back(cluster, lost)
    assert len({part.message.number for part in parts}) == 1, "the same transfer was gone on with"


def test_a_late_part_of_a_deposed_leaders_transfer() -> None:
    cluster, old, lost = about_to_recover()
    cluster.catches = lambda envelope: isinstance(envelope.message, BasePart)
    cluster.boot(lost)
    cluster.run_until(lambda: bool(cluster.caught))
    late = cluster.caught[0]
    cluster.crash(old.me.id)
    cluster.boot(old.me.id)
    parts: list[Envelope] = []
    sent(cluster, BasePart, parts)
    cluster.run_until(lambda: len(parts) >= 5)
    assert parts[-1].message.term > late.message.term and not replica(cluster, lost).first_start.started
    cluster.arrive(late)
    back(cluster, lost)


def test_lost_parts_and_answers() -> None:
    for seed in range(5):
        cluster, _, lost = about_to_recover()
        cluster.rng.seed(seed)
        cluster.boot(lost)
        cluster.catches = lambda envelope, c=cluster: (  # type: ignore[misc]
            isinstance(envelope.message, BasePart | BaseAnswer) and c.rng.random() < 0.3
        )
        back(cluster, lost, 60.0)


def test_copies_of_answers_make_no_copies_of_parts() -> None:
    for seed in range(5):
        cluster, _, lost = about_to_recover(clients=40)
        cluster.rng.seed(seed)
        cluster.duplication = 0.5
        parts: list[Envelope] = []
        sent(cluster, BasePart, parts)
        cluster.boot(lost)
        back(cluster, lost)
        assert len(parts) == parts[0].message.parts


def test_what_a_learner_says_to_each_part() -> None:
    cluster, _, lost = about_to_recover()
    cluster.catches = lambda envelope: isinstance(envelope.message, BasePart | BaseAnswer)
    cluster.boot(lost)
    cluster.run_until(lambda: bool(cluster.caught))
    first = cluster.caught[0].message

    def answers() -> list[int]:
        """What the learner wants after each part that it is sent."""
        told = [e.message for e in cluster.caught if isinstance(e.message, BaseAnswer)]
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
