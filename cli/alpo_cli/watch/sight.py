"""Sight of a cluster at one moment, and the sentence, the rows and the rates that are made of it. Pure arithmetic.

Laws:

* A server's answer is not trusted: a key whose value is not of the kind expected counts as not given.
* A server that does not answer keeps its row, with what it last said and since when it is silent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from alpo.client.operator.events import ServerEvent

from ..commands.doctor import Finding, Verdict, examine
from ..commands.status import as_json as status_json
from ..commands.status import lag
from ..output import counted, rfc3339

Fields = Mapping[str, Any]

#: Longest text taken of an answer, most elements of a list in it, and the largest number.
_CHARS_MAX, _ELEMENTS_MAX, _NUMBER_MAX = 500, 100, 2**63
#: Entries, and seconds, by which a member may be behind before that is worth a warning.
LAG_WARN, LAG_WARN_S = 10_000, 10.0
#: Lag of fewer seconds than this is not told: the servers are not asked at the very same moment.
LAG_TOLD_S = 2.0
_WORST_FIRST = (Verdict.BAD, Verdict.WARN)


# -- what servers say


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
    ), _whole),
    **dict.fromkeys((
        "commit_ms", "fsync_p50_ms", "fsync_p99_ms", "fsync_max_ms", "clock_ahead_ms", "clock_error_ms",
        "disk_full_days", "growth_bytes_per_day",
    ), _number),
    **dict.fromkeys((
        "address", "state", "status", "version", "cluster", "incarnation", "member_change", "room",
    ), _text),
    **dict.fromkeys((
        "waiting", "problems", "space", "damage", "divergence", "cleaning_waits",
    ), _all(_text)),
    "timers_ms": _all(_number),
    "peers": _all(_table("id", id=_whole, reachable=_truth, why=_text, round_trip_ms=_number)),
    "members": _all(_table("id", id=_whole, address=_text, role=_text, priority=_whole)),
}
_FSYNC = ("fsync_samples", "fsync_p50_ms", "fsync_p99_ms", "fsync_max_ms")


def sound(told: Fields) -> dict[str, Any]:
    """The keys of a server's answer that are known here, with values of the kind expected."""
    found = {key: made for key, kind in _KINDS.items() if (made := kind(told.get(key))) is not None}
    if not all(key in found for key in _FSYNC):
        found = {key: value for key, value in found.items() if key not in _FSYNC}
    if "growth_bytes_per_day" in found:
        found["growth_bytes_per_day"] = round(found["growth_bytes_per_day"])
    return found


# -- one moment


@dataclass(frozen=True)
class Seen:
    """One server as last seen.

    ``told``: its last answer as it came, {} if there was none; ``silent_s``: seconds since it answered, or since it was
    first asked, None while it answers; ``problem``: the reason why it does not; ``member``: False for a server at an
    address that the user gave, which is no member.
    """

    id: int | None
    address: str
    told: Fields
    silent_s: float | None
    problem: str = ""
    member: bool = True

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The last answer, as far as it is sound."""
        found = sound(self.told)
        return {**found, "id": self.id, "address": self.address}

    @property
    def name(self) -> str:
        """Name for people: ``server 2``, or the address while its id is not known."""
        return self.address if self.id is None else f"server {self.id}"


class Mark(NamedTuple):
    """The highest LSN and the highest guaranteed entry that any server told, by a monotonic clock."""

    at_s: float
    last_lsn: int
    guaranteed_id: int


@dataclass(frozen=True)
class Sight:
    """A cluster at one moment. ``now_s``: monotonic; ``marks``: one a round, oldest first; ``events``: the newest,
    None if they were not asked for; ``no_events``: (server, why) of those that did not tell theirs."""

    at: datetime
    now_s: float
    servers: Sequence[Seen]
    marks: Sequence[Mark] = ()
    events: Sequence[ServerEvent] | None = None
    no_events: Sequence[tuple[str, str]] = field(default=())

    @cached_property
    def members(self) -> list[dict[str, Any]]:
        """The members as `alpo status` shows them, as far as their answers are sound."""
        return [_row(seen, seen.fields) for seen in self.servers if seen.member]

    @cached_property
    def there(self) -> list[dict[str, Any]]:
        """The members that answer."""
        return [member for member in self.members if member["reachable"]]

    @cached_property
    def leader(self) -> dict[str, Any] | None:
        """The member that leads, by its own account; of several the one of the highest term."""
        leads = [member for member in self.there if member.get("state") == "leader"]
        return max(leads, key=lambda member: int(member.get("term", 0)), default=None)

    @cached_property
    def findings(self) -> list[Finding]:
        """The findings of `alpo doctor` that are not well, and members that are behind; the worst first."""
        if not any(seen.told or seen.problem for seen in self.servers):
            return []
        found = [*examine(self.members, None), *_behind(self)]
        return [finding for verdict in _WORST_FIRST for finding in found if finding.verdict is verdict]

    @property
    def verdict(self) -> Verdict:
        """The worst of all findings."""
        return self.findings[0].verdict if self.findings else Verdict.OK

    @property
    def cluster(self) -> str | None:
        """The cluster's id."""
        return next((member["cluster"] for member in self.members if member.get("cluster")), None)


def _row(seen: Seen, answer: Fields) -> dict[str, Any]:
    fixed = {"id": seen.id, "address": seen.address, "reachable": seen.silent_s is None}
    if seen.silent_s is None:
        return {**answer, **fixed}
    return {**fixed, "problem": seen.problem} if seen.problem else fixed


# -- rates and lag


def rate(marks: Sequence[Mark]) -> float | None:
    """Payloads a second between the last two marks; None if there are no two, or the log began anew."""
    if len(marks) < 2:
        return None
    before, now = marks[-2:]
    grown, took_s = now.last_lsn - before.last_lsn, now.at_s - before.at_s
    return None if grown < 0 or took_s <= 0 else grown / took_s


