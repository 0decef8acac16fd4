"""SVG of the picture: lanes from top to bottom, arrows between them, the time at the left, a legend at the end.

The colours are Okabe and Ito's, which colour-blind readers can tell apart; terms have tints of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import hypot
from typing import NamedTuple

from .layout import GUTTER_PX, TEAR_PX, Band, Item, Picture, Section, width_px
from .story import KINDS, Flight

INK, GREY, PAPER, ALARM, ALARM_TINT, SURE = "#1a1a1a", "#6b6b6b", "#ffffff", "#b3261e", "#fbe3e1", "#00694d"
#: Kind of message -> colour and width of its arrow; arrows of answers are dashed.
_KINDS = {
    "canvass": ("#0072B2", 1.4), "vote": ("#D55E00", 1.4), "defer": ("#AA3377", 1.4), "append": ("#222222", 1.5),
    "mark": ("#009E73", 1.1), "heartbeat": ("#a3a3a3", 0.8), "handover": ("#007A5A", 2.2), "start": ("#8a6d3b", 1.4),
}
#: Tints, (light, dark), of terms 1, 2, …; after the last one they repeat.
_TERMS = (
    ("#cfe6f5", "#56B4E9"), ("#fbe0b0", "#E69F00"), ("#c9e9dc", "#33b38c"), ("#f0d3e3", "#CC79A7"),
    ("#f7f1a8", "#d6c800"), ("#dcd9f2", "#8f86d6"),
)
_FONT = "'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif"
_LEGEND_PX = 214
_LEGEND = (
    "its log as the part begins, or at a restart", "takes entries 5 and 6, of the term of that colour",
    "expunges entries that were never guaranteed", "knows that all up to 6 is guaranteed",
    "a write under way; at the dot it is on disk, fsynced", "time left out, with its length; gaps are not to scale",
)


def term_colours(term: int) -> tuple[str, str]:
    """The light and the dark tint of a term; term 0: before the first."""
    return _TERMS[(term - 1) % len(_TERMS)] if term else ("#f4f4f4", "#cccccc")


def svg_of(picture: Picture, title: str, subtitle: list[str]) -> str:
    """The text of the SVG file. Coordinates are the picture's own; the title is above their origin."""
    head, width = 40 + 16 * len(subtitle), _n(picture.width)
    height = _n(head + picture.height + _LEGEND_PX)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {-head} {width} {height}" width="{width}" '
        f'height="{height}" font-family="{_FONT}" role="img">',
        f"<title>{escape(title)}</title>",
        '<defs><pattern id="paused" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="2.4" height="7" fill="{GREY}" fill-opacity="0.55"/></pattern></defs>',
        _rect(0, -head, picture.width, head + picture.height + _LEGEND_PX, PAPER),
        _text(14, 26 - head, title, 17, bold=True),
        *(_text(14, 45 - head + 16 * at, line, 12, GREY) for at, line in enumerate(subtitle)),
    ]
    for section in picture.sections:
        parts += _section(picture, section)
    return "\n".join([*parts, *_legend(14, picture.height + 16), "</svg>\n"])


# -- the pieces -----------------------------------------------------------------------------------------


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _path(d: str, colour: str, width: float, dash: str = "", fill: str = "none", more: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path{more} d="{d}" stroke="{colour}" stroke-width="{_n(width)}" fill="{fill}"{dashes}/>'


def _rect(x: float, y: float, width: float, height: float, fill: str, edge: str = "none", more: str = "") -> str:
    size = f'width="{_n(width)}" height="{_n(max(0.5, height))}"'
    return f'<rect x="{_n(x)}" y="{_n(y)}" {size} fill="{fill}" stroke="{edge}" {more}/>'


def _text(
    x: float, y: float, words: str, size: float = 11, colour: str = INK, *, bold: bool = False, anchor: str = "start",
    halo: bool = False,
) -> str:
    """A text element. ``halo``: with a border that keeps it readable over lines."""
    under = f' stroke="{PAPER}" stroke-width="3.5" stroke-linejoin="round" paint-order="stroke"' if halo else ""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}"{weight} text-anchor="{anchor}" fill="{colour}"{under}>'
        f"{escape(words)}</text>"
    )


def _cross(x: float, y: float, colour: str, arm: float) -> str:
    a, b = _n(2 * arm), _n(-2 * arm)
    return _path(f"M{_n(x - arm)} {_n(y - arm)}l{a} {a}m0 {b}l{b} {a}", colour, arm / 2)


