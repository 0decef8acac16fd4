"""Words for messages and requests in the picture: short on an arrow, complete in a tooltip or a panel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from alpo.core import inputs, requests
from alpo.core import messages as m
from alpo.core.entries import Entry, Kind, serials_of
from alpo.core.ranks import Rank


class Said(NamedTuple):
    """Message in words. ``kind`` is one of `KINDS`; ``good``: a yes (True), a no (False), a question (None)."""

    kind: str
    label: str
    words: str
    good: bool | None = None


#: Kind of message -> its text in the legend. Answers have the colour of their question.
KINDS = {
    "canvass": "canvass: would you vote for me? (R2)",
    "vote": "vote (R3, R4)",
    "defer": "defer: make way (R6)",
    "append": "append: entries, by their ids (R12)",
    "mark": "guaranteed mark alone (R16)",
    "heartbeat": "heartbeat",
    "handover": "handover: stand at once (R28)",
    "start": "first start, identity (R29, R27)",
}

_CANVASS = {
    m.Canvass.YES: "I would",
    m.Canvass.TERM: "no: my term is higher, or my vote in it is spent",
    m.Canvass.LEADER: "no: there is a live leader",
    m.Canvass.OUTRANKED: "no: my log is fresher than yours",
    m.Canvass.RIVAL: "no: I canvass myself, and rank higher",
}
_VOTE = {
    m.Vote.GRANTED: "you have my vote",
    m.Vote.OUTRANKED: "no: my log is fresher than yours",
    m.Vote.HELD: "no: {} has my vote",
    m.Vote.LEADER: "no: there is a live leader",
    m.Vote.STALE: "no: that term is over",
}


def ids(first: int, last: int) -> str:
    """Text for the ids ``first`` to ``last``, both included."""
    return f"{first}" if first == last else f"{first}–{last}"


def said(message: m.Message, news: bool) -> Said:
    """Put ``message`` into words.

    ``news``: an append without entries moves the guaranteed mark, or an answer to one accepts more than before.
    """
    if isinstance(message, m.AppendRequest):
        return _append(message, news)
    if isinstance(message, m.AppendAnswer):
        return _append_answer(message, news)
    return _SAID[type(message)](message)


def _append(x: m.AppendRequest, news: bool) -> Said:
    mark = f"guaranteed up to {x.guaranteed_id}"
    if x.entries:
        which = ids(x.entries[0].id, x.entries[-1].id)
        after = f", after {x.prev_id} of term {x.prev_term}" if x.prev_id else ""
        return Said("append", which, f"append {which}{after}; term {x.term}, {mark}")
    if news:
        return Said("mark", f"mark {x.guaranteed_id}", f"{mark}; term {x.term}")
    return Said("heartbeat", "", f"heartbeat of term {x.term}, {mark}")


def _append_answer(x: m.AppendAnswer, news: bool) -> Said:
    if not x.ok:
        words = f"does not fit: my last entry is {x.last_id}; term {x.term}"
        return Said("append", f"no, have {x.last_id}", words, False)
    if news:
        return Said("append", f"ok {x.match_id}", f"all up to {x.match_id} is on my disk; term {x.term}", True)
    return Said("heartbeat", "", f"heard, all up to {x.match_id} is on my disk; term {x.term}", True)


def _rank(rank: Rank) -> str:
    return f"its last entry: {rank[1]} of term {rank[0]}" if rank[1] else "its log is empty"


def _canvass(x: m.CanvassRequest) -> Said:
    term = f"{x.term}, again" if x.again else f"{x.term}"
    return Said("canvass", "canvass", f"would you vote for me in term {term}? ({_rank(x.rank)})")


def _canvass_answer(x: m.CanvassAnswer) -> Said:
    good = x.answer is m.Canvass.YES
    return Said("canvass", "yes" if good else x.answer.name.lower(), f"{_CANVASS[x.answer]} (its term: {x.term})", good)


def _vote(x: m.VoteRequest) -> Said:
    why = ", as the leader handed over" if x.handed_over else ""
    return Said("vote", "vote", f"give me your vote in term {x.term}{why} ({_rank(x.rank)})")


def _vote_answer(x: m.VoteAnswer) -> Said:
    label = f"held by {x.holder}" if x.answer is m.Vote.HELD else x.answer.name.lower()
    words = f"{_VOTE[x.answer].format(x.holder)} (term {x.request_term})"
    return Said("vote", label, words, x.answer is m.Vote.GRANTED)


def _base_answer(x: m.SnapshotAnswer) -> Said:
    label = f"base {x.base_id}" if x.base_id else "part"
    return Said("start", label, f"I have {x.wanted} parts of that base", True)


def _copy_answer(x: m.CopyAnswer) -> Said:
    there = f"my copy of entry {x.id}" if x.entries else f"I have cleaned up to {x.base_id}"
    return Said("start", f"copy {x.id}", there, bool(x.entries))


_SAID: dict[type, Callable[[Any], Said]] = {
    m.CanvassRequest: _canvass,
    m.CanvassAnswer: _canvass_answer,
    m.VoteRequest: _vote,
    m.VoteAnswer: _vote_answer,
    m.DeferRequest: lambda x: Said("defer", "defer", f"make way for me in term {x.term} ({_rank(x.rank)})"),
    m.DeferAnswer: lambda x: Said(
        "defer", x.answer.name.lower(), f"answers {x.answer.name}", x.answer is m.Defer.DEFERRED
    ),
    m.HandOver: lambda x: Said("handover", "stand!", f"stand for election at once, term {x.term} is over"),
    m.StartQuestion: lambda x: Said("start", "started?", "how far are you with the first start?"),
    m.StartAnswer: lambda x: Said("start", x.status.name.lower(), f"I am {x.status.name}", True),
    m.SnapshotPart: lambda x: Said(
        "start", "base", f"begin from this base: part {x.part + 1} of {x.parts}; term {x.term}"
    ),
    m.SnapshotAnswer: _base_answer,
    m.Retired: lambda x: Said("start", "retired", "your disk is no member any more", False),
    m.WentBack: lambda x: Said(
        "start", "went back", f"your disk has acknowledged entry {x.held_id}, and lost it", False
    ),
    m.CopyRequest: lambda x: Said("start", f"copy {x.id}?", f"my entry {x.id} is damaged: please send yours"),
    m.CopyAnswer: _copy_answer,
    m.WrongIncarnation: lambda x: Said("start", "not me", "you mean another incarnation than mine", False),
}


# -- clients and operators ------------------------------------------------------------------------------


def who(client: str) -> str:
    """Text for a client: its name, or the end of a random client's long id."""
    return f"~…{client[-4:]}" if client.startswith("~") and len(client) > 9 else client


