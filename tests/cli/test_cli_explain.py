"""The story of an election, from events alone."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from alpo.client.operator.status import Events, ServerEvent, Silent
from alpo_cli.app import app
from alpo_cli.commands import explain
from alpo_cli.story import chapters, gap, handed_over, phrase, reigns, servers

T = 1_700_000_000_000


class Tale:
    """Events in the order told; times in ms."""

    def __init__(self) -> None:
        self.events: list[ServerEvent] = []

    def at(self, ms: int, server: int, name: str, **fields: Any) -> Tale:
        self.events.append(ServerEvent(T + ms, server, len(self.events) + 1, name, fields))
        return self


def failover() -> Tale:
    """Server 2 led term 1 and was killed; 3 won term 2; 2 came back an hour later and expunged an entry."""
    tale = Tale()
    tale.at(-900_000, 1, "slow_fsync", what="commit", took_ms=300, limit_ms=125)
    tale.at(-800_000, 3, "following", term=1, leader=2).at(-800_000, 1, "following", term=1, leader=2)
    tale.at(-700_000, 1, "canvass", term=2, round=1, leader=2, silent_ms=510)  # a passing trouble, long before
    tale.at(-30_000, 1, "serving", status="VOTING").at(-40, 1, "slow_fsync", what="commit", took_ms=200.5, limit_ms=125)
    tale.at(5, 1, "peer_unreachable", peer=2, why="closed by the other side")
    tale.at(6, 1, "peer_unreachable", peer=4, why="as always").at(7, 3, "canvass", term=1, leader=0)
    tale.at(500, 3, "canvass", term=2, round=1, again=False, leader=2, silent_ms=510)
    tale.at(502, 3, "candidate", term=2, handed_over=False).at(510, 1, "vote", term=2, to=3)
    tale.at(530, 3, "leader", term=2, first_id=103, votes=[1, 3], voters=[1, 2, 3])
    tale.at(531, 1, "following", term=2, leader=3)
    tale.at(3_600_000, 2, "serving", status="VOTING", last_id=104, term=1)
    tale.at(3_600_050, 2, "expunge", term=2, from_id=103, last_id=104, guaranteed_id=102)
    tale.at(3_600_100, 2, "clean", upto_id=50, first_lsn=40)
    return tale


def told(tale: Tale, number: int = -1, leaderless: bool = False) -> str:
    return "\n".join(explain.lines(chapters(tale.events, leaderless)[number]))


def test_reigns_are_known_by_the_winner_or_its_followers() -> None:
    assert [(r.term, r.leader, r.time_ms - T, r.event is None) for r in reigns(failover().events)] == [
        (1, 2, -800_000, True), (2, 3, 530, False)
    ]


def test_a_failover() -> None:
    text = told(failover())
    assert text.splitlines()[0] == (
        "Server 3 won term 2 at 2023-11-14T22:13:20.530Z. Before it server 2 led, term 1."
    )
    steps = [line[2:] for line in text.splitlines() if line.startswith("  ")]
    assert steps == [
        "22:13:19.960Z  server 1 waited 200.5 ms for its disk (commit; more than 125 ms is slow)",
        "22:13:19.990Z  server 2 is heard for the last time, by server 3",
        "22:13:20.005Z  server 1 has no connection to server 2: closed by the other side",
        "22:13:20.500Z  server 3 has heard nothing from server 2 for 510 ms and asks who would vote for it in term 2",
        "22:13:20.502Z  server 3 stands in term 2",
        "22:13:20.510Z  server 1 votes for server 3 in term 2",
        "22:13:20.530Z  server 3 wins term 2 with the votes of servers 1 and 3, 2 of 3 voters",
        "22:13:20.531Z  server 1 follows server 3 in term 2",
        "23:13:20.000Z  server 2 is started (VOTING, last entry 104, term 1)",
        "23:13:20.050Z  server 2 expunges entries 103 to 104, for which the leader's log has others (up to 102 it knew"
        " to be guaranteed)",
    ]
    assert "No leader for 0.54 s: since server 2 was last heard, by server 3." in text
    assert "Server 2 expunged entries 103 to 104, never guaranteed" in text
    assert "on the disks of 2 of 3 voters, so at least one of servers 1 and 3 has it" in text


def test_the_first_leader_of_all() -> None:
    text = told(failover(), 0)
    assert text.startswith("Server 2 won term 1") and "tell of no leader before" in text
    assert "No leader for" not in text and "majority" in text


def test_a_hand_over_is_told_as_one() -> None:
    tale = Tale().at(0, 1, "leader", term=4, votes=[1, 2], voters=[1, 2, 3])
    tale.at(90_000_000, 1, "stopping", state="leader", term=4).at(90_000_004, 1, "handing_over", term=4, to=2)
    tale.at(90_000_006, 2, "candidate", term=5, handed_over=True)
    tale.at(90_000_034, 2, "leader", term=5, votes=[2, 3], voters=[1, 2, 3]).at(90_000_050, 1, "stopped", in_time=True)
    text = told(tale)
    assert "server 1 was told to stop while it led" in text and "told so by the leader" in text
    assert "No leader for 0.03 s: since server 1 handed over." in text
    assert "Nothing was expunged." in text


def test_planned_hand_overs_are_told_from_elections() -> None:
    tale = failover()
    tale.at(4_000_000, 1, "candidate", term=3, handed_over=True).at(4_000_010, 1, "leader", term=3)
    assert handed_over(tale.events) == {3}


def test_who_leaves_the_list_is_gone() -> None:
    tale = Tale()
    tale.at(0, 1, "member_change", member=4, role="GONE", before="VOTER", address="h:4")
    tale.at(1, 1, "member_change", member=5, role="LEARNER", before="none", address="h:5")
    gone, new = map(phrase, tale.events)
    assert gone == "writes down that server 4 is gone (was a voter)"
    assert new == "writes down that server 5 is a learner (was no member)"


def test_a_leader_that_lost_its_majority() -> None:
    tale = Tale().at(0, 1, "leader", term=1, votes=[1, 2], voters=[1, 2, 3])
    tale.at(60_000, 1, "leader_lost_majority", term=1).at(60_000, 1, "passive", term=1)
    tale.at(75_000, 3, "canvass", term=2, leader=0, silent_ms=None)
    tale.at(75_010, 1, "deferred", term=2, to=3)
    tale.at(75_020, 2, "election_cycle_ended", term=2, granted=[2])
    tale.at(75_100, 3, "leader", term=3, votes=[1, 3], voters=[1, 2, 3])
    text = told(tale)
    assert "server 3 knows no leader and asks" in text and "server 1 makes way for server 3" in text
    assert "server 2 finds no majority in term 2 (votes of server 2)" in text
    assert "No leader for 15.10 s: since server 1 led no more." in text


def test_no_leader_at_present() -> None:
    tale = Tale().at(0, 1, "leader", term=1, votes=[1, 2], voters=[1, 2, 3]).at(1, 2, "following", term=1, leader=1)
    for minute in range(1, 40):  # a server without a majority repeats this
        tale.at(60_000 * minute, 2, "canvass", term=2, leader=1, silent_ms=500 + 60_000 * (minute - 1), times=99)
    text = told(tale, leaderless=True)
    assert text.startswith("There is no leader. The last one was server 1, term 1.")
    assert "No leader since 2023-11-14T22:14:19.500Z, when server 1 was last heard, by server 2." in text
    assert text.count("asks who would vote") == 39 and "(99 times)" in text
    assert len(chapters(tale.events, leaderless=False)) == 1


def test_a_server_that_is_cut_off_is_no_election() -> None:
    tale = failover()
    tale.at(9_000_000, 1, "canvass", term=3, leader=3, silent_ms=501)
    assert len(chapters(tale.events, leaderless=False)) == 2
    assert "term 3" not in told(tale)


def test_a_disk_that_hangs_is_told_and_why_another_leads() -> None:
    tale = Tale().at(-9000, 2, "leader", term=1, first_id=1, votes=[2, 3], voters=[1, 2, 3])
    tale.at(-9, 2, "disk_hangs", under_way_ms=126, limit_ms=125)
    tale.at(366, 2, "handing_over", term=1, to=3, why="its disk hangs")
    tale.at(380, 3, "leader", term=2, first_id=9, votes=[1, 3], voters=[1, 2, 3])
    assert "server 2 waits for its disk: a write is under way for 126 ms\n" in told(tale)
    assert "server 2 hands over to server 3: its disk hangs\n" in told(tale)
    assert phrase(tale.at(400, 2, "leader_gives_up", term=1, why="its disk hangs").events[-1]) == (
        "stops leading term 1: its disk hangs"
    )
    assert phrase(tale.at(400, 2, "leader_gives_up", term=1, id=7).events[-1]) == (
        "stops leading term 1: it cannot send damaged entry 7"
    )
    assert phrase(tale.at(900, 2, "disk_moves_again", took_ms=900).events[-1]).endswith("a write took 900 ms")


@pytest.mark.parametrize("name", ["leader", "following", "canvass", "expunge", "vote", "slow_fsync", "stopped", "new"])
def test_events_without_their_fields_break_nothing(name: str) -> None:
    tale = failover().at(4_000_000, 1, name).at(4_000_001, 1, name, term="x", leader=[], votes=3, silent_ms="x")
    for leaderless in (True, False):
        for chapter in chapters(tale.events, leaderless):
            explain.lines(chapter)
            gap(chapter)
    assert phrase(tale.events[-1])


def test_lists_of_servers() -> None:
    assert [servers(ids) for ids in ([], [1], [1, 2], [1, 2, 3], None)] == [
        "nobody", "server 1", "servers 1 and 2", "servers 1, 2 and 3", "nobody"
    ]


# -- the command


def ran(monkeypatch: pytest.MonkeyPatch, tale: Tale, *words: str, members: Any = None, silent: Any = ()) -> Any:
    asked: list[datetime | None] = []

    async def gathered(target: Any, since: datetime | None) -> Any:
        asked.append(since)
        return Events(tale.events, list(silent)), members or [{"reachable": True, "state": "leader"}]

    monkeypatch.setattr(explain, "gather", gathered)
    done = CliRunner().invoke(app, ["explain", "--servers", "a:1", *words])
    return done, asked


def test_json_is_a_line_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    done, _ = ran(monkeypatch, failover(), "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows[0] == {"time": "2023-11-14T22:13:19.960Z", "server": 1, "name": "slow_fsync", "what": "commit",
                       "took_ms": 200.5, "limit_ms": 125}
    assert [row["name"] for row in rows][-1] == "expunge" and len(rows) == 9


def test_last_since_and_all(monkeypatch: pytest.MonkeyPatch) -> None:
    tale = failover()
    assert ran(monkeypatch, tale)[0].stdout.count(" won term ") == 1
    assert ran(monkeypatch, tale, "--last", "5")[0].stdout.count(" won term ") == 2
    assert ran(monkeypatch, tale, "--since", "2023-11-14T22:10:00Z")[0].stdout.count(" won term ") == 1
    done, asked = ran(monkeypatch, tale, "--since", "2024-01-01T00:00:00Z")
    assert (done.stdout, asked) == ("The servers' events tell of no election since then.\n", [None])
    done, asked = ran(monkeypatch, tale, "--all", "--since", "2023-11-14T22:10:00Z")
    assert asked == [datetime(2023, 11, 14, 22, 10, tzinfo=UTC)]
    assert "server 2 deletes its entries up to 50; the log begins at LSN 40" in done.stdout
    assert len(done.stdout.splitlines()) == len(tale.events)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    done, _ = ran(monkeypatch, failover(), silent=[Silent(2, "h:1", "h:1: connection refused")])
    assert "Missing: the events of server 2, which does not answer (h:1: connection refused)." in done.stdout
    tale = failover()
    tale.events[3] = tale.events[3]._replace(shifted_ms=-5_200)
    assert "The clock of server 1 is 5.2 s behind the others'" in ran(monkeypatch, tale)[0].stdout


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    done, _ = ran(monkeypatch, Tale(), members=[{"reachable": False}])
    assert done.exit_code == 1 and not done.stdout


def test_no_events_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    done, _ = ran(monkeypatch, Tale())
    assert (done.exit_code, done.stdout) == (0, "The servers' events tell of no election.\n")
    assert ran(monkeypatch, Tale(), "--json")[0].stdout == ""


@pytest.mark.parametrize("words", [["--last", "0"], ["--since", "noon"], ["--all", "--last", "2"], ["x"]])
def test_wrong_usage(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    assert ran(monkeypatch, Tale(), *words)[0].exit_code == 2


@pytest.mark.parametrize(("role", "before", "said"), [
    ("LEARNER", "none", "server 4 is a learner (was no member)"),
    ("VOTER", "LEARNER", "server 4 is a voter (was a learner)"),
    ("GONE", "VOTER", "server 4 is gone (was a voter)"), ("LEARNER", "GONE", "server 4 is a learner (was gone)"),
])
def test_a_change_of_members_in_good_grammar(role: str, before: str, said: str) -> None:
    told = phrase(ServerEvent(1, 1, 1_000, "member_change", {"member": 4, "role": role, "before": before}))
    assert told == f"writes down that {said}"
