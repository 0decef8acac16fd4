"""What a program is told when no server would do: first what living servers say, then who does not answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from fake_cluster import FakeCluster, fake_cluster

import alpo
from alpo.client.reasons import ADDRESSES_MAX, TOLD_MAX, Reasons
from alpo.client.servers import Servers, given_servers
from alpo.core.requests import Code

pytestmark = pytest.mark.anyio

Call = Callable[[alpo.Log], Awaitable[object]]
#: Everything that needs a leader.
CALLS: dict[str, Call] = {
    "append": lambda log: log.append(b"x"),
    "opened": lambda log: log.opened(),
    "last": lambda log: log.last(),
    "end": lambda log: log.end(),
    "trim": lambda log: log.trim(1),
    "transfer": lambda log: log.transfer(1),
    "remove_member": lambda log: log.remove_member(3),
    "settings": lambda log: log.settings(),
    "sessions": lambda log: log.sessions(),
    "cursors": lambda log: log.cursors(),
    "outcome": lambda log: log.outcome("c", 1),
    "append_by_hand": lambda log: log.append_by_hand([b"x"], client="c", serial=1),
}


def one_lives(c: FakeCluster) -> None:
    c.lead(0)
    for id in (1, 3):
        c.servers[id].kill()


@pytest.mark.parametrize("name", CALLS)
async def test_the_living_server_is_heard_first(name: str) -> None:
    async with fake_cluster() as c:
        one_lives(c)
        log = alpo.connect(c.addresses, client="c" if name == "opened" else None, timeout_s=0.3)
        with pytest.raises(alpo.Unavailable) as caught:
            await CALLS[name](log)
        await log.close()
        said = str(caught.value)
        living, dead = c.servers[2].address, [c.servers[id].address for id in (1, 3)]
        assert f": 1 of 3 servers answers, less than a majority (see alpo status); {living} knows no leader; " in said
        for address in dead:
            assert said.count(f"{address}: connection refused") == 1
            assert said.index(living) < said.index(address)
        assert "0.3 s" in said or name in ("append", "opened")


async def test_a_leader_that_is_gone_is_named() -> None:
    async with fake_cluster() as c, alpo.connect(c.addresses, timeout_s=0.3) as log:
        c.servers[1].kill()
        with pytest.raises(alpo.Unavailable) as caught:
            await log.end()
        said = str(caught.value)
        assert f"{c.servers[2].address} takes server 1 for the leader" in said
        assert "majority" not in said
        assert f"{c.servers[1].address}: connection refused" in said


async def test_the_leaders_own_answer_goes_first() -> None:
    async with fake_cluster() as c:
        c.servers[3].kill()
        c.script = lambda server, append: Code.NO_SPACE
        for call in (CALLS["append"], CALLS["append_by_hand"]):
            assert isinstance(await error_once_answered(c, call), alpo.NoSpace)


async def error_once_answered(c: FakeCluster, call: Call) -> BaseException:
    """The error of a call that had time to hear the leader: with longer timeouts on a machine that stalls."""
    for timeout_s in (0.3, 3.0, 30.0):
        asked = len(c.appends)
        async with alpo.connect(c.addresses, timeout_s=timeout_s) as log:
            with pytest.raises(alpo.AlpoError) as caught:
                await call(log)
        # It asked again, so it heard the first answer; and its time was not up while the next one was on its way.
        if len(c.appends) > asked + 1 and not isinstance(caught.value, alpo.NotGuaranteed):
            break
    return caught.value


async def test_what_is_over_is_not_told() -> None:
    async with fake_cluster() as c:
        servers = Servers(given_servers(c.addresses))
        one_lives(c)
        assert await servers.find_leader() is None
        assert "connection refused" in str(servers.reason)
        c.lead(2)
        found = await servers.find_leader()
        assert found is not None and servers.reason is None
        servers.close()


def test_the_most_telling_reason() -> None:
    reasons = Reasons()
    assert reasons.told is None
    reasons.lost("a", alpo.Unavailable("a: refused"))
    assert str(reasons.told) == "a: refused"
    reasons.says("b", alpo.Unavailable("b knows no leader"))
    reasons.lost("c", alpo.Unavailable("c: refused"))
    reasons.lost("a", alpo.Unavailable("a: refused"))
    assert str(reasons.told) == "b knows no leader; a: refused; c: refused"
    reasons.answered("c", alpo.NoSpace("disk full"))
    assert isinstance(reasons.told, alpo.NoSpace)
    assert str(reasons.told) == "disk full; b knows no leader; a: refused"
    reasons.lost("b", alpo.Overloaded("b: too many clients"))
    assert str(reasons.told) == "b: too many clients; disk full; a: refused"
    reasons.counted(2, 3)
    assert "majority" not in str(reasons.told)
    reasons.counted(2, 4)
    assert "; disk full; 2 of 4 servers answer, less than a majority (see alpo status); a:" in str(reasons.told)
    reasons.found("c")
    assert str(reasons.told) == "disk full"
    reasons.found("a")
    assert reasons.told is None


def test_it_is_bounded() -> None:
    reasons = Reasons()
    for n in range(2 * ADDRESSES_MAX):
        reasons.lost(f"h{n}", alpo.Unavailable(f"h{n}: refused"))
    assert len(reasons._known) == ADDRESSES_MAX
    assert str(reasons.told).split("; ")[TOLD_MAX:] == [f"{ADDRESSES_MAX - TOLD_MAX} more"]
