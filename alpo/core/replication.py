"""The leader's side of replication: what it knows of each peer (R12, R16, R17), what a voter may lack and the order in
which heirs are tried; sending entries to each peer, and counting what is guaranteed (R11-R18).

Laws:

* A peer's ``match_id`` only comes from its own durable acceptances in this reign.
* Entries become guaranteed only when an entry of our own term does (R13); our own copy counts once it is on disk.
* Requests in flight to a peer are bounded, in number and bytes; entries that a slow peer needs and memory no longer
  holds are read from disk.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from operator import attrgetter

from .damage import Damage
from .disk import Load
from .entries import Entry, Kind, seal
from .log import AHEAD_TOLD_MS
from .members import CAUGHT_UP_ENTRIES, Identity
from .messages import AppendAnswer, AppendRequest, Room, WentBack
from .ranks import lower_median, majority_mark
from .ready import Input, Persisted, Received
from .shared import Shared

NEVER_S = float("-inf")
#: Election timeouts for which a voter may owe the acceptance of what it was sent, and still count as one that accepts.
OWING_TIMEOUTS = 2


class Lack(StrEnum):
    """Reasons why no append can count on a voter now, with words for them, the gravest first."""

    SILENT = "does not answer"
    FULL = "is low on disk space and takes no entries"
    LOW = "is low on disk space"
    DAMAGED = "holds damaged entries"
    NEW = "has not confirmed its log yet"
    OWES = "confirms no entries"
    BEHIND = "has yet to catch up"


class Progress:
    """The leader's knowledge of one peer. Times are monotonic seconds."""

    def __init__(self, who: Identity, next_id: int, now_s: float) -> None:
        self.who = who
        self.match_id = 0  # the peer has durably accepted the log up to here in this reign
        self.base_id = next_id - 1  # the last id up to which its log is believed to equal ours
        self.next_id = next_id  # the next entry to send
        self.probing = False  # True while heartbeats ask about base_id: no entries are sent
        self.matched = False  # True once it has accepted base_id in this reign
        self.last_id = 0  # the peer's log equals ours up to here, on disk or not, by its last answer
        self.in_flight: deque[tuple[int, int, float]] = deque()  # (last id, bytes, when it was sent) of each request
        self.in_flight_bytes = 0
        self.waiting_since_s = now_s  # time since which requests are in flight and nothing more was accepted
        self.moved_s = now_s  # time when the peer last owed no acceptance, or accepted more, or took part of a message
        self.took_s = 0.0  # seconds from sending the entries that the peer accepted last to its acceptance
        self.heard_s = now_s
        self.sending_s = now_s  # time when part of a message last left for the peer
        self.really_heard = False
        self.asked_s = NEVER_S  # time when the peer was last sent a message that it answers
        self.sent_guaranteed_id = -1
        self.sent_fully_id = -1
        self.round = 0  # newest read round that it answered
        self.accepted_round = 0  # newest read round that it answered by an acceptance
        self.loading: int | None = None  # generation of the load under way
        self.loaded: list[Entry] | None = None
        self.stopping = False
        self.room = Room.PLENTY  # space on its disk, by its last answer
        self.doubted_round = 0  # the answer to this round tells whether the peer's disk went back; 0: no doubt
        self.doubted_id = 0  # last entry that it had acknowledged when the doubt began
        self.parting_until_s: float | None = None  # time until which a removed member is informed; None: a member

    def rewind(self) -> None:
        """Forget what is in flight and loaded, and send again from ``base_id`` on (R17)."""
        self.next_id = self.base_id + 1
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.loading = None
        self.loaded = None

    def took(self, match_id: int, at_s: float) -> None:
        """Note that the peer holds everything up to ``match_id``, durably, and said so at ``at_s``."""
        self.matched = True
        self.probing = False
        if match_id > self.match_id:
            self.match_id = match_id
        self.base_id = self.match_id
        if self.next_id <= self.match_id:
            self.next_id = self.match_id + 1
        self._arrived(self.match_id, at_s)

    def wrote(self, written_id: int, at_s: float) -> bool:
        """Note that the peer has the log up to ``written_id`` on its disk, although not all of it counts as accepted,
        because some is damaged (R31). Returns True if that was not known."""
        self.next_id = max(self.next_id, written_id + 1)
        return self._arrived(written_id, at_s)

    def _arrived(self, id: int, at_s: float) -> bool:
        """Take what is in flight up to ``id`` off the pipeline; returns True if there was any."""
        before = len(self.in_flight)
        while self.in_flight and self.in_flight[0][0] <= id:
            _, size, sent_s = self.in_flight.popleft()
            self.in_flight_bytes -= size
            self.took_s = at_s - sent_s
        return len(self.in_flight) < before

    def owed_s(self, now_s: float) -> float:
        """The time for which the peer owes an acceptance, or that its last one took if that is longer; round trips are
        in it."""
        return max(self.took_s, now_s - self.in_flight[0][2] if self.in_flight else 0.0)

    def forgot(self) -> None:
        """Begin to match anew with a learner whose disk has forgotten entries: it counts for no majority (R31)."""
        self.match_id = self.last_id = self.doubted_round = 0
        self.matched = False


