"""Work of `alpo append` and `alpo import`: payloads from arguments or a stream, appended many in flight; results in
order.

Laws:

* A stream is never held whole: at most IN_FLIGHT_MAX appends of BYTES_MAX payload bytes are in flight; stdin is read
  only while more may be.
* The first failure stops the reading. Appends in flight are waited for. Then the command reports the first append whose
  outcome is unknown, if there is one (exit 3), else the first failure.
* Ctrl-C (and SIGTERM) ends at once, and reports the same.
* Memory is bounded: a part that does not end within PART_BYTES_MAX is refused, whatever the cluster's limit is.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing
from typing import Protocol

import anyio

from alpo.client.handle import Handle
from alpo.client.tasks import News
from alpo.errors import AlpoError, Closed, NotGuaranteed, TooLarge
from alpo.threads import in_thread

from .exits import UsageProblem
from .output import Sink, json_line, say

IN_FLIGHT_MAX = 2_000
BYTES_MAX = 16 << 20
CHUNK_BYTES = 1 << 18
PART_BYTES_MAX = 64 << 20

#: Payloads of one append; several are an atomic batch.
Append = list[bytes]


class Appends(Protocol):
    """Part of a `Log` that `Run` needs."""

    def append_nowait(self, payload: bytes) -> Handle: ...

    def append_batch_nowait(self, payloads: list[bytes]) -> Handle: ...


def hint_on_terminal(what: str) -> None:
    """Tell a user who typed the command alone what it waits for."""
    if sys.stdin.isatty():
        say(f"reading {what} from the terminal; Ctrl-D ends")


class Splitter:
    """Splits a stream at a separator byte. A last part without separator counts, an empty rest does not."""

    def __init__(self, separator: bytes) -> None:
        self._separator = separator
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take a chunk; returns the parts that are now complete. Raises UsageProblem if a part is too long."""
        head, separator, tail = chunk.rpartition(self._separator)
        if not separator:
            self._keep(chunk)
            return []
        parts = (bytes(self._rest) + head).split(self._separator)
        self._rest.clear()
        self._keep(tail)
        return parts

    def end(self) -> list[bytes]:
        """The rest after the last separator, if there is any."""
        return [bytes(self._rest)] if self._rest else []

    def _keep(self, tail: bytes) -> None:
        self._rest += tail
        if len(self._rest) > PART_BYTES_MAX:
            raise UsageProblem(f"a payload of more than {PART_BYTES_MAX} bytes without a separator")


class Whole:
    """Takes a stream as a single part, even an empty one."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take a chunk; returns []. Raises UsageProblem if the stream is too long."""
        self._parts.append(chunk)
        self._bytes += len(chunk)
        if self._bytes > PART_BYTES_MAX:
            raise UsageProblem(f"--whole takes at most {PART_BYTES_MAX} bytes")
        return []

    def end(self) -> list[bytes]:
        """The whole stream as one part."""
        return [b"".join(self._parts)]


async def from_words(words: Iterable[str]) -> AsyncIterator[list[bytes]]:
    """Yield the arguments as payloads, byte for byte as the shell gave them."""
    yield [os.fsencode(word) for word in words]


class Stream(Protocol):
    """An unbuffered stream: a read returns what is available. (A buffered one would be locked while a thread reads
    it.)"""

    def read(self, size: int, /) -> bytes | None: ...


async def from_stream(stream: Stream, splitter: Splitter | Whole) -> AsyncIterator[list[bytes]]:
    """Yield parts as they come, those of one read together: lines of a slow producer do not wait for more."""
    while True:
        # The thread may block in a terminal's read for ever: neither Ctrl-C nor the interpreter's end may wait for it.
        chunk = await in_thread(stream.read, CHUNK_BYTES)
        parts = splitter.feed(chunk) if chunk else splitter.end()
        if parts:
            yield parts
        if not chunk:
            return


