"""What a server says of itself (`alpo status`): the keys are users' contract, see docs/cli.md and operations.md."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import trio

from alpo import __version__
from alpo.core.first_start import NOT_ANSWERED
from alpo.core.replica import Replica
from alpo.storage.interface import Store, StoreError

from .driver import Driver, wall_ms
from .hello import Ourselves
from .pages import Extent
from .peers import Peers

#: A first start that nobody but an operator can begin.
INIT_WANTED = "waits for `alpo cluster init`"
_OUTSIDE = {
    "GONE": "it was removed from the cluster and does nothing any more: stop it; its directory is of no use",
    "RETIRED": "another disk has taken its place in the cluster, and this one does nothing any more: stop it; to use"
    " this host again, start it with an empty directory",
}


def waiting(replica: Replica) -> list[str]:
    """Why this server does not take part, a sentence a reason; empty if it does."""
    if replica.first_start.started:
        return [_OUTSIDE[replica.status_text]] if replica.status_text in _OUTSIDE else []
    newcomer = replica.cfg.joining and len(replica.cfg.configured) == 1
    members = {} if newcomer else replica.first_start.waits_for
    return [*_told(replica), *(f"waits for server {id}: it {why}" for id, why in sorted(members.items()))]


def _told(replica: Replica) -> list[str]:
    """What somebody has to do before the first start, as far as that is known from the beginning."""
    if replica.cfg.joining and len(replica.cfg.configured) == 1:
        here = f"{replica.me.id}={replica.cfg.address}"
        return [
            f"waits to be added to a cluster: `alpo member add {here}`, or, in place of its server {replica.me.id},"
            f" `alpo member replace {here}`"
        ]
    if replica.cfg.joining:  # with others on its list: it has lost a store
        return ["waits for those who knew it before its store was lost (lost-… in its directory): it founds no cluster"]
    return [] if replica.first_start.commanded else [INIT_WANTED]


async def tell_waiting(driver: Driver, grace_s: float) -> None:
    """Until the first start is done: an event for each reason why it waits; one for a member of which nothing has been
    heard after ``grace_s``. (The core tells by itself of one whose answer does not fit.)"""
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


def problems(peers: Peers, strangers: Mapping[str, str]) -> list[str]:
    """What an operator should look at: peers that cannot be reached or are not what they should be."""
    found = [f"server {peer.id}: {peer.trouble}" for _, peer in sorted(peers.by_id.items()) if peer.trouble]
    return found + [f"{remote}: {why}" for remote, why in strangers.items()]


def member_change(replica: Replica, peers: Peers) -> str | None:
    """The operator's change of the member list that this leader is at, what it waits for, and what was last seen."""
    if replica.changes is None or not replica.changes.under_way:
        return None
    peer = peers.by_id.get(replica.changes.asked_id)
    seen = f" (last seen: {peer.trouble})" if peer is not None and peer.trouble else ""
    return replica.changes.under_way + seen


def peer_fields(peers: Peers) -> list[dict[str, Any]]:
    """Every other member as seen from here: is there a full connection, and how long a packet takes there and back."""
    return [
        {
            "id": peer.id,
            "reachable": not peer.trouble,
            "why": peer.trouble or None,
            "round_trip_ms": peer.route.link.round_trip_ms if peer.route is not None else None,
        }
        for _, peer in sorted(peers.by_id.items())
    ]


def status_fields(
    us: Ourselves, replica: Replica, peers: Peers, strangers: Mapping[str, str], within: Extent,
    storage: Mapping[str, Any],
) -> dict[str, Any]:
    """`StatusAnswer.fields`. LSNs and ids as a local reader sees them; ``leader`` None while none is known."""
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
        "incarnation": us.me.incarnation.hex(),
        "timers_ms": list(us.timers_ms),
        "peers": peer_fields(peers),
        "waiting": waiting(replica),
        "problems": problems(peers, strangers),
        **storage,
    }


SAMPLE_EVERY_S = 3600.0
DAY_MS = 86_400_000
LEAST_MS = 600_000
_PAGE = 1_000
_NAME = "size"


class Sample(NamedTuple):
    """``live_bytes``: `Store.live_bytes`."""

    time_ms: int
    live_bytes: int


def bytes_a_day(samples: list[Sample], now: Sample) -> int | None:
    """The rate since the oldest sample of the last day; None if there is none, or not for long enough."""
    spans = [now.time_ms - sample.time_ms for sample in samples]
    fit = [(span, sample) for span, sample in zip(spans, samples, strict=True) if LEAST_MS <= span <= DAY_MS]
    if not fit:
        return None
    span_ms, oldest = max(fit)
    return round((now.live_bytes - oldest.live_bytes) * DAY_MS / span_ms)


class Growth:
    """Samples, and answers for status. ``now_ms``: the wall clock."""

    def __init__(self, driver: Driver, store: Store, now_ms: Callable[[], int] = wall_ms) -> None:
        self._driver = driver
        self._store = store
        self._now_ms = now_ms
        self._samples: deque[Sample] = deque(maxlen=26)

    async def run(self) -> None:
        """Sample until cancelled. A store that cannot be read is told of by whoever else reads it."""
        try:
            self._samples.extend(await trio.to_thread.run_sync(self._earlier))
            while True:
                sample = await trio.to_thread.run_sync(self._sample)
                self._samples.append(sample)
                self._driver.keep(_NAME, {"live_bytes": sample.live_bytes})
                await trio.sleep(SAMPLE_EVERY_S)
        except StoreError:
            return

    def _sample(self) -> Sample:
        return Sample(self._now_ms(), self._store.live_bytes())

    def _earlier(self) -> list[Sample]:
        """Of the last day, oldest first, as far as they were kept."""
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
        """For status; reads the store, so in a thread. None for what is not known. Raises `StoreError`."""
        volume = self._store.volume()
        rate = bytes_a_day(list(self._samples), self._sample())
        days = None
        if rate is not None and rate > 0 and volume.total_bytes:
            days = round((volume.free_bytes + self._store.free_bytes()) / rate, 1)
        return {
            "disk_total_bytes": volume.total_bytes or None,
            "disk_free_bytes": volume.free_bytes if volume.total_bytes else None,
            "growth_bytes_per_day": rate,
            "disk_full_days": days,
        }
