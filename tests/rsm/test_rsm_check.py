"""`alpo.rsm.check` passes a right machine, and finds each wrong one, at the right command, with the fewest commands."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import wrong_machines as wrong
from hypothesis import given
from hypothesis import strategies as st

from alpo.rsm import Nondeterministic, check

COMMANDS = [
    b"+c 3", b"+b 2", b"-b 5", b"+a 1", b"-a 1", b"nonsense", b"+d 4", b"-b 2", b"+b 7", b"-x 1", b"+c 1", b"+e 5", b"-d 1",
]


def found(machine: type[wrong.Ledger], commands: list[bytes] = COMMANDS) -> Nondeterministic:
    with pytest.raises(Nondeterministic) as raised:
        check(machine, commands)
    print(raised.value)
    return raised.value


@pytest.mark.parametrize("machine", [wrong.Ledger, wrong.SumDigest])
def test_a_right_machine_passes(machine: type[wrong.Ledger]) -> None:
    done = check(machine, COMMANDS)
    assert done.commands == 13 and done.put_between == 34 and done.processes == 4 and done.complete
    assert done.applied > 4 * 13 * 9 and done.folds > 4 * 13 * 4 and done.points >= 4 * 14


def test_so_do_no_commands_and_many() -> None:
    assert check(wrong.Ledger, []).complete
    many = check(wrong.Ledger, [b"+a%d %d" % (number % 10, number) for number in range(1500)], limit_s=60)
    assert many.complete and many.commands == 1500


#: Machine -> the number of the command, the fewest commands, words of the cause.
WRONG: dict[type[wrong.Ledger], tuple[int, int, str]] = {
    wrong.Chance: (0, 1, "only chance differs"),
    wrong.Uuid: (0, 1, "only chance differs"),
    wrong.ClockOfDays: (0, 1, "at.time"),
    wrong.Clock: (0, 1, "at.time"),
    wrong.Untamed: (0, 1, "a process id"),
    wrong.Place: (0, 1, "working directory and the time zone"),
    wrong.Zone: (0, 1, "working directory and the time zone"),
    wrong.SharedByAll: (0, 1, "an earlier machine of the same process"),
    wrong.SharedInFreeze: (0, 1, "freeze() shares"),
    wrong.ChangesThenRaises: (2, 1, "check first, write after"),
    wrong.LoadForgets: (4, 2, "load() forgets"),
    wrong.ClockInLoad: (0, 1, "at.time"),
    wrong.OrderInItems: (1, 2, "the order of items()"),
    wrong.UsesUp: (1, 2, "uses up"),
    wrong.OwnDict: (0, 2, "return a copy"),
    wrong.BlindDigest: (4, 2, "does not depend on all"),
    wrong.DigestOfMore: (0, 1, "digest() depends on more than the content"),
    wrong.Exits: (8, 1, "survive"),
    wrong.Recursion: (8, 1, "survive"),
    wrong.SystemExits: (0, 1, "survive"),
    wrong.Coroutine: (0, 1, "do its work before it returns"),
    wrong.TextItems: (-1, 0, "only apply() may raise"),
    wrong.ItemsRaise: (1, 1, "only apply() may raise"),
    wrong.DictOrder: (3, 3, "another order"),
    wrong.LastAnswered: (4, 2, "all that answers depend on"),
    wrong.FreezeForgets: (1, 1, "freeze() forgets"),
    wrong.SharedWhileBoth: (0, 1, "another machine of the same process"),
}


@pytest.mark.parametrize("machine", WRONG, ids=lambda machine: machine.__name__)
def test_a_wrong_machine_is_found(machine: type[wrong.Ledger]) -> None:
    error = found(machine)
    index, fewest, cause = WRONG[machine]
    assert (error.index, len(error.commands)) == (index, fewest), error
    assert error.command == (COMMANDS[index] if index >= 0 else None)
    assert cause in error.cause and cause in str(error)
    assert repr(error.commands) in str(error)
