"""The metrics at `/metrics`: which there are, and their present values, read when Prometheus asks.

`FAMILIES` lists all; docs/generated/metrics.md prints it. No label is anything that clients choose: those could be any
number. Metrics that only a leader knows are absent on all other servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from alpo._version import __version__
from alpo.core.messages import Room
from alpo.node.driver import wall_ms
from alpo.node.event_log import dropped_lines
from alpo.node.report import Lookups, Report
from alpo.storage.timings import Histogram
from alpo.wire.requests import VERSION

Value: TypeAlias = float | Histogram
#: Label values, and the value.
Sample: TypeAlias = tuple[tuple[str, ...], Value]


class Family(NamedTuple):
    """One metric: its name after ``alpo_``, its type, its labels and its meaning."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def _family(name: str, help: str, *labels: str, kind: str = "gauge") -> Family:
    return Family(name, "counter" if name.endswith("_total") else kind, labels, help)


FAMILIES = (
    _family("info", "1; its labels tell which server this is", "version", "cluster_id", "server_id", "protocol"),
    # -- leadership
    _family("is_leader", "1 if this server leads"),
    _family("has_leader", "1 if this server leads, or heard its leader within an election timeout"),
    _family("voting", "1 if this server takes part as a voter"),
    _family("term", "the term that this server is in"),
    _family("elections_won_total", "elections that this server won"),
    _family("leader_changes_total", "changes of the leader or its term, as this server saw them"),
    _family("unplanned_elections_total", "changes of the leader for which nobody had handed over"),
    _family("appends_work", "1 if as many voters as appends need answer, take entries and write; only from the leader"),
    _family("failures_tolerable", "voters that may fail now before appends stop; only from the leader"),
    _family("members", "members in the list", "role"),
    _family("members_reachable", "members with a full connection to this server, this one included", "role"),
    # -- the log
    _family("first_lsn", "the first payload that can be read"),
    _family("last_lsn", "the last payload in this server's log; its rate is payloads a second"),
    _family("guaranteed_lsn", "the last payload that this server knows to be guaranteed"),
    _family("fully_replicated_lsn", "the last payload that every member is known to hold"),
    _family("last_id", "the last entry in this server's log"),
    _family("guaranteed_id", "the last entry that this server knows to be guaranteed"),
    _family("log_ahead_seconds", "how much later the last entry is dated than this server's clock; 0 if it is not"),
    _family("clocks_leapt_seconds", "how far the members' clocks have leapt ahead, and are not believed; only from the "
            "leader"),
    _family("appended_entries_total", "entries that became guaranteed while this server led"),
    _family("appended_payloads_total", "payloads that became guaranteed while this server led"),
    _family("appended_bytes_total", "bytes of the requests that were appended while this server led"),
    _family("append_requests_total", "appends (a payload, or an atomic batch) answered, by result", "result"),
    _family("append_duration_seconds", "from an append's arrival, or its turn under a quota, until it was guaranteed",
            kind="histogram"),
    _family("commit_duration_seconds", "from handing a write to the disk's queue until it was durable",
            kind="histogram"),
    _family("fsync_duration_seconds", "one transaction on disk, with its fsync", kind="histogram"),
    _family("batch_entries", "entries of one transaction", kind="histogram"),
    _family("write_under_way_seconds", "for how long the oldest write that is not on disk has been under way"),
    _family("read_under_way_seconds", "for how long the disk has owed the answer to the oldest read"),
    _family("inflight_bytes", "bytes of appends taken and not yet guaranteed"),
    _family("inflight_bytes_limit", "above it no more appends are taken"),
    # -- the other servers
    _family("members_twice", "members of which two processes run, as this server hears them"),
    _family("peer_connected", "1 if there is a full connection", "peer"),
    _family("peer_round_trip_seconds", "round trip time of its connection, as the kernel measured it", "peer"),
    _family("peer_lag_entries", "entries that it lacks; only from the leader", "peer"),
    _family("peer_lag_seconds", "age of the oldest entry that it lacks; only from the leader", "peer"),
    _family("peer_inflight_bytes", "bytes sent to it and not yet accepted; only from the leader", "peer"),
    _family("peer_sent_bytes_total", "bytes sent to it", "peer"),
    _family("peer_received_bytes_total", "bytes received from it", "peer"),
    _family("peer_reconnects_total", "full connections to it after the first", "peer"),
    # -- clients
    _family("clients", "clients connected"),
    _family("clients_limit", "most clients at once"),
    _family("clients_silent", "connections that have not said yet who they are"),
    _family("clients_slowed", "clients that had to wait for their quota in the last ten seconds"),
    _family("quota_waits_total", "times that a connection began to wait for its client's quota"),
    _family("quota_appends_per_second", "quota of one client, in appends a second; 0: none"),
    _family("quota_bytes_per_second", "quota of one client, in bytes a second; 0: none"),
    _family("connections_refused_total", "connections turned away, by reason", "reason"),
    _family("tls_handshakes_total", "handshakes of connections taken, by result: ok, failed, or left (the other side "
            "went away)", "result"),
    _family("certificate_expiry_timestamp_seconds", "end of this server's certificate (cert), and of the first CA's "
            "to end (ca)", "file"),
    _family("certificate_reload_success", "0 if the certificates' files are wrong, and older ones in force"),
    _family("read_requests_total", "pages of reads sent, by kind", "kind"),
    _family("read_bytes_total", "bytes of those pages"),
    _family("read_duration_seconds", "from the time a page could be made until it was", kind="histogram"),
    _family("followers", "reads that wait for payloads still to come"),
    _family("sessions", "clients that are remembered, by kind: named or unnamed", "kind"),
    _family("sessions_limit", "most of each kind", "kind"),
    _family("sessions_expired_total", "clients forgotten since this server started: idle, dropped, or too many"),
    _family("cursors", "readers' cursors"),
    _family("cursor_lag_entries_max", "payloads that the cursor furthest behind has not passed"),
    _family("cursor_lag_seconds_max", "age of the first payload that the slowest cursor has not passed"),
    _family("cleaning_held_seconds", "for how long a member, or a cursor, has held cleaning back", "by"),
    # -- the disk
    _family("db_size_bytes", "size of the data file with its WAL"),
    _family("db_free_bytes", "free pages within the data file"),
    _family("wal_size_bytes", "size of the WAL"),
    _family("disk_size_bytes", "size of the file system"),
    _family("disk_free_bytes", "free bytes of the file system"),
    _family("disk_low_water_bytes", "mark of free bytes below which no appends are taken"),
    _family("disk_low", "1 if this server takes no appends for want of space"),
    _family("scrub_progress_ratio", "part of the log that the present pass of the scrub has checked"),
    _family("scrub_last_pass_timestamp_seconds", "end of the last whole pass of the scrub"),
    _family("damaged_entries", "entries known to be damaged on this disk"),
    _family("damage_found_total", "times that entries on this disk were found to be damaged"),
    _family("divergences_total", "times that entries were found to differ from another server's"),
    # -- the process
    _family("loop_lag_seconds", "lateness of a timer of the event loop, looked at once a second", kind="histogram"),
    _family("events_total", "events of this server, as in its log", "event"),
    _family("log_lines_dropped_total", "lines of this server's log that its reader did not take"),
    _family("http_requests_total", "requests to this port", "path", "code"),
)


