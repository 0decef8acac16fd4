"""Complete search of what hostings can do: one log is created, founded and deleted, within bounds. `Deleting` begins
with a founded log, which elects leaders and takes appends while it is deleted.

The hostings are the real ones. The first log is a list of entries that only grows: whoever leads it knows all of them,
others any part. A store is empty, begun, or not there; a replica of the log is no more than that. Every order of these
is gone through: a server learns the next entry, a store is made, a hello arrives, time passes, the log begins, stops or
is moved away; and within bounds servers crash, lose their store, each once, and take over.

Demands in every state: a log is founded once, by a majority; a store has begun only under the incarnation that the
first list has; no store is moved away whose log is not deleted; once some leader says that the deletion is done, no
majority of the first list still runs the log.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

from alpo.core.directory import Listing, LogOptions, changed
from alpo.core.hosting import words as h
from alpo.core.hosting.hosting import Hosting
from alpo.core.members import Identity, Member, MemberList, Role
from alpo.core.settings import Settings

from ..checks import Broken

CLUSTER, NUMBER = b"c" * 16, 2
_LATER_S = 1000.0
#: The servers of a search, and none of them.
ALL, NONE = frozenset((1, 2, 3)), frozenset[int]()


class Bounds(NamedTuple):
    """Servers that may crash, and those that may lose their store while they are down or run it, each of them once;
    most changes of the first log's leader, and waits for time."""

    crashes: frozenset[int] = ALL
    losses: frozenset[int] = ALL
    leaders: int = 1
    waits: int = 1
    deletes: bool = True


class Pending(NamedTuple):
    """Work that a server's shell was asked to do and has not done: at most one of each."""

    make: bool = False
    begin: MemberList | None = None
    stop: bool = False
    move: bool = False


NOTHING_PENDING = Pending()


class Log:
    """The first log: the directory after each entry, and the first list of the other log once that is founded. Equal
    ones are one object (`Search.grown`)."""

    def __init__(self, *listings: Listing) -> None:
        self.listings, self.head, self.last = listings, listings[-1], len(listings) - 1
        logs = [log for each in listings if (log := each.get(NUMBER)) is not None and log.first_list is not None]
        if len({log.id for log in logs}) > 1:
            raise Broken("founding", "there are two first lists")
        self.first = MemberList.from_plain(logs[0].first_list) if logs else None


class Server(NamedTuple):
    """One server. ``known``: entries of the first log that it knows to be guaranteed, ``held``: those on its disk at
    its last start; ``store``: incarnation and state of its store; ``runs``: the log's replica runs; ``hosting``: the
    number of its hosting, None if it is down."""

    id: int
    known: int = 0
    held: int = 0
    store: tuple[bytes, h.StoreState] | None = None
    moved: h.FoundStore | None = None
    made: int = 0
    runs: bool = False
    pending: Pending = NOTHING_PENDING
    hosting: int | None = None


class Reigns(NamedTuple):
    """Deeds of the log's replicas. By server: ``terms``, on its disk, and ``stands``, the term for which its
    process stands or leads. ``votes``: (term, candidate, voter); ``appends``: (term, leader, True if the deletion was
    done when it was asked for); ``accepted``: (place of an append, server). What was sent may arrive at any time."""

    terms: tuple[int, ...] = ()
    stands: tuple[int, ...] = ()
    votes: frozenset[tuple[int, int, int]] = frozenset()
    appends: tuple[tuple[int, int, bool], ...] = ()
    accepted: frozenset[tuple[int, int]] = frozenset()


NO_REIGNS = Reigns()


class State(NamedTuple):
    """A state of all. ``hellos``: (from, to) -> the newest hello on its way; ``done``: some leader said that the log is
    deleted."""

    servers: tuple[Server, ...]
    log: Log
    leader: int
    now_s: float
    hellos: tuple[tuple[tuple[int, int], h.LogHello], ...]
    left: Bounds
    done: bool = False
    reigns: Reigns = NO_REIGNS


def members(count: int) -> MemberList:
    """The first log's list."""
    return MemberList.of(Member(id, f"h{id}:7100", 0, bytes([id]) * 16, Role.VOTER) for id in range(1, count + 1))


