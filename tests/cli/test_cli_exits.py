"""Exit codes and messages that errors become; command lines that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from alpo import errors
from alpo_cli.app import app
from alpo_cli.exits import Failed, UsageProblem, guarded

UNKNOWN = errors.NotGuaranteed("no answer", client="web-1", serial=17, epoch=4)


def ending(error: BaseException) -> int:
    def body() -> None:
        raise error

    return guarded(body)


@pytest.mark.parametrize(("error", "code"), [
    (errors.Unavailable("x"), 1), (errors.Fenced("x"), 1), (errors.SerialReused("x"), 1), (errors.Skipped("x"), 1),
    (errors.Conflict("x", last_lsn=3), 1), (errors.SerialExpected("x", expected=3), 1),
    (errors.OutOfRange("x", first_lsn=1, last_lsn=2), 1),
    (errors.Refused("x"), 1), (errors.Overloaded("x"), 1), (errors.NoSpace("x"), 1), (errors.ProtocolError("x"), 1),
    (Failed("x"), 1), (OSError(5, "x"), 1), (KeyboardInterrupt(), 1),
    (errors.TooLarge("x"), 2), (UsageProblem("x"), 2), (UNKNOWN, 3), (errors.SessionExpired("x"), 3),
])
def test_exit_codes(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert ending(error) == code
    out, err = capsys.readouterr()
    says = {KeyboardInterrupt: "interrupted", errors.NotGuaranteed: "no answer"}.get(type(error), "x")
    assert (out, err.splitlines()[0]) == ("", f"alpo: {says}")


def test_done_is_zero_and_adds_nothing_to_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: print("what was asked for")) == 0
    assert capsys.readouterr() == ("what was asked for\n", "")


def test_an_unknown_outcome_says_what_to_retry_with(capsys: pytest.CaptureFixture[str]) -> None:
    ending(UNKNOWN)
    assert "--client web-1 --serial 17 --epoch 4" in capsys.readouterr().err
    ending(errors.NotGuaranteed("x", client="~0199", serial=1, epoch=0))
    assert "--client '~0199' --serial 1 --epoch 0" in capsys.readouterr().err


def test_of_a_group_the_worst_counts(capsys: pytest.CaptureFixture[str]) -> None:
    inner = BaseExceptionGroup("", [errors.Unavailable("a"), UNKNOWN])
    assert ending(BaseExceptionGroup("", [Failed("b"), inner])) == 3
    assert "--serial 17" in capsys.readouterr().err


def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        ending(ZeroDivisionError())
    with pytest.raises(BaseExceptionGroup):
        ending(BaseExceptionGroup("", [UNKNOWN, ZeroDivisionError()]))


@pytest.mark.parametrize(("error", "said"), [
    (FileNotFoundError(2, "No such file", "/a"), "alpo: /a: No such file\n"),
    (OSError(28, "No space"), "alpo: No space\n"), (OSError("odd"), "alpo: odd\n"), (OSError(), "alpo: OSError\n"),
])
def test_what_the_system_says_is_told_once_and_without_its_number(
    error: OSError, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending(error) == 1
    assert capsys.readouterr().err == said


def test_a_file_that_cannot_be_read_is_named_once(tmp_path: Path) -> None:
    for words in (["status", "--config", str(tmp_path)], ["append", "--servers", "h:1", "--file", str(tmp_path)]):
        said = CliRunner().invoke(app, words).stderr
        assert said == f"alpo: {words[-2]} {tmp_path}: Is a directory\n"
    (tmp_path / "cluster.json").mkdir()
    said = CliRunner().invoke(app, ["cluster", "list", "--dir", str(tmp_path)]).stderr
    assert said == f"alpo: {tmp_path.resolve()}/cluster.json cannot be read: Is a directory\n"


def test_messages_reach_the_terminal_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    ending(errors.Refused("no\x1b[2J\nlisten"))
    assert capsys.readouterr().err == "alpo: no\\e[2J\nlisten\n"


@pytest.mark.parametrize("words", [
    ["append", "x", "--file", "f"], ["append", "x", "--whole"], ["append", "--null", "--whole"],
    ["append", "--atomic", "--batch", "2"], ["append", "--batch", "0"], ["append", "x", "--serial", "1"],
    ["append", "x", "--client", "c", "--epoch", "1"], ["append", "x", "--client", "c", "--serial", "0"],
    ["append", "x", "--client", ""], ["append", "x", "--client", "c" * 129], ["append", "x", "--client", "~c"],
    ["append", "--file", "/nowhere/at/all"],
    ["read", "--from", "0"], ["read", "--from", "5", "--to", "4"], ["read", "--last", "1", "--from", "1"],
    ["read", "--last", "1", "--to", "4"], ["read", "--last", "1", "--to", "4", "--follow"],
    ["read", "--from", "1", "--since", "1m"], ["read", "--since", "soon"], ["read", "--server", "1"],
    ["read", "--raw", "--json"], ["read", "--limit", "-1"], ["read", "--from", str(2**63)], ["read", "extra"],
    ["status", "--timeout", "0"], ["status", "--timeout", "nan"], ["status", "--servers", "host:"],
    ["status", "--servers", ","], ["status", "--servers", "::1:7100"], ["status", "--servers", "h:70000"],
    ["member", "add", "4=0.0.0.0:1"], ["member", "add", "4=0:1"], ["member", "add", "4=[fe80::1%eth0]:1"],
    ["member", "replace", "4=[::]:1"], ["member", "replace", "4=[::ffff:0.0.0.0]:1"],
    ["member", "add", "4=224.0.0.1:1"],
    ["restore", "f", "--data", "{tmp}", "--id", "1", "--listen", "0.0.0.0:1"],
    ["restore", "f", "--data", "{tmp}", "--id", "1", "--listen", "[fe80::1%eth0]:1"],
    ["status", "--servers", "[fe80::1%eth0]:1"], ["certs", "make", "--dir", "{tmp}/c", "--server", "1=h,0.0.0.0"],
    ["status", "--config", "/nowhere/at/all"], ["nonsense"], ["session", "drop"],
    ["session", "drop", "n", "--epoch", "0"], ["bench", "append", "--outstanding", "1", "--connections", "2"],
    ["bench", "failover", "--dir", "d", "--signal", "HUP"],
    ["cluster", "start", "--dir", "{tmp}", "--size", "0"],
    ["cluster", "start", "--dir", "{tmp}", "--base-port", "65535"],
    ["cluster", "start"],
])
def test_wrong_usage_ends_with_2(words: list[str], tmp_path: Path) -> None:
    env = {"ALPO_SERVERS": "127.0.0.1:1"}
    result = CliRunner().invoke(app, [word.format(tmp=tmp_path) for word in words], env=env)
    assert result.exit_code == 2, result.output
    assert result.stderr and not result.stdout
