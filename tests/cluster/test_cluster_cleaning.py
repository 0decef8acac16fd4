"""Trims and retention in a cluster of real processes: kill -9 in the middle, servers that lag, readers beside it."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import checkers
import pytest
import trio
from checkers import Logged, Outcome
from harness import Cluster, alpo, cluster
from probe import until
from workload import History, Writer

from alpo import AlpoError, Log, OutOfRange, connect

ROUNDS = 5
CLIENTS = 4
#: Appends acknowledged between two kills, at least.
PROGRESS = 150
#: Number of payloads that a trim leaves, about.
LEFT = 60


class Follower:
    """Follows from LSN 1 on; if the log was trimmed ahead of it, it goes on at the first LSN that the error names."""

    def __init__(self) -> None:
        self.seen: dict[int, bytes] = {}
        self.told: list[int] = []
        self.problems: list[str] = []

    async def run(self, servers: str) -> None:
        next_lsn = 1
        async with connect(servers) as log:
            while True:
                try:
                    async for record in log.follow(start=next_lsn):
                        if record.lsn != next_lsn:
                            self.problems.append(f"LSN {record.lsn} where {next_lsn} was due")
                        self.seen[record.lsn] = record.payload
                        next_lsn = record.lsn + 1
                except OutOfRange as error:
                    if error.first_lsn <= next_lsn:
                        self.problems.append(f"{error}, but it waited for {next_lsn}")
                        return
                    next_lsn = error.first_lsn
                    self.told.append(next_lsn)
                except AlpoError:
                    await trio.sleep(0.01)


async def _progress(history: History) -> None:
    wanted = history.count(Outcome.ACKNOWLEDGED) + PROGRESS
    await until(lambda: history.count(Outcome.ACKNOWLEDGED) >= wanted)


async def _all(log: Log) -> list[Logged]:
    """The whole log. A trim may overtake the read, which is then repeated."""
    found: list[Logged] = []

    async def read() -> bool:
        with suppress(OutOfRange):
            found[:] = [Logged(r.lsn, r.client, r.serial, r.payload) async for r in log.read()]
            return True
        return False

    await until(read)
    return found


async def _trim(log: Log) -> int:
    """Trim all but the last few; payloads before the trim cannot be read any more, the others without a gap."""
    end_lsn = (await _all(log))[-1].lsn
    first_lsn = await log.trim(before=max(1, end_lsn - LEFT), timeout_s=60)
    assert first_lsn >= end_lsn - LEFT
    for start in {1, first_lsn - 1} - {0}:
        with pytest.raises(OutOfRange) as caught:
            [record async for record in log.read(start=start, timeout_s=60)]
        assert caught.value.first_lsn >= first_lsn
    lsns = [logged.lsn for logged in await _all(log)]
    assert lsns == list(range(lsns[0], lsns[0] + len(lsns))) and first_lsn <= lsns[0]
    return first_lsn


@pytest.mark.trio
@pytest.mark.parametrize("retention", [
    pytest.param({}, id="trim", marks=pytest.mark.soak), pytest.param({"max_entries": 100}, id="trim and retention"),
])
async def test_kill_9_in_the_middle_of_trimming_and_cleaning(tmp_path: Path, retention: dict[str, int]) -> None:
    rng = random.Random(f"{retention}")
    history, follower = History(), Follower()
    async with cluster(tmp_path, retention=retention) as running:
        await running.leader()
        writers = [Writer(running.addresses, f"writer-{n}", 0, history) for n in range(CLIENTS)]
        first_lsn = 1
        async with trio.open_nursery() as followers, connect(running.addresses, timeout_s=60) as log:
            followers.start_soon(follower.run, running.addresses)
            async with trio.open_nursery() as nursery:
                for writer in writers:
                    nursery.start_soon(writer.run)
                for number in range(ROUNDS):
                    await _progress(history)
                    victims = list(running.servers)
                    if number != ROUNDS // 2:
                        victims = [rng.choice(victims)]
                    async with trio.open_nursery() as meanwhile:
                        meanwhile.start_soon(_kill, running, victims, rng.uniform(0, 0.1))
                        first_lsn = await _trim(log)
                for writer in writers:
                    writer.finish()
            end_lsn = await running.level()
            await _cleaned(running, first_lsn, retention)
            await until(lambda: end_lsn in follower.seen)
            left = await _all(log)
            followers.cancel_scope.cancel()
        assert follower.problems == [] and history.problems == []
        first_lsn = left[0].lsn
        assert [logged.lsn for logged in left] == list(range(first_lsn, end_lsn + 1))
        known = {lsn: payload for lsn, payload in follower.seen.items() if lsn >= first_lsn}
        assert known.items() <= {logged.lsn: logged.payload for logged in left}.items()
        kept = [append for append in history.appends if not 0 < append.lsn < first_lsn]
        acknowledged = [append for append in kept if append.outcome is Outcome.ACKNOWLEDGED]
        assert checkers.lost(acknowledged, left) == checkers.doubled(left) == checkers.refused(kept, left) == []
        assert set((await running.stop()).values()) == {0}
        _check_files(running, first_lsn)


async def _kill(running: Cluster, victims: list[int], after_s: float) -> None:
    await trio.sleep(after_s)
    for id in victims:
        running.servers[id].kill()
    running.start(*victims)


async def _cleaned(running: Cluster, first_lsn: int, retention: dict[str, int]) -> None:
    """Wait until every server has deleted all that it need not keep."""
    entries_max = retention.get("max_entries", 1 << 62)
    def done(found: dict[int, dict[str, Any]]) -> bool:
        return len(found) == len(running.servers) and all(
            fields["first_lsn"] >= first_lsn and fields["cleaned_id"] > 0 and not fields["cleaning_waits"]
            and fields["last_id"] - fields["cleaned_id"] <= entries_max
            for fields in found.values()
        )

    await running.until("all cleaned", done)


def _check_files(running: Cluster, first_lsn: int) -> None:
    """The servers' files hold ids without gaps, equal logs where they overlap, and little that was trimmed."""
    files = {id: server.entries() for id, server in running.servers.items()}
    for id, entries in files.items():
        ids = [entry.id for entry in entries]
        assert ids == list(range(ids[0], ids[0] + len(ids))) and ids[0] > 1, id
    from_id = max(entries[0].id for entries in files.values())
    assert checkers.unequal({id: [e for e in entries if e.id >= from_id] for id, entries in files.items()}) == []


