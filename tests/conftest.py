"""What all tests share: the same surroundings everywhere, how much hypothesis tries, failures to be seen again."""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A Trio test that hangs is cancelled a little before its timeout, and its traceback says where it stood.

    The timeout itself ends the process (of xdist: a worker), since nothing else stops whatever hangs.
    """
    for item in items:
        if item.get_closest_marker("trio") is None or not isinstance(item, pytest.Function):
            continue
        timeout = item.get_closest_marker("timeout")
        limit_s = float(timeout.args[0] if timeout is not None else config.getini("timeout"))
        if not hasattr(item.obj, "hypothesis"):  # whose every example is a run of its own
            item.obj = _within(0.9 * limit_s, item.obj)


def _within(limit_s: float, test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def run(**kwargs: Any) -> None:
        with trio.fail_after(limit_s):
            await test(**kwargs)

    return run
