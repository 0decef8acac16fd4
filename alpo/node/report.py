"""Account that a server gives of itself: its status, its events, its readiness, and how fast it goes.

Clients ask for it over the wire, and people, load balancers and Prometheus over HTTP (`alpo.node.http`).
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import trio

from alpo.core.disk_space import Appends
from alpo.core.messages import Room
from alpo.core.replica import Replica
from alpo.core.requests import Code
from alpo.storage.interface import DamagedStore, Store, StoreError
from alpo.storage.timings import Histogram
from alpo.storage.writer import WriterStats
from alpo.wire import requests as w

from .client_connection import ClientConnection
from .compare import Comparer
from .counters import Counters
from .disk_reads import DiskSilent
from .driver import Driver, wall_ms
from .limits import Limits
from .listener import Listener
from .pages import Extent, extent_to
from .peers import Peers
from .reads import Reads, front
from .retention import Cleaner, Lag, lags
from .routes import Ourselves
from .scrub import Scrubber, unreadable
from .security import Security
from .space import DiskWatch
from .status import Growth, appends_of, sizes, status_fields, writer_fields

#: Events of one page.
EVENTS_MAX = 1_000
#: Seconds for which rates of appends are kept, and over which the latest one is taken.
RATE_SECONDS, LATELY_SECONDS = 300, 5
_SNAPSHOT_SECONDS = 10
#: Seconds after which an account is given without the disk's answer; threads that may wait for the disk meanwhile; and
#: the age up to which its last answer is given instead. An asker waits for a second (`http.others.ANSWER_S`,
#: `alpo.client.operator.asking.ATTEMPT_S`), and an account may need two answers of the disk.
DISK_S, _DISK_THREADS, KNOWN_S = 0.3, 2, 10.0
#: Cursors that are looked up: each takes two queries.
CURSORS_SHOWN = 100
#: Clients slowed down by their quota that a status names.
SLOWED_MAX = 20


class Guaranteed:
    """Count of what becomes guaranteed while this server leads.

    Payloads are counted in strides: the log's end is remembered, and counted once all up to it is guaranteed."""

    def __init__(self, replica: Replica, counters: Counters) -> None:
        self._replica = replica
        self._counters = counters
        self._led = False
        self._id = self._lsn = 0  # counted up to here
        self._end = (0, 0)  # (id, next LSN) of the stride

    def notice(self) -> None:
        """Look at the replica; called after every step."""
        replica = self._replica
        leads, log, guaranteed_id = replica.reign is not None, replica.log, replica.guaranteed_id
        if not leads or not self._led:
            self._led = leads
            self._id, self._lsn = log.last_id, log.next_lsn
            self._end = log.last_id, log.next_lsn
            return
        if guaranteed_id > self._id:
            self._counters.appended_entries += guaranteed_id - self._id
            self._id = guaranteed_id
        if guaranteed_id >= self._end[0]:
            self._counters.appended_payloads += self._end[1] - self._lsn
            self._lsn, self._end = self._end[1], (log.last_id, log.next_lsn)


