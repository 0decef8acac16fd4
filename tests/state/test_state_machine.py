"""The fold: what each payload does, that nothing else does anything, and that it is the same everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpo.rsm.machine import UPLOAD_STALE_MS, Outcome, Result
from alpo.rsm.payloads import chained
from alpo.state import codec
from alpo.state.codec import HEAD, INT_MAX, INT_MIN, Guard, Limits, Op
from alpo.state.machine import Machine, digest_bytes
from alpo.wire.framing import pack

ID, SID, OTHER = b"s" * 16, b"u" * 16, b"v" * 16
LIMIT = 1 << 20


class Fold:
    """A machine and the log that it has folded."""

    def __init__(self, limits: Limits = Limits(), founded: bool = True) -> None:  # noqa: B008
        self.machine = Machine()
        self.log: list[tuple[int, bytes]] = []
        self.time_ms = 1000
        if founded:
            assert self.take(codec.found(ID, limits)).outcome is Outcome.FOUNDED

    def take(self, payload: bytes, after_ms: int = 1) -> Result:
        self.time_ms += after_ms
        self.log.append((self.time_ms, payload))
        return self.machine.apply(self.machine.lsn + 1, self.time_ms, payload)

    def do(self, ops: Sequence[Op], guards: Sequence[Guard] = (), after_ms: int = 1) -> Result:
        (payload,) = codec.command(guards, ops, LIMIT)
        return self.take(payload, after_ms)

    def values(self) -> dict[str, bytes]:
        return {name: cell.value for name, cell in self.machine.cells.items()}

    def again(self, log: Iterable[tuple[int, bytes]] | None = None) -> Machine:
        """Another machine, of the same log."""
        machine = Machine()
        for lsn, (time_ms, payload) in enumerate(self.log if log is None else log, 1):
            machine.apply(lsn, time_ms, payload)
        return machine


def put(name: str, value: bytes = b"v", lease_ms: int = 0) -> Op:
    return 0, name, value, lease_ms


def test_versions_are_lsns() -> None:
    fold = Fold()
    assert fold.do([put("a")]) == Result(Outcome.DONE, 2, cell=fold.machine.cells["a"])
    fold.do([put("a", b"w")])
    cell = fold.machine.cells["a"]
    assert (cell.version, cell.created, cell.value, cell.time_ms) == (3, 2, b"w", fold.time_ms)
    fold.do([(1, "a")])
    assert not fold.machine.cells
    fold.do([put("a")])
    assert fold.machine.cells["a"][:2] == (5, 5)


@pytest.mark.parametrize(("guard", "holds"), [
    ((0, "a", 3), True), ((0, "a", 2), False), ((0, "a", 0), False), ((1, "a", 2), True), ((1, "a", 3), False),
    ((1, "a", 0), False), ((0, "b", 0), True), ((1, "b", 0), True), ((0, "b", 1), False), ((1, "b", 9), False),
])
def test_guards(guard: Guard, holds: bool) -> None:
    fold = Fold()
    fold.do([put("a")])
    fold.do([put("a")])
    result = fold.do([put("c"), (1, "a")], [(0, "c", 0), guard])
    if holds:
        assert result.outcome is Outcome.DONE and set(fold.values()) == {"c"}
    else:
        have = {"a": (3, 2), "b": (0, 0)}[guard[1]][guard[0]]
        assert result == Result(Outcome.CHANGED, 4, guard[1], have, guard[2]) and set(fold.values()) == {"a"}


def test_operations_see_those_before_them() -> None:
    fold = Fold()
    result = fold.do([put("a", b"1"), (3, "a", 4), (3, "a", -7), (1, "b"), put("b", b"x"), (1, "b"), (3, "n", 2)])
    assert result.sums == (5, -2, 2) and fold.values() == {"a": b"-2", "n": b"2"}
    assert fold.machine.cells["a"].created == 2
    fold.do([(1, "a"), put("a")])
    assert fold.machine.cells["a"][:2] == (3, 3)


@pytest.mark.parametrize(("value", "number", "gives"), [
    (b"0", INT_MAX, INT_MAX), (b"1", INT_MAX, None), (b"-1", INT_MIN, None), (b"0", INT_MIN, INT_MIN), (b"", 1, None),
    (b"-", 1, None), (b"+1", 1, None), (b" 1", 1, None), (b"1\n", 1, None), (b"1.0", 1, None), (b"0x1", 1, None),
    (b"007", 1, 8), (b"\xd9\xa1", 1, None), (b"9" * 30, -1, None), (b"-5", 5, 0), (b"1_0", 1, None),
])
def test_sums(value: bytes, number: int, gives: int | None) -> None:
    fold = Fold()
    fold.do([put("n", value)])
    result = fold.do([put("m"), (3, "n", number)])
    if gives is None:
        assert (result.outcome, result.name) == (Outcome.NO_INTEGER, "n") and fold.values() == {"n": value}
    else:
        assert result.sums == (gives,) and fold.values() == {"n": b"%d" % gives, "m": b"v"}


def test_rows_need_their_owner() -> None:
    fold = Fold()
    fold.do([put("a")])
    for guards in ([], [(0, "a", 0)], [(0, "b", 0)]):
        result = fold.do([put("b"), put("a\0r")], guards)
        assert result.outcome in (Outcome.UNFENCED, Outcome.CHANGED) and "a\0r" not in fold.values()
    assert fold.do([put("a\0r")], [(1, "a", 2)]).outcome is Outcome.DONE
    for op in ((1, "a\0r"), (2, "a\0r", 5), (3, "a\0r", 5)):
        assert fold.do([op]).outcome is Outcome.UNFENCED
    fold.do([(1, "a")])
    assert fold.do([(1, "a\0r")], [(1, "a", 2)]).outcome is Outcome.CHANGED
    assert "a\0r" in fold.values()


def test_a_command_of_several_payloads() -> None:
    fold = Fold()
    ops = [put(f"n{at}", bytes([at]) * 5000) for at in range(5)]
    payloads = codec.command([(0, "n0", 0)], ops, 4096)
    results = [fold.take(payload) for payload in payloads]
    assert {r.outcome for r in results[:-1]} == {Outcome.WAITS} and results[-1].outcome is Outcome.DONE
    assert {c.version for c in fold.machine.cells.values()} == {1 + len(payloads)}
    assert [fold.values()[f"n{at}"] for at in range(5)] == [bytes([at]) * 5000 for at in range(5)]


@pytest.mark.parametrize("between", [
    b"foreign", HEAD, codec.begin(SID), codec.found(OTHER, Limits()), codec.command([], [put("z")], LIMIT)[0],
    "again", "skip",
])
def test_a_command_that_is_torn_does_nothing(between: bytes | str) -> None:
    fold = Fold()
    payloads = codec.command([], [put("a", b"x" * 9000)], 4096)
    fold.take(payloads[0])
    fold.take(payloads[1])
    if isinstance(between, bytes):
        fold.take(between)
    rest = payloads[1:] if between == "again" else payloads[3:] if between == "skip" else payloads[2:]
    for payload in rest:
        fold.take(payload)
    assert "a" not in fold.values() and fold.machine.invalid


def test_references_outside_of_what_came_do_nothing() -> None:
    fold = Fold()
    for reference in ((0, 3), (2, 1), (INT_MAX, INT_MAX)):
        fold.take(HEAD + pack((1, 1, pack(()), pack([(0, "a", reference, 0)]))))
        assert fold.take(HEAD + pack((5, 0, b"ab"))).outcome is Outcome.INVALID
    assert not fold.values()


@pytest.mark.parametrize(("references", "outcome"), [
    ([(0, 2), (2, 2)], Outcome.DONE), ([(2, 2), (0, 2)], Outcome.DONE), ([(0, 3), (3, 0)], Outcome.DONE),
    ([(0, 4), (3, 1)], Outcome.INVALID), ([(0, 4)] * 1000, Outcome.INVALID), ([(0, 3), (2, 2)], Outcome.INVALID),
])
def test_values_are_no_larger_than_what_came(references: list[tuple[int, int]], outcome: Outcome) -> None:
    """A command whose values share bytes is invalid: judging it could take any amount of memory."""
    fold = Fold()
    ops = [(0, f"n{at}", reference, 0) for at, reference in enumerate(references)]
    fold.take(HEAD + pack((1, 2, pack(()), pack(ops))))
    fold.take(HEAD + pack((5, 0, b"abc")))
    assert fold.take(HEAD + pack((5, 1, b"d"))).outcome is outcome
    assert len(fold.values()) == (len(ops) if outcome is Outcome.DONE else 0)


def test_many_payloads_of_a_command_are_gathered_in_linear_time() -> None:
    fold, size = Fold(), 0

    class Pieces(list[bytes]):
        def __iter__(self) -> Any:
            nonlocal size
            size += len(self)
            return super().__iter__()

    fold.take(HEAD + pack((1, 300, pack(()), pack([(0, "a", (0, 300), 0)]))))
    assert fold.machine._pending is not None
    fold.machine._pending = fold.machine._pending._replace(pieces=Pieces())
    for index in range(300):
        result = fold.take(HEAD + pack((5, index, b"x")))
    assert result.outcome is Outcome.DONE and fold.values() == {"a": b"x" * 300} and size <= 300


def test_limits() -> None:
    fold = Fold(Limits(bytes_max=20, variables_max=3, ops_max=4))
    assert fold.do([put("a", b"x" * 19)]).outcome is Outcome.DONE
    assert fold.do([put("b", b"")]).outcome is Outcome.FULL
    assert fold.do([put("a", b"x" * 20)]).outcome is Outcome.FULL
    assert fold.do([put("b", b"x" * 9), put("a", b"x" * 9)]).outcome is Outcome.DONE
    assert fold.do([put("b", b"y" * 9)]).outcome is Outcome.DONE
    assert fold.do([put("a", b""), put("b", b""), put("c", b""), put("d", b"")]).outcome is Outcome.FULL
    assert fold.do([(1, "a"), put("b", b""), put("c", b""), put("d", b"")]).outcome is Outcome.DONE
    assert fold.do([(1, "a")] * 5).outcome is Outcome.INVALID
    assert fold.machine.bytes == 3 and fold.machine.limits == Limits(20, 3, 4)


def test_the_first_foundation_counts() -> None:
    fold = Fold(founded=False)
    assert fold.do([put("a")]).outcome is Outcome.NOT_FOUNDED
    assert fold.take(codec.begin(SID)).outcome is Outcome.NOT_FOUNDED
    assert not fold.machine.founded
    fold.take(codec.found(ID, Limits(5, 5, 5)))
    assert fold.take(codec.found(OTHER, Limits())).outcome is Outcome.FOUNDED_BEFORE
    assert (fold.machine.state_id, fold.machine.limits) == (ID, Limits(5, 5, 5))


def test_what_is_foreign_and_what_is_invalid() -> None:
    fold = Fold()
    fold.do([put("a")])
    before = fold.machine.freeze().cells
    assert fold.take(b"\xc1").outcome is Outcome.FOREIGN and fold.machine.foreign_lsn == 3
    assert fold.take(b"\xc1\x41").outcome is Outcome.INVALID and fold.take(HEAD + b"x").outcome is Outcome.INVALID
    assert fold.machine.invalid == 2 and fold.machine.foreign_lsn == 3 and fold.machine.freeze().cells == before


def test_a_newer_format_is_never_skipped() -> None:
    fold = Fold()
    fold.do([put("a", lease_ms=5)])
    before = fold.machine.freeze()
    for number in (2, 255):
        result = fold.machine.apply(3, 1 << 40, codec.MAGIC + bytes([number]) + b"whatever")
        assert (result.outcome, result.have) == (Outcome.NEWER, number) and fold.machine.freeze() == before


def test_a_gap_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="does not follow"):
        Machine().apply(2, 0, b"")


# -- snapshots ------------------------------------------------------------------------------------------------


def snapshot(fold: Fold, sid: bytes = SID, parts: Sequence[bytes] = (b"p0", b"p1")) -> list[Result]:
    """Write a whole snapshot, of which the parts that the fold checks are right."""
    results = [fold.take(codec.begin(sid))]
    digest, chain = digest_bytes(fold.machine.digest), b""
    for index, data in enumerate(parts):
        results.append(fold.take(codec.part(sid, index, data)))
        chain = chained(chain, data)
    return [*results, fold.take(codec.end(sid, len(parts), chain, digest))]


def test_a_snapshot_is_accepted() -> None:
    fold = Fold()
    fold.do([put("a")])
    expected = [Outcome.GRANTED, Outcome.TAKEN, Outcome.TAKEN, Outcome.ACCEPTED]
    assert [r.outcome for r in snapshot(fold)] == expected
    first = fold.machine.snapshot
    assert first is not None and first[:2] == (3, 6) and fold.machine.previous is None
    assert [r.outcome for r in snapshot(fold)] == expected
    assert fold.machine.previous == first and fold.machine.upload is None
    since = [p for _, p in fold.log[7:]]  # parts do not count: a large snapshot makes no other one due
    assert fold.machine.bytes_since == sum(len(p) for p in since if not isinstance(codec.decode(p), codec.Part))


def test_one_snapshot_at_a_time_until_it_is_given_up() -> None:
    fold = Fold()
    fold.take(codec.begin(SID))
    assert fold.take(codec.begin(OTHER), UPLOAD_STALE_MS - 1).outcome is Outcome.BUSY
    assert fold.take(codec.part(SID, 0, b"p")).outcome is Outcome.TAKEN
    assert fold.take(codec.begin(OTHER), UPLOAD_STALE_MS).outcome is Outcome.GRANTED
    for late in (codec.part(SID, 1, b"p"), codec.end(SID, 1, chained(b"", b"p"), digest_bytes(fold.machine.digest))):
        assert fold.take(late).outcome is Outcome.STALE
    assert next(r.outcome for r in snapshot(fold, ID)) is Outcome.BUSY and fold.machine.snapshot is None


@pytest.mark.parametrize("wrong", ["count", "chain", "digest", "order", "twice"])
def test_a_snapshot_of_something_else_is_refused(wrong: str) -> None:
    fold = Fold()
    fold.take(codec.begin(SID))
    digest = digest_bytes(fold.machine.digest ^ (wrong == "digest"))
    chain = chained(chained(b"", b"0"), b"1" if wrong != "chain" else b"2")
    indices = {"order": [1, 0], "twice": [0, 0, 1]}.get(wrong, [0, 1])
    for index in indices:
        fold.take(codec.part(SID, index, b"%d" % index))
    result = fold.take(codec.end(SID, 3 if wrong == "count" else 2, chain, digest))
    assert result.outcome is (Outcome.ACCEPTED if wrong == "twice" else Outcome.DIVERGED)


# -- sameness -------------------------------------------------------------------------------------------------

_names = st.sampled_from(["a", "b", "c", "a\0r", "b\0r"])
_ops: st.SearchStrategy[Any] = st.one_of(
    st.tuples(st.just(0), _names, st.sampled_from([b"", b"1", b"x" * 9]), st.sampled_from([0, 0, 3, 50])),
    st.tuples(st.just(1), _names), st.tuples(st.just(2), _names, st.sampled_from([0, 4, 60])),
    st.tuples(st.just(3), _names, st.integers(-2, 2)),
)
_guards = st.tuples(st.integers(0, 1), _names, st.integers(0, 12))
_payloads = st.one_of(
    st.binary(max_size=4), st.just(HEAD + b"\x90"),
    st.builds(
        lambda g, o: codec.command(g, o, LIMIT)[0], st.lists(_guards, max_size=2),
        st.lists(_ops, min_size=1, max_size=4),
    ),
    st.sampled_from([SID, OTHER]).map(codec.begin), st.sampled_from([SID, OTHER]).map(lambda s: codec.part(s, 0, b"p")),
    st.sampled_from([SID, OTHER]).map(lambda s: codec.end(s, 0, b"", b"")),
    st.sampled_from(codec.command([], [put("big", b"x" * 3000)], 1024 + codec.ROOM_BYTES)),
)
_logs = st.lists(st.tuples(st.integers(0, 20), _payloads), max_size=25)


@given(_logs)
def test_the_sums_kept_are_those_of_all_cells(log: list[tuple[int, bytes]]) -> None:
    fold = Fold()
    for after_ms, payload in log:
        fold.take(payload, after_ms)
    machine = fold.machine
    assert machine.digest == sum(c.digest for c in machine.cells.values()) % (1 << 128)
    assert machine.bytes == sum(len(n) + len(c.value) for n, c in machine.cells.items())
    assert machine.freeze() == fold.again().freeze()


@given(_logs, _logs)
def test_a_thawed_machine_goes_on_as_the_other(before: list[tuple[int, bytes]], after: list[tuple[int, bytes]]) -> None:
    fold = Fold()
    for after_ms, payload in before:
        fold.take(payload, after_ms)
    fold.take(b"a command that waits for more is no part of it")
    machine = Machine.thaw(*fold.machine.freeze()[:2])
    assert machine.freeze() == fold.machine.freeze() and machine.digest == fold.machine.digest
    for after_ms, payload in after:
        result = fold.take(payload, after_ms)
        assert machine.apply(machine.lsn + 1, fold.time_ms, payload) == result
    assert machine.freeze() == fold.machine.freeze() and machine.digest == fold.machine.digest


_PROGRAM = """
import random
from alpo.state import codec
from alpo.state.machine import Machine
rng, machine = random.Random(5), Machine()
machine.apply(1, 0, codec.found(b"s" * 16, codec.Limits()))
for lsn in range(2, 400):
    ops = [(0, f"n{rng.randrange(40)}", rng.randbytes(5), rng.choice((0, 7))) for _ in range(9)]
    machine.apply(lsn, lsn, codec.command([], ops, 1 << 20)[0])
print(machine.digest, list(machine.cells), machine.bytes)
"""


def test_processes_with_other_hash_seeds_agree() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-c", _PROGRAM], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "77")
    }
    assert len(told) == 1


def test_many_guards_and_rows_take_no_time_of_their_product() -> None:
    fold = Fold()
    fold.do([put("a")])
    guards = [(0, "a", 2)] * 20_000
    ops = [(1, f"a\0{at}") for at, _ in zip(count(), range(20_000))]
    assert fold.take(codec.command(guards, ops, 1 << 22)[0]).outcome is Outcome.DONE
