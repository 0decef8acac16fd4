"""Outcomes, `append --wait`, settings and cursors, in a shell against a live cluster, good and bad input."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from alpo_command import Alpo

from alpo_cli.local_cluster import LocalCluster


def test_an_outcome_is_told(alpo: Alpo) -> None:
    appended = alpo.lines("append", "first", "--client", "billing-7")[0]
    lsn, birth = appended["lsn"], appended["epoch"]
    assert alpo.out("outcome", "billing-7", "1") == f"appended at LSN {lsn}\n"
    assert alpo.lines("outcome", "billing-7", "1") == [{"outcome": "appended", "lsn": lsn, "birth": birth}]
    assert alpo.out("outcome", "billing-7", "2") == "not appended\n"
    assert alpo.lines("outcome", "billing-7", "2") == [{"outcome": "not_appended", "lsn": None, "birth": birth}]
    assert alpo.out("outcome", "billing-7", "1", "--epoch", str(birth)) == f"appended at LSN {lsn}\n"
    assert alpo.out("outcome", "billing-7", "1", "--epoch", str(birth - 1)) == "too old to tell\n"
    assert alpo.out("outcome", "nobody", "1") == "too old to tell\n"
    (line,) = alpo.lines("append", "by a random client")
    assert alpo.lines("outcome", line["client"], "1") == [{"outcome": "appended", "lsn": line["lsn"], "birth": None}]


def test_waiting_for_everyone(alpo: Alpo, directory: Path) -> None:
    lsn = int(alpo.out("append", "to all", "--wait", "everyone"))
    followers = [m["id"] for m in alpo.lines("status")[0]["members"] if m["state"] != "leader"]
    away = followers[0]
    server = LocalCluster.load(directory).get(away)
    assert server.send(signal.SIGSTOP)
    try:
        for words, stdin in ((["one"], b""), ([], b"two\nthree\n")):
            ended = alpo.run("append", *words, "--wait", "everyone", "--timeout", "4", "--json", stdin=stdin, code=1)
            lines = ended.stdout.splitlines()
            assert len(lines) == max(1, stdin.count(b"\n")) and f'"lsn": {lsn + 1}'.encode() in lines[0]
            lsn += len(lines)
            assert f"LSN {lsn} is guaranteed, but".encode() in ended.stderr
            assert ended.stderr.endswith(f"not yet on server {away}\n".encode())
    finally:
        server.send(signal.SIGCONT)
    (line,) = alpo.lines("append", "again", "--client", "waiting", "--wait", "everyone")
    retry = ["append", "again", "--client", "waiting", "--serial", "1", "--wait", "everyone", "--json"]
    assert f'"lsn": {line["lsn"]}' in alpo.out(*retry)


def test_settings_are_shown_and_changed(alpo: Alpo) -> None:
    (before,) = alpo.lines("settings", "show")
    assert before["payload_bytes_max"] == 1 << 20 and "payload_bytes_max" in alpo.out("settings", "show")
    large = b"x" * (3 << 20)
    assert "3145728" in alpo.says("append", "--whole", stdin=large, code=2)
    said = alpo.says("settings", "set", "payload_bytes_max=4194304", "session_ttl_s=3600.5", code=0)
    assert said == "payload_bytes_max: 1048576 -> 4194304\nsession_ttl_s: 604800 -> 3600.5\n"
    alpo.run("append", "--whole", "--wait", "everyone", stdin=large)
    (after,) = alpo.lines("settings", "set", "payload_bytes_max=1048576", "batch_bytes_max=1048576")
    assert after == {**before, "session_ttl_s": 3600.5, "batch_bytes_max": 1 << 20}
    assert alpo.run("read", "--last", "1", "--raw").stdout == large  # a lower limit leaves it in the log
    assert "3145728" in alpo.says("append", "--whole", stdin=large, code=2)


def test_cursors_hold_trims_back(alpo: Alpo) -> None:
    lsn = int(alpo.out("append", "needed"))
    assert alpo.says("cursor", "set", "nightly", str(lsn), code=0) == f"cursor nightly is at LSN {lsn}\n"
    set_ = {"name": "tail", "lsn": lsn + 1, "lag_bytes": 0, "lag_s": 0.0}
    assert alpo.lines("cursor", "set", "tail", str(lsn + 1)) == [set_]
    nightly, tail = alpo.lines("cursor", "list")
    assert (list(nightly), nightly["name"], nightly["lsn"]) == (["name", "lsn", "lag_bytes", "lag_s"], "nightly", lsn)
    assert (tail["lsn"], tail["lag_bytes"], tail["lag_s"]) == (lsn + 1, 0, 0.0)
    assert "nightly" in alpo.out("cursor", "list")
    said = alpo.says("trim", "--before", str(lsn + 1), code=1)
    assert said == f"alpo: the cursor nightly needs LSN {lsn} and what follows\n"
    assert alpo.says("trim", "--before", str(lsn + 1), "--dry-run", code=1) == said
    first = alpo.lines("read", "-n", "1")[0]["lsn"]
    assert alpo.lines("trim", "--before", str(lsn + 1), "--force", "--dry-run") == [
        {"first_lsn": lsn + 1, "payloads": lsn + 1 - first, "cursors": ["nightly"], "dry_run": True}]
    assert alpo.lines("read", "-n", "1")[0]["lsn"] == first
    alpo.run("trim", "--before", str(lsn + 1), "--force")
    again = alpo.says("trim", "--before", str(lsn), "--dry-run", code=0)
    assert again == f"would give up nothing; the log begins at LSN {lsn + 1}\nnothing was changed\n"
    assert alpo.says("trim", "--before", str(lsn + 3), "--dry-run", code=1) == (
        alpo.says("trim", "--before", str(lsn + 3), code=1))
    assert [line["name"] for line in alpo.lines("cursor", "list")] == ["tail"]
    assert f"LSN {lsn} is not in the log" in alpo.says("cursor", "set", "nightly", str(lsn), code=1)
    alpo.run("cursor", "set", "other", str(lsn + 1))
    assert alpo.lines("cursor", "drop", "other") == [{**set_, "name": "other"}]
    assert alpo.says("cursor", "drop", "tail", code=0) == "cursor tail is forgotten\n"
    assert alpo.says("cursor", "drop", "tail", code=1) == "alpo: there is no cursor tail\n"
    assert alpo.lines("cursor", "list") == []


@pytest.mark.parametrize(("words", "said"), [
    (["outcome", "~no-uuid", "1"], "UUIDv7"), (["outcome", "x" * 129, "1"], "1 to 128 bytes"),
    (["outcome", "billing-7", "0"], "must be at least 1, not 0"),
    (["outcome", "billing-7", "one"], "a whole number, not 'one'"),
    (["outcome", "billing-7"], "SERIAL"), (["append", "x", "--wait", "nobody"], "must be everyone"),
    (["cursor", "set", "nightly", "0"], "must be at least 1, not 0"),
    (["cursor", "drop", "x" * 129], "1 to 128 bytes"),
    (["cursor", "set", "nightly"], "LSN"), (["cursor", "set", "", "1"], "1 to 128 bytes"),
    (["settings", "set", "colour=7"], "no setting 'colour'; there are session_ttl_s, window,"),
    (["settings", "set", "window"], "'window' is not NAME=VALUE"), (["settings", "set"], "NAME=VALUE"),
    (["settings", "set", "window=x"], "window = 'x' is not a whole number"),
    (["settings", "set", "window=0"], "window = 0 is not from 1 to 65536"),
    (["settings", "set", "window=5", "window=6"], "window is given twice"),
    (["settings", "set", "window_total=5", "window=6"], "window_total = 5 is less than window = 6"),
])
def test_wrong_usage(alpo: Alpo, words: list[str], said: str) -> None:
    assert said in alpo.says(*words, code=2)


def test_nobody_answers() -> None:
    assert "no answer within" in Alpo("127.0.0.1:1").says("outcome", "billing-7", "1", "--timeout", "0.3", code=1)
