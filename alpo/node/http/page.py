"""The page for people: one HTML text made of the cluster's state, complete without scripts.

Every value goes through `html.escape`: clients choose the names of cursors, and strangers their words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import count
from typing import Any, NamedTuple

from alpo._version import __version__
from alpo.core.settings import size_text
from alpo.health import LAG_WARN, Finding, examine, not_well, worst
from alpo.standing import lag_of, leader_of, sentence

View = Mapping[str, Any]
Row = Mapping[str, Any]

#: Rows of one table, and characters of one name.
ROWS_MAX, NAME_MAX = 50, 60
_OK, _WARN, _BAD = "ok", "warn", "bad"
_SIGNS = {_OK: "", _WARN: "&#9888; Attention. ", _BAD: "&#9888; Trouble. "}


class State(NamedTuple):
    """The cluster in words. ``level``: "ok", "warn" or "bad"; ``items``: what to look at, in HTML."""

    level: str
    sentence: str
    items: list[str]


def render(view: View, *, whole: bool) -> str:
    """The page; if not ``whole``, only the sections that change, for the page's script."""
    state = state_of(view)
    title = ("⚠ " if state.level != _OK else "") + f"ALPO {_cluster(view)}: {state.sentence}"
    parts = (
        _header(view) + '<main data-title="' + escape(title) + '">' + _state(state) + _numbers(view) + _rates(view)
        + _members(view) + '<div class="two">' + _elections(view) + _cursors(view) + _sessions(view) + _storage(view)
        + "</div></main>" + _footer(view)
    )
    if not whole:
        return parts
    return document(title, f'<a class="skip" href="#members">to the table of members</a>{parts}', live=True)


def document(title: str, body: str, *, live: bool) -> str:
    """A whole page; ``live``: it is kept up to date. ``body``: HTML."""
    script = (
        '<script src="/page.js" defer></script><noscript><meta http-equiv="refresh" content="5"></noscript>'
    ) if live else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:,"><link rel="stylesheet" href="/page.css">{script}'
        f"</head><body>{body}</body></html>\n"
    )


# -- what to say ----------------------------------------------------------------------------------------


def state_of(view: View) -> State:
    """Judge the cluster, as `alpo.health` does."""
    late_s = {int(id): lag_s for id, lag_s in view["lag_s"].items()}
    found = examine(view["members"], late_s=late_s)
    items = [
        f"{_subject(one)}: {escape(printable(one.says))}. {_dim(escape(f'{one.do[:1].upper()}{one.do[1:]}.'))}"
        for one in not_well(found)
    ]
    return State(worst(found).value, printable(sentence(view["members"])), items)


def _subject(finding: Finding) -> str:
    return finding.check.capitalize() if finding.server is None else f"Server {finding.server}"


# -- sections -------------------------------------------------------------------------------------------


def _header(view: View) -> str:
    at = datetime.fromtimestamp(view["time_ms"] / 1000, UTC)
    return (
        f'<header><h1>ALPO cluster {escape(_cluster(view))}</h1><span class="dim">as seen by server '
        f'{view["seen_by"]}, <time datetime="{at:%Y-%m-%dT%H:%M:%SZ}">{at:%H:%M:%S} UTC</time></span>'
        '<span class="dim" id="age"></span></header>'
    )


def _state(state: State) -> str:
    items = "".join(f"<li>{item}</li>" for item in state.items[:20])
    return (
        f'<section id="state" class="state {state.level}"><p role="status"><b class="{state.level}">'
        f"{_SIGNS[state.level]}</b>{escape(state.sentence)}</p>{f'<ul>{items}</ul>' if items else ''}</section>"
    )


