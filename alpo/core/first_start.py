"""The first start: servers that have only a configured list become a cluster (R29). The map: the (id, incarnation) of
each configured server.

Laws:

* The start state moves EMPTY -> STARTING (with a map) -> STARTED, back only from STARTING to EMPTY at a boot with
  another configuration, and to another map. A server tells others only a state that is on its disk.
* An answer counts only if its question was asked after our present map was on disk (N4).
* A server that is not STARTED neither canvasses, votes nor accepts entries (N5): `replica` and `dispatch` see to that.
"""

from __future__ import annotations

import json

from .disk import StartState
from .members import (
    Identity,
    Member,
    MemberList,
    Role,
    StartStatus,
    configured_digest,
)
from .messages import StartAnswer, StartQuestion
from .requests import Code, Initialised, Origin
from .settings import Settings
from .shared import InvariantBroken, Shared

#: The reason shown for a member that has not been heard from.
NOT_ANSWERED = "has not answered"


class FirstStart:
    """The start state of one server, and the questions to others by which it moves. ``commanded``: the cluster may be
    founded, as the configuration, an operator or another server says; ``ask_again_s``: monotonic seconds."""

    def __init__(self, shared: Shared, state: StartState) -> None:
        self._r = shared
        self.state = state
        self.started = state.status is StartStatus.STARTED
        self.digest = configured_digest(shared.cfg.configured, shared.cfg.settings)
        alone = len(shared.cfg.configured) == 1
        self.commanded = shared.cfg.auto_init and not alone and not shared.cfg.joining and not shared.cfg.cluster_wanted
        # Number of the last question. The first one is random, so that no answer to an earlier process's question
        # counts.
        self.number = int(shared.rng.random() * (1 << 40))
        self._counts_from = float(self.number)  # answers to questions with a number up to this one do not count
        self.write_number = 0  # number of the write with the present map
        self.ask_again_s = 0.0
        self._answers: dict[int, StartAnswer] = {}
        self._who: dict[int, Identity] = {}
        self._waiting: list[Origin] = []
        #: Reasons for waiting: server id -> what the first start lacks from it, in words for the log and `alpo status`.
        self.waits_for: dict[int, str] = {}

    @property
    def others(self) -> list[int]:
        return [c.id for c in self._r.cfg.configured if c.id != self._r.me.id]

    @property
    def bound(self) -> bool:
        """True if the configuration names the cluster to take part in: this server founds none."""
        return bool(self._r.cfg.cluster_wanted)

    def boot(self) -> None:
        """Begin after a boot: drop a map that was formed under another configured list or other settings, which may
        change until the start."""
        if self.state.status is StartStatus.STARTING and self.state.configured_digest != self.digest:
            self._move(StartState(StartStatus.EMPTY))
            self._r.out.event("start_map_dropped", reason="the configured list or the settings changed")
        if self.state.status is StartStatus.STARTING:
            self.commanded = True  # a map on disk means that the command was given
        self._say_waiting(dict.fromkeys(self.others, NOT_ANSWERED))

    def deadline_s(self) -> float:
        return float("inf") if self.started else self.ask_again_s

    def tick(self) -> None:
        if not self.started and self._r.now_s >= self.ask_again_s:
            self._ask()

    def take(self, state: StartState) -> None:
        """Take ``state`` from the snapshot of a leader that lists this server: it is STARTED."""
        self._move(state)
        self.waits_for.clear()
        self._r.out.event("started", cluster=state.cluster.hex(), by="a base")

    def begin(self, first_list: object, settings: object) -> None:
        """Start with the first list of a log that the cluster's first log has founded, if our store is in it: so no
        server is asked (rules.md#logs). Raises `InvariantBroken` if it is another log's."""
        first, agreed = MemberList.from_plain(first_list), Settings.from_plain(settings)
        if self._r.cfg.cluster_wanted not in (b"", first.digest()):
            raise InvariantBroken(f"told to begin as another log than {self._r.cfg.cluster_wanted.hex()}")
        if not self.started and first.is_voter(self._r.me):
            self._start_with(first, agreed)

    def initialise(self, origin: Origin) -> None:
        """Take an operator's command to found the cluster; it is answered once the cluster has started, or refused."""
        if self.started:
            self._r.out.refuse(origin, Code.CANNOT_INIT, detail="this server belongs to a cluster already")
            return
        if self._r.cfg.joining:
            detail = "this server was started to join a cluster (--join): add it there, with `alpo member add`"
            if self.others:
                detail = "this server's directory has lost a store: it waits for those who knew it, and founds nothing"
            self._r.out.refuse(origin, Code.CANNOT_INIT, detail=detail)
            return
        if self.bound:
            detail = "this server takes part in one cluster alone (`cluster` in its configuration), and founds no other"
            self._r.out.refuse(origin, Code.CANNOT_INIT, detail=detail)
            return
        self.commanded = True
        self._waiting.append(origin)
        self._advance()

    # -- questions and answers --------------------------------------------------------------------------

    def _ask(self) -> None:
        self.ask_again_s = self._r.now_s + self._r.cfg.heartbeat_s
        self.number += 1
        for id in self.others:
            self._r.out.send(Identity(id, b""), StartQuestion(self.number, self.digest))
        if not self.others:
            self._advance()

    def on_question(self, sender: Identity, question: StartQuestion) -> None:
        """Answer with our start state; the outbox holds the answer back until that state is durable."""
        state = self.state
        first_list = settings = ""
        if self.started:
            first_list = json.dumps(state.first_list, separators=(",", ":"))
            settings = json.dumps(state.settings, sort_keys=True, separators=(",", ":"))
        answer = StartAnswer(
            question.number, state.status, self.digest, state.incarnations, state.cluster, first_list, settings
        )
        self._r.out.send(sender, answer)

    def on_answer(self, sender: Identity, answer: StartAnswer) -> None:
        """Take another server's answer while this one has not started. (Later answers go to the leader's `changes`.)"""
        if sender.id not in self.others or not self._counts_from < answer.number <= self.number:
            return
        if answer.status is StartStatus.STARTED:
            self._on_started(sender, answer)
            return
        if answer.digest != self.digest:
            self._answers.pop(sender.id, None)
            self._wait_for(sender.id, "has another member list or other settings")
            return
        self._answers[sender.id] = answer
        self._who[sender.id] = sender
        self._wait_for(sender.id, None)
        if answer.status is StartStatus.STARTING:
            self.commanded = True  # a command given to one server counts on all
        self._advance()

    def _on_started(self, sender: Identity, answer: StartAnswer) -> None:
        """Join the cluster of a started server if its *first* list holds our incarnation. If not, our disk is new: wait
        for the leader to add it to the list (R30)."""
        try:
            first = MemberList.from_plain(json.loads(answer.first_list))
            settings = Settings.from_plain(json.loads(answer.settings))
        except ValueError:
            self._wait_for(sender.id, "answered with a member list that is none")
            return
        if first.digest() != answer.cluster:
            self._wait_for(sender.id, "answered with a member list of another cluster")
        elif first.holds(self._r.me):
            self._start_with(first, settings)
        else:
            why = "is in a cluster that knows this server's disk under another incarnation: it was lost or wiped"
            if first.get(self._r.me.id) is None:
                why = "is in a cluster that this server is no member of"
            self._wait_for(sender.id, why)

    # -- moving on --------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Take the next step of the first start if the answers of all others allow it: the map, then the start."""
        if self.started or self._r.cfg.joining or self.bound or not self.commanded:
            return
        if len(self._answers) < len(self.others):
            return
        if not self._r.out.hard_durable:
            return  # the present map is not on disk yet: no answer counts
        seen = tuple(sorted([*self._who.values(), self._r.me]))
        if self.state.status is StartStatus.EMPTY or self.state.incarnations != seen:
            self._move(StartState(StartStatus.STARTING, seen, self.digest))
            self._r.out.event("starting", members=[who.id for who in seen])
        elif all(a.status is StartStatus.STARTING and a.incarnations == seen for a in self._answers.values()):
            self._start_with(self._first_list(), self._r.cfg.settings)

    def _first_list(self) -> MemberList:
        incarnation = dict(self.state.incarnations)
        return MemberList.of(
            Member(c.id, c.address, c.priority, incarnation[c.id], Role.VOTER) for c in self._r.cfg.configured
        )

    def _start_with(self, first: MemberList, settings: Settings) -> None:
        cluster = first.digest()
        self._move(
            StartState(StartStatus.STARTED, (), self.digest, cluster, first.to_plain(), settings.to_plain())
        )
        self.waits_for.clear()
        self._r.started(cluster, first, settings)
        for origin in self._waiting:
            self._r.out.reply_when_durable(Initialised(origin))
        self._waiting.clear()

    def _move(self, state: StartState) -> None:
        """Move to another state, with this step's write; earlier answers count no more."""
        self.state, self.started = state, state.status is StartStatus.STARTED
        self._r.out.start_changed(state)
        self._answers.clear()
        self._counts_from = float("inf")
        self.write_number = self._r.out.number + 1

    def persisted(self, number: int) -> None:
        """Let answers count from the next question on, once the present map is on disk."""
        if self.write_number and number >= self.write_number:
            self.write_number = 0
            self._counts_from = float(self.number)
            self.ask_again_s = self._r.now_s
            if not self.others:
                self._advance()

    # -- why it waits -----------------------------------------------------------------------------------

    def _say_waiting(self, why: dict[int, str]) -> None:
        self.waits_for = {} if self.started else why

    def _wait_for(self, id: int, why: str | None) -> None:
        if why is None:
            self.waits_for.pop(id, None)
        elif self.waits_for.get(id) != why:
            self.waits_for[id] = why
            self._r.out.event("first_start_waits", member=id, why=why)
