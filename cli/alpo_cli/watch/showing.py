"""The live view, run: on a terminal until `q` or a signal, elsewhere a line a second; and the servers of a cluster,
asked again and again, each by itself.

Laws:

* A server has `ASK_S` to answer; one that takes longer delays no other, and is asked anew in the next round. The way to
  it may take `REACH_S`: a round is shown without it meanwhile.
* A connection stays as long as it answers: a round costs a server one message each way.
* The members are those that the leader lists, or whoever knows of the highest term; of the other addresses that the
  user gave, those that answer are shown too.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio

from alpo.addresses import AddressError, parse_address
from alpo.client.connection import Connection, Lost
from alpo.client.operator.status import Account, account, merged, newest
from alpo.client.servers import CANDIDATES_MAX, Servers, given_log, given_tls
from alpo.dialling import Way
from alpo.standing import sound

from ..exits import Unreached
from ..options import Target
from ..output import Sink, escape, json_line
from ..running import unless_interrupted
from .rows import Page, View, press
from .sight import Mark, Seen, Sight, as_json, line

if TYPE_CHECKING:
    from anyio.abc import TaskGroup, TaskStatus

    from .drawing import Terminal

ASK_S = 1.0
#: Seconds for each step of the way to a server.
REACH_S = 10.0
#: Marks kept, one a round.
MARKS_MAX = 300
#: Newest events asked of each server.
EVENTS = 100
EVERY_S = 1.0
#: Seconds that a frame waits for answers: a server that takes longer is drawn with what it said before.
PATIENCE_S = 0.3


@dataclass
class _Server:
    """One address. ``since_s``: when it last answered, or was first asked; ``told``: its last answer, ``known``: as far
    as that is sound; ``well``: it answered when last asked."""

    address: str
    since_s: float
    told: dict[str, Any] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)
    well: bool = False
    problem: str = ""
    way: Way | None = None
    id: int | None = None
    connection: Connection | None = None
    events: Account | None = None


class Watch:
    """Knowledge of a cluster's servers, renewed by every round. Made by `watching`."""

    def __init__(self, addresses: Sequence[str], servers: Servers, tasks: TaskGroup) -> None:
        #: True while each server is asked for its events too.
        self.want_events = False
        self._given = list(addresses)
        self._servers = servers
        self._tasks = tasks
        self._known: dict[str, _Server] = {}
        self._members: dict[str, int] = {}
        self._asking: set[str] = set()
        self._answered = anyio.Event()
        self._marks: deque[Mark] = deque(maxlen=MARKS_MAX)

    async def round(self, within_s: float) -> None:
        """Ask every server that is not still being asked; returns once all have answered, or after ``within_s``."""
        self._ask_all()
        with anyio.move_on_after(within_s):
            while self._asking:
                self._answered = anyio.Event()
                await self._answered.wait()
        for server in self._known.values():
            if server.way is not None:
                server.well, server.problem = False, server.way.late()
        self._mark()

    def _ask_all(self) -> None:
        for address in list(dict.fromkeys([*self._members, *self._given]))[:CANDIDATES_MAX]:
            server = self._known.setdefault(address, _Server(address, anyio.current_time()))
            if address not in self._asking:
                self._asking.add(address)
                self._tasks.start_soon(self._ask, server)

    async def _ask(self, server: _Server) -> None:
        told: dict[str, Any] = {}
        whole, problem = False, "no answer within a second"
        try:
            await self._reach(server)
            with anyio.move_on_after(ASK_S):
                told = await self._account(server)
                problem = "" if told else "it gives no account of itself"
                if not self.want_events or server.connection is None:
                    server.events = None
                else:
                    server.events = await newest(server.connection, EVENTS)
                whole = True
        except Lost as lost:
            problem = str(lost)
        if not whole:
            self._drop(server)
        if told:
            server.told, server.known, server.since_s = told, sound(told), anyio.current_time()
            server.id = server.known.get("id", server.id)
        server.well, server.problem = bool(told), "" if told else problem
        self._asking.discard(server.address)
        self._learn()
        self._answered.set()

    async def _reach(self, server: _Server) -> None:
        """Connect to the server, if there is no connection. Raises `Lost`."""
        if server.connection is not None:
            return
        server.way = Way(server.address, name_s=REACH_S, tcp_s=REACH_S, answer_s=REACH_S)
        try:
            server.connection = await self._servers.dial(server.address, way=server.way)
        finally:
            server.way = None

    async def _account(self, server: _Server) -> dict[str, Any]:
        """Ask on the connection that is there; if that has ended, once more on a new one. Raises `Lost`."""
        if server.connection is not None:
            try:
                return await account(server.connection)
            except Lost:
                self._drop(server)
        await self._reach(server)
        assert server.connection is not None
        return await account(server.connection)

    def _drop(self, server: _Server) -> None:
        if server.connection is not None:
            self._servers.drop(server.connection)
            server.connection = None

    def _learn(self) -> None:
        """Take over the member list, and ask members that were not known."""
        told = [server.known for server in self._known.values() if server.well and server.known.get("members")]
        if not told:
            return
        best = max(told, key=lambda fields: (fields.get("term", 0), fields.get("state") == "leader"))
        members = {each["address"]: each["id"] for each in best["members"]
                   if each.get("role") != "GONE" and _valid(each.get("address", ""))}
        if members != self._members:
            new = members.keys() - self._known.keys()
            self._members = members
            for address in self._known.keys() - members.keys() - set(self._given) - self._asking:
                self._drop(self._known.pop(address))
            if new:
                self._ask_all()

    def _mark(self) -> None:
        """Note how far the log goes, once for each new answer."""
        well = [server for server in self._known.values() if server.well and "last_lsn" in server.known]
        if not well:
            return
        farthest = max(well, key=lambda server: (server.known["last_lsn"], server.since_s))
        if not self._marks or farthest.since_s > self._marks[-1].at_s:
            guaranteed_id = max(server.known.get("guaranteed_id", 0) for server in well)
            self._marks.append(Mark(farthest.since_s, farthest.known["last_lsn"], guaranteed_id))

    def sight(self) -> Sight:
        """The cluster as it is known now."""
        now_s = anyio.current_time()
        shown = self._shown()
        seen = [(self._seen(server, now_s), server.events) for server in shown]
        seen.sort(key=lambda each: (not each[0].member, each[0].id is None, each[0].id or 0))
        accounts = [told for _, told in seen if told is not None]
        events = merged(accounts) if accounts else None
        silent = [(one.name, why) for one, told in seen if (why := one.problem or (told.problem if told else ""))]
        servers = tuple(one for one, _ in seen)
        return Sight(datetime.now(UTC), now_s, servers, tuple(self._marks), events, silent if accounts else ())

    def _shown(self) -> list[_Server]:
        """Members, and others that answer at an address given; while no member is known, every address given."""
        shown = [server for address in self._members if (server := self._known.get(address)) is not None]
        known = {_disk(server) for server in shown}
        for address in self._given:
            server = self._known.get(address)
            if server is None or address in self._members:
                continue
            if not self._members or (server.well and _disk(server) not in known):
                shown.append(server)
        return shown

    def _seen(self, server: _Server, now_s: float) -> Seen:
        silent_s = None if server.well else now_s - server.since_s
        member = not self._members or server.address in self._members
        id = self._members.get(server.address, server.id)
        return Seen(id, server.address, server.told, silent_s, server.problem, member)


