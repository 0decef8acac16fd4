"""Work of `alpo append`: append payloads from arguments or a stream, many in flight; results in order.

Laws:

* A stream is never held whole: at most IN_FLIGHT_MAX appends of BYTES_MAX payload bytes are in flight; stdin is read
  only while more may be.
* The first failure stops the reading. Appends in flight are waited for. Then the command reports the first append whose
  outcome is unknown, if there is one (exit 3), else the first failure.
* With --wait everyone, appends are answered before the waiting begins: their lines are printed even if the waiting
  fails.
* Ctrl-C (and SIGTERM) ends at once, and reports the same.
"""

from __future__ import annotations

import io
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio

import alpo
from alpo.client.handle import Handle
from alpo.client.log import append_after
from alpo.client.tasks import News
from alpo.errors import (
    AlpoError,
    Closed,
    Conflict,
    Fenced,
    NotEverywhere,
    NotGuaranteed,
    SerialReused,
    SessionExpired,
    TooLarge,
)

from .connecting import connected
from .exits import Failed, Unknown, UsageProblem, message_of, reason
from .options import Target
from .output import Sink, json_line, say
from .payloads import Batcher, Splitter, Whole, from_stream, from_words
from .progress import keep_line
from .running import unless_interrupted

IN_FLIGHT_MAX = 2_000
BYTES_MAX = 16 << 20

#: Payloads of one append; several are an atomic batch.
Append = list[bytes]


class Appends(Protocol):
    """Part of a `Log` that `Run` needs."""

    def append_nowait(self, payload: bytes) -> Handle: ...

    def append_batch_nowait(self, payloads: list[bytes]) -> Handle: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """The command line's request. ``batch``: payloads in an append, 0: all in one."""

    words: tuple[str, ...]
    file: Path | None
    separator: bytes
    whole: bool
    batch: int
    client: str | None
    serial: int | None
    epoch: int | None
    everyone: bool = False
    expect_last: int | None = None

    async def appends(self) -> AsyncIterator[list[Append]]:
        """Yield the appends in order, in groups as they were read."""
        batcher = Batcher(self.batch)
        async with AsyncExitStack() as stack:
            if self.words:
                source = from_words(self.words)
            else:
                splitter = Whole() if self.whole else Splitter(self.separator)
                source = from_stream(self._open(stack), splitter)
            async for parts in source:
                if full := list(batcher.feed(parts)):
                    yield full
        if rest := batcher.take():
            yield [rest]

    def _open(self, stack: AsyncExitStack) -> io.RawIOBase:
        if self.file is None or str(self.file) == "-":
            hint_on_terminal("one payload" if self.whole else "lines" if self.separator == b"\n" else "payloads")
            return io.FileIO(sys.stdin.fileno(), closefd=False)
        try:
            return stack.enter_context(io.FileIO(self.file))
        except OSError as error:
            raise UsageProblem(f"--file {self.file}: {reason(error)}") from error


def hint_on_terminal(what: str) -> None:
    """Tell a user who typed the command alone what it waits for."""
    if sys.stdin.isatty():
        say(f"reading {what} from the terminal; Ctrl-D ends")


class _After:
    """Appends that expect ``expect_last`` to be the log's last LSN; a command makes one."""

    def __init__(self, log: alpo.Log, expect_last: int) -> None:
        self._log = log
        self._expect_last = expect_last

    def append_nowait(self, payload: bytes) -> Handle:
        return append_after(self._log, [payload], self._expect_last)

    def append_batch_nowait(self, payloads: list[bytes]) -> Handle:
        return append_after(self._log, payloads, self._expect_last)


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
            lines.append(_line(handle.lsn, count, handle, handle.duplicate, self._as_json))
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


class _Sender(Protocol):
    @property
    def client(self) -> str: ...

    @property
    def serial(self) -> int: ...

    @property
    def epoch(self) -> int: ...


def _line(lsn: int | None, count: int, sender: _Sender, duplicate: bool | None, as_json: bool) -> str:
    if as_json:
        named = {"client": sender.client, "serial": sender.serial, "epoch": sender.epoch}
        return json_line({"lsn": lsn, "count": count, **named, "duplicate": duplicate}) + "\n"
    return f"{lsn}\n" if count == 1 or lsn is None else f"{lsn}-{lsn + count - 1}\n"


