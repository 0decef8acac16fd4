"""`Hosting`: one server's stores of the logs besides the first: made, run, stopped and moved, by the directory alone.

Laws:

* A server acts on the guaranteed directory only, and on no other cluster's stores. A store that was found begun proves
  that its founding is guaranteed: it runs from the start on, as others may need it before this server knows that.
* What is told of a store is on disk.
* A store begins with a log's first list only under the very incarnation that the list has. Any other store of that log
  founds nothing: the log's leader adds it.
* Files go by proof only: a store is moved once the guaranteed directory of its own cluster, here or on another server,
  lacks its number, and has given it out. A directory that is behind, or of another cluster, proves nothing. A store
  that its log has retired makes room for another one if the first log has this server as a member again.
* A server that has left the cluster gets no entries of the first log: others tell it which of its logs are deleted.
* What a peer has told is forgotten when its connection ends, as it may have lost its store since. A store that was
  moved away is told of for good.
"""

from __future__ import annotations

from collections.abc import Iterable

from alpo.core.directory import DeletedLog, Listing, NamedLog
from alpo.core.members import Identity, MemberList

from .leading import FIT_S, Ended, Leading, over
from .words import (
    Action,
    Deleted,
    Facts,
    Follow,
    FoundStore,
    HostEvent,
    HostMessage,
    LogHello,
    MakeStore,
    MoveStore,
    RunLog,
    Standing,
    StopLog,
    StoreState,
    Tell,
    ToldLog,
    standing_of,
)


