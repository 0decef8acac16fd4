"""The metrics at `/metrics`: which there are, and their present values, read when Prometheus asks.

`FAMILIES` lists all; docs/generated/metrics.md prints it. No label is anything that clients choose: those could be any
number. Metrics that only a leader knows are absent on all other servers. A metric that is about a log has its name as
the label ``log``: only administrators create logs, at most `alpo.core.directory.LOGS_MAX`.

Law: between two passes of the event loop the values of at most `LOGS_A_PASS` logs are taken, or written out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import trio
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
from alpo.node.hosted import STATES
from alpo.node.log_sink import dropped_lines
from alpo.node.report import Lookups, Report
from alpo.storage.interface import StoreError
from alpo.storage.timings import Histogram
from alpo.wire.requests import VERSION

Value: TypeAlias = float | Histogram
#: Label values, and the value.
Sample: TypeAlias = tuple[tuple[str, ...], Value]


#: Logs whose metrics are collected, and whose share of the text is made, without a pause: 2 ms each.
LOGS_A_PASS = 8


class Family(NamedTuple):
    """One metric: its name after ``alpo_``, its type, its labels and its meaning."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


def _family(name: str, help: str, *labels: str, kind: str = "gauge") -> Family:
    return Family(name, "counter" if name.endswith("_total") else kind, labels, help)


def _of_log(name: str, help: str, *labels: str, kind: str = "gauge") -> Family:
    return _family(name, help, "log", *labels, kind=kind)


