"""The page: whole without scripts, safe against what clients name, and right in its words."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import trio
from node_rig import append, connect, create, founded, random_id, rig, until
from visits import visit

from alpo.core import requests as q
from alpo.core.entries import join_payloads
from alpo.core.ready import Alarm
from alpo.node.compare import Inquiry
from alpo.node.http import page, site
from alpo.node.http.page import axis_top, render, state_of

pytestmark = pytest.mark.usefixtures("patient")

_VOID = {"meta", "link", "rect", "polyline", "path", "input"}


class Checked(HTMLParser):
    """Parser that fails on tags that do not match, and on an id used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _VOID:
            self.open.append(tag)
        id = dict(attrs).get("id")
        assert id is None or id not in self.ids, id
        self.ids |= {id} if id else set()
        assert not {"onclick", "style", "onload"} & {name for name, _ in attrs}

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _VOID, tag

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.text += data


def checked(html: str) -> Checked:
    parser = Checked()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


def member(id: int, **changed: Any) -> dict[str, Any]:
    row = {
        "id": id, "address": f"10.0.0.{id}:7100", "state": "passive", "status": "VOTING", "term": 7, "leader": 1,
        "last_id": 1000, "guaranteed_id": 1000, "fully_replicated_id": 990, "first_lsn": 1, "last_lsn": 2000,
        "reachable": True, "cluster": "7f3a91c2" * 4, "peers": [], "clients": 3, "fsync_p50_ms": 1.5,
        "fsync_p99_ms": 9.0, "disk_free_bytes": 1 << 38, "disk_total_bytes": 1 << 39,
        "disk_bytes": 1 << 30, "file_free_bytes": 0, "up_s": 4000,
        "age_s": 0.1, "problem": None, "payloads_per_s": 10, "appends": None,
    }
    return row | changed


