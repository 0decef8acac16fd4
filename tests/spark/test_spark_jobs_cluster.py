"""The jobs against three real servers, over Spark: archive, trim, read across the seam, audit."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from alpo_command import Alpo, cluster
from jobs_kit import reseal
from spark_kit import options, read_all
from typer.testing import CliRunner

from alpo.spark.jobs.fan import Runner, on_spark, run_here
from alpo.spark.origin import SourceError
from alpo.spark.reading import origin_of
from alpo.storage.rows import MARKS_LAG_MAX
from alpo_cli.local_cluster import LocalCluster
from alpo_cli.pipeline.app import app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNNER = CliRunner()
LINES = 2_000


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def alpo(directory: Path) -> Iterator[Alpo]:
    """Three servers with LINES payloads: atomic batches of 7, from two clients."""
    with cluster(directory) as alpo:
        half = b"".join(b"line %d\n" % n for n in range(LINES // 2))
        told = [alpo.out("append", "--json", "--client", name, "--batch", "7", stdin=half) for name in ("one", "two")]
        (directory / "history.jsonl").write_text("".join(told))
        yield alpo


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, without a Spark of its own."""
    over(monkeypatch, run_here)


def over(monkeypatch: pytest.MonkeyPatch, runner: Runner) -> None:
    @contextmanager
    def given(name: str, master: str) -> Iterator[Runner]:
        yield runner

    monkeypatch.setattr("alpo_cli.pipeline.spark.runner", given)


def pipeline(*words: object, code: int = 0) -> str:
    done = RUNNER.invoke(app, [*map(str, words)])
    assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
    return done.stdout


def fields(*words: object, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pipeline(*words, "--json", code=code))
    return found


def payloads(*ranges: range) -> list[str]:
    return [f"line {n}" for numbers in ranges for n in numbers]


