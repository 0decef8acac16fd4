"""Every message there and back."""

from __future__ import annotations

import typing
from collections.abc import Hashable
from enum import IntEnum
from typing import Any

import pytest
from frame_samples import GONE, HOSTS, LOG
from hypothesis import given
from hypothesis import strategies as st

from alpo.core import messages as m
from alpo.core import requests as q
from alpo.core.directory import Listing, LogOptions
from alpo.core.disk import SessionRow
from alpo.core.entries import Entry, Kind, join_payloads, seal
from alpo.core.hosting.words import HostMessage
from alpo.core.members import Identity
from alpo.core.ranks import Rank
from alpo.core.requests import Code, Fate
from alpo.storage.events import FIELDS_CHARS_MAX
from alpo.wire import client_codec, codec
from alpo.wire import requests as r
from alpo.wire.framing import APART_BYTES_MIN, FrameReader, WireError, pack

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


def short(name: str) -> bool:
    return len(name.encode()) <= 63


ranks = st.builds(Rank, ints, ints, st.integers(-1000, 1000), ints)
#: Values of fields whose type alone does not say which values are valid, or is not kept by a compiled build.
FIELDS: dict[tuple[type, str], st.SearchStrategy[Any]] = {
    (r.PeerHello, "version"): st.just(r.VERSION),
    (r.PeerHello, "incarnation"): ids16,
    (r.PeerHello, "process"): ids16 | st.just(b""),
    (r.ClientHello, "version"): st.just(r.VERSION),
    (r.ServerHello, "version"): st.just(r.VERSION),
    (r.ServerHello, "members"): st.lists(st.tuples(ints, texts), max_size=4).map(tuple),
    (r.Problem, "code"): codes,
    (r.Append, "client"): names,
    (r.Append, "serial"): st.integers(1, 2**62),
    (r.Append, "items"): st.lists(payloads, min_size=1, max_size=6),
    (r.AppendAfter, "client"): names,
    (r.AppendAfter, "serial"): st.integers(1, 2**63 - 1),
    (r.AppendAfter, "item"): payloads,
    (q.OpenSession, "name"): names,
    (q.OpenSession, "nonce"): ids16,
    (q.DropSession, "name"): names,
    (q.Appended, "origin"): st.none(),
    (q.Appended, "client"): names,
    (q.Appended, "serial"): st.integers(1, 2**63 - 1),
    (q.Appended, "lsns"): st.lists(ints, max_size=6),
    (r.AppendRefused, "client"): names,
    (r.AppendRefused, "code"): codes,
    (r.RequestRefused, "code"): codes,
    (q.Sessions, "rows"): st.lists(st.builds(
        SessionRow, texts, ints, st.just(b""), st.just(0), ints, ints, ints, st.just([]), st.just(0),
    ), max_size=4),
    (r.Page, "entries"): st.lists(st.tuples(ints, ints, ints, texts, ints, ints, ints, payloads), max_size=4),
    (r.EventList, "rows"): st.lists(st.tuples(ints, ints, texts, texts), max_size=4),
    (r.StatusAnswer, "fields"): st.dictionaries(texts, plain, max_size=4),
    (q.Outcome, "client"): names,
    (q.SetCursor, "name"): names,
    (q.SetCursor, "lsn"): st.integers(1, 2**63 - 1),
    (q.DropCursor, "name"): names,
    (q.DropCursor, "lsn"): st.just(0),
    (q.DropCursor, "why"): st.just("operator"),
    (r.CursorTable, "rows"): st.lists(st.tuples(texts, ints, ints, ints), max_size=4),
    (r.AwaitReplicated, "lsn"): st.integers(1, 2**63 - 1),
    (q.ChangeSettings, "changes"): st.lists(st.tuples(names.filter(short), ints, ints), max_size=4).map(tuple),
    (q.SettingsAre, "values"): st.dictionaries(names.filter(short), ints, max_size=4),
    (q.MembersChanged, "members"): st.lists(st.lists(plain, max_size=4), max_size=3),
    (r.BackupHead, "schema"): st.integers(1, 2**63 - 1),
    (r.BackupRows, "table"): names,
    (r.BackupRows, "rows"): st.lists(st.lists(ints | texts | payloads, max_size=15).map(tuple), max_size=4),
    (r.Replicated, "behind"): st.lists(ints, max_size=4).map(tuple),
    (q.Outcome, "serial"): ints.map(lambda n: n or 1),
    (q.ChangeMember, "id"): st.integers(1, 2**63 - 1),
    (q.ChangeMember, "priority"): st.integers(-1000, 1000),
    (q.Transfer, "target"): st.integers(1, 2**63 - 1),
    (m.SnapshotPart, "parts"): st.integers(1, 2**63 - 1),
    (m.SnapshotPart, "rows"): st.lists(st.builds(
        SessionRow, names, ints, maybe16, ints, ints, ints, ints,
        st.lists(st.tuples(ints, ints, ints, ints, ids16), max_size=3), ints,
    ), max_size=3).map(tuple),
    (r.RangeDigest, "first_id"): st.integers(1, 2**63 - 1),
    (r.RangeDigest, "last_id"): st.integers(1, 2**63 - 1),
    (r.DigestIs, "first_id"): st.integers(1, 2**63 - 1),
    (r.DigestIs, "digest"): ids16,
    (r.ColumnPage, "names"): st.lists(texts, max_size=4),
    (r.ColumnPage, "steps"): st.lists(st.integers(0, 1), max_size=4).map(bytes),
    (q.Told, "fate"): st.sampled_from(Fate),
    (q.Told, "birth"): ints,
    (r.ClientHello, "log"): texts.filter(short),
    (r.ServerHello, "name"): texts.filter(short),
    (r.ServerHello, "number"): st.integers(1, 2**63 - 1),
    **{(cls, "name"): texts.filter(short) for cls in (q.CreateLog, q.SetLog, q.RenameLog, q.DeleteLog)},
    (q.RenameLog, "new"): texts.filter(short),
    (q.CreateLog, "nonce"): ids16,
    (q.DeleteLog, "nonce"): ids16,
    (q.CreateLog, "settings"): st.dictionaries(names.filter(short), ints, max_size=4),
    (q.SetLog, "changes"): st.lists(st.tuples(names.filter(short), ints), max_size=4).map(tuple),
    (q.LogIs, "log"): st.builds(LOG._replace, number=st.integers(2, 2**62), nonce=ids16),
    (q.LogDeleted, "log"): st.builds(GONE._replace, number=st.integers(2, 2**62), ended=ids16),
    (q.LogsAre, "listing"): st.sampled_from([Listing(), Listing((LOG,), (GONE,), 9)]),
    **{(cls, "rank"): ranks for cls in (m.CanvassRequest, m.VoteRequest, m.DeferRequest)},
    (m.VoteAnswer, "holder_rank"): st.none() | ranks,
    (r.PeerHello, "timers_ms"): st.tuples(ints, ints, ints),
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
    simple = {Hashable: ints, int: ints, bool: st.booleans(), str: texts, bytes: maybe16, type(None): st.none()}
    return simple[hint]


def of_class(cls: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    fields = {name: FIELDS[cls, name] if (cls, name) in FIELDS else of_type(hint) for name, hint in hints.items()}
    return st.builds(cls, **fields)


FIELDS[q.CreateLog, "options"] = of_class(LogOptions)  # the compiled class does not tell its type


HELLOS = (*typing.get_args(r.Hello), r.Problem)
REQUESTS = typing.get_args(r.ClientRequest)
REPLIES = (*typing.get_args(r.ServerReply), r.Problem)
HOST_MESSAGES = typing.get_args(HostMessage)
MESSAGES = typing.get_args(m.Message)


def through_a_frame(framed: bytes) -> bytes | memoryview:
    (body,) = FrameReader(1 << 24).feed(framed)
    return body


#: Fields that do not travel.
AT_HOME = {q.Appended: {"origin"}, q.DropCursor: {"lsn", "why"}}


def test_every_type_has_one_number_and_one_place() -> None:
    shapes = (*client_codec.SHAPES, *codec.SHAPES, *codec.HOST_SHAPES)
    assert {shape.cls for shape in shapes} == {*HELLOS, *REQUESTS, *REPLIES, *MESSAGES, *HOST_MESSAGES}
    assert len({shape.number for shape in shapes}) == len(shapes)
    for shape in shapes:
        at_home = {name for name in shape.cls._fields if name not in shape.fields}
        assert at_home == AT_HOME.get(shape.cls, set()), shape.cls


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
    wanted = message._replace(item=(1, message.item)) if cls is r.AppendAfter else wanted
    got = codec.decode_client(through_a_frame(codec.encode(message)))
    assert got == wanted and type(got) is cls


@given(st.lists(payloads | batches, min_size=1, max_size=6))
def test_appends_with_batches(items: list[Any]) -> None:
    request = codec.decode_client(through_a_frame(codec.encode(r.Append("c", 0, 1, False, False, items))))
    assert isinstance(request, r.Append)
    assert request.items == [item if isinstance(item, tuple) else (1, item) for item in items]


@given(payloads | batches, ints)
def test_a_conditional_append_of_a_payload_or_a_batch(item: Any, expect_last: int) -> None:
    request = codec.decode_client(through_a_frame(codec.encode(r.AppendAfter("c", 0, 1, True, expect_last, item))))
    assert isinstance(request, r.AppendAfter)
    assert request.items == [item if isinstance(item, tuple) else (1, item)] and not request.sparse
    assert (request.by_hand, request.expect_last) == (True, expect_last)


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
    got = codec.decode_peer(through_a_frame(codec.encode_envelope(envelope)))
    assert got == envelope
    assert type(got.message) is cls and type(got.sender) is Identity
    if isinstance(got.message, m.AppendRequest):
        assert all(type(entry) is Entry for entry in got.message.entries)


@pytest.mark.parametrize("message", HOSTS, ids=lambda message: type(message).__name__)
def test_messages_between_hostings(message: Any) -> None:
    body = through_a_frame(codec.encode_host(message))
    assert codec.decode_peer(body) == message and type(codec.decode_peer(body)) is type(message)
    with pytest.raises(WireError, match="nothing that servers say to each other"):
        codec.decode_peer(body, 4)


@given(entry_runs())
def test_entries_packed_beforehand_make_the_same_frame(run: list[Entry]) -> None:
    envelope = m.Envelope(b"", Identity(1, b""), Identity(2, b""), m.AppendRequest(1, 2, 1, 0, 0, 9, run))
    assert codec.encode_envelope(envelope, codec.encode_entries(run)) == codec.encode_envelope(envelope)


#: Around the lengths at which msgpack writes another head, and from which on a body is not copied.
edge_sizes = st.sampled_from([0, 255, 256, APART_BYTES_MIN - 1, APART_BYTES_MIN, (1 << 16) - 1, 1 << 16])


@given(edge_sizes, st.lists(edge_sizes, max_size=20))
def test_large_bodies_travel_without_a_copy_in_the_same_frame(first: int, rest: list[int]) -> None:
    bodies = [bytes([n]) * size for n, size in enumerate([max(first, APART_BYTES_MIN), *rest])]
    run = [seal(id, 1, Kind.DATA, 1, id, body, "~c", id, 0, 1) for id, body in enumerate(bodies, 1)]
    envelope = m.Envelope(b"", Identity(1, b""), Identity(2, b""), m.AppendRequest(1, 2, 0, 0, 0, 9, run))
    entries = codec.encode_entries(run)
    assert b"".join(entries) == pack(run)
    assert b"".join(codec.encode_long(envelope, entries)) == codec.encode_envelope(envelope)
    items = [body if n % 3 else (2, join_payloads([body[:5], body[5:]])) for n, body in enumerate(bodies)]
    append = r.Append("~c", 0, 1, False, False, items)
    parts = client_codec.encode_parts(append)
    got = client_codec.decode_client(through_a_frame(b"".join(parts)))
    assert got == client_codec.decode_client(through_a_frame(client_codec.encode(append)))
    for sent, kept in ((entries, bodies), (parts, [item if isinstance(item, bytes) else item[1] for item in items])):
        large = [body for body in kept if len(body) >= APART_BYTES_MIN]
        assert [part for part in sent if any(part is body for body in large)] == large


def test_requests_with_small_bodies_are_one_part() -> None:
    append = r.Append("~c", 0, 1, False, False, [b"x", bytes(1 << 16)])
    assert client_codec.encode_parts(append) == [client_codec.encode(append)]
    after = r.AppendAfter("~c", 0, 1, False, 0, bytes(1 << 16))
    assert client_codec.encode_parts(after) == [client_codec.encode(after)]
