"""Sight of a cluster at one moment, and the sentence, the rows and the rates that are made of it. Pure arithmetic.

Laws:

* A server's answer is not trusted: a key whose value is not of the kind expected counts as not given.
* A server that does not answer keeps its row, with what it last said and since when it is silent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from alpo import standing
from alpo.client.operator.status import ServerEvent
from alpo.health import Finding, Verdict, examine, not_well, worst
from alpo.standing import lag_of, leader_of, sound, span

from ..commands.status import as_json as status_json
from ..output import rfc3339

Fields = Mapping[str, Any]

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
    def rows(self) -> list[dict[str, Any]]:
        """The rows by which the cluster is judged: all servers', those of no members included."""
        return [_row(seen, seen.fields) for seen in self.servers]

    @cached_property
    def leader(self) -> dict[str, Any] | None:
        """The member that leads, by its own account; of several the one of the highest term."""
        leader = leader_of(self.there)
        return None if leader is None else dict(leader)

    @cached_property
    def findings(self) -> list[Finding]:
        """The findings of `alpo.health` that are not well; the worst first."""
        if not any(seen.told or seen.problem for seen in self.servers):
            return []
        return not_well(examine(self.rows, late_s=self._late_s()))

    def _late_s(self) -> dict[int, float]:
        """Seconds by which members are behind, by id, as far as the marks tell."""
        late = {row["id"]: behind_s(row["guaranteed_id"], self.marks, self.now_s)
                for row in self.there if row.get("id") is not None and lag_of(row, self.there)}
        return {id: late_s for id, late_s in late.items() if late_s is not None}

    @property
    def verdict(self) -> Verdict:
        """The worst of all findings."""
        return worst(self.findings)

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


# -- the sentence


def sentence(sight: Sight) -> str:
    """State of the cluster in a sentence or three: who leads since which term, whether appends work, who answers."""
    if not sight.there:
        if not any(seen.problem for seen in sight.servers):
            return "Asking the servers."
        silent = min((seen.silent_s or 0.0 for seen in sight.servers), default=0.0)
        return f"No server answers{f' for {span(silent)}' if silent >= 1 else ''}: reconnecting."
    return standing.sentence(sight.rows)


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
        "appends": standing.Cluster(sight.rows).appends()._asdict(),
        "appends_per_s": None if per_s is None else round(per_s, 1),
        "findings": [{**finding._asdict(), "verdict": finding.verdict.value} for finding in sight.findings],
        **status_json(members),
    }
