"""Complete search of what hostings can do: one log is created, founded and deleted, within bounds. `Deleting` begins
with a founded log, which elects leaders and takes appends while it is deleted.

The hostings are the real ones. The first log is a list of entries that only grows: whoever leads it knows all of them,
others any part. A store is empty, begun, or not there; a replica of the log is no more than that. Every order of these
is gone through: a server learns the next entry, a store is made, a hello arrives, time passes, the log begins, stops or
is moved away; and within bounds servers crash, lose their store, and take over.

Demands in every state: a log is founded once, by a majority; a store has begun only under the incarnation that the
first list has; no store is moved away whose log is not deleted; once some leader says that the deletion is done, no
majority of the first list still runs the log.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from alpo.core.directory import Listing, LogOptions, changed
from alpo.core.hosting.hosting import Hosting
from alpo.core.hosting.words import (
    NO_LIST,
    Action,
    Facts,
    Found,
    FoundStore,
    LogFacts,
    LogHello,
    MakeStore,
    MoveStore,
    RunLog,
    Standing,
    StopLog,
    StoreState,
    Tell,
    standing_of,
)
from alpo.core.members import Identity, Member, MemberList, Role
from alpo.core.settings import Settings

from ..checks import Broken

CLUSTER, NUMBER = b"c" * 16, 2
_LATER_S = 1000.0


class Bounds(NamedTuple):
    """Most crashes and lost stores of all servers together, changes of the first log's leader, and waits for time."""

    crashes: int = 1
    losses: int = 1
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


@dataclass(frozen=True)
class Server:
    """One server. ``known``: entries of the first log that it knows to be guaranteed; ``store``: incarnation and state
    of its store; ``runs``: the log's replica runs; ``hosting`` None: the server is down."""

    id: int
    known: int = 0
    store: tuple[bytes, StoreState] | None = None
    moved: FoundStore | None = None
    made: int = 0
    runs: bool = False
    pending: Pending = NOTHING_PENDING
    hosting: Hosting | None = field(default=None, compare=False)
    hosted: str = ""  # the state of ``hosting``, for comparisons


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


@dataclass(frozen=True)
class State:
    """A state of all. ``hellos``: (from, to) -> the newest hello on its way; ``done``: some leader said so."""

    servers: tuple[Server, ...]
    log: tuple[Listing, ...] = field(compare=False)
    entries: tuple[bytes, ...]  # what made each listing, for comparisons
    leader: int
    now_s: float
    hellos: tuple[tuple[tuple[int, int], LogHello], ...]
    left: Bounds
    done: bool = False
    reigns: Reigns = NO_REIGNS


def members(count: int) -> MemberList:
    """The first log's list."""
    return MemberList.of(Member(id, f"h{id}:7100", 0, bytes([id]) * 16, Role.VOTER) for id in range(1, count + 1))


def _created() -> Listing:
    return changed(Listing(), {
        "op": "create", "number": NUMBER, "name": "a", "nonce": (b"n" * 16).hex(), "options": list(LogOptions()),
        "settings": Settings().to_plain(),
    })


