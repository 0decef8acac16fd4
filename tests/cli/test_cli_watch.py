"""The arithmetic of `alpo watch`: sentence, rows, rates, keys, without servers and without a terminal."""

from __future__ import annotations

import io
import json
import math
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

from alpo.client.operator.status import ServerEvent
from alpo.health import Verdict
from alpo.standing import sound, span
from alpo_cli.watch.drawing import Frame, curve
from alpo_cli.watch.rows import COLUMNS, Page, Tone, View, details, events, extent, fitting, ms, press, rows
from alpo_cli.watch.showing import _Server, watching
from alpo_cli.watch.sight import Mark, Seen, Sight, as_json, behind_s, line, rate, rates, sentence

AT = datetime(2026, 11, 23, 15, 41, 7, tzinfo=UTC)
GIB = 1 << 30
MEMBERS = [{"id": id, "address": f"h{id}:7100", "role": "VOTER"} for id in (1, 2, 3)]

WORK: dict[str, Any] = {"work": True, "why": [], "may_fail": 1}
STAND: dict[str, Any] = {
    "work": False, "why": ["server 2 confirms no entries", "server 3 does not answer"], "may_fail": 0,
}


def told(id: int, **fields: Any) -> dict[str, Any]:
    """The answer of a server that is well; server 1 leads."""
    peers = [{"id": peer, "reachable": True, "why": None, "round_trip_ms": peer / 10} for peer in (1, 2, 3)
             if peer != id]
    return {
        "id": id, "address": f"h{id}:7100", "reachable": True, "state": "leader" if id == 1 else "passive",
        "status": "VOTING", "term": 4, "leader": 1, "version": "1.0", "timers_ms": [100, 500, 25], "peers": peers,
        "members": MEMBERS, "waiting": [], "problems": [], "space": [], "cleaning_waits": [], "last_id": 90,
        "guaranteed_id": 90, "fully_replicated_id": 90, "first_lsn": 1, "last_lsn": 80, "commit_ms": 1.25,
        "fsync_samples": 100, "fsync_p50_ms": 1.0, "fsync_p99_ms": 4.0, "fsync_max_ms": 9.0, "disk_bytes": 5 * GIB,
        "disk_total_bytes": 100 * GIB, "disk_free_bytes": 60 * GIB, "disk_full_days": 60.0, "clients": 2,
        "growth_bytes_per_day": 1.5 * GIB, "damage": [], "divergence": [], "cluster": "7f3a91c2" * 4,
    } | fields


def seen(id: int, silent_s: float | None = None, **fields: Any) -> Seen:
    return answered(id, told(id, **fields), silent_s)


def answered(id: int, answer: dict[str, Any], silent_s: float | None = None) -> Seen:
    problem = "" if silent_s is None else f"h{id}:7100: connection refused"
    return Seen(id, f"h{id}:7100", answer, silent_s, problem)


def sight(*servers: Seen, **more: Any) -> Sight:
    return Sight(AT, 100.0, servers or (seen(1), seen(2), seen(3)), **more)


