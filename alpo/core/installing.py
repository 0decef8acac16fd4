"""A learner takes a snapshot: a log that begins after a base, and the replicated state, replace all that it held (R27,
R29).

Laws:

* A snapshot is taken only if its own member list holds us as a LEARNER, and as a whole, in one write.
* A server that has started takes a snapshot of its own cluster alone, not while it is a voter, and only if its log does
  not hold the base's entry. If it does, it only says that the snapshot is there, which ends the transfer.
* Parts of one transfer are collected, the newest by (term, number). The next part, or one that is there already, is
  answered with the number of the part wanted next, from which the leader goes on. A part after a gap is not answered;
  the leader then repeats the transfer from its first part.
* The answer that the whole snapshot is there leaves only once it is on disk.
"""

from __future__ import annotations

from .first_start import FirstStart
from .members import Identity, MemberList, Role
from .messages import SnapshotAnswer, SnapshotPart
from .shared import Shared
from .snapshots import parse_head


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
        except (ValueError, TypeError, KeyError) as error:
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
