"""The owner of the replica: groups inputs into steps, and carries out each `Ready` in its order.

Laws:

* Only `pump` calls `Replica.step`. A step takes everything that was posted, so work is done per group.
* `Ready.send` leaves before the write is handed to the writer. `Ready.send_after_write` is encoded and goes to the
  writer with the write: the thread that commits sends it once the commit is done (R14), without waiting for the loop.
* A lone small write, behind which nothing waits, is committed in the event loop's own thread, if the writer can, once
  the answers of its step have left. While writes are lone, the poller waits for the sockets itself, and keeps the time
  of the replica's deadlines meanwhile.
* Writes are handed over at the end of the event loop's pass, when it is about to release the GIL: a thread woken
  earlier would only wait for the GIL, and take a processor meanwhile.
* The writer reports by a number that every step reads first; it wakes the driver only if something waits for it.
* `alpo.core.ready.carry_out` puts what a Ready asks in order; the driver is its `Shell`. At an alarm the driver fails,
  and the server with it.
* Clients' requests to append collect while others are not answered yet: so groups form, and grow with the number of
  clients. They go once as many wait as are under way; if lately `_CROWD` or more went together, not before those under
  way are answered (a group costs every server as much as some ten appends); and at the latest after `_GRAIN_S`. If
  that was too soon, answers take long here, and for `_LENIENT_S` a crowd waits no longer than a few. The request of a
  client that is alone never waits.
* `pump` runs where inputs arrive, without a task switch; what the poller brings is a group already. Other inputs wait
  for the scheduler's next pass while a write is under way.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from operator import is_not
from typing import Any, Protocol

import structlog
import trio

from alpo.core.disk import Load, LoadCopy, LoadSnapshot, Write
from alpo.core.messages import Envelope
from alpo.core.ready import Event, Input, Persisted, Ready, Slept, Tick, carry_out
from alpo.core.replica import Replica
from alpo.core.requests import AppendRun, Reply
from alpo.storage.rows import adds_only
from alpo.storage.writer import After

from .admission import Quotas
from .counters import Counters, Elections
from .event_log import level_of
from .poller import Sharers, Suspension, Timer
from .threads import Jobs

log = structlog.get_logger()

#: The timer is moved to a later time only if it would go off within this time.
_SOON_S = 0.01
#: Deadlines that are closer than the next multiple of this wait for it: a lone append sets and drops one each time.
_GRAIN_S = 0.005
#: Inputs that may wait are stepped once this many are queued.
_WAITING_MAX = 64
#: Clients' requests in one of the last groups from which on others wait for the answers, and seconds without that after
#: those came too late.
_CROWD, _LENIENT_S = 8, 0.1
#: Lone writes in a row after which the event loop's thread commits them; the most bytes of bodies of a single entry,
#: and of a group, and the most entries of that.
_LONE_WRITES = 8
_LONE_BYTES_MAX, _GROUP_BYTES_MAX, _GROUP_ENTRIES_MAX = 64 << 10, 16 << 10, 64


class Asker(Protocol):
    """The node's use of `Origin`: takes the replies to its requests, and sends them at `flush`."""

    def answer(self, reply: Reply) -> None: ...

    def flush(self) -> None: ...


def wall_ms() -> int:
    """The wall clock in ms since the epoch."""
    return time.time_ns() // 1_000_000


class Watchers:
    """Functions that are called after steps; the node adds what watches the replica. ``after_step``: after each;
    ``after_mark``: after one that has moved a mark of the log; ``after_change``: after one that has changed the member
    list, the settings, who leads, or the server that an operator's change is about (then all are called)."""

    def __init__(self) -> None:
        self.after_step: list[Callable[[], None]] = []
        self.after_mark: list[Callable[[], None]] = []
        self.after_change: list[Callable[[], None]] = []
        self._marks: tuple[object, ...] = ()
        self._seen: tuple[object, ...] = ()

    def look(self, replica: Replica) -> None:
        """Call those who watch what this step has changed."""
        log, reign = replica.log, replica.reign
        marks = replica.guaranteed_id, replica.fully_replicated_id, log.stable_id, log.generation
        seen = (
            reign, replica.members.latest, replica.settings, replica.out.cluster,
            reign.changes.pending if reign is not None else None,
        )
        changed = any(map(is_not, seen, self._seen)) or not self._seen
        if changed or marks != self._marks:
            self._marks = marks
            for notice in tuple(self.after_mark):  # one may take itself off
                notice()
        if changed:
            self._seen = seen
            for notice in self.after_change:
                notice()
        for notice in self.after_step:
            notice()


