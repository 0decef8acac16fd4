"""`alpo state` against real servers: values in and out, versions, counters, lists, changes as they come."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
from pathlib import Path

import pytest
from alpo_command import COMMAND, Alpo, environment, read_line, until
from typer.testing import CliRunner

from alpo_cli.app import app

BYTES = bytes(range(256))
VARIABLE = ["name", "version", "created", "time", "lease_s", "value"]


def at_once(alpo: Alpo, *commands: list[str]) -> list[tuple[int, bytes]]:
    """Exit codes and outputs of commands that run at the same time."""
    running = [
        subprocess.Popen([*COMMAND, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, env=environment(alpo.servers))
        for words in commands
    ]
    printed = [process.communicate(timeout=60)[0] for process in running]
    return [(process.returncode, out) for process, out in zip(running, printed, strict=True)]


@pytest.mark.parametrize("words", [
    ["state", "get", "a"], ["state", "get", "a", "--local"], ["state", "names"], ["state", "watch"],
    ["state", "status"], ["state", "snapshot"], ["state", "rm", "a"], ["state", "rm", "a", "--if-version", "5"],
    ["registry", "show", "a"], ["registry", "rows", "a"],
])
def test_what_only_looks_makes_no_state(alpo: Alpo, words: list[str]) -> None:
    """This test is the module's first: no process has written yet."""
    done = alpo.run(*words, code=1)
    assert done.stdout == b"" and done.stderr.startswith(b"alpo: this log holds no state: the first write")
    assert alpo.lines("status")[0]["members"][0]["last_lsn"] == 0


def test_a_variable_is_written_and_read(alpo: Alpo) -> None:
    version = int(alpo.out("state", "set", "motd", "grün"))
    assert alpo.out("state", "get", "motd") == "grün\n"
    (found,) = alpo.lines("state", "get", "motd")
    assert list(found) == VARIABLE
    assert (found["name"], found["version"], found["created"], found["lease_s"], found["value"]) == (
        "motd", version, version, None, "grün")
    (written,) = alpo.lines("state", "set", "motd", "b", "--lease", "1000")
    assert written == {"name": "motd", "version": version + 1, "changed": None}
    (found,) = alpo.lines("state", "get", "motd", "--at-least", str(version + 1))
    assert (found["version"], found["created"], found["lease_s"], found["value"]) == (
        version + 1, version, 1000.0, "b")
    assert alpo.lines("state", "get", "motd", "--local") == [found]
    said = alpo.says("state", "get", "motd", "--at-least", str(version + 999), "--timeout", "0.5", code=1)
    assert f"LSN {version + 999} did not come" in said


@pytest.mark.parametrize(("value", "way"), [
    (b"", "stdin"), (b"a\n", "file"), (b"\0", "dash"), (BYTES, "stdin"), (b"-5", "file"),
])
def test_values_go_in_and_out_as_they_are(alpo: Alpo, tmp_path: Path, value: bytes, way: str) -> None:
    (tmp_path / "file").write_bytes(value)
    words = {"stdin": [], "file": ["--file", str(tmp_path / "file")], "dash": ["--file", "-"]}[way]
    alpo.run("state", "set", "raw", *words, stdin=b"no" if way == "file" else value)
    assert alpo.run("state", "get", "raw", "--raw").stdout == value
    assert alpo.run("state", "get", "raw").stdout == value + b"\n"
    (found,) = alpo.lines("state", "get", "raw")
    if value == BYTES:
        assert base64.b64decode(found["value_base64"]) == value and "value" not in found
    else:
        assert found["value"].encode() == value


def test_an_argument_is_taken_byte_for_byte(alpo: Alpo) -> None:
    subprocess.run([*COMMAND, "state", "set", b"argument", b"\xff\n"], env=environment(alpo.servers), check=True,
                   stdout=subprocess.DEVNULL)
    assert alpo.run("state", "get", "argument", "--raw").stdout == b"\xff\n"
    alpo.run("state", "set", "argument", "--", "--json")
    assert alpo.out("state", "get", "argument") == "--json\n"


def test_a_value_that_is_too_large_is_refused(alpo: Alpo) -> None:
    large = b"x" * (7 << 20)
    assert alpo.lines("state", "set", "large", stdin=large)[0]["version"] > 0
    assert alpo.run("state", "get", "large", "--raw").stdout == large
    assert "more than 7340032 bytes" in alpo.says("state", "set", "large", stdin=large + b"x", code=2)
    alpo.run("state", "rm", "large")