FAMILIES = (
    _family("info", "1; its labels tell which server this is", "version", "cluster_id", "server_id", "protocol"),
    # -- leadership
    _of_log("is_leader", "1 if this server leads"),
    _of_log("has_leader", "1 if this server leads, or heard its leader within an election timeout"),
    _of_log("voting", "1 if this server takes part as a voter"),
    _of_log("term", "the term that this server is in"),
    _of_log("elections_won_total", "elections that this server won"),
    _of_log("leader_changes_total", "changes of the leader or its term, as this server saw them"),
    _of_log("unplanned_elections_total", "changes of the leader for which nobody had handed over"),
    _of_log("appends_work", "1 if as many voters as appends need answer, take entries and write; only from the leader"),
    _of_log("failures_tolerable", "voters that may fail now before appends stop; only from the leader"),
    _of_log("members", "members in the list", "role"),
    _of_log("members_reachable", "members with a full connection to this server, this one included", "role"),
    # -- logs
    _family("logs", "logs of the cluster as they stand on this server: creating, ready, deleting or failed", "state"),
    _of_log("log_bytes", "bytes in use in the log's data file"),
    _of_log("first_lsn", "the first payload that can be read"),
    _of_log("last_lsn", "the last payload in this server's log; its rate is payloads a second"),
    _of_log("guaranteed_lsn", "the last payload that this server knows to be guaranteed"),
    _of_log("fully_replicated_lsn", "the last payload that every member is known to hold"),
    _of_log("last_id", "the last entry in this server's log"),
    _of_log("guaranteed_id", "the last entry that this server knows to be guaranteed"),
    _of_log("log_ahead_seconds", "how much later the last entry is dated than this server's clock; 0 if it is not"),
    _of_log("clocks_leapt_seconds", "how far the members' clocks have leapt ahead, and are not believed; only from the "
            "leader"),
    _of_log("appended_entries_total", "entries that became guaranteed while this server led"),
    _of_log("appended_payloads_total", "payloads that became guaranteed while this server led"),
    _of_log("appended_bytes_total", "bytes of the requests that were appended while this server led"),
    _of_log("append_requests_total", "appends (a payload, or an atomic batch) answered, by result", "result"),
    _of_log("append_duration_seconds", "from an append's arrival, or its turn under a quota, until it was guaranteed",
            kind="histogram"),
    _of_log("commit_duration_seconds", "from handing a write to the disk's queue until it was durable",
            kind="histogram"),
    _of_log("fsync_duration_seconds", "one transaction on disk, with its fsync", kind="histogram"),
    _of_log("batch_entries", "entries of one transaction", kind="histogram"),
    _of_log("write_under_way_seconds", "for how long the oldest write that is not on disk has been under way"),
    _of_log("read_under_way_seconds", "for how long the disk has owed the answer to the oldest read"),
    _of_log("inflight_bytes", "bytes of appends taken and not yet guaranteed"),
    _of_log("inflight_bytes_limit", "above it no more appends are taken"),
    # -- the other servers
    _family("members_twice", "members of which two processes run, as this server hears them"),
    _family("peer_connected", "1 if there is a full connection", "peer"),
    _family("peer_round_trip_seconds", "round trip time of its connection, as the kernel measured it", "peer"),
    _of_log("peer_lag_entries", "entries that it lacks; only from the leader", "peer"),
    _of_log("peer_lag_seconds", "age of the oldest entry that it lacks; only from the leader", "peer"),
    _of_log("peer_inflight_bytes", "bytes sent to it and not yet accepted; only from the leader", "peer"),
    _family("peer_sent_bytes_total", "bytes sent to it", "peer"),
    _family("peer_received_bytes_total", "bytes received from it", "peer"),
    _family("peer_reconnects_total", "full connections to it after the first", "peer"),
    # -- clients
    _family("clients", "clients connected"),
    _family("clients_limit", "most clients at once"),
    _family("clients_silent", "connections that have not said yet who they are"),
    _of_log("clients_slowed", "clients that had to wait for their quota in the last ten seconds"),
    _of_log("quota_waits_total", "times that a connection began to wait for its client's quota"),
    _of_log("quota_appends_per_second", "quota of one client, in appends a second; 0: none"),
    _of_log("quota_bytes_per_second", "quota of one client, in bytes a second; 0: none"),
    _family("connections_refused_total", "connections turned away, by reason", "reason"),
    _family("tls_handshakes_total", "handshakes of connections taken, by result: ok, failed, or left (the other side "
            "went away)", "result"),
    _family("certificate_expiry_timestamp_seconds", "end of this server's certificate (cert), and of the first CA's "
            "to end (ca)", "file"),
    _family("certificate_reload_success", "0 if the certificates' files are wrong, and older ones in force"),
    _of_log("read_requests_total", "pages of reads sent, by kind", "kind"),
    _of_log("read_bytes_total", "bytes of those pages"),
    _of_log("read_duration_seconds", "from the time a page could be made until it was", kind="histogram"),
    _of_log("followers", "reads that wait for payloads still to come"),
    _of_log("sessions", "clients that are remembered, by kind: named or unnamed", "kind"),
    _of_log("sessions_limit", "most of each kind", "kind"),
    _of_log("sessions_expired_total", "clients forgotten since this server started: idle, dropped, or too many"),
    _of_log("cursors", "readers' cursors"),
    _of_log("cursor_lag_entries_max", "payloads that the cursor furthest behind has not passed"),
    _of_log("cursor_lag_seconds_max", "age of the first payload that the slowest cursor has not passed"),
    _of_log("cleaning_held_seconds", "for how long a member, or a cursor, has held cleaning back", "by"),
    # -- the disk
    _of_log("db_size_bytes", "size of the data file with its WAL"),
    _of_log("db_free_bytes", "free pages within the data file"),
    _of_log("wal_size_bytes", "size of the WAL"),
    _family("disk_size_bytes", "size of the file system"),
    _family("disk_free_bytes", "free bytes of the file system"),
    _family("disk_low_water_bytes", "mark of free bytes below which no appends are taken"),
    _family("disk_low", "1 if this server takes no appends for want of space"),
    _of_log("scrub_progress_ratio", "part of the log that the present pass of the scrub has checked"),
    _of_log("scrub_last_pass_timestamp_seconds", "end of the last whole pass of the scrub"),
    _of_log("damaged_entries", "entries known to be damaged on this disk"),
    _of_log("damage_found_total", "times that entries on this disk were found to be damaged"),
    _of_log("divergences_total", "times that entries were found to differ from another server's"),
    # -- the process
    _family("loop_lag_seconds", "lateness of a timer of the event loop, looked at once a second", kind="histogram"),
    _of_log("events_total", "events of this server, as in its log", "event"),
    _family("log_lines_dropped_total", "lines of this server's log that its reader did not take"),
    _family("http_requests_total", "requests to this port", "path", "code"),
)


# -- of one log: the label ``log`` is put before the others


