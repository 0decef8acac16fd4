"""Conditional appends: what the library sends, and what it makes of each answer."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from fake_cluster import CUT, SWALLOW, TAKE, TAKE_CUT, TAKE_MUTE, FakeServer, fake_cluster, until

import alpo
from alpo.client.arguments import After, single
from alpo.client.handle import Handle
from alpo.client.session import Session
from alpo.core.requests import Appended, Code
from alpo.wire.requests import VERSION, Append, AppendAfter, AppendRefused, ServerHello


def opened(name: str | None = "n") -> Session:
    session = Session(name, 100, 1000)
    session.limit(ServerHello(VERSION, b"", 1, 0, 0, 1000, 1000, 5, 1, ()))
    session.begin(name or "~1", 5, 10)
    return session


def queue(session: Session, text: bytes, expect_last: int | None = None, serial: int = 0) -> Handle:
    place = serial if expect_last is None else After(expect_last, serial)
    return session.append(single(text), place, False, 10.0)


def conflict(session: Session, serial: int, last_lsn: int) -> AppendRefused:
    return AppendRefused(session.client or "", serial, 1, Code.CONFLICT, last_lsn, 0, "", "")


def sent(session: Session) -> Append | AppendAfter:
    append = session.next_append()
    assert append is not None
    return append


def test_it_goes_alone() -> None:
    session = opened()
    before, first, second, behind = (queue(session, *each) for each in ((b"a",), (b"b", 7), (b"c", 8), (b"d",)))
    assert sent(session) == Append("n", 5, 11, False, False, [b"a"])
    assert session.next_append() is None
    session.appended(Appended(None, "n", 11, [7], False))
    assert sent(session) == AppendAfter("n", 5, 12, False, 7, b"b")
    assert session.next_append() is None
    session.appended(Appended(None, "n", 12, [8], False))
    assert sent(session) == AppendAfter("n", 5, 13, False, 8, b"c")
    assert session.next_append() is None
    session.appended(Appended(None, "n", 13, [9], False))
    assert sent(session) == Append("n", 5, 14, False, False, [b"d"])
    session.appended(Appended(None, "n", 14, [10], False))
    assert [each.lsn for each in (before, first, second, behind)] == [7, 8, 9, 10]


@pytest.mark.parametrize("again", [False, True])
def test_after_a_conflict_the_serial_is_free(again: bool) -> None:
    session = opened()
    handle, behind = queue(session, b"a", 7), queue(session, b"b")
    sent(session)
    if again:  # the log is beyond that LSN: no earlier transmission was taken, or ever will be
        session.lost()
        assert sent(session) == AppendAfter("n", 5, 11, False, 7, b"a")
    session.refused(conflict(session, 11, 9))
    error = handle.error
    assert isinstance(error, alpo.Conflict) and error.last_lsn == 9
    assert sent(session) == Append("n", 5, 11, False, False, [b"b"])
    session.appended(Appended(None, "n", 11, [10], False))
    assert behind.lsn == 10 and session.idle


@pytest.mark.parametrize("name", ["n", None])
def test_a_conflict_with_an_lsn_that_is_yet_to_come_is_one_if_it_was_sent_once(name: str | None) -> None:
    session = opened(name)
    handle = queue(session, b"a", 7)
    sent(session)
    session.refused(AppendRefused(session.client or "", 11, 1, Code.NOT_LEADER, 0, 0, "", ""))
    session.rewind()
    sent(session)
    session.refused(conflict(session, 11, 5))
    error = handle.error
    assert isinstance(error, alpo.Conflict) and error.last_lsn == 5
    queue(session, b"b")
    assert sent(session).serial == 11


@pytest.mark.parametrize("name", ["n", None])
def test_an_earlier_try_may_still_be_taken_once_the_log_reaches_that_lsn(name: str | None) -> None:
    session = opened(name)
    handle, behind = queue(session, b"a", 7), queue(session, b"b")
    sent(session)
    session.lost()
    sent(session)
    session.refused(conflict(session, 11, 5))
    error = handle.error
    assert isinstance(error, alpo.NotGuaranteed) and error.too_old
    assert session.next_append() is None  # no other append gets its serial
    if name is None:
        assert not session.ready and session.client is None
        session.begin("~2", 0, 0)
        assert sent(session) == Append("~2", 0, 1, False, False, [b"b"])
    else:
        assert isinstance(behind.error, alpo.Refused) and "CONFLICT" in str(behind.error)


def test_a_conflict_that_comes_after_the_deadline_is_its_outcome() -> None:
    session = opened()
    handle = queue(session, b"a", 7)
    sent(session)
    session.expire(10.0)
    assert isinstance(handle.error, alpo.NotGuaranteed)
    session.refused(conflict(session, 11, 9))
    outcome = session.outcomes.take_settled()[11]
    assert isinstance(outcome, alpo.Conflict) and session.idle and session.next_serial == 11


def test_a_serial_may_be_named() -> None:
    session = opened()
    done, above, next_one = (queue(session, b"x", 7, serial) for serial in (10, 13, 11))
    assert sent(session) == AppendAfter("n", 5, 11, False, 7, b"x")
    assert done.done and done.lsn is None and done.duplicate
    assert isinstance(above.error, alpo.SerialExpected)
    session.appended(Appended(None, "n", 11, [8], False))
    queue(session, b"x", 7, 11)
    assert sent(session) == AppendAfter("n", 5, 11, False, 7, b"x")
    session.appended(Appended(None, "n", 11, [8], True))
    assert next_one.lsn == 8 and session.next_serial == 12


@pytest.mark.anyio
async def test_through_a_connection() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        assert await log.append(b"a", expect_last=0) == 1
        with pytest.raises(alpo.Conflict, match="last LSN is 1") as caught:
            await log.append_text("b", expect_last=0)
        assert caught.value.last_lsn == 1
        assert await log.append_json({}, expect_last=1) == 2
        assert await log.append_batch([b"c", b"d"], expect_last=2) == range(3, 5)
        with pytest.raises(alpo.Conflict) as caught:
            await log.append_batch([b"e", b"f"], expect_last=2)
        assert caught.value.last_lsn == 4
        assert await log.append(b"g") == 5
    assert [a.serial for _, a in c.appends] == [1, 2, 2, 3, 4, 4]
    assert c.payloads[0] == b"a" and c.payloads[-1] == b"g"


@pytest.mark.anyio
@pytest.mark.parametrize("verdict", [CUT, TAKE_CUT, TAKE_MUTE, SWALLOW, Code.NOT_LEADER, Code.LOST_LEADERSHIP])
async def test_it_is_appended_once_whatever_becomes_of_the_first_try(verdict: str | Code) -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses, client="n", timeout_s=60) as log:
        await log.append(b"a")

        def once(server: FakeServer, append: Any) -> str | Code:
            c.script = lambda server, append: TAKE
            c.lead(2)
            return verdict

        c.script = once
        assert await log.append(b"b", expect_last=1) == 2
        assert await log.append(b"c") == 3
    assert c.payloads == [b"a", b"b", b"c"]


@pytest.mark.anyio
async def test_the_outcome_of_one_that_got_no_answer_is_settled() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        c.script = lambda server, append: SWALLOW
        with pytest.raises(alpo.NotGuaranteed):
            await log.append(b"a", expect_last=0, timeout_s=1.0)
        c.append("~other", 1, 0, 1, b"x")
        c.script = lambda server, append: TAKE
        c.servers[1].kill()
        c.lead(2)
        outcome = (await log.settle(timeout_s=20))[1]
        assert isinstance(outcome, alpo.Conflict) and outcome.last_lsn == 1
        assert await log.append(b"b", expect_last=1) == 2


@pytest.mark.anyio
async def test_a_retry_by_hand_is_judged_by_its_serial_first() -> None:
    async with fake_cluster() as c:
        async with alpo.connect(c.addresses, client="n") as log:
            await log.append(b"a", expect_last=0)
            await log.append(b"b")
            epoch = log.epoch
        async with alpo.connect(c.addresses) as log:
            again = await log.append_by_hand([b"a"], client="n", serial=1, epoch=epoch, expect_last=0)
            assert (again.lsn, again.duplicate) == (1, True)
            with pytest.raises(alpo.Conflict) as caught:
                await log.append_by_hand([b"c"], client="n", serial=3, epoch=epoch, expect_last=1)
            assert caught.value.last_lsn == 2
            with pytest.raises(alpo.NotGuaranteed) as unknown:  # another process may have sent it
                await log.append_by_hand([b"c"], client="n", serial=3, epoch=epoch, expect_last=5)
            assert unknown.value.too_old
            assert (await log.append_by_hand([b"c"], client="n", serial=3, epoch=epoch, expect_last=2)).lsn == 3


@pytest.mark.anyio
async def test_wrong_arguments() -> None:
    wrong: list[Any] = [-1, 1 << 63, True, 1.0, "1"]
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        for expect_last in wrong:
            with pytest.raises((TypeError, ValueError), match="expect_last"):
                await log.append(b"a", expect_last=expect_last)
            with pytest.raises((TypeError, ValueError), match="expect_last"):
                await log.append_by_hand([b"a"], client="n", serial=1, expect_last=expect_last)
        with pytest.raises(ValueError, match="serials"):
            await log.append(b"a", serial=0, expect_last=0)
    assert not c.appends


def test_blocking() -> None:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_cluster()) as c:
        with alpo.connect_sync(c.addresses) as log:
            assert log.append(b"a", expect_last=0) == 1
            assert log.append_batch([b"b", b"c"], expect_last=1) == range(2, 4)
            with pytest.raises(alpo.Conflict) as caught:
                log.append_text("d", expect_last=1)
            assert caught.value.last_lsn == 3
            with pytest.raises(ValueError, match="expect_last"):
                log.append(b"a", expect_last=-1)


@pytest.mark.anyio
async def test_a_cancelled_one_is_not_sent() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses) as log:
        c.script = lambda server, append: TAKE_MUTE
        first = log.append_nowait(b"a", timeout_s=1.0)
        await until(lambda: c.payloads)
        with anyio.move_on_after(0.05):
            await log.append(b"b", expect_last=1)
        c.script = lambda server, append: TAKE
        await until(lambda: first.done)
        assert first.error is not None
        c.servers[1].kill()
        c.lead(2)
        assert await log.settle(timeout_s=20) == {1: 1}
        assert await log.append(b"c", expect_last=1) == 2
    assert c.payloads == [b"a", b"c"]
