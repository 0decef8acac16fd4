"""Reads of the log: which wait for what, in which thread they run (R25, R26), how long reads of our own disk are under
way, when one is given up, and a leader's handover because of it. `pages` makes the pages.

Laws of reads:

* A page shows nothing beyond what the core allowed: the id of a `ReadAt`, or the present ``readable_id``.
* A bounded number of threads reads the store, one page a connection at a time, and no page is made for a client that
  has not read its earlier ones.
* A read that meets a damaged entry waits for a sound copy from another server (`Scrubber.past_damage`), and then
  shows that. Only if none comes in time it is refused, and the client asks another server.
* A page that cleaning overtakes is made again from where the log now begins: a read ends with OUT_OF_RANGE or continues
  without a gap, and the server never takes cleaned entries for damage.
* A read that the disk does not answer is refused, and the client asks another server.
* However many reads wait for the log to grow, a group costs one look at its end; reads that must wait longer are not
  woken.

Laws of reads of the disk:

* A read that waits for a disk that hangs is given up, and the asker gets the reason, so that a client asks another
  server. The read's thread waits on, and keeps its place in its limiter, so that the number of threads stays bounded.
* A disk hangs for reads once one has been under way for `DiskReads.patience_s`. A read that waits for a thread is given
  up only then: many that wait are no sign of a disk that hangs.
* A leader that gives up a read hands over (R34), as an operator would have it do (R28): to one voter at a time, an
  election timeout for each, with `LEAD_ON_TIMEOUTS` in between; only if a majority without this server could elect it,
  and is quick. (A write that hangs is the core's matter: `alpo.core.disk_space`.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar, TypeVarTuple

import trio

from alpo.core.disk_space import BETTER_SHARE, LEAD_ON_TIMEOUTS
from alpo.core.messages import Room
from alpo.core.replica import Replica
from alpo.core.replication import next_in_turn
from alpo.core.requests import Code, ReadAt, ReadIndex, Refused, Reply, Transfer
from alpo.storage.interface import DamagedStore, Readable, Store, StoreError
from alpo.wire import requests as w
from alpo.wire.codec import encode
from alpo.wire.requests import NO_ENTRIES

from .admission import Limits
from .client_connection import ClientConnection, ClientRequests
from .driver import Driver
from .pages import (
    Back,
    Extent,
    Front,
    OutOfRange,
    Overtaken,
    Traces,
    Whose,
    answer,
    begin_of,
    build_page,
    build_tail_page,
    extent_to,
    with_tail,
)
from .scrub import Scrubber, unreadable
from .status import waiting
from .threads import Bulk, BulkPace, Size, in_thread, weight_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Seconds that a read may take whatever ``disk_timeout_s`` says: a page has a mebibyte, and many may be read at once.
PATIENCE_S_MIN = 2.0
#: Part of the patience that each read waits, also while an older one hangs: perhaps only that one does.
OWN_SHARE = 0.25


class DiskSilent(StoreError):
    """The disk does not answer reads."""


class DiskReads:
    """The reads of the store that clients and operators wait for, many at a time. (Digests and backups have one each.)
    For the Trio thread."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._handover = _Handover(driver)
        self._begun: dict[object, float] = {}  # the reads in threads -> when each began, by `Driver.clock_s`
        self._told = False  # an event has said that the reads under way hang

    @property
    def patience_s(self) -> float:
        """Seconds for which a read may be under way before the disk counts as hanging."""
        return max(self._driver.replica.cfg.disk_patience_s, PATIENCE_S_MIN)

    @property
    def under_way_s(self) -> float:
        """The age of the oldest read under way, seconds; 0.0 if there is none."""
        return max(0.0, self._driver.clock_s() - self._oldest_s()) if self._begun else 0.0

    @property
    def hangs(self) -> bool:
        """True if a read has been under way for `patience_s`."""
        return self.under_way_s >= self.patience_s

    def _oldest_s(self) -> float:
        """The time at which the oldest read under way began; now if there is none."""
        return min(list(self._begun.values()), default=self._driver.clock_s())  # a copy: threads come and go

    async def ask(self, limiter: trio.CapacityLimiter, read: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call ``read`` in a thread, and count it. Cancelled, it is abandoned: its thread waits on. Raises as it
        does."""
        def counted() -> T:
            key = object()
            self._begun[key] = self._driver.clock_s()
            try:
                return read(*args)
            finally:
                del self._begun[key]

        return await in_thread(counted, abandon_on_cancel=True, limiter=limiter)

    async def run(self, limiter: trio.CapacityLimiter, read: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call ``read`` in a thread, until the disk hangs. Raises as it does, and `DiskSilent`."""
        found: list[T] = []
        failed: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_it_hangs, nursery.cancel_scope)
            try:
                found.append(await self.ask(limiter, read, *args))
            except Exception as error:  # raised below: a nursery would make a group of it
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        if found:
            self._told = False
            return found[0]
        raise self._given_up()

    async def _until_it_hangs(self, scope: trio.CancelScope) -> None:
        share_s = OWN_SHARE * self.patience_s
        own_s = trio.current_time() + share_s
        while trio.current_time() < (end_s := max(own_s, self._oldest_s() + self.patience_s)):
            await trio.sleep_until(end_s)
            if trio.current_time() > end_s + share_s:  # this process stood: the disk may have answered meanwhile
                own_s = trio.current_time() + share_s
        scope.cancel()

    def _given_up(self) -> DiskSilent:
        silent = DiskSilent(f"its disk has not answered a read for {self.under_way_s:.1f} s")
        if not self._told:
            self._told = True
            self._driver.note("read_failed", why=str(silent))
        self._handover.begin()
        return silent


