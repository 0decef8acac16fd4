"""The leader's side of the log: what each peer holds, what is under way to it, what is guaranteed (R11-R18).

Laws:

* A peer's ``match_id`` only comes from its own durable acceptances of this reign.
* Nothing is guaranteed but by an entry of our own term (R13); our own copy counts once it is on disk.
* What is in flight to a peer is bounded in bytes and requests; what a slow peer misses is read from disk.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from .disk import Load
from .entries import Entry
from .members import Identity
from .messages import AppendAnswer, AppendRequest, Room, WentBack
from .ranks import lower_median, majority_mark

if TYPE_CHECKING:
    from .replica import Replica

REQUESTS_MAX = 32  # append requests in flight to one peer
NEVER_S = float("-inf")
FAR_ENTRIES = 8_192  # from so far behind on a peer is brought up in small requests, for the others' sake
PARTING_TIMEOUTS = 10  # election timeouts for which one who is gone from the list is told so


class Progress:
    """What the leader knows of one peer."""

    def __init__(self, who: Identity, next_id: int, now_s: float) -> None:
        self.who = who
        self.match_id = 0  # accepted, durably, in this reign
        self.base_id = next_id - 1  # where we believe that its log equals ours
        self.next_id = next_id  # the next entry to send
        self.probing = False  # base_id is being asked about: nothing else leaves
        self.matched = False  # base_id has been confirmed in this reign
        self.last_id = 0  # up to here its log is equal to ours, on disk or not, as last told
        self.in_flight: deque[tuple[int, int]] = deque()  # (last id, bytes) a request
        self.in_flight_bytes = 0
        self.waiting_since_s = now_s  # since then something is in flight and nothing more was accepted
        self.heard_s = now_s
        self.really_heard = False
        self.sent_s = NEVER_S
        self.sent_guaranteed_id = -1
        self.sent_fully_id = -1
        self.round = 0  # the newest that it answered
        self.accepted_round = 0  # the newest that it answered by an acceptance
        self.loading: int | None = None  # generation of the load under way
        self.loaded: list[Entry] | None = None
        self.stopping = False
        self.room = Room.PLENTY  # as last told
        self.doubted_round = 0  # it may have forgotten what it acknowledged: an answer to this round tells; 0: no doubt
        self.doubted_id = 0  # the last entry that it had acknowledged when the doubt began
        self.parting_until_s: float | None = None  # no member any more: only told so

    def rewind(self) -> None:
        """Forget what is in flight: go on from what is known to be accepted (R17)."""
        self.next_id = self.base_id + 1
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.loading = None
        self.loaded = None

    def took(self, match_id: int) -> None:
        """It holds everything up to ``match_id``."""
        self.matched = True
        self.probing = False
        if match_id > self.match_id:
            self.match_id = match_id
        self.base_id = self.match_id
        if self.next_id <= self.match_id:
            self.next_id = self.match_id + 1
        while self.in_flight and self.in_flight[0][0] <= self.match_id:
            self.in_flight_bytes -= self.in_flight.popleft()[1]

    def forgot(self) -> None:
        """A learner that has forgotten what it acknowledged: nothing rests on that, and it is matched anew (R31)."""
        self.match_id = self.last_id = self.doubted_round = 0
        self.matched = False


class Replication:
    """One reign's view of the peers. A new one is made for every reign."""

    def __init__(self, replica: Replica) -> None:
        self._r = replica
        self.began_s = replica.now_s
        self.first_id = replica.log.last_id + 1  # of the LEADER entry: our term begins here
        self.peers: dict[int, Progress] = {}
        self._voters: list[Progress] = []  # of those
        self._replicas: list[Progress] = []  # voters and learners
        self._marks_due_s = float("inf")  # when a mark that moved leaves by itself
        self.sync_members()

    def sync_members(self) -> None:
        """Follow the latest member list; another incarnation is another member. Who is gone from it is told for a
        while."""
        r = self._r
        wanted = {m.id: m for m in r.members.other_replicas()}
        for id, peer in list(self.peers.items()):
            if id in wanted and wanted[id].identity == peer.who:
                peer.parting_until_s = None
            elif id not in wanted and r.members.latest.identity_of(id) == peer.who:
                peer.parting_until_s = peer.parting_until_s or r.now_s + PARTING_TIMEOUTS * r.cfg.election_timeout_s
            else:
                del self.peers[id]
        for id, member in wanted.items():
            if id not in self.peers:
                self.peers[id] = Progress(member.identity, r.log.last_id + 1, r.now_s)
        self._voters = [self.peers[m.id] for m in r.members.other_voters()]
        self._replicas = [self.peers[id] for id in wanted]

    def progress(self, who: Identity) -> Progress | None:
        found = self.peers.get(who.id)
        return found if found is not None and found.who == who else None

    # -- sending ----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send every peer what has gathered; a mark that moved leaves by itself if nothing else does (R16)."""
        r = self._r
        behind = []
        for peer in self.peers.values():
            if peer.who.id in r.connected:
                self._flush_peer(peer)
                if peer.matched and peer.sent_guaranteed_id < r.guaranteed_id:
                    behind.append(peer)
        if not behind:
            self._marks_due_s = float("inf")
        elif r.now_s >= self._marks_due_s:
            self._marks_due_s = float("inf")
            for peer in behind:
                self._send(peer, peer.base_id, [], 0)
        else:  # the next append is most often on its way already, and carries it
            self._marks_due_s = min(self._marks_due_s, r.now_s + r.cfg.mark_delay_s)

    def _flush_peer(self, peer: Progress) -> None:
        r = self._r
        while not peer.probing and peer.next_id <= r.log.last_id and self._room(peer):
            found = self._entries_for(peer)
            if found is None:
                break
            entries, size = found
            self._send(peer, peer.next_id - 1, entries, r.reads.round)
            if not peer.in_flight:
                peer.waiting_since_s = r.now_s
            peer.next_id = entries[-1].id + 1
            peer.in_flight.append((peer.next_id - 1, size))
            peer.in_flight_bytes += size

    def _room(self, peer: Progress) -> bool:
        return peer.room is not Room.NONE and (
            len(peer.in_flight) < REQUESTS_MAX and peer.in_flight_bytes < self._r.cfg.peer_inflight_bytes_max
        )

    def _entries_for(self, peer: Progress) -> tuple[list[Entry], int] | None:
        """From the tail, or from what was loaded; asks for a load if neither has it."""
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
        peer = self.peers.get(peer_id)
        if peer is None or peer.loading is None:
            return
        peer.loading = None
        if generation == self._r.log.generation and entries and entries[0].id == peer.next_id:
            peer.loaded = entries

    def _send(self, peer: Progress, prev_id: int, entries: list[Entry], round: int) -> None:
        r = self._r
        prev_term = r.log.term_at(prev_id)
        assert prev_term is not None
        peer.sent_s = r.now_s
        peer.sent_guaranteed_id = r.guaranteed_id
        # The mark counts members alone: to anybody else it would say that his disk forgot what it never had (R31).
        fully_id = r.fully_replicated_id if peer.parting_until_s is None else 0
        peer.sent_fully_id = fully_id
        r.out.send(
            peer.who,
            AppendRequest(r.term, prev_id, prev_term, r.guaranteed_id, fully_id, round, entries),
        )

    def heartbeat(self, peer: Progress) -> None:
        """Also the probe, and what carries a read round."""
        self._send(peer, peer.base_id, [], self._r.reads.round)

    def ask_all(self) -> None:
        """A heartbeat to everyone now: a round has begun (R25, R27)."""
        for peer in self.peers.values():
            if peer.who.id in self._r.connected:
                self.heartbeat(peer)

    # -- time -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        r, cfg = self._r, self._r.cfg
        for peer in self.peers.values():
            if peer.in_flight and r.now_s - peer.waiting_since_s >= cfg.election_timeout_s:
                # A server that has it all in its log and answers has a slow disk: to send again would not help.
                if r.now_s - peer.heard_s >= cfg.election_timeout_s or peer.last_id < peer.in_flight[0][0]:
                    self._probe(peer)
            if r.now_s - peer.sent_s >= cfg.heartbeat_s:
                self.heartbeat(peer)
        self._part()
        if not self.heard_majority():
            r.out.event("leader_lost_majority", term=r.term)
            r.become_passive()

    def _part(self) -> None:
        """Leave those who are gone from the list, once they were told for long enough."""
        for id, peer in list(self.peers.items()):
            if peer.parting_until_s is not None and self._r.now_s >= peer.parting_until_s:
                del self.peers[id]

    def deadline_s(self) -> float:
        """The next heartbeat, or the end of patience with a silent majority (R15)."""
        if not self.peers:
            return float("inf")
        due = min([p.sent_s for p in self.peers.values()]) + self._r.cfg.heartbeat_s
        return max(min(due, self._marks_due_s), self._r.now_s)

    def heard_majority(self) -> bool:
        """R15: by voters alone, ourselves included, within T."""
        r = self._r
        since_s = r.now_s - r.cfg.election_timeout_s
        heard = r.members.i_vote + len([p for p in self._voters if p.heard_s > since_s])
        return heard >= r.members.latest.majority

    def connected(self, id: int) -> None:
        """A new connection: whatever was in flight is lost (R17)."""
        peer = self.peers.get(id)
        if peer is not None:
            self._probe(peer)
            self.heartbeat(peer)

    def _probe(self, peer: Progress) -> None:
        peer.rewind()
        peer.probing = True
        peer.waiting_since_s = self._r.now_s

    def based(self, peer: Progress, base_id: int) -> None:
        """Its log begins after ``base_id`` now, on its disk."""
        peer.took(base_id)
        peer.rewind()

    def cleaned(self, base_id: int) -> None:
        """Our log begins after ``base_id`` now. Every peer holds all up to there (R19): ask each no further back."""
        for peer in self.peers.values():
            if peer.base_id < base_id:
                peer.base_id = base_id
                self._probe(peer)

    # -- answers ----------------------------------------------------------------------------------------

    def on_answer(self, sender: Identity, answer: AppendAnswer) -> None:
        r = self._r
        peer = self.progress(sender)
        if peer is None or answer.term != r.term:
            return
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
                    peer.waiting_since_s = r.now_s
                peer.took(answer.match_id)
                peer.base_id = max(peer.base_id, r.log.base_id)  # one that is damaged may count less (R31)
                self.count()
        elif peer.matched and answer.last_id < peer.match_id:
            self._doubt(peer, answer)
        elif peer.probing and answer.prev_id == peer.base_id == r.log.base_id > 0:
            if r.changes is not None:
                r.changes.newcomers.want_base(sender)  # it cannot match any entry that we hold
        elif not peer.matched or answer.prev_id > peer.match_id:
            self._step_back(peer, answer)

    def _doubt(self, peer: Progress, answer: AppendAnswer) -> None:
        """It says that it holds less than it acknowledged: an old answer, or a store that went back (R31). An answer to
        a round begun from now on tells."""
        r = self._r
        if not peer.doubted_round:
            peer.doubted_round, peer.doubted_id = r.reads.begin_round(), peer.match_id
        elif answer.round >= peer.doubted_round and answer.last_id >= peer.doubted_id:
            peer.doubted_round = 0  # what it acknowledged since has overtaken this answer
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
        """R12: by whole terms; R17: once a refusal, not once a duplicate of it."""
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
        """R13 and R18, after anybody's acceptance."""
        r = self._r
        mark = self.mark_with(r.log.stable_id)
        if mark > r.guaranteed_id and mark >= self.first_id:
            r.set_guaranteed(mark)
        if r.members.latest_id <= r.guaranteed_id:
            low = min([r.damage.sound(r.log.stable_id), *[p.match_id for p in self._replicas]])
            r.fully_replicated_id = max(r.fully_replicated_id, min(low, r.guaranteed_id))

    def mark_with(self, stable_id: int) -> int:
        """What a majority has accepted, our own copy being on disk up to ``stable_id``."""
        marks = [p.match_id for p in self._voters]
        if self._r.members.i_vote:
            stable_id = self._r.damage.sound(stable_id)
            marks.append(stable_id)
        return majority_mark(marks)

    def can_wait(self, sender: Identity, message: object) -> bool:
        """An acceptance of what is guaranteed already, by a peer that has everything and is as it was: see
        `Replica.can_wait`. A heartbeat's answer may be what a change of the members waits for."""
        r, peer = self._r, self.progress(sender)
        settled = len(self._voters) == len(self.peers) and r.changes is not None and r.changes.pending is None
        return (
            type(message) is AppendAnswer
            and message.ok
            and message.term == r.term
            and message.match_id <= r.guaranteed_id
            and (settled or message.prev_id < message.match_id)
            and peer is not None
            and peer.matched
            and peer.next_id > r.log.last_id
            and message.room is peer.room
            and message.stopping is peer.stopping
        )

    def now_ms(self, own_wall_ms: int, clocks: dict[int, tuple[int, float]]) -> int:
        """Entry time: the lower median of the clocks of the voters heard in this reign, ours included."""
        r = self._r
        walls = [own_wall_ms]
        for peer in self._voters:
            clock = clocks.get(peer.who.id)
            if clock is not None:
                walls.append(clock[0] + int((r.now_s - clock[1]) * 1000))
        return lower_median(walls)

    def heard_within(self, seconds: float) -> list[Progress]:
        """Voters that really answered in this reign, within ``seconds``."""
        r = self._r
        return [p for p in self._voters if p.really_heard and r.now_s - p.heard_s <= seconds]
