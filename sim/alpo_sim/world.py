"""World: a random run from one seed. A cluster, its clients and faults; in the end the cluster must make progress.

The demands on a world once its faults have ended are complete membership, progress and equal logs (R2-R10, R17, R24).
`run_world` runs a world, and gives the verdict.
"""

from __future__ import annotations

import time
from itertools import combinations
from typing import NamedTuple

from alpo.core.members import Role
from alpo.core.requests import Reply

from .actors import begin, probes
from .checks import Broken
from .clients import Clients
from .cluster import Cluster
from .faults import Aimed, Faults
from .host import Host
from .options import SECOND, Options
from .scenario import CRASHED

#: Bounds after the network has healed: election timeouts until there is a leader; time until every request is settled.
LEADER_WITHIN_TIMEOUTS = 12
SETTLED_WITHIN_US = 30 * SECOND
#: Bound until all servers that lost a disk are voters again: so many election timeouts plus so many microseconds.
MEMBERS_WITHIN_TIMEOUTS = 60
MEMBERS_WITHIN_US = 30 * SECOND


def demand_members(clients: Clients) -> None:
    """Demand that all listed servers become voters by themselves, lost disks or not (R27, R30). Raises `Broken`.

    A retired disk that was put back is wiped meanwhile, as an operator would do.
    """
    cluster = clients.cluster
    if not cluster.initialised:
        return
    bound_us = MEMBERS_WITHIN_TIMEOUTS * cluster.options.election_timeout_us + MEMBERS_WITHIN_US
    ends_us = cluster.now_us + bound_us
    clients.resting = True
    while not cluster.run_until(min(cluster.now_us + SECOND, ends_us), lambda: not _missing(cluster)):
        if cluster.now_us >= ends_us:
            raise Broken("no progress", f"{bound_us / SECOND:.1f} s after all was whole again: {_missing(cluster)}")
        for replica in cluster.replicas():
            latest = cluster.lists.latest
            member = latest.get(replica.me.id) if latest is not None else None
            if member is not None and member.role is not Role.GONE and replica.me.incarnation in member.retired:
                cluster.wipe(replica.me.id)
                cluster.boot(replica.me.id)
    clients.resting = False


def _missing(cluster: Cluster) -> list[str]:
    """A sentence for each reason why membership is not yet complete; [] if it is."""
    leader = cluster.leader()
    if leader is None:
        return ["nobody leads"]
    latest = leader.members.latest
    if leader.members.latest_id > leader.guaranteed_id or leader.changes is None or leader.changes.pending is not None:
        return ["a change of the member list is under way"]
    replicas = {r.me: r for r in cluster.replicas()}
    found = []
    for member in latest.replicas:
        replica = replicas.get(member.identity)
        if replica is None or replica.status_text != "VOTING" or replica.guaranteed_id < leader.members.latest_id:
            there = cluster.stage.hosts[member.id].replica
            found.append(f"server {member.id} is {there.status_text if there else 'down'}, listed {member.role.name}")
    return found


def demand_progress(clients: Clients, topology: str) -> None:
    """Demand a leader, and answers to requests of every kind, within the bounds. Raises `Broken`."""
    cluster = clients.cluster
    if not cluster.initialised:
        return
    bound_us = LEADER_WITHIN_TIMEOUTS * cluster.options.election_timeout_us + 3 * SECOND
    mark = len(cluster.safety.guaranteed)
    waiting = probes(clients)
    if not cluster.run_until(
        cluster.now_us + bound_us, lambda: all(probe.done for probe in waiting) and cluster.leader() is not None
    ):
        if topology != "whole" and not _somebody_can_lead(cluster):
            return
        states = [f"{r.me.id}:{r.state.value} term {r.term} {r.status_text}" for r in cluster.replicas()]
        raise Broken(
            "no progress",
            f"{bound_us / SECOND:.1f} s after the network was {topology} again (last entry {mark}) there is "
            f"no answer to {[str(p) for p in waiting if not p.done]}; {', '.join(states)}",
        )


def _somebody_can_lead(cluster: Cluster) -> bool:
    """True if some voter reaches a majority whose logs are no fresher than its own; otherwise nobody may win (R4)."""
    ids = cluster.disks.voters()
    voters = [r for r in cluster.replicas() if r.first_start.started and r.members.i_vote and r.me.id in ids]
    return any(
        sum(
            other is r or (cluster.links.connected(r.me.id, other.me.id) and other.rank.log <= r.rank.log)
            for other in voters
        ) >= r.members.latest.majority
        for r in voters
    )


