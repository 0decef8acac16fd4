"""Simulated server: its disk and its clocks survive a crash, its process does not."""

from __future__ import annotations

import hashlib
from collections import deque

from alpo.core.disk import Load, LoadCopy, LoadSnapshot, Write
from alpo.core.members import MemberList
from alpo.core.messages import Envelope
from alpo.core.ready import Input
from alpo.core.replica import Replica
from alpo.storage.memory import MemoryStore

WALL_ZERO_MS = 1_700_000_000_000
NEVER_US = 1 << 62


def incarnation_of(seed: int, id: int, disk: int) -> bytes:
    """The incarnation of disk number ``disk`` of server ``id``: 16 bytes, different for each disk of a run."""
    return hashlib.blake2b(f"{seed}/{id}/{disk}".encode(), digest_size=16).digest()


class Host:
    """Server: its disk (``store``), its clocks, and, while it is up, its process (``replica``, inputs, writes, reads).

    ``boots`` counts processes, ``disks`` counts disks: by these numbers callers notice that something that they have
    scheduled concerns an earlier process or disk, and drop it.
    """

    __slots__ = (
        "_deadline_s", "_mono_s", "_since_us", "boots", "damaged", "disk_last_id", "disk_term", "disk_vote", "disks",
        "due_us", "id", "inbox", "joining", "laid_aside", "led_by", "loads", "moves", "rate", "replica", "seed",
        "store", "waiting", "wall_offset_ms", "writes",
    )

    def __init__(self, id: int, seed: int, *, joining: bool = False) -> None:
        self.id = id
        self.joining = joining  # the server waits to be added to a cluster
        self.seed = seed
        self.boots = 0
        self.disks = 0
        self.moves = 0
        self.store = MemoryStore(id, incarnation=incarnation_of(seed, id, 0))
        self.laid_aside: MemoryStore | None = None
        self.replica: Replica | None = None
        self.rate = 1.0
        self.wall_offset_ms = 0
        self._mono_s, self._since_us = 1000.0, 0
        # State on the disk; messages may tell of nothing else (R14).
        self.disk_term = self.disk_vote = self.disk_last_id = 0
        self.damaged: tuple[int, ...] = ()  # entries on the disk found damaged by the shell
        #: The member list, and its entry's id, by which its process led when its present step began; None: it did not.
        self.led_by: tuple[int, MemberList] | None = None
        self.down()

    @property
    def running(self) -> Replica:
        """The replica of a server that is up."""
        assert self.replica is not None
        return self.replica

    @property
    def address(self) -> str:
        return f"10.0.{self.moves}.{self.id}:7100"

    def down(self) -> None:
        """End the process; all that was in its memory is gone."""
        self.replica = None
        self.inbox: list[Input] = []
        self.writes: deque[Write] = deque()
        self.waiting: deque[tuple[int, list[Envelope]]] = deque()  # (number of a write, messages that leave after it)
        self.loads: deque[Load | LoadSnapshot | LoadCopy] = deque()
        self.set_deadline(float("inf"))

    def new_disk(self) -> None:
        """Put an empty disk in; the present one is laid aside."""
        self.disks += 1
        self.damaged = ()
        self.laid_aside = self.store
        self.store = MemoryStore(self.id, incarnation=incarnation_of(self.seed, self.id, self.disks))
        self.disk_term = self.disk_vote = self.disk_last_id = 0

    def old_disk(self) -> None:
        """Put the disk back that was laid aside; the present one is laid aside instead."""
        assert self.laid_aside is not None
        self.store, self.laid_aside, self.damaged = self.laid_aside, self.store, ()

    def mono_s(self, now_us: int) -> float:
        """This server's monotonic clock at virtual time ``now_us``, seconds."""
        return self._mono_s + (now_us - self._since_us) * self.rate * 1e-6

    def wall_ms(self, now_us: int) -> int:
        """This server's wall clock at virtual time ``now_us``, milliseconds since 1970."""
        return WALL_ZERO_MS + now_us // 1000 + self.wall_offset_ms

    def set_clock(self, now_us: int, rate: float, jump_ms: int) -> None:
        """Let the monotonic clock run at ``rate`` from now on, and the wall clock jump by ``jump_ms``."""
        self._mono_s, self._since_us = self.mono_s(now_us), now_us
        self.rate = rate
        self.wall_offset_ms += jump_ms
        self.due_us = self.when_us(self._deadline_s)

    def set_deadline(self, deadline_s: float) -> None:
        """Set the deadline, in seconds of this server's monotonic clock; ``due_us`` becomes the virtual time of it."""
        self._deadline_s = deadline_s
        self.due_us = self.when_us(deadline_s)

    def when_us(self, deadline_s: float) -> int:
        """The first microsecond of virtual time at which this server's monotonic clock has reached ``deadline_s``."""
        if deadline_s == float("inf"):
            return NEVER_US
        return self._since_us + max(0, int((deadline_s - self._mono_s) / self.rate * 1e6) + 1)
