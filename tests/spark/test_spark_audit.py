"""The audit names every fault that is planted in copies of a log, exactly, and no other fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs_kit import Replica, copy_of, edit, look, reseal, some, sound_copy, told
from store_kit import LogBuilder

from alpo.core.entries import Entry, Kind, join_payloads, json_body
from alpo.spark.files import FileOrigin
from alpo.spark.jobs.auditing import Told, read_history
from alpo.spark.jobs.checking import CompareTask, Serials, _Served, begins_anew, compare
from alpo.spark.jobs.copies import DamagedCopy, FileCopy, ServerCopy
from alpo.spark.origin import SourceError
from alpo.storage.scrub import Span


@pytest.fixture
def a(tmp_path: Path) -> str:
    return sound_copy(tmp_path / "a")


@pytest.fixture
def b(a: str, tmp_path: Path) -> str:
    return copy_of(a, tmp_path / "b")


@pytest.fixture
def c(a: str, tmp_path: Path) -> str:
    return copy_of(a, tmp_path / "c")


def test_sound_copies(a: str, b: str, c: str) -> None:
    found = look(a, b, c)
    assert found.faults == () and found.compared == 35
    assert [(copy.name, copy.first_id, copy.end_id) for copy in found.copies] == [(p, 1, 35) for p in (a, b, c)]
    assert look(a).faults == () and look(a).compared == 0


def test_a_difference_is_named_and_whose_it_is(a: str, b: str, c: str) -> None:
    reseal(b, 10, body=b"payload 8!")
    found = look(a, b, c)
    assert told(found, "difference") == [("difference", 10, 8, b)]
    (fault,) = (f for f in found.faults if f.kind == "difference")
    assert fault.last_id == 10 and fault.last_lsn == 8 and fault.what == f"not what {a}, {c} have (body)"
    assert len(found.faults) == 1
    reseal(c, 30, body=join_payloads((b"within the", b"window")))
    found = look(a, b, c)
    assert told(found, "difference") == [("difference", 10, 8, b), ("difference", 30, 31, c)]
    # The saved session table remembers that payload, so it differs from the log, too.
    assert told(found, "state") == [("state", 0, 0, c)]


def test_of_two_copies_nobody_knows_which_is_right(a: str, b: str) -> None:
    reseal(b, 10, time_ms=1_700_000_000_009, term=2, epoch=2, serial=8, client="web")  # as it was
    assert look(a, b).faults == ()
    reseal(b, 33, body=b"other")
    found = look(a, b)
    assert told(found, "difference") == [("difference", 33, 37, f"{a}, {b}")]


def test_many_differences_are_each_named(a: str, b: str, c: str) -> None:
    for id in (3, 4, 17, 20, 35):
        reseal(b, id, body=b"other")
    reseal(c, 17, body=b"third")
    reseal(b, 21, kind=int(Kind.LEADER), body=json_body(leader=6))
    found = look(a, b, c)
    assert told(found, "difference") == [
        ("difference", 3, 1, b), ("difference", 4, 2, b), ("difference", 17, 15, f"{a}, {b}, {c}"),
        ("difference", 20, 18, b), ("difference", 21, 0, b), ("difference", 35, 41, b),
    ]


def test_what_is_not_guaranteed_may_differ(a: str, b: str) -> None:
    reseal(b, 36, body=b"expunged one day", count=1)
    assert told(look(a, b), "difference") == []
    edit(b, "DELETE FROM log WHERE id > 35")
    assert told(look(a, b), "difference", "gap") == []


def test_a_gap_is_named(a: str, b: str, c: str) -> None:
    edit(b, "DELETE FROM log WHERE id = 12")
    edit(b, "DELETE FROM log WHERE id BETWEEN 24 AND 26")
    found = look(a, b, c)
    assert [(f.kind, f.first_id, f.last_id, f.first_lsn, f.last_lsn, f.copy) for f in found.faults] == [
        ("gap", 12, 12, 10, 10, b), ("gap", 24, 26, 19, 24, b)]


def test_a_gap_of_lsns_alone_is_named(a: str) -> None:
    """Ids go on, LSNs do not, and every entry is sealed."""
    for id in range(15, 21):
        before = reseal(a, id)
        reseal(a, id, lsn=before.lsn + 1)
    found = look(a)
    assert told(found, "gap") == [("gap", 15, 14, a), ("gap", 21, 19, a)]
    assert [f.what for f in found.faults if f.first_id == 15] == ["its LSN is 14 where 13 belongs"]


def test_a_duplicate_is_named_with_what_it_repeats(a: str, b: str, c: str) -> None:
    for path in (a, b, c):  # all agree on it
        reseal(path, 20, serial=5, body=b"payload 5")
    found = look(a, b, c)
    assert told(found, "difference") == []
    assert told(found, "duplicate") == [("duplicate", 20, 18, path) for path in (a, b, c)]
    assert all("serial 5 of client 'web' is in the log already: entry 7, LSN 5" in f.what for f in found.faults
               if f.kind == "duplicate")


def test_a_duplicate_behind_a_gap_is_named(a: str) -> None:
    edit(a, "DELETE FROM log WHERE id = 9")
    reseal(a, 30, serial=20)
    assert told(look(a)) == [("gap", 9, 7, a), ("duplicate", 30, 31, a)]


def test_serials_that_go_back_are_named(a: str) -> None:
    edit(a, "DELETE FROM log WHERE id = 9")
    reseal(a, 12, serial=7)
    assert ("order", 12, 10, a) in told(look(a))


def test_damage_is_named_and_the_others_are_compared_on(a: str, b: str, c: str) -> None:
    edit(b, "UPDATE log SET body = x'00' WHERE id = 12")
    reseal(c, 12, body=b"other")
    reseal(c, 13, body=b"other")
    found = look(a, b, c)
    assert told(found, "damage") == [("damage", 12, 0, b)]
    assert told(found, "difference") == [("difference", 12, 10, f"{a}, {c}"), ("difference", 13, 11, c)]


def test_terms_that_go_back_are_named(a: str) -> None:
    reseal(a, 30, term=3)
    assert ("order", 30, 31, a) in told(look(a))


def test_copies_that_were_cleaned_are_compared_where_they_can_be(tmp_path: Path) -> None:
    logs = [Replica(tmp_path / name) for name in "abc"]
    for log in logs:
        log.append((), *some(1, 50))
    paths = [log.path for log in logs]
    logs[0].clean(5)
    logs[1].clean(20)
    for log in logs:
        log.close()
    reseal(paths[2], 3, body=b"x")  # nobody else has it any more
    reseal(paths[2], 9, body=b"y")
    reseal(paths[2], 27, body=b"z")
    found = look(*paths)
    assert [fault[:2] for fault in told(found, "difference")] == [("difference", 9), ("difference", 27)]
    assert [f.copy for f in found.faults if f.kind == "difference"] == [f"{paths[0]}, {paths[2]}", paths[2]]


def test_copies_of_another_log_are_refused(a: str, tmp_path: Path) -> None:
    other = Replica(tmp_path / "other")
    other.append(*some(1, 3))
    other.close()
    with pytest.raises(SourceError, match="ALPO_OTHER_LOG"):
        look(a, other.path)
    with pytest.raises(SourceError, match="no data file"):
        look(str(tmp_path / "none"))


# -- what clients were told -------------------------------------------------------------------------------------------


def answers(path: str) -> list[Told]:
    extent = FileOrigin(path).extent()
    pages = FileOrigin(path).pages(extent.first_lsn, extent.next_lsn - 1, 0)
    return [told for page in pages for told in map(Told, page.lsns, page.counts, page.clients, page.serials)]


def test_a_history_that_is_so(a: str, tmp_path: Path) -> None:
    history = answers(a)
    found = look(a, history=history)
    assert (found.faults, found.told, found.trimmed) == ((), 30, 0)
    file = tmp_path / "history.jsonl"
    file.write_text("\n".join(json.dumps(
        {"lsn": t.lsn, "count": t.payloads, "client": t.client, "serial": t.serial, "epoch": 2, "duplicate": False}
    ) for t in reversed(history)) + "\n\n")
    assert read_history(file) == history


def test_a_history_that_is_not_so(a: str) -> None:
    history = answers(a)
    history[3] = history[3]._replace(serial=99)
    history[5] = history[5]._replace(client="other")
    history[25] = history[25]._replace(payloads=1)
    history.append(Told(500, 1, "web", 400))
    found = look(a, history=history)
    assert [(f.kind, f.first_lsn) for f in found.faults] == [
        ("history", 4), ("history", 6), ("history", history[25].lsn), ("history", 500)]
    assert "serial 4 of 'web' is there" in found.faults[0].what and "the log ends at 42" in found.faults[3].what


def test_of_a_history_what_was_trimmed_is_counted(tmp_path: Path) -> None:
    log = Replica(tmp_path / "log")
    log.append(*some(1, 20))
    history = answers(log.path)
    log.clean(5)
    log.close()
    found = look(log.path, history=history)
    assert (found.faults, found.trimmed, found.told) == ((), 5, len(history) - 5)
    wider = Replica(tmp_path / "wider")
    wider.append(*some(1, 20))
    wider.close()
    found = look(log.path, wider.path, history=history)
    assert (told(found, "history"), found.trimmed, found.told) == ([], 0, len(history))


@pytest.mark.parametrize("line", ["x", "{}", "[]", '{"lsn": "1", "client": "a", "serial": 1}',
                                  '{"lsn": 0, "client": "a", "serial": 1}'])
def test_a_line_that_is_no_answer(tmp_path: Path, line: str) -> None:
    (tmp_path / "h").write_text(f'{{"lsn": 1, "client": "a", "serial": 1}}\n{line}\n')
    with pytest.raises(SourceError, match="line 2"):
        read_history(tmp_path / "h")


# -- parts ------------------------------------------------------------------------------------------------------------


def test_serials_begin_anew_with_a_session_only() -> None:
    serials = Serials()
    assert [serials.take("a", n) for n in (1, 2, 5, 5, 3, 6)] == [0, 0, 0, 5, 5, 0]
    serials.begin_anew("a")
    assert serials.take("a", 1) == 0 and serials.take("b", 1) == 0
    assert begins_anew(4, json_body(op="drop", epoch=3)) and begins_anew(4, json_body(op="open", nonce="", replaces=0))
    assert not begins_anew(4, json_body(op="open", nonce="", replaces=7))
    assert not begins_anew(1, json_body(op="drop")) and not begins_anew(4, b"?") and not begins_anew(4, None)


@pytest.mark.parametrize(("client", "body", "kind"), [
    ("~u", b"5", "duplicate"), ("web", b"5", "duplicate"), ("web", b"another", None), ("~u", b"another", "duplicate"),
])
def test_what_a_server_serves(monkeypatch: pytest.MonkeyPatch, client: str, body: bytes, kind: str | None) -> None:
    """A named client's serial with another payload is that of a session that was dropped and opened again."""
    monkeypatch.setattr("alpo.spark.jobs.checking._earlier", lambda *_: (5, 5, b"5"))
    check = _Served(ServerCopy(("h:1",), 1, "cc", 1, 9, 1.0))
    for id in range(1, 9):
        check.take((id, 1, id, client, id, id, 1, b"%d" % id))
    check.take((9, 1, 9, client, 5, 9, 1, body))
    assert [(f.kind, f.first_id) for f in check.faults] == ([(kind, 9)] if kind else [])
    if kind is None:
        check.take((10, 1, 10, client, 6, 10, 1, b"more"))
        assert not check.faults
    check.faults.clear()
    check.take((12, 1, 12, client, 60, 13, 1, b""))
    check.take((11, 1, 12, client, 61, 14, 1, b""))
    assert [(f.kind, f.first_id) for f in check.faults] == [("gap", 12), ("order", 11)]


