"""A real server's disk holds another entry, sealed as well as any: the others find it and say whose it is (R31)."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from harness import alpo, cluster

from alpo import connect
from alpo.core.entries import Entry, seal


def replace_body(data: Path, id: int, body: bytes) -> None:
    """Replace an entry on a stopped server's disk by one in its place with another payload and right checksums."""
    columns = ", ".join(f'"{name}"' for name in Entry._fields)
    with closing(sqlite3.connect(data / "alpo.db", isolation_level=None)) as db:
        old = Entry(*db.execute(f"SELECT {columns} FROM log WHERE id = ?", (id,)).fetchone())
        new = seal(*old[:4], old.lsn, body, old.client, old.serial, old.epoch, old.count)
        db.execute(
            'UPDATE log SET body = ?, digest = ?, "check" = ? WHERE id = ?', (new.body, new.digest, new.check, id)
        )


@pytest.mark.trio
async def test_a_copy_that_differs_is_found_named_and_gone_with_its_disk(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False, storage={"scrub_bytes_per_s": 1 << 30, "scrub_pass_s": 1.0}) as running:
        leader = await running.leader()
        odd, other = running.others(leader)
        async with connect(running.addresses) as log:
            lsns = [await log.append(b"%d" % number) for number in range(50)]
            await running.level()
            record, *_ = [r async for r in log.read(start=lsns[20], stop=lsns[20])]
            assert await running.stop(odd) == {odd: 0}
            replace_body(running.servers[odd].data, record.id, b"not twenty")
            running.start(odd)
            alarm = [{"ids": [record.id], "copies": [sorted([leader, other]), [odd]], "wrong": [odd], "silent": []}]

            def known(found: dict[int, dict[str, Any]]) -> bool:
                return len(found) == 3 and all(fields["diverged"] == alarm for fields in found.values())

            found = await running.until("all have compared", known)
            assert all(fields["damaged"] == [] for fields in found.values()), "its checksums are right"
            says = f"which is wrong: look (alpo log diff), then give server {odd} an empty directory"
            _, _, stderr = await alpo("status", "--servers", running.addresses)
            assert says in " ".join(stderr.split())
            code, stdout, _ = await alpo("doctor", "--servers", running.addresses, "--json")
            (told,) = [line for line in map(json.loads, stdout.splitlines()) if line["check"] == "copies"]
            assert code == 1 and told["verdict"] == "bad" and says in told["says"]
            directories = [str(running.servers[id].data) for id in (leader, odd)]
            _, stdout, _ = await alpo("log", "diff", *directories, "--json")
            assert json.loads(stdout)["first_difference"] == record.id
            running.lose(odd)

            def healed(found: dict[int, dict[str, Any]]) -> bool:
                return len(found) == 3 and all(f["status"] == "VOTING" and f["diverged"] == [] for f in found.values())

            await running.until("its new disk holds what the others hold", healed)
            assert [r.payload async for r in log.read(start=lsns[20], stop=lsns[20], local=True, server=odd)] == [b"20"]
        events = [json.loads(line) for line in running.servers[leader].log.read_text().splitlines()]
        assert [e["wrong"] for e in events if e["event"] == "diverged"] == [[odd]]
        assert "diverged_no_more" in [e["event"] for e in events]
