"""The one judge: who counts, whether appends work, what is found; and that every screen says the same of the same rows.
"""

from __future__ import annotations

import html
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from alpo.client.operator.status import Events
from alpo.health import READ_BAD_MS, Finding, Verdict, examine, not_well, worst
from alpo.node.http.page import State, state_of
from alpo.node.reads import PATIENCE_S_MIN
from alpo.standing import Appends, Cluster, sentence
from alpo_cli.app import app
from alpo_cli.commands import doctor
from alpo_cli.watch.sight import Seen, Sight, as_json

Rows = list[dict[str, Any]]
NOW_MS = 1_800_000_000_000
GIB = 1 << 30
LISTED: list[dict[str, Any]] = [
    {"id": id, "address": f"h{id}:7100", "role": "VOTER", "priority": 0} for id in (1, 2, 3)
]
WORK: dict[str, Any] = {"work": True, "why": [], "may_fail": 1}


def row(id: int, **fields: Any) -> dict[str, Any]:
    """A member that is well; server 1 leads."""
    return {
        "id": id, "address": f"h{id}:7100", "reachable": True, "state": "leader" if id == 1 else "passive",
        "status": "VOTING", "term": 7, "leader": 1, "version": "1.0", "timers_ms": [100, 500, 25], "members": LISTED,
        "peers": [{"id": to, "reachable": True, "why": None, "round_trip_ms": 0.3} for to in (1, 2, 3) if to != id],
        "waiting": [], "problems": [], "space": [], "damage": [], "divergence": [], "cleaning_waits": [],
        "strangers": [], "last_id": 90, "guaranteed_id": 90, "fully_replicated_id": 90, "first_lsn": 1, "last_lsn": 80,
        "fsync_samples": 9, "fsync_p50_ms": 1.0, "fsync_p99_ms": 4.0, "fsync_max_ms": 9.0, "time_ms": NOW_MS,
        "disk_total_bytes": 100 * GIB, "disk_free_bytes": 60 * GIB, "disk_full_days": 60.0,
        "growth_bytes_per_day": GIB, "clock_ahead_ms": 1.0, "clock_error_ms": 1.0, "cluster": "7f3a91c2" * 4,
        "appends": WORK if id == 1 else None, "certificate_ends_s": None, "age_s": 0.0, "problem": None, "clients": 1,
    } | fields


def down(id: int, why: str = "connection refused") -> dict[str, Any]:
    return {"id": id, "address": f"h{id}:7100", "reachable": False, "problem": why}


def three(*changed: dict[str, Any]) -> Rows:
    """Three members that are well, replaced by ``changed`` rows of their ids; rows of other ids come last."""
    by_id = {each["id"]: each for each in (row(1), row(2), row(3), *changed)}
    return [by_id[id] for id in sorted(by_id)]


def stand(*why: str) -> dict[str, Any]:
    return {"work": False, "why": list(why), "may_fail": 0}


GONE_LISTED = [*LISTED, {"id": 4, "address": "h4:7100", "role": "GONE", "priority": 0}]
GONE = row(
    4, state="passive", status="GONE", term=5, members=GONE_LISTED, appends=None,
    waiting=["it was removed from the cluster: stop it once no log has it any more; its directory is of no use then"],
)
LOW = "low on disk space: 0 B free, low-water mark 256.0 MiB; it takes no entries"
ONE_LISTED = [{**each, "role": "VOTER" if each["id"] == 1 else "GONE"} for each in GONE_LISTED]

