"""A cluster's standing, made of what its servers say: who belongs to it, who leads, whether appends work.

Laws:

* A server's answer is not trusted: a key whose value is not of the kind expected counts as not given.
* Whether appends work is what the leader says. Without a leader they do not.
* Servers that were removed or replaced, and those that are only being added, count nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from alpo.core.settings import size_text as size

#: A server's answer with the keys of `alpo status --json`; only ``id``, ``address``, ``reachable`` and ``problem`` of
#: one that does not answer.
Row: TypeAlias = Mapping[str, Any]

#: Lag of fewer seconds than this is not told: the servers are not asked at the very same moment.
LAG_TOLD_S = 2.0
#: Days from which on it is not told when a disk is full: today's rate says little of then.
FULL_TOLD_DAYS = 90
#: Longest text taken of an answer, most elements of a list in it, and the largest number.
_CHARS_MAX, _ELEMENTS_MAX, _NUMBER_MAX = 500, 100, 2**63
#: Standing of servers that belong to no cluster any more.
OUTSIDE = ("GONE", "RETIRED")


class Appends(NamedTuple):
    """The answer to whether appends work. ``work`` None: a leader is known that does not answer here. ``why``: a
    sentence for each cause that they do not work, or that no more may fail; ``may_fail``: the number of voters that may
    fail before they stand."""

    work: bool | None
    why: list[str]
    may_fail: int


# -- what servers say -----------------------------------------------------------------------------------


def _whole(value: object) -> int | None:
    return value if type(value) is int and abs(value) < _NUMBER_MAX else None


def _number(value: object) -> float | None:
    if type(value) is float:
        return value if math.isfinite(value) and abs(value) < _NUMBER_MAX else None
    return _whole(value)


def _text(value: object) -> str | None:
    return value[:_CHARS_MAX] if isinstance(value, str) and value else None


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _all(kind: Callable[[object], Any]) -> Callable[[object], list[Any] | None]:
    """Kind of a list whose elements are of this kind; others are left out."""
    def of(value: object) -> list[Any] | None:
        if not isinstance(value, list | tuple):
            return None
        return [known for each in value[:_ELEMENTS_MAX] if (known := kind(each)) is not None]

    return of


def _table(needs: str, **kinds: Callable[[object], Any]) -> Callable[[object], dict[str, Any] | None]:
    """Kind of a dict with these keys, of which ``needs`` must be there."""
    def of(value: object) -> dict[str, Any] | None:
        if not isinstance(value, Mapping):
            return None
        known = {key: made for key, kind in kinds.items() if (made := kind(value.get(key))) is not None}
        return known if needs in known else None

    return of


_KINDS: dict[str, Callable[[object], Any]] = {
    **dict.fromkeys((
        "id", "term", "leader", "last_id", "guaranteed_id", "fully_replicated_id", "first_lsn", "last_lsn", "commits",
        "cleaned_id", "cleanable_id", "clients", "fsync_samples", "disk_bytes", "disk_total_bytes", "disk_free_bytes",
        "time_ms", "mended", "mended_ms", "clocks_leapt_ms",
    ), _whole),
    **dict.fromkeys((
        "commit_ms", "fsync_p50_ms", "fsync_p99_ms", "fsync_max_ms", "clock_ahead_ms", "clock_error_ms",
        "disk_full_days", "growth_bytes_per_day", "write_under_way_ms", "read_under_way_ms", "log_ahead_ms",
        "certificate_ends_s", "age_s",
    ), _number),
    **dict.fromkeys((
        "address", "state", "status", "version", "cluster", "incarnation", "member_change", "room", "problem",
    ), _text),
    **dict.fromkeys((
        "waiting", "problems", "space", "damage", "divergence", "cleaning_waits",
    ), _all(_text)),
    "reachable": _truth,
    "timers_ms": _all(_number),
    "peers": _all(_table("id", id=_whole, reachable=_truth, why=_text, round_trip_ms=_number)),
    "members": _all(_table("id", id=_whole, address=_text, role=_text, priority=_whole)),
    "logs": _all(_table(
        "number", number=_whole, name=_text, state=_text, why=_text, leader=_whole, term=_whole, first_lsn=_whole,
        last_lsn=_whole, bytes=_whole, behind=_all(_whole),
    )),
    "appends": _table("work", work=_truth, why=_all(_text), may_fail=_whole),
    "strangers": _all(_table("why", remote=_text, why=_text, last_ms=_whole, times=_whole)),
    "twice": _all(_table("id", id=_whole, addresses=_all(_text), last_ms=_whole)),
}
_FSYNC = ("fsync_samples", "fsync_p50_ms", "fsync_p99_ms", "fsync_max_ms")


def sound(told: Row) -> dict[str, Any]:
    """The keys of a server's answer that are known here, with values of the kind expected."""
    found = {key: made for key, kind in _KINDS.items() if (made := kind(told.get(key))) is not None}
    if not all(key in found for key in _FSYNC):
        found = {key: value for key, value in found.items() if key not in _FSYNC}
    if "growth_bytes_per_day" in found:
        found["growth_bytes_per_day"] = round(found["growth_bytes_per_day"])
    return found


