"""Some of many tests of one kind in every run, and all of them in the soak."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

#: One of so many runs every time.
ONE_OF = 3


def some(values: Iterable[Any]) -> list[Any]:
    """Parameters of a test: every third of ``values`` runs every time, the others in the soak alone."""
    return [
        pytest.param(value, marks=() if place % ONE_OF == 0 else pytest.mark.soak) for place, value in enumerate(values)
    ]
