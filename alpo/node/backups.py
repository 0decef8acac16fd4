"""Requests of clients that last: a copy of this server's log while it serves (`alpo backup`), and waiting until every
member holds a payload on disk (R18).

Laws of copies:

* A copy ends at the last entry that this server knew to be guaranteed when it was asked for (a client of a leader makes
  a linearizable read before, so that this is all that was acknowledged), even if only other servers' disks held that:
  it begins once this server's holds it, too. Nothing later is sent.
* Short transactions read it, so the WAL can still be copied back; guaranteed entries do not change between them. If
  cleaning overtakes the copy, it ends with OUT_OF_RANGE and may be asked for again.
* A damaged entry is not copied: the copy waits for a sound one from another server (R31).
* One copy is made at a time; nothing more is read for a client until it has taken what was read before.

Laws of waiting:

* The mark only ever covers guaranteed entries, so what was once reported as replicated to all stays so under any
  leader.
* Only a leader knows which members are behind. One that loses leadership meanwhile says so, and the client asks the
  next.
* However many clients wait, each step looks at the mark once.
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
from .driver import Driver
from .reads import Reads
from .scrub import Scrubber, unreadable
from .threads import in_thread


def behind(replica: Replica, id: int) -> tuple[int, ...]:
    """Ids of the members that the leader does not know to hold entry ``id`` on disk; () on a server that does not
    lead."""
    if replica.leadership is None:
        return ()
    found = [peer.who.id for peer in replica.leadership.peers.values() if peer.match_id < id]
    return tuple(sorted([*found, replica.me.id] if replica.log.stable_id < id else found))


class Everyone:
    """Clients' waits for the fully replicated mark. Each wait runs in its client's nursery, and ends with the
    connection."""

    def __init__(self, driver: Driver, reads: Reads, limits: Limits, scrubber: Scrubber) -> None:
        self._replica: Replica = driver.replica
        self._reads = reads
        self._limits = limits
        self._scrubber = scrubber
        self._moved = trio.Event()
        self._seen_id = 0
        self._watchers = driver.watchers.after_mark

    def begin(self, client: ClientConnection, ask: w.AwaitReplicated) -> None:
        """Start one wait; its answer goes to ``client``."""
        client.nursery.start_soon(self._serve, client, ask)

    async def _serve(self, client: ClientConnection, ask: w.AwaitReplicated) -> None:
        r = self._replica
        done, id = False, r.last_id + 1  # while the entry is unknown, no member is counted as having it
        try:
            if r.leadership is not None:
                with trio.move_on_after(min(ask.wait_ms / 1000, self._limits.poll_s_max)):
                    id = await self._scrubber.past_damage(partial(self._entry, ask.lsn))
                    await self._replicated(id)
                    done = True
        except StoreError as error:
            client.refuse(ask.request, Code.NOT_READY, detail=unreadable(error))
            return
        if done or r.leadership is not None:
            client.settle(w.Replicated(ask.request, done, () if done else behind(r, id)))
        else:
            client.refuse(ask.request, Code.NOT_LEADER, leader=r.leader_id)

    async def _entry(self, lsn: int) -> int:
        """Wait until payload ``lsn`` is guaranteed and on this server's disk; returns its entry's id. A cleaned payload
        is on every member's disk already: for it, the id of the last cleaned entry."""
        r = self._replica
        await self._reads.wait_for_lsn(lsn)
        if lsn < r.log.base_next_lsn:
            return r.log.base_id
        return await self._reads.entry_with(lsn)

    async def _replicated(self, id: int) -> None:
        self._watchers.append(self._look)
        try:
            while self._replica.fully_replicated_id < id:
                await self._moved.wait()
        finally:
            self._watchers.remove(self._look)

    def _look(self) -> None:
        if self._replica.fully_replicated_id != self._seen_id:
            self._seen_id = self._replica.fully_replicated_id
            self._moved.set()
            self._moved = trio.Event()


log = structlog.get_logger()

#: Bytes of bodies in one message.
_CHUNK_BYTES = 1 << 18
#: Rows in one message of anything but entries: a client's state may take some 100 KiB.
_CHUNK_ROWS = 32


class Backups:
    """Service for `Backup` requests. A copy runs in its client's nursery, and ends with the connection."""

    def __init__(self, driver: Driver, store: Store, limits: Limits, scrubber: Scrubber) -> None:
        self._driver = driver
        self._replica: Replica = driver.replica
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
        end_id = self._replica.guaranteed_id
        await self._driver.on_disk()
        state = await in_thread(self._store.copy_state, end_id, limiter=self._thread)
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
