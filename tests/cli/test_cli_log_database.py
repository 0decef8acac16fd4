"""`alpo log export --to FILE.db`: the database, what a tool finds in it, and what becomes of a file that is there."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from log_kit import holding, run
from sound_log import fill
from sqlite_utils import Database
from store_kit import SqliteBench

from alpo_cli import log_export


@contextmanager
def opened(file: Path) -> Iterator[Database]:
    with closing(sqlite3.connect(f"{file.as_uri()}?immutable=1", uri=True)) as db:
        yield Database(db, execute_plugins=False)


def rows(file: Path, table: str = "payloads") -> list[dict[str, Any]]:
    with opened(file) as db:
        return list(db[table].rows)


def of_json(sqlite: SqliteBench, file: Path, *values: object, raw: bool = False) -> list[dict[str, Any]]:
    """The rows of a log of these payloads, their own columns alone."""
    holding(sqlite, [[value if isinstance(value, bytes) else json.dumps(value).encode()] for value in values])
    run("export", sqlite.directory, "--to", file, "--json-columns")
    return [{key: value for key, value in row.items() if key not in log_export._PAYLOADS} for row in rows(file)]


def test_payloads_and_clients(sqlite: SqliteBench, tmp_path: Path) -> None:
    fill(sqlite)
    file = tmp_path / "log.db"
    out, said = run("export", sqlite.directory, "--to", file)
    assert (out, said) == ("", "at the end 12 payloads not known here to be guaranteed (beyond entry 35)\n")
    exported = [json.loads(line) for line in run("export", sqlite.directory)[0].splitlines()]
    assert rows(file) == exported and len(exported) == 54
    assert rows(file, "clients") == [{
        "client": "web", "payloads": 54, "first_lsn": 1, "last_lsn": 54, "first_time": exported[0]["time"],
        "last_time": exported[-1]["time"], "last_serial": 36,
    }]
    run("export", sqlite.directory, "--from", 20, "--to", 21, "--to", tmp_path / "part.db")
    assert rows(tmp_path / "part.db") == exported[19:21]
    run("export", sqlite.directory, "--format", "sqlite", "--output", tmp_path / "same.db")
    assert (tmp_path / "same.db").read_bytes() == file.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "log.db", "part.db", "same.db"]


def test_what_a_tool_finds(sqlite: SqliteBench, tmp_path: Path) -> None:
    """The schema holds all that Datasette and similar tools look for, and nothing that stands in their way."""
    fill(sqlite)
    run("export", sqlite.directory, "--to", tmp_path / "log.db", "--fts")
    with opened(tmp_path / "log.db") as db:
        assert db.journal_mode == "delete" and db.triggers == [] and db.view_names() == []
        payloads = db.table("payloads")
        assert payloads.pks == ["lsn"] and payloads.detect_fts() == "payloads_fts"
        assert [(key.column, key.other_table, key.other_column) for key in payloads.foreign_keys] == [
            ("client", "clients", "client")]
        assert sorted(index.columns for index in payloads.indexes) == [["client", "serial"], ["id"], ["time"]]
        assert list(db.query("PRAGMA foreign_key_check")) == []
        assert list(db.query("PRAGMA integrity_check")) == [{"integrity_check": "ok"}]


def test_words_are_found(sqlite: SqliteBench, tmp_path: Path) -> None:
    holding(sqlite, [[b"the quick fox", b"lazy dog"], [b"\xff\x00", b'{"name": "fox"}']])
    run("export", sqlite.directory, "--to", tmp_path / "log.db", "--fts", "--json-columns")
    with opened(tmp_path / "log.db") as db:
        assert sorted(row["lsn"] for row in db.table("payloads").search("fox")) == [1, 4]
        assert [row["name"] for row in db.table("payloads").search("name")] == ["fox"]


def test_a_payload_is_text_only_where_that_shows_all_of_it(sqlite: SqliteBench, tmp_path: Path) -> None:
    payloads = ["grün".encode(), b"", b"\xff\xfe", b"a\0b", b"12"]
    holding(sqlite, [payloads])
    run("export", sqlite.directory, "--to", tmp_path / "log.db")
    assert [row["payload"] for row in rows(tmp_path / "log.db")] == ["grün", "", b"\xff\xfe", b"a\0b", "12"]


def test_keys_become_columns(sqlite: SqliteBench, tmp_path: Path) -> None:
    assert of_json(
        sqlite, tmp_path / "log.db",
        {"user": "ada", "ok": True, "tags": ["a", {"b": 1}], "none": None},
        {"user": "grace", "ms": 1.5, "id": 7, "Time": "then", "big": 1 << 70},
        {"user": None, "ms": 2, "none": 3, "": 1, "a\nb": 2, "odd": "\ud800", "inf": float("inf")},
        [1], "text", 5, b"no JSON", b'{"a":', b"\xff{}", b'{"deep":' + b"[" * 100_000,
    ) == [
        {"user": "ada", "ok": 1, "tags": '["a", {"b": 1}]', "ms": None, "id_": None, "Time_": None, "big": None,
         "none": None, "odd": None},
        {"user": "grace", "ok": None, "tags": None, "ms": 1.5, "id_": 7, "Time_": "then", "big": str(1 << 70),
         "none": None, "odd": None},
        {"user": None, "ok": None, "tags": None, "ms": 2.0, "id_": None, "Time_": None, "big": None, "none": 3,
         "odd": "\\ud800"},
        *[dict.fromkeys(("user", "ok", "tags", "ms", "id_", "Time_", "big", "none", "odd"))] * 7,
    ]


@pytest.mark.parametrize("rows_at_once", [1, 2, 100])
def test_a_column_is_as_wide_as_what_it_holds(
    sqlite: SqliteBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    """Wherever its values come in the log: nothing is turned into another type's value but numbers beside text."""
    monkeypatch.setattr(log_export, "_ROWS", rows_at_once)
    found = of_json(sqlite, tmp_path / "log.db", {"n": 1, "x": 1, "s": "007"}, {"n": 2, "x": 0.5, "s": "8"},
                    {"n": 3, "x": 3, "s": 9}, {"n": 4, "late": "007"}, {"late": 7})
    assert [row["n"] for row in found] == [1, 2, 3, 4, None]
    assert [row["x"] for row in found] == [1, 0.5, 3, None, None]
    assert [row["s"] for row in found] == ["007", "8", "9", None, None]
    assert [row["late"] for row in found] == [None, None, None, "007", "7"]
    with opened(tmp_path / "log.db") as db:
        assert {column.name: column.type for column in db.table("payloads").columns[7:]} == {
            "n": "INTEGER", "x": "REAL", "s": "TEXT", "late": "TEXT"}
        assert len(db.table("payloads").foreign_keys) == 1 and db.table("payloads").pks == ["lsn"]


