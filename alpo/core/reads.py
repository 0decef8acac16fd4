"""Linearizable reads at the leader (R25).

Laws:

* A read notes ``guaranteed_id`` only once an entry of the leader's own term is guaranteed.
* It is answered only after a majority has answered a round that began after that, and once our own disk
  holds that id. Rounds are numbered; a late answer to an earlier one proves nothing.
* One round at a time serves all reads that wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .inputs import Origin
from .ready import Code, ReadAt
from .state import State

if TYPE_CHECKING:
    from .replica import Replica


class Reads:
    """The reads that wait, by how far they are."""

    def __init__(self, replica: Replica) -> None:
        self._r = replica
        #: The newest round; never 0, never goes back while this process lives.
        self.round = 1
        self._new: list[Origin] = []
        self._asked: tuple[int, list[Origin]] | None = None  # (index, reads) of the round under way
        self._confirmed: list[tuple[int, Origin]] = []

    @property
    def waiting(self) -> bool:
        """Does any read wait for an answer or the disk?"""
        return bool(self._new or self._asked or self._confirmed)

    def ask(self, origin: Origin) -> None:
        r = self._r
        if r.state is State.LEADER:
            self._new.append(origin)
        else:
            r.out.refuse(origin, Code.NOT_LEADER, leader=r.leader_id)

    def advance(self) -> None:
        """Begin a round if reads wait for one, end the one that a majority answered, release what our disk holds."""
        r = self._r
        if r.leadership is None:
            return
        if self._asked is not None and self._answered():
            index, origins = self._asked
            self._asked = None
            self._confirmed.extend((index, origin) for origin in origins)
        if self._asked is None and self._new and r.guaranteed_id >= r.leadership.first_id:
            self.round += 1
            self._asked = (r.guaranteed_id, self._new)
            self._new = []
            r.leadership.ask_all()
            if self._answered():  # a single voter is its own majority
                self.advance()
        if self._confirmed:
            still = []
            for index, origin in self._confirmed:
                if index <= r.log.stable_id:
                    r.out.reply(ReadAt(origin, index))
                else:
                    still.append((index, origin))
            self._confirmed = still

    def _answered(self) -> bool:
        r = self._r
        assert r.leadership is not None
        count = sum(1 for m in r.members.other_voters() if r.leadership.peers[m.id].round >= self.round)
        return count + r.members.i_vote >= r.members.latest.majority

    def lose(self) -> None:
        """No longer leader: nobody was answered, everybody may ask again elsewhere."""
        r = self._r
        waiting = [*self._new, *(self._asked[1] if self._asked else []), *(o for _, o in self._confirmed)]
        self._new, self._asked, self._confirmed = [], None, []
        for origin in waiting:
            r.out.refuse(origin, Code.NOT_LEADER, leader=r.leader_id)
