"""Long frames in pieces, short ones between them, blocks that go ahead: whatever the chunks, what was sent comes."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_framing import chunked

from alpo.wire import lanes
from alpo.wire.framing import HEADER_BYTES, FrameError, FrameReader, WireError, frame
from alpo.wire.lanes import BLOCKS_MAX, PIECE_BYTES_MAX, LaneReader, Long, block_frame, forget_frame, with_blocks

BYTES_MAX = 1 << 20
cuts = st.lists(st.integers(0, 1 << 30), max_size=30)
#: Bodies as messages have them: msgpack arrays.
short_bodies = st.binary(max_size=50).map(lambda rest: b"\x92" + rest)
long_sizes = st.integers(0, 5 * PIECE_BYTES_MAX)


class Other:
    """The receiving end."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.told: list[bytes] = []
        self.have: list[int] = []
        self.reader = LaneReader(bytes_max)
        self.reader.open(self.told.append, self.have.append)

    def feed(self, *frames: bytes) -> list[bytes]:
        return [bytes(body) for data in frames for body in self.reader.feed(data)]


def pieces(*frames: bytes | tuple[bytes, ...]) -> list[bytes]:
    """Frames of the long lane, whole or in parts, as they travel."""
    long = Long()
    for each in frames:
        long.add(*([each] if isinstance(each, bytes) else each), ordered=False)
    found = []
    while long.bytes:
        found.append(b"".join(long.piece()))
    return found


def marked(kind: int, rest: bytes = b"") -> bytes:
    return frame(bytes((lanes.MARK, kind)), rest)


@given(st.lists(st.one_of(short_bodies, long_sizes), max_size=8), cuts, st.randoms(use_true_random=False))
def test_all_arrives_in_its_lane_s_order(sent: list[bytes | int], cuts: list[int], rng: object) -> None:
    short = [body for body in sent if isinstance(body, bytes)]
    long = [b"\x93" + bytes([n]) * size for n, size in enumerate(sent) if isinstance(size, int)]
    waiting, left = pieces(*(tuple(chunked(frame(body), cuts)) for body in long)), list(map(frame, short))
    assert all(len(piece) <= PIECE_BYTES_MAX for piece in waiting)
    stream: list[bytes] = []
    while waiting or left:
        stream.append((left if left and (not waiting or rng.random() < 0.5) else waiting).pop(0))  # type: ignore[attr-defined]
    got = Other().feed(*chunked(b"".join(stream), cuts))
    assert [body for body in got if body[:1] == b"\x92"] == short
    assert [body for body in got if body[:1] == b"\x93"] == long


def test_a_short_frame_waits_for_one_piece_at_most() -> None:
    first, *rest = pieces(frame(b"\x93" + bytes(10 * PIECE_BYTES_MAX)))
    got = Other().feed(first, frame(b"\x92short"), *rest)
    assert got[0] == b"\x92short" and len(got) == 2


def test_a_reader_that_has_not_opened_lanes_gives_marks_on_and_no_message_begins_with_one() -> None:
    (piece,) = pieces(frame(b"\x93x"))
    reader = LaneReader(BYTES_MAX)
    assert list(map(bytes, reader.feed(piece))) == list(map(bytes, FrameReader(BYTES_MAX).feed(piece)))


@given(st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=4), st.binary(max_size=100))
def test_a_body_without_its_blocks_is_whole_again(blocks: list[bytes], between: bytes) -> None:
    whole = frame(b"\x93" + between + between.join(blocks) + between)
    numbered = list(enumerate(blocks, 7))
    other = Other()
    assert other.feed(*pieces(*(block_frame(number, data) for number, data in numbered))) == []
    here = Other()
    here.feed(*other.told)
    assert here.have == [number for number, _ in numbered]
    for _ in range(2):  # a block stays until it is forgotten
        assert other.feed(with_blocks(whole, numbered)) == [whole[HEADER_BYTES:]]
    other.feed(*(forget_frame(number) for number, _ in numbered))
    with pytest.raises(WireError, match="not here"):
        other.feed(with_blocks(whole, numbered))


