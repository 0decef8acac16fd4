"""The parts that only a leader has: all made when its reign begins, all dropped when it ends."""

from __future__ import annotations

from .changes import Changes
from .cleaning import Cleaning
from .damage import Damage
from .disk_space import Disks
from .first_start import FirstStart
from .messages import HandOver
from .operator_requests import OperatorRequests
from .ranks import State
from .reads import Asking, Reads
from .replication import Replication
from .requests import AppendRun
from .serving import Serving
from .shared import Shared


class Reign:
    """The parts of one reign, the time in which this server leads one term."""

    def __init__(
        self, shared: Shared, first_start: FirstStart, cleaning: Cleaning, disks: Disks, damage: Damage
    ) -> None:
        self._r = shared
        self._disks = disks
        self.replication = Replication(shared, damage)
        self.reads = Reads(shared, self.replication, self._judge)
        self.serving = Serving(shared, disks, self.replication, self.reads)
        self.changes = Changes(shared, self.replication, self.serving, self.reads, first_start)
        self.operators = OperatorRequests(
            shared, self.replication, self.serving, self.reads, self.changes, cleaning
        )

    def _judge(self, request: Asking) -> None:
        if isinstance(request, AppendRun):
            self.serving.append_confirmed(request)
        else:
            self.operators.judge(request)

    def tick(self) -> None:
        """Do what is due by time: heartbeats, and stepping down when a majority is silent (R15), which ends the
        reign."""
        self.replication.tick()

    def advance(self) -> None:
        """Do what follows from all inputs of a step together: changes, reads, handovers, then sending. May end the
        reign."""
        self.changes.advance()
        self.reads.advance()
        self._disks.advance(self.replication)
        if self._r.state is State.LEADER:
            self.replication.flush()
            self._leave_if_removed()

    def deadline_s(self) -> float:
        return min(self.replication.deadline_s(), self.changes.deadline_s())

    def _leave_if_removed(self) -> None:
        """Hand over to the best heir and become passive, once the entry that removes this leader is guaranteed
        (R27)."""
        r = self._r
        if r.members.i_vote or r.members.latest_id > r.guaranteed_id:
            return
        best = next(iter(self.replication.heirs()), None)
        if best is not None:
            r.out.send(best.who, HandOver(r.term))
        r.become_passive()

    def end(self) -> None:
        """Refuse every request that waits, as this server leads no more; each refusal tells whether the request may be
        in the log."""
        self.changes.end()
        self.serving.end()
        self.reads.end()
