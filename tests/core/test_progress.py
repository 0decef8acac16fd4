"""What must go on by itself: lost acceptances, a leader's slow disk, hellos of strangers (R14, R17, R27)."""

from __future__ import annotations

from mini import Cluster, Host
from test_replica import random_client

from alpo.core.inputs import PeerAddress
from alpo.core.messages import AppendAnswer, AppendRequest, Envelope
from alpo.core.ready import Appended


class Losing(Cluster):
    """Loses acceptances of entries from one server while told to."""

    losing = 0

    def transmit(self, host: Host, envelope: Envelope) -> None:
        message = envelope.message
        if host.id == self.losing and isinstance(message, AppendAnswer) and message.match_id > message.prev_id:
            return
        super().transmit(host, envelope)


def test_a_heartbeat_tells_what_a_lost_acceptance_would_have_told() -> None:
    """R17: nobody waits for the next entry, which may never come."""
    cluster = Losing(3)
    leader = cluster.elect()
    cluster.run(0.5)
    others = [id for id in cluster.hosts if id != leader.me.id]
    cluster.crash(others[0])
    cluster.losing = others[1]
    origin = cluster.append(random_client(), 1, b"a")
    cluster.run(0.05)
    cluster.losing = 0
    cluster.run(1)
    assert isinstance(cluster.reply_to(origin), Appended)


def test_a_lost_request_is_sent_again() -> None:
    """R17: answers to heartbeats are no answer to what carried entries."""
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.run(0.5)
    transmit = cluster.transmit
    cluster.transmit = (  # type: ignore[method-assign]
        lambda host, e: None if isinstance(e.message, AppendRequest) and e.message.entries else transmit(host, e)
    )
    origin = cluster.append(random_client(), 1, b"a")
    cluster.run(0.05)
    cluster.transmit = transmit  # type: ignore[method-assign]
    cluster.run(1)
    assert isinstance(cluster.reply_to(origin), Appended)
    assert cluster.leader is leader


def test_a_stalled_disk_is_not_sent_everything_again() -> None:
    """R17: it holds the entries, and says so."""
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.run(0.5)
    host = cluster.hosts[next(id for id in cluster.hosts if id != leader.me.id)]
    persist, transmit, sent = cluster.persist, cluster.transmit, []
    cluster.persist = (  # type: ignore[method-assign]
        lambda h, epoch, number: None if h is host else persist(h, epoch, number)
    )

    def count(of: Host, envelope: Envelope) -> None:
        if envelope.target.id == host.id and isinstance(envelope.message, AppendRequest) and envelope.message.entries:
            sent.append(envelope)
        transmit(of, envelope)

    cluster.transmit = count  # type: ignore[method-assign]
    cluster.append(random_client(), 1, b"a")
    cluster.run(5)
    assert len(sent) == 1 and cluster.leader is leader


def test_a_leader_counts_what_its_own_disk_has_not_taken() -> None:
    """What the others guarantee while the leader's disk stands still is bounded all the same (back pressure)."""
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.run(0.5)
    host = cluster.hosts[leader.me.id]
    persist, held = cluster.persist, []
    cluster.persist = (  # type: ignore[method-assign]
        lambda h, epoch, number: held.append(number) if h is host else persist(h, epoch, number)
    )
    client = random_client()
    for at in range(20):
        origin = cluster.append(client, 1 + at, b"x" * 1000)
        cluster.run_until(lambda: isinstance(cluster.reply_to(origin), Appended))
    assert leader.inflight_bytes >= 20_000
    persist(host, host.epoch, held[-1])
    cluster.run(0.2)
    assert leader.inflight_bytes == 0


def test_hellos_of_strangers_are_not_remembered() -> None:
    cluster = Cluster(3)
    leader = cluster.elect()
    for at in range(1000):
        cluster.give(leader.me.id, PeerAddress(2 + at, bytes([at % 256]) * 16, "10.9.9.9:1"))
    assert len(leader.seen_addresses) <= 3