def test_archive_trim_and_read_across_the_seam_over_spark(
    alpo: Alpo, directory: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over(monkeypatch, on_spark(spark.sparkContext))
    sound = fields("audit", "--servers", alpo.servers, "--client-history", directory / "history.jsonl")
    assert sound["sound"] and [copy["copy"] for copy in sound["copies"]] == ["server 1", "server 2", "server 3"]
    assert sound["history_checked"] == 2 * -(-LINES // 2 // 7)

    alpo.run("cursor", "set", "slow", "1201")
    done = fields("archive", "--servers", alpo.servers, "--to", tmp_path, "--range-rows", 300, "--trim", "--upto", 1500)
    assert (done["ranges"], done["payloads"], done["archived_last_lsn"], done["checked"]) == (5, 1500, 1500, True)
    assert (done["first_lsn"], done["held_by"]) == (1201, "slow")
    assert alpo.lines("read", "--limit", "1")[0]["lsn"] == 1201

    reader = spark.read.format("alpo").option("servers", alpo.servers).option("startingLsn", 1)
    joined = reader.option("archivePath", str(tmp_path)).option("recordsPerPartition", 500)
    found = joined.load().select("lsn", "payload").collect()
    assert [row.lsn for row in found] == list(range(1, LINES + 1))
    assert [row.payload.decode() for row in found] == payloads(range(LINES // 2), range(LINES // 2))
    alpo.run("cursor", "drop", "slow")


def test_what_an_archiver_prints(alpo: Alpo, here: None, tmp_path: Path) -> None:
    first_lsn = alpo.lines("status")[0]["members"][0]["first_lsn"]
    out = pipeline("archive", "--servers", alpo.servers, "--to", tmp_path)
    assert f"LSN {first_lsn} to {LINES}" in out and "checked against a second replica" in out
    assert fields("archive", "--servers", alpo.servers, "--to", tmp_path)["ranges"] == 0
    assert "found written" in out and not list(tmp_path.glob(".partial-*"))


def test_a_backup_is_audited_with_the_servers(alpo: Alpo, here: None, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    backup.mkdir()
    alpo.run("backup", tmp_path / "log.alpo")
    (tmp_path / "log.alpo").rename(backup / "alpo.db")
    out = pipeline("audit", "--servers", alpo.servers, "--path", backup)
    assert "entries compared" in out and out.count("none") == 4
    with closing(sqlite3.connect(backup / "alpo.db")) as db:
        ((last_data_id,),) = db.execute("SELECT max(id) FROM log WHERE count > 0")
    before = reseal(str(backup), last_data_id, body=b"planted", count=1)
    found = fields("audit", "--servers", alpo.servers, "--path", backup, code=1)
    (fault,) = [fault for fault in found["faults"] if fault["kind"] == "difference"]
    assert (fault["first_id"], fault["first_lsn"], fault["copy"]) == (before.id, before.lsn, str(backup))
    assert not found["sound"]
    out = pipeline("audit", "--servers", alpo.servers, "--path", backup, code=1)
    assert f"DIFFERENCE in {backup}: entry {before.id}, LSN {before.lsn}" in out


def test_another_log_of_the_servers(
    alpo: Alpo, here: None, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpo.run("log", "create", "bills")
    alpo.out("append", "--log", "bills", "--wait", "everyone", stdin=b"".join(b"%d\n" % n for n in range(40)))
    more = b"more\n" * (MARKS_LAG_MAX + 50)  # each server's file then has the mark of the first 40
    alpo.out("append", "--log", "bills", "--wait", "everyone", stdin=more)
    alpo.run("log", "rename", "bills", "billing")
    alpo.run("backup", "--log", "billing", tmp_path / "billing.alpo")
    monkeypatch.setenv("ALPO_LOG", "billing")
    assert fields("archive", "--servers", alpo.servers, "--to", tmp_path / "first")["archived_last_lsn"] == LINES
    of_it = ("--servers", alpo.servers, "--log", "billing")
    kept = fields("archive", *of_it, "--to", tmp_path / "archive", "--trim", "--upto", 30)
    assert (kept["archived_last_lsn"], kept["first_lsn"], kept["checked"]) == (30, 31, True)
    data = directory / "server-1"
    sound = fields("audit", *of_it, "--path", data, "--path", tmp_path / "billing.alpo")
    assert sound["cluster"] == kept["cluster"] and len(sound["copies"]) == 5 and sound["entries_compared"] > 0
    left = options(path=data, log="billing", startingLsn=31, endingLsn=40)
    assert read_all(left) == [(lsn, b"%d" % (lsn - 1)) for lsn in range(31, 41)]
    with pytest.raises(SourceError, match="has no log bills; besides the first it has billing"):
        read_all(options(path=data, log="bills"))
    with pytest.raises(SourceError, match="is a file of one log"):
        read_all(options(path=data / "alpo.db", log="billing"))
    file = origin_of(options(path=data, log="billing"))
    before = file.extent().next_lsn  # a follower's marks come late: another one may come meanwhile
    replay = ("replay", "--state", "--to", tmp_path / "states", "--log")
    pipeline(*replay, "nothing", "--path", data, code=1)
    pipeline(*replay, "Billing", "--path", data, code=2)
    pipeline(*replay, "billing", "--archive", tmp_path / "archive", code=2)
    done = RUNNER.invoke(app, [*map(str, (*replay, "billing", "--path", data, "--archive", tmp_path / "archive"))])
    told = re.search(f"{data}/logs/2 and the archive .* holds no state up to LSN ([0-9]+)\n", done.stderr)
    assert told and 40 < before <= int(told[1]) + 1 <= file.extent().next_lsn


def test_wrong_usage(here: None, tmp_path: Path) -> None:
    pipeline("audit", "--path", tmp_path, "--path", tmp_path, code=2)
    pipeline("audit", "--path", tmp_path, code=2)
    (tmp_path / "file").touch()
    pipeline("archive", "--to", tmp_path / "file", code=2)


def test_a_server_that_is_down_is_told(alpo: Alpo, here: None, directory: Path) -> None:
    """The last test: two servers stay."""
    LocalCluster.load(directory).get(3).send(signal.SIGKILL)
    found = fields("audit", "--servers", alpo.servers, code=1)
    assert [(fault["kind"], fault["copy"]) for fault in found["faults"]] == [("unreachable", "server 3")]
