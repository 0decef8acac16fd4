"""Fold a log into a state for every key, as of any LSN, by functions of your own, on Spark.

    python examples/spark/fold.py words.py --servers 127.0.0.1:7100 --upto 3608 --to table

`words.py` has two functions. `key(record)` returns a text, or None to leave the record out, or a list of texts: then
the record is folded once for each of them. `fold(state, record)` returns the new state of the record's key, as JSON
has it; the state is None at first, and None removes the key. For example:

    import re

    def key(record):
        return re.findall("[a-z]+", record.payload.decode().lower())

    def fold(state, record):
        return (state or 0) + 1

One task folds all records of a key, in the order of the log; different keys are folded in parallel. The result is
Parquet: a row for each key, with the LSN of the last record that was folded into it, and the state as JSON.
"""

from __future__ import annotations

import argparse
import json
import runpy
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import alpo.spark

Key = Callable[[Any], str | list[str] | None]
Fold = Callable[[Any, Any], Any]

SCHEMA = "key string, lsn bigint, state string"
#: Tasks that fold, and files of the result.
PARTS = 16


def folded(log: DataFrame, key: Key, fold: Fold) -> DataFrame:
    """The states of all keys, of payloads that `format("alpo")` has read."""

    def keyed(record: Any) -> Iterator[tuple[tuple[str, int], Any]]:
        found = key(record)
        for each in [found] if isinstance(found, str) else found or []:
            yield (each, record.lsn), record

    def part_of(place: tuple[str, int]) -> int:
        return zlib.crc32(place[0].encode())

    def states(items: Iterable[tuple[tuple[str, int], Any]]) -> Iterator[tuple[str, int, str]]:
        for each, of_key in groupby(items, lambda item: item[0][0]):
            state, lsn = None, 0
            for _, record in of_key:
                state, lsn = fold(state, record), record.lsn
            if state is not None:
                yield each, lsn, json.dumps(state)

    in_order = log.rdd.flatMap(keyed).repartitionAndSortWithinPartitions(PARTS, part_of)
    return log.sparkSession.createDataFrame(in_order.mapPartitions(states), SCHEMA)


def main() -> None:
    """Fold the log that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("functions", metavar="FILE.py")
    parser.add_argument("--servers", help="HOST:PORT,…")
    parser.add_argument("--path", help="a data directory or a backup, not servers")
    parser.add_argument("--archive", help="an archive: alone, or for what the log no longer has")
    parser.add_argument("--upto", help="the last LSN to fold; the end if not given")
    parser.add_argument("--to", required=True, help="directory of the result, a new one")
    given = parser.parse_args()
    functions = runpy.run_path(given.functions)
    spark = alpo.spark.configure(SparkSession.builder.appName("fold")).getOrCreate()
    reader = spark.read.format("alpo").option("startingLsn", 1)
    options = {"servers": given.servers, "path": given.path, "archivePath": given.archive, "endingLsn": given.upto}
    for name, value in options.items():
        if value is not None:
            reader = reader.option(name, value)
    folded(reader.load(), functions["key"], functions["fold"]).write.parquet(given.to)


if __name__ == "__main__":
    main()
