"""`Cache`: a file beside the log that keeps the state as a process has folded it, for processes that live shortly.

Laws:

* The file is a copy and nothing else: missing, damaged, of another cluster or state, or older than the log, it is
  ignored, and written anew. No failure to read or write it ever fails a program.
* It is replaced as a whole, once it is on the disk, and only its owner may read it.
"""

from __future__ import annotations

import logging
import os
import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import anyio.lowlevel

from alpo.wire.framing import pack, unpack_message

from .codec import FORMAT
from .errors import Diverged, WrongState
from .folder import Folder
from .machine import Machine
from .parts import PART_BYTES_MAX, Encoder, Thawing
from .shapes import Frozen

logger = logging.getLogger("alpo")

_MAGIC = b"ALPO state 1\n"
_SIZE = struct.Struct(">I")
#: Growth after which the file is written anew: of commands in bytes, and of the log in payloads.
_MUCH_BYTES, _MUCH_PAYLOADS = 1 << 20, 10_000


class Cache:
    """The cache at ``path``; ``expect``: the id of the state that it must hold (b"": any)."""

    def __init__(self, path: str | os.PathLike[str], expect: bytes = b"") -> None:
        self._path = Path(path)
        self._expect = expect
        #: LSN and bytes of commands of the file's machine; LSN 0 if it is of no use.
        self._had = (0, 0)

    async def take(self, cluster: bytes, first_lsn: int, last_lsn: int) -> Machine | None:
        """The machine in the file, if it is of this cluster, and the log ``first_lsn`` … ``last_lsn`` follows on it."""
        machine = await self._read(cluster)
        if machine is None or not first_lsn - 1 <= machine.lsn <= last_lsn:
            return None
        self._had = machine.lsn, machine.command_bytes
        return machine

    async def put(self, folder: Folder) -> None:
        """Write the file, if it is of no use as it is, or ``folder`` has folded much since. A failure is logged."""
        machine, cluster = folder.machine, bytes.fromhex(folder.log.cluster)
        if machine is None or not machine.founded or machine.waits or isinstance(folder.failure, Diverged | WrongState):
            return
        lsn, command_bytes = self._had
        much = machine.lsn - lsn > _MUCH_PAYLOADS or machine.command_bytes - command_bytes > _MUCH_BYTES
        if much or not lsn:
            try:
                await self._write(cluster, machine.freeze())
            except (OSError, Diverged) as error:
                logger.info("the cache %s is not written: %s", self._path, error)

    async def _read(self, cluster: bytes) -> Machine | None:
        """The file's machine; None if there is none, or it is damaged or of something else."""
        try:
            with self._path.open("rb") as file:
                return await self._thawed(file, cluster)
        except (OSError, ValueError) as error:
            logger.info("the cache %s is not used: %s", self._path, error)
            return None

    async def _thawed(self, file: BinaryIO, cluster: bytes) -> Machine:
        """The machine in an open file. Raises ValueError, OSError."""
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it is no cache of a state")
        number, of_cluster, state_id = _fields(_frame(file))
        if number != FORMAT or of_cluster != cluster or (self._expect or state_id) != state_id:
            raise ValueError("it is of another cluster, state or format")
        thawing = Thawing()
        while part := _frame(file):
            thawing.feed(part)
            await anyio.lowlevel.checkpoint()
        machine = thawing.machine(*_fields(_frame(file)))
        if machine.state_id != state_id:
            raise ValueError("it holds another state than it says")
        return machine

    async def _write(self, cluster: bytes, frozen: Frozen) -> None:
        """Put a new file in the old one's place. Raises OSError."""
        descriptor, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=self._path.parent)  # mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_MAGIC)
                _put(file, pack((FORMAT, cluster, frozen.registers[0])))
                encoder = Encoder(frozen, PART_BYTES_MAX)
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
