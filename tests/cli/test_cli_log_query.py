"""`alpo log query`: rows in every shape, parameters, and nothing but reading."""

from __future__ import annotations

import base64
import csv
import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from alpo_command import Alpo
from log_kit import holding, lines, run
from sound_log import fill
from store_kit import LogBuilder, SqliteBench, write

from alpo.storage.interface import Rest
from alpo_cli import log_query
from alpo_cli.exits import UsageProblem
from alpo_cli.options import Target

FOR_EVER = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture(params=["live", "alone"])
def where(request: pytest.FixtureRequest, sqlite: SqliteBench, tmp_path: Path) -> Iterator[Path]:
    """A sound log: in a directory that a server has open, and in a file that nobody has."""
    fill(sqlite)
    if request.param == "live":
        yield sqlite.directory
        return
    with closing(sqlite3.connect(sqlite.path)) as db, closing(sqlite3.connect(tmp_path / "alone.db")) as copy:
        db.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")
    yield tmp_path / "alone.db"


def test_rows_in_every_shape(where: Path) -> None:
    sql = "SELECT lsn, payload, NULL AS none FROM payloads WHERE id IN (3, 24) ORDER BY lsn"
    expected = [
        {"lsn": 1, "payload": "payload 1", "none": None}, {"lsn": 19, "payload": "a" * 19, "none": None},
        {"lsn": 20, "payload": "b", "none": None},
    ]
    out, said = run("query", where, sql)
    assert (json.loads(out), said, len(out.splitlines())) == (expected, "", 3)
    assert lines("query", where, sql) == expected
    assert [json.loads(line) for line in run("query", where, sql, "--nl")[0].splitlines()] == expected
    assert [*csv.DictReader(run("query", where, sql, "--csv")[0].splitlines())] == [
        {"lsn": str(row["lsn"]), "payload": row["payload"], "none": ""} for row in expected]
    drawn = run("query", where, sql, "--table")[0].splitlines()
    assert len(drawn) == 4 and drawn[0].split("\t") == ["lsn", "payload", "none"]
    assert drawn[1].split("\t") == ["1", "payload 1", ""]
    run("query", where, sql, "--csv", "--nl", code=2)


def test_no_rows(where: Path) -> None:
    sql = "SELECT id, term FROM log WHERE id > 1000"
    assert run("query", where, sql)[0] == "[]\n"
    assert run("query", where, sql, "--nl")[0] == ""
    assert run("query", where, sql, "--csv")[0] == "id,term\n"
    assert "term" in run("query", where, sql, "-t")[0]


def test_every_view(where: Path) -> None:
    (count,) = lines("query", where, "SELECT count(*) AS payloads, max(lsn) AS last FROM payloads")
    assert count == {"payloads": 54, "last": 54}
    assert [row["client"] for row in lines("query", where, "SELECT * FROM sessions")] == ["web"]
    assert [row["server"] for row in lines("query", where, "SELECT * FROM elections")] == [3, 5]
    assert lines("query", where, "SELECT * FROM events") == []
    assert lines("query", where, "SELECT value FROM json_each('[1, 2]')") == [{"value": 1}, {"value": 2}]


def test_parameters(where: Path) -> None:
    sql = "SELECT lsn FROM payloads WHERE lsn = :lsn AND client = :client"
    assert lines("query", where, sql, "-p", "lsn", "20", "--param", "client", "web") == [{"lsn": 20}]
    assert lines("query", "-p", "lsn", "20", "-p", "client=web", where, sql) == [{"lsn": 20}]
    kinds = "SELECT typeof(:a) AS a, typeof(:b) AS b, typeof(:c) AS c, :d AS d, typeof(:e) AS e"
    given = ("-p", "a", "-5", "-p", "b", "007", "-p", "c", "", "-p", "d=x=y", "-p", "e", str(1 << 70))
    assert lines("query", where, kinds, *given) == [{"a": "integer", "b": "text", "c": "text", "d": "x=y", "e": "text"}]
    assert ":client" in run("query", where, sql, "-p", "lsn", "20", code=2)[1]
    assert run("query", where, "SELECT :a AS a", "-p", "a", "1", "-p", "b", "5", code=2) == (
        "", "alpo: -p b: there is no :b in the SQL\n")
    run("query", where, sql, "-p", "lsn", code=2)
    run("query", where, sql, "-p", code=2)


def test_bytes_are_shown_whole(sqlite: SqliteBench) -> None:
    holding(sqlite, [[b"\xff\0", "grün".encode(), b"\x1b[31m"]])
    sql = "SELECT payload FROM payloads ORDER BY lsn"
    coded = base64.b64encode(b"\xff\0").decode()
    assert [row["payload"] for row in lines("query", sqlite.directory, sql)] == [
        {"$base64": True, "encoded": coded}, "grün", "\x1b[31m"]
    assert run("query", sqlite.directory, sql, "--csv")[0].splitlines() == ["payload", coded, "grün", "\x1b[31m"]
    drawn = run("query", sqlite.directory, sql, "--table")[0]
    assert "\\xff\\x00" in drawn and "grün" in drawn and "\\e[31m" in drawn
    odd = "SELECT 9e999 AS inf, CAST(x'ff' AS TEXT) AS no_text, x'' AS empty, 1.5 AS half, 1 AS twice, 2 AS twice"
    assert lines("query", sqlite.directory, odd) == [
        {"inf": None, "no_text": {"$base64": True, "encoded": "/w=="}, "empty": "", "half": 1.5, "twice": 1,
         "twice_2": 2}]


