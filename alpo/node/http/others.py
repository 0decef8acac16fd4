"""The other members' own accounts of themselves, asked for as long as somebody looks.

Laws:

* Each is asked once a second, all at the same time; one that does not answer within a second delays no other, and is
  not asked again before it has answered, or could not be reached.
* Nobody is asked once nobody has looked for a while, and the connections are closed then.
* A member that does not answer keeps its last account, with its age.
"""

from __future__ import annotations

import math
from typing import Any

import trio

from alpo.node.digests import Inquiry, Unusable
from alpo.node.report import Report
from alpo.wire.requests import VERSION

#: Seconds between two rounds, for one answer, and after the last look until nobody is asked any more.
ROUND_S, ANSWER_S, LOOKED_S = 1.0, 1.0, 10.0


class _Other:
    """Knowledge of one member. ``fields`` None: it never answered."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] | None = None
        self.answered_s = -math.inf
        self.problem = "not asked yet"
        self.inquiry: Inquiry | None = None
        self.is_asked = False


class Others:
    """All other members."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._known: dict[int, _Other] = {}
        self._looked_s = self._asked_s = -math.inf
        self._wanted = trio.Event()
        self._asked = trio.Condition()
        self._answered = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        """Ask while somebody looks, until cancelled."""
        try:
            while True:
                await self._wanted.wait()
                async with trio.open_nursery() as nursery:
                    await self._ask_while_looked_at(nursery)
                    nursery.cancel_scope.cancel()
                self._wanted = trio.Event()
                self._asked_s = -math.inf
                self._hang_up()
        finally:
            self._hang_up()

    async def _ask_while_looked_at(self, nursery: trio.Nursery) -> None:
        while trio.current_time() - self._looked_s < LOOKED_S:
            began_s = trio.current_time()
            await self._round(nursery)
            async with self._asked:
                self._asked_s = trio.current_time()
                self._asked.notify_all()
            await trio.sleep_until(began_s + ROUND_S)

    async def rows(self, own: dict[str, Any]) -> list[dict[str, Any]]:
        """A row for each member, by id, of which ``own`` is this server's. Keys are those of `alpo status --json`, and
        ``age_s``: seconds since it answered, None if it never did; ``problem``: why it does not."""
        self._looked_s = trio.current_time()
        self._wanted.set()
        with trio.move_on_after(ANSWER_S + 0.5):
            async with self._asked:
                while self._looked_s - self._asked_s > 2 * ROUND_S + ANSWER_S:
                    await self._asked.wait()
        found = {self._report.host.us.me.id: {**own, "age_s": 0.0, "problem": None}}
        now_s = trio.current_time()
        for id, address in self._members().items():
            other = self._known.get(id) or _Other()
            row = dict(other.fields or {"id": id, "address": address})
            row["id"], row["reachable"] = id, not other.problem
            row["age_s"] = round(now_s - other.answered_s, 1) if other.fields is not None else None
            row["problem"] = other.problem or None
            found[id] = row
        return [found[id] for id in sorted(found)]

    def _members(self) -> dict[int, str]:
        """The other members' addresses, by id."""
        r = self._report.replica
        listed = {member.id: member.address for member in r.members.latest.replicas}
        found = listed or {one.id: one.address for one in r.cfg.configured}
        return {id: address for id, address in found.items() if id != self._report.host.us.me.id}

    async def _round(self, nursery: trio.Nursery) -> None:
        """Ask all that are not still being asked; returns once they have answered, or after `ANSWER_S`."""
        members = self._members()
        for id in [id for id in self._known if id not in members]:
            self._close(self._known.pop(id))
        for id, address in members.items():
            other = self._known.setdefault(id, _Other())
            if not other.is_asked:
                other.is_asked = True
                nursery.start_soon(self._ask, id, address, other)
        with trio.move_on_after(ANSWER_S):
            while any(other.is_asked for other in self._known.values()):
                await self._answered.park()
        for other in self._known.values():
            if other.is_asked:
                other.problem = other.problem or "no answer within a second"

    async def _ask(self, id: int, address: str, other: _Other) -> None:
        answered = False
        try:
            if other.inquiry is None:
                report = self._report
                peer = report.host.peers.by_id.get(id)
                version = peer.route.version if peer is not None and peer.route is not None else VERSION
                other.inquiry = await Inquiry.open(id, address, report.replica.cluster, report.host.security, version)
            with trio.move_on_after(ANSWER_S):
                other.fields = await other.inquiry.status()
                other.answered_s, other.problem, answered = trio.current_time(), "", True
            if not answered:
                other.problem = "no answer within a second"
        except Unusable as error:
            other.problem = str(error)
        except Exception as error:  # an answer that makes no sense is no reason to end this server
            other.problem = f"its answer makes no sense: {type(error).__name__}"
        finally:
            other.is_asked = False
            if not answered:
                self._close(other)
            self._answered.unpark_all()

    def _hang_up(self) -> None:
        for other in self._known.values():
            self._close(other)

    def _close(self, other: _Other) -> None:
        inquiry, other.inquiry = other.inquiry, None
        if inquiry is not None:
            inquiry.close()
