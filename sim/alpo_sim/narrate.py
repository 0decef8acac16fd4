"""Effects of every line of a replay in words, for comments in scenario files and for `replay -v`; traces of worlds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TextIO

from alpo.core.disk import Write
from alpo.core.messages import AppendRequest, Envelope
from alpo.core.ready import Event, Input, Ready, Received
from alpo.core.requests import Appended, Opened, ReadAt, Refused, Reply

from .host import Host
from .replay import Outcome, Replay
from .scenario import Scenario
from .shapes import main_fields
from .stage import Stage


class Narrator:
    """Watcher that puts events into words, by line from 0: ``story`` the main ones, ``all`` messages and writes too."""

    def __init__(self) -> None:
        self.at = -1
        self.story: dict[int, list[str]] = {}
        self.all: dict[int, list[str]] = {}
        self._marks: dict[int, int] = {}

    def on_line(self, at: int) -> None:
        """Count the events that follow as effects of line ``at``."""
        self.at = at

    def _tell(self, text: str, *, story: bool = True) -> None:
        if story and text not in self.story.setdefault(self.at, []):
            self.story[self.at].append(text)
        self.all.setdefault(self.at, []).append(text)

    def booted(self, host: Host) -> None:
        self._marks[host.id] = host.running.guaranteed_id

    def sent(self, host: Host, envelope: Envelope) -> None:
        message = envelope.message
        fields = " ".join(f"{name}={value}" for name, value in main_fields(message))
        self._tell(f"{host.id} sends {envelope.target.id} {type(message).__name__} {fields}".rstrip(), story=False)

    def committing(self, host: Host, writes: Sequence[Write]) -> None:
        last = writes[-1]
        ids = [entry.id for write in writes for entry in write.entries]
        entries = f", entries {ids[0]}..{ids[-1]}" if ids else ""
        self._tell(f"{host.id} has on disk: term {last.term}, vote {last.vote}{entries}", story=False)

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        replica = host.running
        for event in ready.events:
            if event.name in _EVENTS:
                self._tell(f"{host.id} {_EVENTS[event.name](event)}")
            else:
                self._tell(f"{host.id} {event.name} {event.fields}", story=False)
        if replica.guaranteed_id > self._marks.get(host.id, 0):
            self._marks[host.id] = replica.guaranteed_id
            id = replica.guaranteed_id
            self._tell(f"{host.id} holds entry {id} of term {replica.log.term_at(id)} guaranteed")
        for reply in ready.replies:
            self._tell(f"{host.id} {_reply(reply)}")


_EVENTS: dict[str, Callable[[Event], str]] = {
    "canvass": lambda e: f"canvasses for term {e.fields['term']}",
    "candidate": lambda e: f"stands in term {e.fields['term']}",
    "leader": lambda e: f"leads term {e.fields['term']}, from entry {e.fields['first_id']} on",
    "passive": lambda e: f"leads no more (term {e.fields['term']})",
    "following": lambda e: f"follows {e.fields['leader']} in term {e.fields['term']}",
    "expunge": lambda e: f"expunges entries {e.fields['from_id']}..{e.fields['last_id']}",
    "second_leader": lambda e: f"hears another leader of its own term {e.fields['term']}, {e.fields['sender']}",
    "handing_over": lambda e: f"hands over to {e.fields['to']}",
    "started": lambda e: "has started",
    "member_change": lambda e: f"makes {e.fields['member']} a {e.fields['role']} (before: {e.fields['before']})",
    "lost_disk": lambda e: f"hears that {e.fields['member']} has lost its disk",
    "base_sent": lambda e: f"sends {e.fields['member']} a base, up to entry {e.fields['base_id']}",
    "base_installed": lambda e: f"begins from a base, up to entry {e.fields['base_id']}",
    "retired": lambda e: f"is told by {e.fields['told_by']} that it is no member any more",
}


def serial_words(first: int, count: int) -> str:
    """Text for ``count`` serials from ``first`` on."""
    return f"serials {first} to {first + count - 1}" if count > 1 else f"serial {first}"


def lsn_words(lsns: Sequence[int]) -> str:
    """Text for the LSNs of appends: the first and the last if they follow on, else all."""
    follow = all(after == before + 1 for before, after in pairwise(lsns))
    return f"{lsns[0]} to {lsns[-1]}" if follow and len(lsns) > 1 else ", ".join(map(str, lsns))


def _reply(reply: Reply) -> str:
    if isinstance(reply, Appended):
        serials = serial_words(reply.serial, len(reply.lsns))
        return f"acknowledges {serials} of {reply.client} at LSN {lsn_words(reply.lsns)}"
    if isinstance(reply, Refused):
        what = f"{serial_words(reply.serial, reply.count)} of {reply.client}" if reply.count else "a request"
        return f"refuses {what}: {reply.code.name}"
    if isinstance(reply, Opened):
        return f"opens epoch {reply.epoch}, last serial {reply.last_serial}"
    if isinstance(reply, ReadAt):
        return f"answers a read up to entry {reply.id}"
    return f"answers {type(reply).__name__}"


def narrated(scenario: Scenario, *, strict: bool = True) -> tuple[Outcome, Narrator]:
    """Replay a scenario. Returns the outcome, and the narrator with the effects of every line."""
    narrator = Narrator()

    def watch(stage: Stage) -> Narrator:
        return narrator

    outcome = Replay(scenario, strict=strict, watchers=[watch], on_line=narrator.on_line).run()
    return outcome, narrator


def comments(outcome: Outcome, narrator: Narrator) -> list[str]:
    """A comment for each line that was done, "" where nothing important happens; the last one says what broke."""
    told = ["; ".join(narrator.story.get(at, [])) for at in range(outcome.at + 1)]
    if outcome.invariant and told:
        told[-1] = "; ".join(filter(None, [told[-1], f"{outcome.invariant.upper()}: {outcome.detail}"]))
    return told


def _short(value: object) -> str:
    """``value`` as text, without entries' bodies and without anything that differs between processes."""
    if isinstance(value, Received):
        return f"{value.envelope.sender.id} says {_short(value.envelope.message)}"
    if isinstance(value, AppendRequest):
        ends = f"{value.entries[0].id}..{value.entries[-1].id}" if value.entries else "-"
        return repr(value._replace(entries=[])) + f" {ends}"
    return repr(value)


