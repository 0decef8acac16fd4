"""Kill -9 in the middle of commits, and full disks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from dying import killed_after
from store_kit import SERVER, LogBuilder, SqliteBench, row, table, write

from alpo.storage.interface import StoreFull
from alpo.storage.sqlite import SqliteStore

GROUP = 7

#: Commits groups of seven, each with a table save, now and then replacing the group before; says what is committed.
_COMMITTER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from store_kit import SERVER, LogBuilder, row, table, write
from alpo.storage.interface import Rest
from alpo.storage.sqlite import SqliteStore
store = SqliteStore.open(Path(sys.argv[1]), SERVER)
boot = store.boot()
group, term = boot.last_id // 7, boot.term
while True:
    x = None
    if group and group % 5 == 0:
        group -= 1
        x = group * 7 + 1
    term += 1
    log = LogBuilder(group * 7 + 1, group * 7 + 1)
    entries = log.datas(7, term)
    group += 1
    store.commit([write(entries, expunge_from=x, vote=group, guaranteed_id=group * 7,
                        table=table(group * 7, [row("a", group), row(f"c{group}")]))])
    if x is not None:
        group += 1
        term += 1
        store.commit([write(log.datas(7, term), vote=group, guaranteed_id=group * 7,
                            table=table(group * 7, [row("a", group), row(f"c{group}")]))])
    print(group, term, flush=True)
    store.checkpoint(Rest.IDLE if group % 3 == 0 else Rest.BUSY)
"""


def test_kill_9_loses_nothing_that_was_reported(tmp_path: Path) -> None:
    for _ in range(6):
        groups, term = killed_after(9, _COMMITTER, tmp_path)
        store = SqliteStore.open(tmp_path, SERVER)
        boot, entries = store.boot(), list(store.replay(1))
        store.close()
        assert boot.term >= term
        assert boot.last_id % GROUP == 0 and len(entries) == boot.last_id
        if boot.term == term:
            assert boot.last_id == groups * GROUP
        assert boot.vote * GROUP == boot.applied_id == boot.guaranteed_id == boot.last_id
        assert [e.id for e in entries] == list(range(1, boot.last_id + 1))
        assert boot.runs == [(entries[at].term, at + 1) for at in range(0, len(entries), GROUP)]
        assert next(s for s in boot.sessions if s.client == "a").last_serial == boot.vote


def test_a_full_disk_takes_nothing_and_heals(sqlite: SqliteBench) -> None:
    log = LogBuilder()
    entries = log.datas(10)
    sqlite.store.commit([write(entries, guaranteed_id=1)])
    db = sqlite.store._db
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count={pages + 3}")
    more = LogBuilder(11, 11).datas(50, size=1000)
    for _ in range(3):
        with pytest.raises(StoreFull):
            sqlite.store.commit([write(more, term=8, vote=2, runs=[], table=table(5, [row("a")]))])
        boot = sqlite.store.boot()
        assert (boot.last_id, boot.term, boot.vote, boot.sessions) == (10, 1, 0, [])
    sqlite.store.commit([write([more[0]], runs=[])])
    db.execute("PRAGMA max_page_count=1000000")
    sqlite.store.commit([write(more[1:], term=8, runs=[], table=table(5, [row("a")]))])
    assert list(sqlite.reopen().replay(1)) == entries + more
    assert sqlite.store.boot().sessions == [row("a")]


#: Writes under a limit of the system's on the size of a file, which fails like a quota.
_LIMITED = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from store_kit import SERVER, LogBuilder, write
from alpo.storage.interface import StoreError
from alpo.storage.sqlite import SqliteStore
store = SqliteStore.open(Path(sys.argv[1]), SERVER)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
log = LogBuilder()
try:
    while True:
        store.commit([write(log.datas(5, size=1000), runs=[(1, 1)] if log.id <= 6 else [])])
        print(log.id - 1, flush=True)
except StoreError as error:
    print("refused", flush=True)
try:
    store.commit([write(vote=1)])
    print("went on", flush=True)
except StoreError:
    print("out of use", flush=True)
"""


def test_a_write_error_puts_the_store_out_of_use_and_a_restart_finds_all_that_was_reported(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path), str(Path(__file__).parent)],
        capture_output=True, text=True, check=False,
    )
    lines = run.stdout.split("\n")
    assert lines[-3:] == ["refused", "out of use", ""], run.stderr
    store = SqliteStore.open(tmp_path, SERVER)
    assert store.boot().last_id == int(lines[-4]) > 0
    assert len(list(store.replay(1))) == int(lines[-4])
    store.close()
