"""A server from start to stop: which parts it has, in which order they start, and how it leaves.

Laws:

* One nursery holds everything. However it ends, the writer is closed after the last step and before the store.
* On a signal the server takes nothing new, hands leadership over, finishes what is in flight (at most `STOP_S_MAX`),
  and ends without error (R28).
"""

from __future__ import annotations

import contextlib
import functools
import random
import secrets
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import trio

from alpo._version import __version__
from alpo.core.config import ReplicaConfig
from alpo.core.disk import Write
from alpo.core.disk_space import TELL_SHARE
from alpo.core.inputs import AcceptClocks, Stop
from alpo.core.members import INCARNATION_BYTES
from alpo.core.messages import Envelope
from alpo.core.replica import Replica
from alpo.core.requests import Code
from alpo.storage.events import EventRow, event_row
from alpo.storage.interface import Store
from alpo.storage.writer import After, Slow, WriterStats
from alpo.wire import requests as w
from alpo.wire.codec import encode_problem

from .await_replicated import Everyone
from .backups import Backups
from .client_connection import ClientConnection
from .compare import Comparer
from .counters import Counters, Elections
from .digests import Digests
from .driver import Driver, wall_ms
from .event_log import Recorder, feed_watchdog, notify, set_level
from .limits import NO_CARE, DiskCare, Limits
from .listener import Listener
from .loader import Loader
from .peers import GRACE_TIMEOUTS, Peers
from .poller import Poller
from .reads import Reads
from .report import Guaranteed, Pulse, Report
from .retention import KEEP_ALL, Cleaner, Retention, serve_list
from .routes import Ourselves, Routes
from .scrub import Scrubber
from .security import Security
from .signals import STOP_S_MAX, Signals
from .space import DiskWatch
from .status import Growth, tell_waiting
from .threads import in_thread

#: Time to finish what is in flight; the rest of `STOP_S_MAX` is for closing the store.
LEAVE_S_MAX = STOP_S_MAX - 0.5
#: Share of the election timeout beyond which a commit or checkpoint is a `slow_fsync` event.
SLOW_SHARE = 0.25


class WriterLike(Protocol):
    """Part that the node needs of `alpo.storage.writer.Writer`."""

    stats: WriterStats
    #: Time at which the present call of `commit_here` began, `time.perf_counter` seconds; infinity: there is none.
    here_since_s: float

    def submit(self, write: Write, after: After = None) -> None: ...

    def commit_here(self, write: Write, after: After = None) -> bool: ...

    def note(self, event: EventRow) -> None: ...

    def watch(self, slow_s: float, slow: Slow, full: Callable[[], None]) -> None: ...

    def give_back(self) -> None: ...

    def close(self) -> None: ...


#: Makes the writer. Arguments: (done, failed); the writer calls ``failed`` from a thread of its own.
MakeWriter = Callable[[Callable[[int], None], Callable[[BaseException], None]], WriterLike]


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


#: Reads the configuration again. Raises `CannotReload`.
Reload: TypeAlias = Callable[[], Fresh]


def _soon(token: trio.lowlevel.TrioToken, call: Callable[[], object]) -> None:
    """Call in the Trio thread, from another thread; does nothing if the server has stopped."""
    with contextlib.suppress(trio.RunFinishedError):  # the server has stopped
        token.run_sync_soon(call)


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

    server = HttpServer(Site(report, auth=need), report.security, report.driver.counters, report.limits)
    return functools.partial(server.run, listening)


def _nothing_new() -> Fresh:
    return Fresh()