def test_of_shells_that_write_on_one_version_one_succeeds(alpo: Alpo) -> None:
    version = alpo.out("state", "set", "contended", "0").strip()
    for _ in range(3):
        ended = at_once(alpo, *(
            ["state", "set", "contended", str(n), "--if-version", version, "--json"] for n in range(2)
        ))
        assert sorted(code for code, _ in ended) == [0, 1]
        (won,) = (json.loads(out) for code, out in ended if code == 0)
        (lost,) = (json.loads(out) for code, out in ended if code == 1)
        assert lost == {"name": "contended", "version": None, "changed": won["version"]}
        (found,) = alpo.lines("state", "get", "contended")
        assert found["version"] == won["version"] and ended[int(found["value"])][0] == 0
        version = str(won["version"])


def test_a_false_condition_says_what_is_there(alpo: Alpo) -> None:
    version = int(alpo.out("state", "set", "tight", "a", "--absent"))
    assert alpo.says("state", "set", "tight", "b", "--absent", code=1) == (
        f"alpo: tight is at {version}, not absent\n")
    assert alpo.says("state", "set", "tight", "b", "--if-version", "0", code=1) == (
        f"alpo: tight is at {version}, not absent\n")
    assert alpo.says("state", "rm", "tight", "--if-version", "1", code=1) == f"alpo: tight is at {version}, not at 1\n"
    refused = {"name": "tight", "version": None, "changed": version}
    assert alpo.lines("state", "rm", "tight", "--if-version", "1", code=1) == [refused]
    assert alpo.lines("state", "set", "tight", "b", "--if-version", "1", code=1) == [refused]
    (gone,) = alpo.lines("state", "rm", "tight", "--if-version", str(version))
    assert gone["version"] > version and gone == {"name": "tight", "version": gone["version"], "changed": None}
    for words in (["rm", "tight"], ["rm", "tight", "--if-version", "1"], ["set", "tight", "b", "--if-version", "1"]):
        assert alpo.lines("state", *words, code=1) == [{"name": "tight", "version": None, "changed": 0}]
        assert alpo.says("state", *words, code=1) == "alpo: there is no variable tight\n"
    done = alpo.run("state", "get", "tight", "--json", code=1)
    assert (done.stdout, done.stderr) == (b"", b"alpo: there is no variable tight\n")


def test_a_counter_counts_all_shells(alpo: Alpo) -> None:
    assert alpo.out("state", "add", "n") == "1\n"
    assert {code for code, _ in at_once(alpo, *(["state", "add", "n", "10"] for _ in range(6)))} == {0}
    assert alpo.out("state", "add", "n", "-62") == "-1\n"
    (line,) = alpo.lines("state", "add", "n", "-2")
    assert line == {"name": "n", "version": alpo.lines("state", "get", "n")[0]["version"], "value": -3}
    alpo.run("state", "set", "word", "x")
    assert "holds no integer" in alpo.says("state", "add", "word", code=1)


def test_a_value_that_is_json_is_shown_as_one(alpo: Alpo) -> None:
    for text, shown in (('{"rate": 5}', {"rate": 5}), ("7", 7), ("null", None), ('"a"', "a")):
        alpo.run("state", "set", "shape", text)
        (line,) = alpo.lines("state", "get", "shape")
        assert list(line) == [*VARIABLE, "value_json"] and (line["value"], line["value_json"]) == (text, shown)
    for text in ("NaN", "{", "", "[" * 100_000, "-1e999", '"\\udc00"'):
        alpo.run("state", "set", "shape", stdin=text.encode())
        assert list(alpo.lines("state", "get", "shape")[0]) == VARIABLE


