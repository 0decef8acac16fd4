"""A replicated state as a table: its rows as of each LSN, refusals, the command, and Spark itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pipeline_kit import fields, pipeline
from spark_kit import FileLog
from state_tables_kit import (
    END,
    FOUND,
    FOUNDED,
    ID,
    MIDDLE,
    Row,
    archived,
    do,
    folded,
    machine_at,
    put,
    snapshot_at_end,
    state,
    story,
)

from alpo.rsm.hosted import found
from alpo.spark import reading, states
from alpo.spark.files import FileOrigin
from alpo.spark.folded import state_at
from alpo.spark.jobs.tables import alone
from alpo.spark.options import ReadOptions
from alpo.spark.origin import SourceError
from alpo.storage import tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def log(tmp_path: Path) -> Iterator[FileLog]:
    log = story(tmp_path / "log")
    yield log
    log.close()


# -- the table --------------------------------------------------------------------------------------------------------


def test_as_of_every_lsn_it_is_what_the_machine_makes(log: FileLog) -> None:
    for lsn in range(FOUNDED, END + 1):
        assert state(path=log.path, asOfLsn=lsn) == folded(log, lsn)
    assert state(path=log.path) == folded(log, END)


def test_rows_leases_text_and_commands_of_several_payloads(log: FileLog) -> None:
    def values(lsn: int) -> dict[str, bytes]:
        return {row["name"]: row["value"] for row in state(path=log.path, asOfLsn=lsn)}

    last = {row["name"]: row for row in state(path=log.path)}
    assert list(last) == ["a", "a\0r1", "a\0r2", "b", "großes", "kept", "n"]
    assert [(last[name]["owner"], last[name]["row"]) for name in ("a", "a\0r1")] == [(None, None), ("a", "r1")]
    assert (last["a\0r1"]["text"], last["a\0r2"]["text"], last["a\0r2"]["value"]) == ("first", None, b"\xff\xfe")
    assert (last["n"]["value"], last["n"]["version"], last["n"]["created"]) == (b"42", 20, 19)
    assert (last["kept"]["version"], last["kept"]["lease_s"], last["a"]["lease_s"]) == (8, 0.1, None)
    assert {row["as_of_lsn"] for row in last.values()} == {END} and last["a"]["state_id"] == ID.hex()
    assert "lock" in values(10) and "lock" not in values(11), "its lease is over by the time of LSN 11"
    assert "b" not in values(MIDDLE) and values(17)["b"] == b"y" * 2000
    assert values(20)["empty"] == b"" and values(FOUNDED) == {}


def test_columns_of_ones_choice_in_small_batches(log: FileLog, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [{"text": row["text"], "name": row["name"]} for row in folded(log, END)]
    for name, most in (("BATCH_ROWS", 2), ("BATCH_BYTES", 1)):
        monkeypatch.setattr(states, name, most)
        assert state(["text", "name"], path=log.path) == wanted


def test_the_log_is_folded_while_it_is_read(log: FileLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "COLUMN_BYTES", 10)
    monkeypatch.setattr(reading, "JOINED_ROWS", 1)
    seen: list[tuple[str, int]] = []
    real = FileOrigin.pages

    def pages(*given: Any) -> Iterator[Any]:
        for page in real(*given):
            seen.append(("read", page.next_lsn - 1 if page.ids else 0))
            yield page

    monkeypatch.setattr(FileOrigin, "pages", pages)
    origin = FileOrigin(log.path)
    state_at(origin, origin.extent(), END, lambda lsn: seen.append(("folded", lsn)))
    assert seen.index(("folded", 9)) < seen.index(("read", 10)) and seen[-1] == ("folded", END)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lsn", [1, FOUNDED - 1])
def test_no_state_is_not_an_empty_one(log: FileLog, lsn: int) -> None:
    with pytest.raises(SourceError, match=f"ALPO_NO_STATE: .*log holds no state up to LSN {lsn}"):
        state(path=log.path, asOfLsn=lsn)
    with pytest.raises(SourceError, match=f"log ends at LSN {END}, and asOfLsn is {END + 1}"):
        state(path=log.path, asOfLsn=END + 1)


def test_a_newer_format_ends_the_fold(log: FileLog) -> None:
    log.append([[b"\xc1\x41\x02of a later release"], do(put("a", b"later"))])
    assert state(path=log.path, asOfLsn=END) == folded(log, END)
    for lsn in (END + 1, END + 2):
        with pytest.raises(SourceError, match=f"ALPO_NEWER_FORMAT: payload {END + 1} is in format 2 .* knows 1"):
            state(path=log.path, asOfLsn=lsn)


def test_what_was_trimmed_is_in_the_archive_or_the_state_is_not_told(log: FileLog, tmp_path: Path) -> None:
    archived(log.path, tmp_path / "archive", 15)
    wanted = folded(log, END)
    log.clean(5)
    for given, why in (({}, "holds no whole snapshot"), ({"asOfLsn": 6}, "as of LSN 6 was asked for")):
        with pytest.raises(SourceError, match=f"ALPO_DATA_LOSS: .*log begins at LSN 7, .*{why}.*archivePath"):
            state(path=log.path, **given)
    assert state(path=log.path, archivePath=tmp_path / "archive") == wanted
    assert state(archivePath=tmp_path / "archive") == folded(log, 15)


def test_a_gap_between_archive_and_log(log: FileLog, tmp_path: Path) -> None:
    archived(log.path, tmp_path / "archive", 3)
    log.clean(5)
    given = {"path": log.path, "archivePath": tmp_path / "archive"}
    with pytest.raises(SourceError, match="ALPO_DATA_LOSS: payloads 4 to 6 are not in"):
        state(**given)
    assert state(asOfLsn=3, **given) == folded(log, 3)


# -- snapshots --------------------------------------------------------------------------------------------------------


def with_snapshot(log: FileLog) -> tuple[int, int]:
    """Append a snapshot, with commands between its parts and after it; returns where it begins, and the log's end."""
    payloads = snapshot_at_end(log)
    assert len(payloads) > 5
    log.append([*([each] for each in payloads[:3]), do(put("between", b"parts")), do((1, "b"))])
    log.append([*([each] for each in payloads[3:]), [b"foreign"], do(put("behind", b"it"))])
    return END + 1, log.entries[-1].lsn


