"""`LogsWorld`: a random run of hosts that keep several logs, from one seed.

The first log, its clients and the faults are those of a `World`; each further log is a `OneLog` on the same hosts,
which crash, are paused, full and cut off as wholes, and lose one store or all. What the hosts' hostings say to each
other goes over connections of their own, in order. A message of a log arrives where its sender's store was told of.

Demands at the end, besides those that each log must meet by itself: every log that is not deleted is led by the server
that should, and has the first log's members; no store waits, and every store of a deleted log was moved away. A log
goes on when its leader's replica ends alone, with the host and the other logs as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from alpo.core.directory import NamedLog
from alpo.core.entries import Entry
from alpo.core.hosting import words as h
from alpo.core.hosting.facts import facts, standing_in
from alpo.core.hosting.hosting import Hosting
from alpo.core.members import Identity, MemberList, StartStatus
from alpo.core.messages import Envelope, Room
from alpo.core.ready import Begin
from alpo.core.requests import Appended, FoundLog, Reply, Transfer
from alpo.core.settings import Settings

from ..actors import begin
from ..checks import Broken
from ..clients import Clients
from ..cluster import Cluster
from ..host import Host
from ..options import MS, SECOND, Options
from ..world import World, demand_members, demand_progress, demand_settled
from .checks import DirectoryChecks, HeardOf, are_too_few
from .operators import LogOperator

#: Time, once all is whole, until every log has the members and stores that it is to have.
HOSTED_WITHIN_US = 45 * SECOND
#: Seconds that a preferred leader must have been fit: fewer than in `alpod`, so that logs are handed over under faults.
FIT_S = 3.0
#: Interval at which hosts look whether they reach each other.
_LOOK_US = 100 * MS


class OneLog(Cluster):
    """The servers of one log. Their time, pauses, stalls and cuts are those of the hosts; `LogsWorld` boots and crashes
    them. ``dead``: so many of its first stores were lost before it began that it never will."""

    def __init__(self, world: LogsWorld, log: NamedLog) -> None:
        self._world = world
        self.number = log.number
        o, hosts = world.options, len(world.stage.hosts)
        super().__init__(replace(
            o, seed=o.seed * 1000 + log.number, servers=0, spares=hosts, auto_init=True, misconfigured=False, wipes=0,
            stewards=0, priorities=(), settings=Settings.from_plain(log.settings),
            limits=(*o.limits, ("first_log", False)), load=replace(o.load, writers=2, readers=1, keepers=0),
        ))
        self.stage.now_us = world.now_us
        self.paused_until, self.stalled_until, self.room = world.paused_until, world.stalled_until, world.room
        now, links = world.links, self.links
        links.cut, links.lossy, links.quiet = dict(now.cut), now.lossy, now.quiet
        self.clients = Clients(self, world.faults)
        #: Stores that were lost before any had begun.
        self.early_lost, self._begun = 0, False

    # -- time is the world's ----------------------------------------------------------------------------

    def at(self, when_us: int, call: Callable[..., None], *args: Any) -> None:
        self._world.at(when_us, self._call, call, args)

    def _call(self, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.stage.now_us = self._world.now_us
        call(*args)

    def run_until(self, until_us: int, condition: Callable[[], bool] = lambda: False) -> bool:
        def holds() -> bool:
            self.stage.now_us = self._world.now_us
            return condition()

        return self._world.run_until(until_us, holds)

    # -- what the hosts do ------------------------------------------------------------------------------

    def run_on(self, id: int, log: NamedLog, first_list: list[list[Any]] | None) -> None:
        """Boot this log's replica on a host; with its first list, if the host's store is in that."""
        self.stage.now_us = self._world.now_us
        self.stage.limits["cluster_wanted"] = log.id
        self.boot(id)
        if first_list is not None:
            self.ask(id, Begin(first_list, log.settings))
        if not self._begun:
            self._begun = True
            begin(self.clients)

    def end_on(self, id: int) -> None:
        """End this log's replica on a host, with its process."""
        self.stage.now_us = self._world.now_us
        self.crash(id)

    def close_on(self, id: int) -> h.Standing:
        """End this log's replica on a host in an orderly way. Returns how its store stands."""
        self.stage.now_us = self._world.now_us
        host = self.stage.hosts[id]
        if host.replica is not None:
            self.stage.crash(id, len(host.writes))
        return self.standing_on(id)

    def standing_on(self, id: int) -> h.Standing:
        """Standing of the store on a host, by its disk."""
        store = self.stage.hosts[id].store
        boot = store.boot()
        return standing_in(boot, store.replay(boot.applied_id + 1))

    def lose_store(self, id: int) -> None:
        """Give a host that is down an empty disk of this log."""
        self.stage.now_us = self._world.now_us
        self.stage.wipe(id)

    def set_cuts(self, cut: list[tuple[int, int]]) -> None:
        self.stage.now_us = self._world.now_us
        super().set_cuts(cut)

    def calm_down(self) -> None:
        """Let servers that were paused, or whose disk was stalled, go on."""
        self.stage.now_us = self._world.now_us
        for host in self.stage.hosts.values():
            if host.replica is not None:
                if self._committing[host.id]:
                    self._finish_commit(host)
                self.poke(host)

    def _arrive(self, envelope: Envelope, boots: int, resets: int, again: bool, damage: bool) -> None:
        if self._gets(envelope):
            super()._arrive(envelope, boots, resets, again, damage)

    def _arrive_whole(self, envelope: Envelope) -> None:
        if self._gets(envelope):
            super()._arrive_whole(envelope)

    def _gets(self, envelope: Envelope) -> bool:
        """True if a message is for this log, by its sender's store; False if its host knows of no such store."""
        number = self._world.log_of(envelope)
        if number not in (None, self.number):
            raise Broken("own log", f"log {number} gets what {envelope.sender} has sent to log {self.number}")
        return number is not None

    def _on_ready(self, host: Host, may_stop: bool) -> None:
        super()._on_ready(host, may_stop)
        self._world.look_soon(host.id, False)

    def _on_reply(self, host: Host, reply: Reply) -> None:
        if reply.origin == h.HOSTING:
            return
        ended_lsn = self._world.done.get(self.number)
        if isinstance(reply, Appended) and ended_lsn is not None and reply.lsns[-1] >= ended_lsn:
            raise Broken("deleted", f"server {host.id} acknowledges an append to log {self.number}, which is deleted")
        super()._on_reply(host, reply)
        self.clients.replied(host.id, reply)


