"""Leases in the fold: when they end, in which order, and at which cost."""

from __future__ import annotations

from typing import Any

from test_state_machine import LIMIT, SID, Fold, put

from alpo.rsm.machine import Outcome
from alpo.state import codec
from alpo.state.codec import HEAD
from alpo.state.machine import Machine


def test_leases_lapse_by_the_time_of_any_payload() -> None:
    for payload in (b"foreign", HEAD, codec.begin(SID), codec.command([], [put("z")], LIMIT)[0]):
        fold = Fold()
        fold.do([put("a", lease_ms=10), put("b", lease_ms=11), put("c")])
        fold.take(b"foreign", 9)
        assert set(fold.values()) == {"a", "b", "c"}
        fold.take(payload, 1)
        assert set(fold.values()) - {"z"} == {"b", "c"}
        assert fold.do([put("d")], [(0, "b", 0)], 1).outcome is Outcome.DONE


def test_leases_are_kept_and_written_anew() -> None:
    fold = Fold()
    fold.do([put("a", lease_ms=10)])
    fold.do([(2, "a", 20)], [(1, "a", 2)], after_ms=9)
    cell = fold.machine.cells["a"]
    assert (cell.version, cell.created, cell.lease_ms, cell.time_ms) == (2, 2, 20, fold.time_ms)
    fold.take(b"", 19)
    assert "a" in fold.values()
    fold.do([put("a")])  # without a lease now
    fold.take(b"", 1 << 40)
    assert "a" in fold.values()
    assert fold.do([(2, "nobody", 5)]).outcome is Outcome.DONE and len(fold.values()) == 1


def test_renewals_do_not_pile_up() -> None:
    fold = Fold()
    fold.do([put("a", lease_ms=1 << 50)])
    for _ in range(1000):
        fold.do([(2, "a", 1 << 50)])
    assert len(fold.machine._due) < 200


def test_renewals_take_no_time_of_other_variables() -> None:
    class Unwalked(dict[str, Any]):
        def items(self) -> Any:
            raise AssertionError("all variables were gone through")

        __iter__ = keys = values = items

    fold = Fold()
    fold.do([put(f"n{at}") for at in range(9)])
    fold.machine.cells = Unwalked(fold.machine.cells)
    for _ in range(1000):
        fold.do([put("a", lease_ms=1 << 50), (1, "b"), put("b", lease_ms=1 << 50)])
    assert len(fold.machine._due) < 200
    assert len(fold.machine._leased) == 2


def test_leases_lapse_in_the_same_order_whatever_was_renewed() -> None:
    """A snapshot holds no renewals: a machine that began with one must tell the same."""
    fold = Fold()
    fold.do([put("a", lease_ms=10), put("b", lease_ms=15)])
    fold.do([(2, "a", 20)])
    thawed = Machine.thaw(*fold.machine.freeze()[:2])
    order = []
    for machine in (fold.machine, thawed):
        machine.touched = []
        machine.apply(4, fold.time_ms + 99, b"")
        order.append(machine.touched)
    assert order == [["b", "a"]] * 2 and not fold.machine._leased
