"""`alpo.rsm.check` passes a right machine, and finds each wrong one, at the right command, with the fewest commands."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import wrong_machines as wrong
from hypothesis import given, settings
from hypothesis import strategies as st
from test_client_fork import in_child

from alpo.rsm import Nondeterministic, check
from alpo.rsm.checking.children import close_children

COMMANDS = [
    b"+c 3", b"+b 2", b"-b 5", b"+a 1", b"-a 1", b"nonsense", b"+d 4", b"-b 2", b"+b 7", b"-x 1", b"+c 1", b"+e 5",
    b"-d 1",
]


def found(machine: type[wrong.Ledger], commands: list[bytes] = COMMANDS) -> Nondeterministic:
    with pytest.raises(Nondeterministic) as raised:
        check(machine, commands, limit_s=60, shrink_s=60)
    print(raised.value)
    return raised.value


@pytest.mark.parametrize("machine", [wrong.Ledger, wrong.SumDigest, wrong.Odd])
def test_a_right_machine_passes(machine: type[wrong.Ledger]) -> None:
    done = check(machine, COMMANDS, limit_s=60)
    assert done.commands == 13 and done.put_between == 34 and done.processes == 4 and done.complete
    assert done.applied > 4 * 13 * 9 and done.folds > 4 * 13 * 4 and done.points >= 4 * 14


def test_so_do_no_commands_and_many() -> None:
    assert check(wrong.Ledger, [], limit_s=60).complete
    many = check(wrong.Ledger, [b"+a%d %d" % (number % 10, number) for number in range(600)], limit_s=60)
    assert many.complete and many.commands == 600


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
    wrong.CopyWritesLate: (0, 1, "freeze() shares"),
    wrong.OriginalWritesLate: (0, 1, "freeze() shares"),
    wrong.LendsToCopies: (1, 2, "freeze() shares"),
    wrong.ChangesThenRaises: (2, 1, "check first, write after"),
    wrong.LoadForgets: (4, 2, "load() forgets"),
    wrong.ClockInLoad: (0, 1, "at.time"),
    wrong.OrderInItems: (1, 2, "the order of items()"),
    wrong.UsesUp: (1, 2, "uses it up"),
    wrong.OwnDict: (0, 2, "return a copy"),
    wrong.BlindDigest: (4, 2, "does not depend on all"),
    wrong.DigestOfMore: (0, 1, "digest() depends on more than the content"),
    wrong.Exits: (8, 1, "survive"),
    wrong.Recursion: (8, 1, "survive"),
    wrong.SystemExits: (0, 1, "survive"),
    wrong.Coroutine: (0, 1, "do its work before it returns"),
    wrong.TextItems: (-1, 0, "only apply() may raise"),
    wrong.LoadWantsAList: (-1, 0, "an iterator that is read once"),
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


@pytest.mark.parametrize(("machine", "what"), [
    (wrong.SetIteration, "answers differ"), (wrong.SetInItems, "items() differ"), (wrong.SetInLoad, "differ"),
    (wrong.DigestOfSet, "digest() differs"),
])
def test_a_set_is_found(machine: type[wrong.Ledger], what: str) -> None:
    """Hash seeds differ, and with them at which command a set's order does."""
    error = found(machine)
    assert "a set is gone through" in error.cause and what in str(error)
    assert len(error.commands) == 2 and error.index in range(1, 7)


def test_fewer_commands_differ_in_the_same_way() -> None:
    error = found(wrong.ChangesAndForgets, [b"+a 1", b"-a 1"])
    assert len(error.commands) == 2 and "load() forgets" in error.cause


def test_a_float_sum_in_another_order_is_found() -> None:
    error = found(wrong.FloatSum, [b"+c 3", b"+b 2", b"+a 1", b"+a 0", b"+d 9"])
    assert (error.index, len(error.commands)) == (3, 4)
    assert "floats are added up in another order" in error.cause


