"""`Hosted`: a user's machine as the fold of a log, with what the log holds of it besides the user's own commands: its
name, its version, its snapshots.

Laws:

* The user's machine is given the commands of its own name, in the order of the log, and nothing else. Whatever bytes
  others append never reaches it.
* A command that was meant for an older version than the one in force is refused, everywhere alike: its sender's code
  does not know what it would do now.
* A newer version begins at one LSN for all. A process whose code does not know it stops there.
* A log is of one machine: where something else was founded before, nothing is folded and nothing written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from alpo.errors import AlpoError
from alpo.wire.framing import WireError, unpack_message

from .contract import At, Digest, Machine, checked_items, own_digest
from .errors import Diverged, NewerVersion, WrongMachine
from .machine import Outcome, Result, Snapshotting, time_of
from .payloads import CHECKS, End, Payloads, SnapshotMessage, is_id, is_number

M = TypeVar("M", bound=Machine)

#: Payloads of a hosted machine. A command is the head, `COMMAND`, the version that its sender's code is made for, and
#: the user's bytes; every other payload is a msgpack array (docs/wire-format.md).
PAYLOADS = Payloads("machine", b"\xc1\x52", 1)
FOUND, COMMAND, VERSION, JUDGEMENT = 0, 1, 6, 7
NAME_BYTES_MAX = 128
VERSION_MAX = (1 << 16) - 1
_NAME = re.compile(r"[^\x00-\x20\x7f-\xa0\ud800-\udfff]+")
_COMMANDS = PAYLOADS.head + bytes([COMMAND])
_WANTED = Struct(">H")
#: Bytes of a command's payload before the user's own.
COMMAND_ROOM = len(_COMMANDS) + _WANTED.size
#: Time without a command for an older version after which a newer one may begin, ms on the log's clock.
SETTLED_MS = 60_000
_new = tuple.__new__  # makes named tuples without the cost of calling their own constructor
#: Most versions that commands are counted for at a time.
WANTS_MAX = 16


class Found(NamedTuple):
    """The beginning of a machine: its id, 16 bytes, its name, and its version."""

    state_id: bytes
    name: str
    version: int


class Version(NamedTuple):
    """The wish for a newer version from here on: it is granted if no command for an older one came for `SETTLED_MS`."""

    version: int


class Judgement(NamedTuple):
    """The decision of an operator on the snapshot that ended at ``end_lsn``: it is ``wrong``, or it is not."""

    end_lsn: int
    wrong: bool


Message: TypeAlias = Found | Version | Judgement | SnapshotMessage


class Raised(NamedTuple):
    """The answer of a command whose ``apply`` has raised ``error``."""

    error: Exception


class Outdated(NamedTuple):
    """The answer of a command that was not applied: ``version`` was in force, and it was meant for an older one."""

    version: int


class Made(NamedTuple, Generic[M]):
    """A machine as a program names it: its class, its name, and the version that its code is made for."""

    made_by: type[M]
    name: str
    version: int

    def need(self, name: str, version: int, lsn: int) -> None:
        """Raise `WrongMachine` or `NewerVersion` unless this code may fold a log that holds the machine ``name``, at
        ``version`` as of ``lsn``."""
        if name != self.name:
            raise WrongMachine(f"this log holds the machine {name!r}, not {self.name!r}")
        if version > self.version:
            raise NewerVersion(
                f"the machine {name!r} is at version {version} as of LSN {lsn}; this program's code is made for version"
                f" {self.version}: use newer code", lsn=lsn, version=version,
            )


def valid_name(name: object) -> bool:
    """True for the name of a machine: 1 to 128 bytes of UTF-8, without spaces and control characters."""
    return type(name) is str and _NAME.fullmatch(name) is not None and len(name.encode()) <= NAME_BYTES_MAX


def valid_version(version: object) -> bool:
    """True for the version of a machine: an integer from 1 to 65,535."""
    return is_number(version) and 0 < version <= VERSION_MAX  # type: ignore[operator]


def commands_head(version: int) -> bytes:
    """The bytes before the user's own of a command from code that is made for ``version``."""
    return _COMMANDS + _WANTED.pack(version)


def found(state_id: bytes, name: str, version: int) -> bytes:
    """The payload that founds a machine."""
    return PAYLOADS.pack(FOUND, state_id, name, version)


def newer_version(version: int) -> bytes:
    """The payload that asks for a newer version from here on."""
    return PAYLOADS.pack(VERSION, version)


def judgement(end_lsn: int, wrong: bool) -> bytes:
    """The payload that sets the snapshot aside that ended at ``end_lsn``, or takes that back."""
    return PAYLOADS.pack(JUDGEMENT, end_lsn, int(wrong))


def judgement_in(payload: bytes) -> Judgement | None:
    """The decision on a snapshot in a payload; None if it holds none. Total."""
    if payload[:3] != PAYLOADS.head or payload[:4] == _COMMANDS:
        return None
    try:
        return _judgement(unpack_message(payload[3:]))
    except WireError:
        return None


