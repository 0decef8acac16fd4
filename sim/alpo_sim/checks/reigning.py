"""How a reign ends: a leader that no majority answers steps down (R15), and nobody is left waiting for it (R24, R25).

Laws:

* Who answered when is an account of our own, by the leader's own monotonic clock, as R15 counts it.
* A request waits from when a leader took it until so many replies to it have left as it needs. What dies with its
  process, its connection tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from alpo.core.disk import Write
from alpo.core.inputs import (
    AppendRun,
    ChangeMember,
    ChangeSettings,
    DropCursor,
    DropSession,
    Input,
    ListCursors,
    ListSessions,
    OpenSession,
    Origin,
    Outcome,
    ReadIndex,
    Received,
    SetCursor,
    ShowSettings,
    Trim,
)
from alpo.core.members import Identity
from alpo.core.messages import AppendAnswer, BaseAnswer, Envelope
from alpo.core.ranks import State
from alpo.core.ready import Appended, Ready, Refused, Reply
from alpo.core.replica import Replica

from ..broken import Broken
from ..host import Host

if TYPE_CHECKING:
    from ..stage import Stage

_ASKED = frozenset((
    AppendRun, ChangeMember, ChangeSettings, DropCursor, DropSession, ListCursors, ListSessions, OpenSession, Outcome,
    ReadIndex, SetCursor, ShowSettings, Trim,
))
#: Clocks are read once a step, in floating point.
_SLACK_S = 1e-6


class Reigning:
    """One watcher for all servers."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._reign: dict[int, int] = {}  # server -> the term that it led after its last step
        self._heard_s: dict[int, dict[Identity, float]] = {}  # leader -> voter -> when it answered last
        self._waiting: dict[int, dict[Origin, int]] = {}  # server -> what it was asked -> replies that are missing

    def booted(self, host: Host) -> None:
        self._reign[host.id] = 0
        self._waiting[host.id] = {}

    def sent(self, host: Host, envelope: Envelope) -> None:
        return

    def committing(self, host: Host, writes: Sequence[Write]) -> None:
        return

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        replica = host.replica
        assert replica is not None
        waiting = self._waiting[host.id]
        for each in inputs:
            if type(each) in _ASKED:
                asked: Any = each
                waiting[asked.origin] = waiting.get(asked.origin, 0) + (
                    len(asked.bodies) if type(each) is AppendRun else 1
                )
        for reply in ready.replies:
            self._replied(waiting, reply)
        if replica.state is State.LEADER:
            self._leads(host, replica, inputs)
            if not replica.members.i_vote and replica.members.latest_id <= replica.guaranteed_id:
                raise Broken("steps down", f"server {host.id} leads term {replica.term}, and is no member any more")
        else:
            self._reign[host.id] = 0
            if waiting:
                raise Broken("answered", f"server {host.id} does not lead, and has not answered {next(iter(waiting))}")

    @staticmethod
    def _replied(waiting: dict[Origin, int], reply: Reply) -> None:
        done = len(reply.lsns) if isinstance(reply, Appended) else reply.count if isinstance(reply, Refused) else 1
        left = waiting.get(reply.origin, 0) - max(1, done)
        if left > 0:
            waiting[reply.origin] = left
        else:
            waiting.pop(reply.origin, None)

    def _leads(self, host: Host, replica: Replica, inputs: Sequence[Input]) -> None:
        now_s = host.mono_s(self._stage.now_us)
        if self._reign[host.id] != replica.term:
            self._reign[host.id] = replica.term
            self._heard_s[host.id] = {}
        heard_s = self._heard_s[host.id]
        for each in inputs:
            if type(each) is Received and isinstance(each.envelope.message, AppendAnswer | BaseAnswer):
                if each.envelope.message.term == replica.term:
                    heard_s[each.envelope.sender] = each.at_s
        self._check_heard(host, replica, heard_s, now_s)

    @staticmethod
    def _check_heard(host: Host, replica: Replica, heard_s: dict[Identity, float], now_s: float) -> None:
        members = replica.members.latest
        # A voter counts as heard when the reign, or its own membership, begins.
        since_s = now_s - replica.cfg.election_timeout_s - _SLACK_S
        count = sum(v.identity == replica.me or heard_s.setdefault(v.identity, now_s) > since_s for v in members.voters)
        if count < members.majority:
            raise Broken("steps down", f"server {host.id} leads term {replica.term}, and has heard from {count} of "
                         f"{len(members.voters)} within an election timeout")