async def append_all(target: Target, plan: Plan) -> None:
    """Append as the plan says. Raises by the laws above; KeyboardInterrupt if nothing is in doubt after Ctrl-C."""
    show_results = target.json or bool(plan.words)
    run: Run | None = None
    lacking: NotEverywhere | None = None

    async def body() -> None:
        nonlocal run, lacking
        async with alpo.connect(",".join(target.servers), client=plan.client, timeout_s=target.timeout_s) as log:
            appends = log if plan.expect_last is None else _After(log, plan.expect_last)
            run = Run(appends, Sink() if show_results else None, target.json)
            await run.see_through(plan.appends, lambda: keep_line(lambda: _progress(log, run)))
            if plan.everyone and run.failure() is None and run.last_lsn is not None:
                try:
                    await log.wait_everyone(run.last_lsn)
                except NotEverywhere as error:
                    lacking = error
            await run.part()

    interrupted = await unless_interrupted(body)
    failure = run.failure() if run is not None else None
    if failure is not None:
        if run is not None and run.payloads:
            say(f"{run.summary()} before that:")
        if isinstance(failure, NotGuaranteed) and target.json:
            await Sink().write(_line(None, 1, failure, None, as_json=True).encode())
        await _tell_conflict(failure, target)
        raise _with_condition(failure, plan)
    if run is not None and not show_results and (plan.everyone or not interrupted):
        say(run.summary())
    if interrupted:
        raise KeyboardInterrupt
    if lacking is not None:
        raise lacking


async def _tell_conflict(failure: BaseException, target: Target) -> None:
    """Tell a conflict's last LSN to the reader of JSON."""
    if isinstance(failure, Conflict) and target.json:
        await Sink().write(f"{json_line({'lsn': None, 'last_lsn': failure.last_lsn})}\n".encode())


def _with_condition(failure: AlpoError | UsageProblem | OSError, plan: Plan) -> Exception:
    """The failure to report: of a conditional append whose outcome is unknown, a retry is to be conditional too."""
    if isinstance(failure, NotGuaranteed) and plan.expect_last is not None:
        return Unknown(f"{message_of(failure)} --expect-last {plan.expect_last}")
    return failure


async def append_by_hand(target: Target, plan: Plan) -> None:
    """Retry appends of another process: each under its own serial from ``plan.serial`` on, one after the other."""
    assert plan.client is not None and plan.serial is not None
    sent = _Named(plan.client, plan.serial, plan.epoch)

    async def body() -> None:
        last_lsn = 0
        async with connected(target) as log:
            async for group in plan.appends():
                for payloads in group:
                    sent.under_way = True
                    try:
                        done = await log.append_by_hand(
                            payloads, client=sent.client, serial=sent.serial, epoch=sent.known_epoch,
                            expect_last=plan.expect_last,
                        )
                    except Conflict as error:
                        await _tell_conflict(error, target)
                        raise
                    except NotGuaranteed as error:
                        raise _with_condition(error, plan) from error
                    except SessionExpired as error:
                        # An earlier process had sent it, and the cluster no longer knows what became of it (R22).
                        raise _with_condition(sent.unknown(str(error)), plan) from error
                    except (Fenced, SerialReused) as error:
                        raise Failed(f"{error}{_epoch_hint(plan)}") from error
                    sent.under_way, sent.known_epoch = False, done.epoch
                    line = _line(done.lsn, len(payloads), sent, done.duplicate, target.json)
                    await Sink().write(line.encode())
                    sent.serial += 1
                    last_lsn = max(last_lsn, done.lsn + len(payloads) - 1)
            if plan.everyone and last_lsn:
                await log.wait_everyone(last_lsn)

    if await unless_interrupted(body):
        raise _with_condition(sent.unknown("interrupted"), plan) if sent.under_way else KeyboardInterrupt


def _epoch_hint(plan: Plan) -> str:
    """Hint for a refused retry of a named client: perhaps not the payloads but the epoch is wrong. "" for others."""
    if plan.client is None or plan.client.startswith("~"):
        return ""
    asked = "the epoch on record (no --epoch was given)" if plan.epoch is None else f"--epoch {plan.epoch}"
    return f"\nretried under {asked}; if it was sent under another, retry with that: the message of exit 3 named it"


@dataclass(slots=True)
class _Named:
    """Identity that a retry is sent under. ``known_epoch`` None: the cluster's recorded one."""

    client: str
    serial: int
    known_epoch: int | None
    under_way: bool = False

    @property
    def epoch(self) -> int:
        return self.known_epoch or 0

    def unknown(self, why: str) -> NotGuaranteed:
        return NotGuaranteed(why, client=self.client, serial=self.serial, epoch=self.epoch)


def _progress(log: alpo.Log, run: Run) -> str:
    """Progress line: how far it is, and why it waits."""
    reason = log.reason
    return run.summary() if reason is None else f"{run.summary()}, waiting: {reason}"
