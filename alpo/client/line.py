"""Requests that have a serial, from the first that is not settled: what goes out again on every new connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from .handle import REFUSED, RESOLVED, Handle


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
