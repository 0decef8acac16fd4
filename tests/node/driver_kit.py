"""A driver with a scripted replica, and a record of all that the driver does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import trio

from alpo.core.disk import Write
from alpo.core.entries import Kind, seal
from alpo.core.members import Identity
from alpo.core.messages import Envelope, HandOver
from alpo.core.ready import Ready, Tick
from alpo.core.replica import Replica
from alpo.node.driver import Driver
from alpo.storage.writer import After

FAR_S = 1e9


def envelope(term: int) -> Envelope:
    return Envelope(b"", Identity(1, b"a" * 16), Identity(2, b"b" * 16), HandOver(term))


def write(number: int, *ids: int) -> Write:
    """A write of the entries ``ids``."""
    entries = [seal(id, 1, Kind.DATA, 0, id, b"payload") for id in ids]
    return Write(number, 1, 0, None, entries, [], 0, 0, bodies_bytes=sum(len(entry.body) for entry in entries))


class Told:
    """A replica that answers every step with the next of ``script``, and records what it was given."""

    def __init__(self, *script: Ready) -> None:
        self.script = list(script)
        self.steps: list[list[Any]] = []
        self.inflight_bytes = 0
        self.guaranteed_id = self.last_id = 0
        self.counted: dict[object, int] = {}  # the entry up to which an input is the majority's acceptance
        self.reign: Any = None
        self.serves = True
        self.waits: tuple[type, ...] = ()
        self.fully_replicated_id, self.settings = 0, None
        self.log = SimpleNamespace(stable_id=0, generation=0)
        self.members, self.out = SimpleNamespace(latest=None), SimpleNamespace(cluster=b"")

    @property
    def ticks(self) -> int:
        """Number of inputs that were ticks. (Inputs without fields are all equal.)"""
        return [type(item) for step in self.steps for item in step].count(Tick)

    def take_known(self, item: object, now_s: float, wall_ms: int) -> None:
        """Know nothing, so that all is stepped."""

    def can_wait(self, item: object) -> bool:
        return isinstance(item, self.waits)

    def left_after(self, inputs: Sequence[object]) -> int:
        return self.last_id - max(self.counted.get(item, self.guaranteed_id) for item in inputs)

    def start(self, _now_s: float, _wall_ms: int) -> Ready:
        return Ready(deadline_s=FAR_S)

    def step(self, inputs: Any, _now_s: float, _wall_ms: int) -> Ready:
        self.steps.append(list(inputs))
        ready = self.script.pop(0) if self.script else Ready(deadline_s=FAR_S)
        ready.deadline_s = ready.deadline_s or FAR_S
        return ready


class Recorder:
    """A driver, and a list (`did`) of all that it does, in order."""

    def __init__(self, replica: Told) -> None:
        self.did: list[tuple[str, Any]] = []
        self.submitted: list[tuple[int, After]] = []
        self.commits_here = False
        self.driver = Driver(
            cast(Replica, replica),
            submit=self._submit,
            commit_here=self._commit_here,
            send=self._send,
            prepare=lambda envelopes: lambda: self._send(envelopes),
            load=lambda load: self.did.append(("load", load)),
            inflight_bytes_max=100,
        )
        self.driver.start()

    def _send(self, envelopes: Sequence[Envelope]) -> None:
        self.did.append(("send", [getattr(e.message, "term", None) for e in envelopes]))

    def _submit(self, write: Write, after: After) -> None:
        self.did.append(("write", write.number))
        self.submitted.append((write.number, after))

    def _commit_here(self, write: Write, after: After) -> bool:
        if self.commits_here:
            self.did.append(("commit", write.number))
            if after is not None:
                after()
            self.driver.durable(write.number)
        return self.commits_here

    def commit(self, number: int) -> None:
        """Act as the writer's thread does once every write up to ``number`` is on disk."""
        while self.submitted and self.submitted[0][0] <= number:
            _, after = self.submitted.pop(0)
            if after is not None:
                after()
        self.driver.durable(number)


class Passes:
    """The user of a poller that never lets it wait by itself. ``then``: called after each group."""

    clock_s = staticmethod(trio.current_time)
    came_s, for_servers = 0.0, False

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.take_group = then

    def patience_s(self) -> float:
        return 0.0

    def go_on(self) -> None:
        """Do nothing: nothing is due."""