def test_a_trimmed_log_begins_with_its_snapshot(log: FileLog, tmp_path: Path) -> None:
    begin, end = with_snapshot(log)
    asked = ["replay", "--state", "--path", log.path, "--upto", end, "--to"]
    whole = fields(*asked, tmp_path / "whole")
    log.clean(9)
    for lsn in range(begin, end + 1):
        assert state(path=log.path, asOfLsn=lsn) == folded(log, lsn)
    with pytest.raises(SourceError, match=f"its first snapshot of the state is as of LSN {begin}, not {END}"):
        state(path=log.path, asOfLsn=END)
    told = fields(*asked, tmp_path / "trimmed")
    assert (whole["from_lsn"], told["from_lsn"], told["payloads"]) == (0, begin, end - begin)
    assert files_in(Path(told["table"])) == files_in(Path(whole["table"])), "the same bytes"
    assert f"the snapshot at LSN {begin}" in pipeline(*asked, tmp_path / "again")


@pytest.mark.parametrize("wrong", ["no end", "a part less", "another digest", "begun before"])
def test_a_snapshot_that_is_not_whole_does_not_count(log: FileLog, wrong: str) -> None:
    payloads = snapshot_at_end(log, b"w" * 16)
    cut = {"no end": payloads[:-1], "a part less": [*payloads[:3], *payloads[4:]]}.get(wrong, payloads)
    if wrong == "another digest":
        cut = [*payloads[:-1], payloads[-1][:-1] + b"?"]
    log.append([each] for each in cut)
    log.clean(next(e.id for e in log.entries if e.lsn == END + 1) if wrong == "begun before" else 9)
    with pytest.raises(SourceError, match="holds no whole snapshot of a state"):
        state(path=log.path)
    begin = log.entries[-1].lsn + 1
    log.append([each] for each in snapshot_at_end(log))
    end = log.entries[-1].lsn
    assert state(path=log.path) == folded(log, end) == state(path=log.path, asOfLsn=end)
    with pytest.raises(SourceError, match=f"is as of LSN {begin}, not {begin - 1}"):
        state(path=log.path, asOfLsn=begin - 1)


