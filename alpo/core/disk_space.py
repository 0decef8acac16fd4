"""Full disks, and disks that hang: which servers have space left, which requests a leader refuses without it
(rules.md#full-disks), the one answer to whether appends work, and when it hands over because of its disk (R31, R34).

Laws:

* A leader takes new appends and opens only while its own disk has space, and a majority of the voters answer and have
  space. Silence alone refuses nothing: if a majority would not answer with all disks empty, appends wait. Appends that
  are in the log go on, and their repetitions are answered. The leader's own entries, trims and drops are appended as
  always.
* A passive server whose disk is all but full (`Room.NONE`) takes no entries, and says so; it votes, and answers
  heartbeats.
* A leader that is low on space, or damaged, hands over, if enough other voters have space. It takes no appends
  meanwhile: else some append would always be in flight, and the heir would never get its order. A peer counts as low
  only until its next answer says otherwise.
* A leader whose log is full takes no appends and opens either, and stays: the others' copies are as large.
* A disk *hangs* once a write has been under way for `ReplicaConfig.disk_patience_s`. A server whose disk hangs gives no
  vote and asks for none (`Replica.may_stand`, `dispatch`). A leader whose disk hangs hands over to a voter that has all
  entries that our disk owes, and is quick (`BETTER_SHARE`). It does so only if such voters are a majority without this
  server, which can elect one of them.
"""

from __future__ import annotations

import math
from operator import attrgetter
from typing import NamedTuple

from .damage import Damage
from .messages import Room
from .ready import Space
from .replication import Lack, Progress, Replication, next_in_turn
from .settings import size_text
from .shared import Shared

#: Part of `ReplicaConfig.disk_patience_s`, or of the election timeout, after which a write under way is an event.
TELL_SHARE = 0.25
#: An heir's disk is better than ours if it took at most this part of the time for which ours owes a write, and of the
#: election timeout.
BETTER_SHARE = 0.5
#: Election timeouts that a leader whose disk is low or damaged leads on after a handover that came to nothing.
LEAD_ON_TIMEOUTS = 4
#: Reason to hand over, in the event.
HANGS = "its disk hangs"
_NO_ROOM = (Lack.LOW, Lack.FULL)
_TOLD = (*_NO_ROOM, Lack.SILENT)
_ROOM, _ID = attrgetter("room"), attrgetter("who.id")


class Appends(NamedTuple):
    """A leader's answer to whether appends work. ``why``: a sentence for each voter on which none can count now;
    ``may_fail``: the number of voters that may fail before appends stop; 0 if they have stopped."""

    work: bool
    why: list[str]
    may_fail: int


