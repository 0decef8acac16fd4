"""`Loan`: an idle connection that its lender, an `Appender`, leaves to its callers, each of whom appends by himself.

Laws:

* Whoever holds its lock uses the connection, and its lender takes the lock for ever: then the threads are out. A task
  that waits holds no lock: the lender wakes it, and goes on once it is out.
* An append under way is in ``_under_way`` from before its first byte is sent until its outcome is known; who takes it
  out of there sees to it. So an exception in the caller (a signal's, at any place) loses none and doubles none.
* After an exception, or if a thread does not let go (a signal's handler that waits for this very log), nobody knows how
  much was sent or received: the connection is closed, and the append is sent again elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import anyio

from alpo.core.requests import Appended
from alpo.wire.client_codec import encode
from alpo.wire.requests import Append, ServerReply

from .arguments import Parcel, need_seconds
from .connection import Connection, Lost
from .handle import Handle

#: Payload bytes of a thread's own append: larger ones need not go into the kernel at once.
_OWN_BYTES_MAX = 64 * 1024
#: Longest wait of a thread until it looks whether the loan has ended. Seconds that the lender waits for a thread that
#: uses the connection at this moment; seconds without an append until an unused loan is taken back.
_LOOK_MS, _LET_GO_S, _UNUSED_S = 50, 0.25, 1.0
#: Seconds without an answer after which an append is taken back; and the shortest time until the deadline of a caller's
#: own append: the lender looks more often.
LONG_S = 0.25
_OWN_S_MIN = 2 * LONG_S
#: Makes the handle and the message of an append of this parcel, serial and deadline.
Maker: TypeAlias = Callable[[Parcel, int, float], tuple[Handle, Append]]


class Loan:
    """An idle connection in the hands of threads and tasks, which append by themselves, one at a time. ``serial``: the
    next; ``bytes_max``: size of a parcel that is not too large; ``give_back``: ends the loan."""

    def __init__(
        self, connection: Connection, make: Maker, serial: int, bytes_max: int, clock: Callable[[], float],
        timeout_s: float, give_back: Callable[[Loan], None],
    ) -> None:
        self.serial = serial
        #: Messages that a caller heard and left; and the end of the connection, if it met that.
        self.heard: list[ServerReply] = []
        self.lost: Lost | None = None
        self.ended = anyio.Event()
        self._connection = connection
        self._make = make
        self._bytes_max = min(bytes_max, _OWN_BYTES_MAX)
        self._clock = clock
        self._timeout_s = timeout_s
        self._give_back = give_back
        self._poll = connection.new_poll()
        self._lock = threading.Lock()
        self._under_way: list[Handle] = []
        self._over = self._broken = self._cut = False
        self.sent_s = clock()  # of the last append
        #: True while an append has been sent as a whole, and is to be answered; and while a task waits for that.
        self._waits = self._awaited = False

    def append(self, parcel: Parcel, timeout_s: float | None) -> Handle | None:
        """Append in this thread; None: that is for the lender to do. If the handle returned is not done, something
        unusual came: the append is the lender's once the loan has ended. Raises TypeError, ValueError."""
        if timeout_s is not None:
            need_seconds(timeout_s)
        inside = True
        try:
            handle = self._begin(parcel, timeout_s)
            inside = False
            while handle is not None and self._waits:
                self._poll.poll(_LOOK_MS)
                inside = True
                if not self._lock.acquire(blocking=False):
                    return handle
                self._waits = not self._over and not self._hear(handle)
                self._let_go()
                inside = False
            return handle
        except BaseException:
            self._broken = self._broken or inside
            raise

    async def append_here(self, parcel: Parcel, timeout_s: float | None) -> Handle | None:
        """Append as `append` does, in a task of the lender's loop; unless that is done, the loan has ended then."""
        if timeout_s is not None:
            need_seconds(timeout_s)
        inside, handle = True, None
        try:
            handle = self._begin(parcel, timeout_s)
            while handle is not None and self._waits:
                inside, self._awaited = False, True
                await self._connection.readable()
                inside, self._awaited = True, False
                self._waits = not self._over and not self._hear(handle)
        except Lost as lost:
            self.lost = self.lost if self._over else lost  # the lender has woken this task, if it is over
        except BaseException:
            self._broken = self._broken or inside
            raise
        finally:
            if handle is not None:
                self._awaited = False
            if self._over:
                self.ended.set()
            elif handle is None or handle.lsn is None:
                self._give_back(self)
        return handle

    def _begin(self, parcel: Parcel, timeout_s: float | None) -> Handle | None:
        """Send an append; None: that is for the lender to do."""
        if not self._lock.acquire(blocking=False):
            return None
        seconds = self._timeout_s if timeout_s is None else timeout_s
        unfit = parcel.size > self._bytes_max or seconds < _OWN_S_MIN
        busy = self._over or self._under_way or self.heard or self.lost
        if unfit or busy or (self._poll.poll(0) and self._listen()):
            self._let_go()
            return None
        self.sent_s = self._clock()
        handle, message = self._make(parcel, self.serial, self.sent_s + seconds)
        self._under_way.append(handle)
        if self._over and self._take() is not None:
            self._let_go()
            return None
        try:
            self._connection.send_now(encode(message, self._connection.version))
        except Lost as lost:
            self.lost = lost
        self._waits = self.lost is None and not self._connection.backlog
        self._let_go()
        return handle

    def _let_go(self) -> None:
        """Give the lock back."""
        self._lock.release()
        if self._cut:
            self._connection.sweep()

    def _listen(self) -> bool:
        """Receive what has come; True if that is anything, or the end."""
        try:
            self.heard = self._connection.receive_now()
        except Lost as lost:
            self.lost = lost
        return bool(self.heard) or self.lost is not None

    def _hear(self, handle: Handle) -> bool:
        """Hear the answer to an append; True if anything has come."""
        if not self._listen():
            return False
        answer = self.heard[0] if len(self.heard) == 1 else None
        if (
            type(answer) is Appended and len(answer.lsns) == 1
            and answer.serial == handle.serial and answer.client == handle.client
        ):
            self.serial = handle.serial + 1
            handle.finish(answer.lsns[0], answer.duplicate)
            self._under_way.clear()
            self.heard = []
        return True

    def left_s(self, now_s: float) -> float:
        """The seconds until it should end, if no other append is made: as it was not used, or an append takes long."""
        return self.sent_s + (LONG_S if self._under_way else _UNUSED_S) - now_s

    def end(self) -> Handle | None:
        """End it; returns the append under way, if there is one, for the lender to see to. For the lender's thread."""
        free = not self._broken and self._lock.acquire(timeout=_LET_GO_S)
        self._over = True
        if self._broken:
            self._connection.close()
        elif not free:  # the thread is inside, for longer than it should: a close might wait for it
            self._cut = True
            self._connection.cut()
            if self._lock.acquire(blocking=False):
                self._connection.sweep()
        elif not (self._under_way or self.heard or self.lost or self._connection.closed) and self._poll.poll(0):
            self._listen()  # a server that has gone is sent nothing more
        if not self._awaited:
            self.ended.set()
        elif not self._connection.closed:
            self._connection.disturb()
        return self._take()

    def _take(self) -> Handle | None:
        """Take the append under way out of there; None if another thread was faster, or there is none."""
        with suppress(IndexError):
            return self._under_way.pop()
        return None
