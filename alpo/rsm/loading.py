"""Loading of a machine from a log, at the start and after a trim ahead of the fold; or from a `Cache`, a file beside
the log that keeps the machine as a process has folded it, for processes that live shortly.

Laws:

* A log whose beginning is gone is never taken for an empty one: either a whole snapshot is found, or `Unrecoverable` is
  raised.
* A snapshot counts by its content alone: number of parts, chain, digest of the content, and the LSN where it began.
* The leader says where the log begins: a server that keeps less does not decide.
* A cache is a copy and nothing else: missing, damaged, of another cluster or machine, or older than the log, it is
  ignored, and written anew. No failure to read or write it ever fails a program.
* A cache is replaced as a whole, once it is on the disk, and only its owner may read it.
"""

from __future__ import annotations

import logging
import os
import struct
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, Generic

import anyio.lowlevel

from alpo.client.log import Log
from alpo.client.retry import AGAIN_S
from alpo.errors import AlpoError, OutOfRange, Refused
from alpo.wire.framing import pack, unpack_message

from .errors import Corrupt, Diverged, Unrecoverable
from .hosted import Copied
from .kind import Kind
from .machine import Snapshot, time_ms_of
from .parts import PART_BYTES_MAX, M, Thawing
from .payloads import FOUNDINGS, Begin, End, Part

logger = logging.getLogger("alpo")

#: Bytes of snapshots' parts that wait in memory; more go to a temporary file.
SPILLED_BYTES = 64 << 20
#: Entries that are folded anew between two pauses: others' work goes on beside it.
SLICE = 64
#: Bytes of a machine's items that are loaded, or taken into a digest, between two pauses.
DIGEST_BYTES = 256 << 10
_SIZE = struct.Struct(">I")
#: Growth after which the file is written anew: of commands in bytes, and of the log in payloads.
_MUCH_BYTES, _MUCH_PAYLOADS = 1 << 20, 10_000


async def first_lsn(log: Log) -> int:
    """The first LSN that the leader serves; one past the end, if nothing is left."""
    try:
        async with log.read_batches(1, 1) as batches:
            await anext(batches, None)
    except OutOfRange as error:
        return error.first_lsn
    return 1


async def cursor_lsn(log: Log, name: str) -> int:
    """The LSN of the cursor ``name``; 0 if there is none, or cursors may not be asked for."""
    try:
        return next((cursor.lsn for cursor in await log.cursors() if cursor.name == name), 0)
    except Refused:
        return 0


async def _is_founding(kind: Kind[M], log: Log, lsn: int) -> bool:
    """True if a machine whose snapshots are proved was founded at ``lsn``. Raises as `Log.read`."""
    if not kind.proves:
        return False
    async with log.read_batches(lsn, lsn) as batches:
        return any([record.payload[:5] in FOUNDINGS async for records in batches for record in records])


async def load(kind: Kind[M], log: Log, cache: Cache[M] | None = None) -> M:
    """The machine from which the log is to be folded on; ``cache``: a place where to look for it first. Raises
    `Unrecoverable`, and as `Log.read`."""
    tried = 0
    while True:
        first = await first_lsn(log)
        held = await cursor_lsn(log, kind.agreed) if kind.proves else 0
        if cache is not None and not held:
            machine = await cache.take(bytes.fromhex(log.cluster), first, await log.end() - 1)
            if machine is not None:
                return machine
            cache = None
        cursor = held or await cursor_lsn(log, kind.cursor)
        start = cursor if cursor > first and cursor != tried else first
        if start == 1:
            return kind.machine()
        try:
            if first == 1 and await _is_founding(kind, log, start):  # no snapshot was found to be right yet
                return kind.machine()
            machine = await find(kind, log, start)
        except OutOfRange:  # trimmed meanwhile
            await log.clock.sleep(AGAIN_S)
            continue
        if machine is not None:
            return machine
        if start != first:
            tried = start
        elif await first_lsn(log) == first:
            last = await log.end() - 1
            text = f"the log holds LSN {first} to {last} and no whole snapshot of the {kind.noun}"
            raise Unrecoverable(f"{text}: what came before is gone", first_lsn=first, last_lsn=last)


