"""First messages of connections: every wrong one has a definite outcome, and harms no other connection."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any, cast

import msgpack  # type: ignore[import-untyped]
import pytest
import trio
import trio.testing
from node_rig import Client, append, connect, connect_raw, lone, random_id, rig, until

from alpo.core import messages as m
from alpo.core import requests as q
from alpo.core.members import Identity
from alpo.core.ranks import Rank
from alpo.core.requests import Code
from alpo.dialling import Way
from alpo.node.admission import Limits
from alpo.node.listener import STRANGER_S, Strangers
from alpo.node.routes import TWICE_S, Heard, Routes
from alpo.node.status import problems
from alpo.wire import requests as w
from alpo.wire.codec import decode_peer, encode, encode_envelope
from alpo.wire.framing import HELLO_BYTES_MAX, frame

OTHER = b"o" * 16


def peer_hello(cluster: bytes = b"", target: Identity | None = None, **fields: object) -> w.PeerHello:
    target = target or Identity(1, b"")
    hello = w.PeerHello(
        w.VERSION, cluster, 2, b"p" * 16, "127.0.0.1:1", target.id, target.incarnation, 1, 0, (100, 500, 25)
    )
    return hello._replace(**fields)  # type: ignore[arg-type]


async def told(client: Client) -> w.Problem:
    """The last word, after which the connection ends."""
    problem = await client.receive()
    assert isinstance(problem, w.Problem), problem
    assert await client.receive() is None
    return problem


async def still_serves(address: str) -> None:
    client = await connect(address)
    answer = await client.ask(append(random_id(), 1, b"x"))
    assert isinstance(answer, q.Appended), answer


@pytest.mark.trio
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (encode(w.ClientHello(w.VERSION, OTHER, "test")), "cluster 6f6f"),
        (frame(msgpack.packb([2, 99, b"", "test"])), "version 99"),
        (frame(msgpack.packb([1, 7, "what a later version may say"])), "version 7"),
        (encode(peer_hello(OTHER)), "cluster 6f6f"),
        (encode(peer_hello(id=1)), "two servers were given the same id"),
        (encode(peer_hello(target_id=3)), "this is server 1"),
        (encode(w.ServerHello(w.VERSION, b"", 1, 1, 0, 1, 1, 1, 0, ())), "begins with the hello"),
        (encode(w.Status(1)), "is not a hello"),
        (frame(b"\xc1"), ""),
        (frame(msgpack.packb({"not": "a list"})), ""),
        (frame(b""), ""),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "the other side speaks HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "the other side speaks TLS"),
        ((HELLO_BYTES_MAX + 1).to_bytes(4, "little") + b"0000", "the most"),
        (frame(b"x" * 20)[:-1] + b"y", "checksum"),
    ],
)
async def test_a_wrong_beginning_is_told_and_closed(data: bytes, words: str) -> None:
    async with lone() as (_, at, _):
        client = await connect_raw(at)
        await client.stream.send_all(data)
        problem = await told(client)
        assert problem.code == Code.INVALID
        assert words in problem.text
        await still_serves(at)


@pytest.mark.trio
async def test_silence_ends_after_the_hello_timeout() -> None:
    async with rig(limits=Limits(hello_timeout_s=0.02)) as r:
        client = await connect_raw(r.addresses[0])
        assert "no hello in time" in (await told(client)).text


@pytest.mark.trio
async def test_a_client_names_the_right_cluster_or_none() -> None:
    async with lone() as (node, at, _):
        cluster = node.replica.cluster
        client = await connect(at, cluster)
        assert client.hello is not None and client.hello.cluster == cluster
        assert client.hello.leader == 1 and client.hello.members == ((1, at),)


@pytest.mark.trio
async def test_a_peer_without_cluster_gets_first_start_answers_and_nothing_else() -> None:
    async with lone() as (node, at, _):
        peer = await connect_raw(at)
        answer = await peer.greet(peer_hello())
        assert isinstance(answer, w.PeerHello) and answer.cluster == node.replica.cluster
        me = Identity(2, b"p" * 16)
        question = m.Envelope(b"", me, Identity(1, b""), m.StartQuestion(7, b"d" * 16))
        await peer.stream.send_all(encode_envelope(question))
        body = await peer.body()
        assert body is not None
        envelope = decode_peer(body)
        assert isinstance(envelope, m.Envelope)
        assert envelope.target == me and isinstance(envelope.message, m.StartAnswer) and envelope.message.number == 7
        canvass = m.CanvassRequest(1, 1, Rank(0, 0, 0, 2), False)
        await peer.stream.send_all(encode_envelope(question._replace(message=canvass)))
        assert "first-start messages only" in (await told(peer)).text
        await still_serves(at)


@pytest.mark.trio
async def test_a_peer_speaks_for_itself_only() -> None:
    async with lone() as (node, at, _):
        peer = await connect_raw(at)
        assert isinstance(await peer.greet(peer_hello(node.replica.cluster, node.us.me)), w.PeerHello)
        forged = m.Envelope(node.replica.cluster, Identity(3, b"q" * 16), node.us.me, m.HandOver(1))
        await peer.stream.send_all(encode_envelope(forged))
        assert "a message of 3 on the connection of 2" in (await told(peer)).text
        await still_serves(at)


@pytest.mark.trio
async def test_of_two_connections_of_one_peer_the_newer_stands() -> None:
    async with lone() as (node, at, _):
        first = await connect_raw(at)
        await first.greet(peer_hello(node.replica.cluster, node.us.me))
        second = await connect_raw(at)
        await second.greet(peer_hello(node.replica.cluster, node.us.me))
        assert await first.receive() is None
        assert len(node.routes.accepted) == 1


@pytest.mark.trio
async def test_a_connection_given_up_earlier_does_not_end_the_live_one() -> None:
    """Hellos that waited during a pause are read in any order: the connection accepted last is the live one."""
    async with lone() as (node, at, _):
        given_up = [await connect_raw(at) for _ in range(3)]
        live = await connect_raw(at)
        assert isinstance(await live.greet(peer_hello(node.replica.cluster, node.us.me)), w.PeerHello)
        for each in given_up:
            await each.greet(peer_hello(node.replica.cluster, node.us.me))
            assert await each.receive() is None
        await still_answers(live)


async def still_answers(peer: Client) -> None:
    """Check that this connection carries a question of the server of `peer_hello`, and its answer."""
    envelope = m.Envelope(b"", Identity(2, b"p" * 16), Identity(1, b""), m.StartQuestion(7, b"d" * 16))
    await peer.stream.send_all(encode_envelope(envelope))
    body = await peer.body()
    assert body is not None
    answer = decode_peer(body)
    assert isinstance(answer, m.Envelope) and isinstance(answer.message, m.StartAnswer)


@pytest.mark.trio
async def test_those_turned_away_are_in_the_status() -> None:
    async with lone() as (node, at, client):
        peer = await connect_raw(at)
        await peer.greet(peer_hello(OTHER))
        await until(lambda: bool(node.listener.strangers.fields()))
        fields = (await client.ask(w.Status(1))).fields
        assert [p for p in fields["problems"] if "cluster 6f6f" in p]
        (told,) = fields["strangers"]
        assert (told["remote"], told["times"]) == ("127.0.0.1", 1) and "cluster 6f6f" in told["why"]
        assert abs(told["last_ms"] - fields["time_ms"]) < 60_000


@pytest.mark.trio
async def test_who_was_turned_away_is_told_for_an_hour(autojump_clock: trio.testing.MockClock) -> None:
    known = Strangers()
    assert known.note("10.0.0.9", "junk") and not known.note("10.0.0.9", "junk")
    await trio.sleep(STRANGER_S / 2)
    assert known.note("10.0.0.9", "another cluster")
    assert [(each["why"], each["times"]) for each in known.fields()] == [("junk", 2), ("another cluster", 1)]
    await trio.sleep(STRANGER_S / 2)
    assert [each["why"] for each in known.fields()] == ["another cluster"]
    assert known.note("10.0.0.9", "junk"), "after an hour it is news again"
    for number in range(100):
        known.note(f"10.0.1.{number}", "junk")
    assert [each["remote"] for each in known.fields()] == [f"10.0.1.{number}" for number in range(84, 100)]
    await trio.sleep(STRANGER_S)
    assert known.fields() == []


@pytest.mark.parametrize(("times", "age_ms", "told"), [
    (1, 0, "0 s ago"), (1, 59_999, "59 s ago"), (3, 60_000, "3 times, last 1 min ago"),
    (2, -5, "2 times, last 0 s ago"),
])
def test_problems_tell_how_long_ago(times: int, age_ms: int, told: str) -> None:
    stranger = {"remote": "10.0.0.9", "why": "junk", "last_ms": 10**12, "times": times}
    assert problems({}, [stranger], 10**12 + age_ms) == [f"10.0.0.9: junk ({told})"]


class Hearing:
    """A server that receives hellos of member 2, in virtual time."""

    def __init__(self) -> None:
        self.routes, self.told, self.clock_s = Routes(), list[list[str]](), trio.current_time
        self.replica = SimpleNamespace(members=SimpleNamespace(latest=SimpleNamespace(holds=lambda who: who.id == 2)))

    def note(self, name: str, **fields: Any) -> None:
        assert name == "twice" and fields["member"] == 2
        self.told.append(fields["addresses"])

    async def hear(self, process: str, address: str, remote: str = "10.0.0.9", began_s: float | None = None) -> Heard:
        """Receive a hello, after a second. ``began_s``: when its connection began, if before."""
        await trio.sleep(1)
        hello = peer_hello(address=address, process=process.encode() * 16)
        return self.routes.heard(cast(Any, self), hello, remote, trio.current_time() if began_s is None else began_s)

    @property
    def status(self) -> list[dict[str, Any]]:
        return self.routes.twice(trio.current_time())


SOUND = Heard("", True)


@pytest.mark.trio
async def test_two_processes_of_one_member_are_told_and_the_first_one_is_believed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    here = Hearing()
    assert await here.hear("p", "h:1") == await here.hear("q", "h:2") == SOUND, "started anew, for all that is known"
    words, believed = await here.hear("p", "h:1")
    assert believed and "server 2 runs twice, at h:1 and h:2" in words
    for _ in range(100):
        assert not (await here.hear("q", "h:2")).believed and (await here.hear("p", "h:1")).believed
    assert [(each["id"], each["addresses"]) for each in here.status] == [(2, ["h:1", "h:2"])]
    assert 3 <= len(here.told) <= 5, "once a minute"
    await trio.sleep(TWICE_S)
    assert here.status == [] and await here.hear("q", "h:2") == SOUND


@pytest.mark.trio
@pytest.mark.parametrize("addresses", [("h:1", "h:1"), ("h:1", "h:2")])
async def test_processes_without_a_number_are_told_apart_by_address(
    autojump_clock: trio.testing.MockClock, addresses: tuple[str, str]
) -> None:
    """Hellos of an older release are told apart by their address. Copies of a machine, with one address, are told apart
    by the host that they connect from."""
    here = Hearing()
    for turn in range(4):
        heard = await here.hear("", addresses[turn % 2])
    assert bool(heard.twice) == (addresses[0] != addresses[1])
    here = Hearing()
    for turn in range(4):
        heard = await here.hear("pq"[turn % 2], addresses[0], remote=f"10.0.0.{turn % 2}")
    assert "at h:1 (from 10.0.0.0) and h:1 (from 10.0.0.1)" in heard.twice


@pytest.mark.trio
async def test_a_member_that_is_started_again_or_moves_runs_once(autojump_clock: trio.testing.MockClock) -> None:
    here = Hearing()
    for turn in range(20):  # again and again, each time at another address, and back
        began_s = trio.current_time()
        assert await here.hear(chr(65 + turn), f"h:{turn % 3}") == SOUND
        assert await here.hear(chr(65 + turn), f"h:{turn % 3}", began_s=began_s) == SOUND
    began_s = trio.current_time()
    assert await here.hear("z", "h:9") == SOUND
    late = await here.hear(chr(65 + 19), "h:1", began_s=began_s)
    assert late == SOUND, "the answer of the process before, read late"
    assert here.told == [] and here.status == []


@pytest.mark.trio
@pytest.mark.parametrize("address", [
    "a..b:7100", "x" * 64 + ":7100", "nowhere", "-:99999", "", "0.0.0.0:7100", "0:7100", "[::]:7100",
    "[fe80::1%eth0]:7100",
])
async def test_an_address_that_nobody_can_have_is_refused(address: str) -> None:
    """An unknown process that claims to be server 2 at that address is refused with the reason; it is not dialled."""
    async with rig(2) as r:
        await r.leader()
        before = r.nodes[0].peers.by_id[2].said_address
        stranger = await connect_raw(r.addresses[0])
        answer = await stranger.greet(peer_hello(address=address))
        assert isinstance(answer, w.Problem) and answer.text.startswith("its address is none: ")
        assert r.nodes[0].peers.by_id[2].said_address == before
        await r.leader()


@pytest.mark.trio
@pytest.mark.parametrize("address", ["0.0.0.0:7100", "[fe80::1%eth0]:7100", "nowhere"])
@pytest.mark.parametrize("step", [q.MemberStep.ADD, q.MemberStep.REPLACE])
async def test_no_change_of_members_takes_such_an_address(address: str, step: q.MemberStep) -> None:
    """Whatever program asks for it, and at once."""
    async with lone() as (node, at, client):
        answer = await client.ask(q.ChangeMember(7, step, 1, address, 0))
        assert isinstance(answer, w.RequestRefused) and answer.code is Code.CANNOT_CHANGE, answer
        assert answer.detail.startswith(f'"{address}": must be ')
        assert [member.address for member in node.replica.members.latest.replicas] == [at]
        await still_serves(at)


@pytest.mark.trio
async def test_an_address_where_nobody_answers_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger says that he is server 2, at that address: it is tried in its turn, and that is all."""
    address = "127.0.0.1:1"
    async with rig(2) as r:
        await r.leader()
        stranger = await connect_raw(r.addresses[0])
        assert isinstance(await stranger.greet(peer_hello(address=address)), w.PeerHello)
        peer = r.nodes[0].peers.by_id[2]
        await until(lambda: peer.said_address == address)
        tried: list[str] = []  # addresses dialled from now on
        connect = Way.connect

        async def watched(way: Way) -> socket.socket:
            if way.address != r.addresses[0]:  # the other server dials too
                tried.append(way.address)
            return await connect(way)

        monkeypatch.setattr(Way, "connect", watched)

        def dialled_everywhere() -> bool:
            peer.said_address = address  # said again: a dial that succeeds puts the right one in its place
            if peer.route is not None:
                peer.route.link.close("to be dialled anew")
            return len(tried) >= 4 and address in tried

        await until(dialled_everywhere)
        await r.leader()
