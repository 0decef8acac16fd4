"""`Replicated`: what users hold of a machine that is folded from the log, whatever it is: its beginning and end, the
machine as new as asked for, commands and their outcomes, snapshots, and the first write, which founds the machine.

Laws:

* A command is sent once: the log makes it land once, and its outcome is what the fold says at that LSN.
* What was acknowledged to anybody before a read begins is in what the read sees.
* A machine is founded at most once, by the first write of a program that may.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import anyio

from alpo.client.arguments import need_seconds
from alpo.client.handle import Handle
from alpo.client.log import Log
from alpo.client.reasons import kind_of
from alpo.client.tasks import News
from alpo.errors import AlpoError, Closed, NotGuaranteed, Overloaded, Unavailable

from .errors import Diverged, NewerVersion, NotFounded, WrongState
from .folder import Folder, Sent, W
from .machine import Outcome, Result, time_of
from .outcomes import Settling
from .parts import M
from .payloads import ID_BYTES, INT_MAX
from .snapshots import Keeper, SnapshotInfo

R = TypeVar("R", bound="Replicated[Any, Any]")
#: Longest wait, of one that is left, for what its last tasks still have to do.
LAST_S = 2.0


class Replicated(Generic[M, W]):
    """The machine in the log of ``folder``, for one event loop: in another, every call raises RuntimeError.

    Use it in ``async with``; or as it is, and await `close` at the end: then its tasks begin with the first call, and
    end with the loop at the latest. It may be entered, used and left by different tasks.

    ``judge``: as of `Settling`. ``create``: the first write founds the machine if the log holds none. ``auto``: this
    process keeps the log short.
    """

    def __init__(
        self, folder: Folder[M, W], judge: Callable[[Sent, M | None, int], Result], *, create: bool, auto: bool
    ) -> None:
        self._log: Log = folder.log
        self._folder = folder
        self._create = create
        self._keeper = Keeper(folder, auto)
        self._owns_log = False
        self._entered = self._left = False
        self._founding = anyio.Lock()
        self._settling = Settling(folder, judge)
        #: Tasks that leaving waits for, `LAST_S` at most; told when one ends.
        self._last = 0
        self._last_done = News()
        #: Asked for before the first write; 0 until then.
        self._payload_bytes_max = 0

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RuntimeError(f"a {self._folder.kind.title} is entered once")
        self._entered = True
        if self._owns_log:
            await self._log.__aenter__()
        self._folder.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._finish()
        finally:
            if self._owns_log:
                await self._log.__aexit__(kind, error, trace)

    async def close(self) -> None:
        """Close, as leaving the ``async with`` does; may be called again, and from any task of the loop. Raises as
        `Log.close`, if `connect` made this."""
        await self.__aexit__(None, None, None)

    async def _finish(self) -> None:
        """End every task, once the last have done their work, and write the cache."""
        folder = self._folder
        if self._log.forked:
            return
        folder.tasks.need_home()
        first, self._left = not self._left, True
        try:
            with self._log.clock.move_on_after(LAST_S, shield=True):
                while self._last:
                    await self._last_done.wait()
        finally:
            folder.fail(Closed(folder.kind.ended))
            await folder.tasks.end()
        machine, sound = folder.machine, not isinstance(folder.failure, Diverged | NewerVersion | WrongState)
        if folder.cache is not None and machine is not None and first and sound:
            await folder.cache.put(bytes.fromhex(self._log.cluster), machine)
        if folder.cache is not None and isinstance(folder.failure, Diverged):
            folder.cache.drop()  # the machine may have come from it

    @property
    def log(self) -> Log:
        """The log that holds this."""
        return self._log

    @property
    def lsn(self) -> int:
        """The LSN up to which this process has folded the log; 0 before it has begun."""
        return 0 if self._folder.machine is None else self._folder.machine.lsn

    @property
    def time(self) -> datetime:
        """The time of the entry at `lsn`, on the log's clock."""
        return time_of(0 if self._folder.machine is None else self._folder.machine.time_ms)

    async def snapshot(self, *, trim: bool = False) -> SnapshotInfo:
        """Put all of it into the log now, so that newcomers need nothing older; ``trim``: and let go what is older than
        the snapshot before it, unless the log holds payloads of others.

        Raises `Busy` if another process does so, `NotFounded`, `Diverged`, `Unsettled`; `Refused` for a trim; and as
        `Log.append`. Whatever it raises, no harm is done.
        """
        return await self._keeper.snapshot(trim)

    async def settle(self) -> dict[int, int | AlpoError]:
        """Wait until every write that was told as `NotGuaranteed` has an outcome; returns those that came since the
        last call: serial -> LSN, or the error that it ended with. Raises `Unavailable` at the deadline: what is
        known by then stays for the next call."""
        return await self._settling.settle()

    # -- for libraries built on it --------------------------------------------------------------------------

    @property
    def timeout_s(self) -> float:
        """The seconds until each call ends; may be set, for calls that begin later."""
        return self._folder.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float) -> None:
        need_seconds(timeout_s)
        self._folder.timeout_s = timeout_s

    async def folded(
        self, *, local: bool = False, at_least: int | None = None, until_s: float | None = None
    ) -> M:
        """The fold itself, not to be changed. Linearizable; or ``local``: as this process has folded it, without a
        message; or ``at_least``: not older than that LSN. ``until_s``: a time of the log's clock (None: the timeout
        from now). Raises `Unavailable`, and what ended the folding (`Unrecoverable`, `NewerFormat`, `Diverged`,
        `WrongState`, `Closed`); ValueError."""
        if at_least is not None:
            if not isinstance(at_least, int) or isinstance(at_least, bool) or not 0 <= at_least <= INT_MAX:
                raise ValueError(f"at_least is an LSN, not {at_least!r}")
            machine = await self._folder.reach(at_least, until_s)
        else:
            machine = await (self._folder.reach(0, until_s) if local else self._folder.now(until_s))
        if not self._create and not machine.founded:
            noun = self._folder.kind.noun
            raise NotFounded(f"this log holds no {noun}: the first write of a program that may create one makes it")
        return machine

    def subscribe(self, watcher: W) -> None:
        """Call ``watcher`` for every change from now on, in the middle of folding: it must be quick, and wait for
        nothing."""
        self._folder.watch(watcher)

    def unsubscribe(self, watcher: W) -> None:
        """Call ``watcher`` no more."""
        self._folder.unwatch(watcher)

    def start_soon(self, job: Callable[[], Coroutine[Any, Any, None]], *, last: bool = False) -> None:
        """Start a task that ends with this at the latest; ``last``: leaving waits a moment for it."""
        self._folder.open()
        self._folder.tasks.start_soon(partial(self._run_last, job) if last else job)

    async def _run_last(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._last += 1
        try:
            await job()
        finally:
            self._last -= 1
            self._last_done.tell()

    def need_home(self) -> None:
        """Raise RuntimeError in another event loop than this one's own."""
        self._folder.tasks.need_home()

    def in_doubt(self) -> list[Handle]:
        """The appends of writes that were sent, and whose effect is not known."""
        return self._folder.in_doubt()

    def close_at_once(self) -> bool:
        """Close without waiting, if no task was started yet. False: `close` does it."""
        if self._folder.tasks.started:
            return False
        self._folder.fail(Closed(self._folder.kind.ended))
        return True

    # -- for subclasses -------------------------------------------------------------------------------------

    @abstractmethod
    def _founding_payload(self, id: bytes) -> bytes:
        """The payload that founds a machine of this id."""

    def _left_s(self, until_s: float) -> float:
        """The seconds until then, on the log's clock; not 0, which is no timeout."""
        return max(0.001, until_s - self._log.clock.now_s())

    @property
    def _ready(self) -> bool:
        """True if a write may be sent: the machine is founded, and the size of payloads known."""
        machine = self._folder.machine
        return machine is not None and machine.founded and bool(self._payload_bytes_max)

    async def _make_ready(self, until_s: float, refuse: Callable[[], None]) -> None:
        """Found the machine, unless the log holds one already; ``refuse`` may raise why the write that is to follow
        could not be done in a new one. Raises `NotFounded` if this program must not, `Unavailable` at the deadline."""
        mine = False
        with self._log.clock.move_on_after(self._left_s(until_s)):
            await self._founding.acquire()
            mine = True
        if not mine:
            noun, reason = self._folder.kind.noun, self._log.reason
            raise kind_of(reason)(f"the {noun} could not be founded in time: {reason or 'no answer'}")
        try:
            if not self._payload_bytes_max:
                settings = await self._log.settings(self._left_s(until_s))
                self._payload_bytes_max = int(settings["payload_bytes_max"])
            if not (await self.folded(until_s=until_s)).founded:
                refuse()
                await self._found(until_s)
        finally:
            self._founding.release()

    async def _found(self, until_s: float) -> None:
        """Found the machine. Raises `Unavailable` at the deadline."""
        folder, kind, id = self._folder, self._folder.kind, self._log.clock.rng.randbytes(ID_BYTES)
        try:
            sent = folder.enter([self._founding_payload(id)], timeout_s=self._left_s(until_s))
            result = await folder.result_of(sent)
        except NotGuaranteed as error:  # the write itself was not sent
            raise Unavailable(f"the {kind.noun} could not be founded in time: {error}") from error
        if result is not None and result.outcome is Outcome.FOUNDED:
            await self._log.set_cursor(kind.cursor, result.lsn, self._left_s(until_s))

    async def _send(self, payloads: Sequence[bytes], about: object, until_s: float | None) -> Sent:
        """Append a command, once there is room; ``until_s``: its deadline (None: the timeout from now). Raises
        `Unavailable` if there is no room in time; as `Folder.enter`."""
        folder = self._folder
        while True:
            try:
                timeout_s = folder.timeout_s if until_s is None else self._left_s(until_s)
                return folder.enter(payloads, about, timeout_s=timeout_s)
            except Overloaded:
                until_s = folder.until_s() if until_s is None else until_s
                room = False
                with self._log.clock.move_on_after(self._left_s(until_s)):
                    await self._log.wait_room()
                    room = True
                if not room:
                    raise Unavailable(
                        "there was no room in the local queue in time: nothing was written"
                    ) from None


def owning(it: R) -> R:
    """``it``, from now on the one that enters its log, and leaves it."""
    it._owns_log = True
    return it