def drawn(found: Sight, view: View = View(), width: int = 132, height: int = 40, **env: str) -> str:  # noqa: B008
    """The frame as it goes to a terminal, styles included."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, _environ=env or {})
    with console.capture() as capture:
        console.print(Frame(found, view), end="")
    return capture.get()


def plain(found: Sight, view: View = View(), width: int = 132, height: int = 40) -> str:  # noqa: B008
    return drawn(found, view, width, height, TERM="dumb", NO_COLOR="1")


# -- the sentence


@pytest.mark.parametrize(("servers", "says", "verdict"), [
    ((seen(1), seen(2), seen(3)),
     "Server 1 leads since term 4. Appends work. All 3 members answer; one more may fail.", Verdict.OK),
    ((seen(1), seen(2), seen(3, 12.5)),
     "Server 1 leads since term 4. Appends work. 2 of 3 members answer; no other may fail.", Verdict.BAD),
    ((seen(1, 3.0), seen(2), seen(3)),
     "Server 1 leads since term 4, say the others, but does not answer here. 2 of 3 members answer; no other may fail.",
     Verdict.BAD),
    ((seen(1, 3.0), seen(2, leader=None), seen(3, leader=None)),
     "Nobody leads: nothing is appended. 2 of 3 members answer; no other may fail.", Verdict.BAD),
    ((seen(1, 3.0), seen(2, leader=None), seen(3, 4.0)),
     "Nobody leads: nothing is appended. 1 of 3 members answer; 2 are needed.", Verdict.BAD),
    ((seen(1, 3.0), seen(2, 61.5), seen(3, 4000.0)), "No server answers for 3 s: reconnecting.", Verdict.BAD),
    ((seen(1), seen(2, state="leader", term=5), seen(3)),
     "Server 2 leads since term 5. Appends work. All 3 members answer; one more may fail.", Verdict.OK),
    ((seen(1, space=["low on disk space"]), seen(2), seen(3)),
     "Server 1 leads since term 4. Appends stand: server 1: low on disk space. All 3 members answer.", Verdict.BAD),
    ((seen(1, appends=WORK | {"may_fail": 0, "why": ["server 3 confirms no entries"]}), seen(2), seen(3)),
     "Server 1 leads since term 4. Appends work. All 3 members answer; no other may fail.", Verdict.WARN),
    ((seen(1, appends=STAND), seen(2), seen(3, 2.0)),
     "Server 1 leads since term 4. Appends stand: server 2 confirms no entries, server 3 does not answer. 2 of 3"
     " members answer.", Verdict.BAD),
    ((seen(1, state="passive", leader=None, waiting=["waits for `alpo cluster init`"], members=[]),),
     "Nobody leads: server 1 waits for `alpo cluster init`. The only member answers.", Verdict.BAD),
])
def test_the_sentence(servers: tuple[Seen, ...], says: str, verdict: Verdict) -> None:
    found = sight(*servers)
    assert (sentence(found), found.verdict) == (says, verdict)
    assert says in line(found) and verdict.value in line(found)
    assert json.loads(json.dumps(as_json(found)))["says"] == says


def test_learners_do_not_count_among_those_that_may_fail() -> None:
    listed = [*MEMBERS, {"id": 4, "address": "h4:7100", "role": "LEARNER"}]
    found = sight(seen(1, members=listed), seen(2), seen(3, 5.0), seen(4))
    assert sentence(found).endswith("3 of 4 members answer; no other may fail.")
    assert rows(found)[3].cells[1] == "learner"


def test_nothing_is_known_before_the_first_answer() -> None:
    found = sight(Seen(None, "h1:7100", {}, 0.1), Seen(None, "h2:7100", {}, 0.1))
    assert (sentence(found), found.findings) == ("Asking the servers.", [])
    assert "Asking the servers." in plain(found) and "h2:7100" in plain(found)


def test_a_server_that_is_no_member_has_a_row_and_is_not_counted() -> None:
    listed = [*MEMBERS, {"id": 4, "address": "h4:7100", "role": "GONE"}]
    for member in (True, False):
        four = Seen(4, "h4:7100", told(4, status="GONE", members=listed), None, "", member)
        found = sight(seen(1, members=listed), seen(2, members=listed), seen(3), four)
        assert "All 3 members answer; one more may fail." in sentence(found) and found.verdict is Verdict.OK
    assert rows(found)[3].cells[1] == "no member"


@pytest.mark.anyio
async def test_removed_members_are_asked_and_counted_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [*MEMBERS, {"id": 4, "address": "h4:7100", "role": "GONE"}]
    async with watching(["h1:7100", "h4:7100"]) as watch:
        monkeypatch.setattr(watch, "_ask_all", lambda: None)
        for id in (1, 4):
            server = _Server(f"h{id}:7100", 0.0, told(id, members=listed), sound(told(id, members=listed)), id == 1)
            watch._known[server.address] = server
        for id in (2, 3):
            watch._known[f"h{id}:7100"] = _Server(f"h{id}:7100", 0.0)
        watch._learn()
        shown = watch.sight()
        assert [one.id for one in shown.servers] == [1, 2, 3] and all(one.member for one in shown.servers)


# -- rates and lag


def test_rates() -> None:
    marks = [Mark(95.0, 100, 1), Mark(96.0, 150, 2), Mark(98.0, 170, 3), Mark(99.0, 160, 4), Mark(99.5, 250, 5)]
    assert [rate(marks[: count + 1]) for count in range(5)] == [None, 50.0, 10.0, None, 180.0]
    assert rates(marks, 100.0, 6) == [None, 50.0, 10.0, 10.0, None, 180.0]
    assert rates([], 100.0, 2) == [None, None]
    assert rates([Mark(0.0, 1, 1), Mark(1e9, 5, 5)], 1e9, 3) == [4e-9] * 3


def test_the_curve() -> None:
    assert curve([None, 0.0, 50.0, 100.0]) == " ▁▅█"
    assert (curve([0.0, 0.0]), curve([]), curve([None])) == ("▁▁", "", " ")


def test_lag_is_told_in_entries_and_since_when() -> None:
    marks = [Mark(90.0, 1, 50), Mark(95.0, 1, 70), Mark(99.0, 1, 90)]
    assert (behind_s(50, marks, 100.0), behind_s(70, marks, 100.0), behind_s(90, marks, 100.0)) == (5.0, 1.0, None)
    found = sight(seen(1), seen(2, guaranteed_id=50), seen(3, guaranteed_id=70), marks=marks)
    assert [row.cells[5] for row in rows(found)] == ["-", "40 (5 s)", "20"]
    assert found.verdict is Verdict.OK


@pytest.mark.parametrize(("own", "at_s"), [(90 - 90, 1.0), (80, 80.0)])
def test_a_member_far_behind_is_a_finding(own: int, at_s: float) -> None:
    many = 90 if own else 20_000
    found = sight(seen(1, guaranteed_id=many), seen(2, guaranteed_id=own), marks=[Mark(100.0 - at_s, 1, many)])
    assert [(finding.check, finding.server) for finding in found.findings if finding.check == "lag"] == [("lag", 2)]
    assert rows(found)[1].tone is Tone.WARN and rows(found)[1].cells[-1] == "⚠ VOTING"


def test_milliseconds() -> None:
    assert [ms(value) for value in (None, 0.0, 0.009, 0.44, 9.94, 88.1, 12_345.6)] == [
        "-", "0.00 ms", "0.01 ms", "0.4 ms", "9.9 ms", "88 ms", "12,346 ms",
    ]


def test_spans() -> None:
    assert [span(s) for s in (0.9, 119, 120, 3599, 3600 * 3 + 720, 86_400 * 2 + 3600 * 4)] == [
        "0 s", "119 s", "2 min", "59 min", "3 h 12 min", "2 d 4 h",
    ]


# -- rows


def test_a_row_has_what_the_page_has() -> None:
    found = sight(seen(1), seen(2), seen(3, 12.5))
    assert [column.head for column in COLUMNS] == [
        "server", "role", "address", "log", "extent", "lag", "round trip", "commit", "fsync p99", "disk free", "status",
    ]
    assert [row.cells for row in rows(found)] == [
        ["1", "leader", "h1:7100", "1 to 80", "━" * 16, "-", "-", "1.2 ms", "4.0 ms", "60.0 GiB", "VOTING"],
        ["2", "passive", "h2:7100", "1 to 80", "━" * 16, "0", "0.2 ms", "1.2 ms", "4.0 ms", "60.0 GiB", "VOTING"],
        ["3", "-", "h3:7100", "1 to 80", "━" * 16, "-", "0.3 ms", "1.2 ms", "4.0 ms", "60.0 GiB",
         "no answer for 12 s"],
    ]
    assert [(row.tone, row.leads) for row in rows(found)] == [
        (Tone.GOOD, True), (Tone.GOOD, False), (Tone.GONE, False),
    ]


@pytest.mark.parametrize(("first", "last", "bar"), [
    (1, 1600, "━" * 16), (1, 1599, "━" * 15 + "·"), (801, 1600, "·" * 8 + "━" * 8), (1, 1, "━" + "·" * 15),
    (1600, 1600, "·" * 15 + "━"), (1599, 1599, "·" * 15 + "·"), (5, 4, ""), (None, 7, ""),
])
def test_the_extent(first: int | None, last: int, bar: str) -> None:
    own = seen(2, first_lsn=first, last_lsn=last)
    assert extent(sight(seen(1, first_lsn=1, last_lsn=1600), own), own.fields) == bar


def test_columns_go_one_after_the_other() -> None:
    widths = [len(column.head) for column in COLUMNS]
    shown = [[COLUMNS[at].head for at in fitting(widths, width, 2)] for width in (132, 80, 40, 20, 1)]
    assert shown[0] == [column.head for column in COLUMNS]
    assert shown[2] == ["server", "role", "log", "lag", "status"] and shown[3] == ["server", "role", "status"] [:3]
    assert shown[4] == ["server"]
    assert all(set(narrow) <= set(wide) for wide, narrow in pairwise(shown))


def test_one_server_in_full() -> None:
    found = dict(details(sight(seen(1), seen(2, problems=["bad \x1b[2J news"])), 2))
    assert found["term"] == "4 (follows server 1)" and found["disk"] == "60.0 GiB of 100.0 GiB free, full in 60 days"
    assert found["problems"] == "bad \\e[2J news" and found["to server 3"] == "round trip 0.3 ms"
    gone = dict(details(sight(seen(1), seen(2, 5.0)), 2))
    assert gone["no answer"] == "for 5 s: h2:7100: connection refused; what it said last:"
    assert details(sight(), 9) == []


def test_events_are_the_newest() -> None:
    told = [ServerEvent(1_795_448_467_000 + n, 1, n, "handing_over", {"to": f"{n}\x1b[2J"}) for n in range(5)]
    assert events(sight(events=told), 2) == [
        ("11-23 15:41:07.003Z", "server 1 hands over to server 3\\e[2J"),
        ("11-23 15:41:07.004Z", "server 1 hands over to server 4\\e[2J"),
    ]
    assert events(sight(events=told), 0) == events(sight(), 5) == []


# -- what servers say is not trusted

EVIL = "\x1b[2J\x1b]0;title\x07[red]x[/red] \u202eback\u2028\r\n\x9b31m"
WRONG: list[Any] = [
    None, True, -1, 2**80, 10**400, math.nan, math.inf, -1e300, EVIL, "x" * 10_000, b"\xff", [EVIL] * 3, [[]], [None],
    {EVIL: EVIL}, [{"id": EVIL}], [{"id": 1, "reachable": EVIL, "why": 7, "round_trip_ms": EVIL}], 0, 1.5,
]


@pytest.mark.parametrize("key", sorted(told(1)))
def test_no_answer_breaks_the_view_or_reaches_the_terminal(key: str) -> None:
    for wrong in WRONG:
        no_answer_breaks(key, wrong)


def no_answer_breaks(key: str, wrong: Any) -> None:
    one, two = (answered(id, told(id) | {key: wrong}) for id in (1, 2))
    for servers in ((one, seen(2), seen(3)), (seen(1), two, seen(3, 5.0))):
        found = sight(*servers, marks=[Mark(90.0, 1, 50), Mark(99.0, 70, 90)],
                      no_events=[("server 3", EVIL)], events=[ServerEvent(1, 2, 3, EVIL, {EVIL: wrong})])
        for view in (View(), View(Page.SERVER, 1), View(Page.SERVER, 2), View(Page.EVENTS)):
            text = plain(found, view)
            assert harmless(text), text
        json.dumps(as_json(found), allow_nan=False)
        assert "[red]x[/red]" in plain(found, View(Page.EVENTS))


def harmless(text: str) -> bool:
    styles = text.replace("\x1b[0m", "").replace("\x1b[1m", "").replace("\x1b[2m", "").replace("\x1b[7m", "")
    return all(line.isprintable() for line in styles.split("\n"))


def test_only_whole_accounts_of_fsyncs_count() -> None:
    assert "fsync_p99_ms" in sound(told(1)) and "fsync_p99_ms" not in sound(told(1, fsync_max_ms=None))


# -- the frame


@pytest.mark.parametrize("page", Page)
@pytest.mark.parametrize(("width", "height"), [
    (300, 80), (132, 40), (80, 24), (40, 12), (20, 5), (10, 3), (3, 2), (1, 1),
])
def test_a_frame_fits(page: Page, width: int, height: int) -> None:
    found = sight(seen(1), seen(2, status="漢" * 30), seen(3, 12.5), marks=[Mark(98.0, 1, 50), Mark(99.0, 70, 90)],
                  events=[ServerEvent(n, 1, n, "handing_over", {"to": 2}) for n in range(100)])
    frame = plain(found, View(page, 2), width, height).split("\n")
    assert len(frame) <= height
    assert max(Console().measure(line).maximum for line in frame) <= width
    if height > 2 and width > 80:
        assert "q quit" in frame[-1]


def test_the_logs_have_a_table_once_there_are_several() -> None:
    first = {"number": 1, "name": "default", "state": "ready", "leader": 1, "last_lsn": 80, "bytes": 4096, "behind": []}
    bills = {"number": 2, "name": "bills", "state": "ready", "leader": 2, "term": 1, "last_lsn": 4711, "behind": [1]}
    failed = {"number": 2, "name": "bills", "state": "failed", "why": "a \x1btear"}
    assert "number" not in plain(sight(*(seen(id, logs=[first]) for id in (1, 2, 3))))
    frame = plain(sight(
        seen(1, logs=[first, bills | {"behind": None}]), seen(2, logs=[first, bills]), seen(3, logs=[first, failed])
    ))
    lines = [line.split() for line in frame.split("\n")]
    assert ["default", "1", "1", "80", "4.0", "KiB", "ready"] in lines
    assert ["bills", "2", "2", "4,711", "-", "⚠", "failed", "1,", "3"] in lines
    assert "server 3: the log bills has failed here: a \\etear" in frame


def test_the_frame_says_what_is_wrong_and_what_to_do() -> None:
    frame = plain(sight(seen(1), seen(2), seen(3, 12.5), marks=[Mark(98.0, 10, 50), Mark(99.0, 3492, 90)]))
    assert "⚠ Trouble. Server 1 leads since term 4." in frame
    assert "server 3: h3:7100 does not answer (h3:7100: connection refused)" in frame and "-> start alpod" in frame
    assert "appends a second 3,482" in frame and "no answer for 12 s" in frame
    assert "clients 2   log on disk 5.0 GiB" in frame


def test_colours_are_dim_for_the_gone_and_none_if_unwanted() -> None:
    found = sight(seen(1), seen(2), seen(3, 12.5))
    coloured = drawn(found, TERM="xterm-256color")
    assert "\x1b[1;31m⚠ Trouble." in coloured
    row = next(line for line in coloured.split("\n") if "no answer for 12 s" in line)
    assert row.startswith("\x1b[2m3 ")
    assert "\x1b[1m⚠ Trouble." in drawn(found, TERM="xterm-256color", NO_COLOR="1")


# -- keys


@pytest.mark.parametrize(("keys", "view"), [
    (b"", View()), (b"q", None), (b"eq", None), (b"e", View(Page.EVENTS)), (b"ee", View()), (b"?", View(Page.HELP)),
    (b"3", View(Page.SERVER, 3)), (b"34", View(Page.SERVER, 4)), (b"33", View()), (b"e\x1b", View()),
    (b"p", View(paused=True)), (b"pp", View()), (b"pe\x1b", View(paused=True)), (b"0xyz\xff\x00\n", View()),
    (b"\x1b[A\x1bOq\x1b[1;5Cq", None), (b"\x1b[A\x1bOq\x1bq", View()), (b"e\x1b[15~", View(Page.EVENTS)),
])
def test_keys(keys: bytes, view: View | None) -> None:
    assert press(View(), keys) == view
