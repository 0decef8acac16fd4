"""Snapshots of a user's machine: its items in parts, each of which fits into a payload, and back.

The first part holds the registers; each further one is an array of items, and of pieces of those that are too large for
a part: (size of the whole, offset, bytes). `Loading` gives them to the user's ``load`` as they come.

Laws:

* Reading is total: damaged parts raise ValueError, and never give another machine. Memory follows the bytes received.
* A user's ``load`` holds up the event loop for no longer than one part takes, and does not outlive its snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import finalize

from alpo.wire.framing import pack

from . import parts
from .contract import ITEM_BYTES_MAX, Digest, Machine, offers_digest, own_digest
from .errors import Diverged
from .hosted import PAYLOADS, WANTS_MAX, Copied, Hosted, Made, valid_name, valid_version
from .kind import Kind
from .machine import are_numbers, are_registers, is_bytes
from .payloads import ID_BYTES

#: Name of the log's cursor that keeps what a newcomer needs.
CURSOR = "machine"
#: The cursor that keeps the log while two sides differ: `Kind.agreed`.
AGREED = f"{CURSOR}-agreed"
M = TypeVar("M", bound=Machine)

#: Bytes of a piece besides its own.
_PIECE_ROOM = 32
_OWN_REGISTERS, _PIECE_FIELDS = 4, 3


class Encoder(parts.Encoder, Generic[M]):
    """An iterator over the parts of a copied machine, each of ``bytes_max`` bytes at most."""

    def __init__(self, registers: tuple[Any, ...], copied: Copied[M], bytes_max: int) -> None:
        super().__init__(registers, bytes_max)
        self._copied = copied

    @property
    def digest(self) -> bytes:
        return self._copied.digest()

    def _items(self, room: int) -> Iterator[bytes]:
        step = room - _PIECE_ROOM
        for item in self._copied.items():
            size = len(item)
            if size <= step:
                yield pack(item)
                continue
            for at in range(0, size, step):
                yield pack((size, at, item[at : at + step]))


class _Abandoned(BaseException):
    """The snapshot that is being loaded came to nothing."""


class _Loaded(NamedTuple):
    """The end of a ``load``: what it returned, or what it raised."""

    machine: Any
    error: BaseException | None


#: Given in place of items to end a load that nobody waits for.
_ABANDON: list[bytes] = []


class Loading(Generic[M]):
    """The user's ``load`` in a thread of its own, which runs only while `feed` or `finish` wait for it."""

    def __init__(self, made_by: type[M]) -> None:
        self._made_by = made_by
        self._given: SimpleQueue[list[bytes] | None] = SimpleQueue()
        #: None each time the thread asks for more items; its end at last.
        self._told: SimpleQueue[_Loaded | None] = SimpleQueue()
        Thread(target=_load, args=(made_by, self._given, self._told), name="alpo-load", daemon=True).start()
        self._end = self._told.get()
        finalize(self, self._given.put, _ABANDON)

    def feed(self, items: list[bytes]) -> None:
        """Give some more items."""
        if self._end is None and items:
            self._given.put(items)
            self._end = self._told.get()

    def finish(self) -> M:
        """The machine, once all items were given. Raises `Diverged` if ``load`` has failed."""
        while self._end is None:
            self._given.put(None)
            self._end = self._told.get()
        error = self._end.error
        if error is not None:
            raise Diverged(f"load() has failed on a whole snapshot: {type(error).__name__}: {error}") from error
        machine = self._end.machine
        if not isinstance(machine, self._made_by):
            raise Diverged(f"load() gave {type(machine).__name__}, not {self._made_by.__name__}")
        return machine


def _load(
    made_by: type[M], given: SimpleQueue[list[bytes] | None], told: SimpleQueue[_Loaded | None]
) -> None:
    """Load a machine of the items that are given (a thread)."""

    ended = False

    def items() -> Iterator[bytes]:
        while True:
            if ended:
                raise ValueError("load() has returned, and its items are gone: take them while it runs")
            told.put(None)
            some = given.get()
            if some is None:
                return
            if some is _ABANDON:
                raise _Abandoned
            yield from some

    try:
        end = _Loaded(made_by.load(items()), None)
    except BaseException as error:  # raised by `finish`
        end = _Loaded(None, error)
    ended = True
    told.put(end)


