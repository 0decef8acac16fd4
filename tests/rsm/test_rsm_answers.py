"""Answers have one form in every process: equal ones the same, others another."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict, namedtuple
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from wrong_machines import Colour, Refused, Row

from alpo.rsm.checking.answers import Incomparable, answer_digest, canonical, error_digest, text_of


class Many(list[int]):
    """A list of one's own."""


def noted(number: int) -> ValueError:
    """An error with more than its arguments."""
    error = ValueError("a", "b")
    error.add_note(str(number))
    return error


Pair = namedtuple("Pair", "a b")
SHARED = [1]


@pytest.mark.parametrize(("one", "other"), [
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({"a", "b", "c"}, {"c", "b", "a"}), ([SHARED, SHARED], [[1], [1]]),
    (float("nan"), -float("nan")), (Row("a", {"x": 1, "y": 2}), Row("a", {"y": 2, "x": 1})), (Pair(1, 2), Pair(1, 2)),
    (Decimal("1.0"), Decimal("1.0")), (b"a" * 2, b"aa"), (Colour.RED, Colour(1)),
])
def test_equal_answers_have_one_form(one: object, other: object) -> None:
    assert canonical(one) == canonical(other)


DIFFERENT: list[Any] = [
    None, 0, False, 0.0, -0.0, "", b"", bytearray(), [], (), {}, set(), frozenset(), "0", b"0", [0], (0,), {0}, {0: 0},
    [[], []], [[[]]], ["a", "b"], ["b", "a"], ["ab"], {"a": "b"}, {"b": "a"}, OrderedDict(a=1, b=2),
    OrderedDict(b=2, a=1), Pair(1, 2), (1, 2), Row("a"), Row("b"), Colour.RED, Decimal("1.0"), Decimal("1.00"), 1.0, 1,
    1 + 0j, datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=timezone.utc), int, str, len, ValueError("a"),  # noqa: UP017
    ValueError("b"), KeyError("a"), object(), range(2), slice(2),
    defaultdict(int, a=1), defaultdict(int, a=2), defaultdict(str, a=1), Many([1]), Many([2]), noted(1), noted(2),
]


def test_different_answers_have_different_forms() -> None:
    forms = [canonical(value) for value in DIFFERENT]
    assert len(set(forms)) == len(forms)


def test_what_is_raised_is_no_answer_and_has_its_arguments() -> None:
    errors = [Refused("a", Row("a")), Refused("a", Row("b")), ValueError("a"), ValueError("a", 1)]
    digests = {answer_digest(errors[2]), error_digest(KeyError("a")), *map(error_digest, errors)}
    assert len(digests) == 6
    assert error_digest(ValueError("a")) != answer_digest(("builtins.ValueError", ("a",)))
    assert error_digest(errors[0]) == error_digest(Refused("a", Row("a")))


def test_circles_have_a_form() -> None:
    one: list[Any] = [1]
    one.append(one)
    two: list[Any] = [1]
    two.append(two)
    assert canonical(one) == canonical(two)


def test_what_is_no_data_has_none() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    for value in (threading.Lock(), (each for each in [1]), deep):
        with pytest.raises(Incomparable):
            canonical(value)


def test_a_text_is_short_and_survives_its_repr() -> None:
    class Loud:
        def __repr__(self) -> str:
            raise KeyError("no")

    assert len(text_of(["a" * 1000] * 1000)) <= 400
    assert "Loud" in text_of(Loud()) and "Loud" in text_of([Loud()])
