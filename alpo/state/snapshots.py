"""`write_snapshot`: the whole state put into the log, so that what came before it may go.

Laws:

* The snapshot is the state as of its `Begin`, whatever lands between its parts.
* One is written at a time: the fold grants it, and takes the grant away after 30 s of the log's clock without a part.
* Writing never holds others back for long: few parts are in flight, and other tasks run between two of them.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import anyio.lowlevel

from alpo.client.retry import patiently
from alpo.errors import Overloaded

from . import codec
from .errors import Busy, Diverged, NotFounded, Unsettled
from .folder import Folder, Sent
from .parts import Encoder, part_bytes_max
from .shapes import Frozen, Outcome, Result

#: Most bytes of parts in flight.
IN_FLIGHT_BYTES = 4 << 20


class SnapshotInfo(NamedTuple):
    """A snapshot of the state as of LSN ``begin``, in the log up to LSN ``end``: ``parts`` parts of ``bytes`` bytes.
    ``first_lsn``: the first LSN that the log holds now."""

    begin: int
    end: int
    parts: int
    bytes: int
    first_lsn: int


async def write_snapshot(folder: Folder) -> SnapshotInfo:
    """Write the state into the log; ``first_lsn`` is left 0.

    Raises `Busy` if another process does that, or took this snapshot over; `Diverged`, which ends the folding, if it is
    not of the state that the log holds; `NotFounded`, `Unsettled`, and as `Log.append`.
    """
    log = folder.log
    bytes_max = part_bytes_max(int((await log.settings())["payload_bytes_max"]))
    sid = log.clock.rng.randbytes(codec.ID_BYTES)
    begin, frozen = await _begun(folder, sid)
    encoder = Encoder(frozen, bytes_max)
    try:
        await _write_parts(folder, sid, encoder)
    except Diverged as error:  # raised before the end is sent, which a newcomer would believe
        folder.fail(error)
        raise
    sent = await _send(folder, codec.end(sid, encoder.parts, encoder.chain, encoder.digest))
    result = await _result(folder, sent)
    if result.outcome is Outcome.DIVERGED:
        folder.fail(Diverged(f"the snapshot of LSN {begin} is not of the state that the log holds"))
        folder.require()
    if result.outcome is not Outcome.ACCEPTED:
        raise _taken_over()
    return SnapshotInfo(begin, result.lsn, encoder.parts, encoder.bytes, 0)


async def _write_parts(folder: Folder, sid: bytes, encoder: Encoder) -> None:
    """Write all parts, and wait until they are folded. Raises `Diverged`, `Busy`, and as `Log.append`."""
    flight: deque[tuple[Sent, int]] = deque()
    under_way = 0
    for part in encoder:
        while flight and under_way + len(part) > IN_FLIGHT_BYTES:
            sent, size = flight.popleft()
            under_way -= size
            await _taken(folder, sent)
        flight.append((await _send(folder, codec.part(sid, encoder.parts - 1, part)), len(part)))
        under_way += len(part)
        await anyio.lowlevel.checkpoint()
    for sent, _ in flight:
        await _taken(folder, sent)


async def _begun(folder: Folder, sid: bytes) -> tuple[int, Frozen]:
    """Ask for the grant; returns its LSN, and the machine as of there."""
    sent = await _send(folder, codec.begin(sid), freeze=True)
    result = await _result(folder, sent)
    if result.outcome is Outcome.NOT_FOUNDED:
        raise NotFounded("this log holds no state")
    if sent.frozen is None:
        raise Busy("another process is writing a snapshot")
    return result.lsn, sent.frozen


async def _send(folder: Folder, payload: bytes, freeze: bool = False) -> Sent:
    """Append one payload, as soon as there is room."""
    async def enter() -> Sent:
        await folder.log.wait_room()
        return folder.enter([payload], freeze=freeze, timeout_s=folder.timeout_s)

    sent = await patiently(folder.log.clock, enter, passing=(Overloaded,))
    sent.handle.add_done_callback(lambda handle: None)  # counts as told: a snapshot may be given up
    return sent


async def _result(folder: Folder, sent: Sent) -> Result:
    """The result of a payload. Raises `Unsettled` if the fold has jumped over it."""
    result = await folder.result_of(sent)
    if result is None:
        lsn = sent.last_lsn
        raise Unsettled(f"the log was trimmed beyond LSN {lsn} before this process had folded it", lsn=lsn)
    return result


async def _taken(folder: Folder, sent: Sent) -> None:
    """Wait until a part is folded. Raises `Busy` if the snapshot was taken over."""
    if (await _result(folder, sent)).outcome is not Outcome.TAKEN:
        raise _taken_over()


def _taken_over() -> Busy:
    return Busy("another process has taken over: no part of this snapshot came for too long")
