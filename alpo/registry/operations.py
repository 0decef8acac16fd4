"""Operations on a registry: `Admit`, `Readmit`, `Remove`, and the `Operation` that a program writes of its own; their
queue, and the batches that are made of it.

Laws:

* An operation is pure and quick: it looks at the rows, and returns a `Step` or raises. It may be called again, on other
  rows, before anything of it is in the log.
* An exception drops that operation alone: its caller gets it, and no row is changed. `Reject` is the planned one.
* Operations are applied in the order in which they came, each to what those before it left.
* Nothing of a batch is kept if it was not written: the next one begins with what is in the log, and operations that
  were applied to anything else are applied anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any, NamedTuple, Protocol

from alpo.client.tasks import Event
from alpo.errors import AlpoError, Overloaded
from alpo.rsm.outcomes import Command
from alpo.state.codec import OPS_MAX, ROOM_BYTES, ROW_MARK, Do, Op

from .rows import Change, Overlay, Reject, Rows, need_id, row_bytes

#: Most operations that wait.
QUEUE_MAX = 100_000
#: Most operations of one batch.
BATCH_MAX = 4096
#: Bytes that the log's encoding adds to a row, at most; and the values that stand beside their names.
_ROW_BYTES, _SHORT_BYTES = 32, 64


class Step(NamedTuple):
    """An operation's effect: rows to write, as JSON can hold them, ids of rows to take away (those that are not there
    do no harm), and what `Registry.apply` returns once all of it is in the log."""

    put: Mapping[str, Any] = {}
    remove: Iterable[str] = ()
    result: Any = True


class Operation(Protocol):
    """An operation on the rows of a registry."""

    def apply(self, rows: Any, /) -> Step:
        """The effect on these rows (`Rows`, an immutable mapping: what is written, plus the operations before this one
        in its batch). Raises `Reject`, or what it likes."""


class Admit(NamedTuple):
    """Admit ``id`` with this row: True, or `Reject` if it is admitted already."""

    id: str
    value: Any = None

    def apply(self, rows: Mapping[str, Any], /) -> Step:
        """The operation's effect."""
        if self.id in rows:
            raise Reject(f"{self.id!r} is admitted already")
        return Step({self.id: self.value})


class Readmit(NamedTuple):
    """Ask whether ``id`` is admitted: True, and its row stays as it is; False: it is not, and must not come back.

    A registry in upgrade admits whom it does not know, with this row.
    """

    id: str
    value: Any = None

    def apply(self, rows: Mapping[str, Any], /) -> Step:
        """The operation's effect."""
        if self.id in rows:
            return Step()
        need_id(self.id)
        return Step({self.id: self.value}) if getattr(rows, "upgrade", False) else Step(result=False)


class Remove(NamedTuple):
    """Remove ``id``: True; False if it is not there, so that a repeated one does no harm."""

    id: str

    def apply(self, rows: Mapping[str, Any], /) -> Step:
        """The operation's effect."""
        if self.id in rows:
            return Step(remove=(self.id,))
        need_id(self.id)
        return Step(result=False)


def changes_of(step: object) -> dict[str, Change]:
    """The effect of a step on rows, as it is logged. Raises TypeError, ValueError, `TooLarge`."""
    if not isinstance(step, Step):
        raise TypeError(f"an operation's apply returns a Step, not {type(step).__name__}")
    put, remove, _ = step
    changes: dict[str, Change] = {need_id(id): row_bytes(value) for id, value in put.items()} if put else {}
    if remove:
        if isinstance(remove, str):
            raise TypeError(f"remove is several ids, not one: remove=({remove!r},)")
        for id in remove:
            if changes.get(need_id(id)) is not None:
                raise ValueError(f"a step either writes row {id!r} or removes it")
            changes[id] = None
    return changes


class Waiting:
    """An operation whose caller waits. ``gone``: the caller does not any more."""

    __slots__ = ("error", "event", "gone", "operation", "result")

    def __init__(self, operation: Operation, event: Event) -> None:
        self.operation = operation
        self.event = event
        self.result: Any = None
        self.error: Exception | None = None
        self.gone = False

    def fail(self, error: Exception) -> None:
        """End with an error, of which each caller gets a copy."""
        self.error = copy(error) if isinstance(error, AlpoError) else error
        self.event.set()


