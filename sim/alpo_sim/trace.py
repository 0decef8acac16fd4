"""Trace of a world as text: one line for each event, the same bytes for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from alpo.core.disk import Write
from alpo.core.messages import AppendRequest, Envelope
from alpo.core.ready import Input, Ready, Received

from .host import Host
from .stage import Stage


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