def _leading(report: Report) -> Iterator[tuple[str, list[Sample]]]:
    r, counters = report.replica, report.log.driver.counters
    yield "info", [((__version__, r.cluster.hex(), str(report.host.us.me.id), str(VERSION)), 1)]
    yield "is_leader", [((), r.leadership is not None)]
    yield "has_leader", [((), r.election.live_leader())]
    yield "voting", [((), r.status_text == "VOTING")]
    yield "term", [((), r.term)]
    elections = counters.elections
    yield "elections_won_total", [((), elections.won)]
    yield "leader_changes_total", [((), elections.changes)]
    yield "unplanned_elections_total", [((), elections.unplanned)]
    appends = report.appends()
    yield "appends_work", [((), appends.work)] if appends is not None else []
    yield "failures_tolerable", [((), appends.may_fail)] if appends is not None else []
    latest, peers = r.members.latest, report.host.peers.by_id
    by_role = {"voter": latest.voters, "learner": latest.learners}
    yield "members", [((role,), len(members)) for role, members in by_role.items()]
    yield "members_reachable", [
        ((role,), sum(m.id == r.me.id or (m.id in peers and not peers[m.id].trouble) for m in members))
        for role, members in by_role.items()
    ]


def _log(report: Report, status: dict[str, Any], lookups: Lookups) -> Iterator[tuple[str, list[Sample]]]:
    r, counters, stats = report.replica, report.log.driver.counters, report.log.writer.stats
    yield "first_lsn", [((), status["first_lsn"])]
    yield "last_lsn", [((), r.log.next_lsn - 1)]
    yield "guaranteed_lsn", [((), status["last_lsn"])]
    fully = lookups.fully_replicated_lsn
    yield "fully_replicated_lsn", [((), fully)] if fully is not None else []
    yield "last_id", [((), r.last_id)]
    yield "guaranteed_id", [((), r.guaranteed_id)]
    yield "log_ahead_seconds", [((), status["log_ahead_ms"] / 1000)]
    leapt_ms = status["clocks_leapt_ms"]
    yield "clocks_leapt_seconds", [((), leapt_ms / 1000)] if leapt_ms is not None else []
    yield "appended_entries_total", [((), counters.appended_entries)]
    yield "appended_payloads_total", [((), counters.appended_payloads)]
    yield "appended_bytes_total", [((), counters.appended_bytes)]
    yield "append_requests_total", [((result,), counters.appends[result]) for result in RESULTS]
    yield "append_duration_seconds", [((), counters.append_s)]
    yield "commit_duration_seconds", [((), stats.commit_s)]
    yield "fsync_duration_seconds", [((), stats.fsync_s)]
    yield "batch_entries", [((), stats.batch_entries)]
    yield "write_under_way_seconds", [((), report.log.driver.write_under_way_s)]
    yield "read_under_way_seconds", [((), report.log.reads.disk.under_way_s)]
    yield "inflight_bytes", [((), report.log.driver.unguaranteed_bytes)]
    yield "inflight_bytes_limit", [((), report.log.driver.inflight_bytes_max)]