class _Handover:
    """A leader's attempts to hand over. It is the `Asker` of its own requests: whatever comes of one, the next read
    that is given up may try again."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._tried: list[int] = []
        self._next_s = -math.inf

    def begin(self) -> None:
        """Hand over, if this server leads, it is time, and others could elect an heir."""
        r, now_s = self._driver.replica, self._driver.clock_s()
        if r.leadership is None or not r.serves or now_s < self._next_s:
            return
        timeout_s = r.cfg.election_timeout_s
        fit = [
            peer for peer in r.leadership.heirs()
            if peer.room is Room.PLENTY and peer.match_id >= r.guaranteed_id
            # a peer that owes nothing counts as quick: perhaps no further write will show it, and the last one is over
            and (not peer.in_flight or peer.owed_s(now_s) <= BETTER_SHARE * timeout_s)
        ]
        best = next_in_turn(fit, self._tried) if len(fit) >= r.members.latest.majority else None
        if best is not None:
            self._next_s = now_s + (1 + LEAD_ON_TIMEOUTS) * timeout_s
            self._driver.post(Transfer(self, best.who.id))
            self._driver.kick()

    def answer(self, reply: Reply) -> None:
        """Do nothing: the next read that is given up looks again whether this server leads."""

    def flush(self) -> None:
        """Do nothing: no replies are collected."""


#: Seconds after the start when the heads of the entries that the log held are looked through. Each pause between two
#: looks is so many times as long as a look.
LOOK_AFTER_S, LOOK_SHARE = 30.0, 9
#: Attempts at a page that cleaning overtakes; between two of them a chunk was cleaned.
_OVERTAKEN_MAX = 8


def front(replica: Replica) -> Front:
    """Start of the log as the replica has it. It moves up before the store deletes: whatever is above it is stored."""
    return Front(replica.log.base_id, replica.log.base_next_lsn, replica.cleaning.first_lsn)


def refused_here(client: ClientRequests, ask: w.Read | w.ReadColumns, replica: Replica) -> bool:
    """Refuse a local read, if this server does not vote; returns True then."""
    status = replica.status_text
    if status != "VOTING":
        detail = "; ".join([f"this server is {status}", *waiting(replica)])
        client.refuse(ask.request, Code.NOT_READY, leader=replica.leader_id, detail=detail)
    return status != "VOTING"


def refuse_range(client: ClientRequests, ask: w.Read | w.ReadColumns, error: OutOfRange) -> None:
    """Refuse a read outside the log. But a reader that waited on a lagging server gets an empty page: the LSN may exist
    elsewhere."""
    if not ask.linearizable and ask.wait_ms > 0 and ask.start > error.last_lsn:
        client.settle(answer(ask, NO_ENTRIES, ask.start, error.last_lsn, error.first_lsn))
    else:
        client.refuse(ask.request, Code.OUT_OF_RANGE, detail=str(error))


def _encoded_page(
    store: Readable, ask: w.Read | w.ReadColumns, within: Extent, size: Size, version: int, whose: Whose | None
) -> tuple[bytes, int]:
    """Make a page and encode it for a connection of this protocol ``version``; returns the frame and its weight. All
    costly work is done in the reading thread."""
    page = build_page(store, ask, within, size.bytes, size.rows, whose)
    return encode(page, version), weight_of(ask, page)


class NotReady(Exception):
    """This server serves no reads now; the message says why."""


class _Wait:
    """Origin of one `ReadIndex`, with the task that waits for its answer."""

    def __init__(self) -> None:
        self.reply: ReadAt | Refused | None = None
        self._event = trio.Event()

    def answer(self, reply: Reply) -> None:
        assert isinstance(reply, ReadAt | Refused)
        self.reply = reply
        self._event.set()

    def flush(self) -> None:
        """Do nothing: no replies are collected."""

    async def wait(self) -> ReadAt | Refused:
        await self._event.wait()
        assert self.reply is not None
        return self.reply


class Reads:
    """Service for reads. Each runs in its client's nursery, and ends with the connection."""

    def __init__(self, driver: Driver, store: Store, limits: Limits, scrubber: Scrubber, bulk: BulkPace) -> None:
        self._driver = driver
        self._replica = driver.replica
        self._store = store
        self._limits = limits
        self._scrubber = scrubber
        #: All reads of the disk that somebody waits for.
        self.disk = DiskReads(driver)
        self._bulk = Bulk(bulk, self._replica.log.last_id)
        self._threads = trio.CapacityLimiter(limits.read_threads)
        self._traces = Traces()
        self._nursery: trio.Nursery | None = None
        self._pollers: dict[trio.Event, int] = {}  # event -> LSN that it waits for
        self._looked_at = -1  # readable id for which pollers were last woken
        self._looking = False
        self._known = (0, 0)  # (id, LSN after which it ends) of the entry last looked up

    def start(self, nursery: trio.Nursery) -> None:
        """Begin to serve; helper tasks run in ``nursery``."""
        self._nursery = nursery
        nursery.start_soon(self._look_through_later)
        self._driver.watchers.after_mark.append(self._notice)

    def begin(self, client: ClientConnection, ask: w.Read | w.ReadColumns) -> None:
        """Start one read; its answer goes to ``client``."""
        client.nursery.start_soon(self._serve, client, ask)

    @property
    def followers(self) -> int:
        """The number of reads that wait for payloads still to come."""
        return len(self._pollers)

    async def extent(self) -> Extent:
        """The range that a local reader may see right now. Raises `StoreError`."""
        return await self._extent(self._replica.readable_id)

    async def extent_about(self) -> Extent:
        """The range as of `extent`; while its last entry is damaged, as if every entry of this log could be read.
        Raises `StoreError`."""
        try:
            return await self.extent()
        except DamagedStore:
            return extent_to(front(self._replica), self._replica.readable_id, self._replica.log.next_lsn - 1)

    async def look(self, ask: w.Read) -> w.Page:
        """The page for a visitor over HTTP: of this server's own copy, at once. Raises `NotReady`, `OutOfRange`,
        `StoreError`."""
        if self._replica.status_text != "VOTING":
            raise NotReady(f"this server is {self._replica.status_text}")
        return await self._scrubber.past_damage(partial(self._looked_up, ask))

    async def _looked_up(self, ask: w.Read) -> w.Page:
        for _ in range(_OVERTAKEN_MAX):
            end_id = self._replica.readable_id
            within = await self._extent(end_id)
            store = with_tail(self._store, self._replica.log, end_id)
            with suppress(Overtaken):
                page = await self.disk.run(self._threads, build_page, store, ask, within, ask.bytes_max)
                assert isinstance(page, w.Page)
                return page
        raise OutOfRange(front(self._replica).first_lsn, within.end_lsn)

    # -- one read ---------------------------------------------------------------------------------------

    async def _serve(self, client: ClientConnection, ask: w.Read | w.ReadColumns) -> None:
        try:
            if ask.linearizable:
                end_id = await self._read_index(client, ask)
            else:
                end_id = await self._scrubber.past_damage(partial(self._local_end, client, ask))
            if end_id is not None:
                await self._scrubber.past_damage(partial(self._send_page, client, ask, end_id))
        except StoreError as error:
            if not isinstance(error, DamagedStore | DiskSilent):  # these are reported already
                self._driver.note("read_failed", why=str(error))
            client.refuse(ask.request, Code.NOT_READY, detail=unreadable(error))

    async def _read_index(self, client: ClientConnection, ask: w.Read | w.ReadColumns) -> int | None:
        wait = _Wait()
        self._driver.post(ReadIndex(wait))
        self._driver.kick()
        reply = await wait.wait()
        if isinstance(reply, ReadAt):
            return reply.id
        client.refuse(ask.request, reply.code, number=reply.number, leader=reply.leader, detail=reply.detail)
        return None

    async def _local_end(self, client: ClientConnection, ask: w.Read | w.ReadColumns) -> int | None:
        """The id up to which a local read may see, after waiting for what it wants; None if the read was refused."""
        if refused_here(client, ask, self._replica):
            return None
        if ask.wait_ms > 0:
            wanted = ask.end or ask.start
            if wanted > 0:
                with trio.move_on_after(min(ask.wait_ms / 1000, self._limits.poll_s_max)):
                    await self.wait_for_lsn(wanted)
        return self._replica.readable_id

    async def _send_page(self, client: ClientConnection, ask: w.Read | w.ReadColumns, end_id: int) -> None:
        async with client.paging:
            await client.link.wait_below(self._limits.client_outbox_bytes_high)
            if client.link.closed:
                return
            began_s = trio.current_time()
            bytes_max = min(max(1, ask.bytes_max), self._limits.page_bytes_max)
            size = self._bulk.size(ask, bytes_max)
            whose = self._whose(ask.client)
            search = Back(ask, await self._extent(end_id)) if whose is not None and ask.last else None
            for _ in range(_OVERTAKEN_MAX):
                within = await self._extent(end_id)
                try:
                    if search is not None and whose is not None:
                        start = max(await self._search(search, whose, end_id), within.first_lsn)
                        ask = ask._replace(start=start, last=0)
                    tail = build_tail_page(self._replica.log, ask, within, size.bytes)
                    if tail is not None:
                        page, weight = encode(tail, client.version), weight_of(ask, tail)
                    else:
                        page, weight = await self.disk.run(
                            self._threads, _encoded_page, with_tail(self._store, self._replica.log, end_id), ask,
                            within, size, client.version, whose,
                        )
                except OutOfRange as error:
                    refuse_range(client, ask, error)
                    return
                except Overtaken:
                    continue
                if weight:
                    await self._bulk.keep(weight)
                counters = self._driver.counters
                counters.reads["columns" if isinstance(ask, w.ReadColumns) else "entries"] += 1
                counters.read_bytes += len(page)
                counters.read_s.add(trio.current_time() - began_s)
                client.settle_encoded(page)
                return
            refuse_range(client, ask, OutOfRange(front(self._replica).first_lsn, within.end_lsn))

    def _whose(self, client: str) -> Whose | None:
        """The entries of ``client`` as far as they are known; None for "", all clients."""
        return Whose(client, self._replica.sessions.entries_of(client), self._traces) if client else None

    async def _look_through_later(self) -> None:
        await trio.sleep(LOOK_AFTER_S)
        await self.look_through()

    async def look_through(self) -> None:
        """Find out, in little of a thread's time, which clients wrote the entries from before the start, the newest
        first. A later read of one client's payloads need not wait for that."""
        nobody, upto_id = Whose("", traces=self._traces), self._replica.readable_id
        while upto_id > self._replica.log.base_id and not self._traces.full:
            first_id, began_s = self._replica.log.base_id + 1, trio.current_time()
            if self._traces.knows(upto_id):
                upto_id = begin_of(upto_id) - 1
                continue
            try:
                down_id, _, _ = await self.disk.run(self._threads, nobody.below, self._store, upto_id, first_id)
            except (StoreError, Overtaken):
                down_id = begin_of(upto_id)  # a read that needs it reports it
            upto_id = down_id - 1
            await trio.sleep(LOOK_SHARE * (trio.current_time() - began_s))

    async def _search(self, search: Back, whose: Whose, end_id: int) -> int:
        """Go through with a search, in steps of which none takes so long that the disk would be taken for a silent one.
        Returns the LSN. Raises `Overtaken`, `StoreError`."""
        while search.start is None:
            within = await self._extent(end_id)
            store = with_tail(self._store, self._replica.log, end_id)
            await self.disk.run(self._threads, search.step, store, whose, within)
        return search.start

    # -- the end of the log -----------------------------------------------------------------------------

    async def _extent(self, end_id: int) -> Extent:
        """The extent up to ``end_id``; without a thread if the core still holds that entry. Raises `StoreError`."""
        while True:
            begins = front(self._replica)
            if end_id <= begins.base_id:
                return extent_to(begins, end_id, begins.base_next_lsn - 1)
            entry = self._replica.log.entry(end_id)
            if entry is not None:
                self._known = (end_id, entry.lsn + entry.count - 1)
            if self._known[0] == end_id:
                return extent_to(begins, end_id, self._known[1])
            head = await self.ask_disk(self._store.entry_head, end_id)
            if head is not None:
                self._known = (end_id, head[1] + head[2] - 1)
            elif end_id > self._replica.log.base_id:
                raise DamagedStore(f"entry {end_id} is missing", end_id)

    async def entry_with(self, lsn: int) -> int:
        """The id of the entry that payload ``lsn``, which a local reader may see, is in. Raises `StoreError`."""
        return await self.ask_disk(self._store.find_lsn, lsn, self._replica.readable_id)

    async def ask_disk(self, read: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call ``read`` in one of the threads for reads. Raises as `DiskReads.run`."""
        return await self.disk.run(self._threads, read, *args)

    async def wait_for_lsn(self, lsn: int) -> None:
        """Wait until a local reader may see payload ``lsn``."""
        while True:
            seen_id = self._replica.readable_id
            if (await self._extent(seen_id)).end_lsn >= lsn:
                return
            event = trio.Event()
            self._pollers[event] = lsn
            try:
                if self._replica.readable_id == seen_id:
                    await event.wait()
            finally:
                del self._pollers[event]

    def _notice(self) -> None:
        """Wake pollers if the readable end has moved; called after every step that has moved a mark."""
        readable_id = self._replica.readable_id
        self._bulk.notice(self._replica.log.last_id, self._driver.now_s)
        if readable_id >= self._traces.due_id:
            self._traces.follow(self._replica.log, readable_id)
        if self._pollers and readable_id != self._looked_at and not self._looking:
            assert self._nursery is not None
            entry = self._replica.log.entry(readable_id)
            if entry is not None:
                self._looked_at = entry.id
                self._wake(entry.lsn + entry.count - 1)
            else:
                self._looking = True
                self._nursery.start_soon(self._look)

    async def _look(self) -> None:
        """Look up the end of the log in the store: just after a start it is not in memory. If it cannot be read,
        pollers wait on: until the log grows, or their time is over."""
        try:
            found = await self._scrubber.past_damage(self.extent)
        except StoreError as error:
            if not isinstance(error, DiskSilent):
                self._driver.note("read_failed", why=str(error))
            self._looked_at = self._replica.readable_id
            return
        finally:
            self._looking = False
        self._looked_at = found.end_id
        self._wake(found.end_lsn)
        self._notice()

    def _wake(self, end_lsn: int) -> None:
        for event, lsn in self._pollers.items():
            if lsn <= end_lsn:
                event.set()
