"""Mutations of runs: several appends in one entry (R32)."""

from __future__ import annotations

from dataclasses import replace

from alpo.core import serving
from alpo.core.machine import verdicts
from alpo.core.machine.journal import JournalledSessions
from alpo.core.machine.table import SessionState
from alpo.core.machine.verdicts import SessionTable
from alpo.core.settings import Settings

from .fault_plans import long_suffix
from .mutation import Mutation, edit
from .planned import repeated
from .worlds import CROWD, planned, world

#: Load of many quick writers that send several appends at once, and group them anew when they send them again.
FRAMES = replace(CROWD, frame=6)

RUNS = (
    Mutation(
        "S5", "R32", "a run that holds the first serial of a request answers for all of it",
        "a serial is acknowledged that is not in the log, or with another's LSN",
        (edit(SessionTable, "_judge_known", ("    if known == count:", (
            "    if parts and type(parts[0]) is Duplicate:\n"
            "        lsn = parts[0].lsns[0]\n"
            "        return [Duplicate(run.serial, list(range(lsn, lsn + count)), parts[0].rests_on)]\n"
            "    if known == count:"
        ))),),
        world(load=FRAMES), ("acknowledged",),
    ),
    Mutation(
        "S6", "R32", "LSNs within a run are counted by serials, not by payloads",
        "a wrong LSN is told",
        (
            edit(verdicts, "offset", ("return nth if starts is None else starts[nth]", "return nth")),
            edit(serving, "lsns_of", ("if each is None:", "if True:")),
        ),
        world(load=FRAMES), ("acknowledged",),
    ),
    Mutation(
        "S7", "R32", "the window forgets a run together with its first serial",
        "what is in flight is told TOO_OLD",
        (edit(SessionState, "_over", (
            "(number := serials_of(slots[over][4])) <= spare", "spare > 0 and (number := serials_of(slots[over][4]))",
        )),),
        world(settings=Settings(window=8), load=FRAMES), ("sessions", "equal tables"),
    ),
    Mutation(
        "S8", "R32", "an expunge takes back the last serial of a run alone",
        "what nobody appended counts as skipped: an append is refused for good that is in the log",
        (edit(JournalledSessions, "expunge", (
            "-serials_of(session.slots.pop()[4]))\n            session.last = before",
            "-serials_of((gone := session.slots.pop())[4]))\n            "
            "session.last = before if len(gone[4]) == 16 else (session.last[0] - 1, *before[1:])",
        )),),
        planned(load=FRAMES), ("refused for good", "acknowledged", "sessions", "exactly once", "no progress", "alarm"),
        ("equal tables",), makes=repeated(long_suffix),
    ),
    Mutation(
        "S10", "R32", "of a run the first serial's mark alone is compared",
        "a payload is acknowledged that is not in the log",
        (edit(SessionTable, "_judge_old", (
            "same(digest, nth, *run.bodies[at])", "(nth > 0 or same(digest, nth, *run.bodies[at]))",
        )),),
        world(load=FRAMES), ("acknowledged",),
    ),
    Mutation(
        "P93", "R32", "what is in flight is counted in entries, not in serials",
        "more is in flight than is remembered: a retry is told TOO_OLD",
        (edit(SessionTable, "_room", ("sum(serials_of(slot[4]) for slot in recent)", "len(recent)")),),
        world(settings=Settings(window=8), load=FRAMES), ("bounds",),
    ),
    Mutation(
        "P95", "R32", "a retry from the middle of a run is compared with the mark of its first serial",
        "an append is refused for good that is in the log",
        (edit(SessionTable, "_judge_old", ("same(digest, nth, *run.bodies[at])", "same(digest, 0, *run.bodies[at])")),),
        world(load=FRAMES), ("refused for good",),
    ),
)
