"""docs/wire-format.md and docs/generated/wire.md say what the code does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from wire_page import PAGE, page

from alpo.core.entries import Entry
from alpo.core.messages import REQUESTS, START_ONLY
from alpo.core.requests import Code
from alpo.wire import client_codec, codec
from alpo.wire.shapes import Shape

TEXT = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text()


@pytest.mark.pure  # closures are looked into
def test_every_message_is_documented_as_the_code_has_it() -> None:
    """Every type, its number, its fields in order, every code: run `python tests/wire/wire_page.py` if this fails."""
    assert page() == PAGE.read_text("utf-8")
    assert sorted(re.findall(r"^### (\d+ \w+)$", page(), re.M)) == sorted(
        f"{shape.number} {shape.cls.__name__}" for shape in (*client_codec.SHAPES, *codec.SHAPES, *codec.HOST_SHAPES)
    )
    assert re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", page(), re.M) == [(str(int(code)), code.name) for code in Code]


def test_an_entry_is_documented() -> None:
    assert f"[{', '.join(Entry._fields)}]" in TEXT


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
    clients = (
        numbers((*client_codec.REQUESTS, *client_codec.LOG_REQUESTS)),
        numbers((*client_codec.REPLIES, *client_codec.LOG_REPLIES)),
    )
    all_peers = numbers((*peers, *codec.HOST_SHAPES))
    assert [row[1:] for row in rows] == [clients, (all_peers,) * 2, (numbers(of_start),) * 2]


def test_what_goes_over_the_callers_connection_is_documented() -> None:
    listed = re.search(r"requests \(([\d, ]+)\) go over the connection that their sender dialled", TEXT)
    assert listed and listed[1] == ", ".join(str(s.number) for s in codec.SHAPES if s.cls in REQUESTS)
