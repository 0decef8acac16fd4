"""`alpo import` against live servers: stopped on the way and gone on with; and that what is read can be put back."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from alpo_command import COMMAND, Alpo, environment, read_line, until, write

from alpo_cli.commands.import_ import payload_of

KEYS = ["first_lsn", "last_lsn", "count", "skipped"]
#: Payloads that a line-based tool would damage.
AWKWARD = [
    b"", b"a\nb", b"\r\n", b"\xff\xfe\0", bytes(range(256)), "grün \u2028 \U0001f600".encode(), b'{"a": [1, "x"]}',
]


def last_lsn(alpo: Alpo) -> int:
    return max(int(member["last_lsn"]) for member in alpo.lines("status")[0]["members"])


def payloads(alpo: Alpo, client: str) -> list[str]:
    return [line["payload"] for line in alpo.lines("read", "--client", client)]


def test_lines_of_a_file_and_of_stdin(alpo: Alpo, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\n\nb")
    begin = last_lsn(alpo)
    (line,) = alpo.lines("import", file)
    assert list(line) == KEYS
    assert line == {"first_lsn": begin + 1, "last_lsn": begin + 3, "count": 3, "skipped": 0}
    assert alpo.out("read", "--from", str(begin + 1)) == "a\n\nb\n"
    assert alpo.says("import", stdin=b"c\nd\n", code=0) == f"2 appended, LSN {begin + 4} to {begin + 5}\n"
    assert alpo.lines("import", "-") == [{"first_lsn": None, "last_lsn": None, "count": 0, "skipped": 0}]


def test_a_named_import_goes_on_where_it_ended(alpo: Alpo, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"one\ntwo\n")
    (first,) = alpo.lines("import", file, "--client", "grows")
    assert (first["count"], first["skipped"]) == (2, 0)
    (again,) = alpo.lines("import", file, "--client", "grows")
    assert again == {"first_lsn": None, "last_lsn": None, "count": 0, "skipped": 2}
    file.write_bytes(b"one\ntwo\nthree")
    said = alpo.says("import", file, "--client", "grows", code=0)
    assert said == f"1 appended, LSN {last_lsn(alpo)}; 2 had been before\n"
    assert payloads(alpo, "grows") == ["one", "two", "three"]


@pytest.mark.parametrize(("content", "said"), [
    (b"one\nother\nthree\n", "line 2: the log has another payload under serial 2"),
    (b"one\n", "has appended 2 payloads, "), (b"", "has only 0 lines"),
])
def test_another_input_under_the_name_is_refused(alpo: Alpo, tmp_path: Path, content: bytes, said: str) -> None:
    alpo.run("import", "--client", "one-input", stdin=b"one\ntwo\n")
    file = tmp_path / "other"
    file.write_bytes(content)
    assert said in alpo.says("import", file, "--client", "one-input", code=2)
    assert payloads(alpo, "one-input") == ["one", "two"]


def test_what_was_trimmed_cannot_be_compared_and_is_skipped(alpo: Alpo) -> None:
    (line,) = alpo.lines("import", "--client", "trimmed", stdin=b"one\ntwo\n")
    alpo.run("trim", "--before", str(line["last_lsn"] + 1))
    (line,) = alpo.lines("import", "--client", "trimmed", stdin=b"one\ntwo\nthree\n")
    assert (line["count"], line["skipped"]) == (1, 2)


@pytest.mark.parametrize("with_what", [signal.SIGKILL, signal.SIGINT])
def test_stopped_in_the_middle_nothing_is_lost_and_nothing_doubled(
    alpo: Alpo, tmp_path: Path, with_what: signal.Signals
) -> None:
    name, rounds, each = f"stopped-{with_what.name}", 2, 20_000
    lines = [b"%d\n" % n for n in range((rounds + 1) * each)]
    begin = last_lsn(alpo)
    for round in range(1, rounds + 1):
        with alpo.under_way("import", "--client", name) as importing:
            write(importing, b"".join(lines[: round * each]))  # all but the last few are taken; the input goes on
            importing.send_signal(with_what)
            code = importing.wait(60)
            assert importing.stderr is not None
            said = importing.stderr.read().decode()
        if with_what is signal.SIGINT:
            assert code in (1, 3)
            assert f"the same command again, with --client {name}; nothing is appended twice" in said
    (line,) = alpo.lines("import", "--client", name, stdin=b"".join(lines))
    assert line["count"] + line["skipped"] == len(lines) and line["skipped"] > each
    assert alpo.run("read", "--from", str(begin + 1), "--client", name).stdout == b"".join(lines)


@pytest.mark.parametrize(("line", "said"), [
    (b"text", "no JSON object"), (b"17", "no JSON object"), (b"", "no JSON object"), (b"[]", "no JSON object"),
    (b"{}", "no payload, or payload_base64"), (b'{"payload": 17}', "no payload"), (b'{"payload": null}', "no payload"),
    (b'{"payload": "a", "payload_base64": "YQ=="}', "no payload"), (b'{"payload_base64": "Y"}', "base64"),
    (b'{"payload": "\\ud800"}', "surrogates"), (b"\xff", "no JSON object"), (b"[" * 100_000, "no JSON"),
])
def test_json_lines_that_are_none(line: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        payload_of(line)


def test_json_lines_up_to_the_wrong_one_are_appended(alpo: Alpo) -> None:
    begin = last_lsn(alpo)
    ended = alpo.run("import", "--json-lines", "--json", stdin=b'{"payload": "right"}\ntext\n', code=2)
    assert json.loads(ended.stdout) == {"first_lsn": begin + 1, "last_lsn": begin + 1, "count": 1, "skipped": 0}
    assert ended.stderr == b"alpo: stdin, line 2: no JSON object: 'text'\n"
    assert alpo.out("read", "--from", str(begin + 1)) == "right\n"


def test_a_line_that_is_too_long_is_named(alpo: Alpo) -> None:
    said = alpo.says("import", stdin=b"a\n" + b"x" * ((1 << 20) + 1) + b"\n", code=2)
    assert "stdin, line 2: " in said and "1 appended" in said


@pytest.mark.parametrize(("words", "said"), [
    (["import", "no-such-file"], "no-such-file: No such file"), (["import", "."], "Is a directory"),
    (["import", "--client", "~x"], "UUIDv7"), (["import", "--client", "a\nb"], "control characters"),
    (["import", "--client", "~01890a5d-ac96-774b-bcce-b302099a8057"], "names do not begin with ~"),
])
def test_wrong_usage(alpo: Alpo, words: list[str], said: str) -> None:
    assert said in alpo.says(*words, code=2)


def test_nobody_there() -> None:
    for words in (["import"], ["import", "--client", "x"]):
        said = Alpo("127.0.0.1:1").says(*words, "--timeout", "2", stdin=b"x\n", code=1)
        assert "connection refused" in said.lower()


# -- there and back


def written(alpo: Alpo) -> int:
    """Append the awkward payloads; return the first one's LSN."""
    lsns = [json.loads(alpo.out("append", "--whole", "--json", stdin=payload))["lsn"] for payload in AWKWARD]
    return int(lsns[0])


