"""Which disks may be lost or damaged: never so many that no majority is left, whatever list is in force or is to be
(R30, R31).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpo.core.members import Identity, MemberList, StartStatus

if TYPE_CHECKING:
    from .host import Host
    from .world import World


class Disks:
    """An account over all lists. What it forbids the protocol does not promise to survive."""

    def __init__(self, world: World) -> None:
        self._w = world
        self._lost = 0  # before there is any list
        #: Until when a removal may still be under way.
        self.removing_until_us = 0

    def voters(self) -> list[int]:
        """Of the last list known to be guaranteed; of all who are to found the cluster before there is one."""
        latest, founders = self._w.lists.latest, self._w.stage.configured
        return [member.id for member in latest.voters] if latest is not None else [c.id for c in founders]

    def there(self, who: Identity) -> bool:
        """Is that disk in use, or at least in its place, and is all on it that somebody may need?"""
        host = self._w.stage.hosts.get(who.id)
        return host is not None and host.store.boot().me == who and not self.needed(host)

    def needed(self, host: Host) -> list[int]:
        """Its damaged entries that somebody may need: nobody has cleaned them yet (R19, R31)."""
        return [id for id in host.damaged if id > self._w.safety.cleaned_id]

    def put_away(self, id: int) -> bool:
        """Is it a server that nobody has asked for yet?"""
        host = self._w.stage.hosts[id]
        return host.joining and host.replica is None and not self._listed(id) and not host.boots

    def _listed(self, id: int) -> bool:
        return any(members.get(id) is not None for members in self._w.lists.in_force())

    def in_use(self) -> list[int]:
        """Servers that are running or are to run again."""
        return [id for id in self._w.stage.hosts if not self.put_away(id)]

    def that_may_go(self) -> list[int]:
        """Servers whose disks may be lost now."""
        lists = self._w.lists.in_force()
        hosts = self._w.stage.hosts
        if not lists:
            founders = len(self._w.stage.configured)
            if self._lost >= (founders - 1) // 2 or any(
                host.store.boot().start.status is StartStatus.STARTED for host in hosts.values()
            ):
                return []
            self._lost += 1
            return [c.id for c in self._w.stage.configured]
        return [id for id in self.in_use() if all(map(self._spares, lists, [id] * len(lists))) and self._found(id)]

    def _found(self, id: int) -> bool:
        """Not all who founded the cluster at once: empty, they would found another."""
        stores = [h.store for h in self._w.stage.hosts.values() if not h.joining and h.id != id]
        return self._w.stage.hosts[id].joining or any(
            store.boot().start.status is StartStatus.STARTED for store in stores
        )

    def _spares(self, members: MemberList, id: int) -> bool:
        """Is a majority left without that server's disk, also once a member more or fewer votes?"""
        if members.get(id) is None:
            return True
        left = [m.id != id and self.there(m.identity) for m in members.voters]
        learners = [m.id != id and self.there(m.identity) for m in members.learners]
        cases = [left, *([*left, learner] for learner in learners), [*left, *learners]]
        if self._w.now_us < self.removing_until_us:
            cases += [[*left[:at], *left[at + 1 :]] for at in range(len(left))]
        return all(sum(case) > len(case) // 2 for case in cases)
