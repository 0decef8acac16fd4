"""A small cluster in which entries get damaged: for the tests of R31 in the core."""

from __future__ import annotations

from mini import Cluster

from alpo.core.inputs import Initialise
from alpo.core.ready import Appended
from alpo.core.replica import Replica

CLIENT = "~018bcfe5-6800-7000-8000-000000000001"


def cluster_of(size: int = 3, count: int = 10, mending: bool = False) -> tuple[Cluster, Replica, list[Replica]]:
    """A cluster that holds ``count`` payloads on all disks; its leader, and the others. ``mending``: damaged entries
    can be had back in it."""
    cluster = Cluster(size)
    if mending:
        cluster.damaged = {id: set() for id in cluster.hosts}
    if size == 1:
        cluster.give(1, Initialise("init"))
    cluster.elect()
    for serial in range(1, count + 1):
        cluster.append(CLIENT, serial, b"%d" % serial)
    cluster.run(2.0)
    leader = cluster.leader
    assert leader is not None
    others = [h.replica for h in cluster.hosts.values() if h.replica is not None and h.replica is not leader]
    return cluster, leader, others


def append(cluster: Cluster, serial: int) -> bool:
    """Is it guaranteed within two seconds?"""
    origin = cluster.append(CLIENT, serial, b"%d" % serial)
    cluster.run(2.0)
    return isinstance(cluster.reply_to(origin), Appended)
