"""Snapshots: the replicated state as it is saved, as the leader sends it to a newcomer, and as a learner takes it
(rules.md#replicated-state; R27, R29, R30).

Laws of the leader:

* Only an answer to the newest question to a server counts: an older one may be from before its disk was wiped.
* A snapshot is sent to LEARNERs alone: voters hold all that may have been cleaned (R18, R19).
  A learner that has answered an append request or taken a snapshot in this reign has started: an answer that says
  otherwise is old.
* A snapshot is sent part by part. An answer names the part that is wanted next, and the leader goes on from there.
  After an election timeout without an answer the leader sends the first part again; a learner that has it answers at
  once how far it is.

Laws of the learner, for which a log that begins after a base and the replicated state replace all that it held:

* A snapshot is taken only if its own member list holds us as a LEARNER, and as a whole, in one write.
* A server that has started takes a snapshot of its own cluster alone, not while it is a voter, and only if its log does
  not hold the base's entry. If it does, it only says that the snapshot is there, which ends the transfer.
* Parts of one transfer are collected, the newest by (term, number). The next part, or one that is there already, is
  answered with the number of the part wanted next, from which the leader goes on. A part after a gap is not answered;
  the leader then repeats the transfer from its first part.
* The answer that the whole snapshot is there leaves only once it is on disk.
"""

from __future__ import annotations

import json
from typing import Any

from .directory import listing_of
from .disk import Base, LoadSnapshot, SessionRow, Snapshot, StartState, TableSave
from .entries import serials_of
from .first_start import FirstStart
from .members import Identity, MemberList, Role, StartStatus
from .messages import SnapshotAnswer, SnapshotPart, StartQuestion
from .replication import Progress, Replication
from .settings import Settings
from .shared import Shared


def table_save(r: Shared, base: Base | None) -> TableSave | None:
    """The save of the replicated state for this step's write, as of the guaranteed mark; None if none is due.

    A save is due, if the step writes at all, after ``table_save_entries`` entries or serials, or when the write cleans
    up to ``base`` entries that no save covers; and once `Shared.save_upto_id` is guaranteed.
    """
    wanted = r.applied_id < r.save_upto_id <= r.guaranteed_id
    lag = r.guaranteed_id - r.applied_id
    if lag > 0:  # the mark may be behind the last save after a start
        lag = max(lag, r.sessions.unsaved_serials)
    if not wanted and lag < r.cfg.table_save_entries and (base is None or base.id <= r.applied_id):
        return None
    if not wanted and not (r.out.has_write or base is not None):
        return None
    changed, ended, horizon_ms = r.sessions.rows_at(r.guaranteed_id)
    r.sessions.saved(r.guaranteed_id)
    members_id, members = r.members.at(r.guaranteed_id)
    return TableSave(
        r.guaranteed_id, horizon_ms, changed, ended, members.to_plain(), members_id,
        r.sessions.settings_at(r.guaranteed_id).to_plain(), r.trims.trim_lsn, r.cursors.rows_at(r.guaranteed_id),
        directory=r.directory.plain_at(r.guaranteed_id),
    )


def split_rows(rows: list[SessionRow], serials_max: int) -> list[tuple[SessionRow, ...]]:
    """Split sessions into parts of at most ``serials_max`` remembered serials (each session counts as four more; a
    larger session is a part alone). At least one part, empty if there are no sessions."""
    parts: list[list[SessionRow]] = [[]]
    size = 0
    for row in rows:
        cost = 4 + sum(serials_of(slot[4]) for slot in row.slots)
        if parts[-1] and size + cost > serials_max:
            parts.append([])
            size = 0
        parts[-1].append(row)
        size += cost
    return [tuple(part) for part in parts]


