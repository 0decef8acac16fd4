"""The protocol of one server: `step(inputs) -> Ready`. No clock, no sockets, no randomness of its own.

Laws:

* The same inputs at the same times, with the same random source, give the same outputs.
* A step takes a group of inputs; its `Ready` tells what to send now, what to write, and what to send after that.
* ``term`` and ``guaranteed_id`` never go down; ``vote`` changes only with ``term`` or from 0.
* If an invariant breaks, the step returns a `Ready` with an alarm and nothing else: the server stops.

The parts: `election` (R1-R10), `acceptance` (R12-R16), `cleaning` (R18-R20), `snapshots` (R27), `handover` (R28),
`first_start` (R29), `damage` (R31), `disk_space`, and while it leads a `Reign`. This module holds the state that
they share, and changes it; the parts see it as `shared.Shared`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from .acceptance import Acceptance
from .changes import Changes
from .cleaning import Cleaning
from .config import ReplicaConfig
from .damage import Damage
from .directory import Directory, listing_of
from .disk import Base, Boot, TableSave
from .disk_space import Disks
from .dispatch import INPUTS, append_runs, can_wait, take_known
from .election import Election
from .entries import DamagedEntry, Entry, Kind, json_body
from .first_start import FirstStart
from .handover import Handover
from .log import Log, LogClock
from .machine.cursors import Cursors, Table, Trims
from .machine.verdicts import SessionTable
from .members import Identity, MemberList, Members
from .messages import AppendRequest
from .outbox import Outbox
from .parts import Reign, Watch, check_cheap
from .ranks import TRANSITIONS, Rank, State
from .ready import Input, Ready, Received, Tick
from .replication import Replication
from .requests import AppendRun, Code, Origin
from .settings import Settings
from .shared import InvariantBroken, StoreWentBack
from .snapshots import Installing, table_save

# Fields by position, looked up in C: these run over every entry.
_KIND, _BODY = itemgetter(Entry._fields.index("kind")), itemgetter(Entry._fields.index("body"))
_ONLY_DATA = {int(Kind.DATA)}
_MAY_BE_KNOWN = frozenset((Received, Tick))


class Replica:
    """The protocol of one server. The shell may read the attributes without underscore (see `Shared`), never set them.

    ``boot``: the state on disk. Then `replay` every entry above its ``applied_id``, `start`, and `step` for ever.
    """

    def __init__(self, cfg: ReplicaConfig, boot: Boot, rng: random.Random) -> None:
        self.cfg, self.me, self.rng = cfg, cfg.me, rng
        self.now_s, self.came_s, self.wall_ms = 0.0, 0.0, 0
        self.term, self.vote, self.state = boot.term, boot.vote, State.PASSIVE
        self.leader: Identity | None = None
        self.heard_s: float | None = None
        self.last_leader_id = 0
        self.connected: set[int] = set()
        self.seen_addresses: dict[Identity, str] = {}  # addresses from peers' hellos
        self.clocks: dict[int, tuple[int, float]] = {}
        self.log_clock = LogClock()
        self.wrong_incarnations: dict[int, bytes] = {}
        self.round, self.log = 1, Log(cfg.tail_bytes_max)
        self.log.restore(boot.base, boot.runs, boot.last_id, boot.last_term, boot.last_time_ms, boot.next_lsn)
        self.guaranteed_id, self.applied_id = min(boot.guaranteed_id, boot.last_id), boot.applied_id
        self.fully_replicated_id = min(boot.fully_replicated_id, self.guaranteed_id)
        self.settings = Settings.from_plain(boot.settings or boot.start.settings or cfg.settings.to_plain())
        self.sessions = SessionTable(self.settings)
        self.sessions.load(boot.sessions, boot.horizon_ms, self.settings, boot.applied_id)
        self.members = Members(self.me)
        first = boot.members if boot.members is not None else boot.start.first_list
        if first is not None:
            self.members.restore(MemberList.from_plain(first), boot.members_id)
        self.out = Outbox(self.me, boot.start.cluster)
        self.trims = Trims(boot.trim_lsn)
        self.cursors = Cursors(boot.cursors, self.out.event)
        #: Replicated state, sessions and settings apart: in force from its entry on, undone by an expunge.
        self.directory = Directory(boot.directory)
        self._made = (self.members, self.trims, self.cursors, self.directory)
        self.election = Election(self)
        self.damage = Damage(self, self.election)
        self.disks = Disks(self, self.damage)
        self.acceptance = Acceptance(self, self.disks, self.damage)
        self.cleaning = Cleaning(self, self.damage)
        self.first_start = FirstStart(self, boot.start)
        self.installing = Installing(self, self.first_start)
        self.reign: Reign | None = None
        self.handover: Handover | None = None
        self.save_upto_id, self.retired = 0, False
        self.watch = Watch()

    # -- what the shell may ask -------------------------------------------------------------------------

    @property
    def cluster(self) -> bytes:
        return self.out.cluster

    @property
    def leadership(self) -> Replication | None:
        return self.reign.replication if self.reign is not None else None

    @property
    def changes(self) -> Changes | None:
        return self.reign.changes if self.reign is not None else None

    @property
    def leader_id(self) -> int:
        if self.state is State.LEADER:
            return self.me.id
        return self.leader.id if self.leader is not None and not self.election.leader_gone else 0

    @property
    def readable_id(self) -> int:
        """The id of the last entry that a local reader may see (R26); 0: none, as while this server is no voter."""
        return min(self.guaranteed_id, self.log.stable_id) if self.members.i_vote else 0

    @property
    def last_id(self) -> int:
        return self.log.last_id

    @property
    def horizon_ms(self) -> int:
        return self.sessions.horizon_ms

    @property
    def inflight_bytes(self) -> int:
        """Bytes of bodies: of appends not yet guaranteed, or of entries not yet on our own disk, whichever are more."""
        return max(self.reign.serving.inflight_bytes if self.reign is not None else 0, self.log.writing_bytes)

    @property
    def serves(self) -> bool:
        return self.reign is not None and self.handover is None

    @property
    def stopping(self) -> bool:
        return self.handover is not None and self.handover.leaving

    @property
    def status_text(self) -> str:
        """The server's standing in one word, as `alpo status` shows it (rules.md#status)."""
        if not self.first_start.started:
            return self.first_start.state.status.name
        return "RETIRED" if self.retired else self.members.standing

    @property
    def may_stand(self) -> bool:
        if self.retired or (self.damage.first_id and self.damage.binds) or (self.log.writes and self.disks.hangs):
            return False
        return self.members.may_stand

    @property
    def asked_id(self) -> int:
        """The id of the server that is being added or replaced (see `asked_address`); 0 if there is none."""
        return self.reign.changes.asked_id if self.reign is not None else 0

    def asked_address(self, id: int) -> str:
        """The address that the operator gave for a server that is being added or replaced; "" for any other."""
        return self.reign.changes.asked_address(id) if self.reign is not None else ""

    @property
    def rank(self) -> Rank:
        mine = self.members.latest.get(self.me.id)
        return Rank(self.log.last_term, self.log.last_id, mine.priority if mine else self.cfg.priority, self.me.id)

    def address_of(self, id: int) -> str:
        """The last known address of server ``id``; "" if unknown. Addresses are hints (R27)."""
        if id == self.me.id:
            return self.cfg.address
        member = self.members.latest.get(id)
        if member is None:
            return next((c.address for c in self.cfg.configured if c.id == id), "")
        return self.seen_addresses.get(member.identity, member.address)

    def can_wait(self, item: Input) -> bool:
        """True if ``item`` may be stepped later, with other inputs: see `dispatch.can_wait`."""
        return can_wait(self, item)

    def left_after(self, inputs: Sequence[Input]) -> int:
        """The number of entries that would still wait for a majority after a step of these inputs, if they count."""
        return self.log.last_id - (self.reign.replication.mark_after(inputs) if self.reign is not None else 0)

    # -- starting and stepping --------------------------------------------------------------------------

    def replay(self, entries: Iterable[Entry]) -> None:
        """Apply the entries on disk above ``applied_id``. Raises `InvariantBroken` if one makes no sense."""
        for entry in entries:
            self.sessions.apply(entry)
            if entry.kind != Kind.DATA:
                self._take_effect(entry)
        self._settle(self.guaranteed_id)

    def start(self, now_s: float, wall_ms: int) -> Ready:
        """Make the first step. Times as in `step`. A start counts as having heard a leader (rules.md#timers)."""
        self.now_s, self.wall_ms = now_s, wall_ms
        self.out.begin()
        self.heard_s = now_s
        self.log_clock.start(now_s, self.log.last_time_ms)
        self.election.restart_timer()
        self.first_start.boot()
        return self._finish()

    def step(self, inputs: Sequence[Input], now_s: float, wall_ms: int) -> Ready:
        """Take a group of inputs, all at one time. ``now_s``: monotonic seconds; ``wall_ms``: ms since 1970."""
        # Lone appends come here, too: what rules most of them out is looked at first.
        if len(inputs) == 1 and self.guaranteed_id == self.log.last_id and type(inputs[0]) in _MAY_BE_KNOWN:
            ready = self.take_known(inputs[0], now_s, wall_ms)
            if ready is not None:
                return ready
        self.now_s, self.wall_ms = max(now_s, self.now_s), wall_ms
        self.out.begin()
        try:
            runs: list[AppendRun] = []
            for each in inputs:
                if type(each) is AppendRun:
                    runs.append(each)
                    continue
                if runs:
                    append_runs(self, runs)
                    runs = []
                INPUTS[type(each)](self, each)
            if runs:
                append_runs(self, runs)
            return self._finish()
        except InvariantBroken as broken:
            return Ready(alarm=str(broken), lost=isinstance(broken, StoreWentBack))

    def take_known(self, item: Input, now_s: float, wall_ms: int) -> Ready | None:
        """Take a heartbeat, the answer to one, or the time for one, if that changes nothing but times; None if it needs
        a step, and nothing was done."""
        if type(item) is Received and type(item.envelope.message) is AppendRequest and item.envelope.message.entries:
            return None
        self.now_s, self.wall_ms = max(now_s, self.now_s), wall_ms
        self.out.begin()
        if not take_known(self, item):
            return None
        self.out.ready.deadline_s = min(self._at_work().deadline_s(), self.damage.ask_s)
        return self.out.ready

    def _finish(self) -> Ready:
        """Do what is due by time, and what follows from all inputs together; close the step with at most one write."""
        if self.log.writes or self.disks.slow_since_s is not None:
            self.disks.tick()
        reign, started, election = self.reign, self.first_start.started, self.election
        at_work = self._at_work()
        if self.now_s >= (reign.replication.quiet_until_s if reign is not None else election.timer_s) or (
            reign is None and (election.busy or not started)
        ):
            at_work.tick()
        if self.now_s >= self.damage.ask_s:
            self.damage.tick()
        may_stop = self.handover is not None and self.handover.advance(self.leadership)
        if self.reign is not None:
            self.reign.advance()
        base = self.cleaning.take_base() if self.cleaning.base is not None else None
        if base is not None and self.reign is not None:
            self.reign.replication.cleaned(base.id)
        table = table_save(self, base)
        if table is not None:
            self.applied_id = table.applied_id
        ready = self.out.finish(self.term, self.vote, self.guaranteed_id, self.fully_replicated_id, table, base)
        if ready.write is not None:
            self.log.handed_to_disk(ready.write.number, ready.write.bodies_bytes, self.now_s)
        ready.may_stop = may_stop
        if self.reign is not reign or not started:  # the reign has ended, or the first start may have
            at_work = self._at_work()
        ready.deadline_s = min(at_work.deadline_s(), self.damage.ask_s)
        if self.log.writes:
            ready.deadline_s = min(ready.deadline_s, self.disks.deadline_s())
        if self.handover is not None:
            ready.deadline_s = min(ready.deadline_s, self.handover.deadline_s())
        check_cheap(self)
        return ready

    def _at_work(self) -> FirstStart | Reign | Election:
        """The part whose timers count: the reign of a leader, the election, or the first start."""
        if self.reign is not None:
            return self.reign
        return self.election if self.first_start.started else self.first_start

    # -- passive, candidate, leader ---------------------------------------------------------------------

    def _become(self, state: State) -> None:
        if (self.state, state) not in TRANSITIONS:
            raise InvariantBroken(f"{self.state.value} cannot become {state.value}")
        self.state = state

    def set_term(self, term: int, *, vote: int) -> None:
        if term != self.term:
            self.heard_s = None
            self.leader = None
            self.acceptance.new_term()
        self.term, self.vote = term, vote
        self.out.hard_changed()

    def adopt_term(self, term: int) -> None:
        self.set_term(term, vote=0)
        self.become_passive()
        self.election.new_term()

    def become_passive(self) -> None:
        if self.state is State.PASSIVE:
            return
        self._become(State.PASSIVE)
        self.election.leave()
        self.election.restart_timer()
        reign, self.reign = self.reign, None
        if reign is not None:
            self.leader = None  # clients must not be sent back here
            self.out.event("passive", term=self.term)
            reign.end()

    def become_candidate(self) -> None:
        self._become(State.CANDIDATE)
        self.leader = None
        self.clocks.clear()

    def become_leader(self) -> None:
        """Begin a reign: its LEADER entry comes before any other entry of the term."""
        votes = sorted(self.election.cycle.granted) if self.election.cycle is not None else []
        self.election.leave()
        self._become(State.LEADER)
        self.leader, self.last_leader_id = self.me, self.me.id
        self.reign = Reign(self, self.first_start, self.cleaning, self.disks, self.damage)
        leadership, voters = self.reign.replication, [member.id for member in self.members.latest.voters]
        self.out.event("leader", term=self.term, first_id=leadership.first_id, votes=votes, voters=voters)
        leadership.append_special(Kind.LEADER, json_body(leader=self.me.id))

    def hear_leader(self, sender: Identity) -> None:
        if self.state is State.CANDIDATE:
            self.become_passive()
        if self.leader != sender:
            self.leader = sender
            self.last_leader_id = sender.id
            self.out.event("following", term=self.term, leader=sender.id)
        self.heard_s = self.now_s
        if self.election.busy or self.election.leader_gone:
            self.election.leave()
        self.election.restart_timer()

    def hear_bytes(self, at_s: float) -> None:
        if self.heard_s is not None:
            self.heard_s = max(self.heard_s, at_s)
            self.election.postpone(at_s)

    # -- the other methods of `Shared` ------------------------------------------------------------------

    def note_clock(self, id: int, wall_ms: int) -> None:
        self.clocks[id] = (wall_ms, self.came_s)

    def next_round(self) -> int:
        self.round += 1
        return self.round

    def not_leader(self, request: Any) -> None:
        leader = self.handover.target_id if self.handover is not None and self.reign is not None else self.leader_id
        if isinstance(request, AppendRun):
            self.out.refuse_run(request, Code.NOT_LEADER, leader=leader)
        else:
            self.out.refuse(request.origin, Code.NOT_LEADER, leader=leader)

    def hand_over(self, target_id: int, origin: Origin, why: str = "") -> None:
        self.handover = Handover(self, target_id, origin, why)

    def end_handover(self) -> None:
        self.handover = None

    def append_entries(self, entries: list[Entry]) -> int:
        bodies_bytes = sum(map(len, map(_BODY, entries)))
        runs = self.log.append(entries, bodies_bytes)
        self.out.append(entries, runs, bodies_bytes)
        if entries[0].id <= self.applied_id:  # the state of a snapshot already has these in it
            entries = [entry for entry in entries if entry.id > self.applied_id]
        self.sessions.apply_all(entries)
        if set(map(_KIND, entries)) != _ONLY_DATA:
            for entry in entries:
                self._take_effect(entry)
        return bodies_bytes

    def expunge(self, from_id: int) -> None:
        if from_id <= self.applied_id:
            raise InvariantBroken(f"asked to expunge entry {from_id}, but {self.applied_id} is applied")
        self.log.expunge(from_id)
        self.sessions.expunge(from_id)
        for made in self._made:
            made.expunge(from_id)
        self.settings = self.sessions.settings
        self.out.expunge(from_id)

    def set_guaranteed(self, id: int) -> None:
        if id <= self.guaranteed_id:
            return
        self.guaranteed_id = id
        self._settle(id)
        if self.reign is not None:
            self.reign.serving.release(id)

    def set_fully_replicated(self, id: int) -> None:
        self.fully_replicated_id = max(self.fully_replicated_id, min(id, self.guaranteed_id))

    def _settle(self, guaranteed_id: int) -> None:
        self.sessions.settle(guaranteed_id)
        for made in self._made:
            if guaranteed_id >= made.unsettled_id:
                made.settle(guaranteed_id)

    def save_state_at(self, id: int) -> None:
        self.save_upto_id = id

    def begin_from(self, base: Base, table: TableSave, term: int) -> None:
        if term > self.term:
            self.set_term(term, vote=0)
        self.log.install(base)
        self.out.install(base, table)
        self.settings = Settings.from_plain(table.settings)
        self.sessions.load(table.changed, table.horizon_ms, self.settings, table.applied_id)
        self.members.restore(MemberList.from_plain(table.members), table.members_id)
        self.trims.restore(table.trim_lsn)
        self.cursors.restore(Table(dict(table.cursors)))
        self.directory.restore(listing_of(table.directory))
        self.cleaning.begin_anew()
        self.applied_id = table.applied_id
        self.guaranteed_id = self.fully_replicated_id = base.id
        self.acceptance.installed(base.id)

    def started(self, cluster: bytes, first: MemberList, settings: Settings) -> None:
        self.settings = settings
        self.sessions.load([], 0, settings, 0)
        self.members.restore(first, 0)
        if self.cfg.first_log:
            self.heard_s = self.now_s
            self.election.restart_timer()
        else:
            self.heard_s = None
            self.election.canvass_first()
        self.out.event("started", cluster=cluster.hex(), members=[who.id for who in first.members])

    def _take_effect(self, entry: Entry) -> None:
        for made in self._made:
            try:
                made.accept(entry)
            except (DamagedEntry, ValueError) as error:
                raise InvariantBroken(f"entry {entry.id} {made.UNSOUND}: {error}") from error
        if entry.kind == Kind.MEMBERS and self.reign is not None:
            self.reign.replication.sync_members()
        elif entry.kind == Kind.SETTINGS:
            self.settings = self.sessions.settings
            self.out.event("settings", id=entry.id, **self.settings.to_plain())