def test_a_transaction_is_done_as_a_whole_or_not_at_all(alpo: Alpo, tmp_path: Path) -> None:
    version = int(alpo.out("state", "set", "txn/a", "1"))
    file = tmp_path / "move.json"
    file.write_text(json.dumps({
        "if": [{"name": "txn/a", "version": version}, {"name": "txn/b", "version": 0}],
        "do": [{"put": "txn/b", "value_base64": base64.b64encode(BYTES).decode(), "lease_s": 600}, {"expunge": "txn/a"},
               {"put": "txn/c", "value_json": {"n": [1]}}, {"add": "txn/n", "number": 5}, {"add": "txn/n"},
               {"keep": "txn/b"}],
    }))
    (done,) = alpo.lines("state", "txn", file)
    assert done == {"version": done["version"], "changed": None, "sums": [5, 6]}
    found = {name: alpo.lines("state", "get", f"txn/{name}")[0] for name in "bcn"}
    assert {one["version"] for one in found.values()} == {done["version"]} and found["b"]["lease_s"] is None
    assert (base64.b64decode(found["b"]["value_base64"]), found["c"]["value_json"]) == (BYTES, {"n": [1]})
    assert alpo.says("state", "txn", file, code=1) == "alpo: there is no variable txn/a\n"
    assert alpo.lines("state", "txn", "-", stdin=file.read_bytes(), code=1) == [
        {"name": "txn/a", "version": None, "changed": 0}]
    assert alpo.out("state", "get", "txn/n") == "6\n"


def test_one_leads_and_the_next_follows(alpo: Alpo) -> None:
    with alpo.under_way("state", "elect", "boss", "--observe") as seen:
        assert read_line(seen) == "nobody\n"
        with alpo.under_way("state", "elect", "boss", "one") as one:
            token = int(read_line(one))
            assert read_line(seen) == f"{token}\tone\n"
            with alpo.under_way("state", "elect", "boss", "two", "--json") as two:
                one.send_signal(signal.SIGINT)
                assert (one.wait(30), one.communicate()[1]) == (0, b"")
                second = json.loads(read_line(two))
                assert second == {"name": "boss", "token": second["token"], "value": "two"} and second["token"] > token
                leaders = [read_line(seen)]
                if leaders == ["nobody\n"]:  # the observer may see one leave before two comes
                    leaders.append(read_line(seen))
                assert leaders[-1] == f"{second['token']}\ttwo\n"
                alpo.run("state", "rm", "boss")  # by anybody's hand
                assert two.wait(30) == 3
                assert b"this process leads boss no more" in two.communicate()[1]
        seen.send_signal(signal.SIGINT)
        assert seen.wait(30) == 0


def test_a_lease_ends(alpo: Alpo) -> None:
    alpo.run("state", "set", "short", "x", "--lease", "0.3")

    def gone() -> bool:
        alpo.run("state", "add", "tick")  # the log's own time goes on with what is appended
        return alpo.run("state", "get", "short", code=None).returncode == 1

    until(gone)


def test_names_are_listed(alpo: Alpo) -> None:
    for name in ("list/b", "list/a", "list/ü", "other"):
        alpo.run("state", "set", name, "x")
    assert alpo.out("state", "names", "list/") == "list/a\nlist/b\nlist/ü\n"
    lines = alpo.lines("state", "names", "list/")
    assert [list(line) for line in lines] == [["name", "version"]] * 3
    assert lines[1]["version"] == alpo.lines("state", "get", "list/b")[0]["version"]
    assert alpo.out("state", "names", "none") == "" and "other" in alpo.out("state", "names").splitlines()


def test_changes_are_watched_until_ctrl_c(alpo: Alpo) -> None:
    version = alpo.out("state", "set", "seen/a", "1").strip()
    words = ["state", "watch", "seen/"]
    with alpo.under_way(*words) as watch, alpo.under_way(*words, "--json") as json_:
        assert read_line(watch) == f"seen/a\t{version}\t1\n"
        assert json.loads(read_line(json_))["value"] == "1"
        second = alpo.out("state", "set", "seen/b", "a\tb\nc").strip()
        assert read_line(watch) == f"seen/b\t{second}\ta\\tb\\nc\n"
        assert json.loads(read_line(json_))["value"] == "a\tb\nc"
        alpo.run("state", "set", "unseen", "x")
        alpo.run("state", "rm", "seen/a")
        assert read_line(watch) == "seen/a\tgone\n"
        gone = json.loads(read_line(json_))
        assert list(gone) == [*VARIABLE, "gone"]
        assert (gone["name"], gone["version"], gone["value"], gone["gone"]) == ("seen/a", 0, None, True)
        for process in (watch, json_):
            process.send_signal(signal.SIGINT)
            assert (process.wait(30), process.communicate()) == (0, (b"", b""))


