"""Story of a stage, to be drawn: moments of servers, flights of messages, marks.

Laws:

* A story works on any stage, of a world or of a replay: it only uses the record of actions and a watcher's calls.
* It keeps the time from ``from_us`` to ``until_us``, and the views of all servers at the beginning of it.
* An *instant* is a number for all that one server does or takes at one microsecond; causes have lower numbers than
  effects, even where a schedule lets everything happen at one time. ``when_us`` holds the time of each instant.
* A flight that never arrived counts as lost, unless `finish` is told that it was still on its way.

`said` puts a message into words: short ones for an arrow, complete ones for a tooltip.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from alpo.core import messages as m
from alpo.core.disk import Write
from alpo.core.messages import AppendAnswer, AppendRequest, Envelope
from alpo.core.ranks import Rank
from alpo.core.ready import Input, Ready, Received

from ..host import NEVER_US, Host
from ..stage import Action, Boot, Clock, Crash, Deliver, Join, Move, Persist, PutBack, Stage, Step, Wipe


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


class Enough(Exception):
    """Exception that ends a run at the end of the time to be drawn."""


class View(NamedTuple):
    """Server as it is at a moment. ``state``: passive, candidate, leader or down; ``disk_id``: last entry on its disk;
    ``runs``: (term, first id) of the log.
    """

    state: str
    status: str
    term: int
    vote: int
    leader: int
    last_id: int
    disk_id: int
    guaranteed_id: int
    runs: tuple[tuple[int, int], ...]


NOWHERE = View("down", "", 0, 0, 0, 0, 0, 0, ())


@dataclass(slots=True, eq=False)
class Flight:
    """Flight of a message. ``sent`` and ``arrived`` are instants; with copies there are several arrivals, and none if
    the message was lost or is still ``on_way``. ``repeat``: an equal message went this way before, with the same fate,
    and neither sender nor target has changed since.
    """

    number: int
    envelope: Envelope
    said: Said
    sent: int
    arrived: list[int] = field(default_factory=list)
    on_way: bool = False
    repeat: bool = False

    @property
    def source(self) -> int:
        return self.envelope.sender.id

    @property
    def target(self) -> int:
        return self.envelope.target.id

    @property
    def plain(self) -> bool:
        """True for a heartbeat, and for a repeated message."""
        return self.repeat or self.said.kind == "heartbeat"

    @property
    def lost(self) -> bool:
        return not self.arrived and not self.on_way


@dataclass(slots=True, eq=False)
class Moment:
    """Event of one server. ``name``: step, disk, boot, crash, wipe, move or clock.

    ``took``: (first id, last id, term) of entries taken into the log, in memory as yet; ``expunged``: (first id, last
    id) of entries that the step expunged; ``label``: the event in few words, for the server's lane.
    """

    at_us: int
    instant: int
    server: int
    name: str
    before: View
    view: View = NOWHERE
    sent: list[Flight] = field(default_factory=list)
    heard: list[Flight] = field(default_factory=list)
    took: list[tuple[int, int, int]] = field(default_factory=list)
    expunged: tuple[int, int] | None = None
    label: str = ""

    @property
    def seen(self) -> bool:
        """True if the moment is visible in a picture."""
        return bool(self.label) or self.view != self.before or not all(f.plain for f in (*self.sent, *self.heard))


class Mark(NamedTuple):
    """Fault that lasts. ``name``: pause or stall, of a server, or cut, of links (``server`` is 0)."""

    name: str
    server: int
    from_us: int
    until_us: int
    words: str


class _Befalls(NamedTuple):
    """Texts for one kind of action: the `Moment`'s name, and its label where that is always the same."""

    name: str
    label: str = ""


_BEFALLS: dict[type, _Befalls] = {
    Boot: _Befalls("boot"),
    Crash: _Befalls("crash", "crash"),
    Wipe: _Befalls("wipe", "disk lost"),
    PutBack: _Befalls("wipe", "old disk"),
    Join: _Befalls("move", "to join"),
    Move: _Befalls("move", "moves"),
    Persist: _Befalls("disk"),
    Step: _Befalls("step"),
    Clock: _Befalls("clock"),
}