#: Recorded rows, the worst verdict, the sentence, and the checks that are not well.
RECORDED: dict[str, tuple[Rows, Verdict, str, list[str]]] = {
    "all is well": (
        three(), Verdict.OK,
        "Server 1 leads since term 7. Appends work. All 3 members answer; one more may fail.", [],
    ),
    "a full disk, and a server down": (
        three(row(1, appends=stand("server 3 is low on disk space and takes no entries", "server 2 does not answer")),
              down(2), row(3, space=[LOW])), Verdict.BAD,
        "Server 1 leads since term 7. Appends stand: server 3 is low on disk space and takes no entries, server 2 does"
        " not answer. 2 of 3 members answer.", ["members", "appends", "space"],
    ),
    "a full disk, and a server down, told by an older leader": (
        three(row(1, appends=None), down(2), row(3, space=[LOW])), Verdict.BAD,
        f"Server 1 leads since term 7. Appends stand: server 3: {LOW}, server 2 does not answer. 2 of 3 members"
        " answer.",
        ["members", "appends", "space"],
    ),
    "two disks that hang": (
        three(row(1, appends=stand("server 2 confirms no entries", "server 3 confirms no entries")),
              row(2, write_under_way_ms=4_000), row(3, write_under_way_ms=400)), Verdict.BAD,
        "Server 1 leads since term 7. Appends stand: server 2 confirms no entries, server 3 confirms no entries. All 3"
        " members answer.", ["appends", "disk", "disk"],
    ),
    "one that follows, and confirms nothing": (
        three(row(1, appends={"work": True, "why": ["server 3 confirms no entries"], "may_fail": 0})), Verdict.WARN,
        "Server 1 leads since term 7. Appends work. All 3 members answer; no other may fail.", ["appends"],
    ),
    "one down": (
        three(row(1, appends={"work": True, "why": ["server 3 does not answer"], "may_fail": 0}), down(3)),
        Verdict.BAD, "Server 1 leads since term 7. Appends work. 2 of 3 members answer; no other may fail.",
        ["members"],
    ),
    "one that answers the leader and not us": (
        three(down(3, "no answer within 2 s")), Verdict.BAD,
        "Server 1 leads since term 7. Appends work. 2 of 3 members answer; one more may fail.", ["members"],
    ),
    "a leader that answers the others and not us": (
        three(down(1)), Verdict.BAD,
        "Server 1 leads since term 7, say the others, but does not answer here. 2 of 3 members answer; no other may"
        " fail.", ["members", "leader", "appends"],
    ),
    "a leader that is gone, and one that is alone": (
        three(down(1), down(2), row(3, peers=[{"id": id, "reachable": False, "why": "gone"} for id in (1, 2)])),
        Verdict.BAD, "Nobody leads: nothing is appended. 1 of 3 members answer; 2 are needed.",
        ["members", "members", "leader", "appends"],
    ),
    "nobody leads": (
        three(down(1), row(2, leader=None), row(3, leader=None)), Verdict.BAD,
        "Nobody leads: nothing is appended. 2 of 3 members answer; no other may fail.",
        ["members", "leader", "appends"],
    ),
    "a removed server that still runs": (
        three(row(1, members=GONE_LISTED), GONE), Verdict.OK,
        "Server 1 leads since term 7. Appends work. All 3 members answer; one more may fail.", [],
    ),
    "one that is left of four": (
        [row(1, members=ONE_LISTED, appends=WORK | {"may_fail": 0}),
         *(row(id, status="GONE", term=5, members=ONE_LISTED) for id in (2, 3, 4))], Verdict.OK,
        "Server 1 leads since term 7. Appends work. The only member answers.", [],
    ),
    "what else there may be": (
        three(row(1, certificate_ends_s=NOW_MS / 1000 + 5 * 86_400, log_ahead_ms=4e6),
              row(2, strangers=[{"remote": "10.0.0.9", "why": "<b>\x1b[2J", "last_ms": NOW_MS, "times": 3}],
                  twice=[{"id": 3, "addresses": ["h9:7100", "h3:7100"], "last_ms": NOW_MS}]),
              row(3, guaranteed_id=-20_000, log_ahead_ms=4e6, fsync_p99_ms=130.0,
                  twice=[{"id": 3, "addresses": ["h3:7100", "h9:7100"], "last_ms": NOW_MS}])), Verdict.BAD,
        "Server 1 leads since term 7. Appends work. All 3 members answer; one more may fail.",
        ["log time", "twice", "fsync", "certificate", "strangers", "lag"],
    ),
}