class Hosting:
    """The hosting of server ``me`` (its id), which has ``found`` these stores. ``timeout_s``: the election timeout;
    ``fit_s``: how long the preferred leader of a log must have been fit."""

    def __init__(self, me: int, found: Iterable[FoundStore], timeout_s: float, fit_s: float = FIT_S) -> None:
        self.me = me
        stores = list(found)
        self._stores = {store.number: store for store in stores if store.state is not StoreState.STOPPED}
        #: Stores of deleted logs that were moved away.
        self._moved = {store.number: store for store in stores if store.state is StoreState.STOPPED}
        self._making: set[int] = set()
        #: Logs that were told to run, to stop, or whose store was told to move, and have not done so.
        self._running: set[int] = set()
        self._stopping: set[int] = set()
        self._moving: set[int] = set()
        #: Logs whose store is retired, while the first log has this server as a member: another store takes its place.
        self._retiring: set[int] = set()
        #: Logs of stores here that another server's guaranteed directory proves deleted.
        self._proved: set[int] = set()
        self._told: dict[int, dict[int, ToldLog]] = {}
        #: Server that has left -> deleted logs that it was told of, since it last told of its stores.
        self._informed: dict[int, set[int]] = {}
        #: Number of a deleted log -> stores that were moved away, by anybody, and how they stood.
        self._ended: dict[int, Ended] = {}
        self._who: dict[int, Identity] = {}
        self._new_peers: list[int] = []
        self._said: LogHello | None = None
        self._complained: set[int] = set()
        self._leading = Leading(me, timeout_s, fit_s)
        #: True if a log is handed to the server that should lead it.
        self.balances = True

    # -- news -------------------------------------------------------------------------------------------

    def connected(self, peer: Identity) -> None:
        """Note a new connection to ``peer``, over which it will tell of its logs."""
        self._who[peer.id] = peer
        self._told.pop(peer.id, None)
        self._new_peers.append(peer.id)

    def gone(self, peer: Identity) -> None:
        """Note that there is no connection to ``peer`` any more."""
        if self._who.get(peer.id) == peer:
            del self._who[peer.id]
            self._told.pop(peer.id, None)

    def heard(self, peer: Identity, message: HostMessage) -> None:
        """Take a message of a peer that is connected."""
        if self._who.get(peer.id) != peer:
            return
        if isinstance(message, Follow):
            self._leading.follow(message)
            return
        if isinstance(message, Deleted):
            here = {number for number, store in self._stores.items() if store.cluster == message.cluster}
            self._proved |= here.intersection(message.numbers)
            return
        self._informed.pop(peer.id, None)
        self._told[peer.id] = {told.number: told for told in message.logs}
        for told in message.logs:
            if told.state is StoreState.STOPPED:
                self._end(peer.id, told)

    def made(self, store: FoundStore) -> None:
        """Note that a store was made, and is on disk."""
        self._making.discard(store.number)
        self._stores[store.number] = store

    def not_made(self, number: int) -> None:
        """Note that a store could not be made: it is asked for again."""
        self._making.discard(number)

    def stopped(self, number: int, standing: Standing) -> None:
        """Note that a log runs here no more, and how its store stood when it was closed."""
        self._stopping.discard(number)
        self._running.discard(number)
        if number in self._stores:
            self._stores[number] = self._stores[number]._replace(standing=standing)

    def lost(self, number: int) -> None:
        """Note that a log runs here no more because its store was lost, and is set aside."""
        self._stopping.discard(number)
        self._running.discard(number)
        self._retiring.discard(number)
        self._proved.discard(number)
        self._stores.pop(number, None)

    def moved(self, number: int) -> None:
        """Note that the store of a deleted log was moved away, durably."""
        self._moving.discard(number)
        self._proved.discard(number)
        store = self._stores.pop(number, None)
        if number in self._retiring:
            self._retiring.discard(number)
        elif store is not None:
            self._moved[number] = store._replace(state=StoreState.STOPPED)

    # -- steps ------------------------------------------------------------------------------------------

    def step(self, facts: Facts, now_s: float) -> list[Action]:
        """Tell what is to be done now. Steps are taken after news, and at `deadline_s`."""
        actions: list[Action] = []
        if facts.cluster:
            self._forget(facts)
            for log in facts.listing.logs:
                self._keep(log, facts, actions)
            for log in facts.head.logs:
                self._go_on(log, facts, actions)
            for number in [number for number in self._stores if self._is_gone(number, facts.listing)]:
                self._let_go(number, facts, actions)
            self._inform(facts, actions)
        told = {**self._told, self.me: {each.number: each for each in self._tell(facts)}}
        self._leading.step(facts, told, self._who, now_s, actions)
        if self.balances:
            self._leading.balance(facts, now_s, actions)
        hello = LogHello(tuple(told[self.me].values()))
        if hello != self._said:
            self._said, self._new_peers = hello, []
            actions.append(Tell(None, hello))
        for peer in self._new_peers:
            actions.append(Tell(peer, hello))
        self._new_peers = []
        return actions

    def deadline_s(self) -> float:
        """The time of the next step, monotonic seconds, if no news comes before."""
        return self._leading.deadline_s

    def deleting(self, gone: DeletedLog) -> bool:
        """True if a log that is deleted might still take an append somewhere, as far as is told."""
        return not over(gone, self._ended.get(gone.number, {}))

    def has_moved(self, number: int, cluster: bytes) -> bool:
        """True if the store of a log of this cluster was moved away here, as the log is deleted."""
        moved = self._moved.get(number)
        return moved is not None and moved.cluster == cluster

    def _is_gone(self, number: int, listing: Listing) -> bool:
        """True if a store's log is not in the directory, or proved deleted."""
        return number in self._proved or listing.get(number) is None

    def _inform(self, facts: Facts, actions: list[Action]) -> None:
        """Tell servers that have left the cluster which of the logs that they have stores of are deleted."""
        for id, logs in self._told.items():
            if facts.members.is_replica(id):
                continue
            kept = [told.number for told in logs.values() if told.state is not StoreState.STOPPED]
            gone = {number for number in kept if facts.listing.lacks(number)}
            if gone - self._informed.get(id, set()):
                self._informed[id] = gone
                actions.append(Tell(id, Deleted(facts.cluster, tuple(sorted(gone)))))

    def _forget(self, facts: Facts) -> None:
        """Drop what is known of deleted logs that the directory remembers no more."""
        kept = {log.number for log in facts.listing.logs} | {gone.number for gone in facts.listing.deleted}
        for number in [number for number in self._ended if number not in kept and facts.listing.lacks(number)]:
            del self._ended[number]
        self._complained &= {*kept, *self._stores}

    def _end(self, id: int, told: ToldLog) -> None:
        before = self._ended.get(told.number, {})
        self._ended[told.number] = {**before, Identity(id, told.incarnation): told.standing}

    def _keep(self, log: NamedLog, facts: Facts, actions: list[Action]) -> None:
        """Have the store of a log that is not deleted, and run it once the log is founded."""
        if log.number in self._proved:
            return
        store = self._stores.get(log.number)
        if self.has_moved(log.number, facts.cluster):
            return  # deleted: the directory is behind, as after a start
        if store is None:
            if log.number not in self._making:
                self._making.add(log.number)
                actions.append(MakeStore(log.number, log.name))
            return
        if store.cluster != facts.cluster:
            self._complain(log.number, "there is a store of another cluster's log of this number", actions)
            return
        runs = facts.logs.get(log.number)
        if runs is not None and runs.retired and facts.members_sure and facts.members.is_replica(self.me):
            self._retiring.add(log.number)
        if log.number in self._retiring:
            self._end_store(log.number, actions)
            return
        if log.first_list is None or log.number in self._running:
            return
        self._running.add(log.number)
        first = MemberList.from_plain(log.first_list)
        listed = first.is_voter(Identity(self.me, store.incarnation))
        actions.append(RunLog(log, first if listed else None))

    def _go_on(self, log: NamedLog, facts: Facts, actions: list[Action]) -> None:
        """Run a log that has begun here before this start, though its entries are not known to be guaranteed again."""
        store = self._stores.get(log.number)
        done = {*self._running, *self._retiring, *self._proved}
        if store is None or store.cluster != facts.cluster or log.number in done:
            return
        if store.state is StoreState.STARTED and log.first_list is not None and not facts.listing.lacks(log.number):
            self._running.add(log.number)
            actions.append(RunLog(log, None))

    def _let_go(self, number: int, facts: Facts, actions: list[Action]) -> None:
        """Stop a log that the directory lacks, then move its store; only if the directory proves that it is deleted."""
        store = self._stores[number]
        if store.cluster != facts.cluster:
            self._complain(number, "there is a store of another cluster's log", actions)
        elif number in self._proved or facts.listing.lacks(number):  # else the directory is behind, as after a start
            if number not in self._moving:  # else it is moved as a retired one
                self._retiring.discard(number)
            self._end_store(number, actions)

    def _end_store(self, number: int, actions: list[Action]) -> None:
        """Stop a log, then move its store."""
        if number in self._running:
            if number not in self._stopping:
                self._stopping.add(number)
                actions.append(StopLog(number))
        elif number not in self._moving:
            self._moving.add(number)
            actions.append(MoveStore(number, number in self._retiring))

    def _complain(self, number: int, why: str, actions: list[Action]) -> None:
        if number not in self._complained:
            self._complained.add(number)
            actions.append(HostEvent("log_store_ignored", number, why))

    def _tell(self, facts: Facts) -> list[ToldLog]:
        """List what this server tells of its logs, by number."""
        told: list[ToldLog] = []
        if not facts.cluster:
            return told
        for number, store in sorted(self._stores.items()):
            runs = facts.logs.get(number)
            if store.cluster != facts.cluster or facts.listing.lacks(number):
                continue
            if runs is None:
                told.append(ToldLog(number, store.incarnation, store.state))
            else:
                standing = standing_of(runs.members_id, runs.members)
                told.append(ToldLog(number, store.incarnation, runs.state, runs.leader, standing))
        remembered = {gone.number for gone in facts.listing.deleted}
        for number, store in sorted(self._moved.items()):
            if store.cluster == facts.cluster and (number in remembered or not facts.listing.lacks(number)):
                told.append(ToldLog(number, store.incarnation, StoreState.STOPPED, 0, store.standing))
                self._end(self.me, told[-1])
        return told
