"""Full disks: who has room for more, and what a leader then takes (rules.md#full-disks).

Laws:

* A leader takes nothing new from clients unless its own disk and those of a majority of voters have room. What it has
  taken goes on; its own entries, trims and drops go in, and what is in the log already is answered as ever.
* A passive server whose disk is all but full takes no entries, and says so; it votes, and answers heartbeats.
* A leader that is low while a majority of the others is not has one of those lead. Nobody is held back for ever: what a
  peer said last counts, and it speaks with every heartbeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .inputs import Space
from .messages import HandOver, Room

if TYPE_CHECKING:
    from .replica import Replica
    from .replication import Progress

def size_text(count: int) -> str:
    """Bytes as people read them, with the unit that suits."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


class Disks:
    """Room on our own disk, as the shell says, and what follows from it and from the peers'."""

    def __init__(self, replica: Replica) -> None:
        self._r = replica
        self.room = Room.PLENTY
        self._free_bytes = 0
        self._tried: list[int] = []
        self._try_next_s = 0.0

    def heard(self, space: Space) -> None:
        """The shell has looked at our disk."""
        self._free_bytes = space.free_bytes
        if space.room is not self.room:
            self.room = space.room
            name = "space_is_back" if space.room is Room.PLENTY else "low_on_space"
            self._r.out.event(name, room=space.room.name.lower(), free_bytes=space.free_bytes)

    @property
    def takes_entries(self) -> bool:
        """May a passive server take what its leader sends?"""
        return self.room is not Room.NONE

    @property
    def why_not(self) -> str:
        """Why this leader takes nothing new just now; "" if it does."""
        r = self._r
        if self.room is not Room.PLENTY:
            return f"server {r.me.id} is low on disk space: {size_text(self._free_bytes)} free"
        assert r.leadership is not None
        low = [id for id, peer in r.leadership.peers.items() if peer.room and r.members.latest.is_voter(peer.who)]
        if low and len(r.members.latest.voters) - len(low) < r.members.latest.majority:
            return f"a majority of the servers is low on disk space: {', '.join(map(str, sorted(low)))}"
        return ""

    def advance(self) -> None:
        """A leader that is low, or damaged, looks for another, one at a time, T for each."""
        r = self._r
        why = "low on disk space" if self.room is not Room.PLENTY else "damaged" if r.damage.ids else ""
        if not why or r.leadership is None or r.handing is not None:
            return
        fit = [p for p in r.leadership.heard_within(2 * r.cfg.heartbeat_s) if p.room is Room.PLENTY and not p.stopping]
        if r.now_s < self._try_next_s or len(fit) < r.members.latest.majority:
            return
        ready = [p for p in fit if p.match_id == r.log.last_id == r.guaranteed_id]
        untried = [p for p in ready if p.who.id not in self._tried]
        if not untried:
            self._tried.clear()
            untried = ready
        if untried:
            best = max(untried, key=self._priority)
            self._tried.append(best.who.id)
            self._try_next_s = r.now_s + r.cfg.election_timeout_s
            r.out.send(best.who, HandOver(r.term))
            r.out.event("handing_over", term=r.term, to=best.who.id, why=why)

    def _priority(self, peer: Progress) -> tuple[int, int]:
        member = self._r.members.latest.get(peer.who.id)
        return member.priority if member else 0, peer.who.id