def test_every_change_is_watched(alpo: Alpo) -> None:
    with alpo.under_way("state", "watch", "every", "--every") as watch:
        alpo.run("state", "set", "every", "0")
        assert read_line(watch).endswith("\t0\n")
        for n in range(1, 4):
            alpo.run("state", "set", "every", str(n))
        assert [read_line(watch)[-2:] for _ in range(3)] == ["1\n", "2\n", "3\n"]


def test_a_reader_of_changes_may_leave(alpo: Alpo) -> None:
    alpo.run("state", "set", "left", "0")
    with alpo.under_way("state", "watch", "left") as watch:
        assert read_line(watch).endswith("\t0\n")
        assert watch.stdout is not None and watch.stderr is not None
        watch.stdout.close()
        alpo.run("state", "set", "left", "1")
        assert watch.wait(30) == 0
        assert watch.stderr.read() == b""


def test_the_status_tells_what_the_fold_has(alpo: Alpo) -> None:
    alpo.run("state", "set", "one", "x")
    (found,) = alpo.lines("state", "status")
    assert list(found) == ["state", "lsn", "time", "variables", "bytes", "invalid", "foreign_lsn", "snapshot",
                           "previous", "bytes_since"]
    assert len(found["state"]) == 32 and (found["snapshot"], found["previous"]) == (None, None)
    assert found["variables"] == len(alpo.lines("state", "names"))
    assert found["state"] in alpo.out("state", "status")


def test_snapshots_are_taken_and_trimmed_behind(alpo: Alpo) -> None:
    (first,) = alpo.lines("state", "snapshot")
    assert list(first) == ["begin", "end", "parts", "bytes", "first_lsn"] and first["first_lsn"] == 1
    before = alpo.lines("state", "names")
    (second,) = alpo.lines("state", "snapshot", "--trim")
    assert second["first_lsn"] == first["begin"] < first["end"] < second["begin"]
    (found,) = alpo.lines("state", "status")
    assert found["snapshot"] == [second["begin"], second["end"]]
    assert found["previous"] == [first["begin"], first["end"]]
    assert alpo.lines("state", "names") == before
    said = alpo.says("state", "snapshot", code=0)
    assert said.startswith("a snapshot of LSN ") and f"the log begins at LSN {first['begin']}\n" in said


def test_a_cache_that_cannot_be_made_is_no_error(
    alpo: Alpo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caches: Path
) -> None:
    assert list((caches / "alpo").iterdir())
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    alpo.run("state", "set", "cached", "x")
    assert alpo.out("state", "get", "cached") == "x\n"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert alpo.out("state", "get", "cached") == "x\n"
    (cache,) = (tmp_path / "alpo").iterdir()
    cache.write_bytes(b"rubbish")
    assert alpo.out("state", "get", "cached") == "x\n"


def test_registries_are_made_and_looked_at(alpo: Alpo) -> None:
    assert alpo.says("registry", "show", "agents", code=1) == "alpo: there is no registry agents\n"
    (made,) = alpo.lines("registry", "init", "agents")
    assert list(made) == ["name", "leader", "version", "token", "count"]
    assert (made["name"], made["leader"], made["count"], made["version"]) == ("agents", None, 0, made["token"])
    assert "there is a registry agents already" in alpo.says("registry", "init", "agents", code=1)
    assert alpo.lines("registry", "show", "agents") == [made]
    lead(alpo.servers)
    (led,) = alpo.lines("registry", "show", "agents")
    assert (led["leader"], led["count"], led["token"] > made["token"]) == ({"host": "m1"}, 2, True)
    assert '{"host":"m1"}' in alpo.out("registry", "show", "agents")
    assert alpo.out("registry", "rows", "agents") == 'a1\t{"cpus":24}\na2\t{"site":"köln"}\n'
    assert alpo.lines("registry", "rows", "agents") == [
        {"id": "a1", "value": {"cpus": 24}}, {"id": "a2", "value": {"site": "köln"}}]
    assert alpo.out("state", "names", "--rows", "agents") == "a1\na2\n"
    assert [line["name"] for line in alpo.lines("state", "names", "a2", "--rows", "agents")] == ["a2"]
    alpo.run("state", "set", "plain", "x")
    assert "is no header of a registry" in alpo.says("registry", "show", "plain", code=1)


def lead(servers: str) -> None:
    """Lead the registry for a moment, strictly."""
    import anyio

    import alpo.state
    from alpo.registry import Admit, Registry

    async def main() -> None:
        async with alpo.state.connect(servers) as state:
            async with Registry(state, "agents", info={"host": "m1"}, strict=True) as registry:
                await registry.apply(Admit("a1", {"cpus": 24}))
                await registry.apply(Admit("a2", {"site": "köln"}))

    anyio.run(main)


