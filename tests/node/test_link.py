"""One connection by itself: order, bounds, and last words that arrive."""

from __future__ import annotations

import random
import socket
import threading
from functools import partial

import pytest
import trio
from driver_kit import Passes
from node_rig import until

from alpo.node.link import _LOOK_S, Body, Link, LinkClosed
from alpo.node.poller import Poller
from alpo.wire.codec import WireError
from alpo.wire.framing import HELLO_BYTES_MAX, FrameError, FrameReader, frame


def pair(queue_bytes_max: int = 1 << 20) -> tuple[Link, socket.socket]:
    """A link and the plain socket at its other end."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        other = socket.create_connection(listening.getsockname())
        mine, _ = listening.accept()
    other.setblocking(False)
    return Link(mine, queue_bytes_max), other


async def read_all(sock: socket.socket) -> bytes:
    data = bytearray()
    while True:
        await trio.lowlevel.wait_readable(sock)
        part = sock.recv(1 << 16)
        if not part:
            return bytes(data)
        data += part


@pytest.mark.trio
async def test_what_the_kernel_does_not_take_follows_in_order() -> None:
    link, other = pair(1 << 26)
    with other:
        frames = [frame(bytes([n]) * (1 << 20)) for n in range(20)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.drain)
            for each in frames:
                link.push(each)
            assert link.queued_bytes > 0
            got: list[bytes] = []

            async def read() -> None:
                got.append(await read_all(other))

            nursery.start_soon(read)
            await link.wait_below(0)
            link.close("done")
        assert got[0] == b"".join(frames)


@pytest.mark.trio
async def test_a_queue_over_its_bound_closes_the_connection() -> None:
    link, other = pair(1 << 20)
    with other:
        while not link.closed:
            link.push(b"x" * (1 << 19))
            assert link.queued_bytes <= 1 << 20
        assert "does not read" in link.closed and link.queued_bytes == 0
        with pytest.raises(LinkClosed):
            await link.receive()


@pytest.mark.trio
async def test_closing_wakes_receiver_drainer_and_whoever_waits() -> None:
    link, other = pair(1 << 26)
    ended: list[str] = []

    async def receive() -> None:
        with pytest.raises(LinkClosed, match="by the test"):
            await link.receive()
        ended.append("receive")

    async def wait() -> None:
        await link.wait_below(0)
        ended.append("wait")

    with other:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.drain)
            link.push(b"x" * (1 << 24))
            nursery.start_soon(receive)
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            link.close("by the test")
        assert sorted(ended) == ["receive", "wait"]


@pytest.mark.trio
async def test_a_link_closed_in_the_moment_in_which_a_look_ends_ends_its_drainer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The drainer waited for a closed socket then: a ValueError, which ended the server."""
    for looks in [1, 2] * 10:  # Trio chooses which of the two tasks runs first
        link, other = pair(1 << 26)
        with other:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.drain)
                link.push(b"x" * (1 << 24))
                await trio.sleep(looks * _LOOK_S)
                link.close("by the test")


@pytest.mark.trio
async def test_frames_are_short_until_the_hello_is_through() -> None:
    for allowed in (False, True):
        link, other = pair()
        with other:
            if allowed:
                link.allow_frames(1 << 20)
            other.send(frame(b"x" * (HELLO_BYTES_MAX + 1)))
            if allowed:
                assert len((await link.receive())[0]) == HELLO_BYTES_MAX + 1
            else:
                with pytest.raises(FrameError):
                    await link.receive()
            link.close("done")


@pytest.mark.trio
async def test_last_words_arrive_although_bytes_are_unread() -> None:
    link, other = pair()
    with other:
        other.send(b"y" * 100_000)
        words: list[bytes] = []

        async def listen() -> None:
            words.append(await read_all(other))
            other.shutdown(socket.SHUT_WR)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.drain)
            nursery.start_soon(listen)
            await link.part(frame(b"why"), "told")
        assert FrameReader(100).feed(words[0]) == [b"why"]
        await until(lambda: bool(link.closed))


