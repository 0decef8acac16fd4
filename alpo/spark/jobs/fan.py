"""Run tasks on Spark's executors: a function and its inputs, a task each; results in the order of the inputs.

Laws:

* The function belongs to a module, its inputs can be pickled, and running it twice does no harm: Spark runs a task
  again when an executor is lost.
* A task's `AlpoError` is not a failure for Spark: it is not retried, and the driver raises it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from alpo.errors import AlpoError

from ..java import find_java
from ..origin import SourceError

T = TypeVar("T")
R = TypeVar("R")

#: Log configuration for Spark: errors only, beside the job's own output.
QUIET = Path(__file__).with_name("log4j2.properties")
#: Seconds between two looks at progress.
_LOOK_S = 0.2

#: Called with (tasks done, of how many).
Progress = Callable[[int, int], None]


def unseen(done: int, all: int) -> None:
    """Show no progress."""


class Runner(Protocol):
    """Runs tasks, here or elsewhere. Raises `SourceError` if a task raised an `AlpoError`."""

    def __call__(self, do: Callable[[T], R], tasks: Sequence[T], on_done: Progress = unseen) -> list[R]: ...


def run_here(do: Callable[[T], R], tasks: Sequence[T], on_done: Progress = unseen) -> list[R]:
    """Run tasks without Spark, one after the other, in this process: a `Runner`."""
    results = []
    for task in tasks:
        results.append(do(task))
        on_done(len(results), len(tasks))
    return results


@contextmanager
def spark_context(name: str, master: str = "") -> Iterator[Any]:
    """A new SparkContext, stopped at the end. ``master``: Spark's master URL; "": all cores of this machine. Under
    spark-submit its configuration is used instead."""
    from pyspark import SparkConf, SparkContext

    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise executors start the python3 of their PATH
    conf = SparkConf().setAppName(name)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        conf.setMaster(master or "local[*]")
        if not master:  # a local Spark: stdout and stderr belong to the job
            conf.set("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={QUIET.as_uri()}")
    for key in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        conf.set(key, "false")
    context = SparkContext(conf=conf)
    try:
        yield context
    finally:
        context.stop()


def on_spark(context: Any) -> Runner:
    """Make a `Runner` of an existing SparkContext."""

    def run(do: Callable[[T], R], tasks: Sequence[T], on_done: Progress = unseen) -> list[R]:
        if not tasks:
            return []
        rows = context.parallelize(list(tasks), len(tasks)).map(_refusals(do))
        results = _collected(context, rows, len(tasks), on_done)
        for _, refusal in results:
            if refusal:
                raise SourceError(refusal)
        return [result for result, _ in results]

    return run


def _collected(context: Any, rows: Any, tasks: int, on_done: Progress) -> list[Any]:
    """Collect all rows of an RDD of ``tasks`` tasks; an interruption also stops Spark's work."""
    tracker = context.statusTracker()
    seen: dict[int, int] = {}
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(rows.collect)
        try:
            while not found.done():
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                seen |= {stage.stageId: stage.numCompletedTasks for stage in stages if stage is not None}
                on_done(min(sum(seen.values()), tasks), tasks)
                _wait(found)
        except BaseException:
            context.cancelAllJobs()
            raise
    on_done(tasks, tasks)
    return list(found.result())


def _wait(found: Any) -> None:
    try:
        found.exception(_LOOK_S)
    except TimeoutError:
        return


def _refusals(do: Callable[[T], R]) -> Callable[[T], tuple[R | None, str]]:
    def guarded(task: T) -> tuple[R | None, str]:
        try:
            return do(task), ""
        except AlpoError as error:
            return None, str(error) or type(error).__name__

    return guarded