class LogsWorld(World):
    """Random run with several logs. ``done``: numbers of deleted logs of which some leader has said that it is done ->
    the first LSN that no replica had then: acceptances of smaller ones may have been under way."""

    def __init__(self, options: Options, *, record: bool = False) -> None:
        self.logs: dict[int, OneLog] = {}
        self.done: dict[int, int] = {}
        self.directory = DirectoryChecks()
        super().__init__(options, record=record)
        ids = list(self.stage.hosts)
        self.hostings: dict[int, Hosting] = {}
        self._stores: dict[int, dict[int, h.FoundStore]] = {id: {} for id in ids}
        #: Host -> number -> id of the cluster that a store is being made for.
        self._making: dict[int, dict[int, bytes]] = {id: {} for id in ids}
        #: Host -> stores of deleted logs that were moved away.
        self._moved_away: dict[int, list[h.FoundStore]] = {id: [] for id in ids}
        self._lost_some = False
        self._looking: dict[int, int] = dict.fromkeys(ids, 0)
        #: Host -> what its hosting saw at its last step, if nothing was told to it since.
        self._seen: dict[int, h.Facts] = {}
        #: True if nothing is `missing`; None: something has changed since that was looked at.
        self._whole: bool | None = None
        self._epoch: dict[tuple[int, int], int] = {}
        #: Hosts that are connected -> who they were then.
        self._joined: dict[tuple[int, int], tuple[Identity, Identity]] = {}
        self._last_us: dict[tuple[int, int], int] = {}
        self._heard_of = HeardOf()
        #: (host, number): logs that a host is about to stop or move; and those whose replica has ended alone.
        self._ending: set[tuple[int, int]] = set()
        self.failed: set[tuple[int, int]] = set()
        self.checks.also.append(self._taken)
        self.after(_LOOK_US, self._reach)
        if options.wipes:
            self.after(self.span_us(SECOND, 20 * SECOND), self._lose_store)
        if "stop" in options.faults:
            self.after(self.span_us(SECOND, 20 * SECOND), self._fail_some)

    def _taken(self, entry: Entry) -> None:
        self.directory.taken(entry, self.lists.guaranteed[0][1] if self.lists.guaranteed else None)

    # -- hosts ------------------------------------------------------------------------------------------

    def boot(self, id: int) -> None:
        if self.up(id):
            return
        super().boot(id)
        stores = [self._state_of(id, store) for store in self._stores[id].values()]
        stores += self._moved_away[id]
        self.hostings[id] = Hosting(id, stores, self.options.election_timeout_us / SECOND, FIT_S)
        self.look_soon(id)

    def _state_of(self, id: int, store: h.FoundStore) -> h.FoundStore:
        log = self.logs[store.number]
        boot = log.stage.hosts[id].store.boot()
        state = h.StoreState.STARTED if boot.start.status is StartStatus.STARTED else h.StoreState.EMPTY
        return store._replace(incarnation=boot.me.incarnation, state=state, standing=log.standing_on(id))

    def crash(self, id: int) -> None:
        super().crash(id)
        self._crashed(id)

    def _leave(self, id: int, boots: int) -> None:
        super()._leave(id, boots)
        if not self.up(id):
            self._crashed(id)

    def _crashed(self, id: int) -> None:
        self.hostings.pop(id, None)
        self._whole = None
        self._heard_of.forget(id)
        self._ending = {each for each in self._ending if each[0] != id}
        self.failed = {each for each in self.failed if each[0] != id}
        for pair in [pair for pair in self._joined if id in pair]:
            self._join(*pair, False)
        for log in self.logs.values():
            log.end_on(id)
        making, self._making[id] = self._making[id], {}
        for number, cluster in making.items():
            if self.rng.random() < 0.5:  # it was on disk already
                self._put_store(id, number, cluster)

    def wipe(self, id: int) -> None:
        """Lose the disk of the first log; all stores with it, if that leaves the other logs enough."""
        super().wipe(id)
        held = [self.logs[number] for number in self._stores[id]]
        if all(self._may_lose(log, id) for log in held) and self.rng.random() < 0.6:
            self._moved_away[id].clear()
            self._lost_some = True
            for log in held:
                self._lose(id, log)

    def set_cuts(self, cut: list[tuple[int, int]]) -> None:
        super().set_cuts(cut)
        for log in self.logs.values():
            log.set_cuts(cut)

    def fill(self, id: int, room: Room) -> None:
        super().fill(id, room)
        for log in self.logs.values():
            log.stage.now_us = self.now_us
            log.fill(id, room)

    # -- stores -----------------------------------------------------------------------------------------

    def _put_store(self, id: int, number: int, cluster: bytes) -> None:
        log = self.logs[number]
        log.lose_store(id)  # an empty disk of a fresh incarnation
        incarnation = log.stage.hosts[id].store.boot().me.incarnation
        self._stores[id][number] = h.FoundStore(number, incarnation, h.StoreState.EMPTY, cluster)

    def _may_lose(self, log: OneLog, id: int) -> bool:
        """True if the promise of a log holds without its store on a host."""
        if log.lists.latest is not None:
            return id in log.disks.that_may_go()
        row = self.directory.now.get(log.number)
        return row is not None and row.first_list is None and not log.early_lost and len(self.stage.hosts) > 2

    def _lose(self, id: int, log: OneLog) -> None:
        if log.lists.latest is None:
            log.early_lost += 1
        self._lost_some = True
        del self._stores[id][log.number]
        log.lose_store(id)

    def _lose_store(self) -> None:
        """Lose the store of one log on one host: its replica ends alone, or the host with all its logs."""
        if not self.faults.on:
            return
        fit = [
            (id, log) for id, stores in self._stores.items() for number in stores
            if self._may_lose(log := self.logs[number], id)
        ]
        if fit:
            id, log = self.rng.choice(fit)
            self.faults.counts["lose store"] = self.faults.counts.get("lose store", 0) + 1
            if log.up(id) and (id, log.number) not in self._ending and self.rng.random() < 0.5:
                log.end_on(id)
                self._lose(id, log)
                self.hostings[id].lost(log.number)
                self.look_soon(id)
            else:
                self.crash(id)
                if log.number in self._stores[id]:
                    self._lose(id, log)
                self.after(self.span_us(), self.boot, id)
        self.after(self.span_us(SECOND, 20 * SECOND), self._lose_store)

    # -- one log's trouble ------------------------------------------------------------------------------

    def fail(self, id: int, log: OneLog) -> None:
        """End a log's replica on a host, which goes on: until its next start, as after an alarm."""
        self.failed.add((id, log.number))
        log.end_on(id)
        self.look_soon(id)

    def _fail_some(self) -> None:
        """Let one log's replica end on one host; an operator starts the host again."""
        fit = [(id, log) for log in self.logs.values() for id in self.hostings if log.up(id)]
        if fit and self.faults.on:
            id, log = self.rng.choice(fit)
            self.faults.counts["fail log"] = self.faults.counts.get("fail log", 0) + 1
            self.fail(id, log)
            self.after(self.span_us(SECOND, 20 * SECOND), self._restart_failed, id)
        self.after(self.span_us(SECOND, 20 * SECOND), self._fail_some)

    def _restart_failed(self, id: int) -> None:
        if any(host == id for host, _ in self.failed):
            self.crash(id)
            self.boot(id)

    def restart_all(self, but: Sequence[int] = ()) -> None:
        for id in {host for host, _ in self.failed}:
            self.crash(id)
        super().restart_all(but)

    # -- connections between hostings -------------------------------------------------------------------

    def _reach(self) -> None:
        """Connect hosts that reach each other, and end the connections of those that do not."""
        ids = list(self.stage.hosts)
        for a in ids:
            for b in ids:
                if a < b:
                    whole = a in self.hostings and b in self.hostings and self.links.connected(a, b)
                    if whole != ((a, b) in self._joined):
                        self._join(a, b, whole)
        self.after(_LOOK_US, self._reach)

    def _join(self, a: int, b: int, whole: bool) -> None:
        self._epoch[a, b] = self._epoch.get((a, b), 0) + 1
        if whole:
            who = self._joined[a, b] = self.stage.hosts[a].running.me, self.stage.hosts[b].running.me
        else:
            who = self._joined.pop((a, b))
        for one, other in ((a, who[1]), (b, who[0])):
            hosting = self.hostings.get(one)
            if hosting is not None:
                (hosting.connected if whole else hosting.gone)(other)
            self.look_soon(one)

    def _tell(self, id: int, peer: int, message: h.HostMessage) -> None:
        pair = min(id, peer), max(id, peer)
        if pair not in self._joined or not self.up(peer):
            return
        arrivals = self.links.arrivals_us(self.now_us, id, peer)
        if not arrivals:  # a connection loses nothing but by its end
            self._join(*pair, False)
            return
        at_us = self._last_us[id, peer] = max(arrivals[0], self._last_us.get((id, peer), 0))
        self.at(at_us, self._heard, id, peer, self._epoch[pair], message)

    def _heard(self, id: int, peer: int, epoch: int, message: h.HostMessage) -> None:
        pair = min(id, peer), max(id, peer)
        if self._epoch.get(pair) == epoch and pair in self._joined and id in self.hostings and peer in self.hostings:
            if isinstance(message, h.Follow):
                self._heard_of.followed(peer, message, self.logs[message.number].stage.hosts[peer].replica)
            elif isinstance(message, h.LogHello):
                self._heard_of.told(peer, id, message)
            self.hostings[peer].heard(self.stage.hosts[id].running.me, message)
            self.look_soon(peer)

    def log_of(self, envelope: Envelope) -> int | None:
        """The log that a host gives a message to: that of the store that has sent it. None: it was told of none."""
        return self._heard_of.stores(envelope.target.id).get(envelope.sender)

    # -- what hostings do -------------------------------------------------------------------------------

    def _on_ready(self, host: Host, may_stop: bool) -> None:
        super()._on_ready(host, may_stop)
        if hasattr(self, "hostings"):
            self.look_soon(host.id, False)

    def look_soon(self, id: int, news: bool = True) -> None:
        """Have a host's hosting take a step within the next moment; without ``news``, if what it sees has changed."""
        self._whole = None
        if news:
            self._seen.pop(id, None)
        if self._looking[id] <= self.now_us:
            self._looking[id] = self.now_us + 1 + self.rng.randrange(MS)
            self.at(self._looking[id], self._look, id)

    def _look(self, id: int) -> None:
        hosting, host = self.hostings.get(id), self.stage.hosts[id]
        if hosting is None or host.replica is None:
            return
        if self.paused_until[id] > self.now_us:
            self._looking[id] = self.paused_until[id]
            self.at(self.paused_until[id], self._look, id)
            return
        replica = host.replica
        self.directory.compare(replica)
        running = {n: one for n, log in self.logs.items() if (one := log.stage.hosts[id].replica) is not None}
        sees, now_s = facts(replica, running), host.mono_s(self.now_us)
        if sees != self._seen.get(id) or now_s >= hosting.deadline_s():
            self._seen[id], self._whole = sees, None
            for action in hosting.step(sees, now_s):
                self._act(id, action)
            for gone in sees.listing.deleted if sees.leads else ():
                if gone.number not in self.done and not hosting.deleting(gone):
                    log = self.logs.get(gone.number)
                    ends = [each.log.next_lsn for each in log.replicas()] if log is not None else []
                    self.done[gone.number] = max(ends, default=1)
        due_us = host.when_us(hosting.deadline_s())
        if due_us < 1 << 60:
            self.at(max(due_us, self.now_us + 1), self._look_again, id, host.boots)

    def _look_again(self, id: int, boots: int) -> None:
        if self.stage.hosts[id].boots == boots:
            self.look_soon(id)

    def _act(self, id: int, action: h.Action) -> None:
        if isinstance(action, h.MakeStore):
            here = self.stage.hosts[id].running.directory.guaranteed
            row = self.directory.now.get(action.number) or here.get(action.number)
            assert row is not None
            if action.number not in self.logs:
                self.logs[action.number] = OneLog(self, row)
            self._making[id][action.number] = self.stage.hosts[id].running.cluster
            self.after(self.rng.randrange(20 * MS), self._made, id, self.stage.hosts[id].boots, action.number)
        elif isinstance(action, h.RunLog):
            first = None if action.first_list is None else action.first_list.to_plain()
            self.logs[action.log.number].run_on(id, action.log, first)
        elif isinstance(action, h.StopLog | h.MoveStore):
            end = self._stopped if isinstance(action, h.StopLog) else self._moved
            self._ending.add((id, action.number))
            self.after(self.rng.randrange(20 * MS), end, id, self.stage.hosts[id].boots, action)
        elif isinstance(action, h.Tell):
            for told in action.message.logs if isinstance(action.message, h.LogHello) else ():
                self.directory.told(id, told, self._stores[id], self._moved_away[id])
            peers = list(self.stage.hosts) if action.peer is None else [action.peer]
            for peer in peers:
                if peer != id:
                    self._tell(id, peer, action.message)
        elif isinstance(action, h.Found):
            self.ask(id, FoundLog(action.number, action.first_list.to_plain()))
        elif isinstance(action, h.Change):
            log = self.logs[action.number]
            self.directory.may_change(id, action.number, action.request, self._lists_for(id, log))
            log.disks.removing_until_us = self.now_us + 15 * SECOND
            self._ask_log(id, log, action.request)
        elif isinstance(action, h.HandLog):
            self._ask_log(id, self.logs[action.number], Transfer(h.HOSTING, action.target))

    def _lists_for(self, id: int, log: OneLog) -> list[MemberList]:
        """The lists of the first log that the leader of a log may follow: none older than what it has heard of."""
        members = self.stage.hosts[id].running.members
        known_id = members.latest_id if members.latest_id <= self.stage.hosts[id].running.guaranteed_id else 0
        told_id = self._heard_of.followed_id(id, log.number, log.stage.hosts[id].running.term)
        return [each for at, each in self.lists.guaranteed if at >= max(known_id, told_id)]

    def _ask_log(self, id: int, log: OneLog, request: Any) -> None:
        if log.up(id):
            log.stage.now_us = self.now_us
            log.ask(id, request)

    def _made(self, id: int, boots: int, number: int) -> None:
        if self.stage.hosts[id].boots == boots and number in self._making[id] and id in self.hostings:
            self._put_store(id, number, self._making[id].pop(number))
            self.hostings[id].made(self._stores[id][number])
            self.look_soon(id)

    def _stopped(self, id: int, boots: int, action: h.StopLog) -> None:
        number = action.number
        if self.stage.hosts[id].boots == boots and id in self.hostings:
            self._ending.discard((id, number))
            self.hostings[id].stopped(number, self.logs[number].close_on(id))
            self.look_soon(id)

    def _moved(self, id: int, boots: int, action: h.MoveStore) -> None:
        number = action.number
        if self.stage.hosts[id].boots == boots and id in self.hostings:
            self._ending.discard((id, number))
            store = self._state_of(id, self._stores[id].pop(number))
            if action.retired:
                self._check_retired(id, store)
            else:
                self.directory.may_move(id, number)
                self._moved_away[id].append(store._replace(state=h.StoreState.STOPPED))
            self.hostings[id].moved(number)
            self.look_soon(id)

    def _check_retired(self, id: int, store: h.FoundStore) -> None:
        """Check that a store that makes room for another one is out of its log."""
        log = self.logs[store.number]
        if any(members.holds(Identity(id, store.incarnation)) for members in log.lists.in_force()):
            raise Broken("files", f"server {id} moves its store of log {store.number} away, which is a member's")

    # -- the run ----------------------------------------------------------------------------------------

    def live(self) -> list[OneLog]:
        """The logs that are not deleted, and can begin."""
        return [log for number, log in self.logs.items() if self.directory.now.get(number) is not None]

    def run(self) -> None:
        """Run load, operators and faults for `Options.seconds`, then heal everything and demand progress of each log.
        Raises `Broken`."""
        operators = [LogOperator(self.clients, self.directory) for _ in range(2)]
        super().run()
        for operator in operators:
            operator.closing = True
        for log in self.logs.values():
            log.links.quiet = True
            log.calm_down()
        self._demand_hosted()
        self._demand_without_leader()
        for log in self.live():
            if not self._is_beyond_help(log):
                demand_members(log.clients)
                demand_progress(log.clients, "whole")
                log.clients.wind_down()
                demand_settled(log.clients)

    def _demand_hosted(self) -> None:
        ends_us = self.now_us + HOSTED_WITHIN_US
        while not self.run_until(min(self.now_us + SECOND, ends_us), self._hosted):
            if self.now_us >= ends_us:
                raise Broken("no progress", f"hosted logs are not as they should be: {list(self.missing())}")

    def _hosted(self) -> bool:
        if self._whole is None:
            self._whole = not any(self.missing())
        return self._whole

    def _demand_without_leader(self) -> None:
        """End the replica that leads one log, with its host up, and demand that the others go on."""
        for log in self.live():
            if log.leader() is not None:
                demand_members(log.clients)  # else it may wait for a lost store and the one that ends now
            leader = log.leader()
            if leader is not None and len(leader.members.latest.voters) > 2:
                self.fail(leader.me.id, log)
                demand_progress(log.clients, "whole")
                self._restart_failed(leader.me.id)
                self._demand_hosted()
                return

    def _is_beyond_help(self, log: OneLog) -> bool:
        """True if nobody leads a log, and nobody need: its founders lost their stores, or too few voters can run it."""
        if log.leader() is not None:
            return False
        return bool(log.early_lost) or are_too_few(log.lists.latest, self.lists.latest, self.replicas())

    def missing(self) -> Iterator[str]:
        """A sentence for each log that is not yet as it should be."""
        leader = self.leader()
        if leader is None:
            yield "nobody leads the first log"
            return
        wanted = {member.id for member in leader.members.latest.replicas}
        for log in self.live():
            top = log.leader()
            if self._is_beyond_help(log):
                continue
            if top is None:
                yield f"nobody leads log {log.number}"
            elif {member.id for member in top.members.latest.replicas} != wanted:
                yield f"log {log.number} has other members than the first"
            elif top.me.id != (best := self.directory.should_lead(log.number, top.members.latest)):
                yield f"log {log.number} is led by {top.me.id}, and not by {best}"
        for id, stores in ((id, each) for id, each in self._stores.items() if self.up(id)):
            if self.stage.hosts[id].running.cluster:
                yield from (f"server {id} keeps deleted log {n}" for n in stores if self.directory.now.get(n) is None)
            if id in wanted:
                yield from (f"server {id} has no store of log {row.number}" for row in self.directory.now.logs
                            if row.number not in stores)
        if not self._lost_some:  # else there may be too few to tell of the deletion
            hosting = self.hostings[leader.me.id]
            yield from (f"the deletion of log {gone.number} is not done" for gone in self.directory.now.deleted
                        if hosting.deleting(gone))


def draw(seed: int, *, servers: int | None = None, seconds: int = 60) -> Options:
    """The options of the world of ``seed``: three to five hosts by default, and no kind of founding but the usual."""
    drawn = Options.draw(seed, servers=servers or (3, 3, 3, 4, 5)[seed % 5], seconds=seconds)
    return replace(
        drawn, auto_init=True, misconfigured=False, aimed=False, last_down=0, last_topology="whole",
        faults=tuple(name for name in drawn.faults if name != "move"), stewards=min(drawn.stewards, 1),
    )
