"""The client's small parts by themselves."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpo.client.arguments import batch, check_name, single
from alpo.client.record import records_of
from alpo.client.servers import given_servers
from alpo.client.session import Opening, Session, random_id
from alpo.core.entries import is_random, join_payloads
from alpo.core.requests import Appended, Code
from alpo.errors import Closed, Fenced, NotGuaranteed, ProtocolError, Refused, TooLarge, Unavailable
from alpo.wire.requests import AppendRefused

TIMES = st.integers(0, (1 << 48) - 2)


@given(time_ms=TIMES, horizon_ms=TIMES)
def test_random_ids_are_uuids_of_version_7(time_ms: int, horizon_ms: int) -> None:
    client = random_id(time_ms, horizon_ms)
    assert is_random(client)
    value = uuid.UUID(client[1:])
    assert (value.version, value.variant) == (7, uuid.RFC_4122)
    assert value.int >> 80 == max(time_ms, horizon_ms + 1)
    assert client != random_id(time_ms, horizon_ms)


def test_names() -> None:
    assert check_name("ä" * 64) == "ä" * 64
    for name in ("", "~a", "ä" * 65):
        with pytest.raises(ValueError, match="client name"):
            check_name(name)


def test_the_servers_to_begin_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALPO_SERVERS", raising=False)
    assert given_servers(None) == ("127.0.0.1:7100",)
    monkeypatch.setenv("ALPO_SERVERS", " ")
    assert given_servers(None) == ("127.0.0.1:7100",)
    monkeypatch.setenv("ALPO_SERVERS", "a:1, b,[::1]")
    assert given_servers(None) == ("a:1", "b:7100", "[::1]:7100")
    assert given_servers("c") == given_servers(["c", "c:7100"]) == ("c:7100",)
    wrongs: tuple[str | list[str], ...] = ("", ",", "a:0", "a..b", [])
    for wrong in wrongs:
        with pytest.raises(ValueError, match="HOST"):
            given_servers(wrong)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.integers(1, 12), st.integers(1, 12))
def test_batches_come_back_as_records(payloads: list[bytes], first: int, last: int) -> None:
    parcel = batch(payloads)
    body = parcel.item if isinstance(parcel.item, bytes) else parcel.item[1]
    assert (parcel.number, parcel.size, parcel.largest) == (len(payloads), len(body), max(map(len, payloads)))
    records = records_of([(1, 1, 0, "c", 1, 4, len(payloads), body)], first, last)
    expected = [(lsn, p) for lsn, p in enumerate(payloads, 4) if first <= lsn <= last]
    assert [(r.lsn, r.payload) for r in records] == expected


def test_what_is_no_payload() -> None:
    with pytest.raises(ValueError, match="at least one"):
        batch([])
    with pytest.raises(TypeError):
        batch(b"bytes")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        single("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        batch([5])  # type: ignore[list-item]
    assert single(memoryview(b"abc")).item == b"abc"
    with pytest.raises(ProtocolError):
        records_of([(1, 1, 0, "c", 1, 1, 3, join_payloads([b"a", b"b"]))], 1, 9)


def test_a_nonce_for_each_epoch_named() -> None:
    nonces = iter([b"1", b"2"])
    opening = Opening("n", lambda: next(nonces))
    first = opening.ask(1)
    opening.lost()
    assert opening.ask(2)._replace(origin=1) == first
    opening.outdated(77)
    assert (opening.ask(3).replaces, opening.ask(3).nonce) == (77, b"2")


def refusal(serial: int, count: int, code: Code, number: int = 0) -> AppendRefused:
    return AppendRefused("n", serial, count, code, number, 0, "", "")


def opened(count: int) -> Session:
    """A named session with ``count`` appends just sent."""
    session = Session("n", 100, 1000)
    session.begin("n", 5, 10)
    for n in range(count):
        session.append(single(b"%d" % n), 0, False, 10.0)
    append = session.next_append()
    assert append is not None
    assert (append.serial, append.epoch, len(append.items)) == (11, 5, count)
    assert session.next_append() is None
    return session


def test_a_refusal_settles_its_own_transmission_only() -> None:
    session = opened(1)
    handle = session.line[0]
    session.lost()
    assert session.next_append() is not None
    session.refused(refusal(11, 1, Code.NOT_LEADER))
    session.rewind()
    session.expire(10.0)
    assert isinstance(handle.error, NotGuaranteed)  # the first one may have been taken


def test_a_serial_is_not_given_back_while_a_later_one_may_be_taken() -> None:
    session = opened(3)
    first, _, last = session.line
    session.refused(refusal(11, 1, Code.NOT_LEADER))
    session.lost()
    session.expire(10.0)
    assert isinstance(first.error, NotGuaranteed)
    assert last.serial == 13
    assert session.outcomes.unknown == 3


def test_the_clean_tail_is_given_back() -> None:
    session = opened(3)
    first, second, third = session.line
    session.refused(refusal(12, 2, Code.NOT_LEADER))
    session.lost()
    assert (first.serial, second.serial, third.serial) == (11, 0, 0)
    session.withdraw(second)
    assert isinstance(second.error, Unavailable)
    again = session.next_append()
    assert again is not None
    assert (again.serial, again.items) == (11, [b"0"])
    more = session.next_append()
    assert more is not None
    assert (more.serial, more.items) == (12, [b"2"])


def test_a_verdict_in_the_middle() -> None:
    session = opened(4)
    handles = list(session.line)
    session.refused(refusal(12, 1, Code.SKIPPED))
    session.lost()
    runs = [session.next_append(), session.next_append()]
    assert [(a.serial, len(a.items)) for a in runs if a is not None] == [(11, 1), (13, 2)]
    session.appended(Appended(None, "n", 11, [7], False))
    session.appended(Appended(None, "n", 13, [8, 9], True))
    assert [h.lsn for h in handles] == [7, None, 8, 9]
    assert session.idle


def test_fenced_settles_each_by_its_own_answer() -> None:
    session = opened(3)
    session.append(single(b"queued"), 0, False, 10.0)
    handles = [*session.line, *session.queue.handles]
    session.lost()
    assert session.next_append() is not None
    session.appended(Appended(None, "n", 11, [7], True))
    session.refused(refusal(12, 2, Code.FENCED, 9))
    assert handles[0].lsn == 7
    assert isinstance(handles[1].error, NotGuaranteed)
    fenced = handles[3].error
    assert isinstance(fenced, Fenced)
    assert fenced.epoch == 9
    assert session.idle
    with pytest.raises(Fenced):
        session.append(single(b"later"), 0, False, 10.0)


@pytest.mark.parametrize("epoch", [0, 12])
def test_a_drop_is_a_no_only_to_what_was_sent_once(epoch: int) -> None:
    session = opened(2)
    session.lost()
    assert session.next_append() is not None
    session.append(single(b"new"), 0, False, 10.0)
    assert session.next_append() is not None
    session.append(single(b"queued"), 0, False, 10.0)
    again, _, once, queued = [*session.line, *session.queue.handles]
    session.refused(refusal(11, 2, Code.DROPPED, epoch))
    session.refused(refusal(13, 1, Code.DROPPED, epoch))
    error = again.error
    assert isinstance(error, NotGuaranteed) and error.too_old
    for told in (once.error, queued.error):
        assert isinstance(told, Fenced) and "was dropped" in str(told) and told.epoch == epoch
    assert session.idle
    with pytest.raises(Fenced):
        session.append(single(b"later"), 0, False, 10.0)


def test_what_can_never_be_right_ends_a_named_session() -> None:
    session = opened(2)
    first, second = session.line
    session.refused(refusal(11, 1, Code.TOO_LARGE, 100))
    assert isinstance(first.error, TooLarge)
    assert isinstance(second.error, NotGuaranteed)
    with pytest.raises(Refused):
        session.append(single(b"x"), 0, False, 10.0)


def test_a_queue_takes_one_however_large_it_is() -> None:
    session = Session(None, 10, 100)
    session.append(single(bytes(1000)), 0, False, 10.0)
    assert not session.queue.has_room(1)
    error = session.close("closed")
    assert isinstance(error, Closed)
    assert session.close("closed") is None