def serial_words(first: int, count: int) -> str:
    """Text for ``count`` serials from ``first`` on."""
    return f"serials {first} to {first + count - 1}" if count > 1 else f"serial {first}"


def lsn_words(lsns: Sequence[int]) -> str:
    """Text for the LSNs of appends: the first and the last if they follow on, else all."""
    follow = all(after == before + 1 for before, after in pairwise(lsns))
    return f"{lsns[0]} to {lsns[-1]}" if follow and len(lsns) > 1 else ", ".join(map(str, lsns))


def asked(request: inputs.Input) -> str:
    """Put a request of a client or an operator into words; "" for any other input."""
    words = _ASKED.get(type(request))
    return words(request) if words is not None else ""


_ASKED: dict[type, Callable[[Any], str]] = {
    requests.AppendRun: lambda x: (
        f"client {who(x.client)} asks to append its {serial_words(x.serial, len(x.bodies))}"
        + ("" if x.expect_last is None else f", if LSN {x.expect_last} is the last")
    ),
    requests.OpenSession: lambda x: f"client {who(x.name)} asks to open its session, replacing epoch {x.replaces}",
    requests.DropSession: lambda x: f"an operator asks to drop the session of {who(x.name)}",
    requests.ListSessions: lambda x: "an operator asks for the sessions",
    requests.ReadIndex: lambda x: "a reader asks up to where it must see",
    requests.Initialise: lambda x: "an operator asks to found the cluster",
    inputs.Stop: lambda x: "it is asked to stop",
    inputs.Connected: lambda x: f"its connection to {x.peer} is up",
    inputs.Disconnected: lambda x: f"its connection to {x.peer} is down",
}


