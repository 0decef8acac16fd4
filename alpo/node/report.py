"""Account that a server gives of itself: its status, its events, its readiness, and how fast it goes.

Clients ask for it over the wire, and people, load balancers and Prometheus over HTTP (`alpo.node.http`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import trio

from alpo.core.disk_space import Appends
from alpo.core.messages import Room
from alpo.core.replica import Replica
from alpo.core.requests import Code
from alpo.storage.interface import DamagedStore, StoreError
from alpo.wire import requests as w

from .admission import Limits
from .client_connection import ClientConnection
from .driver import wall_ms
from .hosted import LogState
from .listener import Listener
from .log_server import LogServer
from .pages import Extent, extent_to
from .peers import Peers
from .reads import DiskSilent, front
from .retention import Lag, lags
from .routes import Ourselves
from .scrub import unreadable
from .security import Security
from .status import appends_of, sizes, status_fields, writer_fields

#: Events of one page.
EVENTS_MAX = 1_000
#: Seconds after which an account is given without the disk's answer; threads that may wait for the disk meanwhile; and
#: the age up to which its last answer is given instead. An asker waits for a second (`http.site.ANSWER_S`,
#: `alpo.client.retry.ATTEMPT_S`), and an account may need two answers of the disk.
DISK_S, _DISK_THREADS, KNOWN_S = 0.3, 2, 10.0
#: Cursors that are looked up: each takes two queries.
CURSORS_SHOWN = 100
#: Clients slowed down by their quota that a status names.
SLOWED_MAX = 20


class Check(NamedTuple):
    """One condition of readiness. ``why``: in words, if it does not hold."""

    name: str
    holds: bool
    why: str


class Lookups(NamedTuple):
    """Facts for which the store is asked. ``cursors``: those furthest behind; ``lag_s``: seconds by which each server
    is behind, by id (only a leader knows). ``known``: False if the disk did not answer: then the other fields say
    nothing."""

    cursors: list[Lag]
    lag_s: dict[int, float]
    fully_replicated_lsn: int | None
    known: bool = True


def _behind(replica: Replica, mark_id: int) -> list[int] | None:
    """Ids of the members that lack entries up to this one; None if this server does not lead."""
    if replica.leadership is None:
        return None
    peers, listed = replica.leadership.peers, {member.id for member in replica.members.latest.replicas}
    return sorted(id for id, peer in peers.items() if id in listed and not (peer.matched and peer.match_id >= mark_id))


def _log_fields(log: LogState, server: LogServer | None, bytes_: int | None) -> dict[str, Any]:
    """Status keys of one log; ``server`` None: it does not run here. Only its leader knows who is ``behind``."""
    found: dict[str, Any] = {**log._asdict(), "why": log.why or None}
    if server is None:
        return found
    replica = server.replica
    return {
        **found, "leader": replica.leader_id or None, "term": replica.term, "first_lsn": front(replica).first_lsn,
        "last_lsn": replica.log.next_lsn - 1, "bytes": bytes_,
        "behind": _behind(replica, server.pulse.mark_id),
    }


class Hosting(Protocol):
    """Part of the host that the account tells of; ``leaving``: True from the signal to stop on."""

    us: Ourselves
    limits: Limits
    security: Security
    peers: Peers
    listener: Listener
    leaving: bool
    #: The first log.
    log: LogServer

    def reports(self) -> list[tuple[int, str, Report]]: ...

    def states(self) -> list[LogState]: ...


@dataclass
class Report:
    """A server's account of itself and of its log."""

    host: Hosting
    log: LogServer
    started_s: float = field(default_factory=time.monotonic)
    _threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(_DISK_THREADS))
    _answered: tuple[float, dict[str, Any]] = (-math.inf, {})  # the disk's last answer for a status, and when it came

    @property
    def replica(self) -> Replica:
        return self.log.replica

    # -- for clients ------------------------------------------------------------------------------------

    def begin_status(self, client: ClientConnection, ask: w.Status) -> None:
        client.nursery.start_soon(self._answer_status, client, ask, wall_ms())

    def begin_events(self, client: ClientConnection, ask: w.ListEvents) -> None:
        client.nursery.start_soon(self._answer_events, client, ask, wall_ms())

    async def _answer_status(self, client: ClientConnection, ask: w.Status, now_ms: int) -> None:
        try:
            fields = await self.status(now_ms)
        except StoreError as error:
            client.refuse(ask.request, Code.NOT_READY, detail=unreadable(error))
        else:
            client.settle(w.StatusAnswer(ask.request, fields))

    async def _answer_events(self, client: ClientConnection, ask: w.ListEvents, now_ms: int) -> None:
        count = min(ask.count, EVENTS_MAX)
        try:
            found = await self.log.reads.disk.run(self._threads, self.log.store.read_events, ask.before, count)
        except StoreError as error:
            client.refuse(ask.request, Code.NOT_READY, detail=unreadable(error))
        else:
            rows = [(event.number, event.time_ms, event.name, event.fields) for event in found]
            client.settle(w.EventList(ask.request, self.host.us.me.id, now_ms, rows))

    async def status(self, now_ms: int) -> dict[str, Any]:
        """All status keys. Raises `StoreError`."""
        within, storage = await self._asked_of_disk()
        storage["clients"] = self.host.listener.count
        storage["write_under_way_ms"] = round(self.log.driver.write_under_way_s * 1000)
        storage["read_under_way_ms"] = round(self.log.reads.disk.under_way_s * 1000)
        storage["cleaning_waits"] = self.log.cleaner.waits
        storage["time_ms"] = now_ms
        storage |= {"up_s": round(time.monotonic() - self.started_s), **self.log.pulse.fields()}
        contexts = self.host.security.contexts
        storage["certificate_ends_s"] = contexts.cert_ends_s if contexts is not None else None
        storage["slowed"] = self.log.driver.quotas.slowed(trio.current_time())[:SLOWED_MAX]
        storage |= {**self.log.disk.fields(), "space": self.log.disk.remarks()}
        unread, log_bytes = storage.pop("unread", []), storage.pop("log_bytes", {})
        if unread:
            self.log.disk.look_soon()
        storage |= {**self.log.scrubber.fields(), "damage": [*self.log.scrubber.remarks(), *unread]}
        storage["twice"] = self.host.peers.twice()
        storage["log_ahead_ms"] = max(0, self.replica.log.last_time_ms - now_ms)
        storage["clocks_leapt_ms"] = self.replica.log_clock.leap_ms if self.replica.leadership is not None else None
        storage |= {**self.log.comparer.fields(), "divergence": self.log.comparer.remarks()}
        strangers = self.host.listener.strangers.fields()
        if self.log is self.host.log:
            storage["logs"] = self._logs(log_bytes)
        return status_fields(self.host.us, self.replica, self.host.peers.by_id, strangers, within, storage)

    def _logs(self, bytes_: Mapping[int, int]) -> list[dict[str, Any]]:
        """Status keys of each log, the first before the others. ``bytes_``: sizes as far as known, by number."""
        running = {number: report.log for number, _, report in self.host.reports()}
        return [_log_fields(log, running.get(log.number), bytes_.get(log.number)) for log in self.host.states()]

    async def _asked_of_disk(self) -> tuple[Extent, dict[str, Any]]:
        """Answers of the disk for a status; after `DISK_S` the last ones, if they are not old, and what is known
        without it. Raises `StoreError`."""
        stats = self.log.writer.stats
        with suppress(DiskSilent), trio.move_on_after(DISK_S):
            within = await self.log.reads.extent_about()
            stores = {number: report.log.store for number, _, report in self.host.reports()}
            found = await self.log.reads.disk.ask(
                self._threads, sizes, self.log.store, self.log.growth, stores if self.log is self.host.log else {}
            )
            self._answered = trio.current_time(), found
            return within, {**found, **writer_fields(stats)}
        log, end_id = self.replica.log, self.replica.readable_id
        answered_s, found = self._answered
        lately = found if trio.current_time() - answered_s < KNOWN_S else {}
        return extent_to(front(self.replica), end_id, log.next_lsn - 1), {**lately, **writer_fields(stats)}

    # -- for probes -------------------------------------------------------------------------------------

    def checks(self, *, must_lead: bool = False) -> list[Check]:
        """Conditions under which requests may be sent here; all must hold."""
        r = self.replica
        leads = r.leader_id == self.host.us.me.id
        heard = leads or r.election.live_leader()
        full = self.log.writer.stats.full or ("low on disk space" if self.log.disk.room is not Room.PLENTY else "")
        failure = self.log.driver.failure
        failed = [f"the log {log.name} has failed: {log.why}" for log in self.host.states() if log.state == "failed"]
        found = [
            Check("running", not self.host.leaving, "it is stopping"),
            Check("started", r.first_start.started, "it belongs to no cluster yet"),
            Check("voting", r.status_text == "VOTING", f"it is {r.status_text}"),
            Check("leader", heard, "no leader was heard within an election timeout"),
            Check("store", failure is None and not full, str(failure or full)),
            Check("disk", not self.log.reads.disk.hangs, "its disk hangs: it answers no reads"),
            Check("logs", not failed, "; ".join(failed)),
        ]
        if must_lead:
            who = f"server {r.leader_id} leads" if r.leader_id else "there is no leader"
            found.append(Check("leads", leads, who))
            appends = self.appends()
            if appends is not None:
                found.append(Check("appends", appends.work, ", ".join(appends.why)))
        return found

    # -- for metrics and the page -----------------------------------------------------------------------

    def appends(self) -> Appends | None:
        """The leader's answer to whether appends work; None if this server does not lead."""
        return appends_of(self.replica)

    async def lookups(self) -> Lookups:
        """Look up what only the store knows; nothing is known if it takes longer than `DISK_S`. Raises
        `StoreError`."""
        r = self.replica
        peers = r.leadership.peers if r.leadership is not None else {}
        marks = {id: peer.match_id for id, peer in peers.items() if peer.matched}
        cursors = sorted(r.cursors.now.items(), key=lambda cursor: cursor[1])[:CURSORS_SHOWN]
        with trio.move_on_after(DISK_S):
            return await self.log.reads.disk.ask(
                self._threads, self._look_up, cursors, marks, r.log.base_id, r.guaranteed_id, r.fully_replicated_id
            )
        return Lookups([], {}, None, known=False)

    def _look_up(
        self, cursors: list[tuple[str, int]], marks: dict[int, int], base_id: int, end_id: int, fully_id: int
    ) -> Lookups:
        now_ms = wall_ms()
        lag_s: dict[int, float] = {}
        for id, match_id in marks.items():
            head = self._head(max(match_id, base_id) + 1) if match_id < end_id else None
            lag_s[id] = max(0, now_ms - head[0]) / 1000 if head is not None else 0.0
        fully = self._head(fully_id)
        found: list[Lag] = []
        with suppress(DamagedStore):  # the scrubber tells
            found = lags(self.log.store, cursors, base_id, end_id) if cursors else []
        return Lookups(found, lag_s, fully[1] + fully[2] - 1 if fully is not None else None)

    def _head(self, id: int) -> tuple[int, int, int] | None:
        """Head of entry ``id``; None if it was cleaned, or is damaged: no figure is worth a page that cannot be made.
        Raises `StoreError`."""
        with suppress(DamagedStore):
            return self.log.store.entry_head(id)
        return None
