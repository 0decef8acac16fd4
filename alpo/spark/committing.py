"""The driver's part of an exactly-once write: fix the content of a batch, then append what the log lacks of it, under
the writer's own serials.

Laws:

* Nothing of a batch is appended before its manifest fixes the payloads, their order and their division into entries. So
  serials mean the same in every replay, whatever its plan produces then, and the log recognises repetitions.
* A batch that needs no manifest is one entry: all of it appears at once.
* An earlier batch that was fixed and not finished is finished first.
* A number that the log has already is a repetition, or an error (`Job.repeat`): no row is dropped in silence.
* Only one run writes. It claims the checkpoint, then opens the session, which fences the previous run, and checks its
  claim again. A zombie that opens the session after that sees the claim and appends nothing.

Laws of serials:

* Entries go in order, and each is whole or absent.
* A serial encodes (batch, entry): ``(batch << BATCH_BITS) + n``, n from 1. Everything up to the session's last serial
  is done.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from alpo.addresses import parse_servers
from alpo.client.arguments import batch
from alpo.client.handle import Handle
from alpo.client.log import Log
from alpo.client.operator.members import Settings
from alpo.client.servers import Servers
from alpo.errors import AlpoError, Fenced, OutOfRange

from .ledger import LENGTH_BYTES, Ledger, Manifest, Part, check, payloads
from .live import place_of
from .options import ANY, BATCH_BITS, LAST, SAME, WriteOptions
from .origin import SourceError

#: Bytes of an entry if a batch needs several: as much as one frame holds, so that several are in flight at once.
ENTRY_BYTES = 256 << 10
UNDER_WAY_MAX = 32

#: (serial or None for the next one, payloads).
Chunk = tuple[int | None, list[bytes]]


class Writer(Protocol):
    """Open session of a cluster. ``last_serial``: the session's when it was opened."""

    cluster: str
    last_serial: int
    payload_bytes_max: int
    batch_bytes_max: int

    async def append(self, chunks: Iterable[Chunk]) -> None:
        """Append all, in order; returns when all are guaranteed. Raises `AlpoError`, especially `Fenced`."""

    async def held(self, serial: int) -> list[bytes]:
        """The payloads of the entry that this session appended under ``serial``; [] if they are gone. Raises
        `AlpoError`."""


#: (client name or None for a random one, hex id of the only acceptable cluster or "") -> a session.
OpenWriter = Callable[[str | None, str], AbstractAsyncContextManager[Writer]]


def cut(pieces: Iterable[list[bytes]], limit: int) -> Iterator[list[bytes]]:
    """Yield entries of up to ``limit`` bytes, with as many payloads as fit; a larger payload goes alone."""
    chunk: list[bytes] = []
    size = 0
    for piece in pieces:
        for payload in piece:
            takes = len(payload) + LENGTH_BYTES
            if chunk and size + takes > limit:
                yield chunk
                chunk, size = [], 0
            chunk.append(payload)
            size += takes
    if chunk:
        yield chunk


def limit_of(parts: Iterable[Part], writer: Writer) -> int:
    """Size limit of the entries for these parts: one entry for all if the cluster takes that.

    Raises `SourceError` for a payload that the cluster does not take, and if the batch needs too many entries.
    """
    parts = list(parts)
    largest = max((part.largest for part in parts), default=0)
    if largest > writer.payload_bytes_max:
        raise SourceError(f"a payload of {largest} bytes, where the cluster takes {writer.payload_bytes_max} at most")
    whole = sum(part.size for part in parts)
    if whole <= writer.batch_bytes_max:
        return whole
    limit = min(ENTRY_BYTES, writer.batch_bytes_max)
    # two neighbouring entries are together above the limit, so twice as many suffice
    if whole // limit >= 1 << BATCH_BITS - 1:
        raise SourceError(f"a batch of {whole >> 30} GiB takes more entries than can be numbered: make it smaller")
    return limit


def numbered(number: int, chunks: Iterable[list[bytes]], last_serial: int) -> Iterator[Chunk]:
    """Yield the entries of batch ``number`` above ``last_serial``, with their serials."""
    for serial, chunk in enumerate(chunks, (number << BATCH_BITS) + 1):
        if serial > last_serial:
            yield serial, chunk


class ClusterWriter:
    """A `Writer` over the client library."""

    def __init__(self, log: Log, cluster: str, last_serial: int, settings: Settings) -> None:
        self._log = log
        self.cluster = cluster
        self.last_serial = last_serial
        self.payload_bytes_max = settings["payload_bytes_max"]
        self.batch_bytes_max = settings["batch_bytes_max"]

    async def append(self, chunks: Iterable[Chunk]) -> None:
        under_way: deque[Handle] = deque()
        for serial, chunk in chunks:
            if len(under_way) == UNDER_WAY_MAX:
                await under_way.popleft()
            under_way.append(await self._log.enter(batch(chunk), serial, True, None))
        while under_way:
            await under_way.popleft()

    async def held(self, serial: int) -> list[bytes]:
        client, rows = str(self._log.client), []
        there = await self._log.outcome(client, serial)
        if there.lsn is None:
            return []
        try:
            async with self._log.read(there.lsn) as records:
                async for record in records:
                    if (record.client, record.serial) != (client, serial):
                        break
                    rows.append(record.payload)
        except OutOfRange:
            return []  # trimmed
        return rows


