"""A server's answer to `alpo status`: its keys are part of the public interface, see docs/cli.md and operations.md."""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple, NoReturn

import trio

from alpo._version import __version__
from alpo.core.disk_space import Appends
from alpo.core.first_start import NOT_ANSWERED
from alpo.core.replica import Replica
from alpo.storage.interface import Store, StoreError
from alpo.storage.timings import Histogram
from alpo.storage.writer import WriterStats

from .counters import Counters
from .driver import Driver, wall_ms
from .pages import Extent
from .peers import Peer
from .routes import Ourselves
from .threads import in_thread

#: Reason shown while only an operator can begin the first start.
INIT_WANTED = "waits for `alpo cluster init`"
_OUTSIDE = {
    "GONE": "it was removed from the cluster: stop it once no log has it any more; its directory is of no use then",
    "RETIRED": "it was removed from the cluster, or another disk has taken its place there: stop it once no log has it"
    " any more; to use this host again, start it with an empty directory",
}


def waiting(replica: Replica) -> list[str]:
    """Reasons why this server does not take part, a sentence each; [] if it does."""
    if replica.first_start.started:
        return [_OUTSIDE[replica.status_text]] if replica.status_text in _OUTSIDE else []
    newcomer = replica.cfg.joining and len(replica.cfg.configured) == 1
    members = {} if newcomer else replica.first_start.waits_for
    return [*_told(replica), *(f"waits for server {id}: it {why}" for id, why in sorted(members.items()))]


def _told(replica: Replica) -> list[str]:
    """Steps for an operator before the first start, as far as they are known from the beginning."""
    if replica.cfg.joining and len(replica.cfg.configured) == 1:
        here = f"{replica.me.id}={replica.cfg.address}"
        return [
            f"waits to be added to a cluster: `alpo member add {here}`, or, in place of its server {replica.me.id},"
            f" `alpo member replace {here}`"
        ]
    if replica.cfg.joining:  # a server with others on its list has lost a store
        return ["waits for those who knew it before its store was lost (lost-… in its directory): it founds no cluster"]
    if replica.first_start.bound:
        wanted = replica.cfg.cluster_wanted.hex()
        return [f"waits for cluster {wanted}, which its configuration names: it founds no other"]
    return [] if replica.first_start.commanded else [INIT_WANTED]


async def tell_waiting(driver: Driver, grace_s: float) -> None:
    """Record an event for each reason why the first start waits, until it is done; after ``grace_s`` also one for each
    member that has not answered. (The core reports a member whose answer does not fit.)"""
    replica, said = driver.replica, set[int]()
    if not replica.first_start.started:
        for why in _told(replica):
            driver.note("first_start_waits", why=why)
    with trio.move_on_after(grace_s):
        while not replica.first_start.started:
            await trio.sleep(grace_s / 20)
    while not replica.first_start.started:
        silent = {id for id, why in replica.first_start.waits_for.items() if why == NOT_ANSWERED}
        for id in sorted(silent - said):
            driver.note("first_start_waits", member=id, why=NOT_ANSWERED)
        said = silent
        await trio.sleep(grace_s / 20)


def problems(peers: Mapping[int, Peer], strangers: Sequence[Mapping[str, Any]], now_ms: int) -> list[str]:
    """Peers that cannot be reached or are not what they should be, and hosts that were turned away, a line each."""
    found = [f"server {peer.id}: {peer.trouble}" for _, peer in sorted(peers.items()) if peer.trouble]
    for each in strangers:
        age_s = max(0, now_ms - each["last_ms"]) // 1000
        age = f"{age_s // 60} min" if age_s >= 60 else f"{age_s} s"
        times = f"{each['times']} times, last " if each["times"] > 1 else ""
        found.append(f"{each['remote']}: {each['why']} ({times}{age} ago)")
    return found


def member_change(replica: Replica, peers: Mapping[int, Peer]) -> str | None:
    """The member change that an operator asked this leader for: what it waits for, and the last trouble; None if there
    is none."""
    if replica.changes is None or not replica.changes.under_way:
        return None
    peer = peers.get(replica.changes.asked_id)
    seen = f" (last seen: {peer.trouble})" if peer is not None and peer.trouble else ""
    return replica.changes.under_way + seen


