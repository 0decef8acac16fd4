"""The story of an election, told from the servers' events: who noticed, who stood, who won, what was expunged.

Laws:

* Everything told is in an event, except what follows from the rules (why nothing guaranteed was lost).
* A leader whose own events are missing (it does not answer) is known from its followers' events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from alpo.client.operator.status import ServerEvent

#: Longest gap between steps of one election; servers that find no majority repeat themselves once a minute.
GAP_MS = 90_000
#: Time before the first step in which disturbances, starts and stops belong to the story; time after the last step, for
#: disturbances.
LEAD_MS, TAIL_MS = 10_000, 1_000

Fields = dict[str, Any]


class Reign(NamedTuple):
    """A leader's time in one term; ``event``: the winner's own, None if missing."""

    term: int
    leader: int
    time_ms: int
    event: ServerEvent | None


class Chapter(NamedTuple):
    """One election. ``reign`` None: nobody has won yet. ``heard``: (time, by whom) of the old leader's last sign of
    life."""

    before: Reign | None
    reign: Reign | None
    events: list[ServerEvent]
    heard: tuple[int, int] | None


def reigns(events: Sequence[ServerEvent]) -> list[Reign]:
    """All leaders in the events, by term."""
    found: dict[int, Reign] = {}
    for event in events:
        term = event.fields.get("term")
        if type(term) is not int or event.name not in ("leader", "following"):
            continue
        known = found.get(term)
        if event.name == "leader":
            found[term] = Reign(term, event.server, event.time_ms, event)
        elif known is None and type(event.fields.get("leader")) is int:
            found[term] = Reign(term, event.fields["leader"], event.time_ms, None)
    return [found[term] for term in sorted(found)]


def handed_over(events: Sequence[ServerEvent]) -> set[int]:
    """Terms whose leaders stood because the previous leader handed over: planned, no failure."""
    return {event.fields["term"] for event in events
            if event.name == "candidate" and event.fields.get("handed_over") is True
            and type(event.fields.get("term")) is int}


def chapters(events: Sequence[ServerEvent], leaderless: bool) -> list[Chapter]:
    """All elections in time order; ``leaderless``: nobody leads now, so the last one has no winner yet."""
    won = reigns(events)
    told = [
        _chapter(events, before, reign, after)
        for before, reign, after in zip([None, *won], won, [*won[1:], None], strict=False)
    ]
    if leaderless:
        last = _chapter(events, won[-1] if won else None, None, None)
        if last.events:
            told.append(last)
    return told


def _chapter(
    events: Sequence[ServerEvent], before: Reign | None, reign: Reign | None, after: Reign | None
) -> Chapter:
    since_ms = before.time_ms if before is not None else 0
    until_ms = reign.time_ms if reign is not None else 1 << 62
    steps: list[ServerEvent] = []
    first_ms = until_ms if reign is not None else events[-1].time_ms if events else 0
    for event in reversed(events):
        if not _is_step(event, before) or event.time_ms > until_ms or event.time_ms < since_ms:
            continue
        if first_ms - event.time_ms <= (LEAD_MS if event.name in _COMINGS else GAP_MS):
            steps.append(event)
            first_ms = event.time_ms
    chosen = {*map(id, steps)}
    ends_ms = after.time_ms if after is not None else 1 << 62
    disturbed_ms = range(max(since_ms, first_ms - LEAD_MS), until_ms + TAIL_MS) if steps else range(0)
    for event in events:
        if (
            _ends(event, reign, ends_ms) or _returns(event, before, until_ms, ends_ms)
            or (event.time_ms in disturbed_ms and _disturbs(event, before))
        ):
            chosen.add(id(event))
    told = [event for event in events if id(event) in chosen]
    return Chapter(before, reign, told, _last_heard(told, before))


_OF_TERM = ("canvass", "candidate", "vote", "deferred", "election_cycle_ended")
_COMINGS = ("serving", "stopping", "stopped", "stopping_itself")
_OF_SERVER = (*_COMINGS, "handing_over", "leader_gives_up", "leader_lost_majority", "passive")
_DISTURBANCES = ("slow_fsync", "disk_hangs", "second_leader", "timers_differ", "wrong_incarnation", "read_failed")


def _is_step(event: ServerEvent, before: Reign | None) -> bool:
    if event.name in _OF_SERVER:
        return True
    term = event.fields.get("term")
    if event.name not in _OF_TERM or type(term) is not int:
        return False
    return before is None or term > before.term


def _ends(event: ServerEvent, reign: Reign | None, ends_ms: int) -> bool:
    """True for the win and its consequences."""
    if reign is None or event.fields.get("term") != reign.term or event.time_ms >= ends_ms:
        return False
    return event is reign.event or event.name in ("vote", "following", "expunge")


def _returns(event: ServerEvent, before: Reign | None, since_ms: int, until_ms: int) -> bool:
    """True if the old leader starts again."""
    return (
        before is not None and event.name == "serving" and event.server == before.leader
        and since_ms < event.time_ms < until_ms
    )


def _disturbs(event: ServerEvent, before: Reign | None) -> bool:
    if event.name in ("peer_lost", "peer_unreachable", "leader_gone"):
        whom = event.fields.get("leader" if event.name == "leader_gone" else "peer")
        return before is not None and whom == before.leader
    return event.name in _DISTURBANCES


def _last_heard(events: Sequence[ServerEvent], before: Reign | None) -> tuple[int, int] | None:
    heard = [
        (event.time_ms - event.fields["silent_ms"], event.server) for event in events
        if event.name == "canvass" and before is not None and event.fields.get("leader") == before.leader
        and type(event.fields.get("silent_ms")) is int and event.server != before.leader
    ]
    return max(heard, default=None)


def gap(chapter: Chapter) -> tuple[int, str] | None:
    """(ms since when there was no leader, how that is known); None if the events do not say."""
    before = chapter.before
    if before is None:
        return None
    for name, how in (("handing_over", "handed over"), ("stopping_itself", "stopped itself")):
        for event in chapter.events:
            if event.name == name and event.server == before.leader:
                return event.time_ms, f"server {before.leader} {how}"
    if chapter.heard is not None:
        return chapter.heard[0], f"server {before.leader} was last heard, by server {chapter.heard[1]}"
    for event in chapter.events:
        ended = event.name in ("leader_gives_up", "leader_lost_majority", "passive", "stopping")
        if ended and event.server == before.leader:
            return event.time_ms, f"server {before.leader} led no more"
    return None


# -- text for one event


def phrase(event: ServerEvent) -> str:
    """Text for the event, to follow the server's name."""
    make = _PHRASES.get(event.name)
    said = make(event.fields) if make is not None else _plain(event)
    times = event.fields.get("times")
    return f"{said} ({times} times)" if type(times) is int else said


