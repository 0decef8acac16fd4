"""`alpo log`: a directory looked at from outside, sound and damaged; what it prints is what the docs say."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pyarrow.parquet
import pytest
from alpo_command import Alpo
from log_kit import lines, run
from sound_log import entries_with_runs, fill
from store_kit import LogBuilder, SqliteBench, write

READ_KEYS = ["lsn", "id", "term", "time", "client", "serial", "payload"]


def test_entries_are_shown_a_line_each(sqlite: SqliteBench) -> None:
    entries = fill(sqlite)
    out, _ = run("show", sqlite.directory)
    shown = out.splitlines()
    assert len(shown) == len(entries)
    assert shown[0] == '1  2  LEADER   2023-11-14T22:13:20.000Z  {"leader":3}'
    assert shown[2] == "3  2  DATA     2023-11-14T22:13:20.002Z  LSN 1  web 1  payload 1"
    assert shown[23] == f"24  4  DATA     2023-11-14T22:13:20.023Z  LSN 19-20  web 19  {'a' * 19}  b"
    assert run("show", sqlite.path, "--from", 3, "--to", 4)[0].splitlines() == shown[2:4]
    assert run("show", sqlite.directory, "--from", 40, "--limit", 1)[0].splitlines() == shown[39:40]
    assert run("show", sqlite.directory, "--limit", 0)[0] == ""
    kinds = lines("show", sqlite.directory, "--kind", "leader", "--kind", "MEMBERS")
    assert [(line["id"], line["kind"]) for line in kinds] == [(1, "LEADER"), (21, "LEADER"), (22, "MEMBERS")]
    assert kinds[0]["body"] == {"leader": 3}
    (batch,) = lines("show", sqlite.directory, "--from", 24, "--limit", 1)
    assert (batch["lsn"], batch["count"], batch["payloads"][1]) == (19, 2, {"payload": "b"})
    run("show", sqlite.directory, "--from", 4, "--to", 3, code=2)


def test_runs_are_shown_with_their_serials(sqlite: SqliteBench) -> None:
    """R32: one entry of several appends; and a batch is one append."""
    fill(sqlite, entries_with_runs(), applied_id=14, guaranteed_id=16)
    shown = run("show", sqlite.directory)[0].splitlines()
    assert shown[4] == (
        "5  2  DATA     2023-11-14T22:13:20.004Z  LSN 2-6  web 2-6  payload 2  payload 3  payload 4  payload 5"
        "  payload 6")
    assert "LSN 11-12  web 7  a  b" in shown[6] and "LSN 7-10  app 1-3  one  two  three  four" in shown[5]
    (entry,) = lines("show", sqlite.directory, "--from", 6, "--limit", 1)
    assert (entry["serial"], entry["count"]) == (1, 4)
    assert entry["payloads"] == [
        {"serial": 1, "payload": "one"}, {"serial": 2, "payload": "two"}, {"serial": 2, "payload": "three"},
        {"serial": 3, "payload": "four"},
    ]
    (batch,) = lines("show", sqlite.directory, "--from", 7, "--limit", 1)
    assert batch["payloads"] == [{"payload": "a"}, {"payload": "b"}]


def test_payloads_of_runs_are_exported_with_their_serials(sqlite: SqliteBench, tmp_path: Path) -> None:
    """R32: in every form, and as the view `payloads` tells them."""
    entries = fill(sqlite, entries_with_runs(), applied_id=14, guaranteed_id=15)
    out, said = run("export", sqlite.directory)
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["lsn"] for record in records] == list(range(1, entries[-1].lsn + 2))
    of = {client: [r["serial"] for r in records if r["client"] == client] for client in ("web", "app")}
    assert of["app"] == [1, 2, 2, 3, 4, 5, 6, 7, 8, 9]
    assert of["web"] == [*range(1, 7), 7, 7, *range(8, 19), 19, 19, 20, 21, 21, 21, 22, 23, 24, 25, 25]
    assert [r["payload"] for r in records if r["id"] == 12] == ["", "x", "", "y", "", "z"]
    assert said == "at the end 2 payloads not known here to be guaranteed (beyond entry 15)\n"
    assert run("export", sqlite.directory, "--from", 8, "--to", 9)[0].splitlines() == out.splitlines()[7:9]
    viewed = json.loads(run("query", sqlite.directory, "SELECT * FROM payloads")[0])
    assert viewed == records
    run("export", sqlite.directory, "--format", "parquet", "--output", tmp_path / "x.parquet")
    rows = pyarrow.parquet.read_table(tmp_path / "x.parquet").to_pylist()
    assert [(row["lsn"], row["serial"]) for row in rows] == [(r["lsn"], r["serial"]) for r in records]
    run("export", sqlite.directory, "--to", tmp_path / "x.db")
    with closing(sqlite3.connect(tmp_path / "x.db")) as db:
        found = db.execute("SELECT lsn, serial, payload FROM payloads ORDER BY lsn").fetchall()
        assert found == [(r["lsn"], r["serial"], r["payload"]) for r in records]
        assert db.execute("SELECT client, last_serial FROM clients ORDER BY client").fetchall() == [
            ("app", 9), ("web", 25)]


def test_runs_are_checked_and_compared(sqlite: SqliteBench, tmp_path: Path) -> None:
    entries = fill(sqlite, entries_with_runs(), applied_id=14, guaranteed_id=16)
    other = SqliteBench(tmp_path / "other")
    fill(other, entries, applied_id=0, guaranteed_id=16)
    payloads = entries[-1].lsn + 1
    assert run("verify", sqlite.directory)[0] == (
        f"sound: 16 entries (1 to 16), {payloads} payloads (LSN 1 to {payloads}), guaranteed up to entry 16\n")
    assert run("diff", sqlite.directory, other.directory)[0] == "entries 1 to 16 are equal\n"
    old = entries[11]  # the same payloads, of other serials
    new = LogBuilder(12, old.lsn, old.time_ms).run(
        19, (b"", b"x", b""), (b"y", b""), (b"z",), term=4, client="web", epoch=11)
    other.tamper('UPDATE log SET digest = ?, "check" = ? WHERE id = 12', new.digest, new.check)
    assert "DIVERGED: entry 12 differs" in run("diff", sqlite.directory, other.directory, code=1)[0]
    other.tamper("UPDATE log SET digest = substr(digest, 1, 40) WHERE id = 12")
    assert run("verify", other.directory, code=1)[0] == "entry 12: entry 12 does not match its checksum\n"
    other.store.close()


def test_what_a_payload_holds_does_nothing_to_a_terminal(sqlite: SqliteBench) -> None:
    sqlite.store.commit([write([LogBuilder().data(1, (b"\x1b[31m\n\xff",))])])
    assert run("show", sqlite.directory)[0].endswith("~client 1  \\e[31m\\n\\xff\n")
    (line,) = lines("show", sqlite.directory)
    assert line["payloads"] == [{"payload_base64": "G1szMW0K/w=="}]


def test_damage_is_shown_in_its_place_and_ends_it_with_1(sqlite: SqliteBench) -> None:
    fill(sqlite)
    sqlite.tamper("UPDATE log SET body = x'00' WHERE id = 7")
    sqlite.tamper("DELETE FROM log WHERE id BETWEEN 9 AND 10")
    out, said = run("show", sqlite.directory, code=1)
    shown = out.splitlines()
    assert len(shown) == 40 and "7  2  DATA " in shown[6] and "DAMAGED  the body of entry 7" in shown[6]
    assert shown[8] == "9 to 10  DAMAGED  missing" and shown[-1].startswith("41  4")
    assert "is damaged" in said
    damaged = [line for line in lines("show", sqlite.directory, "--kind", "leader", code=1) if "damage" in line]
    assert [(line["id"], line.get("last_id")) for line in damaged] == [(7, None), (9, 10)]
    out, said = run("verify", sqlite.directory, code=1)
    assert out.splitlines()[:2] == [
        "entry 7: the body of entry 7 does not match its digest", "entries 9 to 10: missing"]
    (verdict,) = lines("verify", sqlite.directory, code=1)
    assert verdict["sound"] is False and verdict["faults"][1] == {"first_id": 9, "last_id": 10, "what": "missing"}
    out, said = run("export", sqlite.directory, code=1)
    assert [json.loads(line)["id"] for line in out.splitlines()[:6]] == [3, 4, 5, 6, 8, 11]
    assert "entry 7:" in said and "entries 9 to 10: missing" in said


def test_a_verdict(sqlite: SqliteBench) -> None:
    fill(sqlite)
    assert run("verify", sqlite.directory)[0] == (
        "sound: 41 entries (1 to 41), 54 payloads (LSN 1 to 54), guaranteed up to entry 35\n")
    (verdict,) = lines("verify", sqlite.directory)
    assert (verdict["sound"], verdict["faults"], verdict["last_lsn"]) == (True, [], 54)


def test_payloads_are_exported(sqlite: SqliteBench, tmp_path: Path) -> None:
    fill(sqlite)
    out, said = run("export", sqlite.directory)
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["lsn"] for record in records] == list(range(1, 55)) and list(records[0]) == READ_KEYS
    assert records[19] == {
        "lsn": 20, "id": 24, "term": 4, "time": "2023-11-14T22:13:20.023Z", "client": "web", "serial": 19,
        "payload": "b",
    }
    assert said == "at the end 12 payloads not known here to be guaranteed (beyond entry 35)\n"
    part = run("export", sqlite.directory, "--from", 20, "--to", 21, "--output", tmp_path / "x.jsonl")[0]
    assert part == "" and (tmp_path / "x.jsonl").read_text().splitlines() == out.splitlines()[19:21]
    file = tmp_path / "x.parquet"
    run("export", sqlite.directory, "--format", "parquet", "--output", file)
    table = pyarrow.parquet.read_table(file)
    rows = table.to_pylist()
    assert table.column_names == READ_KEYS
    assert [row["payload"].decode() for row in rows] == [record["payload"] for record in records]
    assert rows[19]["time"].isoformat(timespec="milliseconds")[:23] + "Z" == records[19]["time"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "x.jsonl", "x.parquet"]
    run("export", sqlite.directory, "--format", "parquet", code=2)
    told = lines("export", sqlite.directory, "--from", 20, "--output", file.with_name("y.jsonl"))
    assert told == [{"file": str(file.with_name("y.jsonl")), "payloads": 35, "not_guaranteed": 12, "damaged": 0}]


def test_parquet_without_pyarrow_says_what_to_install(
    sqlite: SqliteBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(sqlite)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    _, said = run("export", sqlite.directory, "--format", "parquet", "--output", tmp_path / "x", code=2)
    assert "pip install 'alpo[export]'" in said
    assert not (tmp_path / "x").exists()


def test_two_logs_are_compared(sqlite: SqliteBench, tmp_path: Path) -> None:
    entries = fill(sqlite)
    other = SqliteBench(tmp_path / "other")
    fill(other)
    out, _ = run("diff", sqlite.directory, other.directory)
    assert out == "entries 1 to 41 are equal\n"
    (verdict,) = lines("diff", sqlite.directory, other.directory)
    assert (verdict["verdict"], verdict["first_difference"]) == ("equal", None)

    more = LogBuilder(42, entries[-1].lsn + 2, entries[-1].time_ms).datas(3, 4)
    other.store.commit([write(more, runs=[], term=5, guaranteed_id=35)])
    out, _ = run("diff", sqlite.directory, other.directory)
    assert out.splitlines() == [
        "entries 1 to 41 are equal", f"{other.directory} goes on to entry 44, guaranteed up to 35"]

    new = LogBuilder(40, entries[39].lsn, entries[39].time_ms).datas(2, 7)
    other.store.commit([write(new, expunge_from=40, guaranteed_id=35)])
    out, _ = run("diff", sqlite.directory, other.directory)
    assert "entry 40 differs, beyond what both know to be guaranteed (up to 35)" in out
    (verdict,) = lines("diff", sqlite.directory, other.directory)
    assert (verdict["verdict"], verdict["first_difference"]) == ("suffix", 40)

    new = LogBuilder(30, entries[29].lsn, entries[29].time_ms).datas(12, 7)
    other.store.commit([write(new, expunge_from=30, guaranteed_id=35)])
    out, _ = run("diff", sqlite.directory, other.directory, code=1)
    assert "DIVERGED: entry 30 differs" in out
    other.tamper("UPDATE log SET body = x'00' WHERE id = 5")
    (verdict,) = lines("diff", sqlite.directory, other.directory, code=1)
    assert verdict["verdict"] == "damaged" and "entry 5" in verdict["damage"][0]
    other.store.close()


def test_stretches_that_cannot_be_read_are_compared_too(sqlite: SqliteBench, tmp_path: Path) -> None:
    fill(sqlite)
    shutil.copytree(sqlite.directory, tmp_path / "other")
    sqlite.tamper("DELETE FROM log WHERE id BETWEEN 5 AND 20")
    (verdict,) = lines("diff", tmp_path / "other", sqlite.directory, code=1)
    assert verdict["verdict"] == "damaged" and "entry 5: missing" in verdict["damage"][0]


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_what_is_no_data_is_refused(command: str, tmp_path: Path) -> None:
    assert "there is no data file or backup" in run(command, tmp_path / "none", code=2)[1]


def test_a_reader_that_leaves_is_no_error(sqlite: SqliteBench) -> None:
    fill(sqlite)
    with Alpo().under_way("log", "show", sqlite.directory) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 0
