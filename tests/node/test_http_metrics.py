"""Metrics: every family is exported, counts are right, and Prometheus' own checks find nothing wrong."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from node_rig import Rig, append, connect, connect_raw, create, founded, random_id, rig, until
from prometheus_client.parser import text_string_to_metric_families
from visits import visit

from alpo.core import requests as q
from alpo.core.ready import Alarm
from alpo.node.host import Host
from alpo.node.hosted import STATES
from alpo.node.http import metrics, site
from alpo.node.http.metrics import FAMILIES, of_log
from alpo.wire import requests as w

pytestmark = pytest.mark.usefixtures("patient")

#: Families with values only where there is a reason for them: TLS, a whole pass of the scrub, a disk with a size.
_ELSEWHERE = {
    "certificate_expiry_timestamp_seconds", "certificate_reload_success", "scrub_last_pass_timestamp_seconds",
    "disk_size_bytes", "disk_free_bytes",
}
_LEADERS = {
    "appends_work", "failures_tolerable", "peer_lag_entries", "peer_lag_seconds", "peer_inflight_bytes",
    "clocks_leapt_seconds",
}

#: Labels of a metric about the first log.
LOG = (("log", "default"),)

Scraped = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def scrape(address: str) -> Scraped:
    """All samples, by name and labels."""
    answer = await visit(address, "/metrics")
    assert answer.status == 200, answer.text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text) for sample in family.samples
    }


def names(found: Scraped) -> set[str]:
    return {name for name, _ in found}


async def settled(found: Rig) -> tuple[str, str]:
    """The HTTP addresses of the leader and of another server, once both know what every member holds."""
    leader = (await found.leader()).us.me.id
    await until(lambda: all(node.replica.fully_replicated_id for node in found.nodes))
    return found.visited[leader - 1], found.visited[leader % len(found.visited)]


@pytest.mark.trio
async def test_every_family_is_exported_where_it_is_known() -> None:
    async with rig(3) as found:
        leads, follows = await settled(found)
        for at, absent in ((leads, set[str]()), (follows, _LEADERS)):
            exported = names(await scrape(at))
            for family in FAMILIES:
                ending = "_bucket" if family.kind == "histogram" else ""
                wanted = family.name not in _ELSEWHERE | absent
                assert (f"alpo_{family.name}{ending}" in exported) == wanted, family.name
            assert {"process_resident_memory_bytes", "python_info"} <= exported


@pytest.mark.trio
async def test_prometheus_finds_nothing_wrong_with_the_output() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool (of Prometheus) is not there: what it checks was not checked")
    async with rig() as found:
        answer = await visit(found.visited[0], "/metrics")
    done = await trio.run_process(
        ["promtool", "check", "metrics"], stdin=answer.text.encode(), capture_stdout=True, capture_stderr=True
    )
    assert (done.stdout, done.stderr) == (b"", b"")


@pytest.mark.trio
async def test_appends_are_counted_as_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "KEPT_S", 0.0)
    async with rig(3) as found:
        leader = await found.leader()
        at = found.visited[leader.us.me.id - 1]
        before = await scrape(at)
        client = await connect(found.addresses[leader.us.me.id - 1])
        name = random_id()
        for serial in range(1, 10, 2):
            await client.ask(append(name, serial, b"x" * 100, b"y"))
        assert (await client.ask(append(name, 9, b"x" * 100, b"y"))).duplicate
        refused = await client.ask(append(random_id(ms=1), 9, b"x"))
        assert isinstance(refused, w.AppendRefused)
        big = await client.ask(append(name, 11, b"x" * (2 << 20)))
        assert isinstance(big, w.AppendRefused)
        await until(lambda: leader.replica.guaranteed_id == leader.replica.last_id)
        after = await scrape(at)

        def grown(name: str, **labels: str) -> float:
            key = (f"alpo_{name}", tuple(sorted((labels | dict(LOG)).items())))
            return after[key] - before.get(key, 0)

        results = {result: grown("append_requests_total", result=result) for result in ("appended", "duplicate")}
        assert results == {"appended": 10, "duplicate": 2}
        assert grown("append_requests_total", result="too_large") == 1
        assert sum(grown("append_requests_total", result=result) for result in ("refused", "fenced")) == 1
        assert grown("append_duration_seconds_count") == 12
        assert grown("append_duration_seconds_bucket", le="+Inf") == 12
        assert grown("appended_entries_total") >= 5 and grown("last_lsn") == 10
        assert grown("guaranteed_lsn") == 10 and grown("appended_bytes_total") > 500
        assert grown("appended_payloads_total") in (8, 10)  # the last stride may not be over


@pytest.mark.trio
async def test_the_buckets_of_a_histogram_have_finite_bounds() -> None:
    async with rig() as found:
        durations = found.nodes[0].driver.counters.read_s
        quick_s, slow_s = durations.bounds[2], durations.bounds[5]
        durations.add(quick_s, 3)
        durations.add(slow_s, 2)
        durations.add(2 * durations.bounds[-1])
        name = "alpo_read_duration_seconds"
        after = await scrape(found.visited[0])
        reached = {dict(labels)["le"]: count for (of, labels), count in after.items() if of == f"{name}_bucket"}
        assert len(reached) == len(durations.bounds) + 1
        assert [reached[f"{bound:g}"] for bound in durations.bounds[1:7]] == [0, 3, 3, 3, 5, 5]
        assert (reached[f"{durations.bounds[-1]:g}"], reached["+Inf"], after[f"{name}_count", LOG]) == (5, 6, 6)
        assert after[f"{name}_sum", LOG] == pytest.approx(3 * quick_s + 2 * slow_s + 2 * durations.bounds[-1])


@pytest.mark.trio
async def test_what_only_a_leader_knows_goes_with_its_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "KEPT_S", 0.0)
    async with rig(3) as found:
        leader = await found.leader()
        at = found.visited[leader.us.me.id - 1]
        before = await scrape(at)
        assert before["alpo_is_leader", LOG] == 1 and before["alpo_failures_tolerable", LOG] == 1
        assert before["alpo_elections_won_total", LOG] == 1
        client = await connect(found.addresses[leader.us.me.id - 1])
        await client.ask(q.Transfer(1, leader.us.me.id % 3 + 1))
        await until(lambda: leader.replica.reign is None and leader.replica.leader_id not in (0, leader.us.me.id))
        after = await scrape(at)
        assert after["alpo_is_leader", LOG] == 0 and after["alpo_has_leader", LOG] == 1
        assert not {f"alpo_{name}" for name in _LEADERS} & names(after)
        assert after["alpo_elections_won_total", LOG] == 1  # counts never go back
        assert after["alpo_leader_changes_total", LOG] == 1 and after["alpo_unplanned_elections_total", LOG] == 0


@pytest.mark.trio
async def test_each_log_has_its_metrics_and_the_server_has_its_own_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "KEPT_S", 0.0)
    async with rig(shelves=tmp_path) as found:
        first = await founded(found)
        (node,) = found.nodes
        assert node.hosted is not None
        for number, name in ((2, "audit"), (3, "billing")):
            await first.ask(create(name, bytes(15) + bytes([number])))
            await until(lambda number=number: number in node.hosted.running)  # type: ignore[misc]
            await until(lambda number=number: node.hosted.running[number].server.replica.serves)  # type: ignore[misc]
        for payload in (b"one", b"two"):
            client = await connect(found.addresses[0], log="billing")
            assert isinstance(await client.ask(append(random_id(), 1, payload)), q.Appended)
        scraped = await scrape(found.visited[0])
        of = {family.name: {dict(labels).get("log") for name, labels in scraped if name == f"alpo_{family.name}"}
              for family in FAMILIES if family.kind != "histogram"}
        assert of["is_leader"] == of["log_bytes"] == of["cursors"] == {"default", "audit", "billing"}
        assert of["clients"] == of["http_requests_total"] == {None}
        ends = {name: scraped["alpo_last_lsn", (("log", name),)] for name in ("default", "audit", "billing")}
        assert ends == {"default": 0, "audit": 0, "billing": 2}
        assert scraped["alpo_append_requests_total", (("log", "billing"), ("result", "appended"))] == 2
        assert scraped["alpo_append_requests_total", (("log", "default"), ("result", "appended"))] == 0
        states = {state: scraped["alpo_logs", (("state", state),)] for state in STATES}
        assert states == {"creating": 0, "ready": 3, "deleting": 0, "failed": 0}
        node.hosted.running[2].server.driver.failed(Alarm("a broken invariant"))
        await until(lambda: node.hosted is not None and 2 in node.hosted.failed)
        scraped = await scrape(found.visited[0])
        assert (scraped["alpo_logs", (("state", "failed"),)], scraped["alpo_logs", (("state", "ready"),)]) == (1, 2)
        assert ("alpo_last_lsn", (("log", "audit"),)) not in scraped


@pytest.mark.trio
async def test_many_logs_are_collected_in_several_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two of them other tasks run: a scrape holds no append up for longer than one of eight logs."""
    passes: list[int] = []

    async with rig(shelves=tmp_path) as found:
        await founded(found)
        node = found.nodes[0]
        reports = [(1, "default", node.report), *((n, f"log{n}", node.report) for n in range(2, 22))]
        monkeypatch.setattr(node, "reports", lambda: reports)
        of_one = metrics.of_log

        def counted(*given: Any) -> Any:
            passes.append(turns[0])
            return of_one(*given)

        turns = [0]

        async def turn() -> None:
            while True:
                turns[0] += 1
                await trio.lowlevel.checkpoint()

        monkeypatch.setattr(metrics, "of_log", counted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn)
            text = (await visit(found.visited[0], "/metrics")).text
            nursery.cancel_scope.cancel()
        assert len(passes) == 21 and max(passes.count(each) for each in passes) <= metrics.LOGS_A_PASS
        lines = [line for line in text.splitlines() if line.startswith("# TYPE ")]
        assert len(lines) == len(set(lines)), "each family is there once"
        assert sum(line.startswith("alpo_last_lsn{") for line in text.splitlines()) == 21


