"""Elections measured: the arena, the three protocols in it, and what the command makes of them."""

from __future__ import annotations

import csv
import random
import re
import subprocess
import sys
from dataclasses import fields, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from alpo_elections import corners
from alpo_elections.arena import Arena
from alpo_elections.cases import (
    FAULTS,
    LAN,
    PAPER,
    PROTOCOLS,
    Case,
    Cell,
    cases,
    csv_row,
    draw,
    make_arena,
    measure,
    measured,
    runs_of,
    summarise,
)
from alpo_elections.report import page_of, write
from alpo_sim.checks import Broken
from alpo_sim.main import app

GENERATED = Path(__file__).parents[2] / "docs" / "generated"


def case(protocol: str, servers: int = 5, *, fault: str = "crash", equal: bool = False) -> Case:
    return Case(protocol, servers, 150, 300 if protocol.startswith("raft") else 150, fault, equal)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_leader_is_found_and_never_two_in_a_term(protocol: str, fault: str) -> None:
    """The arena raises if two lead in one term. (The draft at its word may find none; it still may not find two.)"""
    outcomes = [measure(case(protocol, fault=fault, equal=equal), run) for run in range(8) for equal in (False, True)]
    if protocol != "draft-literal":
        assert all(o.leaderless_s is not None and o.heard_s is not None for o in outcomes)
    for o in outcomes:
        assert o.terms >= o.wins
        if o.heard_s is not None:
            assert o.leaderless_s is not None and o.leaderless_s <= o.heard_s


def test_the_arena_refuses_two_leaders_in_a_term() -> None:
    arena = make_arena(case("raft"), 0)
    arena.wins_term(1, 7)
    arena.wins_term(1, 7)
    with pytest.raises(Broken, match="one leader a term"):
        arena.wins_term(2, 7)


def test_who_wins_an_older_term_late_is_not_waited_for() -> None:
    arena = Arena(3, LAN, random.Random(1))
    arena.begin_s = 0.0
    arena.wins_term(1, 7)
    arena.wins_term(2, 6)
    arena.follows(2, 1)
    arena.follows(3, 1)
    assert arena.heard_s is not None


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_run_is_the_same_every_time(protocol: str) -> None:
    every = [case(protocol), case(protocol, fault="star"), case(protocol, 3, fault="scattered", equal=True)]
    assert [measure(c, run) for c in every for run in range(3)] == [measure(c, run) for c in every for run in range(3)]


