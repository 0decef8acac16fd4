"""Members come and go, and disks are lost, while real processes serve (R27, R28, R30)."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from harness import Cluster, Server, alpo, cluster, serving
from ports import free_port
from probe import status, until
from proxy import HOST

from alpo import Refused, connect
from alpo.core.entries import Kind


def votes(all_: dict[int, dict[str, Any]], id: int) -> bool:
    """True if server ``id`` votes, by its own account and by the leader's list."""
    leads = [fields for fields in all_.values() if fields["state"] == "leader"]
    return id in all_ and all_[id]["status"] == "VOTING" and any(
        member["id"] == id and member["role"] == "VOTER" for fields in leads for member in fields["members"]
    )


async def fill(running: Cluster, count: int, bytes_each: int = 100, batch: int = 500) -> None:
    async with connect(running.addresses, timeout_s=30) as log:
        for _ in range(count // batch):
            await log.append_batch([random.randbytes(bytes_each) for _ in range(batch)])


def same(running: Cluster, *ids: int) -> None:
    """Logs of these servers are equal on disk, as far as they overlap. Entries beyond are at most those with which new
    leaders began while all servers stopped."""
    logs = [running.servers[id].entries() for id in ids]
    begin, end = max(log[0].id for log in logs), min(log[-1].id for log in logs)
    kept = [[entry for entry in log if begin <= entry.id <= end] for log in logs]
    assert all(log == kept[0] for log in kept)
    assert {entry.kind for log in logs for entry in log if entry.id > end} <= {Kind.LEADER}


@pytest.mark.parametrize("trimmed", [pytest.param(False, marks=pytest.mark.soak), True])
@pytest.mark.trio
async def test_a_lost_disk_comes_back_by_itself(tmp_path: Path, trimmed: bool) -> None:
    async with cluster(tmp_path) as running:
        leader = await running.leader()
        await fill(running, 5_000)
        await running.level()
        if trimmed:
            async with connect(running.addresses) as log:
                await log.trim(before=2_001)
            await running.until("cleaned", lambda all_: all(fields["cleaned_id"] > 0 for fields in all_.values()))
        lost = running.others(leader)[0]
        async with serving(running):
            running.lose(lost)
            await running.until("it votes again", lambda all_: votes(all_, lost))
        await running.level()
        await running.stop()
        same(running, *running.servers)


@pytest.mark.trio
async def test_kill_9_in_the_middle_of_catching_up(tmp_path: Path) -> None:
    """A learner catches up and votes, though it or the leader is killed three times, wherever the learner is then."""
    async with cluster(tmp_path, size=5) as running:
        await fill(running, 10_000, 500, batch=20)
        lost = running.others(await running.leader())[0]
        async with serving(running):
            running.lose(lost)
            for turn in range(3):
                upto_id = random.randrange(500)
                await running.until(
                    f"it holds entry {upto_id}",
                    lambda all_, upto_id=upto_id: lost in all_ and all_[lost]["last_id"] >= upto_id,  # type: ignore[misc]
                )
                victim = lost if turn % 2 == 0 else await running.leader()
                running.servers[victim].kill()
                running.start(victim)
            await running.until("it votes again", lambda all_: votes(all_, lost))
        await running.level()
        await running.stop()
        same(running, *running.servers)


@pytest.mark.trio
async def test_an_old_disk_put_back_is_refused_and_says_so(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await fill(running, 500)
        await running.level()
        lost = running.others(await running.leader())[0]
        running.servers[lost].kill()
        data = running.servers[lost].data
        data.rename(tmp_path / "old")
        running.start(lost)
        await running.until("it votes again", lambda all_: votes(all_, lost))
        running.servers[lost].kill()
        data.rename(tmp_path / "new")
        (tmp_path / "old").rename(data)
        async with serving(running):
            running.start(lost)
            found = await running.until("it is told", lambda all_: lost in all_ and all_[lost]["status"] == "RETIRED")
            term = max(fields["term"] for fields in found.values())
            shutil.rmtree(tmp_path / "new")
        found = await running.statuses()
        assert max(fields["term"] for id, fields in found.items() if id != lost) == term, "it disturbed the others"


@pytest.mark.trio
async def test_one_grows_to_three_and_back_under_load(tmp_path: Path) -> None:
    async with cluster(tmp_path, size=1) as running, connect(running.addresses, timeout_s=30) as log:
        await log.init()
        await running.leader()
        async with serving(running):
            for id in (2, 3):
                members = await log.add_member(id, await running.newcomer(id))
                assert [member.role for member in members if member.id == id] == ["LEARNER"]
                await running.until(f"{id} votes", lambda all_, id=id: votes(all_, id))  # type: ignore[misc]
            for id in (1, 2):
                await _remove(log, id)
                await running.until(
                    f"{id} is gone", lambda all_, id=id: all_[id]["status"] == "GONE"  # type: ignore[misc]
                )
            found = await running.statuses()
            assert found[3]["state"] == "leader"


async def _remove(log: Any, id: int) -> None:
    """Remove a member once the change before is guaranteed and a majority answers."""
    async def done() -> bool:
        try:
            await log.remove_member(id)
        except Refused as refused:
            assert "another change" in str(refused) or "no majority" in str(refused), refused
            return False
        return True

    await until(done)


@pytest.mark.trio
async def test_replace_and_transfer_by_the_command(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        leader = await running.leader()
        await fill(running, 1_000)
        before = running.addresses
        moved, target = running.others(leader)
        async with serving(running):
            running.servers[moved].kill()
            address = await running.newcomer(moved)
            code, out, err = await alpo("--servers", before, "member", "replace", f"{moved}={address}", "--json")
            assert code == 0 or "another change" in err, err  # the leader may find the new disk by itself first

            async def votes_there() -> bool:
                found = out or (await alpo("--servers", before, "member", "list", "--json"))[1]
                (row,) = [row for row in json.loads(found)["members"] if row["id"] == moved]
                return (row["address"], row["role"], row["status"]) == (address, "voter", "VOTING")

            await until(votes_there)
            code, out, err = await alpo("--servers", before, "transfer", str(target), "--json")
            assert code == 0, err
            assert json.loads(out)["leader"] == target
        assert await running.leader() == target


@pytest.mark.trio
async def test_what_cannot_join_is_refused_with_the_reason(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    async with cluster(tmp_path / "one") as running, cluster(tmp_path / "other", size=1) as other:
        await running.leader()
        async with connect(other.addresses, timeout_s=30) as log:
            await log.init()
        async with connect(running.addresses) as log:
            for id, address, why in [
                (1, "127.0.0.1:1", "is a member already"), (4, running.members[2], "is the address of server 2"),
                (4, "127.0.0.1:1", "no server 4 that waits to join"), (1, other.members[1], "is a member already"),
                (4, other.members[1], "another server|this is server 1|cluster"),
            ]:
                with pytest.raises(Refused, match=why):
                    await log.add_member(id, address)
            with pytest.raises(Refused, match="is not a member"):
                await log.remove_member(9)
            with pytest.raises(Refused, match="is not a voting member"):
                await log.transfer(9)
        code, _, err = await alpo("--servers", running.addresses, "member", "add", "4")
        assert code == 2 and "ID=HOST:PORT" in err
        assert all(len(fields["members"]) == 3 for fields in (await running.statuses()).values())


@pytest.mark.trio
async def test_a_newcomer_founds_nothing_and_joins_no_other_cluster(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.leader()
        address = await running.newcomer(4, cluster="00" * 16)
        async with connect(address) as lonely:
            with pytest.raises(Refused, match="alpo member add"):
                await lonely.init()
        async with connect(running.addresses) as log:
            with pytest.raises(Refused, match="told to belong to cluster 0000"):
                await log.add_member(4, address)
        found = await running.statuses()
        assert found[4]["status"] == "EMPTY" and "alpo member add 4=" in found[4]["waiting"][0]


@pytest.mark.trio
async def test_a_restored_cluster_grows(tmp_path: Path) -> None:
    """The restored log holds member lists of the old cluster; a server that catches up ends with the right one."""
    (tmp_path / "old").mkdir()
    async with cluster(tmp_path / "old") as running:
        await fill(running, 1_000)
        victim = running.others(await running.leader())[0]
        async with connect(running.addresses, timeout_s=30) as log:
            await log.remove_member(victim)
        code, _, err = await alpo("--servers", running.addresses, "backup", str(tmp_path / "b.alpo"))
        assert code == 0, err
    (tmp_path / "new").mkdir()
    async with cluster(tmp_path / "new", size=1, start=False) as running:
        code, _, err = await alpo(
            "restore", str(tmp_path / "b.alpo"), "--data", str(running.servers[1].data), "--id", "1",
            "--listen", running.members[1],
        )
        assert code == 0, err
        running.start()
        await running.leader()
        async with connect(running.addresses, timeout_s=30) as log:
            for id in (2, 3):
                await log.add_member(id, await running.newcomer(id))
                await running.until(f"{id} votes", lambda all_, id=id: votes(all_, id))  # type: ignore[misc]
        await running.level()
        await running.stop()
        same(running, 1, 2, 3)


def told(running: Cluster, id: int, event: str) -> list[dict[str, Any]]:
    """The lines of a server's log about that event."""
    lines = [json.loads(line) for line in running.servers[id].log.read_text("utf-8").splitlines()]
    return [line for line in lines if line["event"] == event]


async def rows(address: str) -> list[tuple[int, str, bool]]:
    """(id, status, whether it gives a reason) of every row that `alpo status` has when asked at ``address`` alone."""
    code, out, err = await alpo("--servers", address, "status", "--json")
    assert code == 0, err
    return [(row["id"], row["status"], bool(row.get("waiting"))) for row in json.loads(out)["members"]]


@pytest.mark.trio
async def test_a_server_that_is_no_member_any_more_says_so(tmp_path: Path) -> None:
    """A server that was removed or replaced says so: at its own address, in a row beside the members', in its log."""
    async with cluster(tmp_path, size=4, proxied=False) as running:
        leader = await running.leader()
        removed, replaced, _ = running.others(leader)
        async with connect(running.addresses, timeout_s=30) as log:
            await log.append(b"x")
            await _remove(log, removed)
            await running.until("it is gone", lambda all_: all_[removed]["status"] == "GONE")
            old = running.servers[replaced]
            newcomer = Server(replaced, tmp_path / "new", {replaced: ""}, {}, join=running.addresses)
            newcomer.home.mkdir()
            port = free_port()
            newcomer.members[replaced] = f"127.0.0.1:{port}"
            newcomer.spawn(port)
            try:
                await until(lambda: status(newcomer.address))
                await log.replace_member(replaced, newcomer.address)
                await running.until("it is told", lambda all_: all_[replaced]["status"] == "RETIRED")
                found: list[tuple[int, str, bool]] = []

                async def votes() -> bool:
                    found[:] = await rows(running.members[leader])
                    return (replaced, "VOTING", False) in found

                await until(votes)
                assert [id for id, _, _ in found] == sorted({*running.servers} - {removed})
                assert (removed, "GONE", True) in await rows(running.members[removed])
                there = await rows(old.address)
                assert (replaced, "RETIRED", True) in there
                assert (replaced, "VOTING", False) in await rows(f"{running.members[leader]},{old.address}")
            finally:
                newcomer.kill()
        assert [line["level"] for line in told(running, removed, "gone")] == ["warning"]
        assert [line["level"] for line in told(running, replaced, "retired")] == ["warning"]


@pytest.mark.trio
async def test_a_rolling_restart_alarms_nobody(tmp_path: Path) -> None:
    """Every lost connection is logged, none as a warning: a server that stops says so; a first start is no outage."""
    timers = {"heartbeat_s": 0.2, "election_timeout_s": 1.0}
    async with cluster(tmp_path, proxied=False, timers=timers) as running:
        await running.leader()
        await running.level()
        for id in running.servers:
            assert await running.stop(id) == {id: 0}
            running.start(id)
            await running.level()
        await running.until("all connected", lambda all_: not any(fields["problems"] for fields in all_.values()))
        lost = [line["why"] for id in running.servers for line in told(running, id, "peer_lost")]
        assert lost.count("the other server says: it is stopping") >= 6
        assert not any(told(running, id, "peer_unreachable") for id in running.servers)


@pytest.mark.trio
@pytest.mark.parametrize("elsewhere", [True, False], ids=["another-address", "same-address"])
async def test_a_copy_of_a_directory_that_runs_too_is_told(tmp_path: Path, elsewhere: bool) -> None:
    """A cloned volume runs at another address, a cloned machine also says the original's. Both other servers report it,
    the original takes part, and the leader does not write an address again and again."""
    async with cluster(tmp_path, proxied=False) as running:
        first = await running.leader()
        original = running.others(first)[0]
        server = running.servers[original]
        await running.stop(original)
        shutil.copytree(server.data, tmp_path / "copy")
        running.start(original)
        await running.level()
        port = free_port()
        members = {**server.members, original: f"{HOST}:{port}"} if elsewhere else server.members
        clone = Server(original, tmp_path, members, server.options)
        clone.home, clone.data, clone.log = tmp_path / "clone", tmp_path / "copy", tmp_path / "clone.log"
        clone.home.mkdir()
        clone.spawn(port)
        try:
            others = [id for id in running.servers if id != original]
            found = await running.until("both others tell", lambda found: all(
                id in found and [one["id"] for one in found[id]["twice"]] == [original] for id in others
            ))
            said = found[others[0]]["twice"][0]["addresses"]
            assert len(said) == 2 and all(server.address in one for one in said) != elsewhere
            async with connect(running.addresses) as log:
                await log.append(b"goes on")
            await running.level()
            changes = sum(server.log.read_text().count("address_change") for server in running.servers.values())
            assert changes <= 2
            await running.until("the copy is told why", lambda _: "runs twice" in clone.log.read_text())
        finally:
            clone.kill()
