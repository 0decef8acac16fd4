"""`alpo explain`: the story of the last elections, told from the events that the servers keep."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

import alpo

from .. import story
from ..exits import refuse
from ..inputs import parse_since
from ..options import Target, with_target
from ..output import escape, print_json, remark, rfc3339_ms
from ..running import run
from ..story import Chapter
from .status import require_one

if TYPE_CHECKING:
    from alpo.client.operator.status import Events, ServerEvent


async def gather(target: Target, since: datetime | None) -> tuple[Events, list[dict[str, Any]]]:
    """The events since ``since``, and the members' present status. Raises the library's errors."""
    async with alpo.connect(",".join(target.servers), timeout_s=target.timeout_s) as log:
        return await log.events(since), [dict(member) for member in await log.status()]


def _show_all(target: Target, found: Events) -> None:
    for event in found.events:
        if target.json:
            print_json(as_json(event))
        else:
            print(escape(f"{rfc3339_ms(event.time_ms)}  server {event.server} {story.phrase(event)}"))
    if not target.json:
        for line in remarks(found):
            remark(line)


def as_json(event: ServerEvent) -> dict[str, Any]:
    """JSON keys of an event: the fixed ones, then its own."""
    fixed = {"time": rfc3339_ms(event.time_ms), "server": event.server, "name": event.name}
    own = {key: value for key, value in event.fields.items() if key not in fixed}
    return {**fixed, **own, **({"shifted_ms": event.shifted_ms} if event.shifted_ms else {})}


def _ends_ms(chapter: Chapter) -> int:
    return chapter.reign.time_ms if chapter.reign is not None else chapter.events[-1].time_ms


def lines(chapter: Chapter) -> list[str]:
    """Lines of text for one election."""
    before, reign = chapter.before, chapter.reign
    if reign is None:
        told = ["There is no leader."]
    else:
        told = [f"Server {reign.leader} won term {reign.term} at {rfc3339_ms(reign.time_ms)}."]
    if before is not None:
        told.append(f"Before it server {before.leader} led, term {before.term}." if reign is not None
                    else f"The last one was server {before.leader}, term {before.term}.")
    else:
        told.append("The events tell of no leader before.")
    steps = [(event.time_ms, f"server {event.server} {story.phrase(event)}") for event in chapter.events]
    if chapter.heard is not None and before is not None:
        steps.append((chapter.heard[0], f"server {before.leader} is heard for the last time, by server"
                                        f" {chapter.heard[1]}"))
    dated = [f"  {rfc3339_ms(at_ms)[11:]}  {what}" for at_ms, what in sorted(steps, key=lambda step: step[0])]
    return [" ".join(told), "", *dated, "", *_conclusion(chapter)]


def _conclusion(chapter: Chapter) -> list[str]:
    reign, said = chapter.reign, []
    gone = story.gap(chapter)
    if gone is not None and reign is not None:
        said.append(f"No leader for {max(0, reign.time_ms - gone[0]) / 1000:.2f} s: since {gone[1]}.")
    elif gone is not None:
        said.append(f"No leader since {rfc3339_ms(gone[0])}, when {gone[1]}.")
    elif chapter.before is not None:
        said.append("Since when there was no leader, the events do not say.")
    if reign is None:
        said.append("A majority of the voters must be up and reach each other: see alpo doctor.")
        return said
    expunged = [event for event in chapter.events if event.name == "expunge"]
    for event in expunged:
        said.append(
            f"Server {event.server} expunged {story.entries(event.fields)}, never guaranteed: no append of them had"
            " been answered. Their clients send them again to the new leader, or were told that the outcome is unknown."
        )
    if not expunged:
        said.append("Nothing was expunged.")
    said.append(_why_safe(reign))
    return said


def _why_safe(reign: story.Reign) -> str:
    fields = reign.event.fields if reign.event is not None else {}
    votes, voters = fields.get("votes"), fields.get("voters")
    if not isinstance(votes, list) or not isinstance(voters, list) or not voters:
        return ("Nothing guaranteed was lost: it is on the disks of a majority, the winner had the votes of a majority,"
                " and nobody votes for a log that is behind its own.")
    if len(voters) == 1:
        return "Nothing guaranteed was lost: the only voter's disk has it."
    return (f"Nothing guaranteed was lost: it is on the disks of {len(voters) // 2 + 1} of {len(voters)} voters, so at"
            f" least one of {story.servers(votes)} has it, and nobody votes for a log that is behind its own.")


def remarks(found: Events) -> list[str]:
    """Sentences on missing events and on clocks that differ."""
    said = [
        f"Missing: the events of {f'server {silent.id}' if silent.id else silent.address}, which does not answer"
        f" ({silent.why})." for silent in found.silent
    ]
    shifts = {event.server: event.shifted_ms for event in found.events if event.shifted_ms}
    said += [
        f"The clock of server {id} is {abs(ms) / 1000:.1f} s {'ahead of' if ms > 0 else 'behind'} the others': its"
        " times are shifted here." for id, ms in sorted(shifts.items())
    ]
    return said


@with_target
def explain(
    target: Target,
    last: Annotated[int | None, typer.Option("--last", min=1, max=1000, show_default="1",
                                             help="The last N elections.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME",
                                              help="All elections since: RFC 3339, or 10m, 2h, 3d ago.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every event kept, not the story of elections.")] = False,
) -> None:
    """Tell the story of the last election: who noticed, who won, how long nobody led, what was expunged.

    It is told from the events that the servers keep, of all that answer, in time order.

    Examples:
        alpo explain
        alpo explain --since 1h
        alpo explain --all --json | jq 'select(.name == "slow_fsync")'
    """
    refuse(every and last is not None, "--last does not go with --all")
    moment = None if since is None else parse_since(since, datetime.now(UTC))
    found, members = run(gather, target, moment if every else None)
    require_one(target, members)
    leaderless = not any(member.get("state") == "leader" for member in members)
    if every:
        _show_all(target, found)
        return
    told = story.chapters(found.events, leaderless)
    if moment is not None:
        since_ms = moment.timestamp() * 1000
        told = [chapter for chapter in told if _ends_ms(chapter) >= since_ms]
    told = told[-(last or (1 if moment is None else 1000)) :]
    if target.json:
        for event in {(event.server, event.number): event for chapter in told for event in chapter.events}.values():
            print_json(as_json(event))
        return
    if not told:
        print("The servers' events tell of no election" + ("." if moment is None else " since then."))
    for number, chapter in enumerate(told):
        if number:
            print()
        for line in lines(chapter):
            print(escape(line))
    for line in remarks(found):
        print(escape(line))
