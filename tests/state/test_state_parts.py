"""Parts of snapshots: golden bytes, and a frozen machine that goes on as the other whatever comes."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshot_rig import plain

from alpo.rsm.machine import Outcome
from alpo.rsm.parts import PART_BYTES_MAX, part_bytes_max
from alpo.rsm.payloads import chained
from alpo.state import codec
from alpo.state.codec import By, Do, Limits
from alpo.state.errors import Busy, Diverged
from alpo.state.machine import Frozen, Machine, digest_bytes
from alpo.state.parts import Decoder, Encoder, Thawing
from alpo.wire.framing import pack

SID, STATE = bytes(range(16)), b"S" * 16
MIB = 1 << 20


def thawed(frozen: Frozen, bytes_max: int = PART_BYTES_MAX) -> Machine:
    """The machine of a frozen one's parts."""
    encoder = Encoder(frozen, bytes_max)
    thawing = Thawing()
    for part in encoder:
        assert len(part) <= bytes_max
        thawing.feed(part)
    return thawing.machine(encoder.parts, encoder.chain, encoder.digest)


def put(name: str, value: bytes, lease_ms: int = 0) -> bytes:
    return codec.command([], [(Do.PUT, name, value, lease_ms)], 64 * MIB)[0]


def machine_of(*payloads: bytes) -> Machine:
    machine = Machine()
    for lsn, payload in enumerate(payloads, 1):
        machine.apply(lsn, 1_700_000_000_000 + lsn, payload)
    return machine


#: Parts of a state with two variables, one of them with a lease, as of the `Begin` at LSN 4.
GOLDEN = (
    "9ac4105353535353535353535353535353535393ce40000000ce000f4240ce0001000004cf0000018bcfe5680400006c98c41000010203040506"
    "0708090a0b0c0d0e0f0400c400cf0000018bcfe56804c4105586d323ed8b1770e4b68883b4893a256ccf0000018bcfe568049090",
    "dd0000000298a1610202cf0000018bcfe56802000300c4036f6e6598a4622fc3bc0303cf0000018bcfe56803cd13880000c400",
)
GOLDEN_CHAIN, GOLDEN_DIGEST = "41f1d66c17a568568f38e0852bc4a4db", "5586d323ed8b1770e4b68883b4893a25"


def test_golden_bytes() -> None:
    """Parts that a release wrote are read for ever: these texts never change."""
    machine = machine_of(codec.found(STATE, Limits()), put("a", b"one"), put("b/ü", b"", 5000), codec.begin(SID))
    encoder = Encoder(machine.freeze(), PART_BYTES_MAX)
    assert tuple(part.hex() for part in encoder) == GOLDEN
    assert (encoder.chain.hex(), encoder.digest.hex()) == (GOLDEN_CHAIN, GOLDEN_DIGEST)
    thawing = Thawing()
    for part in GOLDEN:
        thawing.feed(bytes.fromhex(part))
    again = thawing.machine(2, bytes.fromhex(GOLDEN_CHAIN), bytes.fromhex(GOLDEN_DIGEST))
    assert plain(again) == plain(machine)
    assert again.upload is not None and digest_bytes(again.upload.digest).hex() == GOLDEN_DIGEST


# -- a thawed machine goes on as the other ------------------------------------------------------------------

_names = st.sampled_from(["a", "b", "c", "b\0row", "b\0wör"])
_leases = st.sampled_from([0, 0, 1, 5000, 40_000])
_lsns = st.integers(0, 12)
_values = st.sampled_from([b"", b"7", b"x" * 70, b"y" * 3000])
_ops = st.one_of(
    st.tuples(st.just(int(Do.PUT)), _names, _values, _leases), st.tuples(st.just(int(Do.EXPUNGE)), _names),
    st.tuples(st.just(int(Do.KEEP)), _names, _leases), st.tuples(st.just(int(Do.ADD)), _names, st.integers(-9, 9)),
)
_guards = st.lists(st.tuples(st.sampled_from([int(By.VERSION), int(By.CREATED)]), _names, _lsns), max_size=2)
_sids = st.sampled_from([SID, b"T" * 16])
_payloads = st.one_of(
    st.tuples(st.just([]) | _guards, st.lists(_ops, min_size=1, max_size=3)).map(
        lambda do: codec.command(*do, payload_bytes_max=2048)  # long ones have their values in further payloads
    ),
    st.sampled_from([
        [b"foreign"], [b"\xc1\x41\x01\x00"], [codec.found(STATE, Limits(5000, 3, 5))],
        [codec.found(b"U" * 16, Limits())],
    ]),
    _sids.map(lambda sid: [codec.begin(sid)]),
    st.tuples(_sids, st.integers(0, 2)).map(lambda part: [codec.part(*part, b"part")]),
    st.tuples(_sids, st.integers(0, 2)).map(lambda end: [codec.end(*end, chained(b"", b"part"), bytes(16))]),
)
_steps = st.lists(st.tuples(_payloads, st.sampled_from([0, 1, 4999, 30_000])), max_size=25)