def page_of(rows: Rows) -> State:
    return state_of({"members": rows, "lag_s": {}})


def watch_of(rows: Rows) -> dict[str, Any]:
    seen = [
        Seen(each["id"], each["address"], each if each["reachable"] else {}, None if each["reachable"] else 3.0,
             each.get("problem") or "")
        for each in rows
    ]
    found: dict[str, Any] = json.loads(json.dumps(as_json(Sight(datetime.now(UTC), 100.0, seen))))
    return found


def doctor_of(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[dict[str, Any]]]:
    async def asked(target: Any) -> Any:
        return rows, Events([], [])

    monkeypatch.setattr(doctor, "ask", asked)
    done = CliRunner().invoke(app, ["doctor", "--servers", "a:1", "--json"])
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", RECORDED)
def test_every_screen_says_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, verdict, says, checks = RECORDED[name]
    code, told = doctor_of(rows, monkeypatch)
    bad_first = sorted((one for one in told if one["verdict"] != "ok"), key=lambda one: one["verdict"] != "bad")
    assert [one["check"] for one in bad_first] == checks
    assert code == (verdict is Verdict.BAD)
    watch, page = watch_of(rows), page_of(rows)
    assert (watch["verdict"], watch["says"]) == (page.level, page.sentence) == (verdict.value, says)
    assert [{**one, "do": one["do"] or None} for one in watch["findings"]] == bad_first
    assert len(page.items) == len(bad_first)
    for item, one in zip(page.items, bad_first, strict=True):
        printable = one["says"].replace("\x1b", "\N{REPLACEMENT CHARACTER}")
        assert html.escape(printable) in item and "<b>" not in item
    (appends,) = (one for one in told if one["check"] == "appends")
    assert (appends["verdict"] == "bad") == (watch["appends"]["work"] is False)
    assert all(why in appends["says"] for why in watch["appends"]["why"])


def found(rows: Rows, check: str) -> list[Finding]:
    return [each for each in examine(rows) if each.check == check]


def test_a_server_that_is_no_member_is_told_as_what_it_is() -> None:
    (gone,) = found(RECORDED["a removed server that still runs"][0], "outside")
    assert (gone.verdict, gone.server) == (Verdict.OK, 4)
    assert gone.says.startswith("h4:7100 answers and is no member: it was removed from the cluster")
    waits = row(4, status="EMPTY", members=[], waiting=["waits to be added to a cluster"], state="passive", term=0)
    (new,) = found(three(waits), "outside")
    assert (new.verdict, new.says) == (
        Verdict.OK, "h4:7100 answers and is no member: waits to be added to a cluster"
    )
    assert found(three(waits), "status")[0].verdict is Verdict.OK
    old = row(2, address="old:7100", status="RETIRED", term=4)
    assert [each.says for each in found([*three(), old], "outside")] == ["old:7100 answers and is no member"]
    assert [each.says for each in found([*three(), old], "members")] == ["all 3 answer"]


def test_of_removed_servers_alone_nothing_is_said_to_work() -> None:
    left = [down(1), GONE]
    assert Cluster(left).appends().work is not True
    assert worst(examine(left)) is Verdict.BAD


def test_a_learner_may_fail() -> None:
    listed = [*LISTED, {"id": 4, "address": "h4:7100", "role": "LEARNER", "priority": 0}]
    rows = three(row(1, members=listed), {**down(4)})
    assert Cluster(rows).appends() == Appends(True, [], 1)
    assert sentence(rows).endswith("3 of 4 members answer; one more may fail.")


def test_a_cluster_that_was_not_founded() -> None:
    rows = [row(id, state="passive", leader=None, members=[], term=0, status="EMPTY",
                waiting=["waits for `alpo cluster init`"]) for id in (1, 2, 3)]
    assert Cluster(rows).appends() == Appends(False, ["nobody leads: server 1 waits for `alpo cluster init`"], 0)
    assert sentence(rows) == (
        "Nobody leads: server 1 waits for `alpo cluster init`. All 3 members answer."
    )