def view(members: int = 3, **changed: Any) -> dict[str, Any]:
    rows = [member(id) for id in range(1, members + 1)]
    rows[0] |= {"state": "leader", "appends": {"work": True, "why": [], "may_fail": (members - 1) // 2}}
    return {
        "members": rows, "seen_by": 1, "time_ms": 1_800_000_000_000, "rates": [[1_800_000_000_000, 5]] * 300,
        "elections": [], "cursors": [], "cursors_all": 0, "lag_s": {}, "clients_max": 1000,
        "sessions": {"named": 1, "unnamed": 2, "unnamed_max": 100_000, "ended": 0, "refused": 0},
        "tls": {"mode": "off", "certificate_ends_s": None, "ca_ends_s": None},
    } | changed


@pytest.mark.parametrize("members", [1, 3, 9])
def test_the_page_is_whole_and_small(members: int) -> None:
    many = view(
        members,
        elections=[
            {"time_ms": 1, "term": term, "leader": 1, "planned": False, "why": "x" * 60, "leaderless_ms": 510}
            for term in range(20)
        ],
        cursors=[{"name": f"cursor-{n}", "lsn": n, "lag_bytes": 1, "lag_s": 2.0} for n in range(20)], cursors_all=20,
    )
    html = render(many, whole=True)
    assert len(html.encode()) <= 25_000
    found = checked(html)
    assert all(f"server {id}" in found.text for id in range(1, members + 1))
    assert {"state", "members", "rates", "elections", "cursors", "sessions", "storage"} <= found.ids
    assert render(many, whole=False) in html


def test_names_and_words_of_strangers_are_only_text() -> None:
    evil = "<script>alert(1)</script>\n\x1b[31m\"'&"
    rows = view()["members"]
    rows[1] |= {"address": evil, "status": evil, "problems": [evil], "state": evil}
    rows[2] |= {"reachable": False, "problem": evil, "age_s": None}
    one = {"time_ms": 1, "term": 1, "leader": 1, "planned": False, "why": evil, "leaderless_ms": None}
    html = render(
        view(members=3) | {
            "members": rows, "elections": [one],
            "cursors": [{"name": evil * 100, "lsn": 1, "lag_bytes": 0, "lag_s": 0.0}], "cursors_all": 1,
        },
        whole=True,
    )
    checked(html)
    assert "<script>alert" not in html and "\x1b" not in checked(html).text.replace(evil, "")
    assert "&lt;script&gt;" in html


@pytest.mark.parametrize(("change", "level", "said"), [
    ({}, "ok", "Server 1 leads since term 7. Appends work. All 3 members answer; one more may fail."),
    ({2: {"reachable": False, "problem": "refused"}}, "bad", "2 of 3 members answer"),
    ({1: {"state": "passive", "leader": None}, 2: {"leader": None}, 3: {"leader": None}}, "bad",
     "Nobody leads: nothing is appended."),
    ({1: {"appends": {"work": True, "why": ["server 3 confirms no entries"], "may_fail": 0}}}, "warn",
     "no other may fail."),
    ({1: {"appends": {"work": False, "why": ["server 3 is low on disk space"], "may_fail": 0}}}, "bad",
     "Appends stand: server 3 is low on disk space."),
    ({3: {"guaranteed_id": -20_000}}, "warn", "Appends work."),
    ({3: {"damage": ["its disk holds damaged entries"]}}, "bad", "Appends work."),
    ({3: {"disk_full_days": 0.5}}, "bad", "Appends work."),
])
def test_the_first_sentence_says_how_things_are(change: dict[int, Any], level: str, said: str) -> None:
    given = view()
    for id, fields in change.items():
        given["members"][id - 1] |= fields
    state = state_of(given)
    assert state.level == level and said in state.sentence
    assert bool(state.items) == (level != "ok")


@pytest.mark.parametrize(("rates", "top"), [
    ([0] * 300, 1), ([7] * 10, 10), ([20] * 299 + [11_576], 20), ([1000, 1999] * 100, 2000), ([3], 5),
    ([20] * 280 + [11_576] * 20, 20_000), ([2_000_001] * 9, 5_000_000),
])
def test_one_spike_does_not_flatten_the_curve(rates: list[int], top: int) -> None:
    assert axis_top(rates) == top
    html = render(view() | {"rates": [[1000 * n, rate] for n, rate in enumerate(rates)]}, whole=True)
    said = checked(html).text
    assert f"highest {max(rates):,}" in said and (", above the curve" in said) == (max(rates) > top)
    heights = [float(pair.partition(",")[2]) for pair in re.findall(r"[\d.-]+,[\d.-]+", html[html.index("<polyline"):])]
    assert all(2 <= height <= 62 for height in heights[: len(rates)])


def test_a_page_is_made_when_nothing_is_known() -> None:
    bare = {"id": 1, "address": "a:1", "reachable": True, "state": "passive", "age_s": 0.0, "problem": None}
    rows = [bare, {"id": 2, "address": "b:2", "reachable": False, "age_s": None, "problem": "not asked yet"}]
    html = render(view() | {"members": rows, "rates": []}, whole=True)
    assert "Nobody leads" in checked(html).text and "not founded" in html
    assert "no answer since it started" in checked(html).text


def test_the_logs_are_shown_once_there_are_several() -> None:
    first = {"number": 1, "name": "default", "state": "ready", "leader": 1, "last_lsn": 9, "bytes": 4096, "behind": []}
    bills = {"number": 2, "name": "bills", "state": "ready", "leader": 2, "term": 3, "last_lsn": 4711, "bytes": 8192}
    given = view()
    for row in given["members"]:
        row["logs"] = [first]
    assert "logs" not in checked(render(given, whole=True)).ids
    given["members"][0]["logs"] = [first, bills]
    given["members"][1]["logs"] = [first, bills | {"behind": [1]}]
    given["members"][2]["logs"] = [first, {"number": 2, "name": "bills", "state": "failed", "why": "<b>torn</b>"}]
    page = checked(render(given, whole=True))
    assert "logs" in page.ids and "4,711" in page.text and "8.0 KiB" in page.text
    assert "failed (server 1, server 3 behind)" in page.text
    assert "Server 3: the log bills has failed here: <b>torn</b>" in page.text


@pytest.mark.trio
async def test_the_status_of_another_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "KEPT_S", 0.0)
    monkeypatch.setattr(site, "ANSWER_S", 60.0)
    async with rig(3, shelves=tmp_path) as found:
        leader = await found.leader()
        await (await connect(leader.us.address)).ask(create("billing"))
        running = [node.hosted.running for node in found.nodes if node.hosted is not None]
        await until(lambda: all(2 in each and each[2].server.replica.leader_id for each in running))
        at = found.visited[0]
        status = json.loads((await visit(at, "/status?log=billing")).text)
        cluster = running[0][2].server.replica.cluster.hex()
        assert [(row["reachable"], row["cluster"]) for row in status["members"]] == [(True, cluster)] * 3
        first = json.loads((await visit(at, "/status?log=default")).text)
        assert first["members"][0]["cluster"] == leader.replica.cluster.hex()
        assert [log["name"] for log in first["members"][0]["logs"]] == ["default", "billing"]
        assert (await visit(at, "/status?log=nothing")).status == 404
        running[0][2].server.driver.failed(Alarm("a broken invariant"))
        await until(lambda: 2 not in running[0])
        assert (await visit(at, "/status?log=billing")).status == 404
        await until(lambda: found.nodes[0].hosted is not None and 2 in found.nodes[0].hosted.failed)
        ready = await visit(at, "/readyz?verbose")
        assert ready.status == 503 and "[-]logs failed: the log billing has failed: a broken invariant" in ready.text


@pytest.mark.trio
async def test_the_page_shows_every_member_and_those_that_went(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "KEPT_S", 0.0)
    monkeypatch.setattr(site, "ROUND_S", 0.05)
    async with rig(3) as found:
        leader = await found.leader()
        at = found.visited[leader.us.me.id - 1]
        client = await connect(found.addresses[leader.us.me.id - 1])
        await client.ask(q.SetCursor(1, "<b>bold</b>", 1))
        answer = await visit(at, "/")
        page = checked(answer.text)
        assert "All 3 members answer" in page.text and "<b>bold</b>" in page.text  # as text
        status = json.loads((await visit(at, "/status")).text)
        assert [row["reachable"] for row in status["members"]] == [True] * 3
        assert {row["leader"] for row in status["members"]} == {leader.us.me.id}
        gone = next(node for node in found.nodes if node is not leader)
        gone.stop()
        with trio.fail_after(20):
            while "2 of 3 members answer; no other may fail." not in (await visit(at, "/?part")).text:
                await trio.sleep(0.01)
        status = json.loads((await visit(at, "/status")).text)
        row = status["members"][gone.us.me.id - 1]
        assert row["reachable"] is False and row["problem"] and row["age_s"] >= 0 and row["last_id"] is not None


@pytest.mark.trio
async def test_payloads_are_listed_and_shown_one_by_one() -> None:
    evil = b'<script>alert(1)</script>\x1b[31m'
    given = [b'{"n": [1, {"b": "<i>"}]}', evil, bytes(range(256)), b"", "grün\n".encode(), b"x" * 70_000]
    async with rig() as found:
        at = found.visited[0]
        assert (await visit(at, "/log")).text == "this server is EMPTY\n"
        client = await founded(found)
        empty = checked((await visit(at, "/log")).text)
        assert "has 1 to 0" in empty.text and "no payloads here" in empty.text
        for number in range(25):
            await client.ask(append(random_id(), 1, (1, b"old %d" % number)))
        me = random_id()
        for serial, payload in enumerate(given, 1):
            await client.ask(append(me, serial, (1, payload)))
        html = (await visit(at, "/log")).text
        page = checked(html)
        assert "server 1 has 1 to 31" in page.text and "<script>alert" not in html and "\x1b" not in html
        assert re.findall(r'lsn=(\d+)"', html) == [str(lsn) for lsn in range(31, 11, -1)]
        older = (await visit(at, "/log?before=12")).text
        assert re.findall(r'lsn=(\d+)"', older) == [str(lsn) for lsn in range(11, 0, -1)] and "before=32" in older
        assert re.findall(r'lsn=(\d+)"', (await visit(at, "/log?before=32")).text) == re.findall(r'lsn=(\d+)"', html)
        shown = [checked((await visit(at, f"/log?lsn={lsn}")).text).text for lsn in range(26, 32)]
        assert '"b": "<i>"' in shown[0] and "JSON" in shown[0] and "00000000  7b 22 6e 22" in shown[0]
        assert "Text" in shown[1] and "<script>alert(1)</script>\ufffd[31m" in shown[1]
        assert "Text" not in shown[2] and "fc fd fe ff  ................" in shown[2] and "none" in shown[3]
        assert "Text" in shown[4] and "grün\n" in shown[4] and len(shown[5]) < 75_000 and "the first 65,536" in shown[5]
        for query, status in (
            ("lsn=32", 200), ("lsn=0", 400), ("lsn=x", 400), ("lsn=" + "9" * 19, 400), ("before=" + "9" * 18, 200),
            ("a=1&b=1&c=1&d=1&e=1", 400), ("lsn=1&lsn=2", 200),
        ):
            assert (await visit(at, f"/log?{query}")).status == status, query
        await client.ask(append(me, 7, (3, join_payloads([b"one", b"two", b"three"]))))
        assert "two" in checked((await visit(at, "/log?lsn=33")).text).text
        around = checked((await visit(at, "/log?before=34")).text).text
        assert "one" in around and "two" in around and "three" not in around
        await client.ask(q.Trim(99, 21))
        assert "has 21 to 34" in checked((await visit(at, "/log?lsn=20")).text).text


def test_json_that_indenting_makes_huge_is_shown_as_text() -> None:
    """The server's event loop makes the page: no client that may append must make it build 59 million characters."""
    data = b"[" * 900 + b",".join([b"1"] * 31_000) + b"]" * 900
    kind, text = page._told(data, whole=True)
    assert kind == "Text" and text == data.decode()
    nested = b"[" * 30 + b",".join([b"1"] * 1000) + b"]" * 30
    kind, text = page._told(nested, whole=True)
    assert kind == "JSON" and json.loads(text) == json.loads(nested)


@pytest.mark.trio
async def test_nobody_is_asked_once_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "ROUND_S", 0.02)
    monkeypatch.setattr(site, "LOOKED_S", 0.3)
    monkeypatch.setattr(site, "ANSWER_S", 0.2)
    monkeypatch.setattr(site, "KEPT_S", 0.0)
    async with rig(3) as found:
        leader = await found.leader()
        other = next(node for node in found.nodes if node is not leader)
        assert (await visit(found.visited[leader.us.me.id - 1], "/status")).status == 200
        assert len(other.listener.clients) == 1
        await until(lambda: not other.listener.clients)
        assert (await visit(found.visited[leader.us.me.id - 1], "/status")).status == 200
        assert len(other.listener.clients) == 1


