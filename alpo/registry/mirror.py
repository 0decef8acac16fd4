"""`Mirror`: one registry's header and rows, kept as the state is folded."""

from __future__ import annotations

from collections.abc import Callable

from alpo.errors import AlpoError
from alpo.state.codec import ROW_MARK
from alpo.state.machine import Machine
from alpo.state.shapes import Cell
from alpo.state.state import State

from .header import rows_of


class Mirror:
    """The registry ``name`` as this process has folded it, from `open` until `close`.

    ``on_header`` is called before a new header (None: it is gone) is taken over, and may `close` the mirror, which then
    stays as it was; ``on_row`` after each row that was written or removed, ``on_jump`` after the state was loaded anew
    (it gets the rows of before), ``on_end`` once the folding has ended.
    """

    def __init__(self, state: State, name: str) -> None:
        self._state = state
        self._name = name
        self._prefix = name + ROW_MARK
        self._start = len(self._prefix)
        self._open = False
        self.values: dict[str, bytes] = {}
        self.header: Cell | None = None
        #: LSN of the last write to the header or a row.
        self.version = 0
        self.on_header: Callable[[Cell | None], None] = lambda cell: None
        self.on_row: Callable[[str], None] = lambda id: None
        self.on_jump: Callable[[dict[str, bytes]], None] = lambda before: None
        self.on_end: Callable[[AlpoError], None] = lambda error: None

    @property
    def token(self) -> int:
        """LSN of the header's last write; 0 without a header."""
        return 0 if self.header is None else self.header.version

    def open(self, machine: Machine) -> None:
        """Take what is folded now, and then every change."""
        self._open = True
        self._load(machine)
        self._state.subscribe(self)

    def close(self) -> None:
        """Take no more changes; `leave` follows."""
        self._open = False

    def leave(self) -> None:
        """Close, and be told no more. Not to be called by what the mirror calls: it is in the middle of telling."""
        self._open = False
        self._state.unsubscribe(self)

    def _load(self, machine: Machine) -> None:
        self.header = machine.cells.get(self._name)
        self.values.clear()
        self.values.update(rows_of(self._name, machine))
        self.version = self.token

    # -- told by the state ---------------------------------------------------------------------------------

    def note(self, name: str, cell: Cell | None, time_ms: int) -> None:
        """Take a change of one variable."""
        if not self._open:
            return
        if name.startswith(self._prefix):
            id = name[self._start:]
            if cell is None:
                self.values.pop(id, None)
            else:
                self.values[id] = cell.value
        elif name == self._name:
            self.on_header(cell)
            if not self._open:
                return
            self.header = cell
            id = ""
        else:
            return
        self.version = self._state.lsn
        self.on_row(id)

    def jumped(self, machine: Machine) -> None:
        """Take a whole new state."""
        if not self._open:
            return
        header = machine.cells.get(self._name)
        if (0 if header is None else header.version) != self.token:
            self.on_header(header)
        if self._open:
            before = dict(self.values)
            self._load(machine)
            self.version = machine.lsn
            self.on_jump(before)

    def ended(self, error: AlpoError) -> None:
        """Take note that the folding has ended."""
        if self._open:
            self.on_end(error)
