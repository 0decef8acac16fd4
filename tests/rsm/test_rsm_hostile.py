"""Bytes of nobody's making: payloads that look like a machine's, and parts of snapshots that were damaged. The fold is
total, and so is the reading of parts; what is kept follows what came."""

from __future__ import annotations

import threading
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journal import MADE, Journal, plain

from alpo.errors import AlpoError
from alpo.rsm.errors import NewerVersion, WrongMachine
from alpo.rsm.hosted import PAYLOADS, WANTS_MAX, Hosted, Made, commands_head, found, newer_version
from alpo.rsm.items import Decoder, Encoder, Loading, Thawing, _frozen, kind_of
from alpo.rsm.loading import Uploads
from alpo.rsm.machine import Outcome, Result
from alpo.rsm.parts import PART_BYTES_MAX
from alpo.rsm.payloads import chained
from alpo.wire.framing import pack

SID = b"s" * 16
#: Payloads of every kind, as they should be.
RIGHT = [
    found(b"i" * 16, "journal", 1), commands_head(1) + b"one", commands_head(2) + b"two", newer_version(2),
    PAYLOADS.begin(SID), PAYLOADS.part(SID, 0, b"data"), PAYLOADS.end(SID, 1, b"c" * 16, b"d" * 16),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.binary(max_size=20) | st.text(max_size=5)
    | st.floats() | st.sampled_from([0, 1, 2, 3, 4, 6, SID]),
    lambda inner: st.lists(inner, max_size=5).map(tuple) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=8,
)


@st.composite
def cut_or_changed(draw: Any) -> bytes:
    payload = bytearray(draw(st.sampled_from(RIGHT)))
    for _ in range(draw(st.integers(0, 3))):
        payload[draw(st.integers(0, len(payload) - 1))] = draw(st.integers(0, 255))
    return bytes(payload[: draw(st.integers(0, len(payload)))]) if draw(st.booleans()) else bytes(payload)


PAYLOAD = (
    st.sampled_from(RIGHT) | cut_or_changed() | st.binary(max_size=40)
    | st.binary(max_size=40).map(lambda data: PAYLOADS.head + data)
    | st.lists(VALUES, max_size=6).map(lambda fields: PAYLOADS.head + pack(tuple(fields)))
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(PAYLOAD, st.integers(0, 40_000)), max_size=25))
def test_the_fold_is_total_and_goes_on_from_a_snapshot_at_every_place(records: list[tuple[bytes, int]]) -> None:
    machine, time_ms = Hosted(MADE), 0
    others: list[Hosted[Journal]] = []
    for lsn, (payload, later_ms) in enumerate(records, 1):
        time_ms += later_ms
        result = machine.apply(lsn, time_ms, payload, 1)
        assert isinstance(result, Result)
        if result.outcome is Outcome.NEWER:
            assert isinstance(machine.newer(result), AlpoError)
            return
        for other in others:
            assert type(other.apply(lsn, time_ms, payload, 1)) is Result
            assert plain(other) == plain(machine)
        if machine.founded and machine.name == "journal" and machine.version <= MADE.version and len(others) < 3:
            others.append(again(machine))


def again(machine: Hosted[Journal], bytes_max: int = 4096) -> Hosted[Journal]:
    """The machine, made of its own snapshot."""
    encoder = _frozen(machine)(bytes_max)
    thawing = Thawing(MADE)
    for part in encoder:
        assert len(part) <= bytes_max
        thawing.feed(part)
    return thawing.machine(encoder.parts, encoder.chain, encoder.digest)


def test_what_founds_or_changes_a_machine_counts_once_and_in_order() -> None:
    machine, lsn = Hosted(MADE), 0

    def take(payload: bytes, time_ms: int = 0) -> Result:
        nonlocal lsn
        lsn += 1
        return machine.apply(lsn, time_ms, payload)

    for early in (commands_head(1) + b"x", PAYLOADS.begin(SID)):
        assert take(early).outcome is Outcome.NOT_FOUNDED
    assert take(newer_version(2)).outcome is Outcome.HELD
    assert take(found(b"i" * 16, "journal", 2)).outcome is Outcome.FOUNDED
    assert take(found(b"j" * 16, "other", 9)).outcome is Outcome.FOUNDED_BEFORE
    assert (machine.state_id, machine.name, machine.version) == (b"i" * 16, "journal", 2)
    for version in (1, 2):
        assert take(newer_version(version), 200_000).outcome is Outcome.HELD
    assert take(newer_version(5), 200_000).outcome is Outcome.VERSION
    assert take(newer_version(4), 400_000).outcome is Outcome.HELD
    assert machine.version == 5
    for wrong in (newer_version(0), newer_version(1 << 16), found(b"i" * 16, "a b", 1), found(b"i", "journal", 1)):
        assert take(wrong).outcome is Outcome.INVALID
    assert take(newer_version(10), 600_000).outcome is Outcome.NEWER