def test_so_many_keys_and_no_more(sqlite: SqliteBench, tmp_path: Path) -> None:
    keys = [f"key{number}" for number in range(log_export.KEYS_MAX + 5)]
    holding(sqlite, [[json.dumps({key: 1}).encode() for key in keys]])
    _, said = run("export", sqlite.directory, "--to", tmp_path / "log.db", "--json-columns")
    assert f"after the first {log_export.KEYS_MAX}" in said
    assert 'some keys have no column: "key200", "key201", "key202" and more' in said
    assert list(rows(tmp_path / "log.db")[0])[7:] == keys[: log_export.KEYS_MAX]


def test_damage_is_left_out_and_ends_it_with_1(sqlite: SqliteBench, tmp_path: Path) -> None:
    fill(sqlite)
    sqlite.tamper("UPDATE log SET body = x'00' WHERE id = 7")
    _, said = run("export", sqlite.directory, "--to", tmp_path / "log.db", code=1)
    assert "entry 7:" in said
    assert [row["id"] for row in rows(tmp_path / "log.db")[:5]] == [3, 4, 5, 6, 8]


def test_nothing_is_overwritten_unasked(sqlite: SqliteBench, tmp_path: Path) -> None:
    fill(sqlite)
    file = tmp_path / "mine.db"
    file.write_text("mine")
    assert "--replace" in run("export", sqlite.directory, "--to", file, code=2)[1]
    assert file.read_text() == "mine"
    beside = tmp_path / "mine.db-wal"
    beside.write_bytes(b"of another")
    assert "in use" in run("export", sqlite.directory, "--to", file, "--replace", code=2)[1]
    assert file.read_text() == "mine"
    beside.unlink()
    run("export", sqlite.directory, "--to", file, "--replace")
    assert len(rows(file)) == 54