def _band(x: float, y: float, width: float, height: float, state: str, term: int) -> str:
    tint, colour = term_colours(term)
    edge, look = {
        "leader": (INK, 'stroke-width="2.6"'), "candidate": (INK, 'stroke-width="1.6" stroke-dasharray="6 3"'),
    }.get(state, (colour, 'stroke-width="0.8"'))
    return _rect(x, y, width, height, tint, edge, look)


def _item(item: Item, x: float, y: float) -> Iterator[str]:
    """Elements of a label whose line begins at ``y``."""
    base = y + 12
    if item.is_entry:
        colour = term_colours(item.term)[1]
        struck = item.style == "expunged"
        fill = colour if item.style == "took" else PAPER
        edge, ink = (ALARM, ALARM) if struck else (colour, INK)
        yield _rect(x, y + 1.5, item.width_px, 13, fill, edge, 'rx="2"')
        yield _text(x + item.width_px / 2, base, item.text, 11, ink, anchor="middle")
        if struck:
            yield _path(f"M{_n(x + 2)} {_n(y + 8)}H{_n(x + item.width_px - 2)}", ALARM, 0.9)
    elif item.style == "guaranteed":
        yield _path(f"M{_n(x + 1)} {_n(base - 4.5)}l3 4l5 -8.5", SURE, 1.8)
        yield _text(x + 11, base, item.text, 11, SURE)
    else:
        yield _text(x, base, item.text, 11, ALARM if item.style == "befell" else INK, bold=True)


# -- a section ------------------------------------------------------------------------------------------


def _section(picture: Picture, section: Section) -> Iterator[str]:
    left, right = picture.lane_x(min(picture.lanes)), picture.right
    arrows = list(_arrows(picture, section))
    yield '<g class="section">'
    yield _text(14, section.top - 28, section.heading, 13.5, bold=True)
    yield _text(GUTTER_PX - 14, section.top - 8, "ms", 10, GREY, anchor="end")
    for id in picture.lanes:
        middle = picture.lane_x(id) + picture.lane_px / 2
        yield _text(middle, section.top - 8, f"server {id}", 13, bold=True, anchor="middle")
    yield from (_line(picture, arrow) for arrow in sorted(arrows, key=lambda arrow: not arrow.flight.plain))
    for id, lane in picture.lanes.items():
        x = picture.lane_x(id)
        for band in filter(section.holds, lane.bands):
            yield from _state(picture, section, band, x)
        for pause in filter(section.holds, lane.pauses):
            y, end = picture.y(section, pause.first), picture.y(section, pause.last)
            yield _rect(x, y, picture.lane_px, end - y, "url(#paused)")
        for write in filter(section.holds, lane.writes):
            y, end = picture.y(section, write.first), picture.y(section, write.last)
            yield _write(x + picture.lane_px - 11, y, end, write.done and write.last < section.last)
    for item, x, y in section.placed:
        yield from _item(item, x, y)
    yield from _cuts(picture, section, left, right)
    for tear in section.tears:
        yield from _tear(tear.y, left - 8, right + 8, tear.words)
    yield from _heads_and_labels(picture, arrows)
    yield from _times(picture, section)
    failure = picture.story.failure
    if failure is not None and section is picture.sections[-1]:
        yield _path(f"M{_n(left - 8)} {_n(section.bottom)}H{_n(right + 8)}", ALARM, 3)
        yield _text(left, section.bottom + 15, f"BROKEN: {failure[0]}", 12, ALARM, bold=True)
    yield "</g>"


def _state(picture: Picture, section: Section, band: Band, x: float) -> Iterator[str]:
    y, end = picture.y(section, band.first), picture.y(section, band.last)
    if band.state != "down":
        yield _band(x, y, picture.lane_px, end - y, band.state, band.term)
        return
    middle = x + picture.lane_px / 2
    yield _path(f"M{_n(middle)} {_n(y)}V{_n(end)}", GREY, 1.2, "1.5 4")
    if band.first >= section.points[0]:
        yield _cross(middle, y, ALARM, 6)


def _write(x: float, y: float, end: float, done: bool) -> str:
    """Element of a write to the disk: a line, which ends with a dot if ``done``."""
    dot = f'<circle cx="{_n(x)}" cy="{_n(end)}" r="2.3" fill="{INK}"/>' if done else ""
    return _path(f"M{_n(x)} {_n(y)}V{_n(end)}", INK, 1) + dot


def _cuts(picture: Picture, section: Section, left: float, right: float) -> Iterator[str]:
    """Elements of cuts: a bar beside the lanes while links are cut, and thin lines across at its ends."""
    for cut in filter(section.holds, picture.cuts):
        y, end = picture.y(section, cut.first), picture.y(section, cut.last)
        yield _rect(right + 16, y, 13, end - y, ALARM_TINT, ALARM)
        yield _text(right + 34, y + 11, cut.words, 11, ALARM, bold=True, halo=True)
        for edge, inside in ((y, cut.first >= section.first), (end, cut.last < section.last)):
            if inside:
                yield _path(f"M{_n(left - 6)} {_n(edge)}H{_n(right + 16)}", ALARM, 0.8, "2 3")