class Search:
    """The search with ``count`` servers. ``states``: how many different ones were seen."""

    def __init__(self, count: int, bounds: Bounds) -> None:
        self._members = members(count)
        self._bounds = bounds
        self.states = 0
        self.founded = self.deleted = 0

    def run(self, states_max: int | None = None) -> None:
        """Go through all states, at most ``states_max``. Raises `Broken`."""
        first = self._first()
        seen, queue = {first}, deque([first])
        while queue and (states_max is None or len(seen) < states_max):
            state = queue.popleft()
            for after in map(self._told_done, self._after(state)):
                self._check(after)
                if after not in seen:
                    seen.add(after)
                    queue.append(after)
        self.states = len(seen)

    def _first(self) -> State:
        servers = tuple(Server(m.id) for m in self._members.members)
        first = State(servers, (Listing(), _created()), (b"create",), 1, 0.0, (), self._bounds)
        for server in servers:
            first = self._boot(first, server.id)
        return first

    # -- what may happen next ---------------------------------------------------------------------------

    def _after(self, state: State) -> Iterator[State]:
        for server in state.servers:
            if server.hosting is None:
                yield self._boot(state, server.id)
                if server.store is not None and state.left.losses:
                    left = state.left._replace(losses=state.left.losses - 1)
                    yield replace(_put(state, replace(server, store=None)), left=left)
            else:
                yield from self._of_server(state, server)
        for (sender, target), hello in state.hellos:
            there = _get(state, target)
            if there.hosting is not None:
                without = tuple(each for each in state.hellos if each[0] != (sender, target))
                yield self._stepped(replace(state, hellos=without), target, _heard(sender, hello))
        if state.left.waits:
            left = state.left._replace(waits=state.left.waits - 1)
            waited = replace(state, now_s=state.now_s + _LATER_S, left=left)
            for server in state.servers:
                if server.hosting is not None:
                    waited = self._stepped(waited, server.id)
            yield waited
        if state.left.deletes and state.log[-1].get(NUMBER) is not None and _get(state, state.leader).hosting:
            listing = changed(state.log[-1], {"op": "delete", "number": NUMBER, "nonce": (b"e" * 16).hex()})
            yield replace(
                state, log=(*state.log, listing), entries=(*state.entries, b"delete"),
                left=state.left._replace(deletes=False),
            )

    def _of_server(self, state: State, server: Server) -> Iterator[State]:
        id, pending = server.id, server.pending
        if server.known < len(state.log) - 1:
            yield self._stepped(_put(state, replace(server, known=server.known + 1)), id)
        if pending.make:
            made = _with_store(server)
            yield self._stepped(_put(state, replace(made, pending=pending._replace(make=False))), id, _made(made))
        if pending.begin is not None and server.store is not None:
            begun = replace(server, store=(server.store[0], StoreState.STARTED), pending=pending._replace(begin=None))
            yield self._stepped(_put(state, begun), id)
        if pending.stop:
            ended = replace(server, runs=False, pending=pending._replace(stop=False, begin=None))
            standing = _standing(state, server)
            yield self._stepped(_put(state, ended), id, lambda hosting: hosting.stopped(NUMBER, standing))
        if pending.move:
            if not state.log[-1].lacks(NUMBER):
                raise Broken("files", f"server {id} moves the store of a log that is not deleted")
            away = server.store and FoundStore(
                NUMBER, server.store[0], StoreState.STOPPED, CLUSTER, _standing(state, server)
            )
            moved = replace(server, store=None, moved=away, pending=pending._replace(move=False))
            yield self._stepped(_put(state, moved), id, lambda hosting: hosting.moved(NUMBER))
        if id == 2 != state.leader and state.left.leaders and server.known == len(state.log) - 1:
            left = state.left._replace(leaders=state.left.leaders - 1)
            yield self._stepped(replace(state, leader=id, left=left), id)
        if state.left.crashes:
            left = state.left._replace(crashes=state.left.crashes - 1)
            yield self._crashed(replace(state, left=left), server)
            if pending.make:  # the store was on disk already
                yield self._crashed(replace(state, left=left), _with_store(server))

    def _crashed(self, state: State, server: Server) -> State:
        # Marks on disk are behind: what is guaranteed is learnt anew.
        down = replace(server, known=0, runs=False, pending=NOTHING_PENDING, hosting=None, hosted="")
        state = _put(state, down)
        state = replace(state, hellos=tuple(each for each in state.hellos if server.id not in each[0]))
        for other in state.servers:
            if other.hosting is not None:
                state = self._stepped(state, other.id, lambda hosting: hosting.gone(_who(server.id)))
        return state

    def _boot(self, state: State, id: int) -> State:
        server = _get(state, id)
        stores = [] if server.store is None else [FoundStore(NUMBER, *server.store, CLUSTER, _standing(state, server))]
        stores += [server.moved] if server.moved is not None else []
        hosting = Hosting(id, stores, 0.5)
        state = _put(state, replace(server, hosting=hosting, hosted="new"))
        for other in state.servers:
            if other.id != id and other.hosting is not None:
                state = self._stepped(state, other.id, lambda hosting: hosting.connected(_who(id)))
                state = self._stepped(state, id, lambda hosting, other=other.id: hosting.connected(_who(other)))  # type: ignore[misc]
        return self._stepped(state, id)

    # -- one step of a hosting --------------------------------------------------------------------------

    def _stepped(self, state: State, id: int, news: Callable[[Hosting], object] = lambda hosting: None) -> State:
        """The state after a server's hosting took ``news`` and a step, and its shell began what that asks for."""
        server = _get(state, id)
        assert server.hosting is not None
        hosting = _copied(server.hosting)
        news(hosting)
        actions = hosting.step(self.facts(state, server), state.now_s)
        state = _put(state, replace(server, hosting=hosting))
        for action in actions:
            state = self._act(state, id, action)
        server = _get(state, id)
        return _put(state, replace(server, hosted=repr(_plain(hosting))))

    def facts(self, state: State, server: Server) -> Facts:
        """View of a server's hosting."""
        logs = {}
        listing = state.log[server.known]
        if server.runs and server.store is not None:
            logs[NUMBER] = LogFacts(server.store[1], False, 0, 0, first_list(state) or MemberList(()))
        leads = state.leader == server.id and server.known == len(state.log) - 1
        return Facts(CLUSTER, listing, self._members, 0, True, leads, logs)

    def _act(self, state: State, id: int, action: Action) -> State:
        server = _get(state, id)
        pending = server.pending
        if isinstance(action, MakeStore):
            pending = pending._replace(make=True)
        elif isinstance(action, RunLog):
            return _put(state, replace(server, runs=True, pending=pending._replace(begin=action.first_list)))
        elif isinstance(action, StopLog):
            pending = pending._replace(stop=True)
        elif isinstance(action, MoveStore):
            pending = pending._replace(move=True)
        elif isinstance(action, Found):
            return self._found(state, action.first_list)
        elif isinstance(action, Tell) and isinstance(action.message, LogHello):
            hellos = dict(state.hellos)
            for other in state.servers:
                if other.id != id and action.peer in (None, other.id) and self._may_lead(other):
                    hellos[id, other.id] = action.message
            return replace(state, hellos=tuple(sorted(hellos.items(), key=lambda each: each[0])))
        return _put(state, replace(server, pending=pending))

    def _may_lead(self, server: Server) -> bool:
        """True if a hello to a server matters: only leaders heed what they are told. Server 1 leads first, and server 2
        takes over: it stands for any other."""
        return server.hosting is not None and server.id <= 1 + min(self._bounds.leaders, 1)

    def _found(self, state: State, first: MemberList) -> State:
        """Append the founding, as the first log's leader judges it at the head of its log."""
        log = state.log[-1].get(NUMBER)
        if log is None or log.first_list is not None:
            return state
        if len(first.voters) < self._members.majority:
            raise Broken("founding", f"the log is founded by {[m.id for m in first.members]} alone")
        self.founded += 1
        fields = {"op": "found", "number": NUMBER, "members": first.to_plain()}
        listing = changed(state.log[-1], fields)
        return replace(state, log=(*state.log, listing), entries=(*state.entries, first.digest()))

    def _check(self, state: State) -> None:
        first = first_list(state)
        for server in state.servers:
            if server.store is not None and server.store[1] is StoreState.STARTED:
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
        if state.done or leader.hosting is None or leader.known < len(state.log) - 1:
            return state
        return replace(state, done=any(not leader.hosting.deleting(gone) for gone in state.log[-1].deleted))


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
        founded = changed(_created(), {"op": "found", "number": NUMBER, "members": first.to_plain()})
        servers = tuple(Server(id, 2, (bytes([id, 1]) * 8, StoreState.STARTED), made=1) for id in ids)
        reigns = Reigns(tuple(1 for _ in ids), (*(0 for _ in ids[1:]), 1), frozenset((1, len(ids), id) for id in ids))
        state = State(
            servers, (Listing(), _created(), founded), (b"create", first.digest()), 1, 0.0, (), self._bounds,
            reigns=reigns,
        )
        for id in ids:
            state = self._boot(state, id)
            state = _put(state, replace(_get(state, id), pending=NOTHING_PENDING))
        return replace(state, hellos=(), reigns=reigns)

    def _act(self, state: State, id: int, action: Action) -> State:
        if isinstance(action, RunLog):  # a new process stands for nothing
            state = replace(state, reigns=_with_term(state.reigns, id, state.reigns.terms[id - 1], 0))
        return super()._act(state, id, action)

    def _after(self, state: State) -> Iterator[State]:
        yield from super()._after(state)
        reigns = state.reigns
        for server in state.servers:
            if not server.runs or server.store is None or server.store[1] is not StoreState.STARTED:
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
                yield replace(state, reigns=each)

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


