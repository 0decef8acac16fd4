"""Percentiles, histograms, the SVG, the shares of the load."""

from __future__ import annotations

import math
import random
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ports import free_port
from typer.testing import CliRunner

from alpo_cli.app import app
from alpo_cli.bench.load import Latencies, Load, Result, Rounds
from alpo_cli.bench.show import duration, histogram, svg
from alpo_cli.local_cluster import LocalCluster


def measured(values: list[float]) -> Latencies:
    latencies = Latencies()
    for value in values:
        latencies.add(value)
    return latencies


@given(st.lists(st.floats(1e-6, 900), min_size=1), st.sampled_from([0.5, 0.99, 0.999, 1.0]))
def test_percentiles_are_within_one_percent_of_the_naive_ones(values: list[float], share: float) -> None:
    naive = sorted(values)[max(0, math.ceil(len(values) * share) - 1)]
    assert measured(values).percentile(share) == pytest.approx(naive, rel=0.0101)
    assert measured(values).most == max(values)


def test_what_is_out_of_range_still_counts() -> None:
    latencies = measured([0.0, 1e-9, 1e6])
    assert latencies.count == 3 and sum(latencies.counts) == 3 and latencies.most == 1e6
    assert Latencies().percentile(0.5) == 0.0


@given(st.lists(st.floats(1e-6, 900)))
def test_the_bars_hold_every_measurement(values: list[float]) -> None:
    bars = measured(values).bars(16)
    assert len(bars) <= 16 and sum(count for _, _, count in bars) == len(values)


def test_the_keys_of_a_result_are_the_contract() -> None:
    result = Result(1_000, 100_000, 2.0, measured([0.001] * 999 + [0.5]), 3)
    fields = result.fields()
    assert list(fields) == ["ops_per_s", "mb_per_s", "p50_ms", "p99_ms", "p999_ms", "max_ms", "errors"]
    assert (fields["ops_per_s"], fields["mb_per_s"], fields["max_ms"], fields["errors"]) == (500.0, 0.05, 500.0, 3)
    assert fields["p50_ms"] == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("values", [[], [0.001], [random.Random(1).expovariate(1000) for _ in range(5_000)]])
def test_histogram_and_svg(values: list[float]) -> None:
    result = Result(len(values), 0, 1.0, measured(values), 0)
    assert len(histogram(result.latencies)) <= 16
    tree = ElementTree.fromstring(svg("a <title> & more", result))
    assert tree.tag.endswith("svg") and "a <title> & more" in {element.text for element in tree.iter()}


def test_durations() -> None:
    assert [duration(s) for s in (2.5, 0.9996, 0.012_34, 0.000_5, 0.0)] == ["2.5 s", "1 s", "12.3 ms", "500 µs", "0 µs"]


@given(st.integers(0, 5_000), st.integers(1, 100))
def test_shares_are_even_and_add_up(outstanding: int, connections: int) -> None:
    shares = Load(100, outstanding, connections, 1, 1.0).shares()
    assert sum(shares) == outstanding and len(shares) == min(outstanding, connections)
    assert not shares or max(shares) - min(shares) <= 1


def test_rounds() -> None:
    assert (Rounds([0.3, 0.1, 0.2]).median_ms, Rounds([0.1, 0.2]).median_ms, Rounds([0.3, 0.1]).max_ms) == (
        200.0, 150.0, 300.0)


def test_failover_needs_somebody_left_to_lead(tmp_path: Path) -> None:
    LocalCluster.create(tmp_path / "c", 2, free_port(2))
    result = CliRunner().invoke(app, ["bench", "failover", "--dir", str(tmp_path / "c")])
    assert result.exit_code == 2
    assert "a cluster of 2" in result.stderr
