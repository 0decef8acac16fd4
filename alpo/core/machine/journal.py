"""A client's session, and the journal by which an expunge undoes what entries did to sessions (R21).

Laws:

* A record undoes exactly what its entry did; records are in the order of their entries.
* A run of appends is one record, which `expanded` splits into one for each entry where that is needed.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from alpo.core.client_ids import created_ms
from alpo.core.disk import SessionRow

#: A remembered append: (serial, entry id, LSN, epoch, digest), as in `SessionRow`.
Slot: TypeAlias = tuple[int, int, int, int, bytes]
#: (epoch, nonce, last serial when opened); (0, b"", 0) of a random client.
Opened: TypeAlias = tuple[int, bytes, int]
#: (last serial, id of the last entry, its time in ms); the last entry may be the SESSION entry.
Last: TypeAlias = tuple[int, int, int]

class Session:
    """One client's session. ``created_ms``: of a random client id, ms since 1970; -1 for a name (or an id that tells no
    time). ``birth``: see `SessionRow`; it never changes, as a name that is opened after a drop is another session."""

    __slots__ = ("birth", "client", "created_ms", "last", "opened", "slots")

    def __init__(self, client: str, opened: Opened, last: Last, slots: list[Slot], birth: int = 0) -> None:
        self.client = client
        self.created_ms = created_ms(client)
        self.opened = opened
        self.last = last
        self.slots = slots
        self.birth = birth

    @property
    def random(self) -> bool:
        return self.client[0] == "~"

    def row(self, opened: Opened, last: Last, slots: list[Slot]) -> SessionRow:
        """The row of this session as it was with these values."""
        return SessionRow(self.client, *opened, *last, slots, self.birth)


# Kinds of journal records. A record: (entry id, kind, session, value before the entry, slot forgotten or None).
APPENDED = 0  # before: Last
FORGOT = 1  # before: None
CREATED = 2  # before: None
ENDED = 3  # before: the horizon
OPENED = 4  # before: (Opened, Last)
RUN = 5  # several appends of one session at one time; entry id: the last one's; before: `Run`
Record: TypeAlias = "tuple[int, int, Session, Any, Slot | None]"


class Run(NamedTuple):
    """The value of a RUN record: the session's `Last` ``before`` the run, the time of its entries (ms), the slots that
    it added, and those that they pushed out, oldest first."""

    before: Last
    time_ms: int
    added: list[Slot]
    forgot: list[Slot]


def expanded(journal: list[Record]) -> list[Record]:
    """The journal with an APPENDED record for each entry of every run."""
    records: list[Record] = []
    for record in journal:
        if record[1] != RUN:
            records.append(record)
            continue
        session, run = record[2], record[3]
        before = run.before
        kept = len(run.added) - len(run.forgot)  # number of slots added before the window was full
        for at, slot in enumerate(run.added):
            records.append((slot[1], APPENDED, session, before, run.forgot[at - kept] if at >= kept else None))
            before = (slot[0], slot[1], run.time_ms)
    return records
