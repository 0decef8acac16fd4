"""A crash at any step of a cleaning, or of giving pages back: all of it or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dying import killed_after
from store_kit import SERVER, LogBuilder, SqliteBench, base_of, cleaning, row, table, write

from alpo.core.disk import Boot
from alpo.storage import vacuum
from alpo.storage.interface import Rest
from alpo.storage.schema import DB_NAME
from alpo.storage.sqlite import SqliteStore

_HEADER_BYTES, _FRAME_BYTES = 32, 4096 + 24


class Disk:
    """States of a store's files that a crash may leave: before every statement, and cut wherever a write may end."""

    def __init__(self, store: SqliteStore, path: Path) -> None:
        self._store, self._path = store, path
        self.states: list[tuple[bytes, bytes]] = []

    def _note(self, _: object = None) -> None:
        wal = self._path.with_name(DB_NAME + "-wal")
        self.states.append((self._path.read_bytes(), wal.read_bytes() if wal.exists() else b""))

    def during(self, act: Callable[[], object], *, cut: bool = True) -> list[tuple[bytes, bytes]]:
        """Every state that a crash during ``act`` may leave; before, then in between, then after. ``cut``: it does not
        checkpoint, so what it writes to the WAL may be there in part."""
        db = self._store._db
        self._note()
        db.set_trace_callback(self._note)
        act()
        db.set_trace_callback(None)
        self._note()
        if not cut:
            return self.states
        file, wal = self.states[-1]
        first = len(self.states[0][1])
        cuts = range(_HEADER_BYTES, len(wal), _FRAME_BYTES)
        places = sorted({at + d for at in cuts for d in (0, 2000) if first <= at + d < len(wal)})
        return [*self.states[:-1], *[(file, wal[:at]) for at in places], (file, wal)]


