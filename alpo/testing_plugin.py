"""Pytest plugin with the fixture `alpo_cluster` and its mark. It costs nothing until a test asks for the fixture.

    @pytest.mark.alpo(seeds=20, servers=5, faults=True)
    def test_mine(alpo_cluster): ...

The mark takes ``seed=N``, ``seeds=N`` (0 … N - 1, or a list), and all arguments of `alpo.testing.Cluster`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from alpo.testing import Cluster

#: Cluster of each running test by node id, and a list that is not empty once the test has failed.
_RUNNING: dict[str, tuple[Cluster, list[bool]]] = {}
#: Lines shown with a failure, of the faults in the cluster.
_LINES_MAX = 20


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark `alpo`."""
    config.addinivalue_line(
        "markers", "alpo(seed, seeds, servers, faults, ...): what kind of cluster the fixture alpo_cluster is"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests that use `alpo_cluster` by the seeds of their mark."""
    if "alpo_cluster" in metafunc.fixturenames:
        seeds = _seeds(_marked(metafunc.definition))
        metafunc.parametrize("alpo_cluster", seeds, indirect=True, ids=[f"seed{seed}" for seed in seeds])


def _marked(item: Any) -> dict[str, Any]:
    """Arguments of the test's marks; the closest mark wins."""
    marked: dict[str, Any] = {}
    for mark in item.iter_markers("alpo"):
        if mark.args:
            raise pytest.UsageError("pytest.mark.alpo takes names: alpo(seed=7)")
        marked = mark.kwargs | marked
    return marked


def _seeds(marked: dict[str, Any]) -> list[int]:
    """The seeds that a test is to run with."""
    seeds = marked.get("seeds")
    if seeds is None:
        return [marked.get("seed", 0)]
    if "seed" in marked:
        raise pytest.UsageError("pytest.mark.alpo takes seed or seeds, not both")
    return list(range(seeds)) if isinstance(seeds, int) else list(seeds)


@pytest.fixture
def alpo_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """An `alpo.testing.Cluster`; healed and checked after the test, unless the test has failed."""
    from alpo.testing import Cluster

    how = {name: value for name, value in _marked(request.node).items() if name not in ("seed", "seeds")}
    cluster = Cluster(request.param, **how)
    failed: list[bool] = []
    _RUNNING[request.node.nodeid] = cluster, failed
    try:
        cluster.open()
        yield cluster
        if not failed:
            cluster.check()
    finally:
        cluster.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note a failed test, and show its cluster's faults and recipe with the failure."""
    outcome: Any = yield
    cluster, failed = _RUNNING.get(item.nodeid, (None, []))
    if cluster is None:
        return
    report = outcome.get_result()
    if report.failed:
        failed.append(True)
        lines = cluster.faults()
        left_out = [f"({len(lines) - _LINES_MAX} before that)"] if len(lines) > _LINES_MAX else []
        report.sections.append(("alpo cluster", "\n".join([cluster.recipe, *left_out, *lines[-_LINES_MAX:]])))
    if report.when == "teardown":
        del _RUNNING[item.nodeid]
