"""State that is small enough to be kept whole, a version for each entry that changes it: cursors, which hold cleaning
back for readers (rules.md#cursors), and the trim mark, below which nobody reads (R20).

Laws:

* The version at the bottom is the newest one known guaranteed; the one on top is in force. An expunge takes off those
  of expunged entries, never the one at the bottom.
* A version is never changed: an entry that changes the state adds another version.
* Both are functions of the log. A CURSOR entry sets or drops a cursor; a TRIM entry raises the mark, and drops the
  cursors below it. An expunge undoes these entries.
* Cursors are in force from their entry on, the trim mark once its entry is guaranteed.
* A cursor's LSN is the next one that its reader needs. While the cursor is there, in the state at the head of the log
  or in one that an expunge could bring back, no server cleans that payload or a later one.
* Every drop of a cursor is reported by an event, once its entry is guaranteed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from alpo.core.entries import CLIENT_BYTES_MAX, INT_MAX, Entry, Kind, json_body, parse_body

T = TypeVar("T")


class Versions(Generic[T]):
    """Versions of a state, each with the id of the entry that made it. A subclass computes what it derives from them in
    `_derive`."""

    def __init__(self, state: T) -> None:
        self._stack: list[tuple[int, T]] = [(0, state)]
        self._changed()

    def restore(self, state: T, id: int = 0) -> None:
        """Begin anew with ``state``, which entry ``id`` made (0: the first start)."""
        self._stack = [(id, state)]
        self._changed()

    @property
    def head(self) -> T:
        """The state that is in force at the head of the log."""
        return self._stack[-1][1]

    def add(self, id: int, state: T) -> None:
        """Put ``state`` into force, which entry ``id`` makes, the last of the log."""
        self._stack.append((id, state))
        self._changed()

    def expunge(self, from_id: int) -> None:
        """Take off the versions that entries with id >= ``from_id`` made."""
        while self._stack[-1][0] >= from_id and len(self._stack) > 1:
            self._stack.pop()
        self._changed()

    def settle(self, guaranteed_id: int) -> None:
        """Drop the versions before the newest one that an entry up to ``guaranteed_id`` made: those entries will never
        be expunged."""
        stack = self._stack
        if guaranteed_id < self.unsettled_id:
            return
        count = sum(id <= guaranteed_id for id, _ in stack[1:])
        settled = [state for _, state in stack[1 : count + 1]]
        del stack[:count]
        self._changed()
        self._settled(settled)

    def at(self, id: int) -> tuple[int, T]:
        """The version in force at entry ``id``, (entry id, state); ``id`` is not below the version at the bottom."""
        return next(version for version in reversed(self._stack) if version[0] <= id)

    def _changed(self) -> None:
        #: The guaranteed id from which on `settle` has something to do.
        self.unsettled_id = self._stack[1][0] if len(self._stack) > 1 else INT_MAX
        self._derive()

    def _derive(self) -> None:
        """Recompute derived state. Called whenever the versions have changed."""

    def _settled(self, states: Sequence[T]) -> None:
        """Take the states that have just become known guaranteed, oldest first."""


#: Most cursors that a cluster keeps.
CURSORS_MAX = 1000


#: The refusal of a name that is not a `valid_cursor`.
NAME_WANTED = f"a cursor's name is 1 to {CLIENT_BYTES_MAX} bytes of UTF-8"


def valid_cursor(name: str) -> bool:
    """True if a cursor may bear this name: UTF-8 of 1 to 128 bytes."""
    try:
        return 0 < len(name.encode()) <= CLIENT_BYTES_MAX
    except UnicodeEncodeError:
        return False


def set_body(name: str, lsn: int) -> bytes:
    """The body of the CURSOR entry that puts a cursor at ``lsn``."""
    return json_body(op="set", name=name, lsn=lsn)


def drop_body(name: str, why: str) -> bytes:
    """The body of the CURSOR entry that drops a cursor; ``why``: for the event."""
    return json_body(op="drop", name=name, why=why)


def trim_body(before_lsn: int) -> bytes:
    """The body of the TRIM entry that raises the mark to ``before_lsn``."""
    return json_body(before=before_lsn)


def _trimmed_before(entry: Entry) -> int:
    """The mark that a TRIM entry sets, an LSN. Raises `DamagedEntry` or ValueError on a body of another shape."""
    before = parse_body(entry).get("before")
    if type(before) is not int or not 0 < before <= entry.lsn:
        raise ValueError(f"no LSN to trim before: {before!r}")
    return before


class Trims(Versions[int]):
    """The trim mark: no payload below LSN ``trim_lsn`` is served (1: none was trimmed). ``head``: the mark once every
    TRIM entry in the log is guaranteed."""

    UNSOUND = "trims nothing"

    def accept(self, entry: Entry) -> None:
        """Take the mark of an entry that was appended, if it is a TRIM entry. Raises `DamagedEntry` or ValueError on a
        body of another shape."""
        if entry.kind == Kind.TRIM:
            self.add(entry.id, max(self.head, _trimmed_before(entry)))

    def _derive(self) -> None:
        self.trim_lsn = self._stack[0][1]


class Table(NamedTuple):
    """All cursors after an entry, name -> LSN. ``dropped``: those that this entry dropped, (name, LSN, why)."""

    lsns: dict[str, int]
    dropped: tuple[tuple[str, int, str], ...] = ()


class Cursors(Versions[Table]):
    """The cursors of one replica. ``now``: name -> LSN at the head of its log. ``event`` is called for each drop once
    it is guaranteed."""

    UNSOUND = "is about no cursor"

    def __init__(self, saved: Iterable[tuple[str, int]], event: Callable[..., None]) -> None:
        super().__init__(Table(dict(saved)))
        self._event = event

    @property
    def hold_lsn(self) -> int | None:
        """The lowest LSN that a cursor needs, cursors included that an expunge could bring back; None if there are no
        cursors."""
        return min([lsn for _, table in self._stack for lsn in table.lsns.values()], default=None)

    def behind(self, lsn: int) -> list[tuple[int, str]]:
        """The cursors below ``lsn`` as (LSN, name), the lowest first."""
        return sorted((at, name) for name, at in self.now.items() if at < lsn)

    def accept(self, entry: Entry) -> None:
        """Take the effect of an entry that was appended, if it is a CURSOR or TRIM entry. Raises `DamagedEntry` or
        ValueError on a body of another shape."""
        if entry.kind == Kind.TRIM:
            self._drop(entry.id, [name for _, name in self.behind(_trimmed_before(entry))], "trim")
        elif entry.kind == Kind.CURSOR:
            self._accept(entry)

    def _accept(self, entry: Entry) -> None:
        fields: dict[str, Any] = parse_body(entry)
        name, lsn = fields.get("name"), fields.get("lsn")
        if type(name) is not str or not valid_cursor(name):
            raise ValueError(f"no cursor's name: {name!r}")
        if fields.get("op") == "drop":
            self._drop(entry.id, [name] if name in self.now else [], str(fields.get("why")))
        elif fields.get("op") == "set" and type(lsn) is int and 0 < lsn <= entry.lsn:
            self.add(entry.id, Table({**self.now, name: lsn}))
        else:
            raise ValueError(f"neither sets nor drops a cursor: {fields!r}")

    def _drop(self, id: int, names: Sequence[str], why: str) -> None:
        if names:
            left = {name: lsn for name, lsn in self.now.items() if name not in names}
            self.add(id, Table(left, tuple((name, self.now[name], why) for name in names)))

    def rows_at(self, id: int) -> tuple[tuple[str, int], ...]:
        """(name, LSN) of each cursor as of entry ``id``, by name; ``id`` is not below the newest settled entry."""
        return tuple(sorted(self.at(id)[1].lsns.items()))

    def _derive(self) -> None:
        self.now = self.head.lsns

    def _settled(self, states: Sequence[Table]) -> None:
        for table in states:
            for name, lsn, why in table.dropped:
                self._event("cursor_dropped", cursor=name, lsn=lsn, why=why)
