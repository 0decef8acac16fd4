"""Finding an id, with a guess and without."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from alpo.storage.search import Head, first_id_where

FIRST_ID = 10


class Heads:
    """Heads of entries ``FIRST_ID`` and so on; the ids that were looked at."""

    def __init__(self, flags: list[bool]) -> None:
        self._flags = flags
        self.looks: list[int] = []

    def head(self, id: int) -> Head:
        self.looks.append(id)
        return Head(0, int(self._flags[id - FIRST_ID]), 0)

    def find(self, guess_id: int) -> int:
        return first_id_where(self.head, FIRST_ID, FIRST_ID + len(self._flags) - 1, lambda head: head.lsn > 0, guess_id)


@given(before=st.integers(0, 300), after=st.integers(0, 300), guess_id=st.integers(-5, 620))
def test_any_guess_finds_the_same(before: int, after: int, guess_id: int) -> None:
    heads = Heads([False] * before + [True] * after)
    assert heads.find(guess_id) == FIRST_ID + before
    assert len(heads.looks) == len(set(heads.looks)) <= 4 + 10  # so many halvings, and what a bad guess costs


@given(before=st.integers(1, 300), after=st.integers(1, 300))
def test_a_right_guess_costs_two_looks(before: int, after: int) -> None:
    heads = Heads([False] * before + [True] * after)
    assert heads.find(FIRST_ID + before) == FIRST_ID + before
    assert len(heads.looks) == 2
