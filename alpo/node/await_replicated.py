"""Wait until every member holds a payload on disk, for clients that ask (R18).

Laws:

* The mark only ever covers guaranteed entries, so what was once reported as replicated to all stays so under any
  leader.
* Only a leader knows which members are behind. One that loses leadership meanwhile says so, and the client asks the
  next.
* However many clients wait, each step looks at the mark once.
"""

from __future__ import annotations

from functools import partial

import trio

from alpo.core.replica import Replica
from alpo.core.requests import Code
from alpo.storage.interface import StoreError
from alpo.wire import requests as w

from .admission import Limits
from .client_connection import ClientConnection
from .driver import Driver
from .reads import Reads
from .scrub import Scrubber, unreadable


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
        driver.after_step.append(self._look)

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
        while self._replica.fully_replicated_id < id:
            await self._moved.wait()

    def _look(self) -> None:
        if self._replica.fully_replicated_id != self._seen_id:
            self._seen_id = self._replica.fully_replicated_id
            self._moved.set()
            self._moved = trio.Event()
