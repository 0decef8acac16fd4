"""Cells of the live view: the members' table, one server in full, the events; its state, and the keys that change it.
Pure, plain text.

Law: every cell is escaped, so no character that a server tells moves the cursor, changes colours or breaks a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple

from alpo.core.settings import size_text
from alpo.standing import LogStanding, full_in, lag_of, lag_text, logs_of, span

from .. import story
from ..output import escape, rfc3339_ms
from .sight import Fields, Seen, Sight, behind_s


class Column(NamedTuple):
    """A column of the members' table. ``keep``: the lower, the sooner it is left out where there is no room."""

    head: str
    keep: int
    right: bool = False


COLUMNS = (
    Column("server", 10), Column("role", 8), Column("address", 3), Column("log", 7), Column("extent", 0),
    Column("lag", 6, True), Column("round trip", 2, True), Column("commit", 1, True), Column("fsync p99", 5, True),
    Column("disk free", 4, True), Column("status", 9),
)
#: Characters of the bar that shows which part of the log a server holds.
EXTENT_CHARS = 16
_NOTHING = "-"
#: Sent by an arrow, a function key or Alt with a key.
_SEQUENCE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|O.|[^\x1b])")


class Tone(Enum):
    """Weight of a row."""

    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    GONE = "gone"


class Row(NamedTuple):
    """A server's row; ``leads``: it is the leader."""

    cells: list[str]
    tone: Tone
    leads: bool


def rows(sight: Sight) -> list[Row]:
    """A row for each server, in the columns of `COLUMNS`."""
    return [_row(sight, seen) for seen in sight.servers]


#: Heads of the table of logs, and which of its columns are numbers.
LOG_HEADS = (
    ("log", False), ("number", True), ("leader", True), ("last LSN", True), ("bytes", True), ("state", False),
    ("behind", False),
)


def log_rows(sight: Sight) -> list[tuple[list[str], Tone]]:
    """Cells of a row for each log, in the columns of `LOG_HEADS`; [] while there is only the first."""
    logs = logs_of(sight.rows)
    return [(_log_cells(log), Tone.BAD if log.state == "failed" else Tone.GOOD) for log in logs] if logs[1:] else []


def _log_cells(log: LogStanding) -> list[str]:
    last = _NOTHING if log.last_lsn is None else f"{log.last_lsn:,}"
    cells = [
        log.name, str(log.number), str(log.leader or _NOTHING), last,
        _size(log.bytes), ("⚠ " if log.state == "failed" else "") + log.state, ", ".join(map(str, log.behind)),
    ]
    return [escape(cell) for cell in cells]


def _row(sight: Sight, seen: Seen) -> Row:
    fields, leader = seen.fields, sight.leader
    leads = leader is not None and seen.silent_s is None and seen.id == leader["id"]
    tone = _tone(sight, seen)
    mark = "⚠ " if tone in (Tone.WARN, Tone.BAD) else ""
    cells = [
        seen.name.removeprefix("server "), "leader" if leads else role(sight, seen), seen.address, log_text(fields),
        extent(sight, fields), "-" if leads else _lag(sight, seen), _round_trip(sight, seen),
        ms(fields.get("commit_ms")), ms(fields.get("fsync_p99_ms")), _size(fields.get("disk_free_bytes")),
        mark + _status(seen),
    ]
    return Row([escape(cell) for cell in cells], tone, leads)


def _tone(sight: Sight, seen: Seen) -> Tone:
    if seen.silent_s is not None:
        return Tone.GONE
    worst = [finding.verdict.value for finding in sight.findings if finding.server == seen.id]
    return Tone(worst[0]) if worst else Tone.GOOD


def role(sight: Sight, seen: Seen) -> str:
    """Role of a server: its state, ``learner`` for one that does not vote yet."""
    if not seen.member:
        return "no member"
    leader = sight.leader
    listed = {each["id"]: each.get("role") for each in (leader or seen.fields).get("members") or ()}
    if listed.get(seen.id) == "LEARNER":
        return "learner"
    return _NOTHING if seen.silent_s is not None else str(seen.fields.get("state", _NOTHING))


