"""Kinds of faults that an audit finds."""

from __future__ import annotations

from typing import Final, NamedTuple

#: Two copies have different content for an entry that both call guaranteed.
DIFFERENCE: Final = "difference"
#: Entries or payloads are missing.
GAP: Final = "gap"
#: A client's append is in the log twice.
DUPLICATE: Final = "duplicate"
#: Ids, terms, times or serials decrease.
ORDER: Final = "order"
#: Data does not match its checksum, or cannot be read.
DAMAGE: Final = "damage"
#: The session table, or other state saved beside the log, differs from what the log makes.
STATE: Final = "state"
#: A server could not be asked.
UNREACHABLE: Final = "unreachable"
#: An answer that a client got about an append is wrong.
HISTORY: Final = "history"

#: Most faults of one kind in one copy that are listed one by one.
FAULTS_MAX = 100


class Fault(NamedTuple):
    """Fault in ``copy`` (names, separated by commas) at entries ``first_id`` … ``last_id``, payloads ``first_lsn`` …
    ``last_lsn``; 0 if it concerns none, or unknown ones."""

    first_id: int
    last_id: int
    first_lsn: int
    last_lsn: int
    kind: str
    copy: str
    what: str

    def told(self) -> str:
        """The fault in words, on one line."""
        ids = _span("entry", "entries", self.first_id, self.last_id)
        place = ", ".join(part for part in (ids, _span("LSN", "LSN", self.first_lsn, self.last_lsn)) if part)
        return f"{self.kind.upper()} in {self.copy}{': ' + place if place else ''}: {self.what}"


def _span(one: str, several: str, first: int, last: int) -> str:
    if not first:
        return ""
    return f"{one} {first}" if first == last else f"{several} {first} to {last}"
