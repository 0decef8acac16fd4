"""Waiting until every member holds a payload: R18's mark, as clients may ask for it.

Laws:

* What is called on every member's disk is so for ever, whoever leads: the mark only ever covers guaranteed entries.
* Who is behind only a leader can say. One that is deposed meanwhile says so, and the client asks the next.
* However many wait, a step costs one look at the mark.
"""

from __future__ import annotations

import trio

from alpo.core.ready import Code
from alpo.core.replica import Replica
from alpo.storage.interface import Store, StoreError
from alpo.wire import requests as w

from .client_connection import ClientConnection
from .driver import Driver
from .limits import Limits
from .reads import Reads


def behind(replica: Replica, id: int) -> tuple[int, ...]:
    """The members that the leader does not know to hold entry ``id`` on disk, by id; () from others."""
    if replica.leadership is None:
        return ()
    found = [peer.who.id for peer in replica.leadership.peers.values() if peer.match_id < id]
    return tuple(sorted([*found, replica.me.id] if replica.log.stable_id < id else found))


class Everyone:
    """Those who wait for the fully replicated mark. A wait runs in its client's nursery, and ends with it."""

    def __init__(self, driver: Driver, store: Store, reads: Reads, limits: Limits) -> None:
        self._replica: Replica = driver.replica
        self._store = store
        self._reads = reads
        self._limits = limits
        self._moved = trio.Event()
        self._seen_id = 0
        driver.after_step.append(self._look)

    def begin(self, client: ClientConnection, ask: w.AwaitReplicated) -> None:
        """Serve one wait; its answer goes to ``client``."""
        client.nursery.start_soon(self._serve, client, ask)

    async def _serve(self, client: ClientConnection, ask: w.AwaitReplicated) -> None:
        r = self._replica
        done, id = False, r.last_id + 1  # until it is known which entry it is, no member has it
        try:
            if r.leadership is not None:
                with trio.move_on_after(min(ask.wait_ms / 1000, self._limits.poll_s_max)):
                    id = await self._entry(ask.lsn)
                    await self._replicated(id)
                    done = True
        except StoreError as error:
            client.refuse(ask.request, Code.NOT_READY, detail=f"this server's store cannot be read: {error}")
            return
        if done or r.leadership is not None:
            client.settle(w.Replicated(ask.request, done, () if done else behind(r, id)))
        else:
            client.refuse(ask.request, Code.NOT_LEADER, leader=r.leader_id)

    async def _entry(self, lsn: int) -> int:
        """The entry that holds payload ``lsn``, once it is guaranteed and on our own disk. What was cleaned is on every
        member's disk, or was: the last entry of the base stands for it."""
        r = self._replica
        await self._reads.wait_for_lsn(lsn)
        if lsn < r.log.base_next_lsn:
            return r.log.base_id
        return await trio.to_thread.run_sync(self._store.find_lsn, lsn, r.readable_id)

    async def _replicated(self, id: int) -> None:
        while self._replica.fully_replicated_id < id:
            await self._moved.wait()

    def _look(self) -> None:
        if self._replica.fully_replicated_id != self._seen_id:
            self._seen_id = self._replica.fully_replicated_id
            self._moved.set()
            self._moved = trio.Event()
