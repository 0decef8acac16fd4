"""The picture as SVG: rows of lanes, arrows between them, an axis below each, a legend at the end."""

from __future__ import annotations

from .arrows import Arrows
from .lanes import UNFINISHED, Band, Stretch
from .layout import BAND_PX, GUTTER_PX, Picture, Row
from .legend import LEGEND_PX, legend
from .shapes import WRITE_PX, band_box, cross, down_line, item_box, text, write_line
from .style import ALARM, ALARM_TINT, GREY, INK, PAPER
from .text import FONT, escape, number, width_px

_ROW_GAP_PX = 26
_n = number


def svg_of(picture: Picture, title: str, subtitle: list[str]) -> str:
    """The whole picture. Sets where each row lies, for whoever points into it."""
    head = 34 + 16 * len(subtitle)
    y = head + 10.0
    for row in picture.rows:
        row.y = y + (18 if row.heading else 0)
        y = row.y + picture.row_height(row) + _ROW_GAP_PX
    height = y + LEGEND_PX
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(picture.width)} {_n(height)}" '
        f'width="{_n(picture.width)}" height="{_n(height)}" font-family="{FONT}" role="img">',
        f"<title>{escape(title)}</title>",
        _DEFS,
        f'<rect width="{_n(picture.width)}" height="{_n(height)}" fill="{PAPER}"/>',
        text(14, 26, title, 17, bold=True),
        *(text(14, 45 + 16 * at, line, 12, GREY) for at, line in enumerate(subtitle)),
    ]
    for row in picture.rows:
        parts += _row(picture, row)
    parts += legend(14, y)
    parts.append("</svg>\n")
    return "\n".join(parts)


_DEFS = (
    '<defs><pattern id="paused" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect width="2.4" height="7" fill="{GREY}" fill-opacity="0.55"/></pattern></defs>'
)


def _row(picture: Picture, row: Row) -> list[str]:
    top, bottom = picture.lane_y(row, min(picture.lanes)), picture.lane_y(row, max(picture.lanes)) + BAND_PX
    parts = [f'<g class="row" data-y="{_n(row.y)}">']
    if row.heading:
        parts.append(text(14, row.y + 4, row.heading, 13.5, bold=True))
    parts += _cuts(picture, row, bottom)
    arrows = Arrows(picture, row)
    parts += arrows.lines()
    for lane in picture.lanes.values():
        y = picture.lane_y(row, lane.server)
        parts.append(text(14, y + BAND_PX / 2 + 4.5, f"server {lane.server}", 13, bold=True))
        for band in lane.bands:
            if band.first < row.last and band.last > row.first:
                parts += _band(picture, row, band, y)
        for pause in lane.pauses:
            if pause.first < row.last and pause.last > row.first:
                x, end = _clip(picture, row, pause.first, pause.last)
                parts.append(
                    f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(end - x)}" height="{BAND_PX}" fill="url(#paused)"/>'
                )
        for write in lane.writes:
            if write.first < row.last and write.last >= row.first:
                parts.append(_write(picture, row, write, y))
    parts += _breaks(row, top, bottom)
    for placed in row.placed:
        parts += item_box(placed.item, placed.x, picture.lane_y(row, placed.item.server))
    parts += arrows.heads_and_labels()
    parts += _axis(picture, row, bottom)
    if picture.story.failure is not None and row is picture.rows[-1]:
        parts += _failure(picture, row, top, bottom)
    parts.append("</g>")
    return parts


def _clip(picture: Picture, row: Row, first: int, last: int) -> tuple[float, float]:
    """x from one instant to another, as far as the row goes."""
    x = picture.x(row, first) if first >= row.points[0] else GUTTER_PX
    end = picture.x(row, last) if last < row.last else GUTTER_PX + row.end_x
    return x, end


def _band(picture: Picture, row: Row, band: Band, y: float) -> list[str]:
    x, end = _clip(picture, row, band.first, band.last)
    if band.state != "down":
        return [band_box(x, y, end - x, band.state, band.term)]
    parts = [down_line(x, y + BAND_PX / 2, end)]
    if band.first >= row.points[0]:
        parts.append(cross(x, y + BAND_PX / 2, ALARM, 6))
    return parts


