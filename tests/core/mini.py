"""A few replicas in one process on virtual time: a network that delays, loses, duplicates and cuts, disks that
lose what was not fsynced, crashes and restarts. All from one random source. (The real simulator is another matter.)
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from alpo.core.config import ReplicaConfig
from alpo.core.disk import LoadCopy, Write
from alpo.core.entries import Entry
from alpo.core.inputs import (
    AppendRun,
    Connected,
    CopyLoaded,
    DamageFound,
    ImageLoaded,
    Input,
    Loaded,
    Persisted,
    Received,
    Tick,
)
from alpo.core.invariants import check_all
from alpo.core.members import Configured, Identity
from alpo.core.messages import Envelope
from alpo.core.ranks import State
from alpo.core.ready import Appended, Ready, Reply
from alpo.core.replica import Replica
from alpo.core.settings import Settings
from alpo.storage.memory import MemoryStore


class Host:
    """One server: its disk survives, its replica does not."""

    def __init__(self, id: int, incarnation: bytes) -> None:
        self.id = id
        self.store = MemoryStore(id, incarnation=incarnation)
        self.replica: Replica | None = None
        self.epoch = 0  # of the process: what belonged to a dead one is dropped
        self.waiting: list[tuple[int, list[Envelope]]] = []
        self.writes: list[Write] = []
        self.due_s = 0.0
        self.inbox: list[Input] = []  # what can wait for other inputs, as the driver holds it


class Cluster:
    """``size`` hosts. ``loss`` and ``duplication`` are probabilities a message."""

    def __init__(
        self, size: int = 3, seed: int = 0, *, loss: float = 0.0, duplication: float = 0.0,
        settings: Settings | None = None, auto_init: bool = True, priorities: dict[int, int] | None = None,
        table_save_entries: int = 50_000, part_slots_max: int = 1_000,
    ) -> None:
        self.rng = random.Random(seed)
        self.settings = settings or Settings()
        self.auto_init = auto_init
        self.loss, self.duplication = loss, duplication
        self.now_s = 100.0
        self.configured = tuple(
            Configured(i, f"10.0.0.{i}:7100", (priorities or {}).get(i, 0)) for i in range(1, size + 1)
        )
        self.hosts = {c.id: Host(c.id, bytes([c.id]) * 16) for c in self.configured}
        self.joining: set[int] = set()
        self.table_save_entries, self.part_slots_max = table_save_entries, part_slots_max
        #: Damaged entries on a server's disk that others may have sound; None: nobody can have any back.
        self.damaged: dict[int, set[int]] | None = None
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.cut: set[tuple[int, int]] = set()  # one-way
        #: What it is true of is not sent: it may come late, by `arrive`.
        self.catches: Callable[[Envelope], bool] = lambda envelope: False
        self.caught: list[Envelope] = []
        self.replies: list[Reply] = []
        self.guaranteed: dict[int, Entry] = {}  # id -> what some server said was guaranteed
        self.leaders: dict[int, int] = {}  # term -> server
        self.events: list[tuple[float, int, str, dict[str, Any]]] = []
        self.on_reply: Callable[[Reply], None] | None = None
        for host in self.hosts.values():
            self.boot(host.id)

    # -- the world --------------------------------------------------------------------------------------

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.queue, (self.now_s + delay_s, self.count, action))

    def boot(self, id: int) -> None:
        host = self.hosts[id]
        host.epoch += 1
        boot = host.store.boot()
        alone = (Configured(id, f"10.0.0.{id}:7100"),)
        cfg = ReplicaConfig(
            me=boot.me, address=f"10.0.0.{id}:7100", configured=alone if id in self.joining else self.configured,
            settings=self.settings, auto_init=self.auto_init, joining=id in self.joining,
            table_save_entries=self.table_save_entries, part_slots_max=self.part_slots_max,
        )
        host.replica = Replica(cfg, boot, random.Random(self.rng.random()))
        host.replica.replay(host.store.replay(boot.applied_id + 1))
        host.waiting, host.writes, host.inbox = [], [], []
        self.handle(host, host.replica.start(self.now_s, self.wall_ms()))
        for other in self.hosts.values():
            if other.replica is not None and other.id != id:
                self.give(id, Connected(other.id))
                self.give(other.id, Connected(id))

    def crash(self, id: int) -> None:
        host = self.hosts[id]
        host.replica = None
        host.epoch += 1
        host.store = host.store.crash()

    def newcomer(self, id: int) -> None:
        """A server that is no member yet."""
        self.joining.add(id)
        self.hosts[id] = Host(id, self.rng.randbytes(16))
        self.boot(id)

    def wipe(self, id: int) -> None:
        self.crash(id)
        self.hosts[id].store = MemoryStore(id, incarnation=self.rng.randbytes(16))

    def wall_ms(self) -> int:
        return int(self.now_s * 1000) + 1_700_000_000_000

    def give(self, id: int, *inputs: Input) -> None:
        host = self.hosts[id]
        if host.replica is None:
            return
        host.inbox += inputs
        if not all(host.replica.can_wait(item) for item in inputs):
            inbox, host.inbox = host.inbox, []
            self.handle(host, host.replica.step(inbox, self.now_s, self.wall_ms()))

    def handle(self, host: Host, ready: Ready) -> None:
        replica = host.replica
        assert replica is not None
        assert ready.alarm is None, f"server {host.id}: {ready.alarm}"
        check_all(replica)
        self.events.extend((self.now_s, host.id, e.name, e.fields) for e in ready.events)
        if ready.write is not None:
            host.writes.append(ready.write)
            host.waiting.append((ready.write.number, ready.send_after_write))
            epoch, number = host.epoch, ready.write.number
            self.later(self.rng.uniform(0.0005, 0.004), lambda: self.persist(host, epoch, number))
        else:
            assert not ready.send_after_write
        for envelope in ready.send:
            self.transmit(host, envelope)
        for wanted in ready.images:
            image, epoch = host.store.read_image(), host.epoch
            if image is not None:
                read = ImageLoaded(wanted.peer, image)
                self.later(0.001, lambda: self.give(host.id, read) if host.epoch == epoch else None)
        for load in ready.loads:
            entries = host.store.read_entries(load.first_id, replica.log.stable_id, load.bytes_max)
            loaded = Loaded(load.peer, load.first_id, load.generation, entries)
            epoch = host.epoch
            self.later(0.001, lambda: self.give(host.id, loaded) if host.epoch == epoch else None)
        for copy in ready.copies if self.damaged is not None else ():
            self.later(0.001, partial(self.copy, host, host.epoch, copy))
        for reply in ready.replies:
            self.replies.append(reply)
            if self.on_reply is not None:
                self.on_reply(reply)
        self.watch(replica)
        if ready.deadline_s < float("inf"):
            epoch = host.epoch
            host.due_s = ready.deadline_s

            def tick() -> None:
                if host.epoch == epoch and host.due_s == ready.deadline_s:
                    self.give(host.id, Tick())

            self.later(max(0.0005, ready.deadline_s - self.now_s), tick)

    def persist(self, host: Host, epoch: int, number: int) -> None:
        if host.epoch != epoch:
            return
        group = [w for w in host.writes if w.number <= number]
        host.writes = [w for w in host.writes if w.number > number]
        if group:
            host.store.commit(group)
        mended = {entry.id for write in group for entry in write.mended}
        if mended and self.damaged is not None:
            self.damaged[host.id] -= mended
            self.later(0.001, partial(self.give, host.id, DamageFound(tuple(sorted(self.damaged[host.id])))))
        freed = [e for n, envelopes in host.waiting if n <= number for e in envelopes]
        host.waiting = [(n, envelopes) for n, envelopes in host.waiting if n > number]
        for envelope in freed:
            self.transmit(host, envelope)
        self.give(host.id, Persisted(number))

    def copy(self, host: Host, epoch: int, wanted: LoadCopy) -> None:
        assert self.damaged is not None
        if host.epoch == epoch and wanted.id not in self.damaged.get(host.id, ()):
            for entry in host.store.read_entries(wanted.id, wanted.id, 1):
                self.give(host.id, CopyLoaded(wanted.peer, entry))

    def transmit(self, host: Host, envelope: Envelope) -> None:
        target = envelope.target.id
        if target not in self.hosts:
            return
        if self.catches(envelope):
            self.caught.append(envelope)
            return
        for _ in range(1 + (self.rng.random() < self.duplication)):
            if (host.id, target) in self.cut or self.rng.random() < self.loss:
                continue
            epoch = self.hosts[target].epoch

            def deliver() -> None:
                if self.hosts[target].epoch == epoch and (host.id, target) not in self.cut:
                    self.give(target, Received(envelope, self.now_s))

            self.later(self.rng.uniform(0.0003, 0.003), deliver)

    def arrive(self, *envelopes: Envelope) -> None:
        """What was caught, now."""
        for envelope in envelopes:
            self.give(envelope.target.id, Received(envelope, self.now_s))

    def watch(self, replica: Replica) -> None:
        """Safety, as it goes: one leader a term; what was guaranteed once is so for ever and everywhere."""
        if replica.state is State.LEADER:
            assert self.leaders.setdefault(replica.term, replica.me.id) == replica.me.id, "two leaders in a term"
        for id in range(max(1, replica.guaranteed_id - 200), replica.guaranteed_id + 1):
            entry = replica.log.entry(id)
            if entry is not None:
                assert self.guaranteed.setdefault(id, entry) == entry, f"two guaranteed entries at id {id}"

    # -- driving ----------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.queue and self.queue[0][0] <= end_s:
            self.now_s, _, action = heapq.heappop(self.queue)
            action()
        self.now_s = end_s

    def run_until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        end_s = self.now_s + seconds
        while not condition():
            assert self.queue and self.queue[0][0] <= end_s, "the condition did not come true in time"
            self.now_s, _, action = heapq.heappop(self.queue)
            action()

    def isolate(self, id: int) -> None:
        for other in self.hosts:
            if other != id:
                self.cut |= {(id, other), (other, id)}

    def heal(self) -> None:
        self.cut.clear()
        for id in self.hosts:
            for other in self.hosts:
                if id != other:
                    self.give(id, Connected(other))

    @property
    def leader(self) -> Replica | None:
        """The leader of the highest term, if it still leads."""
        leading = [h.replica for h in self.hosts.values() if h.replica is not None and h.replica.state is State.LEADER]
        return max(leading, key=lambda r: r.term, default=None)

    def elect(self) -> Replica:
        self.run_until(lambda: self.leader is not None and self.leader.guaranteed_id >= self.leader.leadership.first_id)
        assert self.leader is not None
        return self.leader

    def append(self, client: str, serial: int, *payloads: bytes, to: int | None = None, epoch: int = 0) -> str:
        """Send single-payload appends; returns the origin to look replies up by."""
        self.count += 1
        origin = f"request-{self.count}"
        target = to if to is not None else self.leader.me.id  # type: ignore[union-attr]
        self.give(target, AppendRun(origin, client, epoch, serial, [(1, p) for p in payloads]))
        return origin

    def append_some(self, count: int) -> None:
        """As a client of its own; until they are guaranteed."""
        leader = self.elect()
        client = f"~{self.count:08d}-0000-7000-8000-000000000000"
        origin = self.append(client, 1, *[b"%d" % n for n in range(count)], to=leader.me.id)
        self.run_until(lambda: self.reply_to(origin) is not None)
        assert isinstance(self.reply_to(origin), Appended)

    def reply_to(self, origin: str) -> Reply | None:
        return next((r for r in self.replies if r.origin == origin), None)

    def log_of(self, id: int) -> list[Entry]:
        return list(self.hosts[id].store.replay(1))


def identity(id: int) -> Identity:
    return Identity(id, bytes([id]) * 16)
