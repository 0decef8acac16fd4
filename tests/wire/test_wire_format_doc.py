"""docs/wire-format.md says what the code does: every type, its number, its fields in order, every code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from alpo.core.entries import Entry
from alpo.core.messages import REQUESTS, START_ONLY
from alpo.core.requests import Code
from alpo.wire import client_codec, codec
from alpo.wire.shapes import Shape

TEXT = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text()
SECTIONS = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", TEXT, re.M | re.S))
SHAPES = (*client_codec.SHAPES, *codec.SHAPES)


def first_column(table: str) -> list[str]:
    return re.findall(r"^\| (\w+) \|", table, re.M)[1:]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.cls.__name__)
def test_fields_are_documented_in_order(shape: Shape) -> None:
    section = SECTIONS[f"{shape.number} {shape.cls.__name__}"]
    fields = ["request" if name == "origin" else name for name in shape.fields]  # `origin`: on the wire a number
    assert first_column(section.partition("An entry is")[0]) == fields


def test_nothing_else_is_documented() -> None:
    assert set(SECTIONS) == {f"{shape.number} {shape.cls.__name__}" for shape in SHAPES}


def test_an_entry_is_documented() -> None:
    assert f"[{', '.join(Entry._fields)}]" in TEXT


def test_codes_are_documented() -> None:
    chapter = TEXT.partition("\n## Codes\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", chapter, re.M) == [(str(int(code)), code.name) for code in Code]


def numbers(shapes: Iterable[Shape]) -> str:
    """Numbers of the shapes as the page lists them: "16-19, 28"."""
    listed = sorted(shape.number for shape in shapes)
    starts = [number for number in listed if number - 1 not in listed]
    ends = [number for number in listed if number + 1 not in listed]
    runs = [(a, b) for a, b in zip(starts, ends, strict=True)]
    return ", ".join(f"{a}-{b}" if b > a + 1 else f"{a}, {b}" if b > a else f"{a}" for a, b in runs)


def test_who_may_send_what_is_documented() -> None:
    peers = codec.SHAPES
    of_start = [shape for shape in peers if shape.cls in START_ONLY]
    rows = re.findall(r"^\| (client|server|server whose .+?) \| ([\d, -]+) \| ([\d, -]+), and 4 last \|", TEXT, re.M)
    clients = numbers(client_codec.REQUESTS), numbers(client_codec.REPLIES)
    assert [row[1:] for row in rows] == [clients, (numbers(peers),) * 2, (numbers(of_start),) * 2]


def test_what_goes_over_the_callers_connection_is_documented() -> None:
    listed = re.search(r"requests \(([\d, ]+)\) go over the connection that their sender dialled", TEXT)
    assert listed and listed[1] == ", ".join(str(s.number) for s in codec.SHAPES if s.cls in REQUESTS)
