"""The way to a server: its name, a TCP connection, TLS, a hello; shared by clients and servers, on trio and asyncio.

Laws:

* Each step has a time of its own, and a try that is late says at which step it was.
* A name is looked up once at a time in a process, in a thread of this module: names that do not resolve delay neither
  each other, up to `THREADS_MAX`, nor any other work. Whoever gives up leaves the look-up under way, and the next one
  who asks waits for the same.
* An address that drops packets does not stand before one that works: all addresses of a name are tried beside each
  other, each again every second. At most `TARGETS_MAX` × `TRIES_MAX` sockets are open.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import math
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from typing import NamedTuple

import anyio

from .addresses import parse_address

#: Threads that look names up at the same time; further names wait.
THREADS_MAX = 8
#: Longest time for which the answer of a slow look-up stands: for as long as that took, and no longer than this.
KEPT_S_MAX = 10.0
#: Seconds until the next address of a name is tried beside the first (RFC 8305), and until all are tried again.
STAGGER_S, AGAIN_S = 0.25, 1.0
#: Addresses of one name that are tried, and sockets for each of them at the same time: the oldest makes room.
TARGETS_MAX, TRIES_MAX = 8, 4


class Target(NamedTuple):
    """One address of a name, as sockets take it."""

    family: int
    where: tuple[object, ...]


class Step(Enum):
    """The steps of a way, with the words for a try that is late there."""

    NAME = "the name {host} could not be resolved"
    TCP = "no TCP connection"
    TLS = "connected, but the TLS handshake was not done"
    HELLO = "connected, but no hello: is it an ALPO server?"


class Unreachable(ConnectionError):
    """A try that failed; the text is for a user. ``refused``: nobody listens at any address of the name. ``late``: it
    took too long."""

    def __init__(self, why: str, *, refused: bool = False, late: bool = False) -> None:
        super().__init__(0, why)
        self.refused, self.late = refused, late

    def __str__(self) -> str:
        return str(self.strerror)


class Way:
    """One try to reach the server at an address: how far it has come, and the seconds that its steps may take.

    ``name_s``: for the name; ``tcp_s``: for the connection; ``answer_s``: for TLS and hello together. Raises
    `alpo.addresses.AddressError` for a text that is no address.
    """

    def __init__(
        self, address: str, name_s: float = math.inf, tcp_s: float = math.inf, answer_s: float = math.inf
    ) -> None:
        self.address = address
        self.host, self._port = parse_address(address)
        self._name_s, self._tcp_s, self._answer_s = name_s, tcp_s, answer_s
        self.step = Step.NAME
        self._since_s: float | None = None

    @property
    def begun(self) -> bool:
        """True once the first step has begun."""
        return self._since_s is not None

    def _enter(self, step: Step) -> None:
        self.step, self._since_s = step, time.monotonic()

    def late(self, within_s: float = math.inf) -> str:
        """The words for a try that is given up now; ``within_s``: the step's time, if that was what ended it."""
        now_s = time.monotonic()
        spent_s = within_s if within_s < math.inf else now_s - (now_s if self._since_s is None else self._since_s)
        what, colon, ask = self.step.value.format(host=self.host).partition(":")
        return f"{self.address}: {what} within {spent_s:.2g} s{colon}{ask}"

    @contextmanager
    def _within(self, step: Step, seconds: float) -> Iterator[None]:
        self._enter(step)
        with anyio.move_on_after(seconds) as scope:
            yield
        if scope.cancelled_caught:
            raise Unreachable(self.late(seconds), late=True)

    async def connect(self) -> socket.socket:
        """A connected, non-blocking socket. Raises `Unreachable`."""
        with self._within(Step.NAME, self._name_s):
            targets = await self._resolve()
        with self._within(Step.TCP, self._tcp_s):
            return await _Race(self.address).run(targets)
        raise AssertionError("not reached: the step ends with a socket or an error")

    async def _resolve(self) -> list[Target]:
        host, port = self.host, self._port
        try:
            family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
            return [Target(family, (host, port))]
        except ValueError:
            pass
        try:
            found = await look_up(host, port)
        except OSError as error:
            why = f"the name {host} cannot be resolved: {error.strerror or error}"
            raise Unreachable(f"{self.address}: {why}") from error
        except ValueError as error:
            raise Unreachable(f"{self.address}: no host can have this name ({error})") from error
        if not found:
            raise Unreachable(f"{self.address}: the name {host} has no address")
        return found

    @contextmanager
    def answering(self, tls: bool, least_s: float = 0.0) -> Iterator[None]:
        """Bound what comes after the connection, to ``least_s`` at least; ``tls``: it begins with the handshake. Raises
        `Unreachable`."""
        with self._within(Step.TLS if tls else Step.HELLO, max(self._answer_s, least_s)):
            yield

    def greet(self) -> None:
        """Note that the handshake is done, and the hello is waited for."""
        self.step = Step.HELLO