def test_versions_that_are_wanted_are_few() -> None:
    machine = Hosted(MADE)
    machine.apply(1, 0, found(b"i" * 16, "journal", 1))
    for lsn in range(2, 2000):
        machine.apply(lsn, lsn, commands_head(1 + lsn * 37 % 65_535) + b"x")
        assert len(machine.wants) <= WANTS_MAX
    assert plain(again(machine)) == plain(machine)


# -- parts ----------------------------------------------------------------------------------------------------


def written(items: list[bytes], bytes_max: int = 4096) -> Encoder[Journal]:
    machine = Hosted(MADE)
    machine.apply(1, 0, found(b"i" * 16, "journal", 1))
    machine.user.entries = items
    encoder = _frozen(machine)(bytes_max)
    encoder.all = [*encoder]  # type: ignore[attr-defined]
    return encoder  # type: ignore[return-value]


def parts_of(items: list[bytes], bytes_max: int = 4096) -> list[bytes]:
    return written(items, bytes_max).all  # type: ignore[attr-defined, no-any-return]


ITEMS = [b"", b"x", b"y" * 5000, *(b"%d" % n for n in range(400)), b"z" * 9000]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_parts_raise_value_error_alone(data: Any) -> None:
    parts = parts_of(ITEMS)
    at = data.draw(st.integers(0, len(parts) - 1))
    part = bytearray(parts[at])
    how = data.draw(st.sampled_from(["bytes", "cut", "longer", "other", "twice", "left out"]))
    if how == "bytes":
        for _ in range(data.draw(st.integers(1, 4))):
            part[data.draw(st.integers(0, min(80, len(part) - 1)))] = data.draw(st.integers(0, 255))
    new = {
        "cut": [bytes(part[: data.draw(st.integers(0, len(part) - 1))])], "longer": [bytes(part) + b"\0"],
        "other": [data.draw(st.binary(max_size=60) | st.lists(VALUES, max_size=5).map(lambda v: pack(tuple(v))))],
        "twice": [bytes(part)] * 2, "left out": [],
    }.get(how, [bytes(part)])
    decoder = Decoder(MADE)
    with suppress(ValueError, WrongMachine, NewerVersion):
        for each in [*parts[:at], *new, *parts[at + 1 :]]:
            decoder.feed(each)
        assert type(decoder.digest) is bytes


@pytest.mark.parametrize("item", [
    1, None, (), (1, 2), (5, 0, b""), (5, 1, b"abc"), (2, 0, b"abc"), (1 << 40, 0, b"abc"), (5, 0, "abc"),
    (True, 0, b"a"), (5, -1, b"a"), (5.0, 0, b"a"), (5, 0, b"a", 1), "text", [], ((5, 0, b"a"),),
])
def test_items_that_are_none(item: object) -> None:
    decoder = Decoder(MADE)
    decoder.feed(parts_of([])[0])
    with pytest.raises(ValueError):  # msgpack's own, too
        decoder.feed(pack((item,)))


HEADS = [b"\xdd\xff\xff\xff\xff", b"\xdc\xff\xff", b"\xdd\x00\x10\x00\x00", b"\xc6\xff\xff\xff\xff"]


@pytest.mark.parametrize("head", HEADS)
def test_huge_counts_cost_no_memory(head: bytes) -> None:
    decoder = Decoder(MADE)
    decoder.feed(parts_of([])[0])
    machine = Hosted(MADE)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):
            decoder.feed(head + b"\xc4\x00" * 10)
        with pytest.raises(ValueError):
            Decoder(MADE).feed(head + b"\xc4\x00" * 10)
        assert machine.apply(1, 0, PAYLOADS.head + head).outcome is Outcome.INVALID
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_a_piece_that_promises_much_keeps_what_came() -> None:
    decoder = Decoder(MADE)
    decoder.feed(parts_of([])[0])
    assert decoder.feed(pack(((16 << 20, 0, b"abc"),))) == []
    with pytest.raises(ValueError, match="cut off"):
        decoder.digest  # noqa: B018
    with pytest.raises(ValueError, match="fit together"):
        decoder.feed(pack((b"an item in the middle",)))


@pytest.mark.parametrize("registers", [
    (), (b"i" * 16,), (b"i" * 15, "journal", 1, ()), (b"i" * 16, "a b", 1, ()), (b"i" * 16, "journal", 0, ()),
    (b"i" * 16, "journal", 1, (1,)), (b"i" * 16, "journal", 1, tuple(range(2 * WANTS_MAX + 2))),
    (b"i" * 16, "journal", 1, (1, -1)), (b"i" * 16, "journal", True, ()),
])
def test_registers_that_are_none(registers: tuple[Any, ...]) -> None:
    own = Hosted(MADE).registers()
    with pytest.raises(ValueError, match=r"holds no registers|list"):
        Decoder(MADE).feed(pack((*registers, *own)))


