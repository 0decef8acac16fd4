"""What servers say and do, in words a reader of the picture knows: short on an arrow, whole in a tooltip or a panel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from alpo.core.entries import Entry, Kind
from alpo.core.inputs import (
    AppendRun,
    Connected,
    Disconnected,
    DropSession,
    Initialise,
    Input,
    ListSessions,
    OpenSession,
    ReadIndex,
    Stop,
)
from alpo.core.messages import (
    AppendAnswer,
    AppendRequest,
    BaseAnswer,
    BasePart,
    Canvass,
    CanvassAnswer,
    CanvassRequest,
    CopyAnswer,
    CopyRequest,
    Defer,
    DeferAnswer,
    DeferRequest,
    HandOver,
    Message,
    Retired,
    StartAnswer,
    StartQuestion,
    Vote,
    VoteAnswer,
    VoteRequest,
    WentBack,
)
from alpo.core.ready import Appended, Dropped, Opened, ReadAt, Refused, Reply, Sessions


class Said(NamedTuple):
    """A message. ``kind`` is one of `KINDS`; ``good``: a yes (True), a no (False), a question (None)."""

    kind: str
    label: str
    words: str
    good: bool | None = None


#: What the legend says of each kind; the answer to a kind is drawn in its colour.
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


def ids(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}–{last}"


def said(message: Message, news: bool) -> Said:
    """``news``: an append without entries moves the guaranteed mark, or an answer to one accepts more than before."""
    if isinstance(message, AppendRequest):
        return _append(message, news)
    if isinstance(message, AppendAnswer):
        return _append_answer(message, news)
    if isinstance(message, CanvassRequest):
        term = f"{message.term}, again" if message.again else f"{message.term}"
        return Said("canvass", "canvass", f"would you vote for me in term {term}? ({_rank(message.rank)})")
    if isinstance(message, CanvassAnswer):
        return _canvass_answer(message)
    if isinstance(message, VoteRequest):
        why = ", as the leader handed over" if message.handed_over else ""
        return Said("vote", "vote", f"give me your vote in term {message.term}{why} ({_rank(message.rank)})")
    if isinstance(message, VoteAnswer):
        return _vote_answer(message)
    if isinstance(message, DeferRequest):
        return Said("defer", "defer", f"make way for me in term {message.term} ({_rank(message.rank)})")
    if isinstance(message, DeferAnswer):
        name = message.answer.name
        return Said("defer", name.lower(), f"answers {name}", message.answer is Defer.DEFERRED)
    if isinstance(message, HandOver):
        return Said("handover", "stand!", f"stand for election at once, term {message.term} is over")
    if isinstance(message, StartQuestion):
        return Said("start", "started?", "how far are you with the first start?")
    if isinstance(message, StartAnswer):
        return Said("start", message.status.name.lower(), f"I am {message.status.name}", True)
    if isinstance(message, BasePart):
        part = f"part {message.part + 1} of {message.parts}"
        return Said("start", "base", f"begin from this base: {part}; term {message.term}")
    if isinstance(message, BaseAnswer):
        short = f"base {message.base_id}" if message.base_id else "part"
        return Said("start", short, f"I have {message.wanted} parts of that base", True)
    if isinstance(message, Retired):
        return Said("start", "retired", "your disk is no member any more", False)
    if isinstance(message, WentBack):
        return Said("start", "went back", f"your disk has acknowledged entry {message.held_id}, and lost it", False)
    if isinstance(message, CopyRequest):
        return Said("start", f"copy {message.id}?", f"my entry {message.id} is damaged: please send yours")
    if isinstance(message, CopyAnswer):
        there = f"my copy of entry {message.id}" if message.entries else f"I have cleaned up to {message.base_id}"
        return Said("start", f"copy {message.id}", there, bool(message.entries))
    return Said("start", "not me", "you mean another incarnation than mine", False)


def _rank(rank: tuple[int, ...]) -> str:
    return f"its last entry: {rank[1]} of term {rank[0]}" if rank[1] else "its log is empty"


def _append(m: AppendRequest, news: bool) -> Said:
    mark = f"guaranteed up to {m.guaranteed_id}"
    if m.entries:
        which = ids(m.entries[0].id, m.entries[-1].id)
        after = f", after {m.prev_id} of term {m.prev_term}" if m.prev_id else ""
        return Said("append", which, f"append {which}{after}; term {m.term}, {mark}")
    if news:
        return Said("mark", f"mark {m.guaranteed_id}", f"{mark}; term {m.term}")
    return Said("heartbeat", "", f"heartbeat of term {m.term}, {mark}")


def _append_answer(m: AppendAnswer, news: bool) -> Said:
    if not m.ok:
        words = f"does not fit: my last entry is {m.last_id}; term {m.term}"
        return Said("append", f"no, have {m.last_id}", words, False)
    if news:
        return Said("append", f"ok {m.match_id}", f"all up to {m.match_id} is on my disk; term {m.term}", True)
    return Said("heartbeat", "", f"heard, all up to {m.match_id} is on my disk; term {m.term}", True)


_CANVASS = {
    Canvass.YES: "I would",
    Canvass.TERM: "no: my term is higher, or my vote in it is spent",
    Canvass.LEADER: "no: there is a live leader",
    Canvass.OUTRANKED: "no: my log is fresher than yours",
    Canvass.RIVAL: "no: I canvass myself, and rank higher",
}


def _canvass_answer(m: CanvassAnswer) -> Said:
    good = m.answer is Canvass.YES
    return Said("canvass", "yes" if good else m.answer.name.lower(), f"{_CANVASS[m.answer]} (its term: {m.term})", good)


def _vote_answer(m: VoteAnswer) -> Said:
    words = {
        Vote.GRANTED: "you have my vote",
        Vote.OUTRANKED: "no: my log is fresher than yours",
        Vote.HELD: f"no: {m.holder} has my vote",
        Vote.LEADER: "no: there is a live leader",
        Vote.STALE: "no: that term is over",
    }[m.answer]
    good = m.answer is Vote.GRANTED
    label = f"held by {m.holder}" if m.answer is Vote.HELD else m.answer.name.lower()
    return Said("vote", label, f"{words} (term {m.request_term})", good)


# -- clients and operators ------------------------------------------------------------------------------


def who(client: str) -> str:
    """A random client's id is long; its end tells it from others."""
    return f"~…{client[-4:]}" if client.startswith("~") and len(client) > 9 else client


