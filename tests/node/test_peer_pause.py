"""The pause between attempts to dial a peer (`peers`' laws)."""

from __future__ import annotations

import trio
import trio.testing

from alpo.node.peers import Peer


def waited(*, before: bool, within: bool) -> float:
    async def main() -> float:
        peer = Peer(2)
        if before:
            peer.kick()
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            if within:

                async def kick() -> None:
                    await trio.sleep(0.2)
                    peer.kick()

                nursery.start_soon(kick)
            assert await peer.pause(1.0, 0.05) == within
        return trio.current_time() - began_s

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_pause_is_as_long_as_said() -> None:
    assert round(waited(before=False, within=False), 3) == 1.0


def test_a_kick_ends_a_pause() -> None:
    assert round(waited(before=False, within=True), 3) == 0.2


def test_a_kick_while_an_attempt_was_under_way_shortens_the_pause_after_it() -> None:
    assert round(waited(before=True, within=False), 3) == 0.05