def next_in_turn(fit: list[Progress], tried: list[int]) -> Progress | None:
    """The first of ``fit`` whose id is not in ``tried``, which gets that id; None if ``fit`` is empty. Once all were
    tried, ``tried`` is emptied and all have another turn."""
    untried = [peer for peer in fit if peer.who.id not in tried]
    if not untried:
        tried.clear()
        untried = fit
    if not untried:
        return None
    tried.append(untried[0].who.id)
    return untried[0]


REQUESTS_MAX = 32  # append requests in flight to one peer
FAR_ENTRIES = 8_192  # a peer this far behind gets small requests, so that other peers do not wait
_MATCH_ID = attrgetter("match_id")
PARTING_TIMEOUTS = 10  # election timeouts for which a removed member still gets requests, which inform it


class Replication:
    """The peers as one leader sees them in one term. A new object is made for each term led."""

    def __init__(self, shared: Shared, damage: Damage) -> None:
        self._r = shared
        self._damage = damage
        self.began_s = shared.now_s
        self.first_id = shared.log.last_id + 1  # id of the LEADER entry: our term begins here
        self.peers: dict[int, Progress] = {}
        self.voters: list[Progress] = []  # the voters among ``peers``
        self._replicas: list[Progress] = []  # the voters and learners among ``peers``
        self._sent: AppendRequest | None = None  # the last one: peers at the same place get the same, encoded once
        self._own_stable_id = shared.log.stable_id
        self._own_moved_s = shared.now_s  # time when our disk last owed nothing, or finished a write
        self.marks_due_s = float("inf")  # monotonic seconds at which a raised mark is sent alone
        #: The time before which `tick` has nothing to do, and the one before which no heartbeat is due: monotonic
        #: seconds, as of the last `tick`. What is sent and heard since then only makes both later.
        self.quiet_until_s = self.heartbeat_due_s = 0.0
        self.sync_members()

    def sync_members(self) -> None:
        """Make ``peers`` those of the latest member list; another incarnation is another peer. Removed members stay for
        a while, to hear of it."""
        r = self._r
        wanted = {m.id: m for m in r.members.other_replicas()}
        for id, peer in list(self.peers.items()):
            if id in wanted and wanted[id].identity == peer.who:
                peer.parting_until_s = None
            elif id not in wanted and r.members.latest.identity_of(id) == peer.who:
                peer.parting_until_s = peer.parting_until_s or r.now_s + PARTING_TIMEOUTS * r.cfg.election_timeout_s
            else:
                del self.peers[id]
        self.quiet_until_s = self.heartbeat_due_s = r.now_s
        for id, member in wanted.items():
            if id not in self.peers:
                self.peers[id] = Progress(member.identity, r.log.last_id + 1, r.now_s)
        self.voters = [self.peers[m.id] for m in r.members.other_voters()]
        self._replicas = [self.peers[id] for id in wanted]

    def progress(self, who: Identity) -> Progress | None:
        """The progress of peer ``who``; None if this very incarnation is no peer."""
        found = self.peers.get(who.id)
        return found if found is not None and found.who == who else None

    def append_special(self, kind: Kind, body: bytes, client: str = "") -> Entry:
        """Append an entry without payloads, made by this leader. Returns it."""
        r = self._r
        entry = seal(r.log.last_id + 1, r.term, kind, self.entry_time_ms(), r.log.next_lsn, body, client)
        r.append_entries([entry])
        return entry

    # -- sending ----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send every connected peer the entries that it may get now. A raised guaranteed mark that no entries carried
        is sent alone after ``mark_delay_s`` (R16)."""
        r = self._r
        if r.log.stable_id == r.log.last_id or r.log.stable_id != self._own_stable_id:
            self._own_stable_id, self._own_moved_s = r.log.stable_id, r.now_s
        behind = []
        for peer in self.peers.values():
            if peer.match_id >= r.log.last_id:
                peer.moved_s = r.now_s
            if peer.who.id in r.connected:
                if peer.next_id <= r.log.last_id:
                    self._flush_peer(peer)
                if peer.matched and peer.sent_guaranteed_id < r.guaranteed_id:
                    behind.append(peer)
        if not behind:
            self.marks_due_s = float("inf")
        elif r.now_s >= self.marks_due_s:
            self.marks_due_s = float("inf")
            for peer in behind:
                self._send(peer, peer.base_id, [], 0)
        else:  # the next append is mostly on its way already, and carries the mark
            self.marks_due_s = min(self.marks_due_s, r.now_s + r.cfg.mark_delay_s)

    def _flush_peer(self, peer: Progress) -> None:
        r = self._r
        if r.guaranteed_id < self.first_id and not r.members.latest.is_voter(peer.who):
            return  # a learner with an entry of this term could outrank voters that need its vote (R27)
        while not peer.probing and peer.next_id <= r.log.last_id and self._room(peer):
            found = self._entries_for(peer)
            if found is None:
                break
            entries, size = found
            self._send(peer, peer.next_id - 1, entries, r.round)
            if not peer.in_flight:
                peer.waiting_since_s = r.now_s
            peer.next_id = entries[-1].id + 1
            peer.in_flight.append((peer.next_id - 1, size, r.now_s))
            peer.in_flight_bytes += size

    def _room(self, peer: Progress) -> bool:
        """True if one more request may be in flight to ``peer``."""
        return peer.room is not Room.NONE and (
            len(peer.in_flight) < REQUESTS_MAX and peer.in_flight_bytes < self._r.cfg.peer_inflight_bytes_max
        )

    def _entries_for(self, peer: Progress) -> tuple[list[Entry], int] | None:
        """The entries to send to a peer and the bytes of their bodies, from memory or from a finished load; None if
        neither has them: then a load from disk is asked for."""
        r = self._r
        far = r.log.last_id - peer.next_id > FAR_ENTRIES
        found = r.log.slice(peer.next_id, r.cfg.load_bytes_max if far else r.cfg.request_bytes_max)
        if found is not None:
            return found
        loaded, peer.loaded = peer.loaded, None
        if loaded and loaded[0].id == peer.next_id:
            return loaded, sum([len(e.body) for e in loaded])
        if peer.loading is None:
            peer.loading = r.log.generation
            r.out.load(Load(peer.who.id, peer.next_id, r.cfg.load_bytes_max, r.log.generation))
        return None

    def on_loaded(self, peer_id: int, generation: int, entries: list[Entry]) -> None:
        """Keep entries that were read from disk for a peer, unless an expunge may have changed them meanwhile."""
        peer = self.peers.get(peer_id)
        if peer is None or peer.loading is None:
            return
        peer.loading = None
        if generation == self._r.log.generation and entries and entries[0].id == peer.next_id:
            peer.loaded = entries

    def _send(self, peer: Progress, prev_id: int, entries: list[Entry], round: int) -> None:
        r = self._r
        if round:  # a mark alone gets no answer, and does not show whether the peer lives
            peer.asked_s = r.now_s
        peer.sent_guaranteed_id = r.guaranteed_id
        # A removed member gets no mark: it would conclude that its disk forgot entries that it never had (R31).
        fully_id = r.fully_replicated_id if peer.parting_until_s is None else 0
        peer.sent_fully_id = fully_id
        last = self._sent
        if (
            last is None or not entries or last.entries is not entries or last.prev_id != prev_id
            or last.guaranteed_id != r.guaranteed_id or last.fully_replicated_id != fully_id or last.round != round
        ):
            prev_term = r.log.term_at(prev_id)
            assert prev_term is not None
            last = self._sent = AppendRequest(
                r.term, prev_id, prev_term, r.guaranteed_id, fully_id, round, entries
            )
        r.out.send(peer.who, last)

    def heartbeat(self, peer: Progress) -> None:
        """Send a heartbeat: it asks whether the peer's log matches at ``base_id``, and carries the newest read
        round."""
        self._send(peer, peer.base_id, [], self._r.round)

    def begin_round(self) -> int:
        """Begin a read round with a heartbeat to every connected peer (R25, R27). Returns its number."""
        number = self._r.next_round()
        for peer in self.peers.values():
            if peer.who.id in self._r.connected:
                self.heartbeat(peer)
        return number

    # -- time -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Send heartbeats that are due, resend what stays unanswered, step down if a majority is silent (R15)."""
        r, cfg = self._r, self._r.cfg
        if r.now_s < self.quiet_until_s:
            return
        for peer in self.peers.values():
            if peer.in_flight and r.now_s - peer.waiting_since_s >= cfg.election_timeout_s:
                # A peer that answers, and has in its log all that was sent, has a slow disk: sending again would not
                # help.
                if r.now_s - peer.heard_s >= cfg.election_timeout_s or peer.last_id < peer.in_flight[0][0]:
                    self._probe(peer)
            if r.now_s >= self._beat_s(peer):
                self.heartbeat(peer)
        self._part()
        self._look_at_clocks()
        if not self.heard_majority():
            r.out.event("leader_lost_majority", term=r.term)
            r.become_passive()
        self.quiet_until_s = self._next_tick_s()

    def _next_tick_s(self) -> float:
        """The time before which `tick` has nothing to do, monotonic seconds. Notes when the next heartbeat is due."""
        r, cfg = self._r, self._r.cfg
        due_s = [self._beat_s(peer) for peer in self.peers.values()]
        self.heartbeat_due_s = min(due_s, default=float("inf"))
        due_s += [peer.parting_until_s for peer in self.peers.values() if peer.parting_until_s is not None]
        since_s = [max(peer.heard_s, peer.sending_s) for peer in self.voters]
        since_s = [each_s for each_s in since_s if each_s > r.now_s - cfg.election_timeout_s]
        since_s += [peer.waiting_since_s for peer in self.peers.values() if peer.in_flight]
        return min([*due_s, *(each_s + cfg.election_timeout_s for each_s in since_s)], default=r.now_s)

    def _beat_s(self, peer: Progress) -> float:
        """The time of the peer's next heartbeat, monotonic seconds. Logs besides the first send theirs at the multiples
        of two intervals, so that the quiet ones are served together."""
        every_s = self._r.cfg.heartbeat_s
        if self._r.cfg.first_log or peer.asked_s == NEVER_S:
            return peer.asked_s + every_s
        return math.floor(peer.asked_s / every_s / 2 + 1) * every_s * 2

    def _part(self) -> None:
        """Drop removed members once they have been informed for long enough."""
        for id, peer in list(self.peers.items()):
            if peer.parting_until_s is not None and self._r.now_s >= peer.parting_until_s:
                del self.peers[id]

    def deadline_s(self) -> float:
        """The time at which a heartbeat may be due, or a mark is, monotonic seconds; infinity without peers."""
        due_s = self.heartbeat_due_s if self.heartbeat_due_s < self.marks_due_s else self.marks_due_s
        return due_s if due_s > self._r.now_s else self._r.now_s

    def heard_majority(self) -> bool:
        """True if a majority of voters, this server included, was heard within an election timeout, or was being sent a
        message: its answers wait behind that (R15)."""
        r = self._r
        since_s = r.now_s - r.cfg.election_timeout_s
        heard = r.members.i_vote + len([p for p in self.voters if max(p.heard_s, p.sending_s) > since_s])
        return heard >= r.members.latest.majority

    def lack_of(self, peer: Progress) -> Lack | None:
        """The reason why no append can count on voter ``peer`` now; None if it can."""
        r, timeout_s = self._r, self._r.cfg.election_timeout_s
        if peer.who.id not in r.connected or peer.heard_s <= r.now_s - timeout_s:
            return Lack.SILENT
        if peer.room is not Room.PLENTY:
            return Lack.FULL if peer.room is Room.NONE else Lack.LOW
        if not peer.matched:
            return Lack.NEW
        if peer.match_id < r.log.last_id and peer.moved_s <= r.now_s - OWING_TIMEOUTS * timeout_s:
            return Lack.OWES
        return Lack.BEHIND if peer.match_id + CAUGHT_UP_ENTRIES < r.guaranteed_id else None

    def lacks(self) -> dict[int, Lack]:
        """The voters on which no append can count now, without this server, and why."""
        found = {peer.who.id: self.lack_of(peer) for peer in self.voters}
        return {id: lack for id, lack in sorted(found.items()) if lack is not None}

    def own_lack(self) -> Lack | None:
        """The reason why no append can count on our own disk now, want of space aside; None if it can."""
        r = self._r
        if self._damage.binds:
            return Lack.DAMAGED
        owes = r.log.stable_id < r.log.last_id
        since_s = r.now_s - OWING_TIMEOUTS * r.cfg.election_timeout_s
        return Lack.OWES if owes and self._own_moved_s <= since_s else None

    def connected(self, id: int) -> None:
        """Probe the log of a peer that has a new connection: what was in flight to it is lost (R17)."""
        peer = self.peers.get(id)
        if peer is not None:
            peer.moved_s = self._r.now_s
            self._probe(peer)
            self.heartbeat(peer)

    def moving(self, who: Identity, at_s: float) -> None:
        """Note that a message to ``who`` was still leaving at ``at_s``: what is in flight is not lost (R17), and an
        answer to what was sent meanwhile is not late (R15)."""
        peer = self.progress(who)
        if peer is not None:
            peer.waiting_since_s = max(peer.waiting_since_s, at_s)
            peer.sending_s = max(peer.sending_s, at_s)
            if peer.in_flight and peer.last_id < peer.in_flight[0][0]:  # else its disk owes, whatever else arrives
                peer.moved_s = max(peer.moved_s, at_s)

    def _probe(self, peer: Progress) -> None:
        """Send ``peer`` no entries until it has confirmed ``base_id``; heartbeats ask it."""
        peer.rewind()
        peer.probing = True
        peer.waiting_since_s = self._r.now_s

    def based(self, peer: Progress, base_id: int) -> None:
        """Note that a learner has a snapshot on its disk: its log begins after ``base_id``."""
        peer.took(base_id, self._r.now_s)
        peer.rewind()

    def cleaned(self, base_id: int) -> None:
        """Note that our log begins after ``base_id`` now. Every member holds all before that (R19): no peer is probed
        further back."""
        for peer in self.peers.values():
            if peer.base_id < base_id:
                peer.base_id = base_id
                self._probe(peer)

    # -- answers ----------------------------------------------------------------------------------------

    def on_answer(self, sender: Identity, answer: AppendAnswer) -> bool:
        """Take a peer's answer: count an acceptance, or step back after a refusal. Returns True if the peer's log
        matches ours at no entry that we hold: it needs a snapshot."""
        r = self._r
        peer = self.progress(sender)
        if peer is None or answer.term != r.term:
            return False
        peer.heard_s = max(peer.heard_s, r.came_s)
        peer.really_heard = True
        peer.stopping = answer.stopping
        peer.room = answer.room
        peer.round = max(peer.round, answer.round)
        r.note_clock(sender.id, answer.wall_ms)
        if answer.ok:
            peer.last_id = answer.last_id
            peer.accepted_round = max(peer.accepted_round, answer.round)
            if answer.round >= peer.doubted_round:
                peer.doubted_round = 0
            if answer.match_id <= r.log.last_id:
                if answer.match_id > peer.match_id:
                    peer.waiting_since_s = peer.moved_s = r.now_s
                peer.took(answer.match_id, r.came_s)
                # a peer with a damaged entry may count less than it holds (R31)
                peer.base_id = max(peer.base_id, r.log.base_id)
                if 0 < answer.conflict_id <= r.log.last_id and peer.wrote(answer.conflict_id, r.came_s):
                    peer.waiting_since_s = r.now_s
                before = r.guaranteed_id
                self.count()
                if r.guaranteed_id > before and next(iter(self.peers)) != sender.id:
                    self.peers = {sender.id: peer, **self.peers}  # the quickest is sent to first
        elif peer.matched and answer.last_id < peer.match_id:
            self._doubt(peer, answer)
        elif peer.probing and answer.prev_id == peer.base_id == r.log.base_id > 0:
            return True
        elif not peer.matched or answer.prev_id > peer.match_id:
            self._step_back(peer, answer)
        return False

    def _doubt(self, peer: Progress, answer: AppendAnswer) -> None:
        """Doubt a peer whose log ends before what it acknowledged: the answer is old, or its disk went back (R31). Its
        answer to a read round that begins now decides: a voter is told to stop, a learner is matched anew."""
        r = self._r
        if not peer.doubted_round:
            peer.doubted_round, peer.doubted_id = self.begin_round(), peer.match_id
        elif answer.round >= peer.doubted_round and answer.last_id >= peer.doubted_id:
            peer.doubted_round = 0  # the peer has acknowledged more since: this answer is old
        elif answer.round >= peer.doubted_round:
            votes = r.members.latest.is_voter(peer.who)
            name = "store_went_back" if votes else "learner_went_back"
            r.out.event(name, member=peer.who.id, last_id=answer.last_id, held_id=peer.doubted_id)
            if votes:
                r.out.send(peer.who, WentBack(r.term, peer.doubted_id))
            else:
                peer.forgot()
                self._step_back(peer, answer)

    def _step_back(self, peer: Progress, answer: AppendAnswer) -> None:
        """Go back by a whole term after a refusal (R12), and probe there; once, however often the refusal comes
        (R17)."""
        r = self._r
        if peer.probing and answer.prev_id != peer.base_id:
            return
        if answer.prev_id > r.log.last_id:
            return
        next_id = answer.last_id + 1
        if answer.conflict_term:
            ours = r.log.last_id_of_term(answer.conflict_term)
            next_id = answer.conflict_id if ours is None else min(ours + 1, answer.prev_id)
        peer.base_id = max(peer.match_id, min(next_id, answer.prev_id) - 1, r.log.base_id)
        self._probe(peer)
        self.heartbeat(peer)

    # -- marks ------------------------------------------------------------------------------------------

    def count(self) -> None:
        """Count acceptances: raise the guaranteed and the fully replicated mark (R13, R18)."""
        r = self._r
        mark = self.mark_with(r.log.stable_id)
        if mark > r.guaranteed_id and mark >= self.first_id:
            r.set_guaranteed(mark)
        low = min(map(_MATCH_ID, self._replicas), default=r.log.last_id)
        if low > r.fully_replicated_id and r.members.latest_id <= r.guaranteed_id:
            r.set_fully_replicated(min(low, self._damage.sound(r.log.stable_id)))

    def mark_with(self, stable_id: int) -> int:
        """The last id that a majority has accepted, if our own copy is on disk up to ``stable_id``."""
        marks = list(map(_MATCH_ID, self.voters))
        if self._r.members.i_vote:
            marks.append(self._damage.sound(stable_id) if self._damage.first_id else stable_id)
        return majority_mark(marks)

    def mark_after(self, inputs: Sequence[Input]) -> int:
        """The last id that a majority has accepted once these inputs are stepped, if they count."""
        stable_id, matches = self._r.log.stable_id, {peer.who.id: peer.match_id for peer in self.voters}
        for item in inputs:
            if type(item) is Persisted:
                stable_id = self._r.log.stable_after(item.number)
            elif type(item) is Received and type(item.envelope.message) is AppendAnswer:
                id, match_id = item.envelope.sender.id, item.envelope.message.match_id
                if match_id > matches.get(id, match_id):
                    matches[id] = match_id
        return majority_mark([*matches.values(), stable_id] if self._r.members.i_vote else list(matches.values()))

    def can_wait(self, sender: Identity, answer: AppendAnswer, *, changing: bool) -> bool:
        """True if ``answer`` is an acceptance that changes nothing: its entries are guaranteed, the peer has been sent
        all entries, and it reports neither another state of its disk nor that it is stopping (see `dispatch.can_wait`).
        ``changing``: a change of the members waits for heartbeats' answers.
        """
        r = self._r
        if answer.match_id > r.guaranteed_id or not answer.ok or answer.term != r.term:
            return False
        peer = self.progress(sender)
        settled = len(self.voters) == len(self.peers) and not changing
        return (
            (settled or answer.prev_id < answer.match_id)
            and peer is not None
            and peer.matched
            and peer.next_id > r.log.last_id
            and answer.room is peer.room
            and answer.stopping is peer.stopping
        )

    def entry_time_ms(self) -> int:
        """The time for the next entry, ms since 1970: never lower than the last entry's, and no single wrong clock
        moves it (rules.md#entry-time)."""
        r = self._r
        return r.log_clock.next_ms(r.now_s, self.now_ms(r.wall_ms, r.clocks), r.log.last_time_ms)

    def _look_at_clocks(self) -> None:
        """Report by events that clocks are not believed, or that the log is ahead of them: once when it begins, once
        when it ends."""
        r, clock = self._r, self._r.log_clock
        now_ms = clock.look(r.now_s, self.now_ms(r.wall_ms, r.clocks))
        ahead_ms = max(0, r.log.last_time_ms - int(now_ms))
        if bool(clock.leap_ms) != clock.told_leap:
            clock.told_leap = not clock.told_leap
            if clock.told_leap:
                r.out.event("clocks_leapt", by_ms=clock.leap_ms)
            else:
                r.out.event("clocks_leapt_no_more")
        if (ahead_ms >= AHEAD_TOLD_MS) if not clock.told_ahead else not ahead_ms:
            clock.told_ahead = not clock.told_ahead
            if clock.told_ahead:
                r.out.event("log_ahead", by_ms=ahead_ms)
            else:
                r.out.event("log_ahead_no_more")

    def now_ms(self, own_wall_ms: int, clocks: Mapping[int, tuple[int, float]]) -> int:
        """The lower median of our clock and those of the voters heard in this term, ms since 1970."""
        r = self._r
        walls = [own_wall_ms]
        for peer in self.voters:
            clock = clocks.get(peer.who.id)
            if clock is not None:
                walls.append(clock[0] + int((r.now_s - clock[1]) * 1000))
        return lower_median(walls)

    def heirs(self) -> list[Progress]:
        """The voters that have answered lately, in this reign, and are not stopping: the highest accepted id first,
        then priority (R28)."""
        r = self._r

        def order(peer: Progress) -> tuple[int, int, int]:
            member = r.members.latest.get(peer.who.id)
            return peer.match_id, member.priority if member else 0, peer.who.id

        since_s = r.now_s - r.cfg.lately_s
        fit = [p for p in self.voters if p.really_heard and p.heard_s >= since_s and not p.stopping]
        return sorted(fit, key=order, reverse=True)
