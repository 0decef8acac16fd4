"""The Spark that a job runs on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..exits import UsageProblem

if TYPE_CHECKING:
    from alpo.spark.jobs.fan import Runner
    from alpo.spark.jobs.grouping import Grouper

#: Servers are waited for at least this long: Spark keeps all cores busy.
TIMEOUT_S_LEAST = 30.0


@contextmanager
def runner(name: str, master: str) -> Iterator[Runner]:
    """Spark for tasks, started and stopped. Raises UsageProblem where it is not installed or cannot start."""
    require()
    from alpo.spark.jobs.fan import on_spark

    with _context(name, master) as context:
        yield on_spark(context)


@contextmanager
def grouper(name: str, master: str) -> Iterator[Grouper]:
    """Spark for grouping by key, as `runner`."""
    require()
    from alpo.spark.jobs.grouping import group_on_spark

    with _context(name, master) as context:
        yield group_on_spark(context)


@contextmanager
def _context(name: str, master: str) -> Iterator[Any]:
    from pyspark.errors import PySparkException

    from alpo.spark.java import NoJava
    from alpo.spark.jobs.fan import spark_context

    try:
        with spark_context(f"alpo-pipeline {name}", master) as context:
            yield context
    except NoJava as error:
        raise UsageProblem(str(error)) from error
    except PySparkException as error:
        raise UsageProblem(f"Spark: {error} (alpo-pipeline doctor says what is missing)") from error


def require() -> None:
    """Raises UsageProblem unless there are pyspark and pyarrow."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise UsageProblem("this needs Spark: pip install 'alpo[spark]'") from error