def test_what_is_read_with_json_is_imported_byte_for_byte(alpo: Alpo) -> None:
    first = written(alpo)
    lines = alpo.out("read", "--from", str(first), "--json").encode()
    (line,) = alpo.lines("import", "--json-lines", "--client", "json-copy", stdin=lines)
    assert line["count"] == len(AWKWARD)
    raw = [alpo.run("read", "--raw", "--from", str(lsn), "--to", str(lsn)).stdout
           for lsn in range(line["first_lsn"], line["last_lsn"] + 1)]
    assert raw == AWKWARD


def test_what_is_exported_is_imported_byte_for_byte(alpo: Alpo, directory: Path, tmp_path: Path) -> None:
    first = written(alpo)
    alpo.run("backup", tmp_path / "b.alpo")
    exported = alpo.run("log", "export", tmp_path / "b.alpo", "--from", str(first)).stdout
    (line,) = alpo.lines("import", "--json-lines", stdin=exported)
    assert alpo.run("read", "--raw", "--from", str(line["first_lsn"])).stdout == b"".join(AWKWARD)
    assert line["count"] == len(AWKWARD)


def test_what_is_read_with_null_is_appended_byte_for_byte(alpo: Alpo) -> None:
    good = [payload for payload in AWKWARD if b"\0" not in payload]
    (batch,) = alpo.lines("append", "--null", "--atomic", stdin=b"".join(p + b"\0" for p in good))
    pipe = (f"{' '.join(COMMAND)} read --null --from {batch['lsn']} |"
            f" {' '.join(COMMAND)} append --null --client null-copy")
    subprocess.run(["bash", "-eo", "pipefail", "-c", pipe], env=environment(alpo.servers), timeout=60, check=True)
    assert alpo.run("read", "--client", "null-copy", "--null").stdout == b"".join(p + b"\0" for p in good)
    alpo.run("append", "--whole", stdin=b"a\0b")
    assert "contains NUL" in alpo.says("read", "--last", "1", "--null", code=1)