def replied(reply: requests.Reply) -> str:
    """Put a reply to a client or an operator into words."""
    words = _REPLIED.get(type(reply))
    return words(reply) if words is not None else f"tells an operator: {type(reply).__name__}"


def _appended(x: requests.Appended) -> str:
    before = ", as it was before" if x.duplicate else ""
    be = "is" if len(x.lsns) == 1 else "are"
    serials, lsns = serial_words(x.serial, len(x.lsns)), lsn_words(x.lsns)
    return f"tells client {who(x.client)}: {serials} {be} in the log, LSN {lsns}{before}"


def _refused(x: requests.Refused) -> str:
    leader = f", the leader is {x.leader}" if x.leader else ""
    whom = f" client {who(x.client)}, {serial_words(x.serial, x.count)}" if x.client else ""
    return f"refuses{whom}: {x.code.name}{leader}"


_REPLIED: dict[type, Callable[[Any], str]] = {
    requests.Appended: _appended,
    requests.Refused: _refused,
    requests.Opened: lambda x: f"tells a client: its session is open, epoch {x.epoch}",
    requests.Dropped: lambda x: "tells an operator: dropped",
    requests.Sessions: lambda x: f"tells an operator {len(x.rows)} sessions",
    requests.ReadAt: lambda x: f"tells a reader: see up to {x.id}",
    requests.Initialised: lambda x: "tells an operator: founded",
}


def entry_words(entry: Entry) -> str:
    """Put an entry into words: its kind, its client, and the LSNs of its payloads."""
    kind = Kind(entry.kind)
    if kind is Kind.DATA:
        serials = serial_words(entry.serial, serials_of(entry.digest))
        return f"DATA {who(entry.client)} {serials}, LSN {ids(entry.lsn, entry.lsn + entry.count - 1)}"
    return f"{kind.name} {who(entry.client)}".rstrip()


def span(duration_us: float) -> str:
    """Put a duration, in microseconds, into words, with about three digits."""
    if duration_us < 1000:
        return f"{duration_us / 1000:.2f} ms"
    if duration_us < 10_000:
        return f"{duration_us / 1000:.1f} ms"
    return f"{duration_us / 1000:.0f} ms" if duration_us < 2_000_000 else f"{duration_us / 1e6:.1f} s"


def cut_words(cut: dict[tuple[int, int], bool], servers: list[int]) -> str:
    """Put into words, as briefly as possible, which links are cut: the (sender, receiver) pairs in ``cut``."""
    pairs = [(a, b) for a in servers for b in servers if a != b]
    stands = {pair: pair not in cut for pair in pairs}
    for one in servers:
        others = [b for b in servers if b != one]
        rest_whole = all(stands[a, b] for a in others for b in others if a != b)
        to, back = any(stands[one, b] for b in others), any(stands[b, one] for b in others)
        if rest_whole and not (to and back):
            return f"{one} hears nobody" if to else f"{one} is not heard" if back else f"{one} is cut off"
    islands = list(_islands(stands, servers))
    if len(islands) > 1 and all(stands[a, b] for group in islands for a in group for b in group if a != b):
        return "cut: " + " | ".join(" ".join(map(str, group)) for group in islands)
    hubs = [h for h in servers if all(stands[h, b] and stands[b, h] for b in servers if b != h)]
    if len(hubs) == 1:
        rest = [b for b in servers if b not in hubs]
        groups = list(_islands({(a, b): stands[a, b] for a in rest for b in rest if a != b}, rest))
        if all(stands[a, b] for group in groups for a in group for b in group if a != b):
            return " | ".join(" ".join(map(str, group)) for group in groups) + f", joined by {hubs[0]} alone"
    left = [f"{a}–{b}" for a, b in pairs if a < b and stands[a, b] and stands[b, a]]
    left += [f"{a}→{b}" for a, b in pairs if stands[a, b] and not stands[b, a]]
    return "only " + ", ".join(left) if left else "all links cut"


def _islands(stands: dict[tuple[int, int], bool], servers: list[int]) -> Iterator[list[int]]:
    """Yield the groups of servers that links join, directly or through others."""
    left = list(servers)
    while left:
        group = [left.pop(0)]
        for member in group:
            near = [b for b in left if stands[member, b] or stands[b, member]]
            group += near
            left = [b for b in left if b not in near]
        yield sorted(group)
