"""What a server says of itself (`alpo status`): the keys are users' contract, see docs/cli.md and operations.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alpo import __version__
from alpo.core.replica import Replica

from .hello import Ourselves
from .pages import Extent
from .peers import Peers


def waiting(replica: Replica) -> list[str]:
    """Why this server does not take part yet, a sentence a reason; empty if it does."""
    if replica.cfg.joining and len(replica.cfg.configured) == 1 and not replica.first_start.started:
        return [f"to be added to a cluster: alpo member add {replica.me.id}={replica.cfg.address}"]
    missing = [f"server {id} {why}" for id, why in sorted(replica.first_start.waits_for.items())]
    if replica.cfg.joining and not replica.first_start.started:  # with others on its list: it has lost a store
        return ["those who knew it before its store was lost (lost-… in its directory): it founds no cluster", *missing]
    return missing


def problems(peers: Peers, strangers: Mapping[str, str]) -> list[str]:
    """What an operator should look at: peers that cannot be reached or are not what they should be."""
    found = [f"server {peer.id}: {peer.trouble}" for _, peer in sorted(peers.by_id.items()) if peer.trouble]
    return found + [f"{remote}: {why}" for remote, why in strangers.items()]


def member_change(replica: Replica, peers: Peers) -> str | None:
    """The operator's change of the member list that this leader is at, what it waits for, and what was last seen."""
    if replica.changes is None or not replica.changes.under_way:
        return None
    peer = peers.by_id.get(replica.changes.asked_id)
    seen = f" (last seen: {peer.trouble})" if peer is not None and peer.trouble else ""
    return replica.changes.under_way + seen


def peer_fields(peers: Peers) -> list[dict[str, Any]]:
    """Every other member as seen from here: is there a full connection, and how long a packet takes there and back."""
    return [
        {
            "id": peer.id,
            "reachable": not peer.trouble,
            "why": peer.trouble or None,
            "round_trip_ms": peer.route.link.round_trip_ms if peer.route is not None else None,
        }
        for _, peer in sorted(peers.by_id.items())
    ]


def status_fields(
    us: Ourselves, replica: Replica, peers: Peers, strangers: Mapping[str, str], within: Extent,
    storage: Mapping[str, Any],
) -> dict[str, Any]:
    """`StatusAnswer.fields`. LSNs and ids as a local reader sees them; ``leader`` None while none is known."""
    return {
        "id": us.me.id,
        "address": us.address,
        "state": replica.state.value,
        "status": replica.status_text,
        "term": replica.term,
        "leader": replica.leader_id or None,
        "last_id": replica.last_id,
        "guaranteed_id": replica.guaranteed_id,
        "fully_replicated_id": replica.fully_replicated_id,
        "first_lsn": within.first_lsn,
        "last_lsn": within.end_lsn,
        "cleaned_id": replica.log.base_id,
        "cleanable_id": replica.cleaning.cleanable_id,
        "reachable": True,
        "version": __version__,
        "cluster": replica.cluster.hex() or None,
        "members": [
            {"id": m.id, "address": m.address, "priority": m.priority, "role": m.role.name}
            for m in replica.members.latest.members
        ],
        "member_change": member_change(replica, peers),
        "incarnation": us.me.incarnation.hex(),
        "timers_ms": list(us.timers_ms),
        "peers": peer_fields(peers),
        "waiting": waiting(replica),
        "problems": problems(peers, strangers),
        **storage,
    }
