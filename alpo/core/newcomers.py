"""Servers that the leader cannot reach as members: who answers there, and the base that lets it begin (R27, R29, R30).

Laws:

* Only an answer to the newest question counts: what a store said before it was wiped says nothing of the one after it.
* A base goes to LEARNERs alone: whoever votes holds all that may have been cleaned (R18, R19). One who has answered an
  append request in this reign has started: word that it has not is late.
* It is sent part by part. An answer says which part is wanted next: the leader goes on from there. T without one begins
  the same transfer again at its first part; a learner that has that says at once how far it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .disk import Image, LoadImage, SessionRow
from .members import Identity, Role, StartStatus
from .messages import BaseAnswer, BasePart, StartAnswer, StartQuestion
from .replication import Progress
from .snapshots import image_head, split_rows

if TYPE_CHECKING:
    from .changes import Changes
    from .replica import Replica


class Sending:
    """One transfer to one learner."""

    def __init__(self, who: Identity, number: int, now_s: float) -> None:
        self.who = who
        self.number = number
        self.asked_s = now_s
        self.head = ""
        self.parts: list[tuple[SessionRow, ...]] = []
        self.at = 0  # the part last sent
        self.sent_s = now_s


class Newcomers:
    """The leader's questions and base transfers; part of `Changes`."""

    def __init__(self, replica: Replica, changes: Changes) -> None:
        self._r = replica
        self._changes = changes
        self._number = int(replica.rng.random() * (1 << 40))
        self._asked: dict[int, int] = {}  # id -> the number of the newest question
        self._ask_again_s = 0.0
        self._sending: dict[int, Sending] = {}

    # -- questions --------------------------------------------------------------------------------------

    def _silent(self, peer: Progress) -> bool:
        r = self._r
        return peer.who.id not in r.connected or r.now_s - peer.heard_s >= 2 * r.cfg.heartbeat_s

    def _to_ask(self) -> list[int]:
        leadership, pending = self._r.leadership, self._changes.pending
        assert leadership is not None
        ids = [id for id, peer in leadership.peers.items() if self._silent(peer)]
        return sorted({*ids, pending.id}) if pending is not None else ids

    @property
    def sending(self) -> bool:
        """Is a base on its way to anybody?"""
        return bool(self._sending)

    def tick(self) -> None:
        """Ask, and repeat what was not answered."""
        r = self._r
        if r.now_s >= self._ask_again_s:
            self._ask_again_s = r.now_s + r.cfg.heartbeat_s
            for id in self._to_ask():
                self._number += 1
                self._asked[id] = self._number
                r.out.send(Identity(id, b""), StartQuestion(self._number, r.first_start.digest))
        for sending in list(self._sending.values()):
            if r.now_s - sending.sent_s >= r.cfg.election_timeout_s:
                self._repeat(sending)

    def ask_anew(self, id: int) -> None:
        """At once; what it answers to earlier questions counts no more."""
        self._asked.pop(id, None)
        self._ask_again_s = self._r.now_s

    def on_answer(self, sender: Identity, answer: StartAnswer) -> None:
        """Who is there in fact."""
        r = self._r
        if r.leadership is None or sender.id == r.me.id or self._asked.get(sender.id) != answer.number:
            return
        started = answer.status is StartStatus.STARTED
        if not r.members.latest.holds(sender):
            return self._changes.found(sender, started)
        self._changes.heard(sender)
        if not started and not r.leadership.peers[sender.id].really_heard:
            self.want_base(sender)

    # -- base transfer ----------------------------------------------------------------------------------

    def want_base(self, who: Identity) -> None:
        """Entries alone do not bring this learner up."""
        r = self._r
        member = r.members.latest.get(who.id)
        if member is None or member.role is not Role.LEARNER or who.id in self._sending:
            return
        self._number += 1
        self._sending[who.id] = Sending(who, self._number, r.now_s)
        self._load(who.id)

    def _load(self, id: int) -> None:
        """Only a table that has the learner in its list makes a newcomer of it."""
        self._r.save_upto_id = self._r.members.latest_id
        self._r.out.ready.images.append(LoadImage(id))

    def _repeat(self, sending: Sending) -> None:
        r = self._r
        member = r.members.latest.get(sending.who.id)
        if member is None or member.identity != sending.who or member.role is not Role.LEARNER:
            del self._sending[sending.who.id]
            return
        sending.sent_s = r.now_s
        if sending.head:
            self._send(sending, 0)
        else:
            self._load(sending.who.id)

    def on_image(self, id: int, image: Image) -> None:
        """What was on disk a moment ago."""
        r = self._r
        sending = self._sending.get(id)
        if sending is None or sending.head:
            return
        if image.table.applied_id < r.members.latest_id:
            sending.sent_s = r.now_s - r.cfg.election_timeout_s + r.cfg.heartbeat_s  # the save is under way: soon again
            return
        sending.head = image_head(image, r.first_start.state.first_list, r.first_start.state.settings)
        sending.parts = split_rows(image.table.changed, r.cfg.part_slots_max)
        r.out.event("base_sent", member=id, base_id=image.base.id, parts=len(sending.parts))
        self._send(sending, 0)

    def _send(self, sending: Sending, part: int) -> None:
        r = self._r
        sending.at, sending.sent_s = part, r.now_s
        head = sending.head if part == 0 else ""
        r.out.send(
            sending.who, BasePart(r.term, sending.number, part, len(sending.parts), head, sending.parts[part])
        )

    def on_base_answer(self, sender: Identity, answer: BaseAnswer) -> None:
        r = self._r
        sending = self._sending.get(sender.id)
        if sending is None or sending.who != sender or answer.number != sending.number or not sending.head:
            return
        if answer.wanted < len(sending.parts):
            if answer.wanted > sending.at:  # else it is on its way: copies of answers must not make copies of parts
                self._send(sending, answer.wanted)
            return
        del self._sending[sender.id]
        peer = r.leadership.progress(sender) if r.leadership is not None else None
        if r.leadership is not None and peer is not None:
            peer.heard_s = r.now_s
            if answer.base_id < r.log.base_id:
                self.want_base(sender)  # we have cleaned more since it was read
            else:
                r.leadership.based(peer, answer.base_id)