@pytest.mark.parametrize(("at", "value"), [
    (0, -1), (1, 1 << 63), (5, (1,)), (5, (SID, 1, 1, b"", 0, b"d", 0, 0)), (6, (1, 2, 3)), (7, (1, 2, 3, "4")),
    (2, None),
])
def test_common_registers_that_are_none(at: int, value: object) -> None:
    own = [*Hosted(MADE).registers()]
    own[at] = value
    with pytest.raises(ValueError, match=r"holds no registers|list"):
        Decoder(MADE).feed(pack((b"i" * 16, "journal", 1, (), *own)))


def test_a_snapshot_of_another_machine_or_version_is_named() -> None:
    (first,) = parts_of([])
    with pytest.raises(WrongMachine, match="holds the machine 'journal', not 'other'"):
        Decoder(Made(Journal, "other", 1)).feed(first)
    machine = Hosted(MADE)
    machine.apply(1, 0, found(b"i" * 16, "journal", 7))
    (first,) = [*_frozen(machine)(4096)]
    with pytest.raises(NewerVersion):
        Decoder(Made(Journal, "journal", 6)).feed(first)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=9000) | st.integers(0, 20_000).map(bytes), max_size=12), st.integers(4096, 9000))
def test_any_items_come_back(items: list[bytes], bytes_max: int) -> None:
    machine = Hosted(MADE)
    machine.apply(1, 0, found(b"i" * 16, "journal", 1))
    machine.user.entries = items
    assert again(machine, bytes_max).user.entries == items


def test_the_parts_of_two_uploads_are_told_apart() -> None:
    """An upload is thawed as it comes, another one beside it afterwards; what never ends is no word on anything."""
    encoder, (foreign,) = written(ITEMS), parts_of([])
    end = PAYLOADS.end(b"b" * 16, encoder.parts, encoder.chain, encoder.digest)
    begin, part = PAYLOADS.begin, PAYLOADS.part
    parts: list[bytes] = encoder.all  # type: ignore[attr-defined]
    for first, made in ((parts[0], MADE), (b"\x01", MADE), (foreign, Made(Journal, "other", 1))):
        payloads = [begin(b"a" * 16), begin(b"b" * 16), part(b"a" * 16, 0, first)]
        for number, each in enumerate(parts):
            payloads += [part(b"b" * 16, number, each), part(b"a" * 16, number + 1, each)]
        with Uploads(kind_of(made)) as uploads:
            wholes = [uploads.take(lsn, payload) for lsn, payload in enumerate([*payloads, end])]
            upload, told = next(whole for whole in wholes if whole is not None)
            if made is not MADE:
                with pytest.raises(WrongMachine):
                    [*uploads.thaw(upload, told)]
                continue
            assert len([*uploads.thaw(upload, told)]) == len(parts)
            upload.begin = 1
            [*uploads.thaw(upload, told)]
            assert upload.machine is not None
            assert upload.machine.user.entries == ITEMS


# -- threads --------------------------------------------------------------------------------------------------


def loaders() -> int:
    return sum(thread.name == "alpo-load" for thread in threading.enumerate())


def test_a_load_that_nobody_waits_for_ends() -> None:
    before = [thread for thread in threading.enumerate() if thread.name == "alpo-load"]
    for number in range(20):
        loading = Loading(Journal)
        loading.feed([b"x"] * number)
        del loading
    for thread in threading.enumerate():
        if thread.name == "alpo-load" and thread not in before:
            thread.join(10)
    assert loaders() <= len(before)


def test_a_damaged_snapshot_leaves_no_thread() -> None:
    parts = parts_of(ITEMS)
    before = {thread.ident for thread in threading.enumerate()}
    for _ in range(5):
        thawing = Thawing(MADE)
        for part in parts[:2]:
            thawing.feed(part)
        with pytest.raises(ValueError, match=r"array|list"):
            thawing.feed(b"\x01")
        del thawing
    for thread in [thread for thread in threading.enumerate() if thread.ident not in before]:
        thread.join(10)
        assert not thread.is_alive()


def test_an_end_tells_of_its_own_parts_alone() -> None:
    encoder = written(ITEMS)
    parts: list[bytes] = encoder.all  # type: ignore[attr-defined]
    for wrong in (
        (encoder.parts + 1, encoder.chain, encoder.digest),
        (encoder.parts, chained(encoder.chain, b""), encoder.digest),
        (encoder.parts, encoder.chain, bytes(16)),
    ):
        thawing = Thawing(MADE)
        for part in parts:
            thawing.feed(part)
        with pytest.raises(ValueError, match="not those that its end tells of"):
            thawing.machine(*wrong)
    assert max(map(len, parts)) <= 4096 < PART_BYTES_MAX
