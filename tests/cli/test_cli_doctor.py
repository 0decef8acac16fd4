"""Findings of `alpo doctor` from what the servers report."""

from __future__ import annotations

import json
import time
from typing import Any

import anyio
import pytest
from typer.testing import CliRunner

import alpo
from alpo.client.operator.status import Events, ServerEvent
from alpo.health import MENDED_TOLD_MS, Finding, Verdict, examine
from alpo.standing import growth
from alpo_cli.app import app
from alpo_cli.commands import doctor
from alpo_cli.options import Target

GIB = 1 << 30


def member(id: int, **fields: Any) -> dict[str, Any]:
    """A server that is well."""
    peers = [{"id": peer, "reachable": True, "why": None, "round_trip_ms": 0.2} for peer in (1, 2, 3) if peer != id]
    return {
        "id": id, "address": f"h{id}:7100", "reachable": True, "state": "leader" if id == 1 else "passive",
        "status": "VOTING", "term": 4, "version": "1.0", "timers_ms": [100, 500, 25], "peers": peers, "problems": [],
        "waiting": [], "cleaning_waits": [], "fsync_samples": 100, "fsync_p50_ms": 1.0, "fsync_p99_ms": 4.0,
        "fsync_max_ms": 9.0, "clock_ahead_ms": 3.0, "clock_error_ms": 1.0, "disk_total_bytes": 100 * GIB,
        "disk_free_bytes": 60 * GIB, "growth_bytes_per_day": GIB, "disk_full_days": 60.0,
        "damage": [], "divergence": [],
    } | fields


def three(**of_second: Any) -> list[dict[str, Any]]:
    return [member(1), member(2, **of_second), member(3)]


def down(id: int, **fields: Any) -> dict[str, Any]:
    return {"id": id, "address": f"h{id}:7100", "reachable": False, **fields}


def found(members: list[dict[str, Any]], check: str, elections: int | None = 1) -> list[Finding]:
    return [finding for finding in examine(members, elections) if finding.check == check]


def only(members: list[dict[str, Any]], check: str, verdict: Verdict) -> Finding:
    """The only finding that is not OK, of ``check``; the findings of all other checks are OK."""
    others = [f for f in examine(members, 1) if f.verdict is not Verdict.OK]
    assert [(f.check, f.verdict) for f in others] == [(check, verdict)], others
    assert others[0].do
    return others[0]


def test_all_is_well() -> None:
    all_ok = examine(three(), 1)
    assert all(f.verdict is Verdict.OK and not f.do for f in all_ok)
    assert [f.check for f in all_ok] == [
        "members", "leader", "appends", "status", "connections", "fsync", "fsync", "fsync", "clocks", "space", "space",
        "space", "cleaning", "copies", "versions", "timers", "elections",
    ]


def test_one_of_three_is_down_and_told_once() -> None:
    members = [member(1), member(2), down(3, problem="connection refused")]
    for one in members[:2]:
        for peer in one["peers"]:
            if peer["id"] == 3:
                peer |= {"reachable": False, "why": "connection refused", "round_trip_ms": None}
        one["problems"] = ["server 3: connection refused"]
    says = only(members, "members", Verdict.BAD)
    assert says.server == 3 and "h3:7100 does not answer (connection refused)" in says.says
    assert "2 of 3 answer: appends go on, no other may fail" in says.says


def test_a_minority_is_left() -> None:
    bad = found([member(1, state="passive"), down(2), down(3)], "members")
    assert len(bad) == 2 and all("1 of 3 answer, 2 are needed: nothing can be appended" in f.says for f in bad)
    assert found([member(1, state="passive"), down(2), down(3)], "leader")[0].verdict is Verdict.BAD


def test_nobody_answers() -> None:
    rows = [{"id": None, "address": "h1:7100", "reachable": False}]
    (says,) = examine([*rows, {**rows[0], "address": "h2:7100", "problem": "h2:7100: connection refused"}], 0)
    assert (says.check, says.verdict, says.server) == ("members", Verdict.BAD, None)
    assert says.says == (
        "no server answers at h1:7100, h2:7100 (h2:7100: connection refused), so nothing is known of the cluster"
    )
    assert "--servers" in says.do and "ALPO_SERVERS" in says.do and "alpo cluster start" in says.do


