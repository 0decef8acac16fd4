"""Appends on their way: the queue of those never sent, the line of those with a serial, their outcomes, and what a
caller does with them.

Laws:

* The queue is bounded in number and bytes. What stands in the line is sent again on every new connection.
* An outcome is reported once. An error that no caller has seen is kept for closing; the outcome of an append that was
  reported as unknown is kept for `Log.settle`. The newest `KEPT_MAX` of each are kept.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import islice
from typing import Protocol

from alpo.errors import AlpoError, Closed, Overloaded, TooLarge, Unavailable
from alpo.wire.requests import ServerHello

from .arguments import BATCH_BYTES_MAX, PAYLOAD_BYTES_MAX, WINDOW, After, Parcel, Sizes, need_int
from .handle import REFUSED, REPORTED, RESOLVED, Handle
from .reasons import kind_of, unknown
from .tasks import Event


class Queue:
    """Appends that wait for their first transmission, in the order in which they were asked for.

    Bounded in number and bytes; an empty queue takes one append however large. ``handles`` and ``bytes`` belong
    together.
    """

    __slots__ = ("_bytes_max", "_count_max", "bytes", "handles")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        need_int(queue_max=count_max, queue_bytes_max=bytes_max)
        self.handles: deque[Handle] = deque()
        #: Bytes of all bodies together.
        self.bytes = 0
        self._count_max = count_max
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        return len(self.handles)

    def has_room(self, size: int) -> bool:
        """True if an append of ``size`` bytes may be added."""
        handles = self.handles
        return not handles or (len(handles) < self._count_max and self.bytes + size <= self._bytes_max)

    @property
    def half_empty(self) -> bool:
        """True if at most half of the room, in number and in bytes, is taken."""
        return len(self.handles) * 2 <= self._count_max and self.bytes * 2 <= self._bytes_max

    def add(self, handle: Handle, size: int) -> None:
        """Add an append at the end. Raises `Overloaded`. (Every append comes by here: the code is `has_room` without
        its call.)"""
        handles = self.handles
        if handles and (len(handles) >= self._count_max or self.bytes + size > self._bytes_max):
            raise Overloaded("the local queue is full: wait_room() waits for room")
        handles.append(handle)
        self.bytes += size

    def put_back(self, handle: Handle) -> None:
        """Put an append back to the head, where it was taken from."""
        self.handles.appendleft(handle)
        self.bytes += handle.parcel.size

    def take(self) -> Handle:
        """Remove and return the head."""
        handle = self.handles.popleft()
        self.bytes -= handle.parcel.size
        return handle

    def remove(self, handle: Handle) -> None:
        """Remove one append, wherever it stands."""
        self.handles.remove(handle)
        self.bytes -= handle.parcel.size

    def take_all(self) -> list[Handle]:
        """Remove and return all appends."""
        handles = list(self.handles)
        self.handles.clear()
        self.bytes = 0
        return handles

    def take_late(self, now_s: float) -> list[Handle]:
        """Remove and return the appends whose deadline has passed."""
        late = [h for h in self.handles if h.deadline_s <= now_s]
        if late:
            self.handles = deque(h for h in self.handles if h.deadline_s > now_s)
            self.bytes -= sum(h.parcel.size for h in late)
        return late


class Line:
    """Appends with a serial that are not settled: serials without gaps, but for an append that goes alone.

    ``bytes`` and ``sent`` belong to ``handles``.
    """

    __slots__ = ("bytes", "handles", "sent")

    def __init__(self) -> None:
        self.handles: deque[Handle] = deque()
        #: Bytes of all bodies together.
        self.bytes = 0
        #: The number of appends, from the head, that were sent on the present connection.
        self.sent = 0

    def __len__(self) -> int:
        return len(self.handles)

    def __iter__(self) -> Iterator[Handle]:
        return iter(self.handles)

    def __getitem__(self, at: int) -> Handle:
        return self.handles[at]

    def add(self, handle: Handle) -> None:
        """Add an append at the end."""
        self.handles.append(handle)
        self.bytes += handle.parcel.size

    def take_last(self) -> Handle:
        """Remove and return the last append, which no server can have taken."""
        handle = self.handles.pop()
        self.bytes -= handle.parcel.size
        return handle

    def named(self, serial: int, values: Sequence[int | None]) -> list[tuple[Handle, int | None]]:
        """The appends that an answer from ``serial`` on speaks of, each with its value."""
        if not self.handles:
            return []
        at = serial - self.handles[0].serial
        if at < 0:
            values, at = values[-at:], 0
        return list(zip(islice(self.handles, at, at + len(values)), values, strict=False))

    def unanswered(self) -> list[Handle]:
        """The appends sent on this connection that no answer has come for."""
        return [h for h in islice(self.handles, self.sent) if not h.state & (RESOLVED | REFUSED)]

    def send_again(self, bytes_max: int) -> list[Handle]:
        """The next frame's worth of appends not yet sent on this connection, counted as sent; empty if none is left."""
        run: list[Handle] = []
        size = passed = 0
        for handle in islice(self.handles, self.sent, None):
            if handle.state & RESOLVED:
                if run:
                    break
                passed += 1
                continue
            if run and size + handle.parcel.size > bytes_max:
                break
            run.append(handle)
            size += handle.parcel.size
        self.sent += passed + len(run)
        return run

    def rewind(self) -> None:
        """Note that all appends are to be sent again."""
        for handle in islice(self.handles, self.sent):
            handle.state &= ~REFUSED
        self.sent = 0

    def drop_settled_head(self) -> None:
        """Remove the resolved appends at the head."""
        handles = self.handles
        while handles and handles[0].state & RESOLVED:
            self.bytes -= handles.popleft().parcel.size
            self.sent -= 1
        self.sent = max(0, self.sent)

    def drop_settled(self) -> None:
        """Remove all resolved appends; the others are to be sent again."""
        self.handles = deque(h for h in self.handles if not h.state & RESOLVED)
        self.bytes = sum(h.parcel.size for h in self.handles)
        self.sent = 0

    def clear(self) -> None:
        self.handles.clear()
        self.bytes = self.sent = 0