def test_a_run_is_the_same_in_other_processes() -> None:
    script = (
        "from alpo_elections.cases import Case, measure\n"
        "from alpo_elections import corners\n"
        "for p in ('alpo', 'raft', 'draft'):\n"
        "    print([measure(Case(p, 5, 150, 200, f), 3) for f in ('crash', 'chain')])\n"
        "print(corners.play(corners.draw('flapping', 5), 'alpo'))\n"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1


def test_what_befalls_a_cluster_is_the_same_for_all_protocols() -> None:
    for fault in FAULTS:
        drawn = [draw(case(protocol, fault=fault), 4) for protocol in PROTOCOLS]
        assert all(each == drawn[0] for each in drawn)


def test_logs_are_of_different_lengths_or_equal() -> None:
    unequal, equal = draw(case("alpo"), 1), draw(case("alpo", equal=True), 1)
    assert sorted(m for id, m in unequal.missing.items() if id != unequal.leader) == [0, 1, 2, 3]
    assert set(equal.missing.values()) == {0}


def test_a_cut_off_leader_reaches_no_majority_and_somebody_does() -> None:
    for servers, fault in ((5, "star"), (5, "chain"), (5, "bridge"), (9, "star"), (9, "bridge")):
        for run in range(20):
            drawn = draw(case("alpo", servers, fault=fault), run)
            assert drawn.kept is not None
            reach = {id: 1 + sum((id, other) in drawn.kept for other in range(1, servers + 1))
                     for id in range(1, servers + 1)}
            assert 2 * reach[drawn.leader] < servers < 2 * max(reach.values())


def test_raft_needs_randomness_and_alpo_does_not() -> None:
    """Raft without randomness elects for seconds, and with a little far quicker (Figure 16 of its paper)."""
    runs = range(12)

    def mean_s(wanted: Case) -> float:
        found = [measure(wanted, run).leaderless_s for run in runs]
        return sum(60 * wanted.timeout_s if each is None else each for each in found) / len(found)

    none, little, much = (mean_s(Case("raft", 5, 150, high)) for high in (150, 155, 300))
    assert none > 2 * little > 4 * much
    assert mean_s(case("alpo")) < much < 0.5


def test_longer_timeouts_cost_time() -> None:
    cells = list(measured([Case("alpo", 3, low, low) for low in (50, 100, 150)], 30, 1))
    assert [c.none for c in cells] == [0, 0, 0]
    assert cells[0].p50_ms < cells[1].p50_ms < cells[2].p50_ms
    # No server may stand before T is over. The fault came up to T/2 after the last heartbeat.
    assert all(c.curve_ms[0] >= 0.5 * c.case.low_ms for c in cells)


def test_the_draft_at_its_word_may_stand_still() -> None:
    """The shorter log's timeout runs out first, is refused, stands again, and never lets the longer one's run out."""
    scattered = [measure(case("draft-literal", 3, fault="scattered"), run) for run in range(40)]
    none = sum(o.leaderless_s is None for o in scattered)
    assert 5 <= none <= 25
    patient = [measure(case("draft", 3, fault="scattered"), run) for run in range(40)]
    assert all(o.leaderless_s is not None for o in patient)


def test_corners_are_winnable_and_as_they_say() -> None:
    for family in corners.FAMILIES:
        for seed in range(10):
            corner = corners.draw(family, seed)
            assert corner.winnable and corner == corners.draw(family, seed)
            assert bool(corner.fsync_s) == family.startswith("slow disk")
            assert bool(corner.slow_s) == family.startswith("slow links")
            assert corner.describe()


def test_ranking_costs_nothing_where_the_slow_one_is_not_needed() -> None:
    for family in ("mute", "deaf", "slow disk", "slow links"):
        for seed in range(15):
            found = corners.play(corners.draw(family, seed), "alpo")
            assert found.leaderless_s is not None and found.leaderless_s < 3 * corners.TIMEOUT_S


def test_the_report_is_made(tmp_path: Path) -> None:
    wanted = [c for c in cases() if c.servers == 5 and c.low_ms >= 150 and c.high_ms - c.low_ms != 1]
    cells = {c.case: c for c in measured(wanted, 3, 1)}
    (tmp_path / "elections.md").write_text("old")
    paths = write(tmp_path, cells, list(corners.corner_rows(2, 1)), "the command")
    text = (tmp_path / "elections.md").read_text()
    assert text.startswith("# ") and "old" not in text
    assert "| Raft 150-300 |" in text and "`the command`" in text and "Bad worlds" in text
    with (tmp_path / "elections.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(wanted) and {row["protocol"] for row in rows} == set(PROTOCOLS)
    pictures = [path for path in paths if path.suffix == ".svg"]
    assert len(pictures) == 4
    for path in pictures:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def cells_of(sheet: Path) -> dict[Case, Cell]:
    """The cells in a CSV file, without their curves."""
    known = {tuple(csv_row(summarise(each, [measure(case("alpo"), 0)]))[:8]): each for each in cases()}
    cells = {}
    with sheet.open() as file:
        for row in csv.DictReader(file):
            figures = {f.name: f.type for f in fields(Cell) if f.name not in ("case", "curve_ms")}
            given: Any = {name: int(row[name]) if kind == "int" else float(row[name]) for name, kind in figures.items()}
            found = known[tuple(row.values())[:8]]
            cells[found] = Cell(found, curve_ms=[], **given)
    return cells


def corners_of(page: str) -> list[corners.CornerRow]:
    """The bad worlds in a page: their figures are nowhere else."""
    rows = [line.strip("| ").split(" | ") for line in page.partition("## Bad worlds")[2].splitlines()[4:]]
    every = [(family, protocol) for family in corners.FAMILIES for protocol in corners.PROTOCOLS]
    found = []
    for (family, protocol), (*_, runs, p50, p99, most, none, worst) in zip(every, rows, strict=True):
        times = [float(each.replace("none", "inf")) for each in (p50, p99, most)]
        row = corners.CornerRow(family, protocol, int(runs.replace(",", "")), 0, 0, 0, int(none), int(worst))
        found.append(row._replace(p50=times[0], p99=times[1], max=times[2]))
    return found


def near(one: str, other: str) -> bool:
    """True if two decimals differ by one in the last digit: the CSV file is rounded too, to three digits."""
    a, b = Decimal(one), Decimal(other)
    places = a.as_tuple().exponent
    return "." in one and places == b.as_tuple().exponent and abs(a - b) == Decimal(10) ** int(places)


def test_the_tables_in_the_docs_are_what_the_code_makes_of_the_figures() -> None:
    """The tables follow from the figures; measuring those anew takes a quarter of an hour."""
    page = (GENERATED / "elections.md").read_text("utf-8")
    cells = cells_of(GENERATED / "elections.csv")
    assert list(cells) == cases()
    made = page_of(cells, corners_of(page), "alpo-sim elections -o docs/generated --runs 10000")
    differing = [pair for pair in zip(made.split(), page.split(), strict=True) if pair[0] != pair[1]]
    assert [pair for pair in differing if not near(*pair)] == []
    assert [line.count("|") for line in made.splitlines()] == [line.count("|") for line in page.splitlines()]


def test_the_simulators_page_shows_every_picture() -> None:
    page = (GENERATED.parent / "simulator.md").read_text("utf-8")
    assert {*re.findall(r"generated/img/([a-z-]+\.svg)", page)} == {path.name for path in GENERATED.glob("img/*")}


def test_fewer_runs_where_they_are_slow() -> None:
    assert runs_of(case("alpo"), 10_000) == 10_000
    assert runs_of(case("alpo", fault="star"), 10_000) == 10_000
    assert runs_of(case("draft-literal", fault="star"), 10_000) == 200
    assert runs_of(replace(case("alpo"), low_ms=12, high_ms=12), 10_000) == 200


def test_a_run_without_a_leader_counts_as_endless() -> None:
    outcomes = [measure(case("alpo"), 0), measure(case("alpo"), 0)._replace(leaderless_s=None, heard_s=None)]
    cell = summarise(case("alpo"), outcomes)
    assert (cell.none, cell.followed, cell.max_ms) == (1, 0.5, float("inf")) and len(cell.curve_ms) == 2


def test_writes_share_an_fsync_and_hold_back_what_follows() -> None:
    seen: list[tuple[float, str]] = []

    class Probe:
        id = 1
        writing: ClassVar[list[Any]] = []
        committing: ClassVar[list[Any]] = []

        def receive(self, source: int, message: str) -> None:
            seen.append((arena.now_s, message))

        def written(self, number: int) -> None:
            seen.append((arena.now_s, f"written {number}"))

    arena = Arena(1, PAPER._replace(delay_s=(1.0, 1.0), fsync_s=(10.0, 10.0)), random.Random(1))
    arena.servers[1] = probe = Probe()  # type: ignore[assignment]
    arena.write(probe, 1, [(1, "a")])  # type: ignore[arg-type]
    arena.write(probe, 2, [(1, "b")])  # type: ignore[arg-type]
    arena.write(probe, 3, [(1, "c")])  # type: ignore[arg-type]
    arena.run(100.0)
    assert seen == [(10.0, "written 1"), (11.0, "a"), (20.0, "written 3"), (21.0, "b"), (21.0, "c")]


def test_the_command_wants_a_folder_and_plays_a_corner() -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["elections"]).exit_code == 2
    assert runner.invoke(app, ["elections", "--corner", "no such:1"]).exit_code == 2
    played = runner.invoke(app, ["elections", "--corner", "one-way:386"])
    assert played.exit_code == 0 and "4 servers" in played.output
    assert "ALPO: all follow a leader after" in played.output
    assert "ALPO: no leader within 60 T" in runner.invoke(app, ["elections", "--corner", "slow links, needed:6"]).output


def test_lan_is_quicker() -> None:
    assert LAN.broadcast_s < PAPER.broadcast_s / 5
