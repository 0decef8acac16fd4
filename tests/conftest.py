"""Set-up of all tests: their environment, hypothesis's number of examples, the distribution of tests to workers, and
the names of failed tests in a run that breaks off.
"""

from __future__ import annotations

import functools
import math
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
import warm
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

from alpo._version import build

# The machine is small and shared: no deadlines, and no complaint about a slow moment. A failure prints the blob that
# reproduces it. `HYPOTHESIS_PROFILE=thorough` tries twenty times as much.
_common: dict[str, Any] = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=100, **_common)
settings.register_profile("thorough", max_examples=2000, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# Variables that a shell or a CI service sets change what pytest, rich and our commands print (`CI`: pytest cuts nothing
# short), and which servers our commands ask: a test that wants such a variable sets it.
_PRINTING = ("BUILD_NUMBER", "CI", "COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "LINES", "NO_COLOR", "PYTEST_ADDOPTS")
for _name in [name for name in os.environ if name in _PRINTING or name.startswith("ALPO_")]:
    del os.environ[_name]

# A shell starts jobs in the background with SIGINT ignored, and what ignores a signal hands that on to its children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

warm.install()

#: Folders whose tests take longest, so that no worker is left with one of them at the end.
_FIRST = ("spark", "docs", "cluster", "upgrade", "cli", "sim", "node")
#: Spark gives a Python worker 10 s to start, and no setting changes that; a machine that is busy enough takes longer. A
#: test that fails by these words, and by no others, is run again.
_SPARK_GAVE_UP = "Python worker failed to connect back"
#: Folders whose modules' fixtures start servers.
_WITH_SERVERS = ("cli", "spark")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in this same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run tests that share a thing started once (Spark, the cluster of a module) on one worker.

    A Trio test that hangs is cancelled a little before its timeout, and its traceback says where it stood. The timeout
    itself ends the process (of xdist: a worker), since nothing else stops whatever hangs.
    """
    for item in items:
        group = _group(item)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))
        if item.path.parent.name == "spark":
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=[_SPARK_GAVE_UP]))
        if item.get_closest_marker("trio") is None or not isinstance(item, pytest.Function):
            continue
        limit_s = _timeout_s(item)
        if limit_s > 0 and not hasattr(item.obj, "hypothesis"):  # each example is a run of its own
            item.obj = _within(0.9 * limit_s, item.obj)
    items.sort(key=lambda item: _FIRST.index(folder) if (folder := item.path.parent.name) in _FIRST else len(_FIRST))


@contextmanager
def _no_new_variables() -> Iterator[None]:
    """Leave nothing in the environment for the next test: commands that run in this process put certificates there."""
    before = set(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before:
            if name.startswith("ALPO_"):
                del os.environ[name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _no_new_variables():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with _no_new_variables():
        return (yield)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadGroupScheduling | None:
    return _Scheduling(config, log) if config.option.dist == "loadgroup" else None


@pytest.hookimpl(trylast=True)  # pytest's own reporter is there
def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "numprocesses", None):
        config.pluginmanager.register(_Names(config.pluginmanager.getplugin("terminalreporter")))


def pytest_report_header() -> str:
    return f"alpo: {build()}"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to run if xdist leaves groups out: Spark would be started on every worker, and nothing would fail."""
    if getattr(session.config.option, "loadgroup", False):
        loose = [item.nodeid for item in session.items if _group(item) and "@" not in item.nodeid]
        if loose:
            raise pytest.UsageError(f"xdist does not group {loose[0]}: install what constraints.txt says")


def _group(item: pytest.Item) -> str:
    if "spark" in getattr(item, "fixturenames", ()):
        return "spark"
    fixtures = getattr(item, "_fixtureinfo", None)
    definitions = fixtures.name2fixturedefs.values() if fixtures is not None else ()
    runs_servers = item.path.parent.name in _WITH_SERVERS
    return item.path.name if runs_servers and any(found[-1].scope == "module" for found in definitions) else ""


def _timeout_s(item: pytest.Item) -> float:
    """The test's timeout as pytest-timeout finds it; 0: none."""
    mark = item.get_closest_marker("timeout")
    marked = (*mark.args[:1], mark.kwargs.get("timeout")) if mark is not None else ()
    told = (*marked, item.config.getoption("timeout"), os.environ.get("PYTEST_TIMEOUT"), item.config.getini("timeout"))
    return next((float(each) for each in told if each not in (None, "")), 0.0)


def _within(limit_s: float, test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """``test``, cancelled after so many seconds of real time, whatever the clock of Trio says."""
    @functools.wraps(test)
    async def run(**kwargs: Any) -> None:
        with trio.fail_after(math.inf) as scope:
            cancel = functools.partial(trio.lowlevel.current_trio_token().run_sync_soon, scope.cancel)
            timer = threading.Timer(limit_s, cancel)
            timer.start()
            try:
                await test(**kwargs)
            finally:
                timer.cancel()
                timer.join()

    return run


class _Scheduling(LoadGroupScheduling):  # type: ignore[misc]
    """Distributes tests by group. A test during which its worker ends (its timeout ends it) has failed, and what that
    worker would have run goes to others.

    (xdist 3.8 begins the test again in each worker in turn, waits for ever for a worker that is left with one test, and
    breaks off without any name if two end at a time.)
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Take a worker out; the test that it ran, if it did not end in order."""
        units = self.assigned_work.pop(node)
        left: list[tuple[str, str]] = [
            (scope, test) for scope, unit in units.items() for test, done in unit.items() if not done
        ]
        if not left:
            return None
        crashed_in, crashed = left[0]
        units[crashed_in][crashed] = True
        for scope in dict.fromkeys(scope for scope, _ in left[1:]):
            self.workqueue[scope] = units[scope]
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker that is ready two tests: it begins one only when it knows what comes after."""
        while node in self.registered_collections and not node.shutting_down:
            if not self.workqueue:
                node.shutdown()
            elif self._pending_of(self.assigned_work[node]) < 2:
                self._assign_work_unit(node)
            else:
                return


class _Names:
    """Names each failure when it comes: the end, where pytest does, is not reached by a run that breaks off."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.write_line(f"\nFAILED {report.nodeid} ({report.when})", red=True)
