"""`alpo log create`, `list`, `set`, `rename` and `delete`: the logs that a cluster keeps besides its first one."""

from __future__ import annotations

import sys
import time
from functools import partial
from itertools import starmap
from typing import Annotated, Any

import typer

import alpo
from alpo.core.directory import FIRST_NAME, FIRST_NUMBER, LOG_NAME_WANTED, valid_log
from alpo.core.settings import size_text
from alpo.standing import LogStanding, logs_of

from .exits import UsageProblem, refuse
from .options import Target, with_target
from .output import escape, on_terminal, remark
from .running import ask

Name = Annotated[str, typer.Argument(metavar="NAME", help="1 to 63 of a-z, 0-9, '.', '_' and '-'.")]
Keep = Annotated[str | None, typer.Option("--keep", metavar="AGE",
                                          help="Clean what is older: 12h, 7d. 0: as the servers are configured.")]
KeepBytes = Annotated[str | None, typer.Option("--keep-bytes", metavar="SIZE",
                                               help="Clean what is beyond: 500M, 20G. 0: as the servers are"
                                                    " configured.")]
BytesMax = Annotated[str | None, typer.Option("--bytes-max", metavar="SIZE",
                                              help="Refuse appends while it holds more: 500M, 20G. 0: no bound.")]
Lead = Annotated[int | None, typer.Option("--lead", metavar="ID", min=0, help="Server that should lead it. 0: any.")]
#: Units of ages in seconds, and of sizes in bytes.
_AGES = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
#: Least seconds in which servers are asked how the logs stand.
_LEAST_S = 0.1
COLUMNS = [
    "log", "number", "kept for", "kept bytes", "bytes max", "should lead", "id", "state", "leader", "first LSN",
    "last LSN", "bytes", "behind",
]


def _check(name: str) -> None:
    refuse(not valid_log(name), f"NAME: {LOG_NAME_WANTED}")


def _keys(found: alpo.LogInfo) -> dict[str, Any]:
    return {
        "name": found.name, "number": found.number, "id": found.id or None, "keep_age_s": found.keep_s,
        "keep_bytes": found.keep_bytes, "bytes_max": found.bytes_max, "lead": found.lead,
    }


def _row(found: alpo.LogInfo) -> list[str]:
    return [
        found.name, str(found.number), "" if found.keep_s is None else f"{found.keep_s:g} s",
        "" if found.keep_bytes is None else size_text(found.keep_bytes),
        "" if found.bytes_max is None else size_text(found.bytes_max), str(found.lead or ""), found.id or "not begun",
    ]


async def _listed(timeout_s: float, log: alpo.Log) -> list[tuple[alpo.LogInfo, LogStanding]]:
    """The logs besides the first, those that are being deleted included, and how they stand by the servers' word;
    ``timeout_s``: for all of that."""
    give_up_s = time.monotonic() + timeout_s
    listed = {found.number: found for found in await log.logs()}
    rows = await log.status(max(_LEAST_S, give_up_s - time.monotonic()))
    standings = {found.number: found for found in logs_of(rows) if found.number != FIRST_NUMBER}
    return [
        (
            listed.get(number) or alpo.LogInfo(standings[number].name, number, "", None, None, None, None),
            standings.get(number) or _unknown(listed[number]),
        )
        for number in sorted({*listed, *standings})
    ]


def _unknown(found: alpo.LogInfo) -> LogStanding:
    """The standing of a log of which no server tells."""
    state = "ready" if found.id else "creating"
    return LogStanding(found.number, found.name, state, None, None, None, None, [], [])


def _listed_keys(found: alpo.LogInfo, there: LogStanding) -> dict[str, Any]:
    why = [{"id": id, "why": why} for id, why in there.why]
    return {
        **_keys(found), "state": there.state, "leader": there.leader, "first_lsn": there.first_lsn,
        "last_lsn": there.last_lsn, "bytes": there.bytes, "behind": there.behind, "why": why,
    }


def _listed_row(found: alpo.LogInfo, there: LogStanding) -> list[str]:
    lsns = ["" if lsn is None else str(lsn) for lsn in (there.first_lsn, there.last_lsn)]
    return [
        *_row(found), there.state, str(there.leader or ""), *lsns,
        "" if there.bytes is None else size_text(there.bytes), ",".join(map(str, there.behind)),
    ]