def _found(fields: tuple[Any, ...]) -> Found | None:
    if len(fields) != 4 or not is_id(fields[1]) or not valid_name(fields[2]) or not valid_version(fields[3]):
        return None
    return Found(*fields[1:])


def _version(fields: tuple[Any, ...]) -> Version | None:
    return Version(fields[1]) if len(fields) == 2 and valid_version(fields[1]) else None


def _judgement(fields: tuple[Any, ...]) -> Judgement | None:
    if len(fields) != 3 or fields[0] != JUDGEMENT or not all(map(is_number, fields[1:])) or fields[2] > 1:
        return None
    return Judgement(fields[1], bool(fields[2]))


_CHECKS: dict[Any, Any] = {**CHECKS, FOUND: _found, VERSION: _version, JUDGEMENT: _judgement}


class Copied(Generic[M]):
    """A copy of a user's machine as of ``lsn``, and its digest, which is taken little by little: `advance`."""

    def __init__(self, machine: M, lsn: int) -> None:
        self.machine = machine
        self.lsn = lsn
        #: True if an encoder goes through the items, and takes the digest along.
        self.encoded = False
        #: Bytes of all items, once the digest is there.
        self.bytes = 0
        self._digest = own_digest(machine)
        self._taken = Digest()
        self._left = checked_items(machine)

    @property
    def done(self) -> bool:
        """True once the digest is there."""
        return self._digest is not None

    def advance(self, bytes_max: int) -> None:
        """Take some more of the machine into the digest. Raises `Diverged` if it does not give its items."""
        if self.done:
            return
        left = bytes_max
        try:
            for item in self._left:
                self._taken.feed(item)
                self.bytes += len(item)
                left -= len(item) + 64
                if left <= 0:
                    return
        except BaseException as error:
            raise _broken("gives no items", self.lsn, error) from error
        self._digest = self._taken.value()

    def items(self) -> Iterator[bytes]:
        """All items, which take the digest along. Raises `Diverged` if the machine does not give them."""
        taken, size = Digest(), 0
        try:
            for item in checked_items(self.machine):
                taken.feed(item)
                size += len(item)
                yield item
        except GeneratorExit:
            raise
        except BaseException as error:
            raise _broken("gives no items", self.lsn, error) from error
        self.bytes, self._digest = size, self._digest or taken.value()

    def digest(self) -> bytes:
        """The digest, whatever time it takes. Raises as `advance`."""
        while self._digest is None:
            self.advance(1 << 30)
        return self._digest


def _broken(what: str, lsn: int, error: BaseException) -> Diverged:
    return Diverged(f"the machine as of LSN {lsn} {what}: {type(error).__name__}: {error}")


