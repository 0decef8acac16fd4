"""Whatever arrives is a message or a named error, nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]
from frame_samples import frames
from hypothesis import given, settings
from hypothesis import strategies as st

from alpo.wire import client_codec, codec
from alpo.wire.framing import FrameError, FrameReader, frame
from alpo.wire.requests import PageColumns

PAGE = PageColumns((8,), (3,), (1_001,), ("client",), (1,), (5,), (1,), (b"payload",), (0,))
DECODERS: tuple[Callable[[bytes], Any], ...] = (
    codec.decode_hello, codec.decode_client, codec.decode_server, codec.decode_peer,
)


def only_named_errors(body: bytes) -> int:
    """Number of decoders that take the body; fails on any error but `WireError`."""
    taken = 0
    for decode in DECODERS:
        try:
            decode(body)
            taken += 1
        except codec.WireError:
            pass
    return taken


scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
extensions = st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=8)) | st.just(msgpack.Timestamp(1))
anything = st.recursive(
    scalars | extensions,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3),
    max_leaves=8,
)
numbers = st.sampled_from([
    shape.number for shape in (*client_codec.SHAPES, *codec.SHAPES, *codec.HOST_SHAPES)
])


@settings(max_examples=150)
@given(anything)
def test_any_msgpack_is_a_message_or_a_wire_error(value: Any) -> None:
    only_named_errors(msgpack.packb(value))


@settings(max_examples=150)
@given(numbers, st.lists(anything | anything.map(msgpack.packb), max_size=14))
def test_any_fields_of_any_type_are_a_message_or_a_wire_error(number: int, fields: list[Any]) -> None:
    only_named_errors(msgpack.packb([number, *fields]))


@settings(max_examples=150)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_wire_error(body: bytes) -> None:
    only_named_errors(body)


NASTY: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2**63 - 1, 2**63, 2**64 - 1, 1.5, "", "x" * 200, b"", b"x" * 16, [], [1], {}, {"a": 1},
    {"a": [[]]}, msgpack.packb([]), msgpack.packb([1]), msgpack.packb([[1] * 12]), msgpack.packb(["a", b"b", [2, b""]]),
    b"\xdd\xff\xff\xff\xff", b"\xdc", msgpack.ExtType(4, b"x"), [0, b""], [b"", 0], [1, 2, 3, 4],
)


#: msgpack: nil, false, true, array32, fixarray 15, -1, fixext1, fixstr 1.
MARKERS = (b"\xc0", b"\xc2", b"\xc3", b"\xdd", b"\x9f", b"\xff", b"\xd4", b"\xa1")


def mutate_bytes(body: bytes, rng: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0:
                changed[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                changed[at:at] = rng.randbytes(rng.randint(1, 5))
            case 2:
                del changed[at : at + rng.randint(1, 5)]
            case _:
                changed[at : at + 1] = rng.choice(MARKERS)
    return bytes(changed)


def mutate_fields(body: bytes, rng: random.Random) -> bytes:
    fields = msgpack.unpackb(body)
    at = rng.randrange(len(fields))
    match rng.randrange(5):
        case 0:
            del fields[at]
        case 1:
            fields.insert(at, rng.choice(NASTY))
        case 2 if isinstance(fields[-1], bytes | list) and fields[-1]:
            inner = mutate_bytes(fields[-1], rng) if isinstance(fields[-1], bytes) else rng.choice(NASTY)
            fields[-1] = inner
        case _:
            fields[at] = rng.choice(NASTY)
    packed: bytes = msgpack.packb(fields)
    return packed


def test_twenty_thousand_mutated_frames_give_only_named_errors() -> None:
    seed = random.SystemRandom().getrandbits(64)
    rng = random.Random(seed)
    samples = frames()
    bodies = [framed[8:] for framed in samples]
    refused = {"frame": 0, "body": 0}
    try:
        for number in range(20_000):
            if number % 4 == 0:
                try:
                    for body in FrameReader(1 << 16).feed(mutate_bytes(rng.choice(samples), rng)):
                        only_named_errors(bytes(body))
                except FrameError:
                    refused["frame"] += 1
            else:
                mutate = mutate_bytes if number % 4 == 1 else mutate_fields
                (body,) = FrameReader(1 << 16).feed(frame(mutate(rng.choice(bodies), rng)))
                refused["body"] += not only_named_errors(bytes(body))
    except Exception as error:
        raise AssertionError(f"seed {seed}, frame {number}: {error!r}") from error
    assert refused["frame"] > 1_000 and refused["body"] > 5_000, refused


def test_every_sample_is_taken() -> None:
    assert all(only_named_errors(framed[8:]) for framed in frames())
    known = {shape.number for shape in (*client_codec.SHAPES, *codec.SHAPES, *codec.HOST_SHAPES)}
    assert {msgpack.unpackb(framed[8:])[0] for framed in frames()} == known
