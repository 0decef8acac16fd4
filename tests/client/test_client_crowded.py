"""Clients without a leader ask the less often the longer servers take to answer: they must not keep them too busy."""

from __future__ import annotations

import anyio
import pytest
import trio.testing

from alpo.client.connection import Connection, Lost
from alpo.client.servers import BUSY_TIMES, PAUSE_BUSY_MAX_S, PAUSE_ELECTION_S, Servers
from alpo.dialling import Way
from alpo.errors import Unavailable

ADDRESSES = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]


class Crowd:
    """Servers of which each takes so long to refuse; ``asked_s``: when they were."""

    def __init__(self, **takes_s: float) -> None:
        self.takes_s = dict(zip(ADDRESSES, takes_s.values(), strict=True))
        self.asked_s: list[float] = []
        self.servers = Servers(ADDRESSES, self._open)

    async def _open(self, address: str, cluster: bytes, timeout_s: float, way: Way) -> Connection:
        self.asked_s.append(anyio.current_time())
        await anyio.sleep(self.takes_s[address])
        raise Lost(Unavailable("it does not lead"))

    async def asked_within(self, seconds: float) -> int:
        """How often they are asked in so many seconds of a search."""
        with anyio.move_on_after(seconds):
            await self.servers.leader()
        return len(self.asked_s)


@pytest.mark.trio
async def test_servers_that_take_long_are_asked_less_often(autojump_clock: trio.testing.MockClock) -> None:
    quick = await Crowd(a=0.001, b=0.001, c=0.001).asked_within(2)
    slow = await Crowd(a=0.5, b=0.5, c=0.5).asked_within(6)
    assert quick > 20 * len(ADDRESSES)
    assert slow <= 5 * len(ADDRESSES)


@pytest.mark.trio
async def test_one_server_that_is_gone_delays_nobody(autojump_clock: trio.testing.MockClock) -> None:
    crowd = Crowd(a=0.001, b=1.0, c=0.001)
    await crowd.servers.find_leader()
    assert crowd.servers.busy_pause_s < PAUSE_ELECTION_S
    crowd.takes_s = dict.fromkeys(ADDRESSES, 0.1)
    await crowd.servers.find_leader()
    assert crowd.servers.busy_pause_s == pytest.approx(0.1 * BUSY_TIMES)
    crowd.takes_s = dict.fromkeys(ADDRESSES, 1.0)
    await crowd.servers.find_leader()
    assert crowd.servers.busy_pause_s == PAUSE_BUSY_MAX_S
