"""A learner takes a base: where its log begins and the replicated state, instead of whatever it held (R27, R29).

Laws:

* It is taken only from a leader whose list holds us as a LEARNER, whole, in one write.
* A server that has started takes one of its own cluster, not as a voter, and only if it does not hold the entry that
  the base stands for: whoever holds that holds all that it acknowledged too, and only answers.
* One transfer is collected, the newest by (term, number). A part of it that is there is answered at once with the part
  that is wanted next, and the leader goes on from there; to one after a gap there is no answer, and it begins again.
* What it acknowledges is on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .disk import Base, StartState, TableSave
from .members import Identity, MemberList, Role
from .messages import BaseAnswer, BasePart
from .settings import Settings
from .snapshots import parse_head

if TYPE_CHECKING:
    from .replica import Replica


class Installing:
    """The parts that came so far of one transfer."""

    def __init__(self, replica: Replica) -> None:
        self._r = replica
        self._newest = (0, 0)  # (term, number) of the transfer that is collected, or was
        self._parts: list[BasePart] = []
        self._base_id: int | None = None  # of the newest, once it is done

    def on_part(self, sender: Identity, cluster: bytes, part: BasePart) -> None:
        """Take a part that follows on, and say which is wanted next."""
        r = self._r
        key = (part.term, part.number)
        if part.term < r.term or key < self._newest or (r.first_start.started and cluster != r.cluster):
            return
        if key > self._newest:
            self._newest, self._parts, self._base_id = key, [], None
        if self._base_id is not None:
            done = BaseAnswer(part.term, part.number, part.parts, self._base_id)
            return r.out.send_after_write(sender, done)
        if part.part > len(self._parts):
            return
        if part.part == len(self._parts):
            self._parts.append(part)
        if len(self._parts) < part.parts:
            r.out.send(sender, BaseAnswer(part.term, part.number, len(self._parts), 0))
        else:
            self._install(sender, cluster, part)

    def _install(self, sender: Identity, cluster: bytes, last: BasePart) -> None:
        r = self._r
        rows = [row for part in self._parts for row in part.rows]
        head, self._parts = self._parts[0].head, []
        try:
            base, table, start = parse_head(head, rows, r.first_start.digest)
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
        answer = BaseAnswer(last.term, last.number, last.parts, base.id)
        if r.first_start.started and (base.id < r.log.base_id or r.log.term_at(base.id) == base.term):
            self._base_id = base.id
            r.out.send_after_write(sender, answer)  # we hold all that and more: a transfer begun twice ends here
            return
        if r.first_start.started and r.members.latest.is_voter(r.me):
            return
        self._base_id = base.id
        _begin_anew(r, base, table, start, last.term)
        r.hear_leader(sender)
        r.out.event("base_installed", base_id=base.id, applied_id=table.applied_id, sessions=len(rows))
        r.out.send_after_write(sender, answer)


def _begin_anew(r: Replica, base: Base, table: TableSave, start: StartState, term: int) -> None:
    """Whatever was held gives way to the base, with this step's write."""
    settings = Settings.from_plain(table.settings)
    if term > r.term:
        r.set_term(term, vote=0)
    r.log.install(base)
    r.out.install(base, table)
    r.settings = settings
    r.sessions.load(table.changed, table.horizon_ms, settings, table.applied_id)
    r.members.restore(MemberList.from_plain(table.members), table.members_id)
    r.cleaning.restore(table.trim_lsn)
    r.cursors.restore(table.cursors)
    r.applied_id = table.applied_id
    r.guaranteed_id = r.fully_replicated_id = base.id
    r.acceptance.matched_id = base.id
    if not r.first_start.started:
        r.first_start.take(start)
