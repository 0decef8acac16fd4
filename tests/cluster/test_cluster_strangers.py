"""Strangers send anything to a live cluster's ports: it keeps serving, and no other client notices."""

from __future__ import annotations

import random
import resource
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import trio
from harness import Cluster, cluster, serving
from probe import probe
from proxy import HOST

from alpo.core import messages as m
from alpo.core import requests as q
from alpo.core.entries import Kind, random_client, seal
from alpo.core.members import Identity, StartStatus
from alpo.core.ranks import Rank
from alpo.core.requests import Code
from alpo.wire import requests as w
from alpo.wire.codec import encode, encode_entries, encode_envelope
from alpo.wire.framing import frame

AT_ONCE = 16
IDLE = 2_000
CLIENTS_MAX = 1_000
STRANGER = random_client(0, 0)


def client_frames() -> list[bytes]:
    """One frame of every kind that a client may send."""
    return [encode(message) for message in (
        w.Append(STRANGER, 0, 1, False, False, [b"one", (2, b"\1\0\0\0a\1\0\0\0b")]),
        q.OpenSession(1, "name", 0, b"n" * 16), q.DropSession(2, "name", 5), q.ListSessions(3), q.Initialise(4),
        w.Read(5, 1, 0, 0, 0, 1000, False, 1, ""), w.Read(6, 0, 0, 2, 0, 1000, True, 0, ""), w.Status(7),
    )]


def peer_frames(cluster_id: bytes, peer: Identity, target: Identity) -> list[bytes]:
    """Frames of a server that is not in the member list: where answers or votes are counted, its must not be."""
    entries = [seal(9, 7, Kind.DATA, 5, 9, b"payload", STRANGER, 1, 0, 1)]
    messages: list[m.Message] = [
        m.CanvassRequest(99, 1, Rank(99, 99, 0, 2), False), m.CanvassAnswer(1, 1, m.Canvass.YES),
        m.VoteRequest(99, Rank(99, 99, 0, 2), True), m.VoteAnswer(1, 1, m.Vote.GRANTED, 0, None, 5),
        m.DeferRequest(1, Rank(99, 99, 0, 2)), m.DeferAnswer(1, 1, m.Defer.DEFERRED), m.HandOver(1),
        m.AppendAnswer(1, True, 5, 4, 5, 0, 0, 1, 5, False), m.WrongIncarnation(b"q" * 16),
        m.StartQuestion(1, b"d" * 16), m.StartAnswer(1, StartStatus.EMPTY, b"d" * 16, (), b"", "", ""),
    ]
    request = m.AppendRequest(99, 8, 7, 0, 0, 1, entries)
    envelopes = [encode_envelope(m.Envelope(cluster_id, peer, target, message)) for message in messages]
    return [*envelopes, encode_envelope(m.Envelope(cluster_id, peer, target, request), encode_entries(entries))]


def mutated(rng: random.Random, data: bytes) -> bytes:
    """A frame that is wrong somewhere; half of them have a right checksum, so that the contents are looked at."""
    body = bytearray(data[8:])
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(3):
            case 0:
                body[at : at + 1] = rng.randbytes(1)
            case 1:
                del body[at : at + rng.randint(1, 8)]
            case _:
                body[at:at] = rng.randbytes(rng.randint(1, 8))
    if rng.random() < 0.5:
        return frame(bytes(body))
    return struct.pack("<II", rng.choice((len(body), rng.randrange(1 << 32))), zlib.crc32(data)) + bytes(body)