def snapshot_head(snapshot: Snapshot, first_list: object, settings: object) -> str:
    """The JSON text of a snapshot without its sessions, with the cluster's first list and first settings, plain."""
    table = snapshot.table._asdict()
    for name in ("changed", "ended", "ahead"):
        del table[name]
    if snapshot.table.directory is None:  # servers of before there were several logs know no such field
        del table["directory"]
    fields = {"base": list(snapshot.base), "table": table, "first_list": first_list, "first_settings": settings}
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def parse_head(text: str, rows: list[SessionRow], digest: bytes) -> tuple[Base, TableSave, StartState]:
    """The parts of the snapshot whose `snapshot_head` is ``text``, with sessions ``rows``; ``digest``: the
    `configured_digest` to keep in its start state. Raises ValueError, TypeError, KeyError or OverflowError for
    a text of another shape."""
    fields: dict[str, Any] = json.loads(text)
    base = Base(*(int(number) for number in fields["base"]))
    first = MemberList.from_plain(fields["first_list"])
    plain = fields["table"] | {"cursors": tuple([(str(name), int(lsn)) for name, lsn in fields["table"]["cursors"]])}
    if any(type(plain[name]) is not int for name in ("applied_id", "horizon_ms", "members_id", "trim_lsn")):
        raise ValueError("a mark of the state is no integer")
    table = TableSave(changed=rows, ended=[], ahead=True, **plain)
    listing_of(table.directory)
    if table.applied_id < base.id:
        raise ValueError("the state is older than the base")
    settings = Settings.from_plain(fields["first_settings"])
    Settings.from_plain(table.settings)
    start = StartState(
        StartStatus.STARTED, (), digest, first.digest(), first.to_plain(), settings.to_plain()
    )
    return base, table, start


class Installing:
    """The parts of one snapshot transfer that have come so far."""

    def __init__(self, shared: Shared, first_start: FirstStart) -> None:
        self._r = shared
        self._first_start = first_start
        self._newest = (0, 0)  # (term, number) of the newest transfer seen
        self._parts: list[SnapshotPart] = []
        self._base_id: int | None = None  # the base of the newest transfer once it is done; None before

    def on_part(self, sender: Identity, cluster: bytes, part: SnapshotPart) -> None:
        """Take a part of a snapshot, and answer which part is wanted next."""
        r = self._r
        key = (part.term, part.number)
        if part.term < r.term or key < self._newest or (self._first_start.started and cluster != r.out.cluster):
            return
        if key > self._newest:
            self._newest, self._parts, self._base_id = key, [], None
        if self._base_id is not None:
            done = SnapshotAnswer(part.term, part.number, part.parts, self._base_id)
            return r.out.send_after_write(sender, done)
        if part.part > len(self._parts):
            return
        if part.part == len(self._parts):
            self._parts.append(part)
        if len(self._parts) < part.parts:
            r.out.send(sender, SnapshotAnswer(part.term, part.number, len(self._parts), 0))
        else:
            self._install(sender, cluster, part)

    def _install(self, sender: Identity, cluster: bytes, last: SnapshotPart) -> None:
        """Check a whole snapshot against the laws, and replace our log and state by it."""
        r = self._r
        rows = [row for part in self._parts for row in part.rows]
        head, self._parts = self._parts[0].head, []
        try:
            base, table, start = parse_head(head, rows, self._first_start.digest)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            r.out.event("base_refused", sender=sender.id, why=str(error))
            return
        listed = MemberList.from_plain(table.members).get(r.me.id)
        wanted = r.cfg.cluster_wanted
        if wanted not in (b"", cluster):
            r.out.event("base_refused", sender=sender.id, why=f"it is of cluster {cluster.hex()}")
            return
        if start.cluster != cluster or listed is None or listed.identity != r.me or listed.role is not Role.LEARNER:
            r.out.event("base_refused", sender=sender.id, why="it is of a cluster or a list that does not have us")
            return
        answer = SnapshotAnswer(last.term, last.number, last.parts, base.id)
        if self._first_start.started and (base.id < r.log.base_id or r.log.term_at(base.id) == base.term):
            self._base_id = base.id
            r.out.send_after_write(sender, answer)  # held already: this ends the transfer
            return
        if self._first_start.started and r.members.latest.is_voter(r.me):
            return
        self._base_id = base.id
        r.begin_from(base, table, last.term)
        if not self._first_start.started:
            self._first_start.take(start)
        r.hear_leader(sender)
        r.out.event("base_installed", base_id=base.id, applied_id=table.applied_id, sessions=len(rows))
        r.out.send_after_write(sender, answer)


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
        """True if a peer is not connected, or was not heard lately."""
        r = self._r
        return peer.who.id not in r.connected or r.now_s - peer.heard_s >= r.cfg.lately_s

    def _to_ask(self, wanted_id: int | None) -> list[int]:
        ids = [id for id, peer in self._replication.peers.items() if self._silent(peer)]
        return sorted({*ids, wanted_id}) if wanted_id is not None else ids

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
