"""Commands on membership and leadership: `alpo member list, add, remove, replace` and `alpo transfer`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

import alpo
from alpo.addresses import AddressError, parse_address, undialled
from alpo.standing import Cluster, lag_of

from ..exits import Failed, UsageProblem
from ..options import Target, group, with_target
from ..output import counted, print_json, say, says_yes, table
from ..running import ask, complete_ids, connected, run
from . import status as standing

if TYPE_CHECKING:
    from rich.progress import Progress

app = group("Members: the servers that keep the log.", "alpo member list")

_POLL_S = 0.2
#: Looks at a cluster whose appends do not work yet, before that is told.
_LOOKS = 10
_COLUMNS = ["id", "address", "role", "state", "status", "last", "guaranteed", "lag"]

NewMember = Annotated[str, typer.Argument(metavar="ID=HOST:PORT", help="The server's id, and where it waits.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it has caught up and votes.")]


def parse_member(text: str) -> tuple[int, str]:
    """(id, address) of ID=HOST:PORT. Raises `UsageProblem`."""
    id, _, address = text.partition("=")
    try:
        host, _ = parse_address(address)
        if not id.isascii() or not id.isdigit() or not int(id):
            raise AddressError(id)
    except AddressError:
        raise UsageProblem(f"{text}: must be ID=HOST:PORT, as in 4=127.0.0.1:7103") from None
    if why := undialled(host):
        raise UsageProblem(f"{text}: {why}")
    return int(id), address


def _roles(found: list[dict[str, Any]]) -> dict[int, str]:
    """Role by id of all listed members, from the most advanced server's list, without removed ones."""
    knows = max((row for row in found if row.get("members")), key=lambda row: row["guaranteed_id"], default=None)
    listed = knows["members"] if knows is not None else []
    return {member["id"]: member["role"].lower() for member in listed if member["role"] != "GONE"}


async def _list(target: Target) -> None:
    found = await standing.members(target)
    roles = _roles(found)
    for row in found:
        row["role"] = roles.get(row.get("id") or 0)
    if target.json:
        print_json(standing.as_json(found))
    else:
        rows = []
        for row in found:
            behind = lag_of(row, found)
            state = row.get("state") if row.get("reachable") else "unreachable"
            values = (row.get("id"), row.get("address"), row["role"], state, row.get("status"), row.get("last_id"),
                      row.get("guaranteed_id"), behind)
            rows.append(["-" if value is None else str(value) for value in values])
        table("", _COLUMNS, rows)
        standing.tell_missing(found)
    standing.require_one(target, found)


