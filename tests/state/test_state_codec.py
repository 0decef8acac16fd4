"""Payloads of a state: golden bytes that every later release must read, and bad bytes that must harm nobody."""

from __future__ import annotations

import resource
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpo.rsm.payloads import Begin, End, Part
from alpo.state import codec
from alpo.state.codec import (
    BLOB_BYTES_MAX,
    HEAD,
    INT_MAX,
    INT_MIN,
    PAYLOADS,
    Command,
    Found,
    Limits,
    More,
    decode,
    valid_name,
)

ID, CHAIN, DIGEST = b"0123456789abcdef", b"c" * 16, b"d" * 16
format_of = PAYLOADS.format_of
LIMIT = 1 << 20

#: (payload in hex, what it says). Format 1 is frozen: none of these may ever change.
GOLDEN = [
    ("c1410193 00 c410 30313233343536373839616263646566 93 ce40000000 ce000f4240 ce00010000", Found(ID, Limits())),
    ("c1410194 01 00 c401 90 c409 91 94 00 a161 c40162 00", Command(0, [], [(0, "a", b"b", 0)])),
    ("c1410194 01 00 c406 91 93 00 a161 07 c405 91 92 01 a161", Command(0, [(0, "a", 7)], [(1, "a")])),
    ("c1410194 01 00 c406 91 93 01 a161 07 c408 91 93 02 a161 cd2710", Command(0, [(1, "a", 7)], [(2, "a", 10_000)])),
    ("c1410194 01 00 c401 90 c406 91 93 03 a161 ff", Command(0, [], [(3, "a", -1)])),
    ("c1410194 01 01 c401 90 c409 91 94 00 a161 92 00 02 00", Command(1, [], [(0, "a", (0, 2), 0)])),
    ("c1410192 02 c410 30313233343536373839616263646566", Begin(ID)),
    ("c1410194 03 c410 30313233343536373839616263646566 05 c403 78797a", Part(ID, 5, b"xyz")),
    (
        "c1410195 04 c410 30313233343536373839616263646566 02 c410 63636363636363636363636363636363"
        "c410 64646464646464646464646464646464", End(ID, 2, CHAIN, DIGEST),
    ),
    ("c1410193 05 00 c402 6162", More(0, b"ab")),
]


def made(message: codec.Message) -> bytes:
    """The payload of a message, as this release writes it."""
    if isinstance(message, Found):
        return codec.found(*message)
    if isinstance(message, Begin):
        return codec.begin(*message)
    if isinstance(message, Part):
        return codec.part(*message)
    if isinstance(message, End):
        return codec.end(*message)
    assert isinstance(message, Command)
    (payload,) = codec.command(message.guards, message.ops, LIMIT)
    return payload


@pytest.mark.parametrize(("hex", "message"), GOLDEN)
def test_golden_payloads_are_read(hex: str, message: codec.Message) -> None:
    assert decode(bytes.fromhex(hex)) == message


@pytest.mark.parametrize(("hex", "message"), [g for g in GOLDEN if g[0][9:11] != "05" and g[0][9:14] != "01 01"])
def test_golden_payloads_are_what_is_written(hex: str, message: codec.Message) -> None:
    assert made(message).hex() == hex.replace(" ", "")


NAMES = st.text(st.characters(blacklist_categories=("Cc", "Cs")), min_size=1, max_size=20)
LSNS = st.integers(0, INT_MAX)
GUARDS = st.lists(st.tuples(st.integers(0, 1), NAMES, LSNS), max_size=20)
OPS = st.lists(
    st.one_of(
        st.tuples(st.just(0), NAMES, st.binary(max_size=200), LSNS), st.tuples(st.just(1), NAMES),
        st.tuples(st.just(2), NAMES, LSNS), st.tuples(st.just(3), NAMES, st.integers(INT_MIN, INT_MAX)),
    ), max_size=20,
)


@given(GUARDS, OPS)
def test_commands_come_back(guards: list[codec.Guard], ops: list[codec.Op]) -> None:
    (payload,) = codec.command(guards, ops, LIMIT)
    assert decode(payload) == Command(0, guards, ops)


@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=30), st.integers(4096, 8192))
def test_a_large_command_is_cut_and_comes_back(values: list[bytes], limit: int) -> None:
    ops: list[codec.Op] = [(0, f"name {at}", value, at) for at, value in enumerate(values)]
    payloads = codec.command([(0, "g", 1)], ops, limit)
    first = decode(payloads[0])
    assert isinstance(first, Command)
    assert len(payloads) == 1 + first.more and all(len(p) <= limit for p in payloads)
    pieces = [decode(p) for p in payloads[1:]]
    blob = b"".join(p.data for p in pieces if isinstance(p, More))
    back = [op if type(op[2]) is bytes else (op[0], op[1], blob[op[2][0] : sum(op[2])], op[3]) for op in first.ops]
    assert back == ops


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_none(data: bytes) -> None:
    for payload in (data, HEAD + data, codec.MAGIC + data):
        format_of(payload)
        decode(payload)


