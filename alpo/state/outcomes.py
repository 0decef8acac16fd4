"""Outcomes of commands: refused before they are sent, done, refused at their LSN, or not known. `Command` is one on its
way, and `Settling` keeps those whose outcome their callers were not told, until it is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from alpo.client.handle import Handle
from alpo.errors import AlpoError, NotGuaranteed, Unavailable

from .codec import ROW_MARK, By, Do, Guard, Op
from .errors import Changed, Full, NoInteger, NotFounded, Unsettled, WrongState
from .folder import Folder, Sent
from .machine import Cell, Machine, Outcome, Result

#: Most outcomes that are kept for `State.settle`.
KEPT_MAX = 1024


def need_fences(guards: Sequence[Guard], ops: Sequence[Op]) -> None:
    """Check that every row's owner is guarded. Raises ValueError."""
    fences = {name for _, name, wanted in guards if wanted}
    for op in ops:
        owner, mark, _ = op[1].partition(ROW_MARK)
        if mark and owner not in fences:
            raise ValueError(f"a row of {owner!r} is written only together with If({owner!r}, …) of an LSN above 0")


def refuse_at_once(machine: Machine, guards: Sequence[Guard]) -> None:
    """Raise `Changed`, without an append, if a guard can never hold again: its LSN is folded, and not what is there.

    Of a guard for "absent" that cannot be told: the fold may be old, and a lease may have lapsed since.
    """
    for by, name, wanted in guards:
        have = _lsn_of(machine.cells.get(name), by)
        if have != wanted and 0 < wanted <= machine.lsn:
            raise _changed(name, wanted, have)


def refuse_unfounded(guards: Sequence[Guard]) -> None:
    """Raise `Changed` if a guard asks for a variable, where the log holds no state: there is none."""
    for _, name, wanted in guards:
        if wanted:
            raise _changed(name, wanted, 0)


def judged(sent: Sent, machine: Machine | None, lsn: int) -> Result:
    """The result of a command that was done at ``lsn``. Raises why it was not; `Unsettled` if nobody can tell.

    If the fold has jumped over the command, ``machine``, as it is now, tells what it can.
    """
    result = _guessed(sent, machine, lsn) if sent.result is None else sent.result
    if result.outcome is not Outcome.DONE:
        raise _refusal(result)
    return result


def _guessed(sent: Sent, machine: Machine | None, lsn: int) -> Result:
    """Result that the state itself tells of a command that the fold has jumped over."""
    cells = {} if machine is None else machine.cells
    for op in sent.ops:
        cell = cells.get(op[1])
        if cell is None or op[0] == Do.KEEP:
            continue
        if cell.version == lsn and op[0] == Do.PUT:
            return Result(Outcome.DONE, lsn, cell=cell if len(sent.ops) == 1 else None)
        if cell.version < lsn:  # done, it would have raised the version, or taken the variable away
            return _guessed_refusal(sent, cells, lsn)
    raise _unsettled(lsn)


def _guessed_refusal(sent: Sent, cells: Mapping[str, Cell], lsn: int) -> Result:
    """Result of a command that the fold has jumped over, and that was not done."""
    for by, name, wanted in sent.guards:
        have = _lsn_of(cells.get(name), by)
        if have != wanted:
            return Result(Outcome.CHANGED, lsn, name, have, wanted)
        if not wanted:
            raise _unsettled(lsn)  # absent now, which tells nothing of then
    adds = any(op[0] == Do.ADD for op in sent.ops)
    return Result(Outcome.NO_INTEGER if adds else Outcome.FULL, lsn, sent.ops[0][1])


def _unsettled(lsn: int) -> Unsettled:
    return Unsettled(f"the command at LSN {lsn} was done or refused: this process cannot tell any more", lsn=lsn)


def _lsn_of(cell: Cell | None, by: int) -> int:
    """The LSN that a guard looks at; 0: the variable is absent."""
    if cell is None:
        return 0
    return cell.created if by == By.CREATED else cell.version


def _changed(name: str, expected: int, version: int) -> Changed:
    is_at = f"is at {version}" if version else "is not there"
    wanted = f"not at {expected}" if expected else "and was to be absent"
    return Changed(f"{name!r} {is_at}, {wanted}", name=name, expected=expected, version=version)