class Tracer:
    """Watcher that writes all that happens on ``stage`` to ``file``."""

    def __init__(self, stage: Stage, file: TextIO) -> None:
        self._stage = stage
        self._file = file

    def _line(self, host: Host, text: str) -> None:
        self._file.write(f"{self._stage.now_us / 1e6:11.6f} {host.id} {text}\n")

    def booted(self, host: Host) -> None:
        self._line(host, f"boot {host.boots}")

    def committing(self, host: Host, writes: Sequence[Write]) -> None:
        last = writes[-1]
        self._line(host, f"disk term {last.term} vote {last.vote} write {last.number} guaranteed {last.guaranteed_id}")

    def sent(self, host: Host, envelope: Envelope) -> None:
        self._line(host, f"to {envelope.target.id} {_short(envelope.message)}")

    def stepped(self, host: Host, inputs: Sequence[Input], ready: Ready) -> None:
        for each in inputs:
            self._line(host, f"in {_short(each)}")
        for event in ready.events:
            self._line(host, f"event {event.name} {event.fields}")
        for reply in ready.replies:
            self._line(host, f"reply {reply!r}")
        replica = host.replica
        if replica is not None:
            self._line(
                host,
                f"now {replica.state.value} term {replica.term} last {replica.log.last_id} "
                f"guaranteed {replica.guaranteed_id} stable {replica.log.stable_id}",
            )
