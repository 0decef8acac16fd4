"""Checks of a history of appends and reads against the log that it left behind.

A log has one order, so linearizability needs no search: an append that succeeded happened at its LSN, a linearizable
read between the LSN where it ended and the next one, and it remains to see that these places agree with real time
(every pair of operations of which one ended before the other began), which a sweep over time sees in O(n log n). An
append whose outcome nobody learnt and that is in the log has a place and a beginning, but no end.

Every checker returns the violations it found, one line each; the property of its docstring holds if the list is empty.
Times are seconds of one clock; LSNs count from 1.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from alpo.core.entries import Kind


class Outcome(Enum):
    """Final outcome of an append, as its client learnt it."""

    ACKNOWLEDGED = "acknowledged"
    UNKNOWN = "unknown"
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class Append:
    """One append of a payload that no other has. ``lsn`` 0: unknown; ``ended_s``: when the outcome was learnt."""

    client: str
    number: int
    payload: bytes
    began_s: float
    ended_s: float = math.inf
    outcome: Outcome = Outcome.UNKNOWN
    lsn: int = 0
    error: str = ""


class Read(NamedTuple):
    """One linearizable read that was answered: the log ended at ``end_lsn`` (0: empty); ``payloads`` by LSN."""

    began_s: float
    ended_s: float
    end_lsn: int
    payloads: dict[int, bytes]


class Logged(NamedTuple):
    """One payload of the log."""

    lsn: int
    client: str
    serial: int
    payload: bytes


def gaps(log: Sequence[Logged]) -> list[str]:
    """LSNs are 1, 2, 3 …"""
    found = [
        f"LSN {logged.lsn} stands where {expected} belongs"
        for expected, logged in enumerate(log, 1) if logged.lsn != expected
    ]
    return found[:1]  # the rest follows from the first


def lost(appends: Iterable[Append], log: Sequence[Logged]) -> list[str]:
    """Every acknowledged payload is in the log, at the LSN that the client received."""
    places = _places(log)
    found = []
    for append in appends:
        if append.outcome is Outcome.ACKNOWLEDGED:
            place = places.get(append.payload)
            if place is None:
                found.append(f"{append.payload!r}, acknowledged at LSN {append.lsn}, is not in the log")
            elif append.lsn and place != append.lsn:
                found.append(f"{append.payload!r}, acknowledged at LSN {append.lsn}, is at {place}")
    return found


def doubled(log: Iterable[Logged]) -> list[str]:
    """No payload is in the log twice."""
    counts = Counter(logged.payload for logged in log)
    return [f"{payload!r} is in the log {count} times" for payload, count in counts.items() if count > 1]


def refused(appends: Iterable[Append], log: Sequence[Logged]) -> list[str]:
    """No payload that was refused for good is in the log."""
    places = _places(log)
    return [
        f"{append.payload!r}, refused ({append.error}), is in the log at LSN {places[append.payload]}"
        for append in appends if append.outcome is Outcome.REFUSED and append.payload in places
    ]


def foreign(appends: Iterable[Append], log: Iterable[Logged]) -> list[str]:
    """Every payload in the log was appended, and by the client that the log names for it."""
    senders = {append.payload: append.client for append in appends}
    return [
        f"{logged.payload!r} at LSN {logged.lsn}, under {logged.client!r}, is of {senders.get(logged.payload)!r}"
        for logged in log if senders.get(logged.payload) != logged.client
    ]


def disordered(appends: Iterable[Append], log: Iterable[Logged]) -> list[str]:
    """Each client's serials, and its own numbers, go up along the log (R23)."""
    numbers = {append.payload: append.number for append in appends}
    last: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    found = []
    for logged in log:
        serial, number = last[logged.client]
        mine = (logged.serial, numbers.get(logged.payload, number + 1))
        if mine[0] <= serial or mine[1] <= number:
            found.append(
                f"{logged.client!r} has serial {mine[0]} (its number {mine[1]}) at LSN {logged.lsn}, after serial"
                f" {serial} (number {number})"
            )
        last[logged.client] = mine
    return found


def stale(appends: Iterable[Append], reads: Iterable[Read], log: Sequence[Logged]) -> list[str]:
    """Real time: an operation that began after another had ended stands after it in the log, or sees it."""
    places = _places(log)
    begins: list[tuple[float, bool, int, str]] = []
    ends: list[tuple[float, int, str]] = []
    for append in appends:
        lsn = places.get(append.payload, 0)
        if lsn and append.outcome is not Outcome.REFUSED:
            begins.append((append.began_s, True, lsn, f"append of {append.payload!r} (LSN {lsn})"))
            if append.outcome is Outcome.ACKNOWLEDGED:
                ends.append((append.ended_s, lsn, f"append of {append.payload!r} (LSN {lsn})"))
    for read in reads:
        begins.append((read.began_s, False, read.end_lsn, f"read that saw LSN {read.end_lsn} as the end"))
        ends.append((read.ended_s, read.end_lsn, f"read that saw LSN {read.end_lsn} as the end"))
    begins.sort()
    ends.sort()
    found = []
    highest, what, at = 0, "", 0
    for began_s, is_append, lsn, description in begins:
        while at < len(ends) and ends[at][0] < began_s:  # those that only touch are concurrent
            if ends[at][1] > highest:
                highest, what = ends[at][1], ends[at][2]
            at += 1
        if lsn < highest or (is_append and lsn == highest):
            found.append(f"{description} began after {what} had ended")
    return found


def misread(reads: Iterable[Read], log: Sequence[Logged]) -> list[str]:
    """Every read returned payloads that the log holds at their LSNs, none beyond the end that the read saw."""
    payloads = {logged.lsn: logged.payload for logged in log}
    found = []
    for read in reads:
        for lsn, payload in read.payloads.items():
            if lsn > read.end_lsn or payloads.get(lsn) != payload:
                found.append(f"a read up to {read.end_lsn} returned {payload!r} at LSN {lsn}: {payloads.get(lsn)!r}")
    return found


def unequal(logs: Mapping[int, Sequence[Any]]) -> list[str]:
    """All servers' logs, given by server id, are equal. Leadership changes at the end may be missing: a leader that is
    stopped hands over, and others stop at that moment."""
    (first_id, first), *others = sorted(logs.items())
    found = []
    for id, log in others:
        longer, both = max(first, log, key=len), min(len(first), len(log))
        if any(getattr(entry, "kind", None) != Kind.LEADER for entry in longer[both:]):
            found.append(f"server {id} holds {len(log)} entries, server {first_id} {len(first)}")
        differing = next((at for at, pair in enumerate(zip(first, log, strict=False)) if pair[0] != pair[1]), None)
        if differing is not None:
            found.append(f"servers {first_id} and {id} differ: {first[differing]!r}, {log[differing]!r}")
    return found


def everything(appends: Sequence[Append], reads: Sequence[Read], log: Sequence[Logged]) -> dict[str, list[str]]:
    """Every checker of one history against one log, by what it is called in the report."""
    return {
        "gaps": gaps(log),
        "lost": lost(appends, log),
        "doubled": doubled(log),
        "refused but there": refused(appends, log),
        "foreign": foreign(appends, log),
        "out of order": disordered(appends, log),
        "stale": stale(appends, reads, log),
        "misread": misread(reads, log),
    }


def _places(log: Iterable[Logged]) -> dict[bytes, int]:
    return {logged.payload: logged.lsn for logged in log}
