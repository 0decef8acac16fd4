"""What all tests share: surroundings, how much hypothesis tries, and who runs with whom when several workers do."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# The machine is small and shared: no deadlines, and no complaint about a slow moment. A failure prints the blob that
# reproduces it. `HYPOTHESIS_PROFILE=thorough` tries twenty times as much.
_common: dict[str, Any] = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=100, **_common)
settings.register_profile("thorough", max_examples=2000, **_common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# What a shell or a CI service sets changes what pytest, rich and our commands print (`CI`: pytest cuts nothing short),
# and what our commands talk to: tests say themselves what they want of it.
_PRINTING = ("BUILD_NUMBER", "CI", "COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "LINES", "NO_COLOR", "PYTEST_ADDOPTS")
for _name in [name for name in os.environ if name in _PRINTING or name.startswith("ALPO_")]:
    del os.environ[_name]

#: Folders whose tests take longest, so that no worker is left with one of them at the end.
_FIRST = ("spark", "cluster", "cli", "sim", "node")
#: Folders whose modules' fixtures start servers.
_WITH_SERVERS = ("cli", "spark")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is started once for several tests is started on one worker: Spark, the cluster of a module."""
    for item in items:
        group = _group(item)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: _FIRST.index(folder) if (folder := item.path.parent.name) in _FIRST else len(_FIRST))


def _group(item: pytest.Item) -> str:
    if "spark" in getattr(item, "fixturenames", ()):
        return "spark"
    fixtures = getattr(item, "_fixtureinfo", None)
    definitions = fixtures.name2fixturedefs.values() if fixtures is not None else ()
    runs_servers = item.path.parent.name in _WITH_SERVERS
    return item.path.name if runs_servers and any(found[-1].scope == "module" for found in definitions) else ""