@dataclass(frozen=True)
class Paper:
    """A copy on paper: entries by id, some damaged, whose digests come in pieces of ``most``."""

    name: str
    entries: dict[int, Entry]
    damaged: frozenset[int]
    most: int
    cleans_at: int = 0
    cluster: str = "cc"
    asked: list[int] = field(default_factory=list)

    @property
    def first_id(self) -> int:
        return min(self.entries)

    @property
    def end_id(self) -> int:
        return max(self.entries)

    @contextmanager
    def open(self) -> Iterator[Paper]:
        yield self

    def digest(self, first_id: int, last_id: int) -> Span:
        self.asked.append(first_id)
        first_id = max(first_id, self.cleans_at if len(self.asked) > 2 else 0)
        last_id = min(last_id, first_id + self.most - 1)
        if bad := [id for id in range(first_id, last_id + 1) if id in self.damaged]:
            raise DamagedCopy(bad[0], "it is damaged")
        return Span.before(first_id).followed_by(self.entries[id] for id in range(first_id, last_id + 1))

    def entry(self, id: int) -> Entry | None:
        return None


IDS = st.integers(1, 30)


@given(st.data())
def test_any_copies_are_compared_entry_by_entry(data: st.DataObject) -> None:
    copies = []
    for name in data.draw(st.sampled_from(["ab", "abc"])):
        first, last = sorted((data.draw(IDS), data.draw(IDS)))
        changed = data.draw(st.dictionaries(IDS, st.sampled_from([b"x", b"y"]), max_size=4))
        entries = {}
        log = LogBuilder()
        for id in range(1, 31):
            entry = log.data(payloads=(changed.get(id, b"-"),))
            if first <= id <= last:
                entries[id] = entry
        damaged = data.draw(st.frozensets(IDS, max_size=3)) & entries.keys()
        copies.append(Paper(name, entries, damaged, data.draw(st.integers(1, 40))))
    found = compare(CompareTask(tuple(copies), 1, 30))  # type: ignore[arg-type]
    expected = set()
    for id in range(1, 31):
        sound = [c.entries[id].digest for c in copies if id in c.entries and id not in c.damaged]
        if len(set(sound)) > 1:
            expected.add(id)
    assert {f.first_id for f in found if f.kind == "difference"} == expected
    assert all(f.first_id == f.last_id for f in found)
    assert sorted((f.copy, f.first_id) for f in found if f.kind == "damage") == sorted(
        (c.name, id) for c in copies for id in c.damaged)


