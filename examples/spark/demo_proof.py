"""Proof for demo.py: compare the word count with plain Python over the same lines."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from alpo import Record
from alpo.spark.options import BATCH_BITS

_WORD = re.compile(rb"[A-Za-z]+")


class Row(NamedTuple):
    """A payload of the second log: by the end of micro-batch ``batch``, ``word`` had occurred ``times`` times."""

    batch: int
    word: str
    times: int


class Proof(NamedTuple):
    """Result of the comparison. ``rows``: in the second log. ``lost``, ``doubled``: of those expected. ``wrong``: words
    whose last count differs from plain Python's."""

    batches: int
    rows: int
    lost: int
    doubled: int
    words: int
    wrong: int

    @property
    def holds(self) -> bool:
        return self.rows > 0 and not (self.lost or self.doubled or self.wrong)


def batch_of(record: Record) -> int:
    """The micro-batch that wrote the record (docs/spark.md)."""
    return record.serial >> BATCH_BITS


def row_of(record: Record) -> Row:
    """Decode a record of the second log."""
    fields = json.loads(record.payload)
    return Row(batch_of(record), fields["word"], fields["count"])


def words_of(line: bytes) -> list[str]:
    """Words of a line, in lower case."""
    return [word.decode().lower() for word in _WORD.findall(line)]


def ends_of(checkpoint: Path) -> list[int]:
    """Number of lines that Spark had read by the end of each micro-batch. Raises SystemExit."""
    files = sorted((int(file.name), file) for file in (checkpoint / "offsets").iterdir() if file.name.isdigit())
    if [number for number, _ in files] != list(range(len(files))):
        raise SystemExit(f"{checkpoint} does not know all micro-batches")
    return [int(json.loads(file.read_text("utf-8").splitlines()[-1])["lsn"]) - 1 for _, file in files]


def expected(lines: Sequence[bytes], ends: Iterable[int]) -> list[Row]:
    """The rows that should be in the second log."""
    counts: Counter[str] = Counter()
    rows, begin = [], 0
    for batch, end in enumerate(ends):
        new = Counter(word for line in lines[begin:end] for word in words_of(line))
        counts += new
        rows += [Row(batch, word, counts[word]) for word in new]
        begin = end
    return rows


def prove(lines: Sequence[bytes], ends: Sequence[int], found: Sequence[Row]) -> Proof:
    """Compare the second log's rows, ``found``, in order, with the expected ones."""
    wanted, there = Counter(expected(lines, ends)), Counter(found)
    counted = Counter(word for line in lines for word in words_of(line))
    last = {row.word: row.times for row in found}
    wrong = sum(last.get(word) != counted.get(word) for word in last.keys() | counted.keys())
    return Proof(
        len({row.batch for row in found}), len(found), (wanted - there).total(), (there - wanted).total(), len(last),
        wrong,
    )
