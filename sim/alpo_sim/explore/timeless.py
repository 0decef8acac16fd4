"""Replicas without time: clocks stand still, and every effect of time is an action of its own.

Laws:

* Every step happens at `NOW_S`. After it `stop_clocks` puts every deadline out of reach and makes every remembered time
  either fresh or none. So two replicas that differ only in when things happened are equal.
* Each `Timer` may run out at any moment, in any order between servers: more than real clocks allow, never less. One
  fact is taken from real time: when its election timer runs out, a server has heard no leader for longer than it takes
  one for live (T + k·d > T - h, and hearing a leader restarts the timer).
* A server may cease to take its leader for live just before any message to which that matters; doing so earlier would
  make no difference. So that is no action of its own, but a second way to take such a message.
* Numbers of writes are counted from the last one that is durable: only their order matters.
"""

from __future__ import annotations

import random
from collections import deque
from enum import IntEnum
from typing import Any

from alpo.core.ranks import State
from alpo.core.replica import Replica

from ..host import Host

NOW_S = 1000.0  # reading of a host's monotonic clock at virtual time 0
NEVER_S = float("inf")
LATER_S = 1e12


class Middle(random.Random):
    """Random generator that always gives 0.5: random numbers only spread deadlines, and there are none."""

    def random(self) -> float:
        return 0.5


MIDDLE = Middle(0)


class Timer(IntEnum):
    """Timer of a server that may run out."""

    QUESTION = 1  # R29: it asks the others again
    CANVASS = 2  # an election timer or a canvass round has run out
    ASK_AGAIN = 3  # R3: a candidate asks the silent again
    CYCLE = 4  # R9: a candidacy without result ends
    HEARTBEAT = 5
    MARKS = 6  # R16: a mark that moved leaves by itself
    PROBE = 7  # R17: too long without an answer; a leader asks all peers again where they stand
    SILENCE = 8  # R15: a leader has not heard a majority
    DISK = 10  # R34: a write is under way for longer than the server waits for its disk
    TRANSFER = 9  # R27: the state for a newcomer was not on disk yet; a leader looks again


def timers(r: Replica) -> list[Timer]:
    """The timers that may run out on this server now."""
    if not r.first_start.started:
        return [Timer.QUESTION]
    if r.leadership is not None:
        due = [Timer.HEARTBEAT, Timer.SILENCE]
        if r.leadership.marks_due_s != NEVER_S:
            due.append(Timer.MARKS)
        if any(peer.in_flight for peer in r.leadership.peers.values()):
            due.append(Timer.PROBE)
        if r.changes is not None and any(not each.head for each in r.changes.newcomers.transfers.values()):
            due.append(Timer.TRANSFER)
        if r.log.oldest_write() is not None:
            due.append(Timer.DISK)
        return due
    if r.state is State.CANDIDATE:
        return [Timer.ASK_AGAIN, Timer.CYCLE]
    return [Timer.CANVASS] if r.may_stand else []


def run_out(r: Replica, timer: Timer) -> None:
    """Make ``timer`` due, for the next step."""
    if timer is Timer.QUESTION:
        r.first_start.ask_again_s = NOW_S
    elif timer is Timer.CANVASS:
        r.heard_s = None
        r.election.timer_s = NOW_S
        if r.election.round is not None:
            r.election.round.ends_s = NOW_S
    elif timer in (Timer.ASK_AGAIN, Timer.CYCLE):
        assert r.election.cycle is not None
        r.election.cycle.ask_again_s = NOW_S
        if timer is Timer.CYCLE:
            r.election.cycle.ends_s = NOW_S
    else:
        _leaders_timer(r, timer)


def _leaders_timer(r: Replica, timer: Timer) -> None:
    assert r.leadership is not None
    if timer is Timer.MARKS:
        r.leadership.marks_due_s = NOW_S
        return
    if timer is Timer.DISK:
        for write in r.log.writes:
            write.handed_s = -LATER_S
        return
    if timer is Timer.TRANSFER:
        assert r.changes is not None
        for sending in r.changes.newcomers.transfers.values():
            sending.sent_s = -LATER_S
        return
    for peer in r.leadership.peers.values():
        if timer is Timer.SILENCE:
            peer.heard_s = peer.sending_s = -LATER_S
        else:
            peer.asked_s = -LATER_S
        if timer is Timer.PROBE and peer.in_flight:
            peer.waiting_since_s = -LATER_S
            peer.last_id = 0  # else the peer would be left alone as a server with a slow disk


def fall_silent(r: Replica, peer: int) -> None:
    """Make a leader miss ``peer``, as after two heartbeat intervals; with the next step it asks who is there."""
    assert r.leadership is not None and r.changes is not None
    silent = r.leadership.peers[peer]
    silent.heard_s = silent.sending_s = -LATER_S
    r.changes.newcomers.ask_again_s = NOW_S


def stop_clocks(host: Host) -> None:
    """Put all deadlines out of reach and make remembered times fresh or none; to be called after steps and boots."""
    r = host.replica
    assert r is not None
    r.out.begin()  # the step's output has been taken
    r.now_s = NOW_S
    if r.heard_s is not None:
        r.heard_s = NOW_S
    election = r.election
    election.timer_s = NEVER_S
    if election.round is not None:
        election.round.ends_s = NEVER_S
    if election.cycle is not None:
        election.cycle.ends_s = election.cycle.ask_again_s = NEVER_S
    r.first_start.ask_again_s = NEVER_S
    r.disks.slow_since_s = None
    for write in r.log.writes:
        write.handed_s = NOW_S
    leadership = r.leadership
    if leadership is not None:
        leadership.began_s = leadership.quiet_until_s = NOW_S
        if leadership.marks_due_s != NEVER_S:
            leadership.marks_due_s = LATER_S
        for peer in leadership.peers.values():
            peer.asked_s = peer.waiting_since_s = NOW_S
            if peer.heard_s > -LATER_S:
                peer.heard_s = NOW_S
            peer.sending_s = peer.heard_s
    if r.changes is not None:
        for sending in r.changes.newcomers.transfers.values():
            sending.asked_s = sending.sent_s = NOW_S
    if r.out.persisted:
        _count_writes_from(host, r.out.persisted)


def _count_writes_from(host: Host, zero: int) -> None:
    r: Any = host.replica
    r.out.number -= zero
    r.out.persisted = r.watch.persisted = 0
    r.out.hard_number = max(0, r.out.hard_number - zero)
    if r.first_start.write_number:
        r.first_start.write_number -= zero
    for write in r.log.writes:
        write.number -= zero
    host.writes = deque(write._replace(number=write.number - zero) for write in host.writes)
    host.waiting = deque((number - zero, envelopes) for number, envelopes in host.waiting)
