"""Linearizable reads at the leader (R25).

Laws:

* A read notes ``guaranteed_id`` only once an entry of the leader's own term is guaranteed.
* The read is answered only after a majority has answered a round of heartbeats that began after that. Rounds are
  numbered; a late answer to an earlier round proves nothing. The answer may cover entries that a majority holds and our
  own disk does not have yet: the shell takes those from the log's tail in memory.
* One round at a time serves all reads that wait.
* Operators' requests that only a confirmed leader may answer wait for a round in the same way (`operator_requests`),
  and so do appends that expect the log to be longer than it is (`serving`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from .replication import Replication
from .requests import (
    AppendRun,
    ChangeMember,
    ChangeSettings,
    Code,
    DropCursor,
    ListCursors,
    ListSessions,
    Outcome,
    ReadAt,
    ReadIndex,
    SetCursor,
    ShowSettings,
    Transfer,
    Trim,
)
from .shared import Shared

#: Requests that wait for a read round.
Asking: TypeAlias = (
    ReadIndex | Outcome | ListSessions | ChangeMember | Transfer | ShowSettings | ChangeSettings | SetCursor
    | DropCursor | ListCursors | Trim | AppendRun
)


class Reads:
    """The reads, and other requests, that wait for a round, in one reign. ``judge`` takes those requests after it."""

    def __init__(self, shared: Shared, replication: Replication, judge: Callable[[Asking], None]) -> None:
        self._r = shared
        self._replication = replication
        self._judge = judge
        self._new: list[Asking] = []
        self._asked: tuple[int, list[Asking]] | None = None  # (guaranteed id noted, requests) of the round under way

    @property
    def waiting(self) -> bool:
        """True if any request waits for a round."""
        return bool(self._new or self._asked)

    def ask(self, request: Asking) -> None:
        """Have ``request`` wait for the next round that begins."""
        self._new.append(request)

    def advance(self) -> None:
        """Begin a round if requests wait for one, end the one that a majority answered, and answer its reads."""
        r = self._r
        if self._asked is not None and self._answered():
            index, requests = self._asked
            self._asked = None
            for request in requests:
                if isinstance(request, ReadIndex):
                    r.out.reply(ReadAt(request.origin, index))
                else:
                    self._judge(request)
        if self._asked is None and self._new and r.guaranteed_id >= self._replication.first_id:
            self._asked = (r.guaranteed_id, self._new)
            self._new = []
            self._replication.begin_round()
            if self._answered():  # a single voter needs no other's answer
                self.advance()

    def _answered(self) -> bool:
        r = self._r
        count = sum(1 for m in r.members.other_voters() if self._replication.peers[m.id].round >= r.round)
        return count + r.members.i_vote >= r.members.latest.majority

    def end(self) -> None:
        """Refuse every request that waits: this server leads no more, another may answer."""
        r = self._r
        waiting = [*self._new, *(self._asked[1] if self._asked else [])]
        for request in waiting:
            if isinstance(request, AppendRun):
                r.out.refuse_run(request, Code.NOT_LEADER, leader=r.leader_id)
            else:
                r.out.refuse(request.origin, Code.NOT_LEADER, leader=r.leader_id)
