"""Hosting: which logs a server keeps, beside the `Replica` of each (rules.md#logs)."""
