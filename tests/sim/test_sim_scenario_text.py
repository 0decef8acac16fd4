"""The text of schedules: a written one is read again as it was; a text that is no scenario is refused with its line."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpo.core.entries import join_payloads
from alpo.core.members import Identity
from alpo.core.messages import Message
from alpo.core.ready import PeerAddress, PeerGone, Stop
from alpo.core.requests import AppendRun, DropSession, Initialise, ListSessions, OpenSession, ReadIndex
from alpo.core.settings import Settings
from alpo_sim.scenario import BREAKABLE, EXPECTS, INPUTS, Arrive, Expect, Line, Scenario, Tick, Times
from alpo_sim.scenario_text import FIRST_LINE, LIMITS, parse, write
from alpo_sim.shapes import KINDS
from alpo_sim.stage import Ask, Boot, Clock, Configure, Crash, Link, Move, Persist, Serve, Step, Wipe
from alpo_sim.words import Names, ScenarioError

SERVERS = 3
ids = st.integers(1, SERVERS)
times_us = st.integers(0, 10**9)
numbers = st.integers(0, 2**63 - 1)
parties = st.sampled_from(("", "", "3", "somebody"))
clients = st.one_of(
    st.sampled_from(("A", "B", "writer-1", "~018bcfe5-6800-7000-8000-000000000001", '"', "\udc80", "é #&", "~")),
    st.text(min_size=1, max_size=8, alphabet=st.characters()),
)
bodies = st.lists(st.binary(max_size=12), min_size=1, max_size=3).map(lambda each: (len(each), join_payloads(each)))
requests = st.one_of(
    st.builds(
        AppendRun, parties, clients, numbers, st.integers(-1, 2**63 - 1), st.lists(bodies, min_size=1, max_size=3),
        st.booleans(), st.booleans(), st.none() | st.integers(0, 2**63 - 1),
    ),
    st.builds(OpenSession, parties, clients, st.integers(-1, 99), st.binary(max_size=16)),
    st.builds(DropSession, parties, clients, st.integers(-1, 99)),
    st.builds(ListSessions, parties),
    st.builds(ReadIndex, parties),
    st.builds(Initialise, parties),
    st.builds(PeerAddress, ids, st.binary(max_size=16), st.text(max_size=10)),
    st.builds(PeerGone, st.builds(Identity, ids, st.binary(max_size=16))),
    st.just(Stop()),
)
words = st.text("abcXYZ019._-", min_size=1, max_size=8)


@st.composite
def arrivals(draw: st.DrawFn) -> Arrive:
    kind = draw(st.sampled_from(sorted(KINDS)))
    names = draw(st.lists(st.sampled_from(KINDS[kind]), unique=True)) if KINDS[kind] else []
    fields = tuple((name, draw(words)) for name in names)
    return Arrive(draw(times_us), draw(ids), draw(ids), kind, fields, draw(st.integers(1, 5)), draw(st.booleans()))


deeds = st.one_of(
    st.builds(Boot, times_us, ids), st.builds(Crash, times_us, ids, st.integers(0, 9)), st.builds(Wipe, times_us, ids),
    st.builds(Configure, times_us, ids, st.sampled_from(((), ((1, 0), (2, 7))))),
    st.builds(Move, times_us, ids), arrivals(), st.builds(Persist, times_us, ids, st.integers(0, 9)),
    st.builds(Serve, times_us, ids), st.builds(Link, times_us, ids, ids, st.booleans()),
    st.builds(Ask, times_us, ids, requests), st.builds(Step, times_us, ids), st.builds(Tick, times_us, ids),
    st.builds(Clock, times_us, ids, st.floats(0.5, 2), st.integers(-10**6, 10**6)),
)
lines = st.builds(lambda deed, more: Line(deed, more and isinstance(deed, INPUTS)), deeds, st.booleans())
expects = st.one_of(
    st.just(Expect("ok")), st.just(Expect("logs equal")),
    st.sampled_from(BREAKABLE).map(lambda name: Expect("broken", invariant=name)),
    st.builds(Expect, st.sampled_from(("leader", "knows", "last")), ids, numbers, st.just("")),
    ids.map(lambda id: Expect("passive", id)), numbers.map(lambda number: Expect("guaranteed", number=number)),
)
scenarios = st.builds(
    Scenario, st.just(SERVERS), numbers, st.builds(Times, *[times_us] * 4),
    st.builds(Settings, window=st.integers(1, 9), sessions_max=st.integers(1, 10**5)),
    st.sampled_from(((), (0, 2, 1))), st.sampled_from(((), tuple((name, 7) for name in LIMITS))), st.booleans(),
    st.booleans(), st.booleans(), st.sampled_from(("", "M1")), st.lists(lines, max_size=6).map(tuple),
    st.lists(expects, min_size=1, max_size=3).map(tuple),
    st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30).map(str.strip)).map(tuple),
)


@given(scenarios)
def test_what_is_written_is_read_again(scenario: Scenario) -> None:
    assert parse(write(scenario)) == scenario


@given(scenarios, st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30))
def test_comments_change_nothing(scenario: Scenario, comment: str) -> None:
    assert parse(write(scenario, [comment] * len(scenario.lines))) == scenario


def test_every_outcome_is_documented() -> None:
    assert all(form.startswith(what) for what, (form, _) in EXPECTS.items())


def test_a_short_name_is_never_taken_for_a_name() -> None:
    names = Names({"A": "~long"})
    assert names.write("~long") == "A"
    assert names.write("A") == '"A"'


HEAD = f"{FIRST_LINE}\nservers 3\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "servers"),
        ("# only a comment\n", 1, "servers"),
        ("servers 3\n", 1, "begins with the line"),
        (f"{FIRST_LINE}\nservers 12\n", 2, "1 to 9"),
        (f"{FIRST_LINE}\nserver 3\n", 2, "there are: servers, seed"),
        (f"{FIRST_LINE}\nseed 3\nexpect ok\n", 3, "servers 3"),
        (HEAD + "servers 4\n", 3, "twice"),
        (HEAD + "priorities 1 2\n", 3, "one priority a server"),
        (HEAD + "settings window=0\n", 3, "positive"),
        (HEAD + "1 boot 4\n", 3, "'4' is no server; there are 1 to 3"),
        (HEAD + "\n\n1.2345 boot 1\n", 5, "up to three decimals"),
        (HEAD + "1 boto 1\n", 3, "there are: boot, crash"),
        (HEAD + "1 boot 1 &\n", 3, "may be followed by &"),
        (HEAD + "1 boot 1 2\n", 3, "nothing is expected after that"),
        (HEAD + "1 boot\n", 3, "a server is missing"),
        (HEAD + "1 deliver 1-2 VoteRequest\n", 3, "written 1>2"),
        (HEAD + "1 deliver 1>2 Vote\n", 3, "there are: CanvassRequest"),
        (HEAD + "1 deliver 1>2 VoteRequest trem=1\n", 3, "there are: term, rank"),
        (HEAD + "1 deliver 1>2 VoteRequest term=1 term=2\n", 3, "twice"),
        (HEAD + "1 deliver 1>2 VoteRequest nth=0\n", 3, "from 1 on"),
        (HEAD + "1 link 1>2 open\n", 3, "there are: up, down"),
        (HEAD + "1 ask 1 append A\n", 3, "serial=NUMBER"),
        (HEAD + "1 ask 1 append A serial=1\n", 3, "needs payloads"),
        (HEAD + '1 ask 1 append A serial=1 "x\n', 3, "quote that does not end"),
        (HEAD + '1 ask 1 append A serial=1 ("x")\n', 3, "at least two"),
        (HEAD + '1 ask 1 append A serial=1 ("x"\n', 3, "missing"),
        (HEAD + '1 ask 1 append A serial=1 "\\q"\n', 3, "backslash"),
        (HEAD + '1 ask 1 append "\\xff" serial=1 "x"\n', 3, "not UTF-8"),
        (HEAD + "1 ask 1 open A nonce=xyz\n", 3, "hexadecimal"),
        (HEAD + "1 ask 1 by=3 stop\n", 3, "by="),
        (HEAD + "1 configure 1\n", 3, "server:priority"),
        (HEAD + "1 configure 1 right\n1 configure 2 1:0 2\n", 4, "server:priority"),
        (HEAD + "1 clock 1 rate=fast\n", 3, "rate=1.01"),
        (HEAD + "1 clock 1 rate=nan\n", 3, "between 0 and 1000"),
        (HEAD + "1 boot 1\nfounded\n", 4, "time in ms or with 'expect'"),
        (HEAD + "1 boot 1\n", 3, "what to expect"),
        (HEAD + "expect fine\n", 3, "there are: ok, broken INVARIANT"),
        (HEAD + "expect broken everything\n", 3, "there are: alarm"),
        (HEAD + "expect leader 2\n", 3, "missing"),
        (HEAD + "expect ok now\n", 3, "nothing is expected after that"),
    ],
)
def test_what_is_no_scenario_is_refused_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(text)
    assert message in caught.value.message
    assert caught.value.line == line


def test_the_example_of_the_module_is_one() -> None:
    import alpo_sim.scenario_text as module

    text = Path(module.__file__).read_text(encoding="utf-8").split('"""')[1]
    example = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    assert parse(example).founded


def test_what_an_older_release_wrote_is_read() -> None:
    path = Path(__file__).parents[1] / "scenarios" / "late-word-of-an-empty-disk.txt"
    text = path.read_text("utf-8")
    older = text.replace("SnapshotPart", "BasePart").replace("SnapshotAnswer", "BaseAnswer")
    assert older != text and parse(older) == parse(text)


def test_every_message_can_be_written() -> None:
    assert {kind.__name__ for kind in get_args(Message)} == set(KINDS)
