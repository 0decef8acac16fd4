"""`State`: versioned variables that all processes of a program share, kept in the log.

Laws:

* A write happens if its conditions hold at the LSN where it lands, and nowhere else is that judged. It is sent once:
  the log makes it land once, and its outcome is what the fold says at that LSN.
* A fetch sees every write that was acknowledged to anybody before it began.
* `Changed` and every other error but `NotGuaranteed` and `Unsettled` mean that nothing was written.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self, cast

import anyio
from anyio.abc import TaskGroup

from alpo.client.log import Log
from alpo.client.log import connect as connect_log
from alpo.client.tasks import News
from alpo.errors import AlpoError, Closed, NotGuaranteed, TooLarge, Unavailable
from alpo.tls import Tls

from . import codec
from .cache import Cache
from .codec import INT_MAX, OPS_MAX, ROW_MARK, Guard, Limits, Op
from .errors import Changed, NotFounded
from .folder import ENDED, Folder, Sent
from .keeper import Keeper
from .loading import CURSOR
from .machine import Machine
from .rows import Rows
from .settling import Settling
from .shapes import Outcome, Result, StateStatus
from .snapshots import SnapshotInfo
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
    time_of,
    value_of,
    variable_of,
)
from .verdicts import judged, need_fences, refuse_at_once, refuse_unfounded
from .watching import Watch

#: Longest wait of a state that is left for what its locks still have to give back.
LAST_S = 2.0


class State:
    """The state in ``log``, which stays the caller's. Use it in ``async with``.

    ``create``: the first write founds the state if the log holds none; else it raises `NotFounded`. ``expect``: the id
    (hex, see `status`) of the state that it must be; `WrongState` is raised for another. ``timeout_s``: for reads, and
    for the wait until a write is folded; appends have the log's. ``snapshots``: "auto" keeps the log short, "off" is
    for programs that only read, or live shortly. ``cache``: a file that saves the next process of this kind to read the
    log; whatever is wrong with it is ignored. Its calls may come from any number of tasks.
    """

    def __init__(
        self, log: Log, *, create: bool = True, expect: str | None = None, timeout_s: float = 10.0,
        snapshots: Literal["auto", "off"] = "auto", cache: str | PathLike[str] | None = None,
    ) -> None:
        if snapshots not in ("auto", "off"):
            raise ValueError(f'snapshots is "auto" or "off", not {snapshots!r}')
        self._log = log
        self._create = create
        self._timeout_s = timeout_s
        state_id = b"" if expect is None else id_of(expect)
        self._cache = None if cache is None else Cache(cache, state_id)
        self._folder = Folder(log, timeout_s, state_id, self._cache)
        self._keeper = Keeper(self._folder, snapshots == "auto")
        self._owns_log = False
        self._tasks: TaskGroup | None = None
        self._founding = anyio.Lock()
        self._unsettled = Settling(self._folder)
        #: Tasks that leaving waits for, `LAST_S` at most; told when one ends.
        self._last = 0
        self._last_done = News()
        #: Asked for before the first write; 0 until then.
        self._payload_bytes_max = 0

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            raise RuntimeError("a State is entered once")
        if self._owns_log:
            await self._log.__aenter__()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._folder.run)
        self._tasks.start_soon(self._folder.ask_ends)
        self._tasks.start_soon(self._keeper.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        try:
            with self._log._move_on_after(LAST_S, shield=True):
                while self._last:
                    await self._last_done.wait()
            self._folder.fail(Closed(ENDED))
            self._tasks.cancel_scope.cancel()
            await self._tasks.__aexit__(None, None, None)
            if self._cache is not None:
                await self._cache.put(self._folder)
        finally:
            if self._owns_log:
                await self._log.__aexit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<State as of LSN {self.lsn}, in {self._log!r}>"

    @property
    def log(self) -> Log:
        """The log that holds this state."""
        return self._log

    @property
    def lsn(self) -> int:
        """The LSN up to which this process has folded the log; 0 before it has begun."""
        return 0 if self._folder.machine is None else self._folder.machine.lsn

    @property
    def time(self) -> datetime:
        """The time of the entry at `lsn`, on the log's clock."""
        return time_of(0 if self._folder.machine is None else self._folder.machine.time_ms)

    # -- reading --------------------------------------------------------------------------------------------

    async def fetch(self, name: str, *, local: bool = False, at_least: int | None = None) -> Variable:
        """The variable ``name``; one that is not there has version 0 and the value None.

        Linearizable; or ``local``: as this process has folded it, without a message; or ``at_least``: not older than
        that LSN, which somebody else told. Raises TypeError, ValueError, `Unavailable`, and what ended the folding
        (`Unrecoverable`, `NewerFormat`, `Diverged`, `WrongState`, `Closed`).
        """
        need_name(name)
        machine = await self._machine(local, at_least)
        return variable_of(name, machine.cells.get(name))

    async def names(self, prefix: str = "", *, local: bool = False) -> list[str]:
        """The names of all variables that begin with ``prefix``, sorted; rows are left out. Raises as `fetch`."""
        need(prefix, str)
        machine = await self._machine(local, None)
        return sorted(name for name in machine.cells if name.startswith(prefix) and ROW_MARK not in name)

    async def _machine(self, local: bool, at_least: int | None) -> Machine:
        """The fold, as new as asked for."""
        self._need_entered()
        if at_least is not None:
            if not isinstance(at_least, int) or isinstance(at_least, bool) or not 0 <= at_least <= INT_MAX:
                raise ValueError(f"at_least is an LSN, not {at_least!r}")
            machine = await self._folder.reach(at_least)
        else:
            machine = await (self._folder.reach(0) if local else self._folder.now())
        if not self._create and not machine.founded:
            raise NotFounded("this log holds no state: the first write of a program that may create one makes it")
        return machine

    def watch(self, prefix: str = "", *, every: bool = False) -> Watch:
        """The variables that begin with ``prefix`` as they are now, and then whenever they change; see `Watch`."""
        need(prefix, str)
        return Watch(self._folder, prefix, every)

    async def status(self, *, local: bool = False) -> StateStatus:
        """Tell what the fold has. Raises as `fetch`."""
        m = await self._machine(local, None)
        last, previous = (None if each is None else (each.begin, each.end) for each in (m.snapshot, m.previous))
        return StateStatus(
            m.state_id.hex(), m.lsn, time_of(m.time_ms), len(m.cells), m.bytes, m.invalid, m.foreign_lsn, last,
            previous, m.bytes_since,
        )

    async def snapshot(self, *, trim: bool = False) -> SnapshotInfo:
        """Put the whole state into the log now, so that newcomers need nothing older; ``trim``: and let go what is
        older than the snapshot before it, unless the log holds payloads of others.

        Raises `Busy` if another process does so, `NotFounded`, `Diverged`, `Unsettled`; `Refused` for a trim; and as
        `Log.append`. Whatever it raises, no harm is done.
        """
        return await self._keeper.snapshot(trim)

    # -- writing --------------------------------------------------------------------------------------------

    async def store(self, variable: Variable) -> Variable:
        """Write a variable that was fetched, and then changed by `Variable.mutate`: only if it is still as it was
        fetched. Returns it with its new version.

        Raises `Changed` (nothing written), and as `commit`.
        """
        need_variable(variable)
        put = Put(variable.name, value_of(variable), lease_s=variable.lease_s)
        return await self._put([If(variable.name, version=variable.version)], put)

    async def put(
        self, name: str, value: Value | None = UNSET, *, json: object = UNSET, lease_s: float | None = None
    ) -> Variable:
        """Write a variable, whatever is there; the value None takes it away. Raises as `commit`."""
        if value is None and json is UNSET:
            return await self._expunge([], name)
        return await self._put([], Put(name, cast(Value, value), json=json, lease_s=lease_s))

    async def expunge(self, variable: Variable) -> Variable:
        """Take away a variable that was fetched, if it is still as it was. Raises `Changed`, and as `commit`."""
        need_variable(variable)
        return await self._expunge([If(variable.name, version=variable.version)], variable.name)

    async def update(self, name: str, function: Callable[[Variable], Any]) -> Variable:
        """Fetch, call ``function`` with the variable, and store what it returns; again until nobody came between.

        It returns bytes or text, None to take the variable away, or else what JSON can hold. It may be called several
        times. Raises what it raises, and as `commit`.
        """
        variable = await self.fetch(name)
        while True:
            wanted = function(variable)
            try:
                return await self._write_update(variable, wanted)
            except Changed:
                variable = await self.fetch(name, local=True)  # as of that refusal, at least

    async def _write_update(self, variable: Variable, wanted: Any) -> Variable:
        """Store what the function of an `update` returned."""
        if wanted is None:
            return await self.expunge(variable) if variable.version else variable
        if isinstance(wanted, bytes | bytearray | memoryview | str):
            return await self.store(variable.mutate(wanted))
        return await self.store(variable.mutate(json=wanted))

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

    async def settle(self) -> dict[int, int | AlpoError]:
        """Wait until every write that was told as `NotGuaranteed` has an outcome; returns those that came since the
        last call: serial -> LSN, or the error that it ended with. Raises `Unavailable` at the deadline."""
        return await self._unsettled.settle()

    def rows(self, owner: str, fence: int | None = None) -> Rows:
        """The rows of the variable ``owner``, see `Rows`; to write them takes its ``fence``."""
        return Rows(self, owner, fence)

    def _start_soon(self, job: Callable[[], Coroutine[Any, Any, None]], last: bool = False) -> None:
        """Start a task that ends with this state at the latest; ``last``: leaving waits a moment for it."""
        self._need_entered().start_soon(self._run_last if last else job, *((job,) if last else ()))

    async def _run_last(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._last += 1
        try:
            await job()
        finally:
            self._last -= 1
            self._last_done.tell()

    def _need_entered(self) -> TaskGroup:
        """The tasks of this state. Raises RuntimeError before it was entered."""
        if self._tasks is None:
            raise RuntimeError("use the State in an `async with`")
        return self._tasks

    # -- inside ---------------------------------------------------------------------------------------------

    async def _put(self, guards: list[If], put: Put) -> Variable:
        op = put.plain()
        result = await self._do([guard.plain() for guard in guards], [op])
        return variable_of(op[1], result.cell)

    async def _expunge(self, guards: list[If], name: str) -> Variable:
        await self._do([guard.plain() for guard in guards], [Expunge(name).plain()])
        return Variable(name)

    async def _do(self, guards: Sequence[Guard], ops: Sequence[Op]) -> Result:
        """Append a command, and return what the fold says of it."""
        return await self._told(await self._send(guards, ops))

    async def _send(self, guards: Sequence[Guard], ops: Sequence[Op], timeout_s: float | None = None) -> Sent:
        """Append a command; ``timeout_s``: for the append and the fold together."""
        if len(guards) > OPS_MAX or len(ops) > OPS_MAX:
            raise TooLarge(f"a command of {max(len(guards), len(ops))} conditions or operations: {OPS_MAX} is the most")
        need_fences(guards, ops)
        if self._folder.machine is not None:
            refuse_at_once(self._folder.machine, guards)
        await self._need_founded(guards)
        payloads = codec.command(guards, ops, self._payload_bytes_max)
        await self._log.wait_room()
        return self._folder.enter(payloads, guards, ops, timeout_s=timeout_s)

    async def _told(self, sent: Sent) -> Result:
        """Wait for what the fold says of a command that was sent."""
        try:
            await self._folder.result_of(sent)
        except BaseException as error:
            if isinstance(error, NotGuaranteed) or not isinstance(error, Exception):  # or cancelled
                self._unsettled.note(sent)
            raise
        return judged(sent, self._folder.machine, sent.last_lsn)

    async def _need_founded(self, guards: Sequence[Guard]) -> None:
        """Found the state, unless the log holds one already. Raises `NotFounded` if this program must not, `Changed` if
        the guards could not hold in it."""
        machine = self._folder.machine
        if machine is not None and machine.founded and self._payload_bytes_max:
            return
        async with self._founding:
            if not self._payload_bytes_max:
                self._payload_bytes_max = int((await self._log.settings())["payload_bytes_max"])
            machine = await self._machine(False, None)
            if machine.founded:
                return
            refuse_unfounded(guards)
            state_id = self._log._servers.rng.randbytes(codec.ID_BYTES)
            try:
                result = await self._folder.result_of(self._folder.enter([codec.found(state_id, Limits())]))
            except NotGuaranteed as error:  # the write itself was not sent
                raise Unavailable(f"the state could not be founded in time: {error}") from error
            if result is not None and result.outcome is Outcome.FOUNDED:
                await self._log.set_cursor(CURSOR, result.lsn)


def connect(
    servers: str | Sequence[str] | None = None, client: str | None = None, timeout_s: float = 10.0, *,
    create: bool = True, expect: str | None = None, snapshots: Literal["auto", "off"] = "auto",
    cache: str | PathLike[str] | None = None, tls: Tls | None = None,
) -> State:
    """The state in the log of a cluster: for ``async with``, under trio or asyncio.

    ``servers``, ``client``, ``timeout_s`` and ``tls`` are as of `alpo.connect`, the others as of `State`.
    """
    log = connect_log(servers, client, timeout_s, tls=tls)
    state = State(log, create=create, expect=expect, timeout_s=timeout_s, snapshots=snapshots, cache=cache)
    state._owns_log = True
    return state
