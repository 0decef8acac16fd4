"""`alpo doctor`: what `alpo.health` finds, of the servers' own reports (`alpo status --json`) and events.
`alpo spark doctor`: what Spark needs on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio

import alpo
from alpo.health import Finding, Verdict, examine, not_well
from alpo.standing import logs_of

from ..exits import Failed
from ..options import Target, group, with_target, without_servers
from ..output import escape, print_json
from ..running import run
from ..story import handed_over, reigns
from .status import members

if TYPE_CHECKING:
    from alpo.client.operator.status import Events

_HOUR = timedelta(hours=1)
#: Seconds that a server has to tell its events.
EVENTS_S = 2.0
#: Logs besides the first that are asked for at the same time.
LOGS_AT_ONCE = 8

spark = group("The log in Apache Spark: is this machine ready for it?", "alpo spark doctor")


async def ask(target: Target) -> tuple[list[dict[str, Any]], Events]:
    """The members' status and the events of the last hour, asked for at the same time. Raises the library's errors."""
    found: list[Events] = []

    async def ask_events() -> None:
        # A server that hangs holds nobody up: its status says that it does.
        async with alpo.connect(",".join(target.servers), timeout_s=min(target.timeout_s, EVENTS_S)) as log:
            found.append(await log.events(datetime.now(UTC) - _HOUR))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask_events)
        rows = await members(target)
    return rows, found[0]


async def ask_others(target: Target, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The members' status of each of these logs, as far as it can be had in time."""
    found: dict[str, list[dict[str, Any]]] = {}
    turns = anyio.CapacityLimiter(LOGS_AT_ONCE)

    async def ask_one(name: str) -> None:
        with suppress(alpo.AlpoError):  # the log counts as one that could not be asked
            async with turns, alpo.connect(
                ",".join(target.servers), timeout_s=min(target.timeout_s, EVENTS_S), log=name
            ) as log:
                found[name] = [dict(member) for member in await log.status()]

    with anyio.move_on_after(target.timeout_s):
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(ask_one, name)
    return found


def of_others(
    first: Sequence[Finding], names: Sequence[str], rows: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[Finding]:
    """Findings about logs besides the first that are not well. Words that were said of the first log too are about the
    servers, and come once."""
    told = {(finding.check, finding.server, finding.says) for finding in first}
    for name in names:
        if name not in rows:
            yield Finding("logs", Verdict.WARN, None, "its servers did not tell of it in time", "try again", name)
        for finding in not_well(examine(rows.get(name, ()))):
            if (finding.check, finding.server, finding.says) not in told:
                yield finding._replace(log=name)


def as_json(finding: Finding) -> dict[str, Any]:
    """JSON keys of a finding."""
    return {**finding._asdict(), "verdict": finding.verdict.value, "do": finding.do or None}


def lines(finding: Finding) -> list[str]:
    """Lines of text for a finding."""
    shown = finding.verdict.value.upper() if finding.verdict is Verdict.OK else finding.verdict.value
    who = "" if finding.log is None else f"log {finding.log}: "
    who += "" if finding.server is None else f"server {finding.server}: "
    told = [f"{shown:<5} {finding.check:<12} {who}{finding.says}"]
    return [*told, f"{'':<19}-> {finding.do}"] if finding.do else told


@with_target
def doctor(target: Target) -> None:
    """Check disks, clocks, connections, space, versions and timers, in all logs, and say what to do.

    Exit code 1 when something is bad.

    Examples:
        alpo doctor
        alpo doctor --json | jq 'select(.verdict != "ok")'
    """
    rows, events = run(ask, target)
    since_ms = (time.time() - _HOUR.total_seconds()) * 1000
    planned = handed_over(events.events)
    won = [reign.term in planned for reign in reigns(events.events) if reign.time_ms >= since_ms]
    found = examine(rows, won.count(False), won.count(True))
    if names := [log.name for log in logs_of(rows)[1:] if log.state in ("ready", "failed")]:
        found += of_others(found, names, run(ask_others, target, names))
    for finding in found:
        if target.json:
            print_json(as_json(finding))
        else:
            for line in lines(finding):
                print(escape(line))
    bad = [finding.check for finding in found if finding.verdict is Verdict.BAD]
    if bad:
        raise Failed(f"bad: {', '.join(dict.fromkeys(bad))}")


@spark.command("doctor")
@without_servers
def spark_doctor(target: Target) -> None:
    """Check PySpark, PyArrow, Java and the workers' Python, and say what to do: the same as alpo-pipeline doctor.

    Exit code 1 when Spark could not work here. Needs no cluster, and starts no Spark.

    Examples:
        alpo spark doctor
        alpo spark doctor --json | jq 'select(.ok | not)'
    """
    from ..pipeline.spark import tell

    tell(target)
