"""Executors' part of a replay: read a range and determine its payloads' keys; fold one part of the keys into a file.

Laws:

* The records of a key are folded in log order, one after the other; keys are independent of each other.
* A state is JSON, and reads back as it was written. Anything else is refused at once, not found when a replay resumes.
* If the user's functions raise several errors, the one at the lowest LSN is reported: the same every time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from alpo.client.record import Record, records_of
from alpo.errors import AlpoError

from ..archive_file import stretch_of
from ..columns import ARROW
from ..origin import DataLoss, Origin, SourceError
from ..ranges import Range
from ..reading import rows_of
from .functions import Function
from .grouping import Item
from .tables import Part, check_part, new_part, part_at

#: Columns of a table, a row a key; ``lsn``: that of the last record folded into it.
TABLE = pa.schema([("key", pa.string()), ("lsn", pa.int64()), ("state", pa.string())])
GROUP_ROWS = 65_536
_LEVEL = 1


class Keyed(NamedTuple):
    """Argument of a fold: a record (as `alpo.Record`) and its key, "" if the whole log is one."""

    lsn: int
    id: int
    term: int
    time: datetime
    client: str
    serial: int
    payload: bytes
    key: str


class Refusal(NamedTuple):
    """The reason why the payload at ``lsn`` cannot be folded."""

    lsn: int
    why: str


class Row(NamedTuple):
    key: str
    lsn: int
    state: str


@dataclass(frozen=True)
class ReadTask:
    """Task to read a range; ``key`` None: all records have the key ""."""

    origin: Origin
    wanted: Range
    key: Function | None


@dataclass(frozen=True)
class FoldTask:
    """Task to fold one part. ``before``: the parts of the table to continue, in directory ``before_in``; (): from
    scratch. ``to``: directory of the new table."""

    fold: Function
    to: str
    before_in: str = ""
    before: tuple[Part, ...] = ()


class Folded(NamedTuple):
    """Result of a `FoldTask`: the part, made of ``folded`` records; or None and the reason."""

    part: Part | None
    folded: int
    refusal: Refusal | None


def read_keyed(task: ReadTask) -> Iterator[Item]:
    """Yield every record of the range, once for each of its keys. The last item may be a `Refusal`."""
    wanted, lsn = task.wanted, task.wanted.first
    try:
        key = task.key.load() if task.key is not None else None
        for batch in rows_of(task.origin, wanted, ARROW.names, True):
            for record in records_of(stretch_of(batch).entries(), wanted.first, wanted.last):
                lsn = record.lsn
                for name in _keys(task.key, key, record):
                    yield (name, lsn), tuple(record[1:])
    except DataLoss as loss:
        yield ("", lsn), Refusal(lsn, _gone(loss))
    except AlpoError as error:
        yield ("", lsn), Refusal(lsn, str(error))


def _gone(loss: DataLoss) -> str:
    return f"ALPO_DATA_LOSS: payloads {loss.first_lsn} to {loss.last_lsn} are not in {loss.where} any more"


def _keys(function: Function | None, key: Any, record: Record) -> Iterable[str]:
    if function is None:
        return ("",)
    try:
        found = key(record)
    except Exception as error:  # the user's own code
        raise SourceError(function.trouble(error, f"LSN {record.lsn}")) from error
    names = [found] if isinstance(found, str) else found if isinstance(found, list) else [] if found is None else None
    if names is None or not all(isinstance(name, str) and _is_text(name) for name in names):
        raise SourceError(
            f"{function.text} returned {found!r} at LSN {record.lsn}: a key is text, and no key None, several a list"
        )
    return names


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return True


def fold_part(task: FoldTask, number: int, items: Iterator[Item]) -> Folded:
    """Fold part ``number``: its rows of the table before, and its ``items``, sorted by key and LSN."""
    folding = _Folding(task.fold)
    try:
        before = _rows(check_part(Path(task.before_in), task.before[number])) if task.before else iter(())
        path = Path(task.to) / f"part-{number:05d}.parquet"
        with new_part(path) as stream:
            rows = _write(stream, folding.rows(before, items))
            if folding.refusal is not None:
                raise SourceError(folding.refusal.why)
        return Folded(part_at(path, rows), folding.folded, None)
    except SourceError as error:
        return Folded(None, 0, folding.refusal or Refusal(0, str(error)))


class _Folding:
    """State while one part is folded."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self.folded = 0
        self.refusal: Refusal | None = None

    def rows(self, before: Iterator[Row], items: Iterator[Item]) -> Iterator[Row]:
        """Yield the new rows. ``before``, ``items`` and the result are sorted by key."""
        fold = self._function.load()
        old = next(before, None)
        for key, group in groupby(items, lambda item: item[0][0]):
            while old is not None and old.key < key:
                yield old
                old = next(before, None)
            row = self._row(fold, key, old.state if old is not None and old.key == key else None, group)
            if old is not None and old.key == key:
                old = next(before, None)
            if row is not None:
                yield row
        yield from chain([] if old is None else [old], before)

    def _row(self, fold: Any, key: str, text: str | None, group: Iterator[Item]) -> Row | None:
        """The new row of a key; None if its state is None, or an error occurred."""
        state = None if text is None else json.loads(text)
        lsn = 0
        for (_, lsn), values in group:
            if isinstance(values, Refusal):
                self._refuse(values)
                return None
            try:
                state = fold(state, Keyed._make((lsn, *values, key)))
            except Exception as error:  # the user's own code
                self._refuse(Refusal(lsn, self._function.trouble(error, f"LSN {lsn}, key {key!r}")))
                return None
            self.folded += 1
        if state is None:
            return None
        text = _text_of(state)
        if text is None:
            self._refuse(Refusal(lsn, (
                f"{self._function.text} returned at LSN {lsn}, key {key!r}, what is not JSON: {state!r}. A state is of"
                " dicts with text as keys, lists, text, finite numbers, true, false and None"
            )))
            return None
        return Row(key, lsn, text)

    def _refuse(self, refusal: Refusal) -> None:
        self.refusal = min(self.refusal or refusal, refusal)


def _text_of(state: Any) -> str | None:
    """The state as JSON; None if it would not read back the same: a tuple, a number as a key, NaN."""
    try:
        text = json.dumps(state, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
        return text if json.loads(text) == state else None
    except (TypeError, ValueError, RecursionError):
        return None


def _rows(path: Path) -> Iterator[Row]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(GROUP_ROWS):
            yield from map(Row, *(column.to_pylist() for column in batch.columns))


def _write(stream: Any, rows: Iterator[Row]) -> int:
    """Write row groups of a fixed size, so that equal rows give equal bytes."""
    written = 0
    with pq.ParquetWriter(stream, TABLE, compression="zstd", compression_level=_LEVEL) as writer:
        held: list[Row] = []
        for row in rows:
            held.append(row)
            if len(held) == GROUP_ROWS:
                writer.write_table(_table_of(held))
                written, held = written + len(held), []
        writer.write_table(_table_of(held))
    return written + len(held)


def _table_of(rows: list[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(TABLE)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, TABLE, strict=True)], TABLE)
