"""The data file read with plain SQL: its views show what the log holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
import sqlite_utils
from store_kit import LogBuilder, SqliteBench, row, runs_of, table, write

from alpo.core.entries import Entry, Kind, join_payloads, json_body, seal
from alpo.storage.connections import connect_reader
from alpo.storage.tables import PART_BYTES


@pytest.fixture
def ask(sqlite: SqliteBench) -> Iterator[Any]:
    with closing(connect_reader(sqlite.path)) as db:
        database = sqlite_utils.Database(db)
        yield lambda sql: list(database.query(sql))


def rfc3339(entry: Entry) -> str:
    return datetime.fromtimestamp(entry.time_ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def test_payloads_are_a_row_each(sqlite: SqliteBench, ask: Any) -> None:
    rng = Random(5)
    log = LogBuilder()
    entries, expected = [log.leader()], []
    sizes = [0, 1, 255, 256, 65_535, 65_536, *range(PART_BYTES - 9, PART_BYTES + 5), *[7] * 200]
    for count in (1, 1, 2, 3, len(sizes), 1, 2000):
        chosen = sizes if count == len(sizes) else [rng.choice((0, 3, 40)) for _ in range(count)]
        payloads = tuple(rng.randbytes(size) for size in chosen)
        entry = log.data(3, payloads)
        entries.append(entry)
        expected += [
            {"lsn": entry.lsn + nth, "id": entry.id, "term": 3, "time": rfc3339(entry), "client": "~client",
             "serial": entry.serial, "payload": payload}
            for nth, payload in enumerate(payloads)
        ]
    sqlite.store.commit([write(entries, runs=runs_of(entries))])
    assert ask("SELECT * FROM payloads") == expected
    assert ask("SELECT * FROM payloads WHERE id = 5") == [row for row in expected if row["id"] == 5]


def test_payloads_of_runs_have_the_serial_of_their_append(sqlite: SqliteBench, ask: Any) -> None:
    """R32: runs of single payloads, and runs with batches, stand before and behind other entries."""
    rng = Random(7)
    log = LogBuilder()
    entries, expected = [log.data(3)], [(1, 1)]
    drawn = tuple(rng.randint(1, 9) for _ in range(300))
    for counts in ((1, 1), (1,) * 300, (2, 1), (1, 2), (3, 3), (2,), (3, 2, 1), drawn):
        serial = expected[-1][1] + 1
        appends = [tuple(rng.randbytes(rng.choice((0, 3, 300))) for _ in range(count)) for count in counts]
        entries.append(log.run(serial, *appends, term=3))
        expected += [
            (lsn, nth) for lsn, nth in enumerate(
                (nth for nth, append in enumerate(appends, serial) for _ in append), expected[-1][0] + 1)
        ]
        payloads = [payload for append in appends for payload in append]
        sqlite.store.commit([write(entries[-1:], runs=[])] if len(entries) > 2 else [write(entries)])
        found = ask(f"SELECT lsn, serial, payload, client, time FROM payloads WHERE id = {entries[-1].id}")
        assert [row["payload"] for row in found] == payloads
        assert {(row["client"], row["time"]) for row in found} == {("~client", rfc3339(entries[-1]))}
    assert [tuple(row.values()) for row in ask("SELECT lsn, serial FROM payloads")] == expected


@pytest.mark.parametrize("digest", [
    "zeroblob(16)", "zeroblob(40)", "x''", "substr(digest, 1, 18)", "CAST(digest || x'ffffffff' AS BLOB)",
    "CAST(substr(digest, 1, 16) || x'ffffffff' || substr(digest, 21) AS BLOB)", "'text'",
])
def test_a_damaged_digest_costs_no_more_than_serials(sqlite: SqliteBench, ask: Any, digest: str) -> None:
    """The views verify no checksums, but their queries end, and show all payloads."""
    log = LogBuilder()
    sqlite.store.commit([write([log.run(1, (b"a",), (b"b", b"c")), log.data()])])
    sqlite.tamper(f"UPDATE log SET digest = {digest} WHERE id = 1")
    assert [row["payload"] for row in ask("SELECT * FROM payloads")] == [b"a", b"b", b"c", b"payload 2"]
    assert [row["client"] for row in ask("SELECT * FROM sessions")] == ["~client"]


def test_a_stretch_of_ids_is_found_without_a_scan(ask: Any) -> None:
    plan = ask("EXPLAIN QUERY PLAN SELECT * FROM payloads WHERE id BETWEEN 100 AND 200")
    assert "SEARCH log USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)" in [step["detail"] for step in plan]


def session_entry(log: LogBuilder, client: str, **fields: Any) -> Entry:
    return log._next(seal(log.id, 1, Kind.SESSION, log.time_ms, log.lsn, json_body(**fields), client), 1)


def data_entry(log: LogBuilder, client: str, serial: int, epoch: int) -> Entry:
    body = join_payloads((b"x",))
    return log._next(seal(log.id, 1, Kind.DATA, log.time_ms, log.lsn, body, client, serial, epoch, 1), 1)


def test_sessions_are_those_saved_and_what_came_since(sqlite: SqliteBench, ask: Any) -> None:
    log = LogBuilder()
    saved = log.datas(10)
    sqlite.store.commit([
        write(saved, guaranteed_id=10, table=table(10, [row("kept"), row("goes on"), row("dropped"), row("again")]))
    ])
    since = [
        data_entry(log, "goes on", 5, 7), session_entry(log, "new", op="open", nonce="aa"),
        data_entry(log, "new", 1, 12), session_entry(log, "dropped", op="drop", epoch=7),
        session_entry(log, "again", op="drop", epoch=7), session_entry(log, "again", op="open", nonce="bb"),
    ]
    sqlite.store.commit([write(since, runs=[])])
    found = {row["client"]: tuple(row.values())[1:] for row in ask("SELECT * FROM sessions")}
    at = {entry.id: rfc3339(entry) for entry in since}
    assert found == {
        "kept": (7, 1, 9, "2023-11-14T22:13:20.000Z"), "goes on": (7, 5, 11, at[11]), "new": (12, 1, 13, at[13]),
        "again": (16, 0, 16, at[16]),
    }


def test_sessions_before_the_table_was_ever_saved(sqlite: SqliteBench, ask: Any) -> None:
    entries = LogBuilder().datas(3)
    sqlite.store.commit([write(entries)])
    assert ask("SELECT * FROM sessions") == [
        {"client": "~client", "epoch": 0, "last_serial": 3, "last_id": 3, "last_time": rfc3339(entries[2])}
    ]


def test_a_run_leaves_its_last_serial(sqlite: SqliteBench, ask: Any) -> None:
    log = LogBuilder()
    entries = [log.run(1, (b"a",), (b"b",)), log.run(5, (b"a", b"b"), (b"",), (b"c", b"d"), client="other", epoch=9)]
    sqlite.store.commit([write(entries)])
    assert [(row["client"], row["last_serial"]) for row in ask("SELECT * FROM sessions ORDER BY client")] == [
        ("other", 7), ("~client", 2)]


def test_elections_are_the_first_entries_of_reigns(sqlite: SqliteBench, ask: Any) -> None:
    log = LogBuilder()
    reigns = [log._next(seal(log.id, 2, Kind.LEADER, log.time_ms, log.lsn, json_body(leader=1)), 1), *log.datas(3, 2)]
    reigns.append(log._next(seal(log.id, 5, Kind.LEADER, log.time_ms, log.lsn, json_body(leader=3)), 1))
    sqlite.store.commit([write(reigns, runs=runs_of(reigns))])
    assert ask("SELECT * FROM elections") == [
        {"term": 2, "server": 1, "first_id": 1, "time": rfc3339(reigns[0])},
        {"term": 5, "server": 3, "first_id": 5, "time": rfc3339(reigns[4])},
    ]
