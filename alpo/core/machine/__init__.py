"""The replicated state machine: the state that all servers derive from the same log (rules.md#replicated-state)."""
