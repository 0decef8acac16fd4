"""`Update`: the tries of one `State.update`, each of which fetches a variable and stores what was made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from alpo.client.log import Log

from .codec import Guard, Op
from .command import Command
from .machine import Machine
from .variable import Expunge, If, Put, Variable, need_name, value_of, variable_of


class Home(Protocol):
    """The state that holds the variable, as far as an update needs it."""

    @property
    def log(self) -> Log: ...

    @property
    def timeout_s(self) -> float: ...

    async def folded(self, *, local: bool = False, until_s: float | None = None) -> Machine: ...

    async def command(self, guards: Sequence[Guard], ops: Sequence[Op], timeout_s: float | None = None) -> Command: ...


class Update:
    """An update of the variable ``name``: `fetch` it, `store` what it is to be, and again after `Changed`.

    Each try has the state's timeout, without what goes by between the two.
    """

    def __init__(self, state: Home, name: str) -> None:
        self._state = state
        self._name = need_name(name)
        self._variable = Variable(name)
        self._left_s = 0.0
        #: True after the first try: its refusal was folded here.
        self._again = False

    async def fetch(self) -> Variable:
        """The variable: as of now; in later tries as of the refusal of the one before, at least. Raises as
        `State.fetch`."""
        clock = self._state.log.clock
        until_s = clock.now_s() + self._state.timeout_s
        machine = await self._state.folded(local=self._again, until_s=until_s)
        self._again = True
        self._variable = variable_of(self._name, machine.cells.get(self._name))
        self._left_s = until_s - clock.now_s()
        return self._variable

    async def store(self, wanted: Any) -> Variable:
        """Write bytes, text, what JSON can hold, or None to take the variable away. Raises `Changed`, and as
        `State.commit`."""
        variable = self._variable
        op = Expunge(self._name).plain()
        if wanted is not None:
            plain = isinstance(wanted, bytes | bytearray | memoryview | str)
            changed = variable.mutate(wanted) if plain else variable.mutate(json=wanted)
            op = Put(self._name, value_of(changed), lease_s=changed.lease_s).plain()
        elif not variable.version:
            return variable
        guard = If(self._name, version=variable.version)
        result = await (await self._state.command([guard.plain()], [op], self._left_s)).result()
        return variable_of(self._name, result.cell) if wanted is not None else Variable(self._name)