class Driver(trio.abc.Instrument):
    """Driver of one replica. All methods are for the Trio thread, except `durable` and those that say so."""

    #: All drivers of this server, if there are several. They share ``inflight_bytes_max``: one with less than its part
    #: of it under way is never full.
    sharers: Sharers | None = None
    #: The driver that hands this one's writes over with its own, if there is one (`share`): each that hears of every
    #: pass makes it longer.
    pass_of: Driver | None = None
    #: Called at the end of the event loop's pass, before writes are handed over; None: nothing is kept until then.
    flush: Callable[[], None] | None = None

    def __init__(
        self,
        replica: Replica,
        *,
        submit: Callable[[Write, After], None],
        commit_here: Callable[[Write, After], bool],
        send: Callable[[Sequence[Envelope]], None],
        prepare: Callable[[Sequence[Envelope]], After],
        load: Callable[[Load | LoadSnapshot | LoadCopy], None],
        inflight_bytes_max: int,
        counters: Counters | None = None,
    ) -> None:
        self.replica = replica
        #: Counts for `/metrics`, of all parts of the node.
        self.counters = counters or Counters(Elections(0))
        self.quotas = Quotas()
        self._submit, self._commit_here, self._prepare = submit, commit_here, prepare
        self.send, self.load = send, load
        #: Bound of `full`; may be changed at any time.
        self.inflight_bytes_max = inflight_bytes_max
        #: The event loop's clock, as `trio.current_time`, which looks it up at every call.
        self.clock_s = trio.lowlevel.current_clock().current_time
        #: Time of the present step, or of the last, by `clock_s`.
        self.now_s, self._suspension = 0.0, Suspension()
        self._inbox: list[Input] = []
        self._inbox_bytes = 0
        self._was_full = False  # an asker saw `full`, and may wait for room
        self._runs: list[Input] = []  # clients' requests to append; how many go, when they go anyway
        self._runs_go, self._runs_due_s, self._lenient_until_s = 0, math.inf, -math.inf
        self._crowd = 0  # size of the largest of the last groups of these that were small in bytes, roughly
        self._urgent = self._stepping = False
        self._lone_writes = 0  # in a row; see `_is_lone`
        self._lone: tuple[Write, After] | None = None  # one to commit once the step's answers have left
        self._token = trio.lowlevel.current_trio_token()
        self._submitted = 0  # number of the last write handed to the writer
        self._durable = 0  # number of the last write on disk; set by the thread that committed it
        self._persisted = 0  # number of the last write reported to the replica
        self._report_wanted = False  # set first, then `_durable` is read; `durable` does it in reverse order
        self._awaited: list[tuple[int, trio.Event]] = []  # (write number, event to set when it is on disk)
        self._writes: list[tuple[Write, After]] = []  # writes to hand over at the end of the pass
        self._late: set[Driver] = set()  # drivers that have such writes
        self._running, self._wake = False, trio.Event()
        self._deadline_s = math.inf
        self._timer = Timer()
        #: Time at which the poller's present group came, or the last one, by `clock_s`.
        self.came_s = 0.0
        self._polled = False  # the poller keeps time, and not the timer
        self._scheduled = 0  # tasks that became able to run since the event loop last had nothing to run
        self.failure: BaseException | None = None  # the error that stopped it; then `on_failure` is called
        self.on_failure: Callable[[], None] = lambda: None
        #: Called with every event besides logging it; returns whether it was kept. Set by the node.
        self.keep: Callable[[str, Mapping[str, Any]], bool] = lambda name, fields: True
        #: Called with the ids of damaged entries whose rewriting was handed to the writer. Set by the node.
        self.on_mended: Callable[[Sequence[int]], None] = lambda ids: None
        #: Tasks that wait for `full` to end.
        self.room = trio.lowlevel.ParkingLot()
        self.watchers = Watchers()
        #: Set once the replica may leave (R28).
        self.may_stop = trio.Event()

    # -- taking inputs ----------------------------------------------------------------------------------

    @property
    def unguaranteed_bytes(self) -> int:
        """Bytes of appends taken and not yet guaranteed."""
        return self._inbox_bytes + self.replica.inflight_bytes

    @property
    def full(self) -> bool:
        """True if so many bytes are not yet guaranteed, or not on our own disk, that no more appends are taken. A
        server that does not lead refuses appends, for which it needs no room."""
        own, drivers = self._inbox_bytes + self.replica.inflight_bytes, self.sharers and self.sharers.drivers
        if own * (len(drivers) if drivers else 1) <= self.inflight_bytes_max or not self.replica.serves:
            return False
        if drivers and sum([each.unguaranteed_bytes for each in drivers]) <= self.inflight_bytes_max:
            return False
        self._was_full = True
        return True

    @property
    def write_under_way_s(self) -> float:
        """The age of the oldest write handed to the writer that is not on disk; 0.0 if there is none."""
        oldest = self.replica.log.oldest_write(self._durable)
        return self.clock_s() - oldest.handed_s if oldest is not None else 0.0

    def post(self, item: Input, size_bytes: int = 0) -> None:
        """Queue an input for the next step; call `kick` after posting all that arrived together."""
        self._inbox_bytes += size_bytes
        if self.sharers is not None:
            self.sharers.posted[self] = None
        if type(item) is AppendRun:
            if not self._runs:
                self._runs_go = self._go()
            self._runs.append(item)
            if len(self._runs) >= self._runs_go:
                self._urgent = True
            return
        self._inbox.append(item)
        if not self._urgent:
            self._urgent = len(self._inbox) >= _WAITING_MAX or not self.replica.can_wait(item)

    def take_known(self, item: Input, now_s: float, answers: list[Envelope] | None = None) -> bool:
        """Take an input at once if it changes nothing but times (`Replica.take_known`): with many logs, most are such.
        Returns False if it has to be posted. What is to be sent is added to ``answers``, or sent if that is None."""
        if self._inbox or self._stepping or self._durable > self._persisted or self.failure is not None:
            return False
        if slept_s := self._suspension.look(now_ms := wall_ms(), now_s):
            self._inbox.append(Slept(slept_s))
            self._urgent = True
            return False
        self._stepping = True
        try:
            ready = self.replica.take_known(item, now_s, now_ms)
            if ready is not None:
                self.now_s = now_s
                if answers is None or ready.events:
                    carry_out(ready, self)
                else:
                    answers += ready.send
                self._set_deadline(ready.deadline_s, False)
        except Exception as error:  # as in `pump`
            self.failed(error)
            return True
        finally:
            self._stepping = False
        return ready is not None

    def kick(self, *, at_once: bool = False) -> None:
        """Have posted inputs stepped: now if the disk is idle or ``at_once``, else in the next pass. Inputs that can
        wait stay queued until others come."""
        if not self._urgent:
            if self._runs:
                self._hold()
        elif at_once or self._durable == self._submitted:
            self.pump(force=False)
        else:
            self._wake.set()

    def _hold(self) -> None:
        """Have the appends that wait go in time."""
        if self._runs_due_s == math.inf:
            self._runs_due_s = math.ceil(self.clock_s() / _GRAIN_S + 1) * _GRAIN_S
            if not self._polled:
                self._wake_by(self._runs_due_s)

    def _go(self, inputs: Sequence[Input] = ()) -> int:
        """The number of appends that must wait to go now, or together with ``inputs``, which answer others."""
        reign = self.replica.reign
        left = reign.serving.unanswered if reign is not None else 0
        if left and inputs:
            left = min(left, self.replica.left_after(inputs))
        if not left or self._crowd < _CROWD or self.now_s < self._lenient_until_s:
            return min(left, _WAITING_MAX)
        return max(left, _WAITING_MAX)

    def pump(self, *, force: bool = True) -> None:
        """Step until nothing is posted; without ``force``, nothing but appends that have to wait. A nested call returns
        at once: the outer one continues."""
        if self._stepping or self.failure is not None:
            return
        self._stepping = True
        try:
            self._hear_writer()
            while True:
                inputs, self._inbox, self._urgent = self._inbox, [], False
                runs = self._runs
                if runs and (force or len(runs) >= self._runs_go or (inputs and len(runs) >= self._go(inputs))):
                    inputs += runs
                    self._runs, self._runs_due_s = [], math.inf
                    small = self._inbox_bytes <= _GROUP_BYTES_MAX
                    self._crowd = max(len(runs) if small else 0, self._crowd * 3 // 4)
                if not inputs:
                    break
                if not self._runs:
                    self._inbox_bytes = 0
                self.now_s = self.clock_s()
                if slept_s := self._suspension.look(now_ms := wall_ms(), self.now_s):
                    inputs.insert(0, Slept(slept_s))
                self._act(self.replica.step(inputs, self.now_s, now_ms))
                self._want_report()
                if self._runs:
                    self._runs_go = self._go()
            if self._runs:
                self._hold()
        # the node raises it; raised here it would end the caller's task, which did nothing wrong
        except Exception as error:
            self.failed(error)
        finally:
            self._stepping = False

    # -- doing what a Ready asks ------------------------------------------------------------------------

    def start(self) -> None:
        """Make the replica's first step. Call before anything is posted."""
        self.now_s = self.clock_s()
        self._act(self.replica.start(self.now_s, wall_ms()))
        self._want_report()
        self.pump()

    def _act(self, ready: Ready) -> None:
        carry_out(ready, self)
        if self._lone is not None:
            lone, self._lone = self._lone, None
            if self.flush is not None:
                self.flush()
            if not self._commit_here(*lone):
                self._queue(*lone)
        self._set_deadline(ready.deadline_s, ready.write is not None)
        if ready.may_stop:
            self.may_stop.set()
        if self._was_full and not self.full:
            self._was_full = False
            self.room.unpark_all()
        self.watchers.look(self.replica)

    def note(self, name: str, /, **fields: Any) -> None:
        """Record an event for the operator: it is kept (`alpo explain`) and logged at the level of
        `event_log.EVENTS`. Events that are not kept, because they are frequent, are logged at debug."""
        self.counters.hear(name, fields, wall_ms())
        log.log(level_of(name) if self.keep(name, fields) else logging.DEBUG, name, **fields)

    def write(self, write: Write, then_send: list[Envelope]) -> None:
        """Part of `Shell`: the writer gets ``write`` at the end of the pass, or it is committed here once the
        step's answers have left."""
        after = self._prepare(then_send) if then_send else None
        self.counters.wrote(write)
        idle = self._durable == self._submitted
        self._submitted = write.number
        if self.sharers is not None:
            self.sharers.wrote(self)
        if write.entries:
            begin = _LONE_WRITES if self._crowd >= _CROWD else 0
            self._lone_writes = max(self._lone_writes, begin) + 1 if self._is_lone(write) else 0
        lone = idle and self._lone_writes > _LONE_WRITES and write.entries
        if lone and not (self.sharers is not None and self.sharers.others_busy(self)):
            self._lone = write, after
        else:
            self._queue(write, after)
        if write.mended:
            self.on_mended([entry.id for entry in write.mended])

    def _queue(self, write: Write, after: After) -> None:
        self._writes.append((write, after))
        if not self._running:
            if self.flush is not None:
                self.flush()
            self._hand_over()
        else:
            (self.pass_of or self)._late.add(self)

    def _is_lone(self, write: Write) -> bool:
        """True if the write is a small entry, and little else, and nothing else is under way: on a leader, where it may
        be a small group, everything before it is guaranteed; on a follower, no thread is at work. A follower whose disk
        hangs in a group has its thread hang, and still says so."""
        entries, replica = write.entries, self.replica
        leads = replica.reign is not None
        lone = entries[0].id - 1 <= replica.guaranteed_id if leads else not Jobs.under_way
        bytes_max = _LONE_BYTES_MAX if len(entries) == 1 else _GROUP_BYTES_MAX
        return (
            lone and len(entries) <= (_GROUP_ENTRIES_MAX if leads else 1)
            and replica.inflight_bytes <= write.bodies_bytes <= bytes_max and adds_only(write)
        )

    def event(self, event: Event) -> None:
        """Part of `Shell`."""
        self.note(event.name, **event.fields)

    def reply(self, replies: list[Reply]) -> None:
        """Hand each reply to its asker, and have each asker flush after the last reply of this step. Part of
        `Shell`."""
        touched: dict[Asker, None] = {}
        asker: Any
        for reply in replies:
            asker = reply.origin
            asker.answer(reply)
            touched[asker] = None
        for asker in touched:
            asker.flush()

    def _hand_over(self) -> None:
        if self._writes:
            writes, self._writes = self._writes, []
            for write, after in writes:
                self._submit(write, after)

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Count a task that can run now. Called by Trio."""
        self._scheduled += 1

    def before_io_wait(self, timeout: float) -> None:
        """Hand the writes over: nothing is left to run in the event loop's present pass. Called by Trio."""
        if timeout > 0:
            self._scheduled = 0
        driver = self
        try:
            if self.flush is not None:
                self.flush()
            while self._late:
                driver = self._late.pop()
                driver._hand_over()
        except Exception as error:  # Trio would log it and remove the instrument
            self._token.run_sync_soon(driver.failed, error)

    # -- the writer's reports ---------------------------------------------------------------------------

    def durable(self, number: int) -> None:
        """Report that every write up to ``number`` is on disk. For the thread that committed it."""
        self._durable = number
        if self._report_wanted:
            with contextlib.suppress(trio.RunFinishedError):  # the server has stopped
                self._token.run_sync_soon(self._heard)

    def _heard(self) -> None:
        self.pump(force=False)

    def _want_report(self) -> None:
        """Ask the writer to wake the driver if anything waits for its report."""
        self._report_wanted = self._submitted > self._persisted and bool(
            self._awaited or not self.replica.can_wait(Persisted(self._submitted))
        )
        if self._report_wanted:
            self._hear_writer()

    def _hear_writer(self) -> None:
        if self._durable > self._persisted:
            self._persisted = self._durable
            # ahead of later inputs, so that a heartbeat's answer tells of it
            self._inbox.insert(0, Persisted(self._persisted))
            while self._awaited and self._awaited[0][0] <= self._persisted:
                self._awaited.pop(0)[1].set()

    async def on_disk(self) -> None:
        """Wait until all that was handed to the writer so far is on disk; forever after a failure."""
        if self._submitted > self._persisted:
            told = trio.Event()
            self._awaited.append((self._submitted, told))
            self._want_report()
            self.pump()
            await told.wait()
        else:
            await trio.lowlevel.checkpoint()

    def failed(self, error: BaseException) -> None:
        """Stop stepping because of ``error``, and call `on_failure` once: the server cannot continue."""
        if self.failure is None:
            self.failure = error
            self.on_failure()

    # -- time -------------------------------------------------------------------------------------------

    @property
    def due_s(self) -> float:
        """The time at which something is to be done even if nothing comes, by `clock_s`."""
        return self._deadline_s if self._deadline_s < self._runs_due_s else self._runs_due_s

    def share(self, first: Driver) -> None:
        """Hand writes over and keep time with ``first``, the driver of this server's first log."""
        self.pass_of, self._timer = first, first._timer

    def _set_deadline(self, deadline_s: float, wrote: bool) -> None:
        """Set the timer. Deadlines move with every step, mostly a little later, so the timer is moved only to an
        earlier time, or when it would soon go off much too early; later never by a step that ``wrote``, since appends
        come often, and a timer that goes off too early is set anew."""
        self._deadline_s, armed_s = deadline_s, self._timer.armed_s
        if self._polled:
            return
        if deadline_s < armed_s:
            self._wake_by(deadline_s)
        elif not wrote and deadline_s > armed_s and armed_s - self.now_s < max(_SOON_S, (deadline_s - armed_s) / 2):
            if len(self._timer.drivers) == 1:  # else another may have set it, and is woken too early at the worst
                self._timer.arm(deadline_s)

    def _wake_by(self, deadline_s: float) -> None:
        """Have the timer go off at the deadline; at the next multiple of `_GRAIN_S` if that is later."""
        at_s = max(deadline_s, math.ceil(self.now_s / _GRAIN_S) * _GRAIN_S)
        if at_s < self._timer.armed_s:
            self._timer.arm(at_s)

    # -- what the poller asks ---------------------------------------------------------------------------

    @property
    def writes_under_way(self) -> bool:
        """True if a write handed to the writer is not on disk."""
        return self._durable < self._submitted

    @property
    def has_inputs(self) -> bool:
        """True if anything was posted and not yet stepped."""
        return bool(self._inbox or self._runs)

    def take_group(self) -> None:
        """Step what the poller's sockets have brought, at once. The poller keeps time from now until `go_on`."""
        self._polled = True
        self.kick(at_once=True)

    def patience_s(self) -> float:
        """Seconds for which the poller may wait while the event loop stands still; 0 if another task can run, or has
        to be woken (by a thread at work, for one), or if more than one write is under way at a time."""
        busy = (self.pass_of or self)._scheduled > 1 or self._report_wanted or Jobs.under_way
        if self._lone_writes <= _LONE_WRITES or busy or self.failure is not None:
            return 0.0
        if self.flush is not None:
            self.flush()
        if self._writes:
            self._hand_over()
        return min(self._deadline_s, self._runs_due_s) - self.now_s

    @property
    def for_servers(self) -> bool:
        """True while a crowd's appends have to wait for other servers' acceptances."""
        reign = self.replica.reign
        waits = self._crowd >= _CROWD and reign is not None and reign.serving.unanswered > 0
        return waits and self.now_s >= self._lenient_until_s

    def go_on(self) -> None:
        """Do what is due by time, and set the timer: the event loop goes on."""
        self._polled = False
        if self.came_s >= self._deadline_s or self.came_s >= self._runs_due_s:
            self.do_due(self.came_s)
        if self.due_s < self._timer.armed_s:
            self._wake_by(self.due_s)

    def do_due(self, now_s: float) -> None:
        """Step what is due by time."""
        late = now_s >= self._runs_due_s
        if late and self._runs_go:
            self._lenient_until_s = now_s + _LENIENT_S
        if now_s >= self._deadline_s:
            if not late and not self._runs and self.take_known(Tick(), now_s):
                return
            self.post(Tick())
        self.pump(force=late)

    async def run(self) -> None:
        """Step what was collected while a write was under way. Run in a task of its own, with `keep_time` in
        another."""
        if self.pass_of is None:
            trio.lowlevel.add_instrument(self)
        self._running = True
        try:
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                self.pump(force=False)
        finally:
            self._running = False
            if self.pass_of is None:
                trio.lowlevel.remove_instrument(self)
            self._hand_over()

    async def keep_time(self) -> None:
        """Have a `Tick` stepped at each of the replica's deadlines."""
        timer = self._timer
        timer.drivers.append(self)
        try:
            if self.pass_of is None:
                await timer.run()
            if self.due_s < timer.armed_s:
                timer.arm(self.due_s)
            await trio.sleep_forever()
        finally:
            timer.drivers.remove(self)
