"""Check that what is still on its way is not sent again (R17)."""

from __future__ import annotations

from collections.abc import Sequence

from alpo.core.messages import AppendAnswer, AppendRequest, Envelope, SnapshotAnswer
from alpo.core.ready import Connected, Disconnected, Input, Moving, Ready, Received

from ..broken import Broken
from ..host import Host
from ..stage import Stage, Watcher

#: Part of an election timeout within which bytes must have moved: clocks run at different rates.
_RECENT = 0.9


class _Told:
    """Record of what one leader has sent one peer, over one connection, in one reign."""

    def __init__(self, term: int, boots: int, base_id: int, now_us: int) -> None:
        self.reign = term, boots, base_id
        self.last_id = 0
        self.moved_us = now_us  # time when bytes last moved, or nothing was in flight
        self.moves = False  # bytes have moved since nothing was in flight


class ResendChecks(Watcher):
    """Check *sent once*: entries that a leader has sent, and of which bytes still leave, are not sent a second time.

    A connection that is made anew or stood still for an election timeout, a refusal, a snapshot and a cleaning are
    reasons to begin again.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._told: dict[tuple[int, int], _Told] = {}

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        for each in inputs:
            if isinstance(each, Connected | Disconnected):
                self._told.pop((host.id, each.peer), None)
            elif isinstance(each, Moving) and not each.incoming:
                pair = host.id, each.who.id
                told = self._told.get(pair)
                if told is not None and self._stands(told):  # entries sent may count as lost; the link moves again
                    told = self._told[pair] = _Told(*told.reign, self._stage.now_us)
                if told is not None:
                    told.moved_us, told.moves = self._stage.now_us, True
            elif isinstance(each, Received):
                message = each.envelope.message
                if isinstance(message, SnapshotAnswer) or (isinstance(message, AppendAnswer) and not message.ok):
                    self._told.pop((host.id, each.envelope.sender.id), None)

    def sent(self, host: Host, envelope: Envelope) -> None:
        message = envelope.message
        if not isinstance(message, AppendRequest) or not message.entries:
            return
        pair, replica = (host.id, envelope.target.id), host.running
        told, reign = self._told.get(pair), (message.term, host.boots, replica.log.base_id)
        if told is None or told.reign[:2] != reign[:2]:
            told = self._told[pair] = _Told(*reign, self._stage.now_us)
        elif told.reign != reign or self._stands(told):  # neither means that what is in flight has moved
            told = self._told[pair] = _Told(*reign, told.moved_us)
        if told.moves and message.entries[0].id <= told.last_id:
            what = f"entry {message.entries[0].id} to {envelope.target.id}"
            raise Broken("sent once", f"server {host.id} sends {what} again while it is still on its way")
        leadership = replica.leadership
        if leadership is not None and len(leadership.peers[pair[1]].in_flight) == 1:
            told.moved_us, told.moves = self._stage.now_us, False
        told.last_id = max(told.last_id, message.entries[-1].id)

    def _stands(self, told: _Told) -> bool:
        """True if nothing has moved for so long that what is in flight may count as lost."""
        return self._stage.now_us - told.moved_us >= self._stage.timers.election_timeout_s * _RECENT * 1e6