async def find(
    kind: Kind[M], log: Log, start: int, stop: int | None = None,
    pause: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
) -> M | None:
    """The machine of the first whole snapshot in the payloads ``start`` … ``stop``, as of the LSN where it began; None
    without one. Raises `OutOfRange` if a trim takes them away, `Corrupt` if there is no room for a temporary file."""
    with Uploads(kind) as uploads:
        async with log.read_batches(start, stop) as batches:
            async for records in batches:
                for record in records:
                    whole = uploads.take(record.lsn, record.payload)
                    if whole is None:
                        if len(record.payload) >= DIGEST_BYTES:  # a part, perhaps loaded
                            await pause()
                        continue
                    upload, end = whole
                    for _ in uploads.thaw(upload, end):
                        await pause()
                    uploads.forget(upload)
                    if upload.machine is not None:
                        return upload.machine
                await pause()
    return None


class Upload(Generic[M]):
    """A snapshot as it is read: the LSN where it began, its number of parts so far, and their places in the file; or
    ``thawing``: they are thawed as they come, up to the ``failure`` of one. ``machine``: as it was there, once the
    snapshot was thawed and found whole."""

    def __init__(self, sid: bytes, begin: int) -> None:
        self.sid = sid
        self.begin = begin
        self.parts = 0
        self.places: list[tuple[int, int]] = []
        self.thawing: Thawing[M] | None = None
        self.failure: Exception | None = None
        self.machine: M | None = None


class Uploads(Generic[M]):
    """Uploads that a reader has come across, with their parts: in memory, or in a temporary file; where the kind says
    so, those of one upload at a time are thawed as they come. Use it in a ``with``."""

    def __init__(self, kind: Kind[M]) -> None:
        self._kind = kind
        self._uploads: dict[bytes, Upload[M]] = {}
        #: The upload whose parts are thawed as they come.
        self._streamed: Upload[M] | None = None
        self._file = SpooledTemporaryFile(SPILLED_BYTES)  # noqa: SIM115  # closed by the `with` of its user
        self._size = 0

    def __enter__(self) -> Uploads[M]:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def take(self, lsn: int, payload: bytes) -> tuple[Upload[M], End] | None:
        """Note the payload at ``lsn``; returns the upload that ends with it."""
        message = self._kind.payloads.snapshot_message(payload)
        if isinstance(message, Begin):
            self._uploads.setdefault(message.sid, Upload(message.sid, lsn))
        elif isinstance(message, Part):
            upload = self._uploads.get(message.sid)
            if upload is not None and message.index == upload.parts:
                self._take_part(upload, message.data)
        elif isinstance(message, End) and message.sid in self._uploads:
            return self._uploads[message.sid], message
        return None

    def _take_part(self, upload: Upload[M], data: bytes) -> None:
        """Thaw the next part of an upload, or keep it until the upload has ended."""
        if not upload.parts and self._kind.streams and self._streamed is None:
            self._streamed, upload.thawing = upload, self._kind.thawing()
        upload.parts += 1
        if upload.thawing is None:
            self._write(data)
            upload.places.append((self._size, len(data)))
            self._size += len(data)
        elif upload.failure is None:
            try:
                upload.thawing.feed(data)
            except (ValueError, AlpoError) as error:  # raised where the upload ends, if it does
                upload.failure = error

    def _write(self, data: bytes) -> None:
        try:
            self._file.seek(self._size)
            self._file.write(data)
        except OSError as error:
            noun = self._kind.noun
            raise Corrupt(f"the temporary file for a snapshot of the {noun} cannot be written: {error}") from error

    def forget(self, upload: Upload[M]) -> None:
        """Drop an upload that came to nothing."""
        del self._uploads[upload.sid]
        if self._streamed is upload:
            self._streamed = None
        if not self._uploads:
            self._file.seek(0)
            self._file.truncate()
            self._size = 0

    def thaw(self, upload: Upload[M], end: End) -> Iterator[None]:
        """Thaw an upload that came to its end into its ``machine``; a pause after each part."""
        thawing = upload.thawing or self._kind.thawing()
        try:
            if upload.failure is not None:
                raise upload.failure
            for at, size in upload.places:
                self._file.seek(at)
                thawing.feed(self._file.read(size))
                yield
            machine = thawing.machine(end.parts, end.chain, end.digest)
        except ValueError:
            return  # damaged, or cut off
        if machine.lsn == upload.begin:
            upload.machine = machine


