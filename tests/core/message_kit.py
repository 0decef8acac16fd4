"""Messages of every type, as a leader or a member sends them to a sound follower, and such as come late."""

from __future__ import annotations

from alpo.core import messages as m
from alpo.core.members import StartStatus
from alpo.core.replica import Replica


def messages(leader: Replica) -> list[m.Message]:
    """Messages to a follower of ``leader``: one of each type, and one of each case that a request has for it."""
    term, rank, last_id = leader.term, leader.rank, leader.log.last_id
    last = leader.log.entry(last_id)
    assert last is not None
    marks = (leader.guaranteed_id, 0)
    return [
        *(m.CanvassRequest(of, 1, rank, again) for of in (term, term + 1) for again in (False, True)),
        *(m.VoteRequest(of, rank, handed) for of in (term - 1, term, term + 1) for handed in (False, True)),
        *(m.DeferRequest(of, rank) for of in (term - 1, term, term + 1)),
        m.AppendRequest(term, last_id, last.term, *marks, 1, []),
        m.AppendRequest(term, last_id - 1, leader.log.term_at(last_id - 1) or 0, *marks, 0, [last]),
        m.AppendRequest(term, last_id + 5, term, *marks, 1, []),
        m.AppendRequest(term - 1, last_id, last.term, *marks, 1, []),
        m.AppendRequest(term, last_id, last.term, *marks, 0, []),  # the marks alone
        m.HandOver(term - 1),
        m.StartQuestion(1, b"d" * 32),
        m.SnapshotPart(term, 1, 1, 3, "", ()),
        m.WentBack(term, last_id),
        m.CopyRequest(1, leader.log.term_at(1) or 0),
        m.CopyRequest(last_id + 5, term),
        m.CanvassAnswer(term, 1, m.Canvass.YES),
        m.VoteAnswer(term, term, m.Vote.GRANTED, 0, None, 0),
        m.DeferAnswer(term, term, m.Defer.STALE),
        m.AppendAnswer(term, True, last_id, last_id, last_id, 0, 0, 1, 0, False),
        m.WrongIncarnation(b"i" * 16),
        m.StartAnswer(1, StartStatus.EMPTY, b"d" * 32, (), b"", "", ""),
        m.SnapshotAnswer(term, 1, 1, 0),
        m.Retired(),
        m.CopyAnswer(1, 0, []),
    ]