@pytest.mark.parametrize(("words", "said"), [
    (["get", ""], "NAME: a name is 1 to 512 bytes"), (["get", "a\nb"], "without control characters"),
    (["set", "x" * 513, "v"], "1 to 512 bytes"), (["set", "a\0b", "v"], "is the name of a row"),
    (["rm", "\udcff"], "NAME: a name is UTF-8"), (["names", "--rows", ""], "--rows: a name is 1 to 512 bytes"),
    (["lock", "a\x7f", "--", "true"], "without control characters"),
    (["get"], "NAME is missing"), (["get", "a", "--local", "--at-least", "1"], "--local does not go with --at-least"),
    (["get", "a", "--raw", "--json"], "--raw does not go with --json"),
    (["get", "a", "--at-least", "-1"], "--at-least must be at least 0"),
    (["set", "a", "b", "--file", "c"], "VALUE does not go with --file"),
    (["set", "a", "b", "--absent", "--if-version", "7"], "--absent does not go with --if-version"),
    (["set", "a", "b", "--if-version", "x"], "--if-version must be a whole number"),
    (["set", "a", "b", "--lease", "0"], "--lease must be"), (["add", "a", "1.5"], "N must be a whole number"),
    (["add", "a", str(2**63)], "N must be at most"), (["add", "a", "--jsno"], "N must be a whole number, not '--jsno'"),
    (["add", "--lease", "5"], "add has no option --lease"),
    (["rm", "a", "--if-version", "0"], "must be at least 1"),
    (["lock", "a", "--no-wait", "--wait", "1", "--", "true"], "--no-wait does not go with --wait"),
    (["elect", "a", "b", "--observe"], "VALUE does not go with --observe"),
    (["txn", "/no/such"], "/no/such: No such file"),
    (["lock", "a"], "COMMAND … is missing"), (["lock", "a", "--ttl", "0", "--", "true"], "--ttl must be"),
])
def test_wrong_usage(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["state", *words], env={"ALPO_SERVERS": "127.0.0.1:1"})
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert said in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(("text", "said"), [
    ("", "the transaction: "), ("[]", "the transaction: a JSON object is wanted"),
    ("{}", '"do" a list that is not empty'),
    ('{"do": [{"add": "a"}], "when": []}', "there is no key 'when' here; there are do, if"),
    ('{"do": ["add a"]}', 'operation 1 of "do": a JSON object with one of the keys put, expunge, add, keep is wanted'),
    ('{"do": [{"add": "a"}, {"add": "b", "put": "c"}]}', 'operation 2 of "do": a JSON object with one of'),
    ('{"do": [{"add": "a", "nubmer": 2}]}', "there is no key 'nubmer' here; there are add, number"),
    ('{"do": [{"add": "a", "number": "2"}]}', "what is added is an int"),
    ('{"do": [{"put": "a"}]}', "put takes one of value, value_json and value_base64"),
    ('{"do": [{"put": "a", "value": 5}]}', "value is text"),
    ('{"do": [{"put": "a", "value_base64": "?"}]}', "operation 1"),
    ('{"do": [{"expunge": ""}]}', "a name is 1 to 512 bytes"),
    ('{"do": [{"keep": "a", "lease_s": -1}]}', "lease_s is more"),
    ('{"if": [{"name": "a"}], "do": [{"add": "a"}]}', 'condition 1 of "if": '),
    ('{"if": [{"version": 1}], "do": [{"add": "a"}]}', "a name is 1 to 512 bytes"),
    ('{"if": [{"name": "a", "value": 1}], "do": [{"add": "a"}]}', "there is no key 'value' here"),
])
def test_wrong_transactions(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text)
    words = ["state", "txn", str(tmp_path / "t.json")]
    result = CliRunner().invoke(app, words, env={"ALPO_SERVERS": "127.0.0.1:1"})
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert said in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["init", "show", "rows"])
def test_wrong_names_of_registries(command: str) -> None:
    result = CliRunner().invoke(app, ["registry", command, "a\tb"], env={"ALPO_SERVERS": "127.0.0.1:1"})
    assert result.exit_code == 2 and "without control characters" in result.stderr