def _numbers(view: View) -> str:
    leader = leader_of(view["members"]) or {}
    own = _own(view)
    clients = sum(row.get("clients") or 0 for row in view["members"] if row.get("reachable"))
    p50_ms, p99_ms = leader.get("append_p50_ms"), leader.get("append_p99_ms")
    cells = (
        ("payloads a second", _whole(leader.get("payloads_per_s"))),
        ("append p50 / p99", f"{_ms(p50_ms, '')} / {_ms(p99_ms, '')} <small>ms</small>"),
        ("guaranteed LSN", _whole(max((row.get("last_lsn") or 0 for row in view["members"]), default=0))),
        ("LSN on every member", _whole(view.get("fully_replicated_lsn"))),
        ("clients", f"{clients:,} <small>of {view['clients_max']:,} a server</small>"),
        ("log on disk", _bytes(own.get("disk_bytes"))),
    )
    return '<dl id="numbers">' + "".join(f"<div><dt>{name}</dt><dd>{cell}</dd></div>" for name, cell in cells) + "</dl>"


def _rates(view: View) -> str:
    rates = [rate for _, rate in view["rates"]]
    head = '<section id="rates"><h2 id="rate">Payloads a second, last 5 minutes</h2>'
    if not rates:
        return head + '<p class="dim" id="sparktext">No second has passed yet.</p></section>'
    top, lowest = axis_top(rates), min(view["rates"], key=lambda pair: pair[1])
    points = " ".join(
        f"{600 - 2 * (len(rates) - index - 1)},{62 - 60 * min(rate, top) / top:.0f}" for index, rate in enumerate(rates)
    )
    at = f"{datetime.fromtimestamp(lowest[0] / 1000, UTC):%H:%M:%S}"
    cut = ", above the curve" if max(rates) > top else ""
    return (
        f'{head}<div class="plot" aria-hidden="true"><span>{top:,}</span><span>{top / 2:,.4g}</span><span>0</span>'
        '<svg class="spark" viewBox="0 0 600 64" preserveAspectRatio="none">'
        f'<path d="M0 2H600M0 32H600M0 62H600"/><polyline points="{points}"/></svg>'
        '<span class="from">5 min ago</span><span class="now">now</span></div>'
        f'<p class="dim" id="sparktext">Now {rates[-1]:,}, highest {max(rates):,}{cut}, lowest {lowest[1]:,} at {at}.'
        "</p></section>"
    )