def test_read_in_other_forms(alpo: Alpo) -> None:
    lsn = int(alpo.out("append", "--client", "forms", 'a "b",c'))
    (line,) = alpo.lines("read", "--last", "1")
    assert alpo.out("read", "--last", "1", "--long") == f"{lsn}  {line['time']}  forms  a \"b\",c\n"
    assert alpo.out("read", "--last", "1", "--format", "{lsn} {serial}{payload}") == f"{lsn} 1a \"b\",c\n"
    assert alpo.out("read", "-n", "1", "--client", "forms", "--csv").splitlines()[1] == (
        f'{lsn},{line["id"]},{line["term"]},{line["time"]},forms,1,"a ""b"",c",')
    assert alpo.out("read", "--csv", "--client", "nobody") == "lsn,id,term,time,client,serial,payload,payload_base64\n"
    alpo.run("append", '{"user": "ann"}')
    assert alpo.lines("read", "--last", "1", "--json-payload")[0]["payload_json"] == {"user": "ann"}
    assert "{colour}" in alpo.says("read", "--format", "{colour}", code=2)


def test_until_a_time(alpo: Alpo) -> None:
    first, second = map(int, alpo.out("append", "until", "until").split())
    (line,) = alpo.lines("read", "--from", str(second))
    until(lambda: bool(alpo.run("append", "later")) and alpo.lines("read", "--last", "1")[0]["time"] > line["time"])
    for flags in ([], ["--follow"]):
        found = alpo.lines("read", "--from", str(first), "--until", line["time"], *flags)
        assert [one["lsn"] for one in found][:2] == [first, second]
        assert max(one["time"] for one in found) == line["time"]
    assert alpo.out("read", "--until", "2000-01-01T00:00:00Z") == ""
    assert "--last does not go with --until" in alpo.says("read", "--last", "1", "--until", "1m", code=2)
    assert "is after --until" in alpo.says("read", "--since", "1m", "--until", "2m", code=2)


def test_following_in_other_forms_a_line_at_a_time(alpo: Alpo) -> None:
    for flags, heads in ((["--csv"], 1), (["--long"], 0), (["--format", "{payload}"], 0)):
        begin = last_lsn(alpo) + 1
        with alpo.under_way("read", "-f", "--from", str(begin), "-n", "2", *flags) as reader:
            for word in ("one", "two"):
                alpo.run("append", word)
                for _ in range(heads if word == "one" else 0):
                    assert read_line(reader).startswith("lsn,")
                assert word in read_line(reader)
            assert reader.wait(30) == 0