def histories(steps: list[tuple[list[bytes], int]]) -> list[tuple[int, bytes]]:
    """(time, payload) of each LSN: founded first, as every state that is written down is."""
    time_ms, rows = 1_700_000_000_000, [(1_700_000_000_000, codec.found(STATE, Limits(5000, 4, 100)))]
    for payloads, later_ms in steps:
        time_ms += later_ms
        rows += [(time_ms, payload) for payload in payloads]
    return rows


@given(_steps, st.data())
def test_a_thawed_machine_goes_on_as_the_other(steps: list[tuple[list[bytes], int]], data: st.DataObject) -> None:
    rows = histories(steps)
    cut = data.draw(st.integers(1, len(rows)))
    machine = Machine()
    other: Machine | None = None
    for lsn, (time_ms, payload) in enumerate(rows, 1):
        told = machine.apply(lsn, time_ms, payload)
        if other is not None:
            assert other.apply(lsn, time_ms, payload) == told
            assert plain(other) == plain(machine)
        elif lsn >= cut and not machine.waits:
            other = thawed(machine.freeze(), data.draw(st.sampled_from([600, 1500, PART_BYTES_MAX])))
            assert plain(other) == plain(machine)


def test_a_command_that_waits_for_its_values_is_told() -> None:
    """`freeze` leaves it out, so nobody may freeze then; the next payload of another kind ends it."""
    payloads = codec.command([], [(Do.PUT, "a", b"z" * 5000, 0)], 2048)
    machine = machine_of(codec.found(STATE, Limits()), *payloads[:2])
    assert len(payloads) > 3 and machine.waits
    machine.apply(4, 0, codec.begin(SID))
    assert not machine.waits and machine.freeze().registers[5] == 1
    assert not machine_of(codec.found(STATE, Limits()), *payloads).waits


# -- sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bytes_max", [4096, 65_536, PART_BYTES_MAX])
def test_no_part_is_too_large(bytes_max: int) -> None:
    rng = random.Random(bytes_max)
    names = ["n" * 512, "ü" * 256, "o" * 512 + "\0" + "r" * 512, *(f"v{i}" for i in range(200))]
    payloads = [codec.found(STATE, Limits()), put("o" * 512, b"")]
    for i, name in enumerate(names):
        guards = [(int(By.VERSION), "o" * 512, 2)] if "\0" in name else []
        value = rng.randbytes(rng.choice([0, 1, 30, bytes_max - 100, bytes_max, 3 * bytes_max]))
        payloads += codec.command(guards, [(int(Do.PUT), name, value, i << 40)], 64 * MIB)
    machine = machine_of(*payloads)
    assert len(machine.cells) == 1 + len(names)
    again = thawed(machine.freeze(), bytes_max)
    assert plain(again) == plain(machine)


def test_a_part_fits_into_the_payload_of_any_cluster() -> None:
    for payload_bytes_max in (6000, 65_536, MIB, 256 * MIB):
        size = part_bytes_max(payload_bytes_max)
        payload = codec.part(SID, (1 << 31) - 1, bytes(size))
        assert len(payload) <= min(PART_BYTES_MAX, payload_bytes_max - 1024)
    with pytest.raises(Busy, match="too small"):
        part_bytes_max(5000)


# -- damage -------------------------------------------------------------------------------------------------


def parts_of_some() -> tuple[list[bytes], Encoder]:
    machine = machine_of(
        codec.found(STATE, Limits()), put("a", b"one"), put("long", b"L" * 9000), b"foreign", put("z", b"", 77)
    )
    encoder = Encoder(machine.freeze(), 4096)
    return list(encoder), encoder


def read(parts: list[bytes], encoder: Encoder) -> Machine:
    thawing = Thawing()
    for part in parts:
        thawing.feed(part)
    return thawing.machine(encoder.parts, encoder.chain, encoder.digest)


def test_damaged_parts_are_refused() -> None:
    parts, encoder = parts_of_some()
    right = plain(read(parts, encoder))
    assert len(parts) > 3
    rng = random.Random(1)
    for _ in range(2000):
        wrong = list(parts)
        at = rng.randrange(len(wrong))
        how = rng.randrange(4)
        if how == 0:
            del wrong[at]
        elif how == 1:
            wrong.insert(at, wrong[at])
        elif how == 2:
            wrong[at] = wrong[at][: rng.randrange(len(wrong[at]))]
        else:
            wrong[at] = bytes(each ^ (1 << rng.randrange(8)) * (i == 3) for i, each in enumerate(wrong[at]))
        with pytest.raises(ValueError):
            read(wrong, encoder)
    assert plain(read(parts, encoder)) == right


