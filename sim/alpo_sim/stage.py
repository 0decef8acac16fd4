"""Cores on a stage: does what it is told, one action at a time, and has everything watched. Nothing here is random.

Laws:

* The same actions in the same order give the same effects, whatever process or hash seed they run under.
* A message leaves a server only by way of the checks; it then waits in no order until somebody delivers it.
* What a crash loses is decided by the action, never here.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from alpo.core.config import ReplicaConfig
from alpo.core.disk import LoadCopy, LoadImage, Write
from alpo.core.inputs import (
    Connected,
    CopyLoaded,
    DamageFound,
    Disconnected,
    ImageLoaded,
    Input,
    Loaded,
    Persisted,
    Received,
    Tick,
)
from alpo.core.members import Configured
from alpo.core.messages import Envelope
from alpo.core.ready import Ready, Reply
from alpo.core.replica import Replica
from alpo.core.settings import Settings

from .actions import (
    Action,
    Ask,
    Boot,
    Clock,
    Configure,
    Crash,
    Deliver,
    Join,
    Link,
    Move,
    Persist,
    PutBack,
    Serve,
    Step,
    Wipe,
)
from .broken import Broken
from .host import Host


class Timers:
    """Equal on all servers; seconds. See `alpo.core.config.ReplicaConfig`."""

    __slots__ = ("election_timeout_s", "heartbeat_s", "mark_delay_s", "stagger_s")

    def __init__(
        self, election_timeout_s: float = 0.5, heartbeat_s: float | None = None, stagger_s: float | None = None,
        mark_delay_s: float = 0.001,
    ) -> None:
        self.election_timeout_s = election_timeout_s
        self.heartbeat_s = election_timeout_s / 5 if heartbeat_s is None else heartbeat_s
        self.stagger_s = election_timeout_s / 20 if stagger_s is None else stagger_s
        self.mark_delay_s = mark_delay_s


class Watcher(Protocol):
    """Sees everything, decides nothing: so does one of these that is not overridden. Any may raise `Broken`."""

    def booted(self, host: Host) -> None:
        return

    def sent(self, host: Host, envelope: Envelope) -> None:
        return

    def committing(self, host: Host, writes: Sequence[Write]) -> None:
        return

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        return


class Stage:
    """``size`` servers that found the cluster and ``spares`` that may be added to it, none of them running yet.

    ``on_send(host, envelope)``, ``on_reply(host, reply)``, ``on_ready(host, may_stop)`` and ``on_crash(host)`` are the
    director's: a world that schedules what comes next, or a replay that keeps what is on its way.
    """

    def __init__(
        self, size: int, seed: int, *, timers: Timers | None = None, settings: Settings | None = None,
        auto_init: bool = True, priorities: Sequence[int] = (), limits: dict[str, Any] | None = None, spares: int = 0,
    ) -> None:
        self.seed = seed
        self.timers = timers or Timers()
        self.settings = settings or Settings()
        self.auto_init = auto_init
        self.limits: dict[str, Any] = limits or {}  # of `ReplicaConfig`, by name
        self.configured = tuple(
            Configured(id, f"10.0.0.{id}:7100", priorities[id - 1] if priorities else 0) for id in range(1, size + 1)
        )
        self.hosts = {id: Host(id, seed, joining=id > size) for id in range(1, size + spares + 1)}
        #: What some were given for a list by mistake; to be mended before their next boot (R29).
        self.misconfigured: dict[int, tuple[Configured, ...]] = {}
        self.now_us = 0
        self.steps = 0
        #: All that was done, if it is to be remembered.
        self.record: list[Action] | None = None
        self.watchers: list[Watcher] = []
        self.on_send: Callable[[Host, Envelope], None] = lambda host, envelope: None
        self.on_reply: Callable[[Host, Reply], None] = lambda host, reply: None
        self.on_ready: Callable[[Host, bool], None] = lambda host, may_stop: None
        self.on_crash: Callable[[Host], None] = lambda host: None

    def _note(self, action: Action) -> None:
        if self.record is not None:
            self.record.append(action)

    # -- processes and disks ----------------------------------------------------------------------------

    def boot(self, id: int) -> None:
        """Start a server that is down."""
        self._note(Boot(self.now_us, id))
        host = self.hosts[id]
        host.boots += 1
        found = host.store.boot()
        host.disk_term, host.disk_vote, host.disk_last_id = found.term, found.vote, found.last_id
        alone = (Configured(id, host.address),)
        cfg = ReplicaConfig(
            me=found.me, address=host.address,
            configured=alone if host.joining else self.misconfigured.get(id, self.configured),
            settings=self.settings, auto_init=self.auto_init, joining=host.joining,
            priority=self.configured[id - 1].priority if id <= len(self.configured) else 0,
            heartbeat_s=self.timers.heartbeat_s, election_timeout_s=self.timers.election_timeout_s,
            stagger_s=self.timers.stagger_s, mark_delay_s=self.timers.mark_delay_s, **self.limits,
        )
        replica = Replica(cfg, found, random.Random(f"{self.seed}/{id}/{host.boots}"))
        replica.replay(host.store.replay(found.applied_id + 1))
        host.replica = replica
        for watcher in self.watchers:
            watcher.booted(host)
        self._act(host, [], self._of(host, replica.start))

    def crash(self, id: int, kept: int = 0) -> None:
        """End a server's process; ``kept`` of its unconfirmed writes reached the disk before."""
        self._note(Crash(self.now_us, id, kept))
        host = self.hosts[id]
        if kept:
            self._commit(host, kept)
        host.down()
        host.store = host.store.crash()
        self.on_crash(host)

    def wipe(self, id: int) -> None:
        """An empty disk for a server that is down."""
        self._note(Wipe(self.now_us, id))
        self.hosts[id].new_disk()

    def put_back(self, id: int) -> None:
        """The disk of before the last `wipe` for a server that is down."""
        self._note(PutBack(self.now_us, id))
        self.hosts[id].old_disk()

    def join(self, id: int) -> None:
        """From its next boot on it waits to be added."""
        self._note(Join(self.now_us, id))
        self.hosts[id].joining = True

    def move(self, id: int) -> None:
        """Another address from its next boot on."""
        self._note(Move(self.now_us, id))
        self.hosts[id].moves += 1

    def configure(self, id: int, members: Sequence[tuple[int, int]]) -> None:
        """A wrong list of (id, priority) for its next boots by mistake; none: the right one again."""
        self._note(Configure(self.now_us, id, tuple(members)))
        self.misconfigured.pop(id, None)
        if members:
            addresses = {c.id: c.address for c in self.configured}
            self.misconfigured[id] = tuple(Configured(m, addresses[m], priority) for m, priority in members)

    def set_clock(self, id: int, rate: float, jump_ms: int) -> None:
        self._note(Clock(self.now_us, id, rate, jump_ms))
        self.hosts[id].set_clock(self.now_us, rate, jump_ms)

    # -- inputs -----------------------------------------------------------------------------------------

    def deliver(self, envelope: Envelope, again: bool = False) -> None:
        """``envelope`` arrives at its target, which must be up."""
        self._note(Deliver(self.now_us, envelope, again))
        host = self.hosts[envelope.target.id]
        host.inbox.append(Received(envelope, host.mono_s(self.now_us)))

    def link(self, id: int, peer: int, up: bool) -> None:
        self._note(Link(self.now_us, id, peer, up))
        self.hosts[id].inbox.append(Connected(peer) if up else Disconnected(peer))

    def ask(self, id: int, request: Input) -> None:
        self._note(Ask(self.now_us, id, request))
        if isinstance(request, DamageFound):
            self.hosts[id].damaged = request.ids
        self.hosts[id].inbox.append(request)

    def persist(self, id: int, count: int) -> None:
        """The first ``count`` writes under way are durable; the server hears of it with its next step."""
        self._note(Persist(self.now_us, id, count))
        host = self.hosts[id]
        damaged = host.damaged
        number = self._commit(host, count)
        waiting = host.waiting
        while waiting and waiting[0][0] <= number:
            for envelope in waiting.popleft()[1]:
                self._send(host, envelope)
        host.inbox.append(Persisted(number))
        if host.damaged != damaged:  # its shell looks again at what was written anew
            host.inbox.append(DamageFound(host.damaged))

    def serve(self, id: int) -> None:
        """Answer the oldest `Load`, `LoadImage` or `LoadCopy` from disk. There is no image before any state was saved:
        the core asks again."""
        self._note(Serve(self.now_us, id))
        host = self.hosts[id]
        assert host.replica is not None
        load = host.loads.popleft()
        if isinstance(load, LoadImage):
            image = host.store.read_image()
            host.inbox.append(Tick() if image is None else ImageLoaded(load.peer, image))
            return
        if isinstance(load, LoadCopy):
            copies = [] if load.id in host.damaged else host.store.read_entries(load.id, load.id, 1)
            host.inbox.extend(CopyLoaded(load.peer, entry) for entry in copies)
            return
        entries = host.store.read_entries(load.first_id, host.replica.log.stable_id, load.bytes_max)
        sound = next((id for id in host.damaged if id >= load.first_id), None)
        if sound is not None:  # no damaged entry is ever sent (R31)
            entries = [entry for entry in entries if entry.id < sound]
        host.inbox.append(Loaded(load.peer, load.first_id, load.generation, entries))

    def step(self, id: int) -> bool:
        """Take what waits. False if all of it may wait for more and no deadline has come."""
        host = self.hosts[id]
        replica = host.replica
        assert replica is not None
        inbox = host.inbox
        if self.now_us >= host.due_us:
            inbox.append(Tick())
        elif all(map(replica.can_wait, inbox)):
            return False
        self._note(Step(self.now_us, id))
        host.inbox = []
        self._act(host, inbox, self._of(host, partial(replica.step, inbox)))
        return True

    def _of(self, host: Host, call: Callable[[float, int], Ready]) -> Ready:
        """What the core makes of it. Whatever it raises ends the server, as in `alpod`, and has a seed."""
        try:
            return call(host.mono_s(self.now_us), host.wall_ms(self.now_us))
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{at.filename.rpartition('/')[2]}:{at.lineno}"
            raise Broken("alarm", f"server {host.id} raised {error!r} at {where}") from error

    # -- effects ----------------------------------------------------------------------------------------

    def _act(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        self.steps += 1
        if ready.alarm is not None:
            raise Broken("alarm", f"server {host.id} stopped itself: {ready.alarm}")
        write = ready.write
        if write is not None:
            host.writes.append(write)
            if ready.send_after_write:
                host.waiting.append((write.number, ready.send_after_write))
        elif ready.send_after_write:
            raise Broken("ready", f"server {host.id} wants to send after a write that it does not make")
        host.loads.extend(ready.loads)
        host.loads.extend(ready.images)
        host.loads.extend(ready.copies)
        host.set_deadline(ready.deadline_s)
        for watcher in self.watchers:
            watcher.stepped(host, inputs, ready)
        for envelope in ready.send:
            self._send(host, envelope)
        for reply in ready.replies:
            self.on_reply(host, reply)
        self.on_ready(host, ready.may_stop)

    def _send(self, host: Host, envelope: Envelope) -> None:
        for watcher in self.watchers:
            watcher.sent(host, envelope)
        self.on_send(host, envelope)

    def _commit(self, host: Host, count: int) -> int:
        """The first ``count`` writes under way, as one transaction. Returns the number of the last."""
        group = [host.writes.popleft() for _ in range(count)]
        for watcher in self.watchers:
            watcher.committing(host, group)
        host.store.commit(group)
        for write in group if host.damaged else ():
            host.damaged = tuple(id for id in host.damaged if not _replaces(write, id))
        last = group[-1]
        host.disk_term, host.disk_vote = last.term, last.vote
        for write in group:
            if write.install is not None:
                host.disk_last_id = write.install.id
            if write.expunge_from is not None:
                host.disk_last_id = min(host.disk_last_id, write.expunge_from - 1)
            if write.entries:
                host.disk_last_id = write.entries[-1].id
        return last.number

    # -- doing what a schedule says ---------------------------------------------------------------------

    def perform(self, action: Action) -> None:
        """One action of a schedule, at its own time."""
        self.now_us = max(self.now_us, action.at_us)
        _PERFORM[type(action)](self, action)


def _replaces(write: Write, id: int) -> bool:
    """Is entry ``id`` as it was on disk before no more once ``write`` is there?"""
    return (
        write.install is not None
        or (write.expunge_from is not None and id >= write.expunge_from)
        or (write.base is not None and id <= write.base.id)
        or any(entry.id == id for entry in write.mended)
    )


_PERFORM: dict[type, Callable[[Stage, Any], object]] = {
    Boot: lambda stage, a: stage.boot(a.id),
    Crash: lambda stage, a: stage.crash(a.id, a.kept),
    Wipe: lambda stage, a: stage.wipe(a.id),
    PutBack: lambda stage, a: stage.put_back(a.id),
    Join: lambda stage, a: stage.join(a.id),
    Move: lambda stage, a: stage.move(a.id),
    Configure: lambda stage, a: stage.configure(a.id, a.members),
    Deliver: lambda stage, a: stage.deliver(a.envelope, a.again),
    Persist: lambda stage, a: stage.persist(a.id, a.count),
    Serve: lambda stage, a: stage.serve(a.id),
    Link: lambda stage, a: stage.link(a.id, a.peer, a.up),
    Ask: lambda stage, a: stage.ask(a.id, a.request),
    Step: lambda stage, a: stage.step(a.id),
    Clock: lambda stage, a: stage.set_clock(a.id, a.rate, a.jump_ms),
}
