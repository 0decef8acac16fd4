"""Story of a stage, to be drawn: moments of servers, flights of messages, marks.

Laws:

* A story works on any stage, of a world or of a replay: it only uses the record of actions and a watcher's calls.
* It keeps the time from ``from_us`` to ``until_us``, and the views of all servers at the beginning of it.
* An *instant* is a number for all that one server does or takes at one microsecond; causes have lower numbers than
  effects, even where a schedule lets everything happen at one time. ``when_us`` holds the time of each instant.
* A flight that never arrived counts as lost, unless `finish` is told that it was still on its way.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from alpo.core.disk import Write
from alpo.core.inputs import Input, Received
from alpo.core.messages import AppendAnswer, AppendRequest, Envelope
from alpo.core.ready import Ready

from ..host import NEVER_US, Host
from ..stage import Action, Boot, Clock, Crash, Deliver, Join, Move, Persist, PutBack, Stage, Step, Wipe
from .words import Said, said, span


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
