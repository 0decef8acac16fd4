"""A small cluster in which entries get damaged: for the tests of R31 in the core."""

from __future__ import annotations

from cluster_kit import Cluster
from session_leader import CLIENT

from alpo.core.messages import CopyAnswer, CopyRequest, Envelope
from alpo.core.replica import Replica
from alpo.core.requests import Appended, Initialise


def cluster_of(size: int = 3, count: int = 10, mending: bool = False) -> tuple[Cluster, Replica, list[Replica]]:
    """A cluster that holds ``count`` payloads on all disks; its leader, and the others. ``mending``: copies of damaged
    entries can be fetched."""
    cluster = Cluster(size)
    if not mending:
        cluster.catches = is_copy
    if size == 1:
        cluster.give(1, Initialise("init"))
    cluster.elect()
    for serial in range(1, count + 1):
        cluster.append(CLIENT, serial, b"%d" % serial)
    cluster.run(2.0)
    leader = cluster.leader
    assert leader is not None
    others = [replica for replica in cluster.replicas if replica is not leader]
    return cluster, leader, others


def is_copy(envelope: Envelope) -> bool:
    return isinstance(envelope.message, CopyRequest | CopyAnswer)


def append(cluster: Cluster, serial: int) -> bool:
    """Append one payload; True if it is guaranteed within two seconds."""
    origin = cluster.append(CLIENT, serial, b"%d" % serial)
    cluster.run(2.0)
    return isinstance(cluster.reply_to(origin), Appended)
