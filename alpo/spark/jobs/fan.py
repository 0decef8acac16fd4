"""Tasks over Spark's executors: a function and its inputs, each input a task; results in the order of the inputs.

Laws:

* The function is one of a module, its inputs can be pickled, and to run it again does no harm: Spark runs a task again
  when an executor is lost.
* What a task refuses (`AlpoError`) is no failure of Spark's: it is not tried again, and the driver raises it.
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

#: What Spark says beside a job's own words: errors alone.
QUIET = Path(__file__).with_name("log4j2.properties")
#: How often progress is looked at.
_LOOK_S = 0.2

#: (tasks done, of how many)
Progress = Callable[[int, int], None]


def unseen(done: int, all: int) -> None:
    """No progress is shown."""


class Runner(Protocol):
    """Runs tasks, here or elsewhere. Raises `SourceError` for what one refused."""

    def __call__(self, do: Callable[[T], R], tasks: Sequence[T], on_done: Progress = unseen) -> list[R]: ...


def run_here(do: Callable[[T], R], tasks: Sequence[T], on_done: Progress = unseen) -> list[R]:
    """A `Runner` without Spark: one after the other, in this process."""
    results = []
    for task in tasks:
        results.append(do(task))
        on_done(len(results), len(tasks))
    return results


@contextmanager
def spark_context(name: str, master: str = "") -> Iterator[Any]:
    """A SparkContext of one's own. ``master``: Spark's word for where; "": all cores of this machine. Under
    spark-submit what that was told counts."""
    from pyspark import SparkConf, SparkContext

    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else executors start whatever python3 is on their PATH
    conf = SparkConf().setAppName(name)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        conf.setMaster(master or "local[*]")
        if not master:  # a Spark of our own: stdout and stderr are the job's
            conf.set("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={QUIET.as_uri()}")
    for key in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        conf.set(key, "false")
    context = SparkContext(conf=conf)
    try:
        yield context
    finally:
        context.stop()


def on_spark(context: Any) -> Runner:
    """A `Runner` over a SparkContext that is there."""

    def run(do: Callable[[T], R], tasks: Sequence[T], on_done: Progress = unseen) -> list[R]:
        if not tasks:
            return []
        rows = context.parallelize(list(tasks), len(tasks)).map(_refusals(do))
        results = collected(context, rows, len(tasks), on_done)
        for _, refusal in results:
            if refusal:
                raise SourceError(refusal)
        return [result for result, _ in results]

    return run


def collected(context: Any, rows: Any, tasks: int, on_done: Progress) -> list[Any]:
    """All rows of an RDD that takes so many ``tasks``; whoever interrupts it stops Spark's work too."""
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
