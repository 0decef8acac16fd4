"""A server from start to stop: its port, its links to other servers and its HTTP, in which order they start, and how it
leaves. Its first log is a `LogServer`; the others are hosted by `Hosted`.

Laws:

* One nursery holds everything.
* On a signal the server takes nothing new, hands leadership over, finishes what is in flight (at most `STOP_S_MAX`),
  and ends without error (R28).
"""

from __future__ import annotations

import functools
import secrets
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, cast, get_args

import trio

from alpo._version import __version__, build
from alpo.core.config import ReplicaConfig
from alpo.core.directory import FIRST_NAME, FIRST_NUMBER, LogOptions, NamedLog
from alpo.core.disk_space import TELL_SHARE
from alpo.core.members import INCARNATION_BYTES, Configured, Identity
from alpo.core.requests import ChangeMember, Code, CreateLog, DeleteLog, Initialise, LogRequest
from alpo.core.settings import Settings
from alpo.storage.interface import Store
from alpo.storage.sqlite import SqliteStore
from alpo.storage.writer import Writer
from alpo.wire import requests as w
from alpo.wire.codec import encode_problem
from alpo.wire.requests import LOGS_VERSION

from .admission import NO_CARE, DiskCare, Limits
from .client_connection import ClientRequests, Handler
from .event_log import feed_watchdog, notify, set_level
from .hosted import Hosted, LogsCare, LogState, Shelf
from .listener import Front, Listener
from .log_server import LogServer, MakeWriter, Shared, WriterLike, soon
from .peers import GRACE_TIMEOUTS, Peers
from .poller import Owners, Poller, Sharers
from .report import Report
from .retention import KEEP_ALL, Retention
from .routes import LogRoutes, Ourselves, Routes
from .security import Security
from .signals import STOP_S_MAX, Signals
from .status import Pulse, look_each_second, tell_waiting
from .threads import BulkPace, Pace, in_thread

#: Time to finish what is in flight; the rest of `STOP_S_MAX` is for closing the store.
LEAVE_S_MAX = STOP_S_MAX - 0.5
#: Logs that look at their disk's space at a time.
_LOOKING_MAX = 2
#: Most bytes of entries that each log besides the first keeps in memory.
_OTHER_TAIL_BYTES = 2 << 20


class CannotReload(Exception):
    """The configuration is wrong, and the old one stays in force; the message is one line."""


class Fresh(NamedTuple):
    """Result of a reload; None: unchanged. ``changed`` and ``needs_restart``: dotted keys."""

    limits: Limits | None = None
    retention: Retention | None = None
    log_level: str | None = None
    security: Security | None = None
    changed: Sequence[str] = ()
    needs_restart: Sequence[str] = ()
    logs: LogsCare | None = None


#: Reads the configuration again. Raises `CannotReload`.
Reload: TypeAlias = Callable[[], Fresh]