def test_what_fails_leaves_nothing(sqlite: SqliteBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(sqlite)
    monkeypatch.setattr(log_export, "_FILL_CLIENTS", "INSERT INTO nowhere SELECT 1")
    assert "nowhere" in run("export", sqlite.directory, "--to", tmp_path / "log.db", code=1)[1]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize("words", [
    ("--json-columns",), ("--fts",), ("--replace",), ("--format", "sqlite"), ("--to", "a.db", "--to", "b.db"),
    ("--to", "1", "--to", "2"), ("--to", "0"), ("--to", "a.db", "--output", "b"),
    ("--to", "a.db", "--format", "parquet"), ("--to", "4", "--from", "5"),
])
def test_wrong_usage(sqlite: SqliteBench, words: tuple[str, ...]) -> None:
    run("export", sqlite.directory, *words, code=2)


@pytest.mark.parametrize("flags", [(), ("--format", "sqlite", "--replace"), ("--format", "parquet")])
@pytest.mark.parametrize("kind", ["itself", "a symlink to it", "on the way"])
def test_what_is_read_is_never_written_over(
    sqlite: SqliteBench, tmp_path: Path, flags: tuple[str, ...], kind: str
) -> None:
    """Nor is a running server's file, of which `sqlite` is one."""
    fill(sqlite)
    name = {"itself": "copy", "a symlink to it": "copy", "on the way": "out.partial"}[kind]
    copy, output = tmp_path / name, tmp_path / {"itself": "copy", "a symlink to it": "link"}.get(kind, "out")
    with closing(sqlite3.connect(sqlite.path)) as db, closing(sqlite3.connect(copy)) as there:
        db.backup(there)
        there.execute("PRAGMA journal_mode=DELETE")
    if kind == "a symlink to it":
        output.symlink_to(copy)
    before = copy.read_bytes()
    assert "is what is read" in run("export", copy, *flags, "--output", output, code=2)[1]
    assert copy.read_bytes() == before
    running = sqlite.path.read_bytes()
    for where in (sqlite.directory, sqlite.path):
        run("export", where, *flags, "--output", sqlite.path, code=2)
    assert sqlite.path.read_bytes() == running
    assert "sound" in run("verify", sqlite.directory)[0]


@pytest.mark.parametrize(("words", "said"), [
    (("--to", "z.parquet"), "--to z.parquet: its name says Parquet: --format parquet"),
    (("--to", "z.JSONL"), "--to z.JSONL: its name says JSON lines: --format jsonl"),
    (("--to", "z.csv"), "--to z.csv: its name says CSV"),
    (("--output", "z.db"), "--output z.db: its name says a database: --format sqlite"),
    (("--output", "z.alpo"), "--output z.alpo: its name says a backup"),
    (("--format", "parquet", "-o", "z.json"), "--output z.json: its name says JSON lines: --format jsonl"),
])
def test_a_name_that_says_another_format_is_refused(
    sqlite: SqliteBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    fill(sqlite)
    monkeypatch.chdir(tmp_path)
    assert said in run("export", sqlite.directory, *words, code=2)[1]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