def peer_fields(peers: Mapping[int, Peer]) -> list[dict[str, Any]]:
    """Status keys of each other member: is there a full connection, and its round trip time in ms."""
    return [
        {
            "id": peer.id,
            "reachable": not peer.trouble,
            "why": peer.trouble or None,
            "round_trip_ms": peer.route.link.round_trip_ms if peer.route is not None else None,
        }
        for _, peer in sorted(peers.items())
    ]


def appends_of(replica: Replica) -> Appends | None:
    """The leader's answer to whether appends work; None if this server does not lead."""
    return None if replica.leadership is None else replica.disks.appends(replica.leadership)


def status_fields(
    us: Ourselves, replica: Replica, peers: Mapping[int, Peer], strangers: Sequence[Mapping[str, Any]], within: Extent,
    storage: Mapping[str, Any],
) -> dict[str, Any]:
    """All keys of `StatusAnswer.fields`. LSNs and ids as a local reader sees them; ``leader`` None while none is
    known."""
    appends = appends_of(replica)
    return {
        "id": us.me.id,
        "address": us.address,
        "state": replica.state.value,
        "status": replica.status_text,
        "term": replica.term,
        "leader": replica.leader_id or None,
        "last_id": replica.last_id,
        "guaranteed_id": replica.guaranteed_id,
        "fully_replicated_id": replica.fully_replicated_id,
        "first_lsn": within.first_lsn,
        "last_lsn": within.end_lsn,
        "cleaned_id": replica.log.base_id,
        "cleanable_id": replica.cleaning.cleanable_id,
        "reachable": True,
        "version": __version__,
        "cluster": replica.cluster.hex() or None,
        "members": [
            {"id": m.id, "address": m.address, "priority": m.priority, "role": m.role.name}
            for m in replica.members.latest.members
        ],
        "member_change": member_change(replica, peers),
        "incarnation": replica.me.incarnation.hex(),
        "timers_ms": list(us.timers_ms),
        "peers": peer_fields(peers),
        "appends": None if appends is None else appends._asdict(),
        "failures_tolerable": None if appends is None else appends.may_fail,
        "waiting": waiting(replica),
        "problems": problems(peers, strangers, wall_ms()),
        "strangers": strangers,
        **storage,
    }


SAMPLE_EVERY_S = 3600.0
DAY_MS = 86_400_000
LEAST_MS = 600_000
_PAGE = 1_000
_NAME = "size"


class Sample(NamedTuple):
    """Size of the log at one time; ``live_bytes``: see `Store.live_bytes`."""

    time_ms: int
    live_bytes: int


def bytes_a_day(samples: list[Sample], now: Sample) -> int | None:
    """Growth per day since the oldest sample of the last day; None without a sample that is old enough."""
    spans = [now.time_ms - sample.time_ms for sample in samples]
    fit = [(span, sample) for span, sample in zip(spans, samples, strict=True) if LEAST_MS <= span <= DAY_MS]
    if not fit:
        return None
    span_ms, oldest = max(fit)
    return round((now.live_bytes - oldest.live_bytes) * DAY_MS / span_ms)


class Growth:
    """Task that samples the log's size, and the status keys made of it. ``now_ms`` returns the wall clock."""

    def __init__(self, driver: Driver, store: Store, now_ms: Callable[[], int] = wall_ms) -> None:
        self._driver = driver
        self._store = store
        self._now_ms = now_ms
        self._samples: deque[Sample] = deque(maxlen=26)

    async def run(self) -> None:
        """Sample until cancelled, or the store cannot be read: other readers report that."""
        try:
            self._samples.extend(await in_thread(self._earlier))
            while True:
                sample = await in_thread(self._sample)
                self._samples.append(sample)
                self._driver.keep(_NAME, {"live_bytes": sample.live_bytes})
                await trio.sleep(SAMPLE_EVERY_S)
        except StoreError:
            return

    def _sample(self) -> Sample:
        return Sample(self._now_ms(), self._store.live_bytes())

    def _earlier(self) -> list[Sample]:
        """Samples kept over the last day, oldest first."""
        since_ms, before, found = self._now_ms() - DAY_MS, 0, []
        while page := self._store.read_events(before, _PAGE):
            for event in reversed(page):
                if event.name == _NAME and event.time_ms >= since_ms:
                    found.append(Sample(event.time_ms, int(json.loads(event.fields).get("live_bytes", 0))))
            before = page[0].number
            if page[0].time_ms < since_ms or before == 1:
                break
        return found[::-1][-24:]

    def fields(self) -> dict[str, Any]:
        """Status keys of disk size and growth; None for what is unknown. Reads the store: for a thread. Raises
        `StoreError`."""
        volume = self._store.volume()
        now = self._sample()
        rate = bytes_a_day(list(self._samples), now)
        days = None
        if rate is not None and rate > 0 and volume.total_bytes:
            days = round((volume.free_bytes + self._store.free_bytes()) / rate, 1)
        return {
            "live_bytes": now.live_bytes,
            "disk_total_bytes": volume.total_bytes or None,
            "disk_free_bytes": volume.free_bytes if volume.total_bytes else None,
            "growth_bytes_per_day": rate,
            "disk_full_days": days,
        }