def _first(error: BaseException) -> str:
    """The kind and text of the error, or of the first in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


#: Serves visitors over HTTP until cancelled.
Visited: TypeAlias = Callable[[], Awaitable[None]]


def _site_for(listening: socket.socket | None, need: str, report: Report) -> Visited:
    """The HTTP server; nothing, and no library of it is loaded, if nobody listens for visitors."""
    if listening is None:
        return trio.sleep_forever
    from .http.server import HttpServer
    from .http.site import Site

    server = HttpServer(Site(report, auth=need), report.host.security, report.log.driver.counters, report.host.limits)
    return functools.partial(server.run, listening)


def _nothing_new() -> Fresh:
    return Fresh()


def kept_of(options: LogOptions, given: Retention) -> Retention:
    """The retention of a log: its own options, else as the server is configured."""
    if not (options.keep_ms or options.keep_bytes):
        return given
    return replace(
        given, max_age_s=options.keep_ms / 1000 if options.keep_ms else None, max_bytes=options.keep_bytes or None,
        max_entries=None,
    )


def _of_the_first_log(client: ClientRequests, ask: Any) -> None:
    """Refuse a request that is about the cluster: it is made of the first log."""
    client.refuse(ask[0], Code.INVALID, detail="members and logs are those of the cluster: ask its first log")


class LogServices:
    """The parts of a server that clients of another log than the first use (`client_connection.Services`)."""

    def __init__(self, host: Host, log: LogServer) -> None:
        self._host, self._replica = host, log.replica
        self.report = report = Report(host, log)
        self.limits = host.limits
        self.handlers: Mapping[type, Handler] = {
            **log.handlers, w.Status: report.begin_status, w.ListEvents: report.begin_events,
            **dict.fromkeys((*get_args(LogRequest), ChangeMember, Initialise), _of_the_first_log),
        }
        self.trouble_with, self.no_right, self.asked = host.trouble_with, host.no_right, host.asked

    def address_of(self, id: int) -> str:
        """The address of server ``id``; "" for 0 or if unknown."""
        return self._replica.address_of(id) if id else ""


class Host:
    """One server; `run` it once. It also implements `Services` for clients' connections."""

    def __init__(
        self, cfg: ReplicaConfig, limits: Limits, store: Store, make_writer: MakeWriter,
        retention: Retention = KEEP_ALL, care: DiskCare = NO_CARE, security: Security | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        """``shelf``: where the stores of other logs are; None: there can be none."""
        timers_ms = (
            round(cfg.heartbeat_s * 1000), round(cfg.election_timeout_s * 1000), round(cfg.stagger_s * 1000)
        )
        self.limits = limits
        self.us = Ourselves(cfg.me, cfg.address, timers_ms, secrets.token_bytes(INCARNATION_BYTES))
        self.security = security or Security()
        #: True from the signal to stop on.
        self.leaving = False
        self._cfg = cfg
        self.routes = Routes()
        self._shelf = shelf
        self._shared = Shared(
            Pace(limits.catch_up_bytes_per_s), BulkPace(limits.bulk_read_bytes_per_s),
            Pace(care.scrub_bytes_per_s), Pace(care.scrub_bytes_per_s), trio.CapacityLimiter(_LOOKING_MAX),
        )
        self._make_log = functools.partial(
            LogServer, cfg, limits, store, make_writer, retention, care, self.security, self.routes,
            self._tell_systemd, self._shared,
        )
        self._retention = retention
        self.hosted: Hosted | None = None
        self._services: dict[int, LogServices] = {}
        self._told_systemd = ""
        self._reload_asked = trio.Event()
        self._ended = trio.Event()
        self._signals: Signals | None = None

    def stop(self) -> None:
        """Begin to leave; `run` returns when done."""
        self._ended.set()

    async def run(
        self, listening: socket.socket, *, signals: Signals | None = None, reload: Reload = _nothing_new,
        visitors: socket.socket | None = None, visitors_need: str = "none",
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve on ``listening`` until `stop`, or SIGTERM and SIGINT if given ``signals``. ``reload`` is called, in
        a thread, at SIGHUP. ``visitors``: listens for HTTP (`alpo.node.http.site`), ``visitors_need``: "cert" or
        "none". Raises `alpo.core.ready.Alarm`, `StoreError`."""
        token = trio.lowlevel.current_trio_token()
        self._signals = signals
        if signals is not None:
            self._heed(signals, token)
        self._make_parts()
        if signals is not None:
            signals.here_since_s = lambda: min([writer.here_since_s for writer in self._writers])
        try:
            site = _site_for(visitors, visitors_need, self.report)
            await self._serve(listening, site, reload, task_status)
        except Exception as error:  # an unforeseen one: kept, should nobody read the log
            self.driver.note("stopping_itself", why=_first(error))
            if signals is not None:  # below, the end may wait for a disk
                signals.ends(1)
            raise
        finally:
            listening.close()
            self.poller.close()
            with trio.CancelScope(shield=True):
                await self.log.close()
        if self.driver.failure is not None:
            raise self.driver.failure

    def _make_parts(self) -> None:
        self.log = self._make_log()
        self.driver, self.replica = self.log.driver, self.log.replica
        #: Writers of all logs, any of which may keep the event loop; replaced as a whole, since a thread reads it.
        self._writers: tuple[WriterLike, ...] = (self.log.writer,)
        self.driver.on_failure = self._ended.set
        configured = {c.id: c.address for c in self._cfg.configured}
        self.poller = Poller(self.driver)
        self.peers = Peers(self.us, self.driver, self.poller, self.routes, configured, self.security)
        self.listener = Listener(
            self.us, self.driver, self.poller, self.routes, self.peers, self, self.limits, self.security
        )
        self.report = Report(self, self.log)
        #: Handlers of the requests that the core does not answer, by their types.
        self.handlers: Mapping[type, Handler] = {
            **self.log.handlers, w.Status: self.report.begin_status, w.ListEvents: self.report.begin_events,
            CreateLog: self._create_log, DeleteLog: self._delete_log,
        }

        if self._shelf is not None:
            self.hosted = Hosted(
                self.us.me.id, self.driver, self.routes, self._shelf, self._make_other,
                self._cfg.election_timeout_s, self._follow_logs,
            )
            self.hosted.on_members = self.peers.follow_others

    # -- other logs (rules.md#logs) ---------------------------------------------------------------------

    def _make_other(self, log: NamedLog, me: Identity, store: SqliteStore, care: DiskCare) -> LogServer:
        """The server of another log than the first."""
        cfg = replace(
            self._cfg, me=me, configured=(Configured(me.id, self._cfg.address),), auto_init=False, joining=True,
            settings=Settings.from_plain(log.settings), first_log=False, cluster_wanted=log.id,
            tail_bytes_max=min(self._cfg.tail_bytes_max, _OTHER_TAIL_BYTES),
        )
        made = LogServer(
            cfg, self.limits, store, functools.partial(Writer, store), kept_of(log.options, self._retention), care,
            self.security, LogRoutes(self.routes, log.number), lambda: None, self._shared,
            lambda: self.hosted.name_of(log.number) if self.hosted is not None else log.name,
        )
        made.driver.share(self.driver)
        return made

    def _follow_logs(self) -> None:
        """Take note that a log has begun, ended, or changed its name or options here."""
        assert self.hosted is not None
        running = self.hosted.running
        drivers = [self.driver, *(each.server.driver for each in running.values())]
        sharers = Sharers(drivers) if running else None
        self.poller.owner = Owners(sharers) if sharers is not None else self.driver
        self._writers = (self.log.writer, *(each.server.writer for each in running.values()))
        self.routes.gather(bool(running))
        for driver in drivers:
            driver.flush = self.routes.flush if running else None
            driver.sharers = sharers
        known = self.listener.fronts
        for number, each in running.items():
            each.server.cleaner.policy = kept_of(each.log.options, self._retention)
            each.server.disk.bound(each.log.options.bytes_max)
            if number in known:
                self.listener.rename(known[number], each.log.name)
        self.listener.leaving = self.leaving
        self._services = {
            number: self._services.get(number) or LogServices(self, each.server) for number, each in running.items()
        }
        self.listener.follow_logs([
            known.get(number) or Front(
                number, each.log.name, each.server.driver, self._services[number], self.routes
            )
            for number, each in running.items()
        ])

    def _pulses(self) -> list[Pulse]:
        others = self.hosted.running.values() if self.hosted is not None else ()
        return [self.log.pulse, *(each.server.pulse for each in others)]

    def reports(self) -> list[tuple[int, str, Report]]:
        """Number, name and account of each log that runs here, the first before the others."""
        others = self.hosted.running if self.hosted is not None else {}
        return [(FIRST_NUMBER, FIRST_NAME, self.report)] + [
            (number, each.log.name, self._services[number].report) for number, each in others.items()
        ]

    def states(self) -> list[LogState]:
        """The logs as they stand here, the first before the others."""
        first = LogState(FIRST_NUMBER, FIRST_NAME, "ready" if self.replica.first_start.started else "creating")
        return [first, *(self.hosted.states() if self.hosted is not None else ())]

    def _create_log(self, client: ClientRequests, ask: CreateLog) -> None:
        """Have a log created, unless a member could not read of it."""
        old = [
            f"server {member.id}" for member in self.replica.members.latest.replicas
            if member.id != self.us.me.id and self.peers.spoken.get(member.identity, 0) < LOGS_VERSION
        ]
        why = f"{' and '.join(old)} may be too old to know of logs: they must be up, and of this release" if old else ""
        if self.hosted is None:
            why = "this server has no place for another log"
        if why and self.replica.leadership is not None:
            client.refuse(cast(int, ask.origin), Code.CANNOT_CHANGE, detail=why)
        else:
            client.post_for(cast(int, ask.origin), ask)

    def _delete_log(self, client: ClientRequests, ask: DeleteLog) -> None:
        """Have a log deleted; told as done once no new append to it can be acknowledged."""
        hold = self.hosted.once_over if self.hosted is not None else None
        client.post_for(cast(int, ask.origin), ask, hold)

    # -- events -----------------------------------------------------------------------------------------

    def _tell_systemd(self) -> None:
        """Report this server's state for `systemctl status`; called with every event, since events change it."""
        r = self.replica
        who = "leads" if r.leader_id == self.us.me.id else f"server {r.leader_id} leads" if r.leader_id else "no leader"
        standing = f"server {self.us.me.id}: {r.status_text}, {who}, term {r.term}"
        if standing != self._told_systemd:
            self._told_systemd = standing
            notify(f"STATUS={standing}")

    async def _serve(
        self, listening: socket.socket, visited: Visited, reload: Reload,
        task_status: trio.TaskStatus[None],
    ) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reload_when_asked, reload)
            await self.log.start(nursery)
            nursery.start_soon(look_each_second, self._pulses)
            nursery.start_soon(self.poller.run)
            if self.hosted is not None:
                nursery.start_soon(self.hosted.run)
            self.peers.start(nursery)
            nursery.start_soon(self.listener.run, listening)
            nursery.start_soon(self.listener.follow_certificates)
            nursery.start_soon(feed_watchdog)
            nursery.start_soon(visited)
            self.driver.note(
                "serving", id=self.us.me.id, address=self.us.address, status=self.replica.status_text,
                last_id=self.replica.last_id, term=self.replica.term, version=__version__, build=build(),
            )
            nursery.start_soon(tell_waiting, self.driver, GRACE_TIMEOUTS * self._cfg.election_timeout_s)
            notify("READY=1")
            task_status.started()
            await self._ended.wait()
            self.leaving = True
            notify("STOPPING=1")
            if self.driver.failure is None:
                await self._leave()
            else:
                if self._signals is not None:
                    self._signals.ends(1)
                self.driver.note("stopping_itself", why=str(self.driver.failure))
            nursery.cancel_scope.cancel()

    def _heed(self, signals: Signals, token: trio.lowlevel.TrioToken) -> None:
        def heard(number: int) -> None:
            soon(token, self._reload_asked.set if number == signal.SIGHUP else self.stop)

        def keep(name: str, ms: int) -> None:  # the event loop keeps it once it goes on; the line is in the log already
            soon(token, functools.partial(
                self.log.keep_event, name, {"under_way_ms" if name == "disk_hangs" else "took_ms": ms}
            ))

        signals.serve(heard, TELL_SHARE * min(self._cfg.disk_patience_s, self._cfg.election_timeout_s), keep)

    async def _reload_when_asked(self, reload: Reload) -> None:
        while True:
            await self._reload_asked.wait()
            self._reload_asked = trio.Event()
            notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
            try:
                fresh = await in_thread(reload)
            except CannotReload as error:
                self.driver.note("reload_failed", why=str(error))
            else:
                self._take(fresh)
                if fresh.security is not None:
                    await self.listener.secure_with(fresh.security)
                self.driver.note("reloaded", changed=fresh.changed, needs_restart=fresh.needs_restart)
            notify("READY=1")

    def _take(self, fresh: Fresh) -> None:
        """Put a reloaded configuration into force."""
        if fresh.log_level is not None:
            set_level(fresh.log_level)
        others = list(self.hosted.running.values()) if self.hosted is not None else []
        if fresh.retention is not None:
            self.log.cleaner.policy = self._retention = fresh.retention
            for each in others:
                each.server.cleaner.policy = kept_of(each.log.options, fresh.retention)
        if fresh.logs is not None and self.hosted is not None:
            self.hosted.heed(fresh.logs)
        if fresh.limits is not None:
            self._shared.catch_up.bytes_per_s = fresh.limits.catch_up_bytes_per_s
            self._shared.bulk.bytes_per_s = fresh.limits.bulk_read_bytes_per_s
            for log in (self.log, *(each.server for each in others)):
                log.bound(fresh.limits)

    async def _leave(self) -> None:
        self.driver.note("stopping", state=self.replica.state.value, term=self.replica.term)
        with trio.move_on_after(LEAVE_S_MAX) as scope:
            if self.hosted is not None:
                await self.hosted.leave()
            await self.log.leave()
            for client in list(self.listener.clients):
                await client.wait_idle()
        last_words = encode_problem(Code.NOT_READY, "it is stopping")
        for route in self.routes.accepted.values():  # last words spare the others' logs an alarm
            route.link.push(last_words)
        self.driver.note("stopped", in_time=not scope.cancelled_caught)

    # -- what clients ask -------------------------------------------------------------------------------

    def address_of(self, id: int) -> str:
        """The address of server ``id``; "" for 0 or if unknown."""
        return self.replica.address_of(id) if id else ""

    def trouble_with(self, id: int) -> str:
        """Reason why there is no full connection to server ``id``; "" if there is one, or none is wanted."""
        peer = self.peers.by_id.get(id)
        return peer.trouble if peer is not None else ""

    def no_right(self, why: str) -> None:
        """Note that a client asked for what its certificate does not allow."""
        self.driver.note("no_right", why=why)

    def asked(self, who: str, what: str, how: str) -> None:
        """Write down that an operator has asked for something."""
        self.driver.note("operator", who=who, what=what, how=how)
