"""The comparison as servers run it: copies that differ are found and named, with no other effect (R31)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import trio
import trio.testing
from next_version import NEXT, know_next
from node_rig import Rig, append, connect, listening_socket, memory_of, random_id, rig, until

from alpo.core import requests as q
from alpo.core.entries import Entry, seal
from alpo.node import compare, threads
from alpo.node.admission import DiskCare
from alpo.node.compare import Copies, Inquiry, Unusable
from alpo.node.host import Host
from alpo.node.retention import Retention
from alpo.node.security import Security
from alpo.storage.interface import DamagedStore, StoreError
from alpo.wire import requests as w
from alpo.wire.codec import encode

CARE = DiskCare(0, 1 << 40, scrub_pass_s=0.0024)


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_quick(monkeypatch)


def _set_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "RETRY_S", 0.01)
    monkeypatch.setattr(threads, "FREE_BYTES_PER_S", 1 << 40)


def plant(node: Host, *ids: int) -> None:
    """Replace these entries on the server's disk by others with valid checksums."""
    for id in ids:
        at, old = next((at, entry) for at, entry in enumerate(memory_of(node)._entries) if entry.id == id)
        body = old.body + b" or not"
        memory_of(node)._entries[at] = seal(
            old.id, old.term, old.kind, old.time_ms, old.lsn, body, old.client, old.serial, old.epoch, old.count
        )


@contextmanager
def planted(node: Host, *ids: int) -> Iterator[None]:
    before = list(memory_of(node)._entries)
    plant(node, *ids)
    yield
    memory_of(node)._entries[: len(before)] = before


async def filled(r: Rig, count: int) -> list[Entry]:
    """Make ``count`` appends, which reach all servers; return all entries. Leaders may be deposed meanwhile."""
    leader = await r.leader()
    client, id = await connect(leader.us.address), random_id()
    for serial in range(1, count + 1):
        while not isinstance(await client.ask(append(id, serial, (1, b"%d" % serial))), q.Appended):
            leader = await r.leader()
            client = await connect(leader.us.address)
    await until(lambda: all(node.replica.guaranteed_id == leader.replica.last_id for node in r.nodes))
    return leader.log.store.read_entries(1, 1 << 20, 1 << 40)


async def status(node: Host) -> dict[str, Any]:
    answer = await (await connect(node.us.address)).ask(w.Status(1))
    assert isinstance(answer, w.StatusAnswer)
    return answer.fields


async def further(*nodes: Host, passes: int = 4) -> None:
    """Wait until these servers have compared the whole log with all others."""
    before = [node.log.comparer._passes for node in nodes]
    await until(lambda: all(n.log.comparer._passes >= b + passes for n, b in zip(nodes, before, strict=True)))


def events(node: Host, name: str) -> list[dict[str, Any]]:
    return [json.loads(event.fields) for event in node.log.store.read_events(0, 1000) if event.name == name]


@pytest.mark.trio
async def test_the_odd_one_is_found_named_and_forgotten() -> None:
    async with rig(3, care=CARE) as r:
        entries = await filled(r, 30)
        await further(*r.nodes)
        assert [(await status(node))["diverged"] for node in r.nodes] == [[]] * 3
        ids = [entries[11].id, entries[20].id]
        with planted(r.nodes[1], *ids):
            alarm = [{"ids": ids, "copies": [[1, 3], [2]], "wrong": [2], "silent": []}]
            await until(lambda: all(node.log.comparer.fields()["diverged"] == alarm for node in r.nodes))
            fields = await status(r.nodes[0])
            assert fields["diverged"] == alarm and fields["damage"] == []
            assert fields["divergence"] == [
                f"entries {ids[0]} and {ids[1]}: one copy is held by servers 1 and 3 and another by server 2, which is"
                " wrong: look (alpo log diff), then give server 2 an empty directory"
            ]
            await further(*r.nodes)
        for node in r.nodes:
            assert events(node, "diverged") == alarm
        await until(lambda: not any(node.log.comparer.fields()["diverged"] for node in r.nodes))
        assert [len(events(node, "diverged_no_more")) for node in r.nodes] == [1] * 3
        assert len((await status(r.nodes[0]))["divergence"]) == 0
        assert len(await filled(r, 1)) > len(entries), "the log goes on"


