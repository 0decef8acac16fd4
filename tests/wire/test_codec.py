"""Every message there and back, and nothing but the named errors out of whatever else arrives."""

from __future__ import annotations

import random
import typing
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpo.core import messages as m
from alpo.core.disk import SessionRow
from alpo.core.entries import Entry, Kind, join_payloads, seal
from alpo.core.inputs import MemberStep
from alpo.core.members import Identity
from alpo.core.ranks import Rank
from alpo.core.ready import Code, Fate
from alpo.storage.events import FIELDS_CHARS_MAX
from alpo.wire import client_codec, codec, peer_codec
from alpo.wire import requests as r
from alpo.wire.column_pages import PageColumns, pack_page
from alpo.wire.framing import FrameError, FrameReader, frame
from alpo.wire.shapes import WireError

PAGE = PageColumns((8,), (3,), (1_001,), ("client",), (1,), (5,), (1,), (b"payload",))
ints = st.integers(0, 2**63 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=30)  # at most 120 bytes
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
ids16 = st.binary(min_size=16, max_size=16)
maybe16 = st.just(b"") | ids16
codes = st.sampled_from(Code)
payloads = st.binary(max_size=40)
batches = st.lists(payloads, min_size=2, max_size=5).map(lambda ps: (len(ps), join_payloads(ps)))
plain = st.recursive(
    st.none() | st.booleans() | ints | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)

#: By field: what a field takes when its type alone does not say it.


def short(name: str) -> bool:
    return len(name.encode()) <= 64


FIELDS: dict[tuple[type, str], st.SearchStrategy[Any]] = {
    (r.PeerHello, "version"): st.just(r.VERSION),
    (r.PeerHello, "incarnation"): ids16,
    (r.ClientHello, "version"): st.just(r.VERSION),
    (r.ServerHello, "version"): st.just(r.VERSION),
    (r.ServerHello, "members"): st.lists(st.tuples(ints, texts), max_size=4).map(tuple),
    (r.Problem, "code"): codes,
    (r.Append, "client"): names,
    (r.Append, "serial"): st.integers(1, 2**62),
    (r.Append, "items"): st.lists(payloads, min_size=1, max_size=6),
    (r.Open, "name"): names,
    (r.Open, "nonce"): ids16,
    (r.Drop, "name"): names,
    (r.Appended, "client"): names,
    (r.Appended, "serial"): st.integers(1, 2**63 - 1),
    (r.Appended, "lsns"): st.lists(ints, max_size=6),
    (r.AppendRefused, "client"): names,
    (r.AppendRefused, "code"): codes,
    (r.RequestRefused, "code"): codes,
    (r.SessionTable, "rows"): st.lists(st.tuples(texts, ints, ints, ints, ints), max_size=4),
    (r.Page, "entries"): st.lists(st.tuples(ints, ints, ints, texts, ints, ints, ints, payloads), max_size=4),
    (r.EventList, "rows"): st.lists(st.tuples(ints, ints, texts, texts), max_size=4),
    (r.StatusAnswer, "fields"): st.dictionaries(texts, plain, max_size=4),
    (r.Outcome, "client"): names,
    (r.SetCursor, "name"): names,
    (r.SetCursor, "lsn"): st.integers(1, 2**63 - 1),
    (r.DropCursor, "name"): names,
    (r.CursorTable, "rows"): st.lists(st.tuples(texts, ints, ints, ints), max_size=4),
    (r.AwaitReplicated, "lsn"): st.integers(1, 2**63 - 1),
    (r.ChangeSettings, "changes"): st.lists(st.tuples(names.filter(short), ints, ints), max_size=4).map(tuple),
    (r.SettingsAre, "values"): st.lists(st.tuples(names.filter(short), ints), max_size=4).map(tuple),
    (r.BackupHead, "schema"): st.integers(1, 2**63 - 1),
    (r.BackupRows, "table"): names,
    (r.BackupRows, "rows"): st.lists(st.lists(ints | texts | payloads, max_size=15).map(tuple), max_size=4),
    (r.Replicated, "behind"): st.lists(ints, max_size=4).map(tuple),
    (r.Outcome, "serial"): ints.map(lambda n: n or 1),
    (r.ChangeMember, "id"): st.integers(1, 2**63 - 1),
    (r.ChangeMember, "priority"): st.integers(-1000, 1000),
    (r.Transfer, "target"): st.integers(1, 2**63 - 1),
    (m.BasePart, "parts"): st.integers(1, 2**63 - 1),
    (m.BasePart, "rows"): st.lists(st.builds(
        SessionRow, names, ints, maybe16, ints, ints, ints, ints,
        st.lists(st.tuples(ints, ints, ints, ints, maybe16), max_size=3), ints,
    ), max_size=3).map(tuple),
    (r.RangeDigest, "first_id"): st.integers(1, 2**63 - 1),
    (r.RangeDigest, "last_id"): st.integers(1, 2**63 - 1),
    (r.DigestIs, "first_id"): st.integers(1, 2**63 - 1),
    (r.DigestIs, "digest"): ids16,
    (r.ColumnPage, "names"): st.lists(texts, max_size=4),
    (r.Told, "fate"): st.sampled_from(Fate).map(int),
    (r.Told, "birth"): ints,
    (Rank, "priority"): st.integers(-1000, 1000),
    (m.StartAnswer, "incarnations"): st.lists(st.builds(Identity, ints, maybe16), max_size=4).map(tuple),
}


