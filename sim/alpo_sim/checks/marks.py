"""Checks of servers' marks and leaders' bounds against disks and clocks (R17, R18, R25, R26)."""

from __future__ import annotations

from collections.abc import Sequence

from alpo.core.entries import Entry, Kind
from alpo.core.ready import Input, Ready
from alpo.core.replica import Replica
from alpo.core.replication import REQUESTS_MAX
from alpo.core.requests import ReadAt

from ..host import WALL_ZERO_MS, Host
from ..stage import Stage, Watcher
from . import Broken
from .safety import Safety, list_before
from .sends import SendChecks

_DATA, _MEMBERS = int(Kind.DATA), int(Kind.MEMBERS)
#: Share by which monotonic clocks, which carry wall clocks forward, may run too fast since the beginning.
DRIFT_MAX = 0.1
CLOCK_SLACK_MS = 1000
#: Part of real time by which the time of a log goes on at least, though it is ahead of the clocks.
SLOW = 0.5


class MarkChecks(Watcher):
    """Checks of the marks for readers and of full replication, of bytes in flight, and of entries' times."""

    def __init__(self, stage: Stage, safety: Safety) -> None:
        self._stage, self._safety = stage, safety
        self._offset_ms: dict[int, int] = {}  # server -> the furthest ahead that its wall clock ever was
        self._fully_id = 0  # all entries up to this id were found on all disks
        #: The latest time that some entry had, in ms, less `SLOW` of the time that had passed since the beginning.
        self._line_ms = 0.0
        # leader -> term and time in ms of its last entry, and when it was made, by its monotonic clock in s
        self._last: dict[int, tuple[int, int, float]] = {}

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        replica = host.running
        self._offset_ms[host.id] = max(host.wall_offset_ms, self._offset_ms.get(host.id, host.wall_offset_ms))
        self._check_readable(host, replica, ready)
        if replica.fully_replicated_id > replica.guaranteed_id:
            raise Broken("fully replicated", f"server {host.id} calls entry {replica.fully_replicated_id} fully "
                         f"replicated, and {replica.guaranteed_id} is guaranteed")
        if replica.fully_replicated_id > self._fully_id:
            self._check_fully_replicated(host, replica, ready)
        if replica.leadership is not None:
            self._check_window(host, replica)
            if ready.write is not None and ready.write.entries:
                self._check_in_flight(host, replica)
                for entry in ready.write.entries:
                    if entry.term == replica.term:
                        self._check_appended(host, replica, entry)

    def _check_readable(self, host: Host, replica: Replica, ready: Ready) -> None:
        readable = replica.readable_id
        if readable > replica.guaranteed_id:
            raise Broken("one log", f"server {host.id} shows readers entry {readable}; {replica.guaranteed_id} is "
                         f"guaranteed")
        if readable > host.disk_last_id:
            SendChecks.too_soon(host, f"readers to entry {readable}")
        for reply in ready.replies:
            if type(reply) is ReadAt and reply.id > replica.guaranteed_id:
                raise Broken("one log", f"leader {host.id} tells readers to see entry {reply.id}; "
                             f"{replica.guaranteed_id} is guaranteed")

    def _check_fully_replicated(self, host: Host, replica: Replica, ready: Ready) -> None:
        """Check that the entry of the mark is on the disks of all members of the list in force; while that list is not
        guaranteed, of the list before it too."""
        mark, guaranteed = replica.fully_replicated_id, self._safety.guaranteed
        term = guaranteed[mark - 1].term if mark <= len(guaranteed) else 0
        last_id, members = list_before(host, ready)
        lists = [members] if last_id <= replica.guaranteed_id else [members, replica.members.at(last_id - 1)[1]]
        for member in [member for each in lists for member in each.replicas]:
            if not term or self._safety.disk_term_at(member.identity, mark) != term:
                raise Broken("fully replicated", f"server {host.id} calls entry {mark} fully replicated; server "
                             f"{member.id} does not have it")
        self._fully_id = mark

    def _check_window(self, host: Host, replica: Replica) -> None:
        assert replica.leadership is not None
        for peer in replica.leadership.peers.values():
            flying = peer.in_flight
            if flying and (
                len(flying) > REQUESTS_MAX
                or peer.in_flight_bytes - flying[-1][1] >= replica.cfg.peer_inflight_bytes_max
            ):
                raise Broken("bounds", f"leader {host.id} has {len(flying)} requests of {peer.in_flight_bytes} bytes "
                             f"in flight to {peer.who.id}")

    def _check_in_flight(self, host: Host, replica: Replica) -> None:
        assert replica.leadership is not None
        size_bytes = 0
        for id in range(max(replica.guaranteed_id + 1, replica.leadership.first_id), replica.last_id + 1):
            entry = replica.log.entry(id)
            if entry is not None and entry.kind == _DATA:
                size_bytes += len(entry.body)
        if replica.inflight_bytes < size_bytes:
            raise Broken("bounds", f"leader {host.id} counts {replica.inflight_bytes} bytes in flight; there are "
                         f"{size_bytes}")

    def _check_appended(self, host: Host, replica: Replica, entry: Entry) -> None:
        assert replica.leadership is not None
        self._check_time(host, replica, entry)
        if entry.kind == _MEMBERS:
            last_id = replica.members.at(entry.id - 1)[0]
            if max(last_id, replica.leadership.first_id) > replica.guaranteed_id:
                self._too_early(host, entry.id, max(last_id, replica.leadership.first_id))

    def _check_time(self, host: Host, replica: Replica, entry: Entry) -> None:
        """Check that an entry is no later than the clocks ever were, or, if others were ahead that vote no more, goes
        on slowly from there; and that time does not stand still, though the log is ahead of the clocks."""
        before, now_us = replica.log.entry(entry.id - 1), self._stage.now_us
        slow_ms = SLOW * now_us / 1000
        latest_ms = max(self._time_max_ms(replica, entry), self._line_ms + slow_ms * (1 + DRIFT_MAX))
        self._line_ms = max(self._line_ms, entry.time_ms - slow_ms)
        if before is not None and entry.time_ms > before.time_ms and entry.time_ms > latest_ms:
            raise Broken("entry time", f"entry {entry.id} of leader {host.id} is later than all voters' clocks but one")
        term, time_ms, at_s = self._last.get(host.id, (0, 0, 0.0))
        now_s = host.mono_s(now_us)  # some plans let it run far slower than any drift
        if term == entry.term and entry.time_ms - time_ms < SLOW * (now_s - at_s) * 1000 - 2:
            raise Broken("entry time", f"the log's time stands still: entry {entry.id} of leader {host.id}")
        self._last[host.id] = entry.term, entry.time_ms, now_s

    def _too_early(self, host: Host, id: int, waits_for_id: int) -> None:
        raise Broken("members", f"leader {host.id} appends member list {id} before entry {waits_for_id} is guaranteed")

    def _time_max_ms(self, replica: Replica, entry: Entry) -> float:
        """The latest time, ms, that an entry may have: by the furthest voter's clock but one. A leader that is about to
        leave the list counts as a voter."""
        ids = {voter.id for voter in replica.members.at(entry.id - 1)[1].voters} | {replica.me.id}
        offsets = sorted(self._offset_ms.get(id, 0) for id in ids)
        ahead_ms = offsets[-2] if len(offsets) > 1 else offsets[-1] if offsets else 0
        return WALL_ZERO_MS + self._stage.now_us / 1000 * (1 + DRIFT_MAX) + ahead_ms + CLOCK_SLACK_MS
