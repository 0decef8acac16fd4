"""A server's logs besides the first: the shell of `alpo.core.hosting`, which decides all (rules.md#logs).

Laws:

* One task takes the steps, so a word to a peer leaves in the order in which it was decided; work on the disk is done in
  threads, and its result is news for a later step.
* A peer's stores are known while there is a connection in both directions, and what it said of them came over the one
  that it dialled. A log has the peer as connected from then on, so that messages to it follow our own word.
* One log's trouble is its own: an alarm stops it for good, a lost store makes room for a new one. What the disk refuses
  ends the server, as in the first log.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import trio

from alpo.core.directory import DeletedLog, Listing, NamedLog
from alpo.core.hosting import words as h
from alpo.core.hosting.facts import facts, settled
from alpo.core.hosting.hosting import Hosting
from alpo.core.members import Identity, MemberList, Role
from alpo.core.ready import Alarm, Begin, Connected, Disconnected, PeerAddress, PeerGone, StoreLost
from alpo.core.requests import FoundLog, LogDeleted, Reply, Transfer
from alpo.core.shared import InvariantBroken
from alpo.storage import schema
from alpo.storage.boot import set_aside
from alpo.storage.hosted import Trouble, find_store, folder_of, make_store, move_store, remove_moved
from alpo.storage.interface import DamagedStore, StoreError
from alpo.storage.sqlite import SqliteStore

from .admission import DiskCare
from .driver import Driver
from .log_server import LogServer
from .routes import Routes
from .threads import in_thread

#: Seconds until a store that could not be made, or moved, is tried again.
_AGAIN_S = 1.0
#: Longest time between two steps while there are other logs: which servers have caught up is no news.
_STEP_S = 5.0
#: Deletions that are waited for; whoever asks too long asks again.
_DELETIONS_MAX = 64
#: Longest time between two looks for stores that were kept for long enough.
_OLD_S = 600.0
#: Seconds that a log has to hand leadership over when it is stopped.
_LEAVE_S = 2.0


class LogsCare(NamedTuple):
    """A server's part in its logs besides the first. ``balance``: hand a log to the server that should lead it;
    ``keep_deleted_s``: seconds until the files of a deleted log are removed."""

    balance: bool = True
    keep_deleted_s: float = 86_400.0


class Shelf(NamedTuple):
    """The place of the stores, and what was found in it at the start. ``care``: of a store in this folder;
    ``logs``: what is done for all of them at first; ``alone``: no other server could restore a log."""

    data: Path
    server_id: int
    found: list[h.FoundStore]
    troubles: list[Trouble]
    care: Callable[[Path], DiskCare]
    logs: LogsCare = LogsCare()
    alone: bool = False


class _Nobody:
    """The asker of what a hosting asks of a log: its answer shows in the log."""

    def answer(self, reply: Reply) -> None:
        """Take a reply, and forget it."""

    def flush(self) -> None:
        """Do nothing: no answer is kept."""


_NOBODY = _Nobody()


class Running:
    """A log that runs here, until ``ended`` is set."""

    def __init__(self, log: NamedLog, server: LogServer) -> None:
        self.log, self.server, self.ended = log, server, trio.Event()
        self.unsettled = True
        server.driver.on_failure = self.ended.set


#: States of a log on a server. "creating": it has not begun here.
STATES = ("creating", "ready", "deleting", "failed")


class LogState(NamedTuple):
    """One log as it stands on this server. ``state``: one of `STATES`; ``why``: in words, if it has failed."""

    number: int
    name: str
    state: str
    why: str = ""


#: Makes the server of a log: its row, its store's identity, its store, its care.
MakeLog = Callable[[NamedLog, Identity, SqliteStore, DiskCare], LogServer]


class Hosted:
    """The other logs of a server whose first log's driver is ``first``. `run` it once."""

    def __init__(
        self, me: int, first: Driver, routes: Routes, shelf: Shelf, make_log: MakeLog, timeout_s: float,
        on_running: Callable[[], None],
    ) -> None:
        """``on_running`` is called when a log has begun, ended, or changed its name or options here."""
        self._first, self._shelf, self._make_log = first, shelf, make_log
        self._on_running = on_running
        self._hosting = Hosting(me, shelf.found, timeout_s)
        self._care, self._look_for_old = shelf.logs, trio.Event()
        self.heed(shelf.logs)
        #: Logs that run here, by number.
        self.running: dict[int, Running] = {}
        #: Logs that have stopped because of a fault, and why.
        self.failed: dict[int, str] = {trouble.number: trouble.why for trouble in shelf.troubles}
        #: Called with the ids of the members of all logs that run here, and of those that have left the cluster, if it
        #: has or had other logs; when they have changed.
        self.on_members: Callable[[frozenset[int], frozenset[int]], None] = lambda ids, removed: None
        self._members = frozenset[int](), frozenset[int]()
        #: Set once hosting wants a log stopped that runs, has failed, or is about to run.
        self._stops: dict[int, trio.Event] = {}
        #: Last known name, and store, of each log.
        self._names: dict[int, str] = {}
        self._made: dict[int, h.FoundStore] = {
            store.number: store for store in shelf.found if store.state is not h.StoreState.STOPPED
        }
        self._news, self._none_runs = trio.Event(), trio.Event()
        self._leaving = False
        #: The directory as of the last step; True while the first log's list or reign is not guaranteed yet.
        self._seen: object = None
        self._unsettled = True
        #: Logs whose deletion is guaranteed, and what to call once it is done.
        self._deletions: list[tuple[DeletedLog, Callable[[], None]]] = []
        self._stores = routes.stores
        self._stores.on_connected, self._stores.on_message = self._connected, self._heard
        self._stores.on_gone = self._gone

    def heed(self, care: LogsCare) -> None:
        """Do from now on as ``care`` says."""
        self._care, self._hosting.balances = care, care.balance
        self._look_for_old.set()

    # -- news -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Have a step taken soon: something that hosting sees may have changed."""
        self._news.set()

    def _look_at_change(self) -> None:
        """Have a step taken: the first log has another leader or list, which may not be guaranteed yet."""
        self._unsettled = True
        self.look()

    def _look_at_mark(self) -> None:
        """Have a step taken if the guaranteed directory has changed, or list and reign are guaranteed now."""
        replica = self._first.replica  # every append comes here, so little is asked
        if self._unsettled or replica.directory.guaranteed is not self._seen:
            self._seen, self._unsettled = replica.directory.guaranteed, not settled(replica)
            self.look()

    def _look_at_log(self, running: Running) -> None:
        """Have a step taken once a log's list and reign are guaranteed."""
        if running.unsettled:
            running.unsettled = not settled(running.server.replica)
            self.look()

    def _look_at_changed_log(self, running: Running) -> None:
        running.unsettled = True
        self.look()

    def states(self) -> list[LogState]:
        """The logs in the guaranteed directory, and those that run or still have a store here, by number."""
        listing = self._first.replica.directory.guaranteed
        names = {number: running.log.name for number, running in self.running.items()}
        cluster, has_moved = self._first.replica.cluster, self._hosting.has_moved
        names |= {log.number: log.name for log in listing.logs if not has_moved(log.number, cluster)}
        deleted = {log.number: log.name for log in listing.deleted}
        names |= {number: deleted.get(number, f"log {number}") for number in self._made if listing.lacks(number)}
        return [LogState(number, names[number], *self._state(number, listing)) for number in sorted(names)]

    def _state(self, number: int, listing: Listing) -> tuple[str, str]:
        """The state of a log, and the reason if it has failed."""
        if number in self.failed:
            return "failed", self.failed[number]
        if listing.lacks(number):
            return "deleting", ""
        running = self.running.get(number)
        return "ready" if running is not None and running.server.replica.first_start.started else "creating", ""

    def name_of(self, number: int) -> str:
        """The last known name of a log."""
        return self._names[number]

    def once_over(self, answer: LogDeleted, done: Callable[[], None]) -> None:
        """Call ``done`` once no new append to a log that was deleted can be acknowledged."""
        self._deletions = [*self._deletions, (answer.log, done)][-_DELETIONS_MAX:]
        self.look()

    def _connected(self, who: Identity, stores: Mapping[int, Identity], connected: bool) -> None:
        """Note that a peer is connected in both directions, or is no more, and then which stores it had."""
        if connected:
            self._hosting.connected(who)
        else:
            self._hosting.gone(who)
            for number in stores:
                self._post(number, Disconnected(who.id))
        self.look()

    def _heard(self, who: Identity, message: h.HostMessage) -> None:
        """Take a peer's word of its logs, or of the members that a log is to have."""
        self._hosting.heard(who, message)
        if isinstance(message, h.LogHello):
            before = self._stores.of(who.id)
            now = {
                told.number: Identity(who.id, told.incarnation) for told in message.logs
                if told.state is not h.StoreState.STOPPED
            }
            for number in [number for number, store in before.items() if now.get(number) != store]:
                self._post(number, Disconnected(who.id))
            self._stores.learn(who, now)
            for number in [number for number, store in now.items() if before.get(number) != store]:
                self._join(number, now[number])
        self.look()

    def _gone(self, stores: Mapping[int, Identity]) -> None:
        """Note that a peer's process must be gone; ``stores``: those that it last told of."""
        for number, store in stores.items():
            self._post(number, PeerGone(store))

    def _join(self, number: int, store: Identity) -> None:
        """Have a log know the peer that has ``store`` as connected."""
        running = self.running.get(number)
        if running is not None:
            self._stores.receivers[store] = running.server.driver
            self._post(number, PeerAddress(store.id, store.incarnation, self._first.replica.address_of(store.id)))
            self._post(number, Connected(store.id))

    def _post(self, number: int, item: Any) -> None:
        running = self.running.get(number)
        if running is not None:
            running.server.driver.post(item)
            running.server.driver.kick(at_once=True)

    # -- steps ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Host the logs until cancelled."""
        watchers = self._first.watchers
        watchers.after_change.append(self._look_at_change)
        watchers.after_mark.append(self._look_at_mark)
        for trouble in self._shelf.troubles:
            self._first.note("log_store_ignored", number=trouble.number, why=trouble.why)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._remove_old)
            while True:
                self._news = trio.Event()
                for action in self._step() if not self._leaving else ():
                    self._act(action, nursery)
                due_s = self._hosting.deadline_s()
                with trio.move_on_at(min(due_s, trio.current_time() + _STEP_S) if self._made else due_s):
                    await self._news.wait()

    async def leave(self) -> None:
        """Hand the leadership of each log over, and stop them all (R28)."""
        self._leaving = True
        while self.running:
            self._none_runs = trio.Event()
            for number in self.running:
                self._stops[number].set()
            await self._none_runs.wait()

    def _step(self) -> list[h.Action]:
        replicas = {number: running.server.replica for number, running in self.running.items()}
        seen = facts(self._first.replica, replicas)
        for log in seen.listing.logs:
            self._names[log.number] = log.name
            running = self.running.get(log.number)
            if running is not None and running.log != log:
                running.log = log
                self._on_running()
        listed = seen.members.members if seen.head != Listing() else ()
        removed = frozenset(member.id for member in listed if member.role is Role.GONE)
        members = frozenset(member.id for log in seen.logs.values() for member in log.members.replicas), removed
        if members != self._members:
            self._members = members
            self.on_members(*members)
        actions = self._hosting.step(seen, trio.current_time())
        waiting, self._deletions = self._deletions, []
        for gone, done in waiting:
            if self._hosting.deleting(gone):
                self._deletions.append((gone, done))
            else:
                done()
        return actions

    def _act(self, action: h.Action, nursery: trio.Nursery) -> None:
        """Do what hosting asks; what takes time is a task of its own."""
        if isinstance(action, h.MakeStore):
            nursery.start_soon(self._make, action)
        elif isinstance(action, h.RunLog):
            self._stops[action.log.number] = trio.Event()
            self._names.setdefault(action.log.number, action.log.name)
            nursery.start_soon(self._serve, action)
        elif isinstance(action, h.StopLog):
            self._stops[action.number].set()
        elif isinstance(action, h.MoveStore):
            nursery.start_soon(self._move, action)
        elif isinstance(action, h.Tell):
            self._stores.tell(action.peer, action.message)
        elif isinstance(action, h.Found):
            self._first.post(FoundLog(action.number, action.first_list.to_plain()))
            self._first.kick()
        elif isinstance(action, h.Change):
            self._post(action.number, action.request._replace(origin=_NOBODY))
        elif isinstance(action, h.HandLog):
            self._post(action.number, Transfer(_NOBODY, action.target))
        else:
            self._first.note(action.name, number=action.number, why=action.why)

    async def _make(self, action: h.MakeStore) -> None:
        cluster, shelf = self._first.replica.cluster, self._shelf
        try:
            store = await in_thread(functools.partial(
                _make_or_find, shelf, action.number, action.name, cluster
            ))
        except StoreError as error:
            self._fail(action.number, str(error))
            await trio.sleep(_AGAIN_S)
            self._hosting.not_made(action.number)
        else:
            self.failed.pop(action.number, None)
            self._made[action.number] = store
            self._hosting.made(store)
        self.look()

    async def _move(self, action: h.MoveStore) -> None:
        store, name = self._made[action.number], self._names.get(action.number, "log")
        while True:
            try:
                where = await in_thread(functools.partial(
                    move_store, self._shelf.data, store, name, datetime.now(UTC), retired=action.retired
                ))
                break
            except StoreError as error:
                self._fail(action.number, str(error))
                await trio.sleep(_AGAIN_S)
        self.failed.pop(action.number, None)
        del self._made[action.number]
        self._first.note("log_store_moved", number=action.number, to=str(where))
        self._hosting.moved(action.number)
        self.look()

    async def _remove_old(self) -> None:
        """Remove stores of deleted logs, and retired ones, once they were kept for long enough."""
        replica, data = self._first.replica, self._shelf.data
        while True:
            self._look_for_old = trio.Event()
            listing, keep_s = replica.directory.guaranteed, self._care.keep_deleted_s

            def may_go(cluster: bytes, number: int, retired: bool, listing: Listing = listing) -> bool:
                return cluster == replica.cluster and (retired or listing.lacks(number))

            before = datetime.now(UTC) - timedelta(seconds=keep_s)
            known = {gone.number for gone in listing.deleted}
            for folder in await in_thread(functools.partial(remove_moved, data, may_go, before, known)):
                self._first.note("deleted_log_removed", folder=str(folder))
            with trio.move_on_after(min(max(keep_s, _AGAIN_S), _OLD_S)):
                await self._look_for_old.wait()

    def _fail(self, number: int, why: str) -> None:
        if self.failed.get(number) != why:
            self.failed[number] = why
            self._first.note("log_failed", number=number, why=why)

    # -- one log ----------------------------------------------------------------------------------------

    async def _serve(self, action: h.RunLog) -> None:
        """Run a log until it is to stop; then tell hosting how its store stands."""
        number, standing = action.log.number, h.NO_LIST
        folder = folder_of(self._shelf.data, number)
        try:
            store = await in_thread(functools.partial(_open, folder, self._made[number], self._shelf.server_id))
        except DamagedStore as damage:
            await self._lost(number, folder, damage)
            return
        except StoreError as error:
            self._fail(number, str(error))
            await trio.sleep(_AGAIN_S)
            self._hosting.stopped(number, self._made[number].standing)
            self.look()
            return
        failure: BaseException | None = None
        try:
            server = self._make_log(action.log, store.boot().me, store, self._shelf.care(folder))
            running = Running(action.log, server)
            try:
                await self._run_log(running, action.first_list)
            finally:
                members = running.server.replica.members
                if running.server.replica.first_start.started:
                    standing = h.standing_of(members.latest_id, members.latest)
                failure = running.server.driver.failure
                with trio.CancelScope(shield=True):
                    await running.server.close()
        except* (StoreError, Alarm, InvariantBroken) as raised:
            failure = _first_of(raised)
        finally:
            with trio.CancelScope(shield=True):
                await in_thread(store.close)
        if isinstance(failure, DamagedStore | StoreLost):
            await self._lost(number, folder, failure)
            return
        if isinstance(failure, StoreError):
            self._first.failed(failure)
        elif failure is not None:  # stopped for good, though it may still be deleted
            self._fail(number, str(failure))
            await self._stops[number].wait()
        self._made[number] = self._made[number]._replace(standing=standing)
        self._hosting.stopped(number, standing)
        self.look()

    async def _run_log(self, running: Running, first_list: MemberList | None) -> None:
        number, driver = running.log.number, running.server.driver
        async with trio.open_nursery() as nursery:
            await running.server.start(nursery)
            self.running[number] = running
            self.failed.pop(number, None)
            driver.watchers.after_change.append(functools.partial(self._look_at_changed_log, running))
            driver.watchers.after_mark.append(functools.partial(self._look_at_log, running))
            self._on_running()
            try:
                if first_list is not None:
                    self._post(number, Begin(first_list.to_plain(), running.log.settings))
                for store in self._stores.holders(number):
                    self._join(number, store)
                last_id = running.server.replica.last_id
                self._first.note("log_runs", number=number, name=running.log.name, last_id=last_id)
                nursery.start_soon(self._end_when_told, running)
                await running.ended.wait()
                if driver.failure is None:
                    with trio.move_on_after(_LEAVE_S):
                        await running.server.leave()
            finally:
                del self.running[number]
                self._none_runs.set()
                self._stores.drop(driver)
                self._on_running()
            nursery.cancel_scope.cancel()

    async def _end_when_told(self, running: Running) -> None:
        await self._stops[running.log.number].wait()
        running.ended.set()

    async def _lost(self, number: int, folder: Path, why: BaseException) -> None:
        """Set a lost store aside: another one takes its place. If no other server has what it held, it stays."""
        if self._shelf.alone:
            self._fail(number, str(why))
            await self._stops[number].wait()
            self._hosting.stopped(number, self._made[number].standing)
            self.look()
            return
        while await in_thread(folder.exists):
            try:
                where = await in_thread(functools.partial(set_aside, folder, datetime.now(UTC)))
                self._first.note("log_store_set_aside", number=number, why=str(why), where=str(where))
                break
            except StoreError as error:
                self._fail(number, str(error))
                await trio.sleep(_AGAIN_S)
        self._hosting.lost(number)
        self.look()


def _make_or_find(shelf: Shelf, number: int, name: str, cluster: bytes) -> h.FoundStore:
    """The store of a log, made if there is none; one that could not be used when it was found may be usable by now.
    Raises `StoreError`."""
    found = find_store(folder_of(shelf.data, number), shelf.server_id, alone=shelf.alone)
    return found or make_store(shelf.data, shelf.server_id, number, name, cluster)


def _open(folder: Path, made: h.FoundStore, server_id: int) -> SqliteStore:
    """The store that was made or found. Raises `DamagedStore` if another one is in its place, or none; `StoreError`."""
    try:
        if not schema.exists(folder):
            raise DamagedStore(f"{folder} holds no store any more")
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}") from error
    store = SqliteStore.open(folder, server_id)
    if store.boot().me.incarnation != made.incarnation:
        store.close()
        raise DamagedStore(f"{folder} holds another store than before")
    return store


def _first_of(raised: BaseException) -> BaseException:
    """The first error in a group."""
    while isinstance(raised, BaseExceptionGroup):
        raised = raised.exceptions[0]
    return raised
