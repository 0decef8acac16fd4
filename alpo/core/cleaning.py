"""The front of the log: the first payload that readers get, and the entries that a server may delete (R18-R20).

Laws:

* A server cleans only entries that are fully replicated, guaranteed, on its own disk, and covered by a saved state
  (R19, rules.md#replicated-state). If no save covers them yet, one is written in the transaction that cleans.
* A server cleans no payload that a cursor needs (`machine.cursors`). A trim below a cursor is refused, unless forced.
* A payload below `first_lsn` is never reported as absent from the log: the answer says where the log begins (R20).
"""

from __future__ import annotations

from .damage import Damage
from .disk import Base
from .ready import Clean
from .shared import Shared


class Cleaning:
    """The cleaning of one replica's log, and the first LSN that it serves."""

    def __init__(self, shared: Shared, damage: Damage) -> None:
        self._r = shared
        self._damage = damage
        #: The base that this step's write cleans up to; None if it cleans nothing.
        self.base: Base | None = None

    @property
    def trim_lsn(self) -> int:
        """The LSN below which no payload is served, by guaranteed trims; 1: none was trimmed."""
        return self._r.trims.trim_lsn

    @property
    def first_lsn(self) -> int:
        """The first LSN that is served, by guaranteed trims and by what was cleaned here."""
        return max(self.trim_lsn, self._r.log.base_next_lsn)

    @property
    def head_first_lsn(self) -> int:
        """The first LSN that is served once the trims in the log are guaranteed and this step has cleaned."""
        return max(self.first_lsn, self.base.next_lsn if self.base else 1, self._r.trims.head)

    @property
    def cleanable_id(self) -> int:
        """The id up to which entries may be cleaned if no cursor needs them (R19); the base's while damage forbids it
        (R31)."""
        r = self._r
        if self._damage.binds:
            return r.log.base_id
        return min(r.fully_replicated_id, r.guaranteed_id, r.log.stable_id)

    def begin_anew(self) -> None:
        """Forget the cleaning asked for: a snapshot has replaced the log."""
        self.base = None

    def clean(self, request: Clean) -> None:
        """Have this step clean up to the entry that the shell's retention allows, if R19 and the cursors allow it."""
        r = self._r
        if not r.log.base_id < request.upto_id <= self.cleanable_id or request.upto_id <= (
            self.base.id if self.base else 0
        ):
            return
        hold_lsn = r.cursors.hold_lsn
        if hold_lsn is not None and request.next_lsn > hold_lsn:
            return
        term = r.log.term_at(request.upto_id)
        assert term is not None
        self.base = Base(request.upto_id, term, request.time_ms, request.next_lsn)

    def take_base(self) -> Base | None:
        """Drop from the log in memory what this step's write cleans. Returns the base to write; None if nothing is
        cleaned, because no cleaning was asked for, or because a cursor that was set in this step needs the payloads."""
        r, base = self._r, self.base
        self.base = None
        hold_lsn = r.cursors.hold_lsn if base is not None else None
        if base is None or (hold_lsn is not None and base.next_lsn > hold_lsn):
            return None
        r.log.clean(base)
        r.out.event("clean", upto_id=base.id, first_lsn=self.first_lsn)
        return base
