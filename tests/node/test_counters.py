"""Counts of elections, rates and what became guaranteed."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from node_rig import rig

from alpo.node.counters import ELECTIONS_KEPT, Elections
from alpo.node.status import Pulse, _percentile_ms, look_each_second
from alpo.storage.timings import POWERS_OF_TWO, Histogram


def told(*events: tuple[int, str, dict[str, Any]], me: int = 2) -> Elections:
    elections = Elections(me)
    for at_ms, name, fields in events:
        elections.hear(name, fields, at_ms)
    return elections


def test_an_election_is_told_with_why_and_for_how_long_nobody_led() -> None:
    found = told(
        (1_000, "following", {"term": 1, "leader": 1}),
        (9_000, "canvass", {"silent_ms": 500}),
        (9_050, "canvass", {"silent_ms": 550}),
        (9_100, "candidate", {"term": 2, "handed_over": False}),
        (9_200, "leader", {"term": 2}),
        (20_000, "handing_over", {"term": 2, "to": 3}),
        (20_010, "following", {"term": 3, "leader": 3}),
        (20_011, "following", {"term": 3, "leader": 3}),
        (30_000, "leader_gone", {"leader": 3, "term": 3}),
        (30_040, "following", {"term": 4, "leader": 1}),
    )
    assert [one[1:] for one in found.recent] == [
        (1, 1, False, "", None),
        (2, 2, False, "no leader for 500 ms", 700),
        (3, 3, True, "the leader handed over", 10),
        (4, 1, False, "the process of server 3 was gone", 40),
    ]
    assert (found.won, found.changes, found.unplanned) == (1, 3, 2)


def test_elections_are_bounded_and_old_terms_are_none() -> None:
    found = told(*[(term, "following", {"term": term, "leader": term % 3 + 1}) for term in range(1, 500)])
    assert len(found.recent) == ELECTIONS_KEPT and found.changes == 498
    found.hear("following", {"term": 3, "leader": 9}, 1)
    assert found.changes == 498


def test_a_histogram_counts_by_upper_ends() -> None:
    histogram = Histogram(POWERS_OF_TWO)
    for value, times in ((1, 1), (2, 3), (3, 1), (5000, 1)):
        histogram.add(value, times)
    assert (histogram.counts[:3], histogram.counts[-1], sum(histogram.counts)) == ([1, 3, 1], 1, 6)
    assert histogram.total == 1 + 6 + 3 + 5000


@pytest.mark.parametrize(("values", "share", "wanted"), [
    ([], 0.5, None), ([0.003] * 10, 0.5, 3.75), ([0.003] * 10, 1.0, 5.0), ([99.0], 0.99, 5000.0),
    ([0.003] * 99 + [0.3], 0.99, 5.0), ([0.003] * 50 + [0.3] * 50, 0.99, 495.0),
])
def test_percentiles_lie_within_their_bucket(values: list[float], share: float, wanted: float | None) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    found = _percentile_ms(histogram, histogram.counts, share)
    assert found == pytest.approx(wanted) if wanted is not None else found is None


@pytest.mark.trio
async def test_rates_are_of_each_second(autojump_clock: trio.testing.MockClock) -> None:
    class Log:
        next_lsn = 1

    class Fake:
        def __init__(self) -> None:
            self.replica = type("R", (), {"log": Log(), "guaranteed_id": 1})()
            self.counters = type("C", (), {"append_s": Histogram(), "loop_lag_s": Histogram()})()

    fake: Any = Fake()
    pulse = Pulse(fake, lambda: 5)
    assert pulse.fields() == {"payloads_per_s": None, "append_p50_ms": None, "append_p99_ms": None}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(look_each_second, lambda: [pulse])
        await trio.sleep(0.5)
        for second in range(1, 401):
            await trio.sleep(1)
            fake.replica.log.next_lsn += 10 * second
            fake.counters.append_s.add(0.003)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert len(pulse.rates) == 300 and pulse.rates[-1] == (5, 4000)
    assert pulse.fields()["payloads_per_s"] == 3980 and pulse.fields()["append_p50_ms"] == pytest.approx(3.75)
    assert sum(fake.counters.loop_lag_s.counts) >= 400


@pytest.mark.trio
async def test_traffic_between_servers_is_counted() -> None:
    async with rig(3) as found:
        leader = await found.leader()
        sent = [leader.driver.counters.traffic_with(id)[0].sent_bytes for id in (1, 2, 3) if id != leader.us.me.id]
        assert all(sent)
        assert leader.driver.counters.events["leader"] == 1
