"""`Snapshotting`: what every machine that is folded from the log has in common: its place there, what is not its own,
and its snapshots.

Laws, for each kind of machine:

* `apply` is pure and total: the same payloads give the same machine everywhere, whatever bytes they are. It reads no
  clock, draws nothing at random, and goes through no set.
* Everything that a later `apply` looks at is in a snapshot, so a machine made of one goes on exactly as the other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any, Generic, NamedTuple, TypeVar

from alpo.errors import AlpoError

from .errors import NewerFormat, WrongMachine, WrongState
from .payloads import FOUNDINGS, ID_BYTES, INT_MAX, Begin, End, Part, Payloads, chained

D = TypeVar("D")
#: Time without a part after which another process may begin a snapshot, ms on the log's clock.
UPLOAD_STALE_MS = 30_000
#: Number of registers that every machine has: see `Snapshotting.registers`.
REGISTERS = 8
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Outcome(IntEnum):
    """The effect of a payload."""

    DONE = 0
    CHANGED = 1  # a guard is false
    UNFENCED = 2  # a row without a guard on its owner
    NO_INTEGER = 3  # `ADD` to something else, or out of 64 bits
    FULL = 4
    NOT_FOUNDED = 5
    FOUNDED = 6
    FOUNDED_BEFORE = 7
    GRANTED = 8  # the snapshot may be written
    BUSY = 9  # another one is being written
    TAKEN = 10  # a part
    ACCEPTED = 11
    DIVERGED = 12  # the snapshot is not of this machine
    STALE = 13  # a part or end of a snapshot that was taken over, or never granted
    INVALID = 14
    FOREIGN = 15
    WAITS = 16  # for the rest of the command
    NEWER = 17  # a format or version that this machine does not know: it must not go on
    VERSION = 18  # a newer version is in force
    HELD = 19  # refused for now: commands for an older version still come
    JUDGED = 20  # somebody's decision on a snapshot: whether it is set aside


class Result(NamedTuple):
    """The effect of the payload at ``lsn``. ``name``: the variable it failed at, which has LSN ``have`` (0: absent)
    and not ``wanted``. ``sums``: results of the command's `ADD`s, in order. ``cell``: the variable that a command
    of one operation left; of other machines than a state, what the command answered."""

    outcome: Outcome
    lsn: int
    name: str = ""
    have: int = 0
    wanted: int = 0
    sums: tuple[int, ...] = ()
    cell: Any = None


class Upload(NamedTuple, Generic[D]):
    """A snapshot that is being written: as of LSN ``begin``, with ``parts`` parts so far, the last at ``time_ms``.
    ``digest``: what `Snapshotting.keep_digest` gave at ``begin``."""

    sid: bytes
    begin: int
    parts: int
    chain: bytes
    time_ms: int
    digest: D
    command_bytes: int
    begun_ms: int


class Snapshot(NamedTuple):
    """An accepted snapshot: the machine as of LSN ``begin``, accepted at LSN ``end``; ``command_bytes`` and
    ``begun_ms``: those of the machine at ``begin``."""

    begin: int
    end: int
    command_bytes: int
    begun_ms: int


def time_of(time_ms: int) -> datetime:
    """The time of an entry, UTC."""
    return _EPOCH + timedelta(milliseconds=time_ms)


def time_ms_of(time: datetime) -> int:
    """Milliseconds since 1970, exactly."""
    return (time - _EPOCH) // timedelta(milliseconds=1)


class Snapshotting(Generic[D]):
    """The fold of a log up to ``lsn``. Reading its attributes is free; `apply` alone changes them.

    ``payloads``: those of its kind. ``D``: what it keeps to tell, at a snapshot's end, the digest of itself as of the
    snapshot's beginning.
    """

    def __init__(self, payloads: Payloads) -> None:
        self.payloads = payloads
        self._magic, self._head, self._format = payloads.magic, payloads.head, payloads.format
        self.lsn = 0
        self.time_ms = 0
        #: Id of what the log holds, 16 bytes; b"" before it is founded.
        self.state_id = b""
        #: Bytes that the machine holds: a snapshot is not due before as many bytes of commands came.
        self.bytes = 0
        #: LSN of the last payload that is none of this kind.
        self.foreign_lsn = 0
        self.invalid = 0
        #: Bytes of all payloads of this kind so far, without parts of snapshots.
        self.command_bytes = 0
        self.upload: Upload[D] | None = None
        self.snapshot: Snapshot | None = None
        self.previous: Snapshot | None = None
        #: None, or the list in which `apply` collects what watchers are told of, in order; the folder sets and clears
        #: it.
        self.touched: list[Any] | None = None

    @property
    def founded(self) -> bool:
        """True once the log has told the machine's id, and with what it begins."""
        return bool(self.state_id)

    @property
    def waits(self) -> bool:
        """True while a command waits for further payloads: a frozen copy would leave it out."""
        return False

    @property
    def bytes_since(self) -> int:
        """Bytes of the machine's payloads since the last accepted snapshot began."""
        return self.command_bytes - (self.snapshot.command_bytes if self.snapshot else 0)

    # -- digests --------------------------------------------------------------------------------------------

    @abstractmethod
    def keep_digest(self) -> D:
        """The digest of the machine as it stands, or else a copy of the machine that tells it later. Called when a
        snapshot begins, and when one was refused."""

    @abstractmethod
    def digest_bytes(self, kept: D) -> bytes:
        """The digest, 16 bytes, of the machine as it was when `keep_digest` gave ``kept``."""

    @abstractmethod
    def digest_of(self, digest: bytes) -> D:
        """The reverse of `digest_bytes`, which registers hold."""

    # -- folding --------------------------------------------------------------------------------------------

    def apply(self, lsn: int, time_ms: int, payload: bytes, term: int = 0) -> Result:
        """Take the payload at ``lsn``, which is the next one; ``time_ms`` and ``term``: its entry's. Raises ValueError
        for another LSN, nothing for any payload."""
        if lsn != self.lsn + 1:
            raise ValueError(f"payload {lsn} does not follow on {self.lsn}")
        if payload[:3] == self._head:
            message = self._decode(payload)
            ours = True
        else:
            message = None
            ours = payload[:2] == self._magic
            if ours and len(payload) > 2 and payload[2] > self._format:
                return Result(Outcome.NEWER, lsn, have=payload[2])
        self.lsn, self.time_ms = lsn, time_ms
        self._before(message)
        if not ours:
            self.foreign_lsn = lsn
            if not self.founded and (other := FOUNDINGS.get(payload[:5])) is not None:
                return Result(Outcome.NEWER, lsn, other)
            return Result(Outcome.FOREIGN, lsn)
        if message.__class__ is not Part:
            self.command_bytes += len(payload)
        return self._invalid() if message is None else self._take(message, term)

    @abstractmethod
    def _decode(self, payload: bytes) -> Any:
        """The message in a payload of this format; None if it holds none. Total, and nothing is changed by it."""

    def _before(self, message: Any) -> None:
        """Do what is due before ``message`` (None: foreign or invalid), and what the time alone does; called for each
        payload, once `lsn` and `time_ms` are its own."""

    @abstractmethod
    def _take(self, message: Any, term: int) -> Result:
        """Take a message: those of snapshots go to `_take_snapshot`."""

    def _take_snapshot(self, message: Begin | Part | End) -> Result:
        """Take a message of a snapshot."""
        if isinstance(message, Begin):
            return self._begin(message)
        return self._take_part(message) if isinstance(message, Part) else self._end(message)

    def _invalid(self) -> Result:
        self.invalid += 1
        return Result(Outcome.INVALID, self.lsn)

    def _begin(self, message: Begin) -> Result:
        if not self.founded:
            return Result(Outcome.NOT_FOUNDED, self.lsn)
        if self.upload is not None and self.time_ms < self.upload.time_ms + UPLOAD_STALE_MS:
            return Result(Outcome.BUSY, self.lsn)
        self.upload = Upload(
            message.sid, self.lsn, 0, b"", self.time_ms, self.keep_digest(), self.command_bytes, self.time_ms
        )
        return Result(Outcome.GRANTED, self.lsn)

    def _take_part(self, part: Part) -> Result:
        upload = self.upload
        if upload is None or upload.sid != part.sid or upload.parts != part.index:
            return Result(Outcome.STALE, self.lsn)
        chain = chained(upload.chain, part.data)
        self.upload = upload._replace(parts=part.index + 1, chain=chain, time_ms=self.time_ms)
        return Result(Outcome.TAKEN, self.lsn)

    def _end(self, end: End) -> Result:
        upload = self.upload
        if upload is None or upload.sid != end.sid:
            return Result(Outcome.STALE, self.lsn)
        self.upload = None
        same = (upload.parts, upload.chain) == (end.parts, end.chain)
        if not same or self.digest_bytes(upload.digest) != end.digest:
            return Result(Outcome.DIVERGED, self.lsn)
        self.previous = self.snapshot
        self.snapshot = Snapshot(upload.begin, self.lsn, upload.command_bytes, upload.begun_ms)
        return Result(Outcome.ACCEPTED, self.lsn)

    # -- what ends the folding ------------------------------------------------------------------------------

    def newer(self, result: Result) -> AlpoError:
        """The error of a payload that this process must not pass over: `Outcome.NEWER`, also of what founds something
        else."""
        noun, number = self.payloads.noun, self._format
        if not result.have:
            other = f"{result.name}, founded at LSN {result.lsn}"
            return WrongMachine(f"this log holds {other}: a {noun} needs another log")
        text = f"payload {result.lsn} is in format {result.have} of the {noun}; this release knows {number}"
        return NewerFormat(f"{text}: use a newer release", lsn=result.lsn, format=result.have)

    def need(self, expect: bytes) -> None:
        """Raise `WrongState` if the log has founded something else than ``expect``, an id (b"": any)."""
        if expect and self.founded and self.state_id != expect:
            raise WrongState(f"this log holds {self.payloads.noun} {self.state_id.hex()}, not {expect.hex()}")

    # -- registers ------------------------------------------------------------------------------------------

    def registers(self) -> tuple[Any, ...]:
        """The part of a machine that every kind has, as integers, bytes and tuples of them."""
        return (
            self.lsn, self.time_ms, self.foreign_lsn, self.invalid, self.command_bytes, self._plain_upload(),
            *(tuple(each or ()) for each in (self.snapshot, self.previous)),
        )

    def set_registers(self, registers: tuple[Any, ...]) -> None:
        """Go on from these, which `are_registers`. Raises ValueError or TypeError for others."""
        lsn, time_ms, foreign_lsn, invalid, command_bytes, upload, snapshot, previous = registers
        self.lsn, self.time_ms, self.foreign_lsn = lsn, time_ms, foreign_lsn
        self.invalid, self.command_bytes = invalid, command_bytes
        self.upload = self._upload_of(upload) if upload else None
        self.snapshot = Snapshot(*snapshot) if snapshot else None
        self.previous = Snapshot(*previous) if previous else None

    def _plain_upload(self) -> tuple[Any, ...]:
        if self.upload is None:
            return ()
        sid, begin, parts, chain, time_ms, digest, *rest = self.upload
        return sid, begin, parts, chain, time_ms, self.digest_bytes(digest), *rest

    def _upload_of(self, plain: tuple[Any, ...]) -> Upload[D]:
        sid, begin, parts, chain, time_ms, digest, *rest = plain
        return Upload(sid, begin, parts, chain, time_ms, self.digest_of(digest), *rest)