@pytest.mark.trio
async def test_an_answer_serves_all_who_ask_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as found:
        made = 0
        status = found.nodes[0].report.status

        async def counted(now_ms: int) -> dict[str, object]:
            nonlocal made
            made += 1
            await trio.testing.wait_all_tasks_blocked()  # the others ask meanwhile
            return await status(now_ms)

        monkeypatch.setattr(site, "KEPT_S", 60.0)
        monkeypatch.setattr(found.nodes[0].report, "status", counted)
        texts = set[str]()

        async def look() -> None:
            texts.add((await visit(found.visited[0], "/metrics")).text)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(look)
        assert (made, len(texts)) == (1, 1)


@pytest.mark.trio
async def test_no_label_is_a_visitors_or_a_clients_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "KEPT_S", 0.0)
    async with rig(3) as found:
        leader = await found.leader()
        at = found.visited[leader.us.me.id - 1]
        client = await connect(found.addresses[leader.us.me.id - 1])
        await client.ask(q.SetCursor(1, "evil<script>", 1))
        for path in range(30):
            await visit(at, f"/evil{path}")
        found_samples = await scrape(at)
        labels = {value for _, pairs in found_samples for _, value in pairs}
        assert not [value for value in labels if "evil" in value]
        assert found_samples["alpo_http_requests_total", (("code", "404"), ("path", "other"))] == 30
        assert found_samples["alpo_cursors", LOG] == 1


