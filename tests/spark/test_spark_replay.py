"""The log folded into tables: their rows, the place where a replay goes on, and refusals; kills change nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import replay_kit
from jobs_kit import Replica
from replay_kit import NAMES, PASSED_OVER, POINTS, files_in, functions_in, payloads, rows_of, run
from typer.testing import CliRunner

from alpo.spark.jobs.functions import NoFunction, find_function
from alpo.spark.jobs.grouping import Grouper, group_here, group_on_spark
from alpo.spark.jobs.tables import alone
from alpo.spark.origin import SourceError
from alpo_cli.pipeline.app import app

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 70


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Replica]:
    """COUNT payloads; every third entry is a batch of three, some have none."""
    replica = Replica(tmp_path / "log")
    rest = payloads(COUNT)
    while rest:
        for size in (1, 1, 3):
            if rest:
                replica.append(tuple(rest[:size]))
                rest = rest[size:]
        replica.append(())
    yield replica
    replica.close()


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    return functions_in(tmp_path)


def balances(upto: int) -> dict[str, int]:
    """Balances of the accounts that are not closed, computed by plain Python."""
    found: dict[str, int] = {}
    for payload in payloads(upto):
        account, amount = payload.decode().split()
        found[account] = found.get(account, 0) + int(amount)
        if not found[account]:
            del found[account]
    return found


def test_a_table_at_any_lsn_is_what_plain_python_makes(log: Replica, functions: Path, tmp_path: Path) -> None:
    for upto in (70, 20, 33, 41, 1, 69):
        done = run(log.path, tmp_path / "tables", functions, upto=upto)
        rows = rows_of(done)
        assert {key: json.loads(state)["balance"] for key, (_, state) in rows.items()} == balances(upto)
        assert all(json.loads(state)["moves"][-1] == lsn for lsn, state in rows.values())
    assert balances(1) == {} and 3 < len(balances(70)) <= len(NAMES)


def test_it_goes_on_from_the_nearest_table(log: Replica, functions: Path, tmp_path: Path) -> None:
    to = tmp_path / "tables"
    first = run(log.path, to, functions, upto=50)
    assert (first.from_lsn, first.made, first.payloads, first.folded) == (0, 3, 50, 50)
    assert sorted(path.name[-2:] for path in to.glob("at-*")) == ["20", "40", "50"]
    last = run(log.path, to, functions)
    assert (last.table.lsn, last.from_lsn, last.made, last.payloads) == (70, 50, 2, 20)
    before = run(log.path, to, functions, upto=45)
    assert (before.from_lsn, before.made, before.payloads) == (40, 1, 5)
    there = files_in(to)
    again = run(log.path, to, functions)
    assert (again.table, again.made, again.folded) == (last.table, 0, 0) and files_in(to) == there


def test_the_same_bytes_however_it_came_there(log: Replica, functions: Path, tmp_path: Path) -> None:
    done = [run(log.path, tmp_path / str(every), functions, every=every) for every in (7, 20, 1000)]
    assert len({json.dumps(sorted((n, b.hex()) for n, b in files_in(d.table.directory).items())) for d in done}) == 1


def test_one_state_for_all_and_several_keys_for_one(log: Replica, functions: Path, tmp_path: Path) -> None:
    total = sum(int(payload.split()[1]) for payload in payloads(COUNT))
    done = run(log.path, tmp_path / "one", functions, "total", None)
    assert rows_of(done) == {"": (COUNT, str(total))} and len(done.table.parts) == 1
    rows = rows_of(run(log.path, tmp_path / "both", functions, "total", "both"))
    others = [payload for payload in payloads(COUNT) if not payload.startswith(PASSED_OVER.encode())]
    assert PASSED_OVER not in rows and rows["all"][1] == str(sum(int(payload.split()[1]) for payload in others))


#: The first LSN at which the function raises, over all keys.
FIRST = next(lsn for lsn, payload in enumerate(payloads(COUNT), 1) if payload.endswith(b" -4"))


@pytest.mark.parametrize(("fold", "key", "words"), [
    ("fussy", "account", rf"accounts.py:fussy raised ValueError at LSN {FIRST}, key '..': no more than three"),
    ("odd", "account", r"accounts.py:odd returned at LSN \d+, key '..', what is not JSON: \{"),
    ("apply", "bad_key", r"accounts.py:bad_key returned 1 at LSN 1: a key is text"),
])
def test_what_a_function_does_wrong_is_told_by_lsn(
    log: Replica, functions: Path, tmp_path: Path, fold: str, key: str, words: str
) -> None:
    with pytest.raises(SourceError, match=words):
        run(log.path, tmp_path / "tables", functions, fold, key)
    assert not list((tmp_path / "tables").glob("at-*/_manifest.json"))


@pytest.mark.parametrize(("text", "words"), [
    ("nowhere.py:f", "nowhere.py: No such file"), ("accounts", "names no function"), ("accounts.py:", "names no"),
    ("{}:none", "there is no function 'none' .there are: move, account, both, apply"),
    ("no_such_module:f", "no_such_module cannot be imported"), ("json:nothing", "no function 'nothing'"),
    ("{}.broken.py:f", r"broken.py:f raised ZeroDivisionError at its import: .* \(accounts.py.broken.py, line 2\)"),
])
def test_a_function_that_is_not_there(functions: Path, text: str, words: str) -> None:
    Path(f"{functions}.broken.py").write_text("\n1 / 0\n")
    with pytest.raises(NoFunction, match=words):
        find_function(text.format(functions))
    assert find_function("json:dumps").load() is json.dumps


def test_tables_of_other_things_are_not_gone_on_with(log: Replica, functions: Path, tmp_path: Path) -> None:
    to = tmp_path / "tables"
    run(log.path, to, functions, upto=20)
    with pytest.raises(SourceError, match="ALPO_OTHER_FOLD"):
        run(log.path, to, functions, "total")
    with pytest.raises(SourceError, match="ALPO_OTHER_FOLD"):
        run(log.path, to, functions, key="both")
    identity = to / "replay.json"
    identity.write_text(identity.read_text().replace((b"c" * 16).hex(), "ab" * 16))
    with pytest.raises(SourceError, match=f"ALPO_OTHER_LOG.*{'ab' * 16}"):
        run(log.path, to, functions)
    functions.write_text(functions.read_text() + "# changed")
    with pytest.raises(SourceError, match="ALPO_OTHER"):
        run(log.path, to, functions)


def test_what_cannot_be_is_told(log: Replica, functions: Path, tmp_path: Path) -> None:
    to = tmp_path / "tables"
    with pytest.raises(SourceError, match="ends at LSN 70, and --upto is 71"):
        run(log.path, to, functions, upto=71)
    run(log.path, to, functions, upto=40)
    with alone(to), pytest.raises(SourceError, match="another replay is at work"):
        run(log.path, to, functions)
    log.clean(20)
    assert run(log.path, to, functions, upto=50).from_lsn == 40
    with pytest.raises(SourceError, match=r"ALPO_DATA_LOSS: payloads 1 to .* --archive DIR"):
        run(log.path, tmp_path / "new", functions)
    part = to / "at-0000000000000000050" / "part-00003.parquet"
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(SourceError, match=r"ALPO_TABLE_DAMAGED.*part-00003"):
        run(log.path, to, functions)


@pytest.mark.parametrize(("point", "number"), [
    ("reading", 1), ("part", 25), ("renamed", 31), ("cleared", 1),
    *(pytest.param(*each, marks=pytest.mark.soak) for each in (
        ("reading", 3), ("part", 1), ("renamed", 3), ("finish", 1), ("finish", 4))),
])
def test_killed_anywhere_it_comes_to_the_same(
    log: Replica, functions: Path, tmp_path: Path, point: str, number: int
) -> None:
    to = tmp_path / "killed"
    command = [sys.executable, replay_kit.__file__, log.path, str(to), str(functions), "20", point, str(number)]
    path = os.pathsep.join(filter(None, [str(Path(replay_kit.__file__).parent), *sys.path]))
    died = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False, timeout=120)
    assert died.returncode == -signal.SIGKILL
    run(log.path, to, functions)
    run(log.path, tmp_path / "whole", functions)
    assert files_in(to) == files_in(tmp_path / "whole")
    assert set(POINTS) == {"reading", "part", "renamed", "finish", "cleared"}


def test_over_spark_the_same_bytes(log: Replica, functions: Path, tmp_path: Path, spark: SparkSession) -> None:
    to, here = tmp_path / "spark", tmp_path / "here"
    done = run(log.path, to, functions, every=50, group=group_on_spark(spark.sparkContext))
    run(log.path, here, functions, every=50)
    assert files_in(to) == files_in(here)
    rows = spark.read.parquet(str(done.table.directory)).selectExpr("key", "get_json_object(state, '$.balance') b")
    assert {row.key: int(row.b) for row in rows.collect()} == balances(COUNT)
    with pytest.raises(SourceError, match=f"fussy raised ValueError at LSN {FIRST}"):
        run(log.path, tmp_path / "other", functions, "fussy", group=group_on_spark(spark.sparkContext))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command, without a Spark of its own."""
    @contextmanager
    def given(name: str, master: str) -> Iterator[Grouper]:
        yield group_here

    monkeypatch.setattr("alpo_cli.pipeline.spark.grouper", given)