def are_numbers(values: Iterable[Any]) -> bool:
    """True if all are integers from 0 to 2**63 - 1."""
    return all(type(value) is int and 0 <= value <= INT_MAX for value in values)


def is_bytes(value: Any, *sizes: int) -> bool:
    """True for bytes of one of these sizes."""
    return type(value) is bytes and len(value) in sizes


def are_registers(registers: tuple[Any, ...], *digest_bytes: int) -> bool:
    """True if a machine can go on from these, as `Snapshotting.registers` gives them; ``digest_bytes``: sizes that the
    digest of an upload may have, if not 16 alone."""
    if len(registers) != REGISTERS or not are_numbers(registers[:5]):
        return False
    upload, snapshot, previous = registers[5:]
    if not all(type(each) is tuple for each in (upload, snapshot, previous)):
        return False
    if len(snapshot) not in (0, 4) or len(previous) not in (0, 4) or not are_numbers((*snapshot, *previous)):
        return False
    if not upload:
        return True
    if len(upload) != 8 or not is_bytes(upload[0], ID_BYTES) or not is_bytes(upload[3], 0, ID_BYTES):
        return False
    return is_bytes(upload[5], *digest_bytes or (ID_BYTES,)) and are_numbers((*upload[1:3], upload[4], *upload[6:]))
