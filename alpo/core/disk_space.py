"""Full disks: which servers have space left, and which requests a leader refuses without it (rules.md#full-disks).

Laws:

* A leader takes new appends and opens only while its own disk and those of a majority of voters have space. Appends
  that are in the log go on, and their repetitions are answered; the leader's own entries, trims and drops go in.
* A passive server whose disk is all but full (`Room.NONE`) takes no entries, and says so; it votes, and answers
  heartbeats.
* A leader that is low on space, or damaged, hands over, if enough other voters have space. It takes no appends
  meanwhile: else something would always be in flight, and the heir would never be told. A peer counts as low only until
  its next answer says otherwise.
"""

from __future__ import annotations

from .damage import Damage
from .inputs import Space
from .messages import Room
from .progress import Progress, next_in_turn
from .replication import Replication
from .shared import Shared

#: Election timeouts that a leader whose disk is low or damaged leads on after a handover that came to nothing.
LEAD_ON_TIMEOUTS = 4


def size_text(count: int) -> str:
    """A number of bytes in words for people: "1.5 GiB"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} B"


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
        """The reason why this leader takes no new appends now; "" if it does."""
        r = self._r
        if self.room is not Room.PLENTY:
            return f"server {r.me.id} is low on disk space: {size_text(self._free_bytes)} free"
        low = [id for id, peer in replication.peers.items() if peer.room and r.members.latest.is_voter(peer.who)]
        if low and len(r.members.latest.voters) - len(low) < r.members.latest.majority:
            return f"a majority of the servers is low on disk space: {', '.join(map(str, sorted(low)))}"
        return ""

    def advance(self, replication: Replication) -> None:
        """Hand over to another voter if this leader's disk is low or damaged and as many others as a majority have
        space: to one at a time, an election timeout for each, with `LEAD_ON_TIMEOUTS` in between. If they cannot be
        brought up to date, because an entry cannot be read, become passive: they elect a leader without this server
        (R31)."""
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
        best = next_in_turn([p for p in fit if p.match_id >= r.guaranteed_id], self._tried)
        if best is not None:
            self._try_next_s = r.now_s + (1 + LEAD_ON_TIMEOUTS) * r.cfg.election_timeout_s
            r.hand_over(best.who.id, None, why)

    def _is_lost(self, id: int, others: list[Progress]) -> bool:
        """True if entry ``id``, damaged on this disk, can be sent to nobody and ``others`` are not known to have it. It
        was never guaranteed, so they may elect a leader without it."""
        r = self._r
        return id > r.guaranteed_id and r.log.entry(id) is None and all(p.matched and p.match_id < id for p in others)