def test_the_command(log: Replica, functions: Path, tmp_path: Path, here: None) -> None:
    def told(*words: object, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["replay", *map(str, words)], env={"ALPO_SERVERS": ""})
        assert done.exit_code == code, (done.stdout, done.stderr, done.exception)
        return done.stdout if code == 0 else done.stderr

    asked = ["--path", log.path, "--fold", f"{functions}:apply", "--key", f"{functions}:account"]
    to = tmp_path / "tables"
    fields = json.loads(told(*asked, "--to", to, "--every", 30, "--upto", 60, "--json"))
    assert fields["table"] == str(to / "at-0000000000000000060") and (fields["lsn"], fields["from_lsn"]) == (60, 0)
    assert (fields["tables"], fields["payloads"], fields["keys"]) == (2, 60, len(balances(60)))
    out = told(*asked, "--to", to)
    assert "the table at LSN 60" in out and "LSN 70" in out
    assert "none: it was there" in told(*asked, "--to", to, "--upto", 30)
    assert "no function 'gone'" in told(*asked[:2], "--fold", f"{functions}:gone", "--to", to, code=2)
    assert "what shall be replayed" in told(*asked[2:], "--to", to, code=2)
    assert "not both" in told(*asked, "--servers", "h:1", "--to", to, code=2)
    said = told(*asked[:2], "--fold", f"{functions}:fussy", "--to", tmp_path / "other", code=1)
    assert f"raised ValueError at LSN {FIRST}" in said
