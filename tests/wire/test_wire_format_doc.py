"""docs/wire-format.md says what the code does: every type, its number, its fields in order, every code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from alpo.core.entries import Entry
from alpo.core.ready import Code
from alpo.wire import client_codec, peer_codec
from alpo.wire.shapes import Shape

TEXT = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text()
SECTIONS = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##|\Z)", TEXT, re.M | re.S))
SHAPES = (*client_codec.SHAPES, *peer_codec.SHAPES)


def first_column(table: str) -> list[str]:
    return re.findall(r"^\| (\w+) \|", table, re.M)[1:]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.cls.__name__)
def test_fields_are_documented_in_order(shape: Shape) -> None:
    section = SECTIONS[f"{shape.number} {shape.cls.__name__}"]
    assert first_column(section.partition("An entry is")[0]) == list(shape.cls._fields)


def test_nothing_else_is_documented() -> None:
    assert set(SECTIONS) == {f"{shape.number} {shape.cls.__name__}" for shape in SHAPES}


def test_an_entry_is_documented() -> None:
    assert f"[{', '.join(Entry._fields)}]" in TEXT


def test_codes_are_documented() -> None:
    assert re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", TEXT, re.M) == [(str(int(code)), code.name) for code in Code]
