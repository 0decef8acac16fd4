"""The state that the parts of a replica share: `Shared` lets them read it, and change it by its methods alone.

Laws:

* No part (`election`, `acceptance`, …) assigns to these attributes: mypy refuses it. The methods below change them; the
  replica implements those, and `dispatch` notes what the shell and messages tell.
* A part gets the other parts that it needs when it is made. It never looks one up through the replica.
* `Shared` costs nothing at run time: `alpo.core.replica.Replica` has these very attributes.
"""

from __future__ import annotations

import random
from collections.abc import Container, Mapping
from typing import Any, Protocol

from .config import ReplicaConfig
from .directory import Directory
from .disk import Base, TableSave
from .entries import Entry
from .log import Log, LogClock
from .machine.cursors import Cursors, Trims
from .machine.verdicts import SessionTable
from .members import Identity, MemberList, Members
from .outbox import Outbox
from .ranks import Rank, State
from .requests import Origin
from .settings import Settings


class InvariantBroken(Exception):
    """An invariant does not hold: the server stops, since going on could lose guaranteed entries."""


class StoreWentBack(InvariantBroken):
    """The disk has forgotten entries that this server acknowledged: it counts as lost, and the server must come back
    with a new incarnation and an empty store (R31)."""


class Shared(Protocol):
    """A replica as its parts see it. Its values live in memory alone, unless their description says that they are
    durable."""

    # -- given at the start ------------------------------------------------------------------------------

    @property
    def cfg(self) -> ReplicaConfig:
        """The configuration; never changes."""

    @property
    def me(self) -> Identity:
        """The id and incarnation of this server; never change."""

    @property
    def rng(self) -> random.Random:
        """The only source of randomness."""

    # -- the step that is being taken -------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """The time of this step on the shell's monotonic clock; never decreases. Set by `Replica.step`."""

    @property
    def wall_ms(self) -> int:
        """The time of this step on the shell's wall clock, ms since 1970; may jump. Set by `Replica.step`."""

    @property
    def came_s(self) -> float:
        """The arrival time of the message being taken now, on the clock of ``now_s``: it may have waited since. Set by
        `dispatch`."""

    @property
    def out(self) -> Outbox:
        """The output of this step: messages, replies, events, and what is to be written or read."""

    # -- hard state (R3, R14) ---------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """The current term; never decreases. Durable: on disk before any message of this term leaves (the outbox holds
        messages back). Set by `set_term` and `adopt_term`, and by `begin_from`."""

    @property
    def vote(self) -> int:
        """The id of the server that has our vote in this term; 0: none. Changes only with the term, or from 0. Durable
        as ``term`` is, and set with it."""

    # -- who leads --------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """PASSIVE, CANDIDATE or LEADER; PASSIVE after every start. Set by the `become_…` methods."""

    @property
    def leader(self) -> Identity | None:
        """The leader of this term, this server included; None while unknown. Set by `hear_leader` and the `become_…`
        methods; a new term sets None."""

    @property
    def leader_id(self) -> int:
        """The id of ``leader``; 0 while none is known."""

    @property
    def last_leader_id(self) -> int:
        """The id of the last leader that was known, of any term; 0: none since the start. Set with ``leader``."""

    @property
    def heard_s(self) -> float | None:
        """The time at which a leader was last heard; None: none in this term. A start, and the end of the first start,
        count as hearing one. Set by `hear_leader`; a new term sets None."""

    @property
    def rank(self) -> Rank:
        """The rank of this server now, by its log, priority and id (rules.md#ranks)."""

    @property
    def may_stand(self) -> bool:
        """True if this server may canvass and stand for election (R27, R30, R31, R34)."""

    @property
    def serves(self) -> bool:
        """True if this server takes requests for the log: it leads, and no handover is under way."""

    @property
    def stopping(self) -> bool:
        """True once this server was told to stop, until it has left (R28)."""

    @property
    def round(self) -> int:
        """The number of the newest read round (R25): 1 at the start, never decreases until the process ends. Set by
        `next_round`."""

    # -- peers, as the shell and messages tell of them --------------------------------------------------

    @property
    def connected(self) -> Container[int]:
        """Ids of the peers that this server has a connection to. Set by `dispatch`."""

    @property
    def seen_addresses(self) -> Mapping[Identity, str]:
        """The addresses of members, as their hellos gave them. Set by `dispatch`."""

    @property
    def clocks(self) -> Mapping[int, tuple[int, float]]:
        """Peer id -> (its wall clock in ms since 1970, the time on our monotonic clock at which that came). Set by
        `note_clock`; emptied when a candidacy begins."""

    @property
    def log_clock(self) -> LogClock:
        """The time that the next entry would have (rules.md#entry-time). It notes entries and clocks itself."""

    # -- the log, marks and state ------------------------------------------------------------------------

    @property
    def log(self) -> Log:
        """The log, durable up to ``log.stable_id``. Changed by `append_entries`, `expunge` and `begin_from`; `cleaning`
        cuts its front off."""

    @property
    def guaranteed_id(self) -> int:
        """The id of the last entry known guaranteed. Never decreases while the process lives; its copy on disk may be
        lower. Set by `set_guaranteed` and `begin_from`."""

    @property
    def fully_replicated_id(self) -> int:
        """The id up to which all members are known to hold the log (R18), at most ``guaranteed_id``. Never decreases
        while the process lives; its copy on disk may be lower. Set by `set_fully_replicated` and `begin_from`."""

    @property
    def applied_id(self) -> int:
        """The entry as of which the replicated state is saved on disk, or will be with the write under way; never
        decreases. Set when a step's write saves that state, and by `begin_from`."""

    @property
    def save_upto_id(self) -> int:
        """The entry as of which, or later, a save of the replicated state was last asked for; 0: none was. Set by
        `save_state_at`."""

    @property
    def members(self) -> Members:
        """The member lists, in force from their entries on. Like the four below they follow from the log, which is
        durable with a saved state; changed by `append_entries`, `expunge`, `begin_from` and `set_guaranteed`."""

    @property
    def sessions(self) -> SessionTable:
        """The client sessions at the head of the log."""

    @property
    def settings(self) -> Settings:
        """The replicated settings at the head of the log."""

    @property
    def trims(self) -> Trims:
        """The trim mark: guaranteed, and at the head of the log."""

    @property
    def cursors(self) -> Cursors:
        """The readers' cursors at the head of the log."""

    @property
    def directory(self) -> Directory:
        """The logs that the cluster keeps besides this one, if this is the first."""

    # -- changes of state -------------------------------------------------------------------------------

    def set_term(self, term: int, *, vote: int) -> None:
        """Set a higher term, with ``vote`` in it (0: none), or give the first vote in the present one. The next write
        carries both."""

    def adopt_term(self, term: int) -> None:
        """Adopt a higher term, with no vote in it yet, and become passive (R1)."""

    def become_passive(self) -> None:
        """Become passive, from candidate or leader; do nothing if passive already."""

    def become_candidate(self) -> None:
        """Become a candidate (R3), from passive or candidate; `set_term` has given this server its own vote."""

    def become_leader(self) -> None:
        """Become the leader, from candidate (R10), and append the LEADER entry of the term (R11)."""

    def hear_leader(self, sender: Identity) -> None:
        """Note that ``sender``, the leader of our term, has been heard; a candidate becomes passive."""

    def hear_bytes(self, at_s: float) -> None:
        """Note that part of a message of the leader that this server follows came at ``at_s``, monotonic seconds."""

    def note_clock(self, id: int, wall_ms: int) -> None:
        """Note the wall clock of peer ``id``, ms since 1970, from the message being taken now."""

    def next_round(self) -> int:
        """Begin a read round by taking the next number. Returns the number."""

    def append_entries(self, entries: list[Entry]) -> int:
        """Add entries to the log, apply them to the replicated state at once (R27), and have this step's write hold
        them. Returns the bytes of their bodies. Raises `InvariantBroken` on a MEMBERS, TRIM or CURSOR entry whose body
        makes no sense."""

    def expunge(self, from_id: int) -> None:
        """Delete every entry with id >= ``from_id``, and undo their effects. Raises `InvariantBroken` if ``applied_id``
        is among them."""

    def set_guaranteed(self, id: int) -> None:
        """Raise the mark to ``id`` and send the replies that waited for it; do nothing if it is as high already."""

    def set_fully_replicated(self, id: int) -> None:
        """Raise the mark to ``id``, at most to ``guaranteed_id``; do nothing if it is as high already."""

    def save_state_at(self, id: int) -> None:
        """Have the replicated state saved as of entry ``id`` or a later one, once ``id`` is guaranteed."""

    def begin_from(self, base: Base, table: TableSave, term: int) -> None:
        """Replace the log and the replicated state by a snapshot, with this step's write, and adopt ``term`` if it is
        higher."""

    def started(self, cluster: bytes, first: MemberList, settings: Settings) -> None:
        """End the first start (R29): put the first member list and settings of ``cluster`` into force."""

    def not_leader(self, request: Any) -> None:
        """Refuse a request that only a leader takes, naming the leader, or the server that is about to lead."""

    def hand_over(self, target_id: int, origin: Origin, why: str = "") -> None:
        """Begin a handover to server ``target_id``, asked for by ``origin`` (R28); 0: to the best of the others,
        because this server is about to stop. ``why``: this leader's own reason, if nobody asked for it."""

    def end_handover(self) -> None:
        """Forget the handover, done or failed: if this server leads, it takes requests again."""
