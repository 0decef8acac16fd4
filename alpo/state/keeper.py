"""`Keeper`: the tasks of a process that keep the log short: snapshots when they are due, and trims behind them.

Laws:

* Nothing is trimmed but what two accepted snapshots make superfluous; and nothing at all while the log holds a payload
  of others.
* A trim follows only on a snapshot whose acceptance this process has folded, and that it has read back.
* Failing is harmless: a snapshot or trim that came to nothing is tried again, here or elsewhere, and ends no `State`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from alpo.client.reasons import PASSING
from alpo.client.tasks import Bell
from alpo.errors import AlpoError

from .errors import Diverged, NotFounded
from .folder import Folder
from .loading import CURSOR, cursor_lsn, digest_at, first_lsn, read_back
from .machine import UPLOAD_STALE_MS, Machine
from .shapes import Outcome, Result
from .snapshots import SnapshotInfo, write_snapshot

#: Bytes of commands after which a snapshot is due, if the state is not larger.
DUE_BYTES = 16 << 20
#: Age of a snapshot after which another is due, on the log's clock.
DUE_MS = 24 * 3600 * 1000
#: Most seconds that a process waits for another one to begin.
WAIT_S = 5.0
#: Seconds after a failure, and before looking whether another process has trimmed.
RETRY_S = 30.0


class Keeper:
    """The keeper of ``folder``'s log, with tasks beside the folder's. ``auto``: it writes snapshots, and trims, by
    itself."""

    def __init__(self, folder: Folder, auto: bool) -> None:
        self._folder = folder
        self._log = folder.log
        self._found_lsn = 0
        self._untidy = False
        #: Begin of the last snapshot that was read back.
        self._sound_lsn = 0
        #: Time on the log's clock when this process first looked.
        self._since_ms = 0
        #: LSN and digest of a snapshot's end that this process refused.
        self._doubt: tuple[int, int] | None = None
        self._bell = Bell()
        folder.on_result = self._notice
        for task in (self._settle_doubts, *((self._snapshot_when_due, self._tidy_when_needed) if auto else ())):
            folder.tasks.start_soon(task)

    async def snapshot(self, trim: bool) -> SnapshotInfo:
        """Write a snapshot now; ``trim``: let go what it makes superfluous. Raises as `write_snapshot`."""
        if not (await self._folder.now()).founded:
            raise NotFounded("this log holds no state")
        info = await write_snapshot(self._folder)
        if trim:
            await self.tidy()
        return info._replace(first_lsn=await first_lsn(self._log))

    async def tidy(self) -> None:
        """Let newcomers begin at the last snapshot, and trim before the one before it. Raises `AlpoError` if that is
        refused, or nobody answers; again is harmless."""
        log, machine = self._log, await self._folder.reach(0)
        snapshot, previous, foreign_lsn = machine.snapshot, machine.previous, machine.foreign_lsn
        wanted = self._found_lsn if snapshot is None else snapshot.begin
        behind = await cursor_lsn(log) < wanted
        first = await first_lsn(log)
        trims = previous is not None and foreign_lsn < first < previous.begin
        if snapshot is not None and (behind or trims) and self._sound_lsn < wanted:
            if not await read_back(log, snapshot):
                return
            self._sound_lsn = wanted
        if behind:
            await log.set_cursor(CURSOR, wanted)
        if trims and previous is not None:
            await log.trim(previous.begin)

    # -- tasks ----------------------------------------------------------------------------------------------

    def _notice(self, result: Result) -> None:
        """Take the effect of a payload that is no plain command, as it is folded."""
        machine = self._folder.machine
        if result.outcome is Outcome.FOUNDED:
            self._found_lsn = result.lsn
            self._untidy = True
        elif result.outcome is Outcome.ACCEPTED:
            self._untidy = True
        elif result.outcome is Outcome.DIVERGED and machine is not None:
            self._doubt = result.lsn, machine.digest
            self._bell.ring()

    async def _snapshot_when_due(self) -> None:
        while await self._until(lambda: self._due):
            await self._pause(0, WAIT_S)
            try:
                await self._folder.now()
                if self._due:  # nobody was quicker
                    await write_snapshot(self._folder)
                    await self.tidy()
            except AlpoError:
                await self._pause(RETRY_S, RETRY_S + WAIT_S)

    @property
    def _due(self) -> bool:
        """True if a snapshot is due, and nobody writes one."""
        machine = self._folder.machine
        if machine is None or not machine.founded or _uploading(machine):
            return False
        if machine.bytes_since > max(DUE_BYTES, machine.bytes):
            return True
        self._since_ms = self._since_ms or machine.time_ms
        last = machine.snapshot
        if last is None and self._found_lsn > 1:
            return True  # payloads of others before the founding may go, and then nobody could begin
        since_ms, end = (self._since_ms, 0) if last is None else (last.begun_ms, last.end)
        return machine.time_ms - since_ms >= DUE_MS and machine.lsn > end

    async def _tidy_when_needed(self) -> None:
        while await self._until(lambda: self._untidy):
            await self._pause(RETRY_S, 2 * RETRY_S)  # the snapshot's writer tidies, unless it has died
            self._untidy = False
            try:
                await self.tidy()
            except AlpoError as error:
                self._untidy = isinstance(error, PASSING)

    async def _settle_doubts(self) -> None:
        """Fold anew what a refused snapshot was of, and stop if this process was the one that was wrong."""
        folder = self._folder
        while True:
            await self._bell.wait()
            while self._doubt is not None:
                (lsn, digest), self._doubt = self._doubt, None
                try:
                    right = await folder.patiently(partial(digest_at, self._log, lsn))
                except AlpoError:
                    continue
                if right is not None and right != digest:
                    folder.fail(Diverged(f"the state in this process is not the one that the log holds, at LSN {lsn}"))

    # -- waiting --------------------------------------------------------------------------------------------

    async def _until(self, holds: Callable[[], bool]) -> bool:
        """Wait until ``holds()``, looking again whenever something was folded; False once folding has ended."""
        while self._folder.failure is None:
            if holds():
                return True
            await self._folder.moved()
        return False

    async def _pause(self, least_s: float, most_s: float) -> None:
        await self._log.clock.sleep(self._log.clock.rng.uniform(least_s, most_s))


def _uploading(machine: Machine) -> bool:
    """True while a snapshot is being written, as far as folded."""
    upload = machine.upload
    return upload is not None and machine.time_ms < upload.time_ms + UPLOAD_STALE_MS
