"""The front of the log: what TRIM entries forbid to read, and what a server may delete (R18-R20).

Laws:

* The trim mark is a function of the log; it counts once its entry is guaranteed, and an expunge takes it back.
* A server cleans only what is fully replicated and guaranteed, on its own disk, and covered by a saved table (R19,
  rules.md#replicated-state): the save is in the cleaning's own transaction if it must be.
* Nor does it clean what a cursor needs (`cursors`). A trim that would take that is refused, unless it is forced.
* Below the first LSN nothing is ever answered as if it were absent: `first_lsn` says where the log begins (R20).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .disk import Base
from .entries import Entry, Kind, json_body, parse_body
from .inputs import Clean, Trim
from .ready import Code, Trimmed

if TYPE_CHECKING:
    from .replica import Replica


class Cleaning:
    """Trim marks and the base of one replica. ``trim_lsn``: no payload below it is served (1: all are)."""

    def __init__(self, replica: Replica, trim_lsn: int) -> None:
        self._r = replica
        self.trim_lsn = trim_lsn
        self._coming: list[tuple[int, int]] = []  # (entry id, LSN) of TRIM entries not yet guaranteed
        #: What is to be cleaned with this step's write.
        self.base: Base | None = None

    @property
    def first_lsn(self) -> int:
        """The first LSN that is served."""
        return max(self.trim_lsn, self._r.log.base_next_lsn)

    @property
    def head_first_lsn(self) -> int:
        """The first LSN that is served once all that is on its way has come."""
        coming = [lsn for _, lsn in self._coming]
        return max([self.first_lsn, self.base.next_lsn if self.base else 1, *coming])

    @property
    def cleanable_id(self) -> int:
        """Everything up to here may be cleaned (R19, R31)."""
        r = self._r
        if r.damage.binds:
            return r.log.base_id
        return min(r.fully_replicated_id, r.guaranteed_id, r.log.stable_id)

    def restore(self, trim_lsn: int) -> None:
        """Begin anew from what a base says."""
        self.trim_lsn = trim_lsn
        self._coming = []
        self.base = None

    # -- TRIM entries (R20) -----------------------------------------------------------------------------

    def trim(self, request: Trim) -> None:
        """A client asks that nothing below an LSN be served any more."""
        r = self._r
        if not r.serving.serves:
            r.serving.not_leader(request.origin)
        elif not 0 < request.before_lsn <= r.log.next_lsn:
            detail = f"{self.first_lsn},{r.log.next_lsn - 1}"
            r.out.refuse(request.origin, Code.OUT_OF_RANGE, detail=detail)
        elif not request.force and r.cursors.behind(request.before_lsn):
            r.reads.ask(request)  # no deposed leader refuses for a cursor that is gone
        else:
            self.append_trim(request)

    def append_trim(self, request: Trim) -> None:
        """A client's trim, which may be."""
        r = self._r
        entry = r.append_special(Kind.TRIM, json_body(before=request.before_lsn))
        r.serving.answer_once_guaranteed(Trimmed(request.origin, self.head_first_lsn), entry.id)  # never back

    def accept(self, entry: Entry) -> None:
        """A TRIM entry is in our log. Raises `DamagedEntry` or ValueError on a body of another shape."""
        before = parse_body(entry).get("before")
        if type(before) is not int or not 0 < before <= entry.lsn:
            raise ValueError(f"no LSN to trim before: {before!r}")
        self._coming.append((entry.id, before))
        self._r.cursors.trimmed(entry.id, before)

    def expunge(self, from_id: int) -> None:
        self._coming = [coming for coming in self._coming if coming[0] < from_id]

    def guaranteed(self, id: int) -> None:
        """The mark has moved: what it covers counts from now on."""
        while self._coming and self._coming[0][0] <= id:
            self.trim_lsn = max(self.trim_lsn, self._coming.pop(0)[1])

    # -- cleaning (R19) ---------------------------------------------------------------------------------

    def clean(self, request: Clean) -> None:
        """The shell's policy says that everything up to an entry may go; done if R19 allows it."""
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
        """What this step's write is to clean; not what a cursor that has come in the same step needs."""
        base, self.base = self.base, None
        hold_lsn = self._r.cursors.hold_lsn if base is not None else None
        return None if base is not None and hold_lsn is not None and base.next_lsn > hold_lsn else base


def take_base(r: Replica) -> Base | None:
    """What this step's write cleans, if anything."""
    base = r.cleaning.take_base()
    if base is not None:
        r.log.clean(base)
        if r.leadership is not None:
            r.leadership.cleaned(base.id)
        r.out.event("clean", upto_id=base.id, first_lsn=r.cleaning.first_lsn)
    return base