def _plain(event: ServerEvent) -> str:
    return " ".join([event.name, *(f"{key}={value}" for key, value in event.fields.items() if key != "times")])


def servers(ids: Any) -> str:
    """Text ``server 1`` or ``servers 1, 2 and 3``."""
    if not isinstance(ids, list) or not ids:
        return "nobody"
    names = [str(id) for id in ids]
    joined = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"server {joined}" if len(names) == 1 else f"servers {joined}"


def _canvass(f: Fields) -> str:
    asks = f"asks who would vote for it in term {f.get('term')}"
    if type(f.get("silent_ms")) is int and f.get("leader"):
        return f"has heard nothing from server {f['leader']} for {f['silent_ms']} ms and {asks}"
    return f"knows no leader and {asks}"


def _leader(f: Fields) -> str:
    votes, voters = f.get("votes"), f.get("voters")
    if not isinstance(votes, list) or not isinstance(voters, list):
        return f"wins term {f.get('term')}"
    return f"wins term {f.get('term')} with the votes of {servers(votes)}, {len(votes)} of {len(voters)} voters"


def entries(f: Fields) -> str:
    """Text ``entry 7`` or ``entries 7 to 9`` for an expunge."""
    first, last = f.get("from_id"), f.get("last_id")
    return f"entry {first}" if first == last else f"entries {first} to {last}"


def _expunge(f: Fields) -> str:
    known = f" (up to {f['guaranteed_id']} it knew to be guaranteed)" if "guaranteed_id" in f else ""
    return f"expunges {entries(f)}, for which the leader's log has others{known}"