def test_chance_that_nothing_stands_in_for_is_found_as_such() -> None:
    assert "chance differs" in found(wrong.ChanceByName).cause


def test_what_only_other_commands_show_is_found() -> None:
    error = found(wrong.ChangesThenRaises, [b"+a 1", b"-a 1"])
    assert "others put between" in str(error) and len(error.commands) == 1
    assert error.commands[0][:1] == b"-"


def test_the_first_command_is_named_where_many_are_spread() -> None:
    commands = [b"+a 1"] * 1500
    error = found(wrong.Exits, [*commands[:6], b"-a 6", *commands])
    assert error.index == 13 and error.commands == [b"+a 1"] * 7


def test_so_is_what_was_changed_by_an_error_far_from_any_point() -> None:
    error = found(wrong.ChangesThenRaises, [*([b"+a 1"] * 777), b"-b 1", *([b"+a 1"] * 800)])
    assert error.index == 777 and error.commands == [b"- 1"]


def test_a_frozen_copy_is_looked_at_once_more_at_the_end() -> None:
    error = found(wrong.SharedWithin, [*([b"+a 0"] * 777), b"+b 13", *([b"+a 0"] * 800)])
    assert error.commands == [b"+b 13"] and "freeze() shares" in error.cause


def test_a_copy_folds_on_for_long() -> None:
    error = found(wrong.LoadTires, [b"+a 1"] * 100)
    assert error.index == 29 and len(error.commands) == 30


def test_the_moment_of_garbage_collection_is_found() -> None:
    assert re.search("garbage|address", found(wrong.Garbage).cause)


class Here(wrong.ChangesThenRaises):
    """A machine of a test's own module."""


def test_a_class_of_a_tests_module_is_found_and_the_commands_are_made_short() -> None:
    error = found(Here)
    assert error.index == 2 and error.commands == [b"- 5"]
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_times_are_the_machines_and_are_told() -> None:
    times = [datetime(2030, 1, 1, tzinfo=timezone.utc) + timedelta(days=day) for day in range(3)]  # noqa: UP017
    with pytest.raises(Nondeterministic) as raised:
        check(wrong.Clock, [b"+a 1", b"+b 1", b"+c 1"], times=times)
    assert raised.value.times is not None and raised.value.times[0] in times
    assert check(wrong.Of2030, [b"+a 1"], times=times, version=2).complete
    assert check(wrong.Of2030, [b"+a 1"], version=3).complete
    with pytest.raises(Nondeterministic, match="SystemExit"):
        check(wrong.Of2030, [b"+a 1"], times=times, version=3)


def test_a_hang_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpo.rsm.checking.call.CALL_S", 4)
    with pytest.raises(Nondeterministic, match=r"apply\(\) did not come back") as raised:
        check(wrong.Forever, COMMANDS, limit_s=1)
    assert raised.value.index == 8 and raised.value.commands == COMMANDS[:9]
    assert check(wrong.Ledger, COMMANDS).complete


def test_a_limit_ends_the_folds() -> None:
    assert not check(wrong.Ledger, [b"+a 1"] * 100_000, limit_s=0.1).complete


@settings(max_examples=20)
@given(st.lists(st.sampled_from(COMMANDS) | st.binary(max_size=6), max_size=8))
def test_it_may_be_called_by_hypothesis(commands: list[bytes]) -> None:
    assert check(wrong.Ledger, commands, limit_s=60).complete


def test_the_processes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(wrong.Ledger, [b"+a 1"], processes=2).processes == 2
    assert check(wrong.Ledger, [b"+a 1"]).processes == 4
    in_child(close_children)
    monkeypatch.setattr("subprocess.Popen", None)
    check(wrong.SumDigest, [b"+a 1"])


