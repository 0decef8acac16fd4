"""Three whole nodes in one run: connections that break, a server whose disk was wiped, leaving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import trio
from node_rig import append, connect, held_writer, listening_socket, random_id, rig, until

from alpo.core import requests as q
from alpo.core.entries import Entry
from alpo.core.members import Identity
from alpo.core.ready import Alarm, Input, Ready
from alpo.node.host import Host
from alpo.storage.memory import MemoryStore
from alpo.wire import requests as w
from alpo.wire.codec import encode_entries


@pytest.mark.trio
async def test_the_same_entries_are_encoded_once_for_all_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(3) as r:
        leader = await r.leader()
        client = await connect(leader.us.address)
        encoded: list[int] = []

        def counted(entries: list[Entry]) -> list[bytes]:
            encoded.append(len(entries))
            return encode_entries(entries)

        monkeypatch.setattr("alpo.node.routes.encode_entries", counted)
        id = random_id()
        reply = await client.ask(append(id, 1, *[b"x"] * 50))
        assert isinstance(reply, q.Appended)
        await until(lambda: all(n.replica.guaranteed_id == leader.replica.guaranteed_id for n in r.nodes))
        assert encoded == [1]  # a run


@pytest.mark.trio
async def test_a_lost_connection_is_dialled_anew_and_nothing_is_missing() -> None:
    async with rig(3) as r:
        leader = await r.leader()
        client = await connect(leader.us.address)
        id = random_id()
        for serial in range(1, 21):
            for route in leader.routes.dialled.values():
                if serial % 5 == 0:
                    route.link.close("cut by the test")
            assert isinstance(await client.ask(append(id, serial, b"x")), q.Appended)
        await until(lambda: all(n.replica.guaranteed_id == leader.replica.last_id for n in r.nodes))
        assert [n.replica.log.next_lsn for n in r.nodes] == [21] * 3


@pytest.mark.pure
@pytest.mark.trio
async def test_a_half_open_connection_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other side takes what we send and never answers: after an election timeout it is dialled anew."""
    async with rig(3) as r:
        leader = await r.leader()
        follower = next(n for n in r.nodes if n is not leader)
        old = leader.routes.dialled[follower.us.me.id]
        monkeypatch.setattr(follower.replica, "step", _deaf(follower))
        monkeypatch.setattr(follower.replica, "take_known", lambda *_: None)
        await until(lambda: bool(old.link.closed))
        assert old.link.closed == "no answer for an election timeout"


def _deaf(node: Host) -> Callable[[Sequence[Input], float, int], Ready]:
    """A replica that receives no messages any more."""
    step = node.replica.step

    def deaf(_inputs: Sequence[Input], now_s: float, wall_ms: int) -> Ready:
        ready = step([], now_s, wall_ms)
        ready.send, ready.send_after_write = [], []
        return ready

    return deaf


@pytest.mark.trio
async def test_a_leader_that_stops_hands_over_and_what_was_sent_is_answered() -> None:
    async with rig(3) as r:
        leader = await r.leader()
        client = await connect(leader.us.address)
        id = random_id()
        for serial in range(1, 101):
            await client.send(append(id, serial, b"x"))
        leader.stop()
        done: list[int] = []
        while (reply := await client.receive()) is not None:
            if isinstance(reply, q.Appended):
                done += reply.lsns
            else:
                assert isinstance(reply, w.AppendRefused), reply
        assert done == list(range(1, len(done) + 1))
        others = [n for n in r.nodes if n is not leader]
        await until(lambda: sum(n.replica.state.value == "leader" for n in others) == 1)
        heir = next(n for n in others if n.replica.state.value == "leader")
        assert heir.replica.log.next_lsn > len(done)


@pytest.mark.trio
async def test_a_wiped_server_waits_and_says_so_and_the_others_go_on() -> None:
    async with rig(3) as r:
        leader = await r.leader()
        victim = next(n for n in r.nodes if n is not leader)
        id = victim.us.me.id
        victim.stop()
        await until(lambda: bool(victim.routes.dialled == {}))
        fresh = MemoryStore(id, b"w" * 16)
        node = Host(replace(victim._cfg, me=Identity(id, b"w" * 16)), victim.limits, fresh, held_writer(fresh))
        sock = listening_socket()
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run, sock)
            await until(lambda: any("lost or wiped" in why for why in node.replica.first_start.waits_for.values()))
            fields = (await (await connect(f"127.0.0.1:{sock.getsockname()[1]}")).ask(w.Status(1))).fields
            assert fields["status"] == "EMPTY" and any("lost or wiped" in line for line in fields["waiting"])
            client = await connect(leader.us.address)
            assert isinstance(await client.ask(append(random_id(), 1, b"x")), q.Appended)
            nursery.cancel_scope.cancel()


@pytest.mark.pure
@pytest.mark.trio
async def test_a_broken_invariant_stops_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(1) as r:
        node = r.nodes[0]

        def broken(_inputs: Sequence[Input], _now_s: float, _wall_ms: int) -> Ready:
            return Ready(alarm="told so by the test")

        store = MemoryStore(1, b"i" * 16)
        other = Host(node._cfg, node.limits, store, held_writer(store))
        caught: list[Alarm] = []

        async def run(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            try:
                await other.run(listening_socket(), task_status=task_status)
            except Alarm as error:
                caught.append(error)

        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            monkeypatch.setattr(other.replica, "step", broken)
        assert str(caught[0]) == "told so by the test"
