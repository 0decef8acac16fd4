"""Events on disk: they ride along, are bounded, outlive a restart, and harm nothing."""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing

import pytest
from store_kit import Bench, LogBuilder, SqliteBench, unexpected, write

from alpo.storage import events as events_module
from alpo.storage import writer as writer_module
from alpo.storage.events import FIELDS_CHARS_MAX, EventRow, event_row
from alpo.storage.interface import Rest, Store
from alpo.storage.writer import Writer

WAIT_S = 30


def named(store: Store, before: int = 0, count: int = 100) -> list[str]:
    return [event.name for event in store.read_events(before, count)]


def rows(*names: str) -> list[EventRow]:
    return [event_row(1_700_000_000_000 + at, name, {"term": at}) for at, name in enumerate(names)]


def test_they_ride_along_with_a_commit_and_outlive_a_restart(bench: Bench) -> None:
    log = LogBuilder()
    bench.store.note(rows("canvass", "leader"))
    assert named(bench.store) == []
    bench.store.commit([write([log.leader()])])
    assert named(bench.store) == ["canvass", "leader"]
    bench.store.commit([write(log.datas(3), runs=[])])
    assert named(bench.store) == ["canvass", "leader"], "once"
    store = bench.reopen()
    store.note(rows("following"))
    store.commit([write(log.datas(1), runs=[])])
    found = store.read_events(0, 100)
    assert [event.number for event in found] == [1, 2, 3]
    assert (found[0].name, found[0].time_ms, json.loads(found[0].fields)) == ("canvass", 1_700_000_000_000, {"term": 0})
    assert store.boot().last_id == 5


def test_they_are_written_at_rest_and_not_before(bench: Bench) -> None:
    bench.store.note(rows("serving"))
    for rest in (Rest.BUSY, Rest.LULL):
        bench.store.checkpoint(rest)
    assert named(bench.store) == []
    bench.store.checkpoint(Rest.IDLE)
    assert named(bench.store) == ["serving"]


def test_closing_writes_what_waits(sqlite: SqliteBench) -> None:
    sqlite.store.note(rows("stopped"))
    assert named(sqlite.reopen()) == ["stopped"]


def test_pages_of_them(bench: Bench) -> None:
    bench.store.note(rows(*"abcdefg"))
    bench.store.checkpoint(Rest.IDLE)
    assert named(bench.store, count=3) == ["e", "f", "g"]
    assert named(bench.store, before=5, count=3) == ["b", "c", "d"]
    assert named(bench.store, before=1) == named(bench.store, count=0) == []


def test_the_oldest_make_room(sqlite: SqliteBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_module, "ROWS_MAX", 5)
    for name in "abcdefgh":
        sqlite.store.note(rows(name))
        sqlite.store.checkpoint(Rest.IDLE)
    assert [(event.number, event.name) for event in sqlite.store.read_events(0, 100)] == list(enumerate("defgh", 4))


def test_what_waits_is_bounded(sqlite: SqliteBench) -> None:
    sqlite.store.note(rows(*map(str, range(events_module.PENDING_MAX + 7))))
    sqlite.store.checkpoint(Rest.IDLE)
    found = named(sqlite.store, count=events_module.ROWS_MAX)
    assert (len(found), found[0]) == (events_module.PENDING_MAX, "7")


def test_no_commit_of_its_own_for_an_event(sqlite: SqliteBench) -> None:
    """Many events and one write make one commit. An event alone causes no disk access."""
    statements: list[str] = []
    sqlite.store._db.set_trace_callback(statements.append)
    sqlite.store.note(rows(*"abc"))
    assert statements == []
    sqlite.store.commit([write(LogBuilder().datas(2))])
    sqlite.store._db.set_trace_callback(None)
    assert sum(statement == "COMMIT" for statement in statements) == 1


def test_a_full_disk_keeps_them_waiting_and_stops_nothing(sqlite: SqliteBench) -> None:
    db = sqlite.store._db
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count={pages}")
    sqlite.store.note([EventRow(1, "big", json.dumps("x" * 50_000))])
    sqlite.store.checkpoint(Rest.IDLE)
    assert named(sqlite.store) == []
    db.execute("PRAGMA max_page_count=100000")
    sqlite.store.commit([write(LogBuilder().datas(2))])
    assert named(sqlite.store) == ["big"]


def test_what_is_no_json_becomes_text_and_what_is_too_long_is_left_out() -> None:
    row = event_row(5, "x", {"why": OSError("no"), "id": b"\x01\xff", "odd": "\ud800"})
    assert json.loads(row.fields) == {"why": "no", "id": "01ff", "odd": "\ud800"}
    assert row.fields.isascii()
    row = event_row(5, "x", {"why": "y" * FIELDS_CHARS_MAX, "term": 7})
    assert json.loads(row.fields) == {"term": 7}


def test_the_view_reads_well(sqlite: SqliteBench) -> None:
    sqlite.store.note([event_row(1_700_000_000_123, "leader", {"term": 4, "first_id": 9})])
    sqlite.store.checkpoint(Rest.IDLE)
    with closing(sqlite3.connect(f"file:{sqlite.path}?mode=ro", uri=True)) as db:
        assert db.execute("SELECT number, time, name, term FROM events").fetchall() == [
            (1, "2023-11-14T22:13:20.123Z", "leader", 4)
        ]


@pytest.mark.parametrize("busy", [False, True])
def test_the_writer_passes_them_on_with_a_write_or_at_rest(
    bench: Bench, busy: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_module, "IDLE_S", 3600 if busy else 0.001)
    done = threading.Event()
    writer = Writer(bench.store, lambda number: done.set(), unexpected)
    writer.note(rows("leader")[0])
    if busy:
        writer.submit(write(LogBuilder().datas(1)))
        assert done.wait(WAIT_S)
        assert named(bench.store) == ["leader"]
    else:
        pause = threading.Event()
        while not named(bench.store):
            assert not pause.wait(0.001)
    writer.note(rows("stopped")[0])
    writer.close()
    assert named(bench.reopen())[:1] == ["leader"]


def test_the_writer_tells_of_what_was_slow(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "IDLE_S", 3600)
    told: list[tuple[str, float, int]] = []
    done = threading.Semaphore(0)
    writer = Writer(bench.store, lambda number: done.release(), unexpected)
    log = LogBuilder()
    writer.watch(3600, lambda *what: told.append(what), pytest.fail)
    writer.submit(write(log.datas(1)))
    assert done.acquire(timeout=WAIT_S)
    writer.watch(-1, lambda *what: told.append(what), pytest.fail)
    writer.submit(write(log.datas(2), runs=[]))
    assert done.acquire(timeout=WAIT_S)
    writer.close()
    commits = [(what, entries) for what, _, entries in told if what == "commit"]
    assert commits == [("commit", 2)] and all(took_s > 0 for _, took_s, _ in told)
