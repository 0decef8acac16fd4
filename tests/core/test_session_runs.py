"""A table that takes runs whole equals one that takes every entry by itself, also after any expunge."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from alpo.core.client_ids import random_client
from alpo.core.entries import Entry
from alpo.core.machine.verdicts import Accept, SessionTable, seal_run
from alpo.core.settings import Settings

CLIENTS = [random_client(1_000, at) for at in range(3)]
SMALL = Settings(window=7, window_total=16)

groups = st.lists(
    st.tuples(st.sampled_from(CLIENTS), st.integers(1, 30), st.integers(0, 1)), min_size=1, max_size=12
)


def log_of(drawn: list[tuple[str, int, int]]) -> list[Entry]:
    """Runs of (client, length, step of time)."""
    entries: list[Entry] = []
    serials = dict.fromkeys(CLIENTS, 1)
    time_ms = 2_000
    for client, length, step in drawn:
        time_ms += step
        part = Accept(serials[client], [(1, b"%d" % at) for at in range(length)])
        entries += seal_run(part, client, 0, len(entries) + 1, 1, time_ms, len(entries) + 1)
        serials[client] += length
    return entries


def one_by_one(entries: list[Entry], limits: Settings) -> SessionTable:
    table = SessionTable(limits)
    for entry in entries:
        table.apply(entry)
    return table


@settings(deadline=None)
@given(groups, st.floats(0, 1), st.floats(0, 1), st.sampled_from([SMALL, Settings(window=9), Settings()]))
def test_runs_equal_single_entries(
    drawn: list[tuple[str, int, int]], where: float, middle: float, limits: Settings
) -> None:
    log = log_of(drawn)
    cut = int(where * len(log))
    split = int(middle * len(log))
    table = SessionTable(limits)
    table.apply_all(log[:split])
    table.apply_all(log[split:])
    assert table.state() == one_by_one(log, limits).state()
    saved = table.rows_at(cut)
    other = SessionTable(limits)
    other.load(saved.changed, saved.horizon_ms, limits, cut)
    assert other.state() == one_by_one(log[:cut], limits).state()
    table.expunge(cut + 1)
    assert table.state() == one_by_one(log[:cut], limits).state()
    table.apply_all(log[cut:])
    assert table.state() == one_by_one(log, limits).state()