def opener(options: WriteOptions) -> OpenWriter:
    """Return a function that opens sessions of the cluster named in ``options``."""

    @asynccontextmanager
    async def open_writer(client: str | None, cluster: str) -> AsyncIterator[Writer]:
        servers = Servers(
            parse_servers(options.servers), cluster=bytes.fromhex(cluster), tls=options.tls, log=options.log
        )
        try:
            async with Log(servers, client, options.timeout_s, 2 * UNDER_WAY_MAX, 32 << 20) as log:
                settings = await log.settings()
                await log.opened()
                yield ClusterWriter(log, servers.cluster.hex(), log.last_serial, settings)
        except AlpoError as error:
            error.add_note(f"writing to {place_of(options.servers, options.log)}")
            raise

    return open_writer


logger = logging.getLogger("alpo")

#: Times that a run reopens the session after a dying zombie took it.
OPENS_MAX = 3
#: Manifests kept of batches before the last one; Spark repeats only the last.
KEPT = 2
#: Advice where rows cannot show that a batch is a repetition.
_LAST_HINT = '. If Spark has only repeated its last batch, give repeat="last" (option txnRepeat)'


@dataclass(frozen=True)
class Job:
    """Batch ``batch`` of writer ``client``, in run ``run``.

    ``repeat``: `ANY`: a number up to the log's last one counts as done. `LAST`: only the last one may come again, as
    Spark planned it (``plan``: a digest of that, "" if not known); its rows may be others. `SAME`: only the last one,
    with the same rows.
    """

    client: str
    batch: int
    run: str
    repeat: str = ANY
    plan: str = ""


async def commit(job: Job, parts: Sequence[Part], ledger: Ledger, open_writer: OpenWriter) -> None:
    """Bring the batch into the log exactly once, whatever was done of it before. Raises `SourceError`, `AlpoError`.

    `Fenced`: a newer run has taken over, and this one can write no more.
    """
    if not any(part.rows for part in parts) and not ledger.unfinished(job.batch):
        return
    for opens_left in reversed(range(OPENS_MAX)):
        try:
            await _commit(job, parts, ledger, open_writer)
            return
        except Fenced:
            ledger.hold(job.run)
            if not opens_left:
                raise


async def _commit(job: Job, parts: Sequence[Part], ledger: Ledger, open_writer: OpenWriter) -> None:
    cluster = ledger.cluster(job.client)
    ledger.claim(job.run)
    async with open_writer(job.client, cluster) as writer:
        ledger.bind(job.client, writer.cluster)
        ledger.hold(job.run)
        if not _fixed(job, parts, ledger, writer):
            return
        for batch in ledger.unfinished(job.batch):
            manifest = ledger.manifest(batch)
            assert manifest is not None
            if batch < writer.last_serial >> BATCH_BITS:
                raise SourceError(
                    f"batch {batch} of {job.client} was never finished, and the log has later ones of it already: "
                    "another program writes under this name, without this checkpoint"
                )
            await _require_fixed(job, manifest, ledger.staged, writer)
            chunks = cut(_payloads(manifest.parts, ledger.staged), manifest.limit)
            await writer.append(numbered(batch, chunks, writer.last_serial))
            ledger.finish(batch)
    ledger.clean(job.batch - KEPT)


async def _require_fixed(job: Job, manifest: Manifest, staged: Path, writer: Writer) -> None:
    """Raise `SourceError` if what the log has of a batch is not what its manifest fixes: a copy of this checkpoint has
    written it. The newest entry tells; one that was trimmed counts as ours."""
    entries = _entries(manifest.batch, writer)
    if not entries:
        return
    there = await writer.held(writer.last_serial)
    fixed = next(islice(cut(_payloads(manifest.parts, staged), manifest.limit), entries - 1, None), None)
    if there and there != fixed:
        raise _conflict(
            replace(job, batch=manifest.batch), f"the log's batch {manifest.batch} has other rows than this checkpoint "
            "has fixed for it, so another copy of the checkpoint wrote it",
        )


def _fixed(job: Job, parts: Sequence[Part], ledger: Ledger, writer: Writer) -> bool:
    """Fix the batch unless it is fixed already. False if there is nothing to write. Raises `SourceError`."""
    manifest = ledger.manifest(job.batch)
    if (manifest is None or job.repeat != ANY) and _is_past(job, writer):
        return False
    if manifest is not None:
        if job.repeat == LAST and job.plan and manifest.plan and job.plan != manifest.plan:
            raise _conflict(job, f"Spark has planned it anew, and the log's batch {job.batch} is another")
        if job.repeat == SAME:
            for part in parts:
                check(part, ledger.staged)
            _require_same(job, _payloads(manifest.parts, ledger.staged), _payloads(_in_order(parts), ledger.staged))
        return True
    entries = _entries(job.batch, writer)
    parts = _in_order(parts)
    if not parts:
        return False
    if entries:
        raise SourceError(
            f"the log has {entries} entries of batch {job.batch} of {job.client} already, and the manifest that says "
            "which payloads those are is not in this checkpoint: was another one, or none, used before?"
        )
    ledger.fix(Manifest(job.batch, limit_of(parts, writer), tuple(parts), job.plan))
    return True


