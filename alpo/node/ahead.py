"""Large bodies of appends go to the other members before their entries are in the log.

An entry in the log keeps all later ones waiting until a majority holds it. A body that takes long to send is therefore
sent first, as a block beside whatever else there is to send; its entry is appended once a majority holds the body, and
refers to it. So small appends do not wait for large ones.

Laws:

* This is a matter of the connections alone: entries and their order are the core's, and whatever a connection lost, or
  did not take, is sent with its entry as always.
* Nothing goes ahead over links that are known to be quick.
* One request goes ahead at a time, a few more wait for their turn, and all others go the usual way. Appends of one
  connection stay in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from alpo.core.machine.verdicts import Accept
from alpo.core.replica import Replica
from alpo.core.requests import AppendRun
from alpo.wire.lanes import BLOCKS_MAX

from .admission import Appends
from .routes import Route, Routes

#: Shorter bodies go with their entries, always.
AHEAD_BYTES_MIN = 256 << 10
#: Requests that go ahead, or wait for their turn. The others' bytes count as taken and not yet guaranteed.
_REQUESTS_MAX = 4


class Steps(Protocol):
    """The driver, as far as this module needs it."""

    replica: Replica
    after_step: list[Callable[[], None]]

    def pump(self) -> None: ...


class Ahead:
    """Sender of large bodies; one for a server."""

    def __init__(self, driver: Steps, routes: Routes) -> None:
        self._driver = driver
        self._routes = routes
        self._turn = trio.Lock()
        self._number = 0
        self._requests = 0
        self._waits = False
        self._changed = trio.Event()
        driver.after_step.append(self._notice)

    def wants(self, request: Appends) -> bool:
        """True if these appends should go ahead by `post`."""
        return self._requests < _REQUESTS_MAX and self._is_worth_it(request)

    def _is_worth_it(self, request: Appends) -> bool:
        """True if bodies are so large that the members' links need long for them, and the appends are not in the log
        yet."""
        large_bytes = sum(len(body) for _, body in request.items if len(body) >= AHEAD_BYTES_MIN)
        if not large_bytes or not self._is_new(request):
            return False
        routes, needed = self._voters()
        if len(routes) < needed or not needed:
            return False
        rates = sorted((each.link.long_bytes_per_s or 0.0 for each in routes), reverse=True)
        return large_bytes > rates[needed - 1] * self._driver.replica.cfg.heartbeat_s

    def _is_new(self, request: Appends) -> bool:
        """True if this server leads, and would append some of it."""
        replica = self._driver.replica
        run = AppendRun(None, request.client, request.epoch, request.serial, request.items, request.sparse)
        verdicts = replica.sessions.judge(run, replica.last_id + 1, replica.guaranteed_id)
        return replica.reign is not None and any(isinstance(each, Accept) for each in verdicts)

    def _voters(self) -> tuple[list[Route], int]:
        """The connections to other voters, and how many of those must hold a block."""
        members = self._driver.replica.members
        ids = [voter.id for voter in members.other_voters()]
        found = [route for id in ids if (route := self._routes.dialled.get(id)) and route.full]
        return found, members.latest.majority - members.i_vote

    async def post(self, request: Appends, post: Callable[[], None]) -> None:
        """Send the large bodies ahead, then call ``post``, which hands the appends to the core."""
        self._requests += 1
        try:
            async with self._turn:
                if not self._is_worth_it(request):  # perhaps it was sent again, and is in the log by now
                    return post()
                large = [body for _, body in request.items if len(body) >= AHEAD_BYTES_MIN][:BLOCKS_MAX]
                routes, _ = self._voters()
                numbers = self._send(large, routes)
                try:
                    await self._until(lambda: self._is_held(routes, numbers))
                    post()
                    self._driver.pump()
                    reign, last_id = self._driver.replica.reign, self._driver.replica.last_id
                    await self._until(lambda: self._is_over(reign, last_id))
                finally:
                    self._forget(routes, numbers)
        finally:
            self._requests -= 1

    def _send(self, large: list[bytes], routes: list[Route]) -> list[int]:
        numbers = []
        for body in large:
            self._number = self._number + 1 & 0xFFFFFFFF
            numbers.append(self._number)
            self._routes.blocks[self._number] = body
        for route in routes:
            route.link.on_held = self._wake
            for number, body in zip(numbers, large, strict=True):
                route.sent_ahead.add(number)
                route.link.send_block(number, body)
        return numbers

    def _forget(self, routes: list[Route], numbers: list[int]) -> None:
        for number in numbers:
            del self._routes.blocks[number]
            for route in routes:
                route.sent_ahead.discard(number)
                route.link.forget_block(number)

    def _is_held(self, routes: list[Route], numbers: list[int]) -> bool:
        """True if enough members hold the blocks, or cannot any more, or this server does not lead."""
        open_for = {id(route) for route in self._voters()[0]}
        needed = self._voters()[1]
        with_all = [route for route in routes if route.link.held.issuperset(numbers) and id(route) in open_for]
        may_come = [route for route in routes if id(route) in open_for]
        return self._driver.replica.reign is None or len(with_all) >= needed or len(may_come) < needed

    def _is_over(self, reign: object, last_id: int) -> bool:
        replica = self._driver.replica
        return replica.reign is not reign or replica.guaranteed_id >= last_id

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for the condition, which is looked at after each step and each block that is held somewhere."""
        try:
            while not condition():
                self._waits, self._changed = True, trio.Event()
                await self._changed.wait()
        finally:
            self._waits = False

    def _notice(self) -> None:
        if self._waits:
            self._changed.set()

    def _wake(self) -> None:
        self._changed.set()
