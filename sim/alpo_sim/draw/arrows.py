"""Messages: lines behind the lanes, heads and labels above all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .layout import BAND_PX, GUTTER_PX, Picture, Row
from .shapes import cross, head, text
from .story import Flight
from .style import KIND_COLOURS, KIND_WIDTHS
from .text import escape, number, width_px

_n = number
_LABEL_PX = 10
#: Where along a gap between two lanes a label may stand, best first.
_ALONG = (0.5, 0.36, 0.64, 0.24, 0.76)
_ALONG_LOST = (0.27, 0.2, 0.34)


class Line(NamedTuple):
    """From lane to lane; ``ends``: arrived, lost or open (goes on in another row)."""

    flight: Flight
    x: float
    y: float
    end_x: float
    end_y: float
    ends: str


class Arrows:
    """All messages of one row."""

    def __init__(self, picture: Picture, row: Row) -> None:
        self._picture, self._row = picture, row
        self._lines = [
            line for f in picture.flights if picture.seen(row, f) and not (f.plain and picture.torn(row, f))
            for line in self._lines_of(f)
        ]
        self._bands = [picture.lane_y(row, server) for server in picture.lanes]
        self._taken: list[tuple[float, float, float, float]] = []

    def _lines_of(self, flight: Flight) -> list[Line]:
        picture, row = self._picture, self._row
        if flight.source not in picture.lanes or flight.target not in picture.lanes:
            return []
        down = flight.target > flight.source
        y = picture.lane_y(row, flight.source) + (BAND_PX if down else 0)
        end_y = picture.lane_y(row, flight.target) + (0 if down else BAND_PX)
        if flight.lost or (flight.on_way and not flight.arrived):
            if not row.first <= flight.sent < row.last:
                return []
            x, far = picture.x(row, flight.sent), abs(flight.target - flight.source)
            stop_y = y + (0.6 if down else -0.6) * picture.gap_px
            return [Line(flight, x, y, x + 4 + 11 * far, stop_y, "lost" if flight.lost else "open")]
        return [line for arrived in flight.arrived if (line := self._clipped(flight, arrived, y, end_y)) is not None]

    def _clipped(self, flight: Flight, arrived: int, y: float, end_y: float) -> Line | None:
        """What of it lies in this row."""
        row, when = self._row, self._picture.story.when_us
        if arrived < row.first or flight.sent >= row.last or (flight.sent < row.first and arrived >= row.last):
            return None
        x, end_x, ends = self._picture.x(row, flight.sent), self._picture.x(row, arrived), "arrived"
        sent_us, whole = when[flight.sent], max(1, when[arrived] - when[flight.sent])
        slope = (end_y - y) / whole
        if arrived >= row.last:
            until_us = when[min(row.last, len(when) - 1)]
            end_x, end_y, ends = GUTTER_PX + row.end_x, y + slope * (until_us - sent_us), "open"
        if flight.sent < row.first:  # the last of it is seen in any case
            x, y = GUTTER_PX, y + slope * min(when[row.first] - sent_us, 0.7 * whole)
        return Line(flight, x, y, end_x, end_y, ends)

    def lines(self) -> list[str]:
        """Heartbeats below the rest."""
        return [self._draw(line) for line in sorted(self._lines, key=lambda line: not line.flight.plain)]

    def _draw(self, line: Line) -> str:
        said = line.flight.said
        dash = ' stroke-dasharray="5 3"' if said.good is not None and not line.flight.plain else ""
        colour, width = KIND_COLOURS[said.kind], 0.6 if line.flight.repeat else KIND_WIDTHS.get(said.kind, 1.4)
        return (
            f'<path class="f{line.flight.number}" d="M{_n(line.x)} {_n(line.y)}L{_n(line.end_x)} {_n(line.end_y)}" '
            f'stroke="{colour}" stroke-width="{width}"{dash} fill="none">'
            f"<title>{escape(self._tooltip(line))}</title></path>"
        )

    def _tooltip(self, line: Line) -> str:
        flight, when = line.flight, self._picture.story.when_us
        fate = {"lost": ", lost"}.get(line.ends, "")
        if flight.arrived:
            fate = f", arrives at {when[flight.arrived[0]] / 1000:,.3f} ms"
        sent_ms = when[flight.sent] / 1000
        return f"{flight.source} to {flight.target}: {flight.said.words}; sent at {sent_ms:,.3f} ms{fate}"

    def heads_and_labels(self) -> list[str]:
        parts = [self._head(line) for line in self._lines]
        for line in self._lines:
            if line.flight.said.label and not line.flight.repeat:
                parts.append(self._label(line))
        return parts

    def _head(self, line: Line) -> str:
        colour = KIND_COLOURS[line.flight.said.kind]
        x, y = line.end_x, line.end_y
        if line.ends == "lost":
            return cross(x, y, colour, 3 if line.flight.plain else 4)
        if line.ends == "open":
            return ""
        return head(x, y, x - line.x, y - line.y, colour, line.flight.said.good is not False, line.flight.plain)

    def _label(self, line: Line) -> str:
        """Where it hides no other label; nowhere if there is no such place."""
        words = line.flight.said.label
        half = width_px(words, _LABEL_PX) / 2
        for x, y in self._places(line):
            box = (x - half - 1, y - 6, x + half + 1, y + 6)
            fits = x - half > GUTTER_PX - 8 and x + half < self._picture.width
            if fits and not any(_meet(box, b) for b in self._taken):
                self._taken.append(box)
                colour = KIND_COLOURS[line.flight.said.kind]
                return text(x, y + 3.5, words, _LABEL_PX, colour, anchor="middle", halo=True)
        return ""

    def _places(self, line: Line) -> Iterator[tuple[float, float]]:
        """Along the line, in the gaps between bands: the middles of the gaps first, from the sender on."""
        gap_px, down = self._picture.gap_px, line.end_y > line.y
        tops = sorted((y + BAND_PX for y in self._bands), reverse=not down)
        low, high = min(line.y, line.end_y) + 3, max(line.y, line.end_y) - 3
        for part in _ALONG_LOST if line.ends == "lost" else _ALONG:
            for top in tops:
                y = top + (part if down else 1 - part) * gap_px
                if low <= y <= high:
                    yield line.x + (y - line.y) / (line.end_y - line.y) * (line.end_x - line.x), y


def _meet(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