async def read_back(kind: Kind[M], log: Log, snapshot: Snapshot) -> bool:
    """True if the log gives an accepted snapshot back whole. Raises `OutOfRange` if it is gone."""
    decoder, sid = kind.decoder(), b""
    async with log.read_batches(snapshot.begin, snapshot.end) as batches:
        async for records in batches:
            for record in records:
                message = kind.payloads.snapshot_message(record.payload)
                if record.lsn == snapshot.begin and isinstance(message, Begin):
                    sid = message.sid
                elif isinstance(message, Part) and (message.sid, message.index) == (sid, decoder.parts):
                    try:
                        decoder.feed(message.data)
                    except ValueError:
                        return False
                    await anyio.lowlevel.checkpoint()
                elif isinstance(message, End) and message.sid == sid and record.lsn == snapshot.end:
                    try:
                        told = (decoder.parts, decoder.chain, decoder.digest)
                    except ValueError:
                        return False
                    return told == message[1:] and decoder.lsn == snapshot.begin
    return False


async def digest_in(kind: Kind[M], log: Log, end_lsn: int) -> bytes:
    """The digest that the end of a snapshot tells; b"" if there is no end at that LSN. Raises as `Log.read`."""
    async with log.read_batches(end_lsn, end_lsn) as batches:
        ends = [kind.payloads.snapshot_message(record.payload) async for records in batches for record in records]
    return next((end.digest for end in ends if isinstance(end, End)), b"")


async def prove(
    kind: Kind[M], log: Log, lsn: int, digest: bytes, since_lsn: int, pause: Callable[[], Awaitable[None]]
) -> None:
    """Raise `Diverged` if the log, folded anew from ``since_lsn`` on (0: as far back as it goes), gives another machine
    as of ``lsn`` than the one of this digest; ``pause`` is awaited after each `SLICE`. Raises as `Log.read`, and
    what ``pause`` raises."""
    right = await digest_at(kind, log, lsn, since_lsn, pause)
    if right is not None and right != digest:
        noun = kind.noun
        raise Diverged(
            f"the {noun} in this process was not, as of LSN {lsn}, what the log gives if it is folded once more from"
            f" LSN {since_lsn or 1} on; alpo.rsm.check() finds machines that are not deterministic"
        )


async def digest_at(
    kind: Kind[M], log: Log, lsn: int, since_lsn: int = 0,
    pause: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
) -> bytes | None:
    """The digest of the machine as of ``lsn``, folded anew from what came before: from the first snapshot that began at
    ``since_lsn`` or later (0: from as far back as the log goes). None if that cannot be told any more. Raises as
    `Log.read`. ``pause`` is awaited after each `SLICE`."""
    first = since_lsn or await first_lsn(log)
    if 1 < first >= lsn:
        return None
    try:
        whole = first == 1 or await _is_founding(kind, log, first)
        machine = kind.machine() if whole else await find(kind, log, first, lsn - 1, pause)
        if machine is None:
            return None
        async with log.read_batches(machine.lsn + 1, lsn) as batches:
            async for page in batches:
                for at in range(0, len(page), SLICE):
                    for record in page[at : at + SLICE]:
                        machine.apply(record.lsn, time_ms_of(record.time), record.payload, record.term)
                    await pause()
    except OutOfRange:
        return None
    if machine.lsn != lsn:
        return None
    kept = machine.keep_digest()
    if isinstance(kept, Copied):
        await take_digest(kept, pause)
    return machine.digest_bytes(kept)


async def take_digest(copied: Copied[Any], pause: Callable[[], Awaitable[None]]) -> None:
    """Take the digest of a copy, a little at a time. Raises `Diverged` if it does not give its items."""
    while not copied.done:
        await pause()
        copied.advance(DIGEST_BYTES)