def first_list(state: State) -> MemberList | None:
    """The first list of the log; None before it is founded. Raises `Broken` if there are two."""
    logs = [log for listing in state.log if (log := listing.get(NUMBER)) is not None and log.first_list is not None]
    if len({log.id for log in logs}) > 1:
        raise Broken("founding", "there are two first lists")
    return MemberList.from_plain(logs[0].first_list) if logs else None


def _standing(state: State, server: Server) -> Standing:
    """Standing of a server's store."""
    first = first_list(state)
    begun = server.store is not None and server.store[1] is StoreState.STARTED
    return standing_of(0, first) if begun and first is not None else NO_LIST


def _get(state: State, id: int) -> Server:
    return state.servers[id - 1]


def _put(state: State, server: Server) -> State:
    servers = (*state.servers[: server.id - 1], server, *state.servers[server.id :])
    return replace(state, servers=servers)


def _who(id: int) -> Identity:
    return Identity(id, bytes([id]) * 16)


def _with_store(server: Server) -> Server:
    """The server with a new empty store."""
    incarnation = bytes([server.id, server.made + 1]) * 8
    return replace(server, made=server.made + 1, store=(incarnation, StoreState.EMPTY))


def _made(server: Server) -> Callable[[Hosting], object]:
    assert server.store is not None
    store = FoundStore(NUMBER, *server.store, CLUSTER)
    return lambda hosting: hosting.made(store)


def _heard(sender: int, hello: LogHello) -> Callable[[Hosting], object]:
    return lambda hosting: hosting.heard(_who(sender), hello)


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