def _amount(text: str | None, units: dict[str, int], option: str, example: str) -> int | None:
    """A number with one of these units, or 0. Raises UsageProblem."""
    if text in (None, "0"):
        return None if text is None else 0
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdecimal() and len(number) < 13 and unit in units):
        raise UsageProblem(f"{option} {text}: a whole number and one of {', '.join(units)}, as in {example}, or 0")
    return int(number) * units[unit]


def _options(keep: str | None, keep_bytes: str | None, bytes_max: str | None, lead: int | None) -> dict[str, Any]:
    """Arguments of `alpo.Log.create_log` and `set_log`. Raises UsageProblem."""
    return {
        "keep_s": _amount(keep, _AGES, "--keep", "7d"),
        "keep_bytes": _amount(keep_bytes, _SIZES, "--keep-bytes", "20G"),
        "bytes_max": _amount(bytes_max, _SIZES, "--bytes-max", "20G"), "lead": lead,
    }


def add_to(app: typer.Typer) -> None:
    """Add the commands to a group."""
    for command, name in ((create, "create"), (list_, "list"), (set_, "set"), (rename, "rename"), (delete, "delete")):
        app.command(name)(command)


@with_target
def create(
    target: Target, name: Name, keep: Keep = None, keep_bytes: KeepBytes = None, bytes_max: BytesMax = None,
    lead: Lead = None,
    if_missing: Annotated[bool, typer.Option("--if-missing", help="Do nothing if there is such a log, with"
                                                                  " the options given.")] = False,
) -> None:
    """Create a log besides the first one, on the same servers, with LSNs of its own. Done once it has begun.

    Examples:
        alpo log create billing --keep 7d
        alpo append --log billing "one payload"
    """
    _check(name)
    options = _options(keep, keep_bytes, bytes_max, lead)

    found = ask(target, lambda log: log.create_log(name, **options, if_missing=if_missing), FIRST_NAME)
    target.tell(_keys(found), f"{escape(name)}: log {found.number}")


@with_target
def list_(target: Target) -> None:
    """List the logs besides the first one: their state (creating, ready, deleting or failed), who leads, and which
    servers lack a log or trail ("behind").

    Examples:
        alpo log list
        alpo log list --json | jq -r 'select(.state == "failed") | .name'
    """
    found = ask(target, partial(_listed, target.timeout_s), FIRST_NAME)
    target.show(starmap(_listed_keys, found), COLUMNS, list(starmap(_listed_row, found)))
    for info, there in found:
        for id, why in there.why if not target.json else ():
            remark(f"server {id}: the log {info.name} has failed: {why}")


@with_target
def set_(
    target: Target, name: Name, keep: Keep = None, keep_bytes: KeepBytes = None, bytes_max: BytesMax = None,
    lead: Lead = None,
) -> None:
    """Change how much of a log is kept, how much it may hold, or who should lead it.

    Examples:
        alpo log set billing --keep 30d
        alpo log set billing --bytes-max 20G
        alpo log set billing --lead 2
    """
    _check(name)
    options = _options(keep, keep_bytes, bytes_max, lead)
    refuse(set(options.values()) == {None}, "nothing to change: give --keep, --keep-bytes, --bytes-max or --lead")
    found = ask(target, lambda log: log.set_log(name, **options), FIRST_NAME)
    target.tell(_keys(found), f"{escape(name)} is changed")


@with_target
def rename(
    target: Target, name: Name, new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name.")]
) -> None:
    """Give a log another name. Its clients go on by the new one; sessions, cursors and LSNs stay.

    Examples:
        alpo log rename billing invoices
    """
    _check(name)
    refuse(not valid_log(new), f"NEW: {LOG_NAME_WANTED}")
    found = ask(target, lambda log: log.rename_log(name, new), FIRST_NAME)
    target.tell({"name": new, "number": found.number}, f"{escape(name)} is called {escape(new)}")


@with_target
def delete(
    target: Target, name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for the name again.")] = False,
) -> None:
    """Delete a log, for good. Done once no append made from then on can be acknowledged. Its servers move its files to
    `deleted/` in their directories. Given again while that goes on, it waits for the end of it.

    Examples:
        alpo log delete billing --yes
    """
    _check(name)
    if not yes:
        if not (on_terminal() and sys.stdin.isatty()):
            raise UsageProblem("deleting a log needs --yes where nobody can be asked")
        typed = typer.prompt(f"Type {name} to delete that log", err=True)
        refuse(typed != name, "that is not its name: nothing is done")
    number = ask(target, lambda log: log.delete_log(name), FIRST_NAME)
    target.tell({"name": name, "number": number}, f"{escape(name)} is deleted")