class Search:
    """The search with ``count`` servers. ``states``: how many different ones were seen.

    Hostings that hold the same are one, and take each step once: their steps are the same in most states.
    """

    def __init__(self, count: int, bounds: Bounds) -> None:
        self._members = members(count)
        self._bounds = bounds
        self.states = 0
        self.founded = self.deleted = 0
        self._hostings: list[Hosting] = []
        self._numbers: dict[str, int] = {}
        self._steps: dict[tuple[object, ...], tuple[int, list[h.Action]]] = {}
        self._logs: dict[tuple[Log, str], Log] = {}
        self._parts: dict[object, int] = {}

    def run(self) -> None:
        """Go through all states. Raises `Broken`."""
        first = self._first()
        seen, left = {self._key(first)}, [first]
        while left:
            for after in map(self._told_done, self._after(left.pop())):
                key = self._key(after)
                if key not in seen:
                    self._check(after)
                    seen.add(key)
                    left.append(after)
        self.states = len(seen)

    def _key(self, state: State) -> int:
        """A number for each different state: a set of these is small."""
        key, parts = 0, self._parts
        for part in (*state.servers, state.hellos, state[1:4] + state[5:]):
            key = key << 32 | parts.setdefault(part, len(parts))
        return key

    def grown(self, log: Log, op: str, **fields: object) -> Log:
        """The first log with one more entry."""
        if (made := self._logs.get((log, op + repr(fields)))) is None:
            listing = changed(log.head, {"op": op, "number": NUMBER, **fields})
            made = self._logs[log, op + repr(fields)] = Log(*log.listings, listing)
        return made

    def _first(self) -> State:
        servers = tuple(Server(m.id) for m in self._members.members)
        first = State(servers, self._created(), 1, 0.0, (), self._bounds)
        for server in servers:
            first = self._boot(first, server.id)
        return first

    def _created(self) -> Log:
        return self.grown(
            Log(Listing()), "create", name="a", nonce=(b"n" * 16).hex(), options=list(LogOptions()),
            settings=Settings().to_plain(),
        )

    # -- what may happen next ---------------------------------------------------------------------------

    def _after(self, state: State) -> Iterator[State]:
        for server in state.servers:
            if server.hosting is None:
                yield self._boot(state, server.id)
                if server.store is not None and server.id in state.left.losses:
                    left = state.left._replace(losses=state.left.losses - {server.id})
                    yield _put(state, server._replace(store=None))._replace(left=left)
            else:
                yield from self._of_server(state, server)
        for (sender, target), hello in state.hellos:
            there = _get(state, target)
            if there.hosting is not None:
                without = tuple(each for each in state.hellos if each[0] != (sender, target))
                yield self._stepped(state._replace(hellos=without), target, "heard", _who(sender), hello)
        if state.left.waits:
            left = state.left._replace(waits=state.left.waits - 1)
            waited = state._replace(now_s=state.now_s + _LATER_S, left=left)
            for server in state.servers:
                if server.hosting is not None:
                    waited = self._stepped(waited, server.id)
            yield waited
        leads = _get(state, state.leader).hosting is not None
        if state.left.deletes and leads and state.log.head.get(NUMBER) is not None:
            log = self.grown(state.log, "delete", nonce=(b"e" * 16).hex())
            yield state._replace(log=log, left=state.left._replace(deletes=False))

    def _of_server(self, state: State, server: Server) -> Iterator[State]:
        id, pending = server.id, server.pending
        if server.known < state.log.last:
            known = server.known + 1
            held = server.held if server.held > known else 0  # else it matters no more
            yield self._stepped(_put(state, server._replace(known=known, held=held)), id)
        if pending.make:
            made, store = _with_store(server)
            yield self._stepped(_put(state, made._replace(pending=pending._replace(make=False))), id, "made", store)
        if pending.begin is not None and server.store is not None:
            begun = server._replace(store=(server.store[0], h.StoreState.STARTED), pending=pending._replace(begin=None))
            yield self._stepped(_put(state, begun), id)
        if pending.stop:
            ended = server._replace(runs=False, pending=pending._replace(stop=False, begin=None))
            yield self._stepped(_put(state, ended), id, "stopped", NUMBER, _standing(state, server))
        if pending.move:
            if not state.log.head.lacks(NUMBER):
                raise Broken("files", f"server {id} moves the store of a log that is not deleted")
            away = server.store and h.FoundStore(
                NUMBER, server.store[0], h.StoreState.STOPPED, CLUSTER, _standing(state, server)
            )
            moved = server._replace(store=None, moved=away, pending=pending._replace(move=False))
            yield self._stepped(_put(state, moved), id, "moved", NUMBER)
        if id == 2 != state.leader and state.left.leaders and server.known == state.log.last:
            left = state.left._replace(leaders=state.left.leaders - 1)
            yield self._stepped(state._replace(leader=id, left=left), id)
        if server.runs and server.store is not None and id in state.left.losses:
            lost = server._replace(store=None, runs=False, pending=pending._replace(begin=None, stop=False))
            left = state.left._replace(losses=state.left.losses - {id})
            yield self._stepped(_put(state, lost)._replace(left=left), id, "lost", NUMBER)
        if id in state.left.crashes:
            left = state.left._replace(crashes=state.left.crashes - {id})
            yield self._crashed(state._replace(left=left), server)
            if pending.make:  # the store was on disk already
                yield self._crashed(state._replace(left=left), _with_store(server)[0])

    def _crashed(self, state: State, server: Server) -> State:
        # Marks on disk are behind: what is guaranteed is learnt anew.
        held = max(server.known, server.held)
        down = server._replace(known=0, held=held, runs=False, pending=NOTHING_PENDING, hosting=None)
        state = _put(state, down)
        state = state._replace(hellos=tuple(each for each in state.hellos if server.id not in each[0]))
        for other in state.servers:
            if other.hosting is not None:
                state = self._stepped(state, other.id, "gone", _who(server.id))
        return state

    def _boot(self, state: State, id: int) -> State:
        server = _get(state, id)
        stores = [] if server.moved is None else [server.moved]
        if server.store is not None:
            stores.append(h.FoundStore(NUMBER, *server.store, CLUSTER, _standing(state, server)))
        state = _put(state, server._replace(hosting=self._number(Hosting(id, stores, 0.5))))
        for other in state.servers:
            if other.id != id and other.hosting is not None:
                state = self._stepped(state, other.id, "connected", _who(id))
                state = self._stepped(state, id, "connected", _who(other.id))
        return self._stepped(state, id)

    # -- one step of a hosting --------------------------------------------------------------------------

    def _number(self, hosting: Hosting) -> int:
        """The number of the hostings that hold the same."""
        number = self._numbers.setdefault(repr(_plain(hosting)), len(self._hostings))
        if number == len(self._hostings):
            self._hostings.append(hosting)
        return number

    def _stepped(self, state: State, id: int, *news: object) -> State:
        """The state after a server's hosting took ``news``, the name of a method and what it is told, and a step, and
        its shell began what that asks for."""
        server = _get(state, id)
        assert server.hosting is not None
        store = server.store and server.store[1]
        key = server.hosting, news, server.known, server.held, state.log, server.runs, store, state.leader, state.now_s
        if (done := self._steps.get(key)) is None:
            hosting = _copied(self._hostings[server.hosting])
            if news:
                getattr(hosting, str(news[0]))(*news[1:])
            actions = hosting.step(self.facts(state, server), state.now_s)
            done = self._steps[key] = self._number(hosting), actions
        state = _put(state, server._replace(hosting=done[0]))
        for action in done[1]:
            state = self._act(state, id, action)
        return state

    def facts(self, state: State, server: Server) -> h.Facts:
        """View of a server's hosting. Depends on no more than steps are told apart by."""
        logs = {}
        if server.runs and server.store is not None:
            logs[NUMBER] = h.LogFacts(server.store[1], False, 0, 0, state.log.first or MemberList(()))
        leads = state.leader == server.id and server.known == state.log.last
        listing, head = state.log.listings[server.known], state.log.listings[max(server.known, server.held)]
        return h.Facts(CLUSTER, listing, head, self._members, 0, True, leads, logs)

    def _act(self, state: State, id: int, action: h.Action) -> State:
        server = _get(state, id)
        pending = server.pending
        if isinstance(action, h.MakeStore):
            pending = pending._replace(make=True)
        elif isinstance(action, h.RunLog):
            return _put(state, server._replace(runs=True, pending=pending._replace(begin=action.first_list)))
        elif isinstance(action, h.StopLog):
            pending = pending._replace(stop=True)
        elif isinstance(action, h.MoveStore):
            pending = pending._replace(move=True)
        elif isinstance(action, h.Found):
            return self._found(state, action.first_list)
        elif isinstance(action, h.Tell) and isinstance(action.message, h.LogHello):
            hellos = dict(state.hellos)
            for other in state.servers:
                if other.id != id and action.peer in (None, other.id) and self._may_lead(other):
                    hellos[id, other.id] = action.message
            return state._replace(hellos=tuple(sorted(hellos.items(), key=lambda each: each[0])))
        return _put(state, server._replace(pending=pending))

    def _may_lead(self, server: Server) -> bool:
        """True if a hello to a server matters: only leaders heed what they are told. Server 1 leads first, and server 2
        takes over: it stands for any other."""
        return server.hosting is not None and server.id <= 1 + min(self._bounds.leaders, 1)

    def _found(self, state: State, first: MemberList) -> State:
        """Append the founding, as the first log's leader judges it at the head of its log."""
        log = state.log.head.get(NUMBER)
        if log is None or log.first_list is not None:
            return state
        if len(first.voters) < self._members.majority:
            raise Broken("founding", f"the log is founded by {[m.id for m in first.members]} alone")
        self.founded += 1
        return state._replace(log=self.grown(state.log, "found", members=first.to_plain()))

    def _check(self, state: State) -> None:
        first = state.log.first
        for server in state.servers:
            if server.store is not None and server.store[1] is h.StoreState.STARTED:
                if first is None or not first.is_voter(Identity(server.id, server.store[0])):
                    raise Broken("founding", f"server {server.id} has begun with a store that is not in the first list")
        if state.done and first is not None:
            self.deleted += 1
            run = [s.id for s in state.servers if s.runs and s.store is not None
                   and first.is_voter(Identity(s.id, s.store[0]))]
            if len(run) >= first.majority:
                raise Broken("deleted", f"the deletion is done, and servers {run} run the log")

    def _told_done(self, state: State) -> State:
        """The state with ``done``, once the first log's leader would say so; it never takes that back."""
        leader = _get(state, state.leader)
        if state.done or leader.hosting is None or leader.known < state.log.last:
            return state
        hosting = self._hostings[leader.hosting]
        return state._replace(done=any(not hosting.deleting(gone) for gone in state.log.head.deleted))


