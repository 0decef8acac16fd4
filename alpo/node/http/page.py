"""Pages for people: the cluster's state, complete without scripts; and payloads, the last ones, and one by its LSN, as
JSON or text, and as bytes.

Laws:

* Every value goes through `html.escape`: whoever may append chooses what stands here.
* Bounded: `LISTED` payloads a list, `READ_BYTES` for one page of a read, `SHOWN_BYTES` and `DUMPED_BYTES` of a payload,
  `INDENTED_CHARS` of JSON: the server's event loop makes them, and nested lists take a thousand times their bytes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from alpo._version import __version__
from alpo.core.entries import INT_MAX, split_payloads
from alpo.core.settings import size_text
from alpo.health import LAG_WARN, Finding, examine, not_well, worst
from alpo.node.threads import in_thread
from alpo.standing import LogStanding, lag_of, leader_of, logs_of, sentence
from alpo.wire.requests import Page, Read

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
        + _members(view) + _logs(view) + '<div class="two">' + _elections(view) + _cursors(view) + _sessions(view)
        + _storage(view) + "</div></main>" + _footer(view)
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
    tops: Iterator[int] = (step * 10**power for power in itertools.count() for step in (1, 2, 5))
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


def _logs(view: View) -> str:
    """The table of logs; nothing while there is only the first."""
    logs = logs_of(view["members"])
    if len(logs) < 2:
        return ""
    heads = "".join(
        f'<th scope="col"{" class=n" if right else ""}>{name}</th>'
        for name, right in (("log", 0), ("number", 1), ("leader", 0), ("last LSN", 1), ("bytes", 1), ("state", 0))
    )
    rows = "".join(
        f'<tr><th scope="row">{shown_name(log.name)}</th><td class="n">{log.number}</td>'
        f'<td>{"-" if log.leader is None else f"server {log.leader}"}</td><td class="n">{_whole(log.last_lsn)}</td>'
        f'<td class="n">{_bytes(log.bytes)}</td><td>{_log_state(log)}</td></tr>'
        for log in logs
    )
    return (
        f'<section id="logs"><h2>Logs</h2><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></section>'
    )


def _log_state(log: LogStanding) -> str:
    behind = f" ({', '.join(f'server {id}' for id in log.behind)} behind)" if log.behind else ""
    if log.state == "failed":
        return f'<b class="{_BAD}">&#9888; failed</b>{behind}'
    return escape(log.state) + behind


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


LISTED = 20
READ_BYTES = 1 << 20
SHOWN_BYTES, INDENTED_CHARS, DUMPED_BYTES, PREVIEW_CHARS = 64 << 10, 256 << 10, 1 << 10, 160
_NO_LINE = str.maketrans({"\n": "⏎", "\r": "⏎", "\t": " "})

Look = Callable[[Read], Awaitable[Page]]


class Payload(NamedTuple):
    """One payload, and the entry that holds it."""

    lsn: int
    id: int
    term: int
    time_ms: int
    client: str
    serial: int
    data: bytes

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.time_ms / 1000, UTC)


class Wanted(NamedTuple):
    """The request of a visitor: payload ``lsn``, or else the last ones before ``before``; 0: not given."""

    lsn: int = 0
    before: int = 0

    @staticmethod
    def of(query: str) -> Wanted:
        """The request in a query. Raises ValueError for what is no LSN."""
        given = parse_qs(query, max_num_fields=4)
        return Wanted(*(_lsn(given[name][-1]) if name in given else 0 for name in ("lsn", "before")))


def _lsn(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= INT_MAX):
        raise ValueError(f"an LSN is a number from 1 to {INT_MAX}")
    return int(text)


async def payloads_page(wanted: Wanted, look: Look, server: int) -> str:
    """The page, made of what ``look`` finds: pages of this server's own copy. Raises as that does."""
    if wanted.lsn:
        found, first_lsn, end_lsn = await _between(look, wanted.lsn, wanted.lsn)
        body = _one(found[0], first_lsn, end_lsn) if found else _list([], first_lsn, end_lsn)
        title = f"payload {wanted.lsn:,}"
    else:
        end_lsn = (await look(_ask(0, 0, 1))).end_lsn
        last = min(wanted.before - 1, end_lsn) if wanted.before else end_lsn
        found, first_lsn, end_lsn = await _between(look, max(1, last - LISTED + 1), last)
        body, title = _list(found, first_lsn, end_lsn), "payloads"
    form = (
        '<form action="/log" method="get"><label>LSN <input name="lsn" inputmode="numeric" size="12" required></label> '
        "<button>show</button></form>"
    )
    head = (
        f'<header><h1>{title}</h1><span class="dim">server {server} has {first_lsn:,} to {end_lsn:,}</span>'
        '<a href="/">the cluster</a> <a href="/log">the last payloads</a></header>'
    )
    return document(f"ALPO: {title}", f"{head}<main>{form}{body}</main>", live=False)


def _ask(start: int, end: int, last: int = 0) -> Read:
    return Read(0, start, end, last, 0, READ_BYTES, False, 0, "")