#: Label values that are there from the start, so that a rate over the first one is right.
RESULTS = (
    "appended", "duplicate", "refused", "fenced", "too_large", "no_space", "overloaded", "no_right", "lost_leadership",
)
PATHS = ("/healthz", "/readyz", "/", "/log", "/metrics", "/status", "/page.css", "/page.js")
REASONS = ("overloaded", "invalid", "tls", "no_right", "cluster", "timeout", "twice")


def _peers(report: Report, lookups: Lookups) -> Iterator[tuple[str, list[Sample]]]:
    r, counters = report.replica, report.log.driver.counters
    peers = {str(id): peer for id, peer in sorted(report.host.peers.by_id.items())}
    yield "peer_connected", [((id,), not peer.trouble) for id, peer in peers.items()]
    yield "members_twice", [((), len(report.host.peers.twice()))]
    trips = {id: peer.route.link.round_trip_ms if peer.route is not None else None for id, peer in peers.items()}
    yield "peer_round_trip_seconds", [((id,), trip / 1000) for id, trip in trips.items() if trip is not None]
    leadership = r.leadership
    found = leadership.peers if leadership is not None else {}
    followers = {id: peer for id, peer in found.items() if peer.matched}  # the lag of other peers is not known yet
    yield "peer_lag_entries", [((str(id),), max(0, r.last_id - peer.match_id)) for id, peer in followers.items()]
    yield "peer_lag_seconds", [((str(id),), lookups.lag_s.get(id, 0.0)) for id in followers if lookups.known]
    yield "peer_inflight_bytes", [((str(id),), peer.in_flight_bytes) for id, peer in followers.items()]
    traffic = {id: counters.traffic_with(int(id)) for id in peers}
    yield "peer_sent_bytes_total", [((id,), sum(one.sent_bytes for one in both)) for id, both in traffic.items()]
    yield "peer_received_bytes_total", [
        ((id,), sum(one.received_bytes for one in both)) for id, both in traffic.items()
    ]
    yield "peer_reconnects_total", [((id,), max(0, counters.peer_connections[int(id)] - 1)) for id in peers]


def _clients(report: Report, lookups: Lookups) -> Iterator[tuple[str, list[Sample]]]:
    r, counters = report.replica, report.log.driver.counters
    yield "clients", [((), report.host.listener.count)]
    yield "clients_limit", [((), report.host.limits.client_connections_max)]
    yield "clients_silent", [((), report.host.listener.silent)]
    yield "clients_slowed", [((), len(report.log.driver.quotas.slowed(report.log.driver.clock_s())))]
    yield "quota_waits_total", [((), counters.quota_waits)]
    yield "quota_appends_per_second", [((), r.settings.quota_appends_per_s)]
    yield "quota_bytes_per_second", [((), r.settings.quota_bytes_per_s)]
    yield "connections_refused_total", [((reason,), counters.connections_refused[reason]) for reason in REASONS]
    yield "tls_handshakes_total", [((result,), counters.handshakes[result]) for result in ("ok", "failed", "left")]
    contexts = report.host.security.contexts
    ends = [] if contexts is None else [("cert", contexts.cert_ends_s), ("ca", contexts.ca_ends_s)]
    yield "certificate_expiry_timestamp_seconds", [((file,), end_s) for file, end_s in ends]
    yield "certificate_reload_success", [] if contexts is None else [((), counters.certificates_read)]
    yield "read_requests_total", [((kind,), counters.reads[kind]) for kind in ("entries", "columns")]
    yield "read_bytes_total", [((), counters.read_bytes)]
    yield "read_duration_seconds", [((), counters.read_s)]
    yield "followers", [((), report.log.reads.followers)]
    sessions, settings = r.sessions, r.settings
    yield "sessions", [(("named",), sessions.names), (("unnamed",), sessions.randoms)]
    yield "sessions_limit", [(("named",), settings.names_max), (("unnamed",), settings.sessions_max)]
    yield "sessions_expired_total", [((), counters.sessions_ended)]
    yield "cursors", [((), len(r.cursors.now))]
    lags = [max(0, r.log.next_lsn - cursor.lsn) for cursor in lookups.cursors]
    yield "cursor_lag_entries_max", [((), max(lags, default=0))] if lookups.known else []
    lags_s = [cursor.lag_s for cursor in lookups.cursors]
    yield "cursor_lag_seconds_max", [((), max(lags_s, default=0.0))] if lookups.known else []
    by, since_s = report.log.cleaner.held
    held_s = report.log.driver.clock_s() - since_s
    yield "cleaning_held_seconds", [((who,), held_s if by == who else 0.0) for who in ("member", "cursor")]


