"""The audit of logs with runs (R32): each serial in them is looked at, as if it had an entry of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs_kit import edit, look, reseal, sound_copy, told
from sound_log import entries_with_runs
from store_kit import LogBuilder

from alpo.core.entries import Entry, Kind, parts
from alpo.spark.jobs import checking
from alpo.spark.jobs.auditing import Told
from alpo.spark.jobs.checking import Serials, _Served
from alpo.spark.jobs.copies import ServerCopy
from alpo.storage.tables import COLUMNS


def put(path: str, new: Entry) -> None:
    """This entry in place of the one there."""
    names = COLUMNS.replace(",", " = ?,") + " = ?"
    edit(path, f"UPDATE log SET {names} WHERE id = ?", *new, new.id)


def other_run(old: Entry, serial: int, *appends: tuple[bytes, ...]) -> Entry:
    """A run of these appends in place of ``old``."""
    return LogBuilder(old.id, old.lsn, old.time_ms).run(
        serial, *appends, term=old.term, client=old.client, epoch=old.epoch)


def test_sound_copies_with_runs(tmp_path: Path) -> None:
    paths = [sound_copy(tmp_path / name, 16, entries_with_runs()) for name in "ab"]
    found = look(*paths)
    assert (found.faults, found.compared) == ((), 16)


def test_of_a_run_what_is_said_of_its_serials_is_compared(tmp_path: Path) -> None:
    """Runs differ if equal payloads are divided in another way among the serials, and if payloads differ."""
    entries = entries_with_runs()
    paths = [sound_copy(tmp_path / name, 16, entries) for name in "abc"]
    put(paths[1], other_run(entries[11], 19, (b"", b"x", b""), (b"y", b""), (b"z",)))
    put(paths[2], other_run(entries[8], 4, (b"other",), (b"payload 5",)))
    found = look(*paths)
    lsns = {entry.id: entry.lsn for entry in entries}
    assert told(found, "difference") == [
        ("difference", 9, lsns[9], paths[2]), ("difference", 12, lsns[12], paths[1])]
    assert [f.what.rpartition(" ")[2] for f in found.faults if f.kind == "difference"] == ["(body)", "(digest)"]


@pytest.mark.parametrize(("serial", "place"), [
    (3, "entry 5, LSN 3"), (7, "entry 7, LSN 11"), (17, "entry 8, LSN 22"), (18, "entry 8, LSN 23"),
    (19, "entry 12, LSN 26"), (20, "entry 12, LSN 28"), (21, "entry 12, LSN 29"),
])
def test_a_serial_that_a_run_has_already_is_named(tmp_path: Path, serial: int, place: str) -> None:
    entries = entries_with_runs()
    path = sound_copy(tmp_path / "a", 16, entries)
    reseal(path, 13, serial=serial)
    assert told(look(path), "duplicate") == [("duplicate", 13, entries[12].lsn, path)]
    (fault,) = (f for f in look(path).faults if f.kind == "duplicate")
    assert f"serial {serial} of client 'web' is in the log already: {place}" in fault.what


@pytest.mark.parametrize(("serial", "told_of"), [
    (21, "serial 22 of client 'web' is in the log already: entry 13, LSN 32"),  # the latest that holds any
    (18, "serial 19 of client 'web' is in the log already: entry 12, LSN 26"),
    (17, "serial 17 of client 'web' is in the log already: entry 8, LSN 22"),
])
def test_a_run_that_repeats_a_serial_is_named(tmp_path: Path, serial: int, told_of: str) -> None:
    """All of it, from its first payload on; and what follows on its last serial is no fault."""
    entries = entries_with_runs()
    path = sound_copy(tmp_path / "a", 16, entries)
    put(path, other_run(entries[14], serial, (b"",), (b"",)))
    faults = [f for f in look(path).faults if f.kind in ("duplicate", "order")]
    assert [(f.kind, f.first_id, f.first_lsn, f.last_lsn) for f in faults] == [
        ("duplicate", 15, entries[14].lsn, entries[14].lsn + 1)]
    assert told_of in faults[0].what


def test_a_run_with_serials_that_go_back_is_named(tmp_path: Path) -> None:
    entries = entries_with_runs()
    path = sound_copy(tmp_path / "a", 16, entries)
    edit(path, "DELETE FROM log WHERE id = 8")  # web's serials 8 to 18
    put(path, other_run(entries[14], 8, (b"",), (b"",)))  # after the batch with serial 7
    (fault,) = (f for f in look(path).faults if f.kind in ("duplicate", "order"))
    assert (fault.kind, fault.first_id) == ("order", 15)
    assert fault.what == "serial 8 of client 'web' comes after its serial 22"


def test_among_appends_alone_the_last_serial_of_a_run_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_PAGE_IDS", 3)  # a page of entries 7 to 9, with no other kind between
    entries = entries_with_runs()
    path = sound_copy(tmp_path / "a", 16, entries)
    put(path, other_run(entries[6], 7, (b"a",), (b"b",)))
    assert told(look(path), "duplicate") == [("duplicate", 8, entries[7].lsn, path)]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 5)), max_size=12))
def test_serials_of_runs_ascend_or_do_not(runs: list[tuple[int, int]]) -> None:
    serials, seen = Serials(), 0
    for serial, number in runs:
        assert serials.take("a", serial, number) == (0 if serial > seen else seen)
        seen = max(seen, serial + number - 1)


def test_appends_of_a_run_share_its_id() -> None:
    """Consecutive serials under one id, as a server serves them, are no fault; a gap between them is."""
    check = _Served(ServerCopy(("h:1",), 1, "cc", 1, 9, 1.0))
    check.take((1, 1, 5, "a", 1, 1, 1, b""))
    for serial, lsn, count in ((2, 2, 1), (3, 3, 2), (4, 5, 1)):
        check.take((2, 1, 6, "a", serial, lsn, count, b""))
    assert check.faults == []
    check.take((2, 1, 6, "a", 6, 6, 1, b""))
    assert [(f.kind, f.first_id, f.first_lsn) for f in check.faults] == [("order", 2, 6)]


# -- what clients were told -------------------------------------------------------------------------------------------


def answers(entries: list[Entry]) -> list[Told]:
    """The answers to the appends, one for each append."""
    return [
        Told(part.lsn, part.count, entry.client, part.serial)
        for entry in entries if entry.kind == Kind.DATA for part in parts(entry)
    ]


def test_a_history_of_appends_that_became_runs(tmp_path: Path) -> None:
    entries = entries_with_runs()
    path = sound_copy(tmp_path / "a", 16, entries)
    history = answers(entries)
    found = look(path, history=history)
    assert (found.faults, found.told, found.trimmed) == ((), len(history), 0)
    assert len(history) == 34
    for alone in history:  # a single append in the middle of a run is found
        assert look(path, history=[alone]).faults == ()


@pytest.mark.parametrize(("at", "changed", "there"), [
    (3, {"serial": 5}, "serial 4 of 'web' is there"), (3, {"client": "app"}, "serial 4 of 'web' is there"),
    (3, {"payloads": 2}, "serial 4 of 'web', LSN 4 to 4 is there"),
    (7, {"lsn": 9}, "serial 2 of 'app', LSN 8 to 9 is there"), (7, {"payloads": 1}, "serial 2 of 'app', LSN 8 to 9"),
])
def test_a_history_that_is_not_so(tmp_path: Path, at: int, changed: dict[str, Any], there: str) -> None:
    """Wrong answers are found within a run of single payloads, and within a run with a batch."""
    entries = entries_with_runs()
    path = sound_copy(tmp_path / "a", 16, entries)
    history = answers(entries)
    history[at] = history[at]._replace(**changed)
    (fault,) = look(path, history=history).faults
    assert (fault.kind, fault.first_lsn) == ("history", history[at].lsn) and there in fault.what
