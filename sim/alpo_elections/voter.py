"""Common part of Raft's and the draft's servers: a term and a vote on disk, a majority, heartbeats.

Law: a message leaves once the term and vote on which it rests are on disk, and all writes begun before it.
"""

from __future__ import annotations

from typing import NamedTuple

from .arena import Arena, Server


class Heartbeat(NamedTuple):
    term: int


class HeartbeatReply(NamedTuple):
    term: int


class Voter(Server):
    """Base class of a server that only elects. ``state``: leader, candidate, or a name that the protocol gives."""

    def __init__(self, arena: Arena, id: int, heartbeat_s: float, *, term: int, vote: int) -> None:
        super().__init__(arena, id)
        self.heartbeat_s = heartbeat_s
        self.term, self.vote = term, vote
        self.state = ""
        self.majority = len(arena.ids) // 2 + 1
        self.votes: dict[int, bool] = {}
        self._writes = 0  # numbers given so far
        self._own_vote = 0  # the number of the write that a candidate waits for, or 0

    def lead(self) -> None:
        """Become leader of the present term, and begin to send heartbeats."""
        self.state = "leader"
        self.arena.wins_term(self.id, self.term)
        self._beat()

    def written(self, number: int) -> None:
        if self._own_vote and number >= self._own_vote:
            self._own_vote = 0
            if self.state == "candidate":
                self._granted(self.id)

    def _granted(self, voter: int) -> None:
        """Count a vote of ``voter`` for this server, and act on the new count."""
        raise NotImplementedError

    def _beat(self) -> None:
        self._send_all(Heartbeat(self.term))
        self.arena.wake(self, self.arena.now_s + self.heartbeat_s)

    def _ask_for_votes(self, request: NamedTuple) -> None:
        """Stand in the present term: send ``request`` to all other servers once this server's own vote is on disk."""
        self._own_vote = self._writes + 1
        self.arena.stands(self.term)
        self._save([(id, request) for id in self._others()])

    def _others(self) -> list[int]:
        return [id for id in self.arena.ids if id != self.id]

    def _send_all(self, message: NamedTuple) -> None:
        for id in self._others():
            self.arena.send(self.id, id, message)

    def _save(self, then: list[tuple[int, NamedTuple]]) -> None:
        """Write term and vote; the messages ``then``, (target, message), are sent once they are on disk."""
        self._writes += 1
        self.arena.write(self, self._writes, then)

    def _say(self, target: int, message: NamedTuple, changed: bool = False) -> None:
        """Send ``message`` once all that it rests on is on disk. ``changed``: term or vote are to be written first."""
        if changed or self.writing or self.committing:
            self._save([(target, message)])
        else:
            self.arena.send(self.id, target, message)