@pytest.mark.trio
async def test_counts_are_of_clients_and_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "KEPT_S", 0.0)
    async with rig(3) as found:
        leader = await found.leader()
        follower = next(node for node in found.nodes if node is not leader)
        assert (await visit(found.visited[leader.us.me.id - 1], "/status")).status == 200
        await until(lambda: len(follower.listener.clients) == 1)  # the leader asks it
        assert (await scrape(found.visited[follower.us.me.id - 1]))["alpo_clients", ()] == 0
        assert leader.driver.counters.appended_entries == 0  # entries from before its reign do not count
        report, leadership = leader.report, leader.replica.leadership
        assert leadership is not None
        status, lookups = await report.status(0), await report.lookups()
        silent, other = leadership.peers.values()
        silent.matched, other.matched = False, True  # the silent one has not answered this leader: unknown lag
        lags = of_log(report, "default", status, lookups)["peer_lag_entries"]
        assert [labels for labels, _ in lags] == [("default", str(other.who.id))]


@pytest.mark.trio
async def test_a_crowd_of_invented_servers_leaves_nothing() -> None:
    async with rig(3) as found:
        node = await found.leader()
        for id in range(1000, 1040):
            client = await connect_raw(node.us.address)
            await client.greet(_hello(node, id, "127.0.0.1:9"))
            client.stream.socket.close()
        assert set(node.driver.counters.traffic) <= {1, 2, 3}
        client = await connect_raw(node.us.address)
        answer = await client.greet(_hello(node, 7, "no address"))
        assert isinstance(answer, w.Problem) and answer.text.startswith("its address is none: ")


def _hello(node: Host, id: int, address: str) -> w.PeerHello:
    us = node.us
    return w.PeerHello(
        w.VERSION, node.replica.cluster, id, b"z" * 16, address, us.me.id, us.me.incarnation, 0, 0, us.timers_ms
    )
