"""The replicated state machine: what all servers make of the same log (rules.md#replicated-state)."""
