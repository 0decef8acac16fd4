"""`alpo append --expect-last` against real servers."""

from __future__ import annotations

import json

import pytest
from alpo_command import Alpo


def new_last_lsn(alpo: Alpo) -> int:
    return int(alpo.out("append", "x").strip())


def test_right_behind_the_last_lsn_or_not_at_all(alpo: Alpo) -> None:
    last = new_last_lsn(alpo)
    assert alpo.out("append", "a", "--expect-last", str(last)) == f"{last + 1}\n"
    refused = alpo.run("append", "b", "--expect-last", str(last), code=1)
    assert refused.stdout == b""
    assert refused.stderr == f"alpo: the log's last LSN is {last + 1}, not the one expected\n".encode()
    refused = alpo.run("append", "b", "--expect-last", str(last + 9), "--json", code=1)
    assert json.loads(refused.stdout) == {"lsn": None, "last_lsn": last + 1}
    assert alpo.run("append", "b", "--expect-last", "0", code=1).stderr == refused.stderr
    assert int(alpo.out("append", "c")) == last + 2


def test_a_batch_and_a_whole_input(alpo: Alpo) -> None:
    last = new_last_lsn(alpo)
    assert alpo.out("append", "a", "b", "--atomic", "--expect-last", str(last)) == f"{last + 1}-{last + 2}\n"
    (line,) = alpo.lines("append", "--whole", "--expect-last", str(last + 2), stdin=b"c\nd\n")
    assert (line["lsn"], line["count"]) == (last + 3, 1)
    (line,) = alpo.lines("append", "--atomic", "--expect-last", str(last + 3), stdin=b"e\nf\n")
    assert (line["lsn"], line["count"]) == (last + 4, 2)
    refused = alpo.run("append", "--atomic", "--expect-last", str(last), stdin=b"g\nh\n", code=1)
    assert f"last LSN is {last + 5}" in refused.stderr.decode()


def test_a_retry_is_judged_by_its_serial_first(alpo: Alpo) -> None:
    last = new_last_lsn(alpo)
    (first,) = alpo.lines("append", "a", "--client", "expecting", "--expect-last", str(last))
    assert first["lsn"] == last + 1
    alpo.out("append", "x")
    name = ["--client", "expecting", "--serial"]
    (again,) = alpo.lines("append", "a", *name, "1", "--expect-last", str(last))
    assert (again["lsn"], again["duplicate"]) == (last + 1, True)
    refused = alpo.run("append", "b", *name, "2", "--expect-last", str(last), "--json", code=1)
    assert json.loads(refused.stdout) == {"lsn": None, "last_lsn": last + 2}
    (next_one,) = alpo.lines("append", "b", *name, "2", "--expect-last", str(last + 2))
    assert (next_one["lsn"], next_one["duplicate"]) == (last + 3, False)
    # Another process may have sent it: once the log has come so far, that transmission may be appended.
    unknown = alpo.run("append", "c", *name, "3", "--expect-last", str(last + 50), code=3)
    assert f"--serial 3 --epoch {first['epoch']} --expect-last {last + 50}\n" in unknown.stderr.decode()


@pytest.mark.parametrize("words", [["a", "b"], [], ["a", "--batch", "1"], ["--batch", "2"]])
def test_it_is_for_one_append(words: list[str]) -> None:
    refused = Alpo().run("append", *words, "--expect-last", "1", code=2, stdin=b"")
    assert refused.stderr == b"alpo: --expect-last is for one append: one TEXT, --whole or --atomic\n"
    assert b"at least 0" in Alpo().run("append", "a", "--expect-last", "-1", code=2).stderr
