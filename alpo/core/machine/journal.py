"""One client's session, and the journal by which an expunge takes back what the log did to it (R21).

Laws:

* A record undoes exactly what its entry did; records stand in the order of their entries.
* A run of appends is one record until somebody needs to look inside: `expanded` makes a record an entry of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from alpo.core.client_ids import created_ms
from alpo.core.disk import SessionRow

#: (serial, id, lsn, epoch, digest), as in `SessionRow`.
Slot: TypeAlias = tuple[int, int, int, int, bytes]
#: (epoch, nonce, last serial when opened); (0, b"", 0) of a random client.
Opened: TypeAlias = tuple[int, bytes, int]
#: (last serial, id of the last entry, its time in ms); the last entry may be the SESSION entry.
Last: TypeAlias = tuple[int, int, int]

class Session:
    """One client. ``created_ms`` is -1 for a named one (or an id that tells no time). ``birth``, as in `SessionRow`,
    never changes: a name that is opened after a drop is another session."""

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
        return SessionRow(self.client, *opened, *last, slots, self.birth)


# What a journal record undoes: (entry id, one of these, session, what was before, slot forgotten or None).
APPENDED = 0  # before: Last
FORGOT = 1  # before: None
CREATED = 2  # before: None
ENDED = 3  # before: the horizon
OPENED = 4  # before: (Opened, Last)
RUN = 5  # several APPENDED of one session and time, id: the last one's; before: `Run`
Record: TypeAlias = "tuple[int, int, Session, Any, Slot | None]"


class Run(NamedTuple):
    """A run as journalled: ``before`` it, the slots that it added, and those that they pushed out, oldest first."""

    before: Last
    time_ms: int
    added: list[Slot]
    forgot: list[Slot]


def expanded(journal: list[Record]) -> list[Record]:
    """The journal with a record for each entry of every run."""
    records: list[Record] = []
    for record in journal:
        if record[1] != RUN:
            records.append(record)
            continue
        session, run = record[2], record[3]
        before = run.before
        kept = len(run.added) - len(run.forgot)  # so many came before the window was full
        for at, slot in enumerate(run.added):
            records.append((slot[1], APPENDED, session, before, run.forgot[at - kept] if at >= kept else None))
            before = (slot[0], slot[1], run.time_ms)
    return records
