"""Stage: servers that carry out actions, one at a time, watched by checks. Nothing here is random.

Laws:

* The same actions in the same order have the same effects, in every process and under every hash seed.
* A message passes the checks as it leaves a server; then it waits, in no order, until an action delivers it.
* The action of a crash says what the crash loses.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from alpo.core.config import ReplicaConfig
from alpo.core.disk import Load, LoadCopy, LoadSnapshot, Write
from alpo.core.members import Configured
from alpo.core.messages import Envelope
from alpo.core.ready import (
    Alarm,
    Connected,
    CopyLoaded,
    DamageFound,
    Disconnected,
    Event,
    Input,
    Loaded,
    OutOfOrder,
    Persisted,
    Ready,
    Received,
    SnapshotLoaded,
    Tick,
    carry_out,
)
from alpo.core.replica import Replica
from alpo.core.requests import Reply
from alpo.core.settings import Settings
from alpo.core.shared import InvariantBroken

from .checks import Broken
from .host import Host


class Boot(NamedTuple):
    """Start of the server's process, on whatever its disk holds."""

    at_us: int
    id: int


class Crash(NamedTuple):
    """End of the process, at once. The first ``kept`` of the writes under way are on disk all the same."""

    at_us: int
    id: int
    kept: int


class Wipe(NamedTuple):
    """Replacement of a server's disk, while it is down, by an empty one, of another incarnation. The old is kept."""

    at_us: int
    id: int


class PutBack(NamedTuple):
    """Return of the disk that a server, which is down, had before its last `Wipe`; the present one is laid aside."""

    at_us: int
    id: int


class Join(NamedTuple):
    """Change of the server's start: from its next boot on it waits to be added to a cluster, and founds none (R27)."""

    at_us: int
    id: int


class Move(NamedTuple):
    """Change of the address under which a server that is down will start (R27)."""

    at_us: int
    id: int


class Configure(NamedTuple):
    """Change of the list of founders, of (id, priority), that the server is given from its next boot on (R29). (): the
    right list."""

    at_us: int
    id: int
    members: tuple[tuple[int, int], ...]


class Deliver(NamedTuple):
    """Arrival of a message. ``again``: another copy of the message stays on its way."""

    at_us: int
    envelope: Envelope
    again: bool


class Persist(NamedTuple):
    """End of the first ``count`` writes under way: they are on disk, fsynced; messages that waited for them leave."""

    at_us: int
    id: int
    count: int  # type: ignore[assignment]


class Serve(NamedTuple):
    """Answer to the server's oldest read from its disk, of entries or of a base."""

    at_us: int
    id: int


class Link(NamedTuple):
    """Change of the server's connection to ``peer``: up or down."""

    at_us: int
    id: int
    peer: int
    up: bool


class Ask(NamedTuple):
    """Request of a client or an operator to the server, or news about the server's own disk."""

    at_us: int
    id: int
    request: Input


class Step(NamedTuple):
    """Step of the server: it takes all inputs that wait for it, and a tick if its deadline has come."""

    at_us: int
    id: int


class Clock(NamedTuple):
    """Change of the server's clocks: the monotonic one runs at ``rate`` from now on, the other jumps by ``jump_ms``."""

    at_us: int
    id: int
    rate: float
    jump_ms: int


Action: TypeAlias = (
    Boot | Crash | Wipe | PutBack | Join | Move | Configure | Deliver | Persist | Serve | Link | Ask | Step | Clock
)


class Timers:
    """The timers of all servers, in seconds, as `alpo.core.config.ReplicaConfig` defines them."""

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
    """Listener to all that happens on a stage. Every method does nothing unless overridden, and may raise `Broken`."""

    def booted(self, host: Host) -> None:
        """Hear that a process has started; it has not stepped yet."""
        return

    def sent(self, host: Host, envelope: Envelope) -> None:
        """Hear that a message leaves a server."""
        return

    def committing(self, host: Host, writes: Sequence[Write]) -> None:
        """Hear that a group of writes is about to be on a server's disk."""
        return

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        """Hear that a server took ``inputs``; nothing of ``ready`` has left yet."""
        return


