"""World: a random run from one seed. A cluster, its clients and faults; in the end the cluster must make progress."""

from __future__ import annotations

from alpo.core.requests import Reply

from .actors import begin
from .aimed import Aimed
from .clients import Clients
from .cluster import Cluster
from .demands import demand_members, demand_progress, demand_settled
from .faults import Faults
from .host import Host
from .options import SECOND, Options


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
            voters = self.disks.voters()
            down = self.rng.sample(voters, min(options.last_down, (len(voters) - 1) // 2))
            self.restart_all(but=down)
            self.mend_all()
            demand_progress(clients, f"but for {sorted(down)} whole")
        self.set_cuts([])
        self.restart_all()
        demand_progress(clients, "whole")
        clients.wind_down()
        demand_settled(clients)