def test_blocks_outlive_the_buffer_that_they_came_in() -> None:
    other = Other()
    received = bytearray(b"".join(pieces(block_frame(7, b"block"))))
    assert other.reader.feed(memoryview(received)) == []
    received[:] = bytes(len(received))
    whole = frame(b"\x93a block")
    assert other.feed(with_blocks(whole, [(7, b"block")])) == [whole[HEADER_BYTES:]]


def test_what_is_abandoned_leaves_no_trace() -> None:
    long = Long()
    assert long.abandon() == b""
    long.add(frame(b"\x93" + bytes(3 * PIECE_BYTES_MAX)), ordered=True)
    assert long.ordered == 1
    begun = b"".join(long.piece())
    end = long.abandon()
    assert end and not long.bytes and not long.ordered and long.abandon() == b""
    assert Other().feed(begun, end, *pieces(frame(b"\x93next"))) == [b"\x93next"]


@pytest.mark.parametrize("before", [0, 1, 3, 4])
def test_blocks_are_forgotten_though_what_waits_is_abandoned(before: int) -> None:
    """Else the other side keeps them for as long as the connection lasts, and takes no more one day."""
    long, other = Long(), Other()
    for _ in range(3 * BLOCKS_MAX):
        long.add(*block_frame(7, b"x" * 30_000), ordered=False)
        while long.bytes:
            other.feed(b"".join(long.piece()))
        long.add(frame(bytes(3 * lanes._PIECE_DATA_BYTES - HEADER_BYTES - 5)), ordered=True)  # a piece ends in the next
        long.add(forget_frame(7), ordered=False)
        long.add(frame(b"\x93" + bytes(2 * PIECE_BYTES_MAX)), ordered=True)
        for _ in range(before):
            other.feed(b"".join(long.piece()))
        end = long.abandon()
        assert not long.ordered and long.bytes <= len(forget_frame(7))
        if end:
            other.feed(end)
        while long.bytes:
            other.feed(b"".join(long.piece()))
        assert not other.reader._blocks


def test_entries_count_until_the_last_of_them_has_left() -> None:
    long = Long()
    long.add(frame(bytes(2 * PIECE_BYTES_MAX)), ordered=True)
    while long.bytes:
        assert long.ordered == 1
        long.piece()
    assert long.ordered == 0


def test_what_is_kept_is_bounded() -> None:
    other = Other(1 << 16)
    with pytest.raises(FrameError, match="more blocks"):
        other.feed(*pieces(*(block_frame(n, bytes(30_000)) for n in range(3))))
    other = Other()
    with pytest.raises(FrameError, match="more blocks"):
        other.feed(*pieces(*(block_frame(n, b"x") for n in range(BLOCKS_MAX + 1))))
    other = Other(1 << 16)
    with pytest.raises(FrameError, match="65537 bytes, where 65536 is the most"):
        other.feed(*pieces(frame(bytes(65537))))
    other = Other(1000)
    other.feed(*pieces(block_frame(1, bytes(500))))
    many = bytes((3,)) + b"".join((1).to_bytes(4, "little") + bytes(4) for _ in range(3))
    with pytest.raises(FrameError, match="longer than 1000"):
        other.feed(marked(lanes.WITH, many))


@pytest.mark.parametrize("rest", [b"", b"\x01", b"\x01\x00\x00\x00\x00", b"\xff" + bytes(16)])
@pytest.mark.parametrize("kind", [lanes.HAVE, lanes.WITH, lanes.FORGET, lanes.ABANDON, 6, 255])
def test_marks_without_sense_end_the_connection(kind: int, rest: bytes) -> None:
    if (kind, rest) in ((lanes.ABANDON, b""), *((kind, bytes((1, 0, 0, 0))) for kind in (lanes.HAVE, lanes.FORGET))):
        return
    with pytest.raises((WireError, FrameError)):
        Other().feed(marked(kind, rest))


@given(st.binary(max_size=200))
def test_whatever_comes_raises_nothing_else(data: bytes) -> None:
    with suppress(WireError, FrameError):
        Other().feed(frame(bytes((lanes.MARK,)) + data))
