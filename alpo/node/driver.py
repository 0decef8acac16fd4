"""The only owner of the replica: groups inputs into steps, and does what each Ready asks, in its order.

Laws:

* Nothing but `pump` calls `Replica.step`. A step takes everything that was posted: work is per group.
* `Ready.send` leaves before the write is even handed to the writer; `Ready.send_after_write` is encoded, and goes to
  the writer with the write: its thread sends it once the commit is done (R14), without waiting for this one.
* Writes are handed over at the end of the event loop's pass, when it is about to let go of the interpreter: a thread
  woken earlier would run only into the lock that this one still holds, and take its processor meanwhile.
* The writer reports by a number that every step looks at first; it wakes the driver only if something waits for it.
* A Ready with an alarm is never acted on: the driver fails, and the server with it.
* `pump` runs where the inputs come in, without a task switch, while no write is under way; while one is, clients'
  requests gather until the scheduler's next pass, so that a group forms. (Peers' messages are groups already.)
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import structlog
import trio

from alpo.core.disk import Load, LoadCopy, LoadImage, Write
from alpo.core.inputs import Input, Persisted, Tick
from alpo.core.messages import Envelope
from alpo.core.ready import Ready, Reply
from alpo.core.replica import Replica
from alpo.storage.writer import After

from .logging_setup import level_of

log = structlog.get_logger()

_SOON_S = 0.01
#: So many inputs that could wait are stepped all the same.
_WAITING_MAX = 64


class Alarm(Exception):
    """The replica raised an alarm: the server stops rather than carry on."""


class StoreLost(Alarm):
    """The disk has forgotten what it acknowledged: the store is of no more use, and the server begins anew (R31)."""


class Asker(Protocol):
    """What the shell uses as an `Origin`: it takes its own reply, and sends what it gathered when told."""

    def answer(self, reply: Reply) -> None: ...

    def flush(self) -> None: ...


class _PassEnd(trio.abc.Instrument):
    """Calls ``notice``, which must not raise, whenever the event loop has nothing left to run in its present pass."""

    def __init__(self, notice: Callable[[], None]) -> None:
        self._notice = notice

    def before_io_wait(self, timeout: float) -> None:
        self._notice()


def wall_ms() -> int:
    """The wall clock, ms since the epoch."""
    return time.time_ns() // 1_000_000


class Driver:
    """See the module's laws. All methods are for the Trio thread; `persisted` and `failed` say otherwise."""

    def __init__(
        self,
        replica: Replica,
        *,
        submit: Callable[[Write, After], None],
        send: Callable[[Sequence[Envelope]], None],
        prepare: Callable[[Sequence[Envelope]], After],
        load: Callable[[Load], None],
        load_image: Callable[[LoadImage], None],
        load_copy: Callable[[LoadCopy], None],
        inflight_bytes_max: int,
    ) -> None:
        self.replica = replica
        self._submit = submit
        self._send = send
        self._prepare = prepare
        self._load = load
        self._load_image = load_image
        self._load_copy = load_copy
        #: See `full`; may change while it runs.
        self.inflight_bytes_max = inflight_bytes_max
        self._now_s = 0.0
        self._inbox: list[Input] = []
        self._inbox_bytes = 0
        self._urgent = False
        self._stepping = False
        self._token = trio.lowlevel.current_trio_token()
        self._submitted = 0  # number of the last write handed to the writer
        self._durable = 0  # of the last one on disk; set by the writer's thread
        self._persisted = 0  # of the last one that the replica knows to be
        self._report_wanted = False  # set here, then `_durable` is looked at; in `durable` the other way round
        self._awaited: list[tuple[int, trio.Event]] = []  # (number of a write, told when it is on disk)
        self._writes: list[tuple[Write, After]] = []  # until the end of the pass
        self._running = False
        self._deadline_s = math.inf
        self._timer = trio.CancelScope()
        self._wake = trio.Event()
        #: What broke, once something has; `on_failure` is called then.
        self.failure: BaseException | None = None
        self.on_failure: Callable[[], None] = lambda: None
        #: Given every event beside the log; whether it was kept (set by the node).
        self.keep: Callable[[str, Mapping[str, Any]], bool] = lambda name, fields: True
        #: Given the ids of damaged entries that are written anew, once that was handed to the writer (set by the node).
        self.on_mended: Callable[[Sequence[int]], None] = lambda ids: None
        #: Those who wait for `full` to end.
        self.room = trio.lowlevel.ParkingLot()
        #: Called after every group, when what others may see has changed (set by the node).
        self.after_step: list[Callable[[], None]] = []
        #: Set once the replica says that it may leave (R28).
        self.may_stop = trio.Event()
        self.steps = 0
        self.inputs = 0

    # -- taking inputs ----------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Have so many bytes been taken and not yet guaranteed that no client is read from?"""
        return self._inbox_bytes + self.replica.inflight_bytes > self.inflight_bytes_max

    def post(self, item: Input, size_bytes: int = 0) -> None:
        """Queue an input for the next step; follow with `kick` once all that came in together is posted."""
        self._inbox.append(item)
        self._inbox_bytes += size_bytes
        if not self._urgent:
            self._urgent = len(self._inbox) >= _WAITING_MAX or not self.replica.can_wait(item)

    def kick(self, *, at_once: bool = False) -> None:
        """See to it that what was posted is stepped: now if the disk is idle or ``at_once``, else in the next pass;
        what can wait comes with whatever is posted next."""
        if not self._urgent:
            return
        if at_once or self._durable == self._submitted:
            self.pump()
        else:
            self._wake.set()

    def pump(self) -> None:
        """Step until nothing is posted. Re-entrant: an inner call leaves it to the outer one."""
        if self._stepping or self.failure is not None:
            return
        self._stepping = True
        try:
            self._hear_writer()
            while self._inbox:
                inputs, self._inbox, self._inbox_bytes, self._urgent = self._inbox, [], 0, False
                self.steps += 1
                self.inputs += len(inputs)
                self._now_s = trio.current_time()
                self._dispatch(self.replica.step(inputs, self._now_s, wall_ms()))
                self._want_report()
        except Exception as error:  # the node raises it: here it would end the caller, who is not to blame
            self.failed(error)
        finally:
            self._stepping = False

    # -- doing what a Ready asks ------------------------------------------------------------------------

    def start(self) -> None:
        """The replica's own first step. Before anything is posted."""
        self._now_s = trio.current_time()
        self._dispatch(self.replica.start(self._now_s, wall_ms()))
        self._want_report()
        self.pump()

    def _dispatch(self, ready: Ready) -> None:
        if ready.alarm is not None:
            raise (StoreLost if ready.lost else Alarm)(ready.alarm)
        if ready.send:
            self._send(ready.send)
        if ready.write is not None:
            after = self._prepare(ready.send_after_write) if ready.send_after_write else None
            self._submitted = ready.write.number
            self._writes.append((ready.write, after))
            if not self._running:
                self._hand_over()
            if ready.write.mended:
                self.on_mended([entry.id for entry in ready.write.mended])
        if ready.replies:
            self._answer(ready.replies)
        for load in ready.loads:
            self._load(load)
        for wanted in ready.images:
            self._load_image(wanted)
        for copy in ready.copies:
            self._load_copy(copy)
        for event in ready.events:
            self.note(event.name, **event.fields)
        self._set_deadline(ready.deadline_s)
        if ready.may_stop:
            self.may_stop.set()
        if self.room and not self.full:
            self.room.unpark_all()
        for notice in self.after_step:
            notice()

    def note(self, name: str, /, **fields: Any) -> None:
        """Something happened that an operator may want to look up: it is kept (`alpo explain`), and a line in the log,
        at the level that `logs.EVENTS` gives it; what is not kept, because it was said often lately, at debug."""
        log.log(level_of(name) if self.keep(name, fields) else logging.DEBUG, name, **fields)

    def _answer(self, replies: list[Reply]) -> None:
        touched: dict[Asker, None] = {}
        for reply in replies:
            asker = cast(Asker, reply.origin)
            asker.answer(reply)
            touched[asker] = None
        for asker in touched:
            asker.flush()

    def _hand_over(self) -> None:
        if self._writes:
            writes, self._writes = self._writes, []
            for write, after in writes:
                self._submit(write, after)

    def _end_pass(self) -> None:
        try:
            self._hand_over()
        except Exception as error:  # Trio would log it, and never call us again
            self._token.run_sync_soon(self.failed, error)

    # -- the writer's reports ---------------------------------------------------------------------------

    def durable(self, number: int) -> None:
        """Every write up to ``number`` is on disk. For the writer's thread."""
        self._durable = number
        if self._report_wanted:
            with contextlib.suppress(trio.RunFinishedError):  # the server has stopped
                self._token.run_sync_soon(self.pump)

    def _want_report(self) -> None:
        """Have the writer wake us if anything waits for it."""
        self._report_wanted = self._submitted > self._persisted and bool(
            self._awaited or not self.replica.can_wait(Persisted(self._submitted))
        )
        if self._report_wanted:
            self._hear_writer()

    def _hear_writer(self) -> None:
        if self._durable > self._persisted:
            self._persisted = self._durable
            report = Persisted(self._persisted)
            self._urgent = self._urgent or not self.replica.can_wait(report)
            self._inbox.insert(0, report)  # before what came later: a heartbeat's answer then tells of it
            while self._awaited and self._awaited[0][0] <= self._persisted:
                self._awaited.pop(0)[1].set()

    async def on_disk(self) -> None:
        """Until all that was handed to the writer so far is on disk; for ever after a failure."""
        if self._submitted > self._persisted:
            told = trio.Event()
            self._awaited.append((self._submitted, told))
            self._want_report()
            self.pump()
            await told.wait()
        else:
            await trio.lowlevel.checkpoint()

    def failed(self, error: BaseException) -> None:
        """Something without which the server cannot go on, the writer perhaps: no step is made any more."""
        if self.failure is None:
            self.failure = error
            self.on_failure()

    # -- time -------------------------------------------------------------------------------------------

    def _set_deadline(self, deadline_s: float) -> None:
        """Deadlines move with every step, mostly a little later: the timer is touched only when one comes earlier, or
        when it would soon go off for nothing: soon beside how much later that need be."""
        self._deadline_s = deadline_s
        armed_s = self._timer.deadline
        if deadline_s < armed_s or (
            deadline_s > armed_s and armed_s - self._now_s < max(_SOON_S, (deadline_s - armed_s) / 2)
        ):
            self._timer.deadline = deadline_s

    async def run(self) -> None:
        """Step what gathered while a write was under way. Run it in one task, `keep_time` in another."""
        pass_end = _PassEnd(self._end_pass)
        trio.lowlevel.add_instrument(pass_end)
        self._running = True
        try:
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                self.pump()
        finally:
            self._running = False
            trio.lowlevel.remove_instrument(pass_end)
            self._hand_over()

    async def keep_time(self) -> None:
        """Tick at the replica's deadlines."""
        while True:
            with trio.CancelScope(deadline=self._deadline_s) as self._timer:
                await trio.sleep_forever()
            if trio.current_time() >= self._deadline_s:
                self.post(Tick())
                self.pump()