def rates(marks: Sequence[Mark], now_s: float, seconds: int) -> list[float | None]:
    """Payloads a second of each of the last ``seconds``, oldest first; None where nothing is known."""
    found: list[float | None] = [None] * seconds
    for before, now in pairwise(marks):
        told = rate((before, now))
        for at in range(max(0, round(now_s - now.at_s)), min(seconds, round(now_s - before.at_s))):
            found[seconds - 1 - at] = told
    return found


def behind_s(own_id: int, marks: Sequence[Mark], now_s: float) -> float | None:
    """Seconds since another member's log was as long as this one's is now; None if it still is no longer."""
    return next((now_s - mark.at_s for mark in marks if mark.guaranteed_id > own_id), None)


def _behind(sight: Sight) -> Iterator[Finding]:
    for member in sight.there:
        entries = lag(member, sight.there)
        late_s = behind_s(member["guaranteed_id"], sight.marks, sight.now_s) if entries else None
        if entries and (entries > LAG_WARN or (late_s or 0) > LAG_WARN_S):
            yield Finding(
                "lag", Verdict.WARN, member["id"], f"is {lag_text(entries, late_s)} behind",
                "see whether it catches up; if not, look at its disk and its network: alpo doctor",
            )


def lag_text(entries: int, late_s: float | None) -> str:
    """Text ``92,195 entries (31 s)``."""
    return counted(entries, "entry") + (f" ({span(late_s)})" if late_s is not None and late_s >= LAG_TOLD_S else "")


def span(seconds: float) -> str:
    """A span of time in words: ``12 s``, ``3 min``, ``3 h 12 min``, ``2 d 4 h``."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if minutes < 60:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 24 else f"{days} d {hours % 24} h"


# -- the sentence


def sentence(sight: Sight) -> str:
    """State of the cluster in a sentence or three: who leads since which term, whether appends work, who answers."""
    if not sight.there:
        if not any(seen.problem for seen in sight.servers):
            return "Asking the servers."
        silent = min((seen.silent_s or 0.0 for seen in sight.servers), default=0.0)
        return f"No server answers{f' for {span(silent)}' if silent >= 1 else ''}: reconnecting."
    return " ".join([_leadership(sight), _answering(sight)])


def _leadership(sight: Sight) -> str:
    leader = sight.leader
    if leader is not None:
        leads = f"Server {leader['id']} leads since term {leader.get('term', '?')}."
        space = leader.get("space")
        return f"{leads} Appends are refused: {space[0]}." if space else f"{leads} Appends work."
    newest = max(sight.there, key=lambda member: int(member.get("term", 0)))
    silent = {member["id"] for member in sight.members} - {member["id"] for member in sight.there}
    if newest.get("leader") in silent:
        term = newest.get("term", "?")
        return f"Server {newest['leader']} leads since term {term}, say the others, but does not answer here."
    waits = next((member["waiting"][0] for member in sight.there if member.get("waiting")), None)
    return f"Nobody leads: {waits}." if waits else "Nobody leads: nothing is appended."


def _answering(sight: Sight) -> str:
    members, there = len(sight.members), len(sight.there)
    if members == 1:
        return "The only member answers."
    all_there = f"All {members} members answer" if members == there else f"{there} of {members} members answer"
    voters = _voters(sight)
    spare = len(voters & {member["id"] for member in sight.there}) - (len(voters) // 2 + 1)
    if spare < 0:
        return f"{all_there}; {len(voters) // 2 + 1} are needed."
    return f"{all_there}; {'no other' if not spare else 'one more' if spare == 1 else f'{spare} more'} may fail."


def _voters(sight: Sight) -> set[int | None]:
    """Ids of the members that vote, as the leader lists them, or whoever knows of the highest term."""
    teller = sight.leader or max(sight.there, key=lambda member: int(member.get("term", 0)))
    listed = {member["id"] for member in teller.get("members") or () if member.get("role") in (None, "VOTER")}
    return listed or {member["id"] for member in sight.members}


def says(finding: Finding) -> str:
    """Text of a finding, with the server that it is about."""
    told = f"{finding.check}: {finding.says}" if finding.server is None else f"server {finding.server}: {finding.says}"
    return f"{told} -> {finding.do}" if finding.do else told


# -- for scripts


def line(sight: Sight) -> str:
    """One line for people, where there is no terminal to draw on."""
    per_s = rate(sight.marks)
    told = [sentence(sight)]
    if sight.there and sight.marks:
        pace = "" if per_s is None else f", {per_s:,.0f} appends a second"
        told.append(f"Last LSN {sight.marks[-1].last_lsn:,}{pace}.")
    told += [f"{says(sight.findings[0])}."] if sight.findings else []
    return f"{rfc3339(sight.at)}  {sight.verdict.value:<4}  {' '.join(told)}"


def _plain(value: Any) -> Any:
    """The value as far as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)


def as_json(sight: Sight) -> dict[str, Any]:
    """JSON of a moment: the state, then all members as `alpo status` shows them."""
    leader, per_s = sight.leader, rate(sight.marks)
    members = [_row(seen, _plain(seen.told)) | {"silent_s": seen.silent_s and round(seen.silent_s, 1)}
               for seen in sight.servers]
    return {
        "time": rfc3339(sight.at), "verdict": sight.verdict.value, "says": sentence(sight),
        "leader": leader and leader["id"], "term": leader and leader.get("term"),
        "appends_per_s": None if per_s is None else round(per_s, 1),
        "findings": [{**finding._asdict(), "verdict": finding.verdict.value} for finding in sight.findings],
        **status_json(members),
    }