# -- names --------------------------------------------------------------------------------------------------


class _LookUp:
    """One look-up of a name, under way or done."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.found: list[Target] | OSError | ValueError | None = None
        #: End of the time for which what was found stands, by the monotonic clock.
        self.stands_until_s = math.inf
        self.waiting: dict[anyio.Event, Callable[[], object]] = {}

    def make(self) -> None:
        """Ask the system; takes as long as that takes."""
        began_s = time.monotonic()
        found: list[Target] | OSError | ValueError = OSError("the look-up has failed")  # if what follows raises another
        try:
            found = _in_turn(socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM))
        except (OSError, ValueError) as error:
            found = error
        finally:
            now_s = time.monotonic()
            with _look_ups.lock:
                self.found = found
                kept_s = min(now_s - began_s, KEPT_S_MAX) if isinstance(found, list) else 0.0
                self.stands_until_s = now_s + kept_s
                for wake in self.waiting.values():
                    with suppress(RuntimeError):  # that loop has ended
                        wake()


def _in_turn(rows: Sequence[tuple[int, int, int, str, tuple[object, ...]]]) -> list[Target]:
    """The addresses in the system's order, but the second is of another family than the first, if there is one."""
    targets = list(dict.fromkeys(Target(row[0], row[4]) for row in rows))
    other = next((target for target in targets if target.family != targets[0].family), None)
    if other is not None:
        targets.remove(other)
        targets.insert(1, other)
    return targets[:TARGETS_MAX]


class _LookUps:
    """The look-ups of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._known: dict[tuple[str, int], _LookUp] = {}
        self._queue: deque[_LookUp] = deque()
        self._threads = 0

    def join(self, host: str, port: int, event: anyio.Event, wake: Callable[[], object]) -> _LookUp:
        """The look-up of this name that stands or is under way, else a new one; ``wake`` is called when it is done.
        Raises OSError if no thread can be started for it, and nothing is changed then."""
        now_s = time.monotonic()
        with self.lock:
            for key in [key for key, one in self._known.items() if one.stands_until_s < now_s]:
                del self._known[key]
            one = self._known.get((host, port))
            if one is None:
                if self._threads < THREADS_MAX:
                    self._start(host)
                one = self._known[host, port] = _LookUp(host, port)
                self._queue.append(one)
            if one.found is None:
                one.waiting[event] = wake
            return one

    def leave(self, one: _LookUp, event: anyio.Event) -> None:
        with self.lock:
            one.waiting.pop(event, None)

    def _start(self, host: str) -> None:
        """Start one thread more; the caller has the lock, for which the thread waits. Raises OSError if none can be
        started and none is there."""
        thread = threading.Thread(target=self._work, name=f"name {host}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system is out of threads
            if not self._threads:
                raise OSError(f"no thread can be started for it ({error})") from error
        else:
            self._threads += 1

    def _work(self) -> None:
        one: _LookUp | None = None
        try:
            while (one := self._next()) is not None:
                one.make()
        finally:
            if one is not None:  # a defect
                with self.lock:
                    self._threads -= 1
                    if self._queue:  # look-ups queued meanwhile may count on this thread
                        with suppress(OSError):
                            self._start(self._queue[0].host)

    def _next(self) -> _LookUp | None:
        """The look-up to make now; None: there is none, and the thread that asked does not count any more."""
        with self.lock:
            if self._queue:
                return self._queue.popleft()
            self._threads -= 1
            return None


_look_ups = _LookUps()


def _forget() -> None:
    """Forget the look-ups in a forked child: their threads are the parent's."""
    global _look_ups
    _look_ups = _LookUps()


