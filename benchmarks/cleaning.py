"""Measure what cleaning costs: commits that clean, the file's growth, and appends beside cleaning and giving back
space.

One store, no network: all figures are of the writer's commits, fsync included. Run it on the disk that matters:
``python benchmarks/cleaning.py DIR``. The directory is made, and removed at the end.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from alpo.core.disk import Base, TableSave, Write
from alpo.core.entries import Entry, Kind, seal
from alpo.storage.interface import Rest
from alpo.storage.schema import DB_NAME
from alpo.storage.sqlite import SqliteStore

_CHUNKS = (500, 1000, 2000, 4000, 8000)
_FILL_ROWS = 2000


class Rig:
    """A store that entries are appended to and cleaned from."""

    def __init__(self, directory: Path, size: int) -> None:
        self.directory = directory
        self.store = SqliteStore.open(directory, 1)
        self._size, self._numbers = size, itertools.count(1)
        self.last_id = self.base_id = 0

    def _write(self, entries: list[Entry], base: Base | None) -> Write:
        runs = [(1, 1)] if entries and entries[0].id == 1 else []
        table = None if base is None else TableSave(self.last_id, 0, [], [], [], 0, {})
        return Write(
            next(self._numbers), 1, 0, None, entries, runs, self.base_id, self.base_id, table=table,
            bodies_bytes=len(entries) * self._size, base=base,
        )

    def append(self, count: int) -> float:
        """Commit ``count`` entries; returns ms."""
        first = self.last_id + 1
        body = bytes(self._size)
        entries = [seal(i, 1, int(Kind.DATA), i, i, body, "~client", i, 0, 1) for i in range(first, first + count)]
        self.last_id += count
        return self._commit(self._write(entries, None))

    def clean(self, count: int) -> float:
        """Clean ``count`` entries; returns ms."""
        self.base_id += count
        return self._commit(self._write([], Base(self.base_id, 1, self.base_id, self.base_id + 1)))

    def _commit(self, write: Write) -> float:
        start_s = time.perf_counter()
        self.store.commit([write])
        return (time.perf_counter() - start_s) * 1000

    def fill(self, count: int) -> None:
        """Append ``count`` entries in large commits."""
        for _ in range(0, count, _FILL_ROWS):
            self.append(_FILL_ROWS)
            self.store.checkpoint(Rest.BUSY)

    def settle(self) -> None:
        """Do all housekeeping that is due."""
        while self.store.checkpoint(Rest.IDLE) is not None:
            pass

    def appends(self, going_on: Callable[[], bool], between: Callable[[], None] = lambda: None) -> Iterator[float]:
        """Yield latencies in ms of one-entry appends, each including the writer's housekeeping after the one before."""
        while going_on():
            between()
            start_s = time.perf_counter()
            self.store.checkpoint(Rest.LULL)
            yield self.append(1) + (time.perf_counter() - start_s) * 1000


def _p(values: list[float]) -> str:
    cuts = statistics.quantiles(values, n=100)
    return f"p50 {cuts[49]:6.2f} ms  p99 {cuts[98]:6.2f} ms  of {len(values)}"


def _chunks(rig: Rig) -> None:
    """Measure commits that clean and commits of one entry in turns: a shared disk is never the same twice."""
    for chunk in _CHUNKS:
        rig.fill(12 * chunk)
        rig.settle()
        cleans, appends = [], []
        for _ in range(12):
            appends.append(rig.append(1))
            cleans.append(rig.clean(chunk))
            rig.store.checkpoint(Rest.BUSY)
        print(f"  clean {chunk:5} entries: median {statistics.median(cleans):6.2f} ms, an append of one beside it"
              f" {statistics.median(appends):6.2f} ms")


def _beside(rig: Rig, entries: int, chunk: int, gap: int) -> None:
    """Measure appends alone, beside a chunk every ``gap`` appends, and beside giving back space."""
    store = rig.store
    rig.fill(entries + entries // 10)
    rig.settle()
    print("  appends alone:          ", _p(list(rig.appends(iter([True] * 1000 + [False]).__next__))))
    start_s, count, upto_id = time.monotonic(), itertools.count(), rig.base_id + entries - chunk

    def clean() -> None:
        if next(count) % gap == 0:
            rig.clean(chunk)

    beside = list(rig.appends(lambda: rig.base_id < upto_id, clean))
    print("  appends beside cleaning:", _p(beside), f"; {entries} entries in {time.monotonic() - start_s:.0f} s")
    print(f"  free {store.free_bytes() >> 20} MiB, used {store.live_bytes() >> 20} MiB")
    store.give_back()
    store.checkpoint(Rest.LULL)
    start_s = time.monotonic()
    beside = list(rig.appends(lambda: store.free_bytes() > 0))
    print("  appends beside giving back:", _p(beside), f"; all in {time.monotonic() - start_s:.0f} s")
    rig.settle()
    print(f"  alpo.db now: {(rig.directory / DB_NAME).stat().st_size >> 20} MiB")


def main() -> None:
    """Run all measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--entries", type=int, default=1_000_000, help="cleaned beside appends (default 1,000,000)")
    parser.add_argument("--size", type=int, default=100, help="bytes of payload an entry (default 100)")
    parser.add_argument("--chunk", type=int, default=2000, help="entries cleaned at once (default 2,000)")
    parser.add_argument("--gap", type=int, default=10, help="appends between two chunks (default 10)")
    args = parser.parse_args()
    rig = Rig(args.directory / "cleaning", args.size)
    try:
        print(f"entries of {args.size} B")
        _chunks(rig)
        _beside(rig, args.entries, args.chunk, args.gap)
    finally:
        rig.store.close()
        shutil.rmtree(rig.directory)


if __name__ == "__main__":
    main()
