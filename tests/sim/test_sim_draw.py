"""Drawings: whole, forward in time, the same every time, and no label on another."""

from __future__ import annotations

import html
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from alpo_sim.draw.layout import Picture, of_scenario, of_world, width_px
from alpo_sim.draw.story import cut_words
from alpo_sim.draw.svg import svg_of
from alpo_sim.main import app
from alpo_sim.mutations import MUTATIONS
from alpo_sim.options import Options
from alpo_sim.scenario_text import parse
from alpo_sim.stage import Boot
from alpo_sim.world import World

SCENARIO = Path(__file__).parents[1] / "scenarios" / "leader-crash.txt"
SVG = "{http://www.w3.org/2000/svg}"


def drawn(seed: int, servers: int, from_ms: float | None = None, to_ms: float | None = None) -> Picture:
    return of_world(World(Options.draw(seed, servers=servers, seconds=6)), from_ms, to_ms)[0]


@pytest.fixture(scope="module")
def crash() -> tuple[Picture, str]:
    picture, notes = of_scenario(parse(SCENARIO.read_text("utf-8")))
    return picture, svg_of(picture, "a < title", notes)


@pytest.fixture(scope="module", params=[(1, 3), (2, 5), (3, 2), (4, 1), (2, 9)], ids=str)
def world(request: pytest.FixtureRequest) -> tuple[Picture, str]:
    picture = drawn(*request.param)
    return picture, svg_of(picture, "title", ["note"])


def texts(svg: str) -> list[tuple[float, float, float, float, str]]:
    """(left, top, right, bottom, words) of every text that is seen."""
    found = []
    for each in ET.fromstring(svg).iter(f"{SVG}text"):
        words, size = html.unescape(each.text or ""), float(each.attrib["font-size"])
        x, y = float(each.attrib["x"]), float(each.attrib["y"])
        width = width_px(words, size, bold=each.get("font-weight") == "bold")
        x -= {"middle": width / 2, "end": width}.get(each.get("text-anchor", ""), 0)
        if not words:
            continue
        found.append((x, y - 0.75 * size, x + width, y, words))
    return found


def test_every_lane_is_there_in_every_section(world: tuple[Picture, str]) -> None:
    picture, svg = world
    names = [t[4] for t in texts(svg)]
    for server in picture.story.servers:
        assert names.count(f"server {server}") == len(picture.sections)


def test_no_label_lies_on_another_or_outside(world: tuple[Picture, str]) -> None:
    found = sorted(texts(world[1]))
    assert all(left >= 0 and right <= world[0].width for left, _, right, _, _ in found)
    for at, a in enumerate(found):
        for b in found[at + 1 :]:
            meets = a[0] < b[2] - 0.5 and b[0] < a[2] - 0.5 and a[1] < b[3] - 0.5 and b[1] < a[3] - 0.5
            assert not meets, (a, b)


def test_time_goes_down(world: tuple[Picture, str]) -> None:
    picture = world[0]
    when = picture.story.when_us
    assert when == sorted(when)
    for section in picture.sections:
        assert section.ys == sorted(section.ys)
        ys = [picture.y(section, instant) for instant in range(section.first, section.last)]
        assert ys == sorted(ys)
    for flight in picture.flights:
        assert all(arrived > flight.sent for arrived in flight.arrived)


def test_arrows_go_forward(world: tuple[Picture, str]) -> None:
    arrows = re.findall(r'<path class="f\d+" d="M[\d.]+ ([\d.]+)L[\d.]+ ([\d.]+)"', world[1])
    assert arrows or len(world[0].lanes) == 1
    assert all(float(y) <= float(end) for y, end in arrows)


def test_a_leader_crash_is_told(crash: tuple[Picture, str]) -> None:
    picture, svg = crash
    words = [t[4] for t in texts(svg)]
    for each in ("candidate · term 1", "leader", "crash", "candidate · term 2", "restarts", "granted", "4–5"):
        assert each in words
    (expunge,) = [m for m in picture.story.moments if m.expunged]
    assert (expunge.server, expunge.expunged, expunge.took) == (3, (4, 4), [(4, 5, 2)])
    assert picture.story.views[3].guaranteed_id == 5
    lost = [f for f in picture.flights if f.lost and f.said.label == "4"]
    assert sorted((f.source, f.target) for f in lost) == [(3, 1), (3, 2)]
    assert "<title>a &lt; title</title>" in svg


