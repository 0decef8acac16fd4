"""What all tests share: how much hypothesis tries, and that a failure can be seen again."""

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
