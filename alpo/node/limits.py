"""All bounds of the node in one place; docs/operations.md tells what happens at each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from alpo.core.settings import BATCH_BYTES_MOST, Settings
from alpo.storage.scrub import ScrubMark
from alpo.wire.framing import frame_bytes_max


@dataclass(slots=True)
class Limits:
    """The bounds. The first six are configurable, and may change while the server runs; the others are fixed."""

    #: Clients that have said hello; one more is refused with OVERLOADED. Peers are not counted.
    client_connections_max: int = 1000
    #: Seconds after which a connection that has not said hello is closed.
    hello_timeout_s: float = 5.0
    #: Bytes of appends taken and not yet guaranteed, of all clients; above it no more are taken.
    inflight_bytes_max: int = 12 << 20
    #: Unanswered appends of one connection; above it that connection is not read from.
    connection_inflight_max: int = 4096
    #: Rate of reading the log for servers that are behind, all together; 0: no bound.
    catch_up_bytes_per_s: int = 24 << 20
    #: Rate of reads in columns while appends come, all together; an entry counts `throttle.ENTRY_BYTES` more; 0: no
    #: bound.
    bulk_read_bytes_per_s: int = 192 << 20
    #: Connections that have not said hello yet, or were turned away; one more closes the oldest.
    silent_connections_max: int = 512
    #: Clients beyond `client_connections_max` that an operator, or another server, may have.
    operator_connections_max: int = 16
    #: Connections to the HTTP port.
    visitor_connections_max: int = 64
    #: Numbered requests (reads, opens …) of one connection under way; one more is refused with OVERLOADED.
    connection_requests_max: int = 64
    #: Bytes of answers that a client has not read; above it that connection is not read from, and gets no page.
    client_outbox_bytes_high: int = 1 << 20
    #: Bytes of one page of a read.
    page_bytes_max: int = 1 << 20
    #: Threads that read from the store at the same time.
    read_threads: int = 3
    #: Longest long poll, whatever the client asked for.
    poll_s_max: float = 60.0

    def take(self, fresh: Limits) -> None:
        """Copy the configurable bounds from ``fresh``, and those that follow from them (`fitted`)."""
        for name in (*LIVE_LIMITS, "silent_connections_max", "operator_connections_max", "visitor_connections_max"):
            setattr(self, name, getattr(fresh, name))


#: Names of the configurable bounds.
LIVE_LIMITS = (
    "client_connections_max", "hello_timeout_s", "inflight_bytes_max", "connection_inflight_max",
    "catch_up_bytes_per_s", "bulk_read_bytes_per_s",
)


#: Files of a server's own: the store and its readers, logs, listening sockets. For each other member: a connection in
#: each direction, and one for questions.
OWN_FILES, MEMBER_FILES = 20, 3


def fitted(limits: Limits, files: int, others: int) -> Limits:
    """Bounds on connections that ``files`` open files suffice for, beside what the server and its ``others`` need: a
    crowd of clients takes no member's place. The same object if they do already."""
    room = max(files - OWN_FILES - MEMBER_FILES * max(others, 2), 8)
    wanted = (
        limits.client_connections_max + limits.silent_connections_max + limits.operator_connections_max
        + limits.visitor_connections_max
    )
    if wanted <= room:
        return limits
    silent = min(limits.silent_connections_max, room // 4)
    operators = min(limits.operator_connections_max, room // 8)
    visitors = min(limits.visitor_connections_max, room // 8)
    return replace(
        limits, client_connections_max=min(limits.client_connections_max, room - silent - operators - visitors),
        silent_connections_max=silent, operator_connections_max=operators, visitor_connections_max=visitors,
    )


@dataclass(frozen=True, slots=True)
class DiskCare:
    """Checks of this server's disk to make; 0 or None: not this one. ``mark``: file with the scrub's position."""

    low_water_bytes: int = 0
    scrub_bytes_per_s: int = 0
    mark: ScrubMark | None = None
    #: Duration of a pass of the scrub, and of the comparison.
    scrub_pass_s: float = 86_400.0


NO_CARE = DiskCare()

#: Longest frame between members, and from a server to a client: entries already in the log may be larger than the
#: present limits allow.
FRAME_BYTES_MOST = frame_bytes_max(BATCH_BYTES_MOST)
#: Bytes that may wait for one client; above it the connection is closed. Never reached in practice: a client that does
#: not read is not read from, and no page is made for it.
OUTBOX_BYTES_MOST = 2 * FRAME_BYTES_MOST


def frame_bytes(settings: Settings) -> int:
    """Longest frame that clients and unlisted servers may send after the hello: it holds the largest batch allowed at
    present."""
    return frame_bytes_max(settings.batch_bytes_max)
