"""Reads of our own disk: how long they are under way, when one is given up, and a leader's handover because of it.

Laws:

* A read that waits for a disk that hangs is given up, and the asker gets the reason, so that a client asks another
  server. The read's thread waits on, and keeps its place in its limiter, so that the number of threads stays bounded.
* A disk hangs for reads once one has been under way for `DiskReads.patience_s`. A read that waits for a thread is given
  up only then: many that wait are no sign of a disk that hangs.
* A leader that gives up a read hands over (R34), as an operator would have it do (R28): to one voter at a time, an
  election timeout for each, with `LEAD_ON_TIMEOUTS` in between; only if a majority without this server could elect it,
  and is quick. (A write that hangs is the core's matter: `alpo.core.disk_space`.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio

from alpo.core.disk_space import BETTER_SHARE, LEAD_ON_TIMEOUTS
from alpo.core.messages import Room
from alpo.core.replication import next_in_turn
from alpo.core.requests import Reply, Transfer
from alpo.storage.interface import StoreError

from .driver import Driver
from .threads import in_thread

#: Seconds that a read may take whatever ``disk_timeout_s`` says: a page has a mebibyte, and many may be read at once.
PATIENCE_S_MIN = 2.0
#: Part of the patience that each read waits, also while an older one hangs: perhaps only that one does.
OWN_SHARE = 0.25

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class DiskSilent(StoreError):
    """The disk does not answer reads."""


class DiskReads:
    """The reads of the store that clients and operators wait for, many at a time. (Digests and backups have one each.)
    For the Trio thread."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._handover = _Handover(driver)
        self._begun: dict[object, float] = {}  # the reads in threads -> when each began, by `Driver.clock_s`
        self._told = False  # an event has said that the reads under way hang

    @property
    def patience_s(self) -> float:
        """Seconds for which a read may be under way before the disk counts as hanging."""
        return max(self._driver.replica.cfg.disk_patience_s, PATIENCE_S_MIN)

    @property
    def under_way_s(self) -> float:
        """The age of the oldest read under way, seconds; 0.0 if there is none."""
        return max(0.0, self._driver.clock_s() - self._oldest_s()) if self._begun else 0.0

    @property
    def hangs(self) -> bool:
        """True if a read has been under way for `patience_s`."""
        return self.under_way_s >= self.patience_s

    def _oldest_s(self) -> float:
        """The time at which the oldest read under way began; now if there is none."""
        return min(list(self._begun.values()), default=self._driver.clock_s())  # a copy: threads come and go

    async def ask(self, limiter: trio.CapacityLimiter, read: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call ``read`` in a thread, and count it. Cancelled, it is abandoned: its thread waits on. Raises as it
        does."""
        def counted() -> T:
            key = object()
            self._begun[key] = self._driver.clock_s()
            try:
                return read(*args)
            finally:
                del self._begun[key]

        return await in_thread(counted, abandon_on_cancel=True, limiter=limiter)

    async def run(self, limiter: trio.CapacityLimiter, read: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call ``read`` in a thread, until the disk hangs. Raises as it does, and `DiskSilent`."""
        found: list[T] = []
        failed: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_it_hangs, nursery.cancel_scope)
            try:
                found.append(await self.ask(limiter, read, *args))
            except Exception as error:  # raised below: a nursery would make a group of it
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        if found:
            self._told = False
            return found[0]
        raise self._given_up()

    async def _until_it_hangs(self, scope: trio.CancelScope) -> None:
        share_s = OWN_SHARE * self.patience_s
        own_s = trio.current_time() + share_s
        while trio.current_time() < (end_s := max(own_s, self._oldest_s() + self.patience_s)):
            await trio.sleep_until(end_s)
            if trio.current_time() > end_s + share_s:  # this process stood: the disk may have answered meanwhile
                own_s = trio.current_time() + share_s
        scope.cancel()

    def _given_up(self) -> DiskSilent:
        silent = DiskSilent(f"its disk has not answered a read for {self.under_way_s:.1f} s")
        if not self._told:
            self._told = True
            self._driver.note("read_failed", why=str(silent))
        self._handover.begin()
        return silent


class _Handover:
    """A leader's attempts to hand over. It is the `Asker` of its own requests: whatever comes of one, the next read
    that is given up may try again."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._tried: list[int] = []
        self._next_s = -math.inf

    def begin(self) -> None:
        """Hand over, if this server leads, it is time, and others could elect an heir."""
        r, now_s = self._driver.replica, self._driver.clock_s()
        if r.leadership is None or not r.serves or now_s < self._next_s:
            return
        timeout_s = r.cfg.election_timeout_s
        fit = [
            peer for peer in r.leadership.heirs()
            if peer.room is Room.PLENTY and peer.match_id >= r.guaranteed_id
            # a peer that owes nothing counts as quick: perhaps no further write will show it, and the last one is over
            and (not peer.in_flight or peer.owed_s(now_s) <= BETTER_SHARE * timeout_s)
        ]
        best = next_in_turn(fit, self._tried) if len(fit) >= r.members.latest.majority else None
        if best is not None:
            self._next_s = now_s + (1 + LEAD_ON_TIMEOUTS) * timeout_s
            self._driver.post(Transfer(self, best.who.id))
            self._driver.kick()

    def answer(self, reply: Reply) -> None:
        """Do nothing: the next read that is given up looks again whether this server leads."""

    def flush(self) -> None:
        """Do nothing: no replies are collected."""
