"""`KIND`: a state as a kind of machine that is folded from the log; and its `Folder`, which tells of variables.
A room of its own: this is where the variables meet the machinery.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from alpo.client.log import Log
from alpo.errors import AlpoError
from alpo.rsm import folder
from alpo.rsm.kind import Kind
from alpo.rsm.loading import Cache

from .codec import PAYLOADS
from .machine import Cell, Machine
from .parts import Decoder, Thawing, freeze

KIND = Kind(
    PAYLOADS, title="State", cursor="state", cache_magic=b"ALPO state 1\n", machine=Machine, freeze=freeze,
    thawing=Thawing, decoder=Decoder,
)


class Watcher(Protocol):
    """A party that is told of changes as they are folded."""

    def note(self, name: str, cell: Cell | None, time_ms: int) -> None:
        """Take the new state of one variable; None: it is gone."""

    def jumped(self, machine: Machine) -> None:
        """Take a whole new state, of which the changes in between are not known."""

    def ended(self, error: AlpoError) -> None:
        """Take note that the folding has ended, and why."""


class Folder(folder.Folder[Machine, Watcher]):
    """The fold of ``log`` into a state: see `alpo.rsm.folder.Folder`."""

    def __init__(self, log: Log, timeout_s: float, expect: bytes = b"", cache: Cache[Machine] | None = None) -> None:
        super().__init__(KIND, log, timeout_s, expect, cache)

    def tell(self, machine: Machine, touched: Sequence[str], time_ms: int) -> None:
        for name in touched:
            cell = machine.cells.get(name)
            for watcher in self._watchers:
                watcher.note(name, cell, time_ms)
