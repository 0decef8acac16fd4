"""Quotas: no client appends faster than allowed for long, no append is refused or lost, and others are not held up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from node_rig import Client, Rig, append, connect, random_id, rig, until

from alpo.core import requests as q
from alpo.core.settings import Settings
from alpo.node.admission import BURST_S, Allowance, Appends, Limits, Quotas
from alpo.node.counters import Counters, Elections
from alpo.node.host import Host
from alpo.wire import requests as w

RATES = Settings(quota_appends_per_s=1000, quota_bytes_per_s=100_000)


@given(
    st.lists(st.tuples(st.floats(0, 0.5), st.integers(1, 5000), st.integers(1, 200_000)), min_size=1, max_size=60),
    st.integers(1, 5000), st.integers(1, 500_000),
)
def test_no_schedule_gets_more_than_the_rate_and_one_burst(
    wishes: list[tuple[float, int, int]], appends_per_s: int, bytes_per_s: int
) -> None:
    quotas, now_s, taken, taken_bytes = Quotas(), 100.0, 0, 0.0
    settings = Settings(quota_appends_per_s=appends_per_s, quota_bytes_per_s=bytes_per_s)
    largest, largest_bytes = 1, 0.0
    for pause_s, appends, size in wishes:
        now_s += pause_s
        count = quotas.take("a", appends, size, settings, now_s)
        assert 0 <= count <= appends
        taken, taken_bytes = taken + count, taken_bytes + size * count / appends
        largest_bytes = max(largest_bytes, size / appends)
        assert (count > 0) == (count == appends or quotas.wait_s("a", now_s) >= 0) or count == 0
        span_s = now_s - 100.0 + BURST_S
        assert taken <= span_s * appends_per_s * (1 + 1e-9) + largest + 1
        assert taken_bytes <= span_s * bytes_per_s * (1 + 1e-9) + largest_bytes + 1
        wait_s = quotas.wait_s("a", now_s)
        if count == 0:
            assert wait_s > 0
            assert quotas.take("a", 1, 1, settings, now_s + wait_s + 1e-6) == 1
            taken, taken_bytes, now_s = taken + 1, taken_bytes + 1, now_s + wait_s + 1e-6


def test_clients_have_accounts_of_their_own_and_those_slowed_are_named() -> None:
    quotas = Quotas()
    assert quotas.take("a", 250, 10, RATES, 5.0) == 250
    assert quotas.take("a", 1000, 10, RATES, 5.0) == 1  # one more append at the limit, paid for by waiting later
    assert quotas.take("a", 1, 1, RATES, 5.0) == 0
    assert quotas.take("b", 100, 10, RATES, 5.0) == 100
    assert quotas.slowed(6.0) == ["a"] and quotas.slowed(60.0) == []
    assert quotas.wait_s("nobody", 5.0) == 0


def test_one_append_above_the_burst_is_let_through_and_paid_for() -> None:
    quotas = Quotas()
    assert quotas.take("a", 1, 1_000_000, RATES, 5.0) == 1
    assert quotas.wait_s("a", 5.0) == pytest.approx(10 - BURST_S)


async def _with_quota(found: Rig, **quota: int) -> Client:
    leader = await found.leader()
    client = await connect(found.addresses[leader.us.me.id - 1])
    changes = tuple((name, 0, value) for name, value in quota.items())
    assert isinstance(await client.ask(q.ChangeSettings(1, changes)), q.SettingsAre)
    return client


async def _held(found: Rig, count: int) -> tuple[Client, Host]:
    """A client whose append of so many payloads waits for its quota, and the server that leads."""
    client, leader = await _with_quota(found, quota_appends_per_s=1), await found.leader()
    await client.send(append(random_id(), 1, *(b"x" for _ in range(count))))
    await until(lambda: leader.driver.counters.quota_waits == 1)
    return client, leader


async def _append_all(client: Client, name: str, count: int) -> list[int]:
    """LSNs of ``count`` appends, sent in one frame."""
    await client.send(append(name, 1, *(b"%d" % number for number in range(count))))
    lsns: list[int] = []
    while len(lsns) < count:
        reply = await client.receive()
        assert isinstance(reply, q.Appended), reply
        lsns.extend(reply.lsns)
    return lsns


@pytest.mark.trio
async def test_a_run_beyond_the_quota_is_appended_in_order_and_takes_its_time() -> None:
    async with rig(3) as found:
        client = await _with_quota(found, quota_appends_per_s=200)
        leader = await found.leader()
        began_s = trio.current_time()
        lsns = await _append_all(client, random_id(), 150)
        assert lsns == list(range(1, 151))
        assert trio.current_time() - began_s >= (150 - 1) / 200 - BURST_S  # a bound, and no measurement
        assert leader.driver.counters.quota_waits >= 1
        status = await client.ask(w.Status(9))
        assert status.fields["slowed"] == ["127.0.0.1"]


@pytest.mark.trio
async def test_another_client_is_not_held_up() -> None:
    async with rig(3) as found:
        greedy = await _with_quota(found, quota_appends_per_s=50)
        leader = await found.leader()
        modest = await connect(found.addresses[leader.us.me.id - 1])
        opened = await modest.ask(q.OpenSession(1, "modest", 0, b"n" * 16))
        await greedy.send(append(random_id(), 1, *(b"x" for _ in range(1000))))
        await until(lambda: leader.driver.counters.quota_waits == 1)
        for serial in range(1, 6):
            answer = await modest.ask(w.Append("modest", opened.epoch, serial, False, False, [b"y"]))
            assert isinstance(answer, q.Appended)
        assert leader.replica.log.next_lsn < 500  # the greedy one is far from done


@pytest.mark.trio
async def test_a_quota_that_is_lifted_lets_what_waits_go() -> None:
    async with rig(3) as found:
        _client, leader = await _held(found, 500)
        other = await connect(found.addresses[leader.us.me.id - 1])
        await other.ask(q.ChangeSettings(1, (("quota_appends_per_s", 1, 0),)))
        await until(lambda: leader.replica.log.next_lsn == 501)


@pytest.mark.trio
async def test_a_client_that_leaves_while_it_waits_is_forgotten() -> None:
    async with rig(3) as found:
        client, leader = await _held(found, 500)
        client.stream.socket.close()
        await until(lambda: not leader.listener.clients)


@pytest.mark.trio
async def test_a_leader_that_is_deposed_answers_what_it_held() -> None:
    async with rig(3) as found:
        client, leader = await _held(found, 20)
        other = await connect(found.addresses[leader.us.me.id - 1])
        await other.ask(q.Transfer(1, leader.us.me.id % 3 + 1))
        answered = 0
        while answered < 20:
            reply = await client.receive()
            answered += len(reply.lsns) if isinstance(reply, q.Appended) else reply.count
        assert isinstance(reply, w.AppendRefused)


@pytest.mark.trio
async def test_a_saturated_server_gives_every_connection_its_turn() -> None:
    limits = Limits(inflight_bytes_max=1 << 20)
    async with rig(3, limits=limits, election_timeout_s=20.0) as found:  # a machine that stalls deposes nobody
        leader = await found.leader()
        at, greedy = found.addresses[leader.us.me.id - 1], 8
        modest, name = await connect(at), random_id()

        async def append_on() -> None:
            client, other, serial = await connect(at), random_id(), 1
            async with trio.open_nursery() as own:
                async def read_on() -> None:
                    while True:
                        await client.receive()

                own.start_soon(read_on)
                while True:
                    await client.send(append(other, serial, b"x" * 100_000))
                    serial += 1

        async with trio.open_nursery() as nursery:
            for _ in range(greedy):
                nursery.start_soon(append_on)
            await until(lambda: leader.driver.full)
            for serial in range(1, 31):
                before = leader.driver.counters.appended_bytes
                assert isinstance(await modest.ask(append(name, serial, b"y")), q.Appended)
                # Ahead of it is what was in flight, and what one look at each of the other connections brought.
                ahead = leader.driver.counters.appended_bytes - before
                assert ahead <= 2 * limits.inflight_bytes_max + 4 * greedy * 100_000, serial
            nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_many_connections_of_one_client_take_turns(autojump_clock: trio.testing.MockClock) -> None:
    settings, posted, waits, many = Settings(quota_appends_per_s=100), [0] * 200, 0, 200
    driver: Any = SimpleNamespace(
        quotas=Quotas(), counters=Counters(Elections(1)), replica=SimpleNamespace(settings=settings, reign=True),
        kick=lambda: None, full=False,
    )

    async def one(number: int) -> None:
        nonlocal waits

        def hand_on(request: Appends, size_bytes: int) -> None:
            posted[number] += len(request.items)

        allowance = Allowance(driver, lambda client: "the same", hand_on)
        while True:
            allowance.post(append("x", 1, b"x"), 1)
            while allowance.held:
                waits += 1
                await allowance.wait()
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for number in range(many):
            nursery.start_soon(one, number)
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert 1900 <= sum(posted) <= 2030  # at the rate, and a burst
    assert max(posted) - min(posted) <= 30
    assert waits <= 2 * sum(posted) + many  # nobody is woken in vain


def test_a_debt_ends_with_the_rates_that_it_was_made_at() -> None:
    quotas = Quotas()
    assert quotas.take("a", 1, 1_000_000, RATES, 5.0) == 1
    assert quotas.take("a", 1, 1, RATES, 6.0) == 0
    higher = Settings(quota_appends_per_s=1000, quota_bytes_per_s=100_000_000)
    assert quotas.take("a", 1, 1, higher, 6.0) == 1


@pytest.mark.trio
async def test_what_a_client_that_left_had_waiting_is_nobody_else_s_debt() -> None:
    async with rig(3) as found:
        _client, leader = await _held(found, 500)
        connection = next(iter(leader.listener.clients))
        before = leader.replica.log.next_lsn
        connection.link.close("the network")
        assert connection._payer(random_id()) == "127.0.0.1"
        await until(lambda: not leader.listener.clients)
        assert leader.driver.quotas.slowed(trio.current_time()) == ["127.0.0.1"]
        assert leader.replica.log.next_lsn <= before + 1