class Cache(Generic[M]):
    """The cache at ``path``; ``expect``: the id of what it must hold (b"": any)."""

    def __init__(self, kind: Kind[M], path: str | os.PathLike[str], expect: bytes = b"") -> None:
        self._kind = kind
        self._path = Path(path)
        self._expect = expect
        #: LSN and bytes of commands of the file's machine; LSN 0 if it is of no use.
        self._had = (0, 0)

    async def take(self, cluster: bytes, first_lsn: int, last_lsn: int) -> M | None:
        """The machine in the file, if it is of this cluster, and the log ``first_lsn`` … ``last_lsn`` follows on it."""
        machine = await self._read(cluster)
        if machine is None or not first_lsn - 1 <= machine.lsn <= last_lsn:
            return None
        self._had = machine.lsn, machine.command_bytes
        return machine

    def drop(self) -> None:
        """Remove the file, if there is one."""
        _unlink(str(self._path))

    async def put(self, cluster: bytes, machine: M) -> None:
        """Write the file, if it is of no use as it is, or the machine has folded much since. A failure is logged."""
        if not machine.founded or machine.waits:
            return
        lsn, command_bytes = self._had
        much = machine.lsn - lsn > _MUCH_PAYLOADS or machine.command_bytes - command_bytes > _MUCH_BYTES
        if much or not lsn:
            try:
                await self._write(cluster, machine)
            except (OSError, Diverged) as error:
                logger.info("the cache %s is not written: %s", self._path, error)

    async def _read(self, cluster: bytes) -> M | None:
        """The file's machine; None if there is none, or it is damaged or of something else."""
        try:
            with self._path.open("rb") as file:
                return await self._thawed(file, cluster)
        except (OSError, ValueError, AlpoError) as error:
            logger.info("the cache %s is not used: %s", self._path, error)
            return None

    async def _thawed(self, file: BinaryIO, cluster: bytes) -> M:
        """The machine in an open file. Raises ValueError, OSError."""
        kind = self._kind
        if file.read(len(kind.cache_magic)) != kind.cache_magic:
            raise ValueError(f"it is no cache of a {kind.noun}")
        number, of_cluster, state_id = _fields(_frame(file))
        if number != kind.payloads.format or of_cluster != cluster or (self._expect or state_id) != state_id:
            raise ValueError(f"it is of another cluster, {kind.noun} or format")
        thawing = kind.thawing()
        while part := _frame(file):
            thawing.feed(part)
            await anyio.lowlevel.checkpoint()
        machine = thawing.machine(*_fields(_frame(file)))
        if machine.state_id != state_id:
            raise ValueError(f"it holds another {kind.noun} than it says")
        return machine

    async def _write(self, cluster: bytes, machine: M) -> None:
        """Put a new file in the old one's place. Raises OSError."""
        kind, state_id, frozen = self._kind, machine.state_id, self._kind.freeze(machine)
        descriptor, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(kind.cache_magic)
                _put(file, pack((kind.payloads.format, cluster, state_id)))
                encoder = frozen(PART_BYTES_MAX)
                for part in encoder:
                    _put(file, part)
                    await anyio.lowlevel.checkpoint()
                _put(file, b"")
                _put(file, pack((encoder.parts, encoder.chain, encoder.digest)))
                file.flush()
                os.fsync(file.fileno())  # run without a thread: virtual time waits for none
            self._replace_by(name)
        except BaseException:
            _unlink(name)
            raise

    def _replace_by(self, name: str) -> None:
        Path(name).replace(self._path)


def _unlink(name: str) -> None:
    with suppress(OSError):
        Path(name).unlink()


def _put(file: BinaryIO, data: bytes) -> None:
    """Write a frame: its size, then its bytes."""
    file.write(_SIZE.pack(len(data)) + data)


def _frame(file: BinaryIO) -> bytes:
    """The next frame. Raises ValueError if it is cut off or too large, OSError."""
    head = file.read(_SIZE.size)
    size = _SIZE.unpack(head)[0] if len(head) == _SIZE.size else PART_BYTES_MAX + 1
    data = file.read(size) if size <= PART_BYTES_MAX else b""
    if len(data) != size:
        raise ValueError("it is cut off, or damaged")
    return data


def _fields(frame: bytes) -> tuple[Any, Any, Any]:
    """Three fields of a frame. Raises ValueError."""
    fields = unpack_message(frame)
    if len(fields) != 3:
        raise ValueError("it is damaged")
    return fields[0], fields[1], fields[2]
