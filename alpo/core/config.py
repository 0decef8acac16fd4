"""What a replica is started with: this server's place and the timers (rules.md#timers)."""

from __future__ import annotations

from dataclasses import dataclass, field

from .members import Configured, Identity
from .settings import Settings


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """``address`` is where others reach us; ``configured`` the list for a first start (R29).

    Timers are equal on all members: T >= 5h; ``stagger_s`` defaults to T/20. ``rng`` is the shell's.
    """

    me: Identity
    address: str
    configured: tuple[Configured, ...]
    settings: Settings = field(default_factory=Settings)
    auto_init: bool = True
    priority: int = 0
    heartbeat_s: float = 0.1
    election_timeout_s: float = 0.5
    stagger_s: float = 0.025
    #: So long a mark that moved waits for entries to ride with, before it leaves by itself (R16).
    mark_delay_s: float = 0.001
    tail_bytes_max: int = 16 << 20
    peer_inflight_bytes_max: int = 8 << 20
    #: Bodies in one append request, at most (one entry may be larger).
    request_bytes_max: int = 1 << 20
    #: Bodies loaded from disk at once for a peer that is behind: appends wait for no more than that takes.
    load_bytes_max: int = 1 << 16
    #: The replicated state is saved every so many entries; more are never replayed at a start.
    table_save_entries: int = 50_000
    #: Remembered serials in one part of a base, a session counting as a few; a session of more is a part by itself.
    part_slots_max: int = 1_000
    #: It is to be added to a cluster that there is: it never founds one.
    joining: bool = False
    #: The only cluster that it may belong to; b"": any.
    cluster_wanted: bytes = b""
