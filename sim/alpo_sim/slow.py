"""Links with little bandwidth: long messages take their time, one after the other, and short ones pass between them.

Laws:

* What is under way moves while both ends run and the link is whole; both ends are told so (`Moving`), as by the bytes.
* It is lost with the connection, or with the process at either end; what is told to move is not lost otherwise.
* Entries stay behind entries. A link that is slow no longer delivers at once what was under way.
* Nothing here is random.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from alpo.core.messages import AppendRequest, CopyAnswer, Envelope, SnapshotPart
from alpo.core.ready import Input, Moving

from .connections import Connections
from .network import Links
from .stage import Stage

#: Bytes of a message beside its entries; messages that are longer than `LONG_BYTES` take time on a slow link.
_HEAD_BYTES, LONG_BYTES = 60, 200


class _Sent(NamedTuple):
    """A message under way, with the numbers of its ends' processes and of the connection."""

    envelope: Envelope
    boots: tuple[int, int]
    resets: int


def size_of(envelope: Envelope) -> int:
    """About the bytes of a message."""
    message = envelope.message
    if isinstance(message, AppendRequest | CopyAnswer):
        return _HEAD_BYTES + sum(_HEAD_BYTES + len(entry.body) for entry in message.entries)
    if isinstance(message, SnapshotPart):
        return _HEAD_BYTES + len(message.head) + sum(_HEAD_BYTES + 40 * len(row.slots) for row in message.rows)
    return _HEAD_BYTES


class SlowLinks:
    """Messages under way on slow links. ``runs(id)``: that process is up, not paused; ``arrive``: a message is there;
    ``ask``: a server gets an input."""

    def __init__(
        self, stage: Stage, links: Links, connections: Connections, after: Callable[..., None],
        runs: Callable[[int], bool], arrive: Callable[[Envelope], None], ask: Callable[[int, Input], None],
    ) -> None:
        self._stage, self._links, self._connections = stage, links, connections
        self._after, self._runs, self._arrive, self._ask = after, runs, arrive, ask
        self._tick_us = max(1, round(stage.timers.heartbeat_s * 500_000))
        self._bytes_per_s: dict[tuple[int, int], int] = {}
        self._under_way: dict[tuple[int, int], deque[_Sent]] = {}
        self._left_bytes: dict[tuple[int, int], float] = {}  # of the first one

    def slow(self, source: int, target: int, bytes_per_s: int) -> None:
        """Let a link carry so many bytes a second; 0: as many as it is given."""
        if bytes_per_s:
            self._bytes_per_s[source, target] = bytes_per_s
        else:
            self._bytes_per_s.pop((source, target), None)

    def heal(self) -> None:
        """Let no link be slow."""
        self._bytes_per_s.clear()

    def takes(self, envelope: Envelope) -> bool:
        """True if a message has to wait here: it is long, or it has entries and others wait."""
        pair = envelope.sender.id, envelope.target.id
        message = envelope.message
        waiting = self._under_way.get(pair)
        behind = bool(waiting) and isinstance(message, AppendRequest) and bool(message.entries)
        if not behind and (pair not in self._bytes_per_s or size_of(envelope) <= LONG_BYTES):
            return False
        sent = _Sent(envelope, self._boots(pair), self._connections.resets[pair])
        if waiting:
            waiting.append(sent)
        else:
            self._under_way[pair] = deque([sent])
            self._left_bytes[pair] = size_of(envelope)
            self._after(self._tick_us, self._move, pair)
        return True

    def _boots(self, pair: tuple[int, int]) -> tuple[int, int]:
        return self._stage.hosts[pair[0]].boots, self._stage.hosts[pair[1]].boots

    def _move(self, pair: tuple[int, int]) -> None:
        """Let what is under way on a link move for one tick."""
        waiting, now = self._under_way[pair], (self._boots(pair), self._connections.resets[pair])
        while waiting and (waiting[0].boots, waiting[0].resets) != now:
            waiting.popleft()
            self._begin_next(pair)
        if waiting and all(map(self._runs, pair)) and pair not in self._links.cut:
            bytes_per_s = self._bytes_per_s.get(pair)
            room = bytes_per_s * self._tick_us / 1e6 if bytes_per_s is not None else float("inf")
            while waiting and room >= self._left_bytes[pair]:
                room -= self._left_bytes[pair]
                sent = waiting.popleft()
                self._begin_next(pair)
                self._arrive(sent.envelope)
            if waiting:
                self._left_bytes[pair] -= room
                self._tell(pair)
        if waiting:
            self._after(self._tick_us, self._move, pair)
        else:
            del self._under_way[pair], self._left_bytes[pair]

    def _begin_next(self, pair: tuple[int, int]) -> None:
        waiting = self._under_way[pair]
        self._left_bytes[pair] = size_of(waiting[0].envelope) if waiting else 0.0

    def _tell(self, pair: tuple[int, int]) -> None:
        envelope = self._under_way[pair][0].envelope
        self._ask(pair[0], Moving(envelope.target, False))
        self._ask(pair[1], Moving(envelope.sender, True))
