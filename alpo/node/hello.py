"""The hello between servers: what we say, and what we make of what the other says (R27).

Laws:

* Only a *different* cluster id, or a wrong server id, closes a connection whose version of the protocol is spoken here.
* A connection is full only if both hellos name the same cluster and each the other's incarnation.
"""

from __future__ import annotations

from dataclasses import dataclass

from alpo.core.members import Identity
from alpo.core.replica import Replica
from alpo.wire.requests import PeerHello

from .driver import wall_ms


@dataclass(frozen=True, slots=True)
class Ourselves:
    """What does not change while the server runs. ``timers_ms``: heartbeat, election timeout, stagger."""

    me: Identity
    address: str
    timers_ms: tuple[int, int, int]


def our_hello(us: Ourselves, replica: Replica, target: Identity, version: int) -> PeerHello:
    """To, or in answer to, ``target`` (its incarnation b"" if we do not know it); ``version``: to be spoken."""
    return PeerHello(
        version, replica.cluster, us.me.id, us.me.incarnation, us.address, target.id, target.incarnation,
        wall_ms(), replica.horizon_ms, us.timers_ms,
    )


def listed_incarnation(replica: Replica, id: int) -> bytes:
    """The incarnation under which our list knows member ``id``; b"" if there is no list or no such member."""
    return replica.members.identity(id).incarnation


def objection(us: Ourselves, replica: Replica, hello: PeerHello) -> str:
    """Why we cannot talk to the sender of ``hello`` at all; "" if we can."""
    if hello.cluster and replica.cluster and hello.cluster != replica.cluster:
        return f"cluster {hello.cluster.hex()}: this server belongs to cluster {replica.cluster.hex()}"
    wanted = replica.cfg.cluster_wanted
    if hello.cluster and wanted and hello.cluster != wanted:
        return f"cluster {hello.cluster.hex()}: this server was told to belong to cluster {wanted.hex()} alone"
    if hello.id == us.me.id:
        return f"server id {hello.id} is this server's own: two servers were given the same id"
    if hello.target_id != us.me.id:
        return f"looking for server {hello.target_id}: this is server {us.me.id}"
    return ""


def is_full(us: Ourselves, replica: Replica, hello: PeerHello) -> bool:
    """Does this (acceptable) hello open a connection for everything, as far as its sender goes?"""
    return bool(replica.cluster) and hello.cluster == replica.cluster and hello.target_incarnation == us.me.incarnation


def timers_differ(us: Ourselves, hello: PeerHello) -> bool:
    """Timers are configuration: peers compare and warn."""
    return hello.timers_ms != us.timers_ms
