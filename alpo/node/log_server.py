"""One log of a server, from start to stop: its replica, the writer and the readers of its store, and what looks after
its file.

Laws:

* A log knows nothing of ports, links and HTTP: a `Carrier` takes its messages to other servers.
* However a log ends, its writer is closed after the last step and before the store.
"""

from __future__ import annotations

import contextlib
import functools
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import trio

from alpo.core.config import ReplicaConfig
from alpo.core.disk import Write
from alpo.core.messages import Envelope
from alpo.core.ready import AcceptClocks, Stop
from alpo.core.replica import Replica
from alpo.core.requests import Code, ListCursors
from alpo.storage.events import EventRow, event_row
from alpo.storage.interface import Store
from alpo.storage.writer import After, Slow, WriterStats
from alpo.wire import requests as w

from .admission import DiskCare, Limits
from .backups import Backups, Everyone
from .client_connection import ClientConnection, Handler
from .compare import Comparer, Digests
from .counters import Counters, Elections
from .driver import Driver, wall_ms
from .event_log import Recorder
from .loader import Loader
from .reads import Reads
from .retention import Cleaner, DiskWatch, Retention, serve_list
from .scrub import Scrubber
from .security import Security
from .status import Growth, Guaranteed, Pulse
from .threads import BulkPace, Pace, in_thread

#: Share of the election timeout beyond which a commit or checkpoint is a `slow_fsync` event.
SLOW_SHARE = 0.25
#: Share of it up to which the event loop's thread commits by itself, by the time of the last commit: meanwhile nobody
#: is answered, and on a slower disk a switch of threads costs little in comparison.
QUICK_SHARE = 0.01


class WriterLike(Protocol):
    """Part that a log needs of `alpo.storage.writer.Writer`."""

    stats: WriterStats
    #: Time at which the present call of `commit_here` began, `time.perf_counter` seconds; infinity: there is none.
    here_since_s: float

    def submit(self, write: Write, after: After = None) -> None: ...

    def commit_here(self, write: Write, after: After = None) -> bool: ...

    def note(self, event: EventRow) -> None: ...

    def watch(self, slow_s: float, slow: Slow, full: Callable[[], None], *, quick_s: float = ...) -> None: ...

    def give_back(self) -> None: ...

    def close(self) -> None: ...


#: Makes the writer. Arguments: (done, failed); the writer calls ``failed`` from a thread of its own.
MakeWriter = Callable[[Callable[[int], None], Callable[[BaseException], None]], WriterLike]


def soon(token: trio.lowlevel.TrioToken, call: Callable[[], object]) -> None:
    """Call in the Trio thread, from another thread; does nothing if the server has stopped."""
    with contextlib.suppress(trio.RunFinishedError):  # the server has stopped
        token.run_sync_soon(call)


class Carrier(Protocol):
    """Part of the host that takes a log's messages to other servers. ``now_s``: monotonic seconds."""

    def send(self, envelopes: Sequence[Envelope], now_s: float) -> None: ...

    def prepare(self, envelopes: Sequence[Envelope], now_s: float) -> Callable[[], None]: ...


class Shared(NamedTuple):
    """Bounds that the logs of a server share: rates of catching up, of bulk reads, of scrubs and of comparisons;
    threads that look at disks."""

    catch_up: Pace
    bulk: BulkPace
    scrub: Pace
    compare: Pace
    looking: trio.CapacityLimiter


