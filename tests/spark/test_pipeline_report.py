"""`alpo-pipeline report`: one page from real inputs, and errors for wrong inputs."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from jobs_kit import Replica, some
from pipeline_kit import fields, pipeline

from alpo.core.machine.cursors import drop_body, set_body
from alpo.storage.events import event_row
from alpo.storage.schema import DB_NAME
from alpo_cli.pipeline import report


class _Seen(HTMLParser):
    """A page as a browser sees it: the resources that it would fetch, the titles, and the number of figures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.titles: list[str] = []
        self.figures = 0
        self._in_title = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data") and not str(value).startswith("#"):
                self.fetched.append(str(value))
        self.figures += tag == "figure"
        self._in_title = tag == "h2"

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.titles.append(data)
            self._in_title = False


def made(page: Path) -> tuple[str, _Seen]:
    text = page.read_text("utf-8")
    seen = _Seen(text)
    assert seen.fetched == [] and "@import" not in text and not re.search(r"url\((?!#)", text)
    assert "<script" not in text and "nan" not in re.findall(r"<title>(.*?)</title>", text)[0]
    return text, seen


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A data directory: 60 payloads, three elections, a reader that goes on, one that goes."""
    replica = Replica(tmp_path / "server-1")
    replica.append((), *some(1, 30))
    replica.append(*some(31, 60))
    replica.close()
    path = str(tmp_path / "server-1")
    with closing(sqlite3.connect(Path(path) / DB_NAME)) as db, db:
        for row in (
            event_row(1_000, "following", {"term": 1, "leader": 2}),
            event_row(5_000, "canvass", {"term": 2, "leader": 2, "silent_ms": 600}),
            event_row(5_100, "leader", {"term": 2, "votes": [1, 3], "voters": [1, 2, 3]}),
            event_row(9_000, "handing_over", {"term": 2, "to": 2}),
            event_row(9_025, "following", {"term": 3, "leader": 2}),
        ):
            db.execute("INSERT INTO event_log (time_ms, name, fields) VALUES (?, ?, ?)", row)
    return path


def test_a_log_on_one_page(log: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    told = fields("report", "--log", log, "--to", page)
    text, seen = made(page)
    assert told == {"report": str(page), "bytes": page.stat().st_size, "sections": seen.titles}
    assert seen.titles == ["Elections of this log", "The log over time", "The copies"] and seen.figures == 3
    assert ">700 ms<" in text and ">25 ms<" in text and "60 payloads" in text
    assert not list(tmp_path.glob(".*"))


def test_a_log_without_events_has_no_elections(log: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    with closing(sqlite3.connect(Path(log) / DB_NAME)) as db, db:
        db.execute("DELETE FROM event_log")
    pipeline("report", "--log", log, "--to", page)
    assert made(page)[1].titles == ["The log over time", "The copies"]


def head(id: int, kind: int, time_ms: int, lsn: int, count: int = 0, body: bytes = b"") -> Any:
    return report._Head(id, kind, time_ms, lsn, count, 10 * count, body)


def test_readers_are_followed() -> None:
    """A step's sample is what holds as it ends; a trim and a drop end a reader."""
    heads = [
        head(1, 1, 0, 1, 10), head(2, 6, 10, 11, body=set_body("web", 4)), head(3, 6, 20, 11, body=set_body("old", 2)),
        head(4, 1, 120, 11, 5), head(5, 5, 130, 16, body=b'{"before": 3}'),
        head(6, 6, 450, 16, body=set_body("web", 16)), head(7, 6, 620, 16, body=drop_body("web", "operator")),
    ]
    sums = report.summed(iter(heads), began_ms=0, step_ms=100)
    assert (sums.payloads, sums.bytes) == ({0: 10, 1: 5}, {0: 100, 1: 50})
    assert sums.behind["web"] == [(1, 7), (2, 12), (4, 12), (5, 0), (6, 0)]
    assert sums.behind["old"] == [(1, 9)]


def test_copies_of_one_log_are_compared(tmp_path: Path) -> None:
    paths = []
    for name, last in (("one", 30), ("two", 21)):
        replica = Replica(tmp_path / name)
        replica.append((), *some(1, last))
        replica.close()
        paths += ["--log", str(tmp_path / name)]
    page = tmp_path / "page.html"
    pipeline("report", *paths, "--to", page)
    text, _ = made(page)
    assert "Lag of the copies" in text and "30 payloads" in text
    with closing(sqlite3.connect(tmp_path / "two" / DB_NAME)) as db, db:
        db.execute("UPDATE hard SET guaranteed_id = guaranteed_id + 1")
    assert f"--log {tmp_path / 'two'} is damaged" in pipeline("report", *paths, "--to", page, code=2)


def test_wrong_inputs_are_named(tmp_path: Path) -> None:
    page, wrong = tmp_path / "page.html", tmp_path / "wrong"
    for content, said in ((None, "no data file"), ("no database", "")):
        if content is not None:
            wrong.write_text(content)
        out = pipeline("report", "--log", wrong, "--to", page, code=2)
        assert f"alpo-pipeline: --log {wrong}" in out and said in out and out.count("\n") == 1, out
        assert not page.exists()


def test_wrong_usage(log: str, tmp_path: Path) -> None:
    assert "--log" in pipeline("report", "--to", tmp_path / "page.html", code=2)
    for page in (tmp_path, tmp_path / "page.txt", tmp_path / "no" / "page.html"):
        assert "--to" in pipeline("report", "--log", log, "--to", page, code=2)
