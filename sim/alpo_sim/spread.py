"""Spread work over processes, results in order.

A file of its own: seeds, mutants and the measured elections use it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def spread(parts: Iterable[Callable[[], T]], jobs: int, ahead: int) -> Iterator[T]:
    """Yield what each of ``parts`` returns, in order, from ``jobs`` processes (1: this one). A part is taken only when
    fewer than ``ahead`` for each process are under way."""
    if jobs == 1:
        yield from (part() for part in parts)
        return
    with ProcessPoolExecutor(jobs) as pool:
        under_way: deque[Future[T]] = deque()
        try:
            for part in parts:
                under_way.append(pool.submit(part))
                if len(under_way) >= ahead * jobs:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