class Stage:
    """Stage of ``size`` servers that found the cluster and ``spares`` that may be added to it; none is running yet.

    ``on_send(host, envelope)``, ``on_reply(host, reply)``, ``on_ready(host, may_stop)`` and ``on_crash(host)`` are set
    by the director of the stage: a world that schedules what comes next, or a replay that keeps messages on their way.
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
        #: Server -> the wrong list of founders that it is given at its next boots (R29).
        self.misconfigured: dict[int, tuple[Configured, ...]] = {}
        self.now_us = 0
        self.steps = 0
        #: All actions so far; None: actions are not kept.
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
        """Start the process of a server that is down."""
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
        try:
            replica.replay(host.store.replay(found.applied_id + 1))
        except InvariantBroken as error:
            raise Broken("alarm", f"server {id} does not start: {error}") from None
        host.replica = replica
        for watcher in self.watchers:
            watcher.booted(host)
        host.led_by = None
        self._act(host, [], self._of(host, replica.start))

    def crash(self, id: int, kept: int = 0) -> None:
        """End a server's process. The first ``kept`` writes under way are on disk all the same."""
        self._note(Crash(self.now_us, id, kept))
        host = self.hosts[id]
        if kept:
            self._commit(host, kept)
        host.down()
        host.store = host.store.crash()
        self.on_crash(host)

    def wipe(self, id: int) -> None:
        """Give a server that is down an empty disk."""
        self._note(Wipe(self.now_us, id))
        self.hosts[id].new_disk()

    def put_back(self, id: int) -> None:
        """Give a server that is down the disk that it had before its last `wipe`."""
        self._note(PutBack(self.now_us, id))
        self.hosts[id].old_disk()

    def join(self, id: int) -> None:
        """Make a server wait to be added to a cluster, from its next boot on."""
        self._note(Join(self.now_us, id))
        self.hosts[id].joining = True

    def move(self, id: int) -> None:
        """Give a server that is down another address."""
        self._note(Move(self.now_us, id))
        self.hosts[id].moves += 1

    def configure(self, id: int, members: Sequence[tuple[int, int]]) -> None:
        """Give a server a wrong list of founders, of (id, priority), at its next boots; empty: the right one."""
        self._note(Configure(self.now_us, id, tuple(members)))
        self.misconfigured.pop(id, None)
        if members:
            addresses = {c.id: c.address for c in self.configured}
            self.misconfigured[id] = tuple(Configured(m, addresses[m], priority) for m, priority in members)

    def set_clock(self, id: int, rate: float, jump_ms: int) -> None:
        """Let a server's monotonic clock run at ``rate`` from now on, and its wall clock jump by ``jump_ms``."""
        self._note(Clock(self.now_us, id, rate, jump_ms))
        self.hosts[id].set_clock(self.now_us, rate, jump_ms)

    # -- inputs -----------------------------------------------------------------------------------------

    def deliver(self, envelope: Envelope, again: bool = False) -> None:
        """Let ``envelope`` arrive at its target, which must be up. ``again``: another copy stays on its way."""
        self._note(Deliver(self.now_us, envelope, again))
        host = self.hosts[envelope.target.id]
        host.inbox.append(Received(envelope, host.mono_s(self.now_us)))

    def link(self, id: int, peer: int, up: bool) -> None:
        """Tell a server that its connection to ``peer`` is up, or down."""
        self._note(Link(self.now_us, id, peer, up))
        self.hosts[id].inbox.append(Connected(peer) if up else Disconnected(peer))

    def ask(self, id: int, request: Input) -> None:
        """Give a server a request, or news of its disk."""
        self._note(Ask(self.now_us, id, request))
        if isinstance(request, DamageFound):
            self.hosts[id].damaged = request.ids
        self.hosts[id].inbox.append(request)

    def persist(self, id: int, count: int) -> None:
        """Put the first ``count`` writes under way on disk. Messages that waited for them leave, and the server learns
        of them with its next step."""
        self._note(Persist(self.now_us, id, count))
        host = self.hosts[id]
        damaged = host.damaged
        number = self._commit(host, count)
        waiting = host.waiting
        while waiting and waiting[0][0] <= number:
            for envelope in waiting.popleft()[1]:
                self._send(host, envelope)
        host.inbox.append(Persisted(number))
        if host.damaged != damaged:  # the shell looks again at what was written anew
            host.inbox.append(DamageFound(host.damaged))

    def serve(self, id: int) -> None:
        """Answer the oldest `Load`, `LoadSnapshot` or `LoadCopy` from disk. Before any state was saved there is no
        snapshot, and the core asks again."""
        self._note(Serve(self.now_us, id))
        host = self.hosts[id]
        load = host.loads.popleft()
        if isinstance(load, LoadSnapshot):
            snapshot = host.store.read_snapshot()
            host.inbox.append(Tick() if snapshot is None else SnapshotLoaded(load.peer, snapshot))
            return
        if isinstance(load, LoadCopy):
            copies = [] if load.id in host.damaged else host.store.read_entries(load.id, load.id, 1)
            host.inbox.extend(CopyLoaded(load.peer, entry) for entry in copies)
            return
        entries = host.store.read_entries(load.first_id, host.running.log.stable_id, load.bytes_max)
        sound = next((id for id in host.damaged if id >= load.first_id), None)
        if sound is not None:  # no damaged entry is ever sent (R31)
            entries = [entry for entry in entries if entry.id < sound]
        host.inbox.append(Loaded(load.peer, load.first_id, load.generation, entries))

    def step(self, id: int) -> bool:
        """Let a server take all inputs that wait. Returns False if they may wait longer and no deadline has come."""
        host = self.hosts[id]
        replica = host.running
        inbox = host.inbox
        if self.now_us >= host.due_us:
            inbox.append(Tick())
        elif all(map(replica.can_wait, inbox)):
            return False
        self._note(Step(self.now_us, id))
        members = replica.members
        host.inbox, host.led_by = [], (members.latest_id, members.latest) if replica.reign is not None else None
        self._act(host, inbox, self._of(host, partial(replica.step, inbox)))
        return True

    def _of(self, host: Host, call: Callable[[float, int], Ready]) -> Ready:
        """Call the core with the server's clocks. An exception breaks "alarm": in `alpod` it would end the server."""
        try:
            return call(host.mono_s(self.now_us), host.wall_ms(self.now_us))
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{at.filename.rpartition('/')[2]}:{at.lineno}"
            raise Broken("alarm", f"server {host.id} raised {error!r} at {where}") from error

    # -- effects ----------------------------------------------------------------------------------------

    def _act(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        self.steps += 1
        host.set_deadline(ready.deadline_s)
        for watcher in self.watchers if ready.alarm is None else ():
            watcher.stepped(host, inputs, ready)
        try:
            carry_out(ready, _Shell(self, host))
        except OutOfOrder as error:
            raise Broken("ready", f"server {host.id}: {error}") from None
        except Alarm as error:
            raise Broken("alarm", f"server {host.id} stopped itself: {error}") from None
        self.on_ready(host, ready.may_stop)

    def _send(self, host: Host, envelope: Envelope) -> None:
        for watcher in self.watchers:
            watcher.sent(host, envelope)
        self.on_send(host, envelope)

    def _commit(self, host: Host, count: int) -> int:
        """Commit the first ``count`` writes under way as one transaction. Returns the number of the last."""
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

    def perform(self, action: Action) -> None:
        """Carry out an action now."""
        _METHODS[type(action)](self, *action[1:])


class _Shell:
    """Shell of one server: takes the effects of its steps, and leaves writes, reads and messages to later actions."""

    __slots__ = ("_host", "_stage")

    def __init__(self, stage: Stage, host: Host) -> None:
        self._stage, self._host = stage, host

    def send(self, envelopes: list[Envelope]) -> None:
        for envelope in envelopes:
            self._stage._send(self._host, envelope)

    def write(self, write: Write, then_send: list[Envelope]) -> None:
        self._host.writes.append(write)
        if then_send:
            self._host.waiting.append((write.number, then_send))

    def reply(self, replies: list[Reply]) -> None:
        for reply in replies:
            self._stage.on_reply(self._host, reply)

    def load(self, wanted: Load | LoadSnapshot | LoadCopy) -> None:
        self._host.loads.append(wanted)

    def event(self, event: Event) -> None:
        """Do nothing: watchers have seen the event already."""


def _replaces(write: Write, id: int) -> bool:
    """True if ``write`` removes or replaces entry ``id`` on the disk."""
    return (
        write.install is not None
        or (write.expunge_from is not None and id >= write.expunge_from)
        or (write.base is not None and id <= write.base.id)
        or any(entry.id == id for entry in write.mended)
    )


#: Kind of action -> the method that carries it out; it takes the action's fields after ``at_us``.
_METHODS: dict[type, Callable[..., object]] = {
    Boot: Stage.boot, Crash: Stage.crash, Wipe: Stage.wipe, PutBack: Stage.put_back, Join: Stage.join,
    Move: Stage.move, Configure: Stage.configure, Deliver: Stage.deliver, Persist: Stage.persist, Serve: Stage.serve,
    Link: Stage.link, Ask: Stage.ask, Step: Stage.step, Clock: Stage.set_clock,
}
