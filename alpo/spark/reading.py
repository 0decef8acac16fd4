"""Common parts of batch and stream reads: from options to an origin, a span of LSNs, and rows. Independent of Spark.

Laws:

* Nothing is left out silently: each range is checked against what was planned, its end included. Missing payloads raise
  `DataLoss`, or with ``failOnDataLoss=false`` give a log line and the rows after them.
* Nothing beyond what the origin calls guaranteed is read.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import add

import pyarrow as pa

from .archive import ArchiveOrigin, JoinedOrigin
from .columns import arrow_schema, batch_of
from .files import FileOrigin, path_of
from .live import ServerOrigin
from .options import EARLIEST, LATEST, ReadOptions
from .origin import DataLoss, Extent, Origin, Range, SourceError, Stretch

#: Logging of the standard library: its handlers fail no read, whatever became of stdout and stderr.
logger = logging.getLogger("alpo")

#: Most rows of an Arrow batch: measured best between 2,000 and 8,000 (docs/spark.md).
BATCH_ROWS = 8_192
#: Most bytes of payloads in a batch, about.
BATCH_BYTES = 8 << 20
#: Rows or bytes up to which smaller batches are joined.
JOINED_ROWS, JOINED_BYTES = 4_096, 512 << 10


def origin_of(options: ReadOptions) -> Origin:
    """The origin that the options name. Raises `SourceError`."""
    archive = ArchiveOrigin(options.archive, options.verify_archive)
    if not (options.path or options.servers):
        return archive
    log: Origin
    if options.path:
        log = FileOrigin(path_of(options.path, options.log))
    else:
        log = ServerOrigin(options.servers, options.read_from, options.timeout_s, tls=options.tls, log=options.log)
    return JoinedOrigin(archive, log) if options.archive else log


def pinned(origin: Origin, cluster: str) -> Origin:
    """The origin restricted to one cluster, and with a fixed LSN where the archive ends and the log begins, for all
    ranges."""
    if isinstance(origin, JoinedOrigin):
        return replace(origin, log=pinned(origin.log, cluster), seam_lsn=origin.log.extent().first_lsn)
    return replace(origin, cluster=cluster) if isinstance(origin, ServerOrigin) else origin


def check_cluster(origin: Origin, found: Extent, wanted: str) -> None:
    """Raise `SourceError` if this is another log than the one read before."""
    if found.cluster != wanted:
        raise SourceError(
            f"ALPO_OTHER_LOG: {origin.where} is cluster {found.cluster}, and this query has read cluster {wanted}: its"
            " LSNs mean something else. Use the right servers, path or log (one that was deleted and created again is"
            " another one), or begin with a new checkpoint"
        )


def first_of(options: ReadOptions, origin: Origin, extent: Extent) -> int:
    """The first LSN to read. Raises `SourceError`, `DataLoss`."""
    if options.since_ms is not None:
        lsn = origin.lsn_since(options.since_ms)
        if lsn >= extent.next_lsn and options.since_strategy == "error":
            raise SourceError(
                f"{origin.where} has nothing of startingTimestamp or later; give startingTimestampStrategy=latest to "
                "begin with what comes next"
            )
        return lsn
    if options.starting == EARLIEST:
        return extent.first_lsn
    if options.starting == LATEST:
        return extent.next_lsn
    first = int(options.starting)
    if first > extent.next_lsn:
        raise SourceError(f"{origin.where} ends at LSN {extent.next_lsn - 1}, and startingLsn is {first}")
    return first


def span_of(options: ReadOptions, origin: Origin) -> tuple[Extent, int, int]:
    """Range of a batch read: the extent, the first and the last LSN (first - 1: nothing). Raises `SourceError`,
    `DataLoss`."""
    extent = origin.extent()
    first = first_of(options, origin, extent)
    last = extent.next_lsn - 1 if options.ending == LATEST else int(options.ending)
    if last >= extent.next_lsn:
        raise SourceError(f"{origin.where} ends at LSN {extent.next_lsn - 1}, and endingLsn is {last}")
    if options.starting not in (EARLIEST, LATEST) and options.ending != LATEST and first > last + 1:
        raise SourceError(f"startingLsn is {first}, and endingLsn {last} comes before it")
    if options.until_ms is not None:
        last = min(last, origin.lsn_since(options.until_ms) - 1)
    return extent, what_is_left(options, origin, extent, first, last), last


def end_of(options: ReadOptions, origin: Origin, extent: Extent) -> int:
    """The LSN as of which a state is to be read. Raises `SourceError`."""
    last = extent.next_lsn - 1
    lsn = last if options.as_of == LATEST else int(options.as_of)
    if lsn > last:
        raise SourceError(f"{origin.where} ends at LSN {last}, and asOfLsn is {lsn}")
    return lsn


def what_is_left(options: ReadOptions, origin: Origin, extent: Extent, first: int, last: int) -> int:
    """``first``, or the first LSN that still exists if losses are allowed. Raises `DataLoss`."""
    if first >= extent.first_lsn or first > last:
        return first
    loss = DataLoss(first, min(last, extent.first_lsn - 1), origin.where)
    if options.fail_on_data_loss:
        raise loss
    logger.warning("payloads %d to %d are not in %s any more", loss.first_lsn, loss.last_lsn, origin.where)
    return extent.first_lsn


def rows_of(origin: Origin, wanted: Range, columns: Sequence[str], fail_on_data_loss: bool) -> Iterator[pa.RecordBatch]:
    """Yield the payloads of a range as batches of ``columns``. Raises `SourceError`, `DataLoss`."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in _batches(origin, wanted, columns, fail_on_data_loss):
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= JOINED_ROWS or size >= JOINED_BYTES:
            yield _joined(held)
            held, rows, size = [], 0, 0
    if held:
        yield _joined(held)


