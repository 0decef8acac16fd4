"""Reading live servers: spread over replicas, and from the next where one stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import Cluster, cluster
from probe import until
from spark_kit import options, read_all, read_span, rows_in

from alpo import Log, connect
from alpo.client.operator import status
from alpo.client.pages import Pages
from alpo.client.servers import Servers
from alpo.errors import Overloaded, Unavailable
from alpo.spark import live, reading
from alpo.spark.jobs.copies import Member, members_of
from alpo.spark.live import ServerOrigin
from alpo.spark.options import ReadOptions
from alpo.spark.origin import DataLoss, Range, SourceError, Stretch
from alpo.spark.reading import origin_of, rows_of
from alpo.spark.source import LogStreamReader

COUNT = 300


async def filled(running: Cluster) -> list[tuple[int, bytes]]:
    """Single payloads and batches, on all servers."""
    async with connect(running.addresses) as log:
        rows = []
        for number in range(0, COUNT, 10):
            rows += [await log.append(b"%d" % (number + at)) for at in range(7)]
            rows += await log.append_batch([b"%d" % (number + 7 + at) for at in range(3)])
        await running.level()
    return [(lsn, b"%d" % at) for at, lsn in enumerate(rows)]


def of(running: Cluster, **given: Any) -> ReadOptions:
    return options(servers=running.addresses, **given)


async def read(given: ReadOptions) -> list[tuple[Any, ...]]:
    return await trio.to_thread.run_sync(read_all, given)


@pytest.mark.trio
async def test_ranges_are_spread_over_replicas_and_make_the_whole_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[int | None] = Counter()
    pages_of = ServerOrigin._pages_of

    def noted(self: ServerOrigin, replica: int | None, first: int, last: int, hello_s: float) -> object:
        asked[replica] += 1
        return pages_of(self, replica, first, last, hello_s)

    monkeypatch.setattr(ServerOrigin, "_pages_of", noted)
    async with cluster(tmp_path, proxied=False) as running:
        wanted = await filled(running)
        assert await read(of(running, recordsPerPartition=50)) == wanted
        assert asked == {1: 2, 2: 2, 3: 2}
        part = of(running, recordsPerPartition=50, readFrom=2, startingLsn=5, endingLsn=120)
        assert await read(part) == wanted[4:120]
        assert await read(of(running, readFrom="leader")) == wanted
        assert asked == {1: 2, 2: 5, 3: 2, None: 1}


@pytest.mark.trio
async def test_ranges_that_begin_and_end_within_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_ROWS", 2)
    async with cluster(tmp_path, proxied=False) as running:
        async with connect(running.addresses, client="web") as log:
            for handle in [
                log.append_nowait(b"%d" % serial) if serial % 5 else log.append_batch_nowait([b"%d" % serial, b"and"])
                for serial in range(1, 61)
            ]:
                await handle
        await running.level()
        columns = ["lsn", "serial", "payload", "id"]
        found = await trio.to_thread.run_sync(read_all, of(running, recordsPerPartition=5), columns)
        wanted = [
            (serial, payload) for serial in range(1, 61)
            for payload in ([b"%d" % serial] if serial % 5 else [b"%d" % serial, b"and"])
        ]
        assert [row[:3] for row in found] == [(lsn, *row) for lsn, row in enumerate(wanted, 1)]
        assert len({id for *_, id in found}) < 60, "there are runs"


@pytest.mark.trio
async def test_a_replica_that_dies_in_the_middle_and_one_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that the two had given stay, and another replica gives the rest: no payload twice, none left out."""
    monkeypatch.setattr("alpo.client.pages.PAGE_BYTES_MAX", 30)
    monkeypatch.setattr(live, "_REPLICA_S", 0.5)
    async with cluster(tmp_path, proxied=False) as running:
        wanted = await filled(running)
        given = of(running)
        leader = await running.leader()
        victim, hanging = running.others(leader)
        extent = await trio.to_thread.run_sync(origin_of(given).extent)
        origin = ServerOrigin(given.servers, cluster=extent.cluster)
        turns = {id: at for at, id in enumerate(sorted(running.servers))}
        taken = Pages._take
        pages = 0

        def take(self: Pages, page: Any) -> Any:
            nonlocal pages
            pages += 1
            if pages == 20:
                running.servers[victim].kill()
            if pages == 40:
                running.servers[hanging].pause()
            return taken(self, page)

        monkeypatch.setattr(Pages, "_take", take)

        def rows(turn: int, first: int, last: int) -> list[tuple[int, bytes]]:
            found: list[tuple[int, bytes]] = []
            for batch in rows_of(origin, Range(first, last, turn), ["lsn", "payload"], True):
                found += zip(*(column.to_pylist() for column in batch.columns), strict=True)
            return found

        try:
            assert await trio.to_thread.run_sync(rows, turns[victim], 1, 150) == wanted[:150]
            assert pages >= 20 and not running.servers[victim].running
            assert await trio.to_thread.run_sync(rows, turns[hanging], 151, COUNT) == wanted[150:]
            assert pages >= 40
        finally:
            running.servers[hanging].resume()


