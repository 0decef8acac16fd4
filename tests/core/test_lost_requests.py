"""R17: entries that were lost on their way are sent again."""

from __future__ import annotations

from cluster_kit import Cluster
from session_leader import CLIENT

from alpo.core.messages import AppendRequest, Envelope


def test_r17_lost_entries_are_sent_again_to_a_server_with_as_many_of_its_own() -> None:
    """An answer from a server whose log is long enough does not prove that it received the entries."""
    cluster = Cluster(3, seed=5)
    old = cluster.elect()
    cluster.append_some(3)
    others = [id for id in cluster.hosts if id != old.me.id]
    for id in others:
        cluster.cut |= {(old.me.id, id), (id, old.me.id)}
    for serial in range(1, 9):  # an entry each
        cluster.append(CLIENT, serial, b"never guaranteed", to=old.me.id)
    cluster.run(3.0)
    new = cluster.leader
    assert new is not None and new is not old and old.log.last_id > new.log.last_id
    dropped: list[int] = []

    def first(envelope: Envelope) -> bool:
        message = envelope.message
        if isinstance(message, AppendRequest) and message.entries and envelope.target == old.me and not dropped:
            dropped.append(message.entries[-1].id)
            return True
        return False

    cluster.catches = first
    cluster.cut.clear()
    cluster.run(5.0)
    assert dropped and dropped[-1] < old.log.last_id + 8
    assert old.log.last_id == old.guaranteed_id == new.log.last_id