class Node:
    """One server; `run` it once. It also implements `Services` for clients' connections."""

    def __init__(
        self, cfg: ReplicaConfig, limits: Limits, store: Store, make_writer: MakeWriter,
        retention: Retention = KEEP_ALL, care: DiskCare = NO_CARE, security: Security | None = None,
    ) -> None:
        timers_ms = (
            round(cfg.heartbeat_s * 1000), round(cfg.election_timeout_s * 1000), round(cfg.stagger_s * 1000)
        )
        self.limits = limits
        self.us = Ourselves(cfg.me, cfg.address, timers_ms, secrets.token_bytes(INCARNATION_BYTES))
        self._cfg = cfg
        self._store = store
        self._make_writer = make_writer
        self._retention = retention
        self._recorder = Recorder()
        self._care = care
        self._security = security or Security()
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
        self._make_parts(token)
        if signals is not None:
            signals.here_since_s = lambda: self.writer.here_since_s
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
                await in_thread(self.writer.close)
        if self.driver.failure is not None:
            raise self.driver.failure

    def _make_parts(self, token: trio.lowlevel.TrioToken) -> None:
        boot = self._store.boot()
        self.replica = Replica(self._cfg, boot, random.Random(secrets.randbits(64)))
        self.replica.replay(self._store.replay(boot.applied_id + 1))
        writer = self._make_writer(
            lambda number: self.driver.durable(number),  # noqa: PLW0108 (the driver is made after the writer)
            lambda error: token.run_sync_soon(self.driver.failed, error),
        )
        self.writer = writer
        self.routes = Routes()
        self.loader = loader = Loader(self._store, self.limits.catch_up_bytes_per_s)
        self.driver = Driver(
            self.replica, submit=writer.submit, commit_here=writer.commit_here, send=self._send,
            prepare=self._prepare, load=loader.load, inflight_bytes_max=self.limits.inflight_bytes_max,
            counters=Counters(Elections(self.us.me.id)),
        )
        self.driver.on_failure = self._ended.set
        self.driver.keep = self._keep_event
        self.growth = Growth(self.driver, self._store)
        care = self._care
        self.scrubber = Scrubber(self.driver, self._store, care)
        self.driver.on_mended = self.scrubber.mended
        self._store.on_damage = lambda damage: _soon(token, functools.partial(self.scrubber.suspect, damage))
        self.reads = Reads(self.driver, self._store, self.limits, self.scrubber)
        self.everyone = Everyone(self.driver, self.reads, self.limits, self.scrubber)
        self.backups = Backups(self.replica, self._store, self.limits, self.scrubber)
        self.digests = Digests(self.replica, self._store)
        self.cleaner = Cleaner(
            self.driver, self._store, self._retention, lambda: writer.stats.mean_commit_ms / 1000
        )
        self.disk = DiskWatch(self.driver, self._store, writer.stats, care.low_water_bytes)
        writer.watch(
            SLOW_SHARE * self._cfg.election_timeout_s, functools.partial(self._slow, token),
            functools.partial(_soon, token, self.disk.look_soon),
        )
        self.comparer = Comparer(self.driver, self._store, care, self._security)
        configured = {c.id: c.address for c in self._cfg.configured}
        self.poller = Poller(after=functools.partial(self.driver.kick, at_once=True))
        self.peers = Peers(self.us, self.driver, self.poller, self.routes, configured, self._security)
        self.listener = Listener(
            self.us, self.driver, self.poller, self.routes, self.peers, self, self.limits, self._security
        )
        self.driver.after_step.append(Guaranteed(self.replica, self.driver.counters).notice)
        self.pulse = Pulse(self.driver)
        self.report = Report(
            self.us, self.driver, self._store, writer.stats, self.limits, self._security, self.peers, self.listener,
            self.reads, self.growth, self.cleaner, self.disk, self.scrubber, self.comparer, self.pulse,
        )

    # -- events -----------------------------------------------------------------------------------------

    def _keep_event(self, name: str, fields: Mapping[str, Any]) -> bool:
        now_ms = wall_ms()
        kept = self._recorder.judge(name, fields, now_ms)
        if kept is not None:
            self.writer.note(event_row(now_ms, name, kept))
        self._tell_systemd()
        return kept is not None

    def _tell_systemd(self) -> None:
        """Report this server's state for `systemctl status`; called with every event, since events change it."""
        r = self.replica
        who = "leads" if r.leader_id == self.us.me.id else f"server {r.leader_id} leads" if r.leader_id else "no leader"
        standing = f"server {self.us.me.id}: {r.status_text}, {who}, term {r.term}"
        if standing != self._told_systemd:
            self._told_systemd = standing
            notify(f"STATUS={standing}")

    def _slow(self, token: trio.lowlevel.TrioToken, what: str, took_s: float, entries: int) -> None:
        """Report a slow commit or checkpoint; called by the thread that has the writer's turn."""
        limit_ms = round(SLOW_SHARE * self._cfg.election_timeout_s * 1000)
        _soon(token, functools.partial(
            self.driver.note, "slow_fsync", what=what, took_ms=round(took_s * 1000, 1),
            limit_ms=limit_ms, entries=entries,
        ))
        _soon(token, self.disk.look_soon)

    async def _serve(
        self, listening: socket.socket, visited: Visited, reload: Reload,
        task_status: trio.TaskStatus[None],
    ) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reload_when_asked, reload)
            self.loader.start(self.driver, nursery)
            self.driver.start()
            await self.scrubber.recall()
            nursery.start_soon(self.driver.run)
            nursery.start_soon(self.driver.keep_time)
            nursery.start_soon(self.poller.run)
            self.reads.start(nursery)
            self.peers.start(nursery)
            nursery.start_soon(self.cleaner.run)
            nursery.start_soon(self.growth.run)
            nursery.start_soon(self.disk.run)
            nursery.start_soon(self.scrubber.run)
            nursery.start_soon(self.comparer.run)
            nursery.start_soon(self.listener.run, listening)
            nursery.start_soon(self.listener.follow_certificates)
            nursery.start_soon(feed_watchdog)
            nursery.start_soon(self.pulse.run)
            nursery.start_soon(visited)
            self.driver.note(
                "serving", id=self.us.me.id, address=self.us.address, status=self.replica.status_text,
                last_id=self.replica.last_id, term=self.replica.term, version=__version__,
            )
            nursery.start_soon(tell_waiting, self.driver, GRACE_TIMEOUTS * self._cfg.election_timeout_s)
            notify("READY=1")
            task_status.started()
            await self._ended.wait()
            self.report.leaving = True
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
            _soon(token, self._reload_asked.set if number == signal.SIGHUP else self.stop)

        def keep(name: str, ms: int) -> None:  # the event loop keeps it once it goes on; the line is in the log already
            _soon(token, functools.partial(
                self._keep_event, name, {"under_way_ms" if name == "disk_hangs" else "took_ms": ms}
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
        if fresh.retention is not None:
            self.cleaner.policy = fresh.retention
        if fresh.limits is not None:
            self.limits.take(fresh.limits)
            self.driver.inflight_bytes_max = fresh.limits.inflight_bytes_max
            self.loader.bound(fresh.limits.catch_up_bytes_per_s)
            self.reads.bound(fresh.limits.bulk_read_bytes_per_s)
            self.driver.room.unpark_all()

    async def _leave(self) -> None:
        self.driver.note("stopping", state=self.replica.state.value, term=self.replica.term)
        with trio.move_on_after(LEAVE_S_MAX) as scope:
            self.driver.post(Stop())
            self.driver.kick()
            await self.driver.may_stop.wait()
            for client in list(self.listener.clients):
                await client.wait_idle()
        last_words = encode_problem(Code.NOT_READY, "it is stopping")
        for route in self.routes.accepted.values():  # last words spare the others' logs an alarm
            route.link.push(last_words)
        self.driver.note("stopped", in_time=not scope.cancelled_caught)

    # -- what the driver asks ---------------------------------------------------------------------------

    def _send(self, envelopes: Sequence[Envelope]) -> None:
        self.routes.send(envelopes, self.driver.now_s)

    def _prepare(self, envelopes: Sequence[Envelope]) -> Callable[[], None]:
        return self.routes.prepare(envelopes, self.driver.now_s)

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

    def begin_read(self, client: ClientConnection, ask: w.Read | w.ReadColumns) -> None:
        self.reads.begin(client, ask)

    def begin_cursors(self, client: ClientConnection, request: int) -> None:
        client.nursery.start_soon(serve_list, self.driver, self._store, self.reads, self.scrubber, client, request)

    def begin_await(self, client: ClientConnection, ask: w.AwaitReplicated) -> None:
        self.everyone.begin(client, ask)

    def begin_backup(self, client: ClientConnection, ask: w.Backup) -> None:
        self.backups.begin(client, ask)

    def begin_give_back(self, client: ClientConnection, ask: w.GiveBack) -> None:
        """Ask the store to return free space, and answer at once: `status` shows the progress."""
        self.writer.give_back()
        client.settle(w.Done(ask.request, 0))

    def accept_clocks(self, client: ClientConnection, ask: w.AcceptClocks) -> None:
        """Believe the members' clocks, if this server leads."""
        if self.replica.leadership is None:
            client.refuse(ask.request, Code.NOT_LEADER, leader=self.replica.leader_id)
            return
        leap_ms = self.replica.log_clock.leap_ms
        self.driver.post(AcceptClocks())
        self.driver.kick()
        client.settle(w.Done(ask.request, leap_ms))

    def begin_digest(self, client: ClientConnection, ask: w.RangeDigest) -> None:
        self.digests.begin(client, ask)

    def begin_status(self, client: ClientConnection, ask: w.Status) -> None:
        self.report.begin_status(client, ask)

    def begin_events(self, client: ClientConnection, ask: w.ListEvents) -> None:
        self.report.begin_events(client, ask)
