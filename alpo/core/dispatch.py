"""Which part of a replica takes which input, and which messages count at all (R27).

Laws:

* What is for another incarnation than ours, or of another cluster, is answered WRONG-INCARNATION at most.
* A request is answered whatever our own list says of its sender: that list may be behind the sender's, and who counts
  is the asker's affair. Its term counts too (R1): a member that we do not know yet may lead us.
* An answer counts only from a member of our own latest list, under the incarnation listed: we asked nobody else. Not
  even its term does: a disk that was put back must not depose a leader.
* Whoever asks for a vote gets no answer from a server whose disk is damaged (R31).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import messages as m
from .handover import stop, transfer
from .inputs import (
    AppendRun,
    ChangeMember,
    ChangeSettings,
    Clean,
    Connected,
    CopyLoaded,
    DamageFound,
    Disconnected,
    DropCursor,
    DropSession,
    ImageLoaded,
    Initialise,
    Input,
    ListCursors,
    ListSessions,
    Loaded,
    OpenSession,
    Outcome,
    PeerAddress,
    Persisted,
    ReadIndex,
    Received,
    SetCursor,
    ShowSettings,
    Space,
    Stop,
    Tick,
    Transfer,
    Trim,
)
from .members import Identity, Role
from .ranks import State

if TYPE_CHECKING:
    from .replica import Replica


def _on_received(r: Replica, received: Received) -> None:
    """See the module's laws."""
    envelope = received.envelope
    message = envelope.message
    r.came_s = min(received.at_s, r.now_s)
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
    if kind in m.ANSWERS and not r.members.latest.holds(envelope.sender):
        return
    if isinstance(message, m.BasePart):
        r.installing.on_part(envelope.sender, envelope.cluster, message)
    elif r.first_start.started and kind not in m.START_ONLY and _is_out(r, envelope.sender):
        r.out.send(envelope.sender, m.Retired())
    elif not (kind in m.ASKS_FOR_VOTES and r.damage.binds):
        _MESSAGES[kind](r, envelope.sender, message)


def _is_out(r: Replica, sender: Identity) -> bool:
    """R30: is it known for good that this incarnation is no member and never will be again?"""
    member = r.members.latest.get(sender.id)
    if member is None or r.members.latest_id > r.guaranteed_id:
        return False
    if member.incarnation == sender.incarnation:
        return member.role is Role.GONE and r.leader != sender
    return sender.incarnation in member.retired


def _on_retired(r: Replica, sender: Identity, message: m.Retired) -> None:
    """Heeded from those whom our own list has, which may be old."""
    if r.first_start.started and r.members.latest.holds(sender) and not r.retired:
        r.retired = True
        r.out.event("retired", told_by=sender.id, incarnation=r.me.incarnation.hex())
        r.become_passive()


def _on_base_answer(r: Replica, sender: Identity, answer: m.BaseAnswer) -> None:
    if r.changes is not None and answer.term == r.term:
        r.changes.newcomers.on_base_answer(sender, answer)


def _change_member(r: Replica, request: ChangeMember) -> None:
    if r.changes is None or not r.serving.serves:
        r.serving.not_leader(request.origin)
    else:
        r.changes.request(request)


def _on_image(r: Replica, each: ImageLoaded) -> None:
    if r.changes is not None:
        r.changes.newcomers.on_image(each.peer, each.image)


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
    if r.changes is not None:
        r.changes.addresses_changed = True


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
    m.BaseAnswer: _on_base_answer,
    m.Retired: _on_retired,
    m.CopyRequest: lambda r, sender, message: r.damage.on_request(sender, message),
    m.CopyAnswer: lambda r, sender, message: r.damage.on_answer(sender, message),
    m.WentBack: lambda r, sender, message: r.acceptance.on_went_back(sender, message),
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
    Trim: lambda r, each: r.cleaning.trim(each),
    Clean: lambda r, each: r.cleaning.clean(each),
    Space: lambda r, each: r.disks.heard(each),
    DamageFound: lambda r, each: r.damage.heard(each),
    CopyLoaded: lambda r, each: r.damage.loaded(each),
    ListSessions: lambda r, each: r.reads.ask(each),
    ReadIndex: lambda r, each: r.reads.ask(each),
    Outcome: lambda r, each: r.reads.ask(each),
    ShowSettings: lambda r, each: r.reads.ask(each),
    ChangeSettings: lambda r, each: r.reads.ask(each),
    SetCursor: lambda r, each: r.reads.ask(each),
    DropCursor: lambda r, each: r.reads.ask(each),
    ListCursors: lambda r, each: r.reads.ask(each),
    Initialise: lambda r, each: r.first_start.initialise(each.origin),
    ChangeMember: _change_member,
    Transfer: transfer,
    ImageLoaded: _on_image,
    Stop: lambda r, each: stop(r),
    Tick: lambda r, each: None,
}


_MAY_WAIT = frozenset((Persisted, Received))


def can_wait(r: Replica, item: Input) -> bool:
    """Would a step for this alone move nothing that anybody waits for? Then it may come with the next inputs.

    What may move the guaranteed mark together with something else that waits is never among it.
    """
    if type(item) not in _MAY_WAIT or r.handing is not None or r.reads.waiting or not r.out.hard_durable:
        return False
    if type(item) is Persisted:
        if r.log.writing_bytes > r.cfg.peer_inflight_bytes_max:
            return False  # clients may wait for our disk
        stable_id = r.log.stable_after(item.number)
        if r.leadership is not None:
            return r.leadership.mark_with(stable_id) <= r.guaranteed_id
        return r.state is State.PASSIVE and r.guaranteed_id <= r.log.stable_id
    if type(item) is Received and r.leadership is not None:
        return r.leadership.can_wait(item.envelope.sender, item.envelope.message)
    return False