def axis_top(rates: Sequence[int]) -> int:
    """The rate at the top of the curve: 1, 2 or 5 times a power of ten. A few seconds far above all others do not
    count: they would press the rest to the floor."""
    most = sorted(rates)[(len(rates) - 1) * 19 // 20]
    wanted = max(max(rates) if max(rates) <= 2 * most else most, 1)
    tops: Iterator[int] = (step * 10**power for power in count() for step in (1, 2, 5))
    return next(top for top in tops if top >= wanted)


_COLUMNS = (
    ("role", ""), ("address", ""), ("log", "ext"), ("lag", "n"), ("round trip", "n"), ("fsync p50 / p99", "n"),
    ("disk free", "n"), ("status", ""),
)


def _members(view: View) -> str:
    members = view["members"]
    trips = {
        peer["id"]: peer.get("round_trip_ms")
        for row in members if row["id"] == view["seen_by"] for peer in row.get("peers") or ()
    }
    known = [row for row in members if row.get("last_lsn") is not None]
    span = (min((row["first_lsn"] for row in known), default=1), max((row["last_lsn"] for row in known), default=0))
    heads = "".join(
        f'<th scope="col"{" class=n" if kind == "n" else ""}>{name}</th>' for name, kind in (("server", ""), *_COLUMNS)
    )
    rows = "".join(_member(row, members, view, trips.get(row["id"]), span) for row in members)
    return (
        '<section id="all"><h2>Members</h2><table class="members" id="members"><caption>Bar: the part of the log that '
        "each can be read from, up to what it knows to be guaranteed.</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></section>"
    )


def _member(row: Row, members: Sequence[Row], view: View, trip: float | None, span: tuple[int, int]) -> str:
    reachable, leads = row.get("reachable"), row.get("state") == "leader"
    lag, lag_s = lag_of(row, members), view["lag_s"].get(str(row["id"]))
    behind = "-" if lag is None or leads else f"{lag:,}" + (f" ({_span(lag_s)})" if lag and lag_s else "")
    status, level = str(row.get("status") or "unknown"), _OK
    if not reachable:
        age_s = row.get("age_s")
        if age_s is None and row.get("last_lsn") is None:
            return _never_heard(row)
        status, level = f"no answer {f'for {_span(age_s)}' if age_s is not None else 'since it started'}", _BAD
    elif status != "VOTING" or (lag or 0) > LAG_WARN:
        status, level = status if status != "VOTING" else "votes, behind", _WARN
    else:
        status = "votes"
    cells = (
        "<b>leader</b>" if leads and reachable else escape(_role(row)),
        f"<code>{shown_name(row.get('address') or '-')}</code>",
        _extent(row, span),
        behind,
        _ms(trip) if row["id"] != view["seen_by"] else "-",
        f"{_ms(row.get('fsync_p50_ms'))} / {_ms(row.get('fsync_p99_ms'))}",
        _bytes(row.get("disk_free_bytes")),
        status if level == _OK else f'<b class="{level}">&#9888; {escape(status)}</b>',
    )
    tds = "".join(
        f'<td data-h="{name}"{f" class={kind}" if kind else ""}>{cell}</td>'
        for (name, kind), cell in zip(_COLUMNS, cells, strict=True)
    )
    gone = "" if reachable else ' class="gone"'
    return f'<tr{gone}><th scope="row">server {row["id"]}</th>{tds}</tr>'


def _never_heard(row: Row) -> str:
    """The row of a member of which nothing is known but its address."""
    (role, _), (address, _), *rest = _COLUMNS
    return (
        f'<tr class="gone"><th scope="row">server {row["id"]}</th><td data-h="{role}">-</td><td data-h="{address}">'
        f'<code>{shown_name(row.get("address") or "-")}</code></td><td data-h="status" colspan="{len(rest)}">'
        '<b class="bad">&#9888; no answer since it started</b></td></tr>'
    )


def _role(row: Row) -> str:
    state = row.get("state")
    return "-" if not state else str(state) if row.get("reachable") else f"was {state}"


def _extent(row: Row, span: tuple[int, int]) -> str:
    first, last = row.get("first_lsn"), row.get("last_lsn")
    if first is None or last is None:
        return "-"
    if last < first:
        return "empty"
    whole = max(1, span[1] - span[0] + 1)
    left, wide = 100 * (first - span[0]) / whole, 100 * (last - first + 1) / whole
    words = f"{first:,} to {last:,}"
    return (
        f'{words}<svg viewBox="0 0 100 12" preserveAspectRatio="none" role="img" aria-label="holds {words}">'
        f'<rect class="back" width="100" height="12"/><rect class="bar" x="{left:.1f}" width="{wide:.1f}" height="12"/>'
        f'<rect class="mark" x="{max(0.0, left + wide - 0.8):.1f}" width=".8" height="12"/></svg>'
    )


def _elections(view: View) -> str:
    rows = "".join(
        f"<li>{_when(one['time_ms'], view['time_ms'])} server {one['leader']} leads, term {one['term']}."
        f" {_dim(_why(one))}</li>"
        for one in view["elections"][:8]
    )
    body = f"<ol>{rows}</ol>" if rows else f"<p>{_dim('None since this server started.')}</p>"
    return f'<section id="elections"><h2>Last elections, and why</h2>{body}</section>'


def _why(election: Row) -> str:
    why = escape(str(election["why"]))
    told = f"{why[:1].upper()}{why[1:]}." if why else "This server noticed nothing before."
    gap_ms = election["leaderless_ms"]
    return told + (f" Without a leader: {gap_ms / 1000:.2f} s." if gap_ms is not None else "")


def _cursors(view: View) -> str:
    end = max((row.get("last_lsn") or 0 for row in view["members"]), default=0)
    cursors = sorted(view["cursors"], key=lambda one: one["lsn"])
    rows = "".join(
        f'<tr><th scope="row">{shown_name(one["name"])}</th><td class="n">{one["lsn"]:,}</td>'
        f'<td class="n">{max(0, end - one["lsn"] + 1):,}, {_span(one["lag_s"])}</td></tr>'
        for one in cursors[:ROWS_MAX]
    )
    unseen = view["cursors_all"] - min(len(cursors), ROWS_MAX)
    more = f"<p>{_dim(f'and {unseen:,} more')}</p>" if unseen else ""
    heads = '<th scope="col">name</th><th scope="col" class="n">LSN</th><th scope="col" class="n">behind</th>'
    body = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{more}" if rows else (
        f"<p>{_dim('None.')}</p>"
    )
    return f'<section id="cursors"><h2>Readers (cursors)</h2>{body}</section>'


