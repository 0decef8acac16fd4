"""Appends that wait to be sent for the first time: bounded in number and bytes, in the order they were asked for."""

from __future__ import annotations

from collections import deque

from alpo.errors import Overloaded

from .arguments import need_int
from .handle import Handle


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
