"""`alpo import`: append each line of a file, or of stdin, as fast as possible; an interrupted import can be
continued.

Laws:

* Under a name, the payload of line k has serial k in every run. So a run begins after the last serial in the log, and
  nothing is left out or appended twice, however the previous run ended.
* The last line appended before proves that the input is the same: the log has it under that serial, or the run ends
  before anything is appended.
* Memory and appends in flight are bounded by `appending.Run`.
"""

from __future__ import annotations

import base64
import io
import json
import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import alpo
from alpo.errors import NoSpace, NotGuaranteed, Overloaded, SessionExpired, TooLarge, Unavailable

from ..exits import Failed, Unknown, UsageProblem, reason
from ..options import Target, check_new_client, with_target
from ..output import Step, print_json, say, slow_progress
from ..running import run, unless_interrupted

if TYPE_CHECKING:
    from alpo.client.handle import Handle

    from ..appending import Append, Run, Stream

_PROGRESS_EVERY_S = 0.25
_SHOWN_CHARS_MAX = 60


class _Counted:
    """Stream that counts the bytes read from it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.read_bytes = 0

    def read(self, size: int, /) -> bytes | None:
        chunk = self._stream.read(size)
        self.read_bytes += len(chunk or b"")
        return chunk


class _ByLine:
    """Log that takes the payload of one line after the other; for a named client with the line's number as serial, so a
    failed line leaves its serial unused."""

    def __init__(self, log: alpo.Log, name: str, named: bool, done: int) -> None:
        self._log = log
        self._name = name
        self._named = named
        self._number = done

    def append_nowait(self, payload: bytes) -> Handle:
        number = self._number = self._number + 1
        try:
            return self._log.append_nowait(payload, serial=number if self._named else None)
        except TooLarge as error:
            raise UsageProblem(f"{self._name}, line {number}: {error}") from error

    def append_batch_nowait(self, payloads: list[bytes]) -> Handle:
        raise NotImplementedError("several lines under one serial")


class Import:
    """One run over an input. ``file`` None: stdin. ``json_lines``: payloads are in JSON objects."""

    def __init__(self, target: Target, file: Path | None, client: str | None, json_lines: bool) -> None:
        self.name = "stdin" if file is None else str(file)
        self._target = target
        self._file = file
        self._client = client
        self._json_lines = json_lines
        self._input = _Counted(io.BytesIO())
        self._size_bytes = 0
        self._lines_read = 0
        self._log: alpo.Log | None = None
        #: Number of lines that earlier runs have appended.
        self.skipped = 0
        self.appends: Run | None = None

    async def run(self) -> None:
        """Append all that is not in the log yet. Raises the errors of opening the session; all others are kept for
        `Run.failure`."""
        from ..appending import Run

        client, servers = self._client, ",".join(self._target.servers)
        with ExitStack() as stack:
            self._open(stack)
            step = stack.enter_context(slow_progress())
            async with alpo.connect(servers, client=client, timeout_s=self._target.timeout_s) as log:
                self._log = log
                if client is not None:
                    await log.opened()
                    self.skipped = log.last_serial
                self.appends = run = Run(_ByLine(log, self.name, client is not None, self.skipped), None, False)
                await run.see_through(self._lines, lambda: self._draw(step, run))
                await run.part()

    def _open(self, stack: ExitStack) -> None:
        file = self._file
        if file is None:
            from ..appending import hint_on_terminal

            hint_on_terminal("lines")
            self._input = _Counted(io.FileIO(sys.stdin.fileno(), closefd=False))
            return
        try:
            stream = stack.enter_context(io.FileIO(file))
        except OSError as error:
            raise UsageProblem(f"{file}: {reason(error)}") from error
        about = os.fstat(stream.fileno())
        self._size_bytes = about.st_size if stat.S_ISREG(about.st_mode) else 0
        self._input = _Counted(stream)

    async def _lines(self) -> AsyncIterator[list[Append]]:
        """Yield the appends still to be made, in groups as they were read. Raises UsageProblem for impossible input."""
        from ..appending import Splitter, from_stream

        number = 0
        parts = from_stream(self._input, Splitter(b"\n"))
        async with aclosing(parts) as groups:  # type: ignore[type-var]
            async for lines in groups:
                done, number = max(0, self.skipped - number), number + len(lines)
                self._lines_read = number
                if len(lines) < done:
                    continue
                if done:
                    await self._compare(lines[done - 1])
                fresh: list[Append] = []
                try:
                    for at, line in enumerate(lines[done:], number - len(lines) + done + 1):
                        fresh.append([self._payload(at, line)])
                except UsageProblem:
                    yield fresh  # lines before the bad one are appended
                    raise
                yield fresh
        if number < self.skipped:
            raise UsageProblem(
                f"{self._client} has appended {self.skipped:,} payloads, {self.name} has only"
                f" {number:,} lines: it is not what was imported under that name"
            )

    def _payload(self, number: int, line: bytes) -> bytes:
        """Payload of line ``number``. Raises UsageProblem."""
        if not self._json_lines:
            return line
        try:
            return payload_of(line)
        except ValueError as error:
            shown = line[:_SHOWN_CHARS_MAX].decode("utf-8", "backslashreplace")
            raise UsageProblem(f"{self.name}, line {number}: {error}: {shown!r}") from error

    async def _compare(self, line: bytes) -> None:
        """Check that the log has this line under the last serial, unless it was trimmed. Raises UsageProblem."""
        client, serial, log = self._client, self.skipped, self._log
        assert client is not None and log is not None
        found = await log.outcome(client, serial)
        if found.lsn is None:
            return
        try:
            async with aclosing(log.read(found.lsn, found.lsn)) as records:
                there = [record.payload async for record in records]
        except alpo.OutOfRange:
            return
        if there != [self._payload(serial, line)]:
            raise UsageProblem(
                f"{self.name}, line {serial}: the log has another payload under serial {serial} of {client}"
                f" (LSN {found.lsn}): it is not what was imported under that name"
            )

    async def _draw(self, step: Step, run: Run) -> None:
        from anyio import sleep

        while True:
            done = min(self.skipped + run.payloads, self._lines_read)  # lines read are not appended yet
            done_bytes = self._input.read_bytes * done // max(1, self._lines_read)
            step(f"{run.payloads:,} appended", done_bytes, self._size_bytes)
            await sleep(_PROGRESS_EVERY_S)

    # -- how it ended

    def fields(self) -> dict[str, int | None]:
        """Keys of the JSON output."""
        run = self.appends
        if run is None:
            return {"first_lsn": None, "last_lsn": None, "count": 0, "skipped": self.skipped}
        return {"first_lsn": run.first_lsn, "last_lsn": run.last_lsn, "count": run.payloads, "skipped": self.skipped}

    def summary(self) -> str:
        """Text saying how much was appended."""
        run = self.appends
        done = run.summary() if run is not None else "nothing appended"
        return done + (f"; {self.skipped:,} had been before" if self.skipped else "")

    def how_to_go_on(self, *, in_doubt: bool) -> str:
        """Text saying how to continue an incomplete run; ``in_doubt``: some outcomes are unknown."""
        if self._client is not None:
            return f"go on: the same command again, with --client {self._client}; nothing is appended twice"
        named = "with --client NAME an import can be gone on with"
        if in_doubt:
            return f"what was under way may be in the log or not, and nobody remembers which lines those are: {named}"
        done = self.appends.payloads if self.appends is not None else 0
        if self.appends is not None and self.appends.has_gaps:
            return f"what is not counted here is not in the log, and nobody remembers which lines those are: {named}"
        return f"no line after line {done:,} is in the log" if done else "no line of it is in the log"


def payload_of(line: bytes) -> bytes:
    """Payload in a line of `alpo read --json` or `alpo log export`. Raises ValueError."""
    try:
        fields = json.loads(line)
    except RecursionError as error:
        raise ValueError("no JSON that can be read") from error
    except ValueError as error:
        raise ValueError("no JSON object") from error
    if not isinstance(fields, dict):
        raise ValueError("no JSON object")
    text, coded = fields.get("payload"), fields.get("payload_base64")
    if isinstance(text, str) and coded is None:
        return text.encode()
    if isinstance(coded, str) and text is None:
        return base64.b64decode(coded, validate=True)
    raise ValueError("no payload, or payload_base64, that is a text")


async def import_all(target: Target, work: Import) -> None:
    """Import, and print the result. Raises the error to report, KeyboardInterrupt after Ctrl-C."""
    interrupted = await unless_interrupted(work.run)
    failure = work.appends.failure() if work.appends is not None else None
    if target.json:
        print_json(work.fields())
    elif failure is None or work.appends is None or work.appends.payloads:
        say(work.summary())
    if isinstance(failure, NotGuaranteed | SessionExpired):
        raise Unknown(f"{'interrupted' if interrupted else failure}\n{work.how_to_go_on(in_doubt=True)}")
    if isinstance(failure, Unavailable | Overloaded | NoSpace):
        raise Failed(f"{failure}\n{work.how_to_go_on(in_doubt=False)}")
    too_large = work.appends.too_large if work.appends is not None else 0
    if isinstance(failure, TooLarge) and too_large:  # found only after a server had told the limit
        raise UsageProblem(f"{work.name}, line {work.skipped + too_large}: {failure}") from failure
    if failure is not None:
        raise failure
    if interrupted:
        say(work.how_to_go_on(in_doubt=False))
        raise KeyboardInterrupt


@with_target
def import_(
    target: Target,
    file: Annotated[Path | None, typer.Argument(help="Where the lines are; without it, or -: stdin.")] = None,
    client: Annotated[str | None, typer.Option("--client", metavar="NAME",
                                               help="Append as this named client: a later run goes on where this one"
                                                    " ended.")] = None,
    json_lines: Annotated[bool, typer.Option("--json-lines",
                                             help="Lines are JSON objects, as `alpo read --json` and `alpo log export`"
                                                  " write them.")] = False,
) -> None:
    """Append each line of a file, or of stdin: the fastest way in, and one that can be gone on with.

    Not atomic. With --client the payload of line k has serial k: the same command again, after a stop of whatever kind,
    skips what is in the log and appends the rest, nothing twice. A name serves for one input, and for nothing else.

    Examples:
        alpo import access.log --client access-2026-01
        alpo log export monday.alpo | alpo import --json-lines
        zcat old.gz | alpo import --client old --json
    """
    if client is not None:
        check_new_client(client, "--client")
    named = None if file is None or str(file) == "-" else file
    run(import_all, target, Import(target, named, client, json_lines))