def demand_settled(clients: Clients) -> None:
    """Demand that every request is settled, and that all members hold the same log, undamaged. Raises `Broken`."""
    cluster = clients.cluster
    if not cluster.initialised:
        return
    load = cluster.options.load
    patience_us = load.depth * load.retry_us  # a client may have to ask again for one after the other
    if not cluster.run_until(cluster.now_us + SETTLED_WITHIN_US + patience_us, lambda: _settled(clients)):
        raise Broken("no progress", f"not settled: {clients.unsettled()}, marks "
                     f"{[(r.me.id, r.guaranteed_id, r.log.last_id) for r in cluster.replicas()]}")
    for host in cluster.stage.hosts.values():
        cluster.tables.compare(host)
    if not cluster.run_until(cluster.now_us + SETTLED_WITHIN_US, lambda: not _damaged(cluster)):
        raise Broken("no progress", f"all is settled, and entries are still damaged: {_damaged(cluster)}")
    # Disks that were stalled when the faults ended are late, and leaders hear of them by the next heartbeat.
    if not cluster.run_until(cluster.now_us + SETTLED_WITHIN_US, lambda: not _held(cluster)):
        raise Broken("no progress", f"all is settled, and bytes are still held as in flight: {_held(cluster)}")


def _damaged(cluster: Cluster) -> dict[int, list[int]]:
    """Server -> ids of its damaged entries of which other members could send copies."""
    leader = cluster.leader()
    hosts = [h for h in cluster.stage.hosts.values() if h.replica is not None and h.damaged]
    members = [h for h in hosts if leader is not None and leader.members.latest.holds(h.replica.me)]  # type: ignore
    return {host.id: ids for host in members if (ids := cluster.disks.needed(host))}


def _held(cluster: Cluster) -> dict[int, int]:
    return {r.me.id: r.inflight_bytes for r in cluster.replicas() if r.inflight_bytes}


def _settled(clients: Clients) -> bool:
    cluster = clients.cluster
    if clients.unsettled():
        return False
    leader = cluster.leader()
    if leader is None:
        return False
    members = [r for r in cluster.replicas() if leader.members.latest.holds(r.me)]
    return all(r.guaranteed_id == r.log.last_id == leader.log.last_id for r in members)


class World(Cluster):
    """Random run; to be run as a whole by `run`, or piece by piece by `run_until`."""

    def __init__(self, options: Options, *, record: bool = False) -> None:
        super().__init__(options, record=record)
        self.faults = Faults(self)
        self.clients = Clients(self, self.faults)
        self._aimed = Aimed(self, self.faults) if options.aimed else None
        if self._aimed is not None:
            self.stage.watchers.append(self._aimed)

    def _on_reply(self, host: Host, reply: Reply) -> None:
        super()._on_reply(host, reply)
        if reply.origin != "operator":
            self.clients.replied(host.id, reply)

    def _draw_down(self, most: int) -> list[int]:
        """Draw servers that stay down at the end: without them every list in force has a majority, also one that a
        change under way has made, since a server whose log has that entry can be outranked by no other."""
        voters = self.disks.voters()
        drawn = self.rng.sample(voters, min(most, (len(voters) - 1) // 2))
        fit = [drawn, *map(list, combinations(voters, len(drawn))), []]
        return next(down for down in fit if all(
            sum(voter.id not in down for voter in members.voters) >= members.majority
            for members in self.lists.in_force()
        ))

    def run(self) -> None:
        """Run load and faults for `Options.seconds`, then heal everything and demand progress. Raises `Broken`."""
        options, clients = self.options, self.clients
        begin(clients)
        self.faults.begin()
        self.run_until(options.seconds * SECOND)
        self.faults.end()
        self.links.quiet = True
        if options.wipes or options.stewards:
            self.set_cuts([])
            self.restart_all()
            if self._aimed is not None and self.initialised:
                self._aimed.restart_in_transfer()
            demand_members(clients)
        if options.last_topology != "whole":
            self.set_cuts(self.links.topology(options.last_topology))
            self.restart_all()
            self.mend_all()
            demand_progress(clients, options.last_topology)
        if options.last_down:
            self.set_cuts([])
            down = self._draw_down(options.last_down)
            self.restart_all(but=down)
            self.mend_all()
            demand_progress(clients, f"but for {sorted(down)} whole")
        self.set_cuts([])
        self.restart_all()
        demand_progress(clients, "whole")
        clients.wind_down()
        demand_settled(clients)


class Verdict(NamedTuple):
    """Verdict on a run. ``invariant`` and ``detail``: what broke, "" if no check did. ``virtual_s``: virtual seconds;
    ``cpu_s``: seconds of processor time; the other fields count events."""

    options: Options
    invariant: str
    detail: str
    steps: int
    acknowledged: int
    reads: int
    entries: int
    terms: int
    faults: int
    virtual_s: float
    cpu_s: float

    @property
    def ok(self) -> bool:
        return not self.invariant


def run_world(world: World, crashes: tuple[type[Exception], ...] = ()) -> Verdict:
    """Run ``world`` to its end or the first check that fails. Exceptions of types ``crashes`` break `CRASHED`."""
    began = time.process_time()
    invariant = detail = ""
    try:
        world.run()
    except Broken as broken:
        invariant, detail = broken.invariant, broken.detail
    except crashes as error:
        invariant, detail = CRASHED, f"{type(error).__name__}: {error}"
    return Verdict(
        world.options, invariant, detail, world.stage.steps, world.history.acknowledged, world.history.reads,
        len(world.safety.guaranteed), len(world.safety.leaders), sum(world.faults.counts.values()),
        world.now_us / 1e6, time.process_time() - began,
    )