@pytest.mark.trio
async def test_a_server_that_is_away_holds_cleaning_back_and_is_caught_up_from_the_log(tmp_path: Path) -> None:
    async with cluster(tmp_path, timers={"heartbeat_s": 0.05, "election_timeout_s": 0.5}) as running:
        leader = await running.leader()
        away, other = running.others(leader)
        async with connect(running.addresses, timeout_s=60) as log:
            await log.append_batch([b"%d" % n for n in range(1, 11)])
            await running.level()
            last_id = (await running.statuses())[away]["last_id"]
            running.servers[away].kill()
            for n in range(11, 302):  # one by one: what comes together is one entry, and is cleaned whole
                await log.append(b"%d" % n)
            assert await log.trim(before=251) == 251
            found = await running.until("cleaning waits", lambda found: all(
                found.get(id, {}).get("cleaning_waits") for id in (leader, other)
            ))
            waits = found[leader]["cleaning_waits"]
            assert any(f"server {away} is not known to hold more than" in why for why in waits)
            for id in (leader, other):
                assert found[id]["cleanable_id"] <= last_id and found[id]["cleaned_id"] <= last_id
                with pytest.raises(OutOfRange) as caught:
                    [record async for record in log.read(start=250, local=True, server=id)]
                assert caught.value.first_lsn == 251
            _, _, err = await alpo("status", "--servers", running.addresses)
            assert f"server {away} is not known to hold more than" in err
            running.start(away)
            await running.level()
            await running.until("all cleaned", lambda found: len(found) == 3 and all(
                fields["cleaned_id"] > last_id and not fields["cleaning_waits"] for fields in found.values()
            ))
            for id in running.servers:
                records = [record async for record in log.read(local=True, server=id)]
                assert [(r.lsn, r.payload) for r in records] == [(n, b"%d" % n) for n in range(251, 302)]
        assert set((await running.stop()).values()) == {0}


@pytest.mark.trio
async def test_the_alpo_command(tmp_path: Path) -> None:
    async with cluster(tmp_path) as running:
        await running.leader()
        servers = ("--servers", running.addresses)
        code, out, said = await alpo("trim", "--before", "2", *servers)
        assert (code, out, said) == (1, "", "alpo: LSN 2 is not in the log, which holds nothing\n")
        assert (await alpo("append", *servers, stdin=b"".join(b"%d\n" % n for n in range(1, 101))))[0] == 0
        assert await alpo("trim", "--before", "91", *servers) == (0, "", "the log now begins at LSN 91\n")
        code, out, _ = await alpo("trim", "--before", "11", "--json", *servers)
        assert (code, json.loads(out)) == (0, {"first_lsn": 91})
        for local in ([], ["--local"]):
            code, out, said = await alpo("read", "--from", "90", *local, *servers)
            assert (code, out, said) == (1, "", "alpo: LSN 90 is not in the log, which holds 91 to 100\n")
        for words in ([], ["--from", "91"], ["--last", "50"], ["--since", "1h"], ["--follow", "--to", "100"]):
            code, out, _ = await alpo("read", *words, *servers)
            assert (code, out.split()) == (0, [str(n) for n in range(91, 101)]), words
        code, out, said = await alpo("read", "--to", "90", *servers)
        assert (code, out, said) == (1, "", "alpo: LSN 90 is not in the log, which holds 91 to 100\n")
        code, _, said = await alpo("trim", "--before", "102", *servers)
        assert (code, said) == (1, "alpo: LSN 102 is not in the log, which holds 91 to 100\n")
        for wrong in (["--before", "0"], ["--before", "x"], []):
            assert (await alpo("trim", *wrong, *servers))[0] == 2
        await running.until("all cleaned", lambda found: len(found) == 3 and all(
            fields["cleaned_id"] > 0 and fields["first_lsn"] == 91 for fields in found.values()
        ))
        _, out, _ = await alpo("status", "--json", *servers)
        members = json.loads(out)["members"]
        assert [(m["first_lsn"], m["last_lsn"], m["cleaning_waits"]) for m in members] == [(91, 100, [])] * 3
        assert (await alpo("trim", "--before", "101", *servers))[0] == 0
        assert (await alpo("read", *servers))[:2] == (0, "")
        code, out, said = await alpo("read", "--from", "100", *servers)
        assert (code, said) == (1, "alpo: LSN 100 is not in the log, which holds nothing; its next LSN is 101\n")
        assert (await alpo("append", "after", *servers))[:2] == (0, "101\n")
        assert (await alpo("read", *servers))[:2] == (0, "after\n")
