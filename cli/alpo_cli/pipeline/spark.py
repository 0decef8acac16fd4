"""Spark for jobs: the context, and checks of what it needs (`alpo-pipeline doctor`, `alpo spark doctor`): a module
of its own, in which tests and other commands find them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..exits import Failed, UsageProblem
from ..options import Target
from ..output import escape, print_json

if TYPE_CHECKING:
    from alpo.spark.jobs.fan import Runner

#: Least time to wait for servers: Spark keeps all cores busy.
TIMEOUT_S_LEAST = 30.0


@contextmanager
def runner(name: str, master: str) -> Iterator[Runner]:
    """Start Spark, yield a `Runner`, and stop it. ``name``: the command's, as Spark shows it. Raises UsageProblem if
    Spark is not installed or cannot start."""
    require()
    from pyspark.errors import PySparkException

    from alpo.spark.java import NoJava
    from alpo.spark.jobs.fan import on_spark, spark_context

    try:
        with spark_context(name, master) as context:
            yield on_spark(context)
    except NoJava as error:
        raise UsageProblem(str(error)) from error
    except PySparkException as error:
        raise UsageProblem(f"Spark: {error} (alpo-pipeline doctor says what is missing)") from error


def require() -> None:
    """Raise UsageProblem unless pyspark and pyarrow are installed."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise UsageProblem("this needs Spark: pip install 'alpo[spark]'") from error


def tell(target: Target) -> None:
    """Print a line for each fact. Raises Failed, after printing, if Spark could not work here."""
    from alpo.spark.java import examine

    facts = examine()
    for fact in facts:
        if target.json:
            print_json({**fact._asdict(), "do": fact.do or None})
        else:
            print(escape(f"{'OK' if fact.ok else 'bad':<5} {fact.check:<12} {fact.says}"))
            if fact.do:
                print(escape(f"{'':<19}-> {fact.do}"))
    bad = [fact.check for fact in facts if not fact.ok]
    if bad:
        raise Failed(f"bad: {', '.join(bad)}")