def _disk(server: _Server) -> tuple[int | None, str | None]:
    """The id and the incarnation of the server at an address: one server may be at several."""
    return server.id, server.known.get("incarnation")


def _valid(address: str) -> bool:
    try:
        parse_address(address)
    except AddressError:
        return False
    return True


@asynccontextmanager
async def watching(addresses: Sequence[str]) -> AsyncIterator[Watch]:
    """Begin to watch the cluster of these servers. Raises TlsError."""
    with closing(Servers(addresses, tls=given_tls(None), log=given_log(None))) as servers:
        async with anyio.create_task_group() as tasks:
            yield Watch(addresses, servers, tasks)
            tasks.cancel_scope.cancel()


async def _rounds(watch: Watch, patience_s: float) -> AsyncIterator[None]:
    """Ask all servers once a second; the first time patiently."""
    due_s = anyio.current_time()
    while True:
        await watch.round(patience_s)
        yield
        patience_s = PATIENCE_S
        due_s = max(due_s + EVERY_S, anyio.current_time())
        await anyio.sleep_until(due_s)


async def in_lines(target: Target, count: int | None) -> None:
    """Print a line a second, ``count`` of them (None: until a signal). Raises `Unreached` if no server answered the
    last of a counted number, BrokenPipeError."""
    sink = Sink()
    left = count

    async def body() -> None:
        nonlocal left
        async with watching(target.servers) as watch:
            async for _ in _rounds(watch, ASK_S):
                sight = watch.sight()
                text = json_line(as_json(sight)) if target.json else escape(line(sight))
                await sink.write(text.encode(sys.stdout.encoding, "replace") + b"\n")
                left = None if left is None else left - 1
                if left == 0:
                    if not sight.there:
                        raise Unreached(target.servers, [one.problem for one in sight.servers if one.problem])
                    return

    await unless_interrupted(body)