class Disks:
    """The space on this server's disk, whether it hangs, and the consequences. Peers' space is in their `Progress`.
    ``room``: this server's; ``slow_since_s``: the time, in monotonic seconds, at which the write was handed out that
    the last `disk_hangs` event reported; None: there was none, or the disk has moved since."""

    def __init__(self, shared: Shared, damage: Damage) -> None:
        self._r = shared
        self._damage = damage
        self.room = Room.PLENTY
        self._patience_s = shared.cfg.disk_patience_s
        self._tell_s = TELL_SHARE * min(self._patience_s, shared.cfg.election_timeout_s)
        self._free_bytes = 0
        self._full_log = ""  # reason why this log takes no appends, though the disk has space
        self.slow_since_s: float | None = None
        self._left_since_s: float | None = None  # the value of ``slow_since_s`` for which we handed over
        self._tried: list[int] = []
        self._try_next_s = 0.0

    def heard(self, space: Space) -> None:
        """Note the space that the shell found on our disk."""
        self._free_bytes, self._full_log = space.free_bytes, space.full_log
        if space.room is not self.room:
            self.room = space.room
            name = "space_is_back" if space.room is Room.PLENTY else "low_on_space"
            self._r.out.event(name, room=space.room.name.lower(), free_bytes=space.free_bytes)

    # -- disks that hang (R34) --------------------------------------------------------------------------

    @property
    def owed_s(self) -> float:
        """The age of the oldest write under way, seconds; 0.0 if there is none."""
        oldest = self._r.log.oldest_write()
        return self._r.now_s - oldest.handed_s if oldest is not None else 0.0

    @property
    def hangs(self) -> bool:
        """True if a write has been under way for as long as this server waits for its disk."""
        writes = self._r.log.writes
        return bool(writes) and self._r.now_s - writes[0].handed_s >= self._patience_s

    def tick(self) -> None:
        """Report by an event that a write has been under way for long, and by another one that none is any more."""
        r, oldest = self._r, self._r.log.oldest_write()
        slow = oldest is not None and r.now_s - oldest.handed_s >= self._tell_s
        if slow and self.slow_since_s is None:
            assert oldest is not None
            self.slow_since_s = oldest.handed_s
            r.out.event("disk_hangs", under_way_ms=round(self.owed_s * 1000), limit_ms=round(self._tell_s * 1000))
        elif not slow and self.slow_since_s is not None:
            r.out.event("disk_moves_again", took_ms=round((r.now_s - self.slow_since_s) * 1000))
            self.slow_since_s = self._left_since_s = None

    def deadline_s(self) -> float:
        """The time at which a write that stays under way becomes an event, or the disk hangs, monotonic seconds;
        infinity: never."""
        oldest = self._r.log.oldest_write()
        if oldest is None or self._r.now_s - oldest.handed_s >= self._patience_s:
            return math.inf
        return oldest.handed_s + (self._tell_s if self.slow_since_s is None else self._patience_s)

    def _leave(self, fit: list[Progress]) -> None:
        """Hand over because our disk hangs; become passive if a handover has failed. Do neither unless a majority of
        the voters, all of ``fit``, has accepted what our disk owes, and has better disks. Otherwise no server could be
        elected, or leadership would go to and fro."""
        r, oldest = self._r, self._r.log.oldest_write()
        assert oldest is not None
        # a disk that takes longer than that could not win an election: its vote would come too late
        quick_s = BETTER_SHARE * min(r.now_s - oldest.handed_s, r.cfg.election_timeout_s)
        better = [p for p in fit if p.match_id >= oldest.last_id and p.owed_s(r.now_s) <= quick_s]
        if len(better) < r.members.latest.majority:
            return
        if self._left_since_s is not None:
            r.out.event("leader_gives_up", term=r.term, why=HANGS)
            return r.become_passive()
        self._left_since_s = self.slow_since_s
        r.hand_over(min(better, key=lambda p: p.owed_s(r.now_s)).who.id, None, HANGS)

    # -- full disks -------------------------------------------------------------------------------------

    @property
    def takes_entries(self) -> bool:
        """True if this server, as a passive one, may take the entries that its leader sends."""
        return self.room is not Room.NONE

    def why_not(self, replication: Replication) -> str:
        """The reasons why this leader takes no new appends now, for want of space; "" if it does."""
        if self._full_log:
            return self._full_log
        low = set(map(_ID, filter(_ROOM, replication.voters)))
        if self.room is Room.PLENTY and (not low or not self._short_of_space(replication, low)):
            return ""
        lacks = {id: lack for id, lack in replication.lacks().items() if lack in _TOLD}
        return ", ".join(self._sentences(lacks, self._own_room()))

    def _short_of_space(self, replication: Replication, low: set[int]) -> bool:
        """True if the voters that answer and have space are no majority, and with more space would be one. ``low``:
        those whose last answer told of little space, whether they answer now or not."""
        latest = self._r.members.latest
        silent = {id for id, lack in replication.lacks().items() if lack is Lack.SILENT} - low
        helped = len(latest.voters) - len(silent)
        return helped - len(low) < latest.majority <= helped

    def appends(self, replication: Replication) -> Appends:
        """The answer to whether appends to this leader work."""
        members, lacks = self._r.members, replication.lacks()
        own = self._own_room() or replication.own_lack()
        fit = len(replication.voters) - len(lacks) + (members.i_vote and own is None)
        spare = fit - members.latest.majority
        work = spare >= 0 and self.room is Room.PLENTY and not self._full_log
        why = [self._full_log] if self._full_log else []
        return Appends(work, why + self._sentences(lacks, own), spare if work else 0)

    def _own_room(self) -> Lack | None:
        return {Room.PLENTY: None, Room.LOW: Lack.LOW, Room.NONE: Lack.FULL}[self.room]

    def _sentences(self, lacks: dict[int, Lack], own: Lack | None) -> list[str]:
        """A sentence for each server that lacks something, those that lack space first, ``own`` before all."""
        me = f"server {self._r.me.id}"
        if own in _NO_ROOM:
            found = [f"{me} {Lack.LOW}: {size_text(self._free_bytes)} free"]
        else:
            found = [f"{me} {own}"] if own is not None else []
        order = sorted(lacks.items(), key=lambda item: (item[1] not in _NO_ROOM, item[0]))
        return [*found, *(f"server {id} {lack}" for id, lack in order)]

    def advance(self, replication: Replication) -> None:
        """Hand over to another voter if this leader's disk hangs (`_leave`), or is low or damaged and as many others as
        a majority have space: to one at a time, an election timeout for each, with `LEAD_ON_TIMEOUTS` in between. If
        they cannot be brought up to date, because an entry cannot be read, become passive: they elect a leader without
        this server (R31)."""
        r = self._r
        why = "low on disk space" if self.room is not Room.PLENTY else "damaged" if self._damage.ids else ""
        hangs = self.hangs
        if not (why or hangs) or not r.serves:
            return
        fit = [p for p in replication.heirs() if p.room is Room.PLENTY]
        if len(fit) < r.members.latest.majority:
            return
        if hangs:
            return self._leave(fit)
        if self._is_lost(self._damage.first_id, fit):
            r.out.event("leader_gives_up", term=r.term, id=self._damage.first_id)
            return r.become_passive()
        if r.now_s < self._try_next_s:
            return
        best = next_in_turn([p for p in fit if p.match_id >= r.guaranteed_id], self._tried)
        if best is not None:
            self._try_next_s = r.now_s + (1 + LEAD_ON_TIMEOUTS) * r.cfg.election_timeout_s
            r.hand_over(best.who.id, None, why)

    def _is_lost(self, id: int, others: list[Progress]) -> bool:
        """True if entry ``id``, damaged on this disk, can be sent to nobody and ``others`` are not known to have it. It
        was never guaranteed, so they may elect a leader without it."""
        r = self._r
        return id > r.guaranteed_id and r.log.entry(id) is None and all(p.matched and p.match_id < id for p in others)
