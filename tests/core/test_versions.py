"""A stack of versions: what an expunge goes back to, and what is settled for good."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from alpo.core.machine.cursors import Versions

pytestmark = pytest.mark.pure  # a class is derived


class Told(Versions[str]):
    """Versions that record what was settled."""

    def __init__(self) -> None:
        self.settled: list[str] = []
        super().__init__("first")

    def _derive(self) -> None:
        self.lowest = self._stack[0][1]

    def _settled(self, states: Sequence[str]) -> None:
        self.settled += states


def three() -> Told:
    versions = Told()
    for id, state in ((3, "three"), (5, "five"), (9, "nine")):
        versions.add(id, state)
    return versions


def test_an_expunge_goes_back_to_what_was_in_force_before() -> None:
    versions = three()
    versions.expunge(10)
    assert versions.head == "nine"
    versions.expunge(9)
    assert versions.head == "five" and versions.at(9) == (5, "five")
    versions.expunge(1)
    assert versions.head == "first" and versions.settled == []


def test_a_settled_version_is_told_once_in_order_and_stays() -> None:
    versions = three()
    versions.settle(2)
    assert versions.lowest == "first"
    versions.settle(5)
    assert versions.settled == ["three", "five"] and versions.lowest == "five"
    versions.settle(8)
    versions.expunge(6)
    assert versions.settled == ["three", "five"] and versions.head == "five"


def test_the_state_as_of_any_entry_that_may_be_asked_for() -> None:
    versions = three()
    assert [versions.at(id) for id in (0, 2, 3, 4, 5, 8, 9, 100)] == [
        (0, "first"), (0, "first"), (3, "three"), (3, "three"), (5, "five"), (5, "five"), (9, "nine"), (9, "nine"),
    ]
    versions.restore("anew", 7)
    assert versions.at(7) == (7, "anew") and versions.head == versions.lowest == "anew"