async def _between(look: Look, first: int, last: int) -> tuple[list[Payload], int, int]:
    """The payloads that there are from ``first`` to ``last``, and the LSNs that the server has."""
    found: list[Payload] = []
    page = await look(_ask(0, 0, 1))  # tells what there is
    first, last = max(first, page.first_lsn), min(last, page.end_lsn)
    while first <= last:
        page = await look(_ask(first, last))
        for id, term, time_ms, client, serial, lsn, count, body in page.entries:
            each = [body] if count == 1 else await in_thread(split_payloads, count, body)  # a batch may hold a million
            begin = max(0, first - lsn)
            for one, data in enumerate(each[begin : last + 1 - lsn], lsn + begin):
                found.append(Payload(one, id, term, time_ms, client, serial, data))
        first = max(page.next_lsn, first + 1)
    return found, page.first_lsn, page.end_lsn


def _list(found: Sequence[Payload], first_lsn: int, end_lsn: int) -> str:
    if not found:
        return '<p class="dim">There are no payloads here.</p>'
    rows = "".join(
        f'<tr><th scope="row"><a href="/log?lsn={one.lsn}">{one.lsn:,}</a></th><td data-h="time">{_time(one)}</td>'
        f'<td data-h="client">{shown_name(one.client)}</td><td data-h="bytes" class="n">{len(one.data):,}</td>'
        f'<td data-h="payload" class="ext"><code>{escape(_preview(one.data))}</code></td></tr>'
        for one in reversed(found)
    )
    heads = "".join(f'<th scope="col"{kind}>{name}</th>' for name, kind in (
        ("LSN", ""), ("time, UTC", ""), ("client", ""), ("bytes", ' class="n"'), ("payload", ""),
    ))
    older = f'<a href="/log?before={found[0].lsn}">older</a> ' if found[0].lsn > first_lsn else ""
    newer = f'<a href="/log?before={found[-1].lsn + LISTED + 1}">newer</a>' if found[-1].lsn < end_lsn else ""
    return f'<table class="members"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table><p>{older}{newer}</p>'


def _one(one: Payload, first_lsn: int, end_lsn: int) -> str:
    facts = (
        ("LSN", f"{one.lsn:,}"), ("time, UTC", _time(one)), ("client", shown_name(one.client)),
        ("serial", f"{one.serial:,}"), ("entry", f"{one.id:,}, term {one.term:,}"), ("bytes", f"{len(one.data):,}"),
    )
    rows = "".join(f'<tr><th scope="row">{name}</th><td>{value}</td></tr>' for name, value in facts)
    kind, text = _told(one.data[:SHOWN_BYTES], whole=len(one.data) <= SHOWN_BYTES)
    told = f"<h2>{kind}</h2><pre>{escape(text)}</pre>" if kind else ""
    cut = f", the first {DUMPED_BYTES:,}" if len(one.data) > DUMPED_BYTES else ""
    ways = [f'<a href="/log?lsn={lsn}">{word}</a>' for lsn, word in ((one.lsn - 1, "before"), (one.lsn + 1, "next"))
            if first_lsn <= lsn <= end_lsn]
    dump = escape(_dump(one.data[:DUMPED_BYTES]))
    return f"<table><tbody>{rows}</tbody></table><p>{' '.join(ways)}</p>{told}<h2>Bytes{cut}</h2><pre>{dump}</pre>"


def _told(data: bytes, whole: bool) -> tuple[str, str]:
    """The payload as people read it: ("JSON", indented), ("Text", as it is), or ("", "") if it is neither."""
    try:
        text = data.decode() if whole else data.decode(errors="ignore")
    except UnicodeDecodeError:
        return "", ""
    if whole and text.lstrip()[:1] in ("{", "["):
        try:
            return "JSON", printable(_indented(text), kept="\n")
        except (ValueError, RecursionError):
            pass
    return f"Text{'' if whole else f', the first {SHOWN_BYTES:,} bytes'}", printable(text, kept="\n\t")


def _indented(text: str) -> str:
    """JSON, indented. Raises ValueError if it is none, or too long then; RecursionError."""
    parts: list[str] = []
    chars = 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
        parts.append(part)
        chars += len(part)
        if chars > INDENTED_CHARS:
            raise ValueError("too long")
    return "".join(parts)


def _dump(data: bytes) -> str:
    """Bytes as `hexdump -C` shows them."""
    lines = []
    for at in range(0, len(data), 16):
        part = data[at : at + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {shown}")
    return "\n".join(lines) or "none"


def _preview(data: bytes) -> str:
    text = data[: 4 * PREVIEW_CHARS].decode(errors="replace").translate(_NO_LINE)
    return printable(text if len(text) <= PREVIEW_CHARS else text[: PREVIEW_CHARS - 1] + "…")


def _time(one: Payload) -> str:
    return f'<time datetime="{one.at:%Y-%m-%dT%H:%M:%SZ}">{one.at:%Y-%m-%d %H:%M:%S}.{one.time_ms % 1000:03}</time>'
