"""`Record`: one payload of the log with its place there, as readers get it."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from alpo.core.entries import DamagedEntry, split_payloads
from alpo.errors import ProtocolError

#: Beginning of the count of milliseconds that entries carry.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: A DATA entry as a page carries it: (id, term, time_ms, client, serial, lsn, count, body).
PageEntry = tuple[int, int, int, str, int, int, int, bytes]


class Record(NamedTuple):
    """One guaranteed payload.

    ``lsn`` counts payloads, ``id`` entries. The payloads of one batch share ``id``, ``term``, ``time``, ``client`` and
    ``serial``; appends that came together may share all but ``serial``. ``time`` is the log's own clock, UTC, in whole
    milliseconds.
    """

    lsn: int
    id: int
    term: int
    time: datetime
    client: str
    serial: int
    payload: bytes

    @property
    def text(self) -> str:
        """The payload as UTF-8 text. Raises UnicodeDecodeError."""
        return self.payload.decode()

    def json(self) -> Any:
        """The payload's JSON value. Raises ValueError if it is no JSON."""
        return json.loads(self.payload)

    def to_dict(self) -> dict[str, int | str]:
        """The record as `alpo read --json` prints it.

        ``time`` is RFC 3339 in UTC; the payload is ``payload`` if it is UTF-8, else ``payload_base64``.
        """
        told: dict[str, int | str] = {
            "lsn": self.lsn, "id": self.id, "term": self.term, "time": _rfc3339(self.time), "client": self.client,
            "serial": self.serial,
        }
        try:
            told["payload"] = self.text
        except UnicodeDecodeError:
            told["payload_base64"] = b64encode(self.payload).decode()
        return told


def _rfc3339(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_new = tuple.__new__  # makes named tuples without the cost of calling their own constructor


def records_of(entries: Iterable[PageEntry], first_lsn: int, last_lsn: int) -> list[Record]:
    """The records of the payloads ``first_lsn`` … ``last_lsn`` that ``entries`` hold.

    Raises `ProtocolError` for a batch that is damaged.
    """
    records: list[Record] = []
    told_ms, time = 0, EPOCH
    for id, term, time_ms, client, serial, lsn, count, body in entries:
        if time_ms != told_ms:
            told_ms, time = time_ms, EPOCH + timedelta(milliseconds=time_ms)
        if count == 1:
            if first_lsn <= lsn <= last_lsn:
                records.append(_new(Record, (lsn, id, term, time, client, serial, body)))
            continue
        try:
            payloads = split_payloads(count, body)
        except DamagedEntry as error:
            raise ProtocolError(f"entry {id} of a page is damaged: {error}") from error
        for at, payload in enumerate(payloads, lsn):
            if first_lsn <= at <= last_lsn:
                records.append(_new(Record, (at, id, term, time, client, serial, payload)))
    return records