def test_what_cannot_be_imported_is_refused() -> None:
    class Local(wrong.Ledger):
        pass

    with pytest.raises(TypeError, match="Define it at the top level"):
        check(Local, [])
    with pytest.raises(TypeError, match="no machine: it has no apply, items, load, freeze"):
        check(int, [])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not str"):
        check(wrong.Ledger, ["+a 1"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="2 commands and 0 times"):
        check(wrong.Ledger, [b"", b""], times=[])
    with pytest.raises(ValueError, match="without a time zone"):
        check(wrong.Ledger, [b""], times=[datetime(2026, 1, 1)])
    with pytest.raises(ValueError, match="two at least"):
        check(wrong.Ledger, [], processes=1)


PROGRAM = """
import os, sys
from contextlib import suppress
from threading import Event
sys.path[:] = {path!r}
from wrong_machines import Ledger
from alpo.rsm import check

class Mine(Ledger):
    def answer(self, name, at):
        if self.accounts[name] == 9:
            with suppress(ProcessLookupError):
                os.kill(int(os.environ["CHECKED_BY"]), 9)
            Event().wait()
        return None

{guard}
    os.environ["CHECKED_BY"] = str(os.getpid())
    print(check(Mine, [b"+a 1"]).complete)
"""


@pytest.mark.parametrize(("guard", "printed"), [
    ('if __name__ == "__main__":', "True"), ("if True:", "call it below `if __name__ == '__main__':`"),
])
def test_a_program_may_check_its_own_class(tmp_path: Path, guard: str, printed: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(path=sys.path, guard=guard))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False)
    assert printed in done.stdout + done.stderr


def test_a_module_that_was_changed_is_imported_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "changing_machine.py"
    for number, base in enumerate(("Ledger", "SharedInFreeze")):
        (tmp_path / "beside_it.py").write_text(f"from wrong_machines import {base}\n")
        module.write_text(f"from beside_it import {base}\nclass Machine({base}): pass\n")
        os.utime(module, (number, number))
        for name in ("changing_machine", "beside_it"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        machine = __import__("changing_machine").Machine
        if base == "Ledger":
            assert check(machine, [b"+a 1"], limit_s=60).complete
        else:
            assert "freeze() shares" in found(machine, [b"+a 1"]).cause


def test_a_module_is_the_one_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "elsewhere.py"
    file.write_text("from wrong_machines import Ledger\nclass Machine(Ledger): pass\n")
    (tmp_path / "shadowed.py").write_text("class Machine: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    spec = spec_from_file_location("shadowed", file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "shadowed", module)
    spec.loader.exec_module(module)
    assert check(module.Machine, [b"+a 1"], limit_s=60).complete


def test_a_module_that_cannot_be_imported_elsewhere_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, line in (("only_here", "raise KeyError('not here')"), ("dies_there", "os._exit(4)")):
        text = f"import os\nfrom wrong_machines import Ledger\nif os.getpid() != {os.getpid()}:\n    {line}\n"
        (tmp_path / f"{name}.py").write_text(f"{text}class Machine(Ledger): pass\n")
        with pytest.raises(ImportError, match=r"not here|exit status 4"):
            check(__import__(name).Machine, [])


KILLED = """
from alpo.rsm.checking import children as check_children
print(*check_children.kept_pids(), flush=True)
check(Mine, [b"+a 9"])
"""


def test_no_process_outlives_this_one(tmp_path: Path) -> None:
    """The processes fold, without an end, when this one is killed."""
    program = tmp_path / "program.py"
    guarded = PROGRAM.format(path=sys.path, guard='if __name__ == "__main__":')
    program.write_text(guarded + "".join(f"    {line}\n" for line in KILLED.splitlines()))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -9, done.stderr
    pids = done.stdout.splitlines()[-1].split()
    assert len(pids) == 4
    while any(command_line(pid) for pid in pids):
        os.sched_yield()


def command_line(pid: str) -> str:
    """The command line of a process; "" of one that has ended, even if nobody has asked for its status yet."""
    try:
        return Path("/proc", pid, "cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
