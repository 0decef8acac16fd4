"""Safety within and between servers, checked at every step, send and commit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from alpo.core.disk import Base, Write
from alpo.core.entries import Entry, Kind, parse_body
from alpo.core.inputs import DamageFound, Input, Received, Space
from alpo.core.invariants import InvariantBroken, check_all
from alpo.core.members import Identity, MemberList
from alpo.core.messages import (
    AppendAnswer,
    AppendRequest,
    Canvass,
    CanvassAnswer,
    CanvassRequest,
    DeferAnswer,
    DeferRequest,
    Envelope,
    HandOver,
    Room,
    Vote,
    VoteAnswer,
    VoteRequest,
)
from alpo.core.ranks import State
from alpo.core.ready import Ready, Refused

from ..broken import Broken
from ..host import Host
from .lists import list_before

if TYPE_CHECKING:
    from ..stage import Stage
    from .lists import Lists

_DATA, _LEADER = int(Kind.DATA), int(Kind.LEADER)


def _refused(ready: Ready) -> set[int]:
    """The entries before those of the requests that this step refuses."""
    said = [envelope.message for envelope in (*ready.send, *ready.send_after_write)]
    return {answer.prev_id for answer in said if type(answer) is AppendAnswer and not answer.ok}


class Safety:
    """``guaranteed`` is the one log: entry id at index id - 1, as soon as some server calls it guaranteed.

    ``on_guaranteed(entry)`` is told of each, once, in order.
    """

    def __init__(self, stage: Stage, on_guaranteed: Callable[[Entry], None] = lambda entry: None) -> None:
        self._stage = stage
        self._on_guaranteed = on_guaranteed
        self.lists: Lists | None = None  # set by whoever makes both
        self.guaranteed: list[Entry] = []
        #: Entry id of every LSN, at index LSN - 1.
        self.id_of_lsn: list[int] = []
        self.leaders: dict[int, Identity] = {}  # term -> who leads it
        self.cleaned_id = 0  # somebody has cleaned up to here
        self._given_up_id = 0  # so far somebody cleans: everybody holds that, whether or not he gets it done (R19)
        self._disks: dict[Identity, list[int]] = {}  # terms on that disk, at index id - 1
        self._accepted: dict[Identity, int] = {}  # up to there its log was told as accepted, and not expunged since
        self._places: dict[tuple[int, int], tuple[int, int]] = {}  # (id, term) -> (checksum, term before)
        self._trims: list[tuple[int, int]] = []  # (entry id, LSN)
        self._seen: dict[int, int] = {}  # server -> guaranteed id checked so far
        self._who: dict[int, Identity] = {}
        self._led: dict[int, bool] = {}  # those that led after their last step
        self._ranks: dict[int, tuple[int, int]] = {}  # server -> of its log after its last step
        self._marks_of: dict[int, int] = {}  # term -> the highest id that was first called guaranteed in it

    # -- what the stage tells ---------------------------------------------------------------------------

    def booted(self, host: Host) -> None:
        replica = host.replica
        assert replica is not None
        self._who[host.id] = replica.me
        self._disks.setdefault(replica.me, [])
        self._seen[host.id] = replica.guaranteed_id
        self._led.pop(host.id, None)
        self._ranks[host.id] = replica.rank.log
        mark = replica.guaranteed_id
        if mark and (mark > len(self.guaranteed) or replica.log.term_at(mark) != self.guaranteed[mark - 1].term):
            raise Broken("one log", f"server {host.id} starts with entry {mark} guaranteed, which it never was")

    def committing(self, host: Host, writes: Sequence[Write]) -> None:
        """Log matching, and nothing guaranteed expunged, where it counts: on the disk."""
        terms = self._disks[self._who[host.id]]
        guaranteed, places = self.guaranteed, self._places
        for write in writes:
            for entry in write.mended:
                if host.store.read_entries(entry.id, entry.id, 1) != [entry]:
                    raise Broken("damage", f"server {host.id} mends entry {entry.id} with another: {entry}")
            if write.install is not None:
                self._install(host, terms, write.install)
            if write.base is not None:
                self._check_cleaning(host, write.base.id)
                self.cleaned_id = max(self.cleaned_id, write.base.id)
            if write.start is not None and write.start.cluster:
                self._check_start(host, write.start.cluster)
            if write.expunge_from is not None:
                at = write.expunge_from - 1
                for gone, kept in zip(terms[at:], guaranteed[at:], strict=False):
                    if gone == kept.term:
                        raise Broken(
                            "nothing guaranteed expunged", f"server {host.id} expunges entry {kept.id} of term {gone}"
                        )
                del terms[at:]
                who = self._who[host.id]
                self._accepted[who] = min(self._accepted.get(who, 0), at)
            if not write.entries:
                continue
            if write.entries[0].id != len(terms) + 1:
                raise Broken("gapless", f"server {host.id} writes entry {write.entries[0].id} after {len(terms)}")
            before = terms[-1] if terms else 0
            for entry in write.entries:
                term = entry[1]
                seen = places.setdefault((entry[0], term), (entry[11], before))
                if seen[0] != entry[11] or seen[1] != before:
                    raise Broken("log matching", f"two entries {entry[0]} of term {term}: server {host.id} has another")
                terms.append(term)
                before = term

    def _install(self, host: Host, terms: list[int], base: Base) -> None:
        """A base takes the place of all that was on a disk."""
        known = self.guaranteed
        last = known[base.id - 1] if 0 < base.id <= len(known) else None
        if base.id and (last is None or last[:2] != base[:2] or last.lsn + last.count != base.next_lsn):
            raise Broken("one log", f"server {host.id} begins from a base at entry {base.id}, which is not guaranteed")
        self._check_accepted(host, terms, base)
        for gone, kept in zip(terms[base.id :], known[base.id :], strict=False):
            if gone == kept.term:
                self._gives_up(host, kept.id)
        terms[:] = [entry.term for entry in known[: base.id]]
        self._accepted[self._who[host.id]] = base.id

    def _gives_up(self, host: Host, id: int) -> None:
        raise Broken("nothing guaranteed expunged", f"server {host.id} begins from a base, and gives up entry {id}")

    def _check_accepted(self, host: Host, terms: list[int], base: Base) -> None:
        """R14: a leader counts on what was told as accepted. A log that differs from the base would be expunged from
        there on, or above it, by the next request; one that holds it gains nothing by it."""
        accepted_id = self._accepted.get(self._who[host.id], 0)
        if accepted_id > base.id and (not base.id or terms[base.id - 1 : base.id] == [base.term]):
            raise Broken("nothing acknowledged given up", f"server {host.id} begins from a base at entry {base.id}, "
                         f"which it holds, and gives up what it acknowledged, up to entry {accepted_id}")

    def _check_cleaning(self, host: Host, upto_id: int) -> None:
        """Whoever votes holds what is cleaned, by the last list known to be guaranteed: the server's own may be older.
        A learner can be sent a base."""
        assert self.lists is not None and self.lists.latest is not None
        term = self.guaranteed[upto_id - 1].term if upto_id <= len(self.guaranteed) else 0
        for member in self.lists.latest.voters:
            terms = self._disks.get(member.identity, ())
            if len(terms) < upto_id or terms[upto_id - 1] != term:
                raise Broken(
                    "cleaned too early", f"server {host.id} cleans up to entry {upto_id}; {member.id} has {len(terms)}"
                )

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        replica = host.replica
        assert replica is not None
        self._check_damage(host, inputs, ready)
        if ready.write is not None:
            if ready.write.base is not None:
                self._given_up_id = max(self._given_up_id, ready.write.base.id)
            try:
                check_all(replica)
            except InvariantBroken as broken:
                raise Broken("alarm", f"server {host.id}: {broken}") from broken
        if replica.state is State.LEADER:
            self._check_leader(host)
            if replica.guaranteed_id > self._seen[host.id] and host.id in self._led:
                self._check_own_term(host)
            self._led[host.id] = True
        elif not self._led.pop(host.id, False) and ready.replies:  # else it may have said so while it still led
            self._check_referrals(host, ready)
        if ready.write is not None:
            self._check_room(host, inputs, ready.write)
        if replica.guaranteed_id > self._seen[host.id]:
            self._check_mark(host, ready)
        if replica.state is State.PASSIVE:
            self._check_votes(host, ready)
        self._ranks[host.id] = replica.rank.log
        refused = _refused(ready)  # that its log reaches there now came later in the step
        for each in inputs:
            if type(each) is Received and type(each.envelope.message) is AppendRequest:
                if each.envelope.message.prev_id not in refused:
                    self._check_follower(host, each.envelope.sender, each.envelope.message)

    def _check_damage(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        """What a server may not do while it knows of damage; what it did before it knew may still be on its way."""
        replica = host.replica
        assert replica is not None
        first_id = next((id for id in replica.damage.ids if id > self._given_up_id), 0)
        if not first_id or not replica.members.other_voters() or any(type(each) is DamageFound for each in inputs):
            return
        if ready.write is not None and ready.write.base is not None:
            raise Broken("damage", f"server {host.id} cleans, and entry {first_id} on its disk is damaged")
        for envelope in (*ready.send, *ready.send_after_write):
            said: Any = envelope.message
            if isinstance(said, AppendAnswer):
                wrong = said.ok and said.match_id >= first_id
            else:
                wrong = isinstance(said, CanvassRequest | VoteRequest) or (
                    isinstance(said, CanvassAnswer | VoteAnswer) and said.answer in (Canvass.YES, Vote.GRANTED)
                )
            if wrong:
                raise Broken("damage", f"entry {first_id} of server {host.id} is damaged, and it says {said}")

    def _check_room(self, host: Host, inputs: Sequence[Input], write: Write) -> None:
        """A full disk takes nothing that can be had later: of what it makes itself no payloads, of what others sent
        nothing at all. It may have led at the step's beginning and not at its end, or the other way round; what it made
        and lost may come back to it from others."""
        replica = host.replica
        assert replica is not None
        room = replica.disks.room
        if room is Room.PLENTY or not write.entries or any(type(each) is Space for each in inputs):
            return
        sent = _entries_sent(inputs)
        own = [self.leaders.get(e.term) == replica.me and e.id not in sent for e in write.entries]
        ours_or_not = zip(write.entries, own, strict=True)
        taken = [e.id for e, ours in ours_or_not if (e.kind == _DATA if ours else room is Room.NONE)]
        if taken:
            raise Broken("no space", f"server {host.id} takes entry {taken[0]}, and its disk has room for {room.name}")

    def _check_referrals(self, host: Host, ready: Ready) -> None:
        for reply in ready.replies:
            if isinstance(reply, Refused) and reply.leader == host.id:
                raise Broken("referral", f"server {host.id} does not lead, and sends a client back to itself")

    def sent(self, host: Host, envelope: Envelope) -> None:
        check = _BEFORE_SENT.get(type(envelope.message))
        if check is not None:
            check(self, host, envelope)

    # -- leaders ----------------------------------------------------------------------------------------

    def _check_leader(self, host: Host) -> None:
        replica = host.replica
        assert replica is not None
        known = self.leaders.get(replica.term)
        if known is None:
            self.leaders[replica.term] = replica.me
            # Late votes may make a leader when a later term has begun its work: it owes nothing to that.
            owed = max((mark for term, mark in self._marks_of.items() if term < replica.term), default=0)
            if owed and replica.log.term_at(owed) != self.guaranteed[owed - 1].term:
                raise Broken(
                    "leader completeness",
                    f"server {host.id} leads term {replica.term} without entry {owed} of term "
                    f"{self.guaranteed[owed - 1].term}",
                )
        elif known != replica.me:
            raise Broken("one leader a term", f"servers {known.id} and {host.id} both lead term {replica.term}")
        leadership = replica.leadership
        assert leadership is not None
        mark = replica.guaranteed_id
        for peer in leadership.peers.values():
            if peer.matched and peer.sent_guaranteed_id < mark and peer.who.id in replica.connected:
                by_s = host.mono_s(self._stage.now_us) + self._stage.timers.mark_delay_s + 2e-6
                if host.due_us > host.when_us(by_s):
                    raise Broken("prompt mark", f"leader {host.id} does not tell {peer.who.id} of entry {mark}")

    def _check_own_term(self, host: Host) -> None:
        """R13: a leader's mark moves to entries of its own term alone."""
        replica = host.replica
        assert replica is not None
        term = replica.log.term_at(replica.guaranteed_id)
        if term != replica.term:
            raise Broken(
                "own term",
                f"leader {host.id} of term {replica.term} goes by entry {replica.guaranteed_id} of term {term}",
            )

    def _check_follower(self, host: Host, sender: Identity, request: AppendRequest) -> None:
        replica = host.replica
        assert replica is not None
        if replica.term != request.term or replica.leader != sender or replica.state is not State.PASSIVE:
            return
        entries = request.entries
        upto, term = (entries[-1].id, entries[-1].term) if entries else (request.prev_id, request.prev_term)
        if replica.log.term_at(upto) != term or replica.log.term_at(request.prev_id) != request.prev_term:
            return
        if replica.guaranteed_id < min(upto, request.guaranteed_id):
            raise Broken("prompt mark", f"server {host.id} was told of {request.guaranteed_id}, knows {upto}, marks "
                         f"{replica.guaranteed_id}")

    # -- marks ------------------------------------------------------------------------------------------

    def _check_mark(self, host: Host, ready: Ready) -> None:
        """The mark of ``host`` has moved: what it covers now is the one log, or the next part of it."""
        replica = host.replica
        assert replica is not None
        first_id, mark = max(self._seen[host.id], replica.log.base_id) + 1, replica.guaranteed_id
        known = len(self.guaranteed)
        if mark > known:
            self._check_on_majority(host, mark, list_before(replica, ready)[1])
            self._marks_of[replica.term] = mark
        for entry in self._entries(host, first_id, mark):
            if entry.id <= known:
                if self.guaranteed[entry.id - 1][11] != entry[11]:
                    raise Broken("one log", f"server {host.id} holds another entry {entry.id} guaranteed")
            else:
                self._take(entry)
        self._seen[host.id] = mark
        known_id = max(mark, replica.applied_id)  # what came with a base may be ahead of its log
        trims = self._trims[: bisect_right(self._trims, (known_id, 1 << 62))]
        expected = max((lsn for _, lsn in trims), default=1)
        if replica.cleaning.trim_lsn != expected:
            raise Broken("trimmed", f"server {host.id} trims below LSN {replica.cleaning.trim_lsn}, not {expected}")

    def _entries(self, host: Host, first_id: int, last_id: int) -> list[Entry]:
        replica = host.replica
        assert replica is not None
        entries: list[Entry] = []
        for id in range(first_id, last_id + 1):
            entry = replica.log.entry(id)
            if entry is None:
                entry = host.store.read_entries(id, id, 1)[0]
            entries.append(entry)
        return entries

    def _take(self, entry: Entry) -> None:
        before = self.guaranteed[-1] if self.guaranteed else None
        id, lsn, time_ms = (before.id + 1, before.lsn + before.count, before.time_ms) if before else (1, 1, 0)
        if entry.id != id or entry.lsn != lsn or entry.time_ms < time_ms or (entry.kind == _DATA) != (entry.count > 0):
            raise Broken("gapless", f"entry {entry.id} (LSN {entry.lsn}) after id {id - 1}, where LSN {lsn} is next")
        if entry.kind != _LEADER and (before is None or before.term != entry.term):
            raise Broken("reign", f"the first entry of term {entry.term} is entry {entry.id}, of kind {entry.kind}")
        self.guaranteed.append(entry)
        self.id_of_lsn.extend([entry.id] * entry.count)
        if entry.kind == Kind.TRIM:
            self._trims.append((entry.id, parse_body(entry)["before"]))
        self._on_guaranteed(entry)

    def _check_start(self, host: Host, cluster: bytes) -> None:
        """Against every disk that there is. One that is lost right after the first of all to start wrote to it takes
        its list with it: nothing rests on a list before a majority has started, and fewer disks than that get lost.
        """
        for other in self._stage.hosts.values():
            if other.store.boot().start.cluster not in (b"", cluster):
                raise Broken("first start", f"server {host.id} starts with another first list than server {other.id}")

    def disk_term_at(self, who: Identity, id: int) -> int | None:
        """The term of entry ``id`` on that disk, lost since or not; None if it never came there."""
        terms = self._disks.get(who, ())
        return terms[id - 1] if id <= len(terms) else None

    def _check_on_majority(self, host: Host, mark: int, members: MemberList) -> None:
        """Disks lost since count as well: they gave their word while they were there."""
        replica = host.replica
        assert replica is not None
        term = replica.log.term_at(mark)
        holders = 0
        for member in members.voters:
            holders += term is not None and self.disk_term_at(member.identity, mark) == term
        if holders < members.majority:
            raise Broken(
                "guaranteed on a majority",
                f"server {host.id} calls entry {mark} of term {term} guaranteed; it is on {holders} disks",
            )

    # -- R14, message by message ------------------------------------------------------------------------

    def too_soon(self, host: Host, what: str) -> None:
        raise Broken(
            "durable before sent",
            f"server {host.id} tells {what}; on disk: term {host.disk_term}, vote {host.disk_vote}, "
            f"last entry {host.disk_last_id}",
        )

    def _check_term(self, host: Host, envelope: Envelope) -> None:
        message: Any = envelope.message
        if message.term > host.disk_term:
            self.too_soon(host, f"{type(message).__name__} of term {message.term}")

    def _check_own_vote(self, host: Host, envelope: Envelope) -> None:
        message: Any = envelope.message
        if host.disk_term < message.term or (host.disk_term == message.term and host.disk_vote != host.id):
            self.too_soon(host, f"{type(message).__name__} of term {message.term}")

    def _check_vote(self, host: Host, envelope: Envelope) -> None:
        answer: Any = envelope.message
        self._check_term(host, envelope)
        replica = host.replica
        if answer.answer is Vote.GRANTED and replica is not None and not replica.first_start.started:
            raise Broken("first start", f"server {host.id} votes for {envelope.target.id}, and has not started")
        if answer.answer is Vote.GRANTED and host.disk_term == answer.request_term:
            if host.disk_vote != envelope.target.id:
                self.too_soon(host, f"its vote of term {answer.request_term} to {envelope.target.id}")

    def _check_votes(self, host: Host, ready: Ready) -> None:
        """By the log as it was before the step: until the vote leaves, another leader's entries may have come in."""
        for envelope in (*ready.send, *ready.send_after_write):
            answer = envelope.message
            if type(answer) is not VoteAnswer or answer.answer is not Vote.GRANTED:
                continue
            asker = self._stage.hosts[envelope.target.id].replica
            if asker is not None and asker.state is State.CANDIDATE and asker.term == answer.request_term:
                if asker.rank.log < self._ranks[host.id]:
                    raise Broken("rank", f"server {host.id} votes for {envelope.target.id}, whose log is behind")

    def _check_acceptance(self, host: Host, envelope: Envelope) -> None:
        answer: Any = envelope.message
        self._check_term(host, envelope)
        if answer.ok and answer.term == host.disk_term and answer.match_id > host.disk_last_id:
            self.too_soon(host, f"its acceptance of entry {answer.match_id}")
        who = envelope.sender
        if answer.ok and answer.match_id > self._accepted.get(who, 0) and answer.term == host.disk_term:
            self._accepted[who] = answer.match_id

    def _check_defer(self, host: Host, envelope: Envelope) -> None:
        self._check_own_vote(host, envelope)
        replica, message = host.replica, envelope.message
        assert replica is not None
        cycle = replica.election.cycle
        if cycle is not None and isinstance(message, DeferRequest) and message.term == replica.term:
            if len(cycle.granted) + len(cycle.held) < replica.members.latest.majority:
                raise Broken("electable", f"server {host.id} asks {envelope.target.id} to defer, and is not electable")


_BEFORE_SENT: dict[type, Callable[[Safety, Host, Envelope], None]] = {
    CanvassAnswer: Safety._check_term,
    VoteRequest: Safety._check_own_vote,
    VoteAnswer: Safety._check_vote,
    DeferRequest: Safety._check_defer,
    DeferAnswer: Safety._check_term,
    AppendRequest: Safety._check_own_vote,
    AppendAnswer: Safety._check_acceptance,
    HandOver: Safety._check_own_vote,
}


def _entries_sent(inputs: Sequence[Input]) -> set[int]:
    """Ids of the entries that others sent in this step."""
    said = [each.envelope.message for each in inputs if isinstance(each, Received)]
    return {entry.id for message in said if isinstance(message, AppendRequest) for entry in message.entries}
