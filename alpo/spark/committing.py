"""The driver's part of an exactly-once write: fix the content of a batch, then append what the log lacks of it.

Laws:

* Nothing of a batch is appended before its manifest fixes the payloads, their order and their division into entries. So
  serials mean the same in every replay, whatever its plan produces then, and the log recognises repetitions.
* A batch that needs no manifest is one entry: all of it appears at once.
* An earlier batch that was fixed and not finished is finished first.
* Only one run writes. It claims the checkpoint, then opens the session, which fences the previous run, and checks its
  claim again. A zombie that opens the session after that sees the claim and appends nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from alpo.errors import Fenced

from .appending import ENTRY_BYTES, OpenWriter, Writer, cut, limit_of, numbered
from .ledger import Ledger, Manifest
from .options import BATCH_BITS
from .origin import SourceError
from .staging import Part, check, payloads

logger = logging.getLogger("alpo")

#: Times that a run reopens the session after a dying zombie took it.
OPENS_MAX = 3
#: Manifests kept of batches before the last one; Spark repeats only the last.
KEPT = 2


@dataclass(frozen=True)
class Job:
    """Batch ``batch`` of writer ``client``, in run ``run``."""

    client: str
    batch: int
    run: str


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
            chunks = cut(_payloads(manifest.parts, ledger.staged), manifest.limit)
            await writer.append(numbered(batch, chunks, writer.last_serial))
            ledger.finish(batch)
    ledger.clean(job.batch - KEPT)


def _fixed(job: Job, parts: Sequence[Part], ledger: Ledger, writer: Writer) -> bool:
    """Fix the batch unless it is fixed already. False if there is nothing to write."""
    if ledger.manifest(job.batch) is not None:
        return True
    last_batch, entries = divmod(writer.last_serial, 1 << BATCH_BITS)
    if last_batch > job.batch:
        logger.info("batch %d of %s was written: the log has batch %d", job.batch, job.client, last_batch)
        return False
    parts = _in_order(parts)
    if not parts:
        return False
    if last_batch == job.batch and entries:
        raise SourceError(
            f"the log has {entries} entries of batch {job.batch} of {job.client} already, and the manifest that says "
            "which payloads those are is not in this checkpoint: was another one, or none, used before?"
        )
    ledger.fix(Manifest(job.batch, limit_of(parts, writer), tuple(parts)))
    return True


async def commit_one_entry(job: Job, parts: Sequence[Part], open_writer: OpenWriter) -> None:
    """Commit without a checkpoint, for a write that fits in one entry. Raises like `commit`."""
    parts = _in_order(parts)
    async with open_writer(job.client, "") as writer:
        last_batch, entries = divmod(writer.last_serial, 1 << BATCH_BITS)
        if (last_batch, entries) > (job.batch, 0):
            logger.info("batch %d of %s was written: the log has batch %d", job.batch, job.client, last_batch)
            return
        limit = limit_of(parts, writer)
        if limit < sum(part.size for part in parts):
            raise SourceError(
                f"this write is larger than one entry ({writer.batch_bytes_max} bytes), so that an interrupted one "
                "could be repeated only if its payloads are fixed first: give checkpointLocation, a directory that the "
                "driver and all executors share"
            )
        await writer.append(numbered(job.batch, cut(_payloads(parts, None), limit), 0))


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
