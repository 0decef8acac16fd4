"""How fast this server's disk fills, and when it will be full.

Laws:

* The log's size is sampled at the start and every hour, and kept as events: a restart forgets nothing.
* The rate is that since the oldest sample of the last 24 hours; none is given for less than `LEAST_MS`.
* What cleaning frees in the file is used first, so it counts as room; a log that cleaning keeps at one size fills
  nothing.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import trio

from alpo.storage.interface import Store, StoreError

from .driver import Driver, wall_ms

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
