"""Counts of what a server has done since its start, for `/metrics`: plain numbers, kept by whoever does the work.

Laws:

* Counting takes no lock and no time worth naming: it comes with groups of requests, and nobody waits for it.
* Counts are this process's own, and never go back. Present states (who leads, how far) are not here: they are read when
  somebody asks.
* All are for the Trio thread, except `Traffic`, which a link changes under its own lock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from alpo.core.disk import Write
from alpo.core.requests import Code
from alpo.storage.timings import Histogram

#: Elections that are remembered.
ELECTIONS_KEPT = 20
#: Label of the codes with which an append may be refused; all others count as "refused".
REFUSALS = {
    Code.FENCED: "fenced", Code.TOO_LARGE: "too_large", Code.NO_SPACE: "no_space", Code.OVERLOADED: "overloaded",
    Code.LOST_LEADERSHIP: "lost_leadership", Code.CONFLICT: "conflict",
}


class Traffic:
    """Bytes of one connection, or of all connections to one server in one direction of dialling."""

    __slots__ = ("received_bytes", "sent_bytes")

    def __init__(self) -> None:
        self.sent_bytes = self.received_bytes = 0


class Election(NamedTuple):
    """A change of leader as this server saw it. ``leaderless_ms``: None if unknown. ``why``: in words, "" if this
    server noticed nothing before."""

    time_ms: int
    term: int
    leader: int
    planned: bool
    why: str
    leaderless_ms: int | None


class Elections:
    """Changes of leader, made of this server's events, of which each is told once."""

    def __init__(self, me: int) -> None:
        self._me = me
        self.recent: deque[Election] = deque(maxlen=ELECTIONS_KEPT)
        self.won = 0
        self.changes = 0
        #: Changes that, as far as this server knows, neither an operator nor a stopping leader asked for.
        self.unplanned = 0
        self._seen = (0, 0)  # term and leader of the last change
        self._why, self._planned = "", False
        self._since_ms: int | None = None  # time when the last leader was found missing

    def hear(self, name: str, fields: Mapping[str, Any], now_ms: int) -> None:
        """Take an event."""
        if name == "canvass":
            self._missing(now_ms - int(fields.get("silent_ms") or 0), f"no leader for {fields.get('silent_ms')} ms")
        elif name == "leader_gone":
            self._missing(now_ms, f"the process of server {fields.get('leader')} was gone")
        elif name in ("leader_lost_majority", "leader_gives_up"):
            self._missing(now_ms, "the leader lost its majority" if "lost" in name else "the leader gave up: its disk")
        elif name == "handing_over" or (name == "candidate" and fields.get("handed_over") is True):
            self._missing(now_ms, "the leader handed over")
            self._planned = True
        elif name == "leader":
            self._changed(int(fields["term"]), self._me, now_ms)
        elif name == "following":
            self._changed(int(fields["term"]), int(fields["leader"]), now_ms)

    def _missing(self, since_ms: int, why: str) -> None:
        if self._since_ms is None:
            self._since_ms, self._why = since_ms, why

    def _changed(self, term: int, leader: int, now_ms: int) -> None:
        if (term, leader) != self._seen and term >= self._seen[0]:
            since_ms = self._since_ms
            gap_ms = max(0, now_ms - since_ms) if since_ms is not None else None
            self.recent.append(Election(now_ms, term, leader, self._planned, self._why, gap_ms))
            self.changes += self._seen[0] > 0
            self.unplanned += self._seen[0] > 0 and not self._planned
            self.won += leader == self._me
            self._seen = term, leader
        self._since_ms, self._why, self._planned = None, "", False


@dataclass(slots=True)
class Counters:
    """All counts of one server. Keys of the `Counter`s are label values."""

    elections: Elections
    events: Counter[str] = field(default_factory=Counter)
    #: Appends (a payload, or an atomic batch) by result: appended, duplicate, refused, fenced …
    appends: Counter[str] = field(default_factory=Counter)
    append_s: Histogram = field(default_factory=Histogram)
    #: Numbers of what became guaranteed while this server led.
    appended_entries: int = 0
    appended_payloads: int = 0
    appended_bytes: int = 0
    reads: Counter[str] = field(default_factory=Counter)
    read_bytes: int = 0
    read_s: Histogram = field(default_factory=Histogram)
    #: Connections turned away, by reason.
    connections_refused: Counter[str] = field(default_factory=Counter)
    #: Handshakes of connections taken, by result: ok, failed, left (broken off by the other side).
    handshakes: Counter[str] = field(default_factory=Counter)
    #: Requests over HTTP by (path, status).
    http: Counter[tuple[str, str]] = field(default_factory=Counter)
    sessions_ended: int = 0
    #: Times that a connection began to wait for its client's quota.
    quota_waits: int = 0
    loop_lag_s: Histogram = field(default_factory=Histogram)
    #: False from a failed reading of new certificates to the next one that succeeds.
    certificates_read: bool = True
    #: Traffic with each server: over connections dialled, and over those taken from it.
    traffic: dict[int, tuple[Traffic, Traffic]] = field(default_factory=dict)
    peer_connections: Counter[int] = field(default_factory=Counter)

    def traffic_with(self, id: int) -> tuple[Traffic, Traffic]:
        """Traffic with server ``id``: over the connection dialled, and over the one taken from it."""
        return self.traffic.setdefault(id, (Traffic(), Traffic()))

    def hear(self, name: str, fields: Mapping[str, Any], now_ms: int) -> None:
        """Take an event, kept or not."""
        self.events[name] += 1
        self.elections.hear(name, fields, now_ms)
        if name == "peer_connected":
            self.peer_connections[int(fields["peer"])] += 1
        elif name in ("tls_reloaded", "tls_reload_failed"):
            self.certificates_read = name == "tls_reloaded"

    def wrote(self, write: Write) -> None:
        """Take a write that leaves for the disk."""
        if write.table is not None:
            self.sessions_ended += len(write.table.ended)
