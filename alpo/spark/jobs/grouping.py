"""Group items by key, all items of a key in one part and in order: by Spark's shuffle, or in this process.

An item is ``((key, lsn), value)``; a part gets its items sorted by key, then by LSN.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Protocol, TypeVar

from .fan import Progress, collected, unseen

T = TypeVar("T")
R = TypeVar("R")

Place = tuple[str, int]
Item = tuple[Place, Any]


class Grouper(Protocol):
    """Calls ``read`` for every task and ``fold`` for each of ``parts`` parts with its number; returns the results in
    order of parts."""

    def __call__(
        self, tasks: Sequence[T], read: Callable[[T], Iterator[Item]], parts: int,
        fold: Callable[[int, Iterator[Item]], R], on_done: Progress = unseen,
    ) -> list[R]: ...


def part_of(place: Place) -> int:
    """Hash of an item's key, to be taken modulo the number of parts. The same in every process, for ever: tables rely
    on it."""
    return zlib.crc32(place[0].encode())


def group_here(
    tasks: Sequence[T], read: Callable[[T], Iterator[Item]], parts: int,
    fold: Callable[[int, Iterator[Item]], R], on_done: Progress = unseen,
) -> list[R]:
    """Group without Spark, in memory, in this process: a `Grouper`."""
    piles: list[list[Item]] = [[] for _ in range(parts)]
    for number, task in enumerate(tasks, 1):
        for item in read(task):
            piles[part_of(item[0]) % parts].append(item)
        on_done(number, len(tasks) + parts)
    return [fold(number, iter(sorted(pile, key=itemgetter(0)))) for number, pile in enumerate(piles)]


def group_on_spark(context: Any) -> Grouper:
    """Make a `Grouper` of a SparkContext."""

    def group(
        tasks: Sequence[T], read: Callable[[T], Iterator[Item]], parts: int,
        fold: Callable[[int, Iterator[Item]], R], on_done: Progress = unseen,
    ) -> list[R]:
        items = context.parallelize(list(tasks), len(tasks)).flatMap(read)
        sorted_items = items.repartitionAndSortWithinPartitions(parts, part_of)
        folded = sorted_items.mapPartitionsWithIndex(lambda number, found: iter([(number, fold(number, found))]))
        return [result for _, result in sorted(collected(context, folded, len(tasks) + parts, on_done))]

    return group
