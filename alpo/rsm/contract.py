"""The contract between a user's machine and `alpo.rsm`: `Machine`, what it is given (`At`), and the digest by which
processes compare what they have folded.

Laws that a machine has to keep, and that `alpo.rsm.check` looks for:

* The same commands give the same machine and the same answers in every process: no clock, no chance, no order of a set.
* A machine that was made by ``load`` goes on exactly as the one whose ``items`` it was made of.
* An ``apply`` that raises has changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from hashlib import blake2b
from typing import NamedTuple, Protocol, Self, TypeVar, runtime_checkable

DIGEST_BYTES = 16
#: Largest piece of a snapshot that a machine's ``items`` may give.
ITEM_BYTES_MAX = 16 << 20
#: Most bytes of all pieces of a snapshot.
ITEMS_BYTES_MAX = 1 << 30


class At(NamedTuple):
    """The place of a command. ``lsn``: its number in the log; ``term``: that of the leader which took it; ``time``: the
    log's own clock, UTC, which never goes back; ``version``: the machine's version in force there."""

    lsn: int
    term: int
    time: datetime
    version: int


@runtime_checkable
class Machine(Protocol):
    """A user's machine: deterministic, and alone with what it is given. Called without arguments, its class makes the
    empty one.

    It may also have ``digest(self) -> bytes``, up to 64 bytes that depend on its content alone: else the digest is
    taken over all ``items`` at each snapshot.
    """

    def apply(self, command: bytes, at: At) -> object:
        """Take the next command; what it returns is the answer that `Replica.run` gives. An exception is an answer too:
        it is raised where the command was run, and must have left the machine as it was."""

    def items(self) -> Iterable[bytes]:
        """Pieces of a snapshot of this machine, always the same for the same content, of 16 MiB at most each."""

    @classmethod
    def load(cls, items: Iterable[bytes]) -> Self:
        """The machine whose ``items`` these are. May be called in a thread of its own."""

    def freeze(self) -> Self:
        """A copy of this machine that later applies do not change, made in little time."""


M = TypeVar("M", bound=Machine)


class Digest:
    """The digest over a snapshot's pieces, one after the other."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES)

    def feed(self, item: bytes) -> None:
        """Take the next piece."""
        self._hash.update(len(item).to_bytes(8, "little"))
        self._hash.update(item)

    def value(self) -> bytes:
        """The digest of the pieces so far."""
        return self._hash.digest()


def own_digest(machine: Machine) -> bytes | None:
    """The digest that the machine offers by itself, at one size for all; None if it offers none. Raises TypeError."""
    offered = getattr(machine, "digest", None)
    if offered is None:
        return None
    told = offered()
    if not isinstance(told, bytes):
        raise TypeError(f"digest() of {type(machine).__name__} gave {type(told).__name__}, not bytes")
    return blake2b(told, digest_size=DIGEST_BYTES).digest()


def checked_items(machine: Machine) -> Iterator[bytes]:
    """The pieces of the machine's snapshot. Raises TypeError or ValueError for one that no snapshot can hold."""
    total = 0
    for item in machine.items():
        if not isinstance(item, bytes):
            raise TypeError(f"items() of {type(machine).__name__} gave {type(item).__name__}, not bytes")
        total += len(item)
        if len(item) > ITEM_BYTES_MAX or total > ITEMS_BYTES_MAX:
            raise ValueError(f"items() of {type(machine).__name__}: a piece has 16 MiB at most, all together 1 GiB")
        yield item


def digest_of(machine: Machine) -> bytes:
    """The digest by which this machine is compared with those of other processes. Raises as `checked_items`."""
    own = own_digest(machine)
    if own is not None:
        return own
    digest = Digest()
    for item in checked_items(machine):
        digest.feed(item)
    return digest.value()
