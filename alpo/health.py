"""The one judge of a cluster's health: what is wrong with it, by what its servers say (`alpo.standing`).

`alpo doctor`, `alpo watch` and the page judge by this module alone, and the alerts of `config/alpo-rules.yml` have its
limits.

Laws:

* All is judged from rows: the servers' own answers with the keys of `alpo status --json`. The module asks nobody, and
  has no clock.
* What a server does not report (an older version, too few measurements) is no finding.
* A finding says what was found and, unless all is well, what to do. Only dangers for the cluster are bad.
* A member that is down is reported once, not by every server that misses it. Servers that are no members are told of,
  and are no danger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple

from alpo.core.members import CAUGHT_UP_ENTRIES
from alpo.core.settings import size_text as size

from .standing import OUTSIDE, Cluster, Row, growth, lag_of, lag_text, logs_of, may_fail, span

#: Limits as shares of the election timeout: 99th percentile of fsyncs, round trips, the oldest write under way.
FSYNC_WARN, FSYNC_BAD, ROUND_TRIP_WARN, WRITE_WARN, WRITE_BAD = 0.25, 0.5, 0.25, 0.25, 1.0
#: Milliseconds for which the oldest read has been under way.
READ_WARN_MS, READ_BAD_MS = 1_000, 2_000
CLOCKS_WARN_MS, CLOCKS_BAD_MS = 500, 30_000
#: Milliseconds by which the log's time may be ahead of the clocks of most members.
LOG_AHEAD_WARN_MS, LOG_AHEAD_BAD_MS = 10_000, 3_600_000
#: Milliseconds for which a disk whose entries were mended is told.
MENDED_TOLD_MS = 86_400_000
#: Parts of the disk that are free, and days until it is full.
FREE_WARN, FREE_BAD = 0.1, 0.03
DAYS_WARN, DAYS_BAD = 14, 2
#: Days until a server's certificate ends.
CERTIFICATE_WARN_DAYS = 14
#: Entries, and seconds, by which a member may be behind.
LAG_WARN, LAG_WARN_S = CAUGHT_UP_ENTRIES, 10.0
#: Elections in the last hour that are worth a warning.
ELECTIONS_WARN = 3


class Verdict(Enum):
    OK = "ok"
    WARN = "warn"
    BAD = "bad"


_WORST_FIRST = (Verdict.BAD, Verdict.WARN)


class Finding(NamedTuple):
    """Result of one check. ``check`` and ``server``: its subject, None for the whole cluster; ``says``: the sentence;
    ``do``: the remedy, "" if nothing is to be done; ``log``: the log's name, if it is about another than the first."""

    check: str
    verdict: Verdict
    server: int | None
    says: str
    do: str = ""
    log: str | None = None


def worst(findings: Sequence[Finding]) -> Verdict:
    """The worst of all verdicts."""
    return next((each for each in _WORST_FIRST if any(found.verdict is each for found in findings)), Verdict.OK)


