"""Simulated world in which every protocol is measured: servers, links with delays, disks with fsyncs, virtual time.

Laws:

* A protocol learns only of messages, the end of its own writes, and its own timer.
* Delays have the same distribution for all protocols: one for each message and one for each fsync. A link delivers in
  order. Writes that gather while the disk is busy share the next fsync. Messages that wait for a write leave after it.
* The arena raises `Broken` if a term has two leaders.

Law of a `Voter`, the common part of Raft's and the draft's servers (a term and a vote on disk, a majority, heartbeats):
a message leaves once the term and vote on which it rests are on disk, and all writes begun before it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from alpo_sim.checks import Broken

NEVER_S = float("inf")
_ARRIVE, _DISK, _WAKE, _CALL = range(4)


class Profile(NamedTuple):
    """Kind of network and disk: ranges of seconds, from which delays are drawn uniformly."""

    name: str
    delay_s: tuple[float, float]  # one way
    fsync_s: tuple[float, float]

    @property
    def broadcast_s(self) -> float:
        """The broadcast time of the Raft paper: a mean round trip and one fsync."""
        return sum(self.delay_s) + sum(self.fsync_s) / 2


class Server:
    """Base class of a protocol's server; ids count from 1."""

    def __init__(self, arena: Arena, id: int) -> None:
        self.arena = arena
        self.id = id
        self.wake_s = NEVER_S  # when it wants to be woken
        self.queued_s = NEVER_S  # time for which a wake-up is in the queue
        self.writing: list[tuple[int, Sequence[tuple[int, Any]]]] = []  # (number, what leaves after it)
        self.committing: list[tuple[int, Sequence[tuple[int, Any]]]] = []

    def receive(self, source: int, message: Any) -> None:
        raise NotImplementedError

    def written(self, number: int) -> None:
        """Note that all writes up to ``number`` are on disk; the messages that waited for them are sent."""
        raise NotImplementedError

    def woken(self) -> None:
        raise NotImplementedError


