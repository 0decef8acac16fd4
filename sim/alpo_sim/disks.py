"""Choice of disks that may be lost or damaged: a majority must be left, by every member list that may be in force
(R30, R31)."""

from __future__ import annotations

from alpo.core.members import Identity, MemberList, StartStatus

from .checks.members import MemberChecks
from .checks.safety import Safety
from .host import Host
from .stage import Stage


class Disks:
    """Account of disks: says which may be lost now, as the protocol does not promise to survive the loss of more."""

    def __init__(self, stage: Stage, safety: Safety, lists: MemberChecks) -> None:
        self._stage, self._safety, self._lists = stage, safety, lists
        self._lost = 0  # disks that may have been lost before there was any list
        #: The time until which a removal of a member may still be under way.
        self.removing_until_us = 0

    def voters(self) -> list[int]:
        """The voters of the last list known to be guaranteed; before there is any, all founders."""
        latest, founders = self._lists.latest, self._stage.configured
        return [member.id for member in latest.voters] if latest is not None else [c.id for c in founders]

    def there(self, who: Identity) -> bool:
        """True if disk ``who`` is in its server, up or down, and no entry that may be needed is damaged on it."""
        host = self._stage.hosts.get(who.id)
        return host is not None and host.store.boot().me == who and not self.needed(host)

    def needed(self, host: Host) -> list[int]:
        """The damaged entries of a server's disk that nobody has cleaned yet (R19, R31)."""
        return [id for id in host.damaged if id > self._safety.cleaned_id]

    def put_away(self, id: int) -> bool:
        """True for a spare server that was never booted and is in no list."""
        host = self._stage.hosts[id]
        return host.joining and host.replica is None and not self._listed(id) and not host.boots

    def _listed(self, id: int) -> bool:
        return any(members.get(id) is not None for members in self._lists.in_force())

    def in_use(self) -> list[int]:
        """Ids of the servers that run or will run again: all except spares never used."""
        return [id for id in self._stage.hosts if not self.put_away(id)]

    def that_may_go(self) -> list[int]:
        """The ids of servers whose disks may be lost now."""
        lists = self._lists.in_force()
        hosts = self._stage.hosts
        if not lists:
            founders = len(self._stage.configured)
            if self._lost >= (founders - 1) // 2 or any(
                host.store.boot().start.status is StartStatus.STARTED for host in hosts.values()
            ):
                return []
            self._lost += 1
            return [c.id for c in self._stage.configured]
        return [id for id in self.in_use() if all(map(self._spares, lists, [id] * len(lists))) and self._found(id)]

    def _found(self, id: int) -> bool:
        """True if another founder than ``id`` has started: if none had, they would found another cluster."""
        stores = [h.store for h in self._stage.hosts.values() if not h.joining and h.id != id]
        return self._stage.hosts[id].joining or any(
            store.boot().start.status is StartStatus.STARTED for store in stores
        )

    def _spares(self, members: MemberList, id: int) -> bool:
        """True if without server ``id``'s disk a majority is left, also if one member more or fewer votes."""
        if members.get(id) is None:
            return True
        left = [m.id != id and self.there(m.identity) for m in members.voters]
        learners = [m.id != id and self.there(m.identity) for m in members.learners]
        cases = [left, *([*left, learner] for learner in learners), [*left, *learners]]
        if self._stage.now_us < self.removing_until_us:
            cases += [[*left[:at], *left[at + 1 :]] for at in range(len(left))]
        return all(sum(case) > len(case) // 2 for case in cases)
