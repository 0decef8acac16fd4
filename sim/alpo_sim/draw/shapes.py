"""The pieces that a picture and its legend are made of."""

from __future__ import annotations

from math import hypot

from .lanes import GUARANTEED, IDS, STATE, Item
from .layout import BAND_PX
from .style import ALARM, GREY, INK, PAPER, SURE, term_colour, term_tint
from .text import escape, number

_n = number
_BASELINES = {STATE: 13.5, IDS: 28, GUARANTEED: 41.5}
#: Below a band's top, of the line of writes.
WRITE_PX = 31.5


def text(
    x: float, y: float, words: str, size: float = 11, colour: str = INK, *, bold: bool = False, anchor: str = "start",
    halo: bool = False,
) -> str:
    """``halo``: readable over lines."""
    style = f'font-size="{_n(size)}"' + (' font-weight="bold"' if bold else "")
    style += f' text-anchor="{anchor}"' if anchor != "start" else ""
    under = ""
    if halo:
        under = (
            f'<text x="{_n(x)}" y="{_n(y)}" {style} stroke="{PAPER}" stroke-width="3.5" stroke-linejoin="round" '
            f'fill="{PAPER}" aria-hidden="true">{escape(words)}</text>'
        )
    return under + f'<text x="{_n(x)}" y="{_n(y)}" {style} fill="{colour}">{escape(words)}</text>'


def band_box(x: float, y: float, width: float, state: str, term: int) -> str:
    edge = {
        "leader": f'stroke="{INK}" stroke-width="2.6"',
        "candidate": f'stroke="{INK}" stroke-width="1.6" stroke-dasharray="6 3"',
    }.get(state, f'stroke="{term_colour(term)}" stroke-width="0.8"')
    return (
        f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(max(0.5, width))}" height="{BAND_PX}" '
        f'fill="{term_tint(term)}" {edge}/>'
    )


def down_line(x: float, y: float, end: float) -> str:
    return f'<path d="M{_n(x)} {_n(y)}H{_n(end)}" stroke="{GREY}" stroke-width="1.2" stroke-dasharray="1.5 4"/>'


def write_line(x: float, end: float, y: float, *, done: bool = True) -> str:
    """On its way to the disk, until the dot."""
    dot = f'<circle cx="{_n(end)}" cy="{_n(y)}" r="2.1" fill="{INK}"/>' if done else ""
    return f'<path d="M{_n(x)} {_n(y)}H{_n(end)}" stroke="{INK}" stroke-width="1"/>{dot}'


def cross(x: float, y: float, colour: str, arm: float) -> str:
    a, b = _n(2 * arm), _n(-2 * arm)
    return (
        f'<path d="M{_n(x - arm)} {_n(y - arm)}l{a} {a}m0 {b}l{b} {a}" stroke="{colour}" '
        f'stroke-width="{_n(arm / 2)}" fill="none"/>'
    )


def head(x: float, y: float, dx: float, dy: float, colour: str, full: bool, small: bool) -> str:
    """An arrow's head that ends at (x, y), coming along (dx, dy)."""
    length = hypot(dx, dy) or 1
    ux, uy = dx / length, dy / length
    long, wide = (5, 2) if small else (8.5, 3.4)
    bx, by = x - ux * long, y - uy * long
    one, other = (f"L{_n(bx + side * uy * wide)} {_n(by - side * ux * wide)}" for side in (-1, 1))
    return (
        f'<path d="M{_n(x)} {_n(y)}{one}{other}Z" '
        f'fill="{colour if full else PAPER}" stroke="{colour}" stroke-width="{0.6 if full else 1.2}"/>'
    )


def item_box(item: Item, x: float, y: float) -> list[str]:
    """A label in the band whose top is at ``y``."""
    base = y + _BASELINES[item.line]
    if item.style in ("took", "held"):
        fill = term_colour(item.term) if item.style == "took" else PAPER
        return [
            f'<rect x="{_n(x)}" y="{_n(base - 10.5)}" width="{_n(item.width)}" height="13" rx="2" fill="{fill}" '
            f'stroke="{term_colour(item.term)}" stroke-width="1"/>',
            text(x + item.width / 2, base, item.text, 11, anchor="middle"),
        ]
    if item.style == "expunged":
        middle = base - 4
        return [
            f'<rect x="{_n(x)}" y="{_n(base - 10.5)}" width="{_n(item.width)}" height="13" rx="2" fill="{PAPER}" '
            f'stroke="{ALARM}" stroke-width="1.2"/>',
            text(x + item.width / 2, base, item.text, 11, ALARM, anchor="middle"),
            f'<path d="M{_n(x + 2)} {_n(middle)}H{_n(x + item.width - 2)}" stroke="{ALARM}" stroke-width="0.9"/>',
        ]
    if item.style == "guaranteed":
        return [
            f'<path d="M{_n(x + 1)} {_n(base - 4.5)}l3 4l5 -8.5" stroke="{SURE}" stroke-width="1.8" fill="none"/>',
            text(x + 11, base, item.text, 11, SURE),
        ]
    if item.style == "cut":
        return [text(x + 4, y + 11.5, item.text, 11, ALARM, bold=True, halo=True)]
    befell = item.style == "befell"
    return [text(x + 5, base, item.text, 11, ALARM if befell else INK, bold=True)]
