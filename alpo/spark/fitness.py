"""Checks whether Spark can run here with the log (`alpo spark doctor`); needs neither Spark nor Java."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from .java import JAVA_MIN, NoJava, find_java

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
