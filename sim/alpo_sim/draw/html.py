"""HTML page of the picture, in one file, to step through: no library, nothing from the network."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from typing import Any

from .layout import Picture, Section
from .story import Moment, View
from .svg import svg_of, term_colours

#: Number of entries at the end of a log that are shown in full.
_ENTRIES = 16


def html_of(picture: Picture, title: str, subtitle: list[str]) -> str:
    """The text of the page: the SVG, all moments as JSON, and the script that steps through them."""
    data = json.dumps(_data(picture), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    folder = files(__package__)
    return _PAGE.format(
        title=escape(title), svg=svg_of(picture, title, subtitle), data=data,
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
    oldest = min((v.last_id for v in story.views_before.values() if v.last_id), default=0) - _ENTRIES
    most = max((m.view.term for m in story.moments), default=0)
    moments: list[dict[str, Any]] = []
    jumps: dict[int, Any] = {}  # number of a moment before which a stretch is left out -> the views as it comes
    for section in picture.sections:
        if moments:
            jumps[len(moments)] = _views(picture, section.first)
        moments += [_moment(picture, m, section) for m in story.moments if section.first <= m.instant < section.last]
    return {
        "start": _views(picture, picture.sections[0].first),
        "moments": moments,
        "jumps": jumps,
        "entries": {f"{id}.{term}": words for (id, term), words in story.entries.items() if id >= oldest},
        "terms": [term_colours(term) for term in range(most + 1)],
        "tail": _ENTRIES,
        "failure": story.failure,
    }


def _views(picture: Picture, instant: int) -> dict[int, list[Any]]:
    return {id: _view(lane.view_before(instant)) for id, lane in picture.lanes.items()}


def _moment(picture: Picture, moment: Moment, section: Section) -> dict[str, Any]:
    x = picture.lane_x(moment.server)
    return {
        "t": picture.story.when_us[moment.instant], "s": moment.server, "w": moment.words or [_IDLE],
        "v": _view(moment.view), "q": moment.quiet,
        "f": [f.number for f in (*moment.heard, *moment.sent)],
        "y": round(picture.y(section, moment.instant), 1), "x": [x, x + picture.lane_px, picture.right],
    }


_IDLE = "takes note; nothing changes"


def _view(view: View) -> list[Any]:
    """The list in which `page.js` expects a view."""
    return [
        view.state, view.status, view.term, view.vote, view.leader, view.last_id, view.disk_id, view.guaranteed_id,
        [list(run) for run in view.runs],
    ]