@pytest.mark.trio
async def test_without_a_majority_nobody_is_called_wrong() -> None:
    async with rig(3, care=CARE) as r:
        (id, *_) = [entry.id for entry in (await filled(r, 10))[-3:]]
        plant(r.nodes[1], id)
        plant(r.nodes[2], id)
        plant(r.nodes[2], id)  # yet another
        alarm = [{"ids": [id], "copies": [[1], [2], [3]], "wrong": [], "silent": []}]
        await until(lambda: all(node.log.comparer.fields()["diverged"] == alarm for node in r.nodes))
        assert (await status(r.nodes[0]))["divergence"] == [
            f"entry {id}: one copy is held by server 1 and another by server 2 and another by server 3; which of them"
            " is wrong is not known: look (alpo log diff)"
        ]


@pytest.mark.trio
async def test_two_servers_cannot_tell() -> None:
    async with rig(2, care=CARE) as r:
        id = (await filled(r, 10))[-3].id
        plant(r.nodes[0], id)
        alarm = [{"ids": [id], "copies": [[1], [2]], "wrong": [], "silent": []}]
        await until(lambda: all(node.log.comparer.fields()["diverged"] == alarm for node in r.nodes))


@pytest.mark.trio
@pytest.mark.parametrize("most", [3, 1 << 20])
async def test_answers_that_go_less_far_than_asked(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """However the log is cut into requests, a difference at any place is found and no other."""
    monkeypatch.setattr(compare, "IDS_MAX", most)
    monkeypatch.setattr(compare, "IDS_MAX", 8)

    async with rig(3, care=CARE) as r:
        entries = await filled(r, 30)
        for id in (entries[0].id, entries[7].id, entries[8].id, entries[-1].id):
            with planted(r.nodes[2], id):
                await until(lambda: [d["ids"] for d in r.nodes[0].log.comparer.fields()["diverged"]] == [[id]])
                assert r.nodes[0].log.comparer.fields()["diverged"][0]["wrong"] == [3]
            await until(lambda: r.nodes[0].log.comparer.fields()["diverged"] == [])


@pytest.mark.trio
async def test_of_a_log_that_differs_throughout_the_first_few_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "IDS_MAX", 32)
    monkeypatch.setattr(compare, "DIFFERING_MAX", 15)
    async with rig(3, care=CARE) as r:
        entries = await filled(r, 80)
        plant(r.nodes[2], *(entry.id for entry in entries[1:]))
        first = [*range(2, 12), *range(33, 38)]
        await until(lambda: [d["ids"] for d in r.nodes[0].log.comparer.fields()["diverged"]] == [first])
        await further(r.nodes[0])
        assert [d["ids"] for d in r.nodes[0].log.comparer.fields()["diverged"]] == [first]
        assert "2, 3, 4, 5, 6, 7, 8, 9, 10 and 11 …: " in r.nodes[0].log.comparer.remarks()[0]


@pytest.mark.trio
async def test_what_is_damaged_is_left_out_and_what_is_around_it_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(3, care=CARE) as r:
        await filled(r, 30)
        for node, damaged in ((r.nodes[0], 9), (r.nodes[1], 12)):
            spoil(node, damaged, monkeypatch)
        plant(r.nodes[1], 8, 10, 11, 13)
        plant(r.nodes[2], 9, 12)
        await until(lambda: [d["ids"] for d in r.nodes[0].log.comparer.fields()["diverged"]] == [[8, 10, 11, 13], [12]])
        about = r.nodes[0].log.comparer.fields()["diverged"]
        assert about[0] == {"ids": [8, 10, 11, 13], "copies": [[1, 3], [2]], "wrong": [2], "silent": []}
        assert about[1] == {"ids": [12], "copies": [[1], [3]], "wrong": [], "silent": [2]}
        assert "is not known (server 2 cannot tell)" in r.nodes[0].log.comparer.remarks()[1]


