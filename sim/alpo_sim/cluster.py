"""The servers of a world on virtual time: when each server steps, and what its disk, clocks and links do.

Laws:

* Everything is drawn from one `random.Random`; events of one microsecond happen in the order of their scheduling.
* Inputs that arrive while a server is busy or paused are taken all at once afterwards, as by a real process.
* The disk takes one group of writes at a time; a crash leaves the group under way on the disk as a whole, or not at
  all.

`Disks` chooses the disks that may be lost or damaged: a majority must be left, by every member list that may be in
force (R30, R31).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from typing import Any

from alpo.core.entries import DamagedEntry, verify_headers
from alpo.core.members import Identity, MemberList, StartStatus
from alpo.core.messages import AppendAnswer, AppendRequest, Envelope, Room
from alpo.core.ranks import State
from alpo.core.ready import Clean, DamageFound, Input, Space
from alpo.core.replica import Replica
from alpo.core.requests import Initialise, Reply

from .checks import Broken
from .checks.all import Checks
from .checks.members import MemberChecks
from .checks.safety import Safety
from .host import NEVER_US, Host
from .network import Connections, Links, SlowLinks
from .options import MS, SECOND, Options
from .stage import Stage, Timers


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


_OFTEN = (AppendRequest, AppendAnswer)


class Cluster:
    """The servers that ``options`` name; `run_until` lets time pass. ``record``: keep every action in `Stage.record`.

    ``paused_until``, ``stalled_until``: server -> virtual time, in microseconds, until which its process, or its disk,
    stands still. ``room``: server -> what its disk has room for. ``initialised``: a cluster has been, or is being,
    founded.
    """

    def __init__(self, options: Options, *, record: bool = False) -> None:
        o = self.options = options
        self.rng = random.Random(f"world {o.seed}")
        t_s = o.election_timeout_us / SECOND
        stagger_s = max(t_s / 20, 0.01) if o.stagger_us is None else o.stagger_us / SECOND
        self.stage = Stage(
            o.servers, o.seed, timers=Timers(t_s, stagger_s=stagger_s), settings=o.settings,
            auto_init=o.auto_init, priorities=o.priorities, limits=dict(o.limits), spares=o.spares,
        )
        if record:
            self.stage.record = []
        checks = self.checks = Checks(self.stage)
        self.history, self.safety, self.tables, self.lists = checks.history, checks.safety, checks.tables, checks.lists
        self.stage.on_send, self.stage.on_reply, self.stage.on_ready = self._on_send, self._on_reply, self._on_ready
        self.links = Links(o.network, self.rng, list(self.stage.hosts))
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        ids = list(self.stage.hosts)
        self._busy_until = dict.fromkeys(ids, 0)
        self._step_at = dict.fromkeys(ids, NEVER_US)  # the time of the next step that is scheduled
        self._tick_at = dict.fromkeys(ids, NEVER_US)
        self.paused_until = dict.fromkeys(ids, 0)
        self.stalled_until = dict.fromkeys(ids, 0)
        self.room = dict.fromkeys(ids, Room.PLENTY)
        self._committing = dict.fromkeys(ids, 0)  # writes in the group under way
        self._group = dict.fromkeys(ids, 0)  # number of the group under way: no group is finished twice
        self._may_stop = dict.fromkeys(ids, False)
        self.linger_us = 0  # the time that a process which may stop takes to end
        self.connections = Connections(self.stage, self.links, self.rng, self.after, self.poke, o.refusals)
        self.slow = SlowLinks(
            self.stage, self.links, self.connections, self.after, self._runs, self._arrive_whole, self.ask
        )
        self.disks = Disks(self.stage, self.safety, self.lists)
        self.initialised, self._founded = o.auto_init, False
        self._kept = False  # True: messages that are being sent may arrive again
        for host in self.stage.hosts.values():
            self.stage.set_clock(host.id, 1 + self.rng.uniform(-o.drift, o.drift), self.rng.randrange(-2000, 2000))
            if host.id <= o.servers:
                self.after(self.rng.randrange(SECOND), self.boot, host.id)
            if o.clean_every_us:
                self.after(self.rng.randrange(o.clean_every_us), self.clean, host.id)
        if o.misconfigured and o.servers > 1:
            self._misconfigure(self.rng.choice(self.stage.configured).id)

    # -- time -------------------------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        return self.stage.now_us

    def after(self, delay_us: int, call: Callable[..., None], *args: Any) -> None:
        """Schedule ``call(*args)`` for ``delay_us`` from now; calls for equal times are made in order of scheduling."""
        self.at(self.stage.now_us + delay_us, call, *args)

    def at(self, when_us: int, call: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when_us, self._count, call, args))

    def scheduled(self) -> list[tuple[Any, ...]]:
        """The arguments of all calls that are still to be made, in no order."""
        return [args for _, _, _, args in self._heap]

    def run_until(self, until_us: int, condition: Callable[[], bool] = lambda: False) -> bool:
        """Process events up to time ``until_us``, or until ``condition()`` is true. Returns whether it is true then."""
        heap, stage = self._heap, self.stage
        while heap and heap[0][0] <= until_us:
            when_us, _, call, args = heapq.heappop(heap)
            stage.now_us = when_us
            call(*args)
            if condition():
                return True
        stage.now_us = max(stage.now_us, until_us)
        return condition()

    def span_us(self, low_us: int = 50 * MS, high_us: int = 5 * SECOND) -> int:
        """A random duration, its logarithm uniform: durations around 1 s are as likely as around 0.1 s."""
        return int(low_us * (high_us / low_us) ** self.rng.random())

    # -- processes --------------------------------------------------------------------------------------

    def up(self, id: int) -> bool:
        return self.stage.hosts[id].replica is not None

    def boot(self, id: int) -> None:
        """Start a server's process, if it is down, and connect it to all servers that it reaches."""
        if self.up(id):
            return
        self._busy_until[id] = self._committing[id] = 0
        self._step_at[id] = self._tick_at[id] = NEVER_US
        self._may_stop[id] = False
        self.connections.booted(id)
        self.stage.boot(id)
        if self.room[id] is not Room.PLENTY:
            self.fill(id, self.room[id])
        if self.stage.hosts[id].damaged:
            self.damage(id, self.stage.hosts[id].damaged)
        for other in self.stage.hosts:
            if other != id and self.up(other) and self.links.connected(id, other):
                self.connections.connect(id, other)
        if not self.initialised and self.rng.random() < 0.5:
            self.initialised = True
            self.after(self.rng.randrange(2 * SECOND), self._initialise, id)

    def _initialise(self, id: int) -> None:
        """Send the operator's command to found the cluster to one server after the other, until one answers."""
        if not self._founded:
            if self.up(id):
                self.ask(id, Initialise("operator"))
            self.after(SECOND, self._initialise, self.rng.choice(self.stage.configured).id)

    def crash(self, id: int) -> None:
        """End a server's process, if it is up. The group of writes under way is on disk then with probability 1/2."""
        if self.up(id):
            self.connections.ends(id)
            self.stage.crash(id, self._committing[id] if self.rng.random() < 0.5 else 0)
            self.paused_until[id] = 0

    def _misconfigure(self, id: int) -> None:
        """Give a server another list of founders than the others, to be put right later (R29)."""
        right = [(c.id, c.priority) for c in self.stage.configured]
        self.stage.configure(id, right[:-1] if self.rng.random() < 0.5 else [*right[:-1], (right[-1][0], 9)])
        self.after(SECOND + self.rng.randrange(3 * SECOND), self._put_right, id)

    def _put_right(self, id: int) -> None:
        self.stage.configure(id, ())
        self.crash(id)
        self.boot(id)

    def clean(self, id: int) -> None:
        """Clean a random part of what a server may clean (R19), as its retention does; schedule the next cleaning."""
        host = self.stage.hosts[id]
        if host.replica is not None and self.options.clean_every_us:
            base_id, most = host.replica.log.base_id, host.replica.cleaning.cleanable_id
            if most > base_id:
                upto_id = self.rng.randint(base_id + 1, most)
                head = host.store.entry_head(upto_id)
                assert head is not None
                self.ask(id, Clean(upto_id, head[0], head[1] + head[2]))
        self.after(1 + int(self.rng.expovariate(1 / self.options.clean_every_us)), self.clean, id)

    def fill(self, id: int, room: Room) -> None:
        """Set how much room a server's disk has, and tell the server."""
        self.room[id] = room
        if self.up(id):
            self.ask(id, Space(room, 0))

    def damage(self, id: int, ids: tuple[int, ...]) -> None:
        """Let exactly the entries ``ids`` on a server's disk be damaged, and tell the server."""
        if self.up(id):
            self.ask(id, DamageFound(ids))
        else:
            self.stage.hosts[id].damaged = ids

    def wipe(self, id: int) -> None:
        """End a server's process, and give it an empty disk."""
        self.crash(id)
        self.stage.wipe(id)

    def replicas(self) -> list[Replica]:
        """The replicas of all servers that are up."""
        return [h.replica for h in self.stage.hosts.values() if h.replica is not None]

    def leader(self) -> Replica | None:
        """The leader of the highest term, if it has guaranteed an entry of that term."""
        top: Replica | None = None
        for host in self.stage.hosts.values():
            replica = host.replica
            if replica is not None and replica.state is State.LEADER and (top is None or replica.term > top.term):
                top = replica
        if top is None or top.leadership is None or top.guaranteed_id < top.leadership.first_id:
            return None
        return top

    # -- messages ---------------------------------------------------------------------------------------

    def _on_send(self, host: Host, envelope: Envelope) -> None:
        target = envelope.target.id
        other = self.stage.hosts.get(target)
        if other is None or not self.connections.carries(envelope):
            return
        seldom = type(envelope.message) not in _OFTEN
        arrivals = self.links.arrivals_us(self.stage.now_us, host.id, target, seldom=seldom)
        if arrivals and self.slow.takes(envelope):
            return
        damage = self.links.damages()
        for copies, at_us in enumerate(reversed(arrivals)):
            resets = self.connections.resets[host.id, target]
            self.at(at_us, self._arrive, envelope, other.boots, resets, copies > 0 or self._kept, damage)

    def _runs(self, id: int) -> bool:
        return self.up(id) and self.paused_until[id] <= self.now_us

    def _arrive_whole(self, envelope: Envelope) -> None:
        """Let a message arrive that was under way on a slow link."""
        self.stage.deliver(envelope, False)
        self.poke(self.stage.hosts[envelope.target.id])

    def _arrive(self, envelope: Envelope, boots: int, resets: int, again: bool, damage: bool) -> None:
        source, target = envelope.sender.id, envelope.target.id
        host = self.stage.hosts[target]
        if host.replica is None or host.boots != boots or (source, target) in self.links.cut:
            return
        if self.options.network.ordered and self.connections.resets[source, target] != resets:
            return
        message = envelope.message
        if damage and isinstance(message, AppendRequest) and message.entries:
            self._check_damage_is_seen(message)
            return
        self.stage.deliver(envelope, again)
        self.poke(host)

    def _check_damage_is_seen(self, message: AppendRequest) -> None:
        """Change one entry of ``message``, as flipped bits would, and check that the codec refuses the entry. The
        message counts as lost. Raises `Broken`."""
        at = self.rng.randrange(len(message.entries))
        entry = message.entries[at]
        damaged = self.rng.choice((
            entry._replace(term=entry.term + 1), entry._replace(lsn=entry.lsn ^ 4), entry._replace(serial=-1),
            entry._replace(client=entry.client + "x"), entry._replace(digest=entry.digest[::-1]),
        ))
        entries = [*message.entries[:at], damaged, *message.entries[at + 1 :]]
        try:
            verify_headers(message.entries)
        except DamagedEntry as error:
            raise Broken("ready", f"a leader sends what no codec takes: {error}") from error
        try:
            verify_headers(entries)
        except DamagedEntry:
            return
        raise Broken("ready", f"entry {entry.id} was damaged on its way, and nobody saw it: {damaged}")

    def ask(self, id: int, request: Input) -> None:
        """Give a server that is up a request, or news of its disk, from outside."""
        self.stage.ask(id, request)
        self.poke(self.stage.hosts[id])

    def _on_reply(self, host: Host, reply: Reply) -> None:
        if reply.origin == "operator":
            self._founded = True  # by this command, or before
        else:
            self.history.replied(reply)

    # -- what a server does with its time ---------------------------------------------------------------

    def poke(self, host: Host) -> None:
        """Let a server take its waiting inputs: at once, or as soon as it is neither busy nor paused."""
        id, now_us = host.id, self.stage.now_us
        free_us = max(self._busy_until[id], self.paused_until[id])
        if free_us <= now_us:
            self._step(id)
        elif self._step_at[id] > free_us or self._step_at[id] <= now_us:
            self._step_at[id] = free_us
            self.at(free_us, self._step_later, id, host.boots)

    def _step_later(self, id: int, boots: int) -> None:
        host = self.stage.hosts[id]
        if host.boots == boots and host.replica is not None and self._step_at[id] == self.stage.now_us:
            self._step_at[id] = NEVER_US
            self.poke(host)

    def _step(self, id: int) -> None:
        if self.stage.step(id):
            self._busy_until[id] = self.stage.now_us + 20 + int(self.rng.random() * 150)

    def _on_ready(self, host: Host, may_stop: bool) -> None:
        id = host.id
        self.connections.stepped(host)
        if host.writes and not self._committing[id]:
            self._commit_next(host)
        for _ in host.loads:
            self.after(100 + int(self.rng.random() * 3000), self._serve, id, host.boots)
        if host.due_us < self._tick_at[id] or self._tick_at[id] <= self.stage.now_us:
            self._schedule_tick(host)
        if may_stop and not self._may_stop[id]:
            self._may_stop[id] = True
            self.after(self.linger_us, self._leave, id, host.boots)

    def _leave(self, id: int, boots: int) -> None:
        """Put the writes of a process that was told to stop on disk, end the process, and schedule its next boot."""
        host = self.stage.hosts[id]
        if host.boots == boots and host.replica is not None:
            self.connections.ends(id)
            self.stage.crash(id, len(host.writes))
            self.after(self.span_us(), self.boot, id)

    def _schedule_tick(self, host: Host) -> None:
        if host.due_us < NEVER_US:
            due_us = max(
                host.due_us, self.stage.now_us + 1, self.paused_until[host.id], self._busy_until[host.id]
            )
            self._tick_at[host.id] = due_us
            self.at(due_us, self._tick, host.id, host.boots)

    def _tick(self, id: int, boots: int) -> None:
        host = self.stage.hosts[id]
        if host.boots != boots or host.replica is None or self._tick_at[id] != self.stage.now_us:
            return
        self._tick_at[id] = NEVER_US
        if host.due_us <= self.stage.now_us:
            self.poke(host)
        if self._tick_at[id] == NEVER_US:
            self._schedule_tick(host)

    def set_clock(self, id: int, rate: float, jump_ms: int) -> None:
        """Let a server's monotonic clock run at ``rate``, and its wall clock jump by ``jump_ms``."""
        host = self.stage.hosts[id]
        self.stage.set_clock(id, rate, jump_ms)
        if host.due_us < self._tick_at[id]:
            self._schedule_tick(host)

    # -- disks ------------------------------------------------------------------------------------------

    def _commit_next(self, host: Host) -> None:
        self._committing[host.id] = len(host.writes)
        self._group[host.id] += 1
        self._finish_commit(host)

    def _finish_commit(self, host: Host) -> None:
        self.after(self._fsync_us(host.id), self._committed, host.id, host.boots, self._group[host.id])

    def _fsync_us(self, id: int) -> int:
        stalled_us = max(0, self.stalled_until[id] - self.stage.now_us)
        low, high = self.options.fsync_us
        return stalled_us + low + int(self.rng.random() ** 3 * (high - low))

    def _committed(self, id: int, boots: int, group: int) -> None:
        host = self.stage.hosts[id]
        if host.boots != boots or host.replica is None or group != self._group[id] or not self._committing[id]:
            return
        if self.paused_until[id] > self.stage.now_us:  # the writer's thread is paused too
            self.at(self.paused_until[id], self._committed, id, boots, group)
            return
        count, self._committing[id] = self._committing[id], 0
        self.stage.persist(id, count)
        if host.writes:
            self._commit_next(host)
        self.poke(host)

    def _serve(self, id: int, boots: int) -> None:
        host = self.stage.hosts[id]
        if host.boots == boots and host.replica is not None and host.loads:
            self.stage.serve(id)
            self.poke(host)

    # -- faults that end -------------------------------------------------------------------------------

    def set_cuts(self, cut: list[tuple[int, int]]) -> None:
        """Cut exactly these links, (source, target); pairs that are whole again reconnect."""
        for a, b in self.links.set_cuts(cut):
            self.connections.resets[a, b] += 1
            self.connections.resets[b, a] += 1
            self.connections.connect(a, b)

    def mend_all(self) -> None:
        """Make all damaged entries sound again, as an operator does when no server that is up can send copies."""
        for host in self.stage.hosts.values():
            if host.damaged:
                self.damage(host.id, ())

    def restart_all(self, but: Sequence[int] = ()) -> None:
        """End pauses, stalls and full disks; boot all servers except ``but``, also those that were told to stop."""
        for id in but:
            self.crash(id)
        for id in [id for id in self.stage.hosts if id not in but and not self.disks.put_away(id)]:
            self.paused_until[id] = min(self.paused_until[id], self.now_us)
            self.stalled_until[id] = 0
            if self.room[id] is not Room.PLENTY:
                self.fill(id, Room.PLENTY)
            if not self.up(id):
                self.boot(id)
            elif self._may_stop[id] or self.stage.hosts[id].replica.stopping:  # type: ignore[union-attr]
                self.crash(id)
                self.boot(id)
            else:
                if self._committing[id]:
                    self._finish_commit(self.stage.hosts[id])  # the stall ends for the group under way, too
                self.poke(self.stage.hosts[id])
