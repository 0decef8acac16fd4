"""Random bytes and mutated valid frames on the port: 20,000 of them, and the server keeps serving."""

from __future__ import annotations

import contextlib
import random
import struct
import zlib

import pytest
import trio
from frame_samples import OTHERS, OTHERS_5
from hypothesis import given, settings
from hypothesis import strategies as st
from node_rig import append, connect, connect_raw, lone, random_id, read, until

from alpo.core import messages as m
from alpo.core import requests as q
from alpo.core.entries import Kind, seal
from alpo.core.members import Identity, StartStatus
from alpo.core.ranks import Rank
from alpo.node.host import Host
from alpo.wire import requests as w
from alpo.wire.codec import encode, encode_entries, encode_envelope
from alpo.wire.framing import frame

#: Number of examples; twenty times as many in `make soak` (`HYPOTHESIS_PROFILE=thorough`).
EXAMPLES = settings().max_examples // 20
FRAMES = 1000
PEER = Identity(2, b"p" * 16)


def client_frames() -> list[bytes]:
    """A frame of every request of a client, some twice."""
    id = random_id()
    requests = [sample for sample in (*OTHERS, *OTHERS_5) if isinstance(sample, w.ClientRequest)]
    more = append(id, 1, b"one", b"two"), append(id, 3, (2, b"\1\0\0\0a\1\0\0\0b")), read(6, last=2)
    return [encode(message) for message in (*requests, *more)]


def peer_frames(node: Host) -> list[bytes]:
    entries = [seal(9, 7, Kind.DATA, 5, 9, b"payload", random_id(), 1, 0, 1)]
    messages: list[m.Message] = [
        m.CanvassRequest(3, 1, Rank(1, 1, 0, 2), False), m.CanvassAnswer(1, 1, m.Canvass.YES),
        m.VoteRequest(1, Rank(0, 0, 0, 2), False), m.VoteAnswer(1, 1, m.Vote.GRANTED, 0, None, 5),
        m.DeferRequest(1, Rank(0, 0, 0, 2)), m.DeferAnswer(1, 1, m.Defer.DEFERRED),
        m.AppendAnswer(1, True, 5, 4, 5, 0, 0, 1, 5, False), m.WrongIncarnation(b"q" * 16), m.HandOver(0),
        m.StartQuestion(1, b"d" * 16), m.StartAnswer(1, StartStatus.EMPTY, b"d" * 16, (), b"", "", ""),
    ]
    frames = [encode_envelope(m.Envelope(node.replica.cluster, PEER, node.us.me, message)) for message in messages]
    request = m.AppendRequest(0, 8, 7, 0, 0, 1, entries)
    frames.append(encode_envelope(m.Envelope(node.replica.cluster, PEER, node.us.me, request), encode_entries(entries)))
    return frames


def mutated(rng: random.Random, data: bytes) -> bytes:
    """One frame, wrong somewhere; half of them with a checksum that fits."""
    body = bytearray(data[8:])
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(body)) if body else 0
        match rng.randrange(4):
            case 0 if body:
                body[at] ^= 1 << rng.randrange(8)
            case 1 if body:
                del body[at : at + rng.randint(1, 8)]
            case 2:
                body[at:at] = rng.randbytes(rng.randint(1, 8))
            case _ if body:
                body[at] = rng.randrange(256)
    if rng.random() < 0.5:
        return frame(bytes(body))
    return struct.pack("<II", rng.choice([len(body), rng.randrange(1 << 32)]), zlib.crc32(data)) + bytes(body)


async def send_bad(node: Host, address: str, rng: random.Random) -> None:
    """One connection: a hello that may be good, then what may be anything."""
    client = await connect_raw(address)
    hellos = [
        encode(w.ClientHello(w.VERSION, b"", "test")),
        encode(w.PeerHello(
            w.VERSION, node.replica.cluster, 2, PEER.incarnation, "127.0.0.1:1", 1, node.us.me.incarnation, 1, 0,
            (10, 50, 5),
        )),
    ]
    which = rng.randrange(4)
    if which == 3:
        data = rng.randbytes(rng.randint(1, 200))
    elif which == 2:
        data = mutated(rng, rng.choice(hellos))
    else:
        data = hellos[which] + mutated(rng, rng.choice(peer_frames(node) if which else client_frames()))
    try:
        await client.stream.send_all(data)
        await client.stream.send_eof()
    except trio.BrokenResourceError:
        pass


@pytest.mark.trio
async def test_no_request_of_the_wire_ends_the_server() -> None:
    async with lone() as (_, address, _):
        for framed in client_frames():
            client = await connect(address)
            with contextlib.suppress(trio.BrokenResourceError):  # the server may have closed it at the first bytes
                await client.stream.send_all(framed)
                await client.stream.send_eof()
        client = await connect(address)
        assert isinstance(await client.ask(append(random_id(), 1, b"still here")), q.Appended)


@pytest.mark.trio
@settings(max_examples=EXAMPLES)
@given(seed=st.integers(0, 2**32))
async def test_whatever_comes_in_the_server_keeps_serving(seed: int) -> None:
    rng = random.Random(seed)
    async with lone() as (node, at, _):
        for _ in range(FRAMES):
            await send_bad(node, at, rng)
        client = await connect(at)
        await until(lambda: node.replica.serves)
        assert isinstance(await client.ask(append(random_id(), 1, b"still here")), q.Appended)
