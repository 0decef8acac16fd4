"""Operators who change the member list and hand over leadership (R27, R28)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpo.core.inputs import ChangeMember, Input, MemberStep, Transfer
from alpo.core.members import StartStatus
from alpo.core.ready import Code, Refused, Reply

from .options import SECOND
from .party import Party

if TYPE_CHECKING:
    from .clients import Clients

_PATIENCE_US = 20 * SECOND


class Steward(Party):
    """Wants one thing at a time, and asks for it until it is done, refused, or no longer wanted."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self._wanted: Input | None = None
        self._until_us = 0
        self._origin: tuple[int, int] | None = None
        clients.after(SECOND, self._next)

    @property
    def settled(self) -> bool:
        return self._wanted is None

    def _next(self) -> None:
        clients = self.clients
        if clients.closing or not clients.world.faults.on:
            return
        self._wanted = self._request()
        if self._wanted is None:
            self._later()
        else:
            self._until_us = clients.world.now_us + _PATIENCE_US
            self._ask()

    def _later(self) -> None:
        self._wanted = None
        self.clients.after(1 + int(self.clients.rng.expovariate(1 / SECOND)), self._next)

    def _ask(self) -> None:
        clients = self.clients
        if self._wanted is None:
            return
        if clients.world.now_us >= self._until_us or clients.closing:
            return self._later()
        self._origin = self.origin()
        request = self._wanted._replace(origin=self._origin)  # type: ignore[call-arg]
        if isinstance(request, ChangeMember) and request.step is MemberStep.REMOVE:
            # It may be taken that late, and give up later still.
            clients.world.disks.removing_until_us = clients.world.now_us + 15 * SECOND
        clients.send(self.server, request)
        clients.after(2 * clients.load.retry_us, self._again, self._origin)

    def _again(self, origin: tuple[int, int]) -> None:
        if origin == self._origin:
            self._ask()

    def heard(self, server: int, reply: Reply) -> None:
        if reply.origin != self._origin or self._wanted is None:
            return
        if isinstance(reply, Refused) and reply.code in (Code.NOT_LEADER, Code.LOST_LEADERSHIP):
            self.follow(reply)
        else:
            self._origin = None
            self._later()

    # -- what they want ---------------------------------------------------------------------------------

    def _request(self) -> Input | None:
        rng, world = self.clients.rng, self.clients.world
        latest = world.lists.latest
        if latest is None:
            return None
        listed = [member.id for member in latest.replicas]
        others = [id for id in world.stage.hosts if id not in listed]
        chance = rng.random()
        if chance < 0.4 and others:
            return self._add(rng.choice(others))
        if chance < 0.6:
            return ChangeMember(None, MemberStep.REMOVE, rng.choice(listed), "", 0)
        if chance < 0.75:
            return self._replace(rng.choice(listed))
        return Transfer(None, rng.choice(list(world.stage.hosts)))

    def _add(self, id: int) -> Input | None:
        """A host with an empty disk; one that was a member before is wiped first."""
        world, host = self.clients.world, self.clients.world.stage.hosts[id]
        if host.store.boot().start.status is StartStatus.STARTED and self.clients.rng.random() < 0.9:
            if id not in world.disks.that_may_go():
                return None
            world.wipe(id)
        if not host.joining:
            world.stage.join(id)
            world.crash(id)
        world.boot(id)
        return ChangeMember(None, MemberStep.ADD, id, host.address, self.clients.rng.randrange(3))

    def _replace(self, id: int) -> Input | None:
        """Another host under the same id."""
        world, host = self.clients.world, self.clients.world.stage.hosts[id]
        if id not in world.disks.that_may_go():
            return None
        world.wipe(id)
        world.stage.move(id)
        world.boot(id)
        return ChangeMember(None, MemberStep.REPLACE, id, host.address, 0)