# -- who is who -----------------------------------------------------------------------------------------


def leader_of(rows: Sequence[Row]) -> Row | None:
    """The row of the server that answers and says that it leads; of several the one of the highest term."""
    leads = [row for row in rows if row.get("reachable") and row.get("state") == "leader"]
    return max(leads, key=_term, default=None)


def lag_of(row: Row, rows: Sequence[Row]) -> int | None:
    """Number of entries by which the row's guaranteed mark is behind the highest one; None if unknown."""
    own = row.get("guaranteed_id")
    marks = [one["guaranteed_id"] for one in rows if one.get("guaranteed_id") is not None]
    return None if own is None or not marks else max(marks) - int(own)


def _term(row: Row) -> int:
    return int(row.get("term") or 0)


class Cluster:
    """The rows of a cluster's servers, sorted by what they are.

    ``members``: voters and learners, ``there``: those of them that answer, ``outside``: servers that answer and are no
    members, ``voters``: ids, as the leader lists them, or whoever knows of the highest term.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        found = [sound(row) for row in rows]
        answer = [row for row in found if row.get("reachable")]
        inside = [row for row in answer if row.get("status") not in OUTSIDE]
        self.leader = leader_of(inside)
        self._teller = self.leader or max(inside or answer, key=_term, default={})
        listed = self._teller.get("members") or ()
        roles = {each["id"]: each.get("role") for each in listed if each.get("role") != "GONE"}
        outside = [
            id(row) for row in answer if row.get("status") in OUTSIDE or (roles and row.get("id") not in roles)
        ]
        self.members = [row for row in found if id(row) not in outside]
        self.outside = [row for row in found if id(row) in outside]
        self.there = [row for row in self.members if row.get("reachable")]
        voters = {id for id, role in roles.items() if role in (None, "VOTER")}
        self.voters: set[int | None] = voters or {row.get("id") for row in self.members}

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    @property
    def voters_there(self) -> int:
        return len(self.voters & {row.get("id") for row in self.there})

    @property
    def led_by(self) -> int | None:
        """The id of a leader that others name, and have a connection to, and that does not answer here; None if there
        is none."""
        named = None if self.leader is not None else self._teller.get("leader")
        if named not in {row.get("id") for row in self.members if not row.get("reachable")}:
            return None
        seen = [peer.get("reachable") for row in self.there for peer in row.get("peers") or () if peer["id"] == named]
        return named if any(seen) or not seen else None

    def appends(self) -> Appends:
        """The answer to whether appends work, by the leader; if it is of an older version, as far as the rows tell."""
        if self.leader is None:
            spare = max(0, self.voters_there - self.majority)
            if self.led_by is not None:
                return Appends(None, [f"server {self.led_by}, which leads, does not answer here"], spare)
            waits = [f": server {row.get('id')} {why}" for row in self.there for why in row.get("waiting") or ()]
            return Appends(False, ["nobody leads" + "".join(waits[:1])], 0)
        told = self.leader.get("appends")
        if told is not None:
            return Appends(told["work"], told.get("why", []), max(0, told.get("may_fail", 0)))
        return self.appends_by_rows()

    def appends_by_rows(self) -> Appends:
        """The answer to whether appends work, if it takes only voters that answer here and tell of enough space."""
        low = [f"server {row.get('id')}: {why}" for row in self.there if row.get("id") in self.voters
               for why in row.get("space") or ()]
        silent = [f"server {row.get('id')} does not answer" for row in self.members
                  if row.get("id") in self.voters and not row.get("reachable")]
        takes = sum(row.get("id") in self.voters and not row.get("space") for row in self.there)
        work = takes >= self.majority and not (self.leader or {}).get("space")
        return Appends(work, [*low, *silent], takes - self.majority if work else 0)

    def twins(self) -> list[tuple[int, str]]:
        """Members of which two processes run, each with a sentence; what several servers tell alike comes once."""
        told = [(each["id"], tuple(sorted(each.get("addresses", ())))) for row in self.there
                for each in row.get("twice") or ()]
        copied = "a disk or a directory was copied"
        return [
            (id, f"two processes have its identity{', at ' if at else ''}{' and '.join(at)}: {copied}")
            for id, at in dict.fromkeys(told)
        ]


class LogStanding(NamedTuple):
    """A log as its cluster's servers tell of it. ``state``: creating, ready, deleting or failed; ``leader``: None if
    none answers; ``behind``: ids of servers that lack it, or trail; ``why``: (server, reason) of each on which it has
    failed."""

    number: int
    name: str
    state: str
    leader: int | None
    first_lsn: int | None
    last_lsn: int | None
    bytes: int | None
    behind: list[int]
    why: list[tuple[int | None, str]]


def logs_of(rows: Sequence[Row]) -> list[LogStanding]:
    """The logs of a cluster, the first before the others; [] if no server tells of any."""
    there = [row for row in Cluster(rows).there if "logs" in row]
    told: dict[int, list[tuple[int | None, Row]]] = {}
    for row in there:
        for log in row["logs"]:
            told.setdefault(log["number"], []).append((row.get("id"), log))
    return [_log(number, told[number], [row.get("id") for row in there]) for number in sorted(told)]


def _log(number: int, told: Sequence[tuple[int | None, Row]], servers: Sequence[int | None]) -> LogStanding:
    states = {id: str(log.get("state")) for id, log in told}
    leads = [(id, log) for id, log in told if id is not None and log.get("leader") == id]
    leader, best = max(leads, key=lambda one: _term(one[1]), default=(None, {}))
    state = next((state for state in ("failed", "deleting", "ready") if state in states.values()), "creating")
    behind = {*best.get("behind", ())}
    if state != "deleting":  # else those that lack it are done
        behind |= {id for id in servers if id is not None and states.get(id) != "ready"}

    def known(key: str) -> int | None:
        values = [log[key] for _, log in ([(leader, best)] if leader else told) if key in log]
        return max(values, default=None)

    return LogStanding(
        number, next((str(log["name"]) for _, log in told if "name" in log), f"log {number}"), state, leader,
        known("first_lsn"), known("last_lsn"), known("bytes"), sorted(behind),
        [(id, str(log.get("why", "no reason given"))) for id, log in told if log.get("state") == "failed"],
    )


# -- in a sentence --------------------------------------------------------------------------------------


def sentence(rows: Sequence[Row]) -> str:
    """State of a cluster of which a server answers, in three sentences: who leads, whether appends work, who answers.
    """
    cluster = Cluster(rows)
    return f"{_leadership(cluster)} {_answering(cluster)}"


def _leadership(cluster: Cluster) -> str:
    leader, appends = cluster.leader, cluster.appends()
    if leader is not None:
        leads = f"Server {leader.get('id')} leads since term {leader.get('term', '?')}."
        return f"{leads} Appends work." if appends.work else f"{leads} {_standing(appends)}."
    if cluster.led_by is not None:
        newest = max(map(_term, cluster.there), default=0)
        return f"Server {cluster.led_by} leads since term {newest or '?'}, say the others, but does not answer here."
    why = appends.why[0].removeprefix("nobody leads: ")
    return "Nobody leads: nothing is appended." if why == "nobody leads" else f"Nobody leads: {why}."


def _standing(appends: Appends) -> str:
    return f"Appends stand: {', '.join(appends.why)}" if appends.why else "Appends stand"


def _answering(cluster: Cluster) -> str:
    members, there, appends = len(cluster.members), len(cluster.there), cluster.appends()
    if members == 1 == there:
        return "The only member answers."
    all_there = f"All {members} members answer" if members == there else f"{there} of {members} members answer"
    if cluster.leader is None:
        if cluster.voters_there < cluster.majority:
            return f"{all_there}; {cluster.majority} are needed."
        if any(row.get("waiting") for row in cluster.there):  # they have no vote yet
            return f"{all_there}."
        return f"{all_there}; {may_fail(cluster.voters_there - cluster.majority)}."
    return f"{all_there}; {may_fail(appends.may_fail)}." if appends.work else f"{all_there}."


def may_fail(spare: int) -> str:
    """Text on how many more voters may fail: ``one more may fail``."""
    return f"{'no other' if spare < 1 else 'one more' if spare == 1 else f'{spare} more'} may fail"


def growth(row: Row) -> str:
    """Text on how fast the log grows, and when the disk is full."""
    rate = row.get("growth_bytes_per_day")
    if rate is None:
        return "too early to say how fast the log grows"
    if rate <= 0:
        return "the log does not grow"
    days = full_in(row)
    return f"the log grows by {size(rate)} a day" + (f": full in {days}" if days != "-" else "")


def full_in(row: Row) -> str:
    """Days until the disk is full, as text; a dash if unknown, never, or so far off that it says nothing."""
    days = row.get("disk_full_days")
    if days is None or days >= FULL_TOLD_DAYS:
        return "-"
    return f"{days:.1f} days" if days < 10 else f"{days:.0f} days"


def lag_text(entries: int, late_s: float | None) -> str:
    """Text ``92,195 entries (31 s)``."""
    told = "1 entry" if entries == 1 else f"{entries:,} entries"
    return told + (f" ({span(late_s)})" if late_s is not None and late_s >= LAG_TOLD_S else "")


def span(seconds: float) -> str:
    """A span of time in words: ``12 s``, ``3 min``, ``3 h 12 min``, ``2 d 4 h``."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if minutes < 60:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{days} d {hours % 24} h"
