"""Dispatch: the part of a replica that takes each input, and the messages that count at all (R27).

Laws:

* A message for another incarnation of this server is answered `WrongIncarnation`, a message of another cluster not at
  all. `messages.START_ONLY` may come without an incarnation, and from any cluster.
* A request is answered even if our own list does not hold its sender: that list may be older than the sender's, and the
  sender decides whose answers count. The request's term counts too (R1): a member that we do not know yet may lead us.
* An answer about terms and the log (`messages.ANSWERS`) counts only from a member of our own latest list, under the
  incarnation listed: we asked nobody else. In an answer from any other server even the term is ignored: a disk that was
  put back must not depose a leader.
* A canvass or vote request gets no answer while damage on our disk binds (R31), or our disk hangs (R34).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from . import messages as m
from .members import Identity, Role
from .parts import Parts, Reign
from .ranks import State
from .ready import (
    AcceptClocks,
    Begin,
    Clean,
    Connected,
    CopyLoaded,
    DamageFound,
    Disconnected,
    Input,
    Loaded,
    Moving,
    PeerAddress,
    PeerGone,
    Persisted,
    Received,
    Slept,
    SnapshotLoaded,
    Space,
    Stop,
    Tick,
)
from .requests import (
    AppendRun,
    ChangeMember,
    ChangeSettings,
    CreateLog,
    DeleteLog,
    DropCursor,
    DropSession,
    FoundLog,
    Initialise,
    ListCursors,
    ListLogs,
    ListSessions,
    OpenSession,
    Outcome,
    ReadIndex,
    RenameLog,
    SetCursor,
    SetLog,
    ShowSettings,
    Transfer,
    Trim,
)


def _on_received(r: Parts, received: Received) -> None:
    """Hand a message to the part that takes it, if it counts by the laws above; otherwise refuse or ignore it."""
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
    cluster = r.out.cluster or r.cfg.cluster_wanted
    if kind is m.Retired and cluster and envelope.cluster != cluster:
        return
    if kind not in m.START_ONLY and (not r.first_start.started or envelope.cluster != r.out.cluster):
        return
    sender = envelope.sender
    listed = r.members.latest.holds(sender)
    if kind in m.ANSWERS and not listed:
        return
    if isinstance(message, m.SnapshotPart):
        r.installing.on_part(sender, envelope.cluster, message)
    elif not listed and kind not in m.START_ONLY and _is_out(r, sender):
        r.out.send(sender, m.Retired())
    elif not (kind in m.ASKS_FOR_VOTES and (r.damage.binds or r.disks.hangs)):
        _MESSAGES[kind](r, sender, message)


def _is_out(r: Parts, sender: Identity) -> bool:
    """True if a guaranteed list says that this incarnation is no member and never will be again (R30)."""
    member = r.members.latest.get(sender.id)
    if member is None or r.members.latest_id > r.guaranteed_id:
        return False
    if member.incarnation == sender.incarnation:
        return member.role is Role.GONE and r.leader != sender
    return sender.incarnation in member.retired


def _on_retired(r: Parts, sender: Identity, message: m.Retired) -> None:
    """Note that this server was removed, if a member of our own list (which may be old) says so; become passive. An
    empty store of a further log has no list, and nothing to lose: any store of its log may say it."""
    listed = r.members.latest.holds(sender) if r.first_start.started else not r.cfg.first_log
    if listed and not r.retired:
        r.retired = True
        r.out.event("retired", told_by=sender.id, incarnation=r.me.incarnation.hex())
        r.become_passive()


def _on_start_answer(r: Parts, sender: Identity, answer: m.StartAnswer) -> None:
    if not r.first_start.started:
        r.first_start.on_answer(sender, answer)
    elif r.reign is not None:
        r.reign.changes.on_start_answer(sender, answer)


def _on_snapshot_answer(r: Parts, sender: Identity, answer: m.SnapshotAnswer) -> None:
    if r.reign is not None and answer.term == r.term:
        r.reign.changes.newcomers.on_snapshot_answer(sender, answer)


def _on_snapshot(r: Parts, each: SnapshotLoaded) -> None:
    if r.reign is not None:
        r.reign.changes.newcomers.on_snapshot(each.peer, each.snapshot)


def _stop(r: Parts, each: Stop) -> None:
    """Begin the handover of a server that stops; it ends a handover that an operator asked for."""
    if r.handover is not None and not r.handover.leaving:
        r.handover.give_up("the server is stopping")
    if r.handover is None:
        r.hand_over(0, None)


def append_runs(r: Parts, runs: Sequence[AppendRun]) -> None:
    """Take appends that came one behind the other: a leader appends them in groups."""
    if r.reign is not None:
        r.reign.serving.append_runs(runs)
        return
    for run in runs:
        r.not_leader(run)


def _at_leader(take: Callable[[Reign, Any], None]) -> Callable[[Parts, Any], None]:
    """An entry of `INPUTS` for a request that only a leader takes: ``take`` it with the reign, or refuse it."""

    def taken(r: Parts, request: Any) -> None:
        if r.reign is not None:
            take(r.reign, request)
        else:
            r.not_leader(request)

    return taken


def _found_log(r: Parts, each: FoundLog) -> None:
    if r.reign is not None:
        r.reign.operators.found_log(each)


def _on_wrong_incarnation(r: Parts, sender: Identity, message: m.WrongIncarnation) -> None:
    """Log that a listed member answers with another incarnation than the listed one, once for each."""
    listed = r.members.latest.get(sender.id)
    if listed is not None and listed.incarnation != sender.incarnation:
        if r.wrong_incarnations.get(sender.id) != sender.incarnation:
            r.wrong_incarnations[sender.id] = sender.incarnation
            r.out.event("wrong_incarnation", member=sender.id, answers_as=sender.incarnation.hex())


def _on_append_answer(r: Parts, sender: Identity, answer: m.AppendAnswer) -> None:
    if answer.term > r.term:
        r.adopt_term(answer.term)
    elif r.reign is not None and r.reign.replication.on_answer(sender, answer):
        r.reign.changes.newcomers.want_snapshot(sender)


def _on_connected(r: Parts, each: Connected) -> None:
    r.connected.add(each.peer)
    if r.reign is not None:
        r.reign.replication.connected(each.peer)


def _on_disconnected(r: Parts, each: Disconnected) -> None:
    r.connected.discard(each.peer)


def _on_moving(r: Parts, each: Moving) -> None:
    """Note that a connection lives. A leader counts as heard while a message of its own arrives; a message that is
    still leaving to a peer need not be sent again (R17)."""
    at_s = min(each.at_s, r.now_s)
    if each.incoming:
        r.damage.moving(each.who, at_s)
        if r.state is State.PASSIVE and r.leader == each.who:
            r.hear_bytes(at_s)
    elif r.reign is not None:
        r.reign.replication.moving(each.who, at_s)
        r.reign.changes.newcomers.moving(each.who, at_s)


def _on_peer_address(r: Parts, each: PeerAddress) -> None:
    who = Identity(each.peer, each.incarnation)
    if r.members.latest.holds(who):  # a server that is no member may say hello too
        r.seen_addresses[who] = each.address
    if r.reign is not None:
        r.reign.changes.addresses_changed = True


def _on_persisted(r: Parts, each: Persisted) -> None:
    r.out.reported(each.number)
    r.log.persisted(each.number)
    r.first_start.persisted(each.number)
    if r.out.hard_durable and r.state is State.CANDIDATE:
        r.election.own_vote_durable()
    if r.reign is not None:
        r.reign.replication.count()


def _on_loaded(r: Parts, each: Loaded) -> None:
    if r.reign is not None:
        r.reign.replication.on_loaded(each.peer, each.generation, each.entries)


_MESSAGES: dict[type, Callable[[Parts, Identity, Any], None]] = {
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
    m.StartAnswer: _on_start_answer,
    m.SnapshotAnswer: _on_snapshot_answer,
    m.Retired: _on_retired,
    m.CopyRequest: lambda r, sender, message: r.damage.on_request(sender, message),
    m.CopyAnswer: lambda r, sender, message: r.damage.on_answer(sender, message),
    m.WentBack: lambda r, sender, message: r.acceptance.on_went_back(sender, message),
}

_ASK = _at_leader(lambda reign, each: reign.reads.ask(each))

INPUTS: dict[type, Callable[[Parts, Any], None]] = {
    AppendRun: lambda r, each: append_runs(r, [each]),
    Received: _on_received,
    Persisted: _on_persisted,
    Loaded: _on_loaded,
    Connected: _on_connected,
    Disconnected: _on_disconnected,
    Moving: _on_moving,
    PeerGone: lambda r, each: r.election.on_peer_gone(each.peer),
    PeerAddress: _on_peer_address,
    OpenSession: _at_leader(lambda reign, each: reign.serving.open_session(each)),
    DropSession: _at_leader(lambda reign, each: reign.serving.drop_session(each)),
    Trim: _at_leader(lambda reign, each: reign.operators.trim(each)),
    Clean: lambda r, each: r.cleaning.clean(each),
    Space: lambda r, each: r.disks.heard(each),
    DamageFound: lambda r, each: r.damage.heard(each),
    AcceptClocks: lambda r, each: r.log_clock.accept(),
    Slept: lambda r, each: r.log_clock.slept(each.asleep_s),
    CopyLoaded: lambda r, each: r.damage.loaded(each),
    ListSessions: _ASK,
    ReadIndex: _ASK,
    Outcome: _ASK,
    ShowSettings: _ASK,
    ChangeSettings: _ASK,
    SetCursor: _ASK,
    DropCursor: _ASK,
    ListCursors: _ASK,
    CreateLog: _ASK,
    SetLog: _ASK,
    RenameLog: _ASK,
    DeleteLog: _ASK,
    ListLogs: _ASK,
    FoundLog: _found_log,
    Initialise: lambda r, each: r.first_start.initialise(each.origin),
    ChangeMember: _at_leader(lambda reign, each: reign.operators.change_member(each)),
    Transfer: _at_leader(lambda reign, each: reign.operators.transfer(each)),
    SnapshotLoaded: _on_snapshot,
    Stop: _stop,
    Begin: lambda r, each: r.first_start.begin(each.first_list, each.settings),
    Tick: lambda r, each: None,
}


def take_known(r: Parts, item: Input) -> bool:
    """Take a heartbeat, the answer to one, or the time for one, if that changes nothing but times; returns False, and
    does nothing, if more is to be done. Nothing else is due then: a step would do the same, and take longer."""
    if (
        r.guaranteed_id != r.log.last_id or r.log.stable_id != r.log.last_id or r.log.writes or not r.out.hard_durable
        or r.handover is not None or r.damage.ids or r.disks.slow_since_s is not None or r.cleaning.base is not None
        or not r.first_start.started or (r.reign is None and r.election.busy)
    ):
        return False
    if type(item) is Tick:
        return r.reign is not None and r.reign.beat()
    if type(item) is not Received:
        return False
    of, sender, target, message = item.envelope
    if target != r.me or of != r.out.cluster or not r.members.latest.holds(sender):
        return False
    r.came_s = min(item.at_s, r.now_s)
    if type(message) is m.AppendAnswer:
        return r.reign is not None and r.reign.hears_again(sender, message)
    if type(message) is not m.AppendRequest or not r.acceptance.is_known(sender, message):
        return False
    r.hear_leader(sender)
    r.out.send(sender, r.acceptance.acceptance(message, r.log.last_id))
    return True


_MAY_WAIT = frozenset((Persisted, Received))


def can_wait(r: Parts, item: Input) -> bool:
    """True if nobody waits for the effects of this input: the shell may step it later, together with the next ones.

    False for any input that could raise the guaranteed mark, alone or with other inputs that wait.
    """
    reign = r.reign
    if type(item) is Moving:
        return True
    if type(item) not in _MAY_WAIT or r.handover is not None or not r.out.hard_durable:
        return False
    if reign is not None and reign.reads.waiting:
        return False
    if type(item) is Persisted:
        if r.disks.slow_since_s is not None:
            return False  # our disk moves again, which changes what this server may do
        if r.log.writing_bytes > r.cfg.peer_inflight_bytes_max:
            return False  # clients may wait for our disk
        if reign is not None:
            return reign.replication.mark_with(r.log.stable_after(item.number)) <= r.guaranteed_id
        return r.state is State.PASSIVE and r.guaranteed_id <= r.log.stable_id
    if type(item) is Received and reign is not None and type(item.envelope.message) is m.AppendAnswer:
        changing = reign.changes.pending is not None
        return reign.replication.can_wait(item.envelope.sender, item.envelope.message, changing=changing)
    return False
