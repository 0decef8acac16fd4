"""The real `alpo` against real servers: three alpod processes on loopback that nobody disturbs."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from alpo_command import Alpo, environment, read_line
from ports import free_port
from warm import INSTALLED

from alpo_cli.commands.status import KEYS

BYTES = bytes(range(256))
RESULT_KEYS = ["ops_per_s", "mb_per_s", "p50_ms", "p99_ms", "p999_ms", "max_ms", "errors"]


def end_lsn(alpo: Alpo) -> int:
    return int(alpo.lines("status")[0]["members"][0]["last_lsn"])


def test_words(alpo: Alpo) -> None:
    first, second = map(int, alpo.out("append", "grün", "a\nb").split())
    assert second == first + 1
    records = alpo.lines("read", "--from", str(first), "--to", str(second))
    assert [record["payload"] for record in records] == ["grün", "a\nb"]
    assert list(records[0]) == ["lsn", "id", "term", "time", "client", "serial", "payload"]
    assert alpo.out("read", "--from", str(second)) == "a\nb\n"


def test_json_has_a_line_an_append(alpo: Alpo) -> None:
    lines = alpo.lines("append", "--batch", "2", stdin=b"1\n2\n3")
    assert [list(line) for line in lines] == [["lsn", "count", "client", "serial", "epoch", "duplicate"]] * 2
    assert [(line["count"], line["serial"], line["duplicate"]) for line in lines] == [(2, 1, False), (1, 2, False)]
    assert lines[1]["lsn"] == lines[0]["lsn"] + 2


@pytest.mark.parametrize(("flags", "stdin", "payloads"), [
    ([], b"a\n\nb", ["a", "", "b"]), (["--null"], b"a\nb\0c\0", ["a\nb", "c"]), (["--whole"], b"a\nb\n", ["a\nb\n"]),
    (["--atomic"], b"a\nb\n", ["a", "b"]),
])
def test_ways_to_cut_the_input(alpo: Alpo, flags: list[str], stdin: bytes, payloads: list[str]) -> None:
    said = alpo.run("append", *flags, stdin=stdin)
    assert said.stdout == b"" and said.stderr.startswith(f"{len(payloads)} appended".encode())
    records = alpo.lines("read", "--last", str(len(payloads)))
    assert [record["payload"] for record in records] == payloads
    assert ("--atomic" in flags) == (len({record["serial"] for record in records}) < len(records))


@pytest.mark.parametrize(("words", "said"), [
    (["append"], b"reading lines from the terminal; Ctrl-D ends"), (["import"], b"reading lines from the terminal"),
    (["append", "--whole"], b"reading one payload from the terminal"),
])
def test_on_a_terminal_it_says_what_it_waits_for(alpo: Alpo, words: list[str], said: bytes) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb", buffering=0) as keys:
        command = subprocess.Popen([*INSTALLED, *words], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env=environment(alpo.servers))
        os.close(theirs)
        assert command.stderr is not None and said in command.stderr.readline()
        keys.write(b"typed\n\x04")
        assert b"1 appended" in command.communicate(timeout=60)[1] and command.returncode == 0
    assert b"terminal" not in alpo.run("append", stdin=b"x").stderr


def test_bytes_come_back_as_they_were(alpo: Alpo, tmp_path: Path) -> None:
    file = tmp_path / "bytes"
    file.write_bytes(BYTES)
    alpo.run("append", "--whole", "--file", file)
    assert alpo.run("read", "--last", "1", "--raw").stdout == BYTES
    assert "payload_base64" in alpo.lines("read", "--last", "1")[0]


def test_a_long_stream_keeps_its_order_and_a_reader_may_leave(alpo: Alpo) -> None:
    count = 20_000
    lines = b"".join(b"%d\n" % n for n in range(count))
    alpo.run("append", "--client", "stream", stdin=lines)
    assert alpo.run("read", "--client", "stream").stdout == lines
    assert alpo.run("read", "--client", "stream", "--limit", "3").stdout == b"0\n1\n2\n"
    with alpo.under_way("read", "--client", "stream") as reader:
        assert read_line(reader) == "0\n"
        assert reader.stdout is not None and reader.stderr is not None
        reader.stdout.close()
        assert reader.wait(30) == 0
        assert reader.stderr.read() == b""


def test_ends_of_the_log(alpo: Alpo) -> None:
    alpo.run("append", "x")
    end = end_lsn(alpo)
    assert alpo.out("read", "--from", str(end + 1)) == ""
    assert f"1 to {end}" in alpo.says("read", "--from", str(end + 2), code=1)
    assert alpo.out("read", "--limit", "0") == ""
    assert alpo.out("read", "--since", "2000-01-01T00:00:00Z", "--limit", "1") != ""


def test_follow_waits_for_more(alpo: Alpo) -> None:
    begin = end_lsn(alpo) + 1
    with alpo.under_way("read", "--follow", "--from", str(begin), "--limit", "2") as reader:
        alpo.run("append", "one")
        assert read_line(reader) == "one\n"
        alpo.run("append", "two", "three")
        assert read_line(reader) == "two\n"
        assert reader.wait(30) == 0


def test_every_server_has_a_copy_of_its_own(alpo: Alpo) -> None:
    end = int(alpo.out("append", "everywhere"))
    for server in ("1", "2", "3"):
        with alpo.under_way("read", "--follow", "--local", "--server", server, "--from", str(end)) as reader:
            assert read_line(reader) == "everywhere\n"


def test_a_retry_by_hand_is_appended_once(alpo: Alpo) -> None:
    fresh = alpo.lines("append", "--client", "hand", "hello")[0]
    again = alpo.lines("append", "--client", "hand", "--serial", "1", "--epoch", str(fresh["epoch"]), "hello")[0]
    assert again == {**fresh, "duplicate": True}
    assert "serial 1" in alpo.says("append", "--client", "hand", "--serial", "1", "other", code=1)
    assert alpo.run("append", "--client", "hand", "--serial", "5", "hello", code=1).stdout == b""
    following = alpo.lines("append", "--client", "hand", "--serial", "2", stdin=b"a\nb\n")
    assert [line["serial"] for line in following] == [2, 3]
    random = alpo.lines("append", "hello")[0]
    retried = alpo.lines("append", "--client", random["client"], "--serial", "1", "--epoch", "0", "hello")[0]
    assert retried == {**random, "duplicate": True}


def test_a_retry_by_hand_under_a_wrong_epoch_says_what_to_try(alpo: Alpo) -> None:
    first, second = (alpo.lines("append", "--client", "two-lives", word)[0] for word in ("a", "b"))
    retry = ["append", "--client", "two-lives", "--serial", "1", "a"]
    assert "the epoch on record (no --epoch was given)" in alpo.says(*retry, code=1)
    assert f"under --epoch {second['epoch']};" in alpo.says(*retry, "--epoch", str(second["epoch"]), code=1)
    assert "outcome unknown" in alpo.says(*retry, "--epoch", str(first["epoch"] - 1), code=3)  # of an earlier life
    later = ["append", "--client", "two-lives", "--serial", "3", "c", "--epoch", str(first["epoch"])]
    assert f"under --epoch {first['epoch']};" in alpo.says(*later, code=1)
    assert alpo.lines(*retry, "--epoch", str(first["epoch"]))[0] == {**first, "duplicate": True}
    random = alpo.lines("append", "hello")[0]
    assert "epoch;" not in alpo.says("append", "--client", random["client"], "--serial", "1", "other", code=1)


def test_an_epoch_that_is_not_known_yet_is_called_that(alpo: Alpo) -> None:
    alpo.run("append", "--client", "known", "x")
    for name in ("known", "unknown"):
        for words in (["append", "x", "--serial", "1", "--client"], ["session", "drop"]):
            said = alpo.says(*words, name, "--epoch", str(10**9), "--timeout", "2", code=1)
            assert f"no server knows an epoch 1000000000 of {name} yet" in said and "lead" not in said


def test_sessions(alpo: Alpo) -> None:
    alpo.run("append", "--client", "short-lived", "x")
    alpo.run("append", "by somebody without a name")
    known = {line["client"]: line for line in alpo.lines("session", "list")}
    assert not any(name.startswith("~") for name in known) and known.keys() == {
        line["client"] for line in alpo.lines("session", "list", "--named")}
    others = [line["client"] for line in alpo.lines("session", "list", "--all") if line["client"] not in known]
    assert others and all(name.startswith("~") for name in others)
    assert f"and {len(others)} of clients without a name" in alpo.says("session", "list", code=0)
    session = known["short-lived"]
    assert list(session) == ["client", "epoch", "last_serial", "last_id", "time"] and session["last_serial"] == 1
    wrong = str(session["epoch"] + 1)
    assert alpo.says("session", "drop", "short-lived", "--epoch", wrong, code=1)
    assert alpo.says("session", "drop", "short-lived", "--epoch", wrong, "--dry-run", code=1)
    looked = alpo.lines("session", "drop", "short-lived", "--epoch", str(session["epoch"]), "--dry-run")
    assert looked == [{**session, "dry_run": True}]
    assert "nothing was changed" in alpo.says("session", "drop", "short-lived", "--dry-run", code=0)
    dropped = alpo.lines("session", "drop", "short-lived", "--epoch", str(session["epoch"]))
    assert dropped == [{"client": "short-lived", "epoch": session["epoch"]}]
    assert "no session" in alpo.says("session", "drop", "short-lived", code=1)
    assert "no session" in alpo.says("session", "drop", "short-lived", "--dry-run", code=1)
    assert "short-lived" not in alpo.out("session", "list")


def test_status(alpo: Alpo) -> None:
    members = alpo.lines("status")[0]["members"]
    assert [member["id"] for member in members] == [1, 2, 3]
    assert all(list(member)[: len(KEYS)] == list(KEYS) and member["reachable"] for member in members)
    assert [member["state"] for member in members].count("leader") == 1
    assert "127.0.0.1" in alpo.out("status")


def test_too_large_is_wrong_input(alpo: Alpo) -> None:
    assert "1048576" in alpo.says("append", "--whole", stdin=bytes((1 << 20) + 1), code=2)
    alpo.run("append", "--whole", stdin=bytes(1 << 20))


def test_a_founded_cluster_is_not_founded_again(alpo: Alpo) -> None:
    assert "belongs to a cluster already" in alpo.says("cluster", "init", code=1)


def test_nobody_there() -> None:
    nobody = Alpo(f"127.0.0.1:{free_port(1)}")
    assert nobody.run("append", "x", "--timeout", "0.3", code=1).stdout == b""
    assert f"{nobody.servers}: connection refused" in nobody.says("read", "--timeout", "2", code=1)
    assert f"{nobody.servers}: connection refused" in nobody.says("read", "--local", "--timeout", "2", code=1)
    members = nobody.lines("status", "--timeout", "0.3", code=1)[0]["members"]
    assert [member["reachable"] for member in members] == [False]


def test_bench(alpo: Alpo, directory: Path, tmp_path: Path) -> None:
    plot = tmp_path / "append.svg"
    flags = ["--seconds", "0.3", "--connections", "2"]
    end = int(alpo.out("append", "a log that is not empty"))
    said = alpo.says("bench", "append", *flags, code=2)
    assert f"its last LSN is {end}" in said and "--yes" in said
    assert alpo.lines("read", "--last", "1")[0]["lsn"] == end
    flags.append("--yes")
    appended = alpo.lines("bench", "append", "--outstanding", "50", "--plot", plot, *flags)[0]
    assert list(appended) == RESULT_KEYS and appended["ops_per_s"] > 0 and appended["errors"] == 0
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert list(alpo.lines("bench", "read", *flags[:-1])[0]) == RESULT_KEYS
    assert "median" in alpo.out("bench", "append", "--batch", "8", *flags)
    assert "must end in .svg" in alpo.says("bench", "append", "--plot", tmp_path / "x.txt", "--yes", code=2)


def test_a_log_that_was_trimmed_to_its_end_is_not_empty(alpo: Alpo) -> None:
    end = int(alpo.out("append", "soon gone"))
    alpo.run("trim", "--before", str(end + 1))
    assert f"its last LSN is {end}" in alpo.says("bench", "append", "--seconds", "0.3", code=2)


def test_starting_what_runs_is_no_harm(alpo: Alpo, directory: Path) -> None:
    pids = json.loads((directory / "cluster.json").read_text())
    assert alpo.out("cluster", "start", "--dir", directory, "--detach").strip() == alpo.servers
    assert "running already" in alpo.says("cluster", "start", "--dir", directory, code=1)
    assert json.loads((directory / "cluster.json").read_text()) == pids
    assert alpo.out("cluster", "list", "--dir", directory).count(str(directory)) == 6
    assert alpo.lines("cluster", "start", "--dir", directory, "--detach") == [{"servers": alpo.servers}]
    listed = alpo.lines("cluster", "list", "--dir", directory)
    assert [list(line) for line in listed] == [["id", "address", "pid", "data", "log"]] * 3
    assert [line["pid"] for line in listed] == [server["pid"] for server in pids["servers"]]
    assert "--servers means nothing" in alpo.says("cluster", "list", "--dir", directory, "--servers", "a:1", code=2)


def test_in_a_shell(alpo: Alpo) -> None:
    env = {**os.environ, "ALPO_SERVERS": alpo.servers, "A": f"{sys.executable} -m alpo_cli.main"}
    script = ["bash", "-eo", "pipefail", "-c", "$A append hello >/dev/null && $A read | head -1 && $A read --last 1"]
    done = subprocess.run(script, env=env, capture_output=True, timeout=60, check=True)
    assert done.stdout.endswith(b"hello\n") and done.stderr == b""
