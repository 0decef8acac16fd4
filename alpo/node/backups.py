"""Send copies of this server's log to clients that ask, while it serves (`alpo backup`).

Laws:

* A copy ends at an entry that was guaranteed and on this server's disk when it was asked for. Nothing later is sent.
* Short transactions read it, so the WAL can still be copied back; guaranteed entries do not change between them. If
  cleaning overtakes the copy, it ends with OUT_OF_RANGE and may be asked for again.
* A damaged entry is not copied: the copy waits for a sound one from another server (R31).
* One copy is made at a time; nothing more is read for a client until it has taken what was read before.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import structlog
import trio

from alpo.core.entries import Entry
from alpo.core.replica import Replica
from alpo.core.requests import Code
from alpo.storage.interface import StateCopy, Store, StoreError
from alpo.wire import requests as w
from alpo.wire.codec import encode

from .admission import Limits
from .client_connection import ClientConnection
from .scrub import Scrubber, unreadable
from .threads import in_thread

log = structlog.get_logger()

#: Bytes of bodies in one message.
_CHUNK_BYTES = 1 << 18
#: Rows in one message of anything but entries: a client's state may take some 100 KiB.
_CHUNK_ROWS = 32


class Backups:
    """Service for `Backup` requests. A copy runs in its client's nursery, and ends with the connection."""

    def __init__(self, replica: Replica, store: Store, limits: Limits, scrubber: Scrubber) -> None:
        self._replica = replica
        self._store = store
        self._limits = limits
        self._scrubber = scrubber
        self._thread = trio.CapacityLimiter(1)
        self._one = trio.Lock()

    def begin(self, client: ClientConnection, ask: w.Backup) -> None:
        """Start one copy; its messages go to ``client``."""
        client.nursery.start_soon(self._serve, client, ask)

    async def _serve(self, client: ClientConnection, ask: w.Backup) -> None:
        status = self._replica.status_text
        if status != "VOTING":
            client.refuse(ask.request, Code.NOT_READY, detail=f"this server is {status}")
            return
        try:
            async with self._one:
                await self._copy(client, ask)
        except StoreError as error:
            log.error("backup_failed", why=str(error))
            client.refuse(ask.request, Code.NOT_READY, detail=unreadable(error, "copied"))

    async def _copy(self, client: ClientConnection, ask: w.Backup) -> None:
        state = await in_thread(self._store.copy_state, self._replica.readable_id, limiter=self._thread)
        head = w.BackupHead(ask.request, state.schema, state.server_id, state.end_id, state.bytes_about)
        await self._send(client, encode(head))
        for rows in _state_messages(ask.request, state):
            await self._send(client, encode(rows))
        next_id = state.first_id
        while next_id <= state.end_id and not client.link.closed:
            read = partial(
                in_thread, self._read, ask.request, next_id, state.end_id, limiter=self._thread
            )
            entries, message = await self._scrubber.past_damage(read)
            if not entries:
                client.refuse(ask.request, Code.OUT_OF_RANGE, detail="the log was cleaned while it was copied")
                return
            await self._send(client, message)
            next_id = entries[-1].id + 1
        client.settle(w.Done(ask.request, state.end_id))

    def _read(self, request: int, first_id: int, last_id: int) -> tuple[list[Entry], bytes]:
        """Read a chunk of entries and encode its message; runs in a thread."""
        entries = self._store.read_entries(first_id, last_id, _CHUNK_BYTES)
        return entries, encode(w.BackupRows(request, "log", list(map(tuple, entries)))) if entries else b""

    async def _send(self, client: ClientConnection, message: bytes) -> None:
        await client.link.wait_below(self._limits.client_outbox_bytes_high)
        if not client.link.closed:
            client.link.push(message)


def _state_messages(request: int, state: StateCopy) -> Iterator[w.BackupRows]:
    for table, rows in state.tables.items():
        for at in range(0, len(rows), _CHUNK_ROWS):
            yield w.BackupRows(request, table, rows[at : at + _CHUNK_ROWS])