def _disk(report: Report, status: dict[str, Any]) -> Iterator[tuple[str, list[Sample]]]:
    r, counters = report.replica, report.log.driver.counters

    def told(key: str, share: float = 1) -> list[Sample]:
        value = status.get(key)
        return [] if value is None else [((), value * share)]

    yield "db_size_bytes", told("disk_bytes")
    yield "db_free_bytes", told("file_free_bytes")
    yield "wal_size_bytes", told("wal_bytes")
    yield "disk_size_bytes", told("disk_total_bytes")
    yield "disk_free_bytes", told("disk_free_bytes")
    yield "disk_low_water_bytes", told("low_water_bytes")
    yield "disk_low", [((), report.log.disk.room is not Room.PLENTY)]
    span = r.last_id - r.log.base_id
    done = (status["scrubbed_id"] - r.log.base_id) / span if span > 0 else 1.0
    yield "scrub_progress_ratio", [((), min(1.0, max(0.0, done)))]
    yield "scrub_last_pass_timestamp_seconds", told("scrub_ended_ms", 0.001)
    yield "damaged_entries", [((), len(r.damage.ids))]
    yield "damage_found_total", [((), counters.events["damage_found"])]
    yield "divergences_total", [((), counters.events["diverged"])]
    yield "loop_lag_seconds", [((), counters.loop_lag_s)]
    yield "events_total", [((event,), count) for event, count in sorted(counters.events.items())]
    yield "log_lines_dropped_total", [((), dropped_lines())]
    visits = {**{(path, "200"): 0 for path in PATHS}, **counters.http}
    yield "http_requests_total", [(labels, count) for labels, count in sorted(visits.items())]


def samples(report: Report, status: dict[str, Any], lookups: Lookups) -> dict[str, list[Sample]]:
    """The samples of every family, by its name. ``status``: see `Report.status`."""
    return dict((
        *_leading(report), *_log(report, status, lookups), *_peers(report, lookups), *_clients(report, lookups),
        *_disk(report, status),
    ))


def _metric(family: Family, found: Iterable[Sample]) -> Metric:
    name = f"alpo_{family.name}"
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(name, family.help, labels=family.labels)
        for labels, value in found:
            assert isinstance(value, Histogram)
            histogram.add_metric(labels, _buckets(value), value.total)
        return histogram
    made = (CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily)
    metric: Any = made(name, family.help, labels=family.labels)
    for labels, value in found:
        metric.add_metric(labels, value)
    return metric  # type: ignore[no-any-return]


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    found, reached = [], 0
    for bound, count in zip([*histogram.bounds, float("inf")], list(histogram.counts), strict=True):
        reached += count
        found.append(("+Inf" if bound == float("inf") else f"{bound:g}", float(reached)))
    return found


class Metrics(Collector):
    """A registry of its own, with this server's metrics and those of its process."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, report: Report) -> None:
        self._report = report
        self._found: dict[str, list[Sample]] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def describe(self) -> Iterable[Metric]:
        return [_metric(family, ()) for family in FAMILIES]

    def collect(self) -> Iterable[Metric]:
        return [_metric(family, self._found[family.name]) for family in FAMILIES if self._found[family.name]]

    async def text(self) -> bytes:
        """All metrics as text. Raises `alpo.storage.interface.StoreError`."""
        status = await self._report.status(wall_ms())
        lookups = await self._report.lookups()
        self._found = samples(self._report, status, lookups)
        return generate_latest(self._registry)
