"""Mistakes that an operator may make: each has its stated outcome, and the cluster keeps serving."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest
from harness import Server, alpo, cluster, serving
from ports import free_port
from proxy import HOST

from alpo import TooLarge, connect


def said(server: Server, event: str) -> list[dict[str, object]]:
    """Lines of this event in a server's log."""
    lines = [json.loads(line) for line in server.log.read_text("utf-8").splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


def last_words(server: Server) -> str:
    return server.log.read_text("utf-8").splitlines()[-1]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.suffix != ".lock"}


@pytest.mark.trio
async def test_a_directory_of_another_server_or_cluster_is_refused_and_not_touched(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.leader()
        found = await running.status(1)
        assert found is not None
        await running.stop(1)
        before = contents(running.servers[1].data)
        async with serving(running):
            swapped = Server(3, tmp_path / "swapped", running.members, {})
            other = Server(1, tmp_path / "other", running.members, {"cluster": "ab" * 16})
            for server in (swapped, other):
                server.home.mkdir()
                server.data = running.servers[1].data
                server.spawn(free_port())
                assert await server.ended() == 1
                assert contents(server.data) == before
            assert "server 1" in last_words(swapped)
            assert found["cluster"] in last_words(other)
            running.servers[1].options["cluster"] = found["cluster"]
            running.start(1)
            await running.until("all follow", lambda all_: all(f["leader"] for f in all_.values()) and len(all_) == 3)


@pytest.mark.trio
async def test_a_server_of_another_cluster_in_the_place_of_one_never_joins(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    async with cluster(tmp_path / "ours") as ours, cluster(tmp_path / "theirs") as theirs:
        await ours.leader()
        await theirs.leader()
        async with connect(theirs.addresses) as log:
            await log.append(b"theirs")
        await theirs.level()
        ours.servers[3].kill()
        await theirs.stop()
        shutil.copytree(theirs.servers[3].data, tmp_path / "copy")
        ours.servers[3].data = tmp_path / "copy"
        async with serving(ours):
            ours.start(3)
            found = await ours.until(
                "both sides say so",
                lambda all_: len(all_) == 3 and all(
                    any("cluster" in problem for problem in fields["problems"]) for fields in all_.values()
                ),
            )
            assert found[3]["cluster"] != found[1]["cluster"]
        ours.servers[3].kill()
        assert [e.body for e in ours.servers[3].entries() if e.count] == [b"theirs"]
        assert all(said(ours.servers[id], "turned_away") for id in (1, 2))


@pytest.mark.trio
async def test_all_servers_on_other_ports(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False) as running:
        await running.leader()
        async with connect(running.addresses) as log:
            assert await log.append(b"before") == 1
        assert set((await running.stop()).values()) == {0}
        running.members = {id: f"{HOST}:{free_port()}" for id in running.members}
        for server in running.servers.values():
            server.members = running.members
        running.start()
        await running.leader()
        async with connect(running.addresses) as log:
            assert await log.append(b"after") == 2
        found = await running.until(
            "the list in the log has the new addresses",
            lambda all_: {id: fields["address"] for id, fields in all_.items()} == running.members,
        )
        assert len({fields["cluster"] for fields in found.values()}) == 1
        # Now the client knows one server alone, which reports the list in the log.
        async with connect(running.members[2]) as log:
            await log.append(b"found")
            assert {row["address"] for row in await log.status()} == set(running.members.values())


@pytest.mark.trio
async def test_a_port_in_use_is_said_and_the_others_go_on(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.leader()
        await running.stop(2)
        async with serving(running):
            with socket.socket() as taken:
                taken.bind((HOST, 0))
                taken.listen()
                running.servers[2].spawn(taken.getsockname()[1])
                assert await running.servers[2].ended() == 1
            assert "in use" in last_words(running.servers[2])


@pytest.mark.parametrize("what", ["members", "settings"])
@pytest.mark.trio
async def test_lists_or_settings_that_differ_wait_and_say_so_until_they_agree(tmp_path: Path, what: str) -> None:
    async with cluster(tmp_path, start=False) as running:
        strange = running.servers[3]
        if what == "members":
            strange.members = {**running.members, 2: f"{HOST}:{free_port()}"}
        else:
            strange.options = {"settings": {"window": 7}}
        running.start()
        await running.until(
            "each names who differs",
            lambda all_: len(all_) == 3 and all(
                any("another member list" in why and other in why for why in all_[id]["waiting"])
                for id, other in ((1, "server 3"), (2, "server 3"), (3, "server 1"), (3, "server 2"))
            ),
        )
        assert all(fields["status"] == "EMPTY" for fields in (await running.statuses()).values())
        assert all("another member list" in server.log.read_text("utf-8") for server in running.servers.values())
        await running.stop(3)
        strange.members, strange.options = running.members, {}
        running.start(3)
        await running.leader()


@pytest.mark.trio
async def test_a_payload_over_the_limit(tmp_path: Path) -> None:
    async with cluster(tmp_path, settings={"payload_bytes_max": 1000, "batch_bytes_max": 3000}) as running:
        await running.leader()
        code, out, text = await alpo("--servers", running.addresses, "append", "--whole", stdin=b"x" * 1001)
        assert (code, out) == (2, "") and "1001" in text.replace(",", "")
        async with connect(running.addresses) as log:
            assert await log.append(b"x" * 1000) == 1
            for wrong in (log.append(b"x" * 1001), log.append_batch([b"x" * 1000] * 4)):
                with pytest.raises(TooLarge):
                    await wrong
            assert await log.append(b"the next") == 2
            assert [len(record.payload) async for record in log.read()] == [1000, 8]