@pytest.mark.parametrize(("age_ms", "verdict"), [(None, None), (125, None), (126, Verdict.WARN), (501, Verdict.BAD)])
def test_a_write_that_is_under_way_for_long(age_ms: int | None, verdict: Verdict | None) -> None:
    assert [each.verdict for each in found(three(row(2, write_under_way_ms=age_ms)), "disk")] == (
        [verdict] if verdict else []
    )


@pytest.mark.parametrize(("age_ms", "verdict"), [
    (None, None), (1_000, None), (1_001, Verdict.WARN), (2_001, Verdict.BAD),
])
def test_a_read_that_is_under_way_for_long(age_ms: int | None, verdict: Verdict | None) -> None:
    """A read that takes long is a finding of the disk, and of nothing else."""
    rows = three(row(2, read_under_way_ms=age_ms))
    assert [each.verdict for each in found(rows, "disk")] == ([verdict] if verdict else [])
    assert [each.check for each in not_well(examine(rows))] == (["disk"] if verdict else [])


def test_a_disk_hangs_for_all_screens_when_it_does_for_its_server() -> None:
    assert READ_BAD_MS == PATIENCE_S_MIN * 1000


def test_what_to_do_where_appends_stand_names_disks_and_links() -> None:
    (stands,) = found(three(row(1, appends=stand("server 2 confirms no entries"))), "appends")
    assert "disk" in stands.do and "network" in stands.do


@pytest.mark.parametrize(("ahead_ms", "verdict"), [
    (None, None), (-5_000_000, None), (10_000, None), (10_001, Verdict.WARN), (3_600_001, Verdict.BAD),
])
def test_a_log_that_is_ahead_of_the_clocks(ahead_ms: int | None, verdict: Verdict | None) -> None:
    """The log is reported if it is ahead of most clocks; a minority of clocks says nothing of the log."""
    right, ahead = row(1, log_ahead_ms=0), row(2, log_ahead_ms=ahead_ms)
    for rows in ([ahead], [ahead, row(3, log_ahead_ms=ahead_ms)], [right, ahead, row(3, log_ahead_ms=ahead_ms)]):
        assert [each.verdict for each in found(rows, "log time")] == ([verdict] if verdict else [])
    for rows in ([right, ahead], [right, ahead, row(3, log_ahead_ms=0)], [right, ahead, down(3)]):
        assert found(rows, "log time") == []


@pytest.mark.parametrize(("days", "verdict"), [(15, None), (13, Verdict.WARN), (-1, Verdict.BAD)])
def test_a_certificate_that_ends(days: int, verdict: Verdict | None) -> None:
    rows = three(row(2, certificate_ends_s=NOW_MS / 1000 + days * 86_400))
    assert [each.verdict for each in found(rows, "certificate")] == ([verdict] if verdict else [])


def test_strangers_and_two_of_one_identity_in_words() -> None:
    rows, *_ = RECORDED["what else there may be"]
    (stranger,), (twice,) = found(rows, "strangers"), found(rows, "twice")
    assert stranger.says == "turned away 10.0.0.9: <b>\x1b[2J (3 times, last at 08:00:00 UTC)"
    assert twice.server == 3 and "at h3:7100 and h9:7100" in twice.says
    old = row(2, problems=["server 3: cannot be reached", "10.0.0.9: cluster ab"])
    del old["strangers"]
    assert [each.says for each in found(three(old), "strangers")] == ["turned away 10.0.0.9: cluster ab"]


@pytest.mark.parametrize("key", sorted(row(1)))
@pytest.mark.parametrize("odd", ["no", -1, [None, {"id": []}, "x"], {"work": 5, "why": 7}, float("nan"), 10**400])
def test_nothing_that_a_server_says_breaks_the_judge(key: str, odd: Any) -> None:
    for rows in (three(row(1, **{key: odd})), three(row(2, **{key: odd}))) if key != "id" else ():
        not_well(examine(rows))
        assert sentence(rows)