def _joined(held: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(held) == 1:
        return held[0]
    (joined,) = pa.Table.from_batches(held).combine_chunks().to_batches()
    return joined


def _batches(
    origin: Origin, wanted: Range, columns: Sequence[str], fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Yield one or more batches for each page."""
    schema = arrow_schema(columns)
    next_lsn, last = wanted.first, wanted.last
    while next_lsn <= last:
        try:
            for page in origin.pages(next_lsn, last, wanted.turn):
                if page.ids:
                    _require_whole(page, next_lsn, origin)
                for piece in _pieces(page):
                    yield batch_of(piece, next_lsn, last, schema)
                    next_lsn = piece.next_lsn
            break
        except DataLoss as loss:
            if fail_on_data_loss:
                raise
            logger.warning("payloads %d to %d are not in %s any more", loss.first_lsn, loss.last_lsn, origin.where)
            next_lsn = loss.last_lsn + 1
    if next_lsn <= last:
        raise SourceError(f"{origin.where}: LSN {next_lsn} to {last} are missing")


def _require_whole(page: Stretch, next_lsn: int, origin: Origin) -> None:
    """Raise `SourceError` if a payload from ``next_lsn`` on is missing or comes twice."""
    if page.lsns[0] > next_lsn:
        raise SourceError(f"{origin.where}: LSN {next_lsn} to {page.lsns[0] - 1} are missing")
    due = list(map(add, page.lsns, page.counts))[:-1]
    if due == list(page.lsns[1:]):
        return
    for lsn, wanted in zip(page.lsns[1:], due, strict=True):
        if lsn > wanted:
            raise SourceError(f"{origin.where}: LSN {wanted} to {lsn - 1} are missing")
        if lsn < wanted:
            raise SourceError(f"{origin.where}: LSN {lsn} comes twice")


def _pieces(page: Stretch) -> Iterator[Stretch]:
    """Divide a page so that no piece has too many rows or bytes; each has at least one entry."""
    rows, sizes = list(accumulate(page.counts)), list(accumulate(map(len, page.bodies)))
    begin = rows_before = size_before = 0
    while begin < len(rows):
        end = min(bisect_right(rows, rows_before + BATCH_ROWS), bisect_right(sizes, size_before + BATCH_BYTES))
        end = max(end, begin + 1)
        yield page.part(begin, end)
        begin, rows_before, size_before = end, rows[end - 1], sizes[end - 1]