def _sessions(view: View) -> str:
    found = view["sessions"]
    told = f"Forgotten since the start: {found['ended']:,}. Refused for want of rights: {found['refused']:,}."
    slowed = [str(who) for row in view["members"] for who in row.get("slowed") or ()]
    if slowed:
        told += f" Slowed down by their quota: {', '.join(map(shown_name, slowed[:10]))}."
    return (
        f'<section id="sessions"><h2>Sessions</h2><p>{found["named"]:,} named, {found["unnamed"]:,} without a name, of '
        f'{found["unnamed_max"]:,}. {_dim(told)}</p></section>'
    )


def _storage(view: View) -> str:
    own = _own(view)
    damaged = len(own.get("damaged") or ())
    told = [
        f"{damaged} damaged entries known." if damaged else "No damage known.",
        f"Whole passes of the scrub since the start: {own.get('scrub_passes') or 0}.",
        f"{_bytes(own.get('file_free_bytes'))} free within the data file.",
    ]
    days = _certificate_days(view)
    told.append(f"Certificate: {days:.0f} days left." if days is not None else "No TLS.")
    return f'<section id="storage"><h2>This server\'s storage</h2><p>{" ".join(told)}</p></section>'


def _footer(view: View) -> str:
    own = _own(view)
    paths = ("/log", "/status", "/metrics", "/readyz?verbose")
    links = "".join(f' <a href="{path}">{path.partition("?")[0]}</a>' for path in paths)
    return f"<footer>ALPO {__version__}, up {_span(own.get('up_s') or 0)}.{links}</footer>"


# -- words ----------------------------------------------------------------------------------------------


def _cluster(view: View) -> str:
    return next((str(row["cluster"])[:8] for row in view["members"] if row.get("cluster")), "not founded")


def _own(view: View) -> Row:
    """The row of the server that made the page."""
    return next(row for row in view["members"] if row["id"] == view["seen_by"])


def _certificate_days(view: View) -> float | None:
    ends_s = view["tls"]["certificate_ends_s"]
    return None if ends_s is None else float(ends_s - view["time_ms"] / 1000) / 86400


def shown_name(text: object) -> str:
    """A name that a stranger chose, as HTML."""
    shown = printable(str(text))
    return escape(shown if len(shown) <= NAME_MAX else shown[: NAME_MAX - 1] + "…")


def printable(text: str, kept: str = "") -> str:
    """``text`` with a sign in place of each character that does not show as itself, but for those in ``kept``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in kept else "\N{REPLACEMENT CHARACTER}" for char in text)


def _dim(text: str) -> str:
    return f'<span class="dim">{text}</span>'


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _ms(value: float | None, unit: str = " ms") -> str:
    return "-" if value is None else f"{value:.3g}{unit}" if value < 100 else f"{value:,.0f}{unit}"


def _bytes(value: int | None) -> str:
    return "-" if value is None else size_text(value)


def _span(seconds: float) -> str:
    """A span of time in at most two units."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if days < 1 else f"{days} d {hours % 24} h"


def _when(time_ms: int, now_ms: int) -> str:
    at = datetime.fromtimestamp(time_ms / 1000, UTC)
    text = f"{at:%H:%M:%S}" if now_ms - time_ms < 86_400_000 else f"{at:%d %b %H:%M}"
    return f'<time datetime="{at:%Y-%m-%dT%H:%M:%SZ}">{text}</time>'