class Batcher:
    """Collects payloads into batches of ``size`` (0: all in one)."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._gathered: list[bytes] = []
        self._bytes = 0

    def feed(self, parts: list[bytes]) -> Iterator[list[bytes]]:
        """Add payloads; yields the batches that are now full. Raises UsageProblem if a batch gets too large."""
        for part in parts:
            self._gathered.append(part)
            self._bytes += len(part)
            if self._bytes > PART_BYTES_MAX:
                raise UsageProblem(f"a batch of more than {PART_BYTES_MAX} bytes")
            if len(self._gathered) == self._size:
                yield self.take()

    def take(self) -> list[bytes]:
        """Take what was gathered since the last full batch, and begin anew. At the end this is the rest, or empty."""
        batch, self._gathered, self._bytes = self._gathered, [], 0
        return batch


class Run:
    """Appends in flight, and results of earlier ones. ``sink`` None: results are not printed."""

    def __init__(self, log: Appends, sink: Sink | None, as_json: bool) -> None:
        self._log = log
        self._sink = sink
        self._as_json = as_json
        self._under_way: deque[tuple[Handle, int, int]] = deque()  # with number of payloads, bytes
        self._bytes = 0
        self._answered = anyio.Event()
        self._waiting = News()
        self._feeding = anyio.CancelScope()
        self._failed: list[AlpoError] = []
        self._writing = False
        #: Bad input, which stopped the reading, or an error in writing results.
        self.problem: AlpoError | UsageProblem | OSError | None = None
        self.payloads = 0
        #: Number (from 1) of the first payload that is larger than the cluster allows; 0: none.
        self.too_large = 0
        self._taken = 0
        #: True if something was appended after a failed append: the log does not hold just the front of the input.
        self.has_gaps = False
        self.first_lsn: int | None = None
        self.last_lsn: int | None = None

    async def feed(self, source: Callable[[], AsyncIterator[list[Append]]]) -> None:
        """Append from the source until it ends or something fails; then wait for appends in flight, and until their
        results are written."""
        try:
            with self._feeding:
                async with aclosing(source()) as groups:  # type: ignore[type-var]
                    async for group in groups:
                        for payloads in group:
                            await self._room()
                            self._start(payloads)
        except (AlpoError, UsageProblem, OSError) as error:
            self.problem = error
        while self._under_way or self._writing:
            await self._waiting.wait()

    async def see_through(
        self, source: Callable[[], AsyncIterator[list[Append]]], beside: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        """Run `feed` and `collect`, and ``beside`` until they are done."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.collect)
            tasks.start_soon(beside)
            await self.feed(source)
            tasks.cancel_scope.cancel()

    async def part(self) -> None:
        """Keep the library from waiting for queued appends at the end, if something failed: all that can be known is
        known then."""
        if self.failure() is not None:
            with anyio.CancelScope() as leaving:
                leaving.cancel()
                await anyio.lowlevel.checkpoint()

    async def _room(self) -> None:
        while len(self._under_way) >= IN_FLIGHT_MAX or self._bytes >= BYTES_MAX:
            await self._waiting.wait()

    def _start(self, payloads: Append) -> None:
        single = len(payloads) == 1
        handle = self._log.append_nowait(payloads[0]) if single else self._log.append_batch_nowait(payloads)
        size = sum(map(len, payloads))
        self._under_way.append((handle, len(payloads), size))
        self._bytes += size
        handle.add_done_callback(self._wake)

    def _wake(self, _: Handle) -> None:
        self._answered.set()

    async def collect(self) -> None:
        """Take finished appends in order and print them, until cancelled."""
        while True:
            await self._answered.wait()
            self._answered = anyio.Event()
            lines = self._take_done()
            self._writing = True
            if lines and self._sink is not None:
                try:
                    await self._sink.write("".join(lines).encode())
                except BrokenPipeError:
                    self._sink = None  # the results have no reader any more; appends continue
                except OSError as error:
                    self._sink, self.problem = None, error
            self._writing = False
            if self._failed:
                self._feeding.cancel()
            self._waiting.tell()

    def _take_done(self) -> list[str]:
        lines = []
        while self._under_way and self._under_way[0][0].done:
            handle, count, size = self._under_way.popleft()
            self._bytes -= size
            self._taken += count
            if handle.error is not None:
                self._failed.append(handle.error)
                if isinstance(handle.error, TooLarge):
                    self.too_large = self.too_large or self._taken
                continue
            self.payloads += count
            self.has_gaps = self.has_gaps or bool(self._failed)
            if handle.lsn is not None:
                self.first_lsn = handle.lsn if self.first_lsn is None else self.first_lsn
                self.last_lsn = handle.lsn + count - 1
            lines.append(line_of(handle.lsn, count, handle, handle.duplicate, self._as_json))
        return lines

    def failure(self) -> AlpoError | UsageProblem | OSError | None:
        """The error to report, by the laws above. After Ctrl-C, appends sent and not answered count as unknown; those
        that were never sent, and that closing the log took back, are no error."""
        errors: list[AlpoError] = list(self._failed)
        for handle, _, _ in self._under_way:
            if isinstance(handle.error, Closed):
                continue
            if handle.error is not None:
                errors.append(handle.error)
            elif not handle.done and handle.serial:
                who = {"client": handle.client, "serial": handle.serial, "epoch": handle.epoch}
                errors.append(NotGuaranteed("interrupted", **who))  # type: ignore[arg-type]
        unknown = next((error for error in errors if isinstance(error, NotGuaranteed)), None)
        return unknown or next(iter(errors), None) or self.problem

    def summary(self) -> str:
        """Text saying how much was appended, and where."""
        if self.first_lsn is None:
            return "nothing appended" if not self.payloads else f"{self.payloads:,} appended"
        span = f"{self.first_lsn}" if self.first_lsn == self.last_lsn else f"{self.first_lsn} to {self.last_lsn}"
        return f"{self.payloads:,} appended, LSN {span}"


class Sender(Protocol):
    """Identity that an append was sent under."""

    @property
    def client(self) -> str: ...

    @property
    def serial(self) -> int: ...

    @property
    def epoch(self) -> int: ...


def line_of(lsn: int | None, count: int, sender: Sender, duplicate: bool | None, as_json: bool) -> str:
    """Line that tells of an append: its LSNs, or all of it as JSON."""
    if as_json:
        named = {"client": sender.client, "serial": sender.serial, "epoch": sender.epoch}
        return json_line({"lsn": lsn, "count": count, **named, "duplicate": duplicate}) + "\n"
    return f"{lsn}\n" if count == 1 or lsn is None else f"{lsn}-{lsn + count - 1}\n"
