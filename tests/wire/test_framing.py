from __future__ import annotations

import struct
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpo.wire.framing import HEADER_BYTES, Damaged, FrameReader, Oversized, frame, frame_bytes_max

BYTES_MAX = 300
bodies = st.lists(st.binary(max_size=BYTES_MAX), max_size=8)


def chunked(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


def test_a_frame_is_length_checksum_body() -> None:
    assert frame(b"ab", b"c") == struct.pack("<II", 3, zlib.crc32(b"abc")) + b"abc"
    assert frame() == frame(b"") == bytes(8)


@given(bodies, st.lists(st.integers(0, 10_000), max_size=30))
def test_any_chunking_gives_the_same_bodies(wanted: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, wanted))
    reader = FrameReader(BYTES_MAX)
    got: list[bytes] = []
    for chunk in chunked(stream, cuts):
        got += map(bytes, reader.feed(chunk))
        assert reader.pending_bytes <= BYTES_MAX + HEADER_BYTES
    assert got == wanted
    assert reader.pending_bytes == 0


@given(bodies)
def test_byte_by_byte(wanted: list[bytes]) -> None:
    reader = FrameReader(BYTES_MAX)
    stream = b"".join(map(frame, wanted))
    got = [bytes(body) for at in range(len(stream)) for body in reader.feed(stream[at : at + 1])]
    assert got == wanted


def test_bodies_outlive_later_feeds() -> None:
    reader = FrameReader(BYTES_MAX)
    one, two = frame(b"one"), frame(b"two")
    assert reader.feed(one[:5]) == []
    (first,) = reader.feed(one[5:])
    (second,) = reader.feed(two)
    assert (bytes(first), bytes(second)) == (b"one", b"two")


@pytest.mark.parametrize("pieces", [[8], [3, 5], [1] * 8])
def test_an_oversized_length_is_refused_from_the_header_alone(pieces: list[int]) -> None:
    reader = FrameReader(BYTES_MAX)
    header = struct.pack("<II", BYTES_MAX + 1, 0)
    *early, last = chunked(header, [sum(pieces[:n]) for n in range(1, len(pieces))])
    for piece in early:
        assert reader.feed(piece) == []
    with pytest.raises(Oversized, match="301 bytes, where 300"):
        reader.feed(last)
    assert reader.pending_bytes == 0


def test_an_oversized_frame_is_not_kept_when_it_comes_whole() -> None:
    reader = FrameReader(BYTES_MAX)
    with pytest.raises(Oversized):
        reader.feed(frame(bytes(BYTES_MAX + 1)))
    assert reader.pending_bytes == 0


def test_the_largest_frame_passes() -> None:
    body = bytes(BYTES_MAX)
    assert [bytes(b) for b in FrameReader(BYTES_MAX).feed(frame(body))] == [body]


@given(st.binary(min_size=1, max_size=BYTES_MAX), st.data(), st.lists(st.integers(0, 400), max_size=5))
def test_one_changed_bit_is_found(body: bytes, data: st.DataObject, cuts: list[int]) -> None:
    stream = bytearray(frame(body))
    bit = data.draw(st.integers(32, len(stream) * 8 - 1))
    stream[bit // 8] ^= 1 << bit % 8
    reader = FrameReader(BYTES_MAX)
    with pytest.raises(Damaged):
        for chunk in chunked(bytes(stream), cuts):
            assert reader.feed(chunk) == []


def test_after_an_error_the_stream_is_lost() -> None:
    reader = FrameReader(BYTES_MAX)
    with pytest.raises(Damaged):
        reader.feed(struct.pack("<II", 1, 0) + b"x")
    with pytest.raises(Damaged):
        reader.feed(frame(b"sound"))


def test_the_cap_can_change_between_frames() -> None:
    reader = FrameReader(4)
    assert len(reader.feed(frame(b"four"))) == 1
    reader.bytes_max = 8
    assert len(reader.feed(frame(b"eight by"))) == 1


def test_the_cap_after_the_hello_holds_the_largest_batch() -> None:
    assert frame_bytes_max(8 << 20) > 8 << 20
