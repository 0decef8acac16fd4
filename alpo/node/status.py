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
    return [f"server {id} {why}" for id, why in sorted(replica.first_start.waits_for.items())]


def problems(peers: Peers, strangers: Mapping[str, str]) -> list[str]:
    """What an operator should look at: peers that cannot be reached or are not what they should be."""
    found = [f"server {peer.id}: {peer.trouble}" for _, peer in sorted(peers.by_id.items()) if peer.trouble]
    return found + [f"{remote}: {why}" for remote, why in strangers.items()]


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
        "reachable": True,
        "version": __version__,
        "cluster": replica.cluster.hex() or None,
        "incarnation": us.me.incarnation.hex(),
        "waiting": waiting(replica),
        "problems": problems(peers, strangers),
        **storage,
    }
