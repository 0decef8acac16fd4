"""Random faults: kind, time, server and duration; and faults at critical moments (`Aimed`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from alpo.core.messages import Room
from alpo.core.ready import Input, PeerGone, Ready, Stop

from .cluster import Cluster
from .host import Host
from .options import MS, SECOND
from .stage import Watcher


class Faults:
    """Source of random faults while ``on``; each fault ends by itself. ``counts``: kind -> number of faults so far."""

    def __init__(self, cluster: Cluster) -> None:
        self._c = cluster
        self.on = False
        self._cuts = 0  # network faults so far: a heal ends only the latest
        self._wipes_left = cluster.options.wipes
        self.counts: dict[str, int] = {}
        #: All faults so far, for drawings: (microseconds, kind, server or 0).
        self.log: list[tuple[int, str, int]] = []

    def begin(self) -> None:
        self.on = True
        self._next()

    def end(self) -> None:
        """Stop drawing faults; the world ends those under way."""
        self.on = False
        self._cuts += 1
        self._c.slow.heal()

    def _next(self) -> None:
        every_us = self._c.options.fault_every_us
        if every_us and self.on:
            self._c.after(1 + int(self._c.rng.expovariate(1 / every_us)), self._happen)

    def _happen(self) -> None:
        if not self.on:
            return
        rng = self._c.rng
        if self._wipes_left and rng.random() < 0.05:
            self.wipe_one_more()
        else:
            name = rng.choice(self._c.options.faults)
            id = rng.choice(self._c.disks.in_use())
            self._note(name, id)
            _FAULTS[name](self, id)
        self._next()

    def _note(self, name: str, id: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        self.log.append((self._c.now_us, name, id))

    # -- processes --------------------------------------------------------------------------------------

    def crash(self, id: int) -> None:
        self._c.crash(id)
        self._c.after(self._c.span_us(), self._c.boot, id)

    def crash_all(self, id: int) -> None:
        for each in self._c.disks.in_use():
            self.crash(each)

    def restart(self, id: int) -> None:
        """Crash a server and boot it again within 0.3 s, as a supervisor does."""
        self._note("restart", id)
        self._c.crash(id)
        self._c.after(self._c.span_us(MS, 300 * MS), self._c.boot, id)

    def wipe_one_more(self) -> None:
        """Lose a disk, if this world's number of disks to lose is not used up."""
        if self._wipes_left:
            self._wipes_left -= 1
            self._wipe()

    def _wipe(self) -> None:
        """Lose a server's disk, or put the one before it back, if a majority is left all the same."""
        fit = self._c.disks.that_may_go()
        if not fit:
            return
        id = self._c.rng.choice(fit)
        if self._c.stage.hosts[id].laid_aside is not None and self._c.rng.random() < 0.3:
            self._note("put back", id)
            self._c.crash(id)
            self._c.stage.put_back(id)
        else:
            self._note("wipe", id)
            self._c.wipe(id)
        self._c.after(self._c.span_us(), self._c.boot, id)

    def pause(self, id: int) -> None:
        if self._c.up(id):
            self._c.paused_until[id] = self._c.now_us + self._c.span_us()
            self._c.poke(self._c.stage.hosts[id])

    def slices(self, id: int) -> None:
        """Let a server run in slices only, as a starved one does: it stands still for half to nine tenths of the
        time."""
        period_us = self._c.span_us(20 * MS, 400 * MS)
        until_us = self._c.now_us + self._c.span_us(500 * MS, 8 * SECOND)
        self._slice(id, until_us, period_us, self._c.rng.uniform(0.5, 0.9))

    def _slice(self, id: int, until_us: int, period_us: int, share: float) -> None:
        now_us = self._c.now_us
        if self.on and now_us < until_us:
            if self._c.up(id):
                self._c.paused_until[id] = max(self._c.paused_until[id], now_us + int(share * period_us))
                self._c.poke(self._c.stage.hosts[id])
            self._c.after(period_us, self._slice, id, until_us, period_us, share)

    def stop(self, id: int) -> None:
        if self._c.up(id):
            self._c.ask(id, Stop())

    def move(self, id: int) -> None:
        """Crash a server and boot it later under another address."""
        self._c.crash(id)
        self._c.stage.move(id)
        self._c.after(self._c.span_us(), self._c.boot, id)

    # -- disks and clocks -------------------------------------------------------------------------------

    def stall(self, id: int) -> None:
        self._c.stalled_until[id] = self._c.now_us + self._c.span_us()

    def hang(self, id: int) -> None:
        """Let the leader's disk stand still, or half of all disks, or all."""
        leader, span_us = self._c.leader(), self._c.span_us(100 * MS, 5 * SECOND)
        ids = self._c.disks.in_use()
        share = self._c.rng.choice((0.0, 0.5, 1.0))
        hung = [each for each in ids if self._c.rng.random() < share] or [leader.me.id if leader is not None else id]
        for each in hung:
            self._c.stalled_until[each] = self._c.now_us + span_us

    def full(self, id: int) -> None:
        """Let a disk be low on space, or full, or so full that writes wait for space."""
        span_us = self._c.span_us(500 * MS, 10 * SECOND)
        depth = self._c.rng.randrange(3)
        self._c.fill(id, Room.NONE if depth else Room.LOW)
        if depth == 2:
            self._c.stalled_until[id] = self._c.now_us + span_us
        self._c.after(span_us, self._c.fill, id, Room.PLENTY)

    def damage(self, id: int) -> None:
        """Damage one to three entries on a server's disk, and tell the server, as its scrub would."""
        host = self._c.stage.hosts[id]
        if host.replica is None or host.damaged or host.disk_last_id <= host.replica.log.base_id:
            return
        if id not in self._c.disks.that_may_go():  # no server would be left to send copies
            return
        first_id, last_id = host.replica.log.base_id + 1, host.disk_last_id
        if self._c.rng.random() < 0.5:
            first_id = max(first_id, last_id - 5)
        ids = {self._c.rng.randint(first_id, last_id) for _ in range(self._c.rng.randint(1, 3))}
        self._c.damage(id, tuple(sorted(ids)))

    def jump(self, id: int) -> None:
        host = self._c.stage.hosts[id]
        self._c.set_clock(id, host.rate, self._c.rng.choice((-1, 1)) * self._c.span_us(MS, 600 * SECOND) // 1000)

    def drift(self, id: int) -> None:
        most = self._c.options.drift
        self._c.set_clock(id, 1 + self._c.rng.uniform(-most, most), 0)

    # -- the network ------------------------------------------------------------------------------------

    def _cut(self, topology: str) -> None:
        self._cuts += 1
        self._c.set_cuts(self._c.links.topology(topology))
        notice = self._c.rng.random() < 0.5
        if notice:  # else connections are half-open until the heal
            for a in self._c.links.ids:
                for b in self._c.links.ids:
                    if a < b and not self._c.links.connected(a, b):
                        self._c.connections.disconnect(a, b)
        self._c.after(self._c.span_us(200 * MS, 8 * SECOND), self._heal, self._cuts)

    def _heal(self, number: int) -> None:
        if number == self._cuts:
            self._c.set_cuts([])

    def isolate(self, id: int) -> None:
        """Cut one server off for at most half a second."""
        self._note("isolate", id)
        self._cuts += 1
        self._c.set_cuts([(a, b) for a in self._c.links.ids for b in self._c.links.ids if a != b and id in (a, b)])
        self._c.after(self._c.span_us(5 * MS, 500 * MS), self._heal, self._cuts)

    def one_way(self, id: int) -> None:
        self._cut(self._c.rng.choice(("mute", "deaf")))

    def reset(self, id: int) -> None:
        """Break a random connection of a server, and dial it again at once."""
        other = self._c.rng.choice(self._c.links.ids)
        if other != id and self._c.links.connected(id, other):
            self._c.connections.disconnect(id, other)
            self._c.connections.connect(id, other)

    def slow(self, id: int) -> None:
        """Let a server's links, one, or all, in one direction or both, carry so few bytes a second that messages take
        many election timeouts."""
        rng = self._c.rng
        bytes_per_s = rng.choice((300, 3_000, 30_000))
        ends = [(id, other) for other in self._c.links.ids if other != id]
        pairs = [pair for pair in (*ends, *((b, a) for a, b in ends)) if rng.random() < 0.6]
        self._set_slow(pairs, bytes_per_s)
        self._c.after(self._c.span_us(500 * MS, 20 * SECOND), self._set_slow, pairs, 0)

    def _set_slow(self, pairs: list[tuple[int, int]], bytes_per_s: int) -> None:
        for pair in pairs:
            self._c.slow.slow(*pair, bytes_per_s)

    def lossy(self, id: int) -> None:
        """Let a server's links lose a tenth to six tenths of the messages for a while."""
        loss = self._c.rng.uniform(0.1, 0.6)
        self._c.links.lossy[id] = loss
        self._c.after(self._c.span_us(500 * MS, 8 * SECOND), self._c.links.heal_lossy, id, loss)

    def refuse(self, id: int) -> None:
        """Let servers be refused in the name of one that lives, as by a proxy in between (R33)."""
        host = self._c.stage.hosts[id]
        if host.replica is not None:
            who = host.replica.me
            for other in self._c.links.ids:
                if other != id and self._c.up(other) and self._c.rng.random() < 0.5:
                    self._c.ask(other, PeerGone(who))


_FAULTS: dict[str, Callable[[Faults, int], None]] = {
    "cut": lambda f, id: f._cut("halves"),
    "star": lambda f, id: f._cut("star"),
    "chain": lambda f, id: f._cut("chain"),
    "bridge": lambda f, id: f._cut("bridge"),
    "isolate": lambda f, id: f._cut("isolate"),
} | {
    each.__name__: each for each in (
        Faults.crash, Faults.crash_all, Faults.pause, Faults.one_way, Faults.stall, Faults.hang, Faults.full,
        Faults.damage, Faults.jump, Faults.drift, Faults.stop, Faults.reset, Faults.move, Faults.refuse, Faults.slices,
        Faults.slow, Faults.lossy,
    )
}


#: Event that a server reports -> the probability that a fault follows.
_CHANCE = {
    "base_sent": 0.5, "base_installed": 0.4, "member_change": 0.5, "lost_disk": 0.4, "handing_over": 0.4,
    "leader": 0.1, "candidate": 0.05,
}


class Aimed(Watcher):
    """Watcher that lets faults follow on events; each fault ends by itself."""

    def __init__(self, cluster: Cluster, faults: Faults) -> None:
        self._cluster, self._faults = cluster, faults
        self._bases = 0  # number of transfers begun so far

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        cluster = self._cluster
        for event in ready.events:
            self._bases += event.name == "base_sent"
            chance = _CHANCE.get(event.name)
            if chance is not None and self._faults.on and cluster.rng.random() < chance:
                within_us = cluster.rng.choice((MS, 5 * MS, 30 * MS))
                cluster.after(cluster.rng.randrange(within_us), self._happen, host.id)

    def _happen(self, id: int) -> None:
        """Let a fault happen: to the server that reported the event, or to any other."""
        cluster, faults = self._cluster, self._faults
        if not faults.on:
            return
        if cluster.rng.random() < 0.4:
            id = cluster.rng.choice(cluster.disks.in_use())
        chance = cluster.rng.random()
        if chance < 0.5:
            faults.restart(id)
        elif chance < 0.7:
            faults.isolate(id)
        elif chance < 0.85:
            faults.reset(id)
        else:
            faults.wipe_one_more()

    def restart_in_transfer(self) -> None:
        """Lose one more disk once all else is whole, and restart its server while its base is on the way."""
        cluster = self._cluster
        fit = cluster.disks.that_may_go()
        if not fit:
            return
        id, bases = cluster.rng.choice(fit), self._bases
        cluster.wipe(id)
        cluster.boot(id)
        patience_us = 30 * cluster.options.election_timeout_us
        if cluster.run_until(cluster.now_us + patience_us, lambda: self._bases > bases):
            cluster.run_until(cluster.now_us + cluster.rng.randrange(20 * MS))
            cluster.crash(id)
            cluster.boot(id)
