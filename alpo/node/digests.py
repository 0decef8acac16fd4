"""Digests of this server's entries for whoever asks (R31): how servers find out that they hold the same.

Laws:

* Only what is guaranteed and on this disk gets into a digest. A server of any standing answers.
* A request costs at most so many ids, bytes and so much time; the answer says how far it goes. One is worked on at a
  time, in short pieces with rest between them, and a connection has one in the queue.
* Damage within what was asked for is an error that names the id, never a digest of the rest.
"""

from __future__ import annotations

import trio

from alpo.core.ready import Code
from alpo.core.replica import Replica
from alpo.storage.digest import DamagedAt, Span, read_on
from alpo.storage.interface import Store, StoreError
from alpo.wire import requests as w

from .client_connection import ClientConnection

#: Of one request.
IDS_MAX, BYTES_MAX, SECONDS_MAX = 4096, 1 << 20, 1.0
#: What is read in one go.
PIECE_BYTES = 64 << 10


def held_id(replica: Replica) -> int:
    """The last entry that is guaranteed and on our disk."""
    return min(replica.guaranteed_id, replica.log.stable_id)


class Digests:
    """Serves `RangeDigest` requests, each in its client's nursery."""

    def __init__(self, replica: Replica, store: Store) -> None:
        self._replica = replica
        self._store = store
        self._one = trio.Lock()

    def begin(self, client: ClientConnection, ask: w.RangeDigest) -> None:
        """Serve one request; its answer goes to ``client``."""
        client.nursery.start_soon(self._serve, client, ask)

    async def _serve(self, client: ClientConnection, ask: w.RangeDigest) -> None:
        if ask.last_id < ask.first_id:
            client.refuse(ask.request, Code.INVALID, detail=f"no entry is from {ask.first_id} to {ask.last_id}")
            return
        try:
            async with client.paging, self._one:
                span = await self._digest(ask.first_id, ask.last_id)
        except DamagedAt as error:
            client.refuse(ask.request, Code.NOT_READY, number=error.id, detail=str(error))
        except StoreError as error:
            client.refuse(ask.request, Code.NOT_READY, detail=f"this server's store cannot be read: {error}")
        else:
            client.settle(w.DigestIs(ask.request, *span[:5]))

    async def _digest(self, first_id: int, last_id: int) -> Span:
        """As much of ``first_id`` … ``last_id`` as there is and one request may cost, one entry at least. Raises
        `StoreError`."""
        span = Span.before(max(first_id, self._replica.log.base_id + 1))
        last_id = min(last_id, held_id(self._replica), span.last_id + IDS_MAX)
        stop_s = trio.current_time() + SECONDS_MAX
        while span.last_id < last_id:
            began_s = trio.current_time()
            longer = await trio.to_thread.run_sync(read_on, self._store, span, last_id, PIECE_BYTES)
            cleaned = longer.last_id == span.last_id
            span = longer
            if cleaned or span.bytes >= BYTES_MAX or trio.current_time() >= stop_s:
                break
            await trio.sleep(trio.current_time() - began_s)
        return span
