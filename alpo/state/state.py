"""`State`: versioned variables that all processes of a program share, kept in the log.

Laws:

* A write happens if its conditions hold at the LSN where it lands, and nowhere else is that judged. It is sent once:
  the log makes it land once, and its outcome is what the fold says at that LSN.
* A fetch sees every write that was acknowledged to anybody before it began.
* `Changed` and every other error but `NotGuaranteed` and `Unsettled` mean that nothing was written.
* A row belongs to another variable, and can be written only by whoever holds that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from os import PathLike
from typing import Any, Literal, NamedTuple, cast

from alpo.client.arguments import need_seconds
from alpo.client.log import Log
from alpo.client.log import connect as connect_log
from alpo.errors import TooLarge
from alpo.rsm.loading import Cache
from alpo.rsm.machine import Result, time_of
from alpo.rsm.outcomes import Command
from alpo.rsm.replicated import Replicated, owning
from alpo.tls import Tls

from . import codec
from .codec import OPS_MAX, ROW_MARK, Guard, Limits, Op
from .errors import Changed
from .folder import KIND, Folder, Watcher
from .machine import Machine
from .outcomes import About, judged, need_fences, refuse_at_once, refuse_unfounded
from .variable import (
    UNSET,
    Add,
    Expunge,
    If,
    Keep,
    Operation,
    Put,
    Value,
    Variable,
    id_of,
    need,
    need_name,
    need_variable,
    value_of,
    variable_of,
)
from .watching import Watch


class StateStatus(NamedTuple):
    """A state as this process has folded it, at ``lsn``.

    ``state``: its id, hex, "" before it is founded. ``bytes``: of names and values. ``invalid``: payloads that look
    like the state's and are none. ``foreign_lsn``: the last payload of others. ``snapshot`` and ``previous``: (first,
    last) LSN of the last two accepted, None without. ``bytes_since``: bytes of commands since the last one began.
    """

    state: str
    lsn: int
    time: datetime
    variables: int
    bytes: int
    invalid: int
    foreign_lsn: int
    snapshot: tuple[int, int] | None
    previous: tuple[int, int] | None
    bytes_since: int


class State(Replicated[Machine, Watcher]):
    """The state in ``log``, which stays the caller's, for one event loop: in another, every call raises RuntimeError.

    Use it in ``async with``; or as it is, and await `close` at the end: then its tasks begin with the first call, and
    end with the loop at the latest. It may be entered, used and left by different tasks.

    ``create``: the first write founds the state if the log holds none; else it raises `NotFounded`. ``expect``: the id
    (hex, see `status`) of the state that it must be; `WrongState` is raised for another. ``timeout_s``: seconds until
    each call ends, whatever it has to ask for (None: the log's); of an `update`, each of its tries, without the
    function; of a `snapshot`, each of its appends. ``snapshots``: "auto" keeps the log short, "off" is
    for programs that only read, or live shortly. ``cache``: a file that saves the next process of this kind to read the
    log; whatever is wrong with it is ignored. Its calls may come from any number of tasks.
    """

    def __init__(
        self, log: Log, *, create: bool = True, expect: str | None = None, timeout_s: float | None = None,
        snapshots: Literal["auto", "off"] = "auto", cache: str | PathLike[str] | None = None,
    ) -> None:
        if snapshots not in ("auto", "off"):
            raise ValueError(f'snapshots is "auto" or "off", not {snapshots!r}')
        if timeout_s is None:
            timeout_s = log.timeout_s
        need_seconds(timeout_s)
        state_id = b"" if expect is None else id_of(expect)
        kept = None if cache is None else Cache(KIND, cache, state_id)
        folder = Folder(log, timeout_s, state_id, kept)
        super().__init__(folder, judged, create=create, auto=snapshots == "auto")

    def __repr__(self) -> str:
        return f"<State as of LSN {self.lsn}, in {self._log!r}>"

    # -- reading --------------------------------------------------------------------------------------------

    async def fetch(self, name: str, *, local: bool = False, at_least: int | None = None) -> Variable:
        """The variable ``name``; one that is not there has version 0 and the value None.

        Linearizable; or ``local``: as this process has folded it, without a message; or ``at_least``: not older than
        that LSN, which somebody else told. Raises TypeError, ValueError, `Unavailable`, and what ended the folding
        (`Unrecoverable`, `NewerFormat`, `Diverged`, `WrongState`, `Closed`).
        """
        need_name(name)
        machine = await self.folded(local=local, at_least=at_least)
        return variable_of(name, machine.cells.get(name))

    async def names(self, prefix: str = "", *, local: bool = False) -> list[str]:
        """The names of all variables that begin with ``prefix``, sorted; rows are left out. Raises as `fetch`."""
        need(prefix, str)
        machine = await self.folded(local=local)
        return sorted(name for name in machine.cells if name.startswith(prefix) and ROW_MARK not in name)

    def watch(self, prefix: str = "", *, every: bool = False) -> Watch:
        """The variables that begin with ``prefix`` as they are now, and then whenever they change; see `Watch`."""
        need(prefix, str)
        return Watch(self._folder, prefix, every)

    async def status(self, *, local: bool = False) -> StateStatus:
        """Tell what the fold has. Raises as `fetch`."""
        m = await self.folded(local=local)
        last, previous = (None if each is None else (each.begin, each.end) for each in (m.snapshot, m.previous))
        return StateStatus(
            m.state_id.hex(), m.lsn, time_of(m.time_ms), len(m.cells), m.bytes, m.invalid, m.foreign_lsn, last,
            previous, m.bytes_since,
        )

    # -- writing --------------------------------------------------------------------------------------------

    async def store(self, variable: Variable) -> Variable:
        """Write a variable that was fetched, and then changed by `Variable.mutate`: only if it is still as it was
        fetched. Returns it with its new version.

        Raises `Changed` (nothing written), and as `commit`.
        """
        need_variable(variable)
        put = Put(variable.name, value_of(variable), lease_s=variable.lease_s)
        return await self._put(put, If(variable.name, version=variable.version))

    async def put(
        self, name: str, value: Value | None = UNSET, *, json: object = UNSET, lease_s: float | None = None
    ) -> Variable:
        """Write a variable, whatever is there; the value None takes it away. Raises as `commit`."""
        if value is None and json is UNSET:
            return await self._expunge(name)
        return await self._put(Put(name, cast(Value, value), json=json, lease_s=lease_s))

    async def expunge(self, variable: Variable) -> Variable:
        """Take away a variable that was fetched, if it is still as it was. Raises `Changed`, and as `commit`."""
        need_variable(variable)
        return await self._expunge(variable.name, If(variable.name, version=variable.version))

    async def update(self, name: str, function: Callable[[Variable], Any]) -> Variable:
        """Fetch, call ``function`` with the variable, and store what it returns; again until nobody came between.

        It returns bytes or text, None to take the variable away, or else what JSON can hold. It may be called several
        times. Raises what it raises, and as `commit`.
        """
        update = Update(self, name)
        while True:
            wanted = function(await update.fetch())
            try:
                return await update.store(wanted)
            except Changed:
                continue

    async def add(self, name: str, number: int = 1) -> int:
        """Add to a counter, which is 0 if it is not there; returns the sum. One append, no conflict, never twice.

        Raises `NoInteger` (nothing written), and as `commit`.
        """
        result = await self._do([], [Add(name, number).plain()])
        return result.sums[0]

    async def keep(self, variable: Variable) -> Variable:
        """Let the lease of a variable begin anew, if it is still the one that was fetched (others may have written it
        since); its version stays. Returns it as of then: others may have taken it away by now. Raises `Changed`, and as
        `commit`."""
        need_variable(variable)
        if variable.lease_s is None:
            raise ValueError(f"{variable.name!r} has no lease")
        guard = If(variable.name, created=variable.created)
        result = await self._do([guard.plain()], [Keep(variable.name, variable.lease_s).plain()])
        return variable_of(variable.name, result.cell)

    async def commit(self, guards: Iterable[If], operations: Iterable[Operation]) -> int:
        """Do all ``operations``, on any number of variables, if all ``guards`` hold, else none; returns their LSN.

        A row (`rows`) needs a guard on its owner that is not 0. Raises `Changed`, `Full`, `NoInteger`, `NotFounded`,
        `TooLarge` and as `Log.append` (nothing written); `NotGuaranteed` (unknown; it stays first in line: `settle`),
        `Unsettled`; TypeError, ValueError.
        """
        held = [need(guard, If).plain() for guard in guards]
        ops = [need(operation, Operation).plain() for operation in operations]
        if not ops:
            raise ValueError("a commit has one operation or more")
        return (await self._do(held, ops)).lsn

    def rows(self, owner: str, fence: int | None = None) -> Rows:
        """The rows of the variable ``owner``, see `Rows`; to write them takes its ``fence``."""
        return Rows(self, owner, fence)

    # -- for libraries built on a state ---------------------------------------------------------------------

    async def command(self, guards: Sequence[Guard], ops: Sequence[Op], timeout_s: float | None = None) -> Command:
        """Send what `commit` sends, in the plain form (`If.plain`, `Put.plain` …), and return without waiting for its
        outcome: `Command.result` tells it.

        ``timeout_s``: seconds until the result has to be there (None: the state's). Raises as `commit`, if nothing was
        sent.
        """
        until_s = None if timeout_s is None and self._ready else self._folder.until_s(timeout_s)
        if len(guards) > OPS_MAX or len(ops) > OPS_MAX:
            raise TooLarge(f"a command of {max(len(guards), len(ops))} conditions or operations: {OPS_MAX} is the most")
        need_fences(guards, ops)
        if self._folder.machine is not None:
            refuse_at_once(self._folder.machine, guards)
        if until_s is not None:
            await self._need_founded(guards, until_s)
        payloads = codec.command(guards, ops, self._payload_bytes_max)
        return Command(await self._send(payloads, About(guards, ops), until_s), self._settling)

    # -- inside ---------------------------------------------------------------------------------------------

    async def _put(self, put: Put, *guards: If) -> Variable:
        op = put.plain()
        result = await self._do([guard.plain() for guard in guards], [op])
        return variable_of(op[1], result.cell)

    async def _expunge(self, name: str, *guards: If) -> Variable:
        await self._do([guard.plain() for guard in guards], [Expunge(name).plain()])
        return Variable(name)

    async def _do(self, guards: Sequence[Guard], ops: Sequence[Op]) -> Result:
        """Append a command, and return what the fold says of it."""
        return await (await self.command(guards, ops)).result()

    async def _need_founded(self, guards: Sequence[Guard], until_s: float) -> None:
        """Found the state, unless the log holds one already. Raises `NotFounded` if this program must not, `Changed` if
        the guards could not hold in it, `Unavailable` at the deadline."""
        if not self._ready:
            await self._make_ready(until_s, partial(refuse_unfounded, guards))

    def _founding_payload(self, id: bytes) -> bytes:
        return codec.found(id, Limits())


def connect(
    servers: str | Sequence[str] | None = None, client: str | None = None, timeout_s: float = 10.0, *,
    create: bool = True, expect: str | None = None, snapshots: Literal["auto", "off"] = "auto",
    cache: str | PathLike[str] | None = None, tls: Tls | None = None, log: str | None = None,
) -> State:
    """The state in the log of a cluster: for ``async with``, under trio or asyncio.

    ``servers``, ``client``, ``timeout_s``, ``tls`` and ``log`` are as of `alpo.connect`, the others as of `State`.
    """
    made = connect_log(servers, client, timeout_s, tls=tls, log=log)
    return owning(State(made, create=create, expect=expect, timeout_s=timeout_s, snapshots=snapshots, cache=cache))


class Rows:
    """The rows of the variable ``owner``. ``fence``: `Variable.created` of the owner, a lock's token, say: every write
    is refused, with `Changed`, once the owner is gone or was made anew. Without a fence rows can only be read.

    A row's name is any name of a variable. Its `Variable` carries the whole name: owner, NUL, row.
    """

    def __init__(self, state: State, owner: str, fence: int | None) -> None:
        self._state = state
        self._owner = _simple(owner)
        self._fence = fence

    def __repr__(self) -> str:
        return f"<Rows of {self._owner!r}{'' if self._fence is None else f', fence {self._fence}'}>"

    def name(self, row: str) -> str:
        """The whole name of a row, for `State.commit`. Raises TypeError, ValueError."""
        return need_name(f"{self._owner}{ROW_MARK}{_simple(row)}")

    async def fetch(self, row: str, *, local: bool = False, at_least: int | None = None) -> Variable:
        """The row, as `State.fetch` gives a variable."""
        return await self._state.fetch(self.name(row), local=local, at_least=at_least)

    async def names(self, *, local: bool = False) -> list[str]:
        """The names of all rows, sorted, without the owner's. Raises as `State.fetch`."""
        machine = await self._state.folded(local=local)
        begin = self._owner + ROW_MARK
        return sorted(name[len(begin) :] for name in machine.cells if name.startswith(begin))

    async def put(
        self, row: str, value: Value | None = UNSET, *, json: object = UNSET, lease_s: float | None = None
    ) -> int:
        """Write a row, whatever is there; None takes it away. Returns the LSN. Raises as `State.commit`."""
        name = self.name(row)
        if value is None and json is UNSET:
            return await self._commit(Expunge(name))
        return await self._commit(Put(name, cast(Value, value), json=json, lease_s=lease_s))

    async def _commit(self, operation: Operation) -> int:
        if self._fence is None:
            raise ValueError(f"rows of {self._owner!r} are written with a fence: State.rows(owner, fence=…)")
        return await self._state.commit([If(self._owner, created=self._fence)], [operation])


def _simple(name: str) -> str:
    """``name``, once checked: no row's. Raises TypeError, ValueError."""
    if ROW_MARK in need_name(name):
        raise ValueError(f"{name!r} is the name of a row")
    return name


class Update:
    """An update of the variable ``name``: `fetch` it, `store` what it is to be, and again after `Changed`.

    Each try has the state's timeout, without what goes by between the two.
    """

    def __init__(self, state: State, name: str) -> None:
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