def _refusal(result: Result) -> Changed | NoInteger | Full | NotFounded | WrongState:
    """The error of a command that was not done."""
    outcome, name = result.outcome, result.name
    if outcome is Outcome.CHANGED:
        return _changed(name, result.wanted, result.have)
    if outcome is Outcome.NO_INTEGER:
        return NoInteger(f"{name!r} holds no integer, or the sum would pass 64 bits")
    if outcome is Outcome.FULL:
        return Full("the state is as large as it may be")
    if outcome is Outcome.NOT_FOUNDED:
        return NotFounded("this log holds no state")
    return WrongState(f"the command at LSN {result.lsn} was not understood as it was meant: {outcome.name}")


class Settling:
    """The writes of one `State` that were told as `NotGuaranteed`, or whose callers were cancelled. The log keeps them
    first in line, and tells what became of each: a write is never sent again under another serial."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._unknown: list[Sent] = []
        #: Outcomes that were not asked for yet: the LSN, or why it was not done.
        self._outcomes: dict[int, int | AlpoError] = {}

    def note(self, sent: Sent) -> None:
        """Take up a write whose outcome is unknown."""
        waiting, self._unknown = [*self._unknown, sent], []
        for sent in waiting:
            if sent.result is None:
                self._unknown.append(sent)
            else:
                self._keep(sent, self._judged(sent, sent.last_lsn))

    async def result_of(self, sent: Sent) -> Result:
        """The result of a command that was sent, as the fold tells it. Raises why it was not done, and as
        `Folder.result_of`."""
        try:
            await self._folder.result_of(sent)
        except BaseException as error:
            if isinstance(error, NotGuaranteed) or not isinstance(error, Exception):  # or cancelled
                self.note(sent)
            raise
        return judged(sent, self._folder.machine, sent.last_lsn)

    async def settle(self) -> dict[int, int | AlpoError]:
        """Wait for all outcomes; returns those that came since the last call, by serial. Raises `Unavailable` at the
        deadline, and `Closed`."""
        folder = self._folder
        folder.open()
        with folder.log.clock.move_on_after(folder.timeout_s):
            while self._unknown:
                sent = self._unknown[0]
                outcome = await self._wait_for(sent)
                if sent in self._unknown:  # nobody else was quicker
                    self._unknown.remove(sent)
                    self._keep(sent, outcome)
        if self._unknown:
            why = folder.log.reason or "no answer"
            raise Unavailable(f"there are writes whose outcome is still unknown: {why}")
        told, self._outcomes = self._outcomes, {}
        return told

    async def outcome_of(self, sent: Sent) -> int:
        """The LSN of a write, waited for as long as it takes. Raises why it was not done, `Unsettled`, and `Closed`."""
        outcome = await self._wait_for(sent)
        if isinstance(outcome, AlpoError):
            raise outcome
        return outcome

    def _keep(self, sent: Sent, outcome: int | AlpoError) -> None:
        self._outcomes[sent.handle.serial] = outcome
        if len(self._outcomes) > KEPT_MAX:
            del self._outcomes[next(iter(self._outcomes))]

    async def _wait_for(self, sent: Sent) -> int | AlpoError:
        """The LSN of a write that was done, or why it was not."""
        handle = sent.handle
        told = None if sent.result is not None else await self._folder.log.settled(handle)
        if isinstance(told, AlpoError):
            return told
        last_lsn = sent.last_lsn or (0 if told is None else told + handle.parcel.number - 1)
        if not last_lsn:
            return Unsettled("the write was appended before this session was opened", lsn=0)
        await self._folder.patiently(partial(self._folder.reach, last_lsn))
        return self._judged(sent, last_lsn)

    def _judged(self, sent: Sent, last_lsn: int) -> int | AlpoError:
        try:
            return judged(sent, self._folder.machine, last_lsn).lsn
        except AlpoError as error:
            return error


class Command:
    """A write that was sent, made by `State.command`: ask for its `result`, once. ``handle``: of its append."""

    __slots__ = ("_sent", "_settling", "handle")

    def __init__(self, sent: Sent, settling: Settling) -> None:
        self.handle: Handle = sent.handle
        self._sent = sent
        self._settling = settling

    async def result(self) -> Result:
        """The result, once it is folded. Raises as `State.commit`."""
        return await self._settling.result_of(self._sent)

    async def settled(self) -> int:
        """The LSN, waited for as long as it takes, also after `result` has raised `NotGuaranteed`. Raises why it was
        not done, `Unsettled`, and `Closed`."""
        return await self._settling.outcome_of(self._sent)