def _progress() -> Progress:
    """A bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
               TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


async def _catch_up(target: Target, id: int) -> None:
    """Wait until server ``id`` votes. Raises `Failed` if it makes no progress for the timeout."""
    import anyio

    with _progress() as bar:
        task = bar.add_task(f"server {id} catches up", total=None)
        reached, since_s = (-1, ""), time.monotonic()
        while True:
            found = await standing.members(target)
            role = _roles(found).get(id)
            mine = next((row for row in found if row.get("id") == id), {})
            if role == "voter" and mine.get("status") == "VOTING":
                return
            end = max((row.get("last_id") or 0 for row in found), default=0)
            now = (mine.get("last_id") or 0, str(mine.get("status")))
            bar.update(task, completed=now[0], total=end or None)
            if now != reached:
                reached, since_s = now, time.monotonic()
            elif time.monotonic() - since_s > target.timeout_s:
                raise Failed(
                    f"server {id} is in the cluster, but made no progress for {target.timeout_s:g} s: it is "
                    f"{now[1]} at entry {now[0]} of {end}; it goes on by itself (`alpo member list` shows it)"
                )
            await anyio.sleep(_POLL_S)


async def _others(log: alpo.Log) -> list[str]:
    """The names of the logs besides the first that have begun."""
    try:
        return [found.name for found in await log.logs() if found.id]
    except alpo.Refused:  # the leader is too old to know of others: there are none
        return []


async def _leave_logs(target: Target, id: int, names: list[str]) -> None:
    """Wait until none of these logs has server ``id`` any more. Raises `Failed` if none lets it go for the timeout."""
    import anyio

    left, since_s = names, time.monotonic()
    with _progress() as bar:
        task = bar.add_task(f"server {id} leaves the other logs", total=len(names))
        while left:
            still = [name for name in left if await _may_need(target, id, name)]
            if still != left:
                left, since_s = still, time.monotonic()
                bar.update(task, completed=len(names) - len(left))
            elif time.monotonic() - since_s > target.timeout_s:
                raise Failed(
                    f"server {id} is no longer a member, but still in {counted(len(left), 'log', 'logs')} besides the"
                    f" first: let it run until `alpo status --log {left[0]}` shows it as GONE"
                )
            else:
                await anyio.sleep(_POLL_S)


async def _may_need(target: Target, id: int, name: str) -> bool:
    """True unless this log is known to do without server ``id``."""
    try:
        roles = _roles(await standing.members(target, name))
    except alpo.NoSuchLog:
        return False
    return not roles or id in roles


async def _change(target: Target, what: str, id: int, address: str, wait: bool) -> None:
    others: list[str] = []
    async with connected(target) as log:
        if what == "add":
            members = await log.add_member(id, address)
        elif what == "replace":
            members = await log.replace_member(id, address)
        else:
            members = await log.remove_member(id)
            others = await _others(log) if wait else []
    await _leave_logs(target, id, others)
    votes = any(member.id == id and member.role == "VOTER" for member in members)
    if not target.json:
        say(_done(what, id, votes))
        if what == "remove":
            say(await _may_fail(target, what))
    if what != "remove" and wait and not votes:
        await _catch_up(target, id)
        if not target.json:
            say(f"server {id} votes")
            say(await _may_fail(target, what))
    await _list(target)


async def _may_fail(target: Target, what: str) -> str:
    """Text on the members that vote, and how many of them may fail now: ``3 members are left: one may fail``. A leader
    that has just taken over gets a moment."""
    import anyio

    cluster = Cluster(await standing.members(target))
    for _ in range(_LOOKS):
        if cluster.appends().work:
            break
        await anyio.sleep(_POLL_S)
        cluster = Cluster(await standing.members(target))
    return may_fail_text(cluster, what)


def may_fail_text(cluster: Cluster, what: str) -> str:
    """The text of a cluster of which a member was removed, or to which one was added (``what``)."""
    count, appends = len(cluster.voters), cluster.appends()
    if what == "remove":
        members = counted(count, "member is left", "members are left")
    else:
        members = counted(count, "member votes now", "members vote now")
    if not appends.work:
        return f"{members}; appends do not work at this moment: {', '.join(appends.why)}"
    none = {1: "it may not fail", 2: "neither may fail"}.get(count, "none may fail")
    spare = appends.may_fail
    return f"{members}: {none if not spare else 'one may fail' if spare == 1 else f'{spare} may fail'}"


def question_of(cluster: Cluster, id: int) -> str:
    """The text to ask before a voter is removed, if fewer than three are left; "": no question."""
    left = len(cluster.voters - {id})
    if id not in cluster.voters or left >= 3 or not left:
        return ""
    may = "neither of them may fail" if left == 2 else "it may not fail"
    return f"without server {id}, {counted(left, 'member votes', 'members vote')}: {may}, or appends stand"


def _done(what: str, id: int, votes: bool) -> str:
    if what == "remove":
        return f"server {id} is no longer a member"
    if votes:  # a repeated request gets the same answer as the first
        return f"server {id} is in the cluster already, and votes"
    return f"server {id} is in the cluster, as a learner: it votes once it has caught up"


@app.command("list")
@with_target
def list_(target: Target) -> None:
    """Show who belongs to the cluster, as what, and how far each is.

    Examples:
        alpo member list
        alpo member list --json | jq '.members[] | select(.role == "learner")'
    """
    run(_list, target)


@app.command()
@with_target
def add(target: Target, member: NewMember, wait: Wait = True) -> None:
    """Take a new server into the cluster.

    Start it first, with `alpod --id ID --data DIR --listen HOST:PORT --join HOST:PORT,…`. It copies the log while
    appends go on, and votes once it has caught up.

    Examples:
        alpo member add 4=127.0.0.1:7103
    """
    id, address = parse_member(member)
    run(_change, target, "add", id, address, wait)


@app.command()
@with_target
def remove(
    target: Target,
    id: Annotated[int, typer.Argument(min=1, autocompletion=complete_ids, help="The server to take out.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until no log has it any more.")] = True,
) -> None:
    """Take a server out of the cluster, and out of all its logs.

    Refused unless a majority of those who would remain answers. If it leads, another takes over first. Its data
    directory is of no use afterwards: stop it and delete that. On a terminal it asks if fewer than three would vote.

    Examples:
        alpo member remove 4
    """
    if not yes and sys.stdin.isatty() and (question := question_of(Cluster(run(standing.members, target)), id)):
        say(question)
        if not says_yes():
            raise Failed("nothing was changed")
    run(_change, target, "remove", id, "", wait)


@app.command()
@with_target
def replace(target: Target, member: NewMember, wait: Wait = True) -> None:
    """Let a server with an empty disk, at a new address, take a member's place.

    Start it first, with `alpod --id ID --data DIR --listen HOST:PORT --join HOST:PORT,…`. The old one counts for
    nothing from then on. (A disk that was lost at the same address needs no command: start the server, and it comes
    back.)

    Examples:
        alpo member replace 2=127.0.0.1:7202
    """
    id, address = parse_member(member)
    run(_change, target, "replace", id, address, wait)


@with_target
def transfer(
    target: Target,
    id: Annotated[int, typer.Argument(min=1, autocompletion=complete_ids, help="The server that shall lead.")],
) -> None:
    """Hand leadership over to a server of your choice.

    It takes a few milliseconds; appends under way are done by the old leader or sent to the new one, never lost.

    Examples:
        alpo transfer 2
    """
    found = ask(target, lambda log: log.transfer(id))
    target.tell({"leader": found.leader, "term": found.term}, f"server {found.leader} leads, in term {found.term}")