def asked(request: Input) -> str:
    """"" for what nobody outside asked."""
    if isinstance(request, AppendRun):
        serials = ids(request.serial, request.serial + len(request.bodies) - 1)
        return f"client {who(request.client)} asks to append its serial {serials}"
    if isinstance(request, OpenSession):
        return f"client {who(request.name)} asks to open its session, replacing epoch {request.replaces}"
    if isinstance(request, DropSession):
        return f"an operator asks to drop the session of {who(request.name)}"
    if isinstance(request, ListSessions):
        return "an operator asks for the sessions"
    if isinstance(request, ReadIndex):
        return "a reader asks up to where it must see"
    if isinstance(request, Initialise):
        return "an operator asks to found the cluster"
    if isinstance(request, Stop):
        return "it is asked to stop"
    if isinstance(request, Connected):
        return f"its connection to {request.peer} is up"
    if isinstance(request, Disconnected):
        return f"its connection to {request.peer} is down"
    return ""


def replied(reply: Reply) -> str:
    if isinstance(reply, Appended):
        serials = ids(reply.serial, reply.serial + len(reply.lsns) - 1)
        before = ", as it was before" if reply.duplicate else ""
        lsns = ids(reply.lsns[0], reply.lsns[-1])
        return f"tells client {who(reply.client)}: serial {serials} is in the log, LSN {lsns}{before}"
    if isinstance(reply, Refused):
        leader = f", the leader is {reply.leader}" if reply.leader else ""
        whom = f" client {who(reply.client)}, serial {reply.serial}" if reply.client else ""
        return f"refuses{whom}: {reply.code.name}{leader}"
    if isinstance(reply, Opened):
        return f"tells a client: its session is open, epoch {reply.epoch}"
    if isinstance(reply, Dropped):
        return "tells an operator: dropped"
    if isinstance(reply, Sessions):
        return f"tells an operator {len(reply.rows)} sessions"
    if isinstance(reply, ReadAt):
        return f"tells a reader: see up to {reply.id}"
    return "tells an operator: founded"


def entry_words(entry: Entry) -> str:
    kind = Kind(entry.kind)
    if kind is Kind.DATA:
        return f"DATA {who(entry.client)} serial {entry.serial}, LSN {ids(entry.lsn, entry.lsn + entry.count - 1)}"
    return f"{kind.name} {who(entry.client)}".rstrip()


def span(duration_us: float) -> str:
    """3 digits or so."""
    if duration_us < 1000:
        return f"{duration_us / 1000:.2f} ms"
    if duration_us < 10_000:
        return f"{duration_us / 1000:.1f} ms"
    return f"{duration_us / 1000:.0f} ms" if duration_us < 2_000_000 else f"{duration_us / 1e6:.1f} s"


def cut_words(cut: dict[tuple[int, int], bool], servers: list[int]) -> str:
    """Which links are cut, as short as it can be said."""
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
    left = list(servers)
    while left:
        group = [left.pop(0)]
        for member in group:
            near = [b for b in left if stands[member, b] or stands[b, member]]
            group += near
            left = [b for b in left if b not in near]
        yield sorted(group)
