"""Reader cursors: named positions kept in the log, which hold cleaning back (rules.md#cursors).

Laws:

* The table is a function of the log: a CURSOR entry sets or drops one, a TRIM entry drops those that it leaves behind.
  In force at the head; an expunge takes it back.
* A cursor's LSN is the next one that its reader needs. While it lives no server cleans that payload or a later one: not
  by the head of the log, nor by any state that an expunge could bring back.
* A cursor that goes for another reason than its owner's word goes with an event, once that is guaranteed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from .client_ids import CLIENT_BYTES_MAX
from .entries import Entry, json_body, parse_body

if TYPE_CHECKING:
    from .replica import Replica

#: So many there may be.
CURSORS_MAX = 1000


class _Undo(NamedTuple):
    """What entry ``id`` changed: the LSN before (None: there was no such cursor); ``why`` it was dropped ("": it was
    set)."""

    id: int
    name: str
    before: int | None
    why: str


def valid_cursor(name: str) -> bool:
    """May a cursor be called that? UTF-8 of 1 to 128 bytes."""
    try:
        return 0 < len(name.encode()) <= CLIENT_BYTES_MAX
    except UnicodeEncodeError:
        return False


def set_body(name: str, lsn: int) -> bytes:
    return json_body(op="set", name=name, lsn=lsn)


def drop_body(name: str, why: str) -> bytes:
    return json_body(op="drop", name=name, why=why)


class Cursors:
    """The cursors of one replica, at the head of its log."""

    def __init__(self, replica: Replica, saved: Iterable[tuple[str, int]]) -> None:
        self._r = replica
        self.now: dict[str, int] = dict(saved)
        self._undo: list[_Undo] = []

    def restore(self, saved: Iterable[tuple[str, int]]) -> None:
        """Begin anew from what a base says."""
        self.now = dict(saved)
        self._undo = []

    @property
    def hold_lsn(self) -> int | None:
        """The lowest LSN that some cursor needs; None: there is none, and none can come back."""
        back = [undo.before for undo in self._undo if undo.before is not None]
        return min([*self.now.values(), *back], default=None)

    def behind(self, lsn: int) -> list[tuple[int, str]]:
        """(LSN, name) of the cursors below ``lsn``, lowest first."""
        return sorted((at, name) for name, at in self.now.items() if at < lsn)

    def accept(self, entry: Entry) -> None:
        """A CURSOR entry is in our log. Raises `DamagedEntry` or ValueError on a body of another shape."""
        fields: dict[str, Any] = parse_body(entry)
        name, lsn = fields.get("name"), fields.get("lsn")
        if type(name) is not str or not valid_cursor(name):
            raise ValueError(f"no cursor's name: {name!r}")
        if fields.get("op") == "drop":
            self._drop(entry.id, name, str(fields.get("why")))
        elif fields.get("op") == "set" and type(lsn) is int and 0 < lsn <= entry.lsn:
            self._undo.append(_Undo(entry.id, name, self.now.get(name), ""))
            self.now[name] = lsn
        else:
            raise ValueError(f"neither sets nor drops a cursor: {fields!r}")

    def trimmed(self, id: int, before_lsn: int) -> None:
        """TRIM entry ``id`` leaves nothing below an LSN."""
        for _, name in self.behind(before_lsn):
            self._drop(id, name, "trim")

    def _drop(self, id: int, name: str, why: str) -> None:
        if name in self.now:
            self._undo.append(_Undo(id, name, self.now.pop(name), why))

    def expunge(self, from_id: int) -> None:
        while self._undo and self._undo[-1].id >= from_id:
            _, name, before, _ = self._undo.pop()
            self._put(self.now, name, before)

    def guaranteed(self, id: int) -> None:
        """The mark has moved: what it covers is never taken back."""
        while self._undo and self._undo[0].id <= id:
            _, name, before, why = self._undo.pop(0)
            if why:
                self._r.out.event("cursor_dropped", cursor=name, lsn=before, why=why)

    def at(self, id: int) -> tuple[tuple[str, int], ...]:
        """The cursors as of entry ``id``, which is not below what is known guaranteed; by name."""
        then = dict(self.now)
        for undo in reversed(self._undo):
            if undo.id > id:
                self._put(then, undo.name, undo.before)
        return tuple(sorted(then.items()))

    @staticmethod
    def _put(cursors: dict[str, int], name: str, lsn: int | None) -> None:
        if lsn is None:
            cursors.pop(name, None)
        else:
            cursors[name] = lsn