class Deleting(Search):
    """The search of a deletion, while the log that is deleted elects leaders, for at most ``terms``, and takes
    ``appends``. Server 3 leads it in term 1. Ranks are left out: any server may be elected.

    Demand: no append is acknowledged that was asked for once the deletion was done. One that was asked for before can
    be: its acceptances may be on their way. ``late``: states in which one is.
    """

    def __init__(self, count: int, bounds: Bounds, terms: int = 2, appends: int = 1) -> None:
        super().__init__(count, bounds)
        self._terms, self._appends = terms, appends
        self.late = 0

    def _first(self) -> State:
        ids = [member.id for member in self._members.members]
        first = MemberList.of(Member(id, f"h{id}:7100", 0, bytes([id, 1]) * 8, Role.VOTER) for id in ids)
        founded = self.grown(self._created(), "found", members=first.to_plain())
        servers = tuple(Server(id, 2, store=(bytes([id, 1]) * 8, h.StoreState.STARTED), made=1) for id in ids)
        reigns = Reigns(tuple(1 for _ in ids), (*(0 for _ in ids[1:]), 1), frozenset((1, len(ids), id) for id in ids))
        state = State(servers, founded, 1, 0.0, (), self._bounds, reigns=reigns)
        for id in ids:
            state = self._boot(state, id)
            state = _put(state, _get(state, id)._replace(pending=NOTHING_PENDING))
        return state._replace(hellos=(), reigns=reigns)

    def _act(self, state: State, id: int, action: h.Action) -> State:
        if isinstance(action, h.RunLog):  # a new process stands for nothing
            state = state._replace(reigns=_with_term(state.reigns, id, state.reigns.terms[id - 1], 0))
        return super()._act(state, id, action)

    def _after(self, state: State) -> Iterator[State]:
        yield from super()._after(state)
        reigns = state.reigns
        for server in state.servers:
            if not server.runs or server.store is None or server.store[1] is not h.StoreState.STARTED:
                continue
            id, term = server.id, reigns.terms[server.id - 1]
            found = [
                _with_term(reigns, id, t, 0)._replace(votes=reigns.votes | {(t, candidate, id)})
                for t, candidate, voter in reigns.votes if voter == candidate and t > term
            ]
            if term < self._terms:
                stood = _with_term(reigns, id, term + 1, term + 1)
                found.append(stood._replace(votes=reigns.votes | {(term + 1, id, id)}))
            if len(reigns.appends) < self._appends and self._leads(state, server):
                asked = (*reigns.appends, (term, id, state.done))
                accepted = reigns.accepted | {(len(reigns.appends), id)}
                found.append(reigns._replace(appends=asked, accepted=accepted))
            for place, (t, _, _) in enumerate(reigns.appends):
                if term <= t and (place, id) not in reigns.accepted:
                    follows = reigns if term == t else _with_term(reigns, id, t, 0)
                    found.append(follows._replace(accepted=reigns.accepted | {(place, id)}))
            for each in found:
                yield state._replace(reigns=each)

    def _leads(self, state: State, server: Server) -> bool:
        reigns, term = state.reigns, state.reigns.terms[server.id - 1]
        if not server.runs or reigns.stands[server.id - 1] != term:
            return False
        return sum(vote[:2] == (term, server.id) for vote in reigns.votes) >= self._members.majority

    def _check(self, state: State) -> None:
        self.deleted += state.done
        for place, (term, leader, late) in enumerate(state.reigns.appends):
            there = sum(each[0] == place for each in state.reigns.accepted)
            server = _get(state, leader)
            if there < self._members.majority or state.reigns.terms[leader - 1] != term:
                continue
            if self._leads(state, server) and late:
                raise Broken("deleted", f"server {leader} acknowledges an append that came after the deletion")
            self.late += state.done and self._leads(state, server)