def writer_fields(stats: WriterStats) -> dict[str, Any]:
    """Status keys of the writer, for which no disk is asked."""
    lately = stats.timings.spread(time.perf_counter())
    return {
        "commits": stats.commits,
        "commit_ms": round(stats.mean_commit_ms, 3),
        "fsync_samples": lately.samples,
        "fsync_p50_ms": round(lately.p50_ms, 3) if lately.samples else None,
        "fsync_p99_ms": round(lately.p99_ms, 3) if lately.samples else None,
        "fsync_max_ms": round(lately.max_ms, 3) if lately.samples else None,
    }


def sizes(store: Store, growth: Growth, logs: Mapping[int, Store]) -> dict[str, Any]:
    """Status keys of file sizes, and ``log_bytes``: bytes in use in the stores of ``logs``, as far as they can be read.
    If the log's own sizes cannot be read, only ``unread``, which says why. For a thread."""
    log_bytes: dict[int, int] = {}
    for number, each in logs.items():
        with suppress(StoreError):  # closed meanwhile, or that log's own trouble
            log_bytes[number] = each.live_bytes()
    try:
        return {
            "disk_bytes": store.size_bytes(), "file_free_bytes": store.free_bytes(), "wal_bytes": store.wal_bytes(),
            "giving_back": store.giving_back(), "log_bytes": log_bytes, **growth.fields(),
        }
    except StoreError as error:
        return {"unread": [f"the sizes of its data file cannot be read: {error}"]}


#: Seconds for which rates of appends are kept, and over which the latest one is taken.
RATE_SECONDS, LATELY_SECONDS = 300, 5
#: Seconds for which a member may lack an entry that is guaranteed before it is said to be behind.
BEHIND_SECONDS = 3
_SNAPSHOT_SECONDS = 10


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
        """Look at the replica; called after every step that has moved a mark or changed who leads."""
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
    """Looks once a second: how late the event loop's timers are, and how many payloads came into one log."""

    def __init__(self, driver: Driver, now_ms: Callable[[], int] = wall_ms) -> None:
        self._driver = driver
        self._now_ms = now_ms
        #: (wall clock in ms, payloads a second that came into this log), the newest last.
        self.rates: deque[tuple[int, int]] = deque(maxlen=RATE_SECONDS)
        self._appends: deque[list[int]] = deque(maxlen=RATE_SECONDS // _SNAPSHOT_SECONDS)
        self._marks: deque[int] = deque(maxlen=BEHIND_SECONDS)
        self._before = driver.replica.log.next_lsn, trio.current_time()

    @property
    def mark_id(self) -> int:
        """The last entry that was known to be guaranteed `BEHIND_SECONDS` ago: who lacks it trails. 0: none."""
        return self._marks[0] if len(self._marks) == BEHIND_SECONDS else 0

    def look(self, due_s: float, now_s: float) -> None:
        """Look now, at ``now_s`` by Trio's clock; the look was due at ``due_s``."""
        counters, next_lsn = self._driver.counters, self._driver.replica.log.next_lsn
        counters.loop_lag_s.add(now_s - due_s)
        if now_s // 1 % _SNAPSHOT_SECONDS == 0:
            self._appends.append(list(counters.append_s.counts))
        self._marks.append(self._driver.replica.guaranteed_id)
        before, seen_s = self._before
        if now_s > seen_s:
            self.rates.append((self._now_ms(), round(max(0, next_lsn - before) / (now_s - seen_s))))
        self._before = next_lsn, now_s

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


async def look_each_second(pulses: Callable[[], Sequence[Pulse]]) -> NoReturn:
    """Have these look once a second, in one task for all logs."""
    while True:
        due_s = trio.current_time() // 1 + 1  # full seconds: tasks that wait for them wake together
        await trio.sleep_until(due_s)
        now_s = trio.current_time()
        for pulse in pulses():
            pulse.look(due_s, now_s)


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
