"""Session tables are a function of the log: equal at equal (id, term) on all servers, however they came there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from alpo.core.disk import Write
from alpo.core.entries import Entry
from alpo.core.inputs import Input
from alpo.core.machine.verdicts import SessionTable
from alpo.core.members import MemberList
from alpo.core.messages import Envelope
from alpo.core.ready import Ready
from alpo.core.settings import Settings

from ..broken import Broken
from ..host import Host
from .plain import PlainTable

EVERY_IDS = 16


class Tables:
    """Compares whenever the head of a log stands at a multiple of `EVERY_IDS`, and when told to.

    The one log is applied to a table of our own too, entry by entry: what no right leader appends is seen there.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._straight = SessionTable(settings or Settings())
        #: The same in words of our own: what is wrong everywhere in the same way is seen there.
        self.plain = PlainTable(settings or Settings())
        self._at: dict[tuple[int, int], tuple[Any, int]] = {}  # (last id, its term) -> (table, whose)
        self._lists: dict[tuple[int, int], tuple[MemberList, int]] = {}
        self._checked: dict[int, tuple[int, int]] = {}

    def guaranteed(self, entry: Entry) -> None:
        """The next entry of the one log."""
        wrong = self._straight.inconsistency(entry)
        if wrong:
            raise Broken("sessions", wrong)
        self._straight.apply(entry)
        self._straight.settle(entry.id)
        self.plain.apply(entry)
        if self.plain.names > self.plain.settings.names_max:
            raise Broken("sessions", f"entry {entry.id} opens one name more than there may be")
        if entry.id % EVERY_IDS == 0:
            table = self._straight.state()
            if table != self.plain.state():
                raise Broken("equal tables", f"the table and a plain account of the log differ at entry {entry.id}")
            self._compare((entry.id, entry.term), table, 0)

    def booted(self, host: Host) -> None:
        self.compare(host)

    def sent(self, host: Host, envelope: Envelope) -> None:
        return

    def committing(self, host: Host, writes: Sequence[Write]) -> None:
        return

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        if ready.write is not None and host.replica is not None and host.replica.log.last_id % EVERY_IDS == 0:
            self.compare(host)

    def compare(self, host: Host) -> None:
        """The table of ``host`` with whoever's stood at the same entry before."""
        replica = host.replica
        if replica is None or not replica.first_start.started or replica.applied_id > replica.log.last_id:
            return  # none yet, or one that came with a base and is ahead of the log
        place = (replica.log.last_id, replica.log.last_term)
        if self._checked.get(host.id) == place:
            return
        self._checked[host.id] = place
        self._compare(place, replica.sessions.state(), host.id)
        if not replica.log.last_id:
            return  # of first lists *first start* says what is wrong
        members = replica.members.latest
        known, other = self._lists.setdefault(place, (members, host.id))
        if known != members:
            raise Broken("equal tables", f"member lists of servers {other} and {host.id} differ at entry {place[0]}")

    def _compare(self, place: tuple[int, int], table: Any, whose: int) -> None:
        known, other = self._at.setdefault(place, (table, whose))
        if known != table:
            names = [f"server {id}" if id else "the log itself" for id in (other, whose)]
            raise Broken("equal tables", f"{' and '.join(names)} differ at entry {place[0]} of term {place[1]}")
