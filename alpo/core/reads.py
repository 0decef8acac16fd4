"""Linearizable reads at the leader (R25).

Laws:

* A read notes ``guaranteed_id`` only once an entry of the leader's own term is guaranteed.
* It is answered only after a majority has answered a round that began after that, and once our own disk
  holds that id. Rounds are numbered; a late answer to an earlier one proves nothing.
* One round at a time serves all reads that wait.
* Whatever else only a leader of this moment may answer waits for a round in the same way, and is judged then
  (`operator_requests`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from .inputs import (
    ChangeMember,
    ChangeSettings,
    DropCursor,
    ListCursors,
    ListSessions,
    Outcome,
    ReadIndex,
    SetCursor,
    ShowSettings,
    Transfer,
    Trim,
)
from .ranks import State
from .ready import Code, ReadAt

if TYPE_CHECKING:
    from .replica import Replica

#: What waits for a round.
Asking: TypeAlias = (
    ReadIndex | Outcome | ListSessions | ChangeMember | Transfer | ShowSettings | ChangeSettings | SetCursor
    | DropCursor | ListCursors | Trim
)


class Reads:
    """The reads that wait, by how far they are."""

    def __init__(self, replica: Replica) -> None:
        self._r = replica
        #: The newest round; never 0, never goes back while this process lives.
        self.round = 1
        self._new: list[Asking] = []
        self._asked: tuple[int, list[Asking]] | None = None  # (index, reads) of the round under way
        self._confirmed: list[tuple[int, Asking]] = []

    @property
    def waiting(self) -> bool:
        """Does any read wait for an answer or the disk?"""
        return bool(self._new or self._asked or self._confirmed)

    def ask(self, request: Asking) -> None:
        r = self._r
        if r.state is State.LEADER:
            self._new.append(request)
        else:
            r.out.refuse(request.origin, Code.NOT_LEADER, leader=r.leader_id)

    def begin_round(self) -> int:
        """A round for its own sake: every peer is asked now; its number."""
        assert self._r.leadership is not None
        self.round += 1
        self._r.leadership.ask_all()
        return self.round

    def advance(self) -> None:
        """Begin a round if reads wait for one, end the one that a majority answered, release what our disk holds."""
        r = self._r
        assert r.leadership is not None
        if self._asked is not None and self._answered():
            index, requests = self._asked
            self._asked = None
            self._confirmed.extend((index, request) for request in requests)
        if self._asked is None and self._new and r.guaranteed_id >= r.leadership.first_id:
            self._asked = (r.guaranteed_id, self._new)
            self._new = []
            self.begin_round()
            if self._answered():  # a single voter is its own majority
                self.advance()
        if self._confirmed:
            still: list[tuple[int, Asking]] = []
            for index, request in self._confirmed:
                if not isinstance(request, ReadIndex):
                    r.keeping.judge(request)
                elif index <= r.log.stable_id:
                    r.out.reply(ReadAt(request.origin, index))
                else:
                    still.append((index, request))
            self._confirmed = still

    def _answered(self) -> bool:
        r = self._r
        assert r.leadership is not None
        count = sum(1 for m in r.members.other_voters() if r.leadership.peers[m.id].round >= self.round)
        return count + r.members.i_vote >= r.members.latest.majority

    def lose(self) -> None:
        """No longer leader: nobody was answered, everybody may ask again elsewhere."""
        r = self._r
        waiting = [*self._new, *(self._asked[1] if self._asked else []), *(each for _, each in self._confirmed)]
        self._new, self._asked, self._confirmed = [], None, []
        for request in waiting:
            r.out.refuse(request.origin, Code.NOT_LEADER, leader=r.leader_id)
