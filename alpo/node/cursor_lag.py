"""Reader cursors as this server sees them: how far each lags, which holds cleaning back, which lags too far.

Laws:

* A lag in bytes is an estimate: the cursor's share, by entries, of what the data file holds. One in seconds is the age
  of the first payload that the reader has not had; at the end of the log both are 0.
* The store is read in a thread, and only for what somebody asked or what cleaning needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import trio

from alpo.core.inputs import ListCursors
from alpo.core.ready import Code, CursorsAre, Refused, Reply
from alpo.core.replica import Replica
from alpo.storage.interface import Store, StoreError
from alpo.wire import requests as w

from .client_connection import ClientConnection
from .driver import Driver, wall_ms


class Lag(NamedTuple):
    """One cursor; ``upto_id``: entries up to there it needs no more."""

    name: str
    lsn: int
    upto_id: int
    lag_bytes: int
    lag_s: float


def lags(store: Store, cursors: Iterable[tuple[str, int]], base_id: int, end_id: int) -> list[Lag]:
    """How far each lags behind entry ``end_id``, of a log that begins after ``base_id``. For a thread."""
    found: list[Lag] = []
    live_bytes, now_ms = store.live_bytes(), wall_ms()
    for name, lsn in cursors:
        id = store.find_lsn(lsn, end_id)
        head = store.entry_head(id) if id <= end_id else None
        if head is None:
            found.append(Lag(name, lsn, end_id, 0, 0.0))
            continue
        share = (end_id - id + 1) / max(1, end_id - base_id)
        found.append(Lag(name, lsn, id - 1, round(live_bytes * min(1.0, share)), max(0, now_ms - head[0]) / 1000))
    return found


class Nobody:
    """The origin of what the server asks of its own core."""

    def answer(self, reply: Reply) -> None:
        """Whatever came of it shows in the log."""

    def flush(self) -> None:
        """Nothing is gathered."""


class _Wait:
    """The origin of a `ListCursors`, and whoever waits for its answer."""

    def __init__(self) -> None:
        self._reply: CursorsAre | Refused | None = None
        self._event = trio.Event()

    def answer(self, reply: Reply) -> None:
        assert isinstance(reply, CursorsAre | Refused)
        self._reply = reply
        self._event.set()

    def flush(self) -> None:
        """Nothing is gathered."""

    async def wait(self) -> CursorsAre | Refused:
        await self._event.wait()
        assert self._reply is not None
        return self._reply


async def serve_list(driver: Driver, store: Store, client: ClientConnection, ask: w.ListCursors) -> None:
    """Answer a client with all cursors and their lags."""
    wait = _Wait()
    driver.post(ListCursors(wait))
    driver.kick()
    reply = await wait.wait()
    if isinstance(reply, Refused):
        client.refuse(ask.request, reply.code, number=reply.number, leader=reply.leader, detail=reply.detail)
        return
    replica: Replica = driver.replica
    try:
        rows = await trio.to_thread.run_sync(lags, store, reply.rows, replica.log.base_id, replica.guaranteed_id)
    except StoreError as error:
        client.refuse(ask.request, Code.NOT_READY, detail=f"this server's store cannot be read: {error}")
        return
    client.settle(w.CursorTable(ask.request, [(r.name, r.lsn, r.lag_bytes, round(r.lag_s * 1000)) for r in rows]))
