"""A server from its first step to its last: what is started in which order, and how it leaves.

Laws:

* One nursery holds everything. Whatever ends it, the writer is closed after the last step and before the store.
* On a signal the server takes nothing new, hands leadership over, finishes what is in flight (`STOP_S_MAX` at
  most), and ends well (R28).
"""

from __future__ import annotations

import random
import secrets
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog
import trio

from alpo.core.config import ReplicaConfig
from alpo.core.inputs import Loaded, Stop
from alpo.core.messages import Envelope
from alpo.core.ready import Code, Load, Write
from alpo.core.replica import Replica
from alpo.storage.interface import Store, StoreError
from alpo.storage.writer import After, WriterStats
from alpo.wire import requests as w

from .clients import ClientConnection
from .driver import Driver
from .hello import Ourselves
from .limits import Limits
from .listener import Listener
from .peers import Peers
from .reads import Reads
from .routes import Routes
from .status import status_fields

log = structlog.get_logger()

STOP_S_MAX = 5.0


class WriterLike(Protocol):
    """What the node needs of `alpo.storage.writer.Writer`."""

    stats: WriterStats

    def submit(self, write: Write, after: After = None) -> None: ...

    def close(self) -> None: ...


#: Makes the writer from (done, failed), which it calls from its own thread.
MakeWriter = Callable[[Callable[[int], None], Callable[[BaseException], None]], WriterLike]


class Node:
    """One server. `run` it once; as `Services` it is what clients' connections see of the rest."""

    def __init__(self, cfg: ReplicaConfig, limits: Limits, store: Store, make_writer: MakeWriter) -> None:
        timers_ms = (
            round(cfg.heartbeat_s * 1000), round(cfg.election_timeout_s * 1000), round(cfg.stagger_s * 1000)
        )
        self.limits = limits
        self.us = Ourselves(cfg.me, cfg.address, timers_ms)
        self._cfg = cfg
        self._store = store
        self._make_writer = make_writer
        self._ended = trio.Event()
        self._nursery: trio.Nursery | None = None

    def stop(self) -> None:
        """Begin to leave; `run` returns when done."""
        self._ended.set()

    async def run(
        self, listening: socket.socket, *, heed_signals: bool = False,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve on ``listening`` until `stop`, or a signal if they are heeded. Raises `driver.Alarm`, `StoreError`."""
        token = trio.lowlevel.current_trio_token()
        boot = self._store.boot()
        self.replica = Replica(self._cfg, boot, random.Random(secrets.randbits(64)))
        self.replica.replay(self._store.replay(boot.applied_id + 1))
        writer = self._make_writer(
            self._durable,
            lambda error: token.run_sync_soon(self.driver.failed, error),
        )
        self.writer = writer
        self.routes = Routes()
        self.driver = Driver(
            self.replica, submit=writer.submit, send=self._send, prepare=self._prepare, load=self._load,
            inflight_bytes_max=self.limits.inflight_bytes_max,
        )
        self.driver.on_failure = self._ended.set
        self.reads = Reads(self.driver, self._store, self.limits)
        configured = {c.id: c.address for c in self._cfg.configured}
        self.peers = Peers(
            self.us, self.driver, self.routes, self.limits, configured,
            2 * self._cfg.peer_inflight_bytes_max + self.limits.frame_bytes_max,
        )
        self.listener = Listener(self.us, self.driver, self.routes, self.peers, self, self.limits)
        try:
            await self._serve(listening, heed_signals, task_status)
        finally:
            listening.close()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(writer.close)
        if self.driver.failure is not None:
            raise self.driver.failure

    async def _serve(
        self, listening: socket.socket, heed_signals: bool, task_status: trio.TaskStatus[None]
    ) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if heed_signals:
                await nursery.start(self._stop_on_signals)
            self.driver.start()
            nursery.start_soon(self.driver.run)
            nursery.start_soon(self.driver.keep_time)
            self.reads.start(nursery)
            self.peers.start(nursery)
            nursery.start_soon(self.listener.run, listening)
            log.info(
                "serving", id=self.us.me.id, address=self.us.address, status=self.replica.status_text,
                last_id=self.replica.last_id, term=self.replica.term,
            )
            task_status.started()
            await self._ended.wait()
            if self.driver.failure is None:
                await self._leave()
            nursery.cancel_scope.cancel()

    async def _stop_on_signals(self, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                self.stop()

    async def _leave(self) -> None:
        log.info("stopping", state=self.replica.state.value)
        with trio.move_on_after(STOP_S_MAX) as scope:
            self.driver.post(Stop())
            self.driver.kick()
            await self.driver.may_stop.wait()
            for client in list(self.listener.clients):
                await client.wait_idle()
        log.info("stopped", in_time=not scope.cancelled_caught)

    # -- what the driver asks ---------------------------------------------------------------------------

    def _send(self, envelopes: Sequence[Envelope]) -> None:
        self.routes.send(envelopes, trio.current_time())

    def _durable(self, number: int) -> None:
        self.driver.durable(number)

    def _prepare(self, envelopes: Sequence[Envelope]) -> Callable[[], None]:
        return self.routes.prepare(envelopes, trio.current_time())

    def _load(self, load: Load) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._load_from_disk, load)

    async def _load_from_disk(self, load: Load) -> None:
        """Entries that are no longer in the core's memory. A log that cannot be read stops the server."""
        try:
            entries = await trio.to_thread.run_sync(
                self._store.read_entries, load.first_id, self.replica.log.stable_id, load.bytes_max
            )
        except StoreError as error:
            self.driver.failed(error)
            return
        self.driver.post(Loaded(load.peer, load.first_id, load.generation, entries))
        self.driver.kick()

    # -- what clients ask -------------------------------------------------------------------------------

    def address_of(self, id: int) -> str:
        """Where to find server ``id``; "" for 0, or if nobody knows."""
        return self.replica.address_of(id) if id else ""

    def begin_read(self, client: ClientConnection, ask: w.Read) -> None:
        self.reads.begin(client, ask)

    def begin_status(self, client: ClientConnection, ask: w.Status) -> None:
        client.nursery.start_soon(self._answer_status, client, ask)

    async def _answer_status(self, client: ClientConnection, ask: w.Status) -> None:
        try:
            within = await self.reads.extent()
            storage = await trio.to_thread.run_sync(self._storage_fields)
        except StoreError as error:
            client.refuse(ask.request, Code.NOT_READY, detail=str(error))
            return
        fields = status_fields(self.us, self.replica, self.peers, self.listener.strangers, within, storage)
        client.settle(w.StatusAnswer(ask.request, fields))

    def _storage_fields(self) -> dict[str, Any]:
        stats = self.writer.stats
        return {
            "disk_bytes": self._store.size_bytes(),
            "commits": stats.commits,
            "commit_ms": round(stats.mean_commit_ms, 3),
            "clients": len(self.listener.clients),
        }
