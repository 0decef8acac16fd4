"""`alpo read` in its forms: what is written of a record, and which options contradict each other."""

from __future__ import annotations

import csv
import io
import json
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpo import Record
from alpo_cli.commands.read import COLUMNS, Style, clip
from alpo_cli.exits import Failed, UsageProblem

TIME = datetime(2026, 1, 31, 8, 0, 0, 5000, UTC)
STAMP = "2026-01-31T08:00:00.005Z"


def record(payload: bytes, lsn: int = 7, client: str = "web-1", time: datetime = TIME) -> Record:
    return Record(lsn, 3, 2, time, client, 5, payload)


def style(*flags: str, format: str | None = None) -> Style:
    given = {name: f"--{name}" in flags for name in ("json", "raw", "long", "null", "csv", "json-payload")}
    assert {f"--{name}" for name, asked in given.items() if asked} == set(flags)
    return Style.of(given["json"], given["raw"], given["long"], given["null"], format, given["csv"],
                    given["json-payload"])


def written(shape: Style, *payloads: bytes, terminal: bool = False) -> bytes:
    return shape.head() + shape.writer(terminal)([record(p, lsn) for lsn, p in enumerate(payloads, 7)])


@pytest.mark.parametrize(("shape", "expected"), [
    (style(), b"a\nb\xff\n"), (style("--raw"), b"ab\xff"), (style("--null"), b"a\0b\xff\0"),
    (style("--long"), b"7  %(at)s  web-1  a\n8  %(at)s  web-1  b\xff\n"),
    (style("--long", "--null"), b"7  %(at)s  web-1  a\x008  %(at)s  web-1  b\xff\0"),
    (style(format="{lsn}|{payload}"), b"7|a\n8|b\xff\n"),
    (style("--null", format="{lsn:>3}|{payload}"), b"  7|a\x00  8|b\xff\0"),
    (style(format=r"{{}}{lsn}\t{id} {term} {time} {client:.3}\\t{serial}{payload_base64}"),
     b"{}7\t3 2 %(at)s web\\t5YQ==\n{}8\t3 2 %(at)s web\\t5Yv8=\n"),
    (style("--csv"), b"lsn,id,term,time,client,serial,payload,payload_base64\n"
                     b"7,3,2,%(at)s,web-1,5,a,\n8,3,2,%(at)s,web-1,5,,Yv8=\n"),
    (style(format="tsv"), b"lsn\tid\tterm\ttime\tclient\tserial\tpayload\tpayload_base64\n"
                          b"7\t3\t2\t%(at)s\tweb-1\t5\ta\t\n8\t3\t2\t%(at)s\tweb-1\t5\t\tYv8=\n"),
])
def test_forms(shape: Style, expected: bytes) -> None:
    assert written(shape, b"a", b"b\xff") == expected.replace(b"%(at)s", STAMP.encode())


@pytest.mark.parametrize("shape", [style("--json"), style(format="json"), style("--json", format="json")])
def test_json_whichever_way_it_is_asked_for(shape: Style) -> None:
    line = json.loads(written(shape, b"a"))
    assert list(line) == ["lsn", "id", "term", "time", "client", "serial", "payload"] and line["payload"] == "a"


@given(st.lists(st.binary() | st.text().map(str.encode)))
def test_what_is_written_as_csv_is_read_back_byte_for_byte(payloads: list[bytes]) -> None:
    for shape, dialect in ((style("--csv"), "excel"), (style(format="tsv"), "excel-tab")):
        text = written(shape, *payloads).decode()
        head, *rows = csv.reader(io.StringIO(text, newline=""), dialect)
        assert tuple(head) == COLUMNS and len(rows) == len(payloads)
        assert [row[6].encode() or b64decode(row[7]) for row in rows] == payloads


def test_what_holds_nul_is_not_ended_with_nul() -> None:
    with pytest.raises(Failed, match="LSN 8 contains NUL"):
        written(style("--null"), b"a", b"b\0c")


@pytest.mark.parametrize(("payload", "value"), [
    (b'{"user": "ann", "n": [1, null]}', {"user": "ann", "n": [1, None]}), (b"17", 17), (b'"text"', "text"),
    (b"null", None),
])
def test_payloads_that_are_json_as_values(payload: bytes, value: Any) -> None:
    line = json.loads(written(style("--json", "--json-payload"), payload))
    assert line["payload_json"] == value and "payload" not in line and line["lsn"] == 7


@pytest.mark.parametrize("payload", [
    b"text", b"{", b"NaN", b"[Infinity]", b"", b"[" * 100_000, b"[1e999]", b'{"a": "\\ud800"}',
])
def test_payloads_that_are_no_json_stay_text(payload: bytes) -> None:
    line = json.loads(written(style("--json", "--json-payload"), payload))
    assert line["payload"] == payload.decode() and "payload_json" not in line
    assert "payload_base64" in json.loads(written(style("--json", "--json-payload"), b"\xff"))


@pytest.mark.parametrize("shape", [
    style(), style("--long"), style("--csv"), style(format="tsv"), style(format="{client} {payload}"), style("--null"),
])
def test_nothing_acts_up_on_a_terminal(shape: Style) -> None:
    text = shape.writer(True)([record(b"a\x1b[2Jb\xe2\x80\xae\x07", client="n\x1bm")])
    assert b"\x1b" not in text and b"\x07" not in text and b"\xe2\x80\xae" not in text and b"a\\e[2Jb" in text


def test_names_are_one_line_everywhere_but_in_csv() -> None:
    for shape in (style("--long"), style(format="{client} {payload}")):
        assert shape.writer(False)([record(b"x", client="a\nb")]).count(b"\n") == 1


@pytest.mark.parametrize(("flags", "format", "said"), [
    (("--raw", "--long"), None, "--raw does not go with --long"),
    (("--csv",), "csv", "--csv does not go with --format"), (("--json",), "tsv", "--json does not go with --format"),
    (("--json", "--raw"), None, "--json does not go with --raw"),
    (("--null", "--raw"), None, "--null ends"), (("--null", "--csv"), None, "--null ends"),
    (("--null", "--json"), None, "--null ends"), (("--json-payload",), None, "--json-payload goes with --json"),
    ((), "{colour}", r"no \{colour\}; there are \{lsn\} \{id\} .* \{payload_base64\}"),
    ((), "{lsn!r}", r"no \{lsn!r\}"),
    ((), "{lsn.real}", "no {lsn.real}"), ((), "{}", "no {}"), ((), "{lsn", "--format {lsn"),
    ((), "xml", "json, csv, tsv, or"),
    ((), "{lsn:d4}", "{lsn:d4}"), ((), "{client:d}", "{client:d}"), ((), "{payload:>9}", "written as it is"),
    ((), "", "json, csv, tsv, or"),
])
def test_what_contradicts_itself_or_is_unknown(flags: tuple[str, ...], format: str | None, said: str) -> None:
    with pytest.raises(UsageProblem, match=said):
        style(*flags, format=format)


def test_until_is_inclusive_and_ends_the_reading() -> None:
    page = [record(b"", lsn, time=TIME + timedelta(milliseconds=lsn)) for lsn in range(1, 6)]
    found, done = clip(page, None, None, TIME + timedelta(milliseconds=3))
    assert [r.lsn for r in found] == [1, 2, 3] and done
    assert clip(page, None, None, TIME + timedelta(milliseconds=5)) == (page, False)
    assert clip(page, 2, None, TIME + timedelta(milliseconds=3)) == (page[:2], True)
    assert clip(page, None, 1, TIME + timedelta(milliseconds=3)) == (page[:1], True)
    assert clip([], None, None, TIME) == ([], False)
