"""Status of a peer that is not connected: it tells of the member itself, not of another server at its address."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from driver_kit import Passes

from alpo.core.members import Identity, Member, MemberList, Role
from alpo.node.counters import Counters, Elections
from alpo.node.driver import Driver
from alpo.node.link import LinkClosed
from alpo.node.peers import Peer, Peers
from alpo.node.poller import Poller
from alpo.node.routes import Ourselves, Route, Routes
from alpo.node.security import Security

OLD, NEW, OTHER = b"o" * 16, b"n" * 16, b"x" * 16
ME = Identity(1, b"m" * 16)
LISTED, CONFIGURED = "10.0.0.3:7100", "10.0.0.9:7100"


class Line:
    """A connection that the other side ends after a while; adds the peer's trouble before that to ``found``."""

    remote = CONFIGURED

    def __init__(self, peer: Peer, found: list[str]) -> None:
        self._peer, self._found = peer, found

    async def drain(self) -> None:
        await trio.sleep_forever()

    async def deliver(self, *_: object) -> None:
        await trio.sleep(1)
        self._found.append(self._peer.trouble)
        raise LinkClosed("the other side closed the connection")


def peers_of(member: Member) -> Peers:
    latest = MemberList.of([Member(1, "10.0.0.1:7100", 0, ME.incarnation, Role.VOTER), member])
    replica = SimpleNamespace(
        members=SimpleNamespace(latest=latest, identity=latest.identity_of),
        reign=None, leadership=None, asked_id=0, asked_address=lambda id: "", address_of=lambda id: LISTED,
        status_text="VOTING",
        first_start=SimpleNamespace(started=True), cluster=b"c" * 16, out=SimpleNamespace(cluster=b"c" * 16),
    )
    driver = SimpleNamespace(
        replica=replica, clock_s=trio.current_time, post=lambda item: None, kick=lambda **_: None,
        note=lambda *_, **__: None, counters=Counters(Elections(1)),
    )
    us, poller = Ourselves(ME, "10.0.0.1:7100", (100, 500, 25)), Poller(Passes())
    return Peers(us, cast(Driver, driver), poller, Routes(), {3: CONFIGURED}, Security())


async def troubles(peers: Peers, monkeypatch: pytest.MonkeyPatch, answers: bytes) -> list[str]:
    """The peer's trouble before and in each session: no server at the listed address, this disk at the other one."""
    found: list[str] = []

    async def session(peer: Peer, address: str) -> bool:
        found.append(peer.trouble)
        if len(found) > 9:
            dialling.cancel()
        if address == LISTED:
            raise OSError("nobody is there")
        await peers._converse(peer, Route(cast(Any, Line(peer, found)), False, 2), Identity(3, answers), [])
        return False

    monkeypatch.setattr(peers, "_session", session)
    with trio.CancelScope() as dialling:
        async with trio.open_nursery() as peers._nursery:
            peers.by_id[3] = Peer(3)
            await peers._keep_dialled(peers.by_id[3])
    return found


@pytest.mark.trio
async def test_the_disk_that_was_replaced_speaks_for_nobody(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    peers = peers_of(Member(3, LISTED, 0, NEW, Role.VOTER, (OLD,)))
    found = await troubles(peers, monkeypatch, OLD)
    assert set(found[3:]) == {"nobody is there"} and not any("lost" in why for why in found)
    peer = Peer(3)
    peers.by_id[3] = peer
    peers.heard_from(Identity(3, OLD), "10.0.0.8:7100", True)
    assert peer.said_address == "" and not peer._kick.is_set()
    peers.heard_from(Identity(3, NEW), "10.0.0.8:7100", True)
    assert peer.said_address == "10.0.0.8:7100" and peer._kick.is_set()


@pytest.mark.trio
async def test_a_removed_server_is_dialled_only_while_it_is_connected_and_is_no_trouble(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    peers, dialled = peers_of(Member(3, "", 0, OLD, Role.GONE, (OLD,))), trio.Event()

    async def session(peer: Peer, address: str) -> bool:
        dialled.set()
        raise OSError("nobody is there")

    monkeypatch.setattr(peers, "_session", session)
    accepted = peers._routes.accepted
    async with trio.open_nursery() as nursery:
        peers._nursery = nursery
        peers.follow_others(frozenset(), frozenset({3}))
        for who, full in ((Identity(3, NEW), True), (Identity(3, OLD), False)):
            accepted[who] = Route(cast(Any, None), full, 5)
            peers.heard_from(who, "10.0.0.3:7100", True)
            assert 3 not in peers.by_id
        accepted[Identity(3, OLD)] = Route(cast(Any, None), True, 5)
        peers.heard_from(Identity(3, OLD), "10.0.0.3:7100", True)
        await dialled.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert peers.by_id[3].trouble == "" and peers.by_id[3].outage is None
        del accepted[Identity(3, OLD)]
    assert 3 not in peers.by_id


@pytest.mark.trio
async def test_a_disk_that_nobody_knows_is_told_as_lost_or_wiped(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    found = await troubles(peers_of(Member(3, LISTED, 0, NEW, Role.VOTER, (OLD,))), monkeypatch, OTHER)
    assert {"nobody is there", "its disk is not the one that the member list knows: it was lost or wiped"} < set(found)