def test_a_majority_without_a_leader_is_not_said_to_go_on() -> None:
    members = [member(1, state="passive"), member(2), down(3)]
    (says,) = found(members, "members")
    assert says.says.endswith("2 of 3 answer, which is enough, but nobody leads just now")
    assert found(members, "leader")[0].verdict is Verdict.BAD


def test_a_server_that_is_being_added_is_no_member_yet() -> None:
    waits = "to add server 7 at h7:7100: no server 7 that waits to join answers at h7:7100"
    members = three()
    members[0] |= {"member_change": waits, "problems": ["server 7: refused"]}
    members[0]["peers"].append({"id": 7, "reachable": False, "why": "refused", "round_trip_ms": None})
    says = only(members, "members", Verdict.WARN)
    assert says.says == f"a change of the member list is under way, {waits}"


def test_a_server_that_does_not_vote() -> None:
    says = only(three(status="EMPTY", waiting=["server 3 has another list"]), "status", Verdict.BAD)
    assert says.says == "is EMPTY and does not vote: server 3 has another list"


def test_a_connection_that_is_broken_one_way() -> None:
    peers = [{"id": 1, "reachable": True, "round_trip_ms": 1.0}, {"id": 3, "reachable": False, "why": "no answer"}]
    says = only(three(peers=peers), "connections", Verdict.BAD)
    assert (says.server, says.says) == (2, "does not reach server 3: no answer") and "h3:7100" in says.do


def test_a_long_way() -> None:
    peers = [{"id": 1, "reachable": True, "round_trip_ms": 180.0}]
    assert "180 ms" in only(three(peers=peers), "connections", Verdict.WARN).says


@pytest.mark.parametrize(("p99_ms", "verdict"), [(120, Verdict.OK), (130, Verdict.WARN), (251, Verdict.BAD)])
def test_a_slow_disk(p99_ms: float, verdict: Verdict) -> None:
    finding = found(three(fsync_p99_ms=p99_ms), "fsync")[1]
    assert (finding.verdict, bool(finding.do)) == (verdict, verdict is not Verdict.OK)
    assert f"99 % within {p99_ms:.1f} ms" in finding.says


def test_nothing_was_written() -> None:
    finding = found(three(fsync_p99_ms=None, fsync_samples=0), "fsync")[1]
    assert finding.verdict is Verdict.OK and "nothing was written" in finding.says


@pytest.mark.parametrize(
    ("ahead_ms", "error_ms", "verdict"),
    [(400, 1, Verdict.OK), (900, 600, Verdict.OK), (900, 1, Verdict.WARN), (-900, 1, Verdict.WARN),
     (90_000, 1, Verdict.BAD)],
)
def test_clocks_as_far_as_they_can_be_told_apart(ahead_ms: float, error_ms: float, verdict: Verdict) -> None:
    (finding,) = found(three(clock_ahead_ms=ahead_ms, clock_error_ms=error_ms), "clocks")
    assert finding.verdict is verdict
    if verdict is not Verdict.OK:
        assert ("server 2 is" in finding.says) == (ahead_ms > 0)


@pytest.mark.parametrize(
    ("free", "days", "verdict"),
    [(60, None, Verdict.OK), (9, None, Verdict.WARN), (2, None, Verdict.BAD), (60, 13.0, Verdict.WARN),
     (60, 1.5, Verdict.BAD)],
)
def test_space(free: int, days: float | None, verdict: Verdict) -> None:
    assert found(three(disk_free_bytes=free * GIB, disk_full_days=days), "space")[1].verdict is verdict


def test_a_server_below_its_low_water_mark_is_bad() -> None:
    remark = "low on disk space: 15 B free, low-water mark 16 B; it takes no appends"
    assert only(three(space=[remark]), "space", Verdict.BAD).says.startswith(f"{remark}; 60.0 GiB of")


