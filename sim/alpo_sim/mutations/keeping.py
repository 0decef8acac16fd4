"""Mutations of what operators ask for: outcomes, settings, cursors (R21, R25, rules.md#settings,
rules.md#cursors)."""

from __future__ import annotations

from dataclasses import replace

from alpo.core.cleaning import Cleaning
from alpo.core.machine.undo import JournalledSessions
from alpo.core.operator_requests import Keeping
from alpo.core.reads import Reads
from alpo.core.replica import Replica

from ..options import MS
from . import directed as plans
from .directed import directed
from .mutation import Mutation, edit
from .worlds import CROWD, READING, SLOW, planned, world

SETTING = replace(CROWD, keepers=4, keep=("settings",))
READERS = replace(CROWD, keepers=4, keep=("cursor",))

KEEPING = (
    Mutation(
        "P40", "R25", "a leader tells outcomes without a read round",
        "a zombie says of an append that was acknowledged that it is not in the log",
        (edit(Reads, "ask", ("self._new.append(request)", (
            "(r.keeping.judge if isinstance(request, Outcome) else self._new.append)(request)"
        ))),),
        planned(load=replace(READING, writers=1, readers=0, keepers=8, keep=("outcome",))), ("outcome",),
        makes=directed(plans.slow_zombie),
    ),
    Mutation(
        "P41", "R21", "an outcome is told from the head of the log",
        "an append is said to be at an LSN, and is lost with its leader",
        (edit(Keeping, "_outcome", ("verdict.rests_on, taken=False", "0, taken=False")),),
        world(load=replace(CROWD, keepers=4, keep=("outcome",))), ("outcome",),
    ),
    Mutation(
        "P42", "settings", "a change of settings is not undone by an expunge",
        "two servers forget at different serials: a retry is appended twice, or told otherwise by the next leader",
        (edit(JournalledSessions, "expunge", (
            "self.settings = self._settings_before.pop()[1]", "self._settings_before.pop()",
        )),),
        world(load=replace(SETTING, keepers=2), network=SLOW, faults=("isolate", "cut")), ("equal tables",),
    ),
    Mutation(
        "P43", "settings", "a change of settings does not compare what it changes with what its asker believes",
        "of two operators one undoes in silence what the other did",
        (edit(Keeping, "_change_settings", ("if now[name] not in (old, wanted)", "if False")),),
        world(load=SETTING), ("settings",),
    ),
    Mutation(
        "P44", "settings", "the settings are told as they are at the head of the log",
        "an operator is told of a change that is lost with its leader",
        (edit(Keeping, "_show_settings", ("r.log.last_id, taken=False", "0, taken=False")),),
        world(load=SETTING), ("settings",),
    ),
    Mutation(
        "P45", "cursors", "a server cleans whatever a cursor says",
        "a reader finds that payloads are gone that it had kept",
        (
            edit(Cleaning, "clean", ("if hold_lsn is not None and request.next_lsn > hold_lsn:", "if False:")),
            edit(Cleaning, "take_base", ("hold_lsn is not None and", "False and")),
        ),
        world(load=READERS, clean_every_us=200 * MS), ("cursors",),
    ),
    Mutation(
        "P46", "cursors", "what happened to cursors is not undone by an expunge",
        "two servers keep different payloads for a reader",
        (edit(Replica, "expunge", ("self.cursors.expunge(from_id)", "pass")),),
        world(load=READERS, network=SLOW, faults=("isolate", "cut")), ("cursors",),
    ),
    Mutation(
        "P47", "cursors", "the cursors are told as they are at the head of the log",
        "a reader is told of a cursor that is lost with its leader",
        (edit(Keeping, "_list_cursors", ("r.log.last_id, taken=False", "0, taken=False")),),
        world(load=READERS), ("cursors",),
    ),
)