class Pulse:
    """Task with one look a second: how late the event loop's timers are, and how many payloads came."""

    def __init__(self, driver: Driver, now_ms: Callable[[], int] = wall_ms) -> None:
        self._driver = driver
        self._now_ms = now_ms
        #: (wall clock in ms, payloads a second that came into this log), the newest last.
        self.rates: deque[tuple[int, int]] = deque(maxlen=RATE_SECONDS)
        self._appends: deque[list[int]] = deque(maxlen=RATE_SECONDS // _SNAPSHOT_SECONDS)

    async def run(self) -> None:
        """Look until cancelled."""
        counters, log = self._driver.counters, self._driver.replica.log
        before, seen_s = log.next_lsn, trio.current_time()
        while True:
            due_s = seen_s // 1 + 1  # full seconds: tasks that wait for them wake together
            await trio.sleep_until(due_s)
            now_s, next_lsn = trio.current_time(), log.next_lsn
            counters.loop_lag_s.add(now_s - due_s)
            if now_s // 1 % _SNAPSHOT_SECONDS == 0:
                self._appends.append(list(counters.append_s.counts))
            self.rates.append((self._now_ms(), round(max(0, next_lsn - before) / (now_s - seen_s))))
            before, seen_s = next_lsn, now_s

    def fields(self) -> dict[str, Any]:
        """Status keys of speed; None for what no sample tells."""
        lately = [rate for _, rate in list(self.rates)[-LATELY_SECONDS:]]
        histogram = self._driver.counters.append_s
        before = self._appends[0] if self._appends else [0] * len(histogram.counts)
        counts = [now - then for now, then in zip(histogram.counts, before, strict=True)]
        return {
            "payloads_per_s": round(sum(lately) / len(lately)) if lately else None,
            "append_p50_ms": _percentile_ms(histogram, counts, 0.5),
            "append_p99_ms": _percentile_ms(histogram, counts, 0.99),
        }


def _percentile_ms(histogram: Histogram, counts: Sequence[int], share: float) -> float | None:
    """A percentile, within its bucket by proportion; None without a count. Beyond the last bound, that bound."""
    wanted = sum(counts) * share
    if not wanted:
        return None
    bounds, reached = [0.0, *histogram.bounds], list(accumulate(counts))
    bucket = bisect_left(reached, wanted)
    if bucket == len(histogram.bounds):
        return bounds[-1] * 1000
    part = 1 - (reached[bucket] - wanted) / counts[bucket]
    return round((bounds[bucket] + part * (bounds[bucket + 1] - bounds[bucket])) * 1000, 3)


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


@dataclass
class Report:
    """A server's account of itself, made of its parts."""

    us: Ourselves
    driver: Driver
    store: Store
    stats: WriterStats
    limits: Limits
    security: Security
    peers: Peers
    listener: Listener
    reads: Reads
    growth: Growth
    cleaner: Cleaner
    disk: DiskWatch
    scrubber: Scrubber
    comparer: Comparer
    pulse: Pulse
    #: True from the signal to stop on.
    leaving: bool = False
    started_s: float = field(default_factory=time.monotonic)
    _threads: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(_DISK_THREADS))
    _answered: tuple[float, dict[str, Any]] = (-math.inf, {})  # the disk's last answer for a status, and when it came

    @property
    def replica(self) -> Replica:
        return self.driver.replica

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
            found = await self.reads.disk.run(self._threads, self.store.read_events, ask.before, count)
        except StoreError as error:
            client.refuse(ask.request, Code.NOT_READY, detail=unreadable(error))
        else:
            rows = [(event.number, event.time_ms, event.name, event.fields) for event in found]
            client.settle(w.EventList(ask.request, self.us.me.id, now_ms, rows))

    async def status(self, now_ms: int) -> dict[str, Any]:
        """All status keys. Raises `StoreError`."""
        within, storage = await self._asked_of_disk()
        storage["clients"] = self.listener.count
        storage["write_under_way_ms"] = round(self.driver.write_under_way_s * 1000)
        storage["read_under_way_ms"] = round(self.reads.disk.under_way_s * 1000)
        storage["cleaning_waits"] = self.cleaner.waits
        storage["time_ms"] = now_ms
        storage |= {"up_s": round(time.monotonic() - self.started_s), **self.pulse.fields()}
        contexts = self.security.contexts
        storage["certificate_ends_s"] = contexts.cert_ends_s if contexts is not None else None
        storage["slowed"] = self.driver.quotas.slowed(trio.current_time())[:SLOWED_MAX]
        storage |= {**self.disk.fields(), "space": self.disk.remarks()}
        unread = storage.pop("unread", [])
        if unread:
            self.disk.look_soon()
        storage |= {**self.scrubber.fields(), "damage": [*self.scrubber.remarks(), *unread]}
        storage["twice"] = self.peers.twice()
        storage["log_ahead_ms"] = max(0, self.replica.log.last_time_ms - now_ms)
        storage["clocks_leapt_ms"] = self.replica.log_clock.leap_ms if self.replica.leadership is not None else None
        storage |= {**self.comparer.fields(), "divergence": self.comparer.remarks()}
        return status_fields(self.us, self.replica, self.peers.by_id, self.listener.strangers.fields(), within, storage)

    async def _asked_of_disk(self) -> tuple[Extent, dict[str, Any]]:
        """Answers of the disk for a status; after `DISK_S` the last ones, if they are not old, and what is known
        without it. Raises `StoreError`."""
        with suppress(DiskSilent), trio.move_on_after(DISK_S):
            within = await self.reads.extent_about()
            found = await self.reads.disk.ask(self._threads, sizes, self.store, self.growth)
            self._answered = trio.current_time(), found
            return within, {**found, **writer_fields(self.stats)}
        log, end_id = self.replica.log, self.replica.readable_id
        answered_s, found = self._answered
        lately = found if trio.current_time() - answered_s < KNOWN_S else {}
        return extent_to(front(self.replica), end_id, log.next_lsn - 1), {**lately, **writer_fields(self.stats)}

    # -- for probes -------------------------------------------------------------------------------------

    def checks(self, *, must_lead: bool = False) -> list[Check]:
        """Conditions under which requests may be sent here; all must hold."""
        r = self.replica
        leads = r.leader_id == self.us.me.id
        heard = leads or r.election.live_leader()
        full = self.stats.full or ("low on disk space" if self.disk.room is not Room.PLENTY else "")
        failure = self.driver.failure
        found = [
            Check("running", not self.leaving, "it is stopping"),
            Check("started", r.first_start.started, "it belongs to no cluster yet"),
            Check("voting", r.status_text == "VOTING", f"it is {r.status_text}"),
            Check("leader", heard, "no leader was heard within an election timeout"),
            Check("store", failure is None and not full, str(failure or full)),
            Check("disk", not self.reads.disk.hangs, "its disk hangs: it answers no reads"),
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
            return await self.reads.disk.ask(
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
            found = lags(self.store, cursors, base_id, end_id) if cursors else []
        return Lookups(found, lag_s, fully[1] + fully[2] - 1 if fully is not None else None)

    def _head(self, id: int) -> tuple[int, int, int] | None:
        """Head of entry ``id``; None if it was cleaned, or is damaged: no figure is worth a page that cannot be made.
        Raises `StoreError`."""
        with suppress(DamagedStore):
            return self.store.entry_head(id)
        return None
