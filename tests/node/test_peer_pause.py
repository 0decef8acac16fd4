"""The pause between attempts to dial a peer (`peers`' laws)."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from alpo.node.peers import Peer

pytestmark = pytest.mark.trio


async def waited(peer: Peer, *, kicked: bool) -> float:
    began_s = trio.current_time()
    assert await peer.pause(1.0, 0.05) == kicked
    return round(trio.current_time() - began_s, 3)


async def test_a_pause_is_as_long_as_said(autojump_clock: MockClock) -> None:
    assert await waited(Peer(2), kicked=False) == 1.0


async def test_a_kick_ends_a_pause(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    peer = Peer(2)

    async def kick() -> None:
        await trio.sleep(0.2)
        peer.kick()

    nursery.start_soon(kick)
    assert await waited(peer, kicked=True) == 0.2


async def test_a_kick_while_an_attempt_was_under_way_shortens_the_pause_after_it(autojump_clock: MockClock) -> None:
    peer = Peer(2)
    peer.kick()
    assert await waited(peer, kicked=False) == 0.05
