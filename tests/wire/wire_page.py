"""The generated page docs/generated/wire.md: every message of the wire format, with its number, fields and meaning.

`python tests/wire/wire_page.py` writes it, from the shapes of the codecs and the docstrings of the messages;
`test_wire_format_doc.py` compares the page in the repository with it.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from alpo.core.requests import Code
from alpo.wire import client_codec, codec
from alpo.wire import shapes as s
from alpo.wire.shapes import Check, Shape

PAGE = Path(__file__).parents[2] / "docs" / "generated" / "wire.md"
HEAD = """\
# The messages of the wire format

Made by `python tests/wire/wire_page.py` from the code. [The wire format](../wire-format.md) says what "packed list" and
the like mean. `request` is a number that the client chooses; the answer repeats it.
"""
#: Checks that are known by themselves -> what a value is on the wire.
PLAIN: dict[Check, str] = {
    s.number: "int", s.positive: "int from 1", s.signed: "int, may be negative", s.flag: "bool",
    s.client_id: "client id", s.rank: "rank", s.identity: "identity", s.longs: "column", s.blob: "binary",
    s.fields_by_name: "map",
}
#: The codecs' own checks, by name -> the same.
OWN = {
    "_items": f"packed list of items, 1 to {client_codec.ITEMS_MAX:,}",
    "_item": "item",
    "_lsns": f"array of 2 ints, or packed list of ints, at most {client_codec.ITEMS_MAX:,}",
    "_sessions": "packed list of rows",
    "_values": "array of [text 64, int]",
    "_steps": "binary",
    "_entries": f"packed list of entries, at most {codec.ENTRIES_MAX:,}",
}
CHAPTERS: tuple[tuple[str, tuple[Shape, ...]], ...] = (
    ("Hellos, and the last frame", tuple(shape for shape in client_codec.SHAPES if shape.number < 16)),
    ("Requests of clients", (*client_codec.REQUESTS, *client_codec.LOG_REQUESTS)),
    ("Answers to clients", (*client_codec.REPLIES, *client_codec.LOG_REPLIES)),
    ("Between servers", (*codec.SHAPES, *codec.HOST_SHAPES)),
)


def words(check: Check) -> str:
    """Say what ``check`` lets through, as it is on the wire."""
    if check in PLAIN or check.__name__ in OWN:
        return PLAIN.get(check) or OWN[check.__name__]
    maker, given = check.__qualname__.partition(".")[0], inspect.getclosurevars(check).nonlocals
    return MAKERS[maker](**given)


def _text(bytes_max: int, bytes_min: int) -> str:
    return f"text {bytes_max:,}"


def _one_of(enum: type[Any], known: dict[int, Any]) -> str:
    return "code" if enum is Code else ", ".join(f"{number} {member.name}" for number, member in known.items())


def _rows(items_max: int, types: tuple[type[Any], ...], text_bytes_max: int) -> str:
    of = {int: "int", str: f"text {text_bytes_max:,}", bytes: "binary"}
    return f"packed list of [{', '.join(of[each] for each in types)}], at most {items_max:,}"


#: Maker of a check -> what is to be said of a check made with these arguments.
MAKERS: dict[str, Callable[..., str]] = {
    "text": _text,
    "octets": lambda sizes: f"bytes {' or '.join(map(str, sizes))}",
    "one_of": _one_of,
    "optional": lambda inner: f"{words(inner)}, or nil",
    "fixed": lambda inner, make: f"[{', '.join(map(words, inner))}]",
    "json_of": lambda inner, make: f"{words(inner)}: JSON",
    "each": lambda inner: f"array of {words(inner)}",
    "texts": lambda items_max: f"packed list of texts, at most {items_max:,}",
    "rows": _rows,
    "mixed_rows": lambda items_max, width_max: f"packed list of rows of at most {width_max} ints, texts and binaries",
}


def prose(cls: type[Any]) -> str:
    """A docstring as the page's text: paragraphs unwrapped and filled, code in single backticks."""
    paragraphs = (inspect.getdoc(cls) or "").replace("``", "`").split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(each.split()), 120, break_on_hyphens=False) for each in paragraphs)


def told(shape: Shape) -> str:
    """The section of one message."""
    names = ["request" if name == "origin" else name for name in shape.fields]  # `origin`: on the wire a number
    fields = ", ".join(f"`{name}` ({words(check)})" for name, check in zip(names, shape.checks, strict=True)) or "none"
    return f"### {shape.number} {shape.cls.__name__}\n\n{prose(shape.cls)}\n\nFields: {fields}.\n"


def codes() -> Iterator[str]:
    """The rows of the table of codes, whose meanings are the comments in the code."""
    for name, number, meaning in re.findall(r"^    ([A-Z_]+) = (\d+)  # (.+)$", inspect.getsource(Code), re.MULTILINE):
        yield f"| {number} | {name} | {meaning.replace('``', '`')} |"


def page() -> str:
    """The page, as Markdown."""
    chapters = [
        f"## {title}\n\n" + "\n".join(told(shape) for shape in sorted(shapes, key=lambda shape: shape.number))
        for title, shapes in CHAPTERS
    ]
    table = "\n".join(("| code | name | meaning |", "|---|---|---|", *codes()))
    return "\n".join((HEAD, *chapters, f"## Codes\n\n{prose(Code)}\n\n{table}\n"))


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
