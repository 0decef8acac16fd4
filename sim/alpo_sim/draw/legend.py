"""What everything in the picture means, in three columns."""

from __future__ import annotations

from collections.abc import Iterator

from .lanes import GUARANTEED, IDS, Item
from .shapes import band_box, cross, down_line, head, item_box, text, write_line
from .style import ALARM, ALARM_TINT, GREY, INK, KIND_COLOURS, KIND_WIDTHS
from .text import number
from .words import KINDS

LEGEND_PX = 212
_LINE_PX = 18
_STATE_PX = 52
_n = number


def legend(x: float, y: float) -> list[str]:
    parts = [f'<path d="M{_n(x)} {_n(y - 16)}H1226" stroke="{GREY}" stroke-width="0.6"/>']
    for at, (heading, rows) in enumerate(
        (("Messages", _messages), ("What a server holds", _labels), ("Servers", _servers))
    ):
        left = x + 410 * at
        parts.append(text(left, y + 4, heading, 12, bold=True))
        parts += rows(left, y + 10)
    return parts


def _messages(x: float, y: float) -> Iterator[str]:
    for kind, words in KINDS.items():
        y += _LINE_PX
        yield _arrow(x, y - 4, kind)
        yield text(x + 52, y, words, 11)
    samples = (("append", "answer: yes"), ("vote", "answer: no"), ("canvass", "lost, or nobody there"))
    for at, (kind, words) in enumerate(samples):
        left, line = x + (0, 132, 254)[at], y + _LINE_PX + 4
        yield _arrow(left, line - 4, kind, answer=at < 2, full=at == 0, lost=at == 2)
        yield text(left + 50, line, words, 11)


def _arrow(x: float, y: float, kind: str, *, answer: bool = False, full: bool = True, lost: bool = False) -> str:
    colour, end = KIND_COLOURS[kind], x + 40
    dash = ' stroke-dasharray="5 3"' if answer else ""
    line = f'<path d="M{_n(x)} {_n(y)}H{_n(end)}" stroke="{colour}" stroke-width="{KIND_WIDTHS.get(kind, 1.4)}"{dash}/>'
    return line + (cross(end, y, colour, 4) if lost else head(end, y, 1, 0, colour, full, kind == "heartbeat"))


def _labels(x: float, y: float) -> Iterator[str]:
    rows = (
        (Item(0, 0, IDS, "held", "1–4", 1), "its log when the row begins, or at a restart"),
        (Item(0, 0, IDS, "took", "5–6", 2), "takes entries 5 and 6, of the term of that colour"),
        (None, "a write under way; at the dot it is on disk, fsynced"),
        (Item(0, 0, IDS, "expunged", "5–6"), "expunges entries that were never guaranteed"),
        (Item(0, 0, GUARANTEED, "guaranteed", "6"), "knows that all up to 6 is guaranteed"),
    )
    for item, words in rows:
        y += _LINE_PX
        if item is None:
            yield write_line(x, x + 40, y - 4)
        else:
            yield from item_box(item, x, y - (28 if item.line == IDS else 41.5))
        yield text(x + 52, y, words, 11)
    y += _LINE_PX
    for shift in (14, 22):
        zigzag = f"M{_n(x + shift)} {_n(y - 11)}l4 3l-4 3l4 3l-4 3"
        yield f'<path d="{zigzag}" stroke="{GREY}" stroke-width="0.8" fill="none"/>'
    yield text(x + 52, y, "time left out, with its length; gaps are not to scale", 11)


def _servers(x: float, y: float) -> Iterator[str]:
    y += 8
    for at, state in enumerate(("passive", "candidate", "leader")):
        yield band_box(x + 131 * at, y, 125, state, at // 2 + 1)
        yield text(x + 131 * at + 5, y + 13.5, f"{state} · term {at // 2 + 1}", 11, bold=True)
    y += _STATE_PX + 12
    yield cross(x + 6, y, ALARM, 6)
    yield down_line(x, y, x + 40)
    yield text(x + 52, y + 4, "crashed, and down; what befalls a server is red", 11)
    y += _LINE_PX
    yield _sample(x, y - 5, "url(#paused)", GREY)
    yield text(x + 52, y + 5, "paused: takes nothing, does nothing", 11)
    y += _LINE_PX + 2
    yield _sample(x, y - 5, ALARM_TINT, ALARM)
    yield text(x + 52, y + 5, "links cut: “1 | 2 3” cannot reach each other", 11)
    y += _LINE_PX + 4
    yield text(x, y + 4, "The fill of a lane is its term: a new colour, a new term.", 11, INK)


def _sample(x: float, y: float, fill: str, edge: str) -> str:
    return f'<rect x="{_n(x)}" y="{_n(y)}" width="40" height="13" fill="{fill}" stroke="{edge}" stroke-width="0.8"/>'
