"""What all tests share: the same surroundings everywhere, how much hypothesis tries, failures to be seen again."""

from __future__ import annotations

import os
from typing import Any

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
