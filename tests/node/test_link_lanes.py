"""Long frames leave in pieces, and short ones do not wait for them; a link that moves is not silent."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
import threading
from functools import partial

import pytest
import trio
from driver_kit import Passes
from node_rig import until
from test_link import pair, read_all

from alpo.node import link as link_module
from alpo.node.link import Link
from alpo.node.poller import Poller
from alpo.wire.framing import frame
from alpo.wire.lanes import PIECE_BYTES_MAX, LaneReader

LONG = b"\x93" + bytes(8 << 20)
_SIOCOUTQNSD = 0x894B


def reader() -> LaneReader:
    made = LaneReader(1 << 25)
    made.open(lambda data: None, lambda number: None)
    return made


def unsent_bytes(link: Link) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(link._sock, _SIOCOUTQNSD, bytes(4)))
    return int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="what the kernel has not sent is told by Linux")
@pytest.mark.trio
async def test_a_short_frame_waits_for_no_more_than_64_kib_on_this_side() -> None:
    link, other = pair(1 << 26)
    link.open_lanes()
    with other:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.drain)
            link.push_long(frame(LONG), ordered=True)
            before_bytes = -1
            while link.traffic.sent_bytes != before_bytes:  # wait until no bytes leave: the other side does not read
                before_bytes = link.traffic.sent_bytes
                await trio.sleep(0.05)
            assert link.queued_bytes > 1 << 20
            assert unsent_bytes(link) + sum(map(len, link._queue)) <= 64 << 10
            link.push(frame(b"\x92short"))
            stream = bytearray()
            lanes, bodies = reader(), list[bytes]()
            while not bodies:
                await trio.lowlevel.wait_readable(other)
                data = other.recv(1 << 16)
                stream += data
                bodies += map(bytes, lanes.feed(data))
            assert bodies == [b"\x92short"]
            assert bytes(stream).index(b"\x92short") <= before_bytes + PIECE_BYTES_MAX
            nursery.cancel_scope.cancel()
        link.close("done")


@pytest.mark.trio
async def test_all_arrives_whole_and_in_its_lane_s_order_from_any_thread() -> None:
    link, other = pair(1 << 28)
    link.open_lanes()
    long = [b"\x93" + bytes([n]) * (1 << 19) for n in range(10)]
    short = [b"\x92" + bytes([n]) for n in range(200)]

    def push_from_thread() -> None:
        for body in short[100:]:
            link.push_from_thread(frame(body))

    with other:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.drain)
            got: list[bytes] = []

            async def read() -> None:
                got.append(await read_all(other))

            nursery.start_soon(read)
            thread = threading.Thread(target=push_from_thread)
            thread.start()
            for n, body in enumerate(short[:100]):
                if n % 10 == 0:
                    link.push_long(frame(long[n // 10]), ordered=False)
                link.push(frame(body))
                await trio.lowlevel.checkpoint()
            await trio.to_thread.run_sync(thread.join)
            await link.wait_below(0)
            link.close("done")
        bodies = list(map(bytes, reader().feed(got[0])))
    assert [body for body in bodies if body[:1] == b"\x93"] == long
    assert [body for body in bodies if body[:1] == b"\x92" and body in short[:100]] == short[:100]
    assert [body for body in bodies if body[:1] == b"\x92" and body in short[100:]] == short[100:]


@pytest.mark.trio
async def test_what_waits_is_bounded_and_what_is_abandoned_is_not_sent() -> None:
    link, other = pair(9 << 20)
    link.open_lanes()
    with other:
        link.push_long(frame(LONG), ordered=True)
        assert link.long_entries == 1
        link.abandon_long()
        assert link.queued_bytes <= PIECE_BYTES_MAX and link.long_entries == 0 and not link.closed
        link.push_long(frame(LONG), ordered=True)
        link.push_long(frame(LONG), ordered=True)
        assert "does not read" in link.closed


@pytest.mark.trio
async def test_bytes_of_an_unfinished_frame_are_told_in_both_directions(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_UNANSWERED_BYTES", 1 << 30)  # a quick link without answers
    link, other = pair(1 << 26)
    moved: list[bool] = []
    link.moving = moved.append
    link.open_lanes()
    link.allow_frames(1 << 25)
    poller = Poller(Passes())
    bodies: list[bytes] = []

    def take(came: list[bytes | memoryview]) -> bool:
        bodies.extend(map(bytes, came))
        return True

    with other:
        nursery.start_soon(poller.run)
        nursery.start_soon(link.drain)
        nursery.start_soon(partial(link.deliver, poller, take, trio.lowlevel.checkpoint))
        whole = frame(LONG)
        other.sendall(whole[:1000])
        await until(lambda: moved == [True])
        assert not bodies
        moved.clear()
        link.push_long(whole, ordered=False)
        async with trio.open_nursery() as reading:
            reading.start_soon(read_all, other)
            await until(lambda: False in moved)
            reading.cancel_scope.cancel()
        link.close("done")
    poller.close()


@pytest.mark.trio
async def test_what_arrives_is_told_until_the_other_side_should_have_answered(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acknowledged bytes count as movement only up to a limit since the other side's last frame: its kernel takes bytes
    also while its process stands still."""
    monkeypatch.setattr(link_module, "_LOOK_S", 0.001)
    link, other = pair(1 << 26)
    looks: list[int] = []
    moved: list[int] = []
    standing = False

    def acknowledged(field: slice) -> int:
        looks.append(looks[-1] + (not standing) * (128 << 10) if looks else 0)
        return looks[-1]

    monkeypatch.setattr(link, "_tcp_info", acknowledged)
    link.moving = lambda incoming: None if incoming else moved.append(looks[-1])
    link.open_lanes()
    link.allow_frames(1 << 25)
    poller = Poller(Passes())
    with other:
        nursery.start_soon(poller.run)
        nursery.start_soon(link.drain)
        nursery.start_soon(partial(link.deliver, poller, lambda came: True, trio.lowlevel.checkpoint))
        link.push_long(frame(LONG), ordered=False)  # more than this side's kernel takes
        await until(lambda: looks[-1:] > [2 << 20])
        assert moved == [n << 17 for n in range(1, 9)]
        other.sendall(frame(b"\x92an answer"))
        await until(lambda: len(moved) > 8)
        count = len(looks)
        await until(lambda: len(looks) > count + 20)
        assert len(moved) == 17
        other.sendall(frame(b"\x92an answer"))
        await until(lambda: len(moved) == 26)
        standing = True
        other.sendall(frame(b"\x92an answer"))
        count = len(looks)
        await until(lambda: len(looks) > count + 20)
        assert len(moved) == 26
        link.close("done")
    poller.close()


@pytest.mark.trio
async def test_blocks_are_acknowledged_and_rates_measured() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    there = socket.create_connection(listening.getsockname())
    here, _ = listening.accept()
    listening.close()
    one, two = Link(here, 1 << 26), Link(there, 1 << 26)
    for link in (one, two):
        link.open_lanes()
        link.allow_frames(1 << 25)
    poller = Poller(Passes())
    held: list[int] = []
    one.on_held = lambda: held.extend(one.held)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poller.run)
        for link in (one, two):
            nursery.start_soon(link.drain)
            nursery.start_soon(partial(link.deliver, poller, lambda bodies: True, trio.lowlevel.checkpoint))
        assert one.long_bytes_per_s is None
        one.send_block(7, bytes(4 << 20))
        await until(lambda: held == [7])
        assert one.long_bytes_per_s is not None and one.long_bytes_per_s > 0
        one.push_long(frame(LONG), ordered=True)
        one.forget_block(7)
        one.abandon_long()
        assert two._reader._blocks and 0 < one.queued_bytes < len(LONG)
        await one.wait_below(0)
        assert not one.held
        await until(lambda: not two._reader._blocks)
        nursery.cancel_scope.cancel()
    one.close("done")
    two.close("done")
    poller.close()
