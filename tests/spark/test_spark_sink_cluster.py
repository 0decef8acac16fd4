"""The sink's commit against a real cluster: the client's sessions, serials, fencing and sizes, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import trio
from harness import Cluster, cluster
from probe import until

from alpo import connect
from alpo.errors import Fenced, NoSuchLog, Unavailable
from alpo.spark.committing import Job, append_directly, commit, commit_one_entry, commit_unnumbered, opener
from alpo.spark.ledger import Ledger, Part, Tag, stage
from alpo.spark.options import BATCH_BITS, WriteOptions
from alpo.spark.origin import SourceError

SETTINGS = {"payload_bytes_max": 300_000, "batch_bytes_max": 600_000}


def options(running: Cluster, timeout: str = "30s") -> WriteOptions:
    return WriteOptions.of({"servers": running.addresses, "timeout": timeout}, streaming=False)


def part(payloads: list[bytes], batch: int, partition: int = 0) -> Part:
    rows = pa.RecordBatch.from_arrays([pa.array(payloads, pa.binary())], names=["payload"])
    return stage([rows], Tag("q", "r", batch, partition, 0), None)


async def entries(running: Cluster) -> list[tuple[str, int, int]]:
    """(client, serial, payloads) of each entry."""
    found: dict[tuple[str, int], int] = {}
    async with connect(running.addresses) as log:
        async for record in log.read():
            key = record.client, record.serial
            found[key] = found.get(key, 0) + 1
    return [(*key, count) for key, count in found.items()]


async def payloads(running: Cluster) -> list[bytes]:
    async with connect(running.addresses) as log:
        return [record.payload async for record in log.read()]


@pytest.mark.trio
async def test_batches_with_serials_of_their_own_fencing_and_limits(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, settings=SETTINGS) as running:
        open_writer, ledger = opener(options(running)), Ledger(str(tmp_path / "checkpoint"))
        small = [b"%d" % n for n in range(1000)]
        large = [b"%05d" % n + b"x" * 995 for n in range(2000)]  # 2 MB: more than one entry, and than what is in flight
        batches = {0: small, 3: large, 4: [b"", "ä".encode(), b"y" * 300_000]}
        for batch, rows in batches.items():
            parts = [part(rows[len(rows) // 2 :], batch, 1), part(rows[: len(rows) // 2], batch, 0)]
            for run in ("one", "one"):  # the second time, as after a crash, it compares
                await commit(Job("spark:q", batch, run), parts, ledger, open_writer)
                (tmp_path / "checkpoint" / "alpo" / "commits" / f"{batch}.done").unlink()
        assert await payloads(running) == [row for rows in batches.values() for row in rows]
        found = await entries(running)
        assert {client for client, _, _ in found} == {"spark:q"}
        assert [serial for _, serial, _ in found if serial >> BATCH_BITS == 3] == list(
            range((3 << BATCH_BITS) + 1, (3 << BATCH_BITS) + 9)
        )
        assert found[0] == ("spark:q", 1, 1000) and found[-1] == ("spark:q", (4 << BATCH_BITS) + 1, 3)

        with pytest.raises(SourceError, match="a payload of 300001 bytes"):
            await commit(Job("spark:q", 5, "one"), [part([b"z" * 300_001], 5)], ledger, open_writer)

        async with open_writer("spark:q", "") as writer:  # a newer process, before the older one appends
            async with open_writer("spark:q", writer.cluster) as newer:
                with pytest.raises(Fenced):
                    await writer.append([(5 << BATCH_BITS, [b"zombie"])])
                assert newer.last_serial == (4 << BATCH_BITS) + 1
                await newer.append([(5 << BATCH_BITS, [b"end"])])
        assert (await payloads(running))[-1] == b"end"
        with pytest.raises(Unavailable):  # another cluster than the checkpoint's
            async with opener(options(running, "1s"))("spark:q", "ab" * 16):
                pass


@pytest.mark.trio
async def test_writes_without_a_checkpoint(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3, settings=SETTINGS) as running:
        open_writer = opener(options(running))
        rows = [b"%d" % n for n in range(10)]
        for _ in range(2):
            await commit_one_entry(Job("spark:app", 7, "r"), [part(rows, 7)], open_writer)
        await commit_one_entry(Job("spark:app", 6, "r"), [part(rows, 6)], open_writer)
        same = Job("spark:app", 7, "r", "same")
        await commit_one_entry(same, [part(rows[::-1], 7)], open_writer)
        with pytest.raises(SourceError, match="other rows"):
            await commit_one_entry(same, [part([*rows, b"10"], 7)], open_writer)
        assert await payloads(running) == rows
        for _ in range(2):
            await commit_unnumbered([part([b"a" * 250_000] * 5, 0)], None, open_writer)
        await append_directly([[b"b"], [b"c", b"d"]], open_writer)
        assert await payloads(running) == rows + [b"a" * 250_000] * 10 + [b"b", b"c", b"d"]
        assert len({client for client, _, _ in await entries(running)}) == 4
        async with connect(running.addresses) as log:
            await log.trim(11)
        with pytest.raises(SourceError, match=r"batch 7 was trimmed.* give repeat="):
            await commit_one_entry(same, [part(rows, 7)], open_writer)


@pytest.mark.trio
async def test_the_leader_killed_in_the_middle_of_a_commit(tmp_path: Path) -> None:
    async with cluster(tmp_path, 3) as running:
        leader = await running.leader()
        ledger, rows = Ledger(str(tmp_path / "checkpoint")), [b"%07d" % n + b"x" * 993 for n in range(20_000)]
        done = trio.Event()

        async def write() -> None:
            await commit(Job("spark:q", 1, "r"), [part(rows, 1)], ledger, opener(options(running, "60s")))
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await running.until("some of it is there", lambda found: found[leader]["last_lsn"] > 0)
            running.servers[leader].kill()
            with trio.fail_after(90):
                await done.wait()
        assert await payloads(running) == rows


@pytest.mark.trio
async def test_another_log_of_the_servers_and_one_that_was_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALPO_LOG", "audit")
    async with cluster(tmp_path, 3, proxied=False) as running:
        async with connect(running.addresses, log="") as log:
            await log.create_log("billing")
        to_first = opener(options(running))
        given = {"servers": running.addresses, "log": "billing", "timeout": "5s"}
        to_billing = opener(WriteOptions.of(given, streaming=False))
        ledger = Ledger(str(tmp_path / "checkpoint"))
        await commit(Job("spark:q", 0, "one"), [part([b"0", b"1"], 0)], ledger, to_billing)
        await append_directly([[b"first"]], to_first)

        async def held(name: str) -> list[bytes]:
            async with connect(running.addresses, log=name) as log:
                return [record.payload async for record in log.read()]

        assert await held("") == [b"first"] and await held("billing") == [b"0", b"1"]
        async with connect(running.addresses, log="") as log:
            await log.delete_log("billing")
            await log.create_log("billing")
        await until(lambda: not any((server.data / "logs" / "2").exists() for server in running.servers.values()))
        with pytest.raises(NoSuchLog, match="the log billing is another one by now"):
            await commit(Job("spark:q", 1, "one"), [part([b"2"], 1)], ledger, to_billing)
        assert await held("billing") == []