def _with_term(reigns: Reigns, id: int, term: int, stands: int) -> Reigns:
    """The reigns with a server in another term."""
    terms = (*reigns.terms[: id - 1], term, *reigns.terms[id:])
    return reigns._replace(terms=terms, stands=(*reigns.stands[: id - 1], stands, *reigns.stands[id:]))


def _standing(state: State, server: Server) -> h.Standing:
    """Standing of a server's store."""
    first = state.log.first
    begun = server.store is not None and server.store[1] is h.StoreState.STARTED
    return h.standing_of(0, first) if begun and first is not None else h.NO_LIST


def _get(state: State, id: int) -> Server:
    return state.servers[id - 1]


def _put(state: State, server: Server) -> State:
    servers = (*state.servers[: server.id - 1], server, *state.servers[server.id :])
    return state._replace(servers=servers)


def _who(id: int) -> Identity:
    return Identity(id, bytes([id]) * 16)


def _with_store(server: Server) -> tuple[Server, h.FoundStore]:
    """The server with a new empty store, and the store."""
    incarnation = bytes([server.id, server.made + 1]) * 8
    made = server._replace(made=server.made + 1, store=(incarnation, h.StoreState.EMPTY))
    return made, h.FoundStore(NUMBER, incarnation, h.StoreState.EMPTY, CLUSTER)


def _copied(hosting: Hosting) -> Hosting:
    """A copy that takes a step by itself. What its tables hold is never changed in place."""
    made = copy.copy(hosting)
    for name, value in vars(made).items():
        if isinstance(value, dict | set | list):
            setattr(made, name, value.copy())
        elif hasattr(value, "__dict__") and not isinstance(value, tuple):
            setattr(made, name, _copied(value))
    return made


def _plain(thing: object) -> object:
    """The values that a hosting is made of."""
    if isinstance(thing, dict):
        return {repr(key): _plain(value) for key, value in thing.items()}
    if isinstance(thing, set):
        return sorted(map(repr, thing))
    if hasattr(thing, "__dict__") and not isinstance(thing, tuple):
        return {name: _plain(value) for name, value in vars(thing).items()}
    return thing