def test_what_was_founded_before_the_first_line_is_not_drawn(crash: tuple[Picture, str]) -> None:
    story = crash[0].story
    assert story.when_us[0] >= 200_000
    assert all(f.said.label not in ("empty", "starting") for f in story.flights)


@pytest.mark.pure
def test_a_failure_is_marked() -> None:
    mutation = MUTATIONS["M3"]
    with mutation.applied():
        for seed in range(1, 20):
            picture, notes = of_world(mutation.makes(mutation.options(seed)))
            if picture.story.failure is not None:
                break
    assert picture.story.failure is not None
    svg = svg_of(picture, "title", notes)
    assert f"BROKEN: {picture.story.failure[0]}" in [t[4] for t in texts(svg)]


def test_a_write_under_way_at_the_end_is_drawn() -> None:
    """Found by a run that broke at an fsync: the write that it was about never ended."""
    scenario = parse(SCENARIO.read_text("utf-8"))
    for end in range(1, len(scenario.lines) + 1):
        picture, notes = of_scenario(replace(scenario, lines=scenario.lines[:end], expects=()))
        assert svg_of(picture, "title", notes).startswith("<svg")


def test_a_window_holds_what_it_says() -> None:
    picture = drawn(1, 3, 3000, 3200)
    when = picture.story.when_us
    assert all(3000 <= when[point] / 1000 <= 3200 for section in picture.sections for point in section.points)


def test_a_record_that_was_wanted_is_still_kept() -> None:
    world = World(Options.draw(1, servers=3, seconds=1), record=True)
    of_world(world)
    assert any(isinstance(action, Boot) for action in world.stage.record or [])


def test_cuts_in_words() -> None:
    both = dict.fromkeys([(1, 2), (2, 1), (1, 3), (3, 1)], True)
    assert cut_words(both, [1, 2, 3]) == "1 is cut off"
    assert cut_words({(1, 2): True, (1, 3): True}, [1, 2, 3]) == "1 is not heard"
    assert cut_words({(2, 1): True, (3, 1): True}, [1, 2, 3]) == "1 hears nobody"
    assert cut_words({(1, 2): True, (2, 1): True}, [1, 2, 3]) == "1 | 2, joined by 3 alone"
    halves = {(a, b): True for a in (1, 2, 3, 4) for b in (1, 2, 3, 4) if (a < 3) != (b < 3)}
    assert cut_words(halves, [1, 2, 3, 4]) == "cut: 1 2 | 3 4"


def test_two_processes_draw_the_same(tmp_path: Path) -> None:
    made = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        command = [sys.executable, "-m", "alpo_sim.main", "draw", "3", "--servers", "3", "--seconds", "4"]
        subprocess.run(
            [*command, "-o", "run.svg"], cwd=folder, check=True, capture_output=True, env={"PYTHONHASHSEED": seed}
        )
        made.append((folder / "run.svg").read_bytes())
    assert made[0] == made[1]


def test_wrong_uses_are_refused(tmp_path: Path) -> None:
    for wrong in (
        ["1", "-o", str(tmp_path / "run.png")],
        ["1", "--from", "5", "--to", "2", "-o", str(tmp_path / "run.svg")],
        [str(SCENARIO), "--servers", "3", "-o", str(tmp_path / "run.svg")],
        [str(tmp_path / "none.txt"), "-o", str(tmp_path / "run.svg")],
        [str(SCENARIO), "-o", str(tmp_path / "none" / "run.svg")],
    ):
        assert CliRunner().invoke(app, ["draw", *wrong]).exit_code == 2


def test_a_drawing_is_an_svg(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    result = CliRunner().invoke(app, ["draw", "1", "-o", str(page)])
    assert (result.exit_code, result.stderr) == (2, f"alpo-sim: --output {page}: the name must end in .svg\n")
    assert not page.exists()