def test_growth_in_words() -> None:
    assert growth({"growth_bytes_per_day": None}) == "too early to say how fast the log grows"
    assert growth({"growth_bytes_per_day": -5, "disk_full_days": None}) == "the log does not grow"
    fields = {"growth_bytes_per_day": 3 * GIB, "disk_full_days": 4.25}
    assert growth(fields) == "the log grows by 3.0 GiB a day: full in 4.2 days"
    assert growth({**fields, "disk_full_days": 89.6}).endswith(": full in 90 days")
    assert growth({**fields, "disk_full_days": 90.0}) == "the log grows by 3.0 GiB a day"


def test_what_differs() -> None:
    assert "1.0 on 1, 3; 1.1 on 2" in only(three(version="1.1"), "versions", Verdict.WARN).says
    assert "100/900/25 ms" in only(three(timers_ms=[100, 900, 25]), "timers", Verdict.WARN).says


def test_cleaning_strangers_elections() -> None:
    only(three(cleaning_waits=["cleaning waits at entry 5: …"]), "cleaning", Verdict.WARN)
    assert "10.0.0.9: cluster ab" in only(three(problems=["10.0.0.9: cluster ab"]), "strangers", Verdict.WARN).says
    assert found(three(), "elections", 3)[0].verdict is Verdict.WARN
    assert found(three(), "elections", None) == []
    (handed,) = [finding for finding in examine(three(), 0, 4) if finding.check == "elections"]
    assert (handed.verdict, handed.says) == (Verdict.OK, "0 won in the last hour, beside 4 planned hand-overs")


def test_clocks_that_have_leapt_together_are_told() -> None:
    """Clocks that leapt together are reported, though they agree with each other and nothing is dated ahead of them."""
    says = only(three(clocks_leapt_ms=2 * 86_400_000, log_ahead_ms=0), "log time", Verdict.BAD)
    assert "leapt ahead by 2 d" in says.says and "alpo clock accept" in says.do
    assert found(three(clocks_leapt_ms=0), "log time") == []


def test_copies_that_are_damaged_or_differ() -> None:
    says = only(three(damage=["its disk holds damaged entries, 1 known: 5"]), "copies", Verdict.BAD)
    assert says.server == 2 and "1 known: 5" in says.says
    differs = "entry 5: one copy is held by servers 1 and 3 and another by server 2, which is wrong"
    members = [member(id, divergence=[differs]) for id in (1, 2, 3)]
    assert only(members, "copies", Verdict.BAD)[2:4] == (None, differs), "told once"


@pytest.mark.parametrize(("mended", "ago_ms", "told"), [
    (1, 600_000, "1 entry of its disk was damaged and was mended since its start, the last 10 min ago"),
    (3, -5, "3 entries of its disk were damaged and were mended since its start, the last 0 s ago"),
])
def test_damage_that_was_mended_is_told_for_a_day(mended: int, ago_ms: int, told: str) -> None:
    at_ms = 1_700_000_000_000
    says = only(three(mended=mended, mended_ms=at_ms - ago_ms, time_ms=at_ms), "copies", Verdict.WARN)
    assert (says.server, says.says) == (2, told)
    later = three(mended=mended, mended_ms=at_ms, time_ms=at_ms + MENDED_TOLD_MS)
    assert [f.verdict for f in found(later, "copies")] == [Verdict.OK]
    assert [f.verdict for f in found(three(mended=0, mended_ms=None, time_ms=at_ms), "copies")] == [Verdict.OK]


def test_a_server_that_says_less_is_no_finding() -> None:
    bare = {"id": 2, "address": "h2:7100", "reachable": True, "state": "passive", "status": "VOTING", "term": 4}
    assert all(f.verdict is Verdict.OK for f in examine([member(1), bare, member(3)], 1))


# -- the command


