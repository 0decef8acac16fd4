"""First start: how servers that only have a configured list become a cluster (R29).

Laws:

* EMPTY -> STARTING -> STARTED; what is answered is what is durable.
* An answer counts only if it answers a question asked after our present map was on disk (N4).
* Until started a server neither canvasses, votes nor accepts (N5): `Replica` sees to that.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .disk import StartState
from .inputs import Origin
from .members import (
    Identity,
    Member,
    MemberList,
    Role,
    StartStatus,
    configured_digest,
)
from .messages import StartAnswer, StartQuestion
from .ready import Code, Initialised
from .settings import Settings

if TYPE_CHECKING:
    from .replica import Replica


#: Why a member is waited for of which nothing has been heard.
NOT_ANSWERED = "has not answered"


class FirstStart:
    """The start state of one server, and the questions by which it moves."""

    def __init__(self, replica: Replica, state: StartState) -> None:
        self._r = replica
        self.state = state
        self.digest = configured_digest(replica.cfg.configured, replica.cfg.settings)
        self.commanded = replica.cfg.auto_init and len(replica.cfg.configured) > 1 and not replica.cfg.joining
        # Of the last question. Every process begins elsewhere: an answer that outlived the one that asked never counts.
        self._number = int(replica.rng.random() * (1 << 40))
        self._counts_from: float = self._number  # answers to questions up to this number do not count
        self._write_number = 0  # the write that the present map waits for
        self._ask_again_s = 0.0
        self._answers: dict[int, StartAnswer] = {}
        self._who: dict[int, Identity] = {}
        self._waiting: list[Origin] = []
        #: Why it waits, by member id, for log and status.
        self.waits_for: dict[int, str] = {}

    @property
    def started(self) -> bool:
        return self.state.status is StartStatus.STARTED

    @property
    def others(self) -> list[int]:
        return [c.id for c in self._r.cfg.configured if c.id != self._r.me.id]

    def boot(self) -> None:
        """Until started the configured list may change: a map formed under another one is dropped."""
        if self.state.status is StartStatus.STARTING and self.state.configured_digest != self.digest:
            self._move(StartState(StartStatus.EMPTY))
            self._r.out.event("start_map_dropped", reason="the configured list or the settings changed")
        if self.state.status is StartStatus.STARTING:
            self.commanded = True  # or it would not have come so far
        self._say_waiting(dict.fromkeys(self.others, NOT_ANSWERED))

    def deadline_s(self) -> float:
        return float("inf") if self.started else self._ask_again_s

    def tick(self) -> None:
        if not self.started and self._r.now_s >= self._ask_again_s:
            self._ask()

    def take(self, state: StartState) -> None:
        """A base has come from a leader that lists us: that is a start as well."""
        self._move(state)
        self._r.out.cluster = state.cluster
        self.waits_for.clear()
        self._r.out.event("started", cluster=state.cluster.hex(), by="a base")

    def initialise(self, origin: Origin) -> None:
        """The operator's command: answered once it has led to a start."""
        if self.started:
            self._r.out.refuse(origin, Code.CANNOT_INIT, detail="this server belongs to a cluster already")
            return
        if self._r.cfg.joining:
            detail = "this server was started to join a cluster (--join): add it there, with `alpo member add`"
            if self.others:
                detail = "this server's directory has lost a store: it waits for those who knew it, and founds nothing"
            self._r.out.refuse(origin, Code.CANNOT_INIT, detail=detail)
            return
        self.commanded = True
        self._waiting.append(origin)
        self._advance()

    # -- questions and answers --------------------------------------------------------------------------

    def _ask(self) -> None:
        self._ask_again_s = self._r.now_s + self._r.cfg.heartbeat_s
        self._number += 1
        for id in self.others:
            self._r.out.send(Identity(id, b""), StartQuestion(self._number, self.digest))
        if not self.others:
            self._advance()

    def on_question(self, sender: Identity, question: StartQuestion) -> None:
        """Whoever asks is told our durable state; the outbox holds the answer back until it is durable."""
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
        if self.started:
            if self._r.changes is not None:
                self._r.changes.newcomers.on_answer(sender, answer)
            return
        if sender.id not in self.others or not self._counts_from < answer.number <= self._number:
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
            self.commanded = True  # its operator's command is ours too
        self._advance()

    def _on_started(self, sender: Identity, answer: StartAnswer) -> None:
        """A started one's *first* list has our incarnation: then it is ours. Else our disk is new, and the leader will
        list it (R30)."""
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
        """Take the next step if all others' answers allow it."""
        if self.started or self._r.cfg.joining or not self.commanded or len(self._answers) < len(self.others):
            return
        if not self._r.out.hard_durable:
            return  # the present map is not on disk yet: nothing asked so far counts
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
            self._r.reply_when_durable(Initialised(origin))
        self._waiting.clear()

    def _move(self, state: StartState) -> None:
        """Another durable state: what was answered before it counts no more."""
        self.state = state
        self._r.out.start_changed(state)
        self._answers.clear()
        self._counts_from = float("inf")
        self._write_number = self._r.out.number + 1

    def persisted(self, number: int) -> None:
        """The present map is on disk: questions asked from now on count."""
        if self._write_number and number >= self._write_number:
            self._write_number = 0
            self._counts_from = self._number
            self._ask_again_s = self._r.now_s
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