@pytest.mark.trio
async def test_a_member_that_answers_nonsense_is_shown_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nonsense(_: Inquiry) -> dict[str, Any]:
        raise KeyError("state")

    monkeypatch.setattr(Inquiry, "status", nonsense)
    async with rig(3) as found:
        leader = await found.leader()
        at = found.visited[leader.us.me.id - 1]
        rows = json.loads((await visit(at, "/status")).text)["members"]
        assert [row["problem"] for row in rows if row["id"] != leader.us.me.id] == [
            "its answer makes no sense: KeyError"
        ] * 2
        assert (await visit(at, "/")).status == 200


@pytest.mark.trio
async def test_a_member_that_says_it_leads_and_nothing_else_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def little(_: Inquiry) -> dict[str, Any]:
        return {"id": "<img src=x>", "state": "leader"}

    monkeypatch.setattr(Inquiry, "status", little)
    monkeypatch.setattr(site, "KEPT_S", 0.0)
    async with rig(3) as found:
        leader = await found.leader()
        at = found.visited[leader.us.me.id - 1]
        page = await visit(at, "/")
        assert page.status == 200 and "<img" not in page.text and f"Server {leader.us.me.id} leads" in page.text
        assert (await visit(at, "/readyz")).status == 200
        rows = json.loads((await visit(at, "/status")).text)["members"]
        assert [row["id"] for row in rows] == [1, 2, 3]
