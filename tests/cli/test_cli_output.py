"""Printed output: escaping, JSON, tables, times."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unicodedata
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpo import Record
from alpo_cli.commands.member import _COLUMNS
from alpo_cli.commands.read import Style, clip, record_fields
from alpo_cli.exits import UsageProblem
from alpo_cli.inputs import parse_since
from alpo_cli.output import counted, escape, escape_bytes, payload_fields, rfc3339, table

NOW = datetime(2026, 1, 31, 8, 0, 0, 123_000, UTC)


def record(payload: bytes, lsn: int = 7) -> Record:
    return Record(lsn, 9, 2, NOW, "web-1", 3, payload)


def test_control_characters_are_escaped() -> None:
    assert escape("a\x1b[31mb\n\t\x00\x7f\x9b") == "a\\e[31mb\\n\\t\\x00\\x7f\\x9b"
    assert escape_bytes(b"gr\xc3\xbcn \xff\x07") == "grün \\xff\\x07"


def test_what_turns_text_or_hides_in_it_is_escaped() -> None:
    assert escape("a\u202eb\u2066\u200f\u061c") == "a\\u202eb\\u2066\\u200f\\u061c"
    assert escape("\u2028\u2029\ufeff\xad\u200b\U000e0041") == "\\u2028\\u2029\\ufeff\\xad\\u200b\\U000e0041"
    fine = "grün  \u3000日本 می\u200cخواهم 👩\u200d🚀 ❤️ e\u0301"
    assert escape(fine) == fine


@given(st.one_of(st.binary(), st.text().map(str.encode)))
def test_nothing_escaped_holds_what_is_not_seen(payload: bytes) -> None:
    seen = escape_bytes(payload).translate(dict.fromkeys((0x200C, 0x200D)))
    assert not {unicodedata.category(character) for character in seen} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_a_payload_is_text_or_base64() -> None:
    assert payload_fields("grün\n".encode()) == {"payload": "grün\n"}
    assert payload_fields(b"\xff\x00") == {"payload_base64": "/wA="}


def test_the_keys_of_a_record_are_the_contract() -> None:
    assert record_fields(record(b"hello")) == {
        "lsn": 7, "id": 9, "term": 2, "time": "2026-01-31T08:00:00.123Z", "client": "web-1", "serial": 3,
        "payload": "hello",
    }


def test_the_four_ways_to_write_a_record() -> None:
    odd = record(b"a\x1b\xff")
    assert Style().writer(False)([odd]) == b"a\x1b\xff\n"
    assert Style().writer(True)([odd]) == b"a\\e\\xff\n"
    assert Style(raw=True).writer(True)([odd]) == b"a\x1b\xff"
    line = Style("json").writer(False)([odd])
    assert line.endswith(b"\n") and json.loads(line)["payload_base64"] == "YRv/"


def test_times_are_utc_with_milliseconds() -> None:
    east = timezone(timedelta(hours=2))
    assert rfc3339(datetime(2026, 1, 31, 10, 0, 0, 123_999, east)) == "2026-01-31T08:00:00.123Z"


@pytest.mark.parametrize(("text", "moment"), [
    ("10m", NOW - timedelta(minutes=10)), ("90s", NOW - timedelta(seconds=90)), ("3d", NOW - timedelta(days=3)),
    ("2026-01-31T08:00:00Z", NOW.replace(microsecond=0)), ("2026-01-31t10:00:00.123+02:00", NOW),
])
def test_since(text: str, moment: datetime) -> None:
    assert parse_since(text, NOW) == moment


@pytest.mark.parametrize("text", [
    "", "10", "ten minutes", "2026-01-31", "2026-01-31T08:00:00", "2026-13-31T08:00:00Z", "-5m", "999999999d",
    "0001-01-01T00:00:00+10:00", "9999-12-31T23:59:59-10:00",
])
def test_since_that_is_no_time(text: str) -> None:
    with pytest.raises(UsageProblem, match="--since"):
        parse_since(text, NOW)


def test_clip_ends_at_the_lsn_or_the_count() -> None:
    page = [record(b"", lsn) for lsn in range(5, 10)]
    assert clip(page, None, None) == (page, False)
    assert clip(page, 7, None) == (page[:3], True)
    assert clip(page, 9, None) == (page, True)
    assert clip(page, 10, None) == (page, False)
    assert clip(page, None, 2) == (page[:2], True)
    assert clip(page, 6, 4) == (page[:2], True)


#: Terminal codes that make heads bold.
STYLE = re.compile(r"\x1b\[[0-9;]*m")
WIDE = ["id", "address", "state"]


@pytest.mark.parametrize(("columns_wide", "first_line", "lines"), [
    (200, "┏━", 6), (34, "id  address ", 3), (28, "┏━", 6), (24, "id       1 ", 3), (12, "id       1", 7),
])
def test_a_table_loses_nothing_however_narrow_the_terminal(
    columns_wide: int, first_line: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns_wide))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    rows = [["1", "127.0.0.1:7100", "[bold]passive"], ["2", "h:1", "x"]]
    table("", WIDE, rows if columns_wide not in (28, 24) else rows[:1])
    out = STYLE.sub("", capsys.readouterr().out)
    assert all(cell in out for cell in ("127.0.0.1:7100", "[bold]passive")), out
    assert out.startswith(first_line) and len(out.splitlines()) == lines, out
    assert columns_wide < 20 or max(map(len, out.splitlines())) <= columns_wide, out


@pytest.mark.parametrize("count", [1, 3, 5, 7, 9])
def test_a_table_of_members_fits_80_columns(
    count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    row = ["1", "log-1.internal.example.org:7100", "learner", "unreachable", "CATCHING_UP", "123456789", "123456789",
           "1234567"]
    table("", _COLUMNS, [row] * count)
    assert max(map(len, STYLE.sub("", capsys.readouterr().out).splitlines())) <= 80


def test_a_table_that_is_piped_is_lines_with_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    table("a title", ["id", "last LSN"], [["1", "a b"], ["2", "c\td\x1b"], ["3", ""]])
    assert capsys.readouterr().out == "id\tlast LSN\n1\ta b\n2\tc\\td\\e\n3\t\n"
    table("a title", ["", ""], [["took", "1 s"]])
    assert capsys.readouterr().out == "took\t1 s\n"


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_standard_stream_is_an_error_of_its_use_only(closed: int) -> None:
    code = (f"import os\nos.close({closed})\nimport sys\nsys.std{('in', 'out', 'err')[closed]} = None\n"
            "from alpo_cli.main import main\nsys.argv = 'alpo status --servers 127.0.0.1:1'.split()\nmain()")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(("number", "thing", "said"), [
    (0, "server", "0 servers"), (1, "server", "1 server"), (1, "entry", "1 entry"), (2, "entry", "2 entries"),
    (1200, "append", "1,200 appends"),
])
def test_a_number_of_things(number: int, thing: str, said: str) -> None:
    assert counted(number, thing) == said


NUMBER_BEFORE_PLURAL = re.compile(
    r"(?:len\([^{}]*\)|\b(?:errors|faults|beyond|filled|count|connections|entries|payloads|servers|size|rounds|done))"
    r"(?::,)?\} (?:servers|entries|payloads|connections|faults|errors|members|rounds|seeds|appends|lines)\b"
)


def test_no_text_counts_one_things() -> None:
    """An f-string with a number before a plural would one day read "1 servers"; `counted` gets it right."""
    root = Path(__file__).parents[2]
    files = [*(root / "cli").rglob("*.py"), *(root / "sim" / "alpo_sim" / "commands").glob("*.py")]
    demos = {"demo.py"}  # numbers in demos are large, set by the story
    found = [f"{file.name}: {match[0]}" for file in files if file.name not in demos
             for match in NUMBER_BEFORE_PLURAL.finditer(file.read_text("utf-8"))]
    assert found == []


def test_a_time_without_its_offset_is_told_what_is_missing() -> None:
    with pytest.raises(UsageProblem) as said:
        parse_since("2026-01-31T08:00:00", NOW)
    assert str(said.value) == (
        "--since 2026-01-31T08:00:00: the offset is missing: 2026-01-31T08:00:00Z is UTC, 2026-01-31T08:00:00+01:00 an"
        " hour before it"
    )
