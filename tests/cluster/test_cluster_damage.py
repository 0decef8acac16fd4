"""Entries damaged on the disk of a real server: had back from the others, never served (R31)."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from harness import Cluster, alpo, cluster

from alpo import AlpoError, Unavailable, connect


def tamper(data: Path, id: int, what: str = "body || x'00'") -> None:
    """Damage an entry on a running server's disk, as a failing disk would."""
    with closing(sqlite3.connect(data / "alpo.db", timeout=30, isolation_level=None)) as db:
        assert db.execute(f"UPDATE log SET body = {what} WHERE id = ?", (id,)).rowcount == 1


def events(running: Cluster, id: int) -> list[dict[str, Any]]:
    """Events that server ``id`` has logged."""
    return [json.loads(line) for line in running.servers[id].log.read_text().splitlines()]


@pytest.mark.trio
async def test_a_damaged_entry_comes_back_from_another_server(tmp_path: Path) -> None:
    """A damaged entry of the leader and one of a follower are mended while appends go on."""
    async with cluster(tmp_path, proxied=False, storage={"scrub_bytes_per_s": 1 << 30, "scrub_pass_s": 1.0}) as running:
        first = await running.leader()
        follower = running.others(first)[0]
        async with connect(running.addresses) as log:
            lsns = [await log.append(b"%d" % number) for number in range(50)]
            await running.level()
            ids = [record.id async for record in log.read()]
            tamper(running.servers[first].data, ids[20])
            tamper(running.servers[follower].data, ids[30])
            damaged = {first: ids[20], follower: ids[30]}

            def mended(found: dict[int, dict[str, Any]]) -> bool:
                return all(
                    id in found and not found[id]["damaged"]
                    and any(e["event"] == "damage_mended" and e["id"] == damaged[id] for e in events(running, id))
                    for id in damaged
                )

            await running.until("both have theirs back", mended)
            lsns.append(await log.append(b"goes on"))
            await running.level()
            for id in running.servers:
                assert [r.lsn async for r in log.read(local=True, server=id)] == lsns
        await running.stop()
        for server in running.servers.values():
            code, stdout, stderr = await alpo("log", "verify", str(server.data))
            assert code == 0, stdout + stderr


@pytest.mark.trio
async def test_an_entry_damaged_on_all_disks_is_an_alarm_and_never_served(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False, storage={"scrub_bytes_per_s": 1 << 30, "scrub_pass_s": 1.0}) as running:
        first = await running.leader()
        async with connect(running.addresses) as log:
            lsns = [await log.append(b"%d" % number) for number in range(50)]
            await running.level()
            record, *_ = [r async for r in log.read(start=lsns[20], stop=lsns[20])]
            for server in running.servers.values():
                server.pause()
            for server in running.servers.values():
                tamper(server.data, record.id)
            for server in running.servers.values():
                server.resume()

            def known(found: dict[int, dict[str, Any]]) -> bool:
                return len(found) == 3 and all(fields["damaged"] == [record.id] for fields in found.values())

            found = await running.until("all scrubs have found it", known)
            assert found[first]["damage"] == [
                f"its disk holds damaged entries, 1 known: {record.id}; it serves and sends none of them"
            ]
            sound = [r.lsn async for r in log.read(stop=lsns[19], local=True, server=first)]
            assert sound == lsns[:20]
            with pytest.raises(Unavailable, match=rf"entry {record.id}\b"):
                async with connect(running.addresses, timeout_s=4) as impatient:
                    [r async for r in impatient.read(start=lsns[20], local=True, server=first)]
            _, _, stderr = await alpo("status", "--servers", running.addresses)
            assert f"server {first}: its disk holds damaged entries" in stderr
            with pytest.raises(AlpoError, match="in time"):
                await log.append(b"nobody may count it", timeout_s=1)
            tamper(running.servers[running.others(first)[0]].data, record.id, f"x'{record.payload.hex()}'")
            await running.until("one sound copy mends all", lambda found: len(found) == 3 and not any(
                fields["damaged"] for fields in found.values()
            ))
            await log.settle()
            await log.append(b"goes on")
            assert [r.payload async for r in log.read(stop=lsns[-1])] == [b"%d" % number for number in range(50)]