def test_a_copy_that_is_cleaned_meanwhile_is_left_out_there(a: str) -> None:
    entries = {entry.id: entry for entry in LogBuilder().datas(30)}
    other = {**entries, 12: entries[12]._replace(digest=b"o" * 16), 25: entries[25]._replace(digest=b"o" * 16)}
    copies: Any = (Paper("a", entries, frozenset(), 4), Paper("b", other, frozenset(), 4, cleans_at=20))
    assert [f.first_id for f in compare(CompareTask(copies, 1, 30))] == [25]


def test_a_copy_full_of_damage_is_given_up(a: str) -> None:
    entries = {entry.id: entry for entry in LogBuilder().datas(300)}
    copies: Any = (Paper("a", entries, frozenset(), 4), Paper("b", entries, frozenset(range(5, 300)), 40))
    found = compare(CompareTask(copies, 1, 300))
    assert len(found) == 101 and (found[-1].first_id, found[-1].last_id) == (105, 300)


def test_a_file_that_is_cleaned_while_it_is_looked_at(tmp_path: Path) -> None:
    log = Replica(tmp_path / "log")
    log.append(*some(1, 50))
    copy = FileCopy.of(log.path)
    with copy.open() as opened:
        log.clean(10)
        span = opened.digest(5, 20)
        assert (span.first_id, span.last_id) == (11, 20)
        assert opened.digest(5, 8).first_id == 11
    log.close()