def _tear(y: float, x: float, end: float, words: list[str]) -> Iterator[str]:
    """Elements of a gap that is left out: a strip from side to side."""
    teeth = "".join(f"l6 {4 if at % 2 == 0 else -4}" for at in range(int((end - x) / 6)))
    middle = y + TEAR_PX / 2 - 2
    for shift, colour, width in ((0, PAPER, 9), (-4, GREY, 0.8), (4, GREY, 0.8)):
        yield _path(f"M{_n(x)} {_n(middle + shift)}{teeth}", colour, width)
    for at, each in enumerate(words):
        line = middle + 2 + 11 * (at - (len(words) - 1) / 2)
        yield _text(GUTTER_PX - 14, line, each, 8.5 if at else 10, GREY, anchor="end")


def _times(picture: Picture, section: Section) -> Iterator[str]:
    x, free = GUTTER_PX - 8, section.top - 2
    yield _path(f"M{x} {_n(section.top)}V{_n(section.bottom)}", INK, 1)
    held = [(t.y - 8, t.y + TEAR_PX + 2) for t in section.tears]
    for point, y in zip(section.points, section.ys, strict=True):
        told = y >= free and not any(low < y < high for low, high in held)
        yield _path(f"M{x} {_n(y)}h{-5 if told else -2.5}", INK, 0.8)
        if told:
            free = y + 12
            yield _text(x - 7, y + 4, f"{picture.story.when_us[point] / 1000:,.1f}", 10, anchor="end")


# -- messages -------------------------------------------------------------------------------------------


class _Arrow(NamedTuple):
    """Line of a message from lane to lane. ``ends``: arrived, lost or open (it goes on in another section)."""

    flight: Flight
    x: float
    y: float
    end_x: float
    end_y: float
    ends: str


def _arrows(picture: Picture, section: Section) -> Iterator[_Arrow]:
    for flight in picture.flights:
        if not picture.shown(section, flight):
            continue
        right = flight.target > flight.source
        x = picture.lane_x(flight.source) + (picture.lane_px if right else 0)
        end_x = picture.lane_x(flight.target) + (0 if right else picture.lane_px)
        y = picture.y(section, flight.sent)
        if not flight.arrived:
            stop_x = x + (0.6 if right else -0.6) * picture.gap_px
            far = 6 + 7 * abs(flight.target - flight.source)
            yield _Arrow(flight, x, y, stop_x, y + far, "lost" if flight.lost else "open")
        for arrived in flight.arrived:
            ends = "arrived" if arrived < section.last else "open"
            yield _Arrow(flight, x, y, end_x, picture.y(section, arrived), ends)


def _line(picture: Picture, arrow: _Arrow) -> str:
    flight, when = arrow.flight, picture.story.when_us
    colour, width = _KINDS[flight.said.kind]
    fate = ", lost" if arrow.ends == "lost" else ""
    if flight.arrived:
        fate = f", arrives at {when[flight.arrived[0]] / 1000:,.3f} ms"
    sent_ms = when[flight.sent] / 1000
    words = f"{flight.source} to {flight.target}: {flight.said.words}; sent at {sent_ms:,.3f} ms{fate}"
    d = f"M{_n(arrow.x)} {_n(arrow.y)}L{_n(arrow.end_x)} {_n(arrow.end_y)}"
    dash = "5 3" if flight.said.good is not None and not flight.plain else ""
    line = _path(d, colour, 0.6 if flight.repeat else width, dash, more=f' class="f{flight.number}"')
    return f"{line.removesuffix('/>')}><title>{escape(words)}</title></path>"


def _heads_and_labels(picture: Picture, arrows: list[_Arrow]) -> Iterator[str]:
    """Elements of all heads, then of labels: each where it hides no other, as near to the target as possible, or not at
    all."""
    for arrow in arrows:
        said, plain = arrow.flight.said, arrow.flight.plain
        colour = _KINDS[said.kind][0]
        if arrow.ends == "lost":
            yield _cross(arrow.end_x, arrow.end_y, colour, 3 if plain else 4)
        elif arrow.ends == "arrived":
            dx, dy = arrow.end_x - arrow.x, arrow.end_y - arrow.y
            yield _head(arrow.end_x, arrow.end_y, dx, dy, colour, said.good is not False, plain)
    boxes: list[tuple[float, float, float, float]] = []
    for arrow in arrows:
        words = arrow.flight.said.label
        if not words or arrow.flight.repeat:
            continue
        half = width_px(words, 10) / 2
        for x, y in _places(picture, arrow, half):
            box = (x - half - 1, y - 6, x + half + 1, y + 6)
            if not any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in boxes):
                boxes.append(box)
                yield _text(x, y + 3.5, words, 10, _KINDS[arrow.flight.said.kind][0], anchor="middle", halo=True)
                break


