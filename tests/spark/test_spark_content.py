"""The digest of a range's rows: of their values, however they are cut into batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from jobs_kit import Replica, batches, by_definition, fifty

from alpo.spark.columns import ARROW, Content
from alpo.spark.origin import SourceError


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Replica]:
    replica = fifty(tmp_path / "log")
    yield replica
    replica.close()


def test_a_digest_is_of_the_values_however_they_are_cut(log: Replica) -> None:
    whole = pa.Table.from_batches(batches(log, 1, 50)).combine_chunks()
    digests = set()
    for size in (1, 3, 7, 50):
        content = Content()
        for batch in whole.to_batches(size):
            content.add(batch)
        digests.add(content.digest())
        assert (content.rows, content.bytes) == (50, sum(len(row["payload"]) for row in whole.to_pylist()))
    assert digests == {by_definition(whole.to_pylist())}


@pytest.mark.parametrize("name", ARROW.names)
def test_every_column_counts(log: Replica, name: str) -> None:
    found = pa.Table.from_batches(batches(log, 1, 50)).to_pylist()
    before: Any = found[20][name]
    text = isinstance(before, bytes | str)
    found[20][name] = before + before[:1] if text else found[21][name]
    if found[20][name] == before:  # equal in the next row of a batch or of the client
        found[20][name] = before + 1
    content = Content()
    content.add(pa.RecordBatch.from_pylist(found, ARROW))
    unchanged = by_definition(pa.Table.from_batches(batches(log, 1, 50)).to_pylist())
    assert content.digest() == by_definition(found) != unchanged


def test_no_rows_but_a_logs(log: Replica) -> None:
    content = Content()
    with pytest.raises(SourceError, match="not the rows of a log"):
        content.add(pa.RecordBatch.from_pylist([{"lsn": 1}]))
    with pytest.raises(SourceError, match="not the rows of a log"):
        content.add(pa.RecordBatch.from_pylist([dict.fromkeys(ARROW.names)], ARROW))
    content.add(pa.RecordBatch.from_pylist([], ARROW))
    assert content.digest() == by_definition([])
