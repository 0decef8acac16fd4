"""Space in which each election, and each exchange between a leader and one follower, is one action: for sessions, and
for logs over many reigns.

Laws:

* The real core gets to every state by real messages, delivered in order between two servers while the third hears
  nothing; all other messages are lost. Writes are on disk at once.
* An exchange may break off after any message; the rest is lost.
* A leader that was replaced stays a leader until it hears of that, and goes on answering clients.

Laws of clients' accounts: their requests and answers so far, and the requests possible next.

* The checks are those of every simulation (`checks.history.History`); their account is part of the state.
* Every request that a client may have sent may arrive at any time, any number of times: retries and late duplicates
  are the same request again.
* A client uses what it was told: it names an epoch that it knows, and serials from the last one on.
* A client may send an append again together with the next one: as a run, where neither is in the log (R32).
* A person retries an append by hand, with another text.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from alpo.core.entries import Entry
from alpo.core.messages import AppendAnswer, AppendRequest
from alpo.core.ready import Input
from alpo.core.requests import AppendRun, Code, DropSession, Opened, OpenSession, Refused, Reply
from alpo.core.settings import Settings

from ..checks import Broken
from ..checks.history import History
from ..stage import Stage
from .search import Numbered, State, Step
from .servers import Outcome, Pasts, Servers
from .state import Timer, digest, tree

NAME = "w"
PROCESSES = ("p", "q")  # processes of the client that writes as NAME
RANDOMS = tuple(f"~018bcfe5-68{n:02x}-7000-8000-000000000000" for n in (1, 2))


class OneLog:
    """The parts of the one log that `History` uses."""

    def __init__(self) -> None:
        self.guaranteed: list[Entry] = []


class Account:
    """Account of all requests and answers so far.

    ``known_epochs``: client process -> the epochs that it was told to be current, 0 at first. ``opened``: process ->
    the sessions that it opened, (epoch, last serial then).
    """

    def __init__(self) -> None:
        self.log = OneLog()
        self.history = History(self.log)
        self.known_epochs: dict[str, list[int]] = {process: [0] for process in PROCESSES}
        self.opened: dict[str, list[tuple[int, int]]] = {process: [] for process in PROCESSES}

    # -- what may be asked ------------------------------------------------------------------------------

    def requests(self, serials: int) -> list[Input]:
        """All requests that may arrive at a server now, with ``serials`` serials for each session."""
        found: list[Input] = []
        for process in PROCESSES:
            for epoch in self.known_epochs[process]:
                found.append(OpenSession(("open", process, epoch), NAME, epoch, nonce(process, epoch)))
            for epoch, last in self.opened[process]:
                for serial in range(last + 1, last + 1 + serials):
                    origin = ("append", process, epoch, serial)
                    found.append(AppendRun(origin, NAME, epoch, serial, [(1, f"{process}{serial}".encode())]))
        for client in RANDOMS:
            found.append(AppendRun(("append", client), client, 0, 1, [(1, b"r")]))
        bodies = [(1, b"r"), (1, b"s")]
        found.append(AppendRun(("append both", RANDOMS[0]), RANDOMS[0], 0, 1, bodies))
        by_hand = AppendRun(("by hand", RANDOMS[0]), RANDOMS[0], 0, 1, [(1, b"other text")], by_hand=True)
        found.append(by_hand)
        if self.history.epochs:
            found.append(DropSession("drop", NAME, 0))
        return found

    # -- what happens -----------------------------------------------------------------------------------

    def guaranteed(self, entry: Entry) -> None:
        """Take an entry into the one log. Raises `Broken`."""
        self.log.guaranteed.append(entry)
        self.history.guaranteed(entry)

    def replied(self, reply: Reply) -> None:
        """Let the client that asked hear ``reply``. Raises `Broken`."""
        self.history.replied(reply)
        origin: Any = reply.origin
        if origin[0] != "open":
            return
        known = self.known_epochs[origin[1]]
        if isinstance(reply, Opened):
            told = (reply.epoch, reply.last_serial)
            if told not in self.opened[origin[1]]:
                self.opened[origin[1]] = sorted([*self.opened[origin[1]], told])
        elif isinstance(reply, Refused) and reply.code is Code.EPOCH and reply.number not in known:
            self.known_epochs[origin[1]] = sorted([*known, reply.number])


def nonce(process: str, epoch: int) -> bytes:
    """The nonce with which ``process`` opens a session in the place of ``epoch``: another for each epoch (R22)."""
    return f"{process}{epoch:015d}".encode()


class Event(NamedTuple):
    """Events of one action: requests that arrive, entries that become guaranteed, replies."""

    asked: tuple[Input, ...]
    guaranteed: tuple[Entry, ...]
    replies: tuple[Reply, ...]


class Accounts:
    """All accounts found so far, by number."""

    def __init__(self) -> None:
        self._accounts: Numbered[bytes] = Numbered()
        self.first = self._keep(Account())

    def _keep(self, account: Account) -> int:
        number = self._accounts.number(b"", key=digest(tree(account)))
        if not self._accounts.known[number]:
            self._accounts.known[number] = pickle.dumps(account)
        return number

    def take(self, number: int) -> Account:
        account: Account = pickle.loads(self._accounts.known[number])
        return account

    def after(self, number: int, event: Event) -> int:
        """The number of the account after ``event``. Raises `Broken`."""
        account = self.take(number)
        for request in event.asked:
            account.history.asked(request)
        # Entries are guaranteed before the replies leave that rest on them.
        for entry in event.guaranteed:
            account.guaranteed(entry)
        for reply in event.replies:
            account.replied(reply)
        return self._keep(account)


class ReignBounds(NamedTuple):
    """Bounds of the space.

    ``requests``: those that arrive, copies counted; ``serials``: of one session; ``sessions_max``: sessions at a time;
    ``single_entries``: a leader sends entries one at a time.
    """

    terms: int = 3
    requests: int = 4
    serials: int = 1
    crashes: int = 0
    sessions_max: int = 1
    single_entries: bool = False


class Talk(NamedTuple):
    """States of two servers after some messages between them, and the replies that left for clients meanwhile."""

    one: int
    other: int
    replies: tuple[Reply, ...]
    broken: Broken | None = None


class Reign(NamedTuple):
    """Action: ``kind`` is elect, talk, ask or crash; ``messages``: number of messages delivered."""

    kind: str
    server: int
    other: int = 0
    messages: int = 0
    request: Input | None = None


class Teller:
    """Listener to the deeds of an exchange; this one ignores them."""

    def ran_out(self, id: int, timer: Timer) -> None:
        """Hear that ``timer`` runs out on ``id``."""

    def forgot(self, id: int) -> None:
        """Hear that ``id`` no longer takes the leader that it heard for live."""

    def delivered(self, id: int, message: int) -> None:
        """Hear that ``message`` reaches ``id``."""


class Reigns:
    """Space of elections and exchanges. A state: each server's …, the past, what is left of the bounds, the account."""

    def __init__(self, bounds: ReignBounds, size: int = 3) -> None:
        self.bounds = bounds
        self.size = size
        self.fixed = size + 4
        limits = {"request_bytes_max": 1} if bounds.single_entries else {}
        stage = Stage(size, 0, settings=Settings(sessions_max=bounds.sessions_max, window=2), limits=limits)
        self.servers = Servers(stage, prompt=True, alone=True)
        self.pasts = Pasts(self.servers.facts, size // 2 + 1)
        self.accounts = Accounts()
        self._actions: Numbered[Reign] = Numbered()
        self.actions = self._actions.known
        self._talks = cache(self._find_talks)
        self._asks: dict[tuple[int, str], tuple[int, Outcome]] = {}
        self._told: dict[tuple[int, str], int] = {}
        self._first = self._begin()

    def first(self) -> State:
        return self._first

    def _begin(self) -> State:
        locals, net = self.servers.boot()
        self.servers.settle(locals, net)
        return (*self.servers.quiet(locals), 0, self.bounds.requests, self.bounds.crashes, self.accounts.first)

    # -- the ways on ------------------------------------------------------------------------------------

    def successors(self, state: State) -> Iterator[Step]:
        size, servers = self.size, self.servers
        requests, crashes, account = state[size + 1], state[size + 2], state[size + 3]
        for at in range(size):
            leads = servers.facts[state[at]].leads
            for other in range(size):
                if other == at:
                    continue
                kind = "talk" if leads else "elect"
                for count, talk in enumerate(self._talks(kind, at + 1, state[at], other + 1, state[other])):
                    if talk.broken is not None:
                        yield Step(self._number(kind, at + 1, other + 1, count + 1), None, talk.broken)
                        continue
                    locals = list(state[:size])
                    locals[at], locals[other] = talk.one, talk.other
                    if tuple(locals) != state[:size]:
                        action = self._number(kind, at + 1, other + 1, count + 1)
                        yield self._moved(action, state, (at, other), locals, requests, crashes, talk.replies, ())
            if leads and requests:
                for request in self.accounts.take(account).requests(self.bounds.serials):
                    yield self._ask(state, at, request, requests - 1, crashes)
            if crashes:
                outcome = servers.restart(at + 1, state[at], 0)
                locals = [*state[:at], outcome.local, *state[at + 1 : size]]
                action = self._number("crash", at + 1)
                yield self._moved(action, state, (at,), locals, requests, crashes - 1, (), ())

    def _ask(self, state: State, at: int, request: Input, requests: int, crashes: int) -> Step:
        key = (state[at], repr(request))
        if key not in self._asks:
            outcome = self.servers.ask(at + 1, state[at], request)
            self._asks[key] = self._number("ask", at + 1, request=request), outcome
        action, outcome = self._asks[key]
        if outcome.broken is not None:
            return Step(action, None, outcome.broken)
        locals = [*state[:at], outcome.local, *state[at + 1 : self.size]]
        return self._moved(action, state, (at,), locals, requests, crashes, outcome.replies, (request,))

    def _moved(
        self, action: int, state: State, moved: tuple[int, ...], locals: list[int], requests: int, crashes: int,
        replies: tuple[Reply, ...], asked: tuple[Input, ...],
    ) -> Step:
        try:
            past = self.pasts.moved(state[self.size], locals, moved)
            account = self._account(state, past, locals, replies, asked)
        except Broken as broken:
            return Step(action, None, broken)
        return Step(action, (*locals, past, requests, crashes, account))

    def _account(
        self, state: State, past: int, locals: list[int], replies: tuple[Reply, ...], asked: tuple[Input, ...]
    ) -> int:
        before, now = self.pasts.known[state[self.size]].guaranteed, self.pasts.known[past].guaranteed
        entries: list[Entry] = []
        if len(now) > len(before):
            at = next(at for at, local in enumerate(locals) if self.servers.facts[local].log[: len(now)] == now)
            entries = self.servers.entries(at + 1, locals[at])[len(before) : len(now)]
        event = Event(asked, tuple(entries), replies)
        if event == ((), (), ()):
            return state[-1]
        key = (state[-1], repr(event))
        if key not in self._told:
            self._told[key] = self.accounts.after(state[-1], event)
        return self._told[key]

    def _number(self, kind: str, server: int, other: int = 0, messages: int = 0, request: Input | None = None) -> int:
        reign = Reign(kind, server, other, messages, request)
        return self._actions.number(reign, key=(*reign[:-1], repr(request)))

    # -- two servers alone ------------------------------------------------------------------------------

    def _find_talks(self, kind: str, id: int, local: int, other_id: int, other: int) -> list[Talk]:
        """Work out the talks of two servers: after one message, after two, … Of an election only the end counts."""
        talks = list(self.exchange(kind, id, local, other_id, other))
        if kind == "elect":
            talks = [t for t in talks[-1:] if t.broken or self.servers.facts[t.one].leads]
        return [t for t in talks if t.broken or self._within(t)]

    def _within(self, talk: Talk) -> bool:
        return all(self.servers.facts[local].own_term <= self.bounds.terms for local in (talk.one, talk.other))

    def exchange(
        self, kind: str, id: int, local: int, other_id: int, other: int, teller: Teller | None = None
    ) -> Iterator[Talk]:
        """Let two servers talk alone; yields a talk after each message. ``teller`` hears of each deed before it."""
        servers, teller = self.servers, teller or Teller()
        replies: list[Reply] = []
        at = {id: local, other_id: other}
        if kind == "elect":
            if servers.facts[other].leads:  # a leader has to notice first that nobody hears it
                teller.ran_out(other_id, Timer.SILENCE)
                noticed = servers.time(other_id, other, Timer.SILENCE)
                at[other_id] = noticed.local
                replies += noticed.replies
            teller.forgot(other_id)
            at[other_id] = servers.forget(other_id, at[other_id])
            timer = Timer.CANVASS
        else:
            timer = Timer.PROBE if Timer.PROBE in servers.timers(id, local) else Timer.HEARTBEAT
        teller.ran_out(id, timer)
        outcome, to = servers.time(id, local, timer), id
        canvasses = int(kind == "elect")
        queue: list[int] = []
        while True:
            at[to] = outcome.local
            replies += outcome.replies
            if outcome.broken is not None:
                yield Talk(at[id], at[other_id], tuple(replies), outcome.broken)
                return
            queue += [m for m in outcome.sends if self._passes(kind, m, at)]
            if not queue and canvasses and not servers.facts[at[id]].leads:
                canvasses -= 1  # the server has learnt of a term that it did not know
                teller.ran_out(id, Timer.CANVASS)
                outcome, to = servers.time(id, at[id], Timer.CANVASS), id
                continue
            if not queue:
                return
            message = queue.pop(0)
            to = servers.messages[message].target
            teller.delivered(to, message)
            outcome = servers.deliver(to, at[to], message)
            at[to] = outcome.local
            yield Talk(at[id], at[other_id], (*replies, *outcome.replies), outcome.broken)

    def _passes(self, kind: str, message: int, at: dict[int, int]) -> bool:
        """True if a message is delivered: between the two servers and, in an election, not yet of the new reign."""
        envelope, source, target = self.servers.messages[message]
        of_reign = isinstance(envelope.message, (AppendRequest, AppendAnswer))
        return source in at and target in at and (kind == "talk" or not of_reign)