class Stranger:
    """Sends bad frames to one server."""

    def __init__(self, port: int, fields: dict[str, str | int], seed: int) -> None:
        cluster_id = bytes.fromhex(str(fields["cluster"]))
        target = Identity(int(fields["id"]), bytes.fromhex(str(fields["incarnation"])))
        peer = Identity(target.id % 3 + 1, b"s" * 16)
        hello = w.PeerHello(
            w.VERSION, cluster_id, peer.id, peer.incarnation, "127.0.0.1:1", target.id, target.incarnation, 1, 0,
            (100, 500, 25),
        )
        self._port = port
        self._rng = random.Random(seed)
        self._greeted = [
            (encode(w.ClientHello(w.VERSION, b"", "stranger")), client_frames()),
            (encode(hello), peer_frames(cluster_id, peer, target)),
        ]

    async def send(self, count: int) -> None:
        """Open so many connections, and send one bad frame on each."""
        for _ in range(count):
            with suppress(OSError, trio.BrokenResourceError):
                async with await trio.open_tcp_stream(HOST, self._port) as stream:
                    await stream.send_all(self._one())

    def _one(self) -> bytes:
        rng = self._rng
        hello, frames = rng.choice(self._greeted)
        match rng.randrange(6):
            case 0:
                return rng.randbytes(rng.randint(1, 300))
            case 1:
                return mutated(rng, hello)
            case _:
                return hello + mutated(rng, rng.choice(frames))


@pytest.mark.parametrize("frames", [5_000, pytest.param(20_000, marks=pytest.mark.soak)])
@pytest.mark.trio
async def test_whatever_bytes_come_the_cluster_keeps_serving(tmp_path: Path, frames: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    async with cluster(tmp_path) as running:
        await running.leader()
        async with serving(running):
            found = await running.until("all there", lambda all_: len(all_) == 3)
            async with trio.open_nursery() as nursery:
                for number in range(AT_ONCE):
                    id = number % 3 + 1
                    stranger = Stranger(running.servers[id].port, found[id], seed + number)
                    nursery.start_soon(stranger.send, frames // AT_ONCE)
        await running.level()
        assert set((await running.stop()).values()) == {0}


@contextmanager
def many_files(wanted: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this process may open only {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _greeted(running: Cluster, leader: int, stack: AsyncExitStack, count: int) -> Counter[str]:
    """Connect so many clients, which then say nothing; how they were received."""
    received: Counter[str] = Counter()
    for _ in range(count):
        connection = await stack.enter_async_context(probe(running.servers[leader].address))
        hello = connection.hello
        if isinstance(hello, w.Problem):
            assert hello.code == Code.OVERLOADED
        received[type(hello).__name__] += 1
    return received


#: A stalled machine must not depose the leader whose places are counted.
PATIENT = {"heartbeat_s": 0.3, "election_timeout_s": 3.0}


@pytest.mark.trio
async def test_two_thousand_idle_clients_are_a_thousand_and_the_others_are_told(tmp_path: Path) -> None:
    with many_files(2 * IDLE):
        async with cluster(tmp_path, timers=PATIENT) as running:
            leader = await running.leader()
            async with serving(running), AsyncExitStack() as stack:
                received = await _greeted(running, leader, stack, IDLE)
                # (The one that appends has a place too, unless it is just looking for another leader.)
                assert received["ServerHello"] <= CLIENTS_MAX < received["Problem"] + received["ServerHello"] == IDLE
                # Servers have slots of their own: one that comes back is let in.
                other = running.others(leader)[0]
                running.servers[other].kill()
                running.start(other)
                await running.until(
                    "the other is back",
                    lambda all_: other in all_ and all_[other]["leader"] == leader and all_[other]["last_lsn"] > 0,
                )
            await running.level()


@pytest.mark.trio
async def test_two_thousand_that_never_say_a_word_are_closed_and_keep_nobody_out(tmp_path: Path) -> None:
    with many_files(2 * IDLE):
        async with cluster(tmp_path, limits={"hello_timeout_s": 1.0}) as running:
            leader = await running.leader()
            async with serving(running), AsyncExitStack() as stack:
                silent = [
                    await stack.enter_async_context(await trio.open_tcp_stream(HOST, running.servers[leader].port))
                    for _ in range(IDLE)
                ]
                async with probe(running.servers[leader].address) as client:
                    assert isinstance(await client.ask(w.Status(1)), w.StatusAnswer)
                with trio.fail_after(60):
                    for stream in silent:
                        with suppress(trio.BrokenResourceError):
                            while await stream.receive_some():
                                pass
