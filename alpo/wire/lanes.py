"""Long frames beside short ones on one connection between servers.

A body that begins with `MARK`, which no message does, belongs to this module; its second byte is the kind:

* PIECE: some bytes of the *long lane*, a stream of frames of its own. So a long frame travels in pieces, and short
  frames leave between them.
* BLOCK, in the long lane: bytes to keep under a number (u32, little endian). HAVE answers it.
* WITH: a body without the bytes of some blocks: their number (u8), for each its number (u32) and the offset in the body
  without blocks at which it belongs (u32), then that body.
* FORGET: a block that nobody will refer to any more.
* ABANDON: what has come of the long lane's unfinished frame is to be dropped.

Laws:

* A receiver keeps at most one unfinished frame of each lane, and blocks of `BLOCKS_MAX` in number and of the limit of
  one frame in bytes.
* Bodies come out in the order in which they are complete; frames of one lane stay in their order.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from .framing import HEADER_BYTES, FrameError, FrameReader, WireError, frame, frame_header, piece_head

#: The byte that msgpack never uses.
MARK = 0xC1
PIECE, BLOCK, HAVE, WITH, FORGET, ABANDON = range(6)
#: Most bytes of one piece, with its header. A frame that is longer is long.
PIECE_BYTES_MAX = 48 << 10
#: Blocks that may be kept at a time.
BLOCKS_MAX = 16

_HEADS = [bytes((MARK, kind)) for kind in range(6)]
_HEAD_BYTES = 2
_NUMBER = struct.Struct("<I")
_PLACE = struct.Struct("<II")
_PIECE_DATA_BYTES = PIECE_BYTES_MAX - HEADER_BYTES - _HEAD_BYTES


class _Frame:
    """A frame that waits: its beginning, and the buffers that are left of it."""

    __slots__ = ("first", "left", "ordered")

    def __init__(self, parts: Sequence[bytes], ordered: bool) -> None:
        self.first = parts[0]
        self.left: deque[bytes | memoryview] = deque(parts)
        self.ordered = ordered


class Long:
    """Frames that wait to leave in pieces; those of entries (`ordered`) keep later entries behind them."""

    def __init__(self) -> None:
        self._frames: deque[_Frame] = deque()
        #: Bytes that wait, without the heads of pieces.
        self.bytes = 0
        #: Frames of entries that wait, or have begun to leave.
        self.ordered = 0
        self._begun = False

    def add(self, *parts: bytes, ordered: bool) -> None:
        """Add a frame, which is the ``parts`` joined."""
        self._frames.append(_Frame(parts, ordered))
        self.bytes += sum(map(len, parts))
        self.ordered += ordered

    def piece(self) -> list[bytes | memoryview]:
        """The next piece as a frame, in several buffers: nothing is copied. Call only while `bytes` is not 0."""
        parts: list[bytes | memoryview] = [b""]
        room = _PIECE_DATA_BYTES
        while self._frames and room:
            frame = self._frames[0]
            room = _move(frame.left, parts, room)
            self._begun = bool(frame.left)
            if not self._begun:
                self._frames.popleft()
                self.ordered -= frame.ordered
        length = _PIECE_DATA_BYTES - room
        self.bytes -= length
        parts[0] = piece_head(length)
        return parts

    def abandon(self) -> bytes:
        """Drop what waits, but for the frames that have blocks forgotten: else the other side keeps those. Returns the
        frame to send now if a part of one has left."""
        begun, self._begun = self._begun, False
        frames, self._frames = self._frames, deque()
        self.bytes = self.ordered = 0
        for waiting in frames:
            whole = waiting.first  # all of it, even if part of it has left
            if whole.startswith(_HEADS[FORGET], HEADER_BYTES):
                self.add(whole, ordered=False)
        return frame(_HEADS[ABANDON]) if begun else b""


def _move(left: deque[bytes | memoryview], parts: list[bytes | memoryview], room: int) -> int:
    """Move up to ``room`` bytes from the front of ``left`` to the end of ``parts``; returns the room that is left."""
    while left and room:
        part = left[0]
        if len(part) > room:
            view = memoryview(part)
            parts.append(view[:room])
            left[0] = view[room:]
            return 0
        parts.append(left.popleft())
        room -= len(part)
    return room


def block_frame(number: int, data: bytes) -> tuple[bytes, bytes]:
    """The frame, for the long lane, of a block, in two parts: the ``data`` is not copied."""
    head = _HEADS[BLOCK] + _NUMBER.pack(number)
    return frame_header(len(head) + len(data), (head, data)) + head, data


def forget_frame(number: int) -> bytes:
    """The frame that has the receiver forget a block."""
    return frame(_HEADS[FORGET], _NUMBER.pack(number))


def with_blocks(whole: bytes, blocks: Sequence[tuple[int, bytes]]) -> bytes:
    """The frame ``whole`` with references in place of the data of ``blocks``, which are in it in this order."""
    places: list[bytes] = []
    parts: list[bytes] = []
    begin, length = HEADER_BYTES, 0
    for number, data in blocks:
        at = whole.index(data, begin)
        parts.append(whole[begin:at])
        length += at - begin
        places.append(_PLACE.pack(number, length))
        begin = at + len(data)
    return frame(_HEADS[WITH], bytes((len(places),)), *places, *parts, whole[begin:])


class LaneReader:
    """Divides a connection's bytes into bodies, like `FrameReader`; after `open`, of both lanes."""

    def __init__(self, bytes_max: int) -> None:
        self._short, self._long = FrameReader(bytes_max), FrameReader(bytes_max)
        self._open = False
        self._blocks: dict[int, bytes] = {}
        self._tell: Callable[[bytes], None] = lambda data: None
        self._have: Callable[[int], None] = lambda number: None

    @property
    def bytes_max(self) -> int:
        """Limit of one body."""
        return self._short.bytes_max

    @bytes_max.setter
    def bytes_max(self, bytes_max: int) -> None:
        self._short.bytes_max = self._long.bytes_max = bytes_max

    @property
    def pending_bytes(self) -> int:
        """Number of bytes held of unfinished frames."""
        return self._short.pending_bytes + self._long.pending_bytes

    def open(self, tell: Callable[[bytes], None], have: Callable[[int], None]) -> None:
        """Take pieces and blocks. ``tell`` sends a frame to the other side; ``have`` hears the number of a block
        that it holds now."""
        self._open, self._tell, self._have = True, tell, have

    def feed(self, data: bytes | memoryview) -> list[bytes | memoryview]:
        """Take received bytes; returns the bodies that are complete, which may point into ``data``. Raises
        `FrameError`, and `WireError` for a mark without sense."""
        bodies = self._short.feed(data)
        if self._open:
            for body in bodies:
                if body and body[0] == MARK:
                    return list(self._sorted(bodies))
        return bodies

    def _sorted(self, bodies: list[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for body in bodies:
            if not body or body[0] != MARK:
                yield body
            elif len(body) >= _HEAD_BYTES and body[1] == PIECE:
                yield from self._sorted_long(self._long.feed(memoryview(body)[_HEAD_BYTES:]))
            else:
                yield from self._marked(memoryview(body))

    def _sorted_long(self, bodies: list[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for body in bodies:
            if not body or body[0] != MARK:
                yield body
            else:
                yield from self._marked(memoryview(body))

    def _marked(self, body: memoryview) -> Iterator[bytes | memoryview]:
        kind = body[1] if len(body) >= _HEAD_BYTES else -1
        if kind == ABANDON and len(body) == _HEAD_BYTES:
            self._long = FrameReader(self.bytes_max)
            return
        try:
            if kind == WITH:
                yield self._whole(body)
                return
            (number,) = _NUMBER.unpack_from(body, _HEAD_BYTES)
            rest = body[_HEAD_BYTES + _NUMBER.size :]
            if kind == BLOCK:
                self._keep(number, rest)
            elif kind == HAVE and not rest:
                self._have(number)
            elif kind == FORGET and not rest:
                self._blocks.pop(number, None)
            else:
                raise WireError(f"a mark of kind {kind} that nobody sends")
        except struct.error as error:
            raise WireError(f"a mark of kind {kind} that ends early") from error

    def _keep(self, number: int, data: memoryview) -> None:
        kept_bytes = sum(map(len, self._blocks.values()))
        if len(self._blocks) >= BLOCKS_MAX or kept_bytes + len(data) > self.bytes_max:
            raise FrameError(f"more blocks than {BLOCKS_MAX}, or than {self.bytes_max} bytes of them")
        self._blocks[number] = bytes(data)  # what was received may be overwritten
        self._tell(frame(_HEADS[HAVE], _NUMBER.pack(number)))

    def _whole(self, body: memoryview) -> bytes:
        """The body that a WITH stands for."""
        (count,) = struct.unpack_from("B", body, _HEAD_BYTES)
        first = _HEAD_BYTES + 1
        rest = body[first + count * _PLACE.size :]
        parts: list[bytes | memoryview] = []
        begin = 0
        for each in range(count):
            number, at = _PLACE.unpack_from(body, first + each * _PLACE.size)
            block = self._blocks.get(number)
            if block is None or not begin <= at <= len(rest):
                raise WireError(f"a message with block {number}, which is not here or belongs nowhere")
            parts += rest[begin:at], block
            begin = at
        parts.append(rest[begin:])
        if count > BLOCKS_MAX or sum(map(len, parts)) > self.bytes_max:
            raise FrameError(f"a message of blocks, longer than {self.bytes_max} bytes")
        return b"".join(parts)