def _status(seen: Seen) -> str:
    if seen.silent_s is None:
        return str(seen.fields.get("status", _NOTHING))
    return f"no answer for {span(seen.silent_s)}"


def log_text(fields: Fields) -> str:
    """Extent of a server's log in words: ``1,320,001 to 1,792,115``."""
    first, last = fields.get("first_lsn"), fields.get("last_lsn")
    if first is None or last is None:
        return _NOTHING
    return "empty" if last < first else f"{first:,} to {last:,}"


def extent(sight: Sight, fields: Fields) -> str:
    """Bar of the part of the log that a server holds, of what all hold together."""
    held = [_held(seen.fields) for seen in sight.servers]
    known = [each for each in held if each is not None]
    own = _held(fields)
    if own is None or not known:
        return ""
    low, high = min(first for first, _ in known), max(last for _, last in known)
    whole = high - low + 1
    begin = (own[0] - low) * EXTENT_CHARS // whole
    end = max(begin + 1, -(-(own[1] - low + 1) * EXTENT_CHARS // whole))
    if own[1] < high:  # never as long as the longest
        end = max(begin, min(end, EXTENT_CHARS - 1))
    return "·" * begin + "━" * (end - begin) + "·" * (EXTENT_CHARS - end)


def _held(fields: Fields) -> tuple[int, int] | None:
    first, last = fields.get("first_lsn"), fields.get("last_lsn")
    return None if first is None or last is None or last < first else (first, last)


def _lag(sight: Sight, seen: Seen) -> str:
    if seen.silent_s is not None or seen.fields.get("guaranteed_id") is None:
        return _NOTHING
    entries = lag_of(seen.fields, sight.there)
    late_s = behind_s(seen.fields["guaranteed_id"], sight.marks, sight.now_s) if entries else None
    return _NOTHING if entries is None else lag_text(entries, late_s).replace(" entries", "").replace(" entry", "")


def _round_trip(sight: Sight, seen: Seen) -> str:
    """Round trip between the leader and this server, as the leader measures it."""
    peers = (sight.leader or {}).get("peers") or ()
    return ms(next((peer.get("round_trip_ms") for peer in peers if peer["id"] == seen.id), None))


def ms(value: float | None) -> str:
    """Milliseconds in words: ``0.04 ms``, ``0.4 ms``, ``88 ms``."""
    if value is None:
        return _NOTHING
    return f"{value:,.{2 if abs(value) < 0.1 else 1 if abs(value) < 10 else 0}f} ms"


def _size(count: int | None) -> str:
    return _NOTHING if count is None else size_text(count)


def fitting(widths: Sequence[int], width: int, gap: int) -> list[int]:
    """Columns, by number, that fit into ``width`` with ``gap`` between them; the first is always among them."""
    chosen = list(range(len(widths)))
    while len(chosen) > 1 and sum(widths[at] for at in chosen) + gap * (len(chosen) - 1) > width:
        chosen.remove(min(chosen, key=lambda at: COLUMNS[at].keep))
    return chosen


# -- one server


def details(sight: Sight, id: int) -> list[tuple[str, str]]:
    """(label, text) of all that is known of a server; [] if there is none with this id."""
    seen = next((seen for seen in sight.servers if seen.id == id), None)
    if seen is None:
        return []
    return [(label, escape(text)) for label, text in _details(sight, seen) if text]


def _details(sight: Sight, seen: Seen) -> Iterator[tuple[str, str]]:
    fields = seen.fields

    def plain(key: str) -> str:
        value = fields.get(key)
        return "" if value is None else f"{value:,}" if isinstance(value, int) and key != "term" else str(value)

    yield "address", seen.address
    if seen.silent_s is not None:
        why = f": {seen.problem}" if seen.problem else ""
        yield "no answer", f"for {span(seen.silent_s)}{why}{'; what it said last:' if seen.told else ''}"
    yield "role", role(sight, seen)
    yield "status", plain("status")
    yield "term", " ".join(filter(None, [plain("term"), _follows(fields)]))
    yield "log", f"{log_text(fields)}  {extent(sight, fields)}"
    yield "entries", f"last {plain('last_id') or '?'}, guaranteed {plain('guaranteed_id') or '?'}, on every member" \
                     f" {plain('fully_replicated_id') or '?'}" if "last_id" in fields else ""
    yield "lag", _lag(sight, seen)
    yield "commit", ms(fields.get("commit_ms"))
    if "fsync_p99_ms" in fields:
        yield "fsync", ", ".join(f"{name} {ms(fields[f'fsync_{key}_ms'])}" for name, key in
                                 (("p50", "p50"), ("p99", "p99"), ("slowest", "max"))) + " in five minutes"
    yield "data file", _size(fields.get("disk_bytes")) if "disk_bytes" in fields else ""
    if "disk_free_bytes" in fields:
        days = full_in(fields)
        full = f", full in {days}" if days != _NOTHING else ""
        yield "disk", f"{_size(fields['disk_free_bytes'])} of {_size(fields.get('disk_total_bytes'))} free{full}"
    yield "clients", plain("clients")
    yield "version", plain("version")
    for peer in fields.get("peers") or ():
        reached = f"round trip {ms(peer.get('round_trip_ms'))}" if peer.get("reachable") else peer.get("why", "?")
        yield f"to server {peer['id']}", str(reached)
    for key in ("waiting", "problems", "space", "damage", "divergence", "cleaning_waits"):
        for remark in fields.get(key) or ():
            yield key.partition("_")[0], str(remark)


def _follows(fields: Fields) -> str:
    leader = fields.get("leader")
    if fields.get("state") == "leader":
        return "(leads)"
    return f"(follows server {leader})" if leader else "(knows no leader)"


# -- events


def events(sight: Sight, count: int) -> list[tuple[str, str]]:
    """(time, text) of the newest events, at most ``count``, oldest first."""
    newest = sight.events[-count:] if sight.events and count > 0 else ()
    return [
        (rfc3339_ms(event.time_ms)[5:].replace("T", " "), escape(f"server {event.server} {story.phrase(event)}"))
        for event in newest
    ]


def numbers(sight: Sight) -> list[tuple[str, str]]:
    """(label, text) of the figures above the table, without the rate."""
    there: list[dict[str, Any]] = sight.there
    held = [member["last_lsn"] for member in there if "last_lsn" in member]
    everyone = len(held) == len(sight.members) and held
    sizes = [member["disk_bytes"] for member in there if "disk_bytes" in member]
    return [
        ("last LSN", f"{max(held):,}" if held else _NOTHING),
        ("on every member", f"{min(held):,}" if everyone else _NOTHING),
        ("clients", f"{max(0, sum(member.get('clients', 0) - 1 for member in there)):,}"),  # this one is at each
        ("log on disk", size_text(max(sizes)) if sizes else _NOTHING),
    ]


class Page(Enum):
    """Part of the view that fills the screen."""

    MEMBERS = "members"
    SERVER = "server"
    EVENTS = "events"
    HELP = "help"


class View(NamedTuple):
    """State of the view; ``server``: the id of the one shown on its page."""

    page: Page = Page.MEMBERS
    server: int = 0
    paused: bool = False


KEYS = (
    ("q", "quit"), ("p", "pause, and go on"), ("1-9", "one server in full, by its id"),
    ("e", "the newest events of all servers"), ("?", "this help"), ("Esc", "back to all members"),
)


def press(view: View, keys: bytes) -> View | None:
    """The view after these keys, as they were read at once; None: quit. Unknown keys do nothing."""
    for key in _SEQUENCE.sub(b"", keys).decode("ascii", "replace"):
        if key == "q":
            return None
        if key == "\x1b":
            view = View(paused=view.paused)
        elif key == "p":
            view = view._replace(paused=not view.paused)
        elif key == "e":
            view = _turn(view, Page.EVENTS)
        elif key == "?":
            view = _turn(view, Page.HELP)
        elif key in "123456789":
            view = _turn(view, Page.SERVER, int(key))
    return view


def _turn(view: View, page: Page, server: int = 0) -> View:
    """Turn to a page, or back to the members if it is shown already."""
    if (view.page, view.server) == (page, server):
        page, server = Page.MEMBERS, 0
    return view._replace(page=page, server=server)