@given(st.binary(max_size=300), st.integers(0, 3), st.integers(0, 2000), st.binary(min_size=1, max_size=9))
def test_any_bytes_raise_nothing_else(whole: bytes, at: int, offset: int, piece: bytes) -> None:
    parts, _ = parts_of_some()
    for part in (whole, parts[at][:offset] + piece + parts[at][offset + len(piece) :]):
        decoder = Decoder()
        try:
            for each in (*parts[:at], part, *parts[at + 1 :]):
                decoder.feed(each)
            assert decoder.digest
        except ValueError:
            continue


@pytest.mark.parametrize("wrong", [
    [1], [["a", 2, 2, 5, 0, 3, 0]], [["a", 2, 2, 5, 0, 3, 0, b"on"], ["b", 3, 3, 5, 0, 1, 0, b"x"]],
    [["a", 2, 2, 5, 0, 2, 0, b"one"]], [["a", 2, 3, 5, 0, 3, 0, b"one"]], [["a", 2, 0, 5, 0, 3, 0, b"one"]],
    [["a", 9, 2, 5, 0, 3, 0, b"one"]], [["a", 2, 2, 5, 0, 3, 1, b"one"]], [["a", 2, 2, 5, 0, 3, 0, b""]],
    [["", 2, 2, 5, 0, 3, 0, b"one"]], [["a", 2, 2, -1, 0, 3, 0, b"one"]], [["a", 2, 2, True, 0, 3, 0, b"one"]],
    [["a", 2, 2, 1 << 62, 0, 3, 0, b"one"]], [["a", 2, 2, 5, 0, 3, 0, "one"]],
    [["a", 2, 2, 5, 0, 3, 0, b"one"], ["a", 2, 2, 5, 0, 3, 0, b"one"]],
    [["a", 2, 2, 5, 0, 3, 0, b"on"], ["b", 2, 2, 5, 0, 3, 2, b"e"]], [["a", 2, 2, 5, 0, 4, 0, b"on"]],
], ids=str)
def test_items_that_are_none(wrong: list[object]) -> None:
    encoder = Encoder(machine_of(codec.found(STATE, Limits()), put("a", b"one"), b"f").freeze(), PART_BYTES_MAX)
    registers, _ = encoder
    thawing = Thawing()
    thawing.feed(registers)
    with pytest.raises(ValueError):
        thawing.feed(pack(wrong))
        assert thawing.decoder.digest


@pytest.mark.parametrize("at, wrong", [
    (0, b"short"), (0, 5), (1, (1, 2)), (1, (1, 2, "x")), (2, -1), (2, "1"), (3, None), (7, (1,)), (7, 7),
    (7, (b"s" * 16, 1, 0, b"", 5, 77, 0, 0)), (7, (b"s" * 16, 1, 0, b"c", 5, bytes(16), 0, 0)), (8, (1, 2, 3)),
    (9, [[]]),
], ids=str)
def test_registers_that_are_none(at: int, wrong: object) -> None:
    registers = list(machine_of(codec.found(STATE, Limits()), codec.begin(SID)).freeze().registers)
    Decoder().feed(pack(registers))
    registers[at] = wrong
    for part in (pack(registers), pack(registers[:-1]), pack([*registers, 0])):
        with pytest.raises(ValueError):
            Decoder().feed(part)


def test_memory_follows_the_bytes_received() -> None:
    parts, _ = parts_of_some()
    greedy = [
        b"\xdd\xff\xff\xff\xff", b"\xdd\x00\x0f\xff\xff" + b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000,
        pack([["a", 2, 2, 5, 0, 1 << 62, 0, b"x"]]), b"\xdd\x00\x00\x00\x01\xdc\xff\xff",
        b"\xdd\x00\x00\x00\x01" + b"\x98" * 50_000,
    ]
    for part in greedy:
        decoder = Decoder()
        decoder.feed(parts[0])
        tracemalloc.start()
        with pytest.raises(ValueError):
            decoder.feed(part)
            assert decoder.digest
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2 * MIB, part[:20]


def test_a_bit_that_turned_in_memory_is_noticed() -> None:
    """The digest is that of the content: writing ends with an error, and the fold of everybody would refuse the end."""
    machine = machine_of(codec.found(STATE, Limits()), put("a", b"one"), codec.begin(SID))
    machine.cells["a"] = machine.cells["a"]._replace(value=b"oNe")
    encoder = Encoder(machine.freeze(), PART_BYTES_MAX)
    with pytest.raises(Diverged):
        for index, part in enumerate(encoder):
            machine.apply(machine.lsn + 1, 0, codec.part(SID, index, part))
    end = codec.end(SID, encoder.parts, encoder.chain, encoder.digest)
    assert machine.apply(machine.lsn + 1, 0, end).outcome is Outcome.DIVERGED