@contextmanager
def _opened(directory: Path, state: tuple[bytes, bytes]) -> Iterator[SqliteStore]:
    directory.mkdir(exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    (directory / DB_NAME).write_bytes(state[0])
    (directory / (DB_NAME + "-wal")).write_bytes(state[1])
    store = SqliteStore.open(directory, SERVER)
    yield store
    assert store._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    store.close()


@pytest.mark.parametrize("spilling", [False, True])
@pytest.mark.parametrize("with_entries", [False, True])
def test_a_crash_at_any_step_of_a_cleaning(
    sqlite: SqliteBench, tmp_path: Path, spilling: bool, with_entries: bool,
) -> None:
    """``spilling``: pages of the cleaning reach the WAL before it is committed."""
    log = LogBuilder()
    entries = log.datas(300, size=500)
    sqlite.store.commit([write(entries, guaranteed_id=4, table=table(4, [row("a"), row("b")]))])
    sqlite.store._wal._run("TRUNCATE")
    sqlite.store.commit([write(vote=1)])
    if spilling:
        sqlite.store._db.execute("PRAGMA cache_size=5")
    more = log.datas(50, term=2, size=500) if with_entries else []
    boots: list[Boot] = [sqlite.store.boot()]
    disk = Disk(sqlite.store, sqlite.path)
    states = disk.during(lambda: sqlite.store.commit([
        cleaning(entries[199], more, term=2, vote=3, guaranteed_id=250, table=table(240, [row("a", 9)], ["b"]),
                 runs=[(2, 301)] if more else []),
    ]))
    boots.append(sqlite.store.boot())
    assert boots[1].base == base_of(entries[199]) and boots[1].guaranteed_id == 250
    logs = [entries, (entries + more)[200:]]
    found = []
    for state in states:
        with _opened(tmp_path / "crashed", state) as store:
            found.append(boots.index(store.boot()))
            assert list(store.replay(1)) == logs[found[-1]]
            if found[-1] == 0:
                store.commit([cleaning(entries[199])])
            assert list(store.replay(1))[:100] == entries[200:]
    assert found == [0] * found.index(1) + [1] * found.count(1)
    assert found.count(0) > 10 and found[-1] == 1
    assert spilling == any(len(wal) > len(disk.states[0][1]) for _, wal in disk.states[:-1])


def test_a_crash_at_any_step_of_taking_a_base(sqlite: SqliteBench, tmp_path: Path) -> None:
    entries = LogBuilder().datas(60, size=500)
    sqlite.store.commit([write(entries, guaranteed_id=4, table=table(4, [row("a"), row("old")]))])
    sqlite.store._wal._run("TRUNCATE")
    sqlite.store.commit([write(vote=1)])
    base = base_of(entries[40])._replace(id=100)
    taken = table(120, [row("a", 9), row("new")])._replace(ahead=True)
    boots: list[Boot] = [sqlite.store.boot()]
    states = Disk(sqlite.store, sqlite.path).during(lambda: sqlite.store.commit([
        write(install=base, term=3, guaranteed_id=100, fully_replicated_id=100, table=taken),
    ]))
    boots.append(sqlite.store.boot())
    found = []
    for state in states:
        with _opened(tmp_path / "crashed", state) as store:
            found.append(boots.index(store.boot()))
            assert list(store.replay(1)) == (entries if found[-1] == 0 else [])
    assert found == [0] * found.count(0) + [1] * found.count(1)
    assert found.count(0) > 5 and found[-1] == 1


def test_a_crash_at_any_step_of_giving_back(
    sqlite: SqliteBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vacuum, "STEP_S", float("inf"))
    entries = LogBuilder().datas(1_000, size=500)
    sqlite.store.commit([write(entries)])
    sqlite.store.commit([cleaning(entries[599])])
    sqlite.store._wal._run("TRUNCATE")
    boot = sqlite.store.boot()
    sqlite.store.give_back()

    def settle() -> None:
        while sqlite.store.checkpoint(Rest.IDLE) is not None:
            pass

    states = Disk(sqlite.store, sqlite.path).during(lambda: sqlite.store.checkpoint(Rest.IDLE))
    states += Disk(sqlite.store, sqlite.path).during(settle, cut=False)
    assert len(states[-1][0]) < 0.7 * len(states[0][0])
    for state in states:
        with _opened(tmp_path / "crashed", state) as store:
            assert store.boot() == boot
            assert list(store.replay(1)) == entries[600:]


#: Appends and cleans by turns, keeping ten groups of twenty, and gives back what it can; says what is committed.
_CLEANER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from store_kit import SERVER, LogBuilder, cleaning, row, table, write
from alpo.storage import vacuum
from alpo.storage.interface import Rest
from alpo.storage.sqlite import SqliteStore
store = SqliteStore.open(Path(sys.argv[1]), SERVER)
boot = store.boot()
group, base = boot.last_id // 20, boot.base.id // 20
log = LogBuilder(boot.last_id + 1, boot.next_lsn)
while True:
    group += 1
    term = group // 3 + 1
    new = log.datas(20, term, size=700)
    runs = [(term, new[0].id)] if group % 3 == 0 or group == 1 else []
    mark = {"vote": group, "guaranteed_id": group * 20, "term": term}
    store.commit([write(new, runs=runs, table=table(group * 20, [row("a", group)]), **mark)])
    while base < group - 10:
        base += 1
        (upto,) = store.read_entries(base * 20, base * 20, 1)
        store.commit([cleaning(upto, table=table(group * 20, [row("b", base)]), **mark)])
    print(group, base, flush=True)
    if group % 4 == 0:
        store.give_back()
    store.checkpoint(Rest.IDLE if group % 3 == 0 else Rest.BUSY)
"""


def test_kill_9_between_cleanings_loses_nothing_that_was_reported(tmp_path: Path) -> None:
    for _ in range(6):
        group, base = killed_after(25, _CLEANER, tmp_path)
        store = SqliteStore.open(tmp_path, SERVER)
        boot, entries = store.boot(), list(store.replay(1))
        assert store._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        store.close()
        assert boot.last_id in (group * 20, group * 20 + 20)
        assert boot.base.id in (base * 20, base * 20 + 20) and boot.base.id % 20 == 0
        assert [e.id for e in entries] == list(range(boot.base.id + 1, boot.last_id + 1))
        assert boot.vote * 20 == boot.applied_id == boot.guaranteed_id == boot.last_id
        sessions = {s.client: s.last_serial for s in boot.sessions}
        assert sessions["a"] == boot.vote and sessions.get("b", 0) * 20 == boot.base.id