class Hosted(Snapshotting[Copied[M] | bytes], Generic[M]):
    """The user's machine, ``user``, at version ``version``, as the fold of a log up to ``lsn``."""

    def __init__(self, made: Made[M]) -> None:
        super().__init__(PAYLOADS)
        self.made = made
        self.user = made.made_by()
        self.name = ""
        #: The version in force; 0 before the machine is founded.
        self.version = 0
        #: Version -> time of the last command that was meant for it, in ms: of the one in force, and of newer ones.
        self.wants: dict[int, int] = {}
        #: Time of the last command, in ms, and as it is told.
        self._told_ms, self._time = 0, time_of(0)

    def apply(self, lsn: int, time_ms: int, payload: bytes, term: int = 0) -> Result:
        """Take the payload at ``lsn``, which is the next one. Raises as `Snapshotting.apply`; `Diverged` if the user's
        machine cannot go on in this process."""
        if payload[:4] != _COMMANDS or len(payload) < COMMAND_ROOM or lsn != self.lsn + 1:
            return super().apply(lsn, time_ms, payload, term)
        self.lsn, self.time_ms = lsn, time_ms
        if time_ms != self._told_ms:
            self._told_ms, self._time = time_ms, time_of(time_ms)
        self.command_bytes += len(payload)
        version = self.version
        if not version:
            return Result(Outcome.NOT_FOUNDED, lsn)
        wanted = payload[4] << 8 | payload[5]
        if wanted < version:
            return Result(Outcome.DONE, lsn, "", 0, 0, (), Outdated(version))
        self._want(wanted)
        try:
            answer = self.user.apply(payload[COMMAND_ROOM:], _new(At, (lsn, term, self._time, version)))
        except BaseException as error:
            # A command that is nested too deeply is so everywhere: it must not stop all processes for good.
            if isinstance(error, MemoryError) or not isinstance(error, Exception):
                raise _broken("cannot go on: what the next command has done is not known", lsn - 1, error) from error
            answer = Raised(error)
        return _new(Result, (Outcome.DONE, lsn, "", 0, 0, (), answer))

    def _want(self, version: int) -> None:
        """Note that a command was meant for ``version``."""
        wants = self.wants
        wants[version] = self.time_ms
        if len(wants) > WANTS_MAX:  # no program is of so many: the highest are somebody's mistake
            del wants[max(wants)]

    def _decode(self, payload: bytes) -> Message | None:
        try:
            fields = unpack_message(payload[3:])
        except WireError:
            return None
        check = _CHECKS.get(fields[0])
        message: Message | None = None if check is None else check(fields)
        return message

    def _take(self, message: Message, term: int) -> Result:
        if isinstance(message, Found):
            if self.founded:
                return Result(Outcome.FOUNDED_BEFORE, self.lsn)
            self.state_id, self.name, self.version = message
            return Result(Outcome.FOUNDED, self.lsn)
        if isinstance(message, Version):
            return self._take_version(message.version)
        if isinstance(message, Judgement):
            return Result(Outcome.JUDGED, self.lsn, have=message.end_lsn, wanted=int(message.wrong))
        return self._take_snapshot(message)

    def _take_version(self, version: int) -> Result:
        """Go on at a newer version, unless commands for an older one still come."""
        since_ms = self.time_ms - SETTLED_MS
        if not self.founded or version <= self.version:
            return Result(Outcome.HELD, self.lsn)
        if any(ms > since_ms for each, ms in self.wants.items() if each < version):
            return Result(Outcome.HELD, self.lsn)
        if version > self.made.version:
            return Result(Outcome.NEWER, self.lsn, self.name, version)
        self.version = version
        self.wants = {each: ms for each, ms in self.wants.items() if each >= version}
        return Result(Outcome.VERSION, self.lsn)

    # -- digests --------------------------------------------------------------------------------------------

    def keep_digest(self) -> Copied[M] | bytes:
        return self.copied()

    def copied(self) -> Copied[M]:
        """A copy of the user's machine as it stands. Raises `Diverged` if it makes none."""
        try:
            return Copied(self.user.freeze(), self.lsn)
        except BaseException as error:
            raise _broken("cannot be copied", self.lsn, error) from error

    def digest_bytes(self, kept: Copied[M] | bytes) -> bytes:
        return kept if isinstance(kept, bytes) else kept.digest()

    def digest_of(self, digest: bytes) -> Copied[M] | bytes:
        return digest

    def _end(self, end: End) -> Result:
        upload = self.upload
        if upload is not None and upload.sid == end.sid and (upload.parts, upload.chain) != (end.parts, end.chain):
            self.upload = None  # no word on any machine: its parts are not what its writer says
            return self._invalid()
        result = super()._end(end)
        if upload is not None and result.outcome is Outcome.DIVERGED:
            return result._replace(have=upload.begin)
        if result.outcome is Outcome.ACCEPTED and upload is not None and isinstance(upload.digest, Copied):
            self.bytes = upload.digest.bytes
        return result

    # -- what ends the folding ------------------------------------------------------------------------------

    def newer(self, result: Result) -> AlpoError:
        if not (result.name and result.have):
            return super().newer(result)
        try:
            self.made.need(result.name, result.have, result.lsn)
        except AlpoError as error:
            return error
        raise AssertionError("a version that this code knows is no reason to stop")

    def need(self, expect: bytes) -> None:
        """Raise `WrongMachine` if the log holds one of another name, `NewerVersion` if it is at a later version than
        this program's code, and as `Snapshotting.need`."""
        if self.founded:
            self.made.need(self.name, self.version, self.lsn)
        super().need(expect)

    # -- registers ------------------------------------------------------------------------------------------

    def all_registers(self) -> tuple[Any, ...]:
        """The registers of a snapshot: all that it holds besides the user's machine."""
        wants = tuple(number for each in sorted(self.wants.items()) for number in each)
        return self.state_id, self.name, self.version, wants, *self.registers()

    def _plain_upload(self) -> tuple[Any, ...]:
        """The upload, without its digest if that is the digest of the machine that these registers belong to."""
        upload = self.upload
        if upload is None or upload.begin != self.lsn:
            return super()._plain_upload()
        sid, begin, parts, chain, time_ms, _, *rest = upload
        return sid, begin, parts, chain, time_ms, b"", *rest

    def set_all_registers(self, registers: tuple[Any, ...]) -> None:
        """Go on from registers that `all_registers` gave."""
        self.state_id, self.name, self.version, wants, *rest = registers
        self.wants = dict(zip(wants[::2], wants[1::2], strict=True))
        self.set_registers(tuple(rest))

    def take(self, user: M, digest: bytes) -> None:
        """Go on with a user's machine that was loaded from a snapshot of this digest, as of `lsn`."""
        self.user = user
        if self.upload is not None and self.upload.digest == b"":
            self.upload = self.upload._replace(digest=digest)