class Decoder(parts.Decoder[bytes]):
    """The parts of a snapshot, read one after the other: each gives the items that are whole with it.

    ``loads``: make the machine of them; else that is done only where the digest is the machine's own.
    """

    def __init__(self, made: Made[Any], loads: bool = False) -> None:
        super().__init__(_OWN_REGISTERS, _PIECE_FIELDS, 2 * WANTS_MAX)
        self._made = made
        self._own = offers_digest(made.made_by)
        self._loading = Loading(made.made_by) if loads or self._own else None
        self._user: Any = None
        self._digest = Digest()
        #: Item that has not come wholly: its size, and its pieces.
        self._size = 0
        self._pieces = bytearray()

    @property
    def user(self) -> Any:
        """The user's machine. Raises ValueError in the middle of an item, `Diverged` if it does not load."""
        if self._size:
            raise ValueError("the last item of the parts is cut off")
        if self._user is None and self._loading is not None:
            self._user = self._loading.finish()
        return self._user

    @property
    def digest(self) -> bytes:
        user = self.user
        try:
            return (own_digest(user) if self._own else None) or self._digest.value()
        except BaseException as error:
            raise Diverged(f"digest() has failed on a loaded machine: {type(error).__name__}: {error}") from error

    def feed(self, part: bytes) -> list[bytes]:
        items = super().feed(part)
        if self._loading is not None:
            self._loading.feed(items)
        return items

    def _are_registers(self, registers: tuple[Any, ...]) -> bool:
        state_id, name, version, wants = registers[:_OWN_REGISTERS]
        if not is_bytes(state_id, ID_BYTES) or not valid_name(name) or not valid_version(version):
            return False
        if type(wants) is not tuple or len(wants) % 2 or len(wants) > 2 * WANTS_MAX or not are_numbers(wants):
            return False
        if not are_registers(registers[_OWN_REGISTERS:], 0, ID_BYTES):
            return False
        self._made.need(name, version, registers[_OWN_REGISTERS])
        return True

    def _item(self, item: Any) -> bytes | None:
        if type(item) is tuple:
            return self._piece(item)
        if type(item) is not bytes or self._size:
            raise ValueError("an item of a snapshot is none, or pieces do not fit together")
        self._digest.feed(item)
        return item

    def _piece(self, piece: tuple[Any, ...]) -> bytes | None:
        if len(piece) != _PIECE_FIELDS or not are_numbers(piece[:2]) or type(piece[2]) is not bytes or not piece[2]:
            raise ValueError("a piece of a snapshot is none")
        size, at, data = piece
        if at != len(self._pieces) or (at and size != self._size) or not at + len(data) <= size <= ITEM_BYTES_MAX:
            raise ValueError("pieces of a snapshot do not fit together")
        self._size = size
        self._pieces += data
        if len(self._pieces) < size:
            return None
        whole = bytes(self._pieces)
        self._size = 0
        self._pieces.clear()
        self._digest.feed(whole)
        return whole


class Thawing(parts.Thawing[Hosted[M]], Generic[M]):
    """A machine that grows part by part. Raises ValueError for damaged parts, `WrongMachine` and `NewerVersion` for
    those of another machine, `Diverged` if the user's ``load`` fails on what is whole."""

    def __init__(self, made: Made[M]) -> None:
        self._items = Decoder(made, loads=True)
        super().__init__(self._items)
        self._made_as = made

    def _made(self, registers: tuple[Any, ...]) -> Hosted[M]:
        machine = Hosted(self._made_as)
        machine.set_all_registers(registers)
        return machine

    def _add(self, machine: Hosted[M], items: list[Any]) -> None:
        machine.bytes += sum(map(len, items))

    def machine(self, parts: int, chain: bytes, digest: bytes) -> Hosted[M]:
        if (self._items.parts, self._items.chain) != (parts, chain):
            raise ValueError("the parts of a snapshot are not those that its end tells of")
        machine = super().machine(parts, chain, digest)
        machine.take(self._items.user, digest)
        return machine


def kind_of(made: Made[M]) -> Kind[Hosted[M]]:
    """The kind of the machines of one user's class."""
    return Kind(
        payloads=PAYLOADS, title="Replica", cursor=CURSOR, cache_magic=b"ALPO machine 1\n",
        machine=partial(Hosted, made), freeze=_frozen, thawing=partial(Thawing, made), decoder=partial(Decoder, made),
        proves=True, streams=True,
    )


def _frozen(machine: Hosted[M]) -> parts.Frozen:
    """The machine as it stands: makes the encoder of that copy, which is that of the snapshot that begins here, if one
    does."""
    upload = machine.upload
    begun = upload.digest if upload is not None and upload.begin == machine.lsn else None
    copied = begun if isinstance(begun, Copied) else machine.copied()
    copied.encoded = True
    return partial(Encoder, machine.all_registers(), copied)
