"""Two releases talk: this one, and a made-up one after or before it (`next_release`), in one cluster under appends."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import checkers
import pytest
import trio
from harness import Cluster, Command, alpo, alpo_process, cluster, serving
from next_release import SCHEMA, VERSION, VERSION_BEFORE, make_next_release, make_release_before_logs
from probe import probe, until

import alpo as library
from alpo import Log, Refused, connect
from alpo.storage.schema import DB_NAME
from alpo.wire import requests as w


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_next_release(tmp_path_factory.mktemp("release") / "next")


@pytest.fixture(scope="module")
def before_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_release_before_logs(tmp_path_factory.mktemp("release") / "before")


def votes(found: dict[int, dict[str, object]], id: int) -> bool:
    return id in found and found[id]["status"] == "VOTING" and found[id]["leader"] != 0


async def put(running: Cluster, id: int, release: Path | None) -> None:
    """Stop server ``id`` in order and start it with another release."""
    server = running.servers[id]
    assert server.process is not None
    server.process.terminate()
    assert await server.ended() == 0
    server.release = release
    running.start(id)
    await running.until(f"server {id} votes", lambda found: votes(found, id))


async def hand_over(log: Log, id: int) -> None:
    """Have a server lead that was started a moment ago: the leader refuses until it has heard of it."""
    async def accepted() -> bool:
        try:
            await log.transfer(id)
        except Refused as error:
            assert "not been heard of lately" in str(error)
            return False
        return True

    await until(accepted)


async def lose_disk(running: Cluster, id: int) -> None:
    running.lose(id)
    await running.until(f"server {id} votes again", lambda found: votes(found, id))


async def are(running: Cluster, version: str) -> bool:
    return {fields["version"] for fields in (await running.statuses()).values()} == {version}


def schema(running: Cluster, id: int) -> int:
    with closing(sqlite3.connect(running.servers[id].data / DB_NAME)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


@pytest.mark.trio
async def test_a_cluster_is_upgraded_server_by_server_under_appends(tmp_path: Path, later: Path) -> None:
    async with cluster(tmp_path, start=False) as running:
        running.start()
        leader = await running.leader()
        assert await are(running, library.__version__)
        async with serving(running):
            for id in [*running.others(leader), leader]:
                await put(running, id, later)
                for release in (later, None):
                    code, out, err = await alpo(
                        "append", "x", "--json", "--servers", running.addresses, release=release)
                    assert code == 0, err
                    assert json.loads(out)["lsn"] > 0
        await running.level()
        assert await are(running, VERSION)
        assert {schema(running, id) for id in running.servers} == {SCHEMA}
        await running.stop()
        assert checkers.unequal({id: server.entries() for id, server in running.servers.items()}) == []


async def append_on(command: Command, appended: list[int]) -> None:
    """Have a command append one number after another; their LSNs."""
    while True:
        await command.write(b"%d\n" % len(appended))
        appended.append((await command.line())["lsn"])


async def create(running: Cluster, name: str) -> tuple[int, str]:
    code, _, err = await alpo("log", "create", name, "--servers", running.addresses, "--timeout", "60")
    return code, err


@pytest.mark.trio
async def test_logs_are_created_once_all_servers_know_of_them_and_an_old_client_goes_on(
    tmp_path: Path, before_logs: Path
) -> None:
    appended: list[int] = []
    async with cluster(tmp_path, start=False) as running:
        for server in running.servers.values():
            server.release = before_logs
        running.start()
        last = await running.leader()
        first, second = running.others(last)
        assert await are(running, VERSION_BEFORE)
        words = ("append", "--json", "--client", "old", "--timeout", "60", "--servers", running.addresses)
        async with alpo_process(*words, release=before_logs) as command, trio.open_nursery() as nursery:
            nursery.start_soon(append_on, command, appended)
            await put(running, first, None)
            code, err = await create(running, "billing")
            assert code == 1 and "too old" in err
            await put(running, second, None)
            async with connect(running.addresses) as log:
                await hand_over(log, first)
            await running.leader([first])
            code, err = await create(running, "billing")
            assert code == 1 and f"server {last} may be too old to know of logs: they must be up, and of this" in err
            await put(running, last, None)
            assert await are(running, library.__version__)
            code, err = await create(running, "billing")
            assert code == 0, err
            async with connect(running.addresses, log="billing", timeout_s=60) as log:
                assert await log.append(b"of billing") == 1
            at_least = len(appended) + 20
            await until(lambda: len(appended) >= at_least)
            nursery.cancel_scope.cancel()
        async with connect(running.addresses) as log:
            payloads = {record.lsn: record.payload async for record in log.read(1)}
        assert [payloads.pop(lsn) for lsn in appended] == [b"%d" % number for number in range(len(appended))]
        assert list(payloads.values()) in ([], [b"%d" % len(appended)])
        await running.level()
        await running.stop()
        assert checkers.unequal({id: server.entries() for id, server in running.servers.items()}) == []
        assert all((server.folder(2) / DB_NAME).exists() for server in running.servers.values())


@pytest.mark.parametrize("leader_is_new", [pytest.param(False, marks=pytest.mark.soak), True])
@pytest.mark.trio
async def test_a_lost_disk_comes_back_across_the_releases(tmp_path: Path, later: Path, leader_is_new: bool) -> None:
    """A base with named sessions, from a leader of the one release to a learner of the other."""
    async with cluster(tmp_path, start=False) as running:
        running.start()
        await running.leader()
        for name in ("billing", "audit"):
            async with connect(running.addresses, client=name) as log:
                for number in range(30):
                    await log.append(b"%d" % number)
        async with connect(running.addresses) as log:
            await log.trim(before=40)
        await running.until("cleaned", lambda found: all(fields["cleaned_id"] > 0 for fields in found.values()))
        one = await running.leader()
        lost = running.others(one)[0]
        await put(running, lost, later)
        if leader_is_new:
            async with connect(running.addresses) as log:
                await hand_over(log, lost)
                await running.leader([lost])
                birth = (await log.outcome("audit", 30)).birth
                assert birth and (await log.outcome("audit", 30, epoch=birth)).outcome == "appended"
            lost = one
        async with serving(running):
            await lose_disk(running, lost)
        await running.level()
        async with connect(running.addresses, client="billing") as log:
            assert await log.append(b"30") > 60
            assert log.last_serial == 30


@pytest.mark.trio
async def test_a_caller_and_a_server_speak_the_newest_version_that_both_know(tmp_path: Path, later: Path) -> None:
    async with cluster(tmp_path, 1, start=False) as running:
        running.start()
        code, _, err = await alpo("cluster", "init", "--servers", running.addresses)
        assert code == 0, err
        await running.leader()
        for release, newest in ((None, w.VERSION), (later, w.VERSION + 1)):
            await put(running, 1, release)
            for asked in (w.OLDEST_VERSION - 1, w.OLDEST_VERSION, w.VERSION, newest + 1):
                async with probe(running.servers[1].address, w.ClientHello(asked, b"", "test")) as server:
                    if w.OLDEST_VERSION <= asked <= newest:
                        assert isinstance(server.hello, w.ServerHello) and server.hello.version == asked
                        continue
                    told = f"the other side speaks version {asked} of the protocol, this one version {newest}"
                    assert isinstance(server.hello, w.Problem) and server.hello.text == told


@pytest.mark.soak
@pytest.mark.trio
async def test_either_command_works_with_either_server(tmp_path: Path, later: Path) -> None:
    async with cluster(tmp_path, start=False) as running:
        running.start()
        await running.leader()
        await commands(running, "before", {later: "new", None: "old"})
        for id in running.servers:
            await put(running, id, later)
        await commands(running, "after", {None: "old", later: "new"})


async def commands(running: Cluster, when: str, releases: dict[Path | None, str]) -> None:
    async def ask(release: Path | None, *words: str) -> str:
        code, out, err = await alpo(*words, "--servers", running.addresses, "--json", release=release)
        assert code == 0, err
        return out

    for release, which in releases.items():
        name = f"{which}-{when}"
        lsn = json.loads(await ask(release, "append", "hello", "--client", name, "--serial", "1"))["lsn"]
        told = json.loads(await ask(release, "outcome", name, "1"))
        assert (told["outcome"], told["lsn"]) == ("appended", lsn)
        assert json.loads(await ask(release, "read", "--from", str(lsn), "--limit", "1"))["client"] == name
        assert all(member["reachable"] for member in json.loads(await ask(release, "status"))["members"])
        await ask(release, "session", "drop", name)
        assert json.loads(await ask(release, "outcome", name, "1"))["outcome"] == "too_old"


@pytest.mark.trio
async def test_there_is_no_way_back_and_it_says_so(tmp_path: Path, later: Path) -> None:
    async with cluster(tmp_path, 1, start=False) as running:
        server = running.servers[1]
        server.release = later
        running.start()
        code, _, err = await alpo("cluster", "init", "--servers", running.addresses, "--timeout", "60")
        assert code == 0, err
        await running.leader()
        assert server.process is not None
        server.process.terminate()
        assert await server.ended() == 0
        before = (server.data / DB_NAME).read_bytes()
        server.release = None
        running.start(1)
        assert await server.ended() == 1
        assert f"written by a newer version (schema {SCHEMA};" in server.tail(3)
        assert (server.data / DB_NAME).read_bytes() == before
