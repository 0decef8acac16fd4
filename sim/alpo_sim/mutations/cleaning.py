"""Mutations of cleaning and trimming (R19, R20)."""

from __future__ import annotations

from dataclasses import replace

from alpo.core import replica
from alpo.core.cleaning import Cleaning

from ..options import MS
from .log import LOST
from .mutation import Mutation, edit
from .worlds import BUSY, world

CLEANING = (
    Mutation(
        "M8", "R19", "what some member does not hold yet is cleaned",
        "a server that was away can never be caught up",
        (edit(Cleaning, "cleanable_id", ("r.fully_replicated_id, ", "")),),
        world(clean_every_us=200 * MS, load=BUSY), ("no progress", "alarm"), ("cleaned too early",),
    ),
    Mutation(
        "P28", "replicated state", "a cleaning does not wait for the table of sessions to be saved",
        "after a restart the table is made of what is left of the log: retries are appended twice",
        (edit(replica, "table_save", (
            "if not wanted and lag < r.cfg.table_save_entries and (base is None or base.id <= r.applied_id):",
            "if not wanted and lag < r.cfg.table_save_entries:",
        )),),
        world(clean_every_us=200 * MS, load=BUSY, faults=("crash", "crash_all")),
        ("equal tables", "exactly once", "sessions", "alarm", *LOST),
    ),
    Mutation(
        "P29", "R20", "a trim counts before its entry is guaranteed",
        "payloads are refused that a later leader still serves",
        (edit(Cleaning, "accept", (
            "self._coming.append((entry.id, before))", "self.trim_lsn = max(self.trim_lsn, before)",
        )),),
        world(load=replace(BUSY, operators=True), seconds=30), ("trimmed",),
    ),
)