def _write(picture: Picture, row: Row, write: Stretch, y: float) -> str:
    x, end = _clip(picture, row, write.first, write.last)
    return write_line(x, end, y + WRITE_PX, done=write.last < row.last and write.words != UNFINISHED)


def _breaks(row: Row, top: float, bottom: float) -> list[str]:
    """A torn strip from top to bottom."""
    teeth = "".join(f"l{4 if at % 2 == 0 else -4} 6" for at in range(int((bottom - top + 12) / 6)))
    parts = []
    for each in row.breaks:
        middle = (each.x + each.end_x) / 2
        for shift, colour, width in ((-2, PAPER, 9), (-6, GREY, 0.8), (2, GREY, 0.8)):
            parts.append(
                f'<path d="M{_n(middle + shift)} {_n(top - 6)}{teeth}" stroke="{colour}" stroke-width="{width}" '
                f'fill="none"/>'
            )
    return parts


def _axis(picture: Picture, row: Row, bottom: float) -> list[str]:
    y, end = bottom + 9, GUTTER_PX + row.end_x
    parts = [
        f'<path d="M{GUTTER_PX} {_n(y)}H{_n(end)}" stroke="{INK}" stroke-width="1"/>',
        text(14, y + 14, "time, ms", 10, GREY),
    ]
    taken: list[tuple[float, float]] = []
    for each in row.breaks:
        middle = (each.x + each.end_x) / 2
        parts.append(f'<path d="M{_n(middle - 5)} {_n(y)}h10" stroke="{PAPER}" stroke-width="3"/>')
        parts.append(text(middle, y + 14, each.words, 10, GREY, anchor="middle"))
        if each.heartbeats:
            parts.append(text(middle, y + 26, each.heartbeats, 9, GREY, anchor="middle"))
        half = width_px(each.words, 10) / 2 + 6
        taken.append((middle - half, middle + half))
    for point, at in zip(row.points, row.xs, strict=True):
        x, words = GUTTER_PX + at, f"{picture.story.when_us[point] / 1000:,.1f}"
        half = width_px(words, 10) / 2 + 5
        free = all(x + half <= a or x - half >= b for a, b in taken)
        parts.append(f'<path d="M{_n(x)} {_n(y)}v{5 if free else 2.5}" stroke="{INK}" stroke-width="0.8"/>')
        if free:
            taken.append((x - half, x + half))
            parts.append(text(x, y + 14, words, 10, anchor="middle"))
    return parts


def _cuts(picture: Picture, row: Row, bottom: float) -> list[str]:
    """A bar above the lanes while links are cut, and a thin line down where that begins and ends."""
    parts: list[str] = []
    y = picture.lane_y(row, 0)
    for cut in picture.cuts:
        if not (cut.first < row.last and cut.last > row.first):
            continue
        x, end = _clip(picture, row, cut.first, cut.last)
        parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(end - x)}" height="15" fill="{ALARM_TINT}" stroke="{ALARM}" '
            f'stroke-width="0.8"/>'
        )
        for edge, inside in ((x, cut.first >= row.first), (end, cut.last < row.last)):
            if inside:
                parts.append(
                    f'<path d="M{_n(edge)} {_n(y + 15)}V{_n(bottom + 6)}" stroke="{ALARM}" stroke-width="0.8" '
                    f'stroke-dasharray="2 3"/>'
                )
    return parts


def _failure(picture: Picture, row: Row, top: float, bottom: float) -> list[str]:
    assert picture.story.failure is not None
    x = GUTTER_PX + row.end_x
    words = f"BROKEN: {picture.story.failure[0]}"
    return [
        f'<path d="M{_n(x)} {_n(top - 8)}V{_n(bottom + 10)}" stroke="{ALARM}" stroke-width="3"/>',
        text(x, row.y + 12, words, 12, ALARM, bold=True, anchor="end" if x > 400 else "start", halo=True),
    ]