def _leading(report: Report) -> Iterator[tuple[str, list[Sample]]]:
    r, counters = report.replica, report.log.driver.counters
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
    yield "events_total", [((event,), count) for event, count in sorted(counters.events.items())]


#: Label values that are there from the start, so that a rate over the first one is right.
RESULTS = (
    "appended", "duplicate", "refused", "fenced", "too_large", "no_space", "overloaded", "no_right", "lost_leadership",
)
PATHS = ("/healthz", "/readyz", "/", "/log", "/metrics", "/status", "/page.css", "/page.js")
REASONS = ("overloaded", "invalid", "tls", "no_right", "cluster", "timeout", "twice")


def _followers(report: Report, lookups: Lookups) -> Iterator[tuple[str, list[Sample]]]:
    r, leadership = report.replica, report.replica.leadership
    found = leadership.peers if leadership is not None else {}
    followers = {id: peer for id, peer in found.items() if peer.matched}  # the lag of other peers is not known yet
    yield "peer_lag_entries", [((str(id),), max(0, r.last_id - peer.match_id)) for id, peer in followers.items()]
    yield "peer_lag_seconds", [((str(id),), lookups.lag_s.get(id, 0.0)) for id in followers if lookups.known]
    yield "peer_inflight_bytes", [((str(id),), peer.in_flight_bytes) for id, peer in followers.items()]


def _clients(report: Report, lookups: Lookups) -> Iterator[tuple[str, list[Sample]]]:
    r, counters = report.replica, report.log.driver.counters
    yield "clients_slowed", [((), len(report.log.driver.quotas.slowed(report.log.driver.clock_s())))]
    yield "quota_waits_total", [((), counters.quota_waits)]
    yield "quota_appends_per_second", [((), r.settings.quota_appends_per_s)]
    yield "quota_bytes_per_second", [((), r.settings.quota_bytes_per_s)]
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


def _told(status: dict[str, Any], key: str, share: float = 1) -> list[Sample]:
    value = status.get(key)
    return [] if value is None else [((), value * share)]


def _file(report: Report, status: dict[str, Any]) -> Iterator[tuple[str, list[Sample]]]:
    r, counters = report.replica, report.log.driver.counters
    yield "log_bytes", _told(status, "live_bytes")
    yield "db_size_bytes", _told(status, "disk_bytes")
    yield "db_free_bytes", _told(status, "file_free_bytes")
    yield "wal_size_bytes", _told(status, "wal_bytes")
    span = r.last_id - r.log.base_id
    done = (status["scrubbed_id"] - r.log.base_id) / span if span > 0 else 1.0
    yield "scrub_progress_ratio", [((), min(1.0, max(0.0, done)))]
    yield "scrub_last_pass_timestamp_seconds", _told(status, "scrub_ended_ms", 0.001)
    yield "damaged_entries", [((), len(r.damage.ids))]
    yield "damage_found_total", [((), counters.events["damage_found"])]
    yield "divergences_total", [((), counters.events["diverged"])]


# -- of the server


def _server(report: Report, status: dict[str, Any]) -> Iterator[tuple[str, list[Sample]]]:
    host, counters = report.host, report.log.driver.counters
    yield "info", [((__version__, report.replica.cluster.hex(), str(host.us.me.id), str(VERSION)), 1)]
    states = Counter(log.state for log in host.states())
    yield "logs", [((state,), states[state]) for state in STATES]
    yield "clients", [((), host.listener.count)]
    yield "clients_limit", [((), host.limits.client_connections_max)]
    yield "clients_silent", [((), host.listener.silent)]
    yield "connections_refused_total", [((reason,), counters.connections_refused[reason]) for reason in REASONS]
    yield "tls_handshakes_total", [((result,), counters.handshakes[result]) for result in ("ok", "failed", "left")]
    contexts = host.security.contexts
    ends = [] if contexts is None else [("cert", contexts.cert_ends_s), ("ca", contexts.ca_ends_s)]
    yield "certificate_expiry_timestamp_seconds", [((file,), end_s) for file, end_s in ends]
    yield "certificate_reload_success", [] if contexts is None else [((), counters.certificates_read)]
    yield "disk_size_bytes", _told(status, "disk_total_bytes")
    yield "disk_free_bytes", _told(status, "disk_free_bytes")
    yield "disk_low_water_bytes", _told(status, "low_water_bytes")
    yield "disk_low", [((), report.log.disk.room is not Room.PLENTY)]
    yield "loop_lag_seconds", [((), counters.loop_lag_s)]
    yield "log_lines_dropped_total", [((), dropped_lines())]
    visits = {**{(path, "200"): 0 for path in PATHS}, **counters.http}
    yield "http_requests_total", [(labels, count) for labels, count in sorted(visits.items())]