class Batch:
    """Operations that go together. ``changes``: their effect on the rows, one after the other; ``head`` and ``size``:
    bytes of their names and short values, and of all, at most. ``sent``: the write of ``ops``, once it was sent; None
    for a batch that only answers."""

    __slots__ = ("changes", "head", "ops", "sent", "size", "taken")

    def __init__(self) -> None:
        self.taken: list[Waiting] = []
        self.changes: dict[str, Change] = {}
        self.head = self.size = 0
        self.ops: list[Op] = []
        self.sent: Command | None = None

    def make_ops(self, name: str, values: Mapping[str, bytes]) -> None:
        """Make the operations on variables that make the changes; ``values``: the rows that are there."""
        put, expunge, prefix = int(Do.PUT), int(Do.EXPUNGE), name + ROW_MARK
        self.ops = [
            (expunge, prefix + id) if value is None else (put, prefix + id, value, 0)
            for id, value in self.changes.items() if value is not None or id in values
        ]

    def done(self) -> None:
        """Tell every caller what its operation came to."""
        for waiting in self.taken:
            waiting.event.set()

    def fail(self, error: Exception) -> None:
        """Tell every caller that the batch failed."""
        for waiting in self.taken:
            waiting.fail(error)


class Queue:
    """Operations that wait, and the batch that is made of them ahead of its time, while the one before it is under way.

    ``values``: the rows that are in the log. ``payload_bytes_max`` and ``batch_bytes_max``: the log's limits.
    """

    def __init__(
        self, name: str, values: Mapping[str, bytes], upgrade: bool, payload_bytes_max: int, batch_bytes_max: int
    ) -> None:
        self._values = values
        self._upgrade = upgrade
        self._prefix_bytes = len(name.encode()) + 1
        self._head_bytes_max = payload_bytes_max - ROOM_BYTES
        self._bytes_max = batch_bytes_max // 2
        self._line: OrderedDict[Waiting, None] = OrderedDict()
        self._ahead = Batch()
        self._most = BATCH_MAX

    def __len__(self) -> int:
        return len(self._line) + len(self._ahead.taken)

    def add(self, operation: Operation, new_event: Callable[[], Event]) -> Waiting:
        """Put an operation in line. Raises `Overloaded`."""
        if len(self) >= QUEUE_MAX:
            raise Overloaded(f"{QUEUE_MAX} operations wait for the registry already")
        waiting = Waiting(operation, new_event())
        self._line[waiting] = None
        return waiting

    def withdraw(self, waiting: Waiting) -> None:
        """Take an operation out, unless it was sent."""
        waiting.gone = True
        self._line.pop(waiting, None)

    def fail(self, error: Exception) -> None:
        """End all that wait with an error."""
        self._ahead.fail(error)
        self._ahead = Batch()
        while self._line:
            self._line.popitem(last=False)[0].fail(error)

    def prepare(self, under_way: Mapping[str, Change] | None = None, most: int = BATCH_MAX) -> None:
        """Take as many operations as go together into the next batch, which follows on what is ``under_way``."""
        batch, line = self._ahead, self._line
        taken, changes = batch.taken, batch.changes
        before = Overlay(self._values, under_way) if under_way else self._values
        rows = Rows(Overlay(before, changes), self._upgrade)
        most = min(most, self._most)
        while line and len(taken) < most:
            waiting, _ = line.popitem(last=False)
            waiting.error = None
            try:
                step = waiting.operation.apply(rows)
                own = changes_of(step)
            except Exception as error:  # the operation's business, and its caller's
                waiting.error = error
                taken.append(waiting)
                continue
            head, size = batch.head, batch.size
            for id, value in own.items():
                name = self._prefix_bytes + _ROW_BYTES + (len(id) if id.isascii() else len(id.encode()))
                long = 0 if value is None else len(value)
                head += name + (long if long < _SHORT_BYTES else 0)
                size += name + long
            if taken and (
                head > self._head_bytes_max or size > self._bytes_max or len(changes) + len(own) > OPS_MAX
            ):
                self._put_back([waiting])
                return
            waiting.result = step.result
            changes.update(own)
            taken.append(waiting)
            batch.head, batch.size = head, size

    def take(self, most: int = BATCH_MAX) -> Batch:
        """The next batch, once nothing is under way: with all that waits by now, and goes into it."""
        if any(waiting.gone for waiting in self._ahead.taken):
            self.discard()
        self.prepare(most=most)
        batch, self._ahead = self._ahead, Batch()
        return batch

    def discard(self) -> None:
        """Put back the batch that was made ahead: what it follows on has not come to be."""
        self._put_back([waiting for waiting in self._ahead.taken if not waiting.gone])
        self._ahead = Batch()

    def _put_back(self, taken: list[Waiting]) -> None:
        for waiting in reversed(taken):
            self._line[waiting] = None
            self._line.move_to_end(waiting, last=False)

    def halve(self, batch: Batch) -> bool:
        """Put back a batch that was too much at once: the next are half as large. False if it was a single one."""
        if len(batch.taken) < 2:
            return False
        self._put_back(batch.taken)
        self._most = len(batch.taken) // 2
        return True

    def grow(self) -> None:
        """Let batches become larger again, after one that went well."""
        self._most = min(2 * self._most, BATCH_MAX)
