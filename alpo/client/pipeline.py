"""Appends on their way: those that wait to be sent for the first time, and those with a serial that are not settled.

The first are bounded in number and bytes, in the order they were asked for. The others go out again on every new
connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from alpo.errors import Overloaded

from .arguments import need_int
from .handle import REFUSED, RESOLVED, Handle


class Queue:
    """One append is always taken, however large; ``handles`` and ``bytes`` belong together."""

    __slots__ = ("_bytes_max", "_count_max", "bytes", "handles")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        need_int(queue_max=count_max, queue_bytes_max=bytes_max)
        self.handles: deque[Handle] = deque()
        #: Of all bodies together.
        self.bytes = 0
        self._count_max = count_max
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        return len(self.handles)

    def has_room(self, size: int) -> bool:
        """May an append of ``size`` bytes be added?"""
        handles = self.handles
        return not handles or (len(handles) < self._count_max and self.bytes + size <= self._bytes_max)

    @property
    def half_empty(self) -> bool:
        """Is there room for many?"""
        return len(self.handles) * 2 <= self._count_max and self.bytes * 2 <= self._bytes_max

    def add(self, handle: Handle, size: int) -> None:
        """At the end. Raises `Overloaded`. (Every append comes by here: `has_room`, without its call.)"""
        handles = self.handles
        if handles and (len(handles) >= self._count_max or self.bytes + size > self._bytes_max):
            raise Overloaded("the local queue is full: wait_room() waits for room")
        handles.append(handle)
        self.bytes += size

    def put_back(self, handle: Handle) -> None:
        """To the head: it was taken from there."""
        self.handles.appendleft(handle)
        self.bytes += handle.parcel.size

    def take(self) -> Handle:
        """The head."""
        handle = self.handles.popleft()
        self.bytes -= handle.parcel.size
        return handle

    def remove(self, handle: Handle) -> None:
        self.handles.remove(handle)
        self.bytes -= handle.parcel.size

    def take_all(self) -> list[Handle]:
        handles = list(self.handles)
        self.handles.clear()
        self.bytes = 0
        return handles

    def take_late(self, now_s: float) -> list[Handle]:
        """Those whose deadline has passed."""
        late = [h for h in self.handles if h.deadline_s <= now_s]
        if late:
            self.handles = deque(h for h in self.handles if h.deadline_s > now_s)
            self.bytes -= sum(h.parcel.size for h in late)
        return late


class Line:
    """Serials without gaps, but for a request that goes alone. ``bytes`` and ``sent`` belong to ``handles``."""

    __slots__ = ("bytes", "handles", "sent")

    def __init__(self) -> None:
        self.handles: deque[Handle] = deque()
        #: Of all bodies together.
        self.bytes = 0
        #: How many, from the head, were sent on the present connection.
        self.sent = 0

    def __len__(self) -> int:
        return len(self.handles)

    def __iter__(self) -> Iterator[Handle]:
        return iter(self.handles)

    def __getitem__(self, at: int) -> Handle:
        return self.handles[at]

    def add(self, handle: Handle) -> None:
        """At the end."""
        self.handles.append(handle)
        self.bytes += handle.parcel.size

    def take_last(self) -> Handle:
        """The end, which nobody can have taken."""
        handle = self.handles.pop()
        self.bytes -= handle.parcel.size
        return handle

    def named(self, serial: int, values: list[int] | list[None]) -> list[tuple[Handle, int | None]]:
        """Those that an answer from ``serial`` on speaks of, each with its value."""
        if not self.handles:
            return []
        at = serial - self.handles[0].serial
        if at < 0:
            values, at = values[-at:], 0
        return list(zip(islice(self.handles, at, at + len(values)), values, strict=False))

    def unanswered(self) -> list[Handle]:
        """Those sent on this connection that no answer has come for."""
        return [h for h in islice(self.handles, self.sent) if not h.state & (RESOLVED | REFUSED)]

    def send_again(self, bytes_max: int) -> list[Handle]:
        """The next frame's worth of those not yet sent on this connection, counted as sent; empty: nothing is left."""
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
        """All is to be sent again."""
        for handle in islice(self.handles, self.sent):
            handle.state &= ~REFUSED
        self.sent = 0

    def drop_settled_head(self) -> None:
        """Let go of what is resolved at the head."""
        handles = self.handles
        while handles and handles[0].state & RESOLVED:
            self.bytes -= handles.popleft().parcel.size
            self.sent -= 1
        self.sent = max(0, self.sent)

    def drop_settled(self) -> None:
        """Let go of what is resolved, behind others too; what stays is to be sent again."""
        self.handles = deque(h for h in self.handles if not h.state & RESOLVED)
        self.bytes = sum(h.parcel.size for h in self.handles)
        self.sent = 0

    def clear(self) -> None:
        self.handles.clear()
        self.bytes = self.sent = 0