def _peers(report: Report) -> Iterator[tuple[str, list[Sample]]]:
    counters = report.log.driver.counters
    peers = {str(id): peer for id, peer in sorted(report.host.peers.by_id.items())}
    yield "peer_connected", [((id,), not peer.trouble) for id, peer in peers.items()]
    yield "members_twice", [((), len(report.host.peers.twice()))]
    trips = {id: peer.route.link.round_trip_ms if peer.route is not None else None for id, peer in peers.items()}
    yield "peer_round_trip_seconds", [((id,), trip / 1000) for id, trip in trips.items() if trip is not None]
    traffic = {id: counters.traffic_with(int(id)) for id in peers}
    yield "peer_sent_bytes_total", [((id,), sum(one.sent_bytes for one in both)) for id, both in traffic.items()]
    yield "peer_received_bytes_total", [
        ((id,), sum(one.received_bytes for one in both)) for id, both in traffic.items()
    ]
    yield "peer_reconnects_total", [((id,), max(0, counters.peer_connections[int(id)] - 1)) for id in peers]


def of_server(report: Report, status: dict[str, Any]) -> dict[str, list[Sample]]:
    """The samples of every family that is not about a log, by its name. ``report``, ``status``: of the first log."""
    return dict((*_server(report, status), *_peers(report)))


def of_log(report: Report, name: str, status: dict[str, Any], lookups: Lookups) -> dict[str, list[Sample]]:
    """The samples of every family about a log, by its name. ``status``: see `Report.status`; ``name``: the log's."""
    found = (
        *_leading(report), *_log(report, status, lookups), *_followers(report, lookups), *_clients(report, lookups),
        *_file(report, status),
    )
    return {family: [((name, *labels), value) for labels, value in samples] for family, samples in found}


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


async def _add(reports: list[tuple[int, str, Report]], found: dict[str, list[Sample]]) -> None:
    """Add the samples of these logs to those ``found``, but for a log whose store cannot be read."""
    answers: dict[str, tuple[dict[str, Any], Lookups]] = {}

    async def ask(name: str, report: Report) -> None:
        with suppress(StoreError):  # damaged, or closed meanwhile: that log's own trouble
            answers[name] = await report.status(wall_ms()), await report.lookups()

    async with trio.open_nursery() as nursery:
        for _, name, report in reports:
            nursery.start_soon(ask, name, report)
    for _, name, report in reports:
        if name in answers:
            for family, samples in of_log(report, name, *answers[name]).items():
                found[family].extend(samples)


class Metrics(Collector):
    """Registries of its own, with this server's metrics and those of its process."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, report: Report) -> None:
        self._report = report
        #: The families that are written out next, with their samples.
        self._next: list[tuple[Family, list[Sample]]] = []
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._process = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._process)
        PlatformCollector(registry=self._process)

    def describe(self) -> Iterable[Metric]:
        return [_metric(family, ()) for family in FAMILIES]

    def collect(self) -> Iterable[Metric]:
        return [_metric(family, samples) for family, samples in self._next]

    async def text(self) -> bytes:
        """All metrics as text. Raises `alpo.storage.interface.StoreError` if the first log's store cannot be read."""
        status = await self._report.status(wall_ms())
        (_, name, report), *others = self._report.host.reports()
        found = of_server(report, status) | of_log(report, name, status, await report.lookups())
        for first in range(0, len(others), LOGS_A_PASS):
            await _add(others[first : first + LOGS_A_PASS], found)
        families = [(family, found[family.name]) for family in FAMILIES if found.get(family.name)]
        at_once, pieces = max(1, len(families) * LOGS_A_PASS // (1 + len(others))), []
        for first in range(0, len(families), at_once):
            await trio.lowlevel.checkpoint()
            self._next = families[first : first + at_once]
            pieces.append(generate_latest(self._registry))
        return b"".join([*pieces, generate_latest(self._process)])