def not_well(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that are not well, the worst first."""
    return [found for verdict in _WORST_FIRST for found in findings if found.verdict is verdict]


def examine(
    rows: Sequence[Row], elections: int | None = None, handovers: int = 0, late_s: Mapping[int, float] | None = None
) -> list[Finding]:
    """Run all checks over the servers' rows.

    ``elections``: won within the last hour, None if unknown; ``handovers``: planned ones, not counted among those.
    ``late_s``: seconds by which servers are behind, by id, as far as that is known.
    """
    cluster = Cluster(rows)
    found = [*_members(cluster)]
    if cluster.there:
        for check in _CHECKS:
            found += check(cluster)
        found += _lag(cluster, late_s or {})
    found += _outside(cluster)
    if cluster.there:
        found += _elections(elections, handovers)
    return found


def _members(cluster: Cluster) -> Iterator[Finding]:
    members, there = cluster.members, cluster.there
    if all(row.get("id") is None for row in members):  # no server has answered: rows are addresses that were asked
        if members:
            yield _nobody(members)
        return
    for row in there:
        if row.get("member_change"):
            yield Finding(
                "members", Verdict.WARN, None, f"a change of the member list is under way, {row['member_change']}",
                "see to what it waits for; the leader gives it up by itself",
            )
    if len(there) == len(members):
        says = "the only one answers" if len(members) == 1 else f"all {len(members)} answer"
        yield Finding("members", Verdict.OK, None, says)
        return
    for row in members:
        if not row.get("reachable"):
            why = "; ".join(filter(None, [row.get("problem"), _since(row)]))
            yield Finding(
                "members", Verdict.BAD, row.get("id"),
                f"{row.get('address')} does not answer{f' ({why})' if why else ''}; {_few(cluster)}",
                "start alpod on that host; if it runs, look at its log and at the network between it and here",
            )


def _since(row: Row) -> str:
    return f"last heard {span(row['age_s'])} ago" if row.get("age_s") is not None else ""


def _few(cluster: Cluster) -> str:
    """Text on what the members that answer can do, where not all answer."""
    told, appends = f"{len(cluster.there)} of {len(cluster.members)} answer", cluster.appends()
    if appends.work:
        return f"{told}: appends go on, {may_fail(appends.may_fail)}"
    if cluster.voters_there < cluster.majority:
        return f"{told}, {cluster.majority} are needed: nothing can be appended"
    if cluster.leader is not None:
        return f"{told}, and appends stand"
    who = "nobody leads just now" if cluster.led_by is None else "the leader does not answer here"
    return f"{told}, which is enough, but {who}"


def _nobody(asked: Sequence[Row]) -> Finding:
    tried = [f"{one.get('address')}{f' ({why})' if (why := one.get('problem')) else ''}" for one in asked]
    return Finding(
        "members", Verdict.BAD, None,
        f"no server answers at {', '.join(tried)}, so nothing is known of the cluster",
        "name servers that run with --servers or ALPO_SERVERS, any of them; for a trial on this machine: alpo cluster"
        " start --dir DIR",
    )


def _outside(cluster: Cluster) -> Iterator[Finding]:
    """Tell of servers that answer and are no members: they are no danger."""
    for row in cluster.outside:
        why = "; ".join(row.get("waiting") or ())
        gone = row.get("status") in OUTSIDE
        yield Finding(
            "outside", Verdict.OK, row.get("id"),
            f"{row.get('address')} answers and is no member{f': {why}' if why else ''}",
            "stop it; its directory is of no use" if gone and not why else "",
        )


def _leader(cluster: Cluster) -> Iterator[Finding]:
    leader = cluster.leader
    if leader is not None:
        yield Finding("leader", Verdict.OK, None, f"server {leader.get('id')} leads term {leader.get('term')}")
    elif cluster.led_by is not None:
        yield Finding(
            "leader", Verdict.BAD, None, f"server {cluster.led_by} leads, say the others, but does not answer here",
            "look at the network between it and here",
        )
    else:
        yield Finding(
            "leader", Verdict.BAD, None, "nobody leads",
            "see the other findings; alpo explain tells what the servers tried; before a first start: alpo cluster"
            " init",
        )


def _appends(cluster: Cluster) -> Iterator[Finding]:
    work, why, spare = cluster.appends()
    causes = f": {', '.join(why)}" if why else ""
    if work is None:
        return (yield Finding("appends", Verdict.WARN, None, f"nobody here can tell{causes}", "see the other findings"))
    if not work:
        return (yield Finding(
            "appends", Verdict.BAD, None, f"they stand{causes}",
            "give space to the servers that lack it, start those that do not answer, and look at the disk and the"
            " network of those that confirm nothing: appends go on by themselves",
        ))
    if len(cluster.voters) == 1:
        return (yield Finding("appends", Verdict.OK, None, "they work"))
    verdict, do = Verdict.OK, ""
    # Warn of what the rows do not explain: other findings report the rest. Two voters never bear a failure.
    if spare < 1 and len(cluster.voters) > 2 and cluster.appends_by_rows().may_fail:
        verdict, do = Verdict.WARN, "see what these servers lack before another one fails"
    yield Finding("appends", verdict, None, f"they work, {may_fail(spare)}{causes}", do)


def _voting(cluster: Cluster) -> Iterator[Finding]:
    """Check that every member that answers takes part."""
    out = [row for row in cluster.there if row.get("status") not in (None, "VOTING")]
    for row in out:
        why = "; ".join(row.get("waiting") or row.get("problems") or ())
        yield Finding(
            "status", Verdict.BAD, row.get("id"),
            f"is {row['status']} and does not vote{f': {why}' if why else ''}",
            "docs/operations.md#status says for each what it waits for",
        )
    if not out:
        yield Finding("status", Verdict.OK, None, "all that answer vote")


def _connections(cluster: Cluster) -> Iterator[Finding]:
    """Check the connections of each member to each other."""
    up = {row.get("id"): str(row.get("address")) for row in cluster.there}
    broken, slow, trips = 0, 0, []
    for row in cluster.there:
        for peer in row.get("peers") or ():
            if not peer.get("reachable") and peer["id"] in up:
                broken += 1
                yield Finding(
                    "connections", Verdict.BAD, row.get("id"), f"does not reach server {peer['id']}: {peer.get('why')}",
                    f"see whether host {row.get('id')} can connect to {up[peer['id']]} (firewall, routes, the address"
                    " in the member list)",
                )
            trip_ms, timeout_ms = peer.get("round_trip_ms"), _timeout_ms(row)
            if trip_ms is not None and peer.get("reachable"):
                trips.append(trip_ms)
                if timeout_ms and trip_ms > ROUND_TRIP_WARN * timeout_ms:
                    slow += 1
                    yield Finding(
                        "connections", Verdict.WARN, row.get("id"),
                        f"to server {peer['id']} and back takes {trip_ms:.0f} ms, the election timeout is"
                        f" {timeout_ms:g} ms", "raise heartbeat_s and election_timeout_s on all servers alike",
                    )
    if not broken and not slow:
        took = f"; round trips of at most {max(trips):.1f} ms" if trips else ""
        yield Finding("connections", Verdict.OK, None, f"every server that answers reaches every other{took}")


HANGS_PAGE = "docs/operations.md#a-disk-that-hangs"
_FASTER = (
    "find what else uses the disk, move the data to a faster one, or raise heartbeat_s and election_timeout_s on all"
    " servers alike"
)


def _fsync(cluster: Cluster) -> Iterator[Finding]:
    for row in cluster.there:
        p99_ms, timeout_ms = row.get("fsync_p99_ms"), _timeout_ms(row)
        if p99_ms is None or not timeout_ms:
            yield Finding("fsync", Verdict.OK, row.get("id"), "nothing was written in the last five minutes")
            continue
        bad, warn = p99_ms > FSYNC_BAD * timeout_ms, p99_ms > FSYNC_WARN * timeout_ms
        yield Finding(
            "fsync", Verdict.BAD if bad else Verdict.WARN if warn else Verdict.OK, row.get("id"),
            f"50 % of commits within {row['fsync_p50_ms']:.1f} ms, 99 % within {p99_ms:.1f} ms, the slowest"
            f" {row['fsync_max_ms']:.1f} ms ({row['fsync_samples']} in five minutes); election timeout"
            f" {timeout_ms:g} ms",
            f"a leader whose disk is that slow loses its followers: {_FASTER}" if warn else "",
        )


def _write(cluster: Cluster) -> Iterator[Finding]:
    """Check that no disk hangs now: what is on its way for long is in no percentile yet."""
    for row in cluster.there:
        timeout_ms = _timeout_ms(row)
        if not timeout_ms:
            continue
        limits = {
            "write": (WRITE_WARN * timeout_ms, WRITE_BAD * timeout_ms, f"; election timeout {timeout_ms:g} ms"),
            "read": (READ_WARN_MS, READ_BAD_MS, ""),
        }
        for what, (warn_ms, bad_ms, beside) in limits.items():
            age_ms = row.get(f"{what}_under_way_ms") or 0
            if age_ms <= warn_ms:
                continue
            hangs = age_ms > bad_ms
            yield Finding(
                "disk", Verdict.BAD if hangs else Verdict.WARN, row.get("id"),
                f"its disk {'hangs' if hangs else 'is slow'}: a {what} is under way for {age_ms:,.0f} ms{beside}",
                f"look at the disk (dmesg, iostat): {_FASTER if what == 'write' else HANGS_PAGE}",
            )


def _clocks(cluster: Cluster) -> Iterator[Finding]:
    told = [row for row in cluster.there if row.get("clock_ahead_ms") is not None]
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
        f"the clock of server {first.get('id')} is at least {apart_ms / 1000:.1f} s ahead of that of server"
        f" {last.get('id')}",
        "let NTP or chrony set the clocks; nothing is lost by it, but times in the log, the end of sessions and"
        " max_age_s are judged by them",
    )


def _log_time(cluster: Cluster) -> Iterator[Finding]:
    """Check that the log's time is not ahead of the members' clocks, because they were, together; and that the leader
    believes them."""
    leapt_ms = max((row.get("clocks_leapt_ms") or 0 for row in cluster.there), default=0)
    if leapt_ms:
        yield Finding(
            "log time", Verdict.BAD, None,
            f"the members' clocks have leapt ahead by {span(leapt_ms / 1000)} together, and are not believed",
            "set them right; if they are right: alpo clock accept (docs/operations.md#the-logs-clock)",
        )
    told = [row for row in cluster.there if row.get("log_ahead_ms") is not None]
    if not told:
        return
    # the median: one clock that is behind is the finding of `_clocks`
    ahead_ms = sorted(row["log_ahead_ms"] for row in told)[(len(told) - 1) // 2]
    if ahead_ms > LOG_AHEAD_WARN_MS:
        whose = "the members' clocks" if len(told) > 1 else f"the clock of server {told[0].get('id')}"
        yield Finding(
            "log time", Verdict.BAD if ahead_ms > LOG_AHEAD_BAD_MS else Verdict.WARN, None,
            f"the log's time is {span(ahead_ms / 1000)} ahead of {whose}: the members' clocks were ahead together",
            "see that the clocks are right now, nothing else is to be done: leases, the end of sessions and max_age_s"
            " take up to twice as long until the clocks have caught up",
        )


def _space(cluster: Cluster) -> Iterator[Finding]:
    for row in cluster.there:
        total, free, days = (row.get(key) for key in ("disk_total_bytes", "disk_free_bytes", "disk_full_days"))
        if not total or free is None:
            continue
        share = free / total
        low = row.get("space") or []  # the server itself says that it takes no appends
        bad = bool(low) or share < FREE_BAD or (days is not None and days < DAYS_BAD)
        warn = share < FREE_WARN or (days is not None and days < DAYS_WARN)
        yield Finding(
            "space", Verdict.BAD if bad else Verdict.WARN if warn else Verdict.OK, row.get("id"),
            "; ".join([*low, f"{size(free)} of {size(total)} free ({share:.0%})", growth(row)]),
            "let cleaning remove what nobody needs ([retention], alpo trim), free the disk of other things, or enlarge"
            " it" if bad or warn else "",
        )


def _cleaning(cluster: Cluster) -> Iterator[Finding]:
    held = [(row, why) for row in cluster.there for why in row.get("cleaning_waits") or ()]
    for row, why in held:
        yield Finding(
            "cleaning", Verdict.WARN, row.get("id"), why,
            "bring back the server that is behind: until then the log grows on all of them",
        )
    if not held:
        yield Finding("cleaning", Verdict.OK, None, "nothing is held back")


def _mended_ago_ms(row: Row) -> int:
    return max(0, int((row.get("time_ms") or 0) - (row.get("mended_ms") or 0)))


def _copies(cluster: Cluster) -> Iterator[Finding]:
    """Check that the members' entries are sound and equal. Several servers' equal reports are shown once."""
    damaged = [(row, why) for row in cluster.there for why in row.get("damage") or ()]
    diverged = list(dict.fromkeys(why for row in cluster.there for why in row.get("divergence") or ()))
    for row, why in damaged:
        yield Finding(
            "copies", Verdict.BAD, row.get("id"), why,
            "look at the disk (dmesg, smartctl); docs/operations.md#a-damaged-disk",
        )
    for why in diverged:
        yield Finding("copies", Verdict.BAD, None, why, "docs/operations.md#copies-that-differ")
    mended = [row for row in cluster.there if row.get("mended") and _mended_ago_ms(row) < MENDED_TOLD_MS]
    for row in mended:
        many = row["mended"] > 1
        yield Finding(
            "copies", Verdict.WARN, row.get("id"),
            f"{row['mended']} entr{'ies' if many else 'y'} of its disk {'were' if many else 'was'} damaged and"
            f" {'were' if many else 'was'} mended since its start, the last {span(_mended_ago_ms(row) / 1000)} ago",
            "a disk that has damaged one entry will damage others: docs/operations.md#a-damaged-disk",
        )
    compared = [row for row in cluster.there if "divergence" in row]
    if compared and not damaged and not diverged and not mended:
        yield Finding("copies", Verdict.OK, None, "no entry is known to be damaged or to differ between servers")


def _versions(cluster: Cluster) -> Iterator[Finding]:
    yield from _alike(
        "versions", cluster, lambda row: row.get("version"), str,
        "finish the upgrade: the same version on all servers",
    )


def _timers(cluster: Cluster) -> Iterator[Finding]:
    yield from _alike(
        "timers", cluster, lambda row: tuple(row.get("timers_ms") or ()) or None,
        lambda timers: "/".join(map(str, timers)) + " ms (heartbeat, election timeout, stagger)",
        "make [timers] of the servers' configurations equal, and restart one after the other",
    )


def _alike(
    check: str, cluster: Cluster, value: Callable[[Row], Any], show: Callable[[Any], str], do: str
) -> Iterator[Finding]:
    by_value: dict[Any, list[int | None]] = {}
    for row in cluster.there:
        if value(row) is not None:
            by_value.setdefault(value(row), []).append(row.get("id"))
    if len(by_value) > 1:
        groups = "; ".join(f"{show(one)} on {', '.join(map(str, ids))}" for one, ids in by_value.items())
        yield Finding(check, Verdict.WARN, None, f"they differ: {groups}", do)
    elif by_value:
        yield Finding(check, Verdict.OK, None, f"the same on all that answer: {show(next(iter(by_value)))}")


def _certificates(cluster: Cluster) -> Iterator[Finding]:
    for row in cluster.there:
        if row.get("certificate_ends_s") is None or row.get("time_ms") is None:
            continue
        days = (row["certificate_ends_s"] - row["time_ms"] / 1000) / 86_400
        if days < CERTIFICATE_WARN_DAYS:
            ends = f"ends in {days:.0f} days" if days > 0 else "has ended"
            yield Finding(
                "certificate", Verdict.WARN if days > 0 else Verdict.BAD, row.get("id"), f"its certificate {ends}",
                "renew it: docs/deploying.md#renew-certificates-replace-the-ca",
            )


def _twice(cluster: Cluster) -> Iterator[Finding]:
    """Check that no two processes have one identity: each undoes what the other has done."""
    for id, says in cluster.twins():
        yield Finding("twice", Verdict.BAD, id, says, "stop the copy, and empty its directory before it is used again")


def _strangers(cluster: Cluster) -> Iterator[Finding]:
    """Report connections that were turned away. An older server lists them among its ``problems``, without a time."""
    do = "see who that is: a server of another cluster, a client of another version, a port scanner"
    ids = {row.get("id") for row in cluster.members}
    for row in cluster.there:
        if "strangers" in row:
            told = [f"{each.get('remote', '?')}: {each['why']}{_lately(each)}" for each in row["strangers"]]
        else:
            dials = {peer["id"] for peer in row.get("peers") or ()}  # including one that is being added
            known = tuple(f"server {id}: " for id in ids | dials)
            told = [problem for problem in row.get("problems") or () if not problem.startswith(known)]
        for each in told:
            yield Finding("strangers", Verdict.WARN, row.get("id"), f"turned away {each}", do)


def _lately(stranger: Row) -> str:
    times, last_ms = stranger.get("times") or 1, stranger.get("last_ms")
    told = [f"{times:,} times"] if times > 1 else []
    if last_ms is not None and 0 <= last_ms < 253_402_300_800_000:  # the year 10000, which no date can show
        told.append(f"{'last ' if told else ''}at {datetime.fromtimestamp(last_ms / 1000, UTC):%H:%M:%S} UTC")
    return f" ({', '.join(told)})" if told else ""


def _lag(cluster: Cluster, late_s: Mapping[int, float]) -> Iterator[Finding]:
    for row in cluster.there:
        entries = lag_of(row, cluster.there)
        if not entries:
            continue
        late = late_s.get(row.get("id", 0))
        if entries > LAG_WARN or (late or 0) > LAG_WARN_S:
            yield Finding(
                "lag", Verdict.WARN, row.get("id"), f"is {lag_text(entries, late)} behind",
                "see whether it catches up; if not, look at its disk and its network",
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


def _logs(cluster: Cluster) -> Iterator[Finding]:
    """Report logs that have stopped on a server; all is said of the first log by the other checks."""
    logs = logs_of(cluster.there)[1:]
    for log in logs:
        for server, why in log.why:
            yield Finding(
                "logs", Verdict.BAD, server, f"the log {log.name} has failed here: {why}",
                "keep its files; if its other servers are well, restart this one, and look at its disk",
            )
    if logs and not any(log.why for log in logs):
        yield Finding("logs", Verdict.OK, None, f"{len(logs)} besides the first, and none has failed")


def _timeout_ms(row: Row) -> float | None:
    timers: Sequence[float] = row.get("timers_ms") or ()
    return float(timers[1]) if len(timers) > 1 else None


_CHECKS: tuple[Callable[[Cluster], Iterator[Finding]], ...] = (
    _leader, _appends, _voting, _connections, _fsync, _write, _clocks, _log_time, _space, _cleaning, _copies, _versions,
    _timers, _certificates, _twice, _strangers, _logs,
)