os.register_at_fork(after_in_child=_forget)


async def look_up(host: str, port: int) -> list[Target]:
    """The addresses of a name. Raises OSError as `socket.getaddrinfo` does; ValueError for what can be no name."""
    event = anyio.Event()
    one = _look_ups.join(host, port, event, _waker(event))
    try:
        if one.found is None:
            await event.wait()
    finally:
        _look_ups.leave(one, event)
    if isinstance(one.found, list):
        return one.found
    assert one.found is not None
    raise one.found.with_traceback(None)


async def one_resolved(addresses: Iterable[str]) -> None:
    """Wait until one of these addresses has its name resolved, or all have failed to."""
    async with anyio.create_task_group() as tasks:
        async def resolve(address: str) -> None:
            with suppress(Unreachable):
                await Way(address)._resolve()
                tasks.cancel_scope.cancel()

        for address in addresses:
            tasks.start_soon(resolve, address)


def _waker(event: anyio.Event) -> Callable[[], object]:
    """A function for another thread that sets ``event``, which belongs to the running loop."""
    lowlevel = getattr(sys.modules.get("trio"), "lowlevel", None)  # another thread may be about to import it
    if lowlevel is not None and lowlevel.in_trio_task():
        token = lowlevel.current_trio_token()
        return lambda: token.run_sync_soon(event.set)
    loop = asyncio.get_running_loop()
    return lambda: loop.call_soon_threadsafe(event.set)


# -- connections --------------------------------------------------------------------------------------------


class _Race:
    """All addresses of a name, tried beside each other until one connects or all have failed."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._won: socket.socket | None = None
        self._scopes: dict[Target, list[anyio.CancelScope]] = {}
        self._failures: dict[Target, OSError] = {}
        self._ended = anyio.Event()

    async def run(self, targets: list[Target]) -> socket.socket:
        """The first socket that connects. Raises `Unreachable` once all have failed."""
        try:
            async with anyio.create_task_group() as self._tasks:
                await self._passes(targets)
        except BaseException:
            if self._won is not None:
                self._won.close()
            raise
        if self._won is not None:
            return self._won
        refused = all(isinstance(error, ConnectionRefusedError) for error in self._failures.values())
        telling = [error for error in self._failures.values() if not isinstance(error, ConnectionRefusedError)]
        error = (telling or list(self._failures.values()))[-1]
        raise Unreachable(f"{self._address}: {error.strerror or error}", refused=refused) from error

    async def _passes(self, targets: list[Target]) -> None:
        while True:
            again_s = anyio.current_time() + AGAIN_S
            for target in targets:
                self._begin(target)
                await self._wait([target], STAGGER_S)
            if await self._wait(targets, again_s - anyio.current_time()):
                if all(target in self._failures for target in targets):
                    return
                await anyio.lowlevel.checkpoint()  # cancelled: the tries were sooner to hear of it

    def _begin(self, target: Target) -> None:
        self._failures.pop(target, None)
        scopes = self._scopes.setdefault(target, [])
        if len(scopes) >= TRIES_MAX:
            scopes[0].cancel()
        scope = anyio.CancelScope()
        scopes.append(scope)
        self._tasks.start_soon(self._try, target, scope)

    async def _wait(self, targets: list[Target], seconds: float) -> bool:
        """Wait until all tries of ``targets`` have ended; False if they have not after ``seconds``."""
        with anyio.move_on_after(seconds):
            while any(self._scopes[target] for target in targets):
                self._ended = anyio.Event()
                await self._ended.wait()
            return True
        return False

    async def _try(self, target: Target, scope: anyio.CancelScope) -> None:
        sock: socket.socket | None = None
        try:
            with scope:
                sock = socket.socket(target.family, socket.SOCK_STREAM)
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await _connect(sock, target.where)
                if self._won is None:
                    self._won, sock = sock, None
                    self._tasks.cancel_scope.cancel()
        except OSError as error:
            self._failures[target] = error
        finally:
            if sock is not None:
                sock.close()
            self._scopes[target].remove(scope)
            self._ended.set()


async def _connect(sock: socket.socket, where: tuple[object, ...]) -> None:
    code = sock.connect_ex(where)
    if code in (errno.EINPROGRESS, errno.EWOULDBLOCK):
        await anyio.wait_writable(sock)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code).lower())