class Show:
    """The live view on a terminal."""

    def __init__(self, watch: Watch, terminal: Terminal, scope: anyio.CancelScope) -> None:
        self._watch = watch
        self._terminal = terminal
        self._scope = scope
        self._view = View()
        self._sight = watch.sight()
        self._due = anyio.Event()
        self._stop, self._anew = False, True

    async def obey_signals(self, *, task_status: TaskStatus[None]) -> None:
        """End, stop, go on and draw anew as signals say; those that were ignored at the start still are."""
        wanted = [each for each in (signal.SIGINT, signal.SIGTERM, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
                  if signal.getsignal(each) is not signal.SIG_IGN]
        with anyio.open_signal_receiver(*wanted) as signals:
            task_status.started()
            async for each in signals:
                if each in (signal.SIGINT, signal.SIGTERM):
                    self._scope.cancel()
                self._stop |= each == signal.SIGTSTP
                self._anew |= each == signal.SIGCONT
                self._due.set()

    async def obey_keys(self) -> None:
        """Change the view as keys say; ends all at `q`, and with the terminal."""
        async for pressed in self._terminal.keys():
            view = press(self._view, pressed)
            if view is None:
                break
            self._watch.want_events = view.page is Page.EVENTS
            if self._view.paused and not view.paused:
                self._sight = self._watch.sight()
            self._view = view
            self._due.set()
        self._scope.cancel()

    async def look(self) -> None:
        """Ask the servers, and have a frame drawn a second."""
        async for _ in _rounds(self._watch, PATIENCE_S):
            if not self._view.paused:
                self._sight = self._watch.sight()
            self._due.set()

    async def draw(self) -> None:
        """Draw whenever that is due and the terminal is ours. Raises OSError once the terminal is gone."""
        from .drawing import LOOK_S, Frame

        while True:
            while not self._terminal.foreground():
                await anyio.sleep(LOOK_S)
            if self._anew:
                self._anew = False
                self._terminal.enter()
            await self._terminal.draw(Frame(self._sight, self._view))
            await self._due.wait()
            self._due = anyio.Event()
            if self._stop:
                self._terminal.stop()
                self._stop, self._anew = False, True


async def on_terminal(target: Target) -> None:
    """Draw until `q`, Ctrl-C, SIGTERM or the terminal's end."""
    from .drawing import Terminal

    keys = sys.stdin.fileno() if sys.stdin.isatty() else None
    terminal = Terminal(sys.stdout.fileno(), keys, sys.stdout.encoding)
    async with watching(target.servers) as watch, anyio.create_task_group() as tasks:
        show = Show(watch, terminal, tasks.cancel_scope)
        await tasks.start(show.obey_signals)
        try:
            if keys is not None:
                tasks.start_soon(show.obey_keys)
            tasks.start_soon(show.look)
            await show.draw()
        finally:
            terminal.leave()


def drawable() -> bool:
    """True if stdout is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")
