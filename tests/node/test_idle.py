"""Servers at rest, in virtual time: how often the whole log is read, and how seldom the process is woken."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from alpo.core.log import LogClock
from alpo.core.members import Identity, Member, MemberList, Role
from alpo.node import compare
from alpo.node.admission import DiskCare
from alpo.node.compare import Comparer
from alpo.node.driver import Driver
from alpo.node.peers import Peers
from alpo.node.retention import KEEP_ALL, Cleaner, DiskWatch
from alpo.node.routes import Route
from alpo.node.scrub import STRETCH_BYTES, Scrubber
from alpo.node.threads import FREE_BYTES_PER_S
from alpo.storage.interface import Scrubbed, Store, Volume
from alpo.storage.scrub import ScrubMark, Span
from alpo.storage.writer import WriterStats
from alpo.wire import requests as w

ENTRY = 1000
HOUR, DAY = 3600.0, 86_400.0
MB = 1_000_000
CAP = 1 << 20


class Log:
    """A log of so many bytes, all of it sound, and alike everywhere: store, driver and peer. ``reads``: (when, first
    id, bytes), of the scrub and of the comparison."""

    def __init__(self, size_bytes: int) -> None:
        self.count = size_bytes // ENTRY
        self.reads: list[tuple[float, int, int]] = []
        members = MemberList.of([Member(id, f"h:{id}", 0, bytes([id] * 16), Role.VOTER) for id in (1, 2)])
        log = SimpleNamespace(base_id=0, last_id=self.count, stable_id=self.count)
        self.replica = SimpleNamespace(
            me=Identity(1, bytes([1] * 16)), log=log, guaranteed_id=self.count,
            members=SimpleNamespace(latest=members),
        )

    def live_bytes(self) -> int:
        return self.count * ENTRY

    def scrub(self, first_id: int, bytes_max: int) -> Scrubbed:
        next_id = min(first_id - 1 + bytes_max // ENTRY, self.count) + 1
        self.reads.append((trio.current_time(), first_id, (next_id - first_id) * ENTRY))
        return Scrubbed(next_id, [], (next_id - first_id) * ENTRY, next_id > self.count)

    async def digest(self, first_id: int, last_id: int) -> w.DigestIs:
        return w.DigestIs(1, first_id, last_id, 1, 1, bytes(16))

    def close(self) -> None:
        pass

    def read_on(self, store: object, span: Span, last_id: int, bytes_max: int) -> Span:
        end_id = min(span.last_id + bytes_max // ENTRY, last_id)
        size = (end_id - span.last_id) * ENTRY
        self.reads.append((trio.current_time(), span.last_id + 1, size))
        return Span(span.first_id, end_id, 1, 1, bytes(16), span.bytes + size)

    def scrubber(self, care: DiskCare) -> Scrubber:
        return Scrubber(cast(Driver, self), cast(Store, self), care, now_ms=lambda: round(trio.current_time() * 1000))

    def comparer(self, care: DiskCare, monkeypatch: pytest.MonkeyPatch) -> Comparer:
        async def opened(id: int) -> Log:
            return self

        made = Comparer(cast(Driver, self), cast(Store, self), care)
        monkeypatch.setattr(compare, "read_on", self.read_on)
        monkeypatch.setattr(made, "_open", opened)
        return made

    def passes(self) -> list[float]:
        """Virtual seconds at which each pass over the log began."""
        return [at_s for at_s, first_id, _ in self.reads if first_id == 1]


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run threads' work in the event loop: virtual time does not wait for threads."""
    async def run_sync(function: Callable[..., Any], *arguments: Any, **options: object) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


