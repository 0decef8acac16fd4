"""Found a state and write a few variables of it, each write a payload: docs/spark.md folds them."""

from __future__ import annotations

import alpo.state

with alpo.state.connect_sync() as state:
    state.put("limits/web", json={"rate": 100})
    agents = state.put("agents", "leader: m1")
    rows = state.rows("agents", fence=agents.created)
    for number in range(4):
        rows.put(f"a{number}", json={"cpus": 8 * number})
    state.put("limits/web", json={"rate": 5})
    state.put("motd", None)
