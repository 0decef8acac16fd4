"""The leader's work for newcomers: questions to servers that may be new, and the snapshot from which they begin (R27,
R29, R30).

Laws:

* Only an answer to the newest question to a server counts: an older one may be from before its disk was wiped.
* A snapshot is sent to LEARNERs alone: voters hold all that may have been cleaned (R18, R19).
  A learner that has answered an append request or taken a snapshot in this reign has started: an answer that says
  otherwise is old.
* A snapshot is sent part by part. An answer names the part that is wanted next, and the leader goes on from there.
  After an election timeout without an answer the leader sends the first part again; a learner that has it answers at
  once how far it is.
"""

from __future__ import annotations

from .disk import LoadSnapshot, SessionRow, Snapshot
from .first_start import FirstStart
from .members import Identity, Role
from .messages import SnapshotAnswer, SnapshotPart, StartQuestion
from .progress import Progress
from .replication import Replication
from .shared import Shared
from .snapshots import snapshot_head, split_rows


class Sending:
    """One snapshot transfer, ``number``, to learner ``who``. ``head`` and ``parts`` are empty until the snapshot was
    read."""

    def __init__(self, who: Identity, number: int, now_s: float) -> None:
        self.who = who
        self.number = number
        self.asked_s = now_s
        self.head = ""
        self.parts: list[tuple[SessionRow, ...]] = []
        self.at = 0  # number of the part sent last
        self.sent_s = now_s


class Newcomers:
    """The leader's questions and snapshot transfers in one reign; used by `Changes`. ``transfers``: by learner id."""

    def __init__(self, shared: Shared, replication: Replication, first_start: FirstStart) -> None:
        self._r = shared
        self._replication = replication
        self._first_start = first_start
        self.number = int(shared.rng.random() * (1 << 40))
        self._asked: dict[int, int] = {}  # number of the newest question, by id
        self.ask_again_s = 0.0
        self.transfers: dict[int, Sending] = {}

    # -- questions --------------------------------------------------------------------------------------

    def _silent(self, peer: Progress) -> bool:
        """True if a peer is not connected, or was not heard for two heartbeats."""
        r = self._r
        return peer.who.id not in r.connected or r.now_s - peer.heard_s >= 2 * r.cfg.heartbeat_s

    def _to_ask(self, wanted_id: int | None) -> list[int]:
        ids = [id for id, peer in self._replication.peers.items() if self._silent(peer)]
        return sorted({*ids, wanted_id}) if wanted_id is not None else ids

    @property
    def sending(self) -> bool:
        """True while a snapshot is on its way to some learner."""
        return bool(self.transfers)

    def tick(self, wanted_id: int | None) -> None:
        """Ask silent members, and server ``wanted_id`` (the one that an operator's change is about; None: there is no
        change), every heartbeat. Repeat transfers that got no answer."""
        r = self._r
        if r.now_s >= self.ask_again_s:
            self.ask_again_s = r.now_s + r.cfg.heartbeat_s
            for id in self._to_ask(wanted_id):
                self.number += 1
                self._asked[id] = self.number
                r.out.send(Identity(id, b""), StartQuestion(self.number, self._first_start.digest))
        for sending in list(self.transfers.values()):
            if r.now_s - sending.sent_s >= r.cfg.election_timeout_s:
                self._repeat(sending)

    def ask_anew(self, id: int) -> None:
        """Ask server ``id`` again at once; its answers to earlier questions count no more."""
        self._asked.pop(id, None)
        self.ask_again_s = self._r.now_s

    def has_asked(self, id: int, number: int) -> bool:
        """True if ``number`` is that of the newest question to server ``id``."""
        return self._asked.get(id) == number

    # -- snapshots --------------------------------------------------------------------------------------

    def want_snapshot(self, who: Identity) -> None:
        """Begin to send a snapshot to ``who``, if it is a learner and no transfer to it is under way."""
        r = self._r
        member = r.members.latest.get(who.id)
        if member is None or member.role is not Role.LEARNER or who.id in self.transfers:
            return
        self.number += 1
        self.transfers[who.id] = Sending(who, self.number, r.now_s)
        self._load(who.id)

    def _load(self, id: int) -> None:
        """Ask the shell for a snapshot, and have the state saved so that its member list holds the learner."""
        self._r.save_state_at(self._r.members.latest_id)
        self._r.out.load_snapshot(LoadSnapshot(id))

    def _repeat(self, sending: Sending) -> None:
        """Send a snapshot again from its first part, or read it again; or end the transfer if the peer is no learner
        any more."""
        r = self._r
        member = r.members.latest.get(sending.who.id)
        if member is None or member.identity != sending.who or member.role is not Role.LEARNER:
            del self.transfers[sending.who.id]
            return
        sending.sent_s = r.now_s
        if sending.head:
            self._send(sending, 0)
        else:
            self._load(sending.who.id)

    def moving(self, who: Identity, at_s: float) -> None:
        """Note that a message to ``who`` was still leaving at ``at_s``: a part of a snapshot under way is not lost."""
        sending = self.transfers.get(who.id)
        if sending is not None and sending.who == who and sending.head:
            sending.sent_s = max(sending.sent_s, at_s)

    def on_snapshot(self, id: int, snapshot: Snapshot) -> None:
        """Take the snapshot that the shell has read, and send its first part."""
        r = self._r
        sending = self.transfers.get(id)
        if sending is None or sending.head:
            return
        if snapshot.table.applied_id < r.members.latest_id:
            # the state with the learner in its list is not saved yet: try again in a heartbeat
            sending.sent_s = r.now_s - r.cfg.election_timeout_s + r.cfg.heartbeat_s
            return
        sending.head = snapshot_head(snapshot, self._first_start.state.first_list, self._first_start.state.settings)
        sending.parts = split_rows(snapshot.table.changed, r.cfg.part_slots_max)
        r.out.event("base_sent", member=id, base_id=snapshot.base.id, parts=len(sending.parts))
        self._send(sending, 0)

    def _send(self, sending: Sending, part: int) -> None:
        r = self._r
        sending.at, sending.sent_s = part, r.now_s
        head = sending.head if part == 0 else ""
        r.out.send(
            sending.who, SnapshotPart(r.term, sending.number, part, len(sending.parts), head, sending.parts[part])
        )

    def on_snapshot_answer(self, sender: Identity, answer: SnapshotAnswer) -> None:
        """Send the part that is wanted next, or go on with entries once the learner has the whole snapshot."""
        r = self._r
        sending = self.transfers.get(sender.id)
        if sending is None or sending.who != sender or answer.number != sending.number or not sending.head:
            return
        if answer.wanted < len(sending.parts):
            if answer.wanted > sending.at:  # else that part is on its way: a repeated answer must not repeat it
                self._send(sending, answer.wanted)
            return
        del self.transfers[sender.id]
        peer = self._replication.progress(sender)
        if peer is not None:
            peer.heard_s = r.now_s
            peer.really_heard = True
            if answer.base_id < r.log.base_id:
                self.want_snapshot(sender)  # this leader has cleaned more since the snapshot was read
            else:
                self._replication.based(peer, answer.base_id)
