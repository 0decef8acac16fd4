"""Bodies that decoding must refuse, case by case, with a text that says why."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from alpo.core import messages as m
from alpo.core import requests as q
from alpo.core.disk import SessionRow
from alpo.core.entries import (
    DamagedEntry,
    Entry,
    Kind,
    header_check,
    join_payloads,
    seal,
    verify_header,
    verify_headers,
)
from alpo.core.members import Identity
from alpo.core.requests import Code
from alpo.wire import codec
from alpo.wire import requests as r
from alpo.wire.framing import HEADER_BYTES, unpack_list

ME, OTHER = Identity(1, b"a" * 16), Identity(2, b"b" * 16)
APPEND = (16, "client", 0, 1, False, False)
AFTER = (136, "client", 0, 1, False)
APPEND_REQUEST = (70, b"e" * 16, 1, b"a" * 16, 2, b"b" * 16, 3, 6, 2, 6, 5, 11)


def data(id: int = 7, **changed: Any) -> Entry:
    return seal(id, 3, int(Kind.DATA), 1_001, 5, b"payload", "client", 1, 0, 1)._replace(**changed)


def resealed(id: int = 7, **changed: Any) -> Entry:
    """Changed, but with a checksum that matches."""
    e = data(id, **changed)
    name = e.client.encode()
    return e._replace(check=header_check(*e[:4], name, e.serial, e.epoch, e.lsn, e.count, e.digest))


def marks(number: int, numbers: int, *counts: int) -> bytes:
    """The digest of a run that says ``number`` serials, with so many more numbers and these counts."""
    return bytes(16) + struct.pack(f"<{1 + numbers + len(counts)}I", number, *[0] * numbers, *counts)


def body_of(*fields: Any) -> bytes:
    return bytes(msgpack.packb(fields))


def append(*items: Any) -> bytes:
    return body_of(*APPEND, msgpack.packb(items))


def envelope_with(*entries: Any) -> bytes:
    return body_of(*APPEND_REQUEST, msgpack.packb(entries))


def refused(decode: Callable[[bytes], Any], body: bytes, text: str) -> None:
    with pytest.raises(codec.WireError, match=text):
        decode(body)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not a message"),
        (b"\xc1", "not a message"),
        (body_of(22, 1)[:-1], "not a message"),
        (body_of(22, 1) + b"\x00", "not a message"),
        (b"\x91" * 2_000 + b"\xc0", "not a message"),
        (b"\x93\x11\x01\xa2\xed\xa0", "not a message"),
        (b"\x95\x11\x01\xa3\xed\xa0\x80\x00\xc4\x00", "not a message"),
        (b"\x92\x16\x81\x01\x02", "not a message"),
        (b"\x92\x16\xd6\xff\x00\x00\x00\x00", "not a message"),
        (body_of(), "no array that begins with a type"),
        (body_of(True, 1), "no array that begins with a type"),
        (bytes(msgpack.packb({"type": 22})), "no array"),
        (body_of(99, 1), "message type 99 is not a request"),
        (body_of(34, 1, 2, 3), "message type 34 is not a request"),
        (body_of(22), "Status has 1 fields, not 0"),
        (body_of(22, 1, 2), "Status has 1 fields, not 2"),
        (body_of(22, True), "Status.request: not an integer"),
        (body_of(22, -1), "Status.request: not an integer"),
        (body_of(22, 1.0), "Status.request: not an integer"),
        (body_of(22, 2**63), "Status.request: not an integer"),
        (body_of(17, 1, "", 0, b"n" * 16), "OpenSession.name: not a text of 1 to 128 bytes"),
        (body_of(17, 1, "é" * 65, 0, b"n" * 16), "OpenSession.name: not a text of 1 to 128 bytes"),
        (body_of(17, 1, b"name", 0, b"n" * 16), "OpenSession.name"),
        (body_of(17, 1, "name", 0, b""), "OpenSession.nonce: not 16 bytes"),
        (body_of(17, 1, "name", 0, "n" * 16), "OpenSession.nonce"),
        (body_of(21, 1, 0, 0, 0, 0, 1, 1, 0, ""), "Read.linearizable: not true or false"),
        (body_of(*APPEND, b""), "Append.items: not a packed list"),
        (body_of(*APPEND, [b"x"]), "Append.items: not a packed list: no bytes"),
        (body_of(*APPEND, b"\xdd\xff\xff\xff\xff"), "Append.items: a list of 4294967295 items"),
        (body_of(*APPEND, b"\xdd\xff\xff"), "Append.items: not a packed list: no array"),
        (body_of(*APPEND, b"\x91\xc4\x05x"), "Append.items: a list that says 1 items"),
        (body_of(*APPEND, b"\x91\xc4\x01xy"), "Append.items: a list that says 1 items"),
        (body_of(*APPEND, b"\x92\xc4\x01x"), "Append.items: a list that says 2 items"),
        (body_of(*APPEND, b"\x91\xc4\x01x\xc4\x05y"), "Append.items: a list that says 1 items"),
        (body_of(*APPEND, b"\x91\x91" + b"\x91" * 2_000), "Append.items"),
        (append(), "Append.items: no items"),
        (append(b"x", "text"), "neither bytes nor a count"),
        (append((2, "text")), "neither bytes nor a count"),
        (append((2, b"", 3)), "Append.items"),
        (append((0, b"")), "not an integer from 1"),
        (append((True, b"x")), "not an integer from 1"),
        (append((2, b"x")), "a batch ends early"),
        (append((2**62, join_payloads([b"x", b"y"]))), "a batch ends early"),
        (append((2, join_payloads([b"x", b"y"]) + b"z")), "bytes left over"),
        (append((2, b"\x00\x00\x00\x00\x09\x00\x00\x00short")), "a batch"),
        (body_of(*AFTER, -1, b"x"), "AppendAfter.expect_last: not an integer from 0"),
        (body_of(*AFTER, 1, [b"x"]), "AppendAfter.item: an item is neither bytes nor a count"),
        (body_of(*AFTER, 1, "text"), "AppendAfter.item: an item is neither bytes nor a count"),
        (body_of(*AFTER, 1, [0, b""]), "AppendAfter.item: not an integer from 1"),
        (body_of(*AFTER, 1, [2, b"x"]), "AppendAfter.item: a batch ends early"),
        (body_of(*AFTER, 1, b"x", b"y"), "AppendAfter has 6 fields, not 7"),
        (body_of(136, "client", 0, 0, False, 1, b"x"), "AppendAfter.serial: not an integer from 1"),
        (body_of(16, "client", 0, 0, False, False, msgpack.packb([b"x"])), "Append.serial: not an integer from 1"),
        (body_of(16, "client", 0, 2**63 - 1, False, False, msgpack.packb([b"x", b"y"])), "past 2"),
    ],
)
def test_requests_refused(body: bytes, text: str) -> None:
    refused(codec.decode_client, body, text)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (body_of(32, "client", 1, msgpack.packb([1, True]), False), "Appended.lsns: a list with something else"),
        (body_of(32, "client", 1, msgpack.packb([1, -1]), False), "Appended.lsns: a list with an integer"),
        (body_of(32, "client", 1, msgpack.packb([2**63]), False), "Appended.lsns: a list with an integer"),
        (body_of(32, "client", 1, msgpack.packb([[1]]), False), "Appended.lsns"),
        (body_of(33, "c", 1, 1, 99, 0, 0, "", ""), "AppendRefused.code: no Code"),
        (body_of(33, "c", 1, 1, 1, 0, 0, "h" * 301, ""), "AppendRefused.leader_address"),
        (body_of(35, 1, msgpack.packb([("c", 1, 2, 3)]), 0), "Sessions.rows: a list with something"),
        (body_of(35, 1, msgpack.packb([("c" * 129, 1, 2, 3, 4)]), 0), "Sessions.rows: a list with a client id"),
        (body_of(37, 1, msgpack.packb([b"12345678"]), 0, 0, 0), "Page.entries: a list with something else than arrays"),
        (body_of(157, 1, "t", msgpack.packb([[1, None]])), "BackupRows.rows: a list with something else than arrays"),
        (body_of(157, 1, "t", msgpack.packb([1])), "BackupRows.rows: a list with something else than arrays"),
        (body_of(157, 1, "t", msgpack.packb([[1] * 16])), "BackupRows.rows: .*max_array_len"),
        (body_of(38, 1, {"a": b"bytes"}), "StatusAnswer.fields: holds a bytes"),
        (body_of(38, 1, {b"a": 1}), "StatusAnswer.fields: a map's key is no text"),
        (body_of(38, 1, [1]), "StatusAnswer.fields: not a map"),
        (body_of(48, 1, "[[1]"), "MembersChanged.members: not JSON"),
        (body_of(48, 1, "[" * 20_000), "MembersChanged.members: not JSON"),
        (body_of(48, 1, "[[1], 2]"), "MembersChanged.members: no list of lists"),
        (body_of(48, 1, "7"), "MembersChanged.members: no list of lists"),
        (body_of(22, 1), "message type 22 is not an answer"),
    ],
)
def test_answers_refused(body: bytes, text: str) -> None:
    refused(codec.decode_server, body, text)


def test_a_free_map_is_not_too_deep() -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    refused(codec.decode_server, body_of(38, 1, {"a": deep}), "levels deep")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (body_of(1, 4, b"short", 1, b"a" * 16, "h:1", 2, b"", 0, 0, (1, 2, 3), b""), "PeerHello.cluster: not 0 or 16"),
        (body_of(1, 4, b"", 1, b"", "h:1", 2, b"", 0, 0, (1, 2, 3), b""), "PeerHello.incarnation: not 16 bytes"),
        (body_of(1, 4, b"", 1, b"a" * 16, "h:1", 2, b"x", 0, 0, (1, 2, 3), b""), "PeerHello.target_incarnation"),
        (body_of(1, 4, b"", 1, b"a" * 16, "h:1", 2, b"", 0, 0, (1, 2), b""), "PeerHello.timers_ms: not an array of 3"),
        (body_of(2, 4, b"", "x" * 129), "ClientHello.library"),
        (body_of(2, 4), "ClientHello has 3 fields"),
        (body_of(2), "ClientHello has 3 fields"),
        (body_of(2, 5, b"", "x"), "ClientHello has 4 fields"),
        (body_of(2, 5, b"", "x", "a" * 64), "ClientHello.log: not a text of 0 to 63"),
        (body_of(2, "1", b"", ""), "not an integer"),
        (body_of(3, 4, b"", 1, 0, 0, 0, 0, 0, 0, [(1, "h:1", 2)]), "ServerHello.members: not an array of 2"),
        (body_of(4, 0, "why"), "Problem.code: no Code"),
        (body_of(16, 1), "message type 16 is not a hello"),
    ],
)
def test_hellos_refused(body: bytes, text: str) -> None:
    refused(codec.decode_hello, body, text)


@pytest.mark.parametrize("body", [
    body_of(2, 6, b"", "x"), body_of(1, 7), body_of(3, 0, {"other": "fields"}),
    body_of(1, 3, b"", 1, b"a" * 16, "h:1", 2, b"", 0, 0, (1, 2, 3)),
])
def test_another_version_is_told_apart_whatever_its_fields(body: bytes) -> None:
    with pytest.raises(codec.WrongVersion, match=r"speaks version . of the protocol, this one version 5") as caught:
        codec.decode_hello(body)
    assert caught.value.version == msgpack.unpackb(body, strict_map_key=False)[1]


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([data()[:-1]], "not an entry"),
        ([(*data(), 0)], "exceeds max_array_len"),
        ([b"twelve bytes"], "something else than entries"),
        ([data(), 1], "something else than entries"),
        ([data()._replace(id=8)], "does not match its checksum"),
        ([data(check=0)], "does not match its checksum"),
        ([data(client="another")], "does not match its checksum"),
        ([data(client=b"client")], "not an entry"),
        ([data(body="payload")], "field of another type"),
        ([data(term=None)], "not an entry"),
        ([data(term=-3)], "not an entry"),
        ([data(check=float(data().check))], "field of another type"),
        ([resealed(epoch=False)], "field of another type"),
        ([resealed(digest=bytes(16))._replace(digest=bytes(15))], "does not match its checksum"),
        ([resealed(digest=bytes(15))], "digest of another form"),
        ([resealed(digest=bytes(17))], "digest of another form"),
        ([resealed(digest=marks(2, 4), count=1)], "digest of another form"),
        ([resealed(digest=marks(2, 5), count=2)], "digest of another form"),
        ([resealed(digest=marks(2, 4, 2, 1), count=4)], "digest of another form"),
        ([resealed(digest=marks(2, 4, 0, 3), count=3)], "digest of another form"),
        ([resealed(digest=marks(1, 2), count=1)], "digest of another form"),
        ([resealed(digest=marks(2, 4), count=0, kind=2)], "digest of another form"),
        ([resealed(digest=marks(2**32 - 1, 4), count=2**32)], "digest of another form"),
        ([resealed(lsn=2**63)], "over 63 bits"),
        ([resealed(serial=2**63)], "over 63 bits"),
        ([resealed(serial=2**63 - 1, digest=marks(2, 4), count=2)], "over 63 bits"),
        ([resealed(kind=0)], "of kind 0"),
        ([resealed(kind=9)], "of kind 9"),
        ([resealed(kind=9, count=0)], "of kind 9"),
        ([resealed(count=0)], "of kind 1 with 0 payloads"),
        ([resealed(kind=2)], "of kind 2 with 1 payloads"),
        ([resealed(client="c" * 129)], "client id is over 128 bytes"),
        ([data(), resealed(9)], "entry 9 where 8 belongs"),
        ([data(), data()], "entry 7 where 8 belongs"),
        ([data(8)], "entry 8 does not follow entry 6"),
    ],
)
def test_entries_refused(entries: list[Any], text: str) -> None:
    refused(codec.decode_peer, envelope_with(*entries), text)


def test_sound_entries_pass() -> None:
    envelope = codec.decode_peer(envelope_with(resealed(7), resealed(8)))
    assert isinstance(envelope, m.Envelope) and isinstance(envelope.message, m.AppendRequest)
    assert envelope.message.entries == [resealed(7), resealed(8)]


def test_verifying_a_run_finds_what_verifying_each_finds() -> None:
    for place in range(len(Entry._fields) - 2):  # neither the body, which the digest stands for, nor the checksum
        for value in (0, 1, 77, "x", b"x" * 16, None):
            changed = Entry._make([*data()[:place], value, *data()[place + 1 :]])
            if changed == data():
                continue
            for verify in (verify_header, lambda entry: verify_headers([entry])):
                with pytest.raises(DamagedEntry):
                    verify(changed)
    verify_headers([])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (body_of(72, b"e" * 16, 1), "an envelope without addresses"),
        (body_of(72, b"e", 1, b"", 2, b"", 3), "an envelope's addresses: not 0 or 16 bytes"),
        (body_of(72, b"", True, b"", 2, b"", 3), "an envelope's addresses: not an integer"),
        (body_of(72, b"", 1, b"", 2, b"xy", 3), "an envelope's addresses"),
        (body_of(72, b"", 1, b"", 2, b""), "HandOver has 1 fields, not 0"),
        (body_of(66, b"", 1, b"", 2, b"", 3, [1, 2, 3], False), "VoteRequest.rank: not an array of 4"),
        (body_of(66, b"", 1, b"", 2, b"", 3, None, False), "VoteRequest.rank"),
        (body_of(66, b"", 1, b"", 2, b"", 3, [1, 2, -(2**63), 3], False), "VoteRequest.rank: not an integer of 63"),
        (body_of(66, b"", 1, b"", 2, b"", 3, [1, -2, 0, 3], False), "VoteRequest.rank: not an integer from 0"),
        (body_of(67, b"", 1, b"", 2, b"", 3, 3, 9, 0, None, 0), "VoteAnswer.answer: no Vote"),
        (body_of(67, b"", 1, b"", 2, b"", 3, 3, True, 0, None, 0), "VoteAnswer.answer: no Vote"),
        (body_of(73, b"", 1, b"", 2, b"", b"x"), "WrongIncarnation.asked"),
        (body_of(75, b"", 1, b"", 2, b"", 1, 1, b"", [[1, b"x"]], b"", "", ""), "StartAnswer.incarnations: not 0"),
        (body_of(22, 1), "nothing that servers say"),
    ],
)
def test_envelopes_refused(body: bytes, text: str) -> None:
    refused(codec.decode_peer, body, text)


def test_a_problem_between_servers_is_told() -> None:
    with pytest.raises(codec.ToldProblem, match="another cluster") as caught:
        codec.decode_peer(codec.encode_problem(Code.INVALID, "another cluster")[8:])
    assert caught.value.problem == r.Problem(Code.INVALID, "another cluster")


def test_a_problem_always_fits() -> None:
    told = codec.decode_server(codec.encode_problem(Code.INVALID, "\udcff" + "é" * 60_000)[8:])
    assert isinstance(told, r.Problem)
    assert told.text.startswith("?éé") and len(told.text.encode()) <= 48 * 1024


@pytest.mark.parametrize(
    "message", [q.OpenSession(1, "\udcff", 0, b"n" * 16), r.Status(2**64), q.Appended(None, "c", 1, [2**64], False)]
)
def test_what_cannot_travel_is_a_wire_error_of_the_sender(message: Any) -> None:
    with pytest.raises(codec.WireError, match="cannot be sent"):
        codec.encode(message)


@pytest.mark.parametrize(
    ("decode", "body"),
    [
        (codec.decode_client, b"\xdd\x00\x0f\xff\x00" * 1_000 + bytes(1 << 20)),
        (codec.decode_client, b"\xdc\x03\xff" * 1_000 + bytes(1 << 20)),
        (codec.decode_client, body_of(*APPEND, b"\xdd\x00\x0f\xff\x00" * 1_000 + bytes(1 << 20))),
        (codec.decode_peer, body_of(*APPEND_REQUEST, b"\xdd\x00\x0f\xff\x00" + b"\x9c" * 1_000 + bytes(1 << 20))),
        (codec.decode_server, body_of(37, 1, b"\xdd\x00\x0f\xff\x00" * 1_000 + bytes(1 << 20), 0, 0, 0)),
    ],
)
def test_announced_lengths_take_no_memory(decode: Callable[[bytes], Any], body: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(codec.WireError):
            decode(body)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 32 << 20


def test_lists_are_capped() -> None:
    assert unpack_list(msgpack.packb([1, 2, 3]), 3, 0) == [1, 2, 3]
    with pytest.raises(codec.WireError, match="a list of 3 items, where 2 is the most"):
        unpack_list(msgpack.packb([1, 2, 3]), 2, 0)


def test_largest_tells_payloads_from_batches() -> None:
    assert codec.largest([(1, b"four"), (1, b"")]) == (4, 0)
    body = join_payloads([b"seven!!", b"x"])
    assert codec.largest([(1, b"four"), (2, body)]) == (7, len(body))
    assert codec.largest([(2, join_payloads([b"", b""]))]) == (0, 8)


@pytest.mark.parametrize("digest", [b"", bytes(15), bytes(17), marks(2, 3), marks(2, 4, 1), marks(1, 2), marks(0, 0)])
def test_a_session_that_remembers_no_entry(digest: bytes) -> None:
    slots = [(2, 9, 6, 0, digest)]
    part = m.SnapshotPart(3, 1, 0, 2, "{}", (SessionRow("client", 0, b"", 0, 2, 9, 1_002, slots, 7),))
    framed = codec.encode_envelope(m.Envelope(b"e" * 16, ME, OTHER, part))
    refused(codec.decode_peer, framed[HEADER_BYTES:], "digest of another form")