@pytest.mark.trio
async def test_two_threads_push_whole_frames() -> None:
    """Frames of the writer's thread and of the event loop arrive whole, and each of the two sequences in its order."""
    link, other = pair(1 << 26)
    link_frames = 400
    with other:
        got = bytearray()

        async def read() -> None:
            while True:
                await trio.lowlevel.wait_readable(other)
                part = other.recv(1 << 14)
                if not part:
                    return
                got.extend(part)

        def from_thread() -> None:
            for n in range(link_frames):
                link.push_from_thread(frame(b"t%06d" % n + b"x" * 5000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.drain)
            nursery.start_soon(read)
            thread = threading.Thread(target=from_thread)
            thread.start()
            for n in range(link_frames):
                link.push(frame(b"m%06d" % n + b"y" * 5000))
                await trio.lowlevel.checkpoint()
            await trio.to_thread.run_sync(thread.join)
            await link.wait_below(0)
            link.close("done")
        bodies = [bytes(body[:7]) for body in FrameReader(1 << 20).feed(bytes(got))]
        for who in (b"t", b"m"):
            assert [b for b in bodies if b[:1] == who] == [who + b"%06d" % n for n in range(link_frames)]


@pytest.mark.trio
async def test_a_closed_link_takes_nothing_from_a_thread() -> None:
    link, other = pair()
    with other:
        link.close("done")
        await trio.to_thread.run_sync(link.push_from_thread, frame(b"late"))
        await trio.lowlevel.wait_readable(other)
        assert other.recv(1) == b""


@pytest.mark.trio
async def test_frames_are_delivered_in_groups_while_there_is_room_until_the_end() -> None:
    link, other = pair()
    groups: list[list[bytes]] = []
    passes: list[int] = []
    poller = Poller(Passes(lambda: passes.append(len(groups))))
    room = trio.Event()
    room.set()

    def take(bodies: list[Body]) -> bool:
        nonlocal room
        groups.append([bytes(body) for body in bodies])
        if len(groups) == 2:
            room = trio.Event()
        return room.is_set()

    async def has_room() -> None:
        await room.wait()

    async def receive() -> None:
        with pytest.raises(LinkClosed, match="closed by the other side"):
            await link.deliver(poller, take, has_room)
        ended.set()

    ended = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poller.run)
        nursery.start_soon(receive)
        with other:
            other.send(frame(b"a") + frame(b"b") + frame(b"c")[:5])
            await until(lambda: len(groups) == 1)
            other.send(frame(b"c")[5:])
            await until(lambda: len(groups) == 2)
            other.send(frame(b"d"))
            await trio.testing.wait_all_tasks_blocked()
            assert groups == [[b"a", b"b"], [b"c"]], "there is no room"
            count = len(passes)
            await trio.testing.wait_all_tasks_blocked()
            assert len(passes) == count, "what is not read wakes nobody"
            room.set()
            await until(lambda: groups[2:] == [[b"d"]])
        await ended.wait()
        assert not poller._calls, "a closed socket is watched no more"
        nursery.cancel_scope.cancel()
    assert set(passes) >= {1, 2, 3}, "after every pass"
    poller.close()


@pytest.mark.trio
async def test_a_close_ends_the_wait_for_room() -> None:
    link, other = pair()
    poller = Poller(Passes(lambda: None))
    with other:
        async with trio.open_nursery() as nursery:

            async def receive() -> None:
                with pytest.raises(LinkClosed, match="by the test"):
                    await link.deliver(poller, lambda bodies: True, trio.sleep_forever)

            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            link.close("by the test")
    poller.close()


@pytest.mark.trio
async def test_large_frames_are_delivered_whole_whatever_is_received_at_once() -> None:
    link, other = pair()
    link.allow_frames(1 << 20)
    rng = random.Random(7)
    sent = [rng.randbytes(rng.choice([10, 1000, 70_000, 300_000])) for _ in range(60)]
    got: list[bytes] = []
    poller = Poller(Passes())

    def take(bodies: list[Body]) -> bool:
        got.extend(map(bytes, bodies))
        return True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poller.run)
        nursery.start_soon(partial(link.deliver, poller, take, trio.lowlevel.checkpoint))
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(other))
        for body in sent:
            await stream.send_all(frame(body))
        await until(lambda: len(got) == len(sent))
        nursery.cancel_scope.cancel()
    assert got == sent
    link.close("done")
    other.close()
    poller.close()


@pytest.mark.trio
@pytest.mark.parametrize("how", ["damaged", "refused", "closed here"])
async def test_delivery_ends_with_the_error_that_ends_the_connection(how: str) -> None:
    link, other = pair()
    poller = Poller(Passes())

    def take(bodies: list[Body]) -> bool:
        raise WireError("no message")

    with other:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poller.run)
            other.send(frame(b"a") if how == "refused" else b"\xff" * 40)
            if how == "closed here":
                nursery.start_soon(_close, link)
            error = {"damaged": FrameError, "refused": WireError, "closed here": LinkClosed}[how]
            with pytest.raises(error):
                await link.deliver(poller, take, trio.lowlevel.checkpoint)
            assert not poller._calls
            nursery.cancel_scope.cancel()
    link.close("done")
    poller.close()


async def _close(link: Link) -> None:
    link.close("closed here")
