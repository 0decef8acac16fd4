"""`Folder`: the one task of a process that follows the log and folds it into a machine.

Laws:

* The fold is the only judge: a command was done if its payload, folded at its LSN, did it. Nothing is told before.
* What was folded is never folded again, and nothing is skipped. The fold jumps only when the log was trimmed ahead.
* A failure that no retry mends ends the folding, and every wait from then on raises it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import anyio

from alpo.client.arguments import seconds_text
from alpo.client.handle import Handle
from alpo.client.log import Log, append_at_once
from alpo.client.reasons import LASTING, PASSING, kind_of
from alpo.client.record import Record
from alpo.client.retry import AGAIN_S, patiently
from alpo.client.tasks import FORKED_WHY, NEW_EVENT, Bell, Event, Living, News
from alpo.errors import AlpoError, Closed, NotGuaranteed, OutOfRange, ProtocolError, Unavailable

from .kind import Kind
from .loading import Cache, first_lsn, load
from .machine import Outcome, Result, time_ms_of
from .parts import Frozen, M

T = TypeVar("T")
W = TypeVar("W", bound="Watcher[Any]")
M_contra = TypeVar("M_contra", contravariant=True)


class Sent:
    """A command of this process on its way: its append, and its result once it was folded. ``about``: what its sender
    needs to judge it. ``freeze``: keep the machine as of a granted snapshot. The append's deadline is also that of the
    fold."""

    __slots__ = ("about", "event", "freeze", "frozen", "handle", "over", "result")

    def __init__(self, handle: Handle, about: object, freeze: bool) -> None:
        self.handle = handle
        self.about = about
        self.result: Result | None = None
        self.freeze = freeze
        self.frozen: Frozen | None = None
        #: None while nobody waits.
        self.event: Event | None = None
        #: True once there is no more to wait for.
        self.over = False

    def wake(self) -> None:
        """Wake who waits for the result: it is there, or will not come in time."""
        self.over = True
        if self.event is not None:
            self.event.set()

    def __call__(self, handle: Handle) -> None:
        """Wake who waits, if the append has failed (the handle's callback)."""
        if handle.failure is not None:
            self.wake()

    @property
    def last_lsn(self) -> int:
        """LSN of the command's last payload; 0 while it is not known."""
        if self.result is not None:
            return self.result.lsn
        return self.handle.lsns[-1] if self.handle.lsn is not None else 0


class Watcher(Protocol[M_contra]):
    """A party that is told of changes as they are folded; how, is the business of each kind: see `Folder.tell`."""

    def jumped(self, machine: M_contra) -> None:
        """Take a whole new machine, of which the changes in between are not known."""

    def ended(self, error: AlpoError) -> None:
        """Take note that the folding has ended, and why."""


class Disputed(Exception):
    """The machine of this process is not that of the snapshot that began at ``begin_lsn`` (0: not known any more) and
    ended at ``end_lsn``; or ``agrees``: it is, and an operator has set the snapshot aside."""

    def __init__(self, end_lsn: int, agrees: bool, begin_lsn: int) -> None:
        super().__init__(end_lsn, agrees, begin_lsn)
        self.end_lsn, self.agrees, self.begin_lsn = end_lsn, agrees, begin_lsn


class _Question:
    """A question for the log's end, shared by those who wait for it."""

    __slots__ = ("end_lsn", "error", "event")

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.end_lsn = 0
        self.error: AlpoError | None = None


class Folder(Generic[M, W]):
    """The fold of ``log`` into a machine of this kind; ``expect``: the id that it must have (b"": any); ``cache``: a
    place where to look for a machine first. ``M``: the machine; ``W``: its watchers."""

    def __init__(
        self, kind: Kind[M], log: Log, timeout_s: float, expect: bytes = b"", cache: Cache[M] | None = None
    ) -> None:
        self.kind = kind
        self.log = log
        self.timeout_s = timeout_s
        self.machine: M | None = None
        self.failure: AlpoError | None = None
        #: Called with every result that is not one of a command: snapshots are its business.
        self.on_result: Callable[[Result], None] = lambda result: None
        #: Awaited after `dispute`, with the machine: it raises `Diverged`, unless the folding may go on.
        self.on_dispute: Callable[[Disputed, M], Awaitable[None]] | None = None
        #: True while `on_dispute` has not told; nothing is read meanwhile.
        self._disputed = False
        self._expect = expect
        self.cache = cache
        self._sent: deque[Sent] = deque()
        self._news = News()
        self._watchers: list[W] = []
        self._asking = Bell()
        #: Rung for a command whose deadline is before the next look at them, at this time of the log's clock.
        self._sooner = Bell()
        self._next_look_s = math.inf
        self._new_event = NEW_EVENT
        self._question: _Question | None = None
        #: This fold's tasks, and all others of its kind.
        self.tasks = Living(kind.title, self._run, self._ask_ends, self._watch_deadlines, ended=self._tasks_ended)

    # -- tasks ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the tasks, if they were not yet. Raises what ended the fold, and RuntimeError in another event loop."""
        if self.log.forked:
            raise Closed(FORKED_WHY)
        if self.tasks.started:
            self.tasks.need_home()
        else:
            self.require()
            loop = self.tasks.start()
            self._new_event, self.log.clock.loop_s = loop.new_event, loop.clock

    def _tasks_ended(self, why: str) -> None:
        self.fail(Closed(why))

    async def _run(self) -> None:
        """Load the machine, and follow the log until it is closed (a task)."""
        try:
            machine = await self.patiently(lambda: load(self.kind, self.log, self.cache))
            self._jump(machine)
            while await self._follow(machine):  # True: the log was trimmed ahead of us
                machine = await self.patiently(lambda: load(self.kind, self.log))
                self._jump(machine)
        except AlpoError as error:
            self.fail(error)
        else:
            self.fail(Closed(f"the log of this {self.kind.noun} was closed"))

    async def patiently(self, step: Callable[[], Awaitable[T]]) -> T:
        """The result of ``step()``, tried until the cluster answers; not if it may be another cluster."""
        return await patiently(self.log.clock, step, lasting=(ProtocolError,))

    async def _follow(self, machine: M) -> bool:
        """Fold what comes. Returns False when the log is closed, True if it was trimmed ahead of us."""
        while not self.log.closed:
            try:
                async with self.log.follow_batches(machine.lsn + 1) as batches:
                    async for records in batches:
                        self.require()  # one that has failed disputes nothing
                        self._fold(machine, records)
            except ProtocolError:
                raise
            except Disputed as dispute:
                if self.on_dispute is not None:
                    await self.on_dispute(dispute, machine)
                self._disputed = False
                self._news.tell()
            except PASSING:
                await self.log.clock.sleep(AGAIN_S)
            except OutOfRange:
                if await self.patiently(lambda: first_lsn(self.log)) > machine.lsn + 1:
                    return True
                await self.log.clock.sleep(AGAIN_S)  # gone from one server only
        return False

    async def _ask_ends(self) -> None:
        """Ask for the log's end, for all who wait for it together (a task)."""
        while True:
            await self._asking.wait()
            question, self._question = self._question, None
            if question is None:
                continue
            try:
                question.end_lsn = await self.log.end(self.timeout_s) - 1
            except AlpoError as error:
                question.error = error
            except BaseException:
                question.error = Closed(self.kind.ended)
                raise
            finally:
                question.event.set()

    async def _watch_deadlines(self) -> None:
        """Wake those whose commands are in the log, and not folded in time (a task): one timer for all of them."""
        clock = self.log.clock
        while True:
            now_s, self._next_look_s = clock.now_s(), math.inf
            for sent in self._sent:
                if sent.event is not None:
                    if sent.handle.deadline_s <= now_s:
                        sent.wake()
                    else:
                        self._next_look_s = min(self._next_look_s, sent.handle.deadline_s)
            if self._next_look_s == math.inf:
                await self._sooner.wait()
            else:
                with clock.move_on_after(self._next_look_s - now_s):
                    await self._sooner.wait()

    def fail(self, error: AlpoError) -> None:
        """End the fold for good, with the error that every call raises from now on."""
        if self.failure is None:
            self.failure = error
        question, self._question = self._question, None
        if question is not None:
            question.error = error
            question.event.set()
        self._news.tell()
        for sent in self._sent:
            sent.wake()
        for watcher in self._watchers:
            watcher.ended(self.failure)

    # -- folding --------------------------------------------------------------------------------------------

    def _jump(self, machine: M) -> None:
        """Put a loaded machine in place of what was folded so far. Raises `WrongState`."""
        machine.need(self._expect)
        first = self.machine is None
        self.machine = machine
        for sent in self._sent:
            sent.wake()
        if self._watchers:
            machine.touched = []
        if not first:
            for watcher in self._watchers:
                watcher.jumped(machine)
        self._news.tell()

    def _fold(self, machine: M, records: Sequence[Record]) -> None:
        """Fold a page of records."""
        apply, touched = machine.apply, machine.touched
        time, time_ms = None, 0
        clients = {sent.handle.client for sent in self._sent}
        for record in records:
            if record.time is not time:
                time = record.time
                time_ms = time_ms_of(time)
            result = apply(record.lsn, time_ms, record.payload, record.term)
            outcome = result.outcome
            if record.client in clients:
                self._mine(machine, record, result)
            if outcome > Outcome.NOT_FOUNDED:
                self._special(machine, result)
            if touched:
                self.tell(machine, touched, time_ms)
                touched.clear()
        self._news.tell()

    def _special(self, machine: M, result: Result) -> None:
        """Look at the effect of a payload that is no plain command. Raises `NewerFormat`, `WrongState`, `Disputed`."""
        if result.outcome is Outcome.NEWER:
            raise machine.newer(result)
        if result.outcome is Outcome.FOUNDED:
            machine.need(self._expect)
        self.on_result(result)

    def dispute(self, end_lsn: int, agrees: bool, begin_lsn: int = 0) -> NoReturn:
        """End the folding of a page, from `on_result`, until `on_dispute` has told. Raises `Disputed`."""
        self._disputed = True
        raise Disputed(end_lsn, agrees, begin_lsn)

    def _mine(self, machine: M, record: Record, result: Result) -> None:
        """Give a command of ours its result; those before it that never landed are forgotten."""
        sent = self._sent
        while sent:
            first = sent[0]
            handle = first.handle
            mine = handle.client == record.client
            if mine and handle.serial == record.serial and (handle.lsn is not None or not _failed(handle)):
                if result.outcome is not Outcome.WAITS:
                    sent.popleft()
                    first.result = result
                    first.wake()
                    if first.freeze and result.outcome is Outcome.GRANTED:
                        first.frozen = self.kind.freeze(machine)
                return
            if not handle.done:
                return  # the record is of another append of this log
            if handle.lsn is None:
                if mine and handle.serial > record.serial:
                    return
            elif handle.lsn > record.lsn:
                return
            first.wake()
            sent.popleft()

    # -- watching -------------------------------------------------------------------------------------------

    def watch(self, watcher: W) -> None:
        """Tell ``watcher`` of every change from now on."""
        self._watchers.append(watcher)
        if self.machine is not None and self.machine.touched is None:
            self.machine.touched = []

    def unwatch(self, watcher: W) -> None:
        """Tell ``watcher`` no more."""
        if watcher in self._watchers:
            self._watchers.remove(watcher)
        if not self._watchers and self.machine is not None:
            self.machine.touched = None

    def tell(self, machine: M, touched: Sequence[Any], time_ms: int) -> None:
        """Tell all watchers what a payload has ``touched``; only called if there are any."""

    # -- waiting --------------------------------------------------------------------------------------------

    def require(self) -> None:
        """Raise the failure that ended the folding, if one did."""
        if self.failure is not None:
            raise copy(self.failure)

    async def moved(self) -> None:
        """Wait until something was folded, or the folding has ended."""
        await self._news.wait()

    def until_s(self, timeout_s: float | None = None) -> float:
        """The deadline, on the log's clock, of a call that begins now (None: the usual timeout)."""
        return self.log.clock.now_s() + (self.timeout_s if timeout_s is None else timeout_s)

    async def reach(self, lsn: int, until_s: float | None = None) -> M:
        """The machine, once it has folded up to ``lsn``. Raises `Unavailable` at the deadline, and what ended the fold.
        """
        self.open()
        machine = self.machine
        if machine is not None and machine.lsn >= lsn and self.failure is None and not self._disputed:
            return machine
        timeout_s = self.timeout_s if until_s is None else max(0.0, until_s - self.log.clock.now_s())
        with self.log.clock.move_on_after(timeout_s):
            while self.failure is None:
                if self.machine is not None and self.machine.lsn >= lsn and not self._disputed:
                    return self.machine
                await self._news.wait()
        self.require()
        at = "nothing" if self.machine is None else f"up to LSN {self.machine.lsn}"
        noun, within = self.kind.noun, seconds_text(timeout_s)
        raise Unavailable(f"the {noun} is folded {at}, and LSN {lsn} did not come within {within}")

    async def now(self, until_s: float | None = None) -> M:
        """The machine, once it has folded all that was guaranteed when this was called. Raises as `reach`."""
        self.open()
        log, began_s = self.log, self.log.clock.now_s()
        until_s = self.until_s() if until_s is None else until_s
        while True:
            self.require()
            question = self._question
            if question is None:
                question = self._question = _Question()
                self._asking.ring()
            with log.clock.move_on_after(max(0.0, until_s - log.clock.now_s())):
                await question.event.wait()
            if not question.event.is_set():
                reason = log.reason
                why = f": {reason}" if reason is not None else ""
                kind = kind_of(reason) if isinstance(reason, LASTING) else Unavailable
                raise kind(f"no server answered a read within {seconds_text(until_s - began_s)}{why}")
            if question.error is None:
                return await self.reach(question.end_lsn, until_s)
            # Others asked it before: their time is up, and ours may not be.
            if not isinstance(question.error, PASSING) or log.clock.now_s() >= until_s:
                raise copy(question.error)

    def enter(
        self, payloads: Sequence[bytes], about: object = None, *, timeout_s: float, freeze: bool = False
    ) -> Sent:
        """Append a command, as one batch; ``timeout_s``: for all of it, until it is folded. Raises as
        `Log.append_nowait`, and what ended the fold: nobody could judge the command here."""
        self.require()
        log = self.log
        if len(payloads) == 1:
            handle = append_at_once(log, payloads[0], timeout_s)
        else:
            handle = log.append_batch_nowait(payloads, timeout_s=timeout_s)
        sent = Sent(handle, about, freeze)
        self._sent.append(sent)
        return sent

    def in_doubt(self) -> list[Handle]:
        """The appends of commands that were sent, and whose effect is not known."""
        return [
            sent.handle for sent in self._sent
            if sent.result is None and sent.handle.serial and not _failed(sent.handle)
        ]

    async def result_of(self, sent: Sent) -> Result | None:
        """The result of a command; None if the fold has jumped over it. Raises as `Log.append`, and as `reach`."""
        if not sent.over and self.failure is None:  # one wait for both, the append and its fold
            handle, event = sent.handle, self._new_event()
            sent.event = event
            handle.add_done_callback(sent)
            if handle.deadline_s < self._next_look_s:
                self._sooner.ring()
            await event.wait()
        if sent.result is not None:
            return sent.result
        try:
            await sent.handle
        except NotGuaranteed:
            if sent.result is None:
                raise
        if sent.result is None:
            last_lsn = sent.handle.lsns[-1]
            try:
                await self.reach(last_lsn, sent.handle.deadline_s)
            except AlpoError as error:
                if sent.result is None:
                    handle = sent.handle
                    raise NotGuaranteed(
                        f"the command is in the log at LSN {last_lsn}, and its effect is not known yet: {error}",
                        client=handle.client, serial=handle.serial, epoch=handle.epoch,
                    ) from error
        return sent.result


def _failed(handle: Handle) -> bool:
    """True if an append is known not to be in the log under its serial."""
    return handle.done and handle.lsn is None and not isinstance(handle.error, NotGuaranteed)
