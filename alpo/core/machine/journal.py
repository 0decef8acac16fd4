"""A client's session, and the journal by which an expunge undoes what entries did to sessions (R21).

Laws:

* A record undoes exactly what its entry did; records are in the order of their entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from alpo.core.client_ids import created_ms
from alpo.core.disk import SessionRow
from alpo.core.entries import serials_of

#: A remembered entry: (first serial, entry id, first LSN, epoch, digest), as in `SessionRow`.
Slot: TypeAlias = tuple[int, int, int, int, bytes]
#: (epoch, nonce, last serial when opened); (0, b"", 0) of a random client.
Opened: TypeAlias = tuple[int, bytes, int]
#: (last serial, id of the last entry, its time in ms); the last entry may be the SESSION entry.
Last: TypeAlias = tuple[int, int, int]


class Session:
    """One client's session. ``created_ms``: of a random client id, ms since 1970; -1 for a name (or an id that tells no
    time). ``birth``: see `SessionRow`; it never changes, as a name that is opened after a drop is another session.
    ``held``: number of serials that the slots remember."""

    __slots__ = ("birth", "client", "created_ms", "held", "last", "opened", "slots")

    def __init__(self, client: str, opened: Opened, last: Last, slots: list[Slot], birth: int = 0) -> None:
        self.client = client
        self.created_ms = created_ms(client)
        self.opened = opened
        self.last = last
        self.slots = slots
        self.held = sum(serials_of(slot[4]) for slot in slots)
        self.birth = birth

    @property
    def random(self) -> bool:
        return self.client[0] == "~"

    def row(self, opened: Opened, last: Last, slots: list[Slot]) -> SessionRow:
        """The row of this session as it was with these values."""
        return SessionRow(self.client, *opened, *last, slots, self.birth)


# Kinds of journal records. A record: (entry id, kind, session, value before the entry, slots forgotten, oldest first).
APPENDED = 0  # before: Last
FORGOT = 1  # before: None
CREATED = 2  # before: None
ENDED = 3  # before: the horizon
OPENED = 4  # before: (Opened, Last)
Record: TypeAlias = "tuple[int, int, Session, Any, Sequence[Slot]]"
