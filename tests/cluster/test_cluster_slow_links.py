"""Links slower than a message for each election timeout: servers' and clients' (R2, R17)."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
import soak
import trio
from harness import Cluster, cluster
from probe import until
from proxy import CLIENT

from alpo import connect
from alpo.core.entries import split_payloads

#: 10 Mbit/s: a batch of 8 MB takes three election timeouts. (These links are threads of this process: where it gets no
#: processor for the default timeout, they carry nothing meanwhile.)
BYTES_PER_S = 1_250_000
TIMERS = {"heartbeat_s": 0.1, "election_timeout_s": 2.0}
BATCH = [b"%07d" % n + b"x" * 99_993 for n in range(80)]
BATCH_BYTES = sum(map(len, BATCH))


def slow_down(made: Cluster, *ends: int, bytes_per_s: float = BYTES_PER_S) -> None:
    """Slow down all links between these ends, both ways."""
    for flow in permutations(ends, 2):
        made.network.slow(*flow, bytes_per_s)


async def terms(made: Cluster) -> set[int]:
    return {fields["term"] for fields in (await made.statuses()).values()}


def sent_bytes(made: Cluster, sender: int) -> int:
    return sum(made.network.came_bytes(sender, other) for other in made.others(sender))


@pytest.mark.trio
@pytest.mark.timeout(240)
async def test_a_batch_that_takes_many_election_timeouts_is_appended_and_delays_nobody(tmp_path: Path) -> None:
    """No server is deposed, nothing is sent twice, and appends of others go on meanwhile."""
    async with cluster(tmp_path, timers=TIMERS) as made:
        leader = await made.leader()
        await made.level()
        slow_down(made, *made.members)
        before, before_bytes = await terms(made), sent_bytes(made, leader)
        appended: list[int] = []
        over = trio.Event()

        async def small() -> None:
            async with connect(made.addresses, timeout_s=60) as log:
                while not over.is_set():
                    appended.append(await log.append(b"small"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(small)
            await until(lambda: len(appended) > 10)
            at = len(appended)
            async with connect(made.addresses, timeout_s=120) as log:
                batch = await log.append_batch(BATCH)
            over.set()
        # Three election timeouts pass; nobody waits for as long as one.
        assert len([lsn for lsn in appended[at:] if lsn < batch[0]]) > 3
        assert await terms(made) == before
        await made.level()
        assert sent_bytes(made, leader) - before_bytes < 2.5 * BATCH_BYTES


@pytest.mark.trio
@pytest.mark.timeout(240)
async def test_it_is_so_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large batch deposes no leader over TLS. The proxy cannot see who dials, so clients' links are slow, too."""
    for name in ("ALPO_CA", "ALPO_CERT", "ALPO_KEY"):
        monkeypatch.setenv(name, "")  # `_certificates` sets it; put back at the end
    async with cluster(tmp_path, timers=TIMERS, tls=soak._certificates(tmp_path, 3)) as made:
        leader = await made.leader()
        await made.level()
        for id in made.members:
            slow_down(made, CLIENT, id)
        before, before_bytes = await terms(made), sum(made.network.came_bytes(CLIENT, id) for id in made.others(leader))
        async with connect(made.addresses, timeout_s=120) as log:
            await log.append_batch(BATCH)
        assert await terms(made) == before
        await made.level()
        assert sum(made.network.came_bytes(CLIENT, id) for id in made.others(leader)) - before_bytes < 2.5 * BATCH_BYTES


@pytest.mark.trio
@pytest.mark.timeout(240)
async def test_a_client_whose_own_link_is_slow_sends_once(tmp_path: Path) -> None:
    async with cluster(tmp_path, timers=TIMERS) as made:
        leader = await made.leader()
        await made.level()
        for id in made.members:
            slow_down(made, CLIENT, id)
        async with connect(made.addresses, timeout_s=120) as log:
            await log.append_batch(BATCH)
        assert made.network.came_bytes(CLIENT, leader) < 1.5 * BATCH_BYTES


@pytest.mark.trio
@pytest.mark.timeout(240)
async def test_a_server_that_was_away_catches_up_over_a_slow_link(tmp_path: Path) -> None:
    """The server missed far more than its link carries in an election timeout; no leader is deposed for it."""
    async with cluster(tmp_path, timers=TIMERS) as made:
        leader = await made.leader()
        await made.level()
        away = made.others(leader)[0]
        made.servers[away].kill()
        async with connect(made.addresses, timeout_s=60) as log:
            for _ in range(2):
                await log.append_batch(BATCH[:40])
            slow_down(made, leader, away)
            made.start(away)
            before = await terms(made)
            before_bytes = made.network.came_bytes(leader, away)
            await log.append(b"meanwhile")
        await made.level()
        assert await terms(made) == before
        assert made.network.came_bytes(leader, away) - before_bytes < 1.5 * BATCH_BYTES
    last = [split_payloads(e.count, e.body) for e in made.servers[away].entries() if e.count > 1]
    assert last == [BATCH[:40]] * 2
