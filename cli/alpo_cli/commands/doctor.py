"""`alpo doctor`: checks of a cluster, made of the servers' own reports (`alpo status --json`) and events.

Laws:

* A check says what was found and, unless all is well, what to do. Only dangers for the cluster are bad.
* What a server does not report (an older version, too few measurements) is no finding.
* A server that is only being added is not counted as a member. A member that is down is reported once, not by every
  server that misses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import alpo
from alpo.core.disk_space import size_text as size

from ..exits import Failed
from ..options import Target, with_target
from ..output import escape, print_json
from ..running import run
from ..story import handed_over, reigns
from .status import full_in

if TYPE_CHECKING:
    from alpo.client.operator.events import Events

#: Limits as shares of the election timeout: 99th percentile of fsyncs, round trips.
FSYNC_WARN, FSYNC_BAD, ROUND_TRIP_WARN = 0.25, 0.5, 0.25
CLOCKS_WARN_MS, CLOCKS_BAD_MS = 500, 30_000
FREE_WARN, FREE_BAD = 0.1, 0.03
DAYS_WARN, DAYS_BAD = 14, 2
#: Elections in the last hour that are worth a warning.
ELECTIONS_WARN = 3

Fields = Mapping[str, Any]


class Verdict(Enum):
    OK = "ok"
    WARN = "warn"
    BAD = "bad"


class Finding(NamedTuple):
    """Result of one check. ``server`` None: about the whole cluster. ``do``: what to do, "" if nothing."""

    check: str
    verdict: Verdict
    server: int | None
    says: str
    do: str = ""


def examine(members: Sequence[Fields], elections: int | None, handovers: int = 0) -> list[Finding]:
    """Run all checks. ``elections``: won within the last hour, None if unknown; ``handovers``: planned ones, not
    counted among those."""
    there = [member for member in members if member.get("reachable")]
    found = [*_members(members, there)]
    if there:
        for check in _CHECKS:
            found += check(there, members)
        found += _elections(elections, handovers)
    return found


def _members(members: Sequence[Fields], there: Sequence[Fields]) -> Iterator[Finding]:
    if all(member.get("id") is None for member in members):  # only addresses are known: those that were asked
        return (yield _nobody(members))
    for member in there:
        if member.get("member_change"):
            yield Finding(
                "members", Verdict.WARN, None, f"a change of the member list is under way, {member['member_change']}",
                "see to what it waits for; the leader gives it up by itself",
            )
    if len(there) == len(members):
        says = "the only one answers" if len(members) == 1 else f"all {len(members)} answer"
        yield Finding("members", Verdict.OK, None, says)
        return
    majority = len(members) // 2 + 1
    spare = len(there) - majority
    if spare < 0:
        state = f"{len(there)} of {len(members)} answer, {majority} are needed: nothing can be appended"
    else:
        more = f"appends go on, {spare} more may fail" if spare else "appends go on, no other may fail"
        state = f"{len(there)} of {len(members)} answer: {more}"
        if all(member.get("state") != "leader" for member in there):
            state = f"{len(there)} of {len(members)} answer, which is enough, but nobody leads just now"
    for member in members:
        if not member.get("reachable"):
            why = f" ({member['problem']})" if member.get("problem") else ""
            yield Finding(
                "members", Verdict.BAD, member.get("id"), f"{member.get('address')} does not answer{why}; {state}",
                "start alpod on that host; if it runs, look at its log and at the network between it and here",
            )


def _nobody(asked: Sequence[Fields]) -> Finding:
    tried = [f"{one['address']}{f' ({why})' if (why := one.get('problem')) else ''}" for one in asked]
    return Finding(
        "members", Verdict.BAD, None,
        f"no server answers at {', '.join(tried)}, so nothing is known of the cluster",
        "name servers that run with --servers or ALPO_SERVERS, any of them; for a trial on this machine: alpo cluster"
        " start --dir DIR",
    )


def _leader(there: Sequence[Fields], members: Sequence[Fields]) -> Iterator[Finding]:
    leads = [member for member in there if member.get("state") == "leader"]
    if leads:
        newest = max(leads, key=lambda member: int(member.get("term") or 0))
        yield Finding("leader", Verdict.OK, None, f"server {newest['id']} leads term {newest.get('term')}")
    else:
        yield Finding(
            "leader", Verdict.BAD, None, "nobody leads",
            "see the other findings; alpo explain tells what the servers tried; before a first start: alpo cluster"
            " init",
        )


def _voting(there: Sequence[Fields], members: Sequence[Fields]) -> Iterator[Finding]:
    """Check that every server that answers takes part."""
    out = [member for member in there if member.get("status") not in (None, "VOTING")]
    for member in out:
        why = "; ".join(map(str, member.get("waiting") or member.get("problems") or ()))
        yield Finding(
            "status", Verdict.BAD, member["id"], f"is {member['status']} and does not vote{f': {why}' if why else ''}",
            "\"Status\" on the page \"Running ALPO\" says for each what it waits for",
        )
    if not out:
        yield Finding("status", Verdict.OK, None, "all that answer vote")


def _connections(there: Sequence[Fields], members: Sequence[Fields]) -> Iterator[Finding]:
    """Check the connections of each server to each other."""
    up = {member.get("id") for member in members if member.get("reachable")}
    broken, slow, trips = 0, 0, []
    for member in there:
        for peer in member.get("peers") or ():
            if not peer.get("reachable") and peer.get("id") in up:
                broken += 1
                yield Finding(
                    "connections", Verdict.BAD, member["id"],
                    f"does not reach server {peer.get('id')}: {peer.get('why')}",
                    f"see whether host {member['id']} can connect to {_address(members, peer.get('id'))} (firewall,"
                    " routes, the address in the member list)",
                )
            trip_ms, timeout_ms = peer.get("round_trip_ms"), _timeout_ms(member)
            if trip_ms is not None and peer.get("reachable"):
                trips.append(trip_ms)
                if timeout_ms and trip_ms > ROUND_TRIP_WARN * timeout_ms:
                    slow += 1
                    yield Finding(
                        "connections", Verdict.WARN, member["id"],
                        f"to server {peer.get('id')} and back takes {trip_ms:.0f} ms, the election timeout is"
                        f" {timeout_ms} ms", "raise heartbeat_s and election_timeout_s on all servers alike",
                    )
    if not broken and not slow:
        took = f"; round trips of at most {max(trips):.1f} ms" if trips else ""
        yield Finding("connections", Verdict.OK, None, f"every server that answers reaches every other{took}")


def _fsync(there: Sequence[Fields], members: Sequence[Fields]) -> Iterator[Finding]:
    for member in there:
        p99_ms, timeout_ms = member.get("fsync_p99_ms"), _timeout_ms(member)
        if p99_ms is None or not timeout_ms:
            yield Finding("fsync", Verdict.OK, member["id"], "nothing was written in the last five minutes")
            continue
        bad, warn = p99_ms > FSYNC_BAD * timeout_ms, p99_ms > FSYNC_WARN * timeout_ms
        yield Finding(
            "fsync", Verdict.BAD if bad else Verdict.WARN if warn else Verdict.OK, member["id"],
            f"50 % of commits within {member.get('fsync_p50_ms'):.1f} ms, 99 % within {p99_ms:.1f} ms, the slowest"
            f" {member.get('fsync_max_ms'):.1f} ms ({member.get('fsync_samples')} in five minutes); election timeout"
            f" {timeout_ms} ms",
            "a leader whose disk is that slow loses its followers: find what else uses the disk, move the data to a"
            " faster one, or raise heartbeat_s and election_timeout_s on all servers alike" if warn else "",
        )


def _clocks(there: Sequence[Fields], members: Sequence[Fields]) -> Iterator[Finding]:
    told = [member for member in there if member.get("clock_ahead_ms") is not None]
    if len(told) < 2:
        return
    last, first = (pick(told, key=lambda m: m["clock_ahead_ms"]) for pick in (min, max))
    doubt_ms = last.get("clock_error_ms", 0) + first.get("clock_error_ms", 0)
    apart_ms = max(0.0, first["clock_ahead_ms"] - last["clock_ahead_ms"] - doubt_ms)
    verdict = (
        Verdict.BAD if apart_ms > CLOCKS_BAD_MS else Verdict.WARN if apart_ms > CLOCKS_WARN_MS else Verdict.OK
    )
    if verdict is Verdict.OK:
        most_ms = apart_ms + 2 * doubt_ms
        yield Finding("clocks", verdict, None, f"the members' clocks are at most {most_ms:.0f} ms apart")
        return
    yield Finding(
        "clocks", verdict, None,
        f"the clock of server {first['id']} is at least {apart_ms / 1000:.1f} s ahead of that of server {last['id']}",
        "let NTP or chrony set the clocks; nothing is lost by it, but times in the log, the end of sessions and"
        " max_age_s are judged by them",
    )


def _space(there: Sequence[Fields], members: Sequence[Fields]) -> Iterator[Finding]:
    for member in there:
        total, free, days = (member.get(key) for key in ("disk_total_bytes", "disk_free_bytes", "disk_full_days"))
        if not total or free is None:
            continue
        share = free / total
        low = member.get("space") or []  # the server itself says that it takes no appends
        bad = bool(low) or share < FREE_BAD or (days is not None and days < DAYS_BAD)
        warn = share < FREE_WARN or (days is not None and days < DAYS_WARN)
        yield Finding(
            "space", Verdict.BAD if bad else Verdict.WARN if warn else Verdict.OK, member["id"],
            "; ".join([*low, f"{size(free)} of {size(total)} free ({share:.0%})", growth(member)]),
            "let cleaning remove what nobody needs ([retention], alpo trim), free the disk of other things, or enlarge"
            " it" if bad or warn else "",
        )


def growth(member: Fields) -> str:
    """Text on how fast the log grows, and when the disk is full."""
    rate = member.get("growth_bytes_per_day")
    if rate is None:
        return "too early to say how fast the log grows"
    return f"the log grows by {size(rate)} a day: full in {full_in(member)}" if rate > 0 else "the log does not grow"


def _cleaning(there: Sequence[Fields], members: Sequence[Fields]) -> Iterator[Finding]:
    held = [(member, why) for member in there for why in member.get("cleaning_waits") or ()]
    for member, why in held:
        yield Finding(
            "cleaning", Verdict.WARN, member["id"], str(why),
            "bring back the server that is behind: until then the log grows on all of them",
        )
    if not held:
        yield Finding("cleaning", Verdict.OK, None, "nothing is held back")


def _copies(there: Sequence[Fields], members: Sequence[Fields]) -> Iterator[Finding]:
    """Check that the members' entries are sound and equal. Several servers' equal reports are shown once."""
    damaged = [(member, why) for member in there for why in member.get("damage") or ()]
    diverged = list(dict.fromkeys(str(why) for member in there for why in member.get("divergence") or ()))
    for member, why in damaged:
        yield Finding(
            "copies", Verdict.BAD, member["id"], str(why),
            "look at the disk (dmesg, smartctl); \"Running ALPO\", a damaged disk",
        )
    for why in diverged:
        yield Finding("copies", Verdict.BAD, None, why, "\"Running ALPO\", copies that differ")
    compared = [member for member in there if "divergence" in member]
    if compared and not damaged and not diverged:
        yield Finding("copies", Verdict.OK, None, "no entry is known to be damaged or to differ between servers")


def _versions(there: Sequence[Fields], members: Sequence[Fields]) -> Iterator[Finding]:
    yield from _alike(
        "versions", there, lambda member: member.get("version"), str,
        "finish the upgrade: the same version on all servers",
    )


def _timers(there: Sequence[Fields], members: Sequence[Fields]) -> Iterator[Finding]:
    yield from _alike(
        "timers", there, lambda member: tuple(member.get("timers_ms") or ()) or None,
        lambda timers: "/".join(map(str, timers)) + " ms (heartbeat, election timeout, stagger)",
        "make [timers] of the servers' configurations equal, and restart one after the other",
    )


def _alike(
    check: str, there: Sequence[Fields], value: Callable[[Fields], Any], show: Callable[[Any], str], do: str
) -> Iterator[Finding]:
    by_value: dict[Any, list[int]] = {}
    for member in there:
        if value(member) is not None:
            by_value.setdefault(value(member), []).append(member["id"])
    if len(by_value) > 1:
        groups = "; ".join(f"{show(one)} on {', '.join(map(str, ids))}" for one, ids in by_value.items())
        yield Finding(check, Verdict.WARN, None, f"they differ: {groups}", do)
    elif by_value:
        yield Finding(check, Verdict.OK, None, f"the same on all that answer: {show(next(iter(by_value)))}")


def _strangers(there: Sequence[Fields], members: Sequence[Fields]) -> Iterator[Finding]:
    """Report connections that were turned away: those of ``problems`` that are not about members."""
    ids = {member.get("id") for member in members}
    for member in there:
        dials = {peer.get("id") for peer in member.get("peers") or ()}  # including one that is being added
        known = tuple(f"server {id}: " for id in ids | dials)
        for problem in member.get("problems") or ():
            if not str(problem).startswith(known):
                yield Finding(
                    "strangers", Verdict.WARN, member["id"], f"turned away {problem}",
                    "see who that is: a server of another cluster, a client of another version, a port scanner",
                )


def _elections(elections: int | None, handovers: int) -> Iterator[Finding]:
    if elections is None:
        return
    often = elections >= ELECTIONS_WARN
    planned = f", beside {handovers} planned hand-over{'s' if handovers > 1 else ''}" if handovers else ""
    yield Finding(
        "elections", Verdict.WARN if often else Verdict.OK, None, f"{elections} won in the last hour{planned}",
        "alpo explain --since 1h tells why; most often it is a slow disk, a busy processor or a poor network" if often
        else "",
    )


_CHECKS = (
    _leader, _voting, _connections, _fsync, _clocks, _space, _cleaning, _copies, _versions, _timers, _strangers,
)


def _timeout_ms(member: Fields) -> int | None:
    timers = member.get("timers_ms")
    return timers[1] if isinstance(timers, list) and len(timers) > 1 else None


def _address(members: Sequence[Fields], id: Any) -> str:
    return next((str(member.get("address")) for member in members if member.get("id") == id), f"server {id}")


_HOUR = timedelta(hours=1)


async def ask(target: Target) -> tuple[list[dict[str, Any]], Events]:
    """The members' status and the events of the last hour. Raises the library's errors."""
    async with alpo.connect(",".join(target.servers), timeout_s=target.timeout_s) as log:
        return [dict(member) for member in await log.status()], await log.events(datetime.now(UTC) - _HOUR)


def as_json(finding: Finding) -> dict[str, Any]:
    """JSON keys of a finding."""
    return {**finding._asdict(), "verdict": finding.verdict.value, "do": finding.do or None}


def lines(finding: Finding) -> list[str]:
    """Lines of text for a finding."""
    shown = finding.verdict.value.upper() if finding.verdict is Verdict.OK else finding.verdict.value
    who = "" if finding.server is None else f"server {finding.server}: "
    told = [f"{shown:<5} {finding.check:<12} {who}{finding.says}"]
    return [*told, f"{'':<19}-> {finding.do}"] if finding.do else told


@with_target
def doctor(target: Target) -> None:
    """Check disks, clocks, connections, space, versions and timers, and say what to do.

    Exit code 1 when something is bad.

    Examples:

        alpo doctor

        alpo doctor --json | jq 'select(.verdict != "ok")'
    """
    members, events = run(ask, target)
    since_ms = (time.time() - _HOUR.total_seconds()) * 1000
    planned = handed_over(events.events)
    won = [reign.term in planned for reign in reigns(events.events) if reign.time_ms >= since_ms]
    found = examine(members, won.count(False), won.count(True))
    for finding in found:
        if target.json:
            print_json(as_json(finding))
        else:
            for line in lines(finding):
                print(escape(line))
    bad = [finding.check for finding in found if finding.verdict is Verdict.BAD]
    if bad:
        raise Failed(f"bad: {', '.join(dict.fromkeys(bad))}")
