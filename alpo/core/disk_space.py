"""Full disks: which servers have space left, which requests a leader refuses without it (rules.md#full-disks), and the
one answer to whether appends work.

Laws:

* A leader takes new appends and opens only while its own disk has space, and a majority of the voters answer and have
  space. Silence alone refuses nothing: if a majority would not answer with all disks empty, appends wait. Appends
  that are in the log go on, and their repetitions are answered; the leader's own entries, trims and drops go in.
* A passive server whose disk is all but full (`Room.NONE`) takes no entries, and says so; it votes, and answers
  heartbeats.
* A leader that is low on space hands over, if enough other voters have space. A peer counts as low only until its next
  answer says otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

from .damage import Damage
from .inputs import Space
from .messages import HandOver, Room
from .progress import Lack, Progress, next_in_turn
from .replication import Replication
from .shared import Shared

_NO_ROOM = (Lack.LOW, Lack.FULL)


def size_text(count: int) -> str:
    """A number of bytes in words for people: "1.5 GiB"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


class Appends(NamedTuple):
    """A leader's answer to whether appends work. ``why``: a sentence for each voter on which none can count now;
    ``may_fail``: the number of voters that may fail before appends stand, 0 if they do."""

    work: bool
    why: list[str]
    may_fail: int


class Disks:
    """The space on this server's disk, and its consequences. Peers' space is in their `Progress`. ``room``: this
    server's."""

    def __init__(self, shared: Shared, damage: Damage) -> None:
        self._r = shared
        self._damage = damage
        self.room = Room.PLENTY
        self._free_bytes = 0
        self._tried: list[int] = []
        self._try_next_s = 0.0

    def heard(self, space: Space) -> None:
        """Note the space that the shell found on our disk."""
        self._free_bytes = space.free_bytes
        if space.room is not self.room:
            self.room = space.room
            name = "space_is_back" if space.room is Room.PLENTY else "low_on_space"
            self._r.out.event(name, room=space.room.name.lower(), free_bytes=space.free_bytes)

    @property
    def takes_entries(self) -> bool:
        """True if this server, as a passive one, may take the entries that its leader sends."""
        return self.room is not Room.NONE

    def why_not(self, replication: Replication) -> str:
        """The reasons why this leader takes no new appends now, for want of space; "" if it does."""
        low = {peer.who.id for peer in replication.voters if peer.room}
        if self.room is Room.PLENTY and (not low or not self._short_of_space(replication, low)):
            return ""
        lacks = {id: lack for id, lack in replication.lacks().items() if lack in (*_NO_ROOM, Lack.SILENT)}
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
        work = spare >= 0 and self.room is Room.PLENTY
        return Appends(work, self._sentences(lacks, own), spare if work else 0)

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
        """Hand over to another voter if this leader's disk is low or damaged and as many others as a majority have
        space: to one at a time, an election timeout for each. If they cannot be brought up to date, because an entry
        cannot be read, become passive: they elect a leader without this server (R31)."""
        r = self._r
        why = "low on disk space" if self.room is not Room.PLENTY else "damaged" if self._damage.ids else ""
        if not why or not r.serves:
            return
        fit = [p for p in replication.heirs() if p.room is Room.PLENTY]
        if len(fit) < r.members.latest.majority:
            return
        if self._is_lost(self._damage.first_id, fit):
            r.out.event("leader_gives_up", term=r.term, id=self._damage.first_id)
            return r.become_passive()
        if r.now_s < self._try_next_s:
            return
        ready = [p for p in fit if p.match_id == r.log.last_id == r.guaranteed_id]
        best = next_in_turn(ready, self._tried)
        if best is not None:
            self._try_next_s = r.now_s + r.cfg.election_timeout_s
            r.out.send(best.who, HandOver(r.term))
            r.out.event("handing_over", term=r.term, to=best.who.id, why=why)

    def _is_lost(self, id: int, others: list[Progress]) -> bool:
        """True if entry ``id``, damaged on this disk, can be sent to nobody and ``others`` are not known to have it. It
        was never guaranteed, so they may elect a leader without it."""
        r = self._r
        return id > r.guaranteed_id and r.log.entry(id) is None and all(p.matched and p.match_id < id for p in others)
