"""Several logs on the same hosts: their world, its operators, and its checks (rules.md#logs)."""
