"""Readers beside a cleaning in SQLite: never a gap, and what was cleaned is never taken for damage (R20, R31)."""

from __future__ import annotations

import random
import threading
from pathlib import Path

from node_rig import read

from alpo.core.disk import Base, TableSave, Write
from alpo.core.entries import Entry, Kind, seal
from alpo.node.pages import Extent, Front, OutOfRange, Overtaken, build_page, extent
from alpo.storage.sqlite import SqliteStore
from alpo.wire.requests import Page

ENTRIES = 2_000
CHUNK = 16
READERS = 3


class Log:
    """Entries 1 … `ENTRIES`, entry n with payload n; the front moves before the store does, as in a server."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.front = Front(0, 1, 1)
        self.pages = threading.Semaphore(0)  # that may be made
        entries = [seal(id, 1, Kind.DATA, id, id, b"%d" % id, "abc"[id % 3], id, 0, 1) for id in range(1, ENTRIES + 1)]
        table = TableSave(ENTRIES, 0, [], [], [], 0, {})
        store.commit([Write(1, 1, 0, None, entries, [(1, 1)], ENTRIES, ENTRIES, table=table)])
        self._entries: list[Entry] = entries

    def clean(self) -> None:
        """Clean a chunk for each page of the readers: too fast for a reader that began at the front."""
        for number, id in enumerate(range(CHUNK, ENTRIES - CHUNK, CHUNK), 2):
            base = Base(id, 1, id, id + 1)
            self.pages.release(READERS)
            self.front = Front(id, id + 1, id + 1)
            self.store.commit([Write(number, 1, 0, None, [], [], ENTRIES, ENTRIES, base=base)])

    def extent(self) -> Extent:
        return extent(self.store, self.front, ENTRIES)


class Reader(threading.Thread):
    """A reader that begins anywhere and reads until it is out of range, again and again, until all is cleaned."""

    def __init__(self, log: Log, over: threading.Event, seed: int) -> None:
        super().__init__()
        self._log, self._over, self._rng = log, over, random.Random(seed)
        self.pages = self.out_of_range = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self._read()
        except BaseException as error:
            self.error = error

    def _read(self) -> None:
        client = self._rng.choice(["", "", "a"])
        first = {"last": self._rng.randint(1, ENTRIES)} if self._rng.random() < 0.3 else {}
        next_lsn = 0
        while self._log.pages.acquire():
            front = self._log.front
            try:
                ask = read(start=next_lsn, client=client, **({} if next_lsn else first))
                page = build_page(self._log.store, ask, self._log.extent(), 30)
            except Overtaken:
                continue
            except OutOfRange as error:
                assert next_lsn and next_lsn < error.first_lsn, (next_lsn, error)
                self.out_of_range += 1
                return
            self.pages += 1
            assert isinstance(page, Page)
            lsns = [row[5] for row in page.entries]
            begin = next_lsn or (lsns[0] if lsns else page.next_lsn)
            if not next_lsn and not first and not client:
                assert front.first_lsn <= begin <= self._log.front.first_lsn, begin
            due = [lsn for lsn in range(begin, page.next_lsn) if client in ("", "abc"[lsn % 3])]
            assert lsns == due
            next_lsn = page.next_lsn
            if next_lsn > page.end_lsn or self._over.is_set():
                return


def test_readers_beside_a_cleaning(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "data", 1)
    log, over = Log(store), threading.Event()
    readers = [Reader(log, over, seed) for seed in range(READERS)]
    for reader in readers:
        reader.start()
    try:
        log.clean()
    finally:
        over.set()
        log.pages.release(10 * READERS)
        for reader in readers:
            reader.join()
        store.close()
    for reader in readers:
        if reader.error is not None:
            raise reader.error
    assert all(reader.pages for reader in readers) and any(reader.out_of_range for reader in readers)
