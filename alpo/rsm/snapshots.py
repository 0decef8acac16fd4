"""Snapshots: `write_snapshot` puts the whole machine into the log, so that what came before it may go; and `Keeper`,
the tasks of a process that keep the log short: snapshots when they are due, and trims behind them.

Laws:

* The snapshot is the machine as of its `Begin`, whatever lands between its parts.
* One is written at a time: the fold grants it, and takes the grant away after 30 s of the log's clock without a part.
* Writing never holds others back for long: few parts are in flight, and other tasks run between two of them.
* Nothing is trimmed but what two accepted snapshots make superfluous; and nothing at all while the log holds a payload
  of others.
* A trim follows only on a snapshot whose acceptance this process has folded, and that it has read back.
* Of a machine whose code is not ours, no snapshot is ended before the log, folded anew, has given the same; its writer
  keeps the grant meanwhile, however long that takes.
* Failing is harmless: a snapshot or trim that came to nothing is tried again, here or elsewhere, and ends nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, NamedTuple, NoReturn, TypeAlias

import anyio.lowlevel

from alpo.client.reasons import PASSING
from alpo.client.retry import patiently
from alpo.client.tasks import Bell
from alpo.errors import AlpoError, Overloaded, Unavailable

from .errors import Busy, Diverged, NotFounded, Unsettled
from .folder import Folder, Sent
from .loading import cursor_lsn, digest_at, digest_in, first_lsn, prove, read_back
from .machine import UPLOAD_STALE_MS, Outcome, Result, Snapshot, Snapshotting
from .parts import Encoder, Frozen, M, part_bytes_max
from .payloads import ID_BYTES

#: Most bytes of parts in flight.
IN_FLIGHT_BYTES = 4 << 20
#: Seconds without a part after which a writer that still proves its snapshot writes an empty one, to keep the grant.
BEAT_S = UPLOAD_STALE_MS / 3000
#: Bytes of commands after which a snapshot is due, if the machine is not larger.
DUE_BYTES = 16 << 20
#: Age of a snapshot after which another is due, on the log's clock.
DUE_MS = 24 * 3600 * 1000
#: Most seconds that a process waits for another one to begin.
WAIT_S = 5.0
#: Seconds after a failure, and before looking whether another process has trimmed.
RETRY_S = 30.0
AnyFolder: TypeAlias = Folder[Any, Any]


class SnapshotInfo(NamedTuple):
    """A snapshot of the state, or other machine, as of LSN ``begin``, in the log up to LSN ``end``: ``parts`` parts of
    ``bytes`` bytes. ``first_lsn``: the first LSN that the log holds now."""

    begin: int
    end: int
    parts: int
    bytes: int
    first_lsn: int


async def write_snapshot(folder: AnyFolder) -> SnapshotInfo:
    """Write the machine into the log; ``first_lsn`` is left 0.

    Raises `Busy` if another process does that, or took this snapshot over; `Diverged`, which ends the folding, if it is
    not of the machine that the log holds, or gives when it is folded anew; `NotFounded`, `Unsettled`, and as
    `Log.append`, `Log.read`.
    """
    log, payloads = folder.log, folder.kind.payloads
    bytes_max = part_bytes_max(int((await log.settings())["payload_bytes_max"]))
    sid = log.clock.rng.randbytes(ID_BYTES)
    begin, frozen = await _begun(folder, sid)
    encoder = frozen(bytes_max)
    agreed = folder.machine.snapshot if folder.machine is not None else None
    try:
        await _write_parts(folder, sid, encoder)
        if folder.kind.proves:
            since = 0 if agreed is None else agreed.begin
            await prove(folder.kind, log, begin, encoder.digest, since, _keeping_the_grant(folder, sid, encoder))
    except Diverged as error:  # raised before the end is sent, which a newcomer would believe
        _give_up(folder, begin, error)
    sent = await _send(folder, payloads.end(sid, encoder.parts, encoder.chain, encoder.digest))
    result = await _result(folder, sent)
    if result.outcome is Outcome.DIVERGED:
        folder.fail(Diverged(f"the snapshot of LSN {begin} is not of the {payloads.noun} that the log holds"))
        folder.require()
    if result.outcome is not Outcome.ACCEPTED:
        raise _taken_over()
    return SnapshotInfo(begin, result.lsn, encoder.parts, encoder.bytes, 0)


async def _write_parts(folder: AnyFolder, sid: bytes, encoder: Encoder) -> None:
    """Write all parts, and wait until they are folded. Raises `Diverged`, `Busy`, and as `Log.append`."""
    flight: deque[tuple[Sent, int]] = deque()
    part_of = folder.kind.payloads.part
    under_way = 0
    for part in encoder:
        while flight and under_way + len(part) > IN_FLIGHT_BYTES:
            sent, size = flight.popleft()
            under_way -= size
            await _taken(folder, sent)
        flight.append((await _send(folder, part_of(sid, encoder.parts - 1, part)), len(part)))
        under_way += len(part)
        await anyio.lowlevel.checkpoint()
    for sent, _ in flight:
        await _taken(folder, sent)


def _keeping_the_grant(folder: AnyFolder, sid: bytes, encoder: Encoder) -> Callable[[], Awaitable[None]]:
    """The pause of a writer that proves its snapshot, with an empty part now and then. It raises `Busy` if the snapshot
    was taken over, and as `Log.append`."""
    clock = folder.log.clock
    last_s = clock.now_s()

    async def pause() -> None:
        nonlocal last_s
        await anyio.lowlevel.checkpoint()
        if clock.now_s() - last_s >= BEAT_S:
            last_s, empty = clock.now_s(), encoder.empty()
            await _taken(folder, await _send(folder, folder.kind.payloads.part(sid, encoder.parts - 1, empty)))

    return pause


async def _begun(folder: AnyFolder, sid: bytes) -> tuple[int, Frozen]:
    """Ask for the grant; returns its LSN, and the machine as of there."""
    sent = await _send(folder, folder.kind.payloads.begin(sid), freeze=True)
    result = await _result(folder, sent)
    if result.outcome is Outcome.NOT_FOUNDED:
        raise NotFounded(f"this log holds no {folder.kind.noun}")
    if sent.frozen is None:
        raise Busy("another process is writing a snapshot")
    return result.lsn, sent.frozen


async def _send(folder: AnyFolder, payload: bytes, freeze: bool = False) -> Sent:
    """Append one payload, as soon as there is room."""
    async def enter() -> Sent:
        await folder.log.wait_room()
        return folder.enter([payload], freeze=freeze, timeout_s=folder.timeout_s)

    sent = await patiently(folder.log.clock, enter, passing=(Overloaded,))
    sent.handle.add_done_callback(lambda handle: None)  # counts as told: a snapshot may be given up
    return sent


async def _result(folder: AnyFolder, sent: Sent) -> Result:
    """The result of a payload. Raises `Unsettled` if the fold has jumped over it."""
    result = await folder.result_of(sent)
    if result is None:
        lsn = sent.last_lsn
        raise Unsettled(f"the log was trimmed beyond LSN {lsn} before this process had folded it", lsn=lsn)
    return result


async def _taken(folder: AnyFolder, sent: Sent) -> None:
    """Wait until a part is folded. Raises `Busy` if the snapshot was taken over."""
    if (await _result(folder, sent)).outcome is not Outcome.TAKEN:
        raise _taken_over()


def _give_up(folder: AnyFolder, lsn: int, error: Diverged) -> NoReturn:
    """Raise ``error``, which ends the folding; `Unavailable` if only memory was short for a second machine: the one
    that was folded so far is none the worse."""
    if isinstance(error.__cause__, MemoryError):
        raise Unavailable(f"memory was short while the snapshot of LSN {lsn} was written or proved: {error}") from error
    folder.fail(error)
    raise error


def _taken_over() -> Busy:
    return Busy("another process has taken over: no part of this snapshot came for too long")


class Keeper(Generic[M]):
    """The keeper of ``folder``'s log, with tasks beside the folder's. ``auto``: it writes snapshots, and trims, by
    itself."""

    def __init__(self, folder: Folder[M, Any], auto: bool) -> None:
        self._folder = folder
        self._log = folder.log
        self._found_lsn = 0
        self._untidy = False
        #: Begin of the last snapshot that was read back.
        self._sound_lsn = 0
        #: Begin of the last snapshot that this process has written, and thus proved.
        self._proved_lsn = 0
        #: Time on the log's clock when this process first looked.
        self._since_ms = 0
        #: LSN of a snapshot's end that this process refused, and what tells its digest.
        self._doubt: tuple[int, Callable[[], bytes]] | None = None
        self._bell = Bell()
        folder.on_result = self._notice
        for task in (self._settle_doubts, *((self._snapshot_when_due, self._tidy_when_needed) if auto else ())):
            folder.tasks.start_soon(task)

    async def snapshot(self, trim: bool) -> SnapshotInfo:
        """Write a snapshot now; ``trim``: let go what it makes superfluous. Raises as `write_snapshot`."""
        if not (await self._folder.now()).founded:
            raise NotFounded(f"this log holds no {self._folder.kind.noun}")
        info = await self._write()
        if trim:
            await self.tidy()
        return info._replace(first_lsn=await first_lsn(self._log))

    async def _write(self) -> SnapshotInfo:
        info = await write_snapshot(self._folder)
        self._proved_lsn = info.begin
        return info

    async def tidy(self) -> None:
        """Let newcomers begin at the last snapshot, and trim before the one before it. Raises `AlpoError` if that is
        refused, or nobody answers; again is harmless."""
        log, kind, machine = self._log, self._folder.kind, await self._folder.reach(0)
        snapshot, previous, foreign_lsn = machine.snapshot, machine.previous, machine.foreign_lsn
        wanted = self._found_lsn if snapshot is None else snapshot.begin
        cursor = await cursor_lsn(log, kind.cursor)
        behind = cursor < wanted
        first = await first_lsn(log)
        trims = previous is not None and foreign_lsn < first < previous.begin
        if snapshot is not None and (behind or trims) and self._sound_lsn < wanted:
            if not await self._is_sound(snapshot, previous, cursor):
                return
            self._sound_lsn = wanted
        if behind:
            await log.set_cursor(kind.cursor, wanted)
        if trims and previous is not None:
            await log.trim(previous.begin)

    async def _is_sound(self, snapshot: Snapshot, previous: Snapshot | None, cursor: int) -> bool:
        """True if the log gives a snapshot back. Raises `Diverged`, which ends the folding, if that, or one after the
        cursor, is not what its payloads give."""
        kind, log = self._folder.kind, self._log
        if not await read_back(kind, log, snapshot):
            return False
        if kind.proves:
            try:
                since = 0 if previous is None else min(cursor, previous.begin)
                for each in (previous, snapshot):
                    if each is not None and each.begin > since:
                        if each.begin != self._proved_lsn:
                            digest = await digest_in(kind, log, each.end)
                            await prove(kind, log, each.begin, digest, since, anyio.lowlevel.checkpoint)
                        since = each.begin
            except Diverged as error:
                _give_up(self._folder, snapshot.begin, error)
        return True

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
            self._doubt = result.lsn, partial(machine.digest_bytes, machine.keep_digest())
            self._bell.ring()

    async def _snapshot_when_due(self) -> None:
        while await self._until(lambda: self._due):
            await self._pause(0, WAIT_S)
            try:
                await self._folder.now()
                if self._due:  # nobody was quicker
                    await self._write()
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
                (lsn, ours), self._doubt = self._doubt, None
                try:
                    right = await folder.patiently(partial(digest_at, folder.kind, self._log, lsn))
                except AlpoError:
                    continue
                if right is not None and right != ours():
                    text = f"the {folder.kind.noun} in this process is not the one that the log holds, at LSN {lsn}"
                    folder.fail(Diverged(text))

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


def _uploading(machine: Snapshotting[Any]) -> bool:
    """True while a snapshot is being written, as far as folded."""
    upload = machine.upload
    return upload is not None and machine.time_ms < upload.time_ms + UPLOAD_STALE_MS