class Arena:
    """The world of one run. Put servers into ``servers``, then call `run`."""

    def __init__(self, size: int, profile: Profile, rng: random.Random) -> None:
        self.ids = range(1, size + 1)
        self.profile = profile
        self.rng = rng
        self.now_s = 0.0
        self.servers: dict[int, Server] = {}
        self.down: dict[int, bool] = {}
        self.cut: dict[tuple[int, int], bool] = {}  # ordered pairs
        self.fsync_s: dict[int, tuple[float, float]] = {}  # fsync times of servers whose disk is not the profile's
        self.slow_s: dict[int, float] = {}  # server -> seconds that messages from and to it take in addition
        self._queue: list[tuple[float, int, int, int, Any, Any]] = []
        self._count = 0
        self._last_s: dict[tuple[int, int], float] = {}
        # What is measured, from `begin_s` on.
        self.begin_s = NEVER_S
        self.leaders: dict[int, int] = {}  # term -> server
        self.won_s: float | None = None  # the first win since
        self.heard_s: float | None = None  # the newest leader is followed by all that it reaches
        self.wins = 0
        self.terms: dict[int, bool] = {}  # in which somebody stood
        self.candidacies = 0
        self._leader = 0
        self._leader_term = 0
        self._followers: dict[int, bool] = {}

    # -- time -------------------------------------------------------------------------------------------

    def _push(self, at_s: float, kind: int, id: int, a: Any = None, b: Any = None) -> None:
        self._count += 1
        heapq.heappush(self._queue, (at_s, self._count, kind, id, a, b))

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        """Schedule ``call`` for time ``at_s``."""
        self._push(at_s, _CALL, 0, call)

    def wake(self, server: Server, at_s: float) -> None:
        """Set the timer of ``server`` to ``at_s``, instead of the time set before."""
        server.wake_s = at_s
        if at_s < server.queued_s:
            server.queued_s = max(at_s, self.now_s)
            self._push(server.queued_s, _WAKE, server.id)

    def run(self, until_s: float, done: Callable[[], bool] = lambda: False) -> None:
        """Process events until time ``until_s``, or until ``done()`` is true after one of them."""
        queue, servers, down, cut = self._queue, self.servers, self.down, self.cut
        while queue and queue[0][0] <= until_s:
            self.now_s, _, kind, id, a, b = heapq.heappop(queue)
            if id in down:
                continue
            if kind == _ARRIVE:
                if (a, id) not in cut:
                    servers[id].receive(a, b)
            elif kind == _DISK:
                self._committed(servers[id])
            elif kind == _WAKE:
                self._woken(servers[id])
            else:
                a()
            if done():
                return
        self.now_s = max(self.now_s, until_s)

    def _woken(self, server: Server) -> None:
        if server.queued_s != self.now_s:
            return  # an earlier wake-up took this one's place
        server.queued_s = NEVER_S
        if server.wake_s <= self.now_s:
            server.wake_s = NEVER_S
            server.woken()
        if server.queued_s == NEVER_S and server.wake_s < NEVER_S:
            self.wake(server, server.wake_s)

    # -- links and disks --------------------------------------------------------------------------------

    def send(self, source: int, target: int, message: Any) -> None:
        if target in self.down or (source, target) in self.cut:
            return
        low, high = self.profile.delay_s
        at_s = self.now_s + low + (high - low) * self.rng.random()
        if self.slow_s:
            at_s += self.slow_s.get(source, 0.0) + self.slow_s.get(target, 0.0)
        link = (source, target)
        last_s = self._last_s.get(link, 0.0)
        if at_s < last_s:
            at_s = last_s
        self._last_s[link] = at_s
        self._push(at_s, _ARRIVE, target, source, message)

    def arrive(self, at_s: float, source: int, target: int, message: Any) -> None:
        """Schedule the arrival of a message that was sent before the run begins."""
        self._push(at_s, _ARRIVE, target, source, message)

    def write(self, server: Server, number: int, then: Sequence[tuple[int, Any]]) -> None:
        """Begin write ``number``; messages ``then``, (target, message), are sent once it is on disk. Numbers go up."""
        server.writing.append((number, then))
        if not server.committing:
            self._commit(server)

    def _commit(self, server: Server) -> None:
        server.committing, server.writing = server.writing, []
        low, high = self.fsync_s.get(server.id, self.profile.fsync_s)
        self._push(self.now_s + low + (high - low) * self.rng.random(), _DISK, server.id)

    def _committed(self, server: Server) -> None:
        group, server.committing = server.committing, []
        for _, then in group:
            for target, message in then:
                self.send(server.id, target, message)
        if server.writing:
            self._commit(server)
        server.written(group[-1][0])

    def connected(self, a: int, b: int) -> bool:
        return (a, b) not in self.cut and (b, a) not in self.cut and a not in self.down and b not in self.down

    # -- what is seen -----------------------------------------------------------------------------------

    def stands(self, term: int) -> None:
        """Note that a server is a candidate in ``term``."""
        if self.now_s >= self.begin_s:
            self.candidacies += 1
            self.terms[term] = True

    def wins_term(self, id: int, term: int) -> None:
        """Note that ``id`` leads ``term``. Raises `Broken` if another server leads it too."""
        if self.leaders.setdefault(term, id) != id:
            raise Broken("one leader a term", f"servers {self.leaders[term]} and {id} both lead term {term}")
        if self.now_s < self.begin_s:
            return
        self.wins += 1
        if self.won_s is None:
            self.won_s = self.now_s
        if self.heard_s is None and term > self._leader_term:  # a server that wins an older term late leads nobody
            self._leader, self._leader_term = id, term
            self._followers = {
                other: True for other in self.ids if other != id and self.connected(id, other)
            }
            self._heard()

    def follows(self, id: int, leader: int) -> None:
        """Note that ``id`` has heard ``leader``."""
        if leader == self._leader and self.heard_s is None:
            self._followers.pop(id, None)
            self._heard()

    def _heard(self) -> None:
        if self._leader and not self._followers:
            self.heard_s = self.now_s


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
