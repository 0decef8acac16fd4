"""A simulated cluster for your own tests: `Cluster`, and what it raises. See docs/testing.md."""

from __future__ import annotations

from alpo_sim.checks import Broken

from .cluster import Cluster
from .engine import Stuck
from .world import FAULTS

__all__ = ["FAULTS", "Broken", "Cluster", "Stuck"]