def test_what_is_trimmed_while_it_is_read(log: FileLog) -> None:
    origin = FileOrigin(log.path)
    extent = origin.extent()
    log.clean(5)
    with pytest.raises(SourceError, match=r"ALPO_DATA_LOSS: .*begins at LSN 7, and holds no whole"):
        state_at(origin, extent, END)
    begin, end = with_snapshot(log)
    found = state_at(origin, extent, end)
    assert found.from_lsn == begin and found.machine.cells == machine_at(log, end).cells


@pytest.mark.parametrize(("streaming", "given", "words"), [
    (False, {"state": "false", "asOfLsn": "3"}, "asOfLsn goes only with state=true"),
    (False, {"state": "maybe"}, "option state is 'maybe': it must be true or false"),
    (False, {"state": "true", "asOfLsn": "earliest"}, "option asOfLsn is 'earliest'"),
    (False, {"state": "true", "startingLsn": "1"}, "option startingLsn does not go with state=true"),
    (False, {"state": "true", "endingLsn": "5"}, "option endingLsn .* up to option asOfLsn"),
    (False, {"state": "true", "recordsPerPartition": "5"}, "option recordsPerPartition does not go with state=true"),
    (False, {"state": "true", "failOnDataLoss": "false"}, "does not go with state=true"),
    (True, {"state": "true"}, "state=true goes only with spark.read: "),
])
def test_options_that_do_not_go_together(streaming: bool, given: dict[str, str], words: str) -> None:
    with pytest.raises(SourceError, match=words):
        ReadOptions.of({"path": "/data", **given}, streaming=streaming)


# -- the command ------------------------------------------------------------------------------------------------------