def _places(picture: Picture, arrow: _Arrow, half: float) -> Iterator[tuple[float, float]]:
    """Candidate centres for a label of half width ``half`` along the arrow: beside the target, or before the loss."""
    right = 1 if arrow.end_x > arrow.x else -1
    lost = arrow.ends != "arrived" and not arrow.flight.arrived
    edge, gap_px = (arrow.end_x - 8 * right, 0.6 * picture.gap_px - 8) if lost else (arrow.end_x, picture.gap_px)
    room = gap_px - 2 * half
    for part in (0.3, 0.55, 0.12, 0.8) if room > 0 else ():
        x = edge - right * (half + part * room)
        yield x, arrow.y + (x - arrow.x) / (arrow.end_x - arrow.x) * (arrow.end_y - arrow.y)


def _head(x: float, y: float, dx: float, dy: float, colour: str, full: bool, small: bool) -> str:
    """An arrow's head that ends at (x, y), coming along (dx, dy)."""
    length = hypot(dx, dy) or 1
    ux, uy = dx / length, dy / length
    long, wide = (5, 2) if small else (8.5, 3.4)
    bx, by = x - ux * long, y - uy * long
    one, other = (f"L{_n(bx + side * uy * wide)} {_n(by - side * ux * wide)}" for side in (-1, 1))
    return _path(f"M{_n(x)} {_n(y)}{one}{other}Z", colour, 0.6 if full else 1.2, fill=colour if full else PAPER)


# -- the legend -----------------------------------------------------------------------------------------


def _legend(x: float, y: float) -> Iterator[str]:
    """Elements of the legend, in three columns."""
    yield _path(f"M{_n(x)} {_n(y - 16)}H1206", GREY, 0.6)
    for at, heading in enumerate(("Messages", "What a server holds", "Servers")):
        yield _text(x + 410 * at, y + 4, heading, 12, bold=True)
    rows = [(kind, words, False, "") for kind, words in KINDS.items()]
    rows += [("append", "answer: yes", True, ""), ("vote", "answer: no", True, "no")]
    rows += [("canvass", "lost, or nobody there", False, "lost")]
    for at, (kind, words, answer, fate) in enumerate(rows):
        left, line = (x, y + 28 + 18 * at) if at < 8 else (x + (at - 8) * 132, y + 176)
        colour, width = _KINDS[kind]
        yield _path(f"M{_n(left)} {_n(line - 4)}h40", colour, width, "5 3" if answer else "")
        yield _cross(left + 40, line - 4, colour, 4) if fate == "lost" else _head(
            left + 40, line - 4, 1, 0, colour, not fate, kind == "heartbeat"
        )
        yield _text(left + 52, line, words)
    left = x + 410
    samples = (("held", "1–4", 1), ("took", "5–6", 2), ("expunged", "5–6", 0), ("guaranteed", "6", 0))
    for at, words in enumerate(_LEGEND):
        line = y + 28 + 20 * at
        yield _text(left + 52, line, words)
        if at < len(samples):
            yield from _item(Item(0, *samples[at]), left, line - 12)
    yield _write(left + 20, y + 96, y + 110, True)
    yield from _tear(y + 109, left, left + 40, [])
    left += 410
    for at, state in enumerate(("passive", "candidate", "leader")):
        yield _band(left + 130 * at, y + 14, 124, 36, state, at // 2 + 1)
        yield _text(left + 5 + 130 * at, y + 28, f"{state} · term {at // 2 + 1}", 11, bold=True)
    yield _cross(left + 20, y + 66, ALARM, 6)
    yield _path(f"M{_n(left + 20)} {_n(y + 66)}v14", GREY, 1.2, "1.5 4")
    yield _rect(left, y + 88, 40, 13, "url(#paused)", GREY)
    yield _rect(left + 14, y + 108, 13, 15, ALARM_TINT, ALARM)
    yield _text(left + 52, y + 73, "crashed, and down; what befalls a server is red")
    yield _text(left + 52, y + 99, "paused: takes nothing, does nothing")
    yield _text(left + 52, y + 120, "links cut: “1 | 2 3” cannot reach each other")
    yield _text(left, y + 144, "The fill of a lane is its term: a new colour, a new term.")