def _entries(batch: int, writer: Writer) -> int:
    """Number of entries of this batch that the log has; there is no later batch."""
    return max(0, writer.last_serial - (batch << BATCH_BITS))


def _is_past(job: Job, writer: Writer) -> bool:
    """True if the log has a later batch, so that this one counts as done. Raises `SourceError` if it must not."""
    last_batch = writer.last_serial >> BATCH_BITS
    if last_batch <= job.batch:
        return False
    if job.repeat != ANY:
        raise _conflict(job, f"the log has batch {last_batch} already, and Spark repeats only its last one")
    logger.info("batch %d of %s was written: the log has batch %d", job.batch, job.client, last_batch)
    return True


def _conflict(job: Job, why: str, hint: str = "") -> SourceError:
    return SourceError(
        f"ALPO_OTHER_BATCH: batch {job.batch} of {job.client} was not written, and is not known to be in the log: "
        f"{why}. Is the query's checkpoint new, or an older copy? Go on with the checkpoint that wrote what the log "
        f"has; or begin with a new name (a stream: a new checkpointLocation; append_batch: another query=NAME), after "
        f"the last row that the log has (alpo read --client {job.client} --last 1){hint}"
    )


def _require_same(job: Job, there: Iterable[list[bytes]], wanted: Iterable[list[bytes]]) -> None:
    """Raise `SourceError` unless both are the same payloads, in any order."""
    (there_rows, there_digest), (rows, digest) = _digest(there), _digest(wanted)
    if there_digest != digest:
        raise _conflict(
            job, f"the log's batch {job.batch} has other rows ({there_rows}) than this one ({rows})",
            f"{_LAST_HINT}, as rows need that come out differently each time (rand, uuid)",
        )


def _digest(pieces: Iterable[list[bytes]]) -> tuple[int, int]:
    """Number of payloads, and a digest of them that does not depend on their order."""
    rows = digest = 0
    for piece in pieces:
        rows += len(piece)
        digest += sum(int.from_bytes(hashlib.blake2b(payload, digest_size=16).digest()) for payload in piece)
    return rows, digest


async def commit_one_entry(job: Job, parts: Sequence[Part], open_writer: OpenWriter) -> None:
    """Commit without a checkpoint, for a write that fits in one entry. Raises like `commit`."""
    parts = _in_order(parts)
    if not parts:
        return
    async with open_writer(job.client, "") as writer:
        if _is_past(job, writer):
            return
        entries = _entries(job.batch, writer)
        if entries > 1:
            raise SourceError(
                f"the log has {entries} entries of batch {job.batch} of {job.client}, which were written with a "
                "checkpoint, and only that tells if they are all: give the same one"
            )
        limit = limit_of(parts, writer)
        if limit < sum(part.size for part in parts):
            raise SourceError(
                f"this write is larger than one entry ({writer.batch_bytes_max} bytes), so that an interrupted one "
                "could be repeated only if its payloads are fixed first: give checkpointLocation, a directory that the "
                "driver and all executors share"
            )
        if entries:
            if job.repeat == SAME:
                await _require_held(job, parts, writer)
            return
        await writer.append(numbered(job.batch, cut(_payloads(parts, None), limit), 0))


async def _require_held(job: Job, parts: Sequence[Part], writer: Writer) -> None:
    """Raise `SourceError` unless the log's newest entry, which is all of the batch, has the same rows."""
    there = await writer.held(writer.last_serial)
    if not there:
        raise _conflict(job, f"the log's batch {job.batch} was trimmed, and its rows cannot be compared", _LAST_HINT)
    _require_same(job, [there], _payloads(parts, None))


async def commit_unnumbered(parts: Sequence[Part], staged: Path | None, open_writer: OpenWriter) -> None:
    """Append everything under a random id: once in this call, again in another one. Raises like `commit`."""
    parts = _in_order(parts)
    for part in parts:
        check(part, staged)
    async with open_writer(None, "") as writer:
        await writer.append((None, chunk) for chunk in cut(_payloads(parts, staged), limit_of(parts, writer)))


async def append_directly(pieces: Iterable[list[bytes]], open_writer: OpenWriter) -> None:
    """Append from an executor, at least once: a task that is retried appends again."""
    async with open_writer(None, "") as writer:
        limit = min(ENTRY_BYTES, writer.batch_bytes_max)
        await writer.append((None, chunk) for chunk in cut(pieces, limit))


def _in_order(parts: Iterable[Part]) -> list[Part]:
    return sorted((part for part in parts if part.rows), key=lambda part: part.tag.partition)


def _payloads(parts: Iterable[Part], staged: Path | None) -> Iterator[list[bytes]]:
    for part in parts:
        yield from payloads(part, staged)