WRITING = [
    "DELETE FROM log", "UPDATE sqlite_master SET sql = ''",
    "UPDATE hard SET term = 99", "INSERT INTO runs VALUES (1, 1, 1)", "DROP TABLE log",
    "INSERT INTO runs VALUES (1, 1, 1) RETURNING term", "CREATE TABLE x (a)", "CREATE TEMP TABLE x (a)",
    "CREATE VIEW x AS SELECT 1", "ALTER TABLE log ADD COLUMN x", "REINDEX", "ANALYZE", "VACUUM",
    "VACUUM INTO 'copy.db'", "ATTACH 'other.db' AS other", "DETACH main", "BEGIN IMMEDIATE", "COMMIT", "ROLLBACK",
    "SAVEPOINT x", "RELEASE x", "PRAGMA user_version=9", "PRAGMA user_version(9)", "PRAGMA application_id=1",
    "PRAGMA journal_mode=DELETE", "PRAGMA wal_checkpoint", "PRAGMA incremental_vacuum", "PRAGMA optimize",
    "PRAGMA writable_schema=ON", "PRAGMA query_only=OFF", "PRAGMA integrity_check; DELETE FROM log",
    "SELECT load_extension('x')", "WITH x AS (SELECT 1) DELETE FROM log", "/* a */ DELETE FROM log",
    "EXPLAIN DELETE FROM log", "CREATE VIRTUAL TABLE x USING fts5(a)",
]


def test_nothing_is_written(where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".db-shm"}

    monkeypatch.chdir(tmp_path)
    before = files()
    for sql in WRITING:
        with pytest.raises(UsageProblem):
            log_query.query(Target((), 10, False), where, sql, [], "json")
        assert files() == before, sql
    out, said = run("query", where, WRITING[0], code=2)
    assert (out, said) == ("", "alpo: alpo log query only reads: SQL that writes is refused\n")


TELLING = [
    "PRAGMA user_version", "PRAGMA table_info(log)", "PRAGMA index_list('saved_sessions')", "PRAGMA quick_check",
    "SELECT * FROM pragma_table_info('log')", "EXPLAIN QUERY PLAN SELECT * FROM payloads", "VALUES (1)",
    "SELECT name FROM sqlite_master", " -- a note\n SELECT 1;",
]


def test_what_only_tells_is_allowed(where: Path) -> None:
    for sql in TELLING:
        assert json.loads(run("query", where, sql)[0]), sql


WRONG = {
    "SELEC 1": "syntax error", "SELECT * FROM nowhere": "no such table", "": "no query", "/* nothing */": "no query",
    "SELECT 1; SELECT 2": "one statement", "SELECT json_extract('{', '$')": "malformed JSON",
}


def test_wrong_sql_is_told_in_a_line(where: Path) -> None:
    for sql, told in WRONG.items():
        said = run("query", where, sql, code=2)[1]
        assert told in said and len(said.splitlines()) == 1, sql


def test_the_file_is_at_fault(sqlite: SqliteBench, tmp_path: Path) -> None:
    assert "no data file" in run("query", tmp_path / "none", "SELECT 1", code=2)[1]
    fill(sqlite)
    sqlite.store.close()
    content = bytearray(sqlite.path.read_bytes())
    content[4096:] = b"\xaa" * (len(content) - 4096)
    sqlite.path.write_bytes(content)
    run("query", sqlite.directory, "SELECT * FROM log", code=1)
    shutil.rmtree(sqlite.directory)
    sqlite.store = sqlite._open()


def test_where_a_server_may_run_a_query_has_so_long(sqlite: SqliteBench) -> None:
    fill(sqlite)
    _, said = run("query", sqlite.directory, FOR_EVER, "--timeout", "0.2", code=1)
    assert "longer than 0.2 s" in said and "--timeout" in said


def test_a_reader_that_pauses_holds_no_snapshot(sqlite: SqliteBench) -> None:
    """The WAL is begun anew while a query of a live directory still has rows to give."""
    fill(sqlite)
    many = "SELECT printf('%.*c', 2000, 'x') AS x FROM log, log AS other"
    with Alpo().under_way("log", "query", sqlite.directory, many, "--nl", "--timeout", "600") as process:
        assert process.stdout is not None
        first = process.stdout.readline()  # all rows are known: the rest waits in the pipe and behind it
        sqlite.store.commit([write(LogBuilder(42, 55).datas(1, 4), runs=[], term=5, guaranteed_id=35)])
        assert sqlite.store.checkpoint(Rest.IDLE) is None
        with closing(sqlite3.connect(sqlite.path)) as db:
            assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        rest = process.stdout.read()
        assert len((first + rest).splitlines()) == 41 * 41 and process.wait(60) == 0


def test_a_query_without_rows_can_be_interrupted(sqlite: SqliteBench) -> None:
    fill(sqlite)
    with Alpo().under_way("log", "query", sqlite.directory, FOR_EVER, "--timeout", "600") as process:
        while sqlite.path not in opened(process.pid):
            assert process.poll() is None
        opened_ticks = used_ticks(process.pid)
        while used_ticks(process.pid) < opened_ticks + 100:  # the start, before the query, takes far less
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1
        assert process.stderr is not None and b"interrupted" in process.stderr.read()


def opened(pid: int) -> set[Path]:
    """Files that a process has open; some are closed while this looks at them."""
    found = set()
    for number in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
        with suppress(FileNotFoundError):
            found.add(Path(os.readlink(f"/proc/{pid}/fd/{number}")))  # noqa: PTH115
    return found


def used_ticks(pid: int) -> int:
    """Processor time that a process has used, in hundredths of a second."""
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


def test_a_table_has_an_end(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_query, "TABLE_ROWS_MAX", 41)
    assert len(run("query", where, "SELECT id FROM log", "--table")[0].splitlines()) == 42
    monkeypatch.setattr(log_query, "TABLE_ROWS_MAX", 40)
    assert "--csv" in run("query", where, "SELECT id FROM log", "--table", code=2)[1]
