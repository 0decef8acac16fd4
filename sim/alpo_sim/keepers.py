"""Operators who look after what the cluster keeps: what became of appends, settings, cursors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from alpo.core.inputs import ChangeSettings, DropCursor, Input, ListCursors, Outcome, SetCursor, ShowSettings, Trim
from alpo.core.ready import Code, Refused, Reply, SettingsAre

from .party import Party
from .writers import Writer

if TYPE_CHECKING:
    from .clients import Clients


#: What settings are changed to; some of it cannot be together.
_RANGES = {
    "window": (2, 64), "window_total": (8, 200), "sessions_max": (1, 16), "session_ttl_ms": (2000, 20_000),
    "payload_bytes_max": (4096, 1 << 20), "batch_bytes_max": (4096, 8 << 20),
}


class Keeper(Party):
    """Asks one thing after the other, most often about what is under way just now."""

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self._settings: dict[str, int] = {}  # as last told
        clients.after(clients.pause_us(), self._ask)

    def _ask(self) -> None:
        clients = self.clients
        if clients.closing:
            return
        request = self._request()
        if request is not None:
            clients.send(self.server, request)
        clients.after(2 * clients.pause_us(), self._ask)

    def _request(self) -> Input | None:
        """What to ask next."""
        return _ASKS[self.clients.rng.choice(self.clients.load.keep)](self)

    def _change(self) -> Input:
        """One or two settings, made on what was last told, which may be long ago. (Not ``names_max``: how many names
        there may be is checked elsewhere, against one number.)"""
        rng, now = self.clients.rng, self._settings
        if not now or rng.random() < 0.3:
            return ShowSettings(self.origin())
        names = rng.sample(sorted(_RANGES), rng.choice((1, 1, 2)))
        return ChangeSettings(self.origin(), tuple((name, now[name], rng.randint(*_RANGES[name])) for name in names))

    def _outcome(self) -> Input | None:
        """Of an append that is not answered yet, or was a moment ago; now and then of one long ago, or not yet made."""
        rng = self.clients.rng
        writers = [party for party in self.clients.parties if isinstance(party, Writer)]
        if not writers:
            return None
        writer = rng.choice(writers)
        waiting = [op.serial for op in writer.queue]
        answered = writer.next_serial - 1 - len(waiting)
        serial = rng.choice((*waiting[:1], answered, answered, rng.randint(1, writer.next_serial + 1)))
        return Outcome(self.origin(), writer.client, max(1, serial))

    def _cursor(self) -> Input:
        """One of a few, mostly moved on; now and then back, away, or trimmed over."""
        rng, chance = self.clients.rng, self.clients.rng.random()
        end_lsn = len(self.clients.world.safety.id_of_lsn)
        name = f"reader-{rng.randrange(4)}"
        if chance < 0.1:
            return DropCursor(self.origin(), name)
        if chance < 0.3:
            return ListCursors(self.origin())
        if chance < 0.4:
            return Trim(self.origin(), rng.randint(1, end_lsn + 1), rng.random() < 0.3)
        return SetCursor(self.origin(), name, max(1, end_lsn + 1 - rng.choice((0, 1, 5, 20, rng.randint(0, end_lsn)))))

    def heard(self, server: int, reply: Reply) -> None:
        if isinstance(reply, Refused):
            if reply.code is Code.CHANGED:
                self._settings = {}
            elif reply.code in (Code.NOT_LEADER, Code.LOST_LEADERSHIP):
                self.follow(reply)
            return
        self.server = server
        if isinstance(reply, SettingsAre):
            self._settings = reply.values


_ASKS: dict[str, Callable[[Keeper], Input | None]] = {
    "outcome": Keeper._outcome, "settings": Keeper._change, "cursor": Keeper._cursor,
}
