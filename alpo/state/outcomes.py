"""Outcomes of a state's commands: refused before they are sent, done, refused at their LSN, or not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from alpo.rsm.errors import NotFounded, Unsettled, WrongState
from alpo.rsm.folder import Sent
from alpo.rsm.machine import Outcome, Result

from .codec import ROW_MARK, By, Do, Guard, Op
from .errors import Changed, Full, NoInteger
from .machine import Cell, Machine


class About(NamedTuple):
    """A command as it was meant: `Sent.about`."""

    guards: Sequence[Guard]
    ops: Sequence[Op]


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
    guards, ops = cast(About, sent.about)
    for op in ops:
        cell = cells.get(op[1])
        if cell is None or op[0] == Do.KEEP:
            continue
        if cell.version == lsn and op[0] == Do.PUT:
            return Result(Outcome.DONE, lsn, cell=cell if len(ops) == 1 else None)
        if cell.version < lsn:  # done, it would have raised the version, or taken the variable away
            return _guessed_refusal(guards, ops, cells, lsn)
    raise _unsettled(lsn)


def _guessed_refusal(
    guards: Sequence[Guard], ops: Sequence[Op], cells: Mapping[str, Cell], lsn: int
) -> Result:
    """Result of a command that the fold has jumped over, and that was not done."""
    for by, name, wanted in guards:
        have = _lsn_of(cells.get(name), by)
        if have != wanted:
            return Result(Outcome.CHANGED, lsn, name, have, wanted)
        if not wanted:
            raise _unsettled(lsn)  # absent now, which tells nothing of then
    adds = any(op[0] == Do.ADD for op in ops)
    return Result(Outcome.NO_INTEGER if adds else Outcome.FULL, lsn, ops[0][1])


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
