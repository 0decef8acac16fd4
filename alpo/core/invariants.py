"""Invariants of one server. `check_cheap` runs after every step in production too, `check_all` in tests and simulation.

A server that breaks an invariant stops itself (rules.md#invariants).
"""

from __future__ import annotations

from .parts import Parts
from .ranks import State
from .shared import InvariantBroken


def check_cheap(r: Parts) -> None:
    """Check marks and states, against each other and against the step before. Raises `InvariantBroken`."""
    seen, log = r.watch, r.log
    if r.term < seen.term or r.guaranteed_id < seen.guaranteed_id or r.out.persisted < seen.persisted:
        raise InvariantBroken("the term, the guaranteed mark or what is on disk went back")
    if not log.base_id <= r.guaranteed_id <= log.last_id or log.stable_id > log.last_id:
        raise InvariantBroken(
            f"marks out of order: guaranteed {r.guaranteed_id}, stable {log.stable_id}, last {log.last_id}"
        )
    if r.fully_replicated_id > r.guaranteed_id:
        raise InvariantBroken("the fully replicated mark is beyond the guaranteed one (R16, R18)")
    if (r.state is State.LEADER) != (r.reign is not None) or (r.state is State.CANDIDATE) != (
        r.election.cycle is not None
    ):
        raise InvariantBroken(f"state {r.state.value} and its parts do not fit")
    if r.state is not State.PASSIVE and (r.vote != r.me.id or not r.first_start.started):
        raise InvariantBroken(f"{r.state.value} without its own vote, or before the first start (R3, R29)")
    seen.term, seen.guaranteed_id, seen.persisted = r.term, r.guaranteed_id, r.out.persisted


def check_all(r: Parts) -> None:
    """Check everything that can be checked within one server. Raises `InvariantBroken`."""
    check_cheap(r)
    log = r.log
    terms = [term for term, _ in log.runs]
    firsts = [first for _, first in log.runs]
    if terms != sorted(set(terms)) or firsts != sorted(set(firsts)):
        raise InvariantBroken(f"runs out of order: {log.runs}")
    if log.runs and (log.runs[-1][0] != log.last_term or log.last_term > r.term):
        raise InvariantBroken("the last run is not the last term, or beyond the server's term")
    before = None
    for id in range(max(log.stable_id - 4, log.base_id) + 1, log.last_id + 1):
        entry = log.entry(id)
        if entry is None:
            if id > log.stable_id:
                raise InvariantBroken(f"entry {id} is neither on disk nor in memory")
            continue
        if entry.id != id or entry.term != log.term_at(id):
            raise InvariantBroken(f"entry {id} is not where it should be")
        if before is not None and (entry.lsn != before.lsn + before.count or entry.time_ms < before.time_ms):
            raise InvariantBroken(f"entry {id} does not follow on: LSN or time")
        before = entry
    if before is not None and log.next_lsn != before.lsn + before.count:
        raise InvariantBroken("the next LSN does not follow the last entry")
    if r.reign is not None:
        for peer in r.reign.replication.peers.values():
            if not peer.match_id <= log.last_id or peer.next_id <= peer.match_id or peer.next_id > log.last_id + 1:
                raise InvariantBroken(f"progress of {peer.who.id} out of order")
