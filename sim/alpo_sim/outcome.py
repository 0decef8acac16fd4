"""Outcome of a replay, and its comparison with the expectations of the scenario."""

from __future__ import annotations

from dataclasses import dataclass, field

from alpo.core.ranks import State

from .host import Host
from .scenario import Expect, Line, Scenario
from .stage import Stage


@dataclass(slots=True)
class Outcome:
    """Outcome of a replay. ``invariant``: the check that broke, "" if none did; ``at``: the line, from 0, at which the
    replay ended.

    ``problem``: why line ``at`` was impossible, in a strict replay. ``done``: the lines as they happened; deliveries
    are `Seen`, or `Arrive` if the replay was made with ``patterns``. ``guaranteed``: number of entries guaranteed.
    """

    invariant: str = ""
    detail: str = ""
    at: int = -1
    problem: str = ""
    steps: int = 0
    done: list[Line] = field(default_factory=list)
    stage: Stage | None = None
    guaranteed: int = 0


def unmet(scenario: Scenario, outcome: Outcome) -> list[str]:
    """A sentence for each expectation of the scenario that is not met; [] if all are."""
    if outcome.problem:
        return [f"it is impossible: {outcome.problem}"]
    wrong = []
    if outcome.invariant and not any(e.what == "broken" for e in scenario.expects):
        wrong.append(f"{outcome.invariant} broke: {outcome.detail}")
    for expect in scenario.expects:
        said = _unmet(expect, outcome)
        if said:
            wrong.append(said)
    return wrong


def _unmet(x: Expect, outcome: Outcome) -> str:
    assert outcome.stage is not None
    replicas = {h.id: h.replica for h in outcome.stage.hosts.values() if h.replica is not None}
    if x.what == "broken":
        if not outcome.invariant:
            return f"every check held; {x.invariant!r} was to break"
        other = f"{outcome.invariant} broke, not {x.invariant}: {outcome.detail}"
        return "" if outcome.invariant == x.invariant else other
    if x.what == "guaranteed":
        return "" if outcome.guaranteed == x.number else f"{outcome.guaranteed} entries are guaranteed, not {x.number}"
    if x.what == "logs equal":
        logs = {h: _log(outcome.stage.hosts[h]) for h in replicas}
        first = next(iter(logs.values()), [])
        return "" if all(log == first for log in logs.values()) else "the logs differ: " + _lasts(logs)
    if x.what == "ok":
        return ""
    replica = replicas.get(x.server)
    if replica is None:
        return f"server {x.server} is down"
    if x.what == "leader":
        right = replica.state is State.LEADER and replica.term == x.number
    elif x.what == "passive":
        right = replica.state is State.PASSIVE
    else:
        right = (replica.guaranteed_id if x.what == "knows" else replica.log.last_id) == x.number
    return "" if right else (
        f"server {x.server} is {replica.state.value} in term {replica.term}, its log ends at {replica.log.last_id}, "
        f"guaranteed up to {replica.guaranteed_id}"
    )


def _log(host: Host) -> list[int]:
    """The checksums of all entries of a server's log, on disk or not."""
    replica = host.running
    stored = host.store.read_entries(1, replica.log.stable_id, 1 << 40)
    later = [replica.log.entry(id) for id in range(replica.log.stable_id + 1, replica.log.last_id + 1)]
    return [entry.check for entry in [*stored, *later] if entry is not None]


def _lasts(logs: dict[int, list[int]]) -> str:
    return ", ".join(f"server {id} has {len(log)} entries" for id, log in logs.items())
