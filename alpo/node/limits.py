"""Every bound of the shell in one place; each has a clear outcome when it is reached (docs/operations.md)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes are bytes, times seconds. The first five are configurable, the rest follow or are fixed."""

    #: Clients that said hello; one more is told OVERLOADED. Peers are not counted.
    client_connections_max: int = 1000
    #: A connection that has not said hello by then is closed.
    hello_timeout_s: float = 5.0
    #: Appends taken and not yet guaranteed, all clients together: above it no client is read from.
    inflight_bytes_max: int = 64 << 20
    #: Appends of one connection without an answer: above it that connection is not read from.
    connection_inflight_max: int = 4096
    #: One frame; must hold the largest batch.
    frame_bytes_max: int = 16 << 20
    #: Connections that have not said hello yet: one more, and the oldest of them is closed.
    silent_connections_max: int = 512
    #: Numbered requests (reads, opens …) of one connection under way: one more is refused OVERLOADED.
    connection_requests_max: int = 64
    #: Answers waiting for a client to read them: above it that connection is not read from, and gets no page.
    client_outbox_bytes_high: int = 1 << 20
    #: One page of a read.
    page_bytes_max: int = 1 << 20
    #: Threads that read from the store at the same time.
    read_threads: int = 3
    #: Longest long poll, whatever was asked for.
    poll_s_max: float = 60.0

    @property
    def outbox_bytes_max(self) -> int:
        """What may wait for one connection at all: more, and it is closed. Never reached by one that reads."""
        return 2 * self.frame_bytes_max