def _role(role: object) -> str:
    return {"VOTER": "a voter", "LEARNER": "a learner", "GONE": "gone"}.get(str(role), "no member")


def _slow(f: Fields) -> str:
    return f"waited {f.get('took_ms')} ms for its disk ({f.get('what')}; more than {f.get('limit_ms')} ms is slow)"


def _gives_up(f: Fields) -> str:
    why = f.get("why") or f"it cannot send damaged entry {f.get('id')}"
    return f"stops leading term {f.get('term')}: {why}"


_PHRASES: dict[str, Callable[[Fields], str]] = {
    "canvass": _canvass,
    "candidate": lambda f: f"stands in term {f.get('term')}" + (
        ", told so by the leader" if f.get("handed_over") else ""
    ),
    "vote": lambda f: f"votes for server {f.get('to')} in term {f.get('term')}",
    "leader_gone": lambda f: f"finds the process of server {f.get('leader')} gone: its host refuses connections",
    "deferred": lambda f: f"makes way for server {f.get('to')}, whose log or rank is higher (term {f.get('term')})",
    "election_cycle_ended": lambda f: (
        f"finds no majority in term {f.get('term')} (votes of {servers(f.get('granted'))})"
    ),
    "leader": _leader,
    "following": lambda f: f"follows server {f.get('leader')} in term {f.get('term')}",
    "passive": lambda f: f"leads no more (it knows of term {f.get('term')})",
    "leader_gives_up": _gives_up,
    "leader_lost_majority": lambda f: f"hears no majority any more and stops leading term {f.get('term')}",
    "handing_over": lambda f: f"hands over to server {f.get('to')}" + (f": {f['why']}" if f.get("why") else ""),
    "expunge": _expunge,
    "second_leader": lambda f: f"hears a second leader of term {f.get('term')}, server {f.get('sender')}",
    "serving": lambda f: f"is started ({f.get('status')}, last entry {f.get('last_id')}, term {f.get('term')})",
    "stopping": lambda f: "was told to stop" + (" while it led" if f.get("state") == "leader" else ""),
    "stopped": lambda f: "has stopped" + ("" if f.get("in_time", True) else ", with work still in flight"),
    "stopping_itself": lambda f: f"stops itself: {f.get('why')}",
    "slow_fsync": _slow,
    "disk_hangs": lambda f: f"waits for its disk: a write is under way for {f.get('under_way_ms')} ms",
    "disk_moves_again": lambda f: f"waits for its disk no more; a write took {f.get('took_ms')} ms",
    "peer_unreachable": lambda f: f"has no connection to server {f.get('peer')}: {f.get('why')}",
    "peer_lost": lambda f: f"loses its connection to server {f.get('peer')}: {f.get('why')}",
    "peer_connected": lambda f: f"is connected to server {f.get('peer')}",
    "started": lambda f: "has its first start behind it",
    "address_change": lambda f: f"writes down that server {f.get('member')} is at {f.get('new')} (was {f.get('old')})",
    "member_change": lambda f: (
        f"writes down that server {f.get('member')} is {_role(f.get('role'))} (was {_role(f.get('before'))})"
    ),
    "lost_disk": lambda f: f"finds another disk in the place of server {f.get('member')}'s",
    "base_sent": lambda f: f"sends server {f.get('member')} a base, up to entry {f.get('base_id')}",
    "base_installed": lambda f: f"begins anew from a base, up to entry {f.get('base_id')}",
    "gone": lambda f: "was removed from the cluster",
    "retired": lambda f: f"is told by server {f.get('told_by')} that its disk is no member any more",
    "store_went_back": lambda f: f"finds that server {f.get('member')} has forgotten what it acknowledged",
    "learner_went_back": lambda f: f"finds that server {f.get('member')}, still catching up, has forgotten some of it",
    "clean": lambda f: f"deletes its entries up to {f.get('upto_id')}; the log begins at LSN {f.get('first_lsn')}",
    "cursor_dropped": lambda f: f"forgets the cursor {f.get('cursor')}, at LSN {f.get('lsn')} ({f.get('why')})",
    "settings": lambda f: f"takes the settings of entry {f.get('id')}",
    "size": lambda f: f"holds {f.get('live_bytes')} bytes",
}