class LogServer:
    """One log, with the tasks that serve it. Made in the Trio thread; `start` it once, then `close` it."""

    def __init__(
        self, cfg: ReplicaConfig, limits: Limits, store: Store, make_writer: MakeWriter, retention: Retention,
        care: DiskCare, security: Security, carrier: Carrier, after_event: Callable[[], None],
        shared: Shared, log_name: Callable[[], str] = lambda: "",
    ) -> None:
        """``after_event`` is called with every event: state that others are told of may have changed. ``shared``: what
        the server's logs have together; ``log_name`` returns the log's name for hellos; "": the first log."""
        token = trio.lowlevel.current_trio_token()
        self.limits = limits
        self.store = store
        self.name = log_name
        self._carrier = carrier
        self._after_event = after_event
        self._recorder = Recorder()
        self._slow_s = SLOW_SHARE * cfg.election_timeout_s
        boot = store.boot()
        self.replica = Replica(cfg, boot, random.Random(secrets.randbits(64)))
        self.replica.replay(store.replay(boot.applied_id + 1))
        self.writer = writer = make_writer(
            lambda number: self.driver.durable(number),  # noqa: PLW0108 (the driver is made after the writer)
            lambda error: token.run_sync_soon(self.driver.failed, error),
        )
        self.loader = loader = Loader(store, shared.catch_up)
        self.driver = driver = Driver(
            self.replica, submit=writer.submit, commit_here=writer.commit_here, send=self._send,
            prepare=self._prepare, load=loader.load, inflight_bytes_max=limits.inflight_bytes_max,
            counters=Counters(Elections(cfg.me.id)),
        )
        driver.keep = self.keep_event
        self.growth = Growth(driver, store)
        self.scrubber = scrubber = Scrubber(driver, store, care, shared.scrub)
        driver.on_mended = scrubber.mended
        store.on_damage = lambda damage: soon(token, functools.partial(scrubber.suspect, damage))
        self.reads = Reads(driver, store, limits, scrubber, shared.bulk)
        self.everyone = Everyone(driver, self.reads, limits, scrubber)
        self.backups = Backups(driver, store, limits, scrubber)
        self.digests = Digests(self.replica, store)
        self.cleaner = Cleaner(driver, store, retention, lambda: writer.stats.mean_commit_ms / 1000)
        self.disk = DiskWatch(driver, store, writer.stats, care.low_water_bytes, shared.looking)
        writer.watch(
            self._slow_s, functools.partial(self._slow, token), functools.partial(soon, token, self.disk.look_soon),
            quick_s=QUICK_SHARE * cfg.election_timeout_s,
        )
        self.comparer = Comparer(driver, store, care, security, log_name, shared.compare)
        driver.watchers.after_mark.append(Guaranteed(self.replica, driver.counters).notice)
        self.pulse = Pulse(driver)
        #: Handlers of the requests that the core does not answer, by their types.
        self.handlers: Mapping[type, Handler] = {
            w.Read: self.reads.begin, w.ReadColumns: self.reads.begin, ListCursors: self._begin_cursors,
            w.AwaitReplicated: self.everyone.begin, w.Backup: self.backups.begin, w.GiveBack: self._give_back,
            w.AcceptClocks: self._accept_clocks, w.RangeDigest: self.digests.begin,
        }

    async def start(self, nursery: trio.Nursery) -> None:
        """Make the replica's first step, and start the tasks in ``nursery``."""
        self.loader.start(self.driver, nursery)
        self.driver.start()
        await self.scrubber.recall()
        nursery.start_soon(self.driver.run)
        nursery.start_soon(self.driver.keep_time)
        self.reads.start(nursery)
        for part in (self.cleaner, self.growth, self.disk, self.scrubber, self.comparer):
            nursery.start_soon(part.run)

    async def leave(self) -> None:
        """Hand leadership over and finish what is under way (R28)."""
        self.driver.post(Stop())
        self.driver.kick()
        await self.driver.may_stop.wait()

    async def close(self) -> None:
        """Close the writer, once no task uses it any more."""
        await in_thread(self.writer.close)

    def bound(self, fresh: Limits) -> None:
        """Put new bounds into force."""
        self.limits.take(fresh)
        self.driver.inflight_bytes_max = fresh.inflight_bytes_max
        self.driver.room.unpark_all()

    # -- what the driver and the writer ask -------------------------------------------------------------

    def _send(self, envelopes: Sequence[Envelope]) -> None:
        self._carrier.send(envelopes, self.driver.now_s)

    def _prepare(self, envelopes: Sequence[Envelope]) -> Callable[[], None]:
        return self._carrier.prepare(envelopes, self.driver.now_s)

    def keep_event(self, name: str, fields: Mapping[str, Any]) -> bool:
        """Keep an event in the store, unless it comes too often; returns True if it is kept."""
        now_ms = wall_ms()
        kept = self._recorder.judge(name, fields, now_ms)
        if kept is not None:
            self.writer.note(event_row(now_ms, name, kept))
        self._after_event()
        return kept is not None

    def _slow(self, token: trio.lowlevel.TrioToken, what: str, took_s: float, entries: int) -> None:
        """Report a slow commit or checkpoint; called by the thread that has the writer's turn."""
        soon(token, functools.partial(
            self.driver.note, "slow_fsync", what=what, took_ms=round(took_s * 1000, 1),
            limit_ms=round(self._slow_s * 1000), entries=entries,
        ))
        soon(token, self.disk.look_soon)

    # -- what clients ask -------------------------------------------------------------------------------

    def _begin_cursors(self, client: ClientConnection, ask: ListCursors) -> None:
        number = cast(int, ask.origin)  # as it came
        client.nursery.start_soon(serve_list, self.driver, self.store, self.reads, self.scrubber, client, number)

    def _give_back(self, client: ClientConnection, ask: w.GiveBack) -> None:
        """Ask the store to return free space, and answer at once: `status` shows the progress."""
        self.writer.give_back()
        client.settle(w.Done(ask.request, 0))

    def _accept_clocks(self, client: ClientConnection, ask: w.AcceptClocks) -> None:
        """Believe the members' clocks, if this server leads."""
        if self.replica.leadership is None:
            client.refuse(ask.request, Code.NOT_LEADER, leader=self.replica.leader_id)
            return
        leap_ms = self.replica.log_clock.leap_ms
        self.driver.post(AcceptClocks())
        self.driver.kick()
        client.settle(w.Done(ask.request, leap_ms))
