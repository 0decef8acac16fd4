"""The configuration of a replica: this server's place in the cluster, timers and limits (rules.md#timers).

A file of its own: servers, simulators and tests fill it, and need nothing else of the core for that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .members import Configured, Identity
from .settings import Settings


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Configuration of one replica.

    ``address``: where other servers reach this one; ``configured`` and ``settings``: the members and settings of a
    first start, which needs no operator's command if ``auto_init`` (R29); ``priority``: used while the server is in no
    member list; ``refused_means_dead``: a refused connection tells that the leader is gone (R33). The timers, in
    seconds, are equal on all members: ``election_timeout_s`` is at least five heartbeats, ``stagger_s`` a twentieth of
    it by default.
    """

    me: Identity
    address: str
    configured: tuple[Configured, ...]
    settings: Settings = field(default_factory=Settings)
    auto_init: bool = True
    refused_means_dead: bool = True
    priority: int = 0
    heartbeat_s: float = 0.1
    election_timeout_s: float = 0.5
    stagger_s: float = 0.025
    #: Longest time that a write may be under way before this server's disk counts as hanging (R34); 0: the election
    #: timeout.
    disk_timeout_s: float = 0.0
    #: Longest time that a raised guaranteed mark waits for entries to travel with, before it is sent alone (R16).
    mark_delay_s: float = 0.001
    #: Most bytes of entries kept in memory beyond those not yet on disk; most bytes of bodies in flight to one peer.
    tail_bytes_max: int = 16 << 20
    peer_inflight_bytes_max: int = 8 << 20
    #: Most bytes of bodies in one append request (a single larger entry goes alone).
    request_bytes_max: int = 1 << 20
    #: Most bytes of bodies loaded from disk at once for a peer that is behind: appends wait while they are loaded.
    load_bytes_max: int = 1 << 16
    #: Guaranteed entries, or serials in them, after which the replicated state is saved again: a start replays about as
    #: many.
    table_save_entries: int = 50_000
    #: Most remembered serials in one part of a snapshot; each session counts as four more. A larger session is a part
    #: alone.
    part_slots_max: int = 1_000
    #: True if this server waits to be added to an existing cluster, and never founds one.
    joining: bool = False
    #: True if the log is its cluster's first one, which holds the directory of the others (rules.md#logs).
    first_log: bool = True
    #: Id of the only cluster that this server may join; b"": any.
    cluster_wanted: bytes = b""

    @property
    def lately_s(self) -> float:
        """The time for which a server counts as up after its answer: in logs besides the first, two heartbeats may be
        two intervals apart."""
        return (2 if self.first_log else 3) * self.heartbeat_s

    @property
    def disk_patience_s(self) -> float:
        """The time in force for ``disk_timeout_s``."""
        return self.disk_timeout_s or self.election_timeout_s
