"""Which part of a replica takes which input, and which messages count at all (R27)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import messages as m
from .handover import Handing
from .inputs import (
    AppendRun,
    Connected,
    Disconnected,
    DropSession,
    Initialise,
    ListSessions,
    Loaded,
    OpenSession,
    PeerAddress,
    Persisted,
    ReadIndex,
    Received,
    Stop,
    Tick,
)
from .members import Identity
from .state import State

if TYPE_CHECKING:
    from .replica import Replica


def _on_received(r: Replica, received: Received) -> None:
    """R27: what comes from or for another incarnation, or of another cluster, counts for nothing."""
    envelope = received.envelope
    message = envelope.message
    kind = type(message)
    if envelope.target.id != r.me.id:
        return
    if envelope.target.incarnation != r.me.incarnation:
        if envelope.target.incarnation or kind not in m.START_ONLY:
            if kind is not m.WrongIncarnation:
                r.out.send(envelope.sender, m.WrongIncarnation(envelope.target.incarnation))
            return
    if kind not in m.START_ONLY and (not r.first_start.started or envelope.cluster != r.cluster):
        return
    _MESSAGES[kind](r, envelope.sender, message)


def _on_wrong_incarnation(r: Replica, sender: Identity, message: m.WrongIncarnation) -> None:
    """The member that we address has another disk than the one that is listed."""
    listed = r.members.latest.get(sender.id)
    if listed is not None and listed.incarnation != sender.incarnation:
        if r.wrong_incarnations.get(sender.id) != sender.incarnation:
            r.wrong_incarnations[sender.id] = sender.incarnation
            r.out.event("wrong_incarnation", member=sender.id, answers_as=sender.incarnation.hex())


def _on_append_answer(r: Replica, sender: Identity, answer: m.AppendAnswer) -> None:
    if answer.term > r.term:
        r.adopt_term(answer.term)
    elif r.leadership is not None:
        r.leadership.on_answer(sender, answer)


def _on_connected(r: Replica, each: Connected) -> None:
    r.connected[each.peer] = True
    if r.leadership is not None:
        r.leadership.connected(each.peer)


def _on_disconnected(r: Replica, each: Disconnected) -> None:
    r.connected.pop(each.peer, None)


def _on_peer_address(r: Replica, each: PeerAddress) -> None:
    who = Identity(each.peer, each.incarnation)
    if r.members.latest.holds(who):  # anybody may say hello
        r.seen_addresses[who] = each.address
    r.addresses_changed = True


def _on_persisted(r: Replica, each: Persisted) -> None:
    r.out.persisted = max(r.out.persisted, each.number)
    r.log.persisted(each.number)
    r.first_start.persisted(each.number)
    if r.out.hard_durable and r.state is State.CANDIDATE:
        r.election.own_vote_durable()
    if r.leadership is not None:
        r.leadership.count()


def _on_loaded(r: Replica, each: Loaded) -> None:
    if r.leadership is not None:
        r.leadership.on_loaded(each.peer, each.generation, each.entries)


def _on_stop(r: Replica, each: Stop) -> None:
    if r.handing is None:
        r.handing = Handing(r)


_MESSAGES: dict[type, Callable[[Replica, Identity, Any], None]] = {
    m.CanvassRequest: lambda r, sender, message: r.election.on_canvass_request(sender, message),
    m.CanvassAnswer: lambda r, sender, message: r.election.on_canvass_answer(sender, message),
    m.VoteRequest: lambda r, sender, message: r.election.on_vote_request(sender, message),
    m.VoteAnswer: lambda r, sender, message: r.election.on_vote_answer(sender, message),
    m.DeferRequest: lambda r, sender, message: r.election.on_defer_request(sender, message),
    m.DeferAnswer: lambda r, sender, message: r.election.on_defer_answer(sender, message),
    m.HandOver: lambda r, sender, message: r.election.on_hand_over(sender, message),
    m.AppendRequest: lambda r, sender, message: r.acceptance.on_request(sender, message),
    m.AppendAnswer: _on_append_answer,
    m.WrongIncarnation: _on_wrong_incarnation,
    m.StartQuestion: lambda r, sender, message: r.first_start.on_question(sender, message),
    m.StartAnswer: lambda r, sender, message: r.first_start.on_answer(sender, message),
}

INPUTS: dict[type, Callable[[Replica, Any], None]] = {
    AppendRun: lambda r, each: r.serving.append_run(each),
    Received: _on_received,
    Persisted: _on_persisted,
    Loaded: _on_loaded,
    Connected: _on_connected,
    Disconnected: _on_disconnected,
    PeerAddress: _on_peer_address,
    OpenSession: lambda r, each: r.serving.open_session(each),
    DropSession: lambda r, each: r.serving.drop_session(each),
    ListSessions: lambda r, each: r.serving.list_sessions(each),
    ReadIndex: lambda r, each: r.reads.ask(each.origin),
    Initialise: lambda r, each: r.first_start.initialise(each.origin),
    Stop: _on_stop,
    Tick: lambda r, each: None,
}