KEPT_MAX = 1024


class Hearable(Protocol):
    """A handle, or a future of one. ``unheard``: the error that it ended with, as long as nobody was told."""

    @property
    def unheard(self) -> Exception | None: ...


class Unheard:
    """Handles and futures that failed, in order, as long as nobody was told: the newest `KEPT_MAX` at most."""

    def __init__(self) -> None:
        self._failed: list[Hearable] = []

    def __len__(self) -> int:
        return len(self._failed)

    def note(self, failed: Hearable) -> None:
        """Note a handle or future that ended with an error."""
        if failed.unheard is None:
            return
        if len(self._failed) == KEPT_MAX:  # half or more are dropped, so that this is rare
            self._failed = [each for each in self._failed if each.unheard is not None][-KEPT_MAX // 2 :]
        self._failed.append(failed)

    def take_first(self) -> Exception | None:
        """The first error that nobody was told, which counts as told now; None if there is none."""
        while self._failed:
            error = self._failed.pop(0).unheard
            if error is not None:
                return error
        return None


class Outcomes:
    """The outcomes of one client's appends, told to their handles or kept for `Log.settle`."""

    def __init__(self) -> None:
        #: The number of appends reported as unknown that have no outcome yet.
        self.unknown = 0
        self._settled: dict[int, int | None | AlpoError] = {}
        self.unheard = Unheard()

    def fail(self, handle: Handle, error: AlpoError) -> None:
        """Tell an append its error."""
        handle.fail(error)
        self.unheard.note(handle)

    def report(self, handle: Handle, text: str) -> None:
        """Tell an append that its outcome is unknown; it stays in the line."""
        handle.state |= REPORTED
        self.unknown += 1
        self.fail(handle, unknown(text, handle.client, handle.serial, handle.epoch))

    def resolve(self, handle: Handle, outcome: int | None | AlpoError, duplicate: bool = False) -> None:
        """Note the cluster's last word on an append, and tell it unless it was told "unknown" before."""
        if handle.state & RESOLVED:
            return
        handle.state |= RESOLVED
        if handle.state & REPORTED:
            self.unknown -= 1
            handle.last_word = (outcome,)
            self._settled[handle.serial] = outcome
            if len(self._settled) > KEPT_MAX:
                del self._settled[next(iter(self._settled))]
        elif isinstance(outcome, AlpoError):
            self.fail(handle, outcome)
        else:
            handle.finish(outcome, duplicate)

    def take_settled(self) -> dict[int, int | None | AlpoError]:
        """The outcomes, by serial, of appends that were told as unknown and were settled since the last call."""
        settled, self._settled = self._settled, {}
        return settled


class Pipeline:
    """The appends of one client as the caller sees them: queued, withdrawn, closed, and what ended them all.
    ``begin_wait``: what every handle calls when it is first waited for."""

    def __init__(self, queue_max: int, queue_bytes_max: int, begin_wait: Callable[[], Event]) -> None:
        self.queue = Queue(queue_max, queue_bytes_max)
        self.line = Line()
        #: Error that ended the session for good: `Fenced`, `Refused` or `Closed`; None while it takes appends.
        self.ended: AlpoError | None = None
        #: The error of appends that expire in the queue: it says why they were never sent.
        self.reason: AlpoError | None = None
        #: The time before which no append expires, seconds of the loop's clock.
        self.soonest_s = math.inf
        self.outcomes = Outcomes()
        self._begin_wait = begin_wait
        self._sizes = Sizes(WINDOW, PAYLOAD_BYTES_MAX, BATCH_BYTES_MAX)

    @property
    def sure_bytes(self) -> int:
        """Size in bytes up to which no parcel can be too large."""
        return self._sizes.sure_bytes

    def append(self, parcel: Parcel, wanted: int | After, sparse: bool, deadline_s: float) -> Handle:
        """Queue an append and return its handle. Raises `TooLarge`, `Overloaded` (no room), or what ended the session.
        """
        if self.ended is not None:
            raise copy(self.ended)
        size = parcel.size
        if size > self._sizes.sure_bytes:
            self._sizes.check(parcel)
        handle = Handle(parcel, wanted, sparse, deadline_s, self._begin_wait)
        self.queue.add(handle, size)
        if deadline_s < self.soonest_s:
            self.soonest_s = deadline_s
        return handle

    def withdraw(self, handle: Handle) -> None:
        """Forget an append that nobody waits for any more, if it is still in the queue."""
        if not handle.done and handle.serial == 0:
            self.queue.remove(handle)
            self.outcomes.fail(handle, Unavailable("withdrawn before it was sent"))

    @property
    def idle(self) -> bool:
        """True if nothing is queued and nothing unresolved."""
        return not self.queue.handles and not self.line.handles

    @property
    def has_more(self) -> bool:
        """True if something was not sent on this connection."""
        return bool(self.queue.handles) or self.line.sent < len(self.line.handles)

    @property
    def told(self) -> bool:
        """True if every append has an outcome, "unknown" included."""
        return not self.queue and all(h.done for h in self.line)

    def close(self, why: str) -> Exception | None:
        """End the session and all its appends; returns the first error that nobody was told, or None."""
        for handle in self.queue.take_all():
            self.outcomes.fail(handle, Closed("closed before it was sent"))
        for handle in self.line:
            if not handle.done:
                self.outcomes.report(handle, "closed before it was answered")
        self.line.clear()
        self.ended = self.ended if isinstance(self.ended, Closed) else Closed(why)
        return self.outcomes.unheard.take_first()

    def leave(self, error: Closed) -> None:
        """End the session in a forked child: its appends are the parent's."""
        self.ended = error
        for handle in [*self.queue.take_all(), *self.line]:
            handle.leave(copy(error))
        self.line.clear()

    def unavailable(self, what: str) -> AlpoError:
        """The error for what was not done, with the last known reason."""
        if self.reason is None:
            return Unavailable(what)
        return kind_of(self.reason)(f"{what}: {self.reason}")

    def limit(self, hello: ServerHello) -> None:
        """Take a server's limits; queued appends that are over the limits fail."""
        self._sizes = Sizes.of(hello)
        for handle in list(self.queue.handles):
            try:
                self._sizes.check(handle.parcel)
            except TooLarge as error:
                self.queue.remove(handle)
                self.outcomes.fail(handle, error)

    def refuse_all(self, error: AlpoError) -> None:
        """Fail all queued appends: the session could not be opened. Later appends try again."""
        for handle in self.queue.take_all():
            self.outcomes.fail(handle, copy(error))
