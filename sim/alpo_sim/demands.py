"""What is demanded once the faults have ended: a leader, progress, and in the end one equal log (R2-R10, R17, R24)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpo.core.members import Role

from .broken import Broken
from .options import SECOND

if TYPE_CHECKING:
    from .world import World

#: Election timeouts within which a healed network has a leader, and time in which all that was asked is settled.
LEADER_WITHIN_TIMEOUTS = 12
SETTLED_WITHIN_US = 30 * SECOND
#: All who lost a disk are back within these, one after the other.
MEMBERS_WITHIN_TIMEOUTS = 60
MEMBERS_WITHIN_US = 30 * SECOND


def demand_members(world: World) -> None:
    """Whoever lost a disk, and whoever was to become a member, is one, by itself (R27, R30); but an old disk that was
    put back is wiped first, by an operator.
    """
    if not world.initialised:
        return
    bound_us = MEMBERS_WITHIN_TIMEOUTS * world.options.election_timeout_us + MEMBERS_WITHIN_US
    ends_us = world.now_us + bound_us
    world.clients.resting = True
    while not world.run_until(min(world.now_us + SECOND, ends_us), lambda: not _missing(world)):
        if world.now_us >= ends_us:
            raise Broken("no progress", f"{bound_us / SECOND:.1f} s after all was whole again: {_missing(world)}")
        for replica in world.replicas():
            latest = world.lists.latest
            member = latest.get(replica.me.id) if latest is not None else None
            if member is not None and member.role is not Role.GONE and replica.me.incarnation in member.retired:
                world.wipe(replica.me.id)
                world.boot(replica.me.id)
    world.clients.resting = False


def _missing(world: World) -> list[str]:
    """Who is not what the list says it is to be; [] if all are."""
    leader = world.leader()
    if leader is None:
        return ["nobody leads"]
    latest = leader.members.latest
    if leader.members.latest_id > leader.guaranteed_id or leader.changes is None or leader.changes.pending is not None:
        return ["a change of the member list is under way"]
    replicas = {r.me: r for r in world.replicas()}
    found = []
    for member in latest.replicas:
        replica = replicas.get(member.identity)
        if replica is None or replica.status_text != "VOTING" or replica.guaranteed_id < leader.members.latest_id:
            there = world.stage.hosts[member.id].replica
            found.append(f"server {member.id} is {there.status_text if there else 'down'}, listed {member.role.name}")
    return found


def demand_progress(world: World, topology: str) -> None:
    """A leader that can guarantee something new, soon."""
    if not world.initialised:
        return
    bound_us = LEADER_WITHIN_TIMEOUTS * world.options.election_timeout_us + 3 * SECOND
    mark = len(world.safety.guaranteed)
    probes = world.clients.probes()
    if not world.run_until(
        world.now_us + bound_us, lambda: all(probe.done for probe in probes) and world.leader() is not None
    ):
        if topology != "whole" and not _somebody_can_lead(world):
            return
        states = [f"{r.me.id}:{r.state.value} term {r.term} {r.status_text}" for r in world.replicas()]
        raise Broken(
            "no progress",
            f"{bound_us / SECOND:.1f} s after the network was {topology} again (last entry {mark}) there is "
            f"no answer to {[str(p) for p in probes if not p.done]}; {', '.join(states)}",
        )


def _somebody_can_lead(world: World) -> bool:
    """Does some voter reach a majority whose logs are no fresher than its own? Without one nobody may win (R4)."""
    ids = world.disks.voters()
    voters = [r for r in world.replicas() if r.first_start.started and r.members.i_vote and r.me.id in ids]
    return any(
        sum(
            other is r or (world.links.connected(r.me.id, other.me.id) and other.rank.log <= r.rank.log)
            for other in voters
        ) >= r.members.latest.majority
        for r in voters
    )


def demand_settled(world: World) -> None:
    """Everything asked is settled, and all members hold the same log."""
    if not world.initialised:
        return
    load = world.options.load
    patience_us = load.depth * load.retry_us  # a client may have to ask again for one after the other
    if not world.run_until(world.now_us + SETTLED_WITHIN_US + patience_us, lambda: _settled(world)):
        raise Broken("no progress", f"not settled: {world.clients.unsettled()}, marks "
                     f"{[(r.me.id, r.guaranteed_id, r.log.last_id) for r in world.replicas()]}")
    for host in world.stage.hosts.values():
        world.tables.compare(host)
    if not world.run_until(world.now_us + SETTLED_WITHIN_US, lambda: not _damaged(world)):
        raise Broken("no progress", f"all is settled, and entries are still damaged: {_damaged(world)}")
    # A disk that was stalled when the faults ended comes round later; what is on disk is learnt with a heartbeat.
    if not world.run_until(world.now_us + SETTLED_WITHIN_US, lambda: not _held(world)):
        raise Broken("no progress", f"all is settled, and bytes are still held as in flight: {_held(world)}")


def _damaged(world: World) -> dict[int, list[int]]:
    """What a server could have back from another member, and has not."""
    leader = world.leader()
    hosts = [h for h in world.stage.hosts.values() if h.replica is not None and h.damaged]
    members = [h for h in hosts if leader is not None and leader.members.latest.holds(h.replica.me)]  # type: ignore
    return {host.id: ids for host in members if (ids := world.disks.needed(host))}


def _held(world: World) -> dict[int, int]:
    return {r.me.id: r.inflight_bytes for r in world.replicas() if r.inflight_bytes}


def _settled(world: World) -> bool:
    if world.clients.unsettled():
        return False
    leader = world.leader()
    if leader is None:
        return False
    members = [r for r in world.replicas() if leader.members.latest.holds(r.me)]
    return all(r.guaranteed_id == r.log.last_id == leader.log.last_id for r in members)
