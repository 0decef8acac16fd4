"""Every bound of the shell in one place; each has a clear outcome when it is reached (docs/operations.md)."""

from __future__ import annotations

from dataclasses import dataclass

from alpo.core.settings import BATCH_BYTES_MOST, Settings
from alpo.storage.scrub import ScrubMark
from alpo.wire.framing import frame_bytes_max


@dataclass(slots=True)
class Limits:
    """Bytes are bytes, times seconds. The first six are configurable, and may change while the server runs; the rest
    are fixed."""

    #: Clients that said hello; one more is told OVERLOADED. Peers are not counted.
    client_connections_max: int = 1000
    #: A connection that has not said hello by then is closed.
    hello_timeout_s: float = 5.0
    #: Appends taken and not yet guaranteed, all clients together: above it no client is read from.
    inflight_bytes_max: int = 64 << 20
    #: Appends of one connection without an answer: above it that connection is not read from.
    connection_inflight_max: int = 4096
    #: Read from the log for servers that are behind, all together; 0: no bound.
    catch_up_bytes_per_s: int = 24 << 20
    #: Read column by column while appends come, all together, an entry weighing `bulk.ENTRY_BYTES` more; 0: no bound.
    bulk_read_bytes_per_s: int = 192 << 20
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

    def take(self, fresh: Limits) -> None:
        """What is configurable as ``fresh`` has it, for all who hold this object."""
        for name in LIVE_LIMITS:
            setattr(self, name, getattr(fresh, name))


#: Those that are configurable.
LIVE_LIMITS = (
    "client_connections_max", "hello_timeout_s", "inflight_bytes_max", "connection_inflight_max",
    "catch_up_bytes_per_s", "bulk_read_bytes_per_s",
)


@dataclass(frozen=True, slots=True)
class DiskCare:
    """What is watched of this server's disk; 0: not. ``mark``: where the scrub remembers how far it has come."""

    low_water_bytes: int = 0
    scrub_bytes_per_s: int = 0
    mark: ScrubMark | None = None
    #: How long a pass of the scrub, and of the comparison, takes.
    scrub_pass_s: float = 86_400.0


NO_CARE = DiskCare()

#: The longest frame that a member may send another, and a server a client: entries that are in the log already may be
#: larger than the limits of today.
FRAME_BYTES_MOST = frame_bytes_max(BATCH_BYTES_MOST)
#: What may wait for one client at all: more, and its connection is closed. Never reached: of one that does not read
#: nothing is read, and no page is made for it.
OUTBOX_BYTES_MOST = 2 * FRAME_BYTES_MOST


def frame_bytes(settings: Settings) -> int:
    """The longest frame that is taken from clients, and from servers that are not listed, once the hello is through: it
    holds the largest batch that clients may append at present."""
    return frame_bytes_max(settings.batch_bytes_max)