@pytest.mark.anyio
async def test_servers_are_asked_for_both_at_once_and_one_that_hangs_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status and events each wait for the other to be asked for; the events in seconds of their own."""
    asked = {"status": anyio.Event(), "events": anyio.Event()}
    waited: dict[str, float] = {}

    class Log:
        def __init__(self, servers: str, timeout_s: float, log: str | None = None) -> None:
            self.timeout_s = timeout_s

        async def __aenter__(self) -> Log:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def both(self, mine: str, other: str) -> None:
            waited[mine] = self.timeout_s
            asked[mine].set()
            await asked[other].wait()

        async def status(self) -> list[dict[str, Any]]:
            await self.both("status", "events")
            return three()

        async def events(self, since: object) -> Events:
            await self.both("events", "status")
            return Events([], [])

    monkeypatch.setattr(alpo, "connect", Log)
    with anyio.fail_after(30):
        rows, events = await doctor.ask(Target(("a:1",), 60.0, False))
    assert (len(rows), events) == (3, Events([], []))
    assert waited == {"status": 60.0, "events": doctor.EVENTS_S}


def ran(monkeypatch: pytest.MonkeyPatch, members: list[dict[str, Any]], *words: str) -> Any:
    async def asked(target: Any) -> Any:
        now_ms = int(time.time() * 1000)
        events = [ServerEvent(now_ms - 5, 1, 1, "leader", {"term": 4}), ServerEvent(5, 1, 1, "leader", {"term": 3})]
        return members, Events(events, [])

    monkeypatch.setattr(doctor, "ask", asked)
    return CliRunner().invoke(app, ["doctor", "--servers", "a:1", *words])


def test_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    done = ran(monkeypatch, three(fsync_p99_ms=400.0, version="1.\x1b1"))
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "OK    members      all 3 answer"
    assert any(line.startswith("bad   fsync        server 2: 50 %") for line in lines)
    assert any(line.startswith("                   -> a leader whose disk") for line in lines)
    assert "\x1b" not in done.stdout and "1 won in the last hour" in done.stdout


def test_other_logs_are_looked_at_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = [{"number": n, "name": name, "state": "ready"} for n, name in ((1, "default"), (2, "bills"), (3, "lost"))]
    first = [member(id, logs=logs, version="1.1" if id == 2 else "1.0") for id in (1, 2, 3)]
    names: list[str] = []

    async def others(target: Any, wanted: list[str]) -> dict[str, list[dict[str, Any]]]:
        names.extend(wanted)
        return {"bills": three(version="1.1", fsync_p99_ms=400.0)}

    monkeypatch.setattr(doctor, "ask_others", others)
    done = ran(monkeypatch, first, "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert names == ["bills", "lost"] and done.exit_code == 1
    told = [(row["log"], row["check"], row["verdict"]) for row in rows if row["verdict"] != "ok"]
    assert told == [(None, "versions", "warn"), ("bills", "fsync", "bad"), ("lost", "logs", "warn")]
    assert "bad   fsync        log bills: server 2: " in ran(monkeypatch, first).stdout


def test_a_log_that_has_failed_is_bad() -> None:
    logs = [{"number": 1, "name": "default", "state": "ready"}, {"number": 2, "name": "bills", "state": "ready"}]
    bad = [logs[0], {"number": 2, "name": "bills", "state": "failed", "why": "torn"}]
    finding = only([member(1, logs=logs), member(2, logs=bad), member(3, logs=logs)], "logs", Verdict.BAD)
    assert (finding.server, finding.says) == (2, "the log bills has failed here: torn")
    assert found(three(), "logs") == []


def test_warnings_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    done = ran(monkeypatch, three(version="1.1"), "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 0
    assert rows[0] == {"check": "members", "verdict": "ok", "server": None, "says": "all 3 answer", "do": None,
                       "log": None}
    assert [row["verdict"] for row in rows if row["check"] == "versions"] == ["warn"]


def test_something_bad_is_a_failure_that_is_still_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    done = ran(monkeypatch, [member(1), member(2), down(3)], "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 1 and [row["check"] for row in rows if row["verdict"] == "bad"] == ["members"]