@st.composite
def entry_runs(draw: st.DrawFn) -> list[Entry]:
    first = draw(st.integers(1, 2**62))
    run = []
    for id in range(first, first + draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(Kind))
        count, body = draw(payloads.map(lambda p: (1, p)) | batches) if kind is Kind.DATA else (0, b"{}")
        term, time_ms, lsn, serial, epoch = (draw(ints) for _ in range(5))
        run.append(seal(id, term, int(kind), time_ms, lsn, body, draw(texts), serial, epoch, count))
    return run


FIELDS[m.AppendRequest, "entries"] = entry_runs()
FIELDS[m.CopyAnswer, "entries"] = entry_runs().map(lambda run: run[:1])


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """A strategy from a field's type."""
    if typing.get_origin(hint) is tuple:
        return st.tuples(*map(of_type, typing.get_args(hint)))
    if typing.get_args(hint):
        return st.one_of(*map(of_type, typing.get_args(hint)))
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return st.sampled_from(hint)
    if hasattr(hint, "_fields"):
        return of_class(hint)
    simple = {int: ints, bool: st.booleans(), str: texts, bytes: maybe16, type(None): st.none()}
    return simple[hint]


def of_class(cls: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    fields = {name: FIELDS[cls, name] if (cls, name) in FIELDS else of_type(hint) for name, hint in hints.items()}
    return st.builds(cls, **fields)


HELLOS = (*typing.get_args(r.Hello), r.Problem)
REQUESTS = typing.get_args(r.ClientRequest)
REPLIES = (*typing.get_args(r.ServerReply), r.Problem)
MESSAGES = typing.get_args(m.Message)
DECODERS: tuple[Callable[[bytes], Any], ...] = (
    codec.decode_hello, codec.decode_client, codec.decode_server, codec.decode_envelope,
)


def through_a_frame(framed: bytes) -> bytes | memoryview:
    (body,) = FrameReader(1 << 24).feed(framed)
    return body


def test_every_type_has_one_number_and_one_place() -> None:
    shapes = (*client_codec.SHAPES, *peer_codec.SHAPES)
    assert {shape.cls for shape in shapes} == {*HELLOS, *REQUESTS, *REPLIES, *MESSAGES}
    assert len({shape.number for shape in shapes}) == len(shapes)
    for shape in shapes:
        assert len(shape.checks) == len(shape.cls._fields), shape.cls


@pytest.mark.parametrize("cls", HELLOS, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_hellos(cls: type, data: st.DataObject) -> None:
    message = data.draw(of_class(cls))
    assert codec.decode_hello(through_a_frame(codec.encode(message))) == message


@pytest.mark.parametrize("cls", REQUESTS, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_requests(cls: type, data: st.DataObject) -> None:
    message = data.draw(of_class(cls))
    wanted = message._replace(items=[(1, item) for item in message.items]) if cls is r.Append else message
    got = codec.decode_client(through_a_frame(codec.encode(message)))
    assert got == wanted and type(got) is cls


@given(st.lists(payloads | batches, min_size=1, max_size=6))
def test_appends_with_batches(items: list[Any]) -> None:
    request = codec.decode_client(through_a_frame(codec.encode(r.Append("c", 0, 1, False, False, items))))
    assert isinstance(request, r.Append)
    assert request.items == [item if isinstance(item, tuple) else (1, item) for item in items]


@pytest.mark.parametrize("cls", REPLIES, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_replies(cls: type, data: st.DataObject) -> None:
    message = data.draw(of_class(cls))
    got = codec.decode_server(through_a_frame(codec.encode(message)))
    assert got == message and type(got) is cls


def test_events_are_as_long_as_a_store_keeps_them() -> None:
    long = r.EventList(1, 2, 1_001, [(7, 1_000, "leader", "x" * FIELDS_CHARS_MAX)])
    assert codec.decode_server(through_a_frame(codec.encode(long))) == long
    longer = long._replace(rows=[(7, 1_000, "leader", "x" * 49_153)])
    with pytest.raises(WireError, match="a text over 49152 bytes"):
        codec.decode_server(through_a_frame(codec.encode(longer)))


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@given(data=st.data())
def test_envelopes(cls: type, data: st.DataObject) -> None:
    message = data.draw(of_class(cls))
    if isinstance(message, m.AppendRequest) and message.entries:
        message = message._replace(prev_id=message.entries[0].id - 1)
    envelope = m.Envelope(data.draw(maybe16), data.draw(of_class(Identity)), data.draw(of_class(Identity)), message)
    got = codec.decode_envelope(through_a_frame(codec.encode_envelope(envelope)))
    assert got == envelope
    assert type(got.message) is cls and type(got.sender) is Identity
    if isinstance(got.message, m.AppendRequest):
        assert all(type(entry) is Entry for entry in got.message.entries)


@given(entry_runs())
def test_entries_packed_beforehand_make_the_same_frame(run: list[Entry]) -> None:
    envelope = m.Envelope(b"", Identity(1, b""), Identity(2, b""), m.AppendRequest(1, 2, 1, 0, 0, 9, run))
    assert codec.encode_envelope(envelope, codec.encode_entries(run)) == codec.encode_envelope(envelope)


# --- whatever else arrives


def only_named_errors(body: bytes) -> int:
    """How many decoders take the body; fails on any error but `WireError`."""
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
numbers = st.sampled_from([shape.number for shape in (*client_codec.SHAPES, *peer_codec.SHAPES)])


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


def sample_frames() -> list[bytes]:
    """A frame of every type."""
    me, other = Identity(1, b"a" * 16), Identity(2, b"b" * 16)
    run = [
        seal(7, 3, int(Kind.LEADER), 1_000, 5, b"{}"),
        seal(8, 3, int(Kind.DATA), 1_001, 5, b"payload", "client", 1, 0, 1),
        seal(9, 3, int(Kind.DATA), 1_002, 6, join_payloads([b"x", b"yy"]), "client", 2, 0, 2),
    ]
    rank = m.Rank(3, 9, 0, 1)
    peers: list[m.Message] = [
        m.CanvassRequest(4, 1, rank, False), m.CanvassAnswer(4, 1, m.Canvass.YES), m.VoteRequest(4, rank, True),
        m.VoteAnswer(4, 4, m.Vote.HELD, 2, rank, 1_003), m.DeferRequest(4, rank), m.DeferAnswer(4, 4, m.Defer.DEFERRED),
        m.AppendRequest(3, 6, 2, 6, 5, 11, run), m.AppendAnswer(3, True, 9, 0, 0, 0, 0, 11, 1_004, False),
        m.HandOver(3), m.WrongIncarnation(b"c" * 16), m.StartQuestion(1, b"d" * 16),
        m.StartAnswer(1, m.StartStatus.STARTED, b"d" * 16, (me, other), b"e" * 16, "[]", "{}"),
        m.BasePart(3, 1, 0, 2, "{}", (SessionRow("client", 0, b"", 0, 2, 9, 1_002, [(2, 9, 6, 0, b"d" * 16)], 7),)),
        m.BaseAnswer(3, 1, 1, 0), m.Retired(), m.WentBack(3, 9),
        m.CopyRequest(7, 2), m.CopyAnswer(7, 3, run[:1]),
    ]
    others: list[Any] = [
        r.PeerHello(1, b"e" * 16, 1, b"a" * 16, "h:1", 2, b"b" * 16, 1_000, 0, (50, 500, 25)),
        r.ClientHello(1, b"", "alpo-python 1"),
        r.ServerHello(1, b"e" * 16, 1, 1_000, 0, 1 << 20, 8 << 20, 1024, 2, ((1, "h:1"), (2, "h:2"))),
        r.Problem(Code.INVALID, "why"), r.Append("client", 0, 1, False, False, [b"one", (2, run[2].body)]),
        r.Open(1, "name", 0, b"n" * 16), r.Drop(1, "name", 3), r.ListSessions(1), r.Init(1),
        r.Read(1, 1, 0, 0, 0, 1 << 20, True, 0, ""), r.Status(1), r.Appended("client", 1, [5, 6], False),
        r.Backup(1), r.GiveBack(1), r.BackupHead(1, 4, 2, 9, 4096), r.BackupRows(1, "runs", [(1, 2, 3)]),
        r.RangeDigest(1, 5, 9), r.DigestIs(1, 5, 9, 4, 7, b"d" * 16),
        r.ReadColumns(1, 5, 9, 0, 0, 1_000, False, 0, ""), pack_page(1, PAGE, 6, 7, 1),
        r.Trim(1, 7, False), r.Trimmed(1, 7), r.Outcome(1, "client", 3, 9), r.Told(1, Fate.APPENDED, 5, 7),
        r.AwaitReplicated(1, 5, 100), r.Replicated(1, False, (2, 3)),
        r.SetCursor(1, "nightly", 7), r.DropCursor(1, "nightly"), r.ListCursors(1),
        r.CursorTable(1, [("nightly", 7, 100, 5)]),
        r.ShowSettings(1), r.ChangeSettings(1, (("window", 1024, 2048),)), r.SettingsAre(1, (("window", 2048),)),
        r.ChangeMember(1, MemberStep.ADD, 4, "h:4", -1), r.MemberTable(1, "[]"), r.Transfer(1, 2),
        r.HandedOver(1, 2, 4),
        r.AppendRefused("client", 1, 2, Code.NOT_LEADER, 0, 2, "h:2", ""), r.Opened(1, 8, 0),
        r.SessionTable(1, [("client", 0, 2, 9, 1_002)], 0), r.Done(1, 0),
        r.Page(1, [(8, 3, 1_001, "client", 1, 5, 1, b"payload")], 6, 7, 1),
        r.ListEvents(1, 0, 5), r.EventList(1, 2, 1_001, [(7, 1_000, "leader", "{}")]),
        r.StatusAnswer(1, {"id": 1, "members": [{"id": 1, "lag": None}]}),
        r.RequestRefused(1, Code.OUT_OF_RANGE, 0, 0, "", "1,7"),
    ]
    return [
        *map(codec.encode, others),
        *(codec.encode_envelope(m.Envelope(b"e" * 16, me, other, message)) for message in peers),
    ]


NASTY = (
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
    return msgpack.packb(fields)


def test_twenty_thousand_mutated_frames_give_only_named_errors() -> None:
    seed = random.SystemRandom().getrandbits(64)
    rng = random.Random(seed)
    frames = sample_frames()
    bodies = [framed[8:] for framed in frames]
    refused = {"frame": 0, "body": 0}
    try:
        for number in range(20_000):
            if number % 4 == 0:
                try:
                    for body in FrameReader(1 << 16).feed(mutate_bytes(rng.choice(frames), rng)):
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
    assert all(only_named_errors(framed[8:]) for framed in sample_frames())
    known = {shape.number for shape in (*client_codec.SHAPES, *peer_codec.SHAPES)}
    assert {msgpack.unpackb(framed[8:])[0] for framed in sample_frames()} == known


def test_version_1_has_no_births_and_names_the_part_that_came() -> None:
    a, b = Identity(1, b"a" * 16), Identity(2, b"b" * 16)
    rows = (SessionRow("web", 9, b"n" * 16, 3, 5, 20, 7, [(4, 18, 30, 5, b"d" * 16), (5, 20, 31, 9, b"e" * 16)], 2),)
    for message, comes in (
        (m.BasePart(3, 1, 1, 4, "", rows), m.BasePart(3, 1, 1, 4, "", (rows[0]._replace(birth=5),))),
        (m.BaseAnswer(3, 1, 2, 0), m.BaseAnswer(3, 1, 2, 0)),
    ):
        envelope = m.Envelope(b"c" * 16, a, b, message)
        sent = FrameReader(1 << 20).feed(codec.encode_envelope(envelope, version=1))[0]
        assert codec.decode_envelope(sent, version=1).message == comes
    fields = msgpack.unpackb(FrameReader(1 << 20).feed(codec.encode_envelope(envelope, version=1))[0])
    assert fields[-2:] == [1, 0]  # part 1 came


def test_version_1_has_no_epochs_of_outcomes_and_no_dropped_names() -> None:
    def through(message: Any, decode: Any) -> Any:
        return decode(FrameReader(1 << 20).feed(codec.encode(message, version=1))[0], version=1)

    assert through(r.Outcome(1, "web", 4, 9), codec.decode_client) == r.Outcome(1, "web", 4, 0)
    assert through(r.Told(1, 2, 0, 9), codec.decode_server) == r.Told(1, 2, 0, None)
    refused = r.AppendRefused("web", 1, 1, Code.DROPPED, 9, 0, "", "")
    assert through(refused, codec.decode_server) == refused._replace(code=Code.FENCED)
    gone = refused._replace(number=0)  # no session has epoch 0: nobody fences with it
    assert through(gone, codec.decode_server) == gone
    assert through(gone._replace(code=Code.TOO_OLD), codec.decode_server).code == Code.TOO_OLD