def for_virtual_s(seconds: float, make: Callable[[], Any]) -> None:
    """Run the object that ``make`` returns for this long. Its `run` does not end by itself."""
    async def main() -> None:
        start_s = trio.current_time()
        with trio.move_on_at(start_s + seconds):
            await make().run()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def who_reads(which: str, log: Log, care: DiskCare, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    if which == "scrub":
        return lambda: log.scrubber(care)
    return lambda: log.comparer(care, monkeypatch)


@pytest.mark.parametrize("which", ["scrub", "comparison"])
@pytest.mark.parametrize(("size_bytes", "pass_s"), [
    (0, HOUR), (10 * ENTRY, HOUR), (12 * MB, HOUR), (58 * MB, HOUR),  # an hour where that costs nothing
    (200 * MB, 200 * MB / FREE_BYTES_PER_S),  # then longer
    pytest.param(2_000 * MB, DAY, marks=pytest.mark.soak),  # but a day at most
])
def test_a_pass_takes_as_long_as_it_may(
    which: str, size_bytes: int, pass_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(size_bytes)
    for_virtual_s(2.5 * pass_s, who_reads(which, log, DiskCare(0, CAP), monkeypatch))
    began = log.passes()
    if not size_bytes and which == "comparison":
        assert log.reads == []
    else:
        assert len(began) == 3
        assert [later - s for s, later in pairwise(began)] == pytest.approx([pass_s] * 2, rel=0.02)


@pytest.mark.parametrize("which", ["scrub", "comparison"])
def test_a_large_log_is_read_no_faster_than_the_bound_however_long_it_takes(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, most = Log(400 * MB), 1000
    for_virtual_s(DAY, who_reads(which, log, DiskCare(0, most), monkeypatch))
    start_s, read = log.reads[0][0], 0
    for at_s, _, size in log.reads:
        assert read <= (at_s - start_s) * most + STRETCH_BYTES
        read += size
    assert 0.9 * DAY * most < read < DAY * most + STRETCH_BYTES and len(log.passes()) == 1


def test_the_scrub_reads_evenly() -> None:
    log = Log(12 * MB)
    for_virtual_s(HOUR - 1, lambda: log.scrubber(DiskCare(0, CAP)))
    times = [at_s for at_s, _, _ in log.reads]
    gaps = [later - s for s, later in pairwise(times)]
    assert max(gaps) == pytest.approx(min(gaps))
    assert times[-1] - times[0] > 0.95 * HOUR


def test_whoever_wants_it_sooner_says_so() -> None:
    log = Log(12 * MB)
    for_virtual_s(100, lambda: log.scrubber(DiskCare(0, 1 << 40, scrub_pass_s=24.0)))
    began = log.passes()
    assert began[1] - began[0] == pytest.approx(24, rel=0.02)


def test_a_log_that_grows_meanwhile_is_read_at_the_pace_of_its_new_size() -> None:
    log = Log(1 * MB)

    async def grow() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.scrubber(DiskCare(0, CAP)).run)
            await trio.sleep(0.1 * HOUR)
            log.count = log.replica.log.last_id = 200 * MB // ENTRY
            await trio.sleep_forever()

    for_virtual_s(1.1 * 200 * MB / FREE_BYTES_PER_S, lambda: SimpleNamespace(run=grow))
    assert len(log.passes()) == 2


def test_when_the_last_pass_ended_outlives_a_restart(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, log = ScrubMark(tmp_path), Log(1 * MB)
    scrubber: list[Scrubber] = []

    def made() -> Scrubber:
        scrubber.append(log.scrubber(DiskCare(0, CAP, mark)))
        assert scrubber[0].fields()["scrub_ended_ms"] is None
        return scrubber[0]

    for_virtual_s(1.5 * HOUR, made)
    ended_ms = scrubber[0].fields()["scrub_ended_ms"]
    assert ended_ms is not None and mark.read()[2] == ended_ms

    async def again() -> Any:
        later = log.scrubber(DiskCare(0, CAP, mark))
        monkeypatch.setattr(later, "_tell", lambda: False)
        await later.recall()
        return later.fields()["scrub_ended_ms"]

    assert trio.run(again) == ended_ms


class Watched:
    """A route that counts how often it is looked at."""

    def __init__(self) -> None:
        self.since_s: float | None = None
        self.looks = 0
        self.closed_s = 0.0
        self.link = SimpleNamespace(close=self.close)

    @property
    def silent_since_s(self) -> float | None:
        self.looks += 1
        return self.since_s

    def close(self, why: str) -> None:
        self.closed_s = trio.current_time()


def test_a_connection_is_looked_at_once_an_election_timeout_and_closed_on_time() -> None:
    peers = cast(Peers, SimpleNamespace(_us=SimpleNamespace(timers_ms=(100, 500, 25))))
    route = Watched()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Peers._watch_silence, peers, cast(Route, route))
            await trio.sleep(100.2)
            assert route.looks <= 202
            asked_s = route.since_s = trio.current_time()
            await trio.sleep(0.45)
            route.since_s = None  # an answer, just in time
            await trio.sleep(0.01)
            asked_s = route.since_s = trio.current_time()
        assert route.closed_s == pytest.approx(asked_s + 0.5)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(("low_water_bytes", "free_bytes", "pause_s"), [
    (256 * MB, 17_179_869_184 + 256 * MB - 1, 1.0), (256 * MB, 17_179_869_184 + 256 * MB, 5.0), (1000, 64_000, 1.0),
    (1000, 3_999, 0.1), (0, 0, 1.0), (0, 1 << 40, 5.0),
])
def test_a_disk_with_room_for_long_is_looked_at_seldom(low_water_bytes: int, free_bytes: int, pause_s: float) -> None:
    watch = DiskWatch(cast(Driver, SimpleNamespace()), cast(Store, None), WriterStats(), low_water_bytes)
    watch._tell(Volume(1 << 41, free_bytes), 0)
    assert watch._pause_s() == pause_s


async def _never(*arguments: object, **options: object) -> None:
    raise AssertionError("a thread was asked")


def test_without_limits_nothing_is_looked_for_that_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that keeps everything does not go to its disk every second."""
    log = Log(1 * MB)
    log.replica.cleaning = SimpleNamespace(trim_lsn=1, cleanable_id=0)
    log.replica.cursors = SimpleNamespace(now={})
    log.replica.damage = SimpleNamespace(binds=False)
    log.replica.log_clock = LogClock()
    monkeypatch.setattr(trio.to_thread, "run_sync", _never)
    for_virtual_s(10, lambda: Cleaner(cast(Driver, log), cast(Store, log), KEEP_ALL, lambda: 0.0))
    log.replica.cleaning.trim_lsn = 5
    with pytest.raises(AssertionError, match="a thread was asked"):
        for_virtual_s(10, lambda: Cleaner(cast(Driver, log), cast(Store, log), KEEP_ALL, lambda: 0.0))