def spoil(node: Host, damaged: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage an entry for good: a copy written over it is damaged too, and yet no store is given up as lost."""
    monkeypatch.setattr("alpo.node.scrub.MENDED_MAX", 1 << 30)
    read, scrub = node.log.store.read_entries, node.log.store.scrub

    def read_entries(first_id: int, last_id: int, bytes_max: int) -> list[Entry]:
        if first_id <= damaged <= last_id:
            raise DamagedStore(f"entry {damaged} does not match its checksum")
        return read(first_id, last_id, bytes_max)

    def scrub_all(first_id: int, bytes_max: int) -> Any:
        return scrub(damaged + 1, bytes_max)._replace(damaged=[damaged] if first_id <= damaged else [])

    monkeypatch.setattr(node.log.store, "read_entries", read_entries)
    monkeypatch.setattr(node.log.store, "scrub", scrub_all)


@pytest.mark.trio
async def test_servers_that_have_cleaned_differently_compare_what_both_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(3, care=CARE) as r:
        entries = await filled(r, 60)
        r.nodes[1].log.cleaner.policy = Retention(max_entries=15)
        await until(lambda: r.nodes[1].replica.log.base_id >= entries[-16].id)
        assert r.nodes[0].replica.log.base_id == 0
        early, late = entries[5].id, entries[-3].id
        plant(r.nodes[0], early, late)
        alarm = {
            (early,): {"copies": [[1], [3]], "wrong": [], "silent": [2]},
            (late,): {"copies": [[2, 3], [1]], "wrong": [1], "silent": []},
        }
        await until(lambda: told(r.nodes[0]) == told(r.nodes[2]) == alarm)
        await further(r.nodes[1])
        assert told(r.nodes[1]) == {(late,): alarm[(late,)]}
        idle = trio.Event()

        async def compare_nothing(*_: object) -> None:
            idle.set()

        monkeypatch.setattr(r.nodes[0].log.comparer, "_pass", compare_nothing)
        await idle.wait()
        r.nodes[0].log.cleaner.policy = Retention(max_entries=15)
        await until(lambda: told(r.nodes[0]) == {(late,): alarm[(late,)]})


def told(node: Host) -> dict[tuple[int, ...], Any]:
    return {tuple(alarm.pop("ids")): alarm for alarm in node.log.comparer.fields()["diverged"]}


# -- members that cannot be asked


@pytest.mark.pure
@pytest.mark.trio
async def test_a_member_that_hangs_or_is_gone_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alpo.node.compare.ANSWER_S_MAX", 0.2)
    async with rig(3, care=CARE) as r:
        id = (await filled(r, 10))[-3].id
        for sock in (listening_socket(), None):  # a server that accepts connections and is silent; then none
            monkeypatch.setattr(r.nodes[0].replica, "address_of", _addresses(r, 2, sock))
            with planted(r.nodes[2], id):
                alarm = [{"ids": [id], "copies": [[1], [3]], "wrong": [], "silent": [2]}]
                await until(lambda: r.nodes[0].log.comparer.fields()["diverged"] == alarm)
            await until(lambda: r.nodes[0].log.comparer.fields()["diverged"] == [])
            if sock is not None:
                sock.close()
        monkeypatch.undo()
        _set_quick(monkeypatch)
        await further(r.nodes[0])


@pytest.mark.trio
async def test_a_store_that_cannot_say_its_size_does_not_make_it_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "IDS_MAX", 8)
    async with rig(3, care=CARE) as r:
        await filled(r, 40)
        node = r.nodes[0]
        await further(node)
        begun: list[tuple[int, int]] = []  # (with whom, from which entry)

        async def look(inquiry: Inquiry, first_id: int, last_id: int) -> dict[int, tuple[bytes, bytes]]:
            begun.append((node.log.comparer._last_peer, first_id))
            return {}

        def fail() -> int:
            raise StoreError("input/output error")

        monkeypatch.setattr(node.log.comparer, "_differing", look)
        monkeypatch.setattr(node.log.store, "live_bytes", fail)
        places = range(1, node.replica.guaranteed_id + 1, 8)
        await until(lambda: len(begun) >= 6 * len(places))
        # Each peer is compared from where the last comparison ended, to the end and then from the beginning. A peer
        # that is silent because the machine stalls is left out for a while.
        for peer in (2, 3):
            await until(lambda: {first_id for who, first_id in begun if who == peer} == {*places})


def _addresses(r: Rig, id: int, sock: Any) -> Any:
    other = listening_socket() if sock is None else sock
    address = "{}:{}".format(*other.getsockname())
    if sock is None:
        other.close()
    return lambda asked: address if asked == id else r.addresses[asked - 1]


HELLO = w.ServerHello(w.VERSION, b"c" * 16, 2, 0, 0, 1, 1, 1, 0, ())
NONSENSE: dict[str, list[Any]] = {
    "another server": [HELLO._replace(id=3)],
    "another cluster": [HELLO._replace(cluster=b"d" * 16)],
    "turned away": [w.Problem(1, "no")],
    "no hello": [w.Done(1, 1)],
    "no digest": [HELLO, w.Done(1, 1)],
    "another request's": [HELLO, w.DigestIs(7, 5, 9, 0, 0, bytes(16))],
    "beginning too early": [HELLO, w.DigestIs(1, 4, 9, 0, 0, bytes(16))],
    "going too far": [HELLO, w.DigestIs(1, 5, 10, 0, 0, bytes(16))],
    "damage elsewhere": [HELLO, w.RequestRefused(1, 16, 10, 0, "", "entry 10")],
    "not ready": [HELLO, w.RequestRefused(1, 16, 0, 0, "", "input/output error")],
    "a last word": [HELLO, w.Problem(1, "no")],
    "bytes": [HELLO, b"GET / HTTP/1.0\r\n\r\n"],
    "a long frame": [HELLO, b"\xff\xff\xff\x7f" + bytes(4)],
    "an end": [HELLO],
    "silence": [HELLO, None],
    "not even a hello": [None],
}


@pytest.mark.trio
@pytest.mark.parametrize("what", NONSENSE)
async def test_nonsense_makes_a_member_unusable(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    if None in NONSENSE[what]:
        monkeypatch.setattr("alpo.node.compare.ANSWER_S_MAX", 0.1)

    sock = trio.socket.from_stdlib_socket(listening_socket())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_say, trio.SocketListener(sock), NONSENSE[what])
        with pytest.raises(Unusable):
            inquiry = await Inquiry.open(2, "{}:{}".format(*sock.getsockname()), b"c" * 16, Security())
            try:
                await inquiry.digest(5, 9)
            finally:
                inquiry.close()
        nursery.cancel_scope.cancel()
    sock.close()


@pytest.mark.trio
async def test_a_server_of_the_next_version_asks_one_of_this(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server greets with the next version, is answered with this one, and greets again."""
    know_next(monkeypatch)
    async with rig(3) as r:
        entries = await filled(r, 3)
        us = r.nodes[0].us
        inquiry = await Inquiry.open(us.me.id, us.address, r.nodes[0].replica.cluster, Security(), NEXT)
        assert (await inquiry.digest(1, entries[-1].id)).last_id == entries[-1].id
        assert (await inquiry.status())["id"] == us.me.id
        inquiry.close()
        with pytest.raises(Unusable, match=f"speaks version {w.OLDEST_VERSION - 1} of the protocol, this one version"):
            await Inquiry.open(us.me.id, us.address, r.nodes[0].replica.cluster, Security(), w.OLDEST_VERSION - 1)


async def _say(listener: trio.SocketListener, messages: list[Any]) -> None:
    stream = await listener.accept()
    async with stream:
        for message in messages:
            await stream.receive_some()
            if message is None:
                await trio.sleep_forever()
            await stream.send_all(message if isinstance(message, bytes) else encode(message))
        await stream.receive_some()


@pytest.mark.trio
@pytest.mark.parametrize("answer", ["damage", "digests", "nothing"])
async def test_a_member_that_lies_is_an_alarm_at_most(
    answer: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every pass ends, and the log goes on, if peers report damage everywhere, or random digests, or do not answer."""
    caplog.set_level(logging.CRITICAL)

    async with rig(3, care=CARE) as r:
        await filled(r, 30)
        lies = iter(range(1 << 62))

        def lie(client: Any, ask: w.RangeDigest) -> None:
            if answer == "damage":
                middle_id = (ask.first_id + ask.last_id) // 2
                client.settle(w.RequestRefused(ask.request, 16, middle_id, 0, "", "damaged"))
            elif answer == "digests":
                digest = next(lies).to_bytes(16, "big")
                client.settle(w.DigestIs(ask.request, ask.first_id, ask.last_id, 0, 0, digest))
            else:
                client.settle(w.DigestIs(ask.request, ask.first_id, ask.first_id - 1, 0, 0, bytes(16)))

        monkeypatch.setitem(cast(Any, r.nodes[1].handlers), w.RangeDigest, lie)
        await further(r.nodes[0], r.nodes[2], passes=6)
        wrong = {tuple(alarm["wrong"]) for alarm in r.nodes[0].log.comparer.fields()["diverged"]}
        assert wrong == ({(2,)} if answer == "digests" else set())
        await filled(r, 3)


@pytest.mark.trio
async def test_no_scrub_no_comparison() -> None:
    async with rig(3) as r:
        id = (await filled(r, 10))[-3].id
        plant(r.nodes[1], id)
        await trio.testing.wait_all_tasks_blocked()
        assert [node.log.comparer.fields() for node in r.nodes] == [{"diverged": [], "compare_passes": 0}] * 3


@pytest.mark.parametrize(("groups", "silent", "wrong"), [
    (((1, 3), (2,)), (), (2,)),
    (((1,), (2,)), (), ()),
    (((1,), (2,)), (3,), ()),
    (((1, 2), (3,)), (4,), ()),
    (((1, 2, 4), (3,), (5,)), (), (3, 5)),
    (((1, 2), (3, 4)), (5,), ()),
    (((1, 2), (3,)), (4, 5), ()),
])
def test_who_is_wrong(groups: Any, silent: Any, wrong: Any) -> None:
    assert Copies(groups, silent).wrong == wrong
