"""What goes wrong, when, for how long."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from alpo.core.inputs import Stop
from alpo.core.messages import Room

from .options import MS, SECOND

if TYPE_CHECKING:
    from .world import World


class Faults:
    """Draws a fault every now and then; each ends by itself."""

    def __init__(self, world: World) -> None:
        self._w = world
        self.on = False
        self._cuts = 0  # network faults so far: an older one does not end a newer one
        self._wipes_left = world.options.wipes
        self.counts: dict[str, int] = {}
        #: What happened, for whoever draws it: (time, name, server or 0).
        self.log: list[tuple[int, str, int]] = []

    def begin(self) -> None:
        self.on = True
        self._next()

    def end(self) -> None:
        """No new ones; the world heals what stands."""
        self.on = False
        self._cuts += 1

    def _next(self) -> None:
        every_us = self._w.options.fault_every_us
        if every_us and self.on:
            self._w.after(1 + int(self._w.rng.expovariate(1 / every_us)), self._happen)

    def _happen(self) -> None:
        if not self.on:
            return
        rng = self._w.rng
        if self._wipes_left and rng.random() < 0.05:
            self.wipe_one_more()
        else:
            name = rng.choice(self._w.options.faults)
            id = rng.choice(self._w.disks.in_use())
            self._note(name, id)
            _FAULTS[name](self, id)
        self._next()

    def _note(self, name: str, id: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        self.log.append((self._w.now_us, name, id))

    def _span_us(self, low_us: int = 50 * MS, high_us: int = 5 * SECOND) -> int:
        """Short ones are as likely as long ones of ten times the length."""
        return int(low_us * (high_us / low_us) ** self._w.rng.random())

    # -- processes --------------------------------------------------------------------------------------

    def crash(self, id: int) -> None:
        self._w.crash(id)
        self._w.after(self._span_us(), self._w.boot, id)

    def crash_all(self, id: int) -> None:
        for each in self._w.disks.in_use():
            self.crash(each)

    def restart(self, id: int) -> None:
        """As an operator or a supervisor does it: it is soon there again."""
        self._note("restart", id)
        self._w.crash(id)
        self._w.after(self._span_us(MS, 300 * MS), self._w.boot, id)

    def wipe_one_more(self) -> None:
        """If this world has any left."""
        if self._wipes_left:
            self._wipes_left -= 1
            self._wipe()

    def _wipe(self) -> None:
        """A lost disk, or one of before put back: never so many at a time that no majority is left."""
        fit = self._w.disks.that_may_go()
        if not fit:
            return
        id = self._w.rng.choice(fit)
        if self._w.stage.hosts[id].laid_aside is not None and self._w.rng.random() < 0.3:
            self._note("put back", id)
            self._w.crash(id)
            self._w.stage.put_back(id)
        else:
            self._note("wipe", id)
            self._w.wipe(id)
        self._w.after(self._span_us(), self._w.boot, id)

    def pause(self, id: int) -> None:
        if self._w.up(id):
            self._w.paused_until[id] = self._w.now_us + self._span_us()
            self._w.poke(self._w.stage.hosts[id])

    def stop(self, id: int) -> None:
        if self._w.up(id):
            self._w.ask(id, Stop())

    def stopped(self, id: int, boots: int) -> None:
        """The core says that it may leave: what it has written is on disk, then it is gone."""
        host = self._w.stage.hosts[id]
        if host.boots == boots and host.replica is not None:
            self._w.stage.crash(id, len(host.writes))
            self._w.after(self._span_us(), self._w.boot, id)

    def move(self, id: int) -> None:
        """The host comes back elsewhere."""
        self._w.crash(id)
        self._w.stage.move(id)
        self._w.after(self._span_us(), self._w.boot, id)

    # -- disks and clocks -------------------------------------------------------------------------------

    def stall(self, id: int) -> None:
        self._w.stalled_until[id] = self._w.now_us + self._span_us()

    def full(self, id: int) -> None:
        """A disk fills up, more or less; at worst the write under way is tried again until space comes back."""
        span_us = self._span_us(500 * MS, 10 * SECOND)
        depth = self._w.rng.randrange(3)
        self._w.fill(id, Room.NONE if depth else Room.LOW)
        if depth == 2:
            self._w.stalled_until[id] = self._w.now_us + span_us
        self._w.after(span_us, self._w.fill, id, Room.PLENTY)

    def damage(self, id: int) -> None:
        """The scrub finds that entries on the disk are not what was written."""
        host = self._w.stage.hosts[id]
        if host.replica is None or host.damaged or host.disk_last_id <= host.replica.log.base_id:
            return
        if id not in self._w.disks.that_may_go():  # there would be nobody to have them back from
            return
        first_id, last_id = host.replica.log.base_id + 1, host.disk_last_id
        if self._w.rng.random() < 0.5:
            first_id = max(first_id, last_id - 5)
        ids = {self._w.rng.randint(first_id, last_id) for _ in range(self._w.rng.randint(1, 3))}
        self._w.damage(id, tuple(sorted(ids)))

    def jump(self, id: int) -> None:
        host = self._w.stage.hosts[id]
        self._w.set_clock(id, host.rate, self._w.rng.choice((-1, 1)) * self._span_us(MS, 600 * SECOND) // 1000)

    def drift(self, id: int) -> None:
        most = self._w.options.drift
        self._w.set_clock(id, 1 + self._w.rng.uniform(-most, most), 0)

    # -- the network ------------------------------------------------------------------------------------

    def _cut(self, topology: str) -> None:
        self._cuts += 1
        self._w.set_cuts(self._w.links.topology(topology))
        notice = self._w.rng.random() < 0.5
        if notice:  # else it is half-open until the heal
            for a in self._w.links.ids:
                for b in self._w.links.ids:
                    if a < b and not self._w.links.connected(a, b):
                        self._w.connections.disconnect(a, b)
        self._w.after(self._span_us(200 * MS, 8 * SECOND), self._heal, self._cuts)

    def _heal(self, number: int) -> None:
        if number == self._cuts:
            self._w.set_cuts([])

    def isolate(self, id: int) -> None:
        """One server is cut off for a moment."""
        self._note("isolate", id)
        self._cuts += 1
        self._w.set_cuts([(a, b) for a in self._w.links.ids for b in self._w.links.ids if a != b and id in (a, b)])
        self._w.after(self._span_us(5 * MS, 500 * MS), self._heal, self._cuts)

    def one_way(self, id: int) -> None:
        self._cut(self._w.rng.choice(("mute", "deaf")))

    def reset(self, id: int) -> None:
        """A connection breaks and comes back."""
        other = self._w.rng.choice(self._w.links.ids)
        if other != id and self._w.links.connected(id, other):
            self._w.connections.disconnect(id, other)
            self._w.connections.connect(id, other)


_FAULTS: dict[str, Callable[[Faults, int], None]] = {
    "crash": Faults.crash,
    "crash_all": Faults.crash_all,
    "pause": Faults.pause,
    "cut": lambda f, id: f._cut("halves"),
    "one_way": Faults.one_way,
    "star": lambda f, id: f._cut("star"),
    "chain": lambda f, id: f._cut("chain"),
    "bridge": lambda f, id: f._cut("bridge"),
    "isolate": lambda f, id: f._cut("isolate"),
    "stall": Faults.stall,
    "full": Faults.full,
    "damage": Faults.damage,
    "jump": Faults.jump,
    "drift": Faults.drift,
    "stop": Faults.stop,
    "reset": Faults.reset,
    "move": Faults.move,
}
