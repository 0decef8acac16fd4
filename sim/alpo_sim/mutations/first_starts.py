"""Worlds of first starts (R29): disks are lost, and answers late, before anybody has started."""

from __future__ import annotations

from alpo.core.disk import StartState
from alpo.core.members import StartStatus
from alpo.core.messages import Envelope, StartAnswer

from ..host import Host
from ..options import MS, SECOND, Options
from ..world import World


class Birth(World):
    """World in which servers lose `Options.wipes` disks in all, until the first server has started.

    No progress is demanded in the end: the first member list may name a disk that is lost by then.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._lost = 0

    def run(self) -> None:
        for id in self.links.ids:
            self.boot(id)
        self._lose()
        self.run_until(self.options.seconds * SECOND, self._born)

    def _born(self) -> bool:
        replicas = self.replicas()
        return len(replicas) == len(self.links.ids) and all(r.first_start.started for r in replicas)

    def _lose(self) -> None:
        ids = self.links.ids
        started = [h for h in self.stage.hosts.values() if h.store.boot().start.status is StartStatus.STARTED]
        if started or self._lost >= self.options.wipes:
            return
        self._lost += 1
        id = self.rng.choice(ids)
        self.wipe(id)
        self.after(self.rng.randrange(10 * MS), self.boot, id)
        self.after(self.rng.randrange(80 * MS), self._lose)


class OldAnswers(World):
    """World in which answers to a server's first map of incarnations come after the server has made a second one (N4).

    The answers are held back; another server's disk is lost, and a third server starts by a map with the new disk. Then
    the first server hears the old answers, again and again.
    """

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._old, self._lost, self._third = self.rng.sample(self.links.ids, 3)
        self._held: list[Envelope] = []
        self._passes = self._none

    def run(self) -> None:
        for id in self.links.ids:
            self.boot(id)
        self.run_until(2 * SECOND, lambda: self._starting(self._third) and self._starting(self._lost))
        self._passes = self._until_first_map
        self.run_until(3 * SECOND, lambda: len(self._held) >= 8)
        self.wipe(self._lost)
        self._passes = self._until_second_map
        self.boot(self._lost)
        self.run_until(8 * SECOND, lambda: self._state(self._third).status is StartStatus.STARTED)
        for envelope in self._held * 5:
            self.after(self.rng.randrange(500 * MS), self._late, envelope)
        self.run_until(self.now_us + 500 * MS)
        self._passes = self._all
        self.run_until(self.now_us + SECOND)

    def _late(self, envelope: Envelope) -> None:
        self.stage.deliver(envelope, True)
        self.poke(self.stage.hosts[self._old])

    def _state(self, id: int) -> StartState:
        return self.stage.hosts[id].store.boot().start

    def _starting(self, id: int) -> bool:
        return self._state(id).status is StartStatus.STARTING

    def _on_send(self, host: Host, envelope: Envelope) -> None:
        if type(envelope.message) is not StartAnswer or self._passes(envelope, envelope.target.id == self._old):
            super()._on_send(host, envelope)

    # -- which start answers pass; each is `self._passes` for a while ------------------------------------

    def _none(self, envelope: Envelope, to_old: bool) -> bool:
        return not to_old

    def _until_first_map(self, envelope: Envelope, to_old: bool) -> bool:
        if to_old and self._starting(self._old):
            self._held.append(envelope)
            return False
        return to_old or envelope.sender.id != self._old or not self._starting(self._old)

    def _until_second_map(self, envelope: Envelope, to_old: bool) -> bool:
        new, known = self.stage.hosts[self._lost].store.boot().me, self._state(self._old).incarnations
        if new in known:
            self._passes = self._none
        return new not in known if to_old else envelope.sender.id != self._old or new in known

    def _all(self, envelope: Envelope, to_old: bool) -> bool:
        return True