@given(st.sampled_from([bytes.fromhex(hex) for hex, _ in GOLDEN]), st.data())
def test_damaged_messages_never_raise(payload: bytes, data: st.DataObject) -> None:
    assert all(decode(payload[:size]) is None for size in range(3, len(payload)))
    damaged = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(3, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    decode(bytes(damaged))


def packed(*fields: Any) -> bytes:
    return HEAD + bytes(msgpack.packb(fields))


def listed(*items: Any) -> bytes:
    return bytes(msgpack.packb(items))


WRONG = {
    "nothing": HEAD, "no array": packed()[:3] + b"\x01", "empty array": packed(), "unknown kind": packed(6, b""),
    "kind is a bool": packed(True, b""), "kind is a float": packed(1.0, 0, listed(), listed()),
    "kind is text": packed("1", 0), "more behind it": packed(2, ID) + b"\x00", "a map": HEAD + msgpack.packb({1: 2}),
    "an extension": packed(2, msgpack.ExtType(1, ID)), "short id": packed(2, ID[1:]), "long id": packed(2, ID + b"x"),
    "found without limits": packed(0, ID), "limits of two": packed(0, ID, (1, 2)),
    "negative limit": packed(0, ID, (1, 2, -1)), "guards as an array": packed(1, 0, [], listed((1, "a"))),
    "guard of two": packed(1, 0, listed((0, "a")), listed((1, "a"))),
    "guard of a third kind": packed(1, 0, listed((2, "a", 1)), listed((1, "a"))),
    "guard with a bool": packed(1, 0, listed((True, "a", 1)), listed((1, "a"))),
    "guard below 0": packed(1, 0, listed((0, "a", -1)), listed((1, "a"))),
    "guard above 63 bits": packed(1, 0, listed((0, "a", 1 << 63)), listed((1, "a"))),
    "guard without a name": packed(1, 0, listed((0, "", 1)), listed((1, "a"))),
    "name as bytes": packed(1, 0, listed(), listed((1, b"a"))),
    "name with a tab": packed(1, 0, listed(), listed((1, "a\t"))),
    "name too long": packed(1, 0, listed(), listed((1, "a" * 513))),
    "a name of three": packed(1, 0, listed(), listed((1, "a\0b\0c"))),
    "row without owner": packed(1, 0, listed(), listed((1, "\0b"))),
    "row without name": packed(1, 0, listed(), listed((1, "a\0"))),
    "no operation": packed(1, 0, listed(), listed(())), "unknown operation": packed(1, 0, listed(), listed((4, "a"))),
    "a value of text": packed(1, 0, listed(), listed((0, "a", "b", 0))),
    "no lease": packed(1, 0, listed(), listed((0, "a", b"b"))),
    "negative lease": packed(1, 0, listed(), listed((0, "a", b"b", -1))),
    "a value elsewhere, and no more": packed(1, 0, listed(), listed((0, "a", (0, 1), 0))),
    "a sum above 63 bits": packed(1, 0, listed(), listed((3, "a", 1 << 63))),
    "negative more": packed(1, -1, listed(), listed((1, "a"))),
    "too much more": packed(1, 65_537, listed(), listed((1, "a"))),
    "surrogates": HEAD + b"\x94\x01\x00\xc4\x01\x90\xc4\x07\x91\x92\x01\xa3\xed\xa0\x80",
}


@pytest.mark.parametrize("payload", WRONG.values(), ids=WRONG.keys())
def test_what_is_no_message(payload: bytes) -> None:
    assert decode(payload) is None


@pytest.mark.parametrize("level", [b"\xdd\x00\x00\xff\xff", b"\xdc\xff\xff", b"\x91", b"\xdf\x00\x00\xff\xff", b"\x81"])
def test_deep_nesting_takes_no_memory(level: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = level * (1_000_000 // len(level))
    for payload in (HEAD + data, packed(1, 0, data, data), packed(1, 0, listed(), b"\x91" + data)):
        assert decode(payload) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "more than 64 MiB"


def test_lengths_that_lie_take_no_memory() -> None:
    for head in (b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"):
        assert decode(HEAD + head) is None and decode(packed(1, 0, head, head)) is None


def test_the_formats() -> None:
    assert format_of(b"") is None and format_of(b"\xc1") is None and format_of(b'{"a":1}') is None
    assert format_of(b"\xc1\x41") == 0 and format_of(HEAD) == 1 and format_of(b"\xc1\x41\x02rest") == 2


@pytest.mark.parametrize(("name", "valid"), [
    ("a", True), ("a/b c.d", True), ("ä" * 256, True), ("ä" * 257, False), ("a" * 512, True), ("a" * 513, False),
    ("", False), ("a\nb", False), ("a\x7f", False), ("a\x85", False), ("a\0b", True), ("a\0", False), ("\0a", False),
    ("a\0b\0c", False), ("a" * 512 + "\0" + "b" * 512, True), ("a\0" + "b" * 513, False), ("\ud800", False),
    ("a" * 200 + "\ud800", False), (b"a", False), (None, False),
])
def test_names(name: object, valid: bool) -> None:
    assert valid_name(name) == valid


def test_the_limit_of_blobs_is_above_a_batch() -> None:
    assert BLOB_BYTES_MAX >= 8 << 20
