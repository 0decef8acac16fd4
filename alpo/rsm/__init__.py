"""The machinery on which a machine is replicated: folded from the log by every process alike, with snapshots and trims.

`alpo.state` stands on it; nothing in here knows what a machine does.
"""
