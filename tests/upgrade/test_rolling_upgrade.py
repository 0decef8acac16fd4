"""Two releases talk: the one before this, as it was (`alpo-0.1.0.zip`), and this one, in one cluster under appends."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import checkers
import pytest
from harness import Cluster, alpo, cluster, serving
from probe import until

from alpo import Fenced, Log, NotGuaranteed, Refused, connect
from alpo.storage.schema import DB_NAME

BEFORE = Path(__file__).parent / "alpo-0.1.0.zip"


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
    running.servers[id].kill()
    shutil.rmtree(running.servers[id].data)
    running.start(id)
    await running.until(f"server {id} votes again", lambda found: votes(found, id))


async def of_release_before(running: Cluster) -> None:
    for server in running.servers.values():
        server.release = BEFORE
    running.start()
    await running.leader()
    assert {fields["version"] for fields in (await running.statuses()).values()} == {"0.1.0"}


def schema(running: Cluster, id: int) -> int:
    with closing(sqlite3.connect(running.servers[id].data / DB_NAME)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


@pytest.mark.trio
async def test_a_cluster_is_upgraded_server_by_server_under_appends(tmp_path: Path) -> None:
    async with cluster(tmp_path, start=False) as running:
        await of_release_before(running)
        old_schema = schema(running, 1)
        async with serving(running):
            leader = await running.leader()
            for id in [*running.others(leader), leader]:
                await put(running, id, None)
                for release in (BEFORE, None):
                    code, out, err = await alpo(
                        "append", "x", "--json", "--servers", running.addresses, release=release)
                    assert code == 0, err
                    assert json.loads(out)["lsn"] > 0
        await running.level()
        assert schema(running, 1) > old_schema
        await running.stop()
        assert checkers.unequal({id: server.entries() for id, server in running.servers.items()}) == []


@pytest.mark.parametrize("leader_is_new", [pytest.param(False, marks=pytest.mark.soak), True])
@pytest.mark.trio
async def test_a_lost_disk_comes_back_across_the_releases(tmp_path: Path, leader_is_new: bool) -> None:
    """A base with named sessions, from a leader of the one release to a learner of the other."""
    async with cluster(tmp_path, start=False) as running:
        await of_release_before(running)
        for name in ("billing", "audit"):
            async with connect(running.addresses, client=name) as log:
                for number in range(30):
                    await log.append(b"%d" % number)
        async with connect(running.addresses) as log:
            await log.trim(before=40)
        await running.until("cleaned", lambda found: all(fields["cleaned_id"] > 0 for fields in found.values()))
        one = await running.leader()
        lost = running.others(one)[0]
        await put(running, lost, None)
        if leader_is_new:
            async with connect(running.addresses) as log:
                assert (await log.outcome("audit", 30)).birth == 0
                await hand_over(log, lost)
                await running.leader([lost])
                birth = (await log.outcome("audit", 30)).birth  # the one that led still answers, and leads no more
                assert birth and (await log.outcome("audit", 30, epoch=birth)).outcome == "appended"
            lost = one
        async with serving(running):
            await lose_disk(running, lost)
        await running.level()
        async with connect(running.addresses, client="billing") as log:
            assert await log.append(b"30") > 60
            assert log.last_serial == 30


@pytest.mark.trio
async def test_what_a_server_of_the_release_before_cannot_tell_is_not_guessed(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, start=False) as running:
        running.servers[1].release = BEFORE
        running.start()
        code, _, err = await alpo("cluster", "init", "--servers", running.addresses)
        assert code == 0, err
        await running.leader()
        async with connect(running.addresses) as log, connect(running.addresses, client="n") as named:
            lsn = await named.append(b"x")
            told = await log.outcome("n", 1)
            assert (told.outcome, told.lsn, told.birth) == ("appended", lsn, 0)
            assert (await log.outcome(await random_id(log), 1, epoch=9)).birth is None
            with pytest.raises(Refused, match=r"release 0\.1"):
                await log.outcome("n", 1, epoch=named.epoch)
            code, _, err = await alpo("outcome", "n", "1", "--epoch", "9", "--servers", running.addresses)
            assert code == 1 and "release 0.1" in err

            with pytest.raises(Refused, match="older release"):
                await named.append(b"y", expect_last=lsn)
            with pytest.raises(Refused, match="older release"):
                await log.append_by_hand([b"x"], client="n", serial=1, expect_last=0)
            code, _, err = await alpo("append", "y", "--expect-last", "1", "--servers", running.addresses)
            assert code == 1 and "older release" in err
            assert await named.append(b"z") > lsn  # the refused append was not sent, and the connection still works

            assert await log.drop_session("n") == named.epoch
            with pytest.raises(NotGuaranteed) as lost:  # it is in the log
                await log.append_by_hand([b"x"], client="n", serial=1, epoch=named.epoch)
            assert lost.value.too_old
            with pytest.raises(Fenced, match="was dropped") as dropped:
                await named.append(b"y")
            assert dropped.value.epoch == 0


async def random_id(log: Log) -> str:
    await log.append(b"random")
    assert log.client is not None
    return log.client


@pytest.mark.soak
@pytest.mark.trio
async def test_either_command_works_with_either_server(tmp_path: Path) -> None:
    async with cluster(tmp_path, start=False) as running:
        await of_release_before(running)
        await commands(running, "before", {None: "new"})
        for id in running.servers:
            await put(running, id, None)
        await commands(running, "after", {BEFORE: "old", None: "new"})


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
async def test_there_is_no_way_back_and_it_says_so(tmp_path: Path) -> None:
    async with cluster(tmp_path, 1, start=False) as running:
        running.start()
        code, _, err = await alpo("cluster", "init", "--servers", running.addresses)
        assert code == 0, err
        await running.leader()
        server = running.servers[1]
        assert server.process is not None
        server.process.terminate()
        assert await server.ended() == 0
        server.release = BEFORE
        running.start(1)
        assert await server.ended() == 1
        assert "schema" in server.tail(3)