def break_page(data: Path, payload: bytes) -> None:
    """Break the page with this payload in a running server's file, so that SQLite neither reads nor writes it."""
    with closing(sqlite3.connect(data / "alpo.db", timeout=30, isolation_level=None)) as db:
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    with (data / "alpo.db").open("r+b") as file:
        whole = file.read()
        page = whole.index(payload) // 4096 * 4096
        file.seek(page + 3)
        file.write(bytes([whole[page + 3] ^ 0xFF]))  # the number of its rows


@pytest.mark.trio
async def test_a_damaged_page_of_a_running_server_ends_its_store_and_not_the_server(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False, storage={"scrub_bytes_per_s": 1 << 30, "scrub_pass_s": 1.0}) as running:
        follower = running.others(await running.leader())[0]
        async with connect(running.addresses) as log:
            lsns = [await log.append(b"%04d" % number + bytes(200)) for number in range(200)]
            await running.level()
            break_page(running.servers[follower].data, b"0100" + bytes(200))
            lsns.append(await log.append(b"what was read before is not read from memory again"))
            await running.until("its store is set aside", lambda _: any(
                event["event"] == "store_set_aside" for event in events(running, follower)
            ))
            await running.until("it votes again", lambda found: len(found) == 3 and all(
                fields["status"] == "VOTING" and not fields["damaged"] for fields in found.values()
            ))
            await running.level()
            assert [r.lsn async for r in log.read(local=True, server=follower)] == lsns


def flip(data: Path, payload: bytes) -> None:
    """Flip one bit of this payload in the data file of a running server."""
    with closing(sqlite3.connect(data / "alpo.db", timeout=30, isolation_level=None)) as db:
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    with (data / "alpo.db").open("r+b") as file:
        at = file.read().index(payload) + len(payload) // 2
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.trio
@pytest.mark.parametrize("scrub", [{"scrub_bytes_per_s": 16_384, "scrub_pass_s": 86_400.0}, {"scrub_bytes_per_s": 0}])
async def test_damage_that_a_read_meets_is_mended_while_the_reader_waits(tmp_path: Path, scrub: dict[str, Any]) -> None:
    """Whatever the scrub's rate, a linearizable read at the leader, a local read and a backup at followers mend it."""
    async with cluster(tmp_path, proxied=False, storage=scrub) as running:
        first = await running.leader()
        other, third = running.others(first)
        async with connect(running.addresses) as log:
            payloads = [b"%06d" % number * 300 for number in range(400)]
            lsns = [await log.append(payload) for payload in payloads]
            await running.level()

            def told(id: int, name: str) -> list[dict[str, Any]]:
                return [event for event in events(running, id) if event["event"] == name]

            flip(running.servers[first].data, payloads[20])
            assert [r.payload async for r in log.read(start=lsns[20], stop=lsns[22])] == payloads[20:23]
            flip(running.servers[other].data, payloads[30])
            there = log.read(start=lsns[25], stop=lsns[35], local=True, server=other)
            assert [r.payload async for r in there] == payloads[25:36]
            flip(running.servers[third].data, payloads[40])
            code, stdout, stderr = await alpo(
                "backup", "--servers", running.addresses, "--server", str(third), str(tmp_path / "copy.db")
            )
            assert code == 0, stdout + stderr
            for id in (first, other, third):
                await running.until(f"server {id} tells of it", lambda _, id=id: bool(  # type: ignore[misc]
                    told(id, "damage_found") and told(id, "damage_mended") and told(id, "damage_gone")
                ))
                assert not told(id, "read_failed") and not told(id, "store_set_aside")
            assert told(first, "handing_over")
            await running.until("nothing is damaged", lambda found: len(found) == 3 and not any(
                fields["damaged"] for fields in found.values()
            ))
        await running.stop()
        for server in running.servers.values():
            code, stdout, stderr = await alpo("log", "verify", str(server.data))
            assert code == 0, stdout + stderr
            with closing(sqlite3.connect(server.data / "alpo.db")) as db:
                kept = {name for (name,) in db.execute("SELECT name FROM event_log")}
            assert kept >= {"damage_found", "damage_mended", "damage_gone"}
