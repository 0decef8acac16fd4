"""Progress without help: after lost acceptances, with a slow disk of the leader, and despite hellos of unknown
servers (R14, R17, R27)."""

from __future__ import annotations

from cluster_kit import Cluster
from session_leader import CLIENT

from alpo.core.messages import AppendAnswer, AppendRequest, Envelope
from alpo.core.ready import PeerAddress
from alpo.core.requests import Appended


def test_a_heartbeat_tells_what_a_lost_acceptance_would_have_told() -> None:
    """R17: a lost acceptance is made up for without another entry, which may never come."""
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.run(0.5)
    others = [id for id in cluster.hosts if id != leader.me.id]
    cluster.crash(others[0])

    def acceptance(envelope: Envelope) -> bool:
        said = envelope.message
        return envelope.sender.id == others[1] and isinstance(said, AppendAnswer) and said.match_id > said.prev_id

    cluster.catches = acceptance
    origin = cluster.append(CLIENT, 1, b"a")
    cluster.run(0.05)
    cluster.catches = lambda envelope: False
    cluster.run(1)
    assert isinstance(cluster.reply_to(origin), Appended)


def test_a_lost_request_is_sent_again() -> None:
    """R17: answers to heartbeats are no answer to what carried entries."""
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.run(0.5)
    cluster.catches = lambda e: isinstance(e.message, AppendRequest) and bool(e.message.entries)
    origin = cluster.append(CLIENT, 1, b"a")
    cluster.run(0.05)
    cluster.catches = lambda e: False
    cluster.run(1)
    assert isinstance(cluster.reply_to(origin), Appended)
    assert cluster.leader is leader


def test_a_lost_request_is_sent_again_although_appends_keep_coming() -> None:
    """R17: a mark alone is no heartbeat. It is not answered, and the probe would never leave."""
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.run(0.5)
    lacks = next(replica for replica in cluster.replicas if replica is not leader)
    cluster.catches = lambda e: (
        isinstance(e.message, AppendRequest) and bool(e.message.entries) and e.target == lacks.me
    )
    ends = cluster.append_on(0.01)
    cluster.run(1)
    cluster.catches = lambda e: False
    had = lacks.last_id
    cluster.run(1)
    assert lacks.last_id > had + 100, "it is sent entries again while the load lasts"
    ends()
    cluster.run(0.3)
    assert lacks.last_id == leader.last_id


def test_a_stalled_disk_is_not_sent_everything_again() -> None:
    """R17: it holds the entries, and says so."""
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.run(0.5)
    host = cluster.hosts[next(id for id in cluster.hosts if id != leader.me.id)]
    sent: list[Envelope] = []
    cluster.stalls = lambda h, count: h is host

    def note(envelope: Envelope) -> bool:
        if envelope.target.id == host.id and isinstance(envelope.message, AppendRequest) and envelope.message.entries:
            sent.append(envelope)
        return False

    cluster.catches = note
    cluster.append(CLIENT, 1, b"a")
    cluster.run(5)
    assert len(sent) == 1 and cluster.leader is leader


def test_a_leader_counts_what_its_own_disk_has_not_taken() -> None:
    """Entries that the others guarantee count as in flight until they are on the leader's own disk (back pressure)."""
    cluster = Cluster(3)
    leader = cluster.elect()
    cluster.run(0.5)
    cluster.stalls = lambda host, count: host.replica is leader
    for at in range(20):
        origin = cluster.append(CLIENT, 1 + at, b"x" * 1000)
        cluster.run_until(lambda: isinstance(cluster.reply_to(origin), Appended))
    assert leader.inflight_bytes >= 20_000
    cluster.commit(leader.me.id)
    cluster.run(0.2)
    assert leader.inflight_bytes == 0


def test_hellos_of_strangers_are_not_remembered() -> None:
    cluster = Cluster(3)
    leader = cluster.elect()
    for at in range(1000):
        cluster.give(leader.me.id, PeerAddress(2 + at, bytes([at % 256]) * 16, "10.9.9.9:1"))
    assert len(leader.seen_addresses) <= 3
