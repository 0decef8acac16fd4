"""The picture as a page to step through: no library, nothing from the network, one file."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from .layout import BAND_PX, Picture, Row
from .story import Moment, View
from .style import term_colour, term_tint
from .svg import svg_of
from .text import escape

#: So many entries at the end of a log are shown in full.
_ENTRIES = 16


def html_of(picture: Picture, title: str, subtitle: list[str]) -> str:
    picture_svg = svg_of(picture, title, subtitle)  # first: it says where the rows lie
    data = json.dumps(_data(picture), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    folder = files(__package__)
    return _PAGE.format(
        title=escape(title), svg=picture_svg, data=data,
        style=folder.joinpath("page.css").read_text("utf-8"), script=folder.joinpath("page.js").read_text("utf-8"),
    )


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<nav>
<button id="first" title="Home">First</button><button id="back" title="←">← Back</button>
<button id="on" title="→">Next →</button><button id="last" title="End">Last</button>
<span id="where"></span>
<label><input type="checkbox" id="quiet"> heartbeats and idle steps too</label>
<span class="hint">keys: ← → Home End; or click on the picture</span>
</nav>
<div id="picture">
{svg}</div>
<main>
<section id="what" aria-live="polite"></section>
<section id="servers"></section>
</main>
<script id="data" type="application/json">{data}</script>
<script>
{script}</script>
</body>
</html>
"""


def _data(picture: Picture) -> dict[str, Any]:
    story = picture.story
    shown = [(m, row) for row in picture.rows for m in story.moments if row.first <= m.instant < row.last]
    oldest = min((v.last_id for v in story.views_before.values() if v.last_id), default=0) - _ENTRIES
    first = picture.rows[0].first if picture.rows else 0
    most = max((m.view.term for m in story.moments), default=0)
    return {
        "start": {id: _view(lane.view_before(first)) for id, lane in picture.lanes.items()},
        "moments": [_moment(picture, moment, row) for moment, row in shown],
        "jumps": _jumps(picture, [m for m, _ in shown]),
        "entries": {f"{id}.{term}": words for (id, term), words in story.entries.items() if id >= oldest},
        "terms": [[term_tint(term), term_colour(term)] for term in range(most + 1)],
        "tail": _ENTRIES,
        "failure": list(story.failure) if story.failure is not None else None,
    }


def _jumps(picture: Picture, shown: list[Moment]) -> dict[int, Any]:
    """Where a stretch is left out before a moment: its number -> the views of all servers as the moment comes."""
    found = {}
    for row in picture.rows:
        at = next((at for at, m in enumerate(shown) if m.instant >= row.first), None)
        if at and row.heading:
            found[at] = {id: _view(lane.view_before(shown[at].instant)) for id, lane in picture.lanes.items()}
    return found


def _moment(picture: Picture, moment: Moment, row: Row) -> dict[str, Any]:
    y = picture.lane_y(row, moment.server)
    top, bottom = picture.lane_y(row, min(picture.lanes)) - 6, picture.lane_y(row, max(picture.lanes)) + BAND_PX + 6
    return {
        "t": picture.story.when_us[moment.instant], "s": moment.server, "w": moment.words or [_IDLE],
        "v": _view(moment.view), "q": moment.quiet,
        "f": [f.number for f in (*moment.heard, *moment.sent)],
        "x": round(picture.x(row, moment.instant), 1), "y": [round(v, 1) for v in (y, y + BAND_PX, top, bottom)],
    }


_IDLE = "takes note; nothing changes"


def _view(view: View) -> list[Any]:
    """As `page.js` takes it apart."""
    return [
        view.state, view.status, view.term, view.vote, view.leader, view.last_id, view.disk_id, view.guaranteed_id,
        [list(run) for run in view.runs],
    ]
