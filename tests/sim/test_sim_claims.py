"""Rules that no mutation of `alpo_sim.mutations` breaks: each broken here, in a world that is drawn like any other."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from some import some

from alpo.core import entries
from alpo.core.changes import Changes
from alpo.core.election import Election
from alpo.core.machine.table import SessionState
from alpo.core.machine.verdicts import SessionTable
from alpo.core.outbox import Outbox
from alpo.core.replica import Replica
from alpo.core.replication import Replication
from alpo.core.serving import Reads, Serving
from alpo_sim.mutations.mutation import Patch, edit
from alpo_sim.options import Options
from alpo_sim.world import World, run_world

REMEMBERED = "if after and (nth := serial - slots[after - 1][0]) < serials_of(slots[after - 1][4]):"

#: The first seed is one in which it showed; when worlds are drawn otherwise it shows soon after.
WORLDS_MAX = 40
CASES: dict[str, tuple[int, str, Patch]] = {
    "a read is told of more than is guaranteed": (
        1, "one log", edit(Reads, "advance", (
            "ReadAt(request.origin, index)", "ReadAt(request.origin, r.log.last_id)"))),
    "reads are never answered": (
        1, "no progress", edit(Reads, "_answered", (
            "return count + r.members.i_vote >= r.members.latest.majority", "return False"))),
    "opens are never answered": (
        19, "no progress", edit(Serving, "open_session", ("if isinstance(verdict, OpenAgain):", "if False:"))),
    "the fastest peer is everybody": (
        2, "fully replicated", edit(Replication, "count", ("low = min(", "low = max("))),
    "a member list upon another": (
        28, "members", edit(Changes, "may_change", (" >= r.members.latest_id", ""))),
    "a member list before the reign has begun": (
        2, "members", edit(Changes, "may_change", ("self._replication.first_id <= ", ""))),
    "a start answer before it is durable": (
        4, "durable before sent", edit(Outbox, "send", (
            "if self.hard_durable:", "if self.hard_durable or type(message).__name__ == 'StartAnswer':"))),
    "entry time is the leader's clock": (
        11, "entry time", edit(Replication, "now_ms", ("return lower_median(walls)", "return own_wall_ms"))),
    "nothing is counted as in flight": (
        1, "bounds", edit(Replica, "inflight_bytes", (
            "return max(", "return min(0, "))),
    "a peer's window has no end": (2, "bounds", edit(Replication, "_room", (
        "len(peer.in_flight) < REQUESTS_MAX and peer.in_flight_bytes < self._r.cfg.peer_inflight_bytes_max", "True"))),
    "OUTRANKED counts as held": (
        18, "electable", edit(Election, "on_vote_answer", (
            "cycle.outranked[sender.id] = True",
            "cycle.outranked[sender.id] = True\n        cycle.held[sender.id] = (sender.id, None)"))),
    "a drop is told before it is guaranteed": (
        27, "acknowledged", edit(Serving, "drop_session", (
            "self.answer(Dropped(request.origin, verdict.epoch), entry.id, taken=True)",
            "r.out.reply(Dropped(request.origin, verdict.epoch))"))),
    "what is remembered is too old": (1, "sessions", edit(SessionTable, "_judge_old", (
        REMEMBERED, f"{REMEMBERED}\n        return Refuse(serial, 1, Code.TOO_OLD, 0, head_id)"))),
    "sessions do not end by age": (
        1, "equal tables", edit(SessionState, "_end_idle", ("time_ms - session.last[2] > ttl_ms", "False"))),
    "more sessions than there may be": (
        3, "equal tables", edit(SessionState, "_begin", (
            "while self._idle and len(self._idle) >= self.settings.sessions_max:", "while False:"))),
    "more serials remembered than there may be": (
        7, "equal tables", edit(SessionState, "_forget_oldest", (
            "while self._held_total > self.settings.window_total:", "while False:"))),
    "a run larger than it may be": (1, "bounds", edit(entries, "_groups", (
        "if size + len(body) > RUN_BYTES_MAX and at > begin:", "if False:"))),
    "one answer for all runs of a frame": (
        1, "acknowledged", edit(Serving, "_accept", (
            "lsns_of(entry), False", "[lsn for each in entries for lsn in lsns_of(each)], False"))),
    "more names than there may be": (
        1, "sessions", edit(SessionTable, "judge_open", (
            "session is None and self.names >= self.settings.names_max", "False"))),
}


@pytest.mark.pure
@pytest.mark.parametrize("what", some(CASES))
def test_it_is_seen(what: str) -> None:
    first, invariant, patch = CASES[what]
    seen: list[tuple[int, str, str]] = []
    for seed in range(first, first + WORLDS_MAX):
        with ExitStack() as stack:
            stack.enter_context(patch())
            verdict = run_world(World(Options.draw(seed, seconds=20)))
        seen += [] if verdict.ok else [(seed, verdict.invariant, verdict.detail)]
        if verdict.invariant == invariant:
            assert run_world(World(Options.draw(seed, seconds=20))).ok
            return
    pytest.fail(f"not seen in {WORLDS_MAX} worlds; only {seen}")