def files_in(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def table_rows(directory: Path) -> list[Row]:
    return [row for path in sorted(directory.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_the_command(log: FileLog, tmp_path: Path) -> None:
    to = tmp_path / "states"
    asked = ["replay", "--state", "--path", log.path, "--to", to]
    told = fields(*asked, "--upto", 12)
    place = to / f"at-{12:019d}"
    assert told.pop("seconds") >= 0 and told == {
        "table": str(place), "cluster": (b"c" * 16).hex(), "state": ID.hex(), "lsn": 12, "from_lsn": 0, "tables": 1,
        "payloads": 12, "folded": 7, "keys": 5, "file_bytes": (place / "part-00000.parquet").stat().st_size,
    }
    assert table_rows(place) == folded(log, 12)
    out = pipeline(*asked)
    assert "the first payload" in out and "of the state\t17" in out
    assert table_rows(to / f"at-{END:019d}") == folded(log, END)
    there = files_in(to)
    again = fields(*asked, "--upto", 12)
    assert (again["tables"], again["payloads"], again["keys"], again["state"]) == (0, 0, 5, ID.hex())
    assert "none: it was there" in pipeline(*asked) and files_in(to) == there
    fields(*asked[:4], "--to", tmp_path / "others", "--upto", 12)
    name = "at-0000000000000000012/part-00000.parquet"
    assert files_in(tmp_path / "others")[name] == there[name], "the same bytes"


def test_a_state_without_variables_is_a_table_without_rows(log: FileLog, tmp_path: Path) -> None:
    told = fields("replay", "--state", "--path", log.path, "--to", tmp_path / "states", "--upto", FOUNDED)
    assert (told["keys"], told["state"]) == (0, ID.hex()) and table_rows(Path(told["table"])) == []


def test_exit_codes_of_the_command(log: FileLog, tmp_path: Path) -> None:
    asked = ["replay", "--path", log.path, "--to", tmp_path / "states"]
    assert "what shall be folded? --state" in pipeline(*asked, code=2)
    assert "there is no option --fold" in pipeline(*asked, "--fold", "f.py:f", code=2)
    assert "not both" in pipeline(*asked, "--state", "--servers", "h:1", code=2)
    assert "what shall be replayed?" in pipeline("replay", "--state", *asked[3:], code=2)
    assert "ALPO_NO_STATE" in pipeline(*asked, "--state", "--upto", 1, code=1)
    assert f"ends at LSN {END}, and --upto is 99" in pipeline(*asked, "--state", "--upto", 99, code=1)
    identity = json.loads((tmp_path / "states" / "replay.json").read_text())
    (tmp_path / "states" / "replay.json").write_text(json.dumps({**identity, "fold": "words.py:count 0"}))
    assert "ALPO_OTHER_FOLD" in pipeline(*asked, "--state", code=1)
    (tmp_path / "states" / "replay.json").write_text(json.dumps({**identity, "cluster": "ab" * 16}))
    assert "ALPO_OTHER_LOG" in pipeline(*asked, "--state", code=1)
    (tmp_path / "states" / "replay.json").write_text(json.dumps(identity))
    with alone(tmp_path / "states"):
        assert "another replay is at work" in pipeline(*asked, "--state", code=1)
    log.clean(5)
    assert "ALPO_DATA_LOSS" in pipeline(*asked[:-1], tmp_path / "new", "--state", code=1)
    assert not list((tmp_path).glob("*/at-*"))


#: Dies by SIGKILL as it comes to a function of `alpo.spark.jobs.tables`.
KILLED = """
import os, signal, sys
from alpo.spark.jobs import tables
from alpo_cli.pipeline.app import app

setattr(tables, sys.argv[1], lambda *given: os.kill(os.getpid(), signal.SIGKILL))
app(sys.argv[2:])
"""


@pytest.mark.parametrize("point", ["clear", "state_at", "_write_rows", "part_at", "finish"])
def test_killed_anywhere_it_comes_to_the_same(log: FileLog, tmp_path: Path, point: str) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    asked = ["replay", "--state", "--path", log.path, "--to"]
    for to in (killed, whole):
        fields(*asked, to, "--upto", 12)
    died = subprocess.run(
        [sys.executable, "-c", KILLED, point, *asked, str(killed)], check=False, timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert died.returncode == -signal.SIGKILL
    assert len(list(killed.glob("at-*/_manifest.json"))) == 1
    for to in (killed, whole):
        fields(*asked, to)
    assert files_in(killed) == files_in(whole)


def test_a_damaged_table_is_told(log: FileLog, tmp_path: Path) -> None:
    asked = ["replay", "--state", "--path", log.path, "--to", tmp_path / "states"]
    part = Path(fields(*asked)["table"]) / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-9])
    assert f"ALPO_TABLE_DAMAGED: {part}" in pipeline(*asked, code=1)


# -- Spark ------------------------------------------------------------------------------------------------------------


def test_spark_reads_it(log: FileLog, tmp_path: Path, spark: SparkSession) -> None:
    reader = spark.read.format("alpo").option("path", log.path).option("state", "true")
    frame = reader.option("asOfLsn", 12).load()
    assert frame.columns == states.ARROW.names and frame.rdd.getNumPartitions() == 1
    wanted = [{**row, "time": row["time"].replace(tzinfo=None)} for row in folded(log, 12)]
    assert [{**row.asDict(), "value": bytes(row.value)} for row in frame.collect()] == wanted
    told = fields("replay", "--state", "--path", log.path, "--to", tmp_path / "states", "--upto", 12)
    assert spark.read.parquet(told["table"]).exceptAll(frame).count() == 0 == frame.count() - told["keys"]
    few = reader.schema("text string, row string").option("asOfLsn", END).load().where("row is not null")
    assert [tuple(row) for row in few.collect()] == [("first", "r1"), (None, "r2")]
    with pytest.raises(Exception, match="there is no column payload: the columns are name, owner"):
        reader.schema("payload binary").load().collect()
    with pytest.raises(Exception, match="ALPO_NO_STATE"):
        spark.read.format("alpo").option("path", log.path).option("state", "true").option("asOfLsn", 1).load().collect()


def test_a_state_of_foreign_payloads_alone_is_none(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "other")
    with pytest.raises(SourceError, match="ALPO_NO_STATE"):
        state(path=log.path)
    log.append([[b"plain"], do(put("a", b"before it is founded"))])
    with pytest.raises(SourceError, match="holds no state up to LSN 2"):
        state(path=log.path)
    log.append([[FOUND]])
    assert state(path=log.path) == []
    log.close()


def test_a_state_is_none_where_a_machine_was_founded(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "other")
    log.append([[found(ID, "ledger", 1)]])
    with pytest.raises(SourceError, match=r"ALPO_OTHER_MACHINE: this log holds a machine \(alpo.rsm\), founded at"):
        state(path=log.path)
    log.close()