class _Tape(list[Action]):
    """Record of a stage that tells the story of every action that is added."""

    def __init__(self, story: Story, kept: list[Action] | None) -> None:
        super().__init__(kept or ())
        self._story, self._keep = story, kept is not None

    def append(self, action: Action) -> None:
        if self._keep:
            super().append(action)
        self._story.performed(action)


class Story:
    """Watcher of ``stage`` and its record, from now on. Call `finish` when the run is over."""

    def __init__(self, stage: Stage, from_us: int = 0, until_us: int = NEVER_US) -> None:
        self.stage, self.from_us, self.until_us = stage, from_us, until_us
        self.servers = list(stage.hosts)
        self.moments: list[Moment] = []
        self.flights: list[Flight] = []
        self.marks: list[Mark] = []
        self.when_us: list[int] = []
        self.views = {host.id: view_of(host) for host in stage.hosts.values()}
        self.views_before: dict[int, View] = dict(self.views)  # as ``from_us`` came
        self.end_us = 0
        self.failure: tuple[str, str] | None = None  # (invariant, detail) if the run broke one
        self._moment: Moment | None = None
        self._acting = 0
        self._by_envelope: dict[int, Flight] = {}
        self._told: dict[tuple[int, int, int], tuple[int, int]] = {}  # (source, target, term) -> marks last sent
        stage.record = _Tape(self, stage.record)

    # -- what the stage does ----------------------------------------------------------------------------

    def performed(self, action: Action) -> None:
        """Begin a moment for ``action``; end the one before."""
        self._close()
        if action.at_us > self.until_us:
            raise Enough
        self._begin(action.at_us, action.envelope.target.id if isinstance(action, Deliver) else action.id)
        if isinstance(action, Deliver):
            flight = self._flight_of(action.envelope)
            if flight is not None:
                flight.arrived.append(self._now)
        elif type(action) in _BEFALLS:
            self._moment = moment = Moment(
                action.at_us, self._now, action.id, _BEFALLS[type(action)].name, self.views[action.id]
            )
            self._describe(moment, action)

    def _begin(self, at_us: int, server: int) -> None:
        if not self.when_us or at_us != self.end_us or server != self._acting:
            self.when_us.append(at_us)
            self.end_us, self._acting = at_us, server

    @property
    def _now(self) -> int:
        return len(self.when_us) - 1

    def instant_at(self, at_us: int) -> int:
        """The first instant at or after that time; the last one if there is none."""
        return min(bisect_left(self.when_us, at_us), self._now)

    def _describe(self, moment: Moment, action: Action) -> None:
        """Label ``moment`` with the effect of ``action`` on the server."""
        moment.label = _BEFALLS[type(action)].label
        host = self.stage.hosts[moment.server]
        if isinstance(action, Boot):
            moment.label = "restarts" if host.boots else "starts"
        elif isinstance(action, Clock) and host.boots:
            if action.jump_ms:
                moment.label = f"clock {'+' if action.jump_ms > 0 else '−'}{span(abs(action.jump_ms) * 1000)}"
            if action.rate != host.rate:
                moment.label = moment.label or f"clock × {action.rate:.3f}"

    def booted(self, host: Host) -> None:
        pass

    def committing(self, host: Host, writes: Sequence[Write]) -> None:
        pass

    def sent(self, host: Host, envelope: Envelope) -> None:
        flight = Flight(len(self.flights), envelope, said(envelope.message, self._is_news(envelope)), self._now)
        self._by_envelope[id(envelope)] = flight
        if self.end_us >= self.from_us:
            self.flights.append(flight)
        if self._moment is not None:
            self._moment.sent.append(flight)

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        moment = self._moment
        if moment is None:
            return
        for each in inputs:
            if isinstance(each, Received):
                flight = self._flight_of(each.envelope)
                if flight is not None:
                    moment.heard.append(flight)
        if ready.write is not None:
            self._written(moment, ready.write)

    def _written(self, moment: Moment, write: Write) -> None:
        if write.expunge_from is not None and write.expunge_from <= moment.before.last_id:
            moment.expunged = (write.expunge_from, moment.before.last_id)
        for entry in write.entries:
            if moment.took and moment.took[-1][2] == entry.term:
                moment.took[-1] = (moment.took[-1][0], entry.id, entry.term)
            else:
                moment.took.append((entry.id, entry.id, entry.term))

    # -- keeping it -------------------------------------------------------------------------------------

    def _is_news(self, envelope: Envelope) -> bool:
        """True unless the message is an append that moves no mark, or an answer that accepts no more than the last."""
        m = envelope.message
        if not isinstance(m, (AppendRequest, AppendAnswer)):
            return True
        way = envelope.sender.id, envelope.target.id, m.term
        mark, match = self._told.get(way, (0, 0))
        now = (max(mark, m.guaranteed_id), match) if isinstance(m, AppendRequest) else (mark, max(match, m.match_id))
        self._told[way] = now
        return now != (mark, match)

    def _flight_of(self, envelope: Envelope) -> Flight | None:
        """The flight of an envelope; None if it was sent before the story began."""
        flight = self._by_envelope.get(id(envelope))
        return flight if flight is not None and flight.envelope is envelope else None

    def _close(self) -> None:
        """Complete the current moment with what its server looks like after it, and keep it if the story has begun."""
        moment, self._moment = self._moment, None
        if moment is None:
            return
        moment.view = view = view_of(self.stage.hosts[moment.server])
        self.views[moment.server] = view
        if moment.at_us >= self.from_us:
            self.moments.append(moment)
        else:
            self.views_before[moment.server] = view

    def begin_anew(self) -> None:
        """Forget everything so far: the story begins now."""
        self._close()
        self.moments.clear()
        self.flights.clear()
        self.marks.clear()
        self._by_envelope.clear()
        self.when_us.clear()
        self.views_before = dict(self.views)

    def finish(self, still_on_way: Sequence[Envelope] = ()) -> None:
        """End the story. ``still_on_way``: messages that were sent, and neither arrived nor were lost."""
        self._close()
        if self.stage.now_us <= self.until_us:
            self.end_us = max(self.end_us, self.stage.now_us)
        for envelope in still_on_way:
            flight = self._by_envelope.get(id(envelope))
            if flight is not None:
                flight.on_way = True
        self._find_repeats()
        self._cut_pauses_short()

    def _cut_pauses_short(self) -> None:
        """End every pause where its process ends."""
        for at, mark in enumerate(self.marks):
            ends = [m.at_us for m in self.moments if m.server == mark.server and m.name == "crash"]
            until_us = min((e for e in ends if mark.from_us <= e), default=mark.until_us)
            self.marks[at] = mark._replace(until_us=min(mark.until_us, until_us))

    def _find_repeats(self) -> None:
        changes: dict[int, list[int]] = {id: [] for id in self.servers}
        for moment in self.moments:
            if moment.view != moment.before or moment.label:
                changes[moment.server].append(moment.instant)
        last: dict[tuple[int, int, str, str], Flight] = {}
        for flight in self.flights:
            way = flight.source, flight.target, flight.said.kind, flight.said.label
            before = last.get(way)
            if before is not None and flight.lost == before.lost:
                flight.repeat = not any(
                    bisect_right(changes[end], flight.sent) > bisect_left(changes[end], before.sent)
                    for end in (flight.source, flight.target) if end in changes
                )
            last[way] = flight


def view_of(host: Host) -> View:
    """Look at a server as it is now; at what its disk holds if it is down."""
    r = host.replica
    if r is None:
        disk = host.store.boot()
        return View(
            "down", "", disk.term, disk.vote, 0, disk.last_id, disk.last_id, min(disk.guaranteed_id, disk.last_id),
            tuple(disk.runs),
        )
    return View(
        r.state.value, r.status_text, r.term, r.vote, r.leader_id, r.log.last_id, min(host.disk_last_id, r.log.last_id),
        r.guaranteed_id, tuple(r.log.runs),
    )
