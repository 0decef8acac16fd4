"""What of a server's state the checks between servers look at."""

from __future__ import annotations

from typing import Any, NamedTuple

from alpo.core.entries import Entry
from alpo.core.members import Identity, StartStatus
from alpo.core.ranks import State

from ..broken import Broken
from ..host import Host
from .canon import digest, tree
from .timeless import MIDDLE

#: (term, checksum) of every entry, from id 1 on.
Entries = tuple[tuple[int, int], ...]


class Facts(NamedTuple):
    """``term``: ``own_term``, or the one that it canvasses for. ``leads``: the term that it leads, or 0.
    ``start``: a digest of how far its first start is. ``cluster``: b"" until started. ``table``: its sessions;
    ``ahead``: they came with a base, and are later than its log. ``newcomers``: questions and bases that its reign has
    sent to those who are no voters.
    """

    me: Identity
    term: int
    own_term: int
    rounds: int
    newcomers: int
    writes: int
    leads: int
    start: bytes
    cluster: bytes
    log: Entries
    disk: Entries
    guaranteed_id: int
    table: bytes
    ahead: bool


def facts_of(host: Host) -> Facts:
    r = host.replica
    assert r is not None
    store: Any = host.store
    disk: list[Entry] = store._entries
    log = []
    for id in range(1, r.log.last_id + 1):
        entry = r.log.entry(id) or disk[id - 1]
        log.append((entry.term, entry.check))
    started = r.first_start.state.status is StartStatus.STARTED
    return Facts(
        r.me, r.term + (r.election.round is not None), r.term, r.election._round_number,
        r.changes.newcomers._number - int(MIDDLE.random() * (1 << 40)) if r.changes is not None else 0,
        len(host.writes), r.term if r.state is State.LEADER else 0,
        digest((tree(r.first_start.state), r.first_start._number, r.first_start.commanded, len(host.writes))),
        r.first_start.state.cluster if started else b"",
        tuple(log), tuple([(entry.term, entry.check) for entry in disk]), r.guaranteed_id,
        digest(tree(r.sessions.state())), r.applied_id > r.log.last_id,
    )


def check_alone(host: Host) -> None:
    """What a state of one server must never be. Raises `Broken`."""
    r = host.replica
    assert r is not None
    if not r.first_start.started and (r.term or r.vote or r.log.last_id):
        raise Broken("started first", f"server {host.id} is not started: term {r.term}, vote {r.vote}, log ends at "
                     f"{r.log.last_id}")
