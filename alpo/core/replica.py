"""One server's protocol state: `step(inputs) -> Ready`. No clock, no sockets, no randomness of its own.

Laws:

* The same inputs at the same times, with the same random source, give the same outputs.
* A step takes a group of inputs; the `Ready` that it returns says what must be on disk before what may leave.
* ``term`` and ``guaranteed_id`` never go down; ``vote`` changes only with ``term`` or from 0.
* An invariant that breaks makes the step raise an alarm: nothing of it may be acted on, the server stops.

The parts: `election` (R1-R10), `replication` and `acceptance` (R11-R18), `cleaning` (R18-R20), `serving` and
`machine` (R21-R24), `reads` and `operator_requests` (R25), `members`, `changes`, `newcomers` and `installing` (R27,
R30), `handover` (R28), `first_start` (R29), `damage` (R31), `disk_space` (full disks). This module holds what they
share and hands inputs to them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from .acceptance import Acceptance
from .changes import Changes
from .cleaning import Cleaning, take_base
from .config import ReplicaConfig
from .cursors import Cursors
from .damage import Damage
from .disk_space import Disks
from .dispatch import INPUTS, can_wait
from .election import Election
from .entries import DamagedEntry, Entry, Kind, json_body, seal
from .first_start import FirstStart
from .handover import Handing, leave_if_removed
from .inputs import Input
from .installing import Installing
from .invariants import InvariantBroken, StoreWentBack, Watch, check_cheap
from .log import Log
from .machine.verdicts import SessionTable
from .members import Identity, MemberList, Members
from .operator_requests import Keeping
from .outbox import Outbox
from .ranks import Rank, State
from .reads import Reads
from .ready import Ready, Reply
from .replication import Replication
from .serving import Serving
from .settings import Settings
from .snapshots import table_save

# By position and in C: these run over every entry.
_KIND, _BODY = itemgetter(Entry._fields.index("kind")), itemgetter(Entry._fields.index("body"))
_ONLY_DATA = {int(Kind.DATA)}


class Replica:
    """The protocol of one server. The attributes without underscore may be read by the shell, never set.

    ``boot`` is the store's `Boot` (any object with its attributes). Then `replay` every entry above
    ``boot.applied_id``, then `start`, then `step` for ever.
    """

    def __init__(self, cfg: ReplicaConfig, boot: Any, rng: random.Random) -> None:
        self.cfg, self.me, self.rng = cfg, cfg.me, rng
        self.now_s, self.wall_ms = 0.0, 0
        self.came_s = 0.0  # when the message came that is taken just now
        self.term: int = boot.term
        self.vote: int = boot.vote
        self.state = State.PASSIVE
        self.leader: Identity | None = None
        self.last_leader_id = 0
        self.heard_s: float | None = None
        self.connected: dict[int, bool] = {}
        self.seen_addresses: dict[Identity, str] = {}  # as hellos say
        self.clocks: dict[int, tuple[int, float]] = {}
        self.wrong_incarnations: dict[int, bytes] = {}
        self.log = Log(cfg.tail_bytes_max)
        self.log.restore(boot.base, boot.runs, boot.last_id, boot.last_term, boot.last_time_ms, boot.next_lsn)
        self.guaranteed_id: int = min(boot.guaranteed_id, boot.last_id)
        self.fully_replicated_id: int = min(boot.fully_replicated_id, self.guaranteed_id)
        self.applied_id: int = boot.applied_id
        self.settings = Settings.from_plain(boot.settings or boot.start.settings or cfg.settings.to_plain())
        self.sessions = SessionTable(self.settings)
        self.sessions.load(boot.sessions, boot.horizon_ms, self.settings, boot.applied_id)
        self.members = Members(self.me)
        first = boot.members if boot.members is not None else boot.start.first_list
        if first is not None:
            self.members.restore(MemberList.from_plain(first), boot.members_id)
        self.out = Outbox(self.me)
        self.out.cluster = boot.start.cluster
        self.election: Election = Election(self)
        self.acceptance: Acceptance = Acceptance(self)
        self.serving: Serving = Serving(self)
        self.reads: Reads = Reads(self)
        self.keeping: Keeping = Keeping(self)
        self.cleaning: Cleaning = Cleaning(self, boot.trim_lsn)
        self.cursors: Cursors = Cursors(self, boot.cursors)
        self.disks: Disks = Disks(self)
        self.damage: Damage = Damage(self)
        self.leadership: Replication | None = None
        self.changes: Changes | None = None
        self.handing: Handing | None = None
        self.installing: Installing = Installing(self)
        self.save_upto_id = 0  # the table shall be saved once it stands there
        self.retired = False  # we were told that our incarnation is no member any more (R30)
        self.first_start: FirstStart = FirstStart(self, boot.start)
        self._durable_replies: list[Reply] = []
        self.watch = Watch()

    # -- what the shell may ask -------------------------------------------------------------------------

    @property
    def cluster(self) -> bytes:
        return self.out.cluster

    @property
    def leader_id(self) -> int:
        """0 while none is known."""
        if self.state is State.LEADER:
            return self.me.id
        return self.leader.id if self.leader is not None else 0

    @property
    def readable_id(self) -> int:
        """What a local reader may see (R26)."""
        return min(self.guaranteed_id, self.log.stable_id) if self.members.i_vote else 0

    @property
    def last_id(self) -> int:
        return self.log.last_id

    @property
    def horizon_ms(self) -> int:
        return self.sessions.horizon_ms

    @property
    def inflight_bytes(self) -> int:
        """Bytes of appends that are not yet guaranteed, or of entries not yet on our own disk if those are more."""
        return max(self.serving.inflight_bytes, self.log.writing_bytes)

    @property
    def stopping(self) -> bool:
        return self.handing is not None and self.handing.leaving

    @property
    def status_text(self) -> str:
        """As `alpo status` shows it (rules.md#status)."""
        if not self.first_start.started:
            return self.first_start.state.status.name
        return "RETIRED" if self.retired else self.members.standing

    @property
    def may_stand(self) -> bool:
        """May it canvass and stand for election (R27, R30, R31)?"""
        return self.members.may_stand and not self.retired and not self.damage.binds

    @property
    def asked_id(self) -> int:
        """Whom `asked_address` has an address of; 0: nobody."""
        return self.changes.asked_id if self.changes is not None else 0

    def asked_address(self, id: int) -> str:
        """Where the operator says that a server is to be found that is to come into the list; "" for any other."""
        return self.changes.asked_address(id) if self.changes is not None else ""

    @property
    def rank(self) -> Rank:
        mine = self.members.latest.get(self.me.id)
        return Rank(self.log.last_term, self.log.last_id, mine.priority if mine else self.cfg.priority, self.me.id)

    def address_of(self, id: int) -> str:
        """Where ``id`` was last said to be; "" if unknown. Addresses are hints (R27)."""
        if id == self.me.id:
            return self.cfg.address
        member = self.members.latest.get(id)
        if member is None:
            return next((c.address for c in self.cfg.configured if c.id == id), "")
        return self.seen_addresses.get(member.identity, member.address)

    def can_wait(self, item: Input) -> bool:
        """May a step for this alone come with the next inputs? See `dispatch.can_wait`."""
        return can_wait(self, item)

    # -- starting and stepping --------------------------------------------------------------------------

    def replay(self, entries: Iterable[Entry]) -> None:
        """Bring the replicated state from ``applied_id`` to the head of what is on disk."""
        for entry in entries:
            self.sessions.apply(entry)
            if entry.kind != Kind.DATA:
                self._take_effect(entry)
        self.sessions.settle(self.guaranteed_id)
        self.members.guaranteed(self.guaranteed_id)
        self.cleaning.guaranteed(self.guaranteed_id)
        self.cursors.guaranteed(self.guaranteed_id)

    def start(self, now_s: float, wall_ms: int) -> Ready:
        """The first step. A fresh start counts as having heard a leader (rules.md#timers)."""
        self.now_s, self.wall_ms = now_s, wall_ms
        self.out.begin()
        self.heard_s = now_s
        self.election.restart_timer()
        self.first_start.boot()
        return self._finish()

    def step(self, inputs: Sequence[Input], now_s: float, wall_ms: int) -> Ready:
        """Take a group of inputs, all at one time."""
        self.now_s, self.wall_ms = max(now_s, self.now_s), wall_ms
        self.out.begin()
        try:
            for each in inputs:
                INPUTS[type(each)](self, each)
            return self._finish()
        except InvariantBroken as broken:
            return Ready(alarm=str(broken), lost=isinstance(broken, StoreWentBack))

    def _finish(self) -> Ready:
        """What time and the whole group bring about, then the step's one write."""
        if not self.first_start.started:
            self.first_start.tick()
        elif self.leadership is not None:
            self.leadership.tick()
        else:
            self.election.tick()
        self.damage.tick()
        may_stop = self.handing is not None and self.handing.advance()
        if self.leadership is not None and self.changes is not None:
            self.changes.advance()
            self.reads.advance()
            self.disks.advance()
            self.leadership.flush()
            leave_if_removed(self)
        if self._durable_replies and self.out.hard_durable:
            for reply in self._durable_replies:
                self.out.reply(reply)
            self._durable_replies.clear()
        base = take_base(self)
        table = table_save(self, base)
        ready = self.out.finish(self.term, self.vote, self.guaranteed_id, self.fully_replicated_id, table, base)
        if ready.write is not None:
            self.log.handed_to_disk(ready.write.number, ready.write.bodies_bytes)
        ready.may_stop = may_stop
        ready.deadline_s = self._deadline_s()
        check_cheap(self)
        return ready

    def _deadline_s(self) -> float:
        if self.first_start.started:
            part = self.leadership if self.leadership is not None else self.election
            deadline_s = part.deadline_s()
        else:
            deadline_s = self.first_start.deadline_s()
        if self.changes is not None:
            deadline_s = min(deadline_s, self.changes.deadline_s())
        deadline_s = min(deadline_s, self.damage.ask_s)
        return deadline_s if self.handing is None else min(deadline_s, self.handing.deadline_s())

    # -- what the parts share ---------------------------------------------------------------------------

    def set_term(self, term: int, *, vote: int) -> None:
        if term != self.term:
            self.heard_s = None
            self.leader = None
            self.acceptance.new_term()
        self.term, self.vote = term, vote
        self.out.hard_changed()

    def adopt_term(self, term: int) -> None:
        """R1: a higher term, no vote in it yet, passive."""
        self.set_term(term, vote=0)
        self.become_passive()
        self.election.new_term()

    def become_passive(self) -> None:
        """From candidate or leader; nothing if passive already."""
        if self.state is State.PASSIVE:
            return
        was_leader = self.state is State.LEADER
        self.state = State.PASSIVE
        self.election.leave()
        self.election.restart_timer()
        if was_leader:
            self.leader = None  # clients are not sent back to us
            self.leadership = None
            self.out.event("passive", term=self.term)
            if self.changes is not None:
                self.changes.lose()
                self.changes = None
            self.serving.lose()
            self.reads.lose()

    def become_leader(self) -> None:
        """R10, R11: the first entry of the reign comes before any other."""
        votes = sorted(self.election.cycle.granted) if self.election.cycle is not None else []
        self.election.leave()
        self.state = State.LEADER
        self.leader = self.me
        self.last_leader_id = self.me.id
        self.leadership = Replication(self)
        self.changes = Changes(self)
        voters = [member.id for member in self.members.latest.voters]
        self.out.event("leader", term=self.term, first_id=self.leadership.first_id, votes=votes, voters=voters)
        self.append_special(Kind.LEADER, json_body(leader=self.me.id))

    def hear_leader(self, sender: Identity) -> None:
        """The leader of our term speaks."""
        if self.state is State.CANDIDATE:
            self.become_passive()
        if self.leader != sender:
            self.leader = sender
            self.last_leader_id = sender.id
            self.out.event("following", term=self.term, leader=sender.id)
        self.heard_s = self.now_s
        self.election.leave()
        self.election.restart_timer()

    def note_clock(self, id: int, wall_ms: int) -> None:
        self.clocks[id] = (wall_ms, self.came_s)

    def entry_time_ms(self) -> int:
        """Never decreases, and no single wrong clock moves it (rules.md#entry-time)."""
        assert self.leadership is not None
        return max(self.log.last_time_ms, self.leadership.now_ms(self.wall_ms, self.clocks))

    def append_entries(self, entries: list[Entry]) -> int:
        """Into our log, in force at once (R27), on its way to our disk. Returns the bytes of their bodies."""
        bodies_bytes = sum(map(len, map(_BODY, entries)))
        runs = self.log.append(entries, bodies_bytes)
        self.out.append(entries, runs, bodies_bytes)
        if entries[0].id <= self.applied_id:  # a base came with a later state, which has them in it
            entries = [entry for entry in entries if entry.id > self.applied_id]
        self.sessions.apply_all(entries)
        if set(map(_KIND, entries)) != _ONLY_DATA:
            for entry in entries:
                self._take_effect(entry)
        return bodies_bytes

    def append_special(self, kind: Kind, body: bytes, client: str = "") -> Entry:
        """The leader's own entries, and those without payloads."""
        entry = seal(self.log.last_id + 1, self.term, kind, self.entry_time_ms(), self.log.next_lsn, body, client)
        self.append_entries([entry])
        return entry

    def expunge(self, from_id: int) -> None:
        if from_id <= self.applied_id:
            raise InvariantBroken(f"asked to expunge entry {from_id}, but {self.applied_id} is applied")
        self.log.expunge(from_id)
        self.sessions.expunge(from_id)
        self.members.expunge(from_id)
        self.cleaning.expunge(from_id)
        self.cursors.expunge(from_id)
        self.settings = self.sessions.settings
        self.out.expunge(from_id)

    def set_guaranteed(self, id: int) -> None:
        """The mark moves up, never down."""
        if id <= self.guaranteed_id:
            return
        self.guaranteed_id = id
        self.sessions.settle(id)
        self.members.guaranteed(id)
        self.cleaning.guaranteed(id)
        self.cursors.guaranteed(id)
        self.serving.release(id)

    def reply_when_durable(self, reply: Reply) -> None:
        self._durable_replies.append(reply)

    def started(self, cluster: bytes, first: MemberList, settings: Settings) -> None:
        """R29: the first list is in force, for ever the root of this cluster."""
        self.out.cluster = cluster
        self.settings = settings
        self.sessions.load([], 0, settings, 0)
        self.members.restore(first, 0)
        self.heard_s = self.now_s
        self.election.restart_timer()
        self.out.event("started", cluster=cluster.hex(), members=[who.id for who in first.members])

    def _take_effect(self, entry: Entry) -> None:
        if entry.kind == Kind.MEMBERS:
            try:
                self.members.accept(entry)
            except (DamagedEntry, ValueError) as error:
                raise InvariantBroken(f"entry {entry.id} is no member list: {error}") from error
            if self.leadership is not None:
                self.leadership.sync_members()
        elif entry.kind == Kind.TRIM:
            try:
                self.cleaning.accept(entry)
            except (DamagedEntry, ValueError) as error:
                raise InvariantBroken(f"entry {entry.id} trims nothing: {error}") from error
        elif entry.kind == Kind.CURSOR:
            try:
                self.cursors.accept(entry)
            except (DamagedEntry, ValueError) as error:
                raise InvariantBroken(f"entry {entry.id} is about no cursor: {error}") from error
        elif entry.kind == Kind.SETTINGS:
            self.settings = self.sessions.settings
            self.out.event("settings", id=entry.id, **self.settings.to_plain())
