"""Finding an id, with a guess and without."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from alpo.storage.interface import DamagedStore
from alpo.storage.search import Head, Places, first_id_where

FIRST_ID = 10


class Heads:
    """Heads of entries ``FIRST_ID`` and so on; the ids that were looked at."""

    def __init__(self, flags: list[bool], damaged_id: int = 0) -> None:
        self._flags = flags
        self._damaged_id = damaged_id
        self.looks: list[int] = []

    def head(self, id: int) -> Head:
        self.looks.append(id)
        if id == self._damaged_id:
            raise DamagedStore(f"entry {id}")
        return Head(0, int(self._flags[id - FIRST_ID]), 0)

    def find(self, guess_id: int) -> int:
        return first_id_where(self.head, FIRST_ID, FIRST_ID + len(self._flags) - 1, lambda head: head.lsn > 0, guess_id)


@given(before=st.integers(0, 300), after=st.integers(0, 300), guess_id=st.integers(-5, 620))
def test_any_guess_finds_the_same(before: int, after: int, guess_id: int) -> None:
    heads = Heads([False] * before + [True] * after)
    assert heads.find(guess_id) == FIRST_ID + before
    assert len(heads.looks) <= 2 + 10  # two for a wrong guess, and at most ten for halving


@given(before=st.integers(1, 300), after=st.integers(1, 300))
def test_a_right_guess_costs_two_looks(before: int, after: int) -> None:
    heads = Heads([False] * before + [True] * after)
    assert heads.find(FIRST_ID + before) == FIRST_ID + before
    assert len(heads.looks) == 2


@example(count=32, before=0, damaged=3, guess=25)
@given(count=st.integers(1, 200), before=st.integers(0, 200), damaged=st.integers(0, 199), guess=st.integers(-1, 201))
def test_damage_is_met_only_where_it_is_met_without_a_guess(count: int, before: int, damaged: int, guess: int) -> None:
    flags = [at >= before for at in range(count)]

    def found(guess_id: int) -> int | None:
        try:
            return Heads(flags, FIRST_ID + damaged).find(guess_id)
        except DamagedStore:
            return None

    without = found(0)
    assert without is None or found(FIRST_ID + guess) == without


def test_places_remember_the_last_so_many() -> None:
    places = Places()
    assert places.id_of(5) == 0
    for lsn in range(1, 41):
        places.add(lsn, lsn + 100)
    assert (places.id_of(40), places.id_of(9), places.id_of(8)) == (140, 109, 0)
    places.add(40, 141)
    assert places.id_of(40) == 141
