"""Checks of safety within and between servers, at every step and commit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from alpo.core.disk import Base, Write
from alpo.core.entries import Entry, Kind, parse_body
from alpo.core.members import Identity, MemberList
from alpo.core.messages import (
    AppendAnswer,
    AppendRequest,
    Canvass,
    CanvassAnswer,
    CanvassRequest,
    Room,
    Vote,
    VoteAnswer,
    VoteRequest,
)
from alpo.core.parts import check_all
from alpo.core.ranks import State
from alpo.core.ready import Connected, DamageFound, Disconnected, Input, Ready, Received, Space
from alpo.core.requests import Refused
from alpo.core.shared import InvariantBroken

from ..host import Host
from ..stage import Stage, Watcher
from . import Broken
from .sends import SendChecks

_DATA, _LEADER, _MEMBERS = int(Kind.DATA), int(Kind.LEADER), int(Kind.MEMBERS)
#: Inputs that change what a leader knows of voters: what it decided before them in the same step is not checked.
_NEWS = frozenset((Received, Connected, Disconnected, Space))


def _refused(ready: Ready) -> set[int]:
    """The ``prev_id`` of each append request that a step refuses."""
    said = [envelope.message for envelope in (*ready.send, *ready.send_after_write)]
    return {answer.prev_id for answer in said if type(answer) is AppendAnswer and not answer.ok}


class Safety(Watcher):
    """Checks of what servers do; derives the one log from the marks and disks of all servers.

    ``guaranteed`` is the one log: entry id at index id - 1, as soon as some server calls it guaranteed.
    ``on_guaranteed(entry)`` is called with each entry once, in order. ``latest_members()``: the last list in it.
    """

    def __init__(
        self, stage: Stage, on_guaranteed: Callable[[Entry], None] = lambda entry: None,
        latest_members: Callable[[], MemberList | None] = lambda: None,
    ) -> None:
        self._stage = stage
        self._on_guaranteed = on_guaranteed
        self._latest_members = latest_members
        self.sends = SendChecks()
        self.guaranteed: list[Entry] = []
        #: Id of the entry with each LSN, at index LSN - 1.
        self.id_of_lsn: list[int] = []
        self.leaders: dict[int, Identity] = {}  # term -> who leads it
        self.cleaned_id = 0  # some server has cleaned up to there
        self._given_up_id = 0  # some server has begun to clean up to there: all members hold that (R19)
        self._disks: dict[Identity, list[int]] = {}  # disk, lost or not -> terms of its entries, at index id - 1
        self._places: dict[tuple[int, int], tuple[int, int]] = {}  # (id, term) -> (checksum, term before)
        self._trims: list[tuple[int, int]] = []  # (entry id, LSN)
        self._seen: dict[int, int] = {}  # server -> guaranteed id checked so far
        self._who: dict[int, Identity] = {}
        self._led: dict[int, bool] = {}  # servers that led after their last step
        self._ranks: dict[int, tuple[int, int]] = {}  # server -> rank of its log after its last step
        self._marks_of: dict[int, int] = {}  # term -> last id that was first called guaranteed in it

    def booted(self, host: Host) -> None:
        replica = host.running
        self._who[host.id] = replica.me
        self._disks.setdefault(replica.me, [])
        self._seen[host.id] = replica.guaranteed_id
        self._led.pop(host.id, None)
        self._ranks[host.id] = replica.rank.log
        mark = replica.guaranteed_id
        if mark and (mark > len(self.guaranteed) or replica.log.term_at(mark) != self.guaranteed[mark - 1].term):
            raise Broken("one log", f"server {host.id} starts with entry {mark} guaranteed, which it never was")

    def committing(self, host: Host, writes: Sequence[Write]) -> None:
        """Check on the disks that logs match and nothing guaranteed is expunged."""
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
                self.sends.accepted[who] = min(self.sends.accepted.get(who, 0), at)
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
        """Check a base that takes the place of all that was on a disk."""
        known = self.guaranteed
        last = known[base.id - 1] if 0 < base.id <= len(known) else None
        if base.id and (last is None or last[:2] != base[:2] or last.lsn + last.count != base.next_lsn):
            raise Broken("one log", f"server {host.id} begins from a base at entry {base.id}, which is not guaranteed")
        self._check_accepted(host, terms, base)
        for gone, kept in zip(terms[base.id :], known[base.id :], strict=False):
            if gone == kept.term:
                self._gives_up(host, kept.id)
        terms[:] = [entry.term for entry in known[: base.id]]
        self.sends.accepted[self._who[host.id]] = base.id

    def _gives_up(self, host: Host, id: int) -> None:
        raise Broken("nothing guaranteed expunged", f"server {host.id} begins from a base, and gives up entry {id}")

    def _check_accepted(self, host: Host, terms: list[int], base: Base) -> None:
        """Check that a base removes no entry that the server told its leader as accepted (R14).

        That holds only for a log that contains the base's last entry. Any other would be expunged from there on anyway.
        """
        accepted_id = self.sends.accepted.get(self._who[host.id], 0)
        if accepted_id > base.id and (not base.id or terms[base.id - 1 : base.id] == [base.term]):
            raise Broken("nothing acknowledged given up", f"server {host.id} begins from a base at entry {base.id}, "
                         f"which it holds, and gives up what it acknowledged, up to entry {accepted_id}")

    def _check_cleaning(self, host: Host, upto_id: int) -> None:
        """Check that all voters hold the entries that are cleaned, by the last list known as guaranteed: the server's
        own may be older. Learners need not hold them: they can be sent a base."""
        members = self._latest_members()
        assert members is not None
        term = self.guaranteed[upto_id - 1].term if upto_id <= len(self.guaranteed) else 0
        for member in members.voters:
            terms = self._disks.get(member.identity, ())
            if len(terms) < upto_id or terms[upto_id - 1] != term:
                raise Broken(
                    "cleaned too early", f"server {host.id} cleans up to entry {upto_id}; {member.id} has {len(terms)}"
                )

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        replica = host.running
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
        elif not self._led.pop(host.id, False) and ready.replies:  # a reign's last step may still answer
            self._check_referrals(host, ready)
        if ready.write is not None:
            self._check_room(host, inputs, ready.write)
            self._check_room_of_voters(host, inputs, ready.write)
        if replica.guaranteed_id > self._seen[host.id]:
            self._check_mark(host, ready)
        if replica.state is State.PASSIVE:
            self._check_votes(host, ready)
        self._ranks[host.id] = replica.rank.log
        refused = _refused(ready)  # refused requests are no fault, though the log may fit them after the step
        for each in inputs:
            if type(each) is Received and type(each.envelope.message) is AppendRequest:
                if each.envelope.message.prev_id not in refused:
                    self._check_follower(host, each.envelope.sender, each.envelope.message)

    def _check_damage(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        """Check that a server that knew of damage before this step neither cleans nor votes, nor accepts entries beyond
        the damage."""
        replica = host.running
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
        """Check that a server low on space makes no entry with payloads, and one without room takes no other's entries.

        An entry's maker is the leader of its term: the present leader may have changed within the step, and so may one
        that nobody has seen yet. An entry that a server made, lost and receives again counts as another's.
        """
        replica = host.running
        room = replica.disks.room
        if room is Room.PLENTY or not write.entries or any(type(each) is Space for each in inputs):
            return
        sent = _entries_sent(inputs)
        own = [self.leaders.get(e.term, replica.me) == replica.me and e.id not in sent for e in write.entries]
        ours_or_not = zip(write.entries, own, strict=True)
        taken = [e.id for e, ours in ours_or_not if (e.kind == _DATA if ours else room is Room.NONE)]
        if taken:
            raise Broken("no space", f"server {host.id} takes entry {taken[0]}, and its disk has room for {room.name}")

    def _check_room_of_voters(self, host: Host, inputs: Sequence[Input], write: Write) -> None:
        """Check that a leader makes no entry with payloads while voters with space are too few, and would be enough
        if those had space that answer, by what it knows, and say that they have none."""
        replica = host.running
        leads, needed = replica.leadership, replica.members.latest.majority
        if leads is None or any(type(each) in _NEWS for each in inputs):
            return
        if not any(e.kind == _DATA and self.leaders.get(e.term) == replica.me for e in write.entries):
            return
        since_s = replica.now_s - replica.cfg.election_timeout_s
        voters = [leads.peers[member.id] for member in replica.members.other_voters()]
        answer = [peer for peer in voters if peer.heard_s > since_s and peer.who.id in replica.connected]
        with_space = sum(peer.room is Room.PLENTY for peer in answer) + replica.members.i_vote
        if with_space < needed <= len(answer) + replica.members.i_vote:
            raise Broken("no space", f"leader {host.id} takes payloads, and {with_space} of {needed} voters have space")

    def _check_referrals(self, host: Host, ready: Ready) -> None:
        for reply in ready.replies:
            if isinstance(reply, Refused) and reply.leader == host.id:
                raise Broken("referral", f"server {host.id} does not lead, and sends a client back to itself")

    # -- leaders ----------------------------------------------------------------------------------------

    def _check_leader(self, host: Host) -> None:
        replica = host.running
        known = self.leaders.get(replica.term)
        if known is None:
            self.leaders[replica.term] = replica.me
            # Late votes may make a leader when a later term has guaranteed entries already: those it need not hold.
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
        """Check that a leader's guaranteed mark has moved to an entry of the leader's own term (R13)."""
        replica = host.running
        term = replica.log.term_at(replica.guaranteed_id)
        if term != replica.term:
            raise Broken(
                "own term",
                f"leader {host.id} of term {replica.term} goes by entry {replica.guaranteed_id} of term {term}",
            )

    def _check_follower(self, host: Host, sender: Identity, request: AppendRequest) -> None:
        replica = host.running
        if replica.term != request.term or replica.leader != sender or replica.state is not State.PASSIVE:
            return
        entries = request.entries
        upto, term = (entries[-1].id, entries[-1].term) if entries else (request.prev_id, request.prev_term)
        if replica.log.term_at(upto) != term or replica.log.term_at(request.prev_id) != request.prev_term:
            return
        if replica.guaranteed_id < min(upto, request.guaranteed_id):
            raise Broken("prompt mark", f"server {host.id} was told of {request.guaranteed_id}, knows {upto}, marks "
                         f"{replica.guaranteed_id}")

    def _check_votes(self, host: Host, ready: Ready) -> None:
        """Check that no vote goes to a candidate whose log is behind the voter's log before the step (R4): entries may
        come in before the vote leaves."""
        for envelope in (*ready.send, *ready.send_after_write):
            answer = envelope.message
            if type(answer) is not VoteAnswer or answer.answer is not Vote.GRANTED:
                continue
            asker = self._stage.hosts[envelope.target.id].replica
            if asker is not None and asker.state is State.CANDIDATE and asker.term == answer.request_term:
                if asker.rank.log < self._ranks[host.id]:
                    raise Broken("rank", f"server {host.id} votes for {envelope.target.id}, whose log is behind")

    # -- marks ------------------------------------------------------------------------------------------

    def _check_mark(self, host: Host, ready: Ready) -> None:
        """Check a guaranteed mark that has moved: the entries up to it are the one log, or become its next part."""
        replica = host.running
        first_id, mark = max(self._seen[host.id], replica.log.base_id) + 1, replica.guaranteed_id
        known = len(self.guaranteed)
        if mark > known:
            self._check_on_majority(host, mark, list_before(host, ready)[1])
            self._marks_of[replica.term] = mark
        for entry in self._entries(host, first_id, mark):
            if entry.id <= known:
                if self.guaranteed[entry.id - 1][11] != entry[11]:
                    raise Broken("one log", f"server {host.id} holds another entry {entry.id} guaranteed")
            else:
                self._take(entry)
        self._seen[host.id] = mark
        known_id = max(mark, replica.applied_id)  # a trim mark that came with a base may be ahead of the log
        trims = self._trims[: bisect_right(self._trims, (known_id, 1 << 62))]
        expected = max((lsn for _, lsn in trims), default=1)
        if replica.cleaning.trim_lsn != expected:
            raise Broken("trimmed", f"server {host.id} trims below LSN {replica.cleaning.trim_lsn}, not {expected}")

    def _entries(self, host: Host, first_id: int, last_id: int) -> list[Entry]:
        replica = host.running
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
        """Check a first member list against those on all present disks. Lost disks need not count: nothing rests on a
        list before a majority has started, and fewer disks than a majority get lost.
        """
        for other in self._stage.hosts.values():
            if other.store.boot().start.cluster not in (b"", cluster):
                raise Broken("first start", f"server {host.id} starts with another first list than server {other.id}")

    def disk_term_at(self, who: Identity, id: int) -> int | None:
        """The term of entry ``id`` on disk ``who``, which may be lost by now; None if the entry never was there."""
        terms = self._disks.get(who, ())
        return terms[id - 1] if id <= len(terms) else None

    def _check_on_majority(self, host: Host, mark: int, members: MemberList) -> None:
        """Check that entry ``mark`` is on a majority's disks. Lost disks count: they held what they had accepted."""
        replica = host.running
        term = replica.log.term_at(mark)
        holders = 0
        for member in members.voters:
            holders += term is not None and self.disk_term_at(member.identity, mark) == term
        if holders < members.majority:
            raise Broken(
                "guaranteed on a majority",
                f"server {host.id} calls entry {mark} of term {term} guaranteed; it is on {holders} disks",
            )


def _entries_sent(inputs: Sequence[Input]) -> set[int]:
    """The ids of all entries that other servers sent in these inputs."""
    said = [each.envelope.message for each in inputs if isinstance(each, Received)]
    return {entry.id for message in said if isinstance(message, AppendRequest) for entry in message.entries}


def list_before(host: Host, ready: Ready) -> tuple[int, MemberList]:
    """The member list by which a server counts in a step: (id of the entry that made it, list). A leader counts before
    it changes the list itself, and before it steps down and takes another leader's."""
    replica = host.running
    if host.led_by is not None:
        return host.led_by
    if replica.state is State.LEADER and ready.write is not None:
        first = next((entry.id for entry in ready.write.entries if entry.kind == _MEMBERS), None)
        if first is not None:
            return replica.members.at(first - 1)
    return replica.members.latest_id, replica.members.latest
