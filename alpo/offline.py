"""Data directories, data files and backups without a server, or beside one: opened, verified, and digested to compare.

For commands, for Spark, and for libraries built on a log. Laws:

* Nothing is written, and a server that runs on the file is not held up.
* What is damaged or missing is told by entry, and never taken for the end of the log (R31).
* What a file can be wrong in is a `StoreError`, whose message is one line and names the file.

A file of its own: it is a public name for the store's inner modules.
"""

from __future__ import annotations

from alpo.storage.audit import Fault, Verdict, tell, verify
from alpo.storage.interface import DamagedStore, StoreError
from alpo.storage.offline import Found, Source, Summary, folder_named, open_source
from alpo.storage.scrub import DamagedAt, Span

__all__ = [
    "DamagedAt", "DamagedStore", "Fault", "Found", "Source", "Span", "StoreError", "Summary", "Verdict", "digest",
    "folder_named", "open_source", "tell", "verify",
]


def digest(source: Source, first_id: int, last_id: int) -> Span:
    """The digest of entries ``first_id`` … ``last_id``: equal for equal entries, in any copy of the log.

    If a cleaning takes the first of them meanwhile, the range begins behind that. Raises `DamagedAt`, `StoreError`.
    """
    span = Span.before(first_id)
    while span.last_id < last_id:
        try:
            columns = source.read_columns(span.last_id + 1, last_id)
        except DamagedStore as error:
            begins_id = source.summary().first_id
            if begins_id > span.first_id:  # cleaned meanwhile
                return digest(source, begins_id, last_id) if begins_id <= last_id else Span.before(begins_id)
            raise DamagedAt(str(error), span.last_id + 1) from error
        span = span.followed_by_columns(columns)
    return span