@pytest.mark.trio
async def test_no_step_of_a_trigger_waits_for_a_server_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that waited for the hanging server would take a minute."""
    for module, name in ((live, "_HELLO_S"), (live, "_REPLICA_S"), (status, "STATUS_S")):
        monkeypatch.setattr(module, name, 60.0)
    async with cluster(tmp_path, proxied=False) as running:
        wanted = await filled(running)
        leader = await running.leader()
        hanging = running.others(leader)[0]
        running.servers[hanging].pause()
        await running.until(
            "the leader misses it",
            lambda found: hanging in {peer["id"] for peer in found[leader]["peers"] if not peer["reachable"]},
        )
        try:
            with trio.fail_after(30):
                found = await trio.to_thread.run_sync(one_trigger, of_stream(running), abandon_on_cancel=True)
            assert found == wanted
        finally:
            running.servers[hanging].resume()


@pytest.mark.trio
async def test_a_trigger_waits_for_servers_that_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = Counter[str]()
    dial = Servers.dial

    async def noted(self: Servers, address: str, *given: Any, **options: Any) -> Any:
        tried[address] += 1
        return await dial(self, address, *given, **options)

    monkeypatch.setattr(Servers, "dial", noted)
    async with cluster(tmp_path, proxied=False) as running:
        wanted = await filled(running)
        found: list[list[tuple[Any, ...]]] = []
        members: list[Member] = []
        for server in running.servers.values():
            server.kill()

        def survey() -> None:
            members.extend(members_of(tuple(running.members.values()), 300.0))

        async with trio.open_nursery() as nursery:
            async def trigger() -> None:
                found.append(await trio.to_thread.run_sync(one_trigger, of_stream(running)))

            nursery.start_soon(trigger)
            nursery.start_soon(trio.to_thread.run_sync, survey)
            try:
                await until(lambda: min(tried[address] for address in running.members.values()) > 10)
                assert not found and not members
            finally:
                running.start()  # a wait in a thread cannot be cancelled
        assert found == [wanted] and any(one.reachable for one in members)
        with pytest.raises(SourceError, match=r"answers within 0\.1 s: .*connection refused"):
            await trio.to_thread.run_sync(members_of, ("127.0.0.1:1",), 0.1)


@pytest.mark.trio
async def test_a_stream_moves_its_cursor_when_a_batch_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path, proxied=False) as running:
        await filled(running)

        async def cursors() -> dict[str, int]:
            async with connect(running.addresses) as log:
                return {one.name: one.lsn for one in await log.cursors()}

        def planner(**given: Any) -> LogStreamReader:
            wanted = options(True, servers=running.addresses, cursor="nightly", **given)
            return LogStreamReader(wanted, ["lsn", "payload"])

        reader = planner(startingLsn=21)
        start = await trio.to_thread.run_sync(reader.initialOffset)
        assert await cursors() == {"nightly": 21}
        await trio.to_thread.run_sync(reader.latestOffset, start, reader.getDefaultReadLimit())
        assert await cursors() == {"nightly": 21}
        sets = Counter[int]()
        set_cursor = Log.set_cursor

        async def noted(self: Log, name: str, lsn: int) -> None:
            sets[lsn] += 1
            await set_cursor(self, name, lsn)

        monkeypatch.setattr(Log, "set_cursor", noted)
        for lsn in (121, 121):
            await trio.to_thread.run_sync(reader.commit, start | {"lsn": lsn})
        assert await cursors() == {"nightly": 121} and sets == {121: 1}
        again = planner()
        await trio.to_thread.run_sync(again.commit, start | {"lsn": 150})
        assert await cursors() == {"nightly": 150}
        async with connect(running.addresses) as log:
            await log.trim(150)
        await trio.to_thread.run_sync(again.commit, start | {"lsn": 140})
        assert "the cursor nightly was not moved to LSN 140: LSN 140 is not in the log" in caplog.text

        async def busy(self: Log, name: str, lsn: int) -> None:
            raise Overloaded("the server is overloaded")

        monkeypatch.setattr(Log, "set_cursor", busy)
        await trio.to_thread.run_sync(again.commit, start | {"lsn": 160})
        assert "the cursor nightly was not moved to LSN 160: the server is overloaded" in caplog.text
        assert await cursors() == {"nightly": 150}


def test_a_range_waits_for_its_only_replica_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    def pages_of(self: ServerOrigin, replica: int | None, first: int, last: int, hello_s: float) -> Iterator[Stretch]:
        nonlocal tries
        tries += 1
        assert live._HELLO_S <= hello_s < float("inf")
        if tries < 2000:
            raise Unavailable("connection refused")
        yield Stretch([1], [1], [0], [""], [0], [1], [1], [b"x"], [0])

    monkeypatch.setattr(ServerOrigin, "_pages_of", pages_of)
    monkeypatch.setattr(live, "_PAUSE_S", 0.0)
    origin = ServerOrigin(("127.0.0.1:1",), "2", timeout_s=600.0)
    assert [page.next_lsn for page in origin.pages(1, 1, 0)] == [2]


def of_stream(running: Cluster) -> ReadOptions:
    return options(True, servers=running.addresses, startingLsn=1, recordsPerPartition=50, timeout="5m")


def one_trigger(given: ReadOptions) -> list[tuple[Any, ...]]:
    """Do what Spark's planner and executors do for the first trigger of a stream; return its rows."""
    reader = LogStreamReader(given, ["lsn", "payload"])
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert reader.reportLatestOffset() == end
    parts = reader.partitions(reader.initialOffset(), end)
    return [row for part in parts for batch in reader.read(part) for row in rows_in(batch)]


