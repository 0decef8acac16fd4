"""A few cores on the simulator's stage, under all of its checks, in a test's hands: virtual time, a network that
delays, loses, doubles and cuts, disks that take their time. What the test leaves open one random source decides."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from session_leader import random_id

from alpo.core.entries import Entry
from alpo.core.messages import Envelope
from alpo.core.parts import check_all
from alpo.core.ranks import State
from alpo.core.ready import Connected, Input, Ready, Received
from alpo.core.replica import Replica
from alpo.core.requests import Appended, AppendRun, Origin, Reply
from alpo_sim.checks.all import Checks
from alpo_sim.host import NEVER_US, Host
from alpo_sim.stage import Stage, Watcher


class Cluster(Stage, Watcher):
    """``size`` servers, all running. ``loss`` and ``duplication`` are probabilities a message."""

    def __init__(
        self, size: int = 3, seed: int = 0, *, loss: float = 0.0, duplication: float = 0.0, auto_init: bool = True,
        **limits: Any,
    ) -> None:
        super().__init__(size, seed, auto_init=auto_init, limits=limits)
        self.rng = random.Random(seed)
        self.loss, self.duplication = loss, duplication
        self.cut: set[tuple[int, int]] = set()  # one-way
        #: Chooses the messages that are caught instead of sent; `arrive` delivers them late.
        self.catches: Callable[[Envelope], bool] = lambda envelope: False
        self.caught: list[Envelope] = []
        #: Chooses the writes (the next ``count`` of a host) that do not become durable until `commit`.
        self.stalls: Callable[[Host, int], bool] = lambda host, count: False
        self.replies: list[Reply] = []
        self.events: list[tuple[float, int, str, dict[str, Any]]] = []
        self.count = 0
        self._queue: list[tuple[int, int, Callable[[], object]]] = []
        self._history = Checks(self).history
        self.watchers.append(self)
        self.on_send, self.on_reply = self._transmit, self._replied
        for id in self.hosts:
            self.boot(id)

    @property
    def now_s(self) -> float:
        return self.hosts[1].mono_s(self.now_us)

    def wall_ms(self) -> int:
        return self.hosts[1].wall_ms(self.now_us)

    # -- results of a step ------------------------------------------------------------------------------

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        assert host.replica is not None
        check_all(host.replica)
        self.events += [(self.now_s, host.id, event.name, event.fields) for event in ready.events]
        if ready.write is not None:
            number = ready.write.number
            self._later_for(host, self.rng.uniform(0.0005, 0.004), lambda: self._written(host, number))
        for _ in (*ready.loads, *ready.snapshots, *ready.copies):
            self._later_for(host, 0.001, lambda: self.serve(host.id))
        if host.due_us < NEVER_US:
            self._later_for(host, max(0.0005, (host.due_us - self.now_us) / 1e6), lambda: None)

    def _later_for(self, host: Host, delay_s: float, action: Callable[[], object]) -> None:
        """``action`` and a step of the process that runs there now, if it still does."""
        process = host.replica

        def act() -> None:
            if process is not None and host.replica is process:
                action()
                if host.replica is process:
                    self.step(host.id)

        self.later(delay_s, act)

    def _written(self, host: Host, number: int) -> None:
        count = sum(write.number <= number for write in host.writes)
        if count and not self.stalls(host, count):
            self.persist(host.id, count)

    def _replied(self, host: Host, reply: Reply) -> None:
        self._history.replied(reply)
        self.replies.append(reply)

    def _transmit(self, host: Host, envelope: Envelope) -> None:
        target = self.hosts.get(envelope.target.id)
        if target is None:
            return
        if self.catches(envelope):
            self.caught.append(envelope)
            return
        for copy in range(1 + (self.rng.random() < self.duplication)):
            if (host.id, target.id) not in self.cut and self.rng.random() >= self.loss:
                deliver = partial(self._deliver, host.id, envelope, copy > 0)
                self._later_for(target, self.rng.uniform(0.0003, 0.003), deliver)

    def _deliver(self, sender: int, envelope: Envelope, again: bool) -> None:
        if (sender, envelope.target.id) not in self.cut:
            self.deliver(envelope, again)

    # -- what a test does -------------------------------------------------------------------------------

    def later(self, delay_s: float, action: Callable[[], object]) -> None:
        self.count += 1
        heapq.heappush(self._queue, (self.now_us + round(delay_s * 1e6), self.count, action))

    def ask(self, id: int, request: Input) -> None:
        self._history.asked(request)
        super().ask(id, request)

    def give(self, id: int, *inputs: Input) -> None:
        """Give all inputs to server ``id`` in one step; do nothing if it is down."""
        if self.hosts[id].replica is not None:
            for item in inputs:
                self.ask(id, item)
            self.step(id)

    def arrive(self, *envelopes: Envelope) -> None:
        """Deliver caught messages now."""
        for envelope in envelopes:
            self.give(envelope.target.id, Received(envelope, self.now_s))

    def commit(self, id: int) -> None:
        """Make all writes of server ``id`` durable."""
        self.persist(id, len(self.hosts[id].writes))
        self.step(id)

    def boot(self, id: int) -> None:
        super().boot(id)
        for other in self.hosts.values():
            if other.replica is not None and other.id != id:
                self.give(id, Connected(other.id))
                self.give(other.id, Connected(id))

    def wipe(self, id: int) -> None:
        """Stop server ``id`` and empty its disk."""
        self.crash(id)
        super().wipe(id)

    def newcomer(self, id: int) -> None:
        """Start a server with an empty disk, which is to be added, or to replace the server of that id."""
        if id in self.hosts:
            self.wipe(id)
        self.hosts.setdefault(id, Host(id, self.seed))
        self.join(id)
        self.boot(id)

    def run(self, seconds: float) -> None:
        end_us = self.now_us + round(seconds * 1e6)
        while self._queue and self._queue[0][0] <= end_us:
            self._next()
        self.now_us = end_us

    def run_until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        end_us = self.now_us + round(seconds * 1e6)
        while not condition():
            assert self._queue and self._queue[0][0] <= end_us, "the condition did not come true in time"
            self._next()

    def _next(self) -> None:
        self.now_us, _, action = heapq.heappop(self._queue)
        action()

    def isolate(self, id: int) -> None:
        self.cut |= {pair for other in self.hosts if other != id for pair in ((id, other), (other, id))}

    def heal(self) -> None:
        self.cut.clear()
        for id in self.hosts:
            self.give(id, *(Connected(other) for other in self.hosts if other != id))

    def elect(self) -> Replica:
        """The leader, once it has guaranteed the first entry of its reign."""

        def elected() -> bool:
            leader = self.leader
            reign = leader.leadership if leader is not None else None
            return leader is not None and reign is not None and leader.guaranteed_id >= reign.first_id

        self.run_until(elected)
        return self.reigning

    def append(self, client: str, serial: int, *payloads: bytes, to: int | None = None, epoch: int = 0) -> str:
        """Send single-payload appends, to the leader unless told; returns the origin to look replies up by."""
        self.count += 1
        origin = f"request-{self.count}"
        self.give(to or self.reigning.me.id, AppendRun(origin, client, epoch, serial, [(1, p) for p in payloads]))
        return origin

    def append_some(self, count: int) -> None:
        """Append ``count`` entries as a new client, and run until they are guaranteed."""
        leader, client = self.elect(), random_id(self.count)
        runs = [AppendRun(f"{client}-{n}", client, 0, n + 1, [(1, b"%d" % n)]) for n in range(count)]
        self.give(leader.me.id, *runs)
        self.run_until(lambda: self.reply_to(runs[-1].origin) is not None)
        assert isinstance(self.reply_to(runs[-1].origin), Appended)

    def append_on(self, every_s: float) -> Callable[[], None]:
        """Append as a new client every ``every_s``, while the present leader leads; return a function that ends it."""
        leader, client, going = self.reigning, random_id(self.count), [True]
        serials = itertools.count(1)

        def more() -> None:
            if going and leader.state is State.LEADER:
                self.append(client, next(serials), b"more", to=leader.me.id)
                self.later(every_s, more)

        more()
        return going.clear

    # -- state for tests --------------------------------------------------------------------------------

    @property
    def leader(self) -> Replica | None:
        """The leader of the highest term, if it still leads."""
        leading = [replica for replica in self.replicas if replica.state is State.LEADER]
        return max(leading, key=lambda replica: replica.term, default=None)

    @property
    def reigning(self) -> Replica:
        assert self.leader is not None, "nobody leads"
        return self.leader

    def replica(self, id: int) -> Replica:
        replica = self.hosts[id].replica
        assert replica is not None, f"server {id} is down"
        return replica

    @property
    def replicas(self) -> list[Replica]:
        return [host.replica for host in self.hosts.values() if host.replica is not None]

    def reply_to(self, origin: Origin) -> Reply | None:
        return next((reply for reply in self.replies if reply.origin == origin), None)

    def log_of(self, id: int) -> list[Entry]:
        return list(self.hosts[id].store.replay(1))


def ask(cluster: Cluster, request: Any) -> Any:
    """The leader's reply to a request."""
    cluster.give(cluster.reigning.me.id, request)
    cluster.run(1.0)
    return cluster.reply_to(request.origin)