@pytest.mark.trio
async def test_what_was_trimmed_is_a_loss(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False) as running:
        wanted = await filled(running)
        async with connect(running.addresses) as log:
            await log.trim(101)
        await running.level()
        with pytest.raises(DataLoss, match="payloads 1 to 100 are not in the cluster"):
            await read(of(running, startingLsn=1))
        assert await read(of(running, startingLsn=1, failOnDataLoss=False)) == wanted[100:]
        assert await read(of(running)) == wanted[100:]


@pytest.mark.trio
async def test_a_trim_between_planning_and_reading(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False) as running:
        wanted = await filled(running)
        given = of(running, failOnDataLoss=False)
        origin = origin_of(given)
        async with connect(running.addresses) as log:
            await log.trim(101)
        await running.level()
        found = await trio.to_thread.run_sync(read_span, origin, given, 1, COUNT)
        assert found == wanted[100:]
        with pytest.raises(DataLoss, match="payloads 1 to 100"):
            await trio.to_thread.run_sync(read_span, origin, of(running), 1, COUNT)


@pytest.mark.trio
async def test_another_cluster_is_refused_and_nobody_there_is_said(tmp_path: Path) -> None:
    async with cluster(tmp_path, proxied=False) as running:
        await filled(running)
        origin = ServerOrigin(of(running).servers, timeout_s=2.0, cluster="ab" * 16)
        with pytest.raises(SourceError, match="not abab"):
            await trio.to_thread.run_sync(origin.extent)
        with pytest.raises(SourceError, match=r"no answer within 0\.3 s: .*connection refused"):
            await read(options(servers="127.0.0.1:1", timeout="300ms"))
        with pytest.raises(SourceError, match=r"no server 7 to read from \(readFrom\); it has 1, 2, 3"):
            await read(of(running, readFrom=7))


@pytest.mark.trio
async def test_another_log_of_the_servers_and_one_that_was_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALPO_LOG", "billing")
    in_thread = trio.to_thread.run_sync
    async with cluster(tmp_path, proxied=False) as running:
        async with connect(running.addresses, timeout_s=30, log="") as log:
            await log.append(b"of the first log")
            await log.create_log("billing")
        async with connect(running.addresses, timeout_s=30, log="billing") as billing:
            await billing.append_many([b"%d" % lsn for lsn in range(1, 31)])
            await billing.wait_everyone(30, timeout_s=30)
        wanted = [(lsn, b"%d" % lsn) for lsn in range(1, 31)]
        assert await read(of(running)) == [(1, b"of the first log")], "ALPO_LOG is not for Spark"
        assert await read(of(running, log="default")) == [(1, b"of the first log")]
        assert await read(of(running, log="billing", recordsPerPartition=7)) == wanted
        assert await read(of(running, log="billing", startingTimestamp=0, readFrom=2)) == wanted
        with pytest.raises(SourceError, match=r"log bills of the cluster at .*: there is no log bills"):
            await read(of(running, log="bills", timeout="2s"))

        given = options(True, servers=running.addresses, log="billing", startingLsn=1, cursor="nightly")
        query = LogStreamReader(given, ["lsn", "payload"])
        start = await in_thread(query.initialOffset)
        end = await in_thread(query.latestOffset, start, query.getDefaultReadLimit())
        (partition,) = await in_thread(query.partitions, start, end)
        batches = await in_thread(lambda: list(query.read(partition)))
        assert end["lsn"] == 31 and sum(batch.num_rows for batch in batches) == 30
        await in_thread(query.commit, end)
        async with connect(running.addresses, timeout_s=30, log="") as log:
            assert await log.cursors() == []
            await log.delete_log("billing")
            await log.create_log("billing")
        await until(lambda: not any((server.data / "logs" / "2").exists() for server in running.servers.values()))
        async with connect(running.addresses, timeout_s=30, log="billing") as billing:
            await billing.append_many([b"other"] * 40)
        for reader in (query, LogStreamReader(given, ["lsn", "payload"])):  # the one that runs, and one anew
            with pytest.raises(SourceError, match=r"ALPO_OTHER_LOG: log billing of .*created again"):
                await in_thread(reader.latestOffset, end, reader.getDefaultReadLimit())
